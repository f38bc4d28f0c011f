# SPDX-License-Identifier: GPL-3.0-or-later
"""The use of tools other than Bash: what they do, what the waterfall says of it, how they are declared and described.

To add a tool or a case: a row of USES. Rules are written as `allow Edit(src/**)`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.errors import Exhausted, RequestError
from sandboxd.judge import Judged, Question, judge
from sandboxd.model import Behavior, Mode, Needs, RuleSet, Scope, Source, Strategy, Tool
from sandboxd.policy.rules import parse_rule
from sandboxd.toolbox import BUILT_IN, MAX_TOOLS, Format, as_json, call, registered, search
from sandboxd.toolcalls import denied, host_of_url, withheld

HOME = "/home/ada"
WORKSPACE = "/home/ada/p"
SCOPE = Scope(WORKSPACE, HOME)
OBJECT: dict[str, Any] = {"type": "object"}

DEFAULT, PLAN, EDITS, BYPASS, AUTO, SILENT = (
    Mode.DEFAULT,
    Mode.PLAN,
    Mode.ACCEPT_EDITS,
    Mode.BYPASS,
    Mode.AUTO,
    Mode.DONT_ASK,
)
EXAMPLE = "allow WebFetch(domain:example.com)"
OLD_NEW = {"old_string": "a", "new_string": "b"}


def ruleset(*texts: str, strategy: Strategy = Strategy.DENY_OVERRIDES) -> RuleSet:
    split = [text.partition(" ") for text in texts]
    return RuleSet(tuple(parse_rule(body, Behavior(head), Source.USER, "s:1") for head, _, body in split), strategy)


def use(
    name: str,
    given_: Mapping[str, Any],
    *rules: str,
    mode: Mode = DEFAULT,
    tools: tuple[Tool, ...] = (),
    headless: bool = False,
    scope: Scope = SCOPE,
    observed: bool = False,
) -> Judged:
    made = call(name, given_, tools)
    question = Question(made.name, scope.workspace, scope, ruleset(*rules), mode, headless=headless, observed=observed, call=made)
    return judge(question)


def edit(path: str) -> tuple[str, dict[str, Any]]:
    return "Edit", {"file_path": path, **OLD_NEW}


def write(path: str) -> tuple[str, dict[str, Any]]:
    return "Write", {"file_path": path, "content": "x"}


def read(path: str) -> tuple[str, dict[str, Any]]:
    return "Read", {"file_path": path}


def fetch(url: str) -> tuple[str, dict[str, Any]]:
    return "WebFetch", {"url": url, "prompt": "what?"}


def glob(pattern: str, **more: str) -> tuple[str, dict[str, Any]]:
    return "Glob", {"pattern": pattern, **more}


# (the use, mode, rules, behaviour, step, reason)
USES: tuple[tuple[tuple[str, dict[str, Any]], Mode, tuple[str, ...], str, str, str], ...] = (
    (read("a.txt"), DEFAULT, (), "allow", "2e", "read_only"),
    (read(f"{WORKSPACE}/a.txt"), PLAN, (), "allow", "2e", "read_only"),
    (read("/etc/hosts"), DEFAULT, (), "allow", "2e", "read_only"),
    (read("/tmp/shot.png"), DEFAULT, (), "allow", "2e", "read_only"),
    (read("/home/bob/notes"), DEFAULT, (), "ask", "2d", "scope.read"),
    (read("/home/bob/notes"), SILENT, (), "deny", "2d", "scope.read"),
    (read("/home/bob/notes"), DEFAULT, ("allow Read(//home/bob/**)",), "allow", "2b", "rule.allow"),
    (read("~/.ssh/id_ed25519"), DEFAULT, (), "ask", "2d", "scope.secret"),
    (read("~/.ssh/id_ed25519"), DEFAULT, ("allow Read",), "ask", "2d", "scope.secret"),
    (read("~/.ssh/id_ed25519"), DEFAULT, ("allow Read(~/.ssh/id_ed25519)",), "allow", "2b", "rule.allow"),
    (read("/proc/self/environ"), DEFAULT, (), "ask", "2d", "scope.secret"),
    (read("/proc/self/cwd/../x"), DEFAULT, (), "ask", "1e", "interaction.ambiguous"),
    (read("/proc/1/cwd/x"), DEFAULT, (), "ask", "1e", "interaction.ambiguous"),
    (read("/proc/self/root/home/bob/x"), DEFAULT, (), "ask", "2d", "scope.read"),
    (read("link/../a.txt"), DEFAULT, (), "ask", "1e", "interaction.ambiguous"),
    (read("link/../secrets/a"), DEFAULT, ("deny Read(secrets/**)",), "deny", "1d", "rule.deny"),
    (read(" .env "), DEFAULT, (), "ask", "2d", "scope.secret"),
    (read("~bob/x"), DEFAULT, (), "ask", "1e", "interaction.ambiguous"),
    (read("a\0b"), DEFAULT, (), "ask", "1e", "interaction.ambiguous"),
    (read(".claude/settings.json"), BYPASS, (), "ask", "1g", "settings_read"),
    (read("secrets/a"), DEFAULT, ("deny Read(secrets/**)",), "deny", "1d", "rule.deny"),
    (read("a.txt"), BYPASS, ("deny Read",), "deny", "1a", "rule.tool.deny"),
    (read("a.txt"), DEFAULT, ("ask Read",), "ask", "1b", "rule.tool.ask"),
    (read("a.txt"), DEFAULT, ("ask Read(*.txt)",), "ask", "1f", "rule.ask"),
    (edit("a.txt"), DEFAULT, (), "ask", "3", "default"),
    (edit("a.txt"), EDITS, (), "allow", "2f", "mode.accept_edits"),
    (edit("a.txt"), AUTO, (), "allow", "2f", "mode.accept_edits"),
    (edit("a.txt"), PLAN, (), "deny", "2p", "mode.plan"),
    (edit("a.txt"), SILENT, (), "deny", "3", "default"),
    (edit("a.txt"), BYPASS, (), "allow", "2a", "mode.bypass"),
    (edit("a.txt"), DEFAULT, ("allow Edit(*.txt)",), "allow", "2b", "rule.allow"),
    (edit("a.txt"), DEFAULT, ("allow Edit",), "allow", "2b", "rule.allow"),
    (edit("a.txt"), DEFAULT, ("allow Read(a.txt)",), "ask", "3", "default"),
    (edit("a.txt"), EDITS, ("deny Read(a.txt)",), "deny", "1d", "rule.deny"),
    (edit("/out/a"), EDITS, (), "ask", "2d", "scope.write"),
    (edit("/out/a"), DEFAULT, ("allow Edit(//out/**)",), "allow", "2b", "rule.allow"),
    (edit("/tmp/a"), EDITS, (), "ask", "2d", "scope.write"),
    (edit(".env"), EDITS, (), "ask", "2d", "scope.secret"),
    (edit(".env"), DEFAULT, ("allow Edit(.env)",), "allow", "2b", "rule.allow"),
    (edit(".git/config"), BYPASS, ("allow Edit",), "ask", "1g", "protected.touch"),
    (write("x/../.git/config"), BYPASS, (), "ask", "1g", "protected.touch"),
    (write("a/../b"), BYPASS, (), "ask", "1g", "protected.unknown"),
    (edit(" .bashrc"), BYPASS, (), "ask", "1g", "protected.touch"),
    (edit("/dev/sda"), BYPASS, (), "deny", "1d", "catastrophe.device"),
    (write("src/a.py"), DEFAULT, (), "ask", "3", "default"),
    (write("src/a.py"), EDITS, (), "allow", "2f", "mode.accept_edits"),
    (write("src/a.py"), DEFAULT, ("allow Edit(src/**)",), "allow", "2b", "rule.allow"),
    (write("src/a.py"), DEFAULT, ("allow Write(src/**)",), "allow", "2b", "rule.allow"),
    (write("src/a.py"), EDITS, ("deny Edit(src/**)",), "deny", "1d", "rule.deny"),
    (write("src/a.py"), BYPASS, ("deny Edit",), "deny", "1a", "rule.tool.deny"),
    (write("/dev/stdout"), EDITS, (), "ask", "3", "default"),
    (write(".husky/pre-commit"), EDITS, (), "ask", "1g", "protected.touch"),
    (("MultiEdit", {"file_path": "a", "edits": [OLD_NEW]}), EDITS, (), "allow", "2f", "mode.accept_edits"),
    (("MultiEdit", {"file_path": ".npmrc", "edits": [OLD_NEW]}), BYPASS, (), "ask", "1g", "protected.touch"),
    (("NotebookEdit", {"notebook_path": "n.ipynb", "new_source": "1"}), EDITS, (), "allow", "2f", "mode.accept_edits"),
    (("NotebookEdit", {"notebook_path": "n.ipynb", "new_source": "1"}), DEFAULT, (), "ask", "3", "default"),
    (glob("**/*.py"), DEFAULT, (), "allow", "2e", "read_only"),
    (glob("src/{a,b}/*.py"), DEFAULT, (), "allow", "2e", "read_only"),
    (glob("/home/bob/**"), DEFAULT, (), "ask", "2d", "scope.read"),
    (glob("*", path="/home/bob"), DEFAULT, (), "ask", "2d", "scope.read"),
    (glob("*/../../../home/bob/*"), DEFAULT, (), "ask", "1e", "interaction.ambiguous"),
    (glob("../../bob/*"), DEFAULT, (), "ask", "1e", "interaction.ambiguous"),
    (glob("*", path="~/.ssh"), DEFAULT, (), "ask", "2d", "scope.secret"),
    (glob("secrets/*"), DEFAULT, ("deny Read(secrets/**)",), "deny", "1d", "rule.deny"),
    (glob("a"), DEFAULT, ("deny Read",), "deny", "1a", "rule.tool.deny"),
    (("Grep", {"pattern": "x"}), DEFAULT, (), "allow", "2e", "read_only"),
    (("Grep", {"pattern": "x", "path": "/home/bob"}), DEFAULT, (), "ask", "2d", "scope.read"),
    (("Grep", {"pattern": "KEY", "glob": ".env"}), DEFAULT, (), "ask", "2d", "scope.secret"),
    (("Grep", {"pattern": "x", "path": "secrets"}), DEFAULT, ("deny Read(secrets/**)",), "deny", "1d", "rule.deny"),
    (("LS", {"path": "src"}), PLAN, (), "allow", "2e", "read_only"),
    (("LS", {"path": "/root"}), DEFAULT, (), "ask", "2d", "scope.read"),
    (fetch("https://example.com/a?b"), DEFAULT, (), "ask", "2d", "scope.network"),
    (fetch("https://example.com/a?b"), DEFAULT, (EXAMPLE,), "allow", "2b", "rule.allow"),
    (fetch("https://sub.example.com/"), DEFAULT, (EXAMPLE,), "ask", "2d", "scope.network"),
    (fetch("https://example.com.evil.net/"), DEFAULT, (EXAMPLE,), "ask", "2d", "scope.network"),
    (fetch("https://a@evil.net/"), BYPASS, ("deny WebFetch(domain:evil.net)",), "ask", "1e", "interaction.ambiguous"),
    (read("link/../x"), BYPASS, ("deny Read(//elsewhere/**)",), "ask", "1e", "interaction.ambiguous"),
    (
        fetch("https://evil.net\\@example.com/"),
        DEFAULT,
        (EXAMPLE,),
        "ask",
        "1e",
        "interaction.ambiguous",
    ),
    (
        fetch("https://example.com@evil.net/"),
        DEFAULT,
        (EXAMPLE,),
        "ask",
        "1e",
        "interaction.ambiguous",
    ),
    (fetch("https://sub.example.com/"), BYPASS, ("deny WebFetch(domain:example.com)",), "deny", "1d", "rule.deny"),
    (fetch("https://example.com/"), SILENT, (), "deny", "2d", "scope.network"),
    (fetch("https://example.com/"), DEFAULT, ("allow WebFetch",), "allow", "2b", "rule.allow"),
    (fetch("file:///etc/shadow"), DEFAULT, ("allow WebFetch(domain:*)",), "ask", "3", "default"),
    (("WebSearch", {"query": "weather"}), DEFAULT, (), "ask", "2d", "scope.network"),
    (("WebSearch", {"query": "weather"}), DEFAULT, ("allow WebSearch",), "allow", "2b", "rule.allow"),
    (("WebSearch", {"query": "weather"}), DEFAULT, ("deny WebSearch",), "deny", "1a", "rule.tool.deny"),
    (("mcp__box__put", {"n": 1}), DEFAULT, (), "ask", "3", "default"),
    (("mcp__box__put", {"n": 1}), EDITS, (), "ask", "3", "default"),
    (("mcp__box__put", {"n": 1}), AUTO, (), "ask", "3", "default"),
    (("mcp__box__put", {"n": 1}), PLAN, (), "deny", "2p", "mode.plan"),
    (("mcp__box__put", {"n": 1}), BYPASS, (), "allow", "2a", "mode.bypass"),
    (("mcp__box__put", {"n": 1}), DEFAULT, ("allow mcp__box",), "allow", "2b", "rule.allow"),
    (("mcp__box__put", {"n": 1}), DEFAULT, ("allow mcp__box__put",), "allow", "2b", "rule.allow"),
    (("mcp__box__put", {"n": 1}), DEFAULT, ("allow mcp__bo",), "ask", "3", "default"),
    (("mcp__box__put", {"n": 1}), BYPASS, ("deny mcp__box__*",), "deny", "1a", "rule.tool.deny"),
    (("mcp__box__put", {"to": ".git/hooks/post-merge"}), BYPASS, (), "ask", "1g", "protected.touch"),
    (("mcp__box__put", {"deep": [{"to": f"{HOME}/.bashrc"}]}), BYPASS, (), "ask", "1g", "protected.touch"),
    (("mcp__box__say", {"text": "look at .bashrc"}), BYPASS, (), "allow", "2a", "mode.bypass"),
    (("Skill", {"skill": "pdf"}), DEFAULT, ("allow Skill(pdf)",), "allow", "2b", "rule.allow"),
    (("Skill", {"skill": "pdf-x"}), DEFAULT, ("allow Skill(pdf)",), "ask", "3", "default"),
    (("Skill", {"skill": "pdf", "args": "x"}), DEFAULT, ("deny Skill(x)",), "deny", "1d", "rule.deny"),
    (("Task", {"subagent_type": "scout", "prompt": "p"}), DEFAULT, ("allow Agent(scout)",), "allow", "2b", "rule.allow"),
    (("Other", {"a": "go", "b": "go"}), DEFAULT, ("allow Other(go)",), "ask", "3", "default"),
    (("Other", {"a": "go", "b": "no"}), BYPASS, ("deny Other(no)",), "deny", "1d", "rule.deny"),
    (("bash", {"command": "ls"}), DEFAULT, (), "ask", "3", "default"),
)


@pytest.mark.parametrize("row", USES, ids=lambda row: f"{row[0][0]}-{next(iter(row[0][1].values()))!r}-{row[1].value}-{row[2]}")
def test_uses(row: tuple[tuple[str, dict[str, Any]], Mode, tuple[str, ...], str, str, str]) -> None:
    """The same waterfall judges the use of a tool, by the same rules, and each answer has its step and reason."""
    (name, given_), mode, rules, behavior, step, reason = row
    decision = use(name, given_, *rules, mode=mode).decision
    assert (decision.behavior.value, decision.step, decision.reason) == (behavior, step, reason), decision.message
    assert not decision.promise  # nothing confines what the front-end runs
    assert behavior == "allow" or decision.flip


@pytest.mark.parametrize(
    ("name", "given_", "field"),
    [
        ("Read", {}, "input.file_path"),
        ("Read", {"file_path": 3}, "input.file_path"),
        ("Read", {"file_path": ""}, "input.file_path"),
        ("Read", {"file_path": "a", "limit": -1}, "input.limit"),
        ("Read", {"file_path": "a", "limit": 1.5}, "input.limit"),
        ("Read", {"file_path": "a", "sandboxed": False}, "input.sandboxed"),
        ("Edit", {"file_path": "a", "old_string": "a"}, "input.new_string"),
        ("MultiEdit", {"file_path": "a", "edits": []}, "input.edits"),
        ("MultiEdit", {"file_path": "a", "edits": [{"old_string": "a"}]}, "input.edits[0].new_string"),
        ("Grep", {"pattern": "x", "output_mode": "all"}, "input.output_mode"),
        ("WebFetch", {"url": None}, "input.url"),
        ("Bash", {"command": ""}, "input.command"),
        ("Bash", {"command": "ls", "timeout": 0}, "input.timeout"),
        ("", {}, "tool"),
        ("x" * 129, {}, "tool"),
        ("a\nb", {}, "tool"),
    ],
)
def test_the_schema_comes_first(name: str, given_: dict[str, Any], field: str) -> None:
    """What does not fit the tool's schema is an error that names the property, never a decision."""
    with pytest.raises(RequestError) as caught:
        use(name, given_, "deny Read", "deny Bash", "deny Edit")
    assert caught.value.field == field
    assert caught.value.fix


