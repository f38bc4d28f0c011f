# SPDX-License-Identifier: GPL-3.0-or-later
"""The lanes: readers together, writers alone and in order, nobody starved, nothing lost."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sandboxd.schedule.driver import Arrivals, Lanes
from sandboxd.schedule.lanes import Hold, Left, Machine, Start, Submitted, Wait


def play(total: int, steps: str) -> str:
    """Play a script and say what starts. `r1:a` submits a safe command of session a, `w1:a` another, `-1` ends it."""
    machine = Machine(total)
    out = []
    for step in steps.split():
        if step.startswith("-"):
            instructions = machine.handle(Left(int(step[1:])))
        else:
            number, _, session = step[1:].partition(":")
            instructions = machine.handle(Submitted(int(number), "w", session or "a", step[0] == "r", 2))
        out.append("+".join(str(each.ticket) for each in instructions if isinstance(each, Start)) or "_")
    return " ".join(out)


ROWS = [
    ("r1:a r2:b r3:c", "1 2 3"),
    ("r1:a r2:a r3:a -1", "1 2 _ 3"),  # two at once for a session
    ("r1 w2 r3 -1 -2", "1 _ _ 2 3"),  # nobody overtakes the writer
    ("w1 w2 w3 -1 -2", "1 _ _ 2 3"),
    ("w1 r2:a r3:b -1", "1 _ _ 2+3"),
    ("r1 r2 w3 r4 -2 -1 -3", "1 2 _ _ _ 3 4"),
    ("w1 w2 r3:b -2 -1", "1 _ _ _ 3"),  # a waiting writer that leaves frees those behind it
    ("r1:a r2:a r3:a r4:b", "1 2 _ 4"),  # a session at its cap does not hold up another
    ("r1:a r2:b r3:c r4:d r5:a r6:b -1 -5 -9", "1 2 3 4 _ _ 5 6 _"),  # four at once in all
    ("r1:a r2:a r3:b r4:b r5:a r6:b r7:c -3 -1 -2", "1 2 3 4 _ _ _ 6 5 7"),  # who was served longest ago goes first
    ("r1:a -1 -1 w2", "1 _ _ 2"),
]


@pytest.mark.parametrize(("steps", "starts"), ROWS)
def test_rows(steps: str, starts: str) -> None:
    """What starts at each step, four at once in all, two a session."""
    assert play(4, steps) == starts


def test_workspaces_are_independent() -> None:
    """A writer in one workspace does not hold up another workspace."""
    machine = Machine(4)
    assert machine.handle(Submitted(1, "x", "a", False, 2)) == (Start(1),)
    assert machine.handle(Submitted(2, "y", "a", False, 2)) == (Start(2),)


@pytest.mark.parametrize(
    ("before", "event", "why"),
    [
        ([Submitted(1, "w", "a", False, 9)], Submitted(9, "w", "b", True, 9), Wait.WRITER),
        ([Submitted(1, "w", "a", True, 9)], Submitted(9, "w", "b", False, 9), Wait.READERS),
        ([Submitted(1, "w", "a", True, 1)], Submitted(9, "w", "a", True, 1), Wait.SESSION),
        ([Submitted(1, "w", "a", True, 9), Submitted(2, "w", "b", True, 9)], Submitted(9, "w", "c", True, 9), Wait.TOTAL),
    ],
)
def test_why(before: list[Submitted], event: Submitted, why: Wait) -> None:
    """A command that waits is told for what."""
    machine = Machine(2)
    for each in before:
        machine.handle(each)
    assert machine.handle(event) == (Hold(9, why),)


@dataclass
class Command:
    ticket: int
    workspace: str
    session: str
    safe: bool
    limit: int
    running: bool = False


class LanesMachine(RuleBasedStateMachine):
    """The state machine against the rules written down naively over one list in order of arrival."""

    TOTAL = 5

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine(self.TOTAL)
        self.all: list[Command] = []
        self.tickets = itertools.count(1)
        self.starts: list[int] = []

    def take(self, instructions: tuple[object, ...]) -> None:
        for each in instructions:
            if isinstance(each, Start):
                command = next(c for c in self.all if c.ticket == each.ticket)
                assert not command.running
                assert self.may_start(command)
                command.running = True

    def may_start(self, command: Command) -> bool:
        """The rules, one after the other."""
        others = [c for c in self.all if c is not command]
        same = [c for c in others if c.workspace == command.workspace]
        before = [c for c in same if c.ticket < command.ticket and not c.running]
        if any(c.running and not (c.safe and command.safe) for c in same):
            return False
        if any(not (c.safe and command.safe) for c in before):
            return False
        if sum(c.running and c.session == command.session for c in others) >= command.limit:
            return False
        return sum(c.running for c in others) < self.TOTAL

    @rule(workspace=st.sampled_from("xy"), session=st.sampled_from("abc"), safe=st.booleans(), limit=st.integers(1, 3))
    def submit(self, workspace: str, session: str, safe: bool, limit: int) -> None:
        command = Command(next(self.tickets), workspace, session, safe, limit)
        self.all.append(command)
        instructions = self.machine.handle(Submitted(command.ticket, workspace, session, safe, limit))
        self.take(instructions)
        assert command.running != any(isinstance(each, Hold) for each in instructions)

    @precondition(lambda self: self.all)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        command = data.draw(st.sampled_from(self.all))
        self.all.remove(command)
        self.take(self.machine.handle(Left(command.ticket)))

    @rule()
    def leave_unknown(self) -> None:
        assert self.machine.handle(Left(0)) == ()

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        assert not [c for c in self.all if not c.running and self.may_start(c)]

    @invariant()
    def forgets(self) -> None:
        assert self.machine.idle == (not self.all)
        assert set(self.machine._sessions) == {c.session for c in self.all}

    def teardown(self) -> None:
        """Everything that waits gets its turn when those before it end."""
        while self.all:
            running = [c for c in self.all if c.running]
            assert running
            self.all.remove(running[0])
            self.take(self.machine.handle(Left(running[0].ticket)))
        assert self.machine.idle


TestLanesMachine = LanesMachine.TestCase
TestLanesMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_no_session_starves() -> None:
    """A session with one waiting command gets a place within one round, however busy the others are."""
    machine = Machine(2)
    tickets = itertools.count(1)
    running: list[int] = []
    owner: dict[int, str] = {}

    def submit(session: str) -> int:
        ticket = next(tickets)
        owner[ticket] = session
        instructions = machine.handle(Submitted(ticket, f"ws-{session}", session, True, 9))
        running.extend(each.ticket for each in instructions if isinstance(each, Start))
        return ticket

    for session in "aabbaabb":
        submit(session)
    lone = submit("quiet")
    for _ in range(3):
        ended = running.pop(0)
        submit(owner[ended])
        running.extend(each.ticket for each in machine.handle(Left(ended)) if isinstance(each, Start))
    assert lone in running


class TestDriver:
    async def test_barrier(self) -> None:
        """Readers overlap, a writer is alone, order of arrival holds."""
        lanes = Lanes()
        log: list[str] = []
        inside: set[str] = set()
        both = asyncio.Event()

        async def reader(name: str) -> None:
            async with lanes.admit("w", "a", True, 10):
                inside.add(name)
                log.append(name)
                if len(inside) == 2:
                    both.set()
                await both.wait()
                inside.discard(name)

        async def writer(name: str) -> None:
            async with lanes.admit("w", "a", False, 10):
                assert not inside
                log.append(name)

        tasks = [asyncio.create_task(each) for each in (reader("r1"), reader("r2"), writer("w1"), reader("r3"), writer("w2"))]
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)
        assert log == ["r1", "r2", "w1", "r3", "w2"]
        assert lanes._machine.idle

    async def test_cancel_while_waiting(self) -> None:
        """A cancelled waiter leaves the queue, and those behind it go on."""
        lanes = Lanes()
        reasons: list[str] = []
        release = asyncio.Event()

        async def hold(safe: bool) -> None:
            async with lanes.admit("w", "a", safe, 10, reasons.append):
                await release.wait()

        first = asyncio.create_task(hold(True))
        second = asyncio.create_task(hold(False))
        third = asyncio.create_task(hold(True))
        await asyncio.sleep(0)
        assert reasons == [Wait.READERS.value, Wait.WRITER.value]
        second.cancel()
        await asyncio.wait((second,))
        release.set()
        async with asyncio.timeout(10):
            await asyncio.gather(first, third)
        assert lanes._machine.idle

    async def test_cancel_at_the_very_start(self) -> None:
        """A waiter cancelled in the same moment in which its turn comes gives the turn on."""
        lanes = Lanes()
        entered: list[int] = []

        async def work(number: int) -> None:
            async with lanes.admit("w", "a", False, 10):
                entered.append(number)

        async with lanes.admit("w", "a", False, 10):
            tasks = [asyncio.create_task(work(number)) for number in range(3)]
            await asyncio.sleep(0)
        tasks[0].cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert entered == [1, 2]
        assert lanes._machine.idle

    async def test_error_inside(self) -> None:
        """An error in the block gives the turn back and passes on."""
        lanes = Lanes(1)
        with pytest.raises(ValueError, match="inside"):
            async with lanes.admit("w", "a", False, 1):
                raise ValueError("inside")
        async with asyncio.timeout(10), lanes.admit("w", "a", False, 1):
            pass

    async def test_many(self) -> None:
        """Hundreds of commands of many sessions all get through, never more at once than allowed."""
        lanes = Lanes(7)
        now = 0
        most = 0

        async def work(number: int) -> None:
            nonlocal now, most
            async with lanes.admit(f"w{number % 3}", f"s{number % 11}", number % 5 != 0, 3):
                now += 1
                most = max(most, now)
                await asyncio.sleep(0)
                now -= 1

        async with asyncio.timeout(30):
            await asyncio.gather(*(work(number) for number in range(400)))
        assert most == 7
        assert lanes._machine.idle


class TestArrivals:
    def test_order(self) -> None:
        """Only the first of a session may enter; the next when it has; who leaves the queue holds up nobody."""
        arrivals = Arrivals()
        first, second, third = (arrivals.arrive("s") for _ in range(3))
        other = arrivals.arrive("t")
        assert [each.open.is_set() for each in (first, second, third, other)] == [True, False, False, True]
        second.leave()  # it ended, or is asked about
        assert second.open.is_set()
        assert not third.open.is_set()
        first.leave()
        first.leave()
        assert third.open.is_set()
        fourth = arrivals.arrive("s")
        assert not fourth.open.is_set()
        third.leave()
        assert fourth.open.is_set()
        fourth.leave()
        other.leave()
        assert not arrivals._places
