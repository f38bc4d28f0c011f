# SPDX-License-Identifier: GPL-3.0-or-later
"""The values that an effect table becomes once it is read; docs/tables.md says what each means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, unique

from sandboxd.effects.roles import ROLES, Role


@unique
class Arity(Enum):
    NONE = ""
    REQUIRED = "="
    OPTIONAL = "[=]"
    TWO = "=="  # two words follow; the second is the value


@dataclass(frozen=True, slots=True)
class Standing:
    """An effect that stands whatever the words are; `target` None = unknown."""

    role: Role
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Option:
    names: tuple[str, ...]
    arity: Arity
    role: Role
    because: str = ""
    effects: tuple[Standing, ...] = ()
    values: frozenset[str] | None = None  # harmless values; any other has the role `otherwise`
    separator: str = ""  # the value is a list, each item of which must be in `values`
    otherwise: Role = ROLES["opaque.unlisted_value"]
    spellings: frozenset[str] = field(init=False, repr=False, compare=False)  # `names`, to look one up

    def __post_init__(self) -> None:
        object.__setattr__(self, "spellings", frozenset(self.names))

    @property
    def dangerous(self) -> bool:
        return self.role.dangerous or bool(self.effects) or (self.values is not None and self.otherwise.dangerous)

    def knows(self, value: str) -> bool:
        """Whether the value is among the harmless ones."""
        assert self.values is not None
        items = value.split(self.separator) if self.separator else (value,)
        return self.values.issuperset(items)


@dataclass(frozen=True, slots=True)
class Operand:
    role: Role
    many: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class When:
    """What changes when its conditions hold; `any`, `all`, `none` hold option names."""

    any: frozenset[str] = frozenset()
    all: frozenset[str] = frozenset()
    none: frozenset[str] = frozenset()
    count: tuple[int, int | None] | None = None
    operands: tuple[Operand, ...] | None = None
    effects: tuple[Standing, ...] = ()
    edit: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """A tool or one of its subcommands. `id` is the dotted path (`git.log`), the stem of its effects' `because`."""

    id: str
    because: str
    options: Mapping[str, Option]
    operands: tuple[Operand, ...] | None = None
    effects: tuple[Standing, ...] = ()
    when: tuple[When, ...] = ()
    subs: Mapping[str, Level] = field(default_factory=dict)
    globs: tuple[str, ...] = ()  # the names of `subs` that hold a `*`, the longest first
    exact: frozenset[tuple[str, ...]] = frozenset()
    any: bool = False
    raw: bool = False  # no word is an option
    edit: bool = False
    inert: bool = False
    permute: bool = True
    language: str = ""
    behind: Role | None = None  # what operands behind `--` are besides
    plus: bool = False  # whether options that begin with `+` exist
    pairs: bool = False  # whether key=value operands exist
    nests: bool = field(init=False)  # whether the operands may end in a nested command
    longest: int = field(init=False)  # how many words the longest of `exact` has, -1 where there is none

    def __post_init__(self) -> None:
        specs = (self.operands, *(when.operands for when in self.when))
        object.__setattr__(self, "longest", max(map(len, self.exact), default=-1))
        object.__setattr__(self, "nests", any(spec[-1].role.nests for spec in specs if spec))

    def sub(self, word: str) -> Level | None:
        """The subcommand that `word` names: by its own name, else by the longest glob that fits."""
        found = self.subs.get(word)
        if found is None and self.globs:
            found = next((self.subs[name] for name in self.globs if _fits(name, word)), None)
        return found


def _fits(glob: str, word: str) -> bool:
    head, *middle, tail = glob.split("*")
    at, end = len(head), len(word) - len(tail)
    if at > end or not word.startswith(head) or not word.endswith(tail):
        return False
    for piece in middle:
        at = word.find(piece, at, end) + len(piece)
        if at < len(piece):
            return False
    return True


@dataclass(frozen=True, slots=True)
class Example:
    run: str
    holds: tuple[str, ...]
    origin: str


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    root: Level
    origin: str
    words: bool = False  # style = "words"
    abbreviations: bool = False
    numeric: bool = False
    bundle: bool = False
    anywhere: bool = False
    wrapper: str = ""
    builtin: bool = False  # part of bash: no program is looked up
    credentials: tuple[str, ...] = ()
    exit_ok: frozenset[int] = frozenset((0,))
    examples: tuple[Example, ...] = ()
    same_as: str = ""
