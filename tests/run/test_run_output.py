# SPDX-License-Identifier: GPL-3.0-or-later
"""Output in bulk: bounded on disk and in memory, never lost silently, and slow readers slow the command down."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandboxd.errors import NotFound
from sandboxd.model import EndKind, Event, Exited, Gap, Output, Result, Stream
from sandboxd.run import pagecache
from sandboxd.run.execution import TAIL, WINDOW, Execution
from sandboxd.run.spool import ENTRY, Spool, frames, index_of
from sandboxd.run.streams import CHUNK, PIPE, Pump

from .conftest import Runner, gather_events, output, until

MB = 1_000_000


async def complete(runner: Runner, text: str, **options: object) -> tuple[Execution, list[Event]]:
    execution = runner.make(text)
    ended = await runner.run(execution, text, **options)
    execution.finish(
        Result(
            ended.kind, ended.code, stdout_bytes=ended.stdout_bytes, stderr_bytes=ended.stderr_bytes, truncated=ended.truncated
        )
    )
    return execution, await gather_events(execution)


async def held_up(execution: Execution) -> None:
    """Return when the command is no longer read from."""
    async with asyncio.timeout(30):
        while not (execution._pump is not None and execution._pump.paused):  # noqa: ASYNC110  no event tells of it
            await asyncio.sleep(0)


def _cached(path: str, size: int) -> int:
    """Bytes of the first `size` of a file that are in memory (mincore(2))."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        pages = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapped)
        address = ctypes.addressof(start)
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages) == 0
        del start
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


