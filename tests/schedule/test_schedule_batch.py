# SPDX-License-Identifier: GPL-3.0-or-later
"""Batches: into the lane in order, out in order, aborted exactly as promised, nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sandboxd.schedule.batch import (
    INTERRUPTED,
    REJECTED,
    SIBLING_ERRORED,
    STREAMING_FALLBACK,
    Asked,
    Batch,
    BatchEvent,
    Begin,
    Cancel,
    Deliver,
    Discarded,
    Done,
    Enter,
    Entered,
    Finished,
    How,
    Instruction,
    Interrupted,
    NoMore,
)

FINISH = {"+": How.FINE, "!": How.ERROR, "~": How.REJECTED, "-": How.OTHER}


def play(steps: str) -> str:
    """Play a script, one word an event, and say what is to be done after each.

    `a` asks for a command, `xa` for an external call, `ca` for a command that cancels; `>a` says that a stands in the
    lane; `a+` that it ended well, `a!` in error, `a~` by a human's no, `a-` otherwise; `.` that nothing more comes, `i`
    interrupts, `d` discards. Answers: `b` begin, `e` enter, `k` cancel, `=` deliver, `.` done.
    """
    batch = Batch()
    out = []
    for step in steps.split():
        event: BatchEvent
        if step == ".":
            event = NoMore()
        elif step == "i":
            event = Interrupted()
        elif step == "d":
            event = Discarded()
        elif step[0] == ">":
            event = Entered(step[1:])
        elif step[-1] in FINISH:
            event = Finished(step[:-1], FINISH[step[-1]])
        else:
            event = Asked(step[-1], external=step[0] == "x" and len(step) > 1, cancels=step[0] == "c" and len(step) > 1)
        out.append(",".join(map(said, batch.handle(event))) or "_")
    return " ".join(out)


def said(instruction: Instruction) -> str:
    match instruction:
        case Begin():
            return f"b{instruction.key}"
        case Enter():
            return f"e{instruction.key}"
        case Cancel():
            return f"k{instruction.key}"
        case Deliver():
            return f"={instruction.key}"
        case Done():
            return "."


ROWS = [
    ("a . >a a+", "ba,ea _ _ =a,."),
    (".", "."),
    ("a b >a >b b+ a+ .", "ba,ea bb eb _ _ =a,=b ."),  # b finishes first, a is delivered first
    ("a b >b >a", "ba,ea bb _ eb"),  # b cannot pass a into the lane
    ("a b a- >b b+", "ba,ea bb eb,=a _ =b"),  # what ends before it enters makes room, too
    ("a b c >a >b a!", "ba,ea bb bc eb ec kb,kc,=a,=b,=c"),  # siblings that run or wait
    ("a b >a a! c >c c+ .", "ba,ea bb eb kb,=a,=b bc,ec _ =c ."),  # the batch goes on
    ("a xb >a >b a!", "ba,ea bb eb _ kb,=a,=b"),  # an external sibling is cancelled
    ("xa b >a a! >b b+", "ba,ea bb eb =a _ =b"),  # a failed external call aborts nobody
    ("a b >a a- b+", "ba,ea bb eb =a =b"),  # nor does a denied command
    ("a b >a a~ c", "ba,ea bb eb kb,=a,=b =c"),  # a human's no ends the batch
    ("a b >a d c .", "ba,ea bb eb ka,kb,=a,=b =c ."),
    ("a cb >a i a+ b+", "ba,ea bb eb kb =a,=b _"),  # only what said so is dropped; its late end is ignored
    ("a >a a! a! .", "ba,ea _ =a _ ."),
    ("z+ >z", "_ _"),
]


@pytest.mark.parametrize(("steps", "answers"), ROWS)
def test_rows(steps: str, answers: str) -> None:
    """What is done at each step."""
    assert play(steps) == answers


CAUSES: list[tuple[list[BatchEvent], str]] = [
    ([Finished("a", How.ERROR)], SIBLING_ERRORED),
    ([Finished("a", How.REJECTED)], REJECTED),
    ([Interrupted()], INTERRUPTED),
    ([Discarded()], STREAMING_FALLBACK),
    ([Discarded("another plan")], "another plan"),
    ([Discarded("first"), Discarded("second")], "first"),
    ([Interrupted(), Discarded()], INTERRUPTED),  # what is over stays as it is
]


@pytest.mark.parametrize(("events", "cause"), CAUSES)
def test_causes(events: list[BatchEvent], cause: str) -> None:
    """Every way to be cancelled has a cause of its own, told to the call and in its result."""
    batch = Batch()
    batch.handle(Asked("a"))
    batch.handle(Asked("b", cancels=True))
    said = [instruction for event in events for instruction in batch.handle(event)]
    assert Cancel("b", cause) in said
    said += batch.handle(Finished("a", How.FINE))
    assert Deliver("b", cause) in said


class BatchMachine(RuleBasedStateMachine):
    """The state machine against the promises, written down over plain lists of what has happened."""

    def __init__(self) -> None:
        super().__init__()
        self.batch = Batch()
        self.asked: list[str] = []
        self.external: set[str] = set()
        self.cancels: set[str] = set()
        self.begun: list[str] = []
        self.allowed: list[str] = []  # told to enter, in order
        self.entered: set[str] = set()
        self.over: dict[str, str] = {}  # key -> cause, "" when it ended by itself
        self.delivered: list[tuple[str, str]] = []
        self.dead = ""
        self.closed = False
        self.done = 0

    def tell(self, event: BatchEvent, expected: dict[str, str] | None = None) -> None:
        """Handle an event; `expected` are exactly the calls that it must cancel, with their causes."""
        cancelled = {}
        for each in self.batch.handle(event):
            match each:
                case Begin():
                    self.begun.append(each.key)
                case Enter():
                    assert each.key not in self.over
                    self.allowed.append(each.key)
                case Cancel():
                    assert each.key not in self.over
                    cancelled[each.key] = each.cause
                    self.over[each.key] = each.cause
                case Deliver():
                    self.delivered.append((each.key, each.cause))
                case Done():
                    self.done += 1
        assert cancelled == (expected or {})

    @property
    def alive(self) -> list[str]:
        return [key for key in self.asked if key not in self.over]

    @precondition(lambda self: not self.closed)
    @rule(external=st.booleans(), cancels=st.booleans())
    def ask(self, external: bool, cancels: bool) -> None:
        key = f"k{len(self.asked)}"
        self.asked.append(key)
        if external:
            self.external.add(key)
        if cancels:
            self.cancels.add(key)
        if self.dead:
            self.over[key] = self.dead
        self.tell(Asked(key, external, cancels))
        assert (key in self.begun) == (not self.dead)

    @precondition(lambda self: set(self.allowed) - self.entered)
    @rule(data=st.data())
    def enter(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(set(self.allowed) - self.entered)))
        self.entered.add(key)
        self.tell(Entered(key))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), how=st.sampled_from(How))
    def finish(self, data: st.DataObject, how: How) -> None:
        key = data.draw(st.sampled_from(self.asked))
        if key in self.over:
            self.tell(Finished(key, how))
            return
        self.over[key] = ""
        expected = {}
        if how is How.REJECTED:
            self.dead = self.dead or REJECTED
            expected = dict.fromkeys(self.alive, REJECTED)
        elif how is How.ERROR and key not in self.external:
            expected = dict.fromkeys(self.alive, SIBLING_ERRORED)
        self.tell(Finished(key, how), expected)

    @rule()
    def interrupt(self) -> None:
        self.tell(Interrupted(), {key: INTERRUPTED for key in self.alive if key in self.cancels})

    @precondition(lambda self: not self.dead)
    @rule()
    def discard(self) -> None:
        expected = dict.fromkeys(self.alive, "over")
        self.dead = "over"
        self.tell(Discarded("over"), expected)

    @precondition(lambda self: not self.closed)
    @rule()
    def close(self) -> None:
        self.closed = True
        self.tell(NoMore())

    @invariant()
    def delivers_in_order_what_can_be(self) -> None:
        ready = []
        for key in self.asked:
            if key not in self.over:
                break
            ready.append((key, self.over[key]))
        assert self.delivered == ready

    @invariant()
    def enters_in_order_and_nobody_waits_for_nothing(self) -> None:
        assert self.allowed == [key for key in self.asked if key in self.allowed]
        for number, key in enumerate(self.asked):
            free = all(each in self.entered or each in self.over for each in self.asked[:number])
            if key in self.over:
                continue
            assert (key in self.allowed) == free

    @invariant()
    def done_once_and_only_at_the_end(self) -> None:
        assert self.done == (self.closed and len(self.delivered) == len(self.asked))


TestBatchMachine = BatchMachine.TestCase
TestBatchMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
