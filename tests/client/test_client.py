# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python client, blocking and asynchronous, against a running daemon."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxd.cli.metrics import METRICS
from sandboxd.client import (
    Answer,
    Approval,
    Ask,
    AsyncClient,
    AsyncExecution,
    AsyncSession,
    Batch,
    BatchEvent,
    BatchResult,
    BatchText,
    Client,
    Execution,
    ExternalStart,
    Session,
    SessionBatch,
    Settled,
)
from sandboxd.errors import NotFound, RequestError, Unavailable
from sandboxd.model import ApprovalNeeded, Behavior, EndKind, Exited, Mode, Output, Started
from tests.e2e.conftest import Place, eventually, running

pytestmark = pytest.mark.needs("bwrap", "userns")

BYPASS = "bypassPermissions"


def test_importing_it_loads_no_daemon() -> None:
    """A program that uses the client loads neither the daemon nor the parser."""
    parts = ("sandboxd.engine", "sandboxd.api", "sandboxd.shell", "bashlex", "sqlite3")
    code = f"import sys, sandboxd.client; print([m for m in sys.modules if m.startswith({parts})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a daemon, connecting says where it was looked for and how to start one."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(Unavailable, match=f"{tmp_path}/sandboxd/agent.sock.*sandboxd serve"), Client():
        pass


# Blocking


def test_run(tree: Path) -> None:
    """`Client().run` gives exit status, output and decision; a denied command is no exception."""
    with Client() as client:
        run = client.run("cat a.txt")
        assert (run.ok, run.exit_code, run.output, run.profile) == (True, 0, "one\ntwo\n", "workspace")
        assert run.decision is not None
        assert (run.decision.step, run.decision.promise) == ("2e", True)
        denied = client.run("touch made")
        assert (denied.exit_code, denied.result.end) == (126, EndKind.DENIED)
        assert denied.decision is not None
        assert denied.decision.flip
        assert client.run("cd .. ; pwd").exit_code == 126
        failed = client.run("cat missing")
        assert failed.exit_code == 1
        assert b"No such file" in failed.stderr


def test_the_agent_socket_is_the_default(tree: Path) -> None:
    """Without on_ask a client is an agent: it sees its own session only."""
    with Client() as client:
        client.run("true")
        with pytest.raises(RequestError, match="only the admin socket"):
            client.sessions()


def test_streaming(tree: Path) -> None:
    """Events come one by one, while the command runs; leaving the loop ends the command."""
    with Client(admin=True) as client, client.session(mode=BYPASS) as session:
        execution = session.start("echo one; read line; echo $line; exec sleep 71.25", stdin=True)
        seen = []
        for event in execution:
            if isinstance(event, Output):
                seen.append(event.data)
                if len(seen) == 2:
                    break
                execution.write_stdin(b"two\n")
        assert seen == [b"one\n", b"two\n"]
        execution.close()
        assert eventually(lambda: not running("sleep\x0071.25"))


def test_standard_input(tree: Path) -> None:
    """Standard input of any size goes through, also to a command that does not read all of it."""
    data = b"x" * 3_000_000
    with Client() as client:
        assert client.run("wc -c", stdin=data).output == "3000000\n"
        assert client.run("head -c 5", stdin=data).output == "xxxxx"
        assert client.run("cat", stdin=b"").output == ""
        assert client.run("cat").output == ""


def test_output_is_bounded(tree: Path) -> None:
    """`max_output` bounds what is collected, and the rest is counted."""
    with Client() as client:
        run = client.run("seq 100000", max_output=1000)
        assert len(run.stdout) == 1000
        assert run.dropped == run.result.stdout_bytes - 1000


def test_on_ask(tree: Path) -> None:
    """The callback is asked in the caller's own thread, its answer counts, and its error reaches the caller."""
    asked: list[Ask] = []

    def say(ask: Ask) -> bool:
        asked.append(ask)
        if ask.text == "touch raise":
            raise LookupError("nobody here")
        return ask.text == "touch yes"

    with Client(on_ask=say) as client:
        assert client.run("touch yes").ok
        assert client.run("touch no").exit_code == 126
        assert [ask.decision.behavior for ask in asked] == [Behavior.ASK, Behavior.ASK]
        with pytest.raises(LookupError):
            client.run("touch raise")
        assert client.run("cat a.txt").ok
        assert client.approvals() == ()
    assert {path.name for path in tree.iterdir()} & {"yes", "no", "raise"} == {"yes"}


def test_on_ask_for_the_session(tree: Path) -> None:
    """An answer may keep the narrow rule for the session; the next time nobody is asked."""
    count = 0

    def say(ask: Ask) -> Answer:
        nonlocal count
        count += 1
        return Answer(True, "session", ask.decision.suggestions[0])

    with Client(on_ask=say) as client:
        assert client.run("touch made").ok
        assert client.run("touch made").ok
    assert count == 1


