# SPDX-License-Identifier: GPL-3.0-or-later
"""The waterfall, walked through all combinations of rules, dangers, effects, modes, flags and opinions.

What must hold is stated here a second time, as promises about rows, without looking at how the steps are written.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.model import (
    Analysis,
    Behavior,
    Consultant,
    Decision,
    Direction,
    EffectKind,
    Facts,
    GrantKind,
    Inputs,
    Mode,
    Needs,
    Opinion,
    PathFact,
    RuleSet,
    Sensitivity,
    Strategy,
)
from sandboxd.policy.settle import CLASSIFIER_BREAKER, CLASSIFIER_UNAVAILABLE
from sandboxd.policy.waterfall import STEPS, document, evaluate
from tests.policy.policy_cases import SCOPE, WORKSPACE, analysis, ask, command, decide, effect, ruleset

ALLOW, ASK, DENY = Behavior.ALLOW, Behavior.ASK, Behavior.DENY
HOOK, CLASSIFIER, APPROVAL = Consultant.HOOK, Consultant.CLASSIFIER, Consultant.APPROVAL

TOOLS = {
    "": (),
    "deny": ("deny Bash",),
    "ask": ("ask Bash",),
    "allow": ("allow Bash",),
}
CONTENTS = {
    "": (),
    "deny": ("deny Bash(tool:*)",),
    "ask": ("ask Bash(tool:*)",),
    "allow": ("allow Bash(tool:*)",),
    "ask allow": ("ask Bash(tool:*)", "allow Bash(tool:*)"),
    "deny allow": ("allow Bash(tool:*)", "deny Bash(tool:*)"),
}
BODIES = {
    "read": (effect(EffectKind.READ, f"{WORKSPACE}/a"),),
    "read outside": (effect(EffectKind.READ, "/srv/a"),),
    "fetch": (effect(EffectKind.NETWORK, "a.test", direction=Direction.FETCH),),
    "edit": (effect(EffectKind.WRITE, f"{WORKSPACE}/a", edit=True),),
    "edit outside": (effect(EffectKind.WRITE, "/srv/a", edit=True),),
    "write unknown": (effect(EffectKind.WRITE, None, edit=True),),
    "opaque": (effect(EffectKind.OPAQUE, None, code="opaque.code"),),
    "unparsed": (),
}
READS = frozenset(("read", "read outside", "fetch"))
OUTSIDE = frozenset(("read outside", "fetch", "edit outside", "write unknown"))
DANGERS = {
    "": (),
    "catastrophe": (effect(EffectKind.ENV, code="shell.fork_bomb"),),
    "interaction": (),  # it asks to run unsandboxed
    "touch": (effect(EffectKind.WRITE, f"{WORKSPACE}/.git/config"),),
    "settings": (effect(EffectKind.READ, f"{WORKSPACE}/.claude/settings.json", sensitivity=Sensitivity.SETTINGS),),
}
BOXES = ((False, True), (True, True), (True, False))  # auto_allow_if_sandboxed, enforcement_full


class Row(NamedTuple):
    tool: str
    content: str
    body: str
    danger: str
    mode: Mode
    headless: bool
    auto: bool
    full: bool

    @property
    def reads(self) -> bool:
        return self.body in READS and self.danger != "touch"

    @property
    def unguarded(self) -> bool:
        """It writes somewhere unknown, and the sandbox does not guard all that is protected."""
        return self.body == "write unknown" and not self.full

    @property
    def unattended(self) -> bool:
        return self.headless or self.mode is Mode.DONT_ASK

    @property
    def boxed(self) -> bool:
        return self.auto and self.full and self.danger != "interaction"


RULES = {(tool, content): ruleset(*TOOLS[tool], *CONTENTS[content]) for tool in TOOLS for content in CONTENTS}
ANALYSES: dict[tuple[str, str], Analysis] = {
    (body, danger): analysis(command("tool a", *BODIES[body], *DANGERS[danger]), unparsed=body == "unparsed", text="tool a")
    for body in BODIES
    for danger in DANGERS
}
# The analysis calls what only fetches read-only; the waterfall asks whether it may.
for _body, _danger in itertools.product(READS, DANGERS):
    if _danger != "touch":
        ANALYSES[_body, _danger] = ANALYSES[_body, _danger]._replace(read_only=True)

ROWS = [
    Row(tool, content, body, danger, mode, headless, auto, full)
    for tool, content, body, danger, mode, headless, (auto, full) in itertools.product(
        TOOLS, CONTENTS, BODIES, DANGERS, Mode, (False, True), BOXES
    )
]
OPINIONS = (
    Opinion(HOOK, ALLOW, "h"),
    Opinion(HOOK, DENY, "h"),
    Opinion(HOOK, ASK, "h"),
    Opinion(CLASSIFIER, ALLOW, "c"),
    Opinion(CLASSIFIER, DENY, "c"),
    Opinion(CLASSIFIER, ASK, "c"),
    Opinion(CLASSIFIER, ALLOW, "c", failed=True),
    Opinion(APPROVAL, ALLOW, "a"),
    Opinion(APPROVAL, DENY, "a"),
    Opinion(APPROVAL, ALLOW, "a", failed=True),
)


def outcome(row: Row, *opinions: Opinion, breaker: bool = False) -> Decision | Needs:
    return evaluate(
        Inputs(
            ANALYSES[row.body, row.danger],
            RULES[row.tool, row.content],
            SCOPE,
            mode=row.mode,
            opinions=opinions,
            headless=row.headless,
            unsandboxed="request" if row.danger == "interaction" else "",
            enforcement_full=row.full,
            auto_allow_if_sandboxed=row.auto,
            breaker_open=breaker,
        )
    )


def settled(answer: Decision | Needs) -> Decision:
    return answer.pending if isinstance(answer, Needs) else answer


def first_step(row: Row) -> str:
    """The step that answers without opinions, by the table of the specification."""
    asks = [
        ("1b", row.tool == "ask" and not row.boxed),
        ("1e", row.danger == "interaction"),
        ("1f", "ask" in row.content),
        ("1g", row.danger in ("touch", "settings") or row.unguarded),
    ]
    broad = row.tool == "allow" and row.mode is not Mode.AUTO  # in auto mode a rule for the whole tool is set aside
    allowed = row.body != "unparsed" and (broad or "allow" in row.content)
    others = [
        ("2a", row.mode is Mode.BYPASS),
        ("2b", allowed),
        ("2d", row.body in OUTSIDE),
        ("2e", row.reads),
        ("2f", row.mode in (Mode.ACCEPT_EDITS, Mode.AUTO) and row.body == "edit" and row.danger != "touch"),
        ("2g", row.boxed and row.body != "unparsed"),
        ("3", True),
    ]
    if row.tool == "deny":
        return "1a"
    if "deny" in row.content or row.danger == "catastrophe":
        return "1d"
    if row.mode is Mode.PLAN and not row.reads:
        return "2p"
    return next(step for step, holds in asks + others if holds)


@pytest.fixture(scope="module")
def base() -> dict[Row, Decision | Needs]:
    """Every row without opinions."""
    return {row: outcome(row) for row in ROWS}


def test_many() -> None:
    """The walk is exhaustive over its dimensions, opinions included."""
    assert len(ROWS) == 4 * 6 * 8 * 5 * 7 * 2 * 3
    assert len(ROWS) * (len(OPINIONS) + 1) > 100_000


def test_first_step_decides(base: dict[Row, Decision | Needs]) -> None:
    """The first step of the table that answers is the one that decides, and an ASK never hides a DENY."""
    for row, answer in base.items():
        decision = settled(answer)
        assert decision.step == first_step(row), row
        if decision.step in ("1a", "1d", "2p"):
            assert decision.behavior is DENY, row
        elif decision.step in ("2a", "2b", "2e", "2f", "2g"):
            assert decision.behavior is ALLOW, row
            assert not isinstance(answer, Needs)


def test_attended(base: dict[Row, Decision | Needs]) -> None:
    """Who can be asked is asked; headless and dontAsk never ask; immune steps are for humans alone."""
    for row, answer in base.items():
        decision = settled(answer)
        if decision.step not in ("1b", "1e", "1f", "1g", "2d", "3"):
            continue
        immune = decision.step in ("1e", "1f", "1g")
        settings = row.danger == "settings" and decision.step == "1g" and not row.unguarded
        classified = row.mode is Mode.AUTO and (not immune or settings)
        if not row.unattended:
            assert isinstance(answer, Needs), row
            assert answer.who == ({APPROVAL, CLASSIFIER} if classified else {APPROVAL}), row
            assert decision.behavior is ASK
            assert decision.immune is immune
        elif classified:
            assert isinstance(answer, Needs), row
            assert answer.who == {CLASSIFIER}
            assert (decision.behavior, decision.reason) == (DENY, CLASSIFIER_UNAVAILABLE)
        else:
            assert isinstance(answer, Decision), row
            assert answer.behavior is DENY


def test_explained(base: dict[Row, Decision | Needs]) -> None:
    """Every DENY and ASK says what, why and what would turn it; every decision traces all steps in order."""
    order = [step.id for step in STEPS]
    for row, answer in base.items():
        decision = settled(answer)
        assert [entry.step for entry in decision.trace] == order
        said = next(entry for entry in decision.trace if entry.step == decision.step)
        assert said.outcome is not None, row
        assert decision.message, row
        assert decision.reason
        if decision.behavior is not ALLOW:
            assert decision.flip, row
            assert "tool a" in decision.message or "unsandboxed" in decision.reason, (row, decision.message)
        else:
            assert not decision.flip
        dangerous = row.danger in ("catastrophe", "touch", "settings") or row.unguarded
        assert decision.protected is dangerous, row


def test_grants(base: dict[Row, Decision | Needs]) -> None:
    """A mode grants nothing; what only reads runs under the promise, in bypassPermissions too where it stays inside; the promise
    opens nothing that writes; hosts and outside paths need a rule."""
    for row, answer in base.items():
        decision = settled(answer)
        kinds = [grant.kind for grant in decision.grants]
        if decision.behavior is not ALLOW:
            assert kinds == []
        else:
            inside = row.reads and row.body not in OUTSIDE
            assert decision.promise is (decision.step == "2e" or (decision.step == "2a" and inside)), row
            assert kinds == ([] if decision.promise else [GrantKind.WORKSPACE_WRITE]), row


def _never_loosened(row: Row, before: Decision | Needs, opinions: tuple[Opinion, ...]) -> None:
    """What one or more opinions may do to a row."""
    first = settled(before)
    answer = outcome(row, *opinions)
    after = settled(answer)
    who = {opinion.who for opinion in opinions}
    if row.unattended:
        assert after.behavior is not ASK, (row, opinions)
        assert not isinstance(answer, Needs) or APPROVAL not in answer.who
    if first.behavior is DENY and not isinstance(before, Needs) and first.step in ("1a", "1d", "2p"):
        assert after.behavior is DENY, (row, opinions)
        return
    hook_denies = any(opinion.who is HOOK and opinion.verdict is DENY for opinion in opinions)
    if hook_denies:
        assert after.behavior is DENY, (row, opinions)
        return
    if after.behavior is ALLOW and first.behavior is not ALLOW:
        hook = any(opinion.who is HOOK and opinion.verdict is ALLOW for opinion in opinions)
        human = any(opinion.who is APPROVAL and opinion.verdict is ALLOW and not opinion.failed for opinion in opinions)
        machine = any(opinion.who is CLASSIFIER and opinion.verdict is ALLOW and not opinion.failed for opinion in opinions)
        by_human = human and not row.unattended
        by_machine = machine and row.mode is Mode.AUTO
        if first.reason == "settings_read" or (row.mode is Mode.AUTO and row.danger == "settings" and first.step == "1g"):
            assert by_human or by_machine, (row, opinions)
        elif first.step in ("1e", "1f", "1g"):
            assert by_human, (row, opinions)
        elif first.step == "1b":
            assert by_human or by_machine, (row, opinions)
        else:
            assert by_human or by_machine or hook, (row, opinions)
        if row.mode is Mode.PLAN:
            assert row.reads, (row, opinions)
        if row.body == "unparsed":
            assert after.step not in ("2b", "2e", "2f", "2g")
    if not isinstance(before, Needs) and HOOK not in who:
        # An opinion that nobody needed changes nothing.
        assert (after.behavior, after.step, after.reason) == (first.behavior, first.step, first.reason), (row, opinions)
    if who == {CLASSIFIER} and row.mode is not Mode.AUTO:
        assert (after.behavior, after.step, after.reason) == (first.behavior, first.step, first.reason), (row, opinions)


def test_open_breaker(base: dict[Row, Decision | Needs]) -> None:
    """Where the breaker is open no classifier is heard: a human is asked, or it is denied; nothing else changes."""
    for row, before in base.items():
        answer = outcome(row, breaker=True)
        if not isinstance(before, Needs) or CLASSIFIER not in before.who:
            assert answer == before, row
            continue
        heard = outcome(row, OPINIONS[3], breaker=True)
        assert heard == answer, row
        if row.unattended:
            assert isinstance(answer, Decision), row
            assert (answer.behavior, answer.reason) == (DENY, CLASSIFIER_BREAKER), row
        else:
            assert isinstance(answer, Needs), row
            assert answer.who == {APPROVAL}, row
            assert settled(outcome(row, OPINIONS[7], breaker=True)).behavior is ALLOW, row


def test_opinions(base: dict[Row, Decision | Needs]) -> None:
    """One opinion: never against a deny, never past an immune step but a human's, never where nobody asked."""
    for row, before in base.items():
        if row.auto:
            continue  # test_all_say_yes walks these
        for opinion in OPINIONS:
            _never_loosened(row, before, (opinion,))


