# SPDX-License-Identifier: GPL-3.0-or-later
"""Auto mode: what goes without a classifier and what never does, which rules do not count there, and the risk score."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.analyze import analyze
from sandboxd.model import (
    AnalysisContext,
    Behavior,
    Consultant,
    Decision,
    Direction,
    EffectKind,
    Inputs,
    Mode,
    Needs,
    Opinion,
    RuleSet,
    Sensitivity,
)
from sandboxd.policy.breaker import CONSECUTIVE, TOTAL, Breaker
from sandboxd.policy.broad import too_broad
from sandboxd.policy.risk import MAX, WEIGHTS, risk
from sandboxd.policy.waterfall import evaluate
from tests.policy.policy_cases import HOME, SCOPE, WORKSPACE, analysis, command, effect, rule, ruleset


def auto(text: str, rules: RuleSet | None = None, *opinions: Opinion, mode: Mode = Mode.AUTO) -> Decision | Needs:
    found = analyze(text, AnalysisContext(WORKSPACE, HOME, WORKSPACE))
    return evaluate(Inputs(found, rules or RuleSet(), SCOPE, mode=mode, opinions=opinions))


# -- fast paths ----------------------------------------------------------------------------------------------------------

FAST = [
    ("ls -la", "2e"),
    ("git status && grep -rn x .", "2e"),
    ("mkdir -p a/b && touch a/b/c", "2f"),
    ("mv a b; cp b c; rm c", "2f"),
    ("sed -i s/a/b/ notes.txt", "2f"),
    ("echo x > out.txt", "2f"),
]


@pytest.mark.parametrize(("text", "step"), FAST)
def test_what_needs_no_classifier(text: str, step: str) -> None:
    """Reads and plain edits of the workspace are decided by rules, so nothing is sent."""
    answer = auto(text)
    assert isinstance(answer, Decision)
    assert (answer.behavior, answer.step) == (Behavior.ALLOW, step)


HIDDEN = [
    'python3 -c \'open("x", "w")\'',
    "python3 script.py",
    "node -e 'require(\"fs\")'",
    "ruby -e 'puts 1' > out.txt",
    "perl -i -pe 's/a/b/' notes.txt",
    "bash build.sh",
    'bash -c "$CODE"',
    'eval "$CODE"',
    "./tool",
    "make",
    "npm test",
    "npx prettier --write .",
    "awk 'BEGIN { system(\"x\") }'",
    "sed -i '1e x' notes.txt",
    "sed -i s/a/b/e notes.txt",
    "vim -c 'w! x' notes.txt",
    "ed notes.txt < script",
    "find . -exec tool {} ';'",
    "echo x | xargs tool",
    "claude -p 'do it'",
    "touch a; source a",
    "echo x > a && ./a",
    "git commit -m x",
]


@pytest.mark.parametrize("text", HIDDEN)
def test_what_hides_code_has_no_fast_path(text: str) -> None:
    """Interpreters, scripts, sub-agents and tools that run code are for the classifier (or stricter)."""
    answer = auto(text)
    decision = answer.pending if isinstance(answer, Needs) else answer
    assert decision.behavior is not Behavior.ALLOW


def test_what_the_classifier_is_told_ends_in_the_record() -> None:
    """The code of an outage stands in the decision's evidence, its sentence in the message."""
    said = Opinion(Consultant.CLASSIFIER, Behavior.DENY, "the server is overloaded", failed=True, code="classifier.overloaded")
    answer = auto("make", None, said)
    assert isinstance(answer, Decision)
    assert (answer.behavior, answer.reason) == (Behavior.DENY, "CLASSIFIER_UNAVAILABLE")
    assert "classifier.overloaded" in [each.because for each in answer.evidence]
    assert "overloaded" in answer.message


# -- rules that do not count ---------------------------------------------------------------------------------------------

BROAD = """\
Bash Bash() Bash(*) Agent Agent(*) Bash(python:*) Bash(python3.12:*) Bash(python\\ *) Bash(python3\\ -c:*) Bash(node\\ *)
Bash(bash:*) Bash(sh\\ -c\\ *) Bash(eval:*) Bash(sudo:*) Bash(env:*) Bash(xargs:*) Bash(find:*) Bash(npx:*) Bash(npx\\ -y\\ *)
Bash(uvx:*) Bash(npm:*) Bash(npm\\ run:*) Bash(npm\\ run\\ *) Bash(npm\\ exec:*) Bash(pnpm\\ dlx:*) Bash(yarn\\ dlx\\ *)
Bash(uv\\ run:*) Bash(poetry\\ run\\ *) Bash(docker\\ run:*) Bash(kubectl\\ exec:*) Bash(git:*) Bash(make:*) Bash(py*)
Bash(/usr/bin/python3:*) Bash(ssh:*) Bash(awk:*) Bash(claude:*) Bash(prefix:perl) Bash(uv\\ run\\ python:*)
Bash(sudo\\ bash:*) Bash(env\\ A=1\\ python3:*) Bash(timeout\\ 5\\ sh\\ -c\\ *) Bash(docker\\ exec\\ web:*)
Bash(docker\\ run\\ --rm\\ alpine:*) Bash(kubectl\\ exec\\ pod\\ --:*) Bash(find\\ src:*) Bash(ssh\\ host:*) Bash(watch\\ ls:*)
Bash(nix\\ develop\\ .:*) Bash(npx\\ tsx:*) Bash(poetry\\ run\\ python:*) Bash(xargs\\ -n1\\ bash:*) Bash(flock\\ f:*)
Bash(uv\\ run\\ p*) Bash(sudo\\ b*)"""
NARROW = """\
Bash(ls) Bash(ls:*) Bash(python3\\ manage.py\\ test:*) Bash(python\\ -m\\ pytest:*) Bash(npm\\ run\\ build)
Bash(npm\\ run\\ test:*)
Bash(git\\ add:*) Bash(git\\ commit\\ -m\\ *) Bash(cargo\\ test:*) Bash(make\\ test) Bash(docker\\ build:*)
Bash(python) Bash(bash\\ x.sh)
Bash(find\\ src\\ -name\\ x) Bash(docker\\ ps:*) Bash(kubectl\\ get\\ pods:*) Bash(sudo\\ apt-get\\ install:*)
Bash(timeout\\ 5\\ ls:*) Bash(nix\\ build:*) Bash(uv\\ pip\\ list:*)
Bash(npm\\ run\\ test*) Bash(python\\ manage.py\\ t*) Bash(git\\ log*)
Read Edit(src/**) WebFetch(domain:a.test) Bash(pytest:*) Bash(npx\\ prettier:*) Bash(uv\\ run\\ pytest:*)"""


