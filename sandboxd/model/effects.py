# SPDX-License-Identifier: GPL-3.0-or-later
"""What a command would do: effects, and the analysis that carries them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from typing import NamedTuple

from sandboxd.model.shell import Span, Subcommand, Unparsed


@unique
class EffectKind(Enum):
    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    EXEC = "exec"
    NETWORK = "network"
    PROCESS = "process"  # signals, priorities, job control of other processes
    SYSTEM = "system"  # services, devices, packages, privileges, kernel settings
    ENV = "env"  # shell state: variables, options, directory
    OPAQUE = "opaque"  # code or options whose effects cannot be read: anything

    __hash__ = object.__hash__  # members are single: by identity, several times faster than Enum's own, which is Python


@unique
class Act(Enum):
    """How a WRITE or DELETE touches its target; the killswitch asks for any of them."""

    CREATE = "create"
    WRITE = "write"
    APPEND = "append"
    TRUNCATE = "truncate"
    DELETE = "delete"
    RENAME = "rename"  # either end
    METADATA = "metadata"  # chmod, chown, touch, xattr
    LINK = "link"  # link to or onto
    MOUNT = "mount"
    EXTRACT = "extract"  # a tree put over the target by name

    __hash__ = object.__hash__  # as EffectKind


@unique
class Sensitivity(Enum):
    NONE = "none"
    SECRET = "secret"  # noqa: S105  a level, not a password
    SETTINGS = "settings"  # an agent's permission settings: reading asks (`settings_read`)


@unique
class Direction(Enum):
    """Where data of a NETWORK effect can go. FETCH: only literal words leave. SEND: anything can leave."""

    FETCH = "fetch"
    SEND = "send"
    LISTEN = "listen"


class Effect(NamedTuple):
    """One thing a subcommand does.

    `target`: for READ/WRITE/DELETE an absolute lexical path (a glob when `pattern`), for NETWORK a host or host:port,
    for EXEC a program, for the rest free text; None = unresolved, may be anything. `fragments` are the literal pieces
    known of an unresolved target. `because` is the id of the table row or rule that says so (`rm.operand`), `code` the
    reason code when the effect is itself a reason (`opaque.unlisted_option`).
    """

    kind: EffectKind
    because: str
    span: Span
    target: str | None = None
    act: Act | None = None
    code: str = ""
    detail: str = ""
    recursive: bool = False  # the whole tree below the target
    pattern: bool = False
    fragments: tuple[str, ...] = ()
    sensitivity: Sensitivity = Sensitivity.NONE
    direction: Direction | None = None
    edit: bool = False  # a plain file edit in the sense of acceptEdits: nothing beyond the named path


class AnalyzedCommand(NamedTuple):
    """A subcommand with its effects.

    `argv`, `harmless` and `bare` are decoded argvs (a dynamic word is None): as written, after harmless wrappers
    (timeout, nice, command …: what allow rules may see through), and after all wrappers (what deny rules see through).
    `via` names the construct that nests it (`bash -c`, `xargs`, `find -exec`), "" at the top. `clean_env` is False when
    an assignment before it is not known to be harmless.
    """

    subcommand: Subcommand
    argv: tuple[str | None, ...]
    effects: tuple[Effect, ...]
    harmless: tuple[str | None, ...] = ()
    bare: tuple[str | None, ...] = ()
    via: str = ""
    clean_env: bool = True


@dataclass(frozen=True, slots=True)
class GitUse:
    """How the line uses git. `porcelain`: every subcommand is known git porcelain (or a plain reader) and one writes."""

    reads: bool = False
    porcelain: bool = False
    names: tuple[str, ...] = ()  # git subcommands used


class Analysis(NamedTuple):
    """Everything known about a text without looking at the disk.

    `read_only`, `concurrency_safe` and `destructive` are derived from the effects. `wanted` are the paths whose real
    nature policy needs (observe answers them as Facts), `programs` the command names that will be looked up.
    """

    text: str
    cwd: str
    commands: tuple[AnalyzedCommand, ...]
    unparsed: Unparsed | None = None
    read_only: bool = False
    concurrency_safe: bool = False
    destructive: bool = False
    changes_cwd: bool = False
    wanted: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    git: GitUse = GitUse()

    @property
    def effects(self) -> tuple[Effect, ...]:
        return tuple(effect for command in self.commands for effect in command.effects)


@dataclass(frozen=True, slots=True)
class AnalysisContext:
    """What an analysis may assume. Paths are absolute and lexical; nothing here is read from disk."""

    cwd: str
    home: str
    workspace: str | None = None


@dataclass(frozen=True, slots=True)
class PathFact:
    """What observe saw of one path at one time. `real` is None when it could not be resolved."""

    path: str
    real: str | None
    exists: bool = False
    is_dir: bool = False
    links: int = 1


@dataclass(frozen=True, slots=True)
class Facts:
    """Answers to `Analysis.wanted`, taken at one time. `observed` is False when no workspace was looked at.

    `repositories` are the git directories found under the workspace (real git dir of worktrees included),
    `protected` the protected paths that exist there, `hooks_paths` the targets of core.hooksPath.
    `untrusted_programs` are command names that resolve into a writable tree. `fingerprint` changes with any of it.
    `notes`: `scan_partial` (there may be more protected paths), `git_config_unreadable`, `git_armed` (a configured
    program that no neutral value stops), `git_dir_not_agreed` (a `.git` that leads where nothing leads back).
    """

    observed: bool = False
    paths: tuple[PathFact, ...] = ()
    repositories: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    hooks_paths: tuple[str, ...] = ()
    untrusted_programs: tuple[str, ...] = ()
    armed_git: tuple[tuple[str, str], ...] = ()  # (config key, neutral value) to disarm by name for git reads
    fingerprint: str = ""
    notes: tuple[str, ...] = ()  # `code:place` of what could not be made sure of: scan_partial, git_armed …
    env_files: tuple[str, ...] = ()  # `.env` and its kin in the workspace that git does not track

    def real(self, path: str) -> str | None:
        """The observed real path of `path`, or None when it was not observed or not resolvable."""
        for fact in self.paths:
            if fact.path == path:
                return fact.real
        return None