def test_all_say_yes(base: dict[Row, Decision | Needs]) -> None:
    """All opinions at once, agreeing, in any order: the limits are the same."""
    yes = (OPINIONS[0], OPINIONS[3], OPINIONS[7])
    for row, before in base.items():
        _never_loosened(row, before, yes)
        _never_loosened(row, before, yes[::-1])


def test_settling(base: dict[Row, Decision | Needs]) -> None:
    """An eligible answer settles an ASK: yes allows it, no or none denies it, a failed classifier denies it apart."""
    for row, before in base.items():
        if not isinstance(before, Needs):
            continue
        if APPROVAL in before.who:
            assert settled(outcome(row, OPINIONS[7])).behavior is ALLOW, row
            assert settled(outcome(row, OPINIONS[8])).reason == "approval.denied"
            assert settled(outcome(row, OPINIONS[9])).reason == "approval.expired"
        if CLASSIFIER in before.who:
            assert settled(outcome(row, OPINIONS[3])).behavior is ALLOW, row
            assert settled(outcome(row, OPINIONS[4])).reason == "classifier.denied"
            failed = settled(outcome(row, OPINIONS[6]))
            assert (failed.behavior, failed.reason) == (DENY, CLASSIFIER_UNAVAILABLE)
            undecided = outcome(row, OPINIONS[5])
            assert settled(undecided).behavior is (DENY if row.unattended else ASK), row
            assert not isinstance(undecided, Needs) or undecided.who == {APPROVAL}


