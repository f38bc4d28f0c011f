# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules: their grammar, what they match, which of them count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.analyze import analyze
from sandboxd.errors import RuleError
from sandboxd.model import Analysis, AnalysisContext, Behavior, Direction, EffectKind, Inputs, Scope, Source, Strategy
from sandboxd.policy.explain import name
from sandboxd.policy.patterns import Place, argv_text, parse_argv_pattern, split_words
from sandboxd.policy.rules import index_rules, matches, parse_rule, suggest, tight_views
from sandboxd.policy.shadows import shadows
from sandboxd.policy.verdicts import judge_rules
from tests.policy.policy_cases import HOME, WORKSPACE, analysis, command, decide, effect, rows, rule, ruleset


@pytest.mark.parametrize("row", rows("policy_rules", "parsed"), ids=lambda row: str(row["rule"]))
def test_parsed(row: dict[str, Any]) -> None:
    """A rule's text is a tool and a content; no content is the whole tool."""
    parsed = rule(row["rule"])
    assert (parsed.tool, parsed.content) == (row["tool"], row.get("content"))


@pytest.mark.parametrize("row", rows("policy_rules", "malformed"), ids=lambda row: str(row["rule"]) or "empty")
def test_malformed(row: dict[str, Any]) -> None:
    """A malformed rule is an error that names file and line, the rule, what is wrong and the fix."""
    with pytest.raises(RuleError) as caught:
        rule(row["rule"], origin="rules.toml:7")
    text = str(caught.value)
    assert text.startswith(f"rules.toml:7: rule `{row['rule']}`")
    for part in row["says"]:
        assert part in text


def test_lenient() -> None:
    """Other programs leave parentheses inside unescaped; those rules are read as they stand."""
    parsed = parse_rule("Bash(echo (a))", Behavior.DENY, Source.USER, "x:1", lenient=True)
    assert parsed.content == "echo (a)"
    for text in ('git commit -m "fix: (x"', "sed 's/)/(/;s/(/x/' f", 'python3 -c "print(1)"'):
        assert parse_rule(f"Bash({text})", Behavior.ALLOW, Source.USER, "x:1", lenient=True).content == text
    with pytest.raises(RuleError):
        parse_rule("Bash(echo (a)", Behavior.DENY, Source.USER, "x:1", lenient=True)


def _pairs(table: str) -> list[Any]:
    return [
        pytest.param(row["rule"], text, wanted, id=f"{row['rule']} | {text}")
        for row in rows("policy_rules", table)
        for key, wanted in (("yes", True), ("no", False))
        for text in row[key]
    ]


@pytest.mark.parametrize(("text", "line", "wanted"), _pairs("deny"))
def test_deny(text: str, line: str, wanted: bool) -> None:
    """A deny rule stops a command however it is wrapped, nested or spelled, and no other."""
    decision = decide(line, f"deny {text}")
    assert (decision.reason == "rule.deny" or decision.step == "1a") is wanted, decision.message
    if wanted:
        assert decision.behavior is Behavior.DENY
        assert text in decision.message
        assert "settings.toml:1" in decision.message
        assert decision.evidence[0].origin == "settings.toml:1"


@pytest.mark.parametrize(("text", "line", "wanted"), _pairs("allow"))
def test_allow(text: str, line: str, wanted: bool) -> None:
    """An allow rule lets through what it names, and nothing that stands beside, before or around it."""
    decision = decide(line, f"allow {text}")
    assert (decision.behavior is Behavior.ALLOW and decision.step == "2b") is wanted, (decision.step, decision.message)


@pytest.mark.parametrize(("text", "tool", "wanted"), _pairs("tool"))
def test_tools(text: str, tool: str, wanted: bool) -> None:
    """A rule for a tool speaks of that tool, of a server's tools, and of the tools that do the same."""
    decision = decide(analysis(), f"deny {text}", tool=tool)
    assert (decision.step == "1a") is wanted


@pytest.mark.parametrize("row", rows("policy_rules", "text"), ids=lambda row: str(row["rule"]))
def test_texts(row: dict[str, Any]) -> None:
    """The content of any other tool's rule is matched exactly, or as a prefix."""
    for key, wanted in (("yes", True), ("no", False)):
        for text in row[key]:
            decision = decide(analysis(text=text), f"deny {row['rule']}", tool=row["tool"])
            assert (decision.step == "1d") is wanted, text


@pytest.mark.parametrize("row", rows("policy_rules", "host"), ids=lambda row: str(row["rule"]))
def test_hosts(row: dict[str, Any]) -> None:
    """A domain is a whole host name; a rule that denies it denies what lies below it too."""
    for host in (*row["deny"], *row["allow"], *row["never"]):
        fetch = command("get x", effect(EffectKind.NETWORK, host, direction=Direction.FETCH))
        given_ = analysis(fetch, read_only=True)
        assert (decide(given_, f"deny {row['rule']}").step == "1d") is (host not in row["never"]), host
        if host in row["allow"] or host in row["never"]:
            allowed = decide(given_, f"allow {row['rule']}")
            assert (allowed.behavior is Behavior.ALLOW) is (host in row["allow"]), host


