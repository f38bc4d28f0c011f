# SPDX-License-Identifier: GPL-3.0-or-later
"""A box's life: start, signals, end, what it reports, and that nothing of it stays. Real boxes, each kind of user."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sandboxd.errors import IsolationError
from sandboxd.isolation import backends, cgroups
from sandboxd.isolation.box import trial_plan
from sandboxd.isolation.plan import plan
from sandboxd.model import Backend, Box, Limits, PlanRequest, Stdio
from tests._require import require
from tests.isolation import _drive
from tests.isolation.conftest import HERE, Runner


def alive(marker: str) -> list[int]:
    """The processes of this machine that have `marker` among their arguments."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if marker.encode() in words:
                found.append(int(name))
    return found


def named(name: str) -> Backend:
    return next(each for each in backends.BACKENDS if each.name == name)


@pytest.fixture(scope="module")
def ws(who: Runner) -> Path:
    return who.make("life")


@pytest.mark.parametrize(
    ("text", "code", "signal"),
    [
        ("true", 0, None),
        ("exit 3", 3, None),
        ("exit 143", 143, None),
        ("kill -TERM $$", None, 15),
        ("kill -KILL $$", None, 9),
        ("nonsense-command", 127, None),
        ("sh -c 'kill -9 $$'", None, 9),  # bash replaces itself by the last command
        ("sh -c 'kill -9 $$'; exit 137", 137, None),
    ],
)
def test_status(who: Runner, ws: Path, text: str, code: int | None, signal: int | None) -> None:
    """An exit status and a signal are told apart, though a shell would write both as the same number."""
    result = who(text, ws)
    assert (result.code, result.signal, result.error) == (code, signal, "")


def test_output_streams_are_apart_and_the_text_may_be_long(who: Runner, ws: Path) -> None:
    """64 kB of command text run as they are; stdout and stderr do not mix."""
    text = "printf out; printf err >&2; : " + "x" * 64_000
    result = who(text, ws)
    assert (result.out, result.err, result.code) == ("out", "err", 0)


def test_here_documents_and_substitutions_work_under_the_promise(who: Runner, ws: Path) -> None:
    """The shell's own temporary files and descriptors need no writable workspace."""
    big = "y" * 90_000
    text = f"cat <<'E' | wc -c\n{big}\nE\ncat <(echo one) > /dev/stdout; echo two | tee /dev/stderr >/dev/null; sort <<< three"
    result = who(text, ws, promise=True, tmp=str(who.make("life-tmp")))
    assert (result.out, result.err, result.code) == ("90001\none\nthree\n", "two\n", 0)


@pytest.mark.parametrize(
    ("text", "cwd", "code"),
    [
        ("cd /usr", "/usr\n", 0),
        ("cd /usr; exit 4", "/usr\n", 4),
        ("cd /usr && false", "/usr\n", 1),
        ("(cd /usr)", "{ws}\n", 0),
        ("set -eu; cd /usr/bin", "/usr/bin\n", 0),
        ("trap 'echo mine' EXIT; cd /usr", "", 0),
        ("exec true", "", 0),
    ],
)
def test_the_last_directory_is_reported(who: Runner, ws: Path, text: str, cwd: str, code: int) -> None:
    """The shell says where it ended, by an EXIT trap that changes neither the status nor what is printed."""
    result = who(text, ws, report_cwd=True)
    assert (result.cwd, result.code) == (cwd.format(ws=ws), code)
    assert result.err == ""


def test_the_report_is_not_seen(who: Runner, ws: Path) -> None:
    """Tracing does not show it, children do not inherit its variable."""
    result = who("set -x; env > e; grep -c BASH_ENV e; :", ws, report_cwd=True)
    assert (result.out, result.err) == ("0\n", "+ env\n+ grep -c BASH_ENV e\n+ :\n")


def test_a_signal_reaches_the_commands_processes(who: Runner, ws: Path) -> None:
    """TERM goes to the whole process group, so a shell that waits and its child both get it.

    The child is in the background: bash runs a trap only once its foreground child has ended, and a TERM that comes just
    before that child is forked misses it.
    """
    result = who("trap 'wait; echo got; exit 143' TERM; sleep 1000 & echo ready; wait", ws, then="15")
    assert result.out == "ready\ngot\n"
    assert result.code == 143


def test_an_untrapped_signal_ends_the_command(who: Runner, ws: Path) -> None:
    """And the status is that signal."""
    result = who("echo ready; sleep 1000; echo never", ws, then="2")
    assert (result.out, result.code, result.signal) == ("ready\n", None, 2)


