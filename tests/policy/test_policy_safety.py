# SPDX-License-Identifier: GPL-3.0-or-later
"""Catastrophes, what needs a human, and touches of what is protected: whole lines, through the real analysis.

The lines are judged; nothing here runs them.
"""

from __future__ import annotations

import json
import time
import tomllib
from typing import Any

import pytest

from sandboxd.analyze import analyze
from sandboxd.effects.rows import Table
from sandboxd.effects.tables import Tables
from sandboxd.model import Act, AnalysisContext, Behavior, Consultant, Decision, EffectKind, Facts, Mode, Opinion, PathFact, Scope
from sandboxd.policy.programs import catastrophe, edits, privilege, touch
from sandboxd.shell.script import MAX_WORDS
from tests.policy.policy_cases import CORPUS, HOME, MODES, WORKSPACE, analysis, command, decide, effect

LINES: dict[str, Any] = tomllib.loads((CORPUS / "policy_safety.toml").read_text())
YES = tuple(Opinion(who, Behavior.ALLOW, "fine") for who in Consultant)


def _lines(table: str) -> list[str]:
    return list(LINES[table]["lines"])


@pytest.mark.parametrize("line", _lines("catastrophe"))
def test_catastrophe(line: str) -> None:
    """A certain catastrophe is denied in every mode, whatever is allowed and whoever agrees."""
    for mode in MODES:
        decision = decide(line, "allow Bash", mode=mode, opinions=YES)
        assert (decision.behavior, decision.step) == (Behavior.DENY, "1d"), (mode, decision.step, decision.message)
        assert decision.protected
        assert decision.flip


@pytest.mark.parametrize("line", _lines("interaction"))
def test_interaction(line: str) -> None:
    """What needs a human by nature asks one, also in bypassPermissions and under an allow rule."""
    decision = decide(line, "allow Bash", mode=Mode.BYPASS)
    assert (decision.behavior, decision.step, decision.immune) == (Behavior.ASK, "1e", True), decision.message


@pytest.mark.parametrize("line", _lines("ordinary"))
def test_ordinary(line: str) -> None:
    """Ordinary work, and text that only mentions a catastrophe, trips neither."""
    decision = decide(line, mode=Mode.BYPASS)
    assert decision.behavior is Behavior.ALLOW, decision.message
    assert not decision.protected


@pytest.mark.parametrize("line", _lines("touch"))
def test_touch(line: str) -> None:
    """A touch of what is protected asks a human, in every spelling and in bypassPermissions too."""
    decision = decide(line, "allow Bash", mode=Mode.BYPASS)
    assert decision.step in ("1g", "1d", "1e"), decision.message
    assert decision.protected
    assert decision.behavior is not Behavior.ALLOW
    assert decide(line, "allow Bash", mode=Mode.BYPASS, headless=True).behavior is Behavior.DENY


@pytest.mark.parametrize("line", _lines("settings_read"))
def test_settings_read(line: str) -> None:
    """Reading an agent's permission settings asks; in auto mode the classifier may allow it, an allow rule never."""
    decision = decide(line, "allow Bash", "allow Read", mode=Mode.BYPASS)
    assert (decision.step, decision.reason, decision.behavior) == ("1g", "settings_read", Behavior.ASK)
    agrees = (Opinion(Consultant.CLASSIFIER, Behavior.ALLOW, "asked for"),)
    assert decide(line, mode=Mode.AUTO, opinions=agrees).behavior is Behavior.ALLOW
    assert decide(line, mode=Mode.DEFAULT, opinions=agrees).behavior is Behavior.ASK


@pytest.mark.parametrize("line", _lines("untouched"))
def test_untouched(line: str) -> None:
    """Reads, mentions, lookalikes, unknown targets and git's own writes never trip the killswitch."""
    decision = decide(line, mode=Mode.BYPASS)
    assert not decision.protected, decision.message


