# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m benchmarks.load WHAT`: load that would show a leak or a bound that does not hold. Exit status 1 when one does.

    soak [N]        N commands one after the other (10,000), some of which fail, are denied or are stored for their length:
                    descriptors, processes, mounts, memory, and what is left on disk
    clients [N]     N clients at once (100), each with a session and ten commands
    slow [N]        N readers (16, as many as run at once) that do not read while each command writes without end: memory
    output [MB]     one command that writes so much (1,000 MB), read to the end
    slice           a little of each, within half a minute: what the tests run

Every load is bounded in count and in time (SECONDS), and runs against a daemon of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from benchmarks.running import Daemon, daemon
from sandboxd.client import AsyncClient, AsyncSession
from sandboxd.model import EndKind, Output, Started

SECONDS = 1500.0
MB = 1 << 20
WARM = 1000  # commands before the first reading: caches and the record's pages are full then
KEPT = 100  # executions that the soaked daemon remembers
QUOTA = 1_000_000  # bytes of stored results that it may keep
SETTLE = 10.0  # seconds
ZYGOTE = 1  # process that stays, from which boxes are made
COUNTED = ("descriptors", "processes", "mounts")
EVERY = 50
MEMORY = 20 * MB  # growth that is no leak
PER_READER = 8 * MB  # what one reader that does not read may cost

# Of every EVERY commands of a soak one is each of these: (text, exit status).
ODD = {
    5: ("seq 20000", 0),  # too long for a model: stored
    15: ("rm -rf /", 126),  # denied
    25: ("cat no-such-file", 1),
    35: ("cd ..; exit 3", 3),  # its directory is not believed
    45: ("echo $$; kill -9 $$", 137),
}


@dataclass(frozen=True)
class Reading:
    descriptors: int
    processes: int
    mounts: int
    memory: int  # resident bytes


def reading(house: Daemon) -> Reading:
    return Reading(house.descriptors(), house.children(), house.mounts(), house.memory())


async def settled(house: Daemon, before: Reading | None = None) -> Reading:
    """A reading once the boxes that wait ready are given up, as a reload does; behind the last commands some are still torn
    down, so for SETTLE seconds one is awaited that is no larger than `before` in what may not grow."""
    async with AsyncClient(house.address, admin=True) as client:
        await client.reload()
    end = time.monotonic() + SETTLE
    while True:
        now = reading(house)
        if before is None:
            still = now.processes <= ZYGOTE
        else:
            still = all(getattr(now, name) <= getattr(before, name) for name in COUNTED)
        if still or time.monotonic() > end:
            return now
        await asyncio.sleep(0.1)


def held(**bounds: bool) -> bool:
    """Whether all of them hold; says which do not."""
    broken = [name for name, holds in bounds.items() if not holds]
    if broken:
        print(f"      NOT HELD: {', '.join(broken)}")
    return not broken


@contextlib.asynccontextmanager
async def one_session(house: Daemon) -> AsyncIterator[AsyncSession]:
    async with (
        AsyncClient(house.address, admin=True) as client,
        await client.session(house.workspace, mode="dontAsk", allow=["Bash(kill:*)"]) as session,
    ):
        yield session