@pytest.mark.parametrize("backend", backends.FULL)
def test_a_terminal_is_the_commands_own(tmp_path: Path, backend: str) -> None:
    """With a PTY the command has a controlling terminal: it reads from it, and its interrupt key reaches what runs."""
    asked = dataclasses.replace(
        _drive.request({
            "text": "trap 'echo interrupted; exit 130' INT; tty; read -r line </dev/tty; echo \"got $line\"; sleep 1000",
            "workspace": str(tmp_path), "home": "/root", "uid": os.getuid(),
        }),
        tty=True,
    )  # fmt: skip
    ours, theirs = os.openpty()
    launch = plan(asked, backends.host_facts(asked.session, asked))
    box = named(backend).start(launch, Stdio(theirs, theirs, theirs))
    os.close(theirs)
    os.write(ours, b"hello\n")
    said = b""
    while b"got hello" not in said:
        said += os.read(ours, 1000)
    while b"interrupted" not in said:
        os.write(ours, b"\x03")  # again while nothing comes: a bash that has just forked keeps its trap until the child ends
        while b"interrupted" not in said and select.select([ours], [], [], 1)[0]:  # each ^C also flushes what was not read
            said += os.read(ours, 1000)
    assert select.select([box.pidfd], [], [], 20)[0]
    assert box.reap().code == 130
    os.close(ours)


def test_kill_leaves_nothing(who: Runner, ws: Path) -> None:
    """Not what ignores signals, not what left session and process group."""
    marker = f"1000.{os.getpid()}1"
    text = (
        f"trap '' TERM HUP; for i in 1 2 3 4 5; do setsid sleep {marker} & done; (setsid setsid sleep {marker} &); echo up; wait"
    )
    result = who(text, ws, then="kill")
    assert (result.code, result.signal) == (None, 9)
    assert alive(marker) == []


def test_a_kill_while_bwrap_builds_leaves_nothing() -> None:
    """Neither bwrap nor the child that waits for it to be set up."""
    require("bwrap", "userns")
    backend = next(each for each in backends.BACKENDS if each.name == "bwrap")
    null, pause = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), threading.Event()
    for number in range(60):
        box = backend.start(trial_plan(), Stdio(null, null, null))
        pause.wait(number / 10_000)
        box.kill()
        assert select.select([box.pidfd], [], [], 30)[0]
        with contextlib.suppress(IsolationError):  # it was killed before anything ran
            box.reap()
        for _ in range(3000):  # until init has collected what was bwrap's child
            try:
                os.killpg(box.pid, 0)
            except ProcessLookupError:
                break
            pause.wait(0.01)
        else:
            pytest.fail("a process of the box stays")
    os.close(null)


def test_what_the_command_leaves_behind_ends_with_it(who: Runner, ws: Path) -> None:
    """A daemon that closed its output and made a session of its own is gone when the command is."""
    marker = f"1000.{os.getpid()}2"
    result = who(f"setsid sleep {marker} </dev/null >/dev/null 2>&1 & sleep 0.05; echo done", ws)
    assert result.out == "done\n"
    assert alive(marker) == []


def test_a_directory_that_is_not_there_is_the_boxs_failure(who: Runner, ws: Path) -> None:
    """It is told apart from a command that fails."""
    result = who("true", ws, cwd=str(ws / "missing"))
    assert "cannot enter" in result.error
    assert result.code is None


def test_a_workspace_below_tmp_works_and_leaves_nothing(who: Runner, tmp_path: Path) -> None:
    """Mount points for it are made in the session's /tmp, never on the host beside it."""
    workspace = tmp_path / "deep" / "ws"
    workspace.mkdir(parents=True)
    for each in (workspace, workspace.parent, tmp_path):
        os.chown(each, who.uid, -1)
        each.chmod(0o755)
    for above in tmp_path.parents:
        if str(above).startswith("/tmp/"):
            above.chmod(above.stat().st_mode | 0o011)
    session = who.make("below-tmp")
    for promise in (True, False):
        result = who(
            "pwd; ls; touch new 2>&1; echo kept > /tmp/kept; cat /tmp/kept", workspace, tmp=str(session), promise=promise
        )
        assert result.error == ""
        assert result.out.startswith(f"{workspace}\n")
    assert (session / "kept").read_text(encoding="utf-8") == "kept\n"
    assert (workspace / "new").exists()
    assert os.listdir(workspace.parent) == ["ws"]
    assert not Path("/tmp/kept").exists()


