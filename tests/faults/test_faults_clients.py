# SPDX-License-Identifier: GPL-3.0-or-later
"""Front-ends that go away and come back while a question is open, and a configuration that changes under what runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd.client import Answer, Client
from sandboxd.model import ApprovalNeeded, Behavior, Decided, EndKind, Queued, Stream
from tests.e2e.conftest import Daemon, Place
from tests.faults.conftest import BYPASS, Follower, client

pytestmark = pytest.mark.needs("bwrap", "userns")


@pytest.fixture
def tree(served: Place) -> Path:
    return served.workspace()


# Questions


@pytest.mark.parametrize("allowed", [True, False], ids=["allowed", "denied"])
async def test_a_question_is_answered_while_its_front_end_is_away(allowed: bool, served: Place, tree: Path) -> None:
    """The question stays when the front-end of a kept command goes; somebody else answers; the command does as was said, and
    the front-end that comes back reads on where it was, to the end."""
    async with client(served) as front:
        session = await front.session(str(tree), headless=False)
        started = Follower(await session.start("touch made; echo out", keep_on_disconnect=True))
        needed = await started.until(ApprovalNeeded)
        await started.leave()
    async with client(served) as person:
        (question,) = await person.approvals()
        assert (question.id, question.text) == (needed.approval_id, "touch made; echo out")
        assert (await person.execution(started.execution.id)).state == "waiting"
        await person.resolve(question.id, Answer(allowed, reason="as agreed"))
    async with client(served) as front:
        again = await front.attach_session(session.id)
        back = Follower(await again.attach(started.execution.id, from_sequence=needed.seq + 1))
        ended = await back.end()
        assert ended.end is (EndKind.EXITED if allowed else EndKind.DENIED)
        assert [event.seq for event in back.seen] == list(range(needed.seq + 1, needed.seq + 1 + len(back.seen)))
        (decided,) = [event for event in back.seen if isinstance(event, Decided)]
        assert decided.decision.behavior is (Behavior.ALLOW if allowed else Behavior.DENY)
        assert back.output() == (b"out\n" if allowed else b"")
        assert await front.approvals() == ()
        await again.delete()
    assert (tree / "made").exists() is allowed


async def test_a_front_end_that_comes_back_is_asked_again(served: Place, tree: Path) -> None:
    """A front-end that attaches to a command whose question is open gets the question, and may answer it."""
    async with client(served) as front:
        session = await front.session(str(tree), headless=False)
        started = Follower(await session.start("touch made", keep_on_disconnect=True))
        await started.until(ApprovalNeeded)
        await started.leave()
    asked: list[str] = []

    def say(ask: object) -> bool:
        asked.append(ask.text)  # type: ignore[attr-defined]  # an Ask
        return True

    async with client(served, on_ask=say) as front:
        run = await (await front.attach_execution(started.execution.id)).wait()
        assert (run.exit_code, asked) == (0, ["touch made"])
        await (await front.attach_session(session.id)).delete()
    assert (tree / "made").exists()


async def test_a_question_goes_with_a_front_end_that_keeps_nothing(served: Place, tree: Path) -> None:
    """When the front-end of a command that is not kept goes, the question is withdrawn and no answer to it counts."""
    async with client(served) as person, client(served) as front, await front.session(str(tree), headless=False) as session:
        started = Follower(await session.start("touch made"))
        await started.until(ApprovalNeeded)
        await started.leave()
        ended = await (await session.attach(started.execution.id)).wait()
        assert (ended.result.end, ended.result.cause) == (EndKind.CANCELLED, "caller_left")
        assert await person.approvals() == ()
    assert not (tree / "made").exists()


# Reload


async def test_a_reload_under_what_runs(new_place: Callable[[], Place], start_daemon: Callable[[Place], Daemon]) -> None:
    """What runs goes on as it was started; what waits for its turn is judged by the rules that hold when it comes; what is
    asked next has the new settings; a mistake changes nothing at all."""
    place = new_place()
    daemon = start_daemon(place)
    tree = place.workspace()
    folder = place.home / ".config/sandboxd"
    folder.mkdir(parents=True, exist_ok=True)
    config, rules = folder / "config.toml", folder / "settings.toml"
    async with client(place) as person, await person.session(str(tree), mode=BYPASS) as session:
        running = Follower(await session.start("echo up; read line; echo $line; touch first", stdin=True))
        await running.printed(b"up\n")
        waiting = Follower(await session.start("touch second"))
        while not (await waiting.until(Queued)).reason:
            pass
        config.write_text("[run]\ntimeout = 1.0\nmax_result_chars = 100\n")
        rules.write_text('[[rule]]\nbehavior = "deny"\nrule = "Bash(touch:*)"\nreason = "no more files"\n')
        await asyncio.to_thread(daemon.reload)
        await running.execution.write_stdin(b"down\n", eof=True)
        ended = await running.end()
        assert (ended.end, ended.code, running.output()) == (EndKind.EXITED, 0, b"up\ndown\n")
        assert (await waiting.end()).end is EndKind.DENIED
        assert (tree / "first").exists()
        assert not (tree / "second").exists()
        assert (await session.run("exec sleep 60")).result.end is EndKind.TIMED_OUT
        long = await session.run("seq 1000")
        assert long.result.spill_path
        config.write_text("[run]\ntimeout = 'soon'\n")
        await asyncio.to_thread(daemon.reload)
        assert any(f"{config}:2" in error for error in (await person.status()).errors)
        assert (await session.run("seq 1000")).result.spill_path
        assert (await session.run("touch third")).result.end is EndKind.DENIED
    assert daemon.stop() == 0


# Output of any kind


ANY = {
    "binary": bytes(range(256)) * 400,
    "not UTF-8": b"\xff\xfe\xc3(\xa0\xa1 text \xe2\x28\xa1\n" * 100,
    "cut characters": "€😀".encode()[:-1] * 9999,
    "no line end": b"x" * 200_000,
    "zeros": bytes(300_000),
}


@pytest.mark.parametrize("name", ANY)
async def test_any_bytes_come_through(name: str, served: Place, tree: Path) -> None:
    """Whatever a command prints arrives byte for byte on either stream, and a model reads valid text of it."""
    data = ANY[name]
    (tree / "data").write_bytes(data)
    async with client(served) as person, await person.session(str(tree)) as session:
        follower = Follower(await session.start("cat data; cat data >&2"))
        assert (await follower.end()).code == 0
        assert follower.output() == data
        assert follower.output(Stream.STDERR) == data
        text = await session.model_text(follower.execution.id)
        assert text is not None
        assert text.text.encode().decode() == text.text
        assert "\0" not in text.text


def test_the_blocking_client_takes_any_bytes(served: Place, tree: Path) -> None:
    """The same through the blocking client, whose text has replacement characters where there is no UTF-8."""
    (tree / "data").write_bytes(ANY["binary"])
    with Client(f"unix:{served.runtime}/sandboxd/admin.sock", admin=True) as person, person.session(str(tree)) as session:
        run = session.run("cat data")
    assert run.stdout == ANY["binary"]
    assert "\ufffd" in run.output