_TIGHTNESS = {ALLOW: 0, ASK: 1, DENY: 2}


def test_tightening_rules(base: dict[Row, Decision | Needs]) -> None:
    """Adding a deny rule, or an ask rule, never makes any row looser."""
    for row, answer in base.items():
        now = _TIGHTNESS[settled(answer).behavior]
        if not row.tool:
            for more in ("deny", "ask"):
                tighter = _TIGHTNESS[settled(base[row._replace(tool=more)]).behavior]
                assert tighter >= now or (more == "ask" and row.unattended and now == 2), row
                assert more != "deny" or tighter == 2
        if row.content in ("", "allow"):
            for more in ("deny allow", "ask allow") if row.content else ("deny", "ask"):
                assert _TIGHTNESS[settled(base[row._replace(content=more)]).behavior] >= now, row


_LINES = (
    "ls",
    "make x",
    "echo a > b",
    "rm -rf build",
    "git push",
    "cat ~/.ssh/k",
    "echo x > .git/config",
    "make 'open",
    "sudo ls",
)
_RULES = st.lists(
    st.builds(
        "{}{} {}".format,
        st.sampled_from(["allow", "ask", "deny"]),
        st.sampled_from(["", "@cliArg", "@session", "@policySettings"]),
        st.sampled_from(["Bash", "Bash(make:*)", "Bash(ls)", "Edit(**)", "Read(~/**)", "Bash(* x)", "WebFetch"]),
    ),
    max_size=5,
)


