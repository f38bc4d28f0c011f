# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line against a running daemon: what it says is true, readable, and the same as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import terminal
from tests.e2e.conftest import Place, eventually, running

pytestmark = pytest.mark.needs("bwrap", "userns")

BYPASS = ("--mode", "bypassPermissions")


@pytest.fixture
def tree(served: Place) -> Path:
    return served.workspace()


def answer(place: Place, *words: str, cwd: Path, status: int = 0) -> Any:
    """What a command says with `-o json`: one document and nothing beside it."""
    at = words.index("--") if "--" in words else len(words)
    done = place.sandboxd(*words[:at], "-o", "json", *words[at:], cwd=cwd)
    assert done.returncode == status, done
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def said(place: Place, *words: str, cwd: Path, status: int = 0) -> str:
    done = place.sandboxd(*words, cwd=cwd)
    assert done.returncode == status, done
    return done.stdout


@pytest.fixture
def session(served: Place, tree: Path) -> Iterator[str]:
    made = answer(served, "session", "create", "--mode", "plan", "--deny", "Bash(make deploy:*)", cwd=tree)
    yield made["session"]["id"]
    served.sandboxd("session", "delete", made["session"]["id"], cwd=tree)


def test_run_uses_the_running_daemon(served: Place, tree: Path) -> None:
    """A command that runs is one of the daemon's: its status counts it, and shows its session."""
    with served.started("run", *BYPASS, "--", "echo up; exec sleep 60", cwd=tree) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        assert answer(served, "status", cwd=tree)["running"] == 1
        assert re.search(r"^commands +1 running, 0 waiting$", said(served, "status", cwd=tree), re.MULTILINE)
        (found,) = answer(served, "session", "list", cwd=tree)
        assert (found["workspace"], found["mode"], found["headless"]) == (str(tree), "bypassPermissions", True)
        shown = answer(served, "session", "show", found["id"], cwd=tree)
        assert [(item["text"], item["state"]) for item in shown["executions"]] == [("echo up; exec sleep 60", "running")]
        assert "echo up; exec sleep 60" in said(served, "session", "show", found["id"], cwd=tree)
        served.sandboxd("session", "delete", found["id"], cwd=tree)
        assert child.wait(30) == 130
        assert "session_deleted" in child.stderr.read()  # type: ignore[union-attr]  # a pipe
    assert answer(served, "session", "list", cwd=tree) == []


def test_a_session_is_shown_changed_and_ended(served: Place, tree: Path, session: str) -> None:
    """`session` shows what was asked for, changes the mode, and knows no session that was deleted."""
    text = said(served, "session", "show", session, cwd=tree)
    for line in (rf"workspace +{tree}", r"mode +plan", r"humans +may be asked", r"deny +Bash\(make deploy:\*\)"):
        assert re.search(rf"^{line}$", text, re.MULTILINE), text
    assert answer(served, "session", "mode", session, "acceptEdits", cwd=tree)["mode"] == "acceptEdits"
    assert answer(served, "session", "show", session, cwd=tree)["session"]["mode"] == "acceptEdits"
    assert answer(served, "session", "delete", session, cwd=tree) == {"deleted": session}
    done = served.sandboxd("session", "show", session, cwd=tree)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no session `{session}`" in done.stderr


def test_decisions_are_listed_and_shown(served: Place, tree: Path) -> None:
    """What was decided can be read back: newest first, filtered, one with its whole trace, the same as JSON."""
    served.sandboxd("run", "--", "cat a.txt", cwd=tree)
    served.sandboxd("run", "--", "touch made", cwd=tree)
    newest, before = answer(served, "decisions", "list", "-n", "2", cwd=tree)
    assert [newest["text"], before["text"]] == ["touch made", "cat a.txt"]
    assert newest["decision"]["behavior"] == "deny"
    listed = said(served, "decisions", "list", "-n", "2", "--behavior", "deny", cwd=tree)
    assert "touch made" in listed
    assert "cat a.txt" not in listed
    text = said(served, "decisions", "show", newest["id"], cwd=tree)
    assert "denied by step 3 default" in text
    assert re.search(r"^  3 +default +ask +default +<- decided", text, re.MULTILINE), text
    assert re.search(rf"^  written +{tree}/made +made +touch", text, re.MULTILINE), text
    assert re.search(r"^  to change it: .*add the rule `Bash\(touch made\)`", text, re.MULTILINE), text
    stages = re.findall(r"^  (\w+) +[0-9.]+ m?s$", text, re.MULTILINE)
    assert stages == ["parse", "effects", "facts", "waterfall"]
    text = said(served, "decisions", "show", before["id"], cwd=tree)
    stages = re.findall(r"^  (\w+) +[0-9.]+ m?s$", text, re.MULTILINE)
    assert stages == ["parse", "effects", "facts", "waterfall", "lane", "admission"]
    assert answer(served, "decisions", "show", newest["id"], cwd=tree)["id"] == newest["id"]
    done = served.sandboxd("decisions", "show", "d-none", cwd=tree)
    assert (done.returncode, done.stderr) == (2, "sandboxd: no decision `d-none`\n")


