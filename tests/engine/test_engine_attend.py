# SPDX-License-Identifier: GPL-3.0-or-later
"""Terminals, detached commands, stdin of interpreters, stored results, heartbeats and secrets, with real boxes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import stat
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import cast

import pytest

from sandboxd.errors import Forbidden, RequestError
from sandboxd.jobs import Job
from sandboxd.model import (
    Behavior,
    EndKind,
    Event,
    Mode,
    Output,
    Progress,
    Request,
    Started,
    WindowSize,
)
from sandboxd.run.execution import Execution
from sandboxd.session import SessionState
from tests.engine.conftest import House, finish

pytestmark = pytest.mark.needs("bwrap", "userns")

SIZE = WindowSize(rows=31, columns=97)


class Screen:
    """What a command on a terminal shows, as it comes."""

    def __init__(self, house: House, execution: Execution) -> None:
        self.execution = execution
        self.shown = ""
        self._house = house
        self._events: AsyncIterator[Event] = execution.events()
        self._typed = 0

    async def wait_for(self, text: str) -> None:
        """Until `text` is shown behind what was waited for before."""
        async with asyncio.timeout(30):
            while text not in self.shown:
                event = await anext(self._events)
                if isinstance(event, Output):
                    self.shown += event.data.decode()
        self.shown = self.shown.partition(text)[2]

    async def type(self, keys: bytes, *, eof: bool = False) -> None:
        self._typed = await self._house.engine.executions.write_stdin(self.execution, self._typed, keys, eof)

    async def close(self) -> None:
        await self._events.aclose()  # type: ignore[attr-defined]  # it is a generator


async def on_terminal(house: House, text: str, session: SessionState) -> Screen:
    return Screen(house, await house.engine.start(Request(text, session.id, terminal=SIZE), session))


@pytest.mark.parametrize("profile", ["workspace", "build"])
async def test_a_terminal(house: House, profile: str) -> None:
    """A shell on a terminal has one, of the size asked for; a change of size reaches it; it can be typed at to its end."""
    session = house.session(Mode.BYPASS, profile=profile)
    screen = await on_terminal(house, "PS1='> ' bash --norc -i", session)
    await screen.wait_for("> ")
    await screen.type(b"tty; stty size; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo yes:three\n")
    await screen.wait_for("31 97")
    await screen.wait_for("yes:three")
    screen.execution.resize(WindowSize(50, 132))
    await screen.type(b"stty size; echo $TERM\n")
    await screen.wait_for("50 132")
    await screen.wait_for("xterm")
    await screen.type(b"echo to stderr >&2\n")
    await screen.wait_for("to stderr\r\n")
    await screen.type(b"", eof=True)
    async with asyncio.timeout(30):
        await screen.execution.done.wait()
    assert screen.execution.result is not None
    assert (screen.execution.result.end, screen.execution.result.code) == (EndKind.EXITED, 0)
    assert screen.execution.result.stderr_bytes == 0
    await screen.close()


async def test_keys_are_signals_in_the_box_only(house: House) -> None:
    """Ctrl-C typed on the terminal interrupts what is in the foreground, and the shell around it goes on."""
    session = house.session(Mode.BYPASS)
    screen = await on_terminal(house, "PS1='> ' bash --norc -i", session)
    await screen.wait_for("> ")
    await screen.type(b"bash -c 'echo u''p; exec tail -f /dev/null'\n")
    await screen.wait_for("up\r\n")
    await screen.type(b"\x03")
    await screen.wait_for("> ")
    await screen.type(b"echo st''ill; exit 7\n")
    await screen.wait_for("still")
    result, _, _ = await finish(screen.execution)
    assert result.code == 7
    await screen.close()


async def test_a_window_change_is_a_signal(house: House) -> None:
    """SIGWINCH reaches the foreground."""
    session = house.session(Mode.BYPASS)
    screen = await on_terminal(house, "trap 'stty size; exit' WINCH; echo re''ady; while :; do read -t 1 x; done", session)
    await screen.wait_for("ready")
    screen.execution.resize(WindowSize(11, 22))
    await screen.wait_for("11 22")
    await screen.close()


async def test_what_a_terminal_leaves_is_killed(house: House) -> None:
    """Whatever was started on a terminal, in sessions of its own too, is gone with it."""
    session = house.session(Mode.BYPASS)
    text = (
        "for i in 1 2 3 4 5; do setsid bash -c 'trap \"\" TERM HUP; exec -a left-behind tail -f /dev/null' & done; echo u''p; cat"
    )
    screen = await on_terminal(house, text, session)
    await screen.wait_for("up")
    house.engine.executions.cancel(screen.execution, "enough")
    result, _, _ = await finish(screen.execution)
    assert (result.end, result.cause) == (EndKind.CANCELLED, "enough")
    assert not running("left-behind")
    with pytest.raises(RequestError, match="no terminal"):
        screen.execution.resize(SIZE)
    await screen.close()


def running(name: str) -> list[str]:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(name.encode()):
                found.append(pid)
        except OSError:
            pass
    return found


@pytest.mark.parametrize("size", [WindowSize(0, 80), WindowSize(24, 70_000)])
async def test_a_size_that_cannot_be(house: House, size: WindowSize) -> None:
    """A size that no terminal has fails the command, with the reason."""
    session = house.session(Mode.BYPASS)
    result, _, _ = await finish(await house.engine.start(Request("true", session.id, terminal=size), session))
    assert result.end is EndKind.FAILED
    assert "terminal cannot have" in result.cause


async def until_started(execution: Execution) -> None:
    """Follow it until it runs, and let go of it."""
    async with followed(execution) as events:
        async for event in events:
            if isinstance(event, Started):
                return


def followed(execution: Execution) -> AbstractAsyncContextManager[AsyncGenerator[Event, None]]:
    return aclosing(cast("AsyncGenerator[Event, None]", execution.events()))


async def test_nobody_comes_back(house: House) -> None:
    """A kept command with a time ends when nobody has followed it for so long; its terminal event says why."""
    session = house.session(Mode.BYPASS)
    request = Request("tail -f /dev/null", session.id, keep_on_disconnect=True, detach_ttl=0.05)
    execution = await house.engine.start(request, session)
    await until_started(execution)
    house.engine.executions.let_go(execution, starter=True)
    async with asyncio.timeout(30):
        await execution.done.wait()
    assert execution.result is not None
    assert (execution.result.end, execution.result.cause) == (EndKind.CANCELLED, "nobody came back within 0.05 s")


async def test_somebody_comes_back(house: House) -> None:
    """Whoever follows it when the time is over keeps it; when they go, the time starts again."""
    session = house.session(Mode.BYPASS)
    request = Request("echo up; tail -f /dev/null", session.id, background=True, detach_ttl=0.05)
    execution = await house.engine.start(request, session)
    await until_started(execution)
    job = house.engine.executions.job(execution)
    assert job is not None
    async with followed(execution) as events:
        await anext(events)
        house.engine.executions.let_go(execution, starter=True)
        assert expiry(job) is None  # it is followed: no time runs
    house.engine.executions.let_go(execution, starter=False)
    timer = expiry(job)
    assert timer is not None
    async with followed(execution) as events:
        await anext(events)
        timer._run()  # the time is over now
        assert not execution.cancelled.is_set()
    house.engine.executions.let_go(execution, starter=False)
    async with asyncio.timeout(30):
        await execution.done.wait()


def expiry(job: Job) -> asyncio.TimerHandle | None:
    return job.expiry


async def test_cancelled_before_its_first_step(house: House) -> None:
    """An execution that is cancelled as soon as it is started has its terminal event all the same."""
    session = house.session(Mode.BYPASS)
    execution = await house.engine.start(Request("echo no", session.id), session)
    house.engine.executions.cancel(execution, "never mind")
    async with asyncio.timeout(30):
        result, printed, _ = await finish(execution)
    assert (result.end, result.cause, printed) == (EndKind.CANCELLED, "never mind", "")


async def test_kept_without_a_time_runs_to_its_end(house: House) -> None:
    """Without a time a kept command is not touched, and one that is not kept ends with its starter alone."""
    session = house.session(Mode.BYPASS)
    kept = await house.engine.start(Request("read x; echo $x", session.id, stdin=True, keep_on_disconnect=True), session)
    house.engine.executions.let_go(kept, starter=True)
    await house.engine.executions.write_stdin(kept, 0, b"on\n", True)
    assert (await finish(kept))[1] == "on\n"
    plain = await house.engine.start(Request("tail -f /dev/null", session.id), session)
    house.engine.executions.let_go(plain, starter=False)
    assert not plain.cancelled.is_set()
    house.engine.executions.let_go(plain, starter=True)
    assert (await finish(plain))[0].cause == "caller_left"


async def test_stdin_of_an_interpreter_needs_its_standing(house: House) -> None:
    """What is written to an interpreter is code: when it may not be started now as it was then, it is not taken."""
    session = house.session(Mode.BYPASS)
    interpreter = await house.engine.start(Request("bash", session.id, stdin=True), session)
    await until_started(interpreter)
    assert await house.engine.executions.write_stdin(interpreter, 0, b"echo one\n", False) == 9
    house.engine.sessions.update(session, session.owner_role, mode=Mode.PLAN)
    with pytest.raises(Forbidden, match="takes code"):
        await house.engine.executions.write_stdin(interpreter, 9, b"echo two\n", False)
    house.engine.sessions.update(session, session.owner_role, mode=Mode.BYPASS)
    assert await house.engine.executions.write_stdin(interpreter, 9, b"echo two\n", True) == 18
    assert (await finish(interpreter))[1] == "one\ntwo\n"
    reader = await house.engine.start(Request("cat", session.id, stdin=True), session)
    await until_started(reader)
    house.engine.sessions.update(session, session.owner_role, mode=Mode.PLAN)
    await house.engine.executions.write_stdin(reader, 0, b"data\n", True)
    assert (await finish(reader))[1] == "data\n"


async def test_a_stored_result_is_readable_inside(house: House) -> None:
    """The model's text names a file with all of the output, private to the user, which the session reads without asking."""
    session = house.session()
    execution = await house.engine.start(Request("seq 20000", session.id), session)
    result, _, _ = await finish(execution)
    assert result.spill_path.startswith(f"{house.engine.dirs.state}/spill/{session.id}/")
    assert stat.S_IMODE(os.stat(result.spill_path).st_mode) == 0o600
    text = await house.engine.executions.model_text(execution)
    assert text is not None
    assert text.text.startswith("1\n2\n")
    assert text.text.endswith("19999\n20000\n")
    assert (result.spill_path in text.text, text.whole) == (True, False)
    read, printed, _ = await house.run(f"tail -n 1 {result.spill_path}", session)
    assert (read.code, printed) == (0, "20000\n")
    other, _, _ = await house.run(f"tail -n 1 {result.spill_path}", house.session())
    assert other.code != 0
    await house.engine.end_session(session)
    assert not os.path.exists(result.spill_path)