def test_declared_tools() -> None:
    """A declared tool does what it says; what it does not say is the strictest."""
    read_only = Tool("mcp__wiki__get", schema=OBJECT, read_only=True, concurrency_safe=True)
    plain = Tool("Deploy", schema=OBJECT, aliases=("Ship",))
    seen = Tool("Log", schema={"type": "object", "properties": {"text": {"type": "string"}}}, classifier_input=("text",))
    tools = registered((), (read_only, plain, seen))
    judged = use("mcp__wiki__get", {"page": "x"}, tools=tools, mode=PLAN)
    assert (judged.decision.step, judged.analysis.concurrency_safe) == ("2e", True)
    judged = use("Ship", {}, tools=tools)
    assert (judged.inputs.tool, judged.decision.step) == ("Deploy", "3")
    assert not judged.analysis.read_only
    assert not judged.analysis.concurrency_safe
    assert use("Deploy", {}, "deny Ship", tools=tools, mode=BYPASS).decision.step == "1a"
    assert use("Deploy", {}, "allow Ship", tools=tools).decision.behavior is Behavior.ASK
    for name, who in (("Deploy", 1), ("Log", 2), ("Unheard", 1)):
        outcome = use(name, {}, tools=tools, mode=AUTO).outcome
        assert isinstance(outcome, Needs)
        assert len(outcome.who) == who, name
    alone = use("Deploy", {}, tools=tools, mode=AUTO, headless=True)
    assert (alone.decision.behavior, alone.decision.reason) == (Behavior.DENY, "default")


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        (Tool("Read", schema=OBJECT), "knows itself"),
        (Tool("Mine", schema=OBJECT, aliases=("Bash",)), "knows itself"),
        (Tool("my tool", schema=OBJECT), "no name"),
        (Tool("mcp__x__*", schema=OBJECT), "no name"),
        (Tool("A" * 129, schema=OBJECT), "no name"),
        (Tool("Mine", schema=OBJECT, aliases=("Mine",)), "twice"),
        (Tool("Mine", schema=OBJECT, aliases=("Old",)), "names both"),
        (Tool("Mine", schema=OBJECT, read_only=True, destructive=True), "cannot be"),
        (Tool("Mine"), "no schema"),
        (Tool("Mine", schema={"type": "object", "patternProperties": {}}), "not understood"),
        (Tool("Mine", schema=OBJECT, classifier_input=("text",)), "no property"),
        (Tool("Mine", schema=OBJECT, description="x" * 20_000), "too long"),
        (Tool("Mine", schema={"type": "object", "description": "x" * 200_000}), "too long"),
    ],
)
def test_a_wrong_declaration_is_refused(tool: Tool, says: str) -> None:
    """A declaration that is wrong changes nothing and says what is wrong with it."""
    present = registered((), (Tool("Old", schema=OBJECT),))
    with pytest.raises(RequestError, match=says) as caught:
        registered(present, (tool,))
    assert caught.value.field
    assert caught.value.fix


