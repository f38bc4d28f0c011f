# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions to a human: exactly one answer, expiry as DENY, watchers that see every change."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from sandboxd.consult import approvals as module
from sandboxd.consult.approvals import CANCELLED, EXPIRED, ApprovalChange, Approvals, Change, Pending, Resolution
from sandboxd.consult.race import ResolveOnce
from sandboxd.errors import Exhausted, NotFound, RequestError
from sandboxd.model import Behavior, Consultant, Decision

ASK = Decision(Behavior.ASK, "3", "default", "nothing allows it", suggestions=("Bash(make:*)",))


def ask(approvals: Approvals, *, session: str = "s1", expires_in: float = 600.0) -> Pending:
    return approvals.request("e1", session, "make", "/w", ASK, expires_in, binding="b1")


class TestResolve:
    async def test_allow(self) -> None:
        """The answer reaches the waiter as an opinion of the approver."""
        approvals = Approvals()
        pending = ask(approvals)
        waiting = asyncio.create_task(pending.wait())
        resolution = approvals.resolve(pending.id, Behavior.ALLOW, "always", "ada", rule="Bash(make:*)")
        opinion = await waiting
        assert (opinion.who, opinion.verdict, opinion.name, opinion.failed) == (
            Consultant.APPROVAL,
            Behavior.ALLOW,
            "ada",
            False,
        )
        assert pending.resolution == resolution
        assert (resolution.rule, resolution.scope, resolution.session_id) == ("Bash(make:*)", "always", "s1")
        assert approvals.list() == ()

    async def test_second_answer(self) -> None:
        """A second answer is an error that names the first one, and changes nothing."""
        approvals = Approvals()
        pending = ask(approvals)
        approvals.resolve(pending.id, Behavior.DENY, "once", "ada", reason="not now")
        with pytest.raises(RequestError, match="deny by ada") as caught:
            approvals.resolve(pending.id, Behavior.ALLOW, "once", "bob")
        assert caught.value.field == "approval_id"
        opinion = await pending.wait()
        assert (opinion.verdict, opinion.reason) == (Behavior.DENY, "not now")

    def test_unknown(self) -> None:
        """An unknown id is NotFound."""
        with pytest.raises(NotFound):
            Approvals().resolve("nope", Behavior.DENY, "once", "ada")
        with pytest.raises(NotFound):
            Approvals().get("nope")

    @pytest.mark.parametrize(
        ("verdict", "scope", "who", "text", "field"),
        [
            (Behavior.ASK, "once", "ada", "", "verdict"),
            (Behavior.ALLOW, "forever", "ada", "", "scope"),
            (Behavior.ALLOW, "once", "", "", "who"),
            (Behavior.ALLOW, "always", "ada", "", "rule"),
            (Behavior.ALLOW, "once", "ada", "Bash(make:*)", "rule"),
            (Behavior.DENY, "always", "ada", "Bash(make:*)", "rule"),
        ],
    )
    def test_invalid(self, verdict: Behavior, scope: str, who: str, text: str, field: str) -> None:
        """An invalid answer names its field, and leaves the question open."""
        approvals = Approvals()
        pending = ask(approvals)
        with pytest.raises(RequestError) as caught:
            approvals.resolve(pending.id, verdict, scope, who, rule=text)
        assert caught.value.field == field
        assert approvals.get(pending.id) is pending

    def test_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Too many open questions are refused, not piled up."""
        monkeypatch.setattr(module, "MAX_PENDING", 3)
        approvals = Approvals()
        for _ in range(3):
            ask(approvals)
        with pytest.raises(Exhausted):
            ask(approvals)


class TestExpiry:
    async def test_waiter_wakes(self) -> None:
        """With nobody answering, the waiter gets a DENY at the deadline."""
        approvals = Approvals()
        opinion = await ask(approvals, expires_in=0.01).wait()
        assert (opinion.verdict, opinion.reason, opinion.failed, opinion.name) == (Behavior.DENY, EXPIRED, True, "")

    def test_late_answer(self) -> None:
        """An answer after the deadline is refused, also when nobody had noticed the deadline yet."""
        now = [0.0]
        approvals = Approvals(clock=lambda: now[0])
        pending = ask(approvals, expires_in=10)
        now[0] = 10.0
        with pytest.raises(RequestError, match=EXPIRED):
            approvals.resolve(pending.id, Behavior.ALLOW, "once", "ada")
        assert pending.resolution is not None
        assert pending.resolution.verdict is Behavior.DENY

    def test_wall_clock_jump(self) -> None:
        """A jump of the wall clock neither expires nor prolongs anything."""
        wall = [1000.0]
        approvals = Approvals(clock=lambda: 0.0, wall=lambda: wall[0])
        pending = ask(approvals)
        wall[0] += 1e6
        assert approvals.list() == (pending,)
        assert (pending.created, pending.expires) == (1000.0, 1600.0)


class TestCancel:
    async def test_disconnect(self) -> None:
        """When the asker goes away its question closes as DENY and can no longer be allowed."""
        approvals = Approvals()
        pending = ask(approvals)
        waiting = asyncio.create_task(pending.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert approvals.list() == ()
        with pytest.raises(RequestError, match=CANCELLED):
            approvals.resolve(pending.id, Behavior.ALLOW, "once", "ada")

    def test_after_answer(self) -> None:
        """Cancelling an answered question changes nothing."""
        approvals = Approvals()
        pending = ask(approvals)
        answer = approvals.resolve(pending.id, Behavior.ALLOW, "once", "ada")
        pending.cancel()
        assert pending.resolution is answer


class TestWatch:
    async def test_sees_everything(self) -> None:
        """A watcher gets what is open, then every change; one of another session gets nothing."""
        approvals = Approvals()
        first = ask(approvals)
        watch = approvals.watch("s1")
        assert await anext(watch) == ApprovalChange(Change.ADDED, first)
        second = ask(approvals)
        ask(approvals, session="s2")
        answer = approvals.resolve(first.id, Behavior.DENY, "once", "ada")
        assert await anext(watch) == ApprovalChange(Change.ADDED, second)
        assert await anext(watch) == ApprovalChange(Change.RESOLVED, first, answer)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        assert not waiting.done()
        second.cancel()
        assert (await waiting).kind is Change.RESOLVED
        await watch.aclose()  # type: ignore[attr-defined]  # an async generator in fact

    async def test_slow_watcher(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A watcher that does not read is told to start over; memory stays bounded."""
        monkeypatch.setattr(module, "MAX_UNREAD", 4)
        approvals = Approvals()
        ask(approvals)
        watch = approvals.watch()
        await anext(watch)
        for _ in range(5):
            ask(approvals)
        for _ in range(4):
            await anext(watch)
        with pytest.raises(Exhausted):
            await anext(watch)