async def soak(count: int = 10_000, *, warm: int = WARM) -> bool:
    warm = min(warm, count // 2)
    wrong: list[str] = []
    with daemon(f"[run]\nkeep_finished = {KEPT}\nspill_quota = {QUOTA}\n") as house:
        async with one_session(house) as session:

            async def more(numbers: range) -> None:
                for number in numbers:
                    text, code = ODD.get(number % EVERY, (f"echo {number}", 0))
                    run = await session.run(text)
                    if run.exit_code != code or not (run.output == f"{number}\n" or number % EVERY in ODD):
                        wrong.append(f"`{text}`: {run.result.end.value} {run.exit_code} {run.result.cause}")

            await more(range(warm))
            before, started = await settled(house), time.monotonic()
            await more(range(warm, count))
            spent = time.monotonic() - started
            after = await settled(house, before)
            spools, stored = house.files("spool"), house.files("spill")
        left = house.files("spool") | house.files("spill")
        record = sum(house.files("").values())
    growth = {name: getattr(after, name) - getattr(before, name) for name in Reading.__dataclass_fields__}
    print(f"soak: {count} commands, {(count - warm) / spent:.0f}/s; growth after {warm}: {growth}")
    print(f"      kept {len(spools)} spools, {sum(stored.values())} bytes stored; left {len(left)} files; record {record} bytes")
    for line in wrong[:10]:
        print(f"      {line}")
    return held(
        results=not wrong,
        spools=len(spools) <= 2 * (KEPT + 1),
        stored=sum(stored.values()) <= QUOTA,
        left=not left,
        descriptors=growth["descriptors"] <= 0,
        processes=growth["processes"] <= 0,
        mounts=growth["mounts"] <= 0,
        memory=growth["memory"] <= MEMORY,
    )


async def clients(count: int = 100, *, turns: int = 10) -> bool:
    """All connect and open their sessions first; then all run at once."""
    with daemon() as house:
        async with one_session(house) as session:
            await session.run("echo warm")
        before = await settled(house)
        ready = asyncio.Barrier(count)

        async def one(number: int) -> None:
            async with AsyncClient(house.address, admin=True) as client, await client.session(house.workspace) as session:
                await ready.wait()
                for turn in range(turns):
                    run = await session.run(f"echo {number} {turn}")
                    assert run.output == f"{number} {turn}\n", run

        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(one(number))
        spent = time.monotonic() - started
        async with AsyncClient(house.address, admin=True) as client:
            status = await client.status()
        after = await settled(house, before)
    print(f"clients: {count}, {count * turns / spent:.0f} commands/s; {(after.memory - before.memory) / MB:.0f} MB more")
    return held(
        sessions=status.sessions == 0,
        running=status.running == 0,
        waiting=status.waiting == 0,
        processes=after.processes <= before.processes,
        mounts=after.mounts <= before.mounts,
    )


async def slow(readers: int = 16) -> bool:
    with daemon(f"[sessions]\nmax_parallel = {readers}\n") as house:
        async with one_session(house) as session:
            await session.run("echo warm")
            before = house.memory()
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(readers):
                    execution = await stack.enter_async_context(
                        await session.start("yes 0123456789 | head -c 2000000000", timeout=60)
                    )
                    events = await stack.enter_async_context(contextlib.aclosing(aiter(execution)))  # type: ignore[type-var]  # it is a generator
                    while not isinstance(await anext(events), Started):
                        pass
                written = -1
                while written != (  # noqa: ASYNC110  nothing tells that every command stands still in its write
                    written := sum(house.files("spool").values())
                ):
                    await asyncio.sleep(1)
                growth = house.memory() - before
            ended = [item.result.end for item in await session.executions() if item.result is not None]
    print(f"slow: {readers} readers that do not read, {growth / MB:.1f} MB more, {written / MB:.1f} MB spooled")
    return held(memory=growth <= readers * PER_READER, bounded=EndKind.TIMED_OUT not in ended)


async def output(megabytes: int = 1000) -> bool:
    with daemon("[run]\nmax_output = 2000000000\n") as house:
        async with one_session(house) as session:
            await session.run("echo warm")
            before, started, seen = house.memory(), time.monotonic(), 0
            async with await session.start(f"yes 0123456789 | head -c {megabytes * 1_000_000}") as execution:
                async for event in execution:
                    if isinstance(event, Output):
                        assert event.offset == seen
                        seen += len(event.data)
            spent = time.monotonic() - started
            growth = house.memory() - before
        left = len(house.files("spool")) + len(house.files("spill"))
    rate = seen / 1e6 / spent
    print(f"output: {seen / 1e6:.0f} MB in {spent:.1f} s, {rate:.0f} MB/s; {growth / MB:.1f} MB more; {left} files left")
    return held(whole=seen == megabytes * 1_000_000, memory=growth <= MEMORY, left=not left)


async def slice_() -> bool:
    return all([await soak(150, warm=75), await clients(100, turns=1), await slow(3), await output(100)])


LOADS: dict[str, Callable[..., Awaitable[bool]]] = {
    "soak": soak,
    "clients": clients,
    "slow": slow,
    "output": output,
    "slice": slice_,
}


def main(words: list[str]) -> int:
    if not words or words[0] not in LOADS or not all(word.isdecimal() for word in words[1:]):
        print(__doc__, file=sys.stderr)
        return 2

    async def bounded() -> bool:
        async with asyncio.timeout(SECONDS):
            return await LOADS[words[0]](*map(int, words[1:]))

    return 0 if asyncio.run(bounded()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
