# SPDX-License-Identifier: GPL-3.0-or-later
"""What the shell stage says about a text: words, redirects, subcommands.

Offsets are counted in characters (Unicode code points) of `Script.text`; the API turns them into UTF-8 byte offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, unique
from operator import attrgetter
from typing import NamedTuple


class Span(NamedTuple):
    """Half-open range [start, end) of characters in the source text."""

    start: int
    end: int


@unique
class PartKind(Enum):
    """What a piece of a word is, before expansion."""

    LITERAL = "literal"  # text after quote removal; `quoted` tells whether it was protected from expansion
    GLOB = "glob"  # an unquoted `*`, `?` or `[…]`; text is its source
    TILDE = "tilde"  # `~`, `~user`, `~+`, `~-`; text is its source
    VARIABLE = "variable"  # `$v`, `${v…}`; text is the name, `default` the operand of `:-` and its kin when it is literal
    SUBSTITUTION = "substitution"  # `$( )` or backticks; text is the inner source
    PROCESS = "process"  # `<( )` or `>( )`; text is the inner source
    ARITHMETIC = "arithmetic"  # `$(( ))`, `$[ ]`; text is the expression

    __hash__ = object.__hash__  # members are single: by identity, several times faster than Enum's own, which is Python


_COUNTS = frozenset("#?$")


@dataclass(frozen=True, slots=True)
class Part:
    """One piece. `op` is the operator of a `${v…}` (`:-`, `#`, `/`, `length`, `!`, `[`, `@P` …); "" for plain `$v`, `${v}`.

    `operand` are the pieces of what stands behind `:-` and its kin when that is not literal, and behind `%`, `#`, `/` and
    `:` when it is."""

    kind: PartKind
    text: str
    quoted: bool = False
    default: str | None = None
    op: str = ""
    operand: tuple[Part, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it becomes digits, whatever happened before: `$#`, `$?`, `$$`, a length."""
        return self.kind is PartKind.VARIABLE and (self.op == "length" or (self.text in _COUNTS and not self.op))


@unique
class WordFlag(Enum):
    """Why a word is not a plain literal. Each one is a reason to distrust it somewhere."""

    GLOB = "glob"
    TILDE = "tilde"
    BRACE = "brace"  # a brace expansion too large to enumerate
    VARIABLE = "variable"
    SPLITS = "splits"  # may become no word or several: unquoted expansion, "$@", glob
    SUBSTITUTION = "substitution"
    PROCESS = "process"
    ARITHMETIC = "arithmetic"
    EVALUATES = "evaluates"  # the expansion itself can run text: a variable in arithmetic or a subscript, ${!v}, ${v@P}
    ASSIGNS = "assigns"  # ${v:=…}: the expansion changes a variable
    PLAIN = "plain"  # begins with no dash, whatever it becomes (set by the effects stage alone)

    __hash__ = object.__hash__  # as PartKind


@dataclass(frozen=True, slots=True)
class Word:
    """One word as bash sees it after brace expansion and before the other expansions.

    `values` are all the values it can have, known for certain: one for a literal, several for a loop variable over
    literals, none when unknown. Quotes are removed. `flags` is empty exactly for a plain literal.
    """

    span: Span
    parts: tuple[Part, ...]
    values: tuple[str, ...] = ()
    flags: frozenset[WordFlag] = frozenset()

    @property
    def value(self) -> str | None:
        """The one value this word has for certain, else None."""
        return self.values[0] if len(self.values) == 1 else None

    @property
    def prefix(self) -> str:
        """The literal text before the first piece that expands."""
        out = []
        for part in self.parts:
            if part.kind is not PartKind.LITERAL:
                break
            out.append(part.text)
        return "".join(out)


@unique
class RedirectOp(Enum):
    READ = "<"
    WRITE = ">"
    APPEND = ">>"
    CLOBBER = ">|"
    READ_WRITE = "<>"
    BOTH = "&>"
    BOTH_APPEND = "&>>"
    DUP_OUT = ">&"  # with a file name: both streams to a file; with digits or `-`: duplicate or close
    DUP_IN = "<&"
    HEREDOC = "<<"
    HERESTRING = "<<<"

    __hash__ = object.__hash__  # as PartKind