def test_decisions_are_followed(served: Place, tree: Path) -> None:
    """`decisions tail` prints each decision as it is made; Ctrl-C ends it with 130."""
    with served.started("decisions", "tail", "-o", "json", cwd=tree) as child:

        def seen() -> bool:
            served.sandboxd("run", "--", "pwd # followed", cwd=tree)
            return True

        assert seen()
        assert child.stdout is not None
        # The first one may come before the tail is there; one of the next is seen.
        for _ in range(5):
            served.sandboxd("run", "--", "pwd # followed", cwd=tree)
        assert json.loads(child.stdout.readline())["text"] == "pwd # followed"
        child.send_signal(2)
        assert child.wait(30) == 130


@pytest.mark.parametrize(("verb", "status"), [("allow", 0), ("deny", 126)])
def test_a_question_is_answered_from_elsewhere(verb: str, status: int, served: Place, tree: Path) -> None:
    """`approvals list` shows what waits, with what is at stake; allow and deny answer it and the command goes on."""
    with terminal(served, "run", "--", "touch made", cwd=tree) as screen:
        screen.wait_for("> ")
        (waiting,) = answer(served, "approvals", "list", cwd=tree)
        assert (waiting["text"], waiting["cwd"]) == ("touch made", str(tree))
        text = said(served, "approvals", "list", cwd=tree)
        assert waiting["id"] in text
        assert "touch made" in text
        assert re.search(r"could always be allowed by `Bash\(touch made\)`", text), text
        reply = answer(served, "approvals", verb, waiting["id"], "--reason", "as agreed", cwd=tree)
        assert reply["allow"] is (verb == "allow")
        assert screen.wait() == status
        done = served.sandboxd("approvals", verb, waiting["id"], cwd=tree)
        assert done.returncode == 2, done
    assert (tree / "made").exists() is (verb == "allow")
    assert answer(served, "approvals", "list", cwd=tree) == []


def test_questions_are_watched(served: Place, tree: Path) -> None:
    """`approvals watch` shows a question that waits already, and how it was settled."""
    with terminal(served, "run", "--", "touch made", cwd=tree) as screen:
        screen.wait_for("> ")
        with served.started("approvals", "watch", "-o", "json", cwd=tree) as child:
            assert child.stdout is not None
            raised = json.loads(child.stdout.readline())
            assert (raised["kind"], raised["approval"]["text"]) == ("raised", "touch made")
            screen.type("n\n")
            assert screen.wait() == 126
            settled = json.loads(child.stdout.readline())
            assert (settled["kind"], settled["approval"]["verdict"]) == ("settled", "deny")


def test_profiles(served: Place, tree: Path) -> None:
    """`profile` lists, shows and checks them; a name that is none is wrong usage."""
    assert {item["name"] for item in answer(served, "profile", "list", cwd=tree)} >= {"read-only", "workspace", "network"}
    assert re.search(r"^\* +workspace +off", said(served, "profile", "list", cwd=tree), re.MULTILINE)
    assert answer(served, "profile", "show", "network", cwd=tree)["network"] == "host"
    assert answer(served, "profile", "check", "workspace", cwd=tree) == {"valid": True, "problems": []}
    done = served.sandboxd("profile", "show", "none-such", cwd=tree)
    assert (done.returncode, done.stdout) == (2, "")
    assert "none-such" in done.stderr


def test_doctor_says_it_as_json_too(served: Place, tree: Path) -> None:
    """`doctor -o json` has the same findings, a verdict each, and names the daemon that listens."""
    found = answer(served, "doctor", cwd=tree)
    assert {item["verdict"] for item in found} <= {"PASS", "WARN"}
    (sockets,) = (item for item in found if item["name"] == "sockets")
    assert sockets["said"] == f"a daemon listens in {served.runtime}/sandboxd"
    (canary,) = (item for item in found if item["name"] == "canary")
    assert canary["verdict"] == "PASS"


