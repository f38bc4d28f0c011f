# SPDX-License-Identifier: GPL-3.0-or-later
"""Running through the daemon, gRPC and the client, against the same work done directly.

Goals: streaming at least 0.45 of a pipe; 50 chatty commands at most 1.25 times plain asyncio, with the sandbox, and without
it (`_unboxed`: under a profile that has none); an unread 2 GB stream at most 8 MB of memory; `true` at most 1.5 ms more than
the same box planned, started and awaited directly; 200 children that ignore TERM killed within 50 ms; CheckCommand at most
0.7 ms more than the judgement itself, and 1.6 times a bare gRPC call that echoes.

`chatty_50_default_mode` has no goal: the same as `chatty_50_vs_asyncio` in the mode in which a reader need not wait for its
decision to be on the disk, nor for a look at the workspace afterwards.

Ours and what it is compared with take turns. The children that are killed sleep: 200 that spin would measure how the
scheduler shares out the processors, of which the daemon gets one part in a hundred.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import grpc

from benchmarks.measure import Case, Measured, against, middle, percentile95
from benchmarks.running import Daemon, daemon
from sandboxd.client import AsyncClient, AsyncSession
from sandboxd.config import IsolationSettings
from sandboxd.isolation import backends, profiles
from sandboxd.isolation.planned import Plans
from sandboxd.judge import Question, judge
from sandboxd.model import Facts, Output, PlanRequest, RuleSet, Scope, Session, Started
from sandboxd.run.process import open_pipes
from sandboxd.run.streams import CHUNK

BYTES = 256_000_000
CHATTY = 50
LINES = "seq 2000 | sed -u s/^/line/"  # a write for every line, and safe beside others
MB = 1 << 20


def cases() -> list[Case]:
    return [
        Case("run.stream_vs_pipe", "x", _with(_stream), 0.45, higher=True),
        Case("run.chatty_50_vs_asyncio", "x", _with(_chatty), 1.25),
        Case("run.chatty_50_default_mode", "x", _with(_chatty, mode="default")),
        Case("run.chatty_50_vs_boxes", "x", _with(_chatty_boxes, mode="default"), 1.25),
        Case("run.unread_2gb_growth", "MB", _with(_unread), 8),
        Case("run.true_hot", "ms", _with(_true)),
        Case("run.true_beyond_its_box", "ms", _with(_true_added, mode="default"), 1.5),
        Case("run.check_beyond_judgement", "ms", _with(_check_added, mode="default"), 0.7),
        Case("run.check_vs_echo", "x", _with(_check_echo, mode="default"), 1.6),
        Case("run.kill_200_children", "ms", _with(_kill), 50),
    ]


Work = Callable[[Daemon, AsyncSession, float], Awaitable[Measured]]


SETTINGS = "[run]\nmax_output = 4000000000\ngrace = 0\n[sessions]\nmax_parallel = 50\n"


def _with(work: Work, mode: str = "bypassPermissions") -> Callable[[float], Measured]:
    def run(seconds: float) -> Measured:
        async def bounded() -> Measured:
            with daemon(SETTINGS) as house:
                async with (
                    asyncio.timeout(90),
                    AsyncClient(house.address, admin=True) as client,
                    await client.session(house.workspace, mode=mode, headless=True) as session,
                ):
                    for _ in range(5):
                        await session.run("true")
                    return await work(house, session, seconds)

        return asyncio.run(bounded())

    return run


class Direct:
    """The boxes that the daemon's readers get, planned and started here."""

    def __init__(self, house: Daemon) -> None:
        backends.configure(IsolationSettings())
        self._backend = next(backend for backend in backends.BACKENDS if backend.probe().works)
        owner = os.stat(house.workspace)
        tmp = house.home / "boxes"
        tmp.mkdir(mode=0o700)
        self._session = Session("bench", house.workspace, str(house.home), owner.st_uid, owner.st_gid, str(tmp))
        self._profile = profiles.load("workspace", (str(Path(profiles.__file__).parents[1] / "profiles"),))
        self._plans = Plans()

    async def run(self, text: str) -> int:
        """Plan, start, read to the end, wait; bytes that it wrote."""
        loop = asyncio.get_running_loop()
        request = PlanRequest(text, self._session.workspace, self._profile, self._session, (), True, Facts(observed=True))
        launch = self._plans.plan(request, backends.host_facts(self._session, request))
        pipes = open_pipes(stdin=False, report_cwd=False)
        box = self._backend.start(launch, pipes.child)
        pipes.close_child()
        seen = 0
        ended = loop.create_future()

        def read() -> None:
            nonlocal seen
            seen += len(os.read(pipes.stdout, CHUNK))

        def end() -> None:
            loop.remove_reader(box.pidfd)
            ended.set_result(None)

        loop.add_reader(pipes.stdout, read)
        loop.add_reader(box.pidfd, end)
        await ended
        loop.remove_reader(pipes.stdout)
        box.kill()
        box.reap()
        while data := os.read(pipes.stdout, CHUNK):
            seen += len(data)
        os.close(pipes.stdout)
        os.close(pipes.stderr)
        return seen


