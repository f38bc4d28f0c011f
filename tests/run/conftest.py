# SPDX-License-Identifier: GPL-3.0-or-later
"""A contract double of a box: a real process of its own session, watched through a pidfd, without confinement."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandboxd.model import Box, EndKind, Enforcement, Event, ExitStatus, Output, Stdio, Stream
from sandboxd.run.ended import Ended
from sandboxd.run.execution import Execution


class LocalBox:
    """`bash -c TEXT` in a new session; kill ends the process group."""

    def __init__(self, text: str, stdio: Stdio, report: str = "") -> None:
        self.text = text
        keep = () if stdio.cwd_report < 0 else (stdio.cwd_report,)
        if keep:
            text = f"{text}\npwd -P >&{stdio.cwd_report}"
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-c", text],
            stdin=stdio.stdin,
            stdout=stdio.stdout,
            stderr=stdio.stderr,
            pass_fds=keep,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.enforcement = Enforcement(backend="test", layers=())
        self.reaped = False

    def signal(self, number: int) -> None:
        self._send(number)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if not self.reaped:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                pass

    def reap(self) -> ExitStatus:
        _, status, usage = os.wait4(self.pid, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code
        self.reaped = True
        os.close(self.pidfd)
        return ExitStatus(
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            user_seconds=usage.ru_utime,
            system_seconds=usage.ru_stime,
            max_rss=usage.ru_maxrss * 1024,
        )


@dataclass
class Runner:
    """Makes executions and runs them; remembers the boxes so that a test can see that none is left."""

    spool_dir: str
    boxes: list[LocalBox] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)

    def make(self, text: str = "") -> Execution:
        execution = Execution(f"e{len(self.executions)}", "s1", text, self.spool_dir)
        self.executions.append(execution)
        return execution

    def start(self, text: str) -> Callable[[Stdio], Box]:
        def begin(stdio: Stdio) -> Box:
            box = LocalBox(text, stdio)
            self.boxes.append(box)
            return box

        return begin

    async def run(self, execution: Execution, text: str, **options: Any) -> Ended:
        settings: dict[str, Any] = {
            "timeout": None,
            "grace": 0.2,
            "stdin": False,
            "report_cwd": False,
            "max_output": None,
            "profile": "workspace",
        }
        return await execution.run(self.start(text), **(settings | options))


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    """A runner that checks, after the test, that no descriptor, process group or spool is left."""
    before = _open_fds()
    made = Runner(str(tmp_path))
    yield made
    for execution in made.executions:
        execution.close()
    assert os.listdir(tmp_path) == []
    for box in made.boxes:
        assert box.reaped
        for pid in _group(box.pid):
            assert _ends(pid), f"process {pid} of `{box.text}` lives on"
    assert _open_fds() <= before


def _group(group: int) -> list[int]:
    """The processes of a process group."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(stat.rpartition(")")[2].split()[2]) == group:
                found.append(int(name))
    return found


def _ends(pid: int) -> bool:
    """Whether the process is dead or, being killed, dies within a second (a pidfd tells of zombies too)."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], 1.0)[0])
    finally:
        os.close(fd)


def _open_fds() -> set[str]:
    """Descriptors of this process but for those of event loops, which the test framework owns."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if not target.startswith(("anon_inode:[eventpoll]", "socket:")):
            found.add(f"{fd} {target}")
    return found


def output(events: list[Event], stream: Stream = Stream.STDOUT) -> bytes:
    return b"".join(event.data for event in events if isinstance(event, Output) and event.stream is stream)


async def until(events: Any, text: bytes) -> bytes:
    """Follow the events until stdout contains `text`; what came so far."""
    seen = b""
    async for event in events:
        if isinstance(event, Output) and event.stream is Stream.STDOUT:
            seen += event.data
            if text in seen:
                return seen
    raise AssertionError(f"{text!r} never came, only {seen[-200:]!r}")


async def run_out(execution: Execution, mark: bytes) -> None:
    """Let the time run out as soon as the command has printed `mark`: no guess at how long its start takes."""
    await until(execution.events(), mark)
    assert execution._process is not None
    execution._process.stop(EndKind.TIMED_OUT, "timeout")


async def gather_events(execution: Execution, from_seq: int = 1) -> list[Event]:
    async with asyncio.timeout(60):
        return [event async for event in execution.events(from_seq)]
