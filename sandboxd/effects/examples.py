# SPDX-License-Identifier: GPL-3.0-or-later
"""The `[[example]]` rows of tables: runs each and says which do not hold. docs/tables.md tells how they are written."""

from __future__ import annotations

from collections.abc import Iterator

from sandboxd.effects.call import Nested
from sandboxd.effects.environment import Environment
from sandboxd.effects.infer import Finder, Inference
from sandboxd.effects.rows import Table
from sandboxd.effects.targets import Place
from sandboxd.model import Direction, Effect, EffectKind, Part, PartKind, Sensitivity, Span, Subcommand, Word, WordFlag
from sandboxd.paths import expand_home, join

DIRECTORY, HOME = "/w", "/home/u"


def failures(table: Table, tables: Finder, environment: Environment) -> Iterator[str]:
    """`file:line: what does not hold` for each row of the table that is wrong."""
    for example in table.examples:
        effects, nested = run(example.run, tables, environment)
        for item in example.holds:
            if not _holds(item, effects, nested):
                seen = ", ".join(_show(effect) for effect in effects)
                yield f"{example.origin}: `{example.run}` is not `{item}`; its effects are: {seen}"


def run(text: str, tables: Finder, environment: Environment) -> tuple[list[Effect], list[Nested]]:
    """The effects of one simple command and of the commands in its words, and the shell text that it nests."""
    place = Place((DIRECTORY,), HOME)
    effects: list[Effect] = []
    texts: list[Nested] = []
    todo = [Nested("", Span(0, 0), place.cwds, tuple(words(text)))]
    for _ in range(16):
        if not todo:
            break
        nested = todo.pop()
        inside = Place(nested.cwds, HOME)
        found = Inference(Subcommand(nested.words, nested.span), tables, environment, inside, appended=nested.appended)
        effects.extend(found.effects)
        texts.extend(inner for inner in found.nested if inner.text is not None)
        todo.extend(inner for inner in found.nested if inner.text is None)
    return effects, texts


def _holds(item: str, effects: list[Effect], nested: list[Nested]) -> bool:
    reads = not nested and all(
        effect.kind in (EffectKind.READ, EffectKind.ENV, EffectKind.EXEC) or effect.direction is Direction.FETCH
        for effect in effects
    )
    if item == "read-only":
        return reads
    if item == "not read-only":
        return not reads
    if item == "not auto":
        return not reads or any(
            effect.sensitivity is not Sensitivity.NONE or effect.kind is EffectKind.NETWORK for effect in effects
        )
    if item == "nested":
        return bool(nested)
    head, _, target = item.partition(" ")
    return any(_matches(effect, head, target) for effect in effects)


def _matches(effect: Effect, head: str, target: str) -> bool:
    kind, _, more = head.partition(".")
    if effect.code == head:
        return not target or target in (effect.target, effect.detail)
    if effect.kind.value != kind:
        return False
    if more and more not in (effect.act and effect.act.value, effect.direction and effect.direction.value):
        return False
    return not target or effect.target in (target, join(DIRECTORY, expand_home(target, HOME)))


def _show(effect: Effect) -> str:
    more = effect.code or (effect.act and effect.act.value) or (effect.direction and effect.direction.value) or ""
    return f"{effect.kind.value} {more} {effect.target or ''}".replace("  ", " ").strip()


def words(text: str) -> Iterator[Word]:
    """Split as a shell does. `$X` is an unquoted expansion, `${X}` and `"$X"` quoted ones; `*`, `?`, `[` are globs."""
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        parts, end = _parts(text, at)
        yield _word(tuple(parts), Span(at, end))
        at = end


def _parts(text: str, at: int) -> tuple[list[Part], int]:
    parts: list[Part] = []
    quote = ""
    while at < len(text) and (quote or not text[at].isspace()):
        char = text[at]
        if char == quote:
            quote = ""
            parts.append(Part(PartKind.LITERAL, "", True))
        elif not quote and char in "'\"":
            quote = char
        elif char == "$" and quote != "'" and text[at + 1 : at + 2].isidentifier():
            end = at + 1
            while text[at + 1 : end + 1].isidentifier() and end < len(text):
                end += 1
            parts.append(Part(PartKind.VARIABLE, text[at + 1 : end], bool(quote)))
            at = end
            continue
        elif text.startswith("$(", at) and quote != "'":
            end = text.index(")", at)
            parts.append(Part(PartKind.SUBSTITUTION, text[at + 2 : end], bool(quote)))
            at = end
        elif text.startswith("${", at) and quote != "'":
            end = text.index("}", at)
            parts.append(Part(PartKind.VARIABLE, text[at + 2 : end], True))
            at = end
        elif char == "\\" and quote != "'":
            at += 1
            parts.append(Part(PartKind.LITERAL, text[at : at + 1], True))
        elif not quote and char in "*?[":
            parts.append(Part(PartKind.GLOB, char))
        elif not quote and char == "~" and not parts:
            parts.append(Part(PartKind.TILDE, char))
        else:
            parts.append(Part(PartKind.LITERAL, char, bool(quote)))
        at += 1
    return parts, at


def _word(parts: tuple[Part, ...], span: Span) -> Word:
    if all(part.kind is PartKind.LITERAL for part in parts):
        text = "".join(part.text for part in parts)
        return Word(span, (Part(PartKind.LITERAL, text, True),), (text,))
    flags = set()
    for part in parts:
        if part.kind is PartKind.GLOB:
            flags |= {WordFlag.GLOB, WordFlag.SPLITS}
        elif part.kind is PartKind.TILDE:
            flags.add(WordFlag.TILDE)
        elif part.kind in (PartKind.VARIABLE, PartKind.SUBSTITUTION):
            flags.add(WordFlag.VARIABLE if part.kind is PartKind.VARIABLE else WordFlag.SUBSTITUTION)
            if not part.quoted:
                flags.add(WordFlag.SPLITS)
    return Word(span, parts, (), frozenset(flags))
