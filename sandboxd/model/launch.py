# SPDX-License-Identifier: GPL-3.0-or-later
"""How a decided command is confined: profile in, launch plan out, enforcement reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Protocol

from sandboxd.model.decision import Grant
from sandboxd.model.effects import Facts

CWD_REPORT_FD = 250  # where a shell of a plan with `report_cwd` finds Stdio.cwd_report
# An empty directory of this mode is a mount point of sandboxd's own, where a protected directory does not exist.
PLACEHOLDER_MODE = 0o1755


@unique
class NetworkMode(Enum):
    OFF = "off"  # an empty network namespace, loopback up
    LOOPBACK = "loopback"  # the same; kept apart because a profile says so in words
    HOST = "host"  # the host's network


@unique
class Require(Enum):
    """What a profile insists on: every layer FULL, the file system at least, or nothing."""

    FULL = "full"
    FS = "fs"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits. Seconds for `wall` and `cpu`, bytes for sizes; None = not limited."""

    wall: float | None = None
    cpu: int | None = None
    memory: int | None = None
    pids: int | None = None
    open_files: int | None = None
    file_size: int | None = None
    output: int | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """An isolation profile as written in TOML, after `extends` is resolved. Paths may start with `~/` or `$WORKSPACE`."""

    name: str
    origin: str  # file path, for messages
    description: str = ""
    read: tuple[str, ...] = ()
    deny_read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    deny_write: tuple[str, ...] = ()
    tmp: str = "session"  # private | session | host
    home: str = "read"  # read | mask
    network: NetworkMode = NetworkMode.OFF
    unix_allow: tuple[str, ...] = ()
    env_pass: tuple[str, ...] = ()
    env_set: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    require: Require = Require.FULL
    fallback: tuple[str, ...] = ()  # backends that may be used when the first cannot
    git_commit: bool = True
    extra_deny: tuple[str, ...] = ()  # syscall names
    allow_ptrace: bool = False


@unique
class MountKind(Enum):
    READ_ONLY = "ro"  # bind, read-only
    WRITABLE = "rw"  # bind, writable
    TMPFS = "tmpfs"
    PROC = "proc"
    DEV = "dev"
    HIDE_DIR = "hide_dir"  # an empty, unreadable directory over the target
    HIDE_FILE = "hide_file"  # an empty, unreadable file over the target
    SEAL = "seal"  # make the mount at the target read-only; mounts below it stay as they are


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount, applied in order.

    `size` in bytes for TMPFS. `optional`: skip when the source does not exist. `why` says which line of defence or which
    line of the profile asked for it, for messages.
    """

    kind: MountKind
    target: str
    source: str = ""
    size: int = 0
    optional: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The only thing a backend sees. Built by the pure `isolation.plan.plan`."""

    argv: tuple[str, ...]
    cwd: str
    env: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...]
    network: NetworkMode
    limits: Limits
    uid: int
    gid: int
    require: Require
    writable: tuple[str, ...] = ()  # Landlock: trees that may be written
    deny_syscalls: tuple[str, ...] = ()
    allow_unix_sockets: bool = False
    allow_ptrace: bool = False
    promise: bool = False  # runs under the read-only promise
    tty: bool = False
    protected: tuple[str, ...] = ()  # for messages: what the kernel line guards here
    profile: str = ""
    files: tuple[tuple[str, str], ...] = ()  # small read-only files inside, as (path, content)
    must_stay_absent: tuple[str, ...] = ()  # no mount can guard what does not exist: `protect.settle` removes it afterwards
    absent: tuple[tuple[str, bool], ...] = ()  # protected paths to make mount points for, and whether as a directory
    registry: str = ""  # directory in which those mount points are registered
    git_configs: tuple[str, ...] = ()  # configurations that git may write and that are put right afterwards
    git_links: tuple[str, ...] = ()  # files that lead git elsewhere, which git may remove, and which else get their text back
    private: tuple[str, ...] = ()  # directories of the box whose content is gone with it
    kept_for: str = ""  # the session whose next command may run in the same box, if nothing is left in it; "" = none


