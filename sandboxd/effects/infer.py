# SPDX-License-Identifier: GPL-3.0-or-later
"""What one subcommand does: its words, redirects and assignments against the tables. Pure but for the tables' loading.

Never guesses: what no table lists, and every word that could be an option or code, is an OPAQUE effect with its reason.
"""

from __future__ import annotations

import re
from typing import Protocol

from sandboxd.effects import argv
from sandboxd.effects.call import HARMLESS_FILES, REOPENS, STREAMS, Nested, is_pipe, mentioned, path_effect
from sandboxd.effects.environment import Environment
from sandboxd.effects.fill import Filling
from sandboxd.effects.outputs import settle
from sandboxd.effects.roles import ROLES
from sandboxd.effects.rows import Table
from sandboxd.effects.targets import Place, fragments, resolve
from sandboxd.effects.variables import Names, compares
from sandboxd.errors import TableError
from sandboxd.model import (
    Assignment,
    CommandKind,
    Direction,
    Effect,
    EffectKind,
    PartKind,
    Redirect,
    RedirectOp,
    Span,
    Subcommand,
    Word,
    WordFlag,
)
from sandboxd.paths import normalize

# Members as names of this module: Python 3.11 looks an enum's members up in Python.
_SIMPLE, _TEST = CommandKind.SIMPLE, CommandKind.TEST
_EXEC, _ENV, _OPAQUE = EffectKind.EXEC, EffectKind.ENV, EffectKind.OPAQUE
# Where a command named by its path is the tool of that name.
SYSTEM_BINS = frozenset(("/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"))
# Notes of the shell stage on what is understood here: exec and eval by their tables, a function by its own commands.
_TOLD = frozenset(("shell.exec", "shell.eval", "shell.function_shadows"))
_HERE = frozenset((RedirectOp.HEREDOC, RedirectOp.HERESTRING))
_OUTPUTS = frozenset(
    (RedirectOp.WRITE, RedirectOp.APPEND, RedirectOp.CLOBBER, RedirectOp.BOTH, RedirectOp.BOTH_APPEND, RedirectOp.DUP_OUT)
)
_NET_FILES = ("/dev/tcp/", "/dev/udp/")


class Finder(Protocol):
    """Where tables come from (`tables.Tables`)."""

    def find(self, name: str) -> tuple[Table, ...]: ...


_UNKNOWN = Names()
_OWNERS = frozenset(("UID", "EUID", "PPID"))  # numbers that bash keeps
_LOOKS_UP = frozenset(("-v", "-V"))