class TestBounds:
    async def test_a_hundred_megabytes(self, runner: Runner) -> None:
        """Far more than the limit: the head is on disk, the tail in memory, a Gap counts the rest, memory stays flat."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        execution, events = await complete(runner, "head -c 100000000 /dev/zero; echo; echo the end", max_output=5 * MB)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000  # KiB
        assert execution.result is not None
        assert execution.result.end is EndKind.EXITED
        assert execution.result.truncated
        assert execution.result.stdout_bytes == 100 * MB + 9
        assert os.stat(f"{runner.spool_dir}/{execution.id}.spool").st_size <= 5 * MB
        (gap,) = [event for event in events if isinstance(event, Gap)]
        assert isinstance(events[-1], Exited)
        tail = events[-2]
        assert isinstance(tail, Output)
        assert tail.data.endswith(b"\nthe end\n")
        assert len(tail.data) == TAIL
        stored = len(output(events)) - TAIL
        assert (gap.stream, gap.offset, gap.offset + gap.length) == (Stream.STDOUT, stored, tail.offset)
        assert stored > 4 * MB

    async def test_both_streams(self, runner: Runner) -> None:
        """Each stream has its own gap and its own end."""
        text = "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2; echo out; echo err >&2"
        _, events = await complete(runner, text, max_output=200_000)
        assert {event.stream for event in events if isinstance(event, Gap)} == {Stream.STDOUT, Stream.STDERR}
        assert output(events).endswith(b"out\n")
        assert output(events, Stream.STDERR).endswith(b"err\n")
        for stream in Stream:
            covered = 0
            for event in events:
                if isinstance(event, Output | Gap) and event.stream is stream:
                    assert event.offset == covered
                    covered += len(event.data) if isinstance(event, Output) else event.length
            assert covered == 1_000_004

    async def test_just_over(self, runner: Runner) -> None:
        """When the kept end covers all that the spool could not take, nothing is missing and nothing is called truncated."""
        execution, events = await complete(runner, "head -c 70000 /dev/zero", max_output=40_000)
        assert len(output(events)) == 70_000
        assert not [event for event in events if isinstance(event, Gap)]
        assert execution.result is not None
        assert not execution.result.truncated

    async def test_no_spool_at_all(self, runner: Runner) -> None:
        """A limit of nothing keeps the last part."""
        _, events = await complete(runner, "seq 100000", max_output=0)
        assert output(events).endswith(b"99999\n100000\n")
        assert len(output(events)) == TAIL

    async def test_chunks(self, runner: Runner) -> None:
        """Many small writes become few chunks, none larger than a chunk; a lone early byte is not held back."""
        _, events = await complete(runner, "echo first; sleep 0.05; for i in {1..20000}; do echo $i; done")
        chunks = [event for event in events if isinstance(event, Output)]
        assert chunks[0].data == b"first\n"
        assert len(chunks) < 400
        assert max(len(chunk.data) for chunk in chunks) <= CHUNK

    async def test_streams_keep_their_order(self) -> None:
        """What a resting stream holds when another one has something is handed on before that."""
        seen: list[bytes] = []
        (out, out_end), (err, err_end) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        pump = Pump(asyncio.get_running_loop(), lambda _, data: seen.append(data))
        for fd, stream in ((out, Stream.STDOUT), (err, Stream.STDERR)):
            os.set_blocking(fd, False)
            pump.add(fd, stream)

        async def seen_so_far(count: int) -> list[bytes]:
            async with asyncio.timeout(30):
                while len(seen) < count:  # noqa: ASYNC110  no event tells of it
                    await asyncio.sleep(0)
            return seen

        try:
            os.write(out_end, b"one")
            assert await seen_so_far(1) == [b"one"]
            os.write(out_end, b"two")
            os.write(err_end, b"three")
            assert await seen_so_far(3) == [b"one", b"two", b"three"]
        finally:
            pump.close()
            os.close(out_end)
            os.close(err_end)

    async def test_drops_wake_nobody_for_each(self, runner: Runner) -> None:
        """A program that writes line by line without a pause is read by the clock: many lines a chunk, none held for long."""
        _, events = await complete(runner, "seq 20000 | sed -u s/^/line/")
        chunks = [event for event in events if isinstance(event, Output)]
        assert b"".join(chunk.data for chunk in chunks) == b"".join(b"line%d\n" % number for number in range(1, 20001))
        assert len(chunks) < 400


class TestBackPressure:
    async def test_slow_follower(self, runner: Runner) -> None:
        """A follower that does not read stops the command in write(); when it reads on, everything comes."""
        execution = runner.make()
        task = asyncio.create_task(runner.run(execution, "echo start; exec head -c 20000000 /dev/zero"))
        slow = execution.events()
        seen = 0
        async for event in slow:
            if isinstance(event, Output):
                seen += len(event.data)
                break
        await held_up(execution)
        assert not task.done()
        assert execution._spool.size < 2 * WINDOW
        async for event in slow:
            if isinstance(event, Output):
                seen += len(event.data)
            if seen == 20_000_006:
                break
        ended = await task
        assert (ended.kind, ended.stdout_bytes) == (EndKind.EXITED, 20_000_006)

    async def test_abandoned_follower(self, runner: Runner) -> None:
        """A follower that goes away holds nobody up any more."""
        execution = runner.make()
        task = asyncio.create_task(runner.run(execution, "echo start; exec head -c 20000000 /dev/zero"))
        slow = execution.events()
        async for event in slow:
            if isinstance(event, Output):
                break
        await held_up(execution)
        await slow.aclose()  # type: ignore[attr-defined]  # an async generator in fact
        assert (await task).stdout_bytes == 20_000_006

    async def test_replay_holds_nobody_up(self, runner: Runner) -> None:
        """A follower that starts from the beginning of a long output does not stop the command before it has caught up."""
        execution = runner.make()
        text = "head -c 5000000 /dev/zero; echo MARK; read -r; head -c 5000000 /dev/zero"
        task = asyncio.create_task(runner.run(execution, text, stdin=True))
        await until(execution.events(), b"MARK")
        late = execution.events()
        await anext(late)
        execution.write_stdin(0, b"\n", True)
        assert (await task).stdout_bytes == 10_000_005
        await late.aclose()  # type: ignore[attr-defined]  # an async generator in fact

    async def test_nobody_follows(self, runner: Runner) -> None:
        """Detached, a command runs to its end; its output waits on disk."""
        execution, events = await complete(runner, "head -c 8000000 /dev/zero")
        assert len(output(events)) == 8_000_000
        assert execution.result is not None
        assert not execution.result.truncated

    async def test_time_out_while_held_up(self, runner: Runner) -> None:
        """A follower that never reads cannot keep a command alive beyond its time-out."""
        execution = runner.make()
        slow = execution.events()
        task = asyncio.create_task(runner.run(execution, "exec yes", timeout=0.3))
        await anext(slow)
        ended = await task
        assert ended.kind is EndKind.TIMED_OUT
        assert ended.stdout_bytes < 3 * WINDOW + PIPE
        await slow.aclose()  # type: ignore[attr-defined]  # an async generator in fact


DISK_FULL = """
import asyncio, resource, sys
from tests.run.conftest import Runner, gather_events, output
from sandboxd.model import Exited, Gap, Result

