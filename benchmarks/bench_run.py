# SPDX-License-Identifier: GPL-3.0-or-later
"""Running through the daemon, gRPC and the client, against the same work done directly, without a sandbox.

Goals: streaming at least 0.45 of a pipe, 50 chatty commands at most 1.25 times plain asyncio, an unread 2 GB stream at
most 8 MB of memory, `true` at most 1.5 ms beyond the life of its box, 200 children killed within 50 ms.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable
from statistics import median

from benchmarks.measure import Case, Measured
from benchmarks.running import Daemon, daemon
from sandboxd.client import AsyncClient, AsyncSession
from sandboxd.model import Output, Started

BYTES = 128_000_000
CHATTY = 50
LINES = "seq 2000 | sed -u s/^/line/"  # a write for every line, and safe beside others
MB = 1 << 20


def cases() -> list[Case]:
    return [
        Case("run.stream_vs_pipe", "x", _with(_stream), 0.45, higher=True),
        Case("run.chatty_50_vs_asyncio", "x", _with(_chatty), 1.25),
        Case("run.unread_2gb_growth", "MB", _with(_unread), 8),
        Case("run.true_hot", "ms", _with(_true)),
        Case("run.true_beyond_its_box", "ms", _with(_true_added), 1.5),
        Case("run.kill_200_children", "ms", _with(_kill), 50),
    ]


Work = Callable[[Daemon, AsyncSession, float], Awaitable[Measured]]


def _with(work: Work) -> Callable[[float], Measured]:
    def run(seconds: float) -> Measured:
        async def bounded() -> Measured:
            with daemon("[run]\nmax_output = 4000000000\ngrace = 0\n[sessions]\nmax_parallel = 50\n") as house:
                async with (
                    asyncio.timeout(90),
                    AsyncClient(house.address, admin=True) as client,
                    await client.session(house.workspace, mode="bypassPermissions", headless=True) as session,
                ):
                    await session.run("true")
                    return await work(house, session, seconds)

        return asyncio.run(bounded())

    return run


async def _stream(house: Daemon, session: AsyncSession, seconds: float) -> Measured:
    text = f"yes 0123456789 | head -c {BYTES}"
    ours, pipe = [], []
    for _ in range(5):
        started = time.perf_counter()
        seen = 0
        async with await session.start(text) as execution:
            async for event in execution:
                if isinstance(event, Output):
                    seen += len(event.data)
        ours.append(time.perf_counter() - started)
        assert seen == BYTES
        started = time.perf_counter()
        _read_pipe(text)
        pipe.append(time.perf_counter() - started)
    rates = BYTES / 1e6 / median(ours), BYTES / 1e6 / median(pipe)
    return Measured(rates[0] / rates[1], len(ours), f"{rates[0]:.0f} MB/s against {rates[1]:.0f}")


def _read_pipe(text: str) -> None:
    with subprocess.Popen(["bash", "-c", text], stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdout is not None
        while child.stdout.read(65536):
            pass


async def _chatty(house: Daemon, session: AsyncSession, seconds: float) -> Measured:
    async def direct() -> None:
        child = await asyncio.create_subprocess_exec("bash", "-c", LINES, stdout=asyncio.subprocess.PIPE)
        await child.communicate()

    ours, plain = [], []
    for _ in range(3):
        started = time.perf_counter()
        await asyncio.gather(*(session.run(LINES) for _ in range(CHATTY)))
        ours.append(time.perf_counter() - started)
        started = time.perf_counter()
        await asyncio.gather(*(direct() for _ in range(CHATTY)))
        plain.append(time.perf_counter() - started)
    return Measured(median(ours) / median(plain), len(ours), f"{median(ours):.2f} s against {median(plain):.2f} s")


async def _unread(house: Daemon, session: AsyncSession, seconds: float) -> Measured:
    before = house.memory()
    async with await session.start("yes 0123456789 | head -c 2000000000") as execution:
        events = aiter(execution)
        while not isinstance(await anext(events), Started):
            pass
        await asyncio.sleep(seconds)
        growth = (house.memory() - before) / MB
        await events.aclose()  # type: ignore[attr-defined]  # it is a generator
    return Measured(growth, 1)


async def _true(house: Daemon, session: AsyncSession, seconds: float) -> Measured:
    samples = [await _timed(session) for _ in range(60)]
    return Measured(median(samples), len(samples), f"min {min(samples):.1f} ms")


async def _true_added(house: Daemon, session: AsyncSession, seconds: float) -> Measured:
    """What a caller waits for, minus the life of the box as the daemon saw it."""
    added = []
    for _ in range(60):
        started = time.perf_counter()
        run = await session.run("true")
        added.append((time.perf_counter() - started - run.result.usage.wall) * 1e3)
    return Measured(median(added), len(added), f"min {min(added):.1f} ms")


async def _timed(session: AsyncSession) -> float:
    started = time.perf_counter()
    await session.run("true")
    return (time.perf_counter() - started) * 1e3


async def _kill(house: Daemon, session: AsyncSession, seconds: float) -> Measured:
    text = "for i in {1..200}; do setsid bash -c 'trap \"\" TERM; while :; do read -t 100 x; done' & done; echo up; wait"
    samples = []
    for _ in range(5):
        async with await session.start(text, stdin=True) as execution:
            events = aiter(execution)
            async for event in events:
                if isinstance(event, Output) and b"up" in event.data:
                    break
            started = time.perf_counter()
            await execution.cancel("bench")
            async for _ in events:
                pass
            samples.append((time.perf_counter() - started) * 1e3)
    return Measured(median(samples), len(samples), f"min {min(samples):.0f} ms")