@given(
    st.sampled_from(_LINES),
    _RULES,
    st.sampled_from(["Bash", "Bash(make:*)", "Bash(ls)", "Edit(**)", "Read(**)"]),
    st.sampled_from(list(Mode)),
    st.sampled_from(list(Strategy)),
    st.booleans(),
)
def test_deny_never_loosens(line: str, texts: list[str], more: str, mode: Mode, strategy: Strategy, headless: bool) -> None:
    """Whatever the rules, the mode and the strategy: one deny rule more never makes a command looser."""
    before = decide(line, rules=ruleset(*texts, strategy=strategy), mode=mode, headless=headless)
    after = decide(line, rules=ruleset(*texts, f"deny {more}", strategy=strategy), mode=mode, headless=headless)
    assert _TIGHTNESS[after.behavior] >= _TIGHTNESS[before.behavior]


def test_document_is_current() -> None:
    """docs/waterfall.md is what STEPS says."""
    shipped = Path(__file__).parents[2] / "docs" / "waterfall.md"
    assert shipped.read_text() == document()


def test_steps() -> None:
    """The order of the steps, as the specification tables it."""
    ids = ["1a", "1b", "1c", "1d", "1e", "1f", "1g", "2p", "2a", "2b", "2c", "2d", "2e", "2f", "2g", "3"]
    assert [step.id for step in STEPS] == ids