async def main():
    runner = Runner(sys.argv[1])
    execution = runner.make()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, hard))  # only the spool is a regular file here
    ended = await runner.run(execution, "head -c 4000000 /dev/zero; echo the end; exit 4")
    assert (ended.code, ended.truncated, ended.stdout_bytes) == (4, True, 4_000_008), ended
    execution.finish(Result(ended.kind, ended.code, truncated=True))
    events = await gather_events(execution)
    assert output(events).endswith(b"the end\\n")
    assert len([e for e in events if isinstance(e, Gap)]) == 1
    assert isinstance(events[-1], Exited)
    assert 900_000 < execution._spool.size <= 1_500_000
    execution.close()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    execution = runner.make()
    ended = await runner.run(execution, "echo hi")
    assert (ended.code, ended.truncated) == (0, False), ended
    execution.close()
    import os
    assert os.listdir(sys.argv[1]) == []

asyncio.run(main())
"""


class TestDisk:
    def test_two_files(self, tmp_path: Path) -> None:
        """The spool holds the output and nothing else; whoever reads, from anywhere, in this daemon or the next, sees whole
        chunks, also where a daemon was killed between the bytes and their entry, or the index was cut."""
        path = str(tmp_path / "e.spool")
        spool = Spool(path, 4 * MB)
        sizes = (5, 32768, 1, CHUNK, 32767, CHUNK, CHUNK, 4067, 70_000, 3)
        events = [
            Output(2 * number + 1, Stream.STDOUT, sum(sizes[:number]), os.urandom(size), float(number))
            for number, size in enumerate(sizes)
        ]
        assert all(spool.append(event) for event in events)
        whole, index = Path(path).read_bytes(), Path(index_of(path)).read_bytes()
        assert whole == b"".join(event.data for event in events)
        assert list(frames(path, spool.size)) == events
        assert list(frames(path, spool.size, backwards=True)) == events[::-1]
        assert list(frames(path, spool.size - 1)) == events[:-1]
        again = Spool(path, 0)
        assert again.adopt() == {Stream.STDOUT: sum(sizes), Stream.STDERR: 0}
        assert (again.size, again.count, again.last) == (spool.size, spool.count, spool.last)
        for each in (spool, again):
            for number, event in enumerate(events):
                assert each.seek(event.seq - 1) == each.seek(event.seq) == number
                assert each.read(number) == event
                assert each.place(number) == sum(sizes[:number])
            assert each.seek(events[-1].seq + 1) == each.count
            assert each.place(each.count) == each.size
        for cut in range(0, len(index), 7):
            os.truncate(index_of(path), cut)
            assert list(frames(path, spool.size)) == events[: cut // ENTRY.size]
            assert Spool(path, 0).adopt()[Stream.STDOUT] == sum(sizes[: cut // ENTRY.size])
            Path(index_of(path)).write_bytes(index)
        for cut in range(0, len(whole), 9973):
            os.truncate(path, cut)
            found = list(frames(path, spool.size))
            assert found == events[: len(found)]
            assert sum(sizes[: len(found)]) <= cut < sum(sizes[: len(found) + 1])
            Path(path).write_bytes(whole)
        spool.close()
        again.rest()
        assert os.listdir(tmp_path) == []

    def test_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What lies far back in a long output is on the disk and no longer in memory, and is read as it was written."""
        monkeypatch.setattr(pagecache, "STEP", 1 << 20)
        monkeypatch.setattr(pagecache, "KEEP", 2 << 20)
        spool = Spool(str(tmp_path / "e.spool"), 64 * MB)
        data = os.urandom(CHUNK)
        deadline = time.monotonic() + 30
        while True:
            assert spool.append(Output(spool.count + 1, Stream.STDOUT, spool.size, data, 0.0))
            if spool._trim._step is not None:
                spool._trim._step.result(30)
                if _cached(spool.path, 1 << 20) < 1 << 20:
                    break
            if spool.size > 48 * MB or time.monotonic() > deadline:
                pytest.skip("this file system keeps its pages")
        assert all(spool.read(number).data == data for number in range(spool.count))
        spool.close()

    def test_full(self, tmp_path: Path) -> None:
        """When the disk is full the command goes on to its end, and the result says what is missing."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", DISK_FULL, str(tmp_path)],
            check=False,
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert done.returncode == 0, done.stderr

    async def test_no_directory(self, runner: Runner) -> None:
        """Without a place for the spool the command runs all the same."""
        execution = Execution("e1", "s1", "", "/nonexistent/spool")
        runner.executions.append(execution)
        ended = await runner.run(execution, "echo hi")
        execution.finish(Result(ended.kind, ended.code))
        assert output(await gather_events(execution)) == b"hi\n"

    async def test_planted_file(self, runner: Runner, tmp_path: Path) -> None:
        """A file or link that stands in the spool's place is neither followed nor overwritten."""
        target = tmp_path.parent / "target"
        target.write_text("precious")
        (tmp_path / "e0.spool").symlink_to(target)
        _, events = await complete(runner, "echo hi")
        assert output(events) == b"hi\n"
        assert target.read_text() == "precious"
        (tmp_path / "e0.spool").unlink()