def texts(words: str) -> list[str]:
    return [word.replace("\0", " ") for word in words.replace("\\ ", "\0").split()]


@pytest.mark.parametrize("text", texts(BROAD))
def test_a_broad_rule_is_set_aside(text: str) -> None:
    """It allows any code, so in auto mode it allows nothing; deny and ask rules of the same words count everywhere."""
    assert too_broad(rule(text))
    assert not too_broad(rule(text, "deny"))
    assert not too_broad(rule(text, "ask"))


@pytest.mark.parametrize("text", texts(NARROW))
def test_a_narrow_rule_counts(text: str) -> None:
    """It says what is run."""
    assert not too_broad(rule(text))


def test_setting_aside_is_said() -> None:
    """The question names the rules that did not count; in other modes they count."""
    rules = ruleset("allow Bash(python3:*)", "allow Bash(*)", "allow Bash(make test)")
    answer = auto("python3 x.py", rules)
    assert isinstance(answer, Needs)
    assert "set aside in mode auto" in answer.pending.message
    assert "`Bash(python3:*)`" in answer.pending.message
    allowed = auto("make test", rules)
    assert isinstance(allowed, Decision)
    assert allowed.step == "2b"
    other = auto("python3 x.py", rules, mode=Mode.DEFAULT)
    assert isinstance(other, Decision)
    assert other.step == "2b"


# -- the breaker ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(("denied", "ran", "answered"))))
def test_the_breaker_counts_exactly(events: list[str]) -> None:
    """Open after 3 denials without a success between them, or 20 since a human last answered."""
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
        assert breaker.total == total
        assert breaker.open is (row >= CONSECUTIVE or since >= TOTAL)


# -- the risk score ------------------------------------------------------------------------------------------------------

EFFECTS = {
    "deletes a whole tree": effect(EffectKind.DELETE, f"{WORKSPACE}/a", recursive=True),
    "deletes": effect(EffectKind.DELETE, f"{WORKSPACE}/a"),
    "changes something that is not known": effect(EffectKind.WRITE, None),
    "changes something outside the workspace": effect(EffectKind.WRITE, "/srv/a"),
    "reads outside the workspace": effect(EffectKind.READ, "/srv/a"),
    "touches secrets": effect(EffectKind.READ, f"{WORKSPACE}/.env", sensitivity=Sensitivity.SECRET),
    "sends data": effect(EffectKind.NETWORK, "a.test", direction=Direction.SEND),
    "fetches": effect(EffectKind.NETWORK, "a.test", direction=Direction.FETCH),
    "listens": effect(EffectKind.NETWORK, "a.test", direction=Direction.LISTEN),
    "changes the system": effect(EffectKind.SYSTEM, "x"),
    "acts on other processes": effect(EffectKind.PROCESS, "x"),
    "hides code": effect(EffectKind.OPAQUE, None),
}


@pytest.mark.parametrize("reason", EFFECTS)
def test_each_reason_counts(reason: str) -> None:
    """One effect, its one reason, its weight."""
    found = risk(analysis(command("x", EFFECTS[reason])), SCOPE)
    assert (found.reasons, found.score) == ((reason,), WEIGHTS[reason])


def test_nothing_is_no_risk() -> None:
    """Reading the workspace and writing nowhere score nothing."""
    calm = (effect(EffectKind.READ, f"{WORKSPACE}/a"), effect(EffectKind.WRITE, "/dev/null"))
    assert risk(analysis(command("x", *calm)), SCOPE).score == 0


def test_secrets_that_are_sent_weigh_more_than_both() -> None:
    """The whole is worse than its parts."""
    both = risk(analysis(command("x", EFFECTS["touches secrets"]), command("y", EFFECTS["sends data"])), SCOPE)
    assert both.reasons[0] == "sends secrets"
    assert both.cautious


def test_more_effects_never_lower_it() -> None:
    """Monotone over all pairs, bounded by 100."""
    for one, two in itertools.permutations(EFFECTS.values(), 2):
        alone, more = (risk(analysis(command("x", *effects)), SCOPE).score for effects in ((one,), (one, two)))
        assert alone <= more <= MAX
    assert risk(analysis(command("x", *EFFECTS.values())), SCOPE).score == MAX