# -- single promises, on whole lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "mode", "step", "reason"),
    [
        ("git log --oneline | head -3", Mode.DEFAULT, "2e", "read_only"),
        ("cat README.md && ls /usr/lib", Mode.DEFAULT, "2e", "read_only"),
        ("cat $f", Mode.DEFAULT, "2e", "read_only"),
        ("ls /", Mode.DEFAULT, "2e", "read_only"),
        ("cat /srv/other/x", Mode.DEFAULT, "2d", "scope.read"),
        ("cat ~/.ssh/id_rsa", Mode.DEFAULT, "2d", "scope.secret"),
        ("cat .env", Mode.DEFAULT, "2d", "scope.secret"),
        ("cat /dev/sda", Mode.DEFAULT, "2d", "scope.read"),
        ("cd /srv && ls", Mode.DEFAULT, "2d", "scope.directory"),
        ("cd && ls", Mode.DEFAULT, "2d", "scope.directory"),
        ("cd src && ls", Mode.DEFAULT, "2e", "read_only"),
        ("cd ~/proj/src && ls", Mode.DEFAULT, "2e", "read_only"),
        ("echo x > /srv/x", Mode.ACCEPT_EDITS, "2d", "scope.write"),
        ('echo x > "$f"', Mode.ACCEPT_EDITS, "2d", "scope.write_unresolved"),
        ("echo x > a", Mode.DEFAULT, "3", "default"),
        ("echo x > a", Mode.ACCEPT_EDITS, "2f", "mode.accept_edits"),
        ("mkdir -p a/b && touch a/b/c && mv a/b a/d && rm -r a", Mode.ACCEPT_EDITS, "2f", "mode.accept_edits"),
        ("sed -i s/a/b/ src/x", Mode.ACCEPT_EDITS, "2f", "mode.accept_edits"),
        ("sort -u -o a a && uniq a b && truncate -s 0 log", Mode.ACCEPT_EDITS, "2f", "mode.accept_edits"),
        ("clang-format -i a.c; dos2unix a.c; xxd -r a b; iconv -o c b", Mode.ACCEPT_EDITS, "2f", "mode.accept_edits"),
        ("f=$(mktemp) && echo x > a", Mode.ACCEPT_EDITS, "2f", "mode.accept_edits"),
        ("clang-format --files=l -i", Mode.ACCEPT_EDITS, "2d", "scope.write_unresolved"),
        ("sort --compress-program=./x -o a b", Mode.ACCEPT_EDITS, "3", "default"),
        ("echo x > a; make", Mode.ACCEPT_EDITS, "3", "default"),
        ("echo x > /tmp/a", Mode.ACCEPT_EDITS, "2f", "mode.accept_edits"),
        ("echo x > a", Mode.AUTO, "2f", "mode.accept_edits"),
        ("echo x > a", Mode.PLAN, "2p", "mode.plan"),
        ("ls", Mode.PLAN, "2e", "read_only"),
        ("make", Mode.BYPASS, "2a", "mode.bypass"),
        ("make 'open", Mode.BYPASS, "2a", "mode.bypass"),
        ("git commit -m x", Mode.ACCEPT_EDITS, "3", "default"),
    ],
)
def test_lines(line: str, mode: Mode, step: str, reason: str) -> None:
    """Everyday lines, by the step and the reason that answers."""
    decision = decide(line, mode=mode)
    assert (decision.step, decision.reason) == (step, reason), decision.message


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("echo hi > out.txt", "allow it once by running in acceptEdits mode"),
        ("make test", "add the rule `Bash(make test)`"),
        ("cat /srv/x", "add the rule `Read(//srv/x)`"),
        ("echo x > /srv/x", "add the rule `Edit(//srv/x)`"),
        ("sudo ls", "run it without more privilege"),
        ("rm -rf /", "name what is to go"),
        ("echo x > .git/config", "leave the protected path alone"),
        ("cd /srv", "additional_directories"),
    ],
)
def test_flip(line: str, part: str) -> None:
    """The smallest change is a concrete instruction, and a rule that it names does turn the answer."""
    decision = decide(line, headless=True)
    assert decision.behavior is DENY
    assert part in decision.flip
    if "add the rule `" in part:
        rule = part.partition("add the rule `")[2].rstrip("`")
        turned = decide(line, f"allow {rule}", headless=True)
        assert turned.behavior is ALLOW, turned.message