class TestResolveOnce:
    async def test_one_winner(self) -> None:
        """Of many that answer at once exactly one claims, and its value is what everybody sees."""
        question: ResolveOnce[int] = ResolveOnce()
        won: list[int] = []

        async def answer(number: int) -> None:
            await asyncio.sleep(0)
            if question.claim():
                await asyncio.sleep(0)
                question.settle(number)
                won.append(number)

        await asyncio.gather(*(answer(number) for number in range(20)))
        assert len(won) == 1
        assert await question.wait() == won[0] == question.peek()
        assert question.claimed
        assert question.settled

    def test_settle_needs_claim(self) -> None:
        """Settling without a claim, or twice, is a programming error."""
        question: ResolveOnce[int] = ResolveOnce()
        with pytest.raises(RuntimeError):
            question.settle(1)
        assert question.claim()
        assert not question.claim()
        question.settle(1)
        with pytest.raises(RuntimeError):
            question.settle(2)


class ApprovalsMachine(RuleBasedStateMachine):
    """The registry against the plainest model: a dict of open deadlines and a dict of first answers."""

    questions: Bundle[Pending] = Bundle("questions")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.registry = Approvals(clock=lambda: self.now)
        self.open: dict[str, float] = {}
        self.answers: dict[str, tuple[Behavior, str]] = {}

    def pass_deadlines(self) -> None:
        for key in [key for key, deadline in self.open.items() if deadline <= self.now]:
            del self.open[key]
            self.answers[key] = (Behavior.DENY, "")

    @rule(target=questions, expires_in=st.floats(0.5, 20))
    def request(self, expires_in: float) -> Pending:
        self.pass_deadlines()
        pending = ask(self.registry, expires_in=expires_in)
        self.open[pending.id] = self.now + expires_in
        return pending

    @rule(seconds=st.floats(0, 10))
    def advance(self, seconds: float) -> None:
        self.now += seconds

    @rule(pending=questions, verdict=st.sampled_from([Behavior.ALLOW, Behavior.DENY]), who=st.sampled_from(["ada", "bob"]))
    def resolve(self, pending: Pending, verdict: Behavior, who: str) -> None:
        self.pass_deadlines()
        try:
            answer: Resolution | None = self.registry.resolve(pending.id, verdict, "once", who)
        except RequestError:
            answer = None
        assert (answer is not None) == (pending.id in self.open)
        if answer is not None:
            del self.open[pending.id]
            self.answers[pending.id] = (verdict, who)

    @rule(target=questions, pending=consumes(questions))
    def cancel(self, pending: Pending) -> Pending:
        self.pass_deadlines()
        pending.cancel()
        if self.open.pop(pending.id, None) is not None:
            self.answers[pending.id] = (Behavior.DENY, "")
        return pending

    @invariant()
    def agree(self) -> None:
        self.pass_deadlines()
        assert [pending.id for pending in self.registry.list()] == list(self.open)
        for key, resolution in self.registry._answered.items():
            assert (resolution.verdict, resolution.who) == self.answers[key]
        assert len(self.registry._answered) == len(self.answers)


TestApprovalsMachine = ApprovalsMachine.TestCase
TestApprovalsMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