class TestSpool:
    def test_seek_and_read(self, tmp_path: Path) -> None:
        """Any sequence number is found, also between frames and beyond the index."""
        spool = Spool(str(tmp_path / "s"), 1 << 20)
        count = 197
        for number in range(count):
            assert spool.append(Output(10 + 2 * number, Stream.STDERR, number, b"%d" % number, 0.5))
        for seq in range(10 + 2 * count):
            number = spool.seek(seq)
            if seq > 10 + 2 * (count - 1):
                assert number == spool.count
                continue
            assert spool.read(number).seq == max(10, seq + seq % 2)
        spool.close()
        assert os.listdir(tmp_path) == []

    async def test_removed_from_outside(self, runner: Runner) -> None:
        """A follower of a spool that somebody removed is told so."""
        execution, _ = await complete(runner, "echo hi")
        os.unlink(f"{runner.spool_dir}/{execution.id}.spool")
        with pytest.raises(NotFound):
            await gather_events(execution)

    async def test_finished_costs_nothing(self, runner: Runner) -> None:
        """A finished execution keeps no descriptor open, also after somebody read it again."""
        before = len(os.listdir("/proc/self/fd"))
        execution, events = await complete(runner, "seq 1000")
        assert len(os.listdir("/proc/self/fd")) == before
        assert await gather_events(execution) == events
        assert len(os.listdir("/proc/self/fd")) == before

    def test_limit_is_exact(self, tmp_path: Path) -> None:
        """The files never grow beyond their limit, and once full it stays full."""
        spool = Spool(str(tmp_path / "s"), 2 * (ENTRY.size + 4))
        assert spool.append(Output(1, Stream.STDOUT, 0, b"abcd", 0))
        assert not spool.append(Output(2, Stream.STDOUT, 4, b"abcde", 0))
        assert not spool.append(Output(2, Stream.STDOUT, 4, b"abcd", 0))
        assert os.stat(spool.path).st_size == spool.size == 4
        assert os.stat(index_of(spool.path)).st_size == ENTRY.size
        spool.close()

    def test_cut_from_outside(self, tmp_path: Path) -> None:
        """A file cut by somebody else is noticed, not read as something else."""
        spool = Spool(str(tmp_path / "s"), 1 << 20)
        spool.append(Output(1, Stream.STDOUT, 0, b"abcd", 0))
        spool.rest()
        for path, size in ((spool.path, 3), (index_of(spool.path), ENTRY.size - 1)):
            os.truncate(path, size)
            with pytest.raises(NotFound):
                spool.read(0)
        spool.close()