def test_run_as_json(served: Place, tree: Path) -> None:
    """`run -o json` gives decision, result and both streams in one document, and exits as the command."""
    found = answer(served, "run", *BYPASS, "--", "echo out; echo err >&2; exit 3", cwd=tree, status=3)
    assert (found["stdout"], found["stderr"], found["exit_code"]) == ("out\n", "err\n", 3)
    assert found["decision"]["step"] == "2a"
    assert found["result"]["enforcement"]["backend"] == "native"
    denied = answer(served, "run", "--", "touch made", cwd=tree, status=126)
    assert (denied["decision"]["behavior"], denied["result"]["end"]) == ("deny", "denied")


# At a terminal


@pytest.mark.parametrize("either", ["served", "place"], ids=["daemon", "embedded"])
@pytest.mark.parametrize(("keys", "status"), [("y\n", 0), ("what?\nyes\n", 0), ("n\n", 126), ("\n\nNO\n", 126), ("\x04", 126)])
def test_a_person_is_asked(keys: str, status: int, either: str, request: pytest.FixtureRequest) -> None:
    """y runs it once, n or the end of input denies it; anything else is asked again; the question says what is at stake."""
    place: Place = request.getfixturevalue(either)
    tree = place.workspace()
    with terminal(place, "run", "--", "touch made", cwd=tree) as screen:
        screen.wait_for("sandboxd asks: may this run?")
        screen.wait_for("touch made")
        screen.wait_for(f"{tree}/made")
        screen.wait_for("a  always allow `Bash(touch made)`")
        screen.wait_for("> ")
        screen.type(keys)
        assert screen.wait() == status, screen.shown
    assert (tree / "made").exists() is (status == 0)


def test_always_keeps_the_narrow_rule(served: Place) -> None:
    """a runs it and writes just the rule that was shown: the same command is not asked about again, another one is."""
    tree = served.workspace()
    with terminal(served, "run", "--", "touch kept", cwd=tree) as screen:
        screen.wait_for("a  always allow `Bash(touch kept)`")
        screen.wait_for("> ")
        screen.type("a\n")
        assert screen.wait() == 0, screen.shown
    rules = (served.home / ".config/sandboxd/settings.toml").read_text(encoding="utf-8")
    assert rules.count("[[rule]]") == 1
    assert 'rule = "Bash(touch kept)"' in rules
    (tree / "kept").unlink()
    assert served.sandboxd("run", "--", "touch kept", cwd=tree).returncode == 0
    assert (tree / "kept").exists()
    assert served.sandboxd("run", "--", "touch kept other", cwd=tree).returncode == 126


def test_what_was_typed_before_the_question_is_no_answer(served: Place) -> None:
    """Keys from before the question was shown do not answer it."""
    tree = served.workspace()
    with terminal(served, "run", "--", "touch made", cwd=tree) as screen:
        screen.type("y\ny\n")
        screen.wait_for("a  always allow")
        screen.wait_for("> ")
        screen.type("n\n")
        assert screen.wait() == 126, screen.shown
    assert not (tree / "made").exists()


def test_ctrl_c_at_the_question(served: Place) -> None:
    """Ctrl-C at the question ends with 130, runs nothing and leaves no question behind."""
    tree = served.workspace()
    with terminal(served, "run", "--", "touch made", cwd=tree) as screen:
        screen.wait_for("> ")
        screen.type("\x03")
        assert screen.wait() == 130, screen.shown
    assert not (tree / "made").exists()
    assert eventually(lambda: answer(served, "approvals", "list", cwd=tree) == [])


def test_ctrl_c_kills_the_tree(served: Place) -> None:
    """Ctrl-C at the terminal ends the command with all its children, and exits with 130."""
    tree = served.workspace()
    sleep = f"7{served.count}.{id(tree) % 100000}"
    with terminal(served, "run", *BYPASS, "--", f"sleep {sleep} & echo up; sleep {sleep}; wait", cwd=tree) as screen:
        screen.wait_for("up")
        assert eventually(lambda: bool(running(f"sleep\0{sleep}")))
        screen.type("\x03")
        assert screen.wait() == 130, screen.shown
    assert eventually(lambda: not running(f"sleep\0{sleep}"))


def test_output_cannot_forge_a_question(served: Place) -> None:
    """On a terminal colours pass; other control sequences of a command are shown, not obeyed."""
    tree = served.workspace()
    text = r"printf '\033[31mred\033[0m \033[2J\033]52;c;eA==\007done\n'"
    with terminal(served, "run", "--", text, cwd=tree) as screen:
        assert screen.wait() == 0, screen.shown
    assert "\x1b[31mred\x1b[0m" in screen.shown
    assert r"\x1b[2J\x1b]52;c;eA==\x07done" in screen.shown
