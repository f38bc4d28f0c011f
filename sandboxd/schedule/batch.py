# SPDX-License-Identifier: GPL-3.0-or-later
"""One batch of calls as they become known: a pure state machine. Events in, instructions out.

- Every call is begun at once: what it takes to judge it happens beside the others. Calls *enter* the lane strictly in the
  order asked, which is what makes the lane's barrier the batch's: a call enters when all before it have entered or ended.
- Results are delivered in the order asked, whoever finishes first.
- When a command ends in error, its siblings that run or wait at that moment are cancelled, external calls too. The batch
  goes on: what is asked afterwards runs. A failed external call, a denied command and a cancelled one abort nobody.
- A human's no ends the batch: everything in it is cancelled, and so is whatever is asked afterwards. So does discarding
  it, with another cause.
- When the user speaks up, calls that said `cancel` are cancelled; the others finish.

A cancelled call has its result at once, made up here; what its end brings later is ignored. Each call gets exactly one
Deliver, and the last of them is followed by Done when no more will be asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique

SIBLING_ERRORED = "Cancelled: parallel tool call errored"
REJECTED = "Cancelled: a human rejected another call of this batch"
INTERRUPTED = "Cancelled: interrupted by the user"
STREAMING_FALLBACK = "streaming_fallback"  # why a batch is discarded, unless another reason is given


@unique
class How(Enum):
    """How a call ended."""

    FINE = "fine"
    ERROR = "error"  # a failing exit status, a signal, a time-out
    REJECTED = "rejected"  # a human said no
    OTHER = "other"  # denied by rule, cancelled on its own: nobody else's business


@dataclass(frozen=True, slots=True)
class Asked:
    """A call has come. `external`: the front-end runs it. `cancels`: it is dropped when the user speaks up."""

    key: str
    external: bool = False
    cancels: bool = False


@dataclass(frozen=True, slots=True)
class Entered:
    """A call stands in the lane."""

    key: str


@dataclass(frozen=True, slots=True)
class Finished:
    key: str
    how: How


@dataclass(frozen=True, slots=True)
class NoMore:
    """Nothing else will be asked."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The user spoke up."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """The batch is superseded."""

    reason: str = STREAMING_FALLBACK


@dataclass(frozen=True, slots=True)
class Begin:
    """Judge it, ask about it; it may not enter the lane yet."""

    key: str


@dataclass(frozen=True, slots=True)
class Enter:
    key: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """End it; its result is `cause`."""

    key: str
    cause: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """Its turn to be delivered. `cause` is set for a made-up result."""

    key: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """Everything is delivered and nothing else will be asked."""


BatchEvent = Asked | Entered | Finished | NoMore | Interrupted | Discarded
Instruction = Begin | Enter | Cancel | Deliver | Done


@dataclass(slots=True)
class _Call:
    external: bool
    cancels: bool
    opened: bool = False  # may enter the lane
    passed: bool = False  # has entered, or never will
    over: bool = False
    cause: str = ""


class Batch:
    """Remembers the calls that are not delivered yet, in the order asked."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}
        self._closed = False
        self._ended = ""  # why nothing runs any more
        self._done = False

    def handle(self, event: BatchEvent) -> tuple[Instruction, ...]:
        """What to do now. An event about a call that is over, or unknown, changes nothing."""
        out: list[Instruction] = []
        match event:
            case Asked():
                assert event.key not in self._calls, "a key is used once"
                assert not self._closed, "nothing is asked after NoMore"
                self._asked(event, out)
            case Entered():
                call = self._calls.get(event.key)
                if call is not None:
                    call.passed = True
            case Finished():
                self._finished(event, out)
            case NoMore():
                self._closed = True
            case Interrupted():
                self._cancel([key for key, call in self._calls.items() if call.cancels], INTERRUPTED, out)
            case Discarded():
                self._end(event.reason or STREAMING_FALLBACK, out)
        self._open(out)
        self._deliver(out)
        return tuple(out)

    @property
    def ended(self) -> str:
        """Why the batch takes no more calls, "" while it does."""
        return self._ended

    def _asked(self, event: Asked, out: list[Instruction]) -> None:
        call = self._calls[event.key] = _Call(event.external, event.cancels)
        if self._ended:
            call.cause, call.passed, call.over = self._ended, True, True
        else:
            out.append(Begin(event.key))

    def _finished(self, event: Finished, out: list[Instruction]) -> None:
        call = self._calls.get(event.key)
        if call is None or call.over:
            return
        call.over = call.passed = True
        if event.how is How.REJECTED:
            self._end(REJECTED, out)
        elif event.how is How.ERROR and not call.external:
            self._cancel(list(self._calls), SIBLING_ERRORED, out)

    def _end(self, cause: str, out: list[Instruction]) -> None:
        if not self._ended:
            self._ended = cause
            self._cancel(list(self._calls), cause, out)

    def _cancel(self, keys: list[str], cause: str, out: list[Instruction]) -> None:
        for key in keys:
            call = self._calls[key]
            if not call.over:
                call.over = call.passed = True
                call.cause = cause
                out.append(Cancel(key, cause))

    def _open(self, out: list[Instruction]) -> None:
        """Let the calls into the lane, each behind the one before it."""
        for key, call in self._calls.items():
            if not call.opened and not call.over:
                call.opened = True
                out.append(Enter(key))
            if not call.passed:
                break

    def _deliver(self, out: list[Instruction]) -> None:
        for key in list(self._calls):
            if not self._calls[key].over:
                break
            out.append(Deliver(key, self._calls.pop(key).cause))
        if self._closed and not self._calls and not self._done:
            self._done = True
            out.append(Done())