@dataclass(frozen=True, slots=True)
class Redirect:
    """One redirection. `fd` is the descriptor number, a `{name}` variable's name, or None for the operator's default.

    For HEREDOC, `target` is the body (a literal when the delimiter was quoted, else with its expansions).
    """

    op: RedirectOp
    target: Word
    span: Span
    fd: int | str | None = None

    @property
    def writes(self) -> bool:
        """Whether this opens its target for writing, as far as the operator and a literal target tell."""
        if self.op is RedirectOp.DUP_OUT:
            value = self.target.value
            return value is None or not (value == "-" or (value.rstrip("-").isascii() and value.rstrip("-").isdigit()))
        return self.op in _WRITING

    @property
    def reads(self) -> bool:
        return self.op in (RedirectOp.READ, RedirectOp.READ_WRITE)


_WRITING = frozenset(
    (RedirectOp.WRITE, RedirectOp.APPEND, RedirectOp.CLOBBER, RedirectOp.READ_WRITE, RedirectOp.BOTH, RedirectOp.BOTH_APPEND)
)


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name=value`, `name+=value`, `name[sub]=value` or `name=( … )`; `value` is None for an array."""

    name: str
    value: Word | None
    span: Span
    append: bool = False
    subscript: str | None = None
    elements: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """A construct that matters whatever its words are, by reason code: `shell.function_shadows`, `shell.evaluates` …"""

    code: str
    span: Span
    detail: str = ""


@unique
class CommandKind(Enum):
    SIMPLE = "simple"  # argv as bash executes it; empty argv = bare assignments or redirects
    TEST = "test"  # `[[ … ]]`: argv is `[[`, the words, `]]`
    ARITHMETIC = "arithmetic"  # `(( … ))`, `let`-like heads: argv is `((` and the expression as one word
    WORDS = "words"  # words that are expanded but not executed: a `for` list, a `case` subject and its patterns
    COMPOUND = "compound"  # a group, subshell or loop that carries redirects; argv is empty


_FLAGS = attrgetter("flags")


@dataclass(frozen=True, slots=True)
class Subcommand:
    """One command that bash may execute, wherever it stands: in a list, a loop, a substitution, a function body.

    `cwds` are the directories it can start in, as lexical paths relative to the start directory ("" = there; absolute
    and `~` paths possible); None = unknown. `pipeline` numbers the pipeline it belongs to. `depth` counts the
    substitutions around it.
    """

    argv: tuple[Word, ...]
    span: Span
    assignments: tuple[Assignment, ...] = ()
    redirects: tuple[Redirect, ...] = ()
    kind: CommandKind = CommandKind.SIMPLE
    operator: str = ""  # what joins it to the one before: "", ";", "&&", "||", "|", "|&", "&"
    depth: int = 0
    cwds: tuple[str, ...] | None = ("",)
    pipeline: int = 0
    piped_in: bool = False
    piped_out: bool = False
    background: bool = False
    notes: tuple[Note, ...] = ()
    texts: tuple[str | None, ...] = field(init=False, repr=False, compare=False)  # the one value of each word of `argv`
    plain: bool = field(init=False, repr=False, compare=False)  # whether `argv` holds nothing but plain literals

    def __post_init__(self) -> None:
        argv = self.argv
        object.__setattr__(self, "texts", tuple([values[0] if len(values := word.values) == 1 else None for word in argv]))
        object.__setattr__(self, "plain", not any(map(_FLAGS, argv)))


@dataclass(frozen=True, slots=True)
class Unparsed:
    """Why a text could not be read for certain. `words` are literal words found anyway, for deny and ask rules; `partial`:
    there are more of them."""

    reason: str
    span: Span
    words: tuple[str, ...] = ()
    detail: str = ""
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """A text as ordered subcommands; `unparsed` is set when any part could not be read, and then nothing is trusted."""

    text: str
    subcommands: tuple[Subcommand, ...]
    unparsed: Unparsed | None = None
    functions: tuple[str, ...] = ()
    changes_cwd: bool = False  # whether its top level contains cd, pushd or popd
