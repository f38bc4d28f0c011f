# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon is killed while it runs commands: nothing of it stays, and what was printed can still be read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxd.client import AsyncClient
from sandboxd.errors import NotFound, Unavailable
from sandboxd.model import Decided, EndKind, Event, Exited, Mode, Output

pytestmark = pytest.mark.needs("bwrap", "userns")

MARK = "left-by-a-killed-daemon"


@contextmanager
def serving(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon of its own, ready to serve."""
    env = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home / "r"), "PATH": os.environ["PATH"], "TMPDIR": str(home / "t")}
    child = subprocess.Popen([sys.executable, "-m", "sandboxd.cli.main", "serve"], env=env, stderr=subprocess.PIPE)
    try:
        assert child.stderr is not None
        while select.select([child.stderr], [], [], 30)[0]:
            line = child.stderr.readline()
            if b"serving on" in line or not line:
                break
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.wait(30)
        if child.stderr is not None:
            child.stderr.close()


def processes(mark: str) -> list[int]:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
        except OSError:
            pass
    return found


def wait_gone(pids: list[int]) -> None:
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([fd], [], [], 10)[0], f"process {pid} lives on"
        finally:
            os.close(fd)


async def test_a_killed_daemon() -> None:
    """After SIGKILL every box dies, the workspace is as it was, no mount and no temporary directory stays; a new daemon
    closes the execution as daemon_restart and replays what it printed, to the session's own secret and to the admin."""
    with tempfile.TemporaryDirectory(prefix="sbxd-crash-") as directory:
        home = Path(directory)
        for name in ("ws", "r", "t"):
            (home / name).mkdir(mode=0o700)
        (home / "ws" / "a.txt").write_text("a\n")
        before = sorted(os.listdir(home / "ws"))
        mounts = Path("/proc/self/mountinfo").read_text()
        config = home / ".config" / "sandboxd"
        config.mkdir(parents=True)
        (config / "config.toml").write_text(f'[sessions]\nroots = ["{home}"]\nmax_mode = ["default", "bypassPermissions"]\n')
        agent, admin = (f"unix:{home}/r/sandboxd/{role}.sock" for role in ("agent", "admin"))
        with serving(home) as daemon:
            async with AsyncClient(agent, admin=False) as client:
                session = await client.session(str(home / "ws"), mode=Mode.BYPASS)
                text = f"for i in 1 2 3; do setsid bash -c 'exec -a {MARK} tail -f /dev/null' & done; seq 3; exec -a {MARK} cat"
                execution = await session.start(text, stdin=True, keep_on_disconnect=True)
                printed = b""
                async for event in execution:
                    if isinstance(event, Output):
                        printed += event.data
                        if printed.endswith(b"3\n"):
                            break
                inside = processes(MARK)
                assert inside
                os.kill(daemon.pid, signal.SIGKILL)
                daemon.wait(30)
                await execution.close()
        wait_gone(inside)
        assert processes(MARK) == []
        assert Path("/proc/self/mountinfo").read_text() == mounts
        with serving(home):
            assert sorted(os.listdir(home / "ws")) == before  # mount points of the box are gone, too
            assert [name for name in os.listdir(home / "t") if name.startswith("sandboxd-")] == []
            for address, secret in ((agent, session.secret), (admin, "")):
                async with AsyncClient(address, admin=address == admin) as client:
                    await replayed(client, session.id if secret else "", secret, execution.id)
            async with AsyncClient(agent, admin=False) as client:
                with pytest.raises(NotFound):
                    await replayed(client, session.id, "wrong", execution.id)


async def test_a_daemon_killed_in_full_flow() -> None:
    """Whatever a client has seen of a command before the daemon was killed is in the replay, chunk for chunk: output is in the
    spool before anybody hears of it."""
    with tempfile.TemporaryDirectory(prefix="sbxd-crash-") as directory:
        home = Path(directory)
        for name in ("ws", "r", "t"):
            (home / name).mkdir(mode=0o700)
        admin = f"unix:{home}/r/sandboxd/admin.sock"
        seen: list[Output] = []
        with serving(home) as daemon:
            async with AsyncClient(admin, admin=True) as client:
                session = await client.session(str(home / "ws"), mode=Mode.BYPASS)
                execution = await session.start("seq 100000000 & seq 1 3 5000000 >&2; wait", keep_on_disconnect=True)
                with contextlib.suppress(Unavailable):
                    async for event in execution:
                        if isinstance(event, Output):
                            seen.append(event)
                            if sum(len(each.data) for each in seen) > 40_000_000:
                                os.kill(daemon.pid, signal.SIGKILL)
                daemon.wait(30)
        with serving(home):
            async with AsyncClient(admin, admin=True) as client:
                events = await follow(client, "", "", execution.id, 1)
        replay = [event for event in events if isinstance(event, Output)]
        assert len(seen) <= len(replay)
        assert replay[: len(seen)] == seen
        last = events[-1]
        assert isinstance(last, Exited)
        assert last.result.end is EndKind.DAEMON_RESTART
        assert last.result.stdout_bytes + last.result.stderr_bytes == sum(len(event.data) for event in replay)


async def replayed(client: AsyncClient, session_id: str, secret: str, execution_id: str) -> None:
    """Follow the execution of the daemon that is gone, from its first event and from one that never was."""
    events = await follow(client, session_id, secret, execution_id, 1)
    assert b"".join(event.data for event in events if isinstance(event, Output)) == b"1\n2\n3\n"
    assert any(isinstance(event, Decided) for event in events)
    last = events[-1]
    assert isinstance(last, Exited)
    assert (last.result.end, last.result.cause) == (EndKind.DAEMON_RESTART, "daemon_restart")
    assert last.result.stdout_bytes == 6
    assert (await follow(client, session_id, secret, execution_id, 1000))[-1] == last


async def follow(client: AsyncClient, session_id: str, secret: str, execution_id: str, start: int) -> list[Event]:
    async with asyncio.timeout(30):
        async with await client.attach_execution(execution_id, session_id, secret, from_sequence=start) as execution:
            return [event async for event in execution]
