# SPDX-License-Identifier: GPL-3.0-or-later
"""The classifier: what it adds to a decision, and what it costs a daemon that has one configured.

A server on the loopback interface speaks the Messages API and thinks for 800 ms; a PreToolUse hook takes 500 ms. Goals: a
command in mode auto is decided within 850 ms, the first one of a daemon included, so hook, rules and request cost next to
nothing beside the classifier; a read-only command within 5 ms and with nothing sent; a question that is not needed is
given up at the server within 5 ms; a daemon gives its first answer 400 ms after its start, and needs 70 MB.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from benchmarks.measure import Case, Measured, middle
from benchmarks.running import Daemon, daemon
from sandboxd.client import AsyncClient, AsyncSession
from sandboxd.config import ClassifierSettings, ProviderKind
from sandboxd.consult.classifier import Classifier, Purpose, Question
from sandboxd.consult.classifier_prompt import Prompt
from sandboxd.errors import Unavailable
from sandboxd.model import Decided
from tests._messages import Exchange, Loopback, allow

THINKS = 0.8  # seconds
HOOK = 0.5
MB = 1 << 20


def cases() -> list[Case]:
    return [
        Case("classifier.decided_first", "ms", _with(_decided_first), 850),
        Case("classifier.decided", "ms", _with(_decided), 850),
        Case("classifier.read_only", "ms", _with(_read_only), 5),
        Case("classifier.cancel_to_server", "ms", lambda seconds: asyncio.run(_cancel()), 5),
        Case("classifier.start_to_answer", "ms", lambda seconds: asyncio.run(_start(seconds)), 400),
        Case("classifier.daemon_memory", "MB", _with(_memory), 70),
    ]


_QUIET = 0.05  # seconds
Work = Callable[[Daemon, Loopback, AsyncSession], Awaitable[Measured]]


async def _think(exchange: Exchange) -> None:
    await asyncio.sleep(THINKS)
    await allow(exchange)


@asynccontextmanager
async def _served() -> AsyncIterator[tuple[Loopback, str]]:
    """A server that thinks, and the settings by which a daemon finds it."""
    with tempfile.TemporaryDirectory(prefix="sbxd-key-") as directory:
        key = Path(directory) / "key"
        key.write_text("k-bench")
        async with Loopback(answer=_think) as server:
            lines = ("[classifier]", "provider = 'anthropic'", f"base_url = '{server.url}'", f"api_key_file = '{key}'")
            yield server, "\n".join((*lines, "cache_ttl = 0", ""))


def _with(work: Work) -> Callable[[float], Measured]:
    def run(seconds: float) -> Measured:
        async def bounded() -> Measured:
            async with _served() as (server, settings), asyncio.timeout(90):
                house = daemon(settings)
                place = await asyncio.to_thread(house.__enter__)
                try:
                    rules = f"[[hook]]\nevent = 'PreToolUse'\nmatcher = 'Bash'\ncommand = 'sleep {HOOK}'\n"
                    (place.home / ".config/sandboxd/settings.toml").write_text(rules if work is not _read_only else "")
                    async with (
                        AsyncClient(place.address, admin=True) as client,
                        await client.session(place.workspace, mode="auto", headless=True) as session,
                    ):
                        await _ready(client)
                        return await work(place, server, session)
                finally:
                    await asyncio.to_thread(house.__exit__, None, None, None)

        return asyncio.run(bounded())

    return run


async def _ready(client: AsyncClient) -> None:
    """Until the worker has loaded the client, which takes it a second or two after the daemon's start."""
    while (worker := (await client.status()).classifier.worker) is None or not worker.ready:  # noqa: ASYNC110  nothing tells
        await asyncio.sleep(0.02)


async def _to_decision(session: AsyncSession, text: str) -> float:
    """Milliseconds from the call to the decision; the command is over when this returns."""
    started = time.perf_counter()
    spent = 0.0
    async with await session.start(text) as execution:
        async for event in execution:
            if isinstance(event, Decided):
                spent = (time.perf_counter() - started) * 1e3
                assert event.decision.behavior.value == "allow", event.decision.message
    return spent


async def _decided_first(house: Daemon, server: Loopback, session: AsyncSession) -> Measured:
    """The first question of a daemon: no connection is open yet, nothing is in any cache. Its worker has been loaded."""
    return Measured(await _to_decision(session, "python3 -c 'print(0)'"), 1, f"{len(server.requests)} request")