async def test_an_exempt_reader_makes_no_loop(house: House) -> None:
    """A call without a budget is shown everything and stores nothing, though it prints more than any budget."""
    session = house.session()
    execution = await house.engine.start(Request("seq 200000", session.id, max_result_chars=-1), session)
    result, printed, _ = await finish(execution)
    assert result.spill_path == ""
    text = await house.engine.executions.model_text(execution)
    assert text is not None
    assert text.text == printed


async def test_long_commands_give_signs_of_life(house: House) -> None:
    """A command that runs long says so: how long, how much, and its last line; none of it is part of the history."""
    engine = house.engine
    engine.sessions.config = dataclasses.replace(engine.config, run=dataclasses.replace(engine.config.run, heartbeat=0.02))
    session = house.session(Mode.BYPASS)
    text = r"printf 'first\n\033[32mlast line\033[0m\n'; read x"
    execution = await engine.start(Request(text, session.id, stdin=True), session)
    beats: list[Progress] = []
    async for event in execution.events():
        if isinstance(event, Progress) and event.output_bytes == 25:
            beats.append(event)
            if len(beats) == 2:
                break
    assert beats[1].elapsed > beats[0].elapsed > 0
    assert {beat.last_line for beat in beats} == {"last line"}
    await engine.executions.write_stdin(execution, 0, b"\n", True)
    _, _, events = await finish(execution)  # its numbers have no hole
    replay = [event async for event in execution.events()]
    assert not any(isinstance(event, Progress) for event in replay)
    assert replay[-1] == events[-1]


async def test_the_environment_of_a_session(house: House) -> None:
    """A session's variables are in every command, an exported one of a command is gone with it, and the record holds no
    secret among them."""
    session = house.session(Mode.BYPASS, env=(("DEPLOY_TOKEN", "open-sesame-42"), ("GREETING", "hello there")))
    _, printed, _ = await house.run('echo "$DEPLOY_TOKEN/$GREETING"; export GREETING=bye', session)
    assert printed == "open-sesame-42/hello there\n"
    assert (await house.run("echo $GREETING", session))[1] == "hello there\n"
    await house.run("echo open-sesame-42 > hello; cat 'hello there'", session)
    exported = "\n".join(house.engine.record.export())
    assert "open-sesame-42" not in exported
    assert "hello there" in exported
    assert re.search(r"echo \[redacted:\w+\] > hello", exported)
    assert Behavior.ALLOW.value in exported