def test_matches_is_what_the_waterfall_uses() -> None:
    """`matches` answers for one rule and one subcommand, by its words or its effects."""
    place = Place(WORKSPACE, WORKSPACE, HOME)
    line = analyze("FOO=1 rm a.txt", AnalysisContext(WORKSPACE, HOME, WORKSPACE)).commands[0]
    assert matches(rule("Bash(rm:*)", "deny"), line, place)
    assert not matches(rule("Bash(rm:*)", "allow"), line, place)
    assert matches(rule("Edit(*.txt)", "deny"), line, place)
    assert matches(rule("Bash"), line, place)
    assert not matches(rule("Read(*.txt)", "deny"), line, place)


@pytest.mark.parametrize(
    ("text", "match", "not_match", "says"),
    [
        ("Bash(git log:*)", ("git log -1", "git log"), ("git logs",), ""),
        ("Read(~/x/**)", ("~/x/a",), ("~/y",), ""),
        ("WebFetch(domain:a.test)", ("a.test",), ("b.test",), ""),
        ("Bash(git log:*)", ("git show",), (), "does not match its example `git show`"),
        ("Bash(git log:*)", (), ("git log -1",), "matches its example `git log -1`"),
    ],
)
def test_examples(text: str, match: tuple[str, ...], not_match: tuple[str, ...], says: str) -> None:
    """A rule's own examples are checked when it is read."""
    if not says:
        parse_rule(text, Behavior.ALLOW, Source.USER, "f:3", match=match, not_match=not_match)
        return
    with pytest.raises(RuleError, match="f:3") as caught:
        parse_rule(text, Behavior.ALLOW, Source.USER, "f:3", match=match, not_match=not_match)
    assert says in str(caught.value)


@pytest.mark.parametrize("line", ["make 'open", "rm -rf x 'open", "echo $(rm x"])
def test_unparsed(line: str) -> None:
    """Deny and ask rules are tried on text that cannot be read; allow rules only when they are that very text."""
    assert decide(line, "allow Bash").behavior is Behavior.ASK
    assert decide(line, "allow Bash(make:*)").behavior is Behavior.ASK
    if "rm" in line:
        assert decide(line, "deny Bash(rm:*)").step == "1d"
        assert decide(line, "ask Bash(rm:*)").step == "1f"
    else:
        assert decide(line, "deny Bash(rm:*)").step == "3"


def test_byte_exact() -> None:
    """A rule that is the whole text byte by byte allows it, whatever stands in it."""
    assert decide("make 'open", "allow Bash(make 'open)").step == "2b"
    assert decide("make a | tee b", "allow Bash(make a | tee b)").step == "2b"
    assert decide("make a | tee c", "allow Bash(make a | tee b)").behavior is Behavior.ASK


def test_unknown_program() -> None:
    """A program whose name is not known may be the one that a deny rule names: a human is asked, in every mode."""
    decision = decide("$(cat tool) x", "deny Bash(rm:*)")
    assert (decision.step, decision.reason, decision.immune) == ("1f", "rule.may_match", True)
    assert decide("$(cat tool) x").step == "3"


@pytest.mark.parametrize(
    ("texts", "overrides", "by_source"),
    [
        (("deny Bash(make:*)", "allow@cliArg Bash(make:*)"), "deny", "allow"),
        (("deny@policySettings Bash(make:*)", "allow@cliArg Bash(make:*)"), "deny", "deny"),
        (("ask Bash(make:*)", "allow@cliArg Bash(make:*)"), "ask", "allow"),
        (("ask@policySettings Bash(make:*)", "allow@cliArg Bash(make:*)"), "ask", "allow"),
        (("allow Bash(make:*)", "deny@session Bash(make:*)"), "deny", "deny"),
        (("allow Bash(make:*)", "ask@localSettings Bash(make:*)"), "ask", "ask"),
        (("allow Bash(make:*)", "deny Bash(make:*)"), "deny", "deny"),
        (("deny Bash", "allow@cliArg Bash(make:*)"), "deny", "allow"),
        (("deny Bash", "allow@cliArg Bash(cmake:*)"), "deny", "deny"),
        (("deny@cliArg Bash", "allow Bash(make:*)"), "deny", "deny"),
        (("ask Bash", "allow@command Bash(make:*)"), "ask", "allow"),
        (("allow Bash(make:*)", "ask@cliArg Bash", "deny@policySettings Bash(make x)"), "deny", "deny"),
    ],
)
def test_strategies(texts: tuple[str, ...], overrides: str, by_source: str) -> None:
    """deny-overrides: any deny, then any ask. source-order: the highest source decides, policy denies stay final."""
    assert decide("make x", rules=ruleset(*texts)).behavior.value == overrides
    assert decide("make x", rules=ruleset(*texts, strategy=Strategy.SOURCE_ORDER)).behavior.value == by_source


