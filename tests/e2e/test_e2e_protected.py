# SPDX-License-Identifier: GPL-3.0-or-later
"""The killswitch's second line through the whole daemon: an opaque script in bypassPermissions, and a daemon that is killed."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from pathlib import Path

from tests.e2e.conftest import Daemon, Place, said
from tests.isolation.test_isolation_touches import TOUCHES, protected

BYPASS = ("--mode", "bypassPermissions")


def listing(workspace: Path) -> list[str]:
    return sorted(each.name for each in workspace.iterdir())


def status(place: Place, workspace: Path) -> str:
    done = place.person.run(["git", "status", "--porcelain", "--ignored"], cwd=workspace, env=place.env())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_of_all_of_them_changes_nothing(place: Place) -> None:
    """Every way to touch what is protected, in one script that runs without a question: nothing protected changes."""
    workspace = place.workspace()
    for name in (".claude/settings.json", ".vscode/tasks.json", "sub/file"):
        target = workspace / name
        target.parent.mkdir(exist_ok=True)
        target.write_text("{}\n", encoding="utf-8")
    (place.home / ".bashrc").write_text("# mine\n", encoding="utf-8")
    rows = [f"bash -c {shlex.quote(f'printf x > payload; {row}')} </dev/null" for row in TOUCHES]
    (workspace / "x.sh").write_text("\n".join([*rows, "echo end", ""]), encoding="utf-8")
    place.person.own(workspace)
    place.person.own(place.home)
    done = place.person.run(["git", "init", "-q", "sub"], cwd=workspace, env=place.env())
    assert done.returncode == 0
    before = protected(workspace, place.home)
    done = place.sandboxd("run", *BYPASS, "--", "bash ./x.sh", cwd=workspace, timeout=100)
    assert done.returncode == 0, done
    assert done.stdout.endswith("end\n")
    assert protected(workspace, place.home) == before


def test_nothing_is_left_or_shown(place: Place) -> None:
    """After a command the workspace holds what the command made, and the home directory nothing new."""
    workspace = place.workspace()
    home = {name for name in listing(place.home) if not name.startswith("ws")}
    before, shown = listing(workspace), status(place, workspace)
    done = place.sandboxd("run", *BYPASS, "--", "bash -c 'git status --porcelain --ignored'", cwd=workspace)
    assert (done.returncode, done.stdout) == (0, shown)
    assert listing(workspace) == before
    assert status(place, workspace) == shown
    assert {name for name in listing(place.home) if not name.startswith("ws")} - home <= {".local", ".config"}


def test_a_killed_daemon_leaves_nothing(new_place: Callable[[], Place], start_daemon: Callable[[Place], Daemon]) -> None:
    """SIGKILL while a command runs: git sees nothing meanwhile, and the next start takes away what was left."""
    place = new_place()
    daemon = start_daemon(place)
    workspace = place.workspace()
    before, shown = listing(workspace), status(place, workspace)
    with place.started("run", *BYPASS, "--", "bash -c 'echo on; sleep 100; touch later'", cwd=workspace) as child:
        assert said(child, "on\n")
        assert listing(workspace) != before
        assert status(place, workspace) == shown
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
    assert status(place, workspace) == shown
    (place.home / "notify").unlink()
    start_daemon(place)
    assert listing(workspace) == before


def test_notes_reach_the_caller(place: Place) -> None:
    """What was found after the command stands in the result that the client gets."""
    workspace = place.workspace()
    (workspace / "x.sh").write_text("git init -q r; git -C r config core.fsmonitor ./x\n", encoding="utf-8")
    done = place.sandboxd("run", *BYPASS, "--output", "json", "--", "bash ./x.sh", cwd=workspace)
    assert "protected_created" in done.stdout
    assert "core.fsmonitor" in done.stdout