def test_declaring_again() -> None:
    """A tool takes the place of the one of its name; one taken back is unheard of; their number is bounded."""
    first = registered((), (Tool("B", schema=OBJECT), Tool("A", schema=OBJECT)))
    assert [tool.name for tool in first] == ["A", "B"]
    second = registered(first, (Tool("A", "new", schema=OBJECT),), ("B", "C"))
    assert [(tool.name, tool.description) for tool in second] == [("A", "new")]
    with pytest.raises(Exhausted):
        registered((), (Tool(f"T{number}", schema=OBJECT) for number in range(MAX_TOOLS + 1)))


def test_search() -> None:
    """A search finds tools by their names first, then by hints and descriptions, and exactly by `select:`."""
    tools = registered(
        (),
        (
            Tool("mcp__mail__sendMessage", "Sends a letter.", OBJECT, deferred=True),
            Tool("Calendar", "Plans a meeting, and may send a message.", OBJECT, deferred=True),
            Tool("Weather", "Tells the weather.", OBJECT, search_hint="rain forecast", deferred=True),
        ),
    )

    def names(query: str, most: int = 5) -> list[str]:
        return [tool.name for tool in search(query, tools, most)]

    assert names("send message") == ["mcp__mail__sendMessage", "Calendar"]
    assert names("send message", 1) == ["mcp__mail__sendMessage"]
    assert names("forecast") == ["Weather"]
    assert names("Calendar") == ["Calendar"]
    assert names("select:Weather, Calendar,None") == ["Weather", "Calendar"]
    assert names("nothing") == []
    with pytest.raises(RequestError):
        names("!!")


