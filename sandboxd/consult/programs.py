# SPDX-License-Identifier: GPL-3.0-or-later
"""A program that is asked something: bytes on its stdin, its answer on stdout, bounded in time and size.

It gets its own process group, which is killed whole when the program has ended, is late, or is not waited for any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Ran:
    """How it ended. `out` is None when it said more than it may."""

    code: int
    out: bytes | None
    err: bytes


@dataclass(frozen=True, slots=True)
class Bounds:
    """`seconds` until it is killed; bytes of stdout (more is a failure) and of stderr (more is dropped)."""

    seconds: float
    out: int
    err: int


async def converse(argv: Sequence[str], data: bytes, bounds: Bounds, *, env: Mapping[str, str], cwd: str) -> Ran:
    """Run it to its end. Raises OSError when it cannot be started, TimeoutError when it is late."""
    process = subprocess.Popen(  # noqa: ASYNC220  a vfork: Popen without preexec_fn returns at exec
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        cwd=cwd,
        start_new_session=True,
    )
    with process:
        try:
            async with asyncio.timeout(bounds.seconds):
                out, err = await _talk(process, data, bounds)
        finally:
            _end(process)
            code = process.wait()  # it has been killed, or has ended: this does not wait
    return Ran(code, out, err)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the process group. Only before it is reaped: its number is not another's yet."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


async def _talk(process: subprocess.Popen[bytes], data: bytes, bounds: Bounds) -> tuple[bytes | None, bytes]:
    """Feed stdin, read both streams until the program itself has ended. Stdout is None when it said too much.

    asyncio's own subprocess would wait for the pipes, which a process that the program left behind keeps open.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    pidfd = os.pidfd_open(process.pid)

    def gone() -> None:
        loop.remove_reader(pidfd)
        ended.set_result(None)

    loop.add_reader(pidfd, gone)
    feeding = asyncio.create_task(_feed(process.stdin, data))
    reading = [
        asyncio.create_task(_read(process.stdout, bounds.out, stops=True)),
        asyncio.create_task(_read(process.stderr, bounds.err, stops=False)),
    ]
    try:
        await asyncio.wait((ended, reading[0]), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done() and reading[0].result()[1]:
            return None, b""
        await ended
        _end(process)  # what it left behind would hold the pipes open
        (out, over), (err, _) = await asyncio.gather(*reading)
        return (None if over else out), err
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        for task in (feeding, *reading):
            task.cancel()
        await asyncio.gather(feeding, *reading, return_exceptions=True)


async def _feed(stream: IO[bytes] | None, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(lambda: asyncio.streams.FlowControlMixin(loop), stream)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read its input
        writer.write(data)
        await writer.drain()
    writer.close()


async def _read(stream: IO[bytes] | None, most: int, *, stops: bool) -> tuple[bytes, bool]:
    """The first `most` bytes of a pipe, read to its end (`stops`: or until there are more), and whether there were more."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader, loop=loop), stream)
    kept, over = bytearray(), False
    try:
        while part := await reader.read(1 << 16):
            over = over or len(kept) + len(part) > most
            kept += part[: most - len(kept)]
            if over and stops:
                break
    finally:
        transport.close()
    return bytes(kept), over
