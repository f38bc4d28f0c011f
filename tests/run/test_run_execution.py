# SPDX-License-Identifier: GPL-3.0-or-later
"""One command's life, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from sandboxd.errors import Exhausted, IsolationError, NotFound, RequestError
from sandboxd.model import (
    ApprovalNeeded,
    Behavior,
    Box,
    Decided,
    Decision,
    EndKind,
    Exited,
    ExitStatus,
    Output,
    Queued,
    Result,
    Started,
    Stdio,
    Stream,
)
from sandboxd.run.ended import Ended
from sandboxd.run.execution import Execution
from sandboxd.run.streams import STDIN_BUFFER

from .conftest import LocalBox, Runner, gather_events, output, run_out, until

ALLOW = Decision(Behavior.ALLOW, "2e", "read_only", "reads only")


def result_of(ended: Ended) -> Result:
    return Result(end=ended.kind, code=ended.code, signal=ended.signal, truncated=ended.truncated)


class Unbuilt(LocalBox):
    """A box that turns out not to have been built."""

    def reap(self) -> ExitStatus:
        super().reap()
        raise IsolationError("its first process ended without a word")


async def complete(runner: Runner, text: str, **options: Any) -> tuple[Execution, Ended]:
    execution = runner.make(text)
    ended = await runner.run(execution, text, **options)
    execution.finish(result_of(ended))
    return execution, ended


class TestEvents:
    async def test_order(self, runner: Runner) -> None:
        """Every stage is told in order, sequence numbers rise by one from 1, and Exited comes last."""
        execution = runner.make("echo hi; echo oops >&2")
        execution.queued("a writer runs")
        execution.decided(ALLOW)
        execution.approval_needed("a1", ALLOW)
        ended = await runner.run(execution, "echo hi; echo oops >&2; exit 3")
        execution.finish(result_of(ended))
        events = await gather_events(execution)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        kinds = [type(event) for event in events]
        assert kinds[:4] == [Queued, Decided, ApprovalNeeded, Started]
        assert kinds[4:-1] == [Output] * (len(events) - 5)
        assert kinds[-1] is Exited
        assert output(events) == b"hi\n"
        assert output(events, Stream.STDERR) == b"oops\n"
        assert (ended.kind, ended.code, ended.stdout_bytes, ended.stderr_bytes) == (EndKind.EXITED, 3, 3, 5)
        assert ended.stderr_tail == "oops\n"
        assert ended.usage.wall > 0
        assert ended.usage.max_rss > 0

    async def test_finish_without_run(self, runner: Runner) -> None:
        """A denied command has its terminal event too, exactly one, and no event can follow it."""
        execution = runner.make("rm -rf /")
        execution.decided(Decision(Behavior.DENY, "1d", "catastrophe", "no"))
        execution.finish(Result(EndKind.DENIED, 126))
        execution.finish(Result(EndKind.FAILED, 125))
        events = await gather_events(execution)
        assert [type(event) for event in events] == [Decided, Exited]
        assert execution.result == Result(EndKind.DENIED, 126)
        assert execution.done.is_set()
        with pytest.raises(RuntimeError):
            execution.queued("late")

    async def test_followers_at_different_positions(self, runner: Runner) -> None:
        """Several followers, early, late and from the middle, all read the same bytes."""
        text = "for i in 1 2 3; do echo $i; read -r; done"
        execution = runner.make(text)
        early = asyncio.create_task(gather_events(execution))
        task = asyncio.create_task(runner.run(execution, text, stdin=True))
        for sent, number in enumerate((b"1", b"2", b"3")):
            await until(execution.events(), number)
            execution.write_stdin(sent, b"\n", False)
        ended = await task
        execution.finish(result_of(ended))
        whole = await gather_events(execution)
        assert await early == whole
        assert output(whole) == b"1\n2\n3\n"
        for start in range(1, len(whole) + 2):
            assert await gather_events(execution, start) == (whole[start - 1 :] or whole[-1:])

    async def test_from_seq_must_be_positive(self, runner: Runner) -> None:
        """A follower's bad position is an error that names the field."""
        with pytest.raises(RequestError) as caught:
            await gather_events(runner.make(), 0)
        assert caught.value.field == "from_seq"

    async def test_closed(self, runner: Runner) -> None:
        """Once closed, the spool is gone and followers are told so."""
        execution, _ = await complete(runner, "echo hi")
        assert sorted(os.listdir(runner.spool_dir)) == ["e0.index", "e0.spool"]
        assert os.stat(f"{runner.spool_dir}/e0.spool").st_mode & 0o777 == 0o600
        execution.close()
        execution.close()
        assert os.listdir(runner.spool_dir) == []
        with pytest.raises(NotFound):
            await gather_events(execution)

    async def test_no_output_no_file(self, runner: Runner) -> None:
        """A silent command costs no file."""
        await complete(runner, "true")
        assert os.listdir(runner.spool_dir) == []

    async def test_offsets(self, runner: Runner) -> None:
        """Offsets count each stream's own bytes without a hole, and times never run back."""
        execution, ended = await complete(runner, "for i in {1..2000}; do echo $i; echo e$i >&2; done")
        events = await gather_events(execution)
        for stream, total in ((Stream.STDOUT, ended.stdout_bytes), (Stream.STDERR, ended.stderr_bytes)):
            position = 0
            at = 0.0
            for event in events:
                if isinstance(event, Output) and event.stream is stream:
                    assert event.offset == position
                    assert event.at >= at
                    position += len(event.data)
                    at = event.at
            assert position == total
        assert output(events) == b"".join(b"%d\n" % i for i in range(1, 2001))

    @pytest.mark.parametrize("data", [bytes(range(256)) * 300, b"\xff\xfe\x00\xc3", b"\xf0\x9f\x98" * 1000])
    async def test_any_bytes(self, runner: Runner, data: bytes) -> None:
        """Binary output and broken UTF-8 pass unchanged."""
        execution = runner.make("cat")
        task = asyncio.create_task(runner.run(execution, "cat", stdin=True))
        execution.write_stdin(0, data, True)
        ended = await task
        execution.finish(result_of(ended))
        assert output(await gather_events(execution)) == data
        assert ended.stdout_bytes == len(data)