def test_descriptions_are_stable() -> None:
    """Descriptions are the same byte for byte whatever order tools were declared in, and have each API's own shape."""
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "number"}}}
    turned = {"properties": {"a": {"type": "number"}, "b": {"type": "string"}}, "type": "object"}
    one = registered((), (Tool("Y", "y", schema), Tool("X", "x", schema)))
    other = registered((), (Tool("X", "x", turned), Tool("Y", "y", turned)))
    for style in Format:
        assert as_json((*BUILT_IN.values(), *one), style) == as_json((*BUILT_IN.values(), *other), style)
    described = json.loads(as_json(one, Format.ANTHROPIC))
    assert described[0] == {"name": "X", "description": "x", "input_schema": schema}
    described = json.loads(as_json(one, Format.OPENAI))
    assert described[0] == {"type": "function", "function": {"name": "X", "description": "x", "parameters": schema}}
    assert list(BUILT_IN) == sorted(BUILT_IN)
    assert all(tool.description and tool.schema["additionalProperties"] is False for tool in BUILT_IN.values())


@pytest.mark.parametrize(
    ("rules", "gone"),
    [
        (("deny Bash",), {"Bash"}),
        (("deny Edit",), {"Edit", "MultiEdit", "NotebookEdit", "Write"}),
        (("deny Read",), {"Glob", "Grep", "LS", "Read"}),
        (("deny Bash(rm:*)", "ask Read", "allow Write"), set()),
        (("deny WebFetch(domain:example.com)",), set()),
    ],
)
def test_wholly_denied_tools(rules: tuple[str, ...], gone: set[str]) -> None:
    """A tool is denied wholly when a rule without content speaks of it, and only then."""
    assert {tool.name for tool in BUILT_IN.values() if denied(tool, ruleset(*rules), SCOPE)} == gone


