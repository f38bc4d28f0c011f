# SPDX-License-Identifier: GPL-3.0-or-later
"""From the pieces of one written word to the words bash makes of it: braces, tilde, globs, flags, literal values.

A piece is a `str` (unquoted literal text, still subject to braces, tilde and globs) or a `Part` (anything else).
"""

from __future__ import annotations

import re
from enum import IntFlag

from sandboxd.model.shell import Part, PartKind, Span, Word, WordFlag

Piece = str | Part
Flags = frozenset[WordFlag]

NO_FLAGS: Flags = frozenset()
MAX_BRACE_WORDS = 256
_MAX_BRACE_DEPTH = 20
_MAX_BRACE_ATOMS = 2_000

_GLOB = re.compile(r"\*+|\?|\[[!^]?(?:\][^\]]*|[^\]]+)\]")
_SIMPLE_GLOB = re.compile(r"\*+|\?")
_ASSIGNMENT_LIKE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_TILDE = re.compile(r"~[A-Za-z0-9_.+-]*\Z")
_NUMBERS = re.compile(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})(?:\.\.(-?[0-9]{1,9}))?\Z")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?[0-9]{1,9}))?\Z")
_BRACES = re.compile(r"[{},]")

_KIND_FLAG: dict[PartKind, WordFlag] = {
    PartKind.GLOB: WordFlag.GLOB,
    PartKind.TILDE: WordFlag.TILDE,
    PartKind.VARIABLE: WordFlag.VARIABLE,
    PartKind.SUBSTITUTION: WordFlag.SUBSTITUTION,
    PartKind.PROCESS: WordFlag.PROCESS,
    PartKind.ARITHMETIC: WordFlag.ARITHMETIC,
}
_SPLITTING = (PartKind.VARIABLE, PartKind.SUBSTITUTION)


class Mode(IntFlag):
    """Which expansions bash performs on the word in its place."""

    NONE = 0
    BRACE = 1
    GLOB = 2
    SPLIT = 4
    TILDE = 8
    COLON_TILDE = 16  # also after `:`, as in an assignment's value

    ARGUMENT = BRACE | GLOB | SPLIT | TILDE
    DECLARED = BRACE | TILDE  # an argument of `export` and its kin that has the form of an assignment
    VALUE = TILDE | COLON_TILDE
    TARGET = BRACE | GLOB | SPLIT | TILDE
    PATTERN = GLOB | TILDE


def plain(text: str, span: Span) -> Word:
    """A word without any quoting or expansion."""
    return Word(span, (Part(PartKind.LITERAL, text),), (text,))


def quoted(text: str, span: Span) -> Word:
    """A word that is one quoted string without expansions."""
    return Word(span, (Part(PartKind.LITERAL, text, True),), (text,))


def finish(pieces: list[Piece], span: Span, extra: Flags, mode: Mode) -> tuple[Word, ...]:
    """All words that `pieces` become. `extra` are flags found inside nested operands."""
    assigned = False
    if mode & Mode.TILDE and not mode & Mode.COLON_TILDE and pieces and isinstance(pieces[0], str):
        assigned = _ASSIGNMENT_LIKE.match(pieces[0]) is not None
    if mode & Mode.BRACE and any(isinstance(piece, str) and "{" in piece for piece in pieces):
        expanded = expand_braces(pieces)
        if expanded is None:
            word = _one(pieces, span, extra, mode, assigned)
            flags = word.flags | {WordFlag.BRACE, WordFlag.SPLITS}
            return (Word(span, word.parts, (), flags),)
        if len(expanded) > 1:
            # An alternative that is empty and not quoted leaves no word at all.
            return tuple([_one(some, span, extra, mode, assigned) for some in expanded if some and some != [""]])
        pieces = expanded[0]
    return (_one(pieces, span, extra, mode, assigned),)


