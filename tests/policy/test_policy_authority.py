# SPDX-License-Identifier: GPL-3.0-or-later
"""What a child session inherits, when the denial breaker opens, what an approval opens, what the model is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.model import Behavior, Consultant, Facts, GrantKind, Mode, Opinion, RuleSet, Scope
from sandboxd.policy.breaker import CONSECUTIVE, TOTAL, Breaker
from sandboxd.policy.explain import steer
from sandboxd.policy.inherit import anchored, inherit
from tests.policy.policy_cases import HOME, WORKSPACE, decide, rule, ruleset

SUB = f"{WORKSPACE}/sub"
YES = (Opinion(Consultant.APPROVAL, Behavior.ALLOW, "", name="ada"),)


@pytest.mark.parametrize(
    ("text", "behavior", "absolute"),
    [
        ("Read(secrets/**)", "deny", f"Read(/{WORKSPACE}/secrets/**)"),
        ("Read(.env)", "deny", f"Read(/{WORKSPACE}/**/.env)"),
        ("Edit(./src/*.py)", "allow", f"Edit(/{WORKSPACE}/src/*.py)"),
        ("Edit(notes)", "allow", f"Edit(/{WORKSPACE}/notes)"),
        ("Edit(/src/**)", "deny", f"Edit(/{WORKSPACE}/src/**)"),
        ("Edit(//srv/**)", "deny", "Edit(//srv/**)"),
        ("Read(~/x)", "deny", "Read(~/x)"),
        ("Bash(rm:*)", "deny", "Bash(rm:*)"),
        ("Read", "deny", "Read"),
    ],
)
def test_anchored(text: str, behavior: str, absolute: str) -> None:
    """A path that a rule sees from the parent's workspace means the same place for a child elsewhere."""
    assert anchored(rule(text, behavior), WORKSPACE).text == absolute


def test_an_anchored_workspace_is_no_glob() -> None:
    """Characters of a directory's name that mean something in a glob mean themselves."""
    scope = Scope("/srv/a[b]/sub", HOME)
    rules = inherit(RuleSet(), ruleset("deny Read(secrets/**)"), (), "/srv/a[b]", "/srv/a[b]/sub")
    given_ = {"rules": rules, "scope": scope, "cwd": "/srv/a[b]/sub"}
    assert decide("cat '/srv/a[b]/secrets/x'", **given_).step == "1d"
    assert decide("cat /srv/ab/secrets/x", **given_).step != "1d"


TEXTS = ("Bash(rm:*)", "Bash(make)", "Edit(src/**)", "Read(secrets/**)", "Bash")
LINES = ("rm x", "make", "cat secrets/a", "sed -i s/a/b/ src/a", "make && rm x", "ls")
STRICTER = {Behavior.ALLOW: 0, Behavior.ASK: 1, Behavior.DENY: 2}


@given(
    st.lists(st.tuples(st.sampled_from(("allow", "ask", "deny")), st.sampled_from(TEXTS)), max_size=4),
    st.lists(st.tuples(st.sampled_from(("allow", "ask", "deny")), st.sampled_from(TEXTS)), max_size=4),
    st.sampled_from(LINES),
    st.booleans(),
)
def test_a_child_is_never_looser(parent: list[tuple[str, str]], own: list[tuple[str, str]], line: str, below: bool) -> None:
    """Whatever rules of its own a child has, no command gets a looser answer than under its parent's."""
    above = ruleset(*(f"{behavior} {text}" for behavior, text in parent))
    mine = ruleset(*(f"{behavior} {text}" for behavior, text in own))
    workspace = SUB if below else WORKSPACE
    child = decide(line, rules=inherit(mine, above, (), WORKSPACE, workspace), scope=Scope(workspace, HOME), cwd=WORKSPACE)
    assert STRICTER[child.behavior] >= STRICTER[decide(line, rules=above).behavior]


@given(st.lists(st.sampled_from(("denied", "ran", "answered")), max_size=60))
def test_the_breaker(events: list[str]) -> None:
    """Three denials with no success between them, or twenty since a human answered, open it; only a human closes the
    latter; the total never falls."""
    breaker = Breaker()
    row = since = total = 0
    for event in events:
        breaker = getattr(breaker, event)()
        if event == "denied":
            row, since, total = row + 1, since + 1, total + 1
        elif event == "ran":
            row = 0
        else:
            row = since = 0
        assert breaker.open is (row >= CONSECUTIVE or since >= TOTAL)
        assert (breaker.consecutive, breaker.total) == (row, total)


def test_an_approved_glob_opens_what_it_was_seen_to_match() -> None:
    """A glob opens the protected paths that were observed and that it can match, and no other; an unknown target opens none
    and the question says so."""
    facts = Facts(True, protected=(f"{WORKSPACE}/.mcp.json", f"{WORKSPACE}/.envrc", f"{WORKSPACE}/.npmrc"))
    opened = decide("rm .m*", facts=facts, opinions=YES).grants
    assert [grant.target for grant in opened if grant.kind is GrantKind.PROTECTED] == [f"{WORKSPACE}/.mcp.json"]
    asked = decide('echo x > "$d/.envrc"', facts=facts)
    assert "even approved it stays closed" in asked.message
    assert "stays closed" not in decide("rm .m*", facts=facts).message


@pytest.mark.parametrize(
    ("line", "mode"),
    [("rm -rf /", Mode.BYPASS), ("touch x", Mode.PLAN), ("make", Mode.DONT_ASK), ("cat ~/.ssh/id_rsa", Mode.DONT_ASK)],
)
def test_steering(line: str, mode: Mode) -> None:
    """The model is told in one line what stopped it and what to do instead."""
    decision = decide(line, mode=mode)
    assert decision.behavior is Behavior.DENY
    text = steer(decision)
    assert text.startswith("blocked because ")
    assert text.endswith(f"; instead: {decision.flip}")
    assert "\n" not in text


def test_a_long_reason_is_cut() -> None:
    """However long a command's words are, the steering text stays short."""
    decision = decide("touch " + "x" * 5000, mode=Mode.PLAN)
    assert len(steer(decision)) < 1000
