# SPDX-License-Identifier: GPL-3.0-or-later
"""What observe could not make sure of makes the answer stricter: real repositories whose configuration arms git."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sandboxd.judge import Judged, Question, judge
from sandboxd.model import Behavior, Mode, RuleSet, Scope, Source
from sandboxd.observe import facts as observing
from sandboxd.policy.rules import parse_rule

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    tree = tmp_path / "ws"
    tree.mkdir()
    git(tree, "init", "-q")
    (tree / "a").write_text("x\n")
    return tree


def git(work: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=work, check=True, capture_output=True)


def asked(work: Path, text: str, *allow: str, mode: Mode = Mode.DEFAULT) -> Judged:
    rules = RuleSet(tuple(parse_rule(rule, Behavior.ALLOW, Source.USER, "f:1") for rule in allow))
    return judge(Question(text, str(work), Scope(str(work), str(work.parent)), rules, mode, observed=True))


# (configuration key, git commands that would run what it names, git commands that never look at it)
ARMED = [
    (
        "diff.external",
        ("git diff", "git log -p", "git show", "git status"),
        ("git rev-parse HEAD", "git branch -v", "git ls-files"),
    ),
    ("diff.conv.command", ("git diff HEAD", "git stash show -p"), ("git for-each-ref", "git tag")),
    ("merge.own.driver", (), ("git status", "git diff", "git log")),
    ("tar.gz.command", (), ("git status", "git log")),
    ("url.ext::sh.insteadOf", (), ("git status", "git diff")),
    ("remote.o.uploadpack", (), ("git log", "git show")),
    ("trailer.x.command", (), ("git log -1", "git diff")),
]


@pytest.mark.parametrize(("key", "runs", "ignores"), ARMED, ids=[row[0] for row in ARMED])
def test_an_armed_key_takes_the_promise_away(work: Path, key: str, runs: tuple[str, ...], ignores: tuple[str, ...]) -> None:
    """A read that would run what a repository names is no read; one that never looks at it still is."""
    for text in (*runs, *ignores):
        assert asked(work, text).decision.step == "2e", text
    git(work, "config", key, "./evil")
    for text in runs:
        decision = asked(work, text).decision
        assert (decision.behavior, decision.step) == (Behavior.ASK, "3"), text
        assert key.lower() in decision.message.lower()
    for text in ignores:
        assert asked(work, text).decision.step == "2e", text


def test_nothing_else_lets_an_armed_read_pass(work: Path) -> None:
    """Neither acceptEdits nor a rule for its neighbour makes it harmless; a rule for itself does."""
    git(work, "config", "diff.external", "./evil")
    assert asked(work, "git diff > out", mode=Mode.ACCEPT_EDITS).decision.behavior is Behavior.ASK
    assert asked(work, "git diff && make", "Bash(make)").decision.behavior is Behavior.ASK
    assert asked(work, "git diff && make", "Bash(make)", "Bash(git diff)").decision.step == "2b"


def test_a_configuration_that_cannot_be_read(work: Path) -> None:
    """Text that git would refuse, or an include that cannot be read, takes the promise from every git command."""
    git(work, "config", "include.path", "other")
    (work / ".git" / "other").write_text("[core\n")
    for text in ("git status", "git rev-parse HEAD"):
        decision = asked(work, text).decision
        assert (decision.behavior, decision.step) == (Behavior.ASK, "3"), text
    assert asked(work, "ls").decision.step == "2e"


def test_a_git_directory_that_does_not_lead_back(work: Path, tmp_path: Path) -> None:
    """A `.git` file that names somebody else's repository makes reads there asks; a real work tree's does not."""
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    sub = work / "sub"
    sub.mkdir()
    (sub / ".git").write_text(f"gitdir: {other}/.git\n")
    assert asked(work, "cd sub && git status").decision.behavior is Behavior.ASK
    shutil.rmtree(sub)
    git(work, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x")
    git(work, "worktree", "add", "-q", str(work / "tree"))
    assert asked(work, "cd tree && git status").decision.step == "2e"


def test_a_partial_scan_guards_less(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not every protected path was found, an unknown target is asked about in every mode."""
    assert asked(work, 'echo x > "$OUT"', mode=Mode.BYPASS).decision.step == "2a"
    monkeypatch.setattr(observing, "MAX_REPOSITORIES", 0)
    decision = asked(work, 'echo x > "$OUT"', mode=Mode.BYPASS).decision
    assert (decision.step, decision.reason) == ("1g", "protected.unknown")
    assert asked(work, "echo x > out", mode=Mode.BYPASS).decision.step == "2a"


def test_a_program_of_the_workspace_is_no_neighbour(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that the session can write does not pass beside an allowed command because its name only reads."""
    path = work / "bin"
    path.mkdir()
    (path / "ls").write_text("#!/bin/sh\n")
    os.chmod(path / "ls", 0o755)
    monkeypatch.setattr("sandboxd.judge.BOX_PATH", f"{path}:/usr/bin:/bin")
    assert asked(work, "ls && make", "Bash(make)").decision.behavior is Behavior.ASK
    assert asked(work, "ls").decision.behavior is Behavior.ASK