class TestEnd:
    @pytest.mark.parametrize(
        ("text", "kind", "code", "number"),
        [
            ("exit 0", EndKind.EXITED, 0, None),
            ("exit 7", EndKind.EXITED, 7, None),
            ("bash -c 'kill -9 $$'; exit $?", EndKind.EXITED, 137, None),
            ("kill -9 $$", EndKind.SIGNALED, 137, 9),
            ("kill -15 $$", EndKind.SIGNALED, 143, 15),
            ("no-such-program-here", EndKind.EXITED, 127, None),
        ],
    )
    async def test_status(self, runner: Runner, text: str, kind: EndKind, code: int, number: int | None) -> None:
        """The status is the one a shell would report."""
        _, ended = await complete(runner, text)
        assert (ended.kind, ended.code, ended.signal) == (kind, code, number)

    async def test_timeout(self, runner: Runner) -> None:
        """When the time is over the command ends, as 124."""
        _, ended = await complete(runner, "exec sleep 100", timeout=0.1)
        assert (ended.kind, ended.code) == (EndKind.TIMED_OUT, 124)

    @pytest.mark.parametrize(
        ("text", "grace", "number", "printed"),
        [
            ("echo up; exec sleep 100", 30, 15, b"up\n"),
            ("trap 'echo bye; exit 0' TERM; echo up; read -r < <(sleep 100)", 30, None, b"up\nbye\n"),
            ("trap '' TERM; for i in {1..20}; do sleep 100 & done; echo up; wait", 0.1, 9, b"up\n"),
            ("trap '' TERM; echo up; sleep 100", 0, 9, b"up\n"),
        ],
    )
    async def test_timeout_in_steps(self, runner: Runner, text: str, grace: float, number: int | None, printed: bytes) -> None:
        """TERM comes first, so that a trap can tidy up; KILL of all after the grace; the output so far is kept."""
        execution = runner.make(text)
        task = asyncio.create_task(runner.run(execution, text, grace=grace))
        await run_out(execution, b"up\n")
        ended = await task
        execution.finish(result_of(ended))
        assert (ended.kind, ended.code, ended.signal) == (EndKind.TIMED_OUT, 124, number)
        assert output(await gather_events(execution)) == printed

    async def test_left_over_children_die(self, runner: Runner) -> None:
        """What the command leaves running ends with it, and does not keep the end from being told."""
        _, ended = await complete(runner, "sleep 100 & echo $!")
        assert (ended.kind, ended.code) == (EndKind.EXITED, 0)

    async def test_last_bytes_arrive(self, runner: Runner) -> None:
        """What lies in the pipe when the command ends is not lost."""
        execution, ended = await complete(runner, "head -c 60000 /dev/zero; head -c 3000 /dev/zero >&2")
        assert (ended.stdout_bytes, ended.stderr_bytes) == (60000, 3000)
        events = await gather_events(execution)
        assert (len(output(events)), len(output(events, Stream.STDERR))) == (60000, 3000)

    async def test_cancel(self, runner: Runner) -> None:
        """The client vanishes: TERM, KILL, and the end says why."""
        execution = runner.make()
        task = asyncio.create_task(runner.run(execution, "trap '' TERM; echo up; sleep 100 & wait"))
        await until(execution.events(), b"up\n")
        execution.cancel("client_gone")
        execution.cancel("another")
        ended = await task
        assert (ended.kind, ended.code, ended.cause) == (EndKind.CANCELLED, 130, "client_gone")

    async def test_cancel_before_start(self, runner: Runner) -> None:
        """A command cancelled while it waits is never started."""
        execution = runner.make()
        execution.cancel("user")
        ended = await runner.run(execution, "echo no")
        assert (ended.kind, ended.cause) == (EndKind.CANCELLED, "user")
        assert runner.boxes == []

    async def test_cancel_during_start(self, runner: Runner) -> None:
        """Cancelled between start and the first byte: it still ends, as cancelled."""
        execution = runner.make()
        begin = runner.start("sleep 100")

        def start(stdio: Stdio) -> Box:
            box = begin(stdio)
            asyncio.get_running_loop().call_soon(execution.cancel, "user")
            return box

        ended = await execution.run(
            start, timeout=None, grace=5, stdin=False, report_cwd=False, max_output=None, profile="workspace"
        )
        assert ended.kind is EndKind.CANCELLED

    async def test_task_cancelled(self, runner: Runner) -> None:
        """Cancelling the task that runs it leaves no process and no descriptor (the fixture looks)."""
        execution = runner.make()
        task = asyncio.create_task(runner.run(execution, "trap '' TERM; echo up; sleep 100 & wait"))
        await until(execution.events(), b"up\n")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert runner.boxes[0].reaped

    async def test_start_fails(self, runner: Runner) -> None:
        """No box, no Started event, nothing left over; the error goes to the engine."""
        execution = runner.make()

        def refuse(_: Stdio) -> Box:
            raise IsolationError("no user namespace", fix="run doctor")

        with pytest.raises(IsolationError):
            await execution.run(refuse, timeout=1, grace=1, stdin=True, report_cwd=True, max_output=None, profile="workspace")
        execution.finish(Result(EndKind.FAILED, 125, cause="no user namespace"))
        assert [type(event) for event in await gather_events(execution)] == [Exited]

    @pytest.mark.parametrize("late", [False, True], ids=["at the start", "at the end"])
    async def test_a_box_that_cannot_be_built_is_built_again(self, late: bool, runner: Runner) -> None:
        """What fails before anything has run is tried again: one Started event, all of the output, the command's own end."""
        execution = runner.make()
        begin, tries, built = runner.start("cat; exit 3"), [], asyncio.Event()

        def start(stdio: Stdio) -> Box:
            tries.append(stdio)
            if len(tries) == 3:
                built.set()
                return begin(stdio)
            if not late:
                raise IsolationError("a file was replaced")
            box = Unbuilt("true", stdio)
            runner.boxes.append(box)
            return box

        task = asyncio.create_task(
            execution.run(start, timeout=60, grace=1, stdin=True, report_cwd=True, max_output=None, profile="workspace")
        )
        async for event in execution.events():
            if isinstance(event, Started):
                break
        await built.wait()
        execution.write_stdin(0, b"all of it", True)
        ended = await task
        execution.finish(result_of(ended))
        events = await gather_events(execution)
        assert [type(event) for event in events].count(Started) == 1
        assert (output(events), ended.code, len(tries)) == (b"all of it", 3, 3)

    async def test_no_second_box_for_what_was_fed_to_the_first(self, runner: Runner) -> None:
        """Standard input that went into the pipe of a box that could not be built is lost with it: that is an error, not a
        command that reads half."""
        execution = runner.make()
        execution.write_stdin(0, b"early", True)
        tries = []

        def refuse(stdio: Stdio) -> Box:
            tries.append(stdio)
            raise IsolationError("a file was replaced")

        with pytest.raises(IsolationError):
            await execution.run(refuse, timeout=1, grace=1, stdin=True, report_cwd=False, max_output=None, profile="workspace")
        assert len(tries) == 1
        execution.finish(Result(EndKind.FAILED, 125))

    async def test_many_in_a_row(self, runner: Runner) -> None:
        """A hundred commands in a row leave no descriptor (the fixture looks)."""
        for _ in range(100):
            execution, ended = await complete(runner, "echo x")
            assert ended.code == 0
            execution.close()


