# SPDX-License-Identifier: GPL-3.0-or-later
"""How a command and a daemon end: time-out, Ctrl-C, a client that vanishes, a reload with a mistake in it, a stop."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable

import pytest

from tests.e2e.conftest import Daemon, Place, eventually, running, said

BYPASS = ("--mode", "bypassPermissions")


def marker(place: Place) -> str:
    """A length of sleep that nobody else uses, by which a process is found from outside."""
    place.count += 1
    return f"1{os.getpid()}.{place.person.uid}{place.count}"


@pytest.fixture(params=["daemon", "embedded"])
def either(request: pytest.FixtureRequest, served: Place, place: Place) -> Place:
    return served if request.param == "daemon" else place


def test_a_time_out_keeps_the_output_and_leaves_no_process(either: Place) -> None:
    """A command over its time ends with 124, shows what it said so far, and takes everything it started with it."""
    sleep = marker(either)
    text = f"echo early; (setsid sleep {sleep} &) ; sleep {sleep}"
    done = either.sandboxd("run", *BYPASS, "--timeout", "1", "--", text, cwd=either.workspace())
    assert done.returncode == 124, done
    assert done.stdout == "early\n"
    assert eventually(lambda: not running(sleep))


def test_output_comes_while_the_command_runs(either: Place) -> None:
    """What a command says is shown at once, not when it ends."""
    with either.started("run", *BYPASS, "--", f"echo one; echo two >&2; sleep {marker(either)}", cwd=either.workspace()) as child:
        assert said(child, "one\n")
        assert child.poll() is None


def test_a_process_left_behind_ends_with_its_command(either: Place) -> None:
    """What a command leaves in the background does not outlive it, even in a session of its own."""
    sleep = marker(either)
    done = either.sandboxd("run", *BYPASS, "--", f"setsid sleep {sleep} >/dev/null 2>&1 & echo on", cwd=either.workspace())
    assert done.stdout == "on\n", done
    assert eventually(lambda: not running(sleep))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)], ids=["Ctrl-C", "vanished"])
def test_the_tree_dies_with_its_client(number: int, status: int, either: Place) -> None:
    """Ctrl-C, or a client that is simply gone, ends the command and all its children."""
    sleep = marker(either)
    text = f"echo on; sleep {sleep} & sleep {sleep}; wait"
    with either.started("run", *BYPASS, "--", text, cwd=either.workspace()) as child:
        assert said(child, "on\n")
        assert eventually(lambda: len(running(sleep)) >= 2)
        child.send_signal(number)
        assert child.wait(30) == status
        assert eventually(lambda: not running(sleep))


def test_the_sockets_are_private(served: Place) -> None:
    """Nobody but the owner can reach the daemon."""
    directory = served.runtime / "sandboxd"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for name in ("agent.sock", "admin.sock"):
        info = (directory / name).stat()
        assert stat.S_ISSOCK(info.st_mode)
        assert stat.S_IMODE(info.st_mode) == 0o600


def test_a_second_daemon_does_not_steal_the_socket(served: Place) -> None:
    """Starting another daemon in the same place fails in words, and the first goes on."""
    done = served.sandboxd("serve", cwd=served.home)
    assert done.returncode == 125, done
    assert "another daemon" in done.stderr
    assert served.sandboxd("run", "--", "echo still here", cwd=served.workspace()).stdout == "still here\n"


def test_a_bad_reload_keeps_the_last_good_state(new_place: Callable[[], Place], start_daemon: Callable[[Place], Daemon]) -> None:
    """A mistake in the configuration is one error with file and line; the daemon goes on with what it had."""
    place = new_place()
    config = place.home / ".config" / "sandboxd" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[run]\ntimeout = 5.0\n", encoding="utf-8")
    place.person.own(place.home)
    daemon = start_daemon(place)
    config.write_text("[run]\ntimeout = 5.0\ntimeuot = 1\n", encoding="utf-8")
    daemon.reload()
    status = place.sandboxd("status", cwd=place.home)
    assert f"{config}:3" in status.stdout + status.stderr, (status, daemon.log.read_text())
    assert "timeuot" in status.stdout + status.stderr
    assert place.sandboxd("run", "--", "echo on", cwd=place.workspace()).stdout == "on\n"
    config.write_text("[run]\ntimeout = 5.0\n", encoding="utf-8")
    daemon.reload()
    assert "timeuot" not in place.sandboxd("status", cwd=place.home).stdout
    assert daemon.stop() == 0


def test_a_daemon_that_is_killed_takes_its_boxes_along(
    new_place: Callable[[], Place], start_daemon: Callable[[Place], Daemon]
) -> None:
    """SIGKILL of the daemon takes every box with it."""
    place = new_place()
    daemon = start_daemon(place)
    sleep = marker(place)
    with place.started("run", *BYPASS, "--", f"echo on; sleep {sleep}", cwd=place.workspace()) as child:
        assert said(child, "on\n")
        daemon.process.kill()
        assert child.wait(30) == 125
        assert eventually(lambda: not running(sleep))


WRONG = [
    (["run", "--allow", "Bash(git", "--", "true"], 2, r"Bash(git"),
    (["run", "--mode", "fearless", "--", "true"], 2, "fearless"),
    (["run", "--timeout", "-1", "--", "true"], 2, "-1"),
    (["run", "--profile", "no-such-profile", "--", "true"], 2, "no-such-profile"),
    (["run"], 2, "no command"),
    (["run", "true", "--", "true"], 2, "before `--`"),
    (["frobnicate"], 2, "frobnicate"),
]


@pytest.mark.parametrize(("words", "exit_status", "named"), WRONG, ids=lambda value: str(value)[:40])
def test_bad_input_gets_one_clear_error(words: list[str], exit_status: int, named: str, served: Place) -> None:
    """What was wrong is named, the exit status says whose fault it is, and there is no traceback."""
    done = served.sandboxd(*words, cwd=served.workspace())
    assert done.returncode == exit_status, done
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_a_malformed_profile_names_its_line(place: Place) -> None:
    """`profile check` says where a profile is wrong and what would be right."""
    profile = place.home / "mine.toml"
    profile.write_text('# a profile\n[network]\nmode = "sometimes"\n', encoding="utf-8")
    place.person.own(profile)
    done = place.sandboxd("profile", "check", str(profile), cwd=place.home)
    assert done.returncode != 0, done
    assert f"{profile}:3" in done.stdout + done.stderr


def test_the_record_tells_what_happened(served: Place) -> None:
    """A decision can be found afterwards, with its step and its text."""
    tree = served.workspace()
    served.sandboxd("run", "--", "cat a.txt # for the record", cwd=tree)
    listed = served.sandboxd("decisions", "list", cwd=tree)
    assert "for the record" in listed.stdout, listed
    assert "2e" in listed.stdout


def test_doctor_runs_a_sandbox(place: Place) -> None:
    """`doctor` passes where sandboxd works, having run a real sandbox."""
    done = place.sandboxd("doctor", cwd=place.home)
    assert done.returncode == 0, done
    assert "PASS" in done.stdout
    assert "FAIL" not in done.stdout


def test_status_says_that_it_serves(served: Place) -> None:
    """`status` shows a daemon that is serving and how strong its sandbox is."""
    done = served.sandboxd("status", cwd=served.home)
    assert done.returncode == 0, done
    assert "serving" in done.stdout.lower()
    assert "bwrap" in done.stdout