def test_a_planted_link_in_tmp_is_refused(who: Runner, tmp_path: Path) -> None:
    """A command swaps a mount point of the next box for a link out of it: the box is not built, nothing is made there."""
    victim = who.make("victim")
    session = who.make("planted")
    (session / "deep").symlink_to(f"/oldroot{victim}")
    result = who("true", Path("/tmp/deep/ws"), tmp=str(session), cwd="/")
    assert "symbolic link" in result.error
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize("inside", [".claude", "sub/.git"])
def test_a_protected_path_behind_a_link_is_refused(who: Runner, inside: str) -> None:
    """Neither the path itself nor a directory above it may be a link: the mount would guard another place."""
    name = "linked-" + inside.replace("/", "-")
    workspace = who.make(name)
    elsewhere = who.make(f"{name}-target")
    who.make(f"{name}-target/.git")
    link = workspace / inside.partition("/")[0]
    link.symlink_to(elsewhere)
    result = who("true", workspace, protected=[f"{workspace}/{inside}"])
    assert "symbolic link" in result.error


def test_a_protected_path_that_vanished_is_refused(who: Runner) -> None:
    """It was there when the command was judged; a box without its guard is not built."""
    workspace = who.make("vanished")
    result = who("true", workspace, protected=[f"{workspace}/.vscode"])
    assert "vanished" in result.error


@pytest.mark.parametrize(
    "text",
    [
        "echo x > out.txt",
        "touch out.txt",
        "cp /etc/hostname out.txt",
        "rm file",
        "mkdir out.txt",
        'python3 -c \'open("out.txt", "w")\'',
        "sed -i s/a/b/ file",
        "perl -i -pe 1 file",
        "tee out.txt < /dev/null",
        "mv file out.txt",
        "ln -s file out.txt",
        'node -e \'require("fs").writeFileSync("out.txt", "")\'',
        "git init -q out.txt",
        "make -s -f /dev/stdin <<< $'all:\\n\\techo > out.txt'",
    ],
)
def test_a_broken_promise_is_told_with_its_path(who: Runner, text: str) -> None:
    """A command judged read-only that writes fails with a read-only file system, and the result names where it wrote."""
    workspace = who.make("promised/file", "kept\n").parent
    if "node" in text and not Path("/usr/bin/node").exists():
        pytest.skip("no node")
    result = who(text, workspace, promise=True, grants=[])
    assert result.broken, result.err
    assert all(str(path).startswith(str(workspace)) for path in result.broken), result.broken
    assert os.listdir(workspace) == ["file"]
    assert (workspace / "file").read_text(encoding="utf-8") == "kept\n"


def test_limits(who: Runner) -> None:
    """Processes, file size and open files end where the profile says, whoever the user is."""
    profile = who.make("limits.toml", '[limits]\npids = 40\nfile_size = 100000\nopen_files = 64\n[isolation]\nrequire = "fs"\n')
    workspace = who.make("limited")
    bomb = "python3 -c 'import os, signal\nfor _ in range(200):\n  os.fork() or signal.pause()'"
    forks, size, files = who.all(
        [bomb, "head -c 200000 /dev/zero > big", "python3 -c 'import os; [os.dup(0) for _ in range(100)]'"],
        workspace,
        profile=str(profile),
    )
    assert forks.enforcement is not None
    if who.kind != "root" or "pids" in cgroups.available():
        assert forks.enforcement["limits"] == "full"
        assert "Resource temporarily unavailable" in forks.err
        assert forks.code == 1
    else:
        assert forks.enforcement["limits"] == "none"
    assert size.code == 153 or "File too large" in size.err
    assert (workspace / "big").stat().st_size == 100_000
    assert "Too many open files" in files.err
    assert ["pids" in rule for rule in forks.limits] == [True]
    assert ["file_size" in rule for rule in size.limits] == [True]
    assert ["open_files" in rule for rule in files.limits] == [True]


def test_processor_time_is_bounded(who: Runner) -> None:
    """A process that computes for longer than it may is ended, and the result says which line of the profile did it."""
    profile = who.make("cpu.toml", '[limits]\ncpu = 1\n[isolation]\nrequire = "fs"\n')
    result = who("while :; do :; done", who.make("cpu"), profile=str(profile))
    assert result.signal == 24
    assert ["limits.cpu = 1" in rule for rule in result.limits] == [True]