class TestCwd:
    async def test_reported(self, runner: Runner) -> None:
        """The shell's last directory comes back."""
        _, ended = await complete(runner, "cd /usr/lib", report_cwd=True)
        assert ended.reported_cwd == "/usr/lib"

    @pytest.mark.parametrize("claim", ["", "relative/dir", "/a\\0/b", "/" + "x" * 5000])
    async def test_nonsense(self, runner: Runner, claim: str) -> None:
        """A claim that is no absolute path is no claim."""
        execution = runner.make()

        def start(stdio: Stdio) -> Box:
            os.write(stdio.cwd_report, claim.replace("\\0", "\0").encode())
            box = LocalBox("true", Stdio(stdio.stdin, stdio.stdout, stdio.stderr))
            runner.boxes.append(box)
            return box

        ended = await execution.run(
            start, timeout=None, grace=1, stdin=False, report_cwd=True, max_output=None, profile="workspace"
        )
        assert ended.reported_cwd is None

    async def test_absent(self, runner: Runner) -> None:
        """A shell that is killed reports nothing."""
        _, ended = await complete(runner, "kill -9 $$", report_cwd=True)
        assert ended.reported_cwd is None


class TestStdin:
    async def test_without(self, runner: Runner) -> None:
        """No stdin means /dev/null, and writing to it is an error."""
        execution = runner.make()
        text = "readlink /proc/self/fd/0; cat"
        task = asyncio.create_task(runner.run(execution, text))
        await until(execution.events(), b"/dev/null\n")
        with pytest.raises(RequestError):
            execution.write_stdin(0, b"x", False)
        assert (await task).code == 0

    async def test_before_start_and_retries(self, runner: Runner) -> None:
        """Bytes sent early are kept; the same bytes sent twice arrive once; a gap is refused with its field."""
        execution = runner.make()
        assert execution.write_stdin(0, b"abc", False) == 3
        assert execution.write_stdin(0, b"abc", False) == 3
        assert execution.write_stdin(1, b"bcde", False) == 5
        with pytest.raises(RequestError) as caught:
            execution.write_stdin(9, b"x", False)
        assert caught.value.field == "offset"
        task = asyncio.create_task(runner.run(execution, "cat", stdin=True))
        await until(execution.events(), b"abcde")
        assert execution.write_stdin(5, b"f", True) == 6
        assert execution.write_stdin(5, b"f", True) == 6
        assert execution.write_stdin(6, b"", True) == 6
        ended = await task
        execution.finish(result_of(ended))
        assert output(await gather_events(execution)) == b"abcdef"
        with pytest.raises(RequestError):
            execution.write_stdin(6, b"late", False)

    async def test_bytes_behind_the_end(self, runner: Runner) -> None:
        """Nothing can be written behind the end of stdin."""
        execution = runner.make()
        execution.write_stdin(0, b"a", True)
        with pytest.raises(RequestError) as caught:
            execution.write_stdin(1, b"b", False)
        assert caught.value.field == "offset"

    async def test_large(self, runner: Runner) -> None:
        """Far more than a pipe holds goes through in order."""
        data = os.urandom(900_000)
        execution = runner.make()
        task = asyncio.create_task(runner.run(execution, "cat", stdin=True))
        execution.write_stdin(0, data, True)
        ended = await task
        execution.finish(result_of(ended))
        assert output(await gather_events(execution)) == data

    async def test_reader_too_slow(self, runner: Runner) -> None:
        """A command that does not read fills a bounded buffer; then the writer is told to come back."""
        execution = runner.make()
        task = asyncio.create_task(runner.run(execution, "echo up; exec sleep 100", stdin=True))
        await until(execution.events(), b"up\n")
        sent = execution.write_stdin(0, bytes(STDIN_BUFFER), False)
        sent = execution.write_stdin(sent, bytes(STDIN_BUFFER), False)
        with pytest.raises(Exhausted):
            execution.write_stdin(sent, b"x", False)
        execution.cancel("user")
        await task

    async def test_command_closes_stdin(self, runner: Runner) -> None:
        """A command that closes its stdin makes later bytes vanish, not fail."""
        execution = runner.make()
        task = asyncio.create_task(runner.run(execution, "exec 0<&-; echo closed; exec sleep 100", stdin=True))
        await until(execution.events(), b"closed\n")
        assert execution.write_stdin(0, b"abc", False) == 3
        assert execution.write_stdin(3, b"def", True) == 6
        execution.cancel("user")
        await task


class TestSignal:
    async def test_delivered(self, runner: Runner) -> None:
        """A signal reaches the command."""
        execution = runner.make()
        text = "trap 'echo got; exit 5' USR1; echo up; while :; do read -r -t 0.05 < <(sleep 9); done"
        task = asyncio.create_task(runner.run(execution, text))
        await until(execution.events(), b"up\n")
        execution.signal(signal.SIGUSR1)
        await until(execution.events(), b"got\n")
        assert (await task).code == 5

    @pytest.mark.parametrize("number", [0, -1, 65])
    async def test_invalid(self, runner: Runner, number: int) -> None:
        """What is no signal is refused."""
        with pytest.raises(RequestError) as caught:
            runner.make().signal(number)
        assert caught.value.field == "signal"

    async def test_not_running(self, runner: Runner) -> None:
        """Only a running command can be signalled."""
        with pytest.raises(RequestError):
            runner.make().signal(signal.SIGTERM)
