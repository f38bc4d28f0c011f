# SPDX-License-Identifier: GPL-3.0-or-later
"""From text to Analysis: shell and effects joined to a fixpoint over nested commands, then what follows from the effects.

Nothing here looks at the disk. `analyze` never raises: whatever goes wrong is an unparsed analysis, which nothing trusts.
"""

from __future__ import annotations

import re

from sandboxd.effects.call import REOPENS, Nested
from sandboxd.effects.hints import held, standard_input
from sandboxd.effects.infer import Inference
from sandboxd.effects.lists import expanded_again
from sandboxd.effects.outputs import stream
from sandboxd.effects.streams import reopened
from sandboxd.effects.tables import Tables
from sandboxd.effects.targets import Place, resolve
from sandboxd.effects.variables import Names, computes, counted, counter, counters, names
from sandboxd.globs import literal_prefix
from sandboxd.memory import Memory, size_of
from sandboxd.model import (
    Act,
    Analysis,
    AnalysisContext,
    AnalyzedCommand,
    CommandKind,
    Direction,
    Effect,
    EffectKind,
    GitUse,
    Script,
    Span,
    Subcommand,
    Unparsed,
)
from sandboxd.paths import expand_home, is_within, join, normalize
from sandboxd.shell.script import parse, refusal

# Members as names of this module: Python 3.11 looks an enum's members up in Python.
_EXEC, _READ, _WRITE, _DELETE, _NETWORK, _ENV = (
    EffectKind.EXEC,
    EffectKind.READ,
    EffectKind.WRITE,
    EffectKind.DELETE,
    EffectKind.NETWORK,
    EffectKind.ENV,
)
_FETCH, _REMOVES, _TRUNCATES = Direction.FETCH, Act.DELETE, Act.TRUNCATE
_ARITHMETIC = CommandKind.ARITHMETIC
# How deep commands may nest in words (bash -c in bash -c), and how many one text may hold with all nested ones.
MAX_DEPTH = 12
MAX_COMMANDS = 4_000
_ROOM = 8 << 20  # bytes for what is remembered of texts, and as much for what they do

TABLES = Tables()
_DONE: Memory[Analysis] = Memory(_ROOM)
_READ_TEXTS: Memory[Script] = Memory(_ROOM)


def analyze(text: str, context: AnalysisContext, tables: Tables = TABLES) -> Analysis:
    """All that `text` would do, run by bash in `context.cwd`. The same question again is answered from memory."""
    question = (text, context, tables)
    known = _DONE.get(question)
    if known is not None:
        return known
    try:
        done = _Line(text, context, tables).run()
    except Exception as error:  # a defect here must become neither a looser answer nor an exception
        unparsed = refusal(text, "unparsed.internal", Span(0, len(text)), f"{type(error).__name__}: {error}")
        done = Analysis(text, context.cwd, (), unparsed)
    return _DONE.keep(question, done, size_of(text, len(done.commands), _words(done.unparsed)))


def read(text: str) -> Script:
    """The text as the shell reads it, which `analyze` goes on from. Never raises."""
    script = _READ_TEXTS.get(text)
    if script is None:
        script = parse(text)
        _READ_TEXTS.keep(text, script, size_of(text, len(script.subcommands), _words(script.unparsed)))
    return script


def _words(unparsed: Unparsed | None) -> int:
    return 0 if unparsed is None else len(unparsed.words)