def _one(pieces: list[Piece], span: Span, extra: Flags, mode: Mode, assigned: bool) -> Word:
    parts: list[Part] = []
    last = len(pieces) - 1
    closing = -1  # index of the last piece with an unquoted `]`
    if mode & Mode.GLOB:
        for index, piece in enumerate(pieces):
            if isinstance(piece, str) and "]" in piece:
                closing = index
    for index, piece in enumerate(pieces):
        if isinstance(piece, Part):
            if piece.kind is PartKind.LITERAL:
                _literal(parts, piece.text, piece.quoted)
            else:
                parts.append(piece)
            continue
        text = piece
        if "~" in text and mode & Mode.TILDE:
            follower = pieces[index + 1] if index < last else None
            text = _tildes(parts, text, index == 0, mode, assigned, follower)
        if mode & Mode.GLOB and ("*" in text or "?" in text or "[" in text):
            _globs(parts, text, closing > index)
        elif text:
            _literal(parts, text, False)
    if not parts:
        parts.append(Part(PartKind.LITERAL, "", True))
    if len(parts) == 1 and parts[0].kind is PartKind.LITERAL:
        return Word(span, tuple(parts), (parts[0].text,))
    if all(part.kind is PartKind.LITERAL for part in parts):
        return Word(span, tuple(parts), ("".join([part.text for part in parts]),))
    flags = set(extra)
    for part in parts:
        kind = part.kind
        if kind is PartKind.LITERAL:
            continue
        flags.add(_KIND_FLAG[kind])
        if (kind is PartKind.GLOB and mode & Mode.SPLIT) or splits(part, mode):
            flags.add(WordFlag.SPLITS)
    return Word(span, tuple(parts), (), frozenset(flags))


def splits(part: Part, mode: Mode) -> bool:
    """Whether the part alone can turn the word into none or several."""
    if not mode & Mode.SPLIT or part.kind not in _SPLITTING:
        return False
    if not part.quoted:
        return not part.counts
    return (part.text == "@" and not part.op.startswith("length")) or part.op.startswith(("[@", "names@", "keys[@"))


def _literal(parts: list[Part], text: str, is_quoted: bool) -> None:
    if parts:
        previous = parts[-1]
        if previous.kind is PartKind.LITERAL and previous.quoted == is_quoted:
            parts[-1] = Part(PartKind.LITERAL, previous.text + text, is_quoted)
            return
    parts.append(Part(PartKind.LITERAL, text, is_quoted))


def _tildes(parts: list[Part], text: str, first: bool, mode: Mode, assigned: bool, follower: Piece | None) -> str:
    """Split tilde prefixes off `text`; what is left after the last one is returned for globbing."""
    colon = bool(mode & Mode.COLON_TILDE) or assigned
    done = 0
    position = text.find("~")
    while position >= 0:
        before = text[position - 1] if position else ""
        starts = (position == 0 and first) or (colon and before == ":")
        if assigned and first and before == "=" and _ASSIGNMENT_LIKE.fullmatch(text, 0, position):
            starts = True
        if starts:
            stops = [i for i in (text.find("/", position), text.find(":", position) if colon else -1) if i >= 0]
            end = min(stops) if stops else len(text)
            # A quoted character or an expansion inside the prefix keeps bash from expanding it.
            open_ended = not stops and follower is not None
            if not open_ended and _TILDE.match(text[position:end]):
                if position > done:
                    _literal(parts, text[done:position], False)
                parts.append(Part(PartKind.TILDE, text[position:end]))
                done = end
        position = text.find("~", position + 1)
    return text[done:]


def _globs(parts: list[Part], text: str, closes_later: bool) -> None:
    """Split `text` at its globs. `closes_later`: a `]` stands in a later piece of the word."""
    limit = text.rfind("]") + 1  # behind it no bracket can close, so only `*` and `?` are globs
    done = _split(parts, text, 0, _GLOB, limit)
    bracket = text.find("[", done) if closes_later else -1
    done = _split(parts, text, done, _SIMPLE_GLOB, len(text) if bracket < 0 else bracket)
    if done < len(text):
        if bracket > done:
            _literal(parts, text[done:bracket], False)
            done = bracket
        if bracket < 0:
            _literal(parts, text[done:], False)
        else:
            parts.append(Part(PartKind.GLOB, text[done:]))


def _split(parts: list[Part], text: str, done: int, pattern: re.Pattern[str], limit: int) -> int:
    """Add what `pattern` finds before `limit` as globs, and the text between; returns the offset behind the last glob."""
    for match in pattern.finditer(text, done, limit):
        if match.start() > done:
            _literal(parts, text[done : match.start()], False)
        parts.append(Part(PartKind.GLOB, match.group()))
        done = match.end()
    return done


