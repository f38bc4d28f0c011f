# SPDX-License-Identifier: GPL-3.0-or-later
"""ExecutionService over a real socket: order of events, leaving and coming back, deadlines, steering, what is not there yet."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import grpc
import pytest

from sandboxd.model import EndKind
from sandboxd.run.execution import Execution
from sandboxd.v1 import analysis_pb2, execution_pb2, session_pb2
from tests.api.conftest import Wire, refused

pytestmark = pytest.mark.needs("bwrap", "userns")

BYPASS = session_pb2.MODE_BYPASS_PERMISSIONS


class Caller:
    """Starts commands in one session of the admin socket and reads their events as they are on the wire."""

    def __init__(self, wire: Wire, session: str) -> None:
        self.wire = wire
        self.session = session
        self.stub = wire.admin.executions

    def start(self, text: str, *, deadline: float | None = None, **fields: Any) -> Any:
        known = {name: fields.pop(name) for name in ("timeout", "stdin", "cwd") if name in fields}
        request = execution_pb2.ExecutionServiceStartRequest(
            session_id=self.session, command=execution_pb2.Command(text=text, **known), **fields
        )
        return self.stub.Start(request, timeout=deadline)

    def attach(self, execution: str, sequence: int = 0) -> Any:
        return self.stub.Attach(execution_pb2.ExecutionServiceAttachRequest(execution_id=execution, from_sequence=sequence))

    def known(self, execution: str) -> Execution:
        """The engine's own."""
        return self.wire.house.engine.executions.get(execution, None)

    async def state(self, execution: str) -> execution_pb2.Execution:
        answer = await self.stub.Get(execution_pb2.ExecutionServiceGetRequest(execution_id=execution))
        found: execution_pb2.Execution = answer.execution
        return found


@pytest.fixture
async def caller(wire: Wire) -> Caller:
    session, _ = await wire.admin.create(wire.house.workspace, mode=BYPASS, headless=True)
    return Caller(wire, session)


async def events(call: Any) -> list[execution_pb2.Event]:
    return [message.event async for message in call]


async def until(call: Any, kind: str) -> list[execution_pb2.Event]:
    """The events up to and with the first one of that kind."""
    seen = []
    async for message in call:
        seen.append(message.event)
        if message.event.WhichOneof("kind") == kind:
            return seen
    raise AssertionError(f"no {kind} in {seen}")


def kinds(found: list[execution_pb2.Event]) -> list[str]:
    return [str(event.WhichOneof("kind")) for event in found]


def output(found: list[execution_pb2.Event], stream: int = execution_pb2.OUTPUT_STREAM_STDOUT) -> bytes:
    return b"".join(event.output.data for event in found if event.HasField("output") and event.output.stream == stream)


async def test_events_come_in_order_and_exited_is_last(caller: Caller) -> None:
    """Sequence numbers count from 1 without a hole, offsets follow each other, the terminal event is last and only once."""
    found = await events(caller.start("echo one; echo two >&2; echo three; exit 3"))
    assert [event.sequence for event in found] == list(range(1, len(found) + 1))
    order = kinds(found)
    assert order.index("decided") < order.index("started") < order.index("output") < order.index("exited")
    assert order.count("exited") == 1
    assert order[-1] == "exited"
    assert output(found) == b"one\nthree\n"
    assert output(found, execution_pb2.OUTPUT_STREAM_STDERR) == b"two\n"
    assert (found[-1].exited.result.end, found[-1].exited.result.exit_code) == (execution_pb2.END_EXITED, 3)


async def test_output_comes_while_it_runs(caller: Caller) -> None:
    """What a command writes is sent at once, not at its end."""
    call = caller.start("echo first; read line; echo $line", stdin=True)
    (*_, first) = await until(call, "output")
    assert first.output.data == b"first\n"
    request = execution_pb2.ExecutionServiceWriteStdinRequest(execution_id=first.execution_id, data=b"second\n", eof=True)
    assert (await caller.stub.WriteStdin(request)).offset == 7
    assert output(await events(call)) == b"second\n"


async def test_a_deny_is_an_answer(caller: Caller) -> None:
    """A denied command is no RPC error: Decided, then Exited with 126, and the call ends with OK."""
    call = caller.start("rm -rf /")
    found = await events(call)
    assert await call.code() is grpc.StatusCode.OK
    assert kinds(found)[-2:] == ["decided", "exited"]
    assert found[-2].decided.decision.behavior == analysis_pb2.BEHAVIOR_DENY
    assert found[-2].decided.decision.step == "1d"
    assert found[-1].exited.result.exit_code == 126