class Inference:
    """All that one subcommand does, in its place: its `effects`, the commands `nested` in its words, what it `links`. `levels`
    are the rows of the tables that speak of it, `wrapper` is that of its tool. `feed` are literal pieces that come in by
    standard input."""

    __slots__ = (
        *("command", "tables", "environment", "place", "functions", "feed", "appended", "counts", "span", "names", "fed"),
        *("effects", "nested", "links", "clean", "lasting", "expands", "wrapper", "levels", "compares"),
    )

    def __init__(
        self,
        command: Subcommand,
        tables: Finder,
        environment: Environment,
        place: Place,
        functions: frozenset[str] = frozenset(),
        feed: tuple[str, ...] = (),
        appended: bool = False,
        counts: bool = False,
        span: Span | None = None,
        names: Names = _UNKNOWN,
        fed: str = "",
    ) -> None:
        self.command = command
        self.tables = tables
        self.environment = environment
        self.place = place
        self.functions = functions
        self.feed = feed
        self.appended = appended  # words of unknown text follow the argv (xargs)
        self.counts = counts  # arithmetic over a counter that nothing else sets
        self.span = span  # where to point to, for commands inside a word
        self.names = names  # what is certain of the variables
        self.fed = fed  # what is certain of standard input
        self.effects: list[Effect] = []
        self.nested: list[Nested] = []
        self.links: list[tuple[Word, Word]] = []
        self.clean = True  # whether its own environment is known to be harmless
        self.lasting = True  # whether the environment of what follows is
        self.expands = False  # whether a word of the argv is no plain literal
        self.wrapper = ""
        self.levels: list[str] = []
        self.compares = command.kind is _TEST and compares(command, names)
        self._run()

    def _run(self) -> None:
        command = self.command
        for note in command.notes:
            if self.counts and note.code == "shell.evaluates":
                continue
            if self.compares and note.code == "shell.test_arithmetic":
                continue
            if note.code == "shell.test_variable" and note.detail.startswith("an unquoted") and self._splits_numbers():
                continue
            told = note.code in _TOLD and command.kind is _SIMPLE
            if not told and not (note.code == "shell.ifs_changed" and _reads_line(command)):
                self._opaque(note.code, note.code, note.span, note.detail)
        for assignment in command.assignments:
            self._assignment(assignment)
        for redirect in command.redirects:
            self._redirect(redirect)
        if not command.plain:
            self.expands = True
            for word in command.argv:
                if word.flags:
                    self._flags(word)
        if command.kind is _SIMPLE and command.argv:
            self._simple(command.argv)
        elif command.kind is _TEST:
            self._tool("[[", command.argv)
        if self.span is not None:
            self.effects = [effect._replace(span=self.span) for effect in self.effects]

    def _opaque(self, code: str, because: str, span: Span, detail: str = "", pieces: tuple[str, ...] = ()) -> None:
        self.effects.append(Effect(_OPAQUE, because, span, None, code=code, detail=detail, fragments=pieces))

    def _pieces(self, words: tuple[Word, ...]) -> tuple[str, ...]:
        return mentioned(tuple(piece for word in words for piece in fragments(word, self.place)))

    def _flags(self, word: Word) -> None:
        """What an expansion does by itself, wherever the word stands."""
        if WordFlag.EVALUATES in word.flags and not self.counts:
            self._opaque("shell.evaluates", "shell.evaluates", word.span)
        if WordFlag.ASSIGNS in word.flags:
            names = [part.text for part in word.parts if part.kind is PartKind.VARIABLE]
            if all(self.environment.ordinary(name) for name in names):
                self.effects.append(Effect(_ENV, "shell.assigns", word.span, " ".join(names)))
            else:
                self._opaque("env.unlisted", "shell.assigns", word.span, " ".join(names))

    def _assignment(self, assignment: Assignment) -> None:
        words = (*((assignment.value,) if assignment.value is not None else ()), *assignment.elements)
        for word in words:
            if word.flags:
                self._flags(word)
        name = assignment.name
        before = bool(self.command.argv) and self.command.kind is _SIMPLE
        environment = self.environment
        if name == "IFS" and _reads_line(self.command):
            return
        if assignment.subscript is not None and not assignment.subscript.strip("\"'").isalnum():
            self._opaque("shell.evaluates", "env.subscript", assignment.span, name)
        allowed = environment.harmless(name, assignment.value) if before else environment.ordinary(name)
        if not allowed and not before and name in _EVALUATED and assignment.value is not None:
            allowed = bool(assignment.value.values) and all(map(_DIGITS.match, assignment.value.values))
        if not allowed:
            self.clean = False
            self.lasting = self.lasting and before
            pieces = tuple(piece for word in words for piece in fragments(word, self.place))
            self._opaque("env.unlisted", f"env.{name}", assignment.span, name, pieces)
        elif not before:
            self.effects.append(Effect(_ENV, "env.assignment", assignment.span, name))

    def _redirect(self, redirect: Redirect) -> None:
        word = redirect.target
        if word.flags:
            self._flags(word)
        if redirect.op in _HERE:
            return
        if isinstance(redirect.fd, str):
            if self.environment.ordinary(redirect.fd):
                self.effects.append(Effect(_ENV, "redirect.fd", redirect.span, redirect.fd))
            else:
                self.lasting = False
                self._opaque("env.unlisted", "redirect.fd", redirect.span, redirect.fd)
        writes = redirect.writes
        if writes:
            if word.flags and is_pipe(word):
                return
            act = _REDIRECT_ROLES[redirect.op]
        elif redirect.reads or (redirect.op is RedirectOp.DUP_IN and not _is_descriptor(word)):
            act = ROLES["path.read"]
        else:
            return
        because = _REDIRECTS[redirect.op]
        for target in resolve(word, self.place):
            if target.path is not None and target.path.startswith(_NET_FILES):
                host = ":".join(target.path.split("/")[3:5])
                direction = Direction.SEND
                self.effects.append(Effect(EffectKind.NETWORK, because, word.span, host, direction=direction))
            elif target.path is None and target.fragments and target.fragments[0].startswith(_NET_FILES):
                self.effects.append(Effect(EffectKind.NETWORK, because, word.span, direction=Direction.SEND))
            elif target.path not in HARMLESS_FILES or target.pattern:
                self.effects.append(path_effect(act, target, because, word.span, self.place.home, writes))
            elif writes and target.path in STREAMS:
                self.effects.append(Effect(_ENV, REOPENS, word.span, target.path))

    def _simple(self, words: tuple[Word, ...]) -> None:
        head = words[0]
        name = self.command.texts[0]
        if name is None:
            self._opaque("opaque.dynamic_command", "command.dynamic", head.span, head.prefix, self._pieces(words))
            return
        if "/" in name:
            folder, _, base = name.rpartition("/")
            if folder not in SYSTEM_BINS or normalize(name) != name:
                self._opaque("opaque.program_path", "command.path", head.span, name, self._pieces(words))
                self.effects.append(Effect(_EXEC, "command.path", head.span, name))
                return
            name = base
        self._tool(name, words)

    def _tool(self, name: str, words: tuple[Word, ...]) -> None:
        head = words[0]
        try:
            tables = self.tables.find(name)
        except TableError as error:
            self._opaque("opaque.table_error", "command.table", head.span, str(error), self._pieces(words))
            return
        if not tables:
            if name in self.functions:
                return
            self._opaque("opaque.unlisted_tool", "command.unlisted", head.span, name, self._pieces(words[1:]))
            self.effects.append(Effect(_EXEC, "command.unlisted", head.span, name))
            return
        for table in tables:
            self._by_table(table, name, words)

    def _known(self, name: str) -> Names:
        """For `test` a number is no option, whatever its sign."""
        names = self.names
        if name not in ("[", "test"):
            return names
        # Other shells than bash, which runs what stands outside, let everybody set these.
        return names._replace(words=names.words | names.numbers | (_OWNERS if self.span is None else frozenset()))

    def _splits_numbers(self) -> bool:
        """Whether no word of this `test` can become `-v`, though some are not quoted."""
        words = self.command.argv
        if words[0].value not in ("[", "test"):
            return False
        settled = settle(words, self._known("["))
        return all(WordFlag.SPLITS not in word.flags or WordFlag.PLAIN in word.flags for word in settled if not word.values)

    def _by_table(self, table: Table, name: str, words: tuple[Word, ...]) -> None:
        head = words[0]
        if not table.builtin:
            self.effects.append(Effect(_EXEC, table.root.id, head.span, name))
        if self.expands:
            words = settle(words, self._known(name))
        if name == "command" and len(words) > 2 and words[1].value in _LOOKS_UP:
            # Whatever stands behind, it is only looked up.
            words = (*words[:2], argv.literal("--", words[1].span), *words[2:])
        parsed = argv.Parsed(table, words[1:])
        self.levels.append(parsed.level.id)
        self.wrapper = table.wrapper
        if parsed.exact and not self.appended:
            return
        command = self.command
        call = Filling(
            name,
            words,
            parsed,
            self.place,
            head.span,
            self.environment,
            self.feed,
            self.appended,
            self.compares,
            command.piped_in,
        )
        for redirect in command.redirects:
            call.piped = call.piped or redirect.reads
            call.heredoc = call.heredoc or redirect.op in _HERE
        if self.fed and all(map(_leaves_input, command.redirects)):
            call.fed = self.fed
        call.run()
        self.effects += call.effects
        self.nested += call.nested
        self.links += call.links
        self.clean = self.clean and call.clean
        self.lasting = self.lasting and call.clean


