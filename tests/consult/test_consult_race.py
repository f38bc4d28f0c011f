# SPDX-License-Identifier: GPL-3.0-or-later
"""The race for an answer, under a virtual clock and in every order: hooks, a classifier, several humans, cancellation.

The judge is the real waterfall, the questions are real ones; only who answers when is made up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sandboxd.analyze import analyze
from sandboxd.consult.approvals import Approvals, Change
from sandboxd.consult.race import first_eligible
from sandboxd.errors import RequestError
from sandboxd.model import AnalysisContext, Behavior, Consultant, Decision, Inputs, Mode, Needs, Opinion
from sandboxd.policy.waterfall import evaluate
from tests.consult.virtual_clock import VirtualLoop
from tests.policy.policy_cases import HOME, SCOPE, WORKSPACE, ruleset

HUMAN, HOOK, CLASSIFIER = Consultant.APPROVAL, Consultant.HOOK, Consultant.CLASSIFIER
# What is asked, in which mode, and who may allow it: said here once more, independently of the steps.
KINDS: dict[str, tuple[str, Mode, frozenset[Consultant]]] = {
    "default": ("make all", Mode.DEFAULT, frozenset((HUMAN, HOOK))),
    "scope": ("cp a /srv/x", Mode.DEFAULT, frozenset((HUMAN, HOOK))),
    "protected": ("echo x >> .git/config", Mode.BYPASS, frozenset((HUMAN,))),
    "privilege": ("sudo ls", Mode.ACCEPT_EDITS, frozenset((HUMAN,))),
    "auto": ("make all", Mode.AUTO, frozenset((HUMAN, HOOK, CLASSIFIER))),
    "auto protected": ("rm -r .git/hooks", Mode.AUTO, frozenset((HUMAN,))),
    "settings": ("cat .claude/settings.json", Mode.AUTO, frozenset((HUMAN, CLASSIFIER))),
}
OUTCOMES = ("allow", "deny", "ask", "none", "failed allow", "failed deny", "crash")
EXPIRES = 5.0


class Crash(Exception):
    """A consultant that breaks."""


@cache
def question(kind: str) -> Inputs:
    text, mode, _ = KINDS[kind]
    inputs = Inputs(analyze(text, AnalysisContext(WORKSPACE, HOME, WORKSPACE)), ruleset(), SCOPE, mode)
    assert isinstance(evaluate(inputs), Needs), kind
    return inputs


@cache
def settled(kind: str, who: Consultant, verdict: Behavior, failed: bool) -> Decision | Needs:
    """What the waterfall says with one more opinion."""
    opinion = Opinion(who, verdict, "", failed=failed, name="someone")
    asked = question(kind)
    return evaluate(Inputs(asked.analysis, asked.rules, asked.scope, asked.mode, opinions=(opinion,)))


def outcome(kind: str, opinion: Opinion) -> Decision | Needs:
    return settled(kind, opinion.who, opinion.verdict, opinion.failed)


class Play:
    """One question and everybody around it. What is done to it comes from outside, in any order."""

    def __init__(self, loop: VirtualLoop, kind: str, hooks: int, *, classifier: bool, human: bool) -> None:
        self.loop, self.kind = loop, kind
        self.approvals = Approvals(clock=loop.time, wall=loop.time)
        needs = evaluate(question(kind))
        assert isinstance(needs, Needs)
        self.pending = self.approvals.request("e", "s", "t", "/w", needs.pending, EXPIRES) if human else None
        self.whos = [HOOK] * hooks + [CLASSIFIER] * classifier
        self.futures: list[asyncio.Future[Opinion | None]] = [loop.create_future() for _ in self.whos]
        self.over: asyncio.Future[None] = loop.create_future()
        self.inside = 0  # consultants that still run
        self.accepted: list[Behavior] = []  # human answers that were taken
        self.cancelled = False
        self.seen: list[Change] = []
        self.watching = loop.create_task(self._watch())
        loop.step()
        others = [self._consultant(future) for future in self.futures]
        self.race = loop.create_task(
            first_eligible(self.pending, others, lambda opinion: not isinstance(outcome(kind, opinion), Needs), self._until())
        )
        loop.step()  # the engine asks and begins to wait in one turn

    async def _consultant(self, future: asyncio.Future[Opinion | None]) -> Opinion | None:
        self.inside += 1
        try:
            return await future
        finally:
            self.inside -= 1

    async def _until(self) -> None:
        await self.over

    async def _watch(self) -> None:
        async for change in self.approvals.watch():
            self.seen.append(change.kind)

    # What may happen

    def human(self, verdict: Behavior) -> None:
        if self.pending is None:
            return
        try:
            self.approvals.resolve(self.pending.id, verdict, "once", "ada")
        except RequestError:
            return
        self.accepted.append(verdict)

    def say(self, index: int, what: str) -> None:
        if not self.futures:
            return
        index %= len(self.futures)
        future = self.futures[index]
        if future.done():
            return
        if what == "crash":
            future.set_exception(Crash)
        elif what == "none":
            future.set_result(None)
        else:
            verdict = Behavior(what.rpartition(" ")[2])
            future.set_result(Opinion(self.whos[index], verdict, "", failed=what.startswith("failed"), name="hook"))

    def cancel(self) -> None:
        """As the engine cancels: the question closes first."""
        if not self.race.done():
            self.cancelled = True
            if self.pending is not None:
                self.pending.cancel("caller_left")
            self.race.cancel()

    def overtake(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    # What must hold

    def check(self) -> None:
        assert len(self.accepted) <= 1, "two answers were taken"
        if not self.race.done():
            return
        assert self.approvals.list() == (), "the race is over and the question is open"
        assert self.inside == 0, "a loser still runs"
        if self.race.cancelled():
            assert self.cancelled
            return
        error = self.race.exception()
        if error is not None:
            assert isinstance(error, Crash)
            assert not self.accepted, "an answer that was taken was lost to a crash"
            return
        opinion = self.race.result()
        if self.accepted:
            assert opinion is not None
            assert (opinion.who, opinion.verdict, opinion.failed) == (HUMAN, self.accepted[0], False)
        if opinion is None:
            return
        said = outcome(self.kind, opinion)
        assert isinstance(said, Decision), "an opinion that settles nothing won"
        if said.behavior is Behavior.ALLOW:
            assert opinion.verdict is Behavior.ALLOW
            assert not opinion.failed
            assert opinion.who in KINDS[self.kind][2], "one who may not allow did"
            if opinion.who is HUMAN:
                assert self.accepted == [Behavior.ALLOW]

    def finish(self) -> None:
        """Let the question expire; the race ends by itself, everybody was told, and nothing is left over."""
        self.loop.step(3)
        self.check()
        self.loop.advance(EXPIRES)
        if self.pending is None:
            for index in range(len(self.futures)):
                self.say(index, "none")
        self.loop.step(8)
        assert self.race.done()
        self.check()
        if self.pending is not None:
            assert self.seen == [Change.ADDED, Change.RESOLVED]
            with pytest.raises(RequestError):
                self.approvals.resolve(self.pending.id, Behavior.ALLOW, "once", "late")
        self.watching.cancel()
        self.loop.step(2)
        for future in self.futures:
            if not future.cancel() and not future.cancelled():
                future.exception()
        self.over.cancel()


@pytest.fixture(scope="module")
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    made.close()


def test_ten_thousand_random_races(loop: VirtualLoop) -> None:
    """No answer is applied twice, an accepted human answer counts, losers are gone, nobody allows what he may not."""
    won: dict[Consultant | None, int] = {}
    for seed in range(10_000):
        dice = random.Random(seed)
        kind = dice.choice(list(KINDS))
        play = Play(loop, kind, dice.randrange(4), classifier=dice.random() < 0.5, human=dice.random() < 0.85)
        for _ in range(dice.randrange(1, 9)):
            match dice.randrange(12):
                case 0 | 1 | 2:
                    play.human(dice.choice((Behavior.ALLOW, Behavior.DENY)))
                case 3 | 4 | 5 | 6:
                    play.say(dice.randrange(8), dice.choice(OUTCOMES))
                case 7:
                    loop.advance(dice.choice((1.0, EXPIRES)))
                case 8 if dice.random() < 0.4:
                    play.cancel()
                case 9 if dice.random() < 0.4:
                    play.overtake()
                case _:
                    loop.step(dice.randrange(1, 4))
            play.check()
        play.finish()
        clean = not play.race.cancelled() and play.race.exception() is None
        opinion = play.race.result() if clean else None
        who = None if opinion is None else opinion.who
        won[who] = won.get(who, 0) + 1
    assert min(won.get(who, 0) for who in (*Consultant, None)) > 100, won  # every way to end was taken


class Race(RuleBasedStateMachine):
    """The same, driven and shrunk by hypothesis."""

    loop: VirtualLoop

    @initialize(
        kind=st.sampled_from(list(KINDS)),
        hooks=st.integers(0, 3),
        classifier=st.booleans(),
        human=st.sampled_from((True, True, False)),
    )
    def begin(self, kind: str, hooks: int, classifier: bool, human: bool) -> None:
        self.loop = VirtualLoop()
        self.play = Play(self.loop, kind, hooks, classifier=classifier, human=human)

    @rule(verdict=st.sampled_from((Behavior.ALLOW, Behavior.DENY)))
    def human(self, verdict: Behavior) -> None:
        self.play.human(verdict)

    @rule(index=st.integers(0, 3), what=st.sampled_from(OUTCOMES))
    def say(self, index: int, what: str) -> None:
        self.play.say(index, what)

    @rule(seconds=st.sampled_from((1.0, EXPIRES)))
    def wait(self, seconds: float) -> None:
        self.loop.advance(seconds)

    @rule(rounds=st.integers(1, 3))
    def step(self, rounds: int) -> None:
        self.loop.step(rounds)

    @precondition(lambda self: not self.play.cancelled)
    @rule()
    def cancel(self) -> None:
        self.play.cancel()

    @rule()
    def overtake(self) -> None:
        self.play.overtake()

    @invariant()
    def holds(self) -> None:
        self.play.check()

    def teardown(self) -> None:
        if hasattr(self, "play"):
            self.play.finish()
            self.loop.close()


Race.TestCase.settings = settings(
    max_examples=1000, stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
TestRace = Race.TestCase


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("who", [HOOK, CLASSIFIER])
def test_who_may_allow(loop: VirtualLoop, kind: str, who: Consultant) -> None:
    """Alone with one who says allow, the race allows where the table says so, and else waits for the human."""
    play = Play(loop, kind, int(who is HOOK), classifier=who is CLASSIFIER, human=True)
    play.say(0, "allow")
    loop.step(6)
    assert play.race.done() is (who in KINDS[kind][2])
    play.finish()


def test_a_deny_goes_first(loop: VirtualLoop) -> None:
    """Of two hooks that answer in the same moment the one that denies counts."""
    play = Play(loop, "default", 2, classifier=False, human=True)
    loop.step(2)
    play.say(0, "allow")
    play.say(1, "deny")
    loop.step(6)
    opinion = play.race.result()
    assert opinion is not None
    assert opinion.verdict is Behavior.DENY
    play.finish()


def test_no_answer_is_taken_that_nobody_would_heed(loop: VirtualLoop) -> None:
    """In the turn in which a consultant breaks, or the race is cancelled, an approver is refused, not thanked."""
    play = Play(loop, "default", 1, classifier=False, human=True)
    loop.step(2)
    play.say(0, "crash")
    loop.step(2)
    for _ in range(4):
        play.human(Behavior.ALLOW)
        loop.step()
    play.finish()
    play = Play(loop, "default", 0, classifier=False, human=True)
    loop.step(2)
    play.cancel()
    play.human(Behavior.ALLOW)
    assert not play.accepted
    play.finish()
