# SPDX-License-Identifier: GPL-3.0-or-later
"""The iron gate in the waterfall: whatever a classifier that failed is said to have answered, nothing is allowed by it.

Walked through all rows of test_policy_waterfall, every verdict a failure may carry, the breaker, and other opinions
before and behind it.
"""

from __future__ import annotations

import itertools

import pytest

from sandboxd.consult.verdict import Outage
from sandboxd.model import Behavior, Consultant, Decision, Mode, Needs, Opinion
from sandboxd.policy.settle import CLASSIFIER_BREAKER, CLASSIFIER_UNAVAILABLE
from tests.policy.test_policy_waterfall import OPINIONS, ROWS, Row, outcome, settled

ALLOW, DENY = Behavior.ALLOW, Behavior.DENY
FAILED = tuple(
    Opinion(Consultant.CLASSIFIER, verdict, "the server is overloaded", failed=True, code=Outage.OVERLOADED.value)
    for verdict in Behavior
)
OTHERS = tuple(opinion for opinion in OPINIONS if opinion.who is not Consultant.CLASSIFIER)
TIGHT = {ALLOW: 0, Behavior.ASK: 1, DENY: 2}


def rows(mode: Mode) -> list[Row]:
    return [row for row in ROWS if row.mode is mode]


def heard(answer: Decision | Needs) -> bool:
    return isinstance(answer, Needs) and Consultant.CLASSIFIER in answer.who


@pytest.mark.parametrize("breaker", [False, True])
@pytest.mark.parametrize("mode", list(Mode))
def test_a_failed_classifier_allows_nothing(mode: Mode, breaker: bool) -> None:
    """Where it was asked the answer is DENY with its code; where it was not, its failure changes nothing at all."""
    asked = 0
    for row in rows(mode):
        before = outcome(row, breaker=breaker)
        for failed in FAILED:
            after = outcome(row, failed, breaker=breaker)
            if not heard(before):
                assert after == before, (row, failed)
                continue
            asked += 1
            assert isinstance(after, Decision), row
            assert (after.behavior, after.reason) == (DENY, CLASSIFIER_UNAVAILABLE), row
            assert Outage.OVERLOADED.value in [each.because for each in after.evidence], row
            assert not after.grants
    assert (asked > 0) is (mode is Mode.AUTO and not breaker)


def test_beside_other_opinions_it_only_tightens() -> None:
    """Together with what a hook or a human said, in any order, it never makes the answer looser than that alone."""
    for row in rows(Mode.AUTO):
        if row.auto:
            continue
        for other, failed in itertools.product(OTHERS, FAILED):
            alone = settled(outcome(row, other)).behavior
            for opinions in ((failed, other), (other, failed)):
                assert TIGHT[settled(outcome(row, *opinions)).behavior] >= TIGHT[alone], (row, opinions)


@pytest.mark.parametrize("outage", list(Outage))
def test_every_outage_has_its_own_code(outage: Outage) -> None:
    """One code for all ends in CLASSIFIER_UNAVAILABLE; which outage it was stands in the evidence."""
    row = Row("", "", "opaque", "", Mode.AUTO, headless=True, auto=False, full=True)
    failed = Opinion(Consultant.CLASSIFIER, ALLOW, "so it was", failed=True, code=outage.value)
    decision = settled(outcome(row, failed))
    assert (decision.behavior, decision.reason) == (DENY, CLASSIFIER_UNAVAILABLE)
    assert outage.value in [each.because for each in decision.evidence]
    assert CLASSIFIER_BREAKER not in (decision.reason, outage.value)
