# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the words of one command by its table: which options were given, what the operands are, what is not listed.

A word of unknown text is an operand only where it cannot be an option: after `--`, behind literal text that is no dash,
or where the table says that no option of the tool matters (`inert`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sandboxd.effects.rows import Arity, Level, Operand, Option, Table, When
from sandboxd.model import Part, PartKind, Span, Word, WordFlag

_SPLITTING = frozenset((WordFlag.VARIABLE, WordFlag.SUBSTITUTION, WordFlag.BRACE, WordFlag.ARITHMETIC))
_SPLITS, _LITERAL, _NO_VALUE = WordFlag.SPLITS, PartKind.LITERAL, Arity.NONE  # looked up slowly in Python 3.11
_PLAIN = WordFlag.PLAIN
_FIXED_START = frozenset((PartKind.TILDE, PartKind.PROCESS))


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the words cannot be understood by the table: a reason code, where, and what was written."""

    code: str
    span: Span
    detail: str


class Given(NamedTuple):
    """One option as given. `value` is None when it has none."""

    option: Option
    name: str
    span: Span
    value: Word | None = None

    def name_in(self, names: tuple[str, ...]) -> bool:
        return not self.option.spellings.isdisjoint(names)


def splits(word: Word) -> bool:
    """Whether the word may become several words, or none, with text that is not known."""
    return _SPLITS in word.flags and not word.flags.isdisjoint(_SPLITTING) and word.value is None


def several(word: Word) -> bool:
    """Whether the word may become several words, or none, of whatever text."""
    return bool(word.flags) and _SPLITS in word.flags and word.value is None


def starts_plainly(word: Word, marks: str = "-") -> bool:
    """Whether every word that this one can become starts with text that makes it no option."""
    if word.values:
        return all(not value or value[0] not in marks for value in word.values) and not splits(word)
    if _PLAIN in word.flags:
        return True
    if splits(word):
        return False
    first = word.parts[0] if word.parts else None
    if first is None:
        return False
    if first.kind in _FIXED_START or first.counts:
        return True
    prefix = word.prefix
    return bool(prefix) and prefix[0] not in marks


def cut(word: Word, count: int) -> Word:
    """The word without its first `count` characters, which are literal."""
    if word.values:
        values = tuple(value[count:] for value in word.values)
        if not word.flags:
            part = Part(_LITERAL, values[0], True)
            return Word(word.span, (part,), values)
        return Word(word.span, _cut_parts(word.parts, count), values, word.flags)
    return Word(word.span, _cut_parts(word.parts, count), word.values, word.flags)


def _cut_parts(parts: tuple[Part, ...], count: int) -> tuple[Part, ...]:
    out = []
    for part in parts:
        if count <= 0:
            out.append(part)
        elif part.kind is _LITERAL:
            if len(part.text) > count:
                out.append(Part(part.kind, part.text[count:], part.quoted, part.default, part.op, part.operand))
            count -= len(part.text)
        else:
            count = 0
            out.append(part)
    return tuple(out)


def literal(text: str, span: Span) -> Word:
    """A plain word with this text."""
    return Word(span, (Part(_LITERAL, text, True),), (text,))


class Parsed:
    """What the words are, read by a tool's table. `level` is the deepest subcommand reached."""

    __slots__ = ("_at", "_ended", "_words", "end", "exact", "given", "level", "names", "operands", "problems", "table")

    def __init__(self, table: Table, words: Sequence[Word]) -> None:
        """`words` are the arguments, without the tool's name."""
        self.table = table
        self.level = table.root
        self.given: list[Given] = []
        self.operands: list[Word] = []
        self.problems: list[Problem] = []
        self.exact = False
        self.names: set[str] = set()  # every spelling of every option given
        self.end: int | None = None  # how many operands stand before `--`
        self._words = words
        self._at = 0  # the next word
        self._ended = False  # whether no option follows
        self._read()

    def has(self, *names: str) -> bool:
        return not self.names.isdisjoint(names)

    def _read(self) -> None:
        words = self._words
        if self._whole(self.level):
            return
        if self.table.bundle and words:
            self._bundle()
        count = len(words)
        while self._at < count:
            level = self.level
            if level.any or level.raw:
                self.operands.extend(words[self._at :])
                return
            word = words[self._at]
            values = word.values
            self._at += 1
            if len(values) != 1:
                self._unknown(word)
                continue
            text = values[0]
            if self._ended or len(text) < 2 or (text[0] != "-" and not (level.plus or level.pairs)):
                if self._operand(word, text):
                    return
            elif text == "--":
                if level.subs and not self.operands:
                    self._problem("opaque.unlisted_option", word, text)
                self._ended = True
                self.end = len(self.operands)
            elif text[0] == "-" or (text[0] == "+" and level.plus):
                self._option(word, text)
            elif not (level.pairs and self._pair(word, text)) and self._operand(word, text):
                return

    def _whole(self, level: Level) -> bool:
        """Whether the words that are left are a form that the level lists word for word."""
        if len(self._words) - self._at <= level.longest:
            self.exact = tuple([word.value for word in self._words[self._at :]]) in level.exact
        return self.exact

    def _problem(self, code: str, word: Word, detail: str) -> None:
        self.problems.append(Problem(code, word.span, detail))

    def _give(self, option: Option, name: str, word: Word, value: Word | None = None) -> None:
        self.given.append(Given(option, name, word.span, value))
        self.names.update(option.names)

    def _operand(self, word: Word, text: str) -> bool:
        """Take an operand; True when everything from it on belongs to a nested command."""
        level = self.level
        if level.subs and not self.operands:
            sub = level.sub(text)
            if sub is not None and not self._ended:
                self.level = sub
                return self._whole(sub)
            if not level.operands:
                self._problem("opaque.unlisted_subcommand", word, text)
        self.operands.append(word)
        if level.nests:
            spec = nested_spec(level, self)
            if spec is not None and len(self.operands) == len(spec):
                self.operands.extend(self._words[self._at :])
                return True
        if not level.permute:
            self._ended = True
        return False

    def _unknown(self, word: Word) -> None:
        """A word whose text is not known, or that has several."""
        level = self.level
        plain = self._ended or starts_plainly(word, "-+" if level.plus else "-")
        if level.subs and not self.operands and (not level.operands or (plain and self._may_be_sub(word))):
            self._problem("opaque.unlisted_subcommand", word, word.prefix)
        elif not plain:
            if self._attached(word):
                return
            if not level.inert:
                self._problem("opaque.dynamic_option", word, word.prefix)
        if level.pairs and self._plain_pair(word):
            return
        self.operands.append(word)
        spec = nested_spec(level, self)
        if spec is not None and len(self.operands) == len(spec):
            self.operands.extend(self._words[self._at :])
            self._at = len(self._words)
        elif not level.permute and plain and not several(word):
            self._ended = True

    def _may_be_sub(self, word: Word) -> bool:
        """Whether a word of unknown text, or that has several, can name a subcommand."""
        level = self.level
        if word.values:
            return any(level.sub(value) is not None for value in word.values)
        for name in level.subs:
            head, star, _ = name.partition("*")
            if head.startswith(word.prefix) or (star and word.prefix.startswith(head)):
                return True
        return False

    def _plain_pair(self, word: Word) -> bool:
        """Take `of=$x` as the `key=value` operand it is; a word that may be any of them is a problem."""
        prefix = word.prefix
        name, equals, _ = prefix.partition("=")
        option = self.level.options.get(name) if equals else None
        if option is None or splits(word) or word.values:
            self._problem("opaque.dynamic_option", word, prefix)
            return False
        self._give(option, name, word, cut(word, len(name) + 1))
        return True

    def _attached(self, word: Word) -> bool:
        """Take a known option whose *value* alone is unknown: `--format=$x`, `-n$x`."""
        prefix = word.prefix
        if splits(word) or word.values:
            return False
        if prefix.startswith("+") and "+*" in self.level.options:
            self._give(self.level.options["+*"], "+*", word, cut(word, 1))
            return True
        if not prefix.startswith("-"):
            return False
        name, equals, _ = prefix.partition("=")
        option = self._lookup(name) if equals else None
        size = len(name) + 1
        if option is None and not prefix.startswith("--") and len(prefix) >= 2 and not self.table.words:
            option = self.level.options.get(prefix[:2])
            name, size = prefix[:2], 2
        if option is None or option.arity in (Arity.NONE, Arity.TWO):
            return False
        self._give(option, name, word, cut(word, size))
        return True

    def _lookup(self, name: str) -> Option | None:
        options = self.level.options
        option = options.get(name)
        if option is not None:
            return option
        if self.table.words and name.startswith("-"):
            return options.get(name[1:] if name.startswith("--") else "-" + name)
        if self.table.abbreviations and name.startswith("--") and len(name) > 2:
            found = {other.names: other for key, other in options.items() if key.startswith(name)}
            if len(found) == 1:
                return next(iter(found.values()))
        return None

    def _shortens(self, name: str) -> bool:
        """Whether it may be short for a listed option, though it is not clear for which."""
        return self.table.abbreviations and any(key.startswith(name) for key in self.level.options)

    def _value(self, option: Option, name: str, word: Word) -> None:
        """The value of `option` is the next word."""
        if option.arity is Arity.TWO and self._at < len(self._words):
            if several(self._words[self._at]) and not self.level.inert:
                self._problem("opaque.dynamic_option", self._words[self._at], name)
            self._at += 1
        if self._at >= len(self._words):
            self._give(option, name, word)
            return
        value = self._words[self._at]
        self._at += 1
        if several(value) and not self.level.inert and not (_PLAIN in value.flags and self._no_option_follows()):
            self._problem("opaque.dynamic_option", value, f"{name} {value.prefix}")
        self._give(option, name, word, value)

    def _no_option_follows(self) -> bool:
        """Whether it is all the same which of the words behind are operands: none of them can be an option."""
        return all(word.value is not None and word.value[:1] not in ("-", "+") for word in self._words[self._at :])

    def _option(self, word: Word, text: str) -> None:
        level = self.level
        option = level.options.get(text)
        if option is not None and option.arity is _NO_VALUE:
            self._give(option, text, word)
            return
        name, equals, _ = text.partition("=")
        if self.table.numeric and text[1:].isdecimal() and text[0] == "-" and text not in level.options:
            return
        option = self._lookup(name)
        if option is not None and (len(name) > 2 or not equals):
            if option.arity is _NO_VALUE:
                if equals:
                    self._problem("opaque.unlisted_option", word, text)
                else:
                    self._give(option, name, word)
            elif equals and option.arity is Arity.TWO:
                self._problem("opaque.unlisted_option", word, text)
            elif equals:
                self._give(option, name, word, cut(word, len(name) + 1))
            elif option.arity is Arity.OPTIONAL:
                self._give(option, name, word)
            else:
                self._value(option, name, word)
            return
        if text[0] == "+" and "+*" in level.options:
            self._give(level.options["+*"], "+*", word, cut(word, 1))
            return
        if text.startswith("--") and "--*" in level.options and not self._shortens(name):
            self._give(level.options["--*"], name, word, cut(word, len(name) + 1) if equals else None)
            return
        if text.startswith("--") or text[0] == "+" or self.table.words:
            self._problem("opaque.unlisted_option", word, name)
            return
        self._cluster(word, text, 1, level)

    def _cluster(self, word: Word, text: str, start: int, level: Level) -> None:
        for at in range(start, len(text)):
            char = text[at]
            option = level.options.get("-" + char)
            if option is None:
                if char.isdecimal() and self.table.numeric:
                    continue
                self._problem("opaque.unlisted_option", word, "-" + char)
                return
            if option.arity is _NO_VALUE:
                self._give(option, "-" + char, word)
                continue
            if at + 1 < len(text):
                self._give(option, "-" + char, word, cut(word, at + 1))
            elif option.arity is Arity.OPTIONAL:
                self._give(option, "-" + char, word)
            else:
                self._value(option, "-" + char, word)
            return

    def _bundle(self) -> None:
        """The first word is a cluster without a dash; values follow in the order of its letters (tar, ps, ar)."""
        word = self._words[0]
        text = word.value
        if text is None or not text or text[0] == "-" or (self.level.subs and text in self.level.subs):
            return
        if not text.isalpha():
            return
        self._at = 1
        for char in text:
            option = self.level.options.get("-" + char)
            if option is None:
                self._problem("opaque.unlisted_option", word, char)
            elif option.arity is Arity.REQUIRED:
                self._value(option, "-" + char, word)
            else:
                self._give(option, "-" + char, word)

    def _pair(self, word: Word, text: str) -> bool:
        name, equals, _ = text.partition("=")
        option = self.level.options.get(name) if equals and name and name[0] not in "+-" else None
        if option is None:
            return False
        self._give(option, name, word, cut(word, len(name) + 1))
        return True


def nested_spec(level: Level, parsed: Parsed) -> tuple[Operand, ...] | None:
    """The operand list in force when it ends in a nested command, else None."""
    if not level.nests:
        return None
    spec = level.operands
    for when in level.when:
        if when.operands is not None and when.count is None and matches(when, parsed.names, 0, 0):
            spec = when.operands
            break
    return spec if spec and spec[-1].role.nests else None


def matches(when: When, names: set[str], least: int, most: int | None) -> bool:
    """Whether the conditions hold; with `least` and `most` operands possible, whether they may hold."""
    if when.any and when.any.isdisjoint(names):
        return False
    if when.all and not when.all <= names:
        return False
    if when.none and not when.none.isdisjoint(names):
        return False
    if when.count is None:
        return True
    low, high = when.count
    return (most is None or low <= most) and (high is None or high >= least)