@pytest.mark.parametrize("leave", ["cancel", "deadline"])
async def test_a_caller_that_goes_takes_its_command_along(caller: Caller, leave: str) -> None:
    """When the caller cancels or its deadline passes, the command is killed and its end says why."""
    call = caller.start("echo up; sleep 60", deadline=3.0 if leave == "deadline" else None)
    seen = await until(call, "output")
    if leave == "cancel":
        call.cancel()
    execution = caller.known(seen[0].execution_id)
    async with asyncio.timeout(20):
        await execution.done.wait()
    assert execution.result is not None
    assert (execution.result.end, execution.result.cause) == (EndKind.CANCELLED, "caller_left")


@pytest.mark.parametrize("kept", ["keep_on_disconnect", "background"])
async def test_a_kept_command_goes_on_alone(caller: Caller, kept: str) -> None:
    """With keep_on_disconnect or background it goes on without the caller, and Attach gives every event of it."""
    call = caller.start("echo up; read line; echo $line", stdin=True, **{kept: True})
    if kept == "background":
        seen = await events(call)
        assert kinds(seen)[-1] == "started"
    else:
        seen = await until(call, "output")
        call.cancel()
    execution = seen[0].execution_id
    assert (await caller.state(execution)).state == execution_pb2.EXECUTION_STATE_RUNNING
    request = execution_pb2.ExecutionServiceWriteStdinRequest(execution_id=execution, data=b"down\n", eof=True)
    await caller.stub.WriteStdin(request)
    found = await events(caller.attach(execution))
    assert found[: len(seen)] == seen
    assert output(found) == b"up\ndown\n"
    assert found[-1].exited.result.exit_code == 0


async def test_attach_replays_exactly(caller: Caller) -> None:
    """From every sequence number on, during and after the run, Attach gives the very events that Start gave."""
    call = caller.start("echo a; echo b >&2; seq 2000; echo c", keep_on_disconnect=True)
    seen = await until(call, "started")
    early = asyncio.create_task(events(caller.attach(seen[0].execution_id)))
    seen += await events(call)
    assert await early == seen
    for sequence in range(1, len(seen) + 1):
        assert await events(caller.attach(seen[0].execution_id, sequence)) == seen[sequence - 1 :]


async def test_start_again_follows_the_first(caller: Caller) -> None:
    """The same request_id follows the same execution from its first event; with another command it is an error."""
    first = await events(caller.start("echo once", request_id="r-1"))
    assert await events(caller.start("echo once", request_id="r-1")) == first
    code, error = await refused(caller.start("echo twice", request_id="r-1"))
    assert code == "INVALID_ARGUMENT"
    assert getattr(error, "field", "") == "request_id"


async def test_cancel_and_signal(caller: Caller) -> None:
    """Cancel ends a command with its cause and may come twice; Signal reaches it, and is an error when it is over."""
    call = caller.start("echo up; sleep 60")
    seen = await until(call, "output")
    request = execution_pb2.ExecutionServiceCancelRequest(execution_id=seen[0].execution_id, cause="enough")
    await caller.stub.Cancel(request)
    (*_, last) = await events(call)
    assert (last.exited.result.end, last.exited.result.cause) == (execution_pb2.END_CANCELLED, "enough")
    await caller.stub.Cancel(request)
    call = caller.start("trap 'echo got; exit 5' USR1; echo up; while :; do sleep 0.1; done")
    seen = await until(call, "output")
    wanted = execution_pb2.ExecutionServiceSignalRequest(execution_id=seen[0].execution_id, signal=signal.SIGUSR1)
    await caller.stub.Signal(wanted)
    found = await events(call)
    assert (output(found), found[-1].exited.result.exit_code) == (b"got\n", 5)
    assert (await refused(caller.stub.Signal(wanted)))[0] == "INVALID_ARGUMENT"


async def test_stdin_is_idempotent_by_offset(caller: Caller) -> None:
    """Bytes that were sent before are skipped, a gap is refused, nothing is taken behind the end."""
    call = caller.start("cat", stdin=True)
    seen = await until(call, "started")
    request = execution_pb2.ExecutionServiceWriteStdinRequest

    async def write(offset: int, data: bytes, *, eof: bool = False) -> int:
        sent = request(execution_id=seen[0].execution_id, offset=offset, data=data, eof=eof)
        return int((await caller.stub.WriteStdin(sent)).offset)

    assert await write(0, b"abc") == 3
    assert await write(0, b"abc") == 3
    assert await write(1, b"bcd") == 4
    code, error = await refused(caller.stub.WriteStdin(request(execution_id=seen[0].execution_id, offset=9, data=b"z")))
    assert (code, getattr(error, "field", "")) == ("INVALID_ARGUMENT", "offset")
    assert await write(4, b"\n", eof=True) == 5
    found = await events(call)
    assert output(found) == b"abcd\n"


