# SPDX-License-Identifier: GPL-3.0-or-later
"""Rule files: our own and those of `.claude`; what they say, where they are wrong, what an untrusted one may do."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.errors import RuleError
from sandboxd.model import Behavior, Mode, Rule, RuleSet, Source, Strategy
from sandboxd.policy.inherit import inherit
from sandboxd.policy.modes import MODES, effective, looser
from sandboxd.policy.shadows import shadows
from sandboxd.policy.sources import SourceFile, merge, parse_claude_settings, parse_settings_toml
from tests.policy.policy_cases import WORKSPACE, decide, rule, ruleset

OURS = """\
[permissions]
allow = [
  "Bash(make test)",
  "Read(~/notes/**)",
]
ask = ["Bash(git push:*)"]
deny = ["Bash(rm:*)"]
default_mode = "acceptEdits"
additional_directories = ["../shared"]

[[rule]]
behavior = "deny"
rule = "Bash(make deploy:*)"
reason = "deployments go through CI"
match = ["make deploy prod"]
not_match = ["make deploy-docs"]
"""


def test_our_file() -> None:
    """Every list entry and every rule table becomes a rule that knows its line."""
    file = parse_settings_toml(OURS, Source.USER, "rules.toml", True)
    found = {(rule.text, rule.behavior.value, rule.origin) for rule in file.rules}
    assert found == {
        ("Bash(make test)", "allow", "rules.toml:3"),
        ("Read(~/notes/**)", "allow", "rules.toml:4"),
        ("Bash(git push:*)", "ask", "rules.toml:6"),
        ("Bash(rm:*)", "deny", "rules.toml:7"),
        ("Bash(make deploy:*)", "deny", "rules.toml:13"),
    }
    assert file.default_mode is Mode.ACCEPT_EDITS
    assert file.additional_directories == ("../shared",)
    assert file.ignored == ()
    deploy = decide("make deploy x", rules=merge((file,), Strategy.DENY_OVERRIDES))
    assert "deployments go through CI" in deploy.message
    assert "rules.toml:13" in deploy.message


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("[permissions]\nalow = []", "r:2", "unknown key `permissions.alow`"),
        ("[permission]\nallow = []", "r:1", "unknown section `permission`"),
        ('[permissions]\nallow = "Bash"', "r:2", "must be a list of strings"),
        ("[permissions]\nallow = [1]", "r:2", "must be a list of strings"),
        ('[permissions]\ndefault_mode = "yolo"', "r:2", "must be a mode, not `yolo`"),
        ('[permissions]\ndeny = [\n "Bash(a)",\n "Bash(b"]', "r:4", "rule `Bash(b` is not closed"),
        ("permissions = 1", "r:1", "must be a table"),
        ('[[rule]]\nrule = "Bash(a)"', "r:1", "must be allow, ask or deny"),
        ('[[rule]]\nbehavior = "deny"', "r:1", "has no `rule` text"),
        ('[[rule]]\nbehavior = "deny"\nrule = "Bash(a)"\nmatches = []', "r:4", "unknown key `matches`"),
        ('[[rule]]\nbehavior = "no"\nrule = "Bash(a)"', "r:2", "not `no`"),
        ('[[rule]]\nbehavior = "deny"\nrule = "Bash(a:*)"\nmatch = ["b"]', "r:3", "does not match its example `b`"),
        ('[[rule]]\nbehavior = "deny"\nrule = "Bash(a)"\nreason = 1', "r:4", "`reason` must be a string"),
        ("rule = 1", "r:1", "array of tables"),
        ("[permissions\n", "r:1", "not valid TOML"),
    ],
)
def test_our_mistakes(text: str, where: str, says: str) -> None:
    """Anything unknown or malformed is one error with file and line; nothing is dropped silently."""
    with pytest.raises(RuleError) as caught:
        parse_settings_toml(text, Source.USER, "r", True)
    assert str(caught.value).startswith(f"{where}: ")
    assert says in str(caught.value)


CLAUDE = """\
{
  "permissions": {
    "allow": ["Bash(npm run test:*)", "Bash(node -e \\"f(1)\\")"],
    "deny": [
      "Read(./.env)",
      "WebFetch"
    ],
    "ask": ["Bash(git push:*)"],
    "defaultMode": "plan",
    "additionalDirectories": ["../docs"],
    "disableBypassPermissionsMode": "disable",
    "strange": true
  },
  "model": "x"
}
"""


def test_claude_file() -> None:
    """The permissions block is read as it is; what is not understood is reported with its line."""
    origin = f"{WORKSPACE}/.claude/settings.json"
    file = parse_claude_settings(CLAUDE, Source.LOCAL, origin, True)
    found = {(rule.text, rule.behavior.value, rule.origin.rpartition(":")[2]) for rule in file.rules}
    assert found == {
        ("Bash(npm run test:*)", "allow", "3"),
        ('Bash(node -e "f(1)")', "allow", "3"),
        ("Read(./.env)", "deny", "5"),
        ("WebFetch", "deny", "6"),
        ("Bash(git push:*)", "ask", "8"),
    }
    assert file.default_mode is Mode.PLAN
    assert file.additional_directories == ("../docs",)
    assert file.forbid_bypass
    assert set(file.ignored) == {
        f"{origin}:12: `permissions.strange` is not understood",
        f"{origin}:14: `model` is not read",
    }
    rules = merge((file,), Strategy.DENY_OVERRIDES)
    assert decide("cat .env", rules=rules).step == "1d"
    assert decide("npm run testing", rules=rules).behavior is Behavior.ASK
    assert decide("npm run test", rules=rules).step == "2b"
    assert decide("node -e 'f(1)'", rules=rules).step == "2b"


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("{", "s:1", "not valid JSON"),
        ("[]", "s:1", "must be a JSON object"),
        ('{"permissions": []}', "s:1", "`permissions` must be an object"),
        ('{"permissions": {\n"deny": "Bash"}}', "s:2", "must be a list of strings"),
        ('{"permissions": {\n"deny": [],\n"deny": ["Bash"]}}', "s:2", "the key `deny` stands twice"),
        ('{"permissions": {\n"allow": [\n"Bash(a"]}}', "s:3", "is not closed"),
        ('{"permissions": {"allow": [null]}}', "s:1", "must be a list of strings"),
    ],
)
def test_claude_mistakes(text: str, where: str, says: str) -> None:
    """A malformed rule or file is an error with file and line, never a rule less."""
    with pytest.raises(RuleError) as caught:
        parse_claude_settings(text, Source.USER, "s", True)
    assert str(caught.value).startswith(f"{where}: ")
    assert says in str(caught.value)


def test_claude_unknown_mode() -> None:
    """A mode that is not known is reported and changes nothing."""
    file = parse_claude_settings('{"permissions": {"defaultMode": "delegate"}}', Source.USER, "s", True)
    assert file.default_mode is None
    assert "mode `delegate` is not known" in file.ignored[0]


@pytest.mark.parametrize("text", ["", "  \n", "{}", '{"permissions": {}}'])
def test_claude_empty(text: str) -> None:
    """A file without permissions says nothing."""
    assert parse_claude_settings(text, Source.USER, "s", True).rules == ()


def test_untrusted() -> None:
    """What an untrusted workspace allows is inert and reported; what it denies or asks counts at once."""
    file = parse_settings_toml(OURS, Source.LOCAL, "r", False)
    merged = merge((file,), Strategy.DENY_OVERRIDES)
    assert {rule.text for rule in merged.inert} == {"Bash(make test)", "Read(~/notes/**)"}
    assert all(rule.behavior is not Behavior.ALLOW for rule in merged.rules)
    assert decide("make test", rules=merged).behavior is Behavior.ASK
    assert decide("rm x", rules=merged).behavior is Behavior.DENY
    assert decide("git push", rules=merged).step == "1f"


_TIGHTNESS = {Behavior.ALLOW: 0, Behavior.ASK: 1, Behavior.DENY: 2}
_LINES = ("make x", "rm -rf build", "echo a > b", "cat a/secret", "ls", "curl https://a.test/x", "make 'open", "a && make x")
_TOOLS = ("Bash", "Bash(make:*)", "Bash(rm:*)", "Edit(**)", "Read(a/**)", "WebFetch(domain:a.test)", "Bash(* x)")


@st.composite
def _some_rules(draw: st.DrawFn, behaviors: tuple[Behavior, ...]) -> tuple[Rule, ...]:
    found = st.tuples(st.sampled_from(behaviors), st.sampled_from(_TOOLS), st.sampled_from(list(Source)))
    return tuple(rule(text, behavior.value, source) for behavior, text, source in draw(st.lists(found, max_size=4)))


@given(
    st.sampled_from(_LINES),
    _some_rules(tuple(Behavior)),
    _some_rules((Behavior.DENY, Behavior.ASK)),
    st.sampled_from(list(Strategy)),
    st.sampled_from(list(Mode)),
    st.booleans(),
)
def test_what_is_not_trusted_only_tightens(
    line: str, own: tuple[Rule, ...], theirs: tuple[Rule, ...], strategy: Strategy, mode: Mode, headless: bool
) -> None:
    """Whatever an untrusted source denies or asks, wherever it stands in the order: no command becomes looser by it."""
    untrusted = tuple(dataclasses.replace(each, trusted=False) for each in theirs)
    for together in ((*own, *untrusted), (*untrusted, *own)):
        before = decide(line, rules=RuleSet(own, strategy), mode=mode, headless=headless)
        after = decide(line, rules=RuleSet(together, strategy), mode=mode, headless=headless)
        assert _TIGHTNESS[after.behavior] >= _TIGHTNESS[before.behavior], (before.message, after.message)


@pytest.mark.parametrize("trusted", [True, False])
def test_an_ask_of_the_workspace_replaces_a_users_deny_only_when_trusted(trusted: bool) -> None:
    """Under source-order the project stands above the user; a project nobody has trusted does not."""
    theirs = parse_settings_toml('[permissions]\nask = ["Bash(rm:*)"]', Source.LOCAL, "w", trusted)
    user = parse_settings_toml('[permissions]\ndeny = ["Bash(rm:*)"]', Source.USER, "u", True)
    merged = merge((theirs, user), Strategy.SOURCE_ORDER)
    assert decide("rm x", rules=merged).behavior is (Behavior.ASK if trusted else Behavior.DENY)
    assert [shadow.rule.origin for shadow in shadows(merged)] == (["u:2"] if trusted else ["w:2"])


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_childs_ask_replaces_none_of_its_parents_denies(strategy: Strategy) -> None:
    """What a child session or its files ask counts besides what the parent denies, whatever the order of sources."""
    parent = ruleset("deny Bash(rm:*)", "allow Bash(make:*)", strategy=strategy)
    child = ruleset("ask@cliArg Bash(rm:*)", "ask@cliArg Bash(make x)", strategy=strategy)
    rules = inherit(child, parent, (), WORKSPACE, WORKSPACE)
    assert decide("rm x", rules=rules).behavior is Behavior.DENY
    assert decide("make x", rules=rules).behavior is Behavior.ASK
    assert decide("make y", rules=rules).behavior is Behavior.ALLOW


def test_order() -> None:
    """Merged rules stand in source order, whatever order the files came in."""
    files = tuple(parse_settings_toml('[permissions]\nallow = ["Bash(a)"]', source, source.value, True) for source in Source)
    for shuffled in itertools.permutations(files):
        merged = merge(shuffled, Strategy.SOURCE_ORDER)
        assert [rule.source for rule in merged.rules] == list(Source)
        assert merged.strategy is Strategy.SOURCE_ORDER
    assert merge((), Strategy.DENY_OVERRIDES) == RuleSet()


@given(st.text(alphabet='{}[]":,\\ \nabperm', max_size=60))
def test_any_text_answers(text: str) -> None:
    """Whatever stands in a file, it is read or one RuleError."""
    for parse in (parse_claude_settings, parse_settings_toml):
        said = ""
        try:
            assert isinstance(parse(text, Source.USER, "s", True), SourceFile)
        except RuleError as error:
            said = str(error)
        assert not said or said.startswith("s")


def test_modes() -> None:
    """Every mode has its traits; a session's own limit caps its mode; plan is the tightest, bypass the loosest."""
    assert set(MODES) == set(Mode)
    for mode, limit in itertools.product(Mode, Mode):
        capped = effective(mode, limit)
        assert not looser(capped, limit)
        assert capped in (mode, limit)
        assert effective(mode, None) is mode
    assert all(not looser(Mode.PLAN, mode) for mode in Mode)
    assert all(not looser(mode, Mode.BYPASS) for mode in Mode)
