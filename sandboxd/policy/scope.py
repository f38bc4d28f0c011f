# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a command reaches (2d), whether it only reads (2e), whether it only edits (2f)."""

from __future__ import annotations

from sandboxd.globs import literal_prefix
from sandboxd.model import AnalyzedCommand, Direction, Effect, EffectKind, Facts, Inputs, PathFact, Scope, Sensitivity
from sandboxd.paths import expand_home, is_within, is_within_any, join
from sandboxd.policy.gitreads import armed
from sandboxd.policy.safety import BLOCK_DEVICE, SINKS, Finding
from sandboxd.policy.verdicts import Verdicts
from sandboxd.sensitive import sensitivity

SYSTEM_READS: tuple[str, ...] = ("/usr", "/bin", "/sbin", "/opt", "/etc", "/proc", "/sys", "/dev", "/var/log")
_LIBRARIES = "/lib"  # /lib, /lib32, /lib64, /libx32

READS = frozenset((EffectKind.READ, EffectKind.ENV, EffectKind.EXEC))
_CHANGES = frozenset((EffectKind.WRITE, EffectKind.DELETE))
# Members as names of this module: Python 3.11 looks an enum's members up in Python.
_READ, _WRITE, _NETWORK, _SECRET = EffectKind.READ, EffectKind.WRITE, EffectKind.NETWORK, Sensitivity.SECRET
_DELETE, _FETCH = EffectKind.DELETE, Direction.FETCH
_NOBODY: frozenset[int] = frozenset()
_START = ("",)  # the directory of the whole line
_MOVES = frozenset(("cd", "pushd"))
_NOTHING: frozenset[str | None] = frozenset()


def may_write(path: str, scope: Scope) -> bool:
    """Whether an absolute path lies where a session may write without asking."""
    return is_within(path, scope.workspace) or is_within_any(path, (*scope.additional, scope.tmp))


def may_read(path: str, scope: Scope) -> bool:
    """Whether an absolute path lies where a session may read without asking."""
    if may_write(path, scope) or is_within_any(path, SYSTEM_READS) or is_within_any(path, scope.readable):
        return BLOCK_DEVICE.match(path) is None
    return path.startswith(_LIBRARIES) and path.split("/")[1].startswith("lib")


def reaches(inputs: Inputs, verdicts: Verdicts) -> tuple[Finding, ...]:
    """Everything that takes the command out of its scope, and that no rule allows by naming it."""
    return _Reach(inputs, verdicts).run()


class _Reach:
    def __init__(self, inputs: Inputs, verdicts: Verdicts) -> None:
        self.scope = inputs.scope
        self.inputs = inputs
        self.facts: dict[str, PathFact] = {fact.path: fact for fact in inputs.facts.paths} if inputs.facts.paths else {}
        # Effects that allow rules speak of, by identity, and those that one names more closely than by the tool.
        self.named: frozenset[int] = _NOBODY
        self.precise: frozenset[int] = _NOBODY
        # Whoever may edit a file by a rule may see it in the edit. Of commands, which may print it, this is not so.
        self.edited: frozenset[str | None] = _NOTHING
        if verdicts.allows:
            named = [(hit.effect, hit.compiled.rule.content is not None) for hit in verdicts.allows if hit.effect is not None]
            self.named = frozenset(id(effect) for effect, _ in named)
            self.precise = frozenset(id(effect) for effect, closely in named if closely)
            if inputs.tool != "Bash":
                self.edited = frozenset(effect.target for effect, closely in named if closely and effect.kind is _WRITE)
        # Where the sandbox is complete, a read of an unknown path is left to it: every box hides all secrets.
        self.guarded = inputs.enforcement_full and not inputs.unsandboxed
        self.out: list[Finding] = []

    def run(self) -> tuple[Finding, ...]:
        for command in self.inputs.analysis.commands:
            argv = command.bare or command.argv
            if command.subcommand.cwds != _START or (argv and argv[0] in _MOVES):
                self._directory(command, argv)
            for effect in command.effects:
                kind = effect.kind
                if kind is _READ:
                    self._read(command, effect)
                elif kind in _CHANGES:
                    self._write(command, effect)
                elif kind is _NETWORK and id(effect) not in self.named:
                    host = effect.target or "a host that is not known"
                    verb = "listens on" if effect.direction is Direction.LISTEN else "connects to"
                    self._add("scope.network", f"it {verb} `{host}`, which no rule allows", command, effect)
        if len(self.out) < 2:
            return tuple(self.out)
        return tuple({finding.message: finding for finding in reversed(self.out)}.values())[::-1]

    def _add(self, code: str, message: str, command: AnalyzedCommand, effect: Effect | None = None, path: str = "") -> None:
        self.out.append(Finding(code, message, command, effect, path))

    def _directory(self, command: AnalyzedCommand, argv: tuple[str | None, ...]) -> None:
        """`cd` out of the workspace, seen where the next command starts or in the last word of the `cd` itself."""
        cwds = command.subcommand.cwds
        scope, cwd = self.scope, self.inputs.analysis.cwd
        for start in cwds or ():
            if start:
                path = join(cwd, expand_home(start, scope.home))
                if not may_write(path, scope):
                    self._add("scope.directory", f"it changes to `{path}`, outside the workspace", command)
        if argv and argv[0] in _MOVES:
            operands = [word for word in argv[1:] if word is None or not word.startswith("-")]
            if not operands:
                path = scope.home if argv[0] == "cd" else cwd
            elif operands[-1] is None:
                return
            else:
                start = cwds[0] if cwds else ""
                path = join(join(cwd, expand_home(start, scope.home)), expand_home(operands[-1], scope.home))
            if not may_write(path, scope):
                self._add("scope.directory", f"it changes to `{path}`, outside the workspace", command)

    def _settled(self, effect: Effect) -> tuple[str, ...] | None:
        """The paths that must lie in scope: the target and what it really is; None when they cannot be told."""
        if effect.target is None:
            return None
        if effect.pattern:
            return (literal_prefix(effect.target),)
        fact = self.facts.get(effect.target)
        if fact is None:
            return None if effect.code == "path.dotdot" else (effect.target,)
        return None if fact.real is None else (effect.target, fact.real)

    def _read(self, command: AnalyzedCommand, effect: Effect) -> None:
        precise = id(effect) in self.precise or (effect.target is not None and effect.target in self.edited)
        if effect.sensitivity is _SECRET:
            if not precise:
                shown = effect.target or "".join(effect.fragments) or effect.detail or "a credential"
                self._add("scope.secret", f"it reads `{shown}`, which holds secrets", command, effect, effect.target or "")
            return
        paths = self._settled(effect)
        if paths is None:
            if self.guarded:
                paths = () if effect.target is None else (effect.target,)
            elif id(effect) not in self.named:
                self._add("scope.read_unresolved", "what it reads is not known", command, effect)
                return
            else:
                return
        for path in paths:
            if path != effect.target and not precise and sensitivity(path, self.scope.home) is _SECRET:
                text = f"it reads `{effect.target}`, which is `{path}` and holds secrets"
                self._add("scope.secret", text, command, effect, path)
                return
        if id(effect) in self.named or effect.target in self.edited:
            return
        for path in paths:
            if not may_read(path, self.scope):
                if path != "/" or effect.recursive or effect.pattern:
                    self._add("scope.read", f"it reads `{path}`, outside the workspace", command, effect, path)
                return

    def _write(self, command: AnalyzedCommand, effect: Effect) -> None:
        if (effect.target in SINKS and not effect.pattern) or id(effect) in self.named:
            return
        paths = self._settled(effect)
        verb = "deletes" if effect.kind is _DELETE else "writes to"
        if paths is None:
            if effect.code.startswith("git."):
                return  # git's own writes stay in its repository; step 3 asks for them
            self._add("scope.write_unresolved", f"what it {verb} is not known", command, effect)
            return
        for path in paths:
            if not may_write(path, self.scope):
                self._add("scope.write", f"it {verb} `{path}`, outside the workspace", command, effect, path)
                return