def test_scope_of_rules() -> None:
    """A rule that names an outside path or a secret opens it, and grants just that."""
    secret = decide("cat ~/.ssh/known_hosts", "allow Read(~/.ssh/known_hosts)")
    assert secret.behavior is ALLOW
    assert [(grant.kind.value, grant.target) for grant in secret.grants] == [("read", "/home/ada/.ssh/known_hosts")]
    assert decide("cat ~/.ssh/id_rsa", "allow Read(~/.ssh/known_hosts)").step == "2d"
    assert decide("cat ~/.ssh/id_rsa", "allow Read").step == "2d"
    assert decide("cat ~/.ssh/id_rsa", "allow Bash(cat:*)").step == "2d"
    outside = decide("echo x > /srv/x", "allow Edit(//srv/**)")
    assert [(grant.kind.value, grant.target) for grant in outside.grants] == [("workspace_write", ""), ("write", "/srv/x")]


def test_human_grants() -> None:
    """An approval opens what the command names, and a read stays under the promise."""
    yes = (OPINIONS[7],)
    read = decide("cat ~/.ssh/id_rsa", opinions=yes)
    assert read.promise
    assert [(grant.kind.value, grant.target) for grant in read.grants] == [("read", "/home/ada/.ssh/id_rsa")]
    write = decide("echo x > /srv/x", opinions=yes)
    assert not write.promise
    assert [(grant.kind.value, grant.target) for grant in write.grants] == [("workspace_write", ""), ("write", "/srv/x")]
    given_ = analysis(command("get x", effect(EffectKind.NETWORK, "a.test:443", direction=Direction.SEND)), read_only=False)
    assert [(g.kind.value, g.target) for g in decide(given_, opinions=yes).grants] == [
        ("workspace_write", ""),
        ("host", "a.test:443"),
    ]