def test_sessions(tree: Path) -> None:
    """A session has its mode and directory, changes, and is gone behind `with`."""
    (tree / "sub").mkdir()
    with Client(admin=True) as client:
        with client.session(mode="plan", deny=["Bash(make deploy:*)"]) as session:
            assert (session.info.mode, session.info.deny) == (Mode.PLAN, ("Bash(make deploy:*)",))
            assert session.run("touch x").exit_code == 126
            session.update(mode=Mode.ACCEPT_EDITS, cwd="sub")
            assert session.run("touch x").ok
            assert (tree / "sub" / "x").exists()
            session.run("cd ..")
            assert session.refresh().cwd == str(tree)
            check = session.check("make deploy")
            assert (check.decision.step, check.decision.behavior) == ("1d", Behavior.DENY)
            assert [command.argv for command in check.analysis.commands] == [("make", "deploy")]
        with pytest.raises(NotFound):
            client.attach_session(session.id)


def test_status_profiles_and_record(tree: Path) -> None:
    """The daemon's state, its profiles and its record are there as values."""
    with Client(admin=True) as client:
        assert client.status().state == "serving"
        assert client.profile("network").network.value == "host"
        assert [item.message for item in client.validate_profile("nonsense = 1")]
        enforcement = client.run("pwd # remembered").result.enforcement
        status = client.status()
        assert enforcement is not None
        if enforcement.backend == "native":  # the pool knows where its box came from
            assert status.pool is not None
            assert status.pool.reused + status.pool.warm + status.pool.from_template + status.pool.cold >= 1
        assert len([sample for metric in METRICS if "_pool_" in metric.name for sample in metric.read(status)]) in (0, 5)
        newest, *_ = client.decisions(limit=1)
        assert newest.text == "pwd # remembered"
        found = client.decision(newest.id)
        assert dataclasses.replace(found, analysis=None) == newest
        assert found.analysis is not None
        assert [command.argv for command in found.analysis.commands] == [("pwd",)]