@pytest.mark.parametrize("higher", list(Source))
@pytest.mark.parametrize("lower", list(Source))
def test_precedence(higher: Source, lower: Source) -> None:
    """Under source-order every source gives way to those above it, and only policy denies do not."""
    order = list(Source)
    if order.index(higher) >= order.index(lower):
        return
    rules = ruleset(f"allow@{higher.value} Bash(make:*)", f"deny@{lower.value} Bash(make:*)", strategy=Strategy.SOURCE_ORDER)
    expected = Behavior.DENY if lower is Source.POLICY else Behavior.ALLOW
    assert decide("make x", rules=rules).behavior is expected
    turned = ruleset(f"deny@{higher.value} Bash(make:*)", f"allow@{lower.value} Bash(make:*)", strategy=Strategy.SOURCE_ORDER)
    assert decide("make x", rules=turned).behavior is Behavior.DENY


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        ("make test", ("Bash(make test)",)),
        ("cargo test --all", ("Bash(cargo test:*)",)),
        ("npm run build", ("Bash(npm run build)",)),
        ("npm run build -- --watch", ("Bash(npm run build:*)",)),
        ("git commit -m 'a b'", ("Bash(git commit:*)",)),
        ("git gc", ("Bash(git gc)",)),
        ("python3 tools/x.py", ("Bash(python3 tools/x.py)",)),
        ("make a; make b", ("Bash(make a)", "Bash(make b)")),
        ("frob 'a (b)'", (r"Bash(frob 'a \(b\)')",)),
        ("echo x > out.txt", (f"Edit(/{WORKSPACE}/out.txt)",)),
        ("bash -c 'make x'", ("Bash(bash -c 'make x')",)),
        ("timeout 9 make x", ("Bash(make x)",)),
        ("git", ()),
        ("python3", ()),
        ("frob $x", ()),
        ("python3 - <<E\nx\nE", ()),
        ("frob 'open", ()),
        ("a; b; c; d; e", ()),
    ],
)
def test_suggestions(line: str, texts: tuple[str, ...]) -> None:
    """ "Always allow" is offered only as narrow rules, never for an interpreter alone, a here-document or unknown words."""
    assert suggest(analyze(line, AnalysisContext(WORKSPACE, HOME, WORKSPACE))) == texts


@pytest.mark.parametrize(
    "line", ["make test", "cargo test --all", "frob 'a (b)' \"it's\" '*'", "echo x > 'a (1).txt'", "touch 'b*'"]
)
def test_suggestions_suffice(line: str) -> None:
    """The suggested rules, taken as they are, allow the command the next time."""
    first = decide(line)
    assert first.behavior is Behavior.ASK
    assert first.suggestions
    assert decide(line, *(f"allow {text}" for text in first.suggestions)).step == "2b"


_WORDS = st.lists(st.text(alphabet="ab*-. '\"\\", min_size=1, max_size=4), min_size=1, max_size=4)


@given(_WORDS)
def test_quoted_words_mean_themselves(words: list[str]) -> None:
    """Words written in single quotes are matched as they are, by rules that allow."""
    content = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
    pattern = parse_argv_pattern(content, quoted_star=False)
    if pattern.prefix:
        return
    assert pattern.exact
    assert pattern.matches("\0".join(words))
    assert split_words(content) == tuple(words)


@given(st.text(alphabet="ab *'\"\\:()", max_size=12), st.lists(st.text(alphabet="ab", max_size=3), max_size=4))
def test_any_pattern_answers(content: str, words: list[str]) -> None:
    """Every content can be read and matched; nothing raises."""
    for quoted in (True, False):
        parse_argv_pattern(content, quoted_star=quoted).matches("\0".join(words))