def test_memory_is_bounded_where_a_cgroup_can_be_made(who: Runner) -> None:
    """The command that takes too much is killed; the enforcement says whether the limit holds."""
    profile = who.make("memory.toml", '[limits]\nmemory = 100000000\n[isolation]\nrequire = "fs"\n')
    result = who("python3 -c 'x = bytearray(300 << 20)'; echo $?", who.make("memory"), profile=str(profile))
    assert result.enforcement is not None
    if who.kind != "plain" and "memory" in cgroups.available():
        assert result.enforcement["limits"] == "full"
        assert "137" in result.out
        assert result.oom == 1
    else:
        assert result.enforcement["limits"] == "partial"


def test_tmp_is_bounded(who: Runner) -> None:
    """A private /tmp has a size."""
    text = "python3 -c 'import os; os.posix_fallocate(os.open(\"/tmp/x\", 66), 0, 2 << 30)'"
    assert "No space left" in who(text, who.make("tmp"), profile="read-only", grants=[]).err


@pytest.mark.parametrize("backend", backends.FULL)
def test_no_descriptor_or_group_is_left(tmp_path: Path, backend: str) -> None:
    """Many boxes in one process, good and failed ones: the same descriptors as before, no control group stays."""
    spec = {"text": "echo x", "workspace": str(tmp_path), "home": "/root", "tmp": "", "backend": backend}
    _drive.run(spec)
    backends.drain()
    before = sorted(os.listdir("/proc/self/fd"))
    for number in range(10):
        assert _drive.run(spec)["out"] == "x\n"
        assert "error" in _drive.run({**spec, "cwd": f"/missing/{number}"})
    backends.drain()
    assert sorted(os.listdir("/proc/self/fd")) == before
    deadline = time.monotonic() + 20
    while cgroups._unremoved and time.monotonic() < deadline:  # a first process goes when its box is over, and then its group can
        cgroups.remove(())
    assert cgroups._unremoved == set()


@pytest.mark.parametrize("backend", [*backends.FULL, "warm"])
def test_a_killed_daemon_takes_its_boxes_along(tmp_path: Path, backend: str) -> None:
    """SIGKILL of the daemon's process ends everything that it runs."""
    marker = f"1000.{os.getpid()}3"
    text = f"setsid sleep {marker} & sleep {marker}"
    spec = {"text": text, "workspace": str(tmp_path), "home": "/root", "backend": backend}
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}
    with subprocess.Popen([sys.executable, str(HERE / "_drive.py")], stdin=subprocess.PIPE, env=environment) as daemon:
        assert daemon.stdin is not None
        daemon.stdin.write(json.dumps([spec]).encode())
        daemon.stdin.close()
        sleepers: list[int] = []
        while len(sleepers) < 2:
            sleepers = [pid for pid in alive(marker) if Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"]
            assert daemon.poll() is None
        pidfds = [os.pidfd_open(pid) for pid in sleepers]
        daemon.kill()
    for fd in pidfds:
        assert select.select([fd], [], [], 20)[0], "a process of the box outlived the daemon"
        os.close(fd)


@pytest.mark.parametrize("backend", backends.FULL)
def test_kill_before_anything_has_happened(tmp_path: Path, backend: str) -> None:
    """Killed right after its start, before anything has come of it: the box ends, and counts as killed, not as broken."""
    marker = f"1000.{os.getpid()}4"
    asked = _drive.request({"text": f"sleep {marker}", "workspace": str(tmp_path), "home": "/root"})
    for _ in range(5):
        box = _start(asked, backend)
        box.kill()
        box.kill()
        assert select.select([box.pidfd], [], [], 20)[0]
        assert (status := box.reap()).code is None
        assert status.signal == 9
    assert alive(marker) == []


def _start(asked: PlanRequest, backend: str) -> Box:
    null = os.open(os.devnull, os.O_RDWR)
    try:
        return named(backend).start(plan(asked, backends.host_facts(asked.session, asked)), Stdio(null, null, null))
    finally:
        os.close(null)


def test_one_group_of_version_2_holds_both_limits() -> None:
    """Where control groups of version 2 are delegated, a box has one group with both limits, and it is gone afterwards."""
    if cgroups.found().version != 2:
        pytest.skip("no delegated control groups of version 2 here; the other tests of limits ran on version 1 or rlimits")
    taken: list[int] = []

    def take(fd: int) -> int:
        taken.append(fd)
        return fd

    groups = cgroups.join(Limits(pids=50, memory=100 << 20), 0, take)
    try:
        (path,) = groups.paths
        assert Path(path, "pids.max").read_text() == "50\n"
        assert Path(path, "memory.max").read_text() == f"{100 << 20}\n"
        assert cgroups.events(groups.paths) == (0, 0)
    finally:
        for fd in taken:
            os.close(fd)
        cgroups.remove(groups.paths)
    assert not Path(path).exists()
