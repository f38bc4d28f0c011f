# SPDX-License-Identifier: GPL-3.0-or-later
"""Literal pieces that variables and standard input may hold: evidence for what a word that is not known can name."""

from __future__ import annotations

import re

from sandboxd.effects.selectors import said
from sandboxd.effects.targets import Place, fragments, resolve
from sandboxd.model import CommandKind, Part, PartKind, RedirectOp, Script, Subcommand, Word, WordFlag

_HEREDOC, _HERESTRING = RedirectOp.HEREDOC, RedirectOp.HERESTRING  # looked up slowly in Python 3.11
_WORDS = CommandKind.WORDS
_GLOB = WordFlag.GLOB
_NOT = frozenset(("!", "-not"))
_MAX_HINTS = 256  # more are looked at by no word: each unknown word looks at all
_MAX_PIECES = 1_024  # that one variable may hold
_FEW = 16  # of which some may well be there twice
_FILTERS = frozenset(("grep", "egrep", "fgrep", "awk", "gawk", "sed"))
_WALKERS = frozenset(("find", "fd", "fdfind", "rg", "git"))
_NAMING = _FILTERS | _WALKERS
_ELEMENT = re.compile(r"[\0\[\]=()\s]+")
_MAX_TEXT = 256  # characters of a piece that is joined with another
_NOWHERE = Place(None, "")
# What gives variables their values, or says what another may read.
_FILLING = frozenset(
    (
        *("set", "read", "find", "ls", "mapfile", "readarray", "printf", "echo", "export", "declare", "typeset", "local"),
        *("readonly", "env"),
    )
)
_DECLARES = frozenset(("export", "declare", "typeset", "local", "readonly", "env"))


def standard_input(
    command: Subcommand, place: Place, feeds: dict[int, tuple[str, ...]], previous: Subcommand | None
) -> tuple[str, ...]:
    """Literal pieces that come in by standard input: here-texts, and the words of the commands before it in the pipeline, of
    which `previous` is the last."""
    texts: tuple[str, ...] = ()
    for redirect in command.redirects:
        if redirect.op is _HEREDOC or redirect.op is _HERESTRING:
            texts = (*texts, *_lines(redirect.target, place))
    before = feeds.get(command.pipeline, ()) if command.piped_in else ()
    if command.piped_out:
        own = [] if command.argv and command.texts[0] == "grep" else _said(command, place)
        if command.argv and command.texts[0] in _FILTERS:
            own += _kept(command, previous)
        feeds[command.pipeline] = (*before, *texts, *own)
    return (*before, *texts)


def _kept(command: Subcommand, previous: Subcommand | None) -> list[str]:
    """What a filter of lines says of those that it lets through."""
    return said(command.texts, previous.texts if previous is not None and previous.pipeline == command.pipeline else ())


def _said(command: Subcommand, place: Place) -> list[str]:
    """Words of a command that its output may hold: not options, not what follows a negation."""
    out: list[str] = []
    texts = command.texts
    lines = bool(texts) and texts[0] == "printf"
    if texts and texts[0] in _WALKERS:
        out += said(texts)
    for at, value in enumerate(texts):
        if at == 0 or (value is not None and value[:1] == "-"):
            continue
        if at > 1 and texts[at - 2] in _NOT and (texts[at - 1] or "")[:1] == "-":
            continue
        for piece in (value,) if value is not None else fragments(command.argv[at], place):
            if lines and "\\n" in piece:
                out.extend(filter(None, piece.split("\\n")))
            else:
                out.append(piece)
    return out


def _lines(word: Word, place: Place) -> tuple[str, ...]:
    return tuple(line for piece in fragments(word, place) for line in piece.splitlines() if line)