def _reads_line(command: Subcommand) -> bool:
    """`IFS=… read`: the variable is back as it was when the next word is expanded."""
    return bool(command.argv) and command.argv[0].value in ("read", "mapfile", "readarray")


def _leaves_input(redirect: Redirect) -> bool:
    """Whether standard input stays what it is."""
    return redirect.op in _OUTPUTS and redirect.fd in (None, 1, 2)


def _is_descriptor(word: Word) -> bool:
    value = word.value
    return value is not None and (value == "-" or (value.rstrip("-").isascii() and value.rstrip("-").isdigit()))


# What bash gives the integer attribute: a value is evaluated as arithmetic, unless it is a number.
_EVALUATED = frozenset(("OPTIND", "RANDOM", "SRANDOM"))
_DIGITS = re.compile(r"[0-9]{1,9}\Z")
_REDIRECTS = {op: f"redirect.{op.value}" for op in RedirectOp}
_REDIRECT_ROLES = {
    RedirectOp.WRITE: ROLES["path.write"],
    RedirectOp.CLOBBER: ROLES["path.write"],
    RedirectOp.BOTH: ROLES["path.write"],
    RedirectOp.DUP_OUT: ROLES["path.write"],
    RedirectOp.APPEND: ROLES["path.append"],
    RedirectOp.BOTH_APPEND: ROLES["path.append"],
    RedirectOp.READ_WRITE: ROLES["path.edit"],
}