def expand_braces(pieces: list[Piece]) -> list[list[Piece]] | None:
    """The words of a brace expansion in bash's order, or None when there are too many or the form is unusual.

    `{}` and a group without comma or `..` stay as they are. Text with unbalanced braces that could still expand is left
    to the caller as unknown: bash's rules for it depend on what follows.
    """
    atoms: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, Part):
            atoms.append(piece)
        else:
            done = 0
            for match in _BRACES.finditer(piece):
                if match.start() > done:
                    atoms.append(piece[done : match.start()])
                atoms.append(match.group())
                done = match.end()
            if done < len(piece):
                atoms.append(piece[done:])
    opened = atoms.count("{")
    if len(atoms) > _MAX_BRACE_ATOMS:
        return None
    if "," not in atoms and not any(isinstance(atom, str) and ".." in atom for atom in atoms):
        return [pieces]
    depth = 0
    balanced = True
    empty = False
    for index, atom in enumerate(atoms):
        if atom == "{":
            depth += 1
            empty = empty or (index + 1 < len(atoms) and atoms[index + 1] == "}")
            if depth > _MAX_BRACE_DEPTH:
                return None
        elif atom == "}":
            depth -= 1
            if depth < 0:
                balanced = False
                break
    if depth != 0 or not balanced or (empty and opened > 1):
        return None if _may_expand(atoms) else [pieces]
    if empty:
        return [pieces]
    return _product(atoms)


def _may_expand(atoms: list[Piece]) -> bool:
    """Whether any `{` is followed by a `}`: without one, nothing expands."""
    return "{" in atoms and "}" in atoms[atoms.index("{") :]


def _product(atoms: list[Piece]) -> list[list[Piece]] | None:
    results: list[list[Piece]] = [[]]
    index = 0
    while index < len(atoms):
        atom = atoms[index]
        if atom != "{":
            for result in results:
                result.append(atom)
            index += 1
            continue
        end, commas = _group(atoms, index)
        choices = _choices(atoms, index, end, commas)
        if choices is None or len(results) * len(choices) > MAX_BRACE_WORDS:
            return None
        results = [result + choice for result in results for choice in choices]
        index = end + 1
    return [_joined(result) for result in results]


def _choices(atoms: list[Piece], start: int, end: int, commas: list[int]) -> list[list[Piece]] | None:
    if commas:
        choices: list[list[Piece]] = []
        begin = start + 1
        for stop in [*commas, end]:
            some = _product(atoms[begin:stop])
            if some is None or len(choices) + len(some) > MAX_BRACE_WORDS:
                return None
            choices.extend(some)
            begin = stop + 1
        return choices
    inner = atoms[start + 1 : end]
    if len(inner) == 1 and isinstance(inner[0], str) and ".." in inner[0]:
        sequence = _sequence(inner[0])
        if sequence is None:
            return None
        if sequence:
            return [[text] for text in sequence]
    elif any(isinstance(piece, str) and ".." in piece for piece in inner):
        return None  # a sequence with quotes or expansions in it: bash decides on the raw text
    some = _product(inner)
    if some is None:
        return None
    return [["{", *choice, "}"] for choice in some]


def _group(atoms: list[Piece], start: int) -> tuple[int, list[int]]:
    depth = 0
    commas: list[int] = []
    for index in range(start, len(atoms)):
        atom = atoms[index]
        if atom == "{":
            depth += 1
        elif atom == "}":
            depth -= 1
            if depth == 0:
                return index, commas
        elif atom == "," and depth == 1:
            commas.append(index)
    raise AssertionError("braces were balanced before")


def _sequence(text: str) -> list[str] | None:
    """The members of `a..b[..step]`; [] when it is no sequence, None when it is too long or unusual."""
    match = _NUMBERS.match(text)
    if match is not None:
        first, last, step = match.group(1), match.group(2), match.group(3)
        low, high = int(first), int(last)
        stride = abs(int(step or "1")) or 1
        if abs(high - low) // stride >= MAX_BRACE_WORDS:
            return None
        padded = any(len(n.lstrip("-")) > 1 and n.lstrip("-").startswith("0") for n in (first, last))
        width = max(len(first), len(last)) if padded else 0
        numbers = range(low, high + 1, stride) if low <= high else range(low, high - 1, -stride)
        return [f"{number:0{width}d}" if width else str(number) for number in numbers]
    match = _LETTERS.match(text)
    if match is not None:
        a, b = ord(match.group(1)), ord(match.group(2))
        if match.group(1).isupper() != match.group(2).isupper():
            return None  # runs through punctuation that is then read again
        stride = abs(int(match.group(3) or "1")) or 1
        letters = range(a, b + 1, stride) if a <= b else range(a, b - 1, -stride)
        return [chr(code) for code in letters]
    return [] if not re.match(r"[-+0-9A-Za-z]+\.\.[-+0-9A-Za-z]+", text) else None


def _joined(atoms: list[Piece]) -> list[Piece]:
    out: list[Piece] = []
    for atom in atoms:
        if isinstance(atom, str) and out and isinstance(out[-1], str):
            out[-1] += atom
        else:
            out.append(atom)
    return out