@pytest.mark.parametrize(
    ("texts", "shadowed"),
    [
        (("allow Bash(make:*)", "allow Bash(make test)"), {"Bash(make test)": "Bash(make:*)"}),
        (("allow Bash(make test)", "allow Bash(make:*)"), {"Bash(make test)": "Bash(make:*)"}),
        (("deny Bash(make:*)", "allow Bash(make test)"), {"Bash(make test)": "Bash(make:*)"}),
        (("allow Bash(make test)", "allow@session Bash(make test)"), {"Bash(make test)": "Bash(make test)"}),
        (("deny Bash", "ask Bash(ls)"), {"Bash(ls)": "Bash"}),
        (("allow Bash(make * x)", "allow Bash(make a x)"), {"Bash(make a x)": "Bash(make * x)"}),
        (("allow mcp__git", "allow mcp__git__log"), {"mcp__git__log": "mcp__git"}),
        (("allow Bash(make:*)", "deny Bash(make deploy)"), {}),
        (("allow Bash(make:*)", "allow Bash(makefile)"), {}),
        (("allow Bash(make a:*)", "allow Bash(make:*)"), {"Bash(make a:*)": "Bash(make:*)"}),
        (("ask Bash(make:*)", "deny Bash(make:*)"), {"Bash(make:*)": "Bash(make:*)"}),
        (("allow Read(a/**)", "allow Read(a/b)"), {}),
    ],
)
def test_shadows(texts: tuple[str, ...], shadowed: dict[str, str]) -> None:
    """A rule that can never matter is reported with the one that settles everything it could."""
    assert {found.rule.text: found.by.text for found in shadows(ruleset(*texts))} == shadowed


def test_shadows_by_source() -> None:
    """Under source-order the higher source shadows, whatever it says, but for the organisation's denies."""
    order = Strategy.SOURCE_ORDER
    (found,) = shadows(ruleset("deny Bash(make x)", "allow@cliArg Bash(make:*)", strategy=order))
    assert (found.rule.behavior, found.by.source) == (Behavior.DENY, Source.CLI_ARG)
    assert "never counts beside `Bash(make:*)`" in str(found)
    assert shadows(ruleset("deny@policySettings Bash(make x)", "allow@cliArg Bash(make:*)", strategy=order)) == ()


WORDS = ("git", "npm", "/usr/bin/git", "run", "sudo", "*", "gi*", "push", "git*")


@given(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join), min_size=1, max_size=6),
    st.lists(st.sampled_from(("git", "npm", "/usr/bin/git", "sudo", "run", "push")), min_size=1, max_size=4),
    st.sampled_from(("", ":*")),
)
def test_the_index_by_program_loses_no_rule(contents: list[str], words: list[str], end: str) -> None:
    """Every rule that matches a command is among those that the index gives for its program, and in the rules' order."""
    rules = ruleset(*(f"deny Bash({content}{end if not content.endswith('*') else ''})" for content in contents))
    index = index_rules(rules, Place(WORKSPACE, WORKSPACE, HOME))
    one = analyze(" ".join(words), AnalysisContext(WORKSPACE, HOME, WORKSPACE)).commands[0]
    views, written = tight_views(one), argv_text(one.argv)
    wanted = [each for each in index.commands if each.command(views, written)]
    given_ = index.about(one)
    assert [each for each in given_ if each.command(views, written)] == wanted


PATHS = st.lists(st.sampled_from(("a", "b", ".env", "src", "x.py", "**", "*", "*.py", "w[o]", "..")), min_size=1, max_size=4).map(
    "/".join
)


@given(
    st.lists(
        st.tuples(st.sampled_from(("deny", "allow")), st.sampled_from(("", "/", "//", "~/")), PATHS), min_size=1, max_size=4
    ),
    st.lists(st.sampled_from(("a", "b", ".env", "src", "x.py", "wo", "*", "..")), min_size=1, max_size=4).map("/".join),
    st.sampled_from(("", "/", f"{WORKSPACE}/", "~/")),
)
def test_the_index_by_name_loses_no_rule(contents: list[tuple[str, str, str]], path: str, base: str) -> None:
    """Every rule that matches what a command reads or writes counts, however quickly most paths are known to match none."""
    rules = ruleset(*(f"{verb} {tool}({root}{glob})" for verb, root, glob in contents for tool in ("Read", "Edit")))
    read = analyze(f"cat {base}{path} > {base}{path}", AnalysisContext(WORKSPACE, HOME, WORKSPACE))
    inputs = Inputs(read, rules, Scope(WORKSPACE, HOME))
    effects = [each for one in read.commands for each in one.effects]
    index = index_rules(rules, Place(WORKSPACE, WORKSPACE, HOME))
    wanted = {id(each) for kind in index.effects.values() for each in kind if any(map(each.effect, effects))}
    found = judge_rules(inputs)
    hits = (*found.denies, *found.asks, *found.allows, *found.tool_denies, *found.tool_allows)
    assert {id(hit.compiled) for hit in hits} == wanted


@given(st.lists(st.sampled_from(("a", "bc", "word " * 9, "x" * 70, " \n\t ", " ")), max_size=120).map("".join))
def test_a_long_text_is_shown_by_its_ends(text: str) -> None:
    """A message shows one line of a command: whole when it is short, else how it begins and how it ends."""
    flat = " ".join(text.split())
    shown = flat if len(flat) <= 80 else f"{flat[:60]} … {flat[-17:]}"
    assert name(Analysis(text, WORKSPACE, ()), None) == shown