def more_than_reads(inputs: Inputs) -> Finding | None:
    """None when every effect is a read; else the first thing that is not.

    The analysis derives `read_only` from the same effects; both must agree, and no program may come from a place that
    the command could have written.
    """
    analysis = inputs.analysis
    if analysis.unparsed is not None:
        return Finding(analysis.unparsed.reason, "it could not be parsed")
    if inputs.broke_promise:
        return Finding("promise_broken", "it tried to write when it ran under the read-only promise")
    for command in analysis.commands:
        for effect in command.effects:
            kind = effect.kind
            if kind in READS or (kind is _WRITE and effect.target in SINKS):
                continue
            if kind is not _NETWORK or effect.direction is not _FETCH:
                return Finding(effect.code or kind.value, "", command, effect)
    if not analysis.read_only:
        return Finding("not_read_only", "the analysis does not call it read-only")
    return _suspicious(inputs)


def _suspicious(inputs: Inputs) -> Finding | None:
    """The first command that may do more than its words say; a quick no where nothing was noted."""
    facts = inputs.facts
    if not (facts.untrusted_programs or facts.notes):
        return None
    name = next((name for name in inputs.analysis.programs if name in facts.untrusted_programs), None)
    if name is not None:
        return Finding("untrusted_program", f"`{name}` is a program that the session can write")
    return next((found for command in inputs.analysis.commands if (found := suspicion(command, inputs.facts))), None)


def suspicion(command: AnalyzedCommand, facts: Facts) -> Finding | None:
    """Why one command may do more than its effects say: its program lies where the session can write, or its git would
    run what a repository names."""
    if facts.untrusted_programs:
        for argv in (command.argv, command.bare):
            if argv and argv[0] in facts.untrusted_programs:
                return Finding("untrusted_program", f"`{argv[0]}` is a program that the session can write", command)
    found = armed(command, facts)
    return None if found is None else Finding(f"opaque.{found[0]}", found[1], command)


def is_edit(effect: Effect, scope: Scope) -> bool:
    """Whether an effect is a plain edit of a resolved path where the session may write."""
    if effect.kind not in _CHANGES or not effect.edit or effect.target is None:
        return False
    path = literal_prefix(effect.target) if effect.pattern else effect.target
    return may_write(path, scope)


def only_edits(inputs: Inputs) -> bool:
    """Whether the command reads and edits files of the workspace, and nothing else."""
    if inputs.analysis.unparsed is not None or _suspicious(inputs) is not None:
        return False
    edits = False
    for command in inputs.analysis.commands:
        for effect in command.effects:
            if effect.kind in _CHANGES and effect.target in SINKS:
                continue
            if is_edit(effect, inputs.scope):
                edits = True
            elif effect.kind not in READS:
                return False
    return edits


def in_tmp(effect: Effect, scope: Scope) -> bool:
    """Whether an effect stays in the session's own temporary directory."""
    return effect.target is not None and not effect.pattern and is_within(effect.target, scope.tmp)