def test_an_interrupt_ends_what_runs(served: Place, tree: Path) -> None:
    """Ctrl-C in a program that waits for a command ends the command too."""
    code = (
        "from sandboxd.client import Client\n"
        "with Client(admin=True) as c, c.session(mode='bypassPermissions') as s:\n"
        "    for e in s.start('echo up; exec sleep 72.5'):\n"
        "        print(type(e).__name__, flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    while "Output" not in child.stdout.readline():
        assert child.poll() is None
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert "KeyboardInterrupt" in err
    assert "never" not in err
    assert eventually(lambda: not running("sleep\x0072.5"))


def test_a_batch(tree: Path) -> None:
    """A batch runs commands and the caller's own tools under one barrier; results and texts come in the order asked."""
    with Client(admin=True) as client, client.session(mode=BYPASS) as session, session.batch() as batch:
        batch.run("read", "cat a.txt")
        batch.external("edit", "Edit")
        batch.run("behind", "cat made")
        seen: list[str] = []
        texts: dict[str, str] = {}
        for message in batch:
            if isinstance(message, ExternalStart):
                (tree / "made").write_text("by the tool\n")
                batch.finished(message.key, output="edited\n")
                batch.close()
            elif isinstance(message, BatchResult):
                seen.append(message.key)
                assert message.result.code == 0
            elif isinstance(message, BatchText):
                texts[message.key] = message.text.text
        assert seen == ["read", "edit", "behind"]
        assert texts == {"read": "one\ntwo\n", "edit": "edited\n", "behind": "by the tool\n"}


def test_a_batch_of_commands_alone(tree: Path) -> None:
    """`outcome` reads a batch to its end; an error cancels siblings; what the daemon refuses is raised; leaving kills."""
    with Client(admin=True) as client, client.session(mode=BYPASS) as session:
        with session.batch() as batch:
            batch.run("running", "tail -f /dev/null")
            batch.run("failing", "cat no-such-file")
            batch.close()
            outcome = batch.outcome()
        assert list(outcome.results) == ["running", "failing"]
        assert outcome.results["running"].end is EndKind.CANCELLED
        assert "no-such-file" in outcome.texts["failing"].text
        with session.batch() as batch:
            batch.run("a", "echo")
            batch.run("a", "echo")
            with pytest.raises(RequestError, match="used in this batch"):
                batch.outcome()
        with session.batch() as batch:
            batch.run("left", "echo up; exec sleep 73.5")
            for message in batch:
                if isinstance(message, BatchEvent) and isinstance(message.event, Output):
                    break
        assert eventually(lambda: not running("sleep\x0073.5"))


SHAPES = [
    (AsyncClient, Client, {"connect"}),
    (AsyncSession, Session, set()),
    (AsyncExecution, Execution, set()),
    (SessionBatch, Batch, {"command"}),
]


@pytest.mark.parametrize(("asynchronous", "blocking", "only"), SHAPES, ids=lambda value: getattr(value, "__name__", ""))
def test_both_clients_have_one_shape(asynchronous: type, blocking: type, only: set[str]) -> None:
    """What the asynchronous client can do the blocking one can, under the same name with the same parameters."""

    def public(cls: type) -> dict[str, object]:
        return {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}

    theirs, ours = public(asynchronous), public(blocking)
    assert set(theirs) - only <= set(ours)
    for name in set(theirs) & set(ours) - only:
        if not callable(theirs[name]):
            continue
        wanted, given = (inspect.signature(each).parameters for each in (theirs[name], ours[name]))  # type: ignore[arg-type]  # they are callable
        forwarded = any(parameter.kind is parameter.VAR_KEYWORD for parameter in given.values())
        named = {key for key, parameter in wanted.items() if parameter.kind is not parameter.VAR_KEYWORD}
        assert set(given) - {"options"} <= named, name
        assert forwarded or set(given) == named, name


# Asynchronous


async def test_many_at_once(tree: Path) -> None:
    """One client carries many sessions and commands at once, each with its own output."""
    async with AsyncClient() as client:
        runs = await asyncio.gather(*(client.run(f"echo {number}") for number in range(20)))
    assert [run.output for run in runs] == [f"{number}\n" for number in range(20)]


async def test_attach_after_a_disconnect(tree: Path) -> None:
    """A kept command goes on when its client is gone; another client follows it from the beginning or from where it was."""
    async with AsyncClient(admin=True) as first:
        session = await first.session(mode=BYPASS)
        execution = await session.start("echo one; read line; echo $line", stdin=True, keep_on_disconnect=True)
        async for event in execution:
            if isinstance(event, Output):
                last = event.seq
                break
        await execution.close()
        known = (session.id, session.secret, execution.id)
    async with AsyncClient() as second:
        again = await second.attach_session(known[0], known[1])
        followed = await again.attach(known[2], from_sequence=last + 1)
        await followed.write_stdin(b"two\n", eof=True)
        run = await followed.wait()
        assert (run.output, run.exit_code) == ("two\n", 0)
        whole = await (await again.attach(known[2])).wait()
        assert (whole.output, whole.text) == ("one\ntwo\n", "echo one; read line; echo $line")
        assert whole.decision is not None
        await again.delete()


async def test_signal_and_cancel(tree: Path) -> None:
    """A signal reaches the command; cancel ends it with its cause, and the events go on to the end."""
    async with AsyncClient(admin=True) as client, await client.session(mode=BYPASS) as session:
        execution = await session.start("trap 'echo caught; exit 9' TERM; echo up; while :; do sleep 0.1; done")
        async for event in execution:
            if isinstance(event, Output) and event.data == b"up\n":
                await execution.signal(signal.SIGTERM)
            if isinstance(event, Exited):
                assert event.result.code == 9
        execution = await session.start("sleep 60")
        async for event in execution:
            if isinstance(event, Started):
                await execution.cancel("enough")
            if isinstance(event, Exited):
                assert (event.result.end, event.result.cause) == (EndKind.CANCELLED, "enough")


async def test_an_asynchronous_on_ask(tree: Path) -> None:
    """on_ask may be a coroutine function; an answer from elsewhere ends its waiting."""
    waiting, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(ask: Ask) -> bool:
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return True

    async with AsyncClient(on_ask=slow) as client, AsyncClient(admin=True) as other:
        running = asyncio.create_task(client.run("touch made"))
        await waiting.wait()
        (question,) = await other.approvals()
        await other.resolve(question.id, Answer(False, reason="no need"))
        run = await running
        assert run.exit_code == 126
        assert cancelled.is_set()


async def test_leaving_before_the_end(tree: Path) -> None:
    """A client that is closed takes its commands with it, and a question that is open."""
    async with AsyncClient(admin=True) as other:
        changes = other.watch_approvals()
        async with AsyncClient(admin=True) as client:
            session = await client.session(headless=False)
            execution = await session.start("touch made")
            async for event in execution:
                if isinstance(event, ApprovalNeeded):
                    break
            assert isinstance(await anext(changes), Approval)
        assert isinstance(await anext(changes), Settled)
        assert await other.approvals() == ()
        await changes.aclose()  # type: ignore[attr-defined]  # it is a generator
        await (await other.attach_session(session.id)).delete()


@pytest.mark.parametrize("text", ["", "a\0b", "\ud800", "x" * 200_000])
async def test_invalid_commands_are_errors(text: str, tree: Path) -> None:
    """What can be no command raises RequestError with the field, before anything is judged."""
    async with AsyncClient() as client:
        with pytest.raises(RequestError) as caught:
            await client.run(text)
    assert caught.value.field == "command.text"
