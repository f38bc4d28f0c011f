# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known about a tool, as values to print: `sandboxd explain TOOL`."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.effects.rows import Level, Operand, Option, Standing, Table, When


@dataclass(frozen=True, slots=True)
class OptionText:
    """`names` joined by `|` with the arity mark of docs/tables.md; `role` of its value; `also`: what it does besides."""

    names: str
    role: str
    because: str = ""
    values: tuple[str, ...] = ()
    otherwise: str = ""
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LevelText:
    """The tool itself (`name` "") or one of its subcommands (`remote show`).

    `operands` are roles by position, None = none are known. `dangerous` are the options that do more than read, the rest
    are `harmless`. `effects` stand whatever the words are; `when` says what options change. `notes` are flags in words.
    """

    name: str
    because: str
    operands: tuple[str, ...] | None
    dangerous: tuple[OptionText, ...]
    harmless: tuple[OptionText, ...]
    effects: tuple[str, ...] = ()
    when: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolText:
    """One table of a tool. `origin` is file:line; a user's table of a shipped tool comes second and only tightens."""

    name: str
    origin: str
    because: str
    levels: tuple[LevelText, ...]
    wrapper: str = ""
    exit_ok: tuple[int, ...] = (0,)
    credentials: tuple[str, ...] = ()
    examples: tuple[tuple[str, tuple[str, ...]], ...] = ()


def describe(tables: tuple[Table, ...]) -> tuple[ToolText, ...]:
    """The tables of one tool (`Tables.find(name)`) in words; empty when the tool is unlisted, and so OPAQUE."""
    return tuple(
        ToolText(
            name=table.name,
            origin=table.origin,
            because=table.root.because,
            levels=tuple(_levels(table.root, "")),
            wrapper=table.wrapper,
            exit_ok=tuple(sorted(table.exit_ok)),
            credentials=table.credentials,
            examples=tuple((example.run, example.holds) for example in table.examples),
        )
        for table in tables
    )


def _levels(level: Level, name: str) -> list[LevelText]:
    out = [_level(level, name)]
    grouped: dict[str, tuple[Level, list[str]]] = {}
    for word, sub in level.subs.items():
        grouped.setdefault(sub.id, (sub, []))[1].append(word)
    for sub, words in grouped.values():
        out.extend(_levels(sub, f"{name} {'|'.join(words)}".strip()))
    return out


def _level(level: Level, name: str) -> LevelText:
    options = list(dict.fromkeys(level.options.values()))
    return LevelText(
        name=name,
        because=level.because,
        operands=None if level.operands is None else tuple(_operand(operand) for operand in level.operands),
        dangerous=tuple(_option(option) for option in options if option.dangerous),
        harmless=tuple(_option(option) for option in options if not option.dangerous),
        effects=tuple(_standing(standing) for standing in level.effects),
        when=tuple(_when(when) for when in level.when),
        exact=tuple(sorted(" ".join(form) for form in level.exact)),
        notes=tuple(note for held, note in _notes(level) if held),
    )


def _notes(level: Level) -> tuple[tuple[bool, str], ...]:
    return (
        (level.any, "all arguments are accepted unread"),
        (level.raw, "no word is an option"),
        (level.inert, "no option does more than read"),
        (not level.permute, "options end at the first operand"),
        (level.edit, "edits files in place: acceptEdits may allow it"),
        (level.behind is not None, f"operands behind `--` are also {level.behind.name if level.behind else ''}"),
        (bool(level.language), f"read by the language `{level.language}`"),
    )


def _option(option: Option) -> OptionText:
    return OptionText(
        names="|".join(option.names) + option.arity.value,
        role=option.role.name,
        because=option.because,
        values=() if option.values is None else tuple(sorted(option.values)),
        otherwise="" if option.values is None else option.otherwise.name,
        also=tuple(_standing(standing) for standing in option.effects),
    )


def _operand(operand: Operand) -> str:
    return operand.role.name + ("..." if operand.many else "?" if operand.optional else "")


def _standing(standing: Standing) -> str:
    return standing.role.name if standing.target is None else f"{standing.role.name} {standing.target}"


def _when(when: When) -> str:
    """`with -o, without -n, for 2+ operands: operands path.read..., also path.write`."""
    conditions = []
    for names, word in ((when.any, "with"), (when.all, "with all of"), (when.none, "without")):
        if names:
            conditions.append(f"{word} {' '.join(sorted(names))}")
    if when.count is not None:
        low, high = when.count
        span = f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"
        conditions.append(f"for {span} operands")
    results = []
    if when.operands is not None:
        results.append(f"operands {' '.join(_operand(operand) for operand in when.operands) or 'none'}")
    if when.effects:
        results.append(f"also {', '.join(_standing(standing) for standing in when.effects)}")
    if when.edit:
        results.append("an edit")
    return f"{', '.join(conditions) or 'always'}: {'; '.join(results) or 'nothing changes'}"