@unique
class Layer(Enum):
    FILESYSTEM = "filesystem"
    NAMESPACES = "namespaces"
    NETWORK = "network"
    SYSCALLS = "syscalls"
    LANDLOCK = "landlock"
    PRIVILEGES = "privileges"
    LIMITS = "limits"


@unique
class Strength(Enum):
    FULL = "full"
    PARTIAL = "partial"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class LayerState:
    layer: Layer
    strength: Strength
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Enforcement:
    """How strong the confinement is, per layer; part of every result."""

    backend: str
    layers: tuple[LayerState, ...]
    landlock_abi: int = 0

    @property
    def overall(self) -> Strength:
        """FULL when every layer is FULL; NONE when the file system is not confined; else PARTIAL."""
        by_layer = {state.layer: state.strength for state in self.layers}
        if by_layer.get(Layer.FILESYSTEM, Strength.NONE) is Strength.NONE:
            return Strength.NONE
        complete = len(by_layer) == len(Layer) and all(s is Strength.FULL for s in by_layer.values())
        return Strength.FULL if complete else Strength.PARTIAL


@dataclass(frozen=True, slots=True)
class Probe:
    """What a trial run of one backend showed. `fix` is the exact advice when it failed."""

    backend: str
    works: bool
    enforcement: Enforcement | None = None
    error: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """What isolation needs to know of a session. `tmp` is the host directory behind the session's /tmp."""

    id: str
    workspace: str
    home: str
    uid: int
    gid: int
    tmp: str
    own: tuple[str, ...] = ()  # sandboxd's configuration, state and sockets: hidden in every box
    spill: str = ""  # the session's own spill directory, readable
    registry: str = ""  # where mount points for absent protected paths are registered; "" = none are made
    additional: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The input of `isolation.plan.plan`. `denied` are existing paths that a rule forbids to read, each with that rule."""

    text: str
    cwd: str
    profile: Profile
    session: Session
    grants: tuple[Grant, ...]
    promise: bool
    facts: Facts
    git_reads: bool = False
    git_porcelain: bool = False
    git_names: tuple[str, ...] = ()
    report_cwd: bool = False
    tty: bool = False
    denied: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How the box ended: `code` 0–255, or `signal`; usage of the whole box as far as the kernel tells."""

    code: int | None
    signal: int | None
    user_seconds: float = 0.0
    system_seconds: float = 0.0
    max_rss: int = 0  # bytes
    oom_kills: int = 0  # processes that the kernel killed because the box's memory limit was reached
    pids_refused: int = 0  # how often the box's process limit refused a new process
    left: tuple[str, ...] = ()  # what lay in the plan's private directories at the end


@dataclass(frozen=True, slots=True)
class Stdio:
    """File descriptors of the child's side, owned by the caller, who closes them after start. Pipes or a PTY, never files."""

    stdin: int
    stdout: int
    stderr: int
    cwd_report: int = -1  # write end of the pipe on which the shell reports its last directory


class Box(Protocol):
    """A started, confined command.

    The caller waits for `pidfd` to become readable, then calls `reap` once.
    """

    @property
    def pid(self) -> int: ...

    @property
    def pidfd(self) -> int: ...

    @property
    def enforcement(self) -> Enforcement: ...

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group inside; a no-op when it is gone."""

    def kill(self) -> None:
        """End every process of the box at once; idempotent."""

    def reap(self) -> ExitStatus:
        """Collect the exit status and close `pidfd`. Only after `pidfd` is readable."""


class Backend(Protocol):
    """One way to confine. `start` raises IsolationError and never runs anything unconfined."""

    name: str

    def probe(self) -> Probe:
        """Run a real trial sandbox and say what it showed; slow (tens of milliseconds), cached by the caller."""

    def enforcement(self, plan: LaunchPlan) -> Enforcement:
        """What this backend would enforce for that plan."""

    def start(self, plan: LaunchPlan, stdio: Stdio) -> Box: ...