async def _decided(house: Daemon, server: Loopback, session: AsyncSession) -> Measured:
    await _to_decision(session, "python3 -c 'print(0)'")
    samples = [await _to_decision(session, f"python3 -c 'print({number})'") for number in range(1, 6)]
    return middle(samples, f"max {max(samples):.0f} ms")


async def _read_only(house: Daemon, server: Loopback, session: AsyncSession) -> Measured:
    """Of one command when nothing else goes on: the boxes of those before it are gone, and new ones are ready."""
    await _to_decision(session, "ls")
    samples = []
    for number in range(60):
        await asyncio.sleep(_QUIET)
        samples.append(await _to_decision(session, f"cat {number}.txt | head -n 3"))
    assert not server.requests, "something was sent"
    return middle(samples, f"min {min(samples):.1f} ms, {len(server.requests)} requests")


async def _cancel() -> Measured:
    """From the moment that the last one who waits is cancelled to the end of the connection as the server sees it."""
    async with Loopback() as server:
        server.answer = server.hold
        os.environ["ANTHROPIC_API_KEY"] = "k-bench"  # taken out of the environment by the classifier itself
        asked = Classifier(ClassifierSettings(provider=ProviderKind.ANTHROPIC, base_url=server.url, deadline=60.0))
        try:
            assert asked.process is not None
            await asked.process.ready()
            samples = []
            for number in range(40):
                question = Question("s", str(number), Prompt("{}", "{}", frozenset()))
                task = asyncio.create_task(asked.ask(question, Purpose.EARLY))
                await server.arrived.get()
                started = asyncio.get_running_loop().time()
                task.cancel()
                samples.append((await server.left.get() - started) * 1e3)
            return middle(samples, f"max {max(samples):.1f} ms")
        finally:
            await asked.close()


async def _start(seconds: float) -> Measured:
    """From the start of the process to its first answer to anybody, in turns with a daemon without a classifier."""
    samples: dict[bool, list[float]] = {True: [], False: []}
    busy, judged = [], []
    async with _served() as (_, settings):
        end = time.perf_counter() + max(seconds, 8.0)
        while len(samples[True]) < 7 and (time.perf_counter() < end or len(samples[True]) < 3):
            for configured in (True, False):
                first, judgement, processor = await _first_answers(settings if configured else "")
                samples[configured].append(first)
                judged.append(judgement)
                busy.append(processor)
    without = median(samples[False])
    note = f"without a classifier {without:.0f} ms; first judgement {median(judged):.0f} ms"
    return middle(samples[True], f"{note}; processor time {median(busy):.0f} ms")


async def _first_answers(settings: str) -> tuple[float, float, float]:
    """Milliseconds to the first answer and to the first judgement, and of processor time that the daemon took for them."""
    house = daemon(settings, wait=False)
    started = time.perf_counter()
    place = house.__enter__()
    try:
        while True:
            await asyncio.to_thread(_listening, place)
            try:
                async with AsyncClient(place.address, admin=True) as client:
                    await client.status()
                    first = (time.perf_counter() - started) * 1e3
                    async with await client.session(place.workspace) as session:
                        assert (await session.check("git status")).decision.message
                        return first, (time.perf_counter() - started) * 1e3, _processor_time(place)
            except Unavailable:  # the socket is there before anybody accepts
                assert time.perf_counter() - started < 30
    finally:
        await asyncio.to_thread(house.__exit__, None, None, None)


def _listening(place: Daemon) -> None:
    """Until the socket is there, without taking the processor from who makes it."""
    end = time.monotonic() + 30
    while not os.path.exists(place.address.removeprefix("unix:")):
        assert time.monotonic() < end, "the daemon does not listen"
        time.sleep(0.002)


def _processor_time(place: Daemon) -> float:
    fields = Path(f"/proc/{place.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e3 / os.sysconf("SC_CLK_TCK")


async def _memory(house: Daemon, server: Loopback, session: AsyncSession) -> Measured:
    """Resident, after it has asked the classifier and run a command; its worker, another process, not counted."""
    await session.run("python3 -c 'print(0)'")
    return Measured(house.memory() / MB, 1)