async def _stream(house: Daemon, session: AsyncSession, seconds: float) -> Measured:
    """From the first bytes to the last, on either side: how long a box takes to start is measured elsewhere."""
    text = f"yes 0123456789 | head -c {BYTES}"
    ours, pipe = [], []
    for _ in range(5):
        seen, started = 0, 0.0
        async with await session.start(text) as execution:
            async for event in execution:
                if isinstance(event, Output):
                    started = started or time.perf_counter()
                    seen += len(event.data)
        ours.append(time.perf_counter() - started)
        assert seen == BYTES
        pipe.append(_read_pipe(text))
    rates = BYTES / 1e6 / median(ours), BYTES / 1e6 / median(pipe)
    slow = percentile95(pipe) / percentile95(ours)
    return Measured(rates[0] / rates[1], len(ours), f"{rates[0]:.0f} MB/s against {rates[1]:.0f}", slow)


def _read_pipe(text: str) -> float:
    with subprocess.Popen(["bash", "-c", text], stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdout is not None
        child.stdout.read(1)
        started = time.perf_counter()
        while child.stdout.read(65536):
            pass
    return time.perf_counter() - started


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
    return against(ours, plain, unit="s")


async def _chatty_boxes(house: Daemon, session: AsyncSession, seconds: float) -> Measured:
    direct = Direct(house)
    await direct.run("true")
    ours, plain = [], []
    for _ in range(3):
        started = time.perf_counter()
        await asyncio.gather(*(session.run(LINES) for _ in range(CHATTY)))
        ours.append(time.perf_counter() - started)
        started = time.perf_counter()
        await asyncio.gather(*(direct.run(LINES) for _ in range(CHATTY)))
        plain.append(time.perf_counter() - started)
    return against(ours, plain, unit="s")


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
    return middle(samples, f"min {min(samples):.1f} ms")


async def _true_added(house: Daemon, session: AsyncSession, seconds: float) -> Measured:
    """What a caller waits for, minus the same box planned, started and awaited directly."""
    direct = Direct(house)
    ours, boxes = [], []
    for number in range(80):
        ours.append(await _timed(session))
        started = time.perf_counter()
        await direct.run("true")
        boxes.append((time.perf_counter() - started) * 1e3)
        await asyncio.sleep(0.01 if number % 10 else 0.1)  # ready boxes are made in quiet moments
    return _beyond(ours, boxes)


CHECKED = "git log --oneline | head -3"


async def _check_added(house: Daemon, session: AsyncSession, seconds: float) -> Measured:
    """What a caller of CheckCommand waits for, minus parsing, effects, facts and rules of the same command here."""
    scope = Scope(workspace=house.workspace, home=str(house.home))
    question = Question(text=CHECKED, cwd=house.workspace, scope=scope, rules=RuleSet(), observed=True)
    ours, bare = [], []
    for _ in range(300):
        started = time.perf_counter()
        await session.check(CHECKED)
        ours.append((time.perf_counter() - started) * 1e3)
        started = time.perf_counter()
        judge(question)
        bare.append((time.perf_counter() - started) * 1e3)
    return _beyond(ours, bare)


def _beyond(ours: list[float], bare: list[float]) -> Measured:
    """The difference of two lots of milliseconds."""
    note = f"{median(ours):.2f} ms against {median(bare):.2f} ms"
    return Measured(median(ours) - median(bare), len(ours), note, percentile95(ours) - percentile95(bare))


async def _check_echo(house: Daemon, session: AsyncSession, seconds: float) -> Measured:
    """CheckCommand minus the judgement, against a call that does nothing, to a server of its own process."""
    scope = Scope(workspace=house.workspace, home=str(house.home))
    question = Question(text=CHECKED, cwd=house.workspace, scope=scope, rules=RuleSet(), observed=True)
    address = f"unix:{house.home}/echo.sock"
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", ECHO, address, stdout=asyncio.subprocess.PIPE)
    try:
        assert server.stdout is not None
        await server.stdout.readline()
        async with grpc.aio.insecure_channel(address) as channel:
            echo: Any = channel.unary_unary("/echo/Echo")
            ours, bare = [], []
            for _ in range(300):
                started = time.perf_counter()
                await session.check(CHECKED)
                spent = time.perf_counter() - started
                started = time.perf_counter()
                judge(question)
                ours.append(spent - (time.perf_counter() - started))
                started = time.perf_counter()
                await echo(b"x" * 100)
                bare.append(time.perf_counter() - started)
    finally:
        server.kill()
        await server.wait()
    return against(ours, bare, unit="ms")


ECHO = """
import asyncio, grpc, sys
class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        async def echo(request, context):
            return request
        return grpc.unary_unary_rpc_method_handler(echo)
async def main():
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    server.add_insecure_port(sys.argv[1])
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()
asyncio.run(main())
"""


async def _timed(session: AsyncSession) -> float:
    started = time.perf_counter()
    await session.run("true")
    return (time.perf_counter() - started) * 1e3


async def _kill(house: Daemon, session: AsyncSession, seconds: float) -> Measured:
    text = "for i in {1..200}; do setsid bash -c 'trap \"\" TERM; while :; do read -t 100 x; done' <&0 & done; echo up; wait"
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
    return middle(samples, f"min {min(samples):.0f} ms")
