# SPDX-License-Identifier: GPL-3.0-or-later
"""One command's life: the request, the events on the way, the result."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique

from sandboxd.model.decision import Decision, Rule
from sandboxd.model.launch import Enforcement

UNLIMITED = -1  # as `max_result_chars`: this call has no budget, whatever is configured


@dataclass(frozen=True, slots=True)
class WindowSize:
    """The size of a terminal, in characters."""

    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True)
class Request:
    """A validated request to check or run a command. `timeout` in seconds; `request_id` makes Start idempotent."""

    text: str
    session_id: str
    request_id: str = ""
    cwd: str | None = None
    timeout: float | None = None
    stdin: bool = False  # keep stdin open for WriteStdin
    unsandboxed: bool = False
    background: bool = False
    keep_on_disconnect: bool = False
    max_result_chars: int | None = None  # None = as configured
    terminal: WindowSize | None = None  # run it on a terminal of this size
    rules: tuple[Rule, ...] = ()  # for this command alone
    detach_ttl: float | None = None  # seconds that a kept execution goes on while nobody follows it; None = to its end


@unique
class Stream(Enum):
    STDOUT = "stdout"
    STDERR = "stderr"


@unique
class EndKind(Enum):
    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    DENIED = "denied"
    CANCELLED = "cancelled"
    FAILED = "failed"  # sandboxd could not run it
    DAEMON_RESTART = "daemon_restart"
    OUT_OF_MEMORY = "out_of_memory"  # killed at the box's memory limit


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds and bytes. `max_rss` is the largest single process."""

    wall: float = 0.0
    user: float = 0.0
    system: float = 0.0
    max_rss: int = 0


@dataclass(frozen=True, slots=True)
class Violation:
    """Something the confinement stopped, as far as it can be seen. `confidence`: `inferred` from errno text, or `seen`."""

    kind: str  # write, network, signal …
    path: str
    rule: str  # which line of defence and which profile line
    confidence: str = "inferred"
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """How an execution ended. `code` is the exit status a shell would report (128+n for signals, 124 time-out)."""

    end: EndKind
    code: int
    signal: int | None = None
    cause: str = ""  # for CANCELLED and FAILED
    usage: Usage = Usage()
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    truncated: bool = False
    cwd: str = ""  # the session's directory afterwards
    enforcement: Enforcement | None = None
    promise_broken: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()
    notes: tuple[str, ...] = ()
    spill_path: str = ""  # where all of the output lies, when a model is only shown a part


@dataclass(frozen=True, slots=True)
class ModelText:
    """An output as a model reads it. `whole`: nothing is left out; else `spill_path` says where all of it lies, if kept."""

    text: str
    whole: bool
    spill_path: str = ""


@dataclass(frozen=True, slots=True)
class Queued:
    seq: int
    execution_id: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    seq: int
    execution_id: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class ApprovalNeeded:
    seq: int
    execution_id: str
    approval_id: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class Advice:
    """What the classifier thinks of a question that waits for a human. It decides nothing."""

    seq: int
    execution_id: str
    approval_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Started:
    seq: int
    execution_id: str
    enforcement: Enforcement
    profile: str


@dataclass(frozen=True, slots=True)
class Output:
    """A chunk of one stream; `offset` counts the stream's bytes before it, `at` is seconds since Started (monotonic)."""

    seq: int
    stream: Stream
    offset: int
    data: bytes
    at: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Output between two offsets was dropped."""

    seq: int
    stream: Stream
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Progress:
    """It still runs. Not part of the history: it has the number of the event before it and is not replayed.

    `elapsed` in seconds since Started, `output_bytes` of both streams, `last_line` cleaned and cut.
    """

    seq: int
    execution_id: str
    elapsed: float
    output_bytes: int
    last_line: str


@dataclass(frozen=True, slots=True)
class Exited:
    """Always last, always sent."""

    seq: int
    execution_id: str
    result: Result


Event = Queued | Decided | ApprovalNeeded | Advice | Started | Output | Gap | Progress | Exited