def held(script: Script, given: tuple[str, ...], start: Place) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Literal pieces that variables may hold: positional parameters, names that `read` fills, `printf -v`, and what is
    assigned from a place that `start` knows (`x=$HOME`)."""
    out: list[tuple[str, tuple[str, ...]]] = []
    positional = list(given)
    place = _NOWHERE
    texts: list[str] = []
    readers: list[str] = []
    carried: list[str] = []  # names that are given a positional parameter
    lists: list[str] = []  # what loops run over; which variable they fill is not told
    looped: set[str] = set()  # variables among it
    last: dict[str, tuple[str, ...]] = {}  # what was assigned, and added to it
    references: list[tuple[str, str]] = []  # (what a reference names, the reference)
    functions = script.functions
    defaults = "=" in script.text and "${" in script.text
    for at, command in enumerate(script.subcommands):
        if defaults and not command.plain:
            for word in command.argv:
                if word.flags and WordFlag.ASSIGNS in word.flags:
                    out.extend((part.text, (part.default,)) for part in word.parts if part.default)
        name = command.texts[0] if command.texts else None
        says = name is not None and (name in _FILLING or name in functions or (command.piped_out and name in _NAMING))
        if not (says or command.redirects or command.assignments or command.kind is _WORDS):
            continue
        for redirect in command.redirects:
            if redirect.op is _HEREDOC or redirect.op is _HERESTRING:
                texts.extend(_lines(redirect.target, place))
        if not says:
            pass
        elif name == "set" or name in functions:
            positional.extend(piece for word in command.argv[1:] for piece in fragments(word, place))
        elif name in ("read", "mapfile", "readarray"):
            readers.extend(text for text in command.texts[1:] if text and not text.startswith("-"))
        elif name == "printf" and len(command.argv) > 3 and command.texts[1] == "-v":
            pieces = [text or "" for text in command.texts[3:]]
            text = pieces[0]
            for piece in pieces[1:]:
                text = text.replace("%s", piece, 1)
            out.append((command.texts[2] or "*", (text, *pieces[1:])))
        elif name in _DECLARES:
            for word in command.argv[1:]:
                if WordFlag.SPLITS in word.flags and "=(" in word.prefix:
                    out.append((word.prefix.partition("=")[0], _pieces(word.parts[1:])))
                    continue
                if _carries(word):
                    carried.append(word.prefix.partition("=")[0])
                for piece in fragments(word, start):
                    variable, equals, value = piece.partition("=")
                    if equals and value and variable.isidentifier():
                        out.append((variable, (value,)))
                        if "-n" in command.texts:
                            references.append((value, variable))
        elif name in ("echo", "printf") and command.piped_out:
            texts.extend(piece for word in command.argv[1:] for piece in fragments(word, place))
        elif name == "find" and command.piped_out:
            if "-prune" not in command.texts:
                texts.extend(_said(command, place))
        elif name in _NAMING:
            if command.piped_out:
                texts.extend(_kept(command, script.subcommands[at - 1] if at and command.piped_in else None))
        elif name == "ls" and command.piped_out:  # it prints the words as they are where they are files
            texts.extend(piece for word in command.argv[1:] if _GLOB in word.flags for piece in fragments(word, place))
        for assignment in command.assignments:
            if assignment.elements:
                pieces = [piece for word in assignment.elements for piece in _pieces(word.parts) or fragments(word, place)]
                out.append((assignment.name, (*pieces, "/".join(pieces))))
            elif assignment.subscript is not None and assignment.value is not None:
                out.append((assignment.name, (assignment.subscript.strip("\"'"), *fragments(assignment.value, start))))
            elif assignment.append and assignment.value is not None and assignment.value.values:
                added = assignment.value.values[0]
                grown = [piece + added for piece in last.get(assignment.name, ())[:8] if len(piece) < _MAX_TEXT]
                last[assignment.name] = (added, *grown)
                out.append((assignment.name, last[assignment.name]))
            elif assignment.value is not None and assignment.value.values:
                # Certain where it is followed; evidence where an operator or a branch makes it uncertain.
                last[assignment.name] = assignment.value.values
                if len(out) < _MAX_HINTS:
                    out.append((assignment.name, assignment.value.values))
            elif assignment.value is not None:
                targets = (target.path for target in resolve(assignment.value, start) if not target.pattern)
                found = tuple(path for path in targets if path is not None) or fragments(assignment.value, start)
                if found:
                    out.append((assignment.name, found))
                if _carries(assignment.value):
                    carried.append(assignment.name)
        if command.kind is _WORDS:
            lists.extend(piece for word in command.argv for piece in fragments(word, start))
            looped.update(part.text for word in command.argv for part in word.parts if part.kind is PartKind.VARIABLE)
    if references:
        plain = tuple(out)
        for variable, reference in references[:_MAX_HINTS]:
            out.extend((variable, pieces) for name, pieces in plain if name == reference)
    if looped:
        lists.extend(piece for name, pieces in out if name in looped for piece in pieces)
    if lists:
        out.append(("*", _distinct(lists)))
    if positional:
        arguments = _distinct(positional)
        out.extend((name, arguments) for name in carried)
        out.extend((name, arguments) for name in ("1", "2", "3", "4", "5", "6", "7", "8", "9", "@", "*_", "0"))
    if texts:
        given = _distinct(texts)
        out.extend((name, given) for name in readers or ("REPLY",))
    return tuple(dict.fromkeys(out)) if len(out) > _FEW else tuple(out)


def _distinct(pieces: list[str]) -> tuple[str, ...]:
    """Each piece once, and not more of them than all words of a text can be held against."""
    return tuple(pieces) if len(pieces) <= _FEW else tuple(dict.fromkeys(pieces))[:_MAX_PIECES]


def _pieces(parts: tuple[Part, ...]) -> tuple[str, ...]:
    """Keys and values of the elements of an array: `[key]=value`."""
    if not any(part.kind is PartKind.GLOB or part.text.startswith(("[", "]=", "=")) for part in parts):
        return ()
    texts = "\0".join(part.text for part in parts if part.kind in (PartKind.LITERAL, PartKind.GLOB))
    return tuple(filter(None, _ELEMENT.split(texts)))


def _carries(word: Word) -> bool:
    """Whether the word holds a positional parameter."""
    return any(part.kind is PartKind.VARIABLE and (part.text.isdigit() or part.text in ("@", "*")) for part in word.parts)