TOUCHES = [json.loads(line) for line in (CORPUS / "policy_touch.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", TOUCHES, ids=lambda row: f"{row['must']}: {row['cmd']}")
def test_every_kind_of_touch_and_its_lookalikes(row: dict[str, str]) -> None:
    """Spellings, directories, variables, links, nested shells, tools and git's own operations: a touch is stopped in
    bypassPermissions under an allow rule for everything; a read, a mention, a lookalike or an unknown target never trips."""
    decision = decide(row["cmd"], "allow Bash", mode=Mode.BYPASS)
    if row["must"] == "touch":
        assert decision.behavior is not Behavior.ALLOW, decision.message
        assert decision.step in ("1d", "1e", "1g")
        assert decide(row["cmd"], "allow Bash", mode=Mode.BYPASS, headless=True).behavior is Behavior.DENY
    else:
        assert not decision.protected, decision.message


def _write(target: str | None, **more: Any) -> Any:
    return analysis(command("tool a", effect(EffectKind.WRITE, target, act=Act.WRITE, **more)))


def _bypass(given: Any, **more: Any) -> Decision:
    return decide(given, mode=Mode.BYPASS, **more)


def test_real_path_counts() -> None:
    """A path that is a link to something protected is protected, and so is what `..` after a link leads to."""
    target = f"{WORKSPACE}/notes"
    facts = Facts(observed=True, paths=(PathFact(target, f"{WORKSPACE}/.git/config", True),))
    assert _bypass(_write(target), facts=facts).step == "1g"
    assert _bypass(_write(target)).step == "2a"
    dotted = _write(target, code="path.dotdot")
    assert _bypass(dotted, facts=facts).step == "1g"
    assert decide(dotted).reason == "scope.write_unresolved"


def test_observed_places_count() -> None:
    """The real git directory of a worktree, the target of core.hooksPath and sandboxd's own files are protected."""
    for place in ("/srv/repo.git", f"{WORKSPACE}/hooks"):
        for facts in (Facts(True, repositories=(place,)), Facts(True, hooks_paths=(place,))):
            assert _bypass(_write(f"{place}/x"), facts=facts).step == "1g"
    scope = Scope(WORKSPACE, HOME, own=("/var/lib/boxes",))
    assert _bypass(_write("/var/lib/boxes/state.db"), scope=scope).step == "1g"


def test_unknown_target() -> None:
    """A wholly unknown target is no evidence while the mount plan guards it, and is one where it does not."""
    assert _bypass(_write(None)).step == "2a"
    weak = _bypass(_write(None), enforcement_full=False)
    assert (weak.step, weak.reason) == ("1g", "protected.unknown")


def test_destination_that_may_be_a_directory() -> None:
    """`cp a/.npmrc b` touches `b/.npmrc` only where `b` is a directory: by facts, by a slash, by what it must be."""
    line = "cp vendor/.npmrc other"
    assert _bypass(line).step == "2a"
    there = Facts(True, paths=(PathFact(f"{WORKSPACE}/other", f"{WORKSPACE}/other", True, True),))
    assert _bypass(line, facts=there).step == "1g"
    assert _bypass("cp vendor/.npmrc other/").step == "1g"
    assert _bypass("cp vendor/.npmrc .").step == "1g"
    assert _bypass("cp vendor/.npmrc ~").step == "1g"


def test_a_mirrored_tree_loses_what_is_protected_in_it() -> None:
    """`rsync --delete` deletes what its source lacks, so a protected file below its destination is touched; `rm -rf` names
    what it deletes."""
    there = Facts(True, protected=(f"{WORKSPACE}/site/.npmrc",))
    assert _bypass("rsync -a --delete dist/ site/", facts=there).step == "1g"
    assert _bypass("rsync -a --delete dist/ public/", facts=there).step == "2a"
    assert _bypass("rsync -a dist/ site/", facts=there).step == "2a"
    assert _bypass("rm -rf site", facts=there).step == "2a"


def test_unsandboxed() -> None:
    """Leaving the sandbox on request asks a human; a profile that says `none` was a human's word already."""
    given = analysis(command("ls", effect(EffectKind.READ, WORKSPACE)))
    asked = _bypass(given, unsandboxed="request")
    assert (asked.step, asked.immune, asked.reason) == ("1e", True, "interaction.unsandboxed")
    assert _bypass(given, unsandboxed="profile none").step == "2a"


@pytest.mark.parametrize(
    "line",
    [
        "rm -rf / 'open",
        ":(){ :|:& };: 'open",
        "f () ( echo; f | f & ) ; f 'open",
        "a(){ b; }; b() { a:b | b & }; b 'open",
        "f(){ f|f|f& }; f 'open",
    ],
)
def test_unparsed_danger(line: str) -> None:
    """What the words of a text that cannot be read still tell is enough to stop it in bypassPermissions."""
    assert _bypass(line).step in ("1d", "1e")


@pytest.mark.parametrize("line", ["f(){ a; }; f | f & 'open", "f(){ g | f & }; f 'open", "f | f & 'open", "echo f(){ 'open"])
def test_unparsed_and_no_bomb(line: str) -> None:
    """A function that has ended, or that something else is piped into, starts nothing twice."""
    assert _bypass(line).step not in ("1d", "1e")


@pytest.mark.parametrize("piece", ["copy", "a(){", "a|a&", "a(){ a|b& ", "git -c ", "vN=w; x $vN ", "x $q ", "rm a "])
@pytest.mark.parametrize("begin", ["", "echo 'open ", "python3 -c \"p='.git/config' "])
def test_long_texts_are_judged_in_time(piece: str, begin: str) -> None:
    """However long, with whatever in it: no word is looked at again for each other one. Nobody else is judged meanwhile."""
    for size in (60_000, 130_000):
        text = begin + "".join(piece.replace("N", f"{number}") for number in range(size // len(piece)))[: size - len(begin)]
        begun = time.thread_time()
        assert _bypass(text) is not None
        assert time.thread_time() - begun < 10, "seconds of work"


MANY = (
    *("printf -v $1" * 400, "set -- " + "".join(f"a{n} " for n in range(800)) + "; cp" + " $1" * 800, "cp $x" + " a" * 2_000),
    *("ln -s $x" + " a" * 2_000, "ln $x .git" + "".join(f" a{n}" for n in range(900)), "mv $x" + " a/." * 1_000),
    "export {a..z..2}" * 320,
)


@pytest.mark.parametrize("text", MANY, ids=lambda text: text[:12])
def test_short_texts_do_not_work_for_long(text: str) -> None:
    """A few thousand characters are judged at once, however many words may be the destination of all others."""
    begun = time.thread_time()
    assert _bypass(text) is not None
    assert time.thread_time() - begun < 5, "seconds of work"


@pytest.mark.parametrize("before", ["", "echo " + "word " * 5_000 + "\n", "echo " + "word " * 20_000 + "\n"])
def test_unparsed_touch(before: str) -> None:
    """A protected name among the words of a text that cannot be read is evidence, wherever it stands."""
    assert _bypass(f"{before}cp a .git/config; echo 'open").step == "1g"
    assert _bypass(f"{before}rm -rf / ; echo 'open").step == "1e"
    assert _bypass(f"{before}cp a b; echo 'open").step == "2a"


def test_unparsed_and_not_looked_through() -> None:
    """What has more words than anybody looks at is for a person, in every mode."""
    assert _bypass("echo 'open " + "a " * MAX_WORDS).reason == "interaction.unread"


def test_a_defect_hides_nothing() -> None:
    """Where the analysis itself fails, what its words tell still stops it."""

    class Broken(Tables):
        def find(self, name: str) -> tuple[Table, ...]:
            raise RuntimeError(name)

    found = analyze("cp a .git/config", AnalysisContext(WORKSPACE, HOME, WORKSPACE), Broken())
    assert found.unparsed is not None
    assert found.unparsed.reason == "unparsed.internal"
    assert _bypass(found).step == "1g"


def test_grant_of_touch() -> None:
    """An approved touch opens that path; beside code that cannot be read it opens nothing, and says so before."""
    yes = (Opinion(Consultant.APPROVAL, Behavior.ALLOW, "", name="ada"),)
    opened = decide("echo x >> .git/config", opinions=yes)
    assert opened.behavior is Behavior.ALLOW
    assert [(grant.kind.value, grant.target) for grant in opened.grants] == [
        ("workspace_write", ""),
        ("protected", f"{WORKSPACE}/.git/config"),
    ]
    beside = decide("./tool; echo x >> .git/config")
    assert "stays closed" in beside.message
    assert all(grant.kind.value != "protected" for grant in decide("./tool; echo x >> .git/config", opinions=yes).grants)


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (("ruby", "-i", "-pe", "1", ".git/config"), ".git/config"),
        (("frob", "--write", "a", ".vscode/x"), ".vscode/x"),
        (("frob", "-o", ".mcp.json", "a"), ".mcp.json"),
        (("frob", "--output=.mcp.json"), ".mcp.json"),
        (("vim", ".git/config"), ".git/config"),
        (("ed", "-s", ".git/config"), ".git/config"),
        (("busybox", "cp", "a", ".git/config"), ".git/config"),
        (("busybox", "cat", ".git/config"), None),
        (("zgrep", "-i", "x", ".git/config"), None),
        (("frob", "--check", ".vscode/x"), None),
        (("frob", "-i", "src/x"), None),
        (("frob", "-o", "out", ".git/config"), None),
        (("python3", "tool.py", ".git/config"), None),
    ],
)
def test_opaque_edits(argv: tuple[str, ...], found: str | None) -> None:
    """A program that cannot be judged touches what it names where its kind or its options say that it writes."""
    assert edits(argv, "opaque.program", ()) == found


def test_opaque_mentions() -> None:
    """Words that are not in the argv count likewise: what a tilde stands for, and text that is fed to a shell."""
    assert edits(("perl", "-pi", "-e", "1", None), "opaque.code", ("-pi", "/home/ada/.zshrc")) == "/home/ada/.zshrc"
    assert edits(("sh",), "opaque.script", ("rm", "-rf", ".git")) == ".git"
    assert edits(("python3", "-c", "open('.git/config')"), "opaque.code", ("open", ".git/config")) is None


@pytest.mark.parametrize("argv", [(), (None,), (None, "config"), ("git",), ("git", None), ("docker", None), ("chmod",), ("npx",)])
def test_unknown_words(argv: tuple[str | None, ...]) -> None:
    """Unknown words are no evidence by themselves, and no table trips over them."""
    assert catastrophe(argv) is None
    assert privilege(argv) is None
    assert touch(argv) is None
