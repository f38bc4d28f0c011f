# SPDX-License-Identifier: GPL-3.0-or-later
"""Which command may start when: a pure state machine. Events in, instructions out.

- A workspace is a barrier in order of arrival: consecutive concurrency-safe commands run together, any other runs alone,
  and nothing overtakes it.
- Caps bound how many run at once, in a session and in the whole daemon. A safe command that waits for its session's cap
  lets safe commands of other sessions pass, never one behind the next barrier.
- A free place goes to the session that was served longest ago, then to who came first: no session can starve another.

The number of instructions an event causes, and the work, is bounded by the number of waiting commands.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, unique


@dataclass(frozen=True, slots=True)
class Submitted:
    """A command has come. `ticket` is unique; `limit` is how many its session may run at once."""

    ticket: int
    workspace: str
    session: str
    safe: bool
    limit: int


@dataclass(frozen=True, slots=True)
class Left:
    """A command has ended, or is no longer wanted while it waits."""

    ticket: int


@unique
class Wait(Enum):
    """Why a command does not start at once."""

    WRITER = "a command that may change the workspace comes first"
    READERS = "commands that read the workspace run, and this one needs it alone"
    SESSION = "the session runs as many commands as it may"
    TOTAL = "the daemon runs as many commands as it may"


@dataclass(frozen=True, slots=True)
class Start:
    ticket: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Answer to Submitted only: it waits, and a Start will come."""

    ticket: int
    why: Wait


LaneEvent = Submitted | Left
Instruction = Start | Hold


class _Lane:
    """One workspace: who runs, and who waits in order of arrival."""

    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.running: dict[int, Submitted] = {}
        self.waiting: OrderedDict[int, Submitted] = OrderedDict()

    def admissible(self) -> list[Submitted]:
        """Those that the barrier would let start now, in order of arrival."""
        if any(not each.safe for each in self.running.values()):
            return []
        found: list[Submitted] = []
        for each in self.waiting.values():
            if not each.safe:
                if not found and not self.running:
                    found.append(each)
                break
            found.append(each)
        return found


@dataclass(slots=True)
class _Session:
    """Counts of one session; `served` is when it last got a place, or came, on the machine's own clock."""

    served: int
    here: int = 0
    running: int = 0


class Machine:
    """`total` is how many commands may run at once in the whole daemon."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._lanes: dict[str, _Lane] = {}
        self._where: dict[int, str] = {}  # ticket -> workspace
        self._sessions: dict[str, _Session] = {}
        self._count = 0
        self._clock = 0

    def handle(self, event: LaneEvent) -> tuple[Instruction, ...]:
        """What to do now. A Left for an unknown ticket does nothing."""
        if isinstance(event, Left):
            return self._left(event.ticket)
        return self._submitted(event)

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits; then nothing is remembered either."""
        return not self._lanes

    def _submitted(self, event: Submitted) -> tuple[Instruction, ...]:
        assert event.ticket not in self._where, "a ticket is used once"
        assert event.limit > 0, "a session may run something"
        lane = self._lanes.setdefault(event.workspace, _Lane())
        lane.waiting[event.ticket] = event
        self._where[event.ticket] = event.workspace
        session = self._sessions.get(event.session)
        if session is None:
            session = self._sessions[event.session] = _Session(self._tick())
        session.here += 1
        started = self._fill()
        if event.ticket in lane.waiting:
            return (*started, Hold(event.ticket, self._why(lane, event)))
        return started

    def _left(self, ticket: int) -> tuple[Instruction, ...]:
        workspace = self._where.pop(ticket, None)
        if workspace is None:
            return ()
        lane = self._lanes[workspace]
        ran = ticket in lane.running
        gone = (lane.running if ran else lane.waiting).pop(ticket)
        self._count -= ran
        session = self._sessions[gone.session]
        session.running -= ran
        session.here -= 1
        if not session.here:
            del self._sessions[gone.session]
        if not lane.running and not lane.waiting:
            del self._lanes[workspace]
        return self._fill()

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _fill(self) -> tuple[Instruction, ...]:
        started: list[Instruction] = []
        while self._count < self.total:
            ready = [
                each
                for lane in self._lanes.values()
                for each in lane.admissible()
                if self._sessions[each.session].running < each.limit
            ]
            if not ready:
                break
            chosen = min(ready, key=lambda each: (self._sessions[each.session].served, each.ticket))
            lane = self._lanes[chosen.workspace]
            del lane.waiting[chosen.ticket]
            lane.running[chosen.ticket] = chosen
            self._count += 1
            session = self._sessions[chosen.session]
            session.running += 1
            session.served = self._tick()
            started.append(Start(chosen.ticket))
        return tuple(started)

    def _why(self, lane: _Lane, event: Submitted) -> Wait:
        before = [each for each in lane.waiting.values() if each.ticket != event.ticket]
        if any(not each.safe for each in (*lane.running.values(), *before)):
            return Wait.WRITER
        if not event.safe and (lane.running or before):
            return Wait.READERS
        return Wait.SESSION if self._sessions[event.session].running >= event.limit else Wait.TOTAL