async def test_timeout_of_the_command(caller: Caller) -> None:
    """`command.timeout` ends the command with 124, not the call."""
    call = caller.start("echo early; sleep 60", timeout={"nanos": 800_000_000})
    found = await events(call)
    assert await call.code() is grpc.StatusCode.OK
    assert output(found) == b"early\n"
    assert (found[-1].exited.result.end, found[-1].exited.result.exit_code) == (execution_pb2.END_TIMED_OUT, 124)


async def test_check_says_what_start_would_do(caller: Caller) -> None:
    """CheckCommand gives Start's decision, with effects and byte spans of the text, and runs nothing."""
    text = "cat ‘é’.txt; echo x > new.txt"
    request = execution_pb2.ExecutionServiceCheckCommandRequest(
        session_id=caller.session, command=execution_pb2.Command(text=text)
    )
    answer = await caller.stub.CheckCommand(request)
    assert not (caller.wire.house.workspace / "new.txt").exists()
    targets = {
        text.encode()[effect.span.start : effect.span.end].decode(): effect.target
        for subcommand in answer.analysis.subcommands
        for effect in subcommand.effects
    }
    assert targets["‘é’.txt"] == f"{caller.wire.house.workspace}/‘é’.txt"
    found = await events(caller.start(text))
    (decided,) = (event.decided for event in found if event.HasField("decided"))
    assert decided.decision == answer.decision


INVALID: tuple[tuple[str, dict[str, Any], str, str], ...] = (
    ("", {}, "INVALID_ARGUMENT", "command.text"),
    ("a\0b", {}, "INVALID_ARGUMENT", "command.text"),
    ("x" * 131_001, {}, "INVALID_ARGUMENT", "command.text"),
    ("ls", {"timeout": {"seconds": -1}}, "INVALID_ARGUMENT", "command.timeout"),
    ("ls", {"timeout": {"seconds": 0}}, "INVALID_ARGUMENT", "command.timeout"),
    ("ls", {"cwd": "a\0b"}, "INVALID_ARGUMENT", "command.cwd"),
    ("ls", {"request_id": "r" * 129}, "INVALID_ARGUMENT", "request_id"),
)


@pytest.mark.parametrize(("text", "fields", "status", "field"), INVALID)
async def test_invalid_requests_name_their_field(
    text: str, fields: dict[str, Any], status: str, field: str, caller: Caller
) -> None:
    """An invalid request is an error with its field, nothing is judged, nothing runs."""
    code, error = await refused(caller.start(text, **fields))
    assert (code, getattr(error, "field", "")) == (status, field)
    assert caller.wire.house.engine.executions.list(None) == ()


async def test_a_draining_daemon_takes_nothing_new(caller: Caller) -> None:
    """While it drains, a running command is let go on to its end, and a new Start is UNAVAILABLE."""
    call = caller.start("echo up; read line; echo $line", stdin=True)
    seen = await until(call, "output")
    draining = asyncio.create_task(caller.wire.house.engine.drain())
    await asyncio.sleep(0)
    code, error = await refused(caller.start("true"))
    assert (code, error.fix) == ("UNAVAILABLE", "retry when it has restarted")
    request = execution_pb2.ExecutionServiceWriteStdinRequest(execution_id=seen[0].execution_id, data=b"down\n", eof=True)
    await caller.stub.WriteStdin(request)
    found = await events(call)
    assert (output(found), found[-1].exited.result.exit_code) == (b"down\n", 0)
    await draining


async def test_bundles(caller: Caller) -> None:
    """Who asks for it gets in one message what happens at once; nothing is lost, and the order is that of single events."""
    messages = [message async for message in caller.start("echo one; echo two >&2; exit 3", bundle=True)]
    found = [event for message in messages for event in (message.event, *message.more)]
    assert [event.sequence for event in found] == list(range(1, len(found) + 1))
    assert found[-1].exited.result.exit_code == 3
    assert b"".join(event.output.data for event in found) in (b"one\ntwo\n", b"two\none\n")
    single = await events(caller.attach(found[0].execution_id))
    assert single == found


async def test_a_bundle_in_the_background_ends_at_started(caller: Caller) -> None:
    """Whatever has happened since."""
    messages = [message async for message in caller.start("true", background=True, bundle=True)]
    found = [event for message in messages for event in (message.event, *message.more)]
    assert [event.WhichOneof("kind") for event in found].count("started") == 1
    assert found[-1].WhichOneof("kind") == "started"
