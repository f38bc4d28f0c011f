# SPDX-License-Identifier: GPL-3.0-or-later
"""Which operand of a command has which role."""

from __future__ import annotations

from sandboxd.effects.argv import several
from sandboxd.effects.call import Call
from sandboxd.effects.roles import TEXT, Role
from sandboxd.effects.rows import Level, Operand, When
from sandboxd.model import Word

SOURCES = frozenset(("path.read", "path.tree", "path.rename", "path.linked"))


class Assigning(Call):
    """`least` and `most`: how many operands there are; `most` is None when that is not known."""

    __slots__ = ("least", "most")

    least: int
    most: int | None

    def _specs(self, whens: list[When], level: Level) -> list[tuple[Operand, ...]]:
        """The operand lists that can be in force: one, unless the number of operands is not known."""
        sure = self.most is not None
        out = []
        for when in whens:
            if when.operands is not None:
                out.append(when.operands)
                if sure or when.count is None:
                    return out
        if level.operands is not None:
            out.append(level.operands)
        return out

    def _each(self, spec: tuple[Operand, ...], operands: list[Word]) -> list[tuple[Word, tuple[Role, ...]]]:
        """As many operands as there are, each with its one role; none where they have no effect."""
        total, size = len(operands), len(spec)
        if size == 1 and spec[0].role is TEXT and (total == 1 or spec[0].many):
            return []
        each = spec[:total]
        many = next((at for at, operand in enumerate(spec) if operand.many), None)
        if spec and spec[-1].role.nests:
            pass  # what stands behind these belongs to the nested command
        elif many is not None:
            head, tail = spec[:many][:total], spec[many + 1 :]
            left = total - len(head)
            tail = tail[max(len(tail) - left, 0) :] if total >= len(tail) else ()
            each = (*head, *(spec[many],) * (left - len(tail)), *tail)
        elif total > size:
            self._too_many(operands[size])
            each = (*spec, *spec[-1:] * (total - size))
        found: list[tuple[Word, tuple[Role, ...]]] = [
            (word, (operand.role,)) for word, operand in zip(operands, each, strict=False)
        ]
        self.sources = [word for word, roles in found if roles[0].name in SOURCES]
        return found

    def _too_many(self, word: Word) -> None:
        self.opaque("opaque.unlisted_operand", f"{self.id}.unlisted", word.span, word.prefix, self.mentions())

    def _assign(self, spec: tuple[Operand, ...], pairs: list[tuple[Word, list[Role]]]) -> None:
        total = len(pairs)
        if spec and spec[-1].role.nests:
            for at, (_, roles) in enumerate(pairs[: len(spec)]):
                roles.append(spec[at].role)
            return
        many = next((at for at, operand in enumerate(spec) if operand.many), None)
        head = spec if many is None else spec[:many]
        tail = () if many is None else spec[many + 1 :]
        loose = [at for at, (word, _) in enumerate(pairs) if several(word)]
        first = loose[0] if loose else total
        last = loose[-1] if loose else -1
        if many is None and pairs and (total > len(spec) or not self.parsed.level.inert):
            self._too_many(pairs[min(len(spec), total - 1)][0])
        for at, (_, roles) in enumerate(pairs):
            from_end = total - at
            if at < min(first, len(head)) and (not tail or from_end > len(tail) or total < len(head) + len(tail)):
                roles.append(head[at].role)
            elif at > last and from_end <= len(tail) and total - len(tail) >= 0 and not self.appended:
                roles.append(tail[len(tail) - from_end].role)
            else:
                roles.extend(operand.role for operand in spec[min(first, len(spec)) if first < len(head) else len(head) :])
                if many is None and not roles and spec:
                    roles.append(spec[-1].role)
