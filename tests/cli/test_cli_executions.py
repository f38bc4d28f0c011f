# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands that go on alone: started in the background, then listed, followed, fed, signalled and ended from elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import terminal
from tests.cli.test_cli_daemon import answer, said
from tests.e2e.conftest import Place, eventually, running

pytestmark = pytest.mark.needs("bwrap", "userns")

BYPASS = ("--mode", "bypassPermissions")


@pytest.fixture
def tree(served: Place) -> Iterator[Path]:
    """A workspace; the sessions that a test leaves are ended."""
    place = served.workspace()
    yield place
    for item in answer(served, "session", "list", cwd=place):
        answer(served, "session", "delete", item["id"], cwd=place)


def left(place: Place, text: str, *options: str, cwd: Path) -> str:
    """Start it in the background; its id."""
    return said(place, "run", "--background", *BYPASS, *options, "--", text, cwd=cwd).strip()


def piped(place: Place, *words: str, data: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line with `data` as its standard input."""
    command = [str(place.person.sandboxd), *words]
    env = place.person.env(place.env())
    return subprocess.run(command, cwd=cwd, env=env, input=data, capture_output=True, text=True, timeout=60, check=False)


def printed(place: Place, execution: str, text: str, cwd: Path) -> bool:
    return eventually(lambda: text in said(place, "executions", "logs", execution, cwd=cwd), 30)


def stands(place: Place, execution: str, cwd: Path) -> Any:
    return answer(place, "executions", "show", execution, cwd=cwd)


def test_a_command_goes_on_alone(served: Place, tree: Path) -> None:
    """`run --background` prints the id and returns; the command is listed, its output is there, it is fed and ends as itself."""
    text = "echo up; read line; echo got $line >&2; exit 3"
    execution = left(served, text, "--stdin", cwd=tree)
    assert re.fullmatch(r"e-[0-9a-f]{16}", execution)
    (found,) = answer(served, "executions", "list", "--running", cwd=tree)
    assert (found["id"], found["state"], found["text"]) == (execution, "running", text)
    assert re.search(rf"^{execution}  running +s-\S+ +echo up", said(served, "executions", "list", cwd=tree), re.MULTILINE)
    assert printed(served, execution, "up\n", tree)
    assert stands(served, execution, tree)["result"] is None
    done = piped(served, "executions", "attach", "--stdin", "--summary", execution, data="it\n", cwd=tree)
    assert (done.returncode, done.stdout) == (3, "up\n")
    assert re.match(r"got it\nsandboxd: allowed by 2a .* exit 3 in ", done.stderr)
    assert answer(served, "executions", "list", "--running", cwd=tree) == []
    shown = stands(served, execution, tree)
    assert (shown["state"], shown["result"]["code"], shown["model_text"]["text"]) == ("ended", 3, "up\ngot it\n")
    text = said(served, "executions", "show", execution, cwd=tree)
    assert re.search(r"^end +exited, 3$", text, re.MULTILINE), text
    assert re.search(r"^a model reads +10 characters, whole$", text, re.MULTILINE), text


def test_logs_are_followed_and_kept(served: Place, tree: Path) -> None:
    """`logs` gives what there is, `logs -f` goes on to the end, `--from` skips; afterwards all of it is still there."""
    execution = left(served, "echo one; read line; echo two", "--stdin", cwd=tree)
    assert printed(served, execution, "one\n", tree)
    with served.started("executions", "logs", "-f", execution, cwd=tree) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "one\n"
        assert piped(served, "executions", "attach", "--stdin", execution, data="\n", cwd=tree).stdout == "one\ntwo\n"
        assert child.stdout.read() == "two\n"
        assert child.wait(30) == 0
    assert said(served, "executions", "logs", execution, cwd=tree) == "one\ntwo\n"
    lines = said(served, "executions", "logs", "-o", "json", execution, cwd=tree).splitlines()
    events = [json.loads(line) for line in lines]
    assert [item["kind"] for item in events][-1] == "exited"
    (second,) = [item["event"]["seq"] for item in events if item["event"].get("data") == "two\n"]
    assert said(served, "executions", "logs", "--from", str(second), execution, cwd=tree) == "two\n"


def test_signals(served: Place, tree: Path) -> None:
    """`signal` takes names and numbers, `kill` is KILL; the end tells."""
    trapping = "trap 'echo caught' USR1; echo up; while :; do read -t 0.1; done"
    execution = left(served, trapping, "--stdin", cwd=tree)
    assert printed(served, execution, "up\n", tree)
    for name in ("usr1", "SIGUSR1", "10"):
        said(served, "executions", "signal", execution, name, cwd=tree)
    assert printed(served, execution, "caught\n", tree)
    assert answer(served, "executions", "kill", execution, cwd=tree) == {"id": execution, "signal": 9}
    assert served.sandboxd("executions", "attach", execution, cwd=tree).returncode == 137
    done = served.sandboxd("executions", "signal", execution, "TERM", cwd=tree)
    assert (done.returncode, done.stdout) == (2, "")
    done = served.sandboxd("executions", "signal", execution, "SIGNONE", cwd=tree)
    assert done.returncode == 2
    assert "`SIGNONE` is no signal" in done.stderr


def test_cancel(served: Place, tree: Path) -> None:
    """`cancel` ends it with everything it started, waits for that, and says why; a second one is told that it is over."""
    execution = left(served, "(setsid sleep 74.25 &); exec sleep 74.25", cwd=tree)
    assert eventually(lambda: len(running("sleep\x0074.25")) == 2)
    assert said(served, "executions", "cancel", execution, "--cause", "no need", cwd=tree) == "cancelled: no need\n"
    assert eventually(lambda: not running("sleep\x0074.25"))
    done = served.sandboxd("executions", "cancel", execution, cwd=tree)
    assert (done.returncode, done.stderr) == (
        2,
        f"sandboxd: execution `{execution}` has ended; see `sandboxd executions show`\n",
    )


def test_its_session_ends_it(served: Place, tree: Path) -> None:
    """Deleting the session of a background command ends the command and forgets what it printed."""
    started = answer(served, "run", "--background", *BYPASS, "--", "echo up; exec sleep 74.5", cwd=tree)
    execution, session = started["execution_id"], started["session_id"]
    assert printed(served, execution, "up\n", tree)
    assert [item["id"] for item in answer(served, "executions", "list", "--session", session, cwd=tree)] == [execution]
    said(served, "session", "delete", session, cwd=tree)
    assert eventually(lambda: not running("sleep\x0074.5"))
    done = served.sandboxd("executions", "logs", execution, cwd=tree)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no execution `{execution}`" in done.stderr


def test_nobody_comes_back(served: Place, tree: Path) -> None:
    """With --detach-ttl it ends when nobody has followed it for so long."""
    execution = left(served, "exec sleep 60", "--detach-ttl", "0.2", cwd=tree)
    assert eventually(lambda: stands(served, execution, tree)["state"] == "ended", 30)
    assert stands(served, execution, tree)["result"]["cause"] == "nobody came back within 0.2 s"


def test_what_never_runs_leaves_no_session(served: Place, tree: Path) -> None:
    """A denied command is reported as `run` reports it, and nothing of it stays."""
    done = served.sandboxd("run", "--background", "--", "touch made", cwd=tree)
    assert (done.returncode, done.stdout) == (126, "")
    assert "denied by step 3" in done.stderr
    assert answer(served, "session", "list", cwd=tree) == []


WRONG = [
    (("--background", "--tty"), 2, "--tty does not go with --background"),
    (("--background", "--embedded"), 2, "--embedded does not go with --background"),
    (("--stdin",), 2, "--stdin needs --background"),
    (("--detach-ttl", "5"), 2, "--detach-ttl needs --background"),
]


@pytest.mark.parametrize(("options", "status", "message"), WRONG)
def test_options_that_do_not_go_together(options: tuple[str, ...], status: int, message: str, served: Place, tree: Path) -> None:
    """What makes no sense is one clear error, and nothing runs."""
    done = served.sandboxd("run", *options, "--", "true", cwd=tree)
    assert done.returncode == status
    assert message in done.stderr


def test_a_background_command_needs_a_daemon(place: Place) -> None:
    """Without a daemon nothing can go on alone: it says how to start one."""
    done = place.sandboxd("run", "--background", "--", "true", cwd=place.workspace())
    assert done.returncode == 125
    assert "sandboxd serve" in done.stderr


def test_ctrl_c_leaves_it_running(served: Place, tree: Path) -> None:
    """Whoever attached can leave again: the command goes on."""
    execution = left(served, "echo up; read line; echo $line", "--stdin", cwd=tree)
    with terminal(served, "executions", "attach", execution, cwd=tree) as screen:
        screen.wait_for("up")
        screen.type("\x03")
        screen.wait_for("left running")
        assert screen.wait() == 130
    assert stands(served, execution, tree)["state"] == "running"
    done = piped(served, "executions", "attach", "--stdin", execution, data="on\n", cwd=tree)
    assert (done.returncode, done.stdout) == (0, "up\non\n")


def test_a_question_is_asked_of_who_attaches(served: Place, tree: Path) -> None:
    """A command that waits for a person asks whoever attaches at a terminal, too."""
    with terminal(served, "run", "--", "touch made", cwd=tree) as first:
        first.wait_for("> ")
        (waiting,) = answer(served, "executions", "list", "--running", cwd=tree)
        assert waiting["state"] == "waiting"
        with terminal(served, "executions", "attach", waiting["id"], cwd=tree) as second:
            second.wait_for("may this run?")
            second.wait_for("> ")
            second.type("y\n")
            assert second.wait() == 0, second.shown
        assert first.wait() == 0, first.shown
    assert (tree / "made").exists()