class _Line:
    """The analysis of one text in progress."""

    def __init__(self, text: str, context: AnalysisContext, tables: Tables) -> None:
        self.text = text
        self.context = context
        self.tables = tables
        self.environment = tables.environment
        self.commands: list[AnalyzedCommand] = []
        self.unparsed: Unparsed | None = None
        self.links: list[tuple[str, str]] = []  # (new name, what it stands for), absolute
        self.functions: frozenset[str] = frozenset()
        self.known: tuple[tuple[str, str], ...] = (("HOME", context.home),)
        self.levels: list[str] = []
        self.lists: set[str] = set()  # names that a function may have made arrays
        self.evaluated: list[Effect] = []
        self.clean = True
        self.placed = "PWD" in text or "HOME" in text
        self.steady = not self.placed or not _MOVING.search(text)
        self.names = _NAMELESS if self.steady else Names()
        self.counters: frozenset[str] = frozenset()

    def run(self) -> Analysis:
        script = read(self.text)
        self.unparsed = script.unparsed
        self._script(script, (self.context.cwd,), "", (), 0, None)
        if self.evaluated and self.commands:
            first = self.commands[0]
            self.commands[0] = first._replace(effects=(*first.effects, *self.evaluated))
        read_only, destructive = self.unparsed is None, False
        wanted: dict[str, None] = {}
        programs: dict[str, None] = {}
        git: list[Effect] = []
        others = False  # whether something that is not git changes anything
        streams = False
        for command in self.commands:
            for effect in command.effects:
                kind, target = effect.kind, effect.target
                if kind is _EXEC:
                    if target is not None:
                        programs[target] = None
                    continue
                reads = kind is _READ or _reads(effect)
                read_only = read_only and reads
                destructive = destructive or (not reads and _destroys(effect))
                if target is not None and kind in _PATH_KINDS:
                    # Of a glob, the directory in front of it.
                    wanted[literal_prefix(target) if effect.pattern else target] = None
                if effect.because.startswith("git."):
                    git.append(effect)
                else:
                    others = others or not reads
                    streams = streams or effect.because == REOPENS
        if streams and (reopens := reopened(self.commands)) is not None:
            self.commands, read_only, others = reopens, False, True
        return Analysis(
            text=self.text,
            cwd=self.context.cwd,
            commands=tuple(self.commands),
            unparsed=self.unparsed,
            read_only=read_only,
            concurrency_safe=read_only,
            destructive=destructive,
            changes_cwd=script.changes_cwd,
            wanted=tuple(wanted),
            programs=tuple(programs),
            git=_git(self.levels, git, others),
        )

    def _script(
        self,
        script: Script,
        bases: tuple[str, ...] | None,
        via: str,
        hints: tuple[str, ...],
        depth: int,
        span: Span | None,
        outside: tuple[tuple[str, tuple[str, ...]], ...] = (),
    ) -> None:
        outer, above, counting = self.functions, self.names, self.counters
        if script.functions:
            self.functions |= frozenset(script.functions)
        if self.functions:
            self.evaluated += expanded_again(script, self.lists)
        home = self.context.home
        assigns = expands = counts = False
        for command in script.subcommands:
            counts = counts or command.kind is _ARITHMETIC
            for assignment in command.assignments:
                assigns = True
                expands = expands or (assignment.value is not None and not assignment.value.values)
                if assignment.name in ("HOME", "PWD"):
                    self.known = ()
        if self.placed and self.steady:
            self.steady = not any(_sets_place(command) for command in script.subcommands)
        moved = not self.steady
        place = Place(bases, home, self.known, (), moved)
        about = (*outside, *held(script, hints, place))
        if assigns and (expands or any(map(_expands, script.subcommands))):
            self.names = names(script, self.environment, self.functions, self.steady)
        elif self.functions or self.names is not _NAMELESS or not self.steady:
            self.names = Names(self.functions, self.steady)
        self.counters = counters(script, self.environment, self.functions) if counts else frozenset()
        if self.counters:
            self.names = self.names._replace(numbers=self.names.numbers | counted(script.text, self.counters))
        feeds: dict[int, tuple[str, ...]] = {}
        if about:
            place = Place(bases, home, self.known, about, moved)
        at: tuple[str, ...] | None = ("",)  # where `place` is, as the shell stage says it
        for number, command in enumerate(script.subcommands):
            if command.cwds != at:
                at = command.cwds
                place = Place(_places(at, bases, home), home, self.known, about, moved)
            feed: tuple[str, ...] = ()
            if command.piped_in or command.piped_out or command.redirects:
                before = script.subcommands[number - 1] if command.piped_in and number else None
                feed = standard_input(command, place, feeds, before)
            fed = ""
            if command.piped_in and command.argv and command.texts[0] == "xargs":
                fed = _fed(script, number, self.functions)
            self._command(command, place, via, feed, depth, span, False, fed)
        self.functions = outer
        self.names = above
        self.counters = counting

    def _command(
        self,
        command: Subcommand,
        place: Place,
        via: str,
        feed: tuple[str, ...],
        depth: int,
        span: Span | None,
        appended: bool = False,
        fed: str = "",
    ) -> AnalyzedCommand:
        counts = command.kind is _ARITHMETIC and counter(command) in self.counters
        if not counts and (command.notes or self.names.numbers):
            counts = computes(command, self.names)
        found = Inference(
            command, self.tables, self.environment, place, self.functions, feed, appended, counts, span, self.names, fed
        )
        self.clean = self.clean and found.lasting
        effects = tuple(found.effects)
        if self.links:
            effects = self._through_links(effects)
        if found.links:
            self._remember_links(found, place)
        if found.levels:
            self.levels += found.levels
        at = len(self.commands)
        argv = command.texts
        analyzed = AnalyzedCommand(command, argv, effects, argv, argv, via, found.clean and self.clean)
        self.commands.append(analyzed)
        if not found.nested:
            return analyzed
        extra: list[Effect] = []
        inner: list[AnalyzedCommand] = []
        for nested in found.nested:
            self._nested(nested, place, depth, span, extra, inner)
        peeled = inner[0] if found.wrapper and len(inner) == 1 and found.nested[0].text is None else None
        analyzed = analyzed._replace(
            effects=(*effects, *extra),
            harmless=peeled.harmless if peeled is not None and found.nested[0].harmless else argv,
            bare=peeled.bare if peeled is not None else argv,
        )
        self.commands[at] = analyzed
        return analyzed

    def _nested(
        self, nested: Nested, place: Place, depth: int, span: Span | None, extra: list[Effect], inner: list[AnalyzedCommand]
    ) -> None:
        at = span or nested.span
        if depth >= MAX_DEPTH or len(self.commands) >= MAX_COMMANDS:
            extra.append(Effect(EffectKind.OPAQUE, "nested.depth", at, code="opaque.depth", detail=nested.via))
            return
        if nested.text is None:
            command = Subcommand(nested.words, nested.span, cwds=nested.cwds, depth=depth + 1)
            hints = (*place.hints, ("{}", nested.hints))
            inside = Place(nested.cwds, place.home, place.known, hints, place.moved)
            inner.append(self._command(command, inside, nested.via, nested.hints, depth + 1, span, nested.appended))
            return
        script = parse(nested.text)
        if not self.placed and ("PWD" in nested.text or "HOME" in nested.text):
            # No text around says so in plain letters: what else it may set is not known.
            self.placed, self.steady, self.known = True, False, ()
        if script.unparsed is not None:
            words = script.unparsed.words
            extra.append(
                Effect(EffectKind.OPAQUE, "nested.unparsed", at, code=script.unparsed.reason, detail=nested.via, fragments=words)
            )
        self._script(script, nested.cwds, nested.via, nested.hints, depth + 1, at, place.hints)

    def _through_links(self, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        """Effects on a name that was linked earlier in this text are effects on what it is linked to as well."""
        out = list(effects)
        for effect in effects:
            if effect.target is None or effect.kind not in _PATH_KINDS:
                continue
            for name, source in self.links:
                if is_within(effect.target, name):
                    out.append(effect._replace(target=normalize(source + effect.target[len(name) :]), detail=f"through {name}"))
        return tuple(out)

    def _remember_links(self, found: Inference, place: Place) -> None:
        for source, name in found.links:
            for new in resolve(name, place):
                if new.path is None:
                    continue
                folder = new.path.rpartition("/")[0] or "/"
                for text in source.values or ((source.prefix,) if source.prefix else ()):
                    text = expand_home(text, place.home)
                    bases = {folder, *(place.cwds or ())}
                    last = normalize(text).rpartition("/")[2]
                    for base in bases:
                        self.links.append((new.path, join(base, text)))
                        self.links.append((join(new.path, last), join(base, text)))
                for target in resolve(source, place):
                    if target.path is not None:
                        self.links.append((new.path, target.path))


def _expands(command: Subcommand) -> bool:
    """Whether a word becomes what is not known yet."""
    return not command.plain and any(not word.values for word in command.argv)


def _sets_place(command: Subcommand) -> bool:
    """Whether the command may give HOME or PWD another value: an assignment, or a word that names one of them."""
    return any(assignment.name in ("HOME", "PWD") for assignment in command.assignments) or any(
        _NAMES_PLACE.search(value) for word in command.argv for value in word.values
    )


_NO_GIT = GitUse()
_PATH_KINDS = frozenset((_READ, _WRITE, _DELETE))


def _places(cwds: tuple[str, ...] | None, bases: tuple[str, ...] | None, home: str) -> tuple[str, ...] | None:
    """The absolute directories that a command can start in."""
    if cwds is None:
        return None
    if cwds == ("",):
        return bases
    out = []
    for cwd in cwds:
        path = expand_home(cwd, home)
        if path.startswith("/"):
            out.append(normalize(path))
        elif path.startswith("~") or bases is None:
            return None
        else:
            out.extend(join(base, path) for base in bases)
    return tuple(dict.fromkeys(out))


_NAMELESS = Names(steady=True)
_NAMES_PLACE = re.compile(r"(?<![$A-Za-z0-9_{])(?:PWD|HOME)(?![A-Za-z0-9_])")
# What runs text at another time than where it stands, and so may set a variable before a command that stands in front of it.
_MOVING = re.compile(r"eval|trap")
_MAX_STAGES, _MAX_STAGE_TEXT = 4, 1_000  # of a pipeline that is read for what it prints


def _fed(script: Script, number: int, functions: frozenset[str]) -> str:
    """What is certain of what the pipe in front of this command brings, see `outputs.stream`."""
    command = script.subcommands[number]
    first = number
    while first and number - first < _MAX_STAGES and script.subcommands[first - 1].pipeline == command.pipeline:
        first -= 1
    before = script.text[script.subcommands[first].span.start : command.span.start].rstrip()
    return stream(before[:-1], functions) if before[-1:] == "|" and len(before) < _MAX_STAGE_TEXT else ""


def _reads(effect: Effect) -> bool:
    """Whether the effect leaves everything as it is."""
    kind = effect.kind
    if kind is _NETWORK:
        return effect.direction is _FETCH
    return kind is _READ or kind is _ENV or kind is _EXEC


def _destroys(effect: Effect) -> bool:
    if effect.kind is _DELETE:
        return effect.act is _REMOVES
    return (effect.kind is _WRITE and effect.act is _TRUNCATES) or effect.code in ("system.device", "system.power")


def _git(levels: list[str], effects: list[Effect], others: bool) -> GitUse:
    """`effects` are git's own."""
    names: list[str] = []
    for ident in levels:
        if ident.startswith("git"):
            tool, _, sub = ident.partition(".")
            if tool == "git":
                names.append(sub.partition(".")[0])
    if not names:
        return _NO_GIT
    writes = odd = False
    for effect in effects:
        if effect.code in ("git.write", "git.worktree"):
            writes = True
        elif not _reads(effect) and effect.kind is not _NETWORK:
            odd = True
    return GitUse(True, writes and not others and not odd, tuple(dict.fromkeys(names)))