def test_facts_widen_the_view() -> None:
    """A link out of the workspace is where it leads; a program the session could write is not trusted."""
    path = f"{WORKSPACE}/notes"
    key = Facts(True, paths=(PathFact(path, "/home/ada/.ssh/id_rsa", True),))
    assert decide("cat notes", facts=key).reason == "scope.secret"
    away = Facts(True, paths=(PathFact(path, "/srv/notes", True),))
    assert decide("cat notes", facts=away).reason == "scope.read"
    assert decide("echo x > notes", facts=away, mode=Mode.ACCEPT_EDITS).reason == "scope.write"
    own = Facts(True, untrusted_programs=("ls",))
    assert decide("ls", facts=own).step == "3"


def test_unknown_reads_without_a_full_sandbox() -> None:
    """A read of an unknown path is left to the sandbox only where it is complete."""
    assert decide("cat $f", enforcement_full=False).reason == "scope.read_unresolved"
    assert decide('cat "$f"', unsandboxed="profile none").reason == "scope.read_unresolved"


def test_hooks_tighten() -> None:
    """A hook's deny and ask count over every allow; its failure is no opinion."""
    assert decide("ls", opinions=(OPINIONS[1],)).behavior is DENY
    assert decide("make", mode=Mode.BYPASS, opinions=(OPINIONS[2],)).behavior is ASK
    failed = Opinion(HOOK, DENY, "", failed=True)
    assert decide("ls", opinions=(failed,)).behavior is ALLOW


def test_rules_of_policy_are_named() -> None:
    """A denial names rule, source, file and line, subcommand and reason."""
    decision = decide("cd src && make deploy", "deny@policySettings Bash(make deploy:*)")
    for part in ("`Bash(make deploy:*)`", "policySettings", "settings.toml:1", "`make deploy`"):
        assert part in decision.message
    assert decision.evidence[0].rule == "Bash(make deploy:*)"
    assert decision.evidence[0].source == "policySettings"
    assert decision.evidence[0].span is not None


def test_max_mode() -> None:
    """A session's limit caps the mode that is asked for."""
    assert decide("make", mode=Mode.BYPASS, max_mode=Mode.DEFAULT).step == "3"
    assert decide("echo x > a", mode=Mode.BYPASS, max_mode=Mode.PLAN).step == "2p"


def test_same_inputs_same_answer() -> None:
    """The waterfall is a function: equal inputs give equal decisions."""
    one: Any = ask("make; echo x > .git/config", "ask Bash(make:*)")
    two: Any = ask("make; echo x > .git/config", "ask Bash(make:*)")
    assert one == two
    assert decide("ls", rules=RuleSet()) == decide("ls", rules=RuleSet())