def test_what_a_search_must_leave_out() -> None:
    """Going through a directory leaves out what rules keep from being read, and the secrets in it."""
    inputs = use("Grep", {"pattern": "x"}, "deny Read(private/**)", "ask Read(//data/**)", "allow Read(open/**)").inputs
    left_out = withheld(inputs)
    assert f"{WORKSPACE}/private/**" in left_out
    assert f"{WORKSPACE}/**/.env" in left_out
    assert not any("open" in glob_ for glob_ in left_out)
    assert withheld(use("Read", {"file_path": "a"}, "deny Read(private/**)").inputs) == ()


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://Example.COM/x", "example.com"),
        ("https://example.com:443/", "example.com"),
        ("http://example.com:8080/", "example.com:8080"),
        ("https://example.com.", "example.com."),
        ("https://127.0.0.1/", "127.0.0.1"),
        ("https://[::1]:8000/", "[::1]:8000"),
        ("https://my_host/", "my_host"),
        *((url, None) for url in (
            "https://2130706433/", "https://0x7f.1/", "https://127.1/", "https://0177.0.0.1/", "https://1.2.3.4.5/",
            "https://a\\@b.com/", "https://a@b.com/", "https://ex%61mple.com/", "https://exämple.com/", "https:///x",
            "https:example.com", "https:/example.com/", "ftp://example.com/", "javascript:alert(1)", "example.com",
            " https://example.com/", "https://exa\tmple.com/", "https://example.com:99999/", "https://[::1/", "https://",
            "https://-x.com/", "//example.com/", "https://[fe80::1%25eth0]/",
        )),
    ],
)  # fmt: skip
def test_hosts(url: str, host: str | None) -> None:
    """A host is only taken from an address that all programs read alike."""
    assert host_of_url(url) == host


