# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m benchmarks.load WHAT`: load that would show a leak or a bound that does not hold. Exit status 1 when one does.

    soak [N]        N commands one after the other (10,000): descriptors, processes, mounts, memory, files left
    clients [N]     N clients at once (100), ten commands each
    slow            readers that do not read while a command writes without end: memory of the daemon
    output [MB]     one command that writes so much (1,000 MB), read to the end

Every load is bounded in count and in time (SECONDS), and runs against a daemon of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from benchmarks.running import Daemon, daemon
from sandboxd.client import AsyncClient
from sandboxd.model import Output, Started

SECONDS = 1500.0
MB = 1 << 20
WARM = 1000  # commands before the first reading: caches and the record's pages are full then


async def soak(count: int = 10_000) -> bool:
    with daemon("[run]\nkeep_finished = 100\n") as house:
        async with AsyncClient(house.address, admin=True) as client, await client.session(house.workspace) as session:
            done = 0
            warm = min(WARM, count // 2)

            async def more(number: int) -> None:
                nonlocal done
                for _ in range(number):
                    run = await session.run("echo hello")
                    assert run.output == "hello\n", run
                    done += 1

            await more(warm)
            before, started = reading(house), time.monotonic()
            await more(count - warm)
            after = reading(house)
            rate = (count - warm) / (time.monotonic() - started)
        left = sum(len(files) for folder in ("spool", "spill") for _, _, files in os.walk(house.state / folder))
        names = ("descriptors", "processes", "mounts", "memory")
        growth = dict(zip(names, (now - then for now, then in zip(after, before, strict=True)), strict=True))
        print(f"soak: {done} commands, {rate:.0f}/s; growth {growth}; {left} files left in spool and spill")
        return growth["memory"] <= 20 * MB and max(growth[name] for name in names[:3]) <= 0 and left == 0


def reading(house: Daemon) -> tuple[int, int, int, int]:
    mounts = Path("/proc/self/mountinfo").read_text().count("\n")
    return house.descriptors(), house.children(), mounts, house.memory()


async def clients(count: int = 100) -> bool:
    with daemon() as house:

        async def one(number: int) -> None:
            async with AsyncClient(house.address, admin=True) as client, await client.session(house.workspace) as session:
                for turn in range(10):
                    run = await session.run(f"echo {number} {turn}")
                    assert run.output == f"{number} {turn}\n", run

        started = time.monotonic()
        await asyncio.gather(*(one(number) for number in range(count)))
        print(f"clients: {count}, {count * 10 / (time.monotonic() - started):.0f} commands/s, {house.memory() // MB} MB")
    return True


async def slow(readers: int = 20) -> bool:
    with daemon() as house:
        async with AsyncClient(house.address, admin=True) as client, await client.session(house.workspace) as session:
            await session.run("echo warm")
            started = []
            before = house.memory()
            for _ in range(readers):
                execution = await session.start("yes 0123456789 | head -c 2000000000", timeout=20)
                events = aiter(execution)
                while not isinstance(await anext(events), Started):
                    pass
                started.append((execution, events))
            written = -1
            while written != (  # noqa: ASYNC110  nothing tells that every command stands still in its write
                written := sum(file.stat().st_size for file in (house.state / "spool").glob("*.spool"))
            ):
                await asyncio.sleep(1)
            growth = house.memory() - before
            for execution, events in started:
                await events.aclose()  # type: ignore[attr-defined]  # it is a generator
                await execution.close()
        print(f"slow: {readers} readers that do not read, {growth / MB:.1f} MB more in the daemon, {written / MB:.1f} MB spooled")
        return growth <= readers * 8 * MB


async def output(megabytes: int = 1000) -> bool:
    with daemon("[run]\nmax_output = 2000000000\n") as house:
        async with AsyncClient(house.address, admin=True) as client, await client.session(house.workspace) as session:
            await session.run("echo warm")
            before, started, seen = house.memory(), time.monotonic(), 0
            async with await session.start(f"yes 0123456789 | head -c {megabytes * 1_000_000}") as execution:
                async for event in execution:
                    if isinstance(event, Output):
                        seen += len(event.data)
            spent = time.monotonic() - started
            growth = house.memory() - before
        print(f"output: {seen / 1e6:.0f} MB in {spent:.1f} s, {seen / 1e6 / spent:.0f} MB/s; {growth / MB:.1f} MB more")
        return seen == megabytes * 1_000_000 and growth <= 20 * MB


LOADS = {"soak": soak, "clients": clients, "slow": slow, "output": output}


def main(words: list[str]) -> int:
    if not words or words[0] not in LOADS:
        print(__doc__, file=sys.stderr)
        return 2

    async def bounded() -> bool:
        async with asyncio.timeout(SECONDS):
            return await LOADS[words[0]](*map(int, words[1:]))

    return 0 if asyncio.run(bounded()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