def test_links_and_real_files(tmp_path: Path) -> None:
    """A path is judged by where it leads."""
    workspace, outside = tmp_path / "ws", tmp_path / "out"
    for directory in (workspace, outside, workspace / ".git", tmp_path / "home"):
        directory.mkdir()
    (workspace / "away").symlink_to(outside)
    (workspace / "hooks").symlink_to(".git")
    scope = Scope(str(workspace), str(tmp_path / "home"))

    def answer(name: str, path: str) -> str:
        return use(name, {**write(path)[1]}, scope=scope, mode=EDITS, observed=True).decision.reason

    assert answer("Write", "plain") == "mode.accept_edits"
    assert answer("Write", "away/x") == "scope.write"
    assert answer("Write", "hooks/config") == "protected.touch"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(("file_path", "path", "pattern", "url", "command", "query", "content", "old_string", "new_string", "x"))
NAMES = st.sampled_from((*BUILT_IN, "mcp__a__b", "Skill", "Unheard")) | st.text(min_size=1, max_size=20)


@given(NAMES, st.dictionaries(KEYS | st.text(max_size=8), JSON | st.text(alphabet="./~ ag*{\\\0", max_size=12), max_size=5))
def test_any_input_has_an_answer(name: str, given_: dict[str, Any]) -> None:
    """Any JSON is either refused as not fitting or judged; a tool that nobody knows is never allowed without a rule."""
    for mode in (DEFAULT, PLAN, EDITS, AUTO, SILENT):
        try:
            made = call(name, given_, ())
        except RequestError:
            return
        if made.name == "Bash":
            return
        decision = judge(Question("x", WORKSPACE, SCOPE, RuleSet(), mode, call=made)).decision
        if made.tool is None:
            assert decision.behavior is not Behavior.ALLOW
        if mode is PLAN and decision.behavior is Behavior.ALLOW:
            assert made.tool is not None
            assert made.tool.read_only
