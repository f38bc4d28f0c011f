# SPDX-License-Identifier: GPL-3.0-or-later
"""RunBatch over a real socket with real boxes: order, the barrier, aborts, external calls, what a model reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from sandboxd.client import (
    AsyncSession,
    BatchEvent,
    BatchResult,
    BatchText,
    ExternalCancel,
    ExternalStart,
    SessionBatch,
    Tool,
)
from sandboxd.errors import RequestError
from sandboxd.model import ApprovalNeeded, Behavior, EndKind, Exited, Mode, Output, Result
from tests.api.conftest import Wire

pytestmark = pytest.mark.needs("bwrap", "userns")

SIBLING = "Cancelled: parallel tool call errored"


@pytest.fixture
async def session(wire: Wire) -> AsyncIterator[AsyncSession]:
    async with wire.client() as client, await client.session(wire.place, mode=Mode.BYPASS, headless=True) as made:
        yield made


@dataclass
class Reader:
    """Reads a batch beside the test and keeps what came, in order."""

    batch: SessionBatch
    seen: list[object] = field(default_factory=list)
    _more: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Reader:
        await self.batch.__aenter__()
        self.task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])
        await self.batch.__aexit__(None, None, None)

    async def _read(self) -> None:
        async for message in self.batch:
            self.seen.append(message)
            self._more.set()

    async def when(self, reached: Callable[[], bool]) -> None:
        """Wait until that is so. Fails when the batch ends before."""
        assert self.task is not None
        async with asyncio.timeout(30):
            while not reached():
                if self.task.done():
                    self.task.result()
                    raise AssertionError(f"the batch has ended: {self.seen}")
                more = asyncio.create_task(self._more.wait())
                await asyncio.wait([more, self.task], return_when=asyncio.FIRST_COMPLETED)
                more.cancel()
                self._more.clear()

    async def until(self, wanted: object) -> None:
        """Wait until that message has come."""
        await self.when(lambda: wanted in self.seen)

    async def printed(self, key: str, text: bytes) -> None:
        await self.when(lambda: text in self.output(key))

    async def ended(self, count: int) -> None:
        await self.when(lambda: len(self.results) >= count)

    async def end(self) -> None:
        await self.batch.close()
        assert self.task is not None
        async with asyncio.timeout(30):
            await self.task

    def output(self, key: str) -> bytes:
        events = [each.event for each in self.seen if isinstance(each, BatchEvent) and each.key == key]
        return b"".join(event.data for event in events if isinstance(event, Output))

    @property
    def results(self) -> dict[str, Result]:
        return {each.key: each.result for each in self.seen if isinstance(each, BatchResult)}

    @property
    def texts(self) -> dict[str, str]:
        return {each.key: each.text.text for each in self.seen if isinstance(each, BatchText)}


def reader(session: AsyncSession) -> Reader:
    return Reader(session.batch())


async def feed(session: AsyncSession, read: Reader, key: str, data: bytes) -> None:
    """Write to the stdin of a command of the batch, and close it."""
    first = next(each.event for each in read.seen if isinstance(each, BatchEvent) and each.key == key)
    async with await session.attach(getattr(first, "execution_id", "")) as execution:
        await execution.write_stdin(data, eof=True)


async def test_results_in_the_order_asked_output_as_it_comes(session: AsyncSession) -> None:
    """Readers run together; the first one asked ends last, its result is delivered first, and all texts come last."""
    async with reader(session) as read:
        await read.batch.run("slow", "head -n 1", stdin=True)
        await read.batch.run("quick", "echo quick")
        await read.printed("quick", b"quick")
        assert read.results == {}
        await feed(session, read, "slow", b"now\n")
        await read.end()
    assert list(read.results) == ["slow", "quick"]
    assert all(result.code == 0 for result in read.results.values())
    assert list(read.texts.items())[1] == ("quick", "quick\n")
    assert isinstance(read.seen[-1], BatchText)


async def test_a_reader_behind_a_writer_sees_what_it_wrote(session: AsyncSession) -> None:
    """The barrier is by the order asked: a reader that is judged sooner than the writer before it waits all the same."""
    async with reader(session) as read:
        for number in range(6):
            await read.batch.run(f"w{number}", f"for i in 1 2 3; do :; done; echo {number} > value; echo more >> value")
            await read.batch.run(f"r{number}", "head -1 value")
        await read.end()
    assert [read.texts[f"r{number}"] for number in range(6)] == [f"{number}\n" for number in range(6)]


async def test_an_error_cancels_siblings_and_the_batch_goes_on(session: AsyncSession, wire: Wire) -> None:
    """A failing command cancels those that run and those that wait, with the synthetic result; what comes later runs."""
    async with reader(session) as read:
        await read.batch.run("running", "echo up; tail -f /dev/null")
        await read.batch.run("failing", "cat no-such-file")
        await read.batch.run("waiting", "touch never")
        await read.ended(3)
        await read.batch.run("later", "echo later")
        await read.end()
    ends = {key: (result.end, result.cause) for key, result in read.results.items()}
    assert ends["running"] == (EndKind.CANCELLED, SIBLING)
    assert ends["failing"][0] is EndKind.EXITED
    assert ends["waiting"] == (EndKind.CANCELLED, SIBLING)
    assert ends["later"] == (EndKind.EXITED, "")
    assert read.texts["running"] == SIBLING
    assert not (wire.house.workspace / "never").exists()
    assert (await session.run("echo on")).output == "on\n"


ANSWERS = [
    "grep absent a.txt",
    "diff a.txt b.txt",
    "test -e no-such-file",
    "find no-such-directory",
    "cat a.txt | grep absent",
    "grep absent a.txt && grep absent b.txt",
]


@pytest.mark.parametrize("text", ANSWERS)
async def test_an_answer_is_no_error(text: str, session: AsyncSession, wire: Wire) -> None:
    """Exit status 1 of a program that answers with it aborts nobody."""
    (wire.house.workspace / "a.txt").write_text("a\n")
    (wire.house.workspace / "b.txt").write_text("b\n")
    async with reader(session) as read:
        await read.batch.run("answer", text)
        await read.batch.run("after", "echo on")
        await read.end()
    assert read.results["answer"].code == 1
    assert read.results["after"].end is EndKind.EXITED


async def test_a_deny_by_rule_aborts_nobody(session: AsyncSession) -> None:
    """A denied command is its own affair."""
    async with reader(session) as read:
        await read.batch.run("denied", "rm -rf /")
        await read.batch.run("after", "echo on")
        await read.end()
    assert read.results["denied"].end is EndKind.DENIED
    assert read.texts["after"] == "on\n"


async def test_a_human_no_interrupts_the_batch(wire: Wire) -> None:
    """When a human rejects a command, everything else in the batch is cancelled, what is asked afterwards too."""
    async with wire.client() as client, await client.session(wire.place, headless=False) as session, reader(session) as read:
        await read.batch.run("asking", "touch x")
        await read.batch.run("behind", "echo behind")
        await read.when(
            lambda: any(isinstance(each, BatchEvent) and isinstance(each.event, ApprovalNeeded) for each in read.seen)
        )
        wire.house.answer(Behavior.DENY)
        await read.ended(2)
        await read.batch.run("later", "echo later")
        await read.end()
    assert read.results["asking"].end is EndKind.DENIED
    for key in ("behind", "later"):
        assert read.results[key].end is EndKind.CANCELLED
        assert "human rejected" in read.results[key].cause


async def test_discard(session: AsyncSession) -> None:
    """A superseded batch ends with its own reason, and nothing of it runs on."""
    async with reader(session) as read:
        await read.batch.run("a", "echo up; tail -f /dev/null")
        await read.printed("a", b"up")
        await read.batch.discard()
        await read.batch.run("b", "echo b")
        await read.end()
    assert [result.cause for result in read.results.values()] == ["streaming_fallback"] * 2


async def test_interrupt_drops_what_said_so(session: AsyncSession) -> None:
    """When the user speaks up, a call that said `cancel` is stopped, one that did not finishes."""
    async with reader(session) as read:
        await read.batch.run("dropped", "echo up; tail -f /dev/null", cancel_on_interrupt=True)
        await read.batch.run("kept", "read line; echo got $line", stdin=True)
        await read.printed("dropped", b"up")
        await read.batch.interrupt()
        await read.ended(1)
        await feed(session, read, "kept", b"it\n")
        await read.end()
    assert read.results["dropped"].cause == "Cancelled: interrupted by the user"
    assert read.texts["kept"] == "got it\n"


async def test_external_calls_share_the_barrier(session: AsyncSession) -> None:
    """An external writer runs alone and in order, an external reader beside others; its failure aborts nobody."""
    async with reader(session) as read:
        await read.batch.external("edit", "Edit")
        await read.batch.run("behind", "echo behind")
        await read.until(ExternalStart("edit"))
        assert read.output("behind") == b""
        await read.batch.external("look", "Read", concurrency_safe=True)
        await read.batch.finished("edit", failed=True)
        await read.until(ExternalStart("look"))
        await read.batch.finished("look")
        await read.end()
    assert list(read.results) == ["edit", "behind", "look"]
    assert read.texts == {"behind": "behind\n"}


async def test_external_calls_are_told_to_stop(session: AsyncSession) -> None:
    """A running external sibling is told to stop, a waiting one never gets its turn."""
    async with reader(session) as read:
        await read.batch.external("look", "Read", concurrency_safe=True)
        await read.batch.run("failing", "cat no-such-file")
        await read.batch.external("edit", "Edit")
        await read.until(ExternalCancel("look", SIBLING))
        await read.ended(3)
        await read.batch.finished("look")
        await read.end()
    assert ExternalStart("edit") not in read.seen
    assert read.results["look"].cause == read.results["edit"].cause == SIBLING


async def test_a_caller_that_goes_takes_the_batch_along(session: AsyncSession, wire: Wire) -> None:
    """When the stream breaks, what runs is killed, what waits never starts, and an external call's turn is over."""
    async with reader(session) as read:
        await read.batch.external("look", "Read", concurrency_safe=True)
        await read.batch.run("up", "echo up; tail -f /dev/null")
        await read.batch.run("waiting", "touch never")
        await read.printed("up", b"up")
    engine = wire.house.engine
    for execution in engine.executions.list(None):
        await execution.done.wait()
        assert execution.result is not None
        assert execution.result.cause == "caller_left"
    assert (await session.run("touch ours; echo on")).output == "on\n"
    assert not (wire.house.workspace / "never").exists()


async def test_the_model_budget_of_a_batch(session: AsyncSession) -> None:
    """A result over its own budget is a preview; of those within it, the largest go until the batch fits."""
    sizes = {"small": 1_000, "large": 49_000, "larger": 49_500, "d": 45_000, "e": 45_000, "f": 45_000, "over": 60_000}
    async with reader(session) as read:
        for key, size in sizes.items():
            await read.batch.run(key, f"yes 123456789 | head -c {size}")
        await read.end()
    shown = {key: len(text) for key, text in read.texts.items()}
    assert sum(shown.values()) <= 200_000 + 7 * 300  # but for the notices
    whole = {key for key, size in sizes.items() if shown[key] == size}
    assert whole == {"small", "large", "d", "e", "f"}  # `larger` made room enough
    assert read.results["over"].spill_path
    for each in read.seen:
        if isinstance(each, BatchText) and not each.text.whole:
            found = await session.run(f"wc -c < {each.text.spill_path}")
            assert found.output.strip() == str(sizes[each.key]), found


DECLARED = (
    Tool("Look", schema={"type": "object"}, concurrency_safe=True, cancels=True, max_result_chars=3_000, aliases=("Peek",)),
    Tool("Change", schema={"type": "object"}),
)


async def test_what_is_declared_of_a_tool_counts(session: AsyncSession) -> None:
    """A tool declared safe runs beside others under any of its names, one that is not runs alone unless the call says so;
    when the user speaks up, the declaration decides unless the call does."""
    await session.declare_tools(DECLARED)
    async with reader(session) as read:
        await read.batch.external("look", "Look")
        await read.batch.external("peek", "Peek", cancel_on_interrupt=False)
        await read.batch.external("change", "Change", concurrency_safe=True)
        for key in ("look", "peek", "change"):
            await read.until(ExternalStart(key))
        await read.batch.external("alone", "Change")
        await read.batch.interrupt()
        await read.until(ExternalCancel("look", "Cancelled: interrupted by the user"))
        for key in ("look", "peek", "change"):
            assert ExternalStart("alone") not in read.seen
            await read.batch.finished(key)
        await read.until(ExternalStart("alone"))
        await read.batch.finished("alone")
        await read.end()
    assert [key for key, result in read.results.items() if result.cause] == ["look"]
    assert read.texts == {}


async def test_what_a_tool_gave_is_within_its_budget(session: AsyncSession) -> None:
    """A tool's output is cut to what the tool was declared with, stored whole, and comes in the order asked; a tool of no
    declaration has the configured budget; both count for the batch."""
    await session.declare_tools(DECLARED)
    long = "".join(f"line {number}\n" for number in range(1_000))
    async with reader(session) as read:
        await read.batch.external("look", "Look")
        await read.batch.run("echo", "echo on")
        await read.batch.external("other", "SomethingElse")
        await read.until(ExternalStart("look"))
        await read.batch.finished("look", output=long)
        await read.until(ExternalStart("other"))
        await read.batch.finished("other", output=long)
        await read.end()
    texts = {each.key: each.text for each in read.seen if isinstance(each, BatchText)}
    assert list(texts) == ["look", "echo", "other"]
    assert (texts["other"].text, texts["other"].whole) == (long, True)
    assert not texts["look"].whole
    assert texts["look"].text.startswith("line 0\n")
    assert len(texts["look"].text) < 3_300
    assert (await session.run(f"cat {texts['look'].spill_path}")).output == long


async def test_what_a_tool_gave_is_bounded(session: AsyncSession) -> None:
    """More than a message should carry is refused with its field; what ran is killed."""
    batch = session.batch()
    async with batch:
        await batch.external("look", "Look")
        assert await anext(aiter(batch)) == ExternalStart("look")
        await batch.finished("look", output="x" * ((2 << 20) + 1))
        with pytest.raises(RequestError, match="at most 2097152"):
            await batch.outcome()


WRONG = [
    ("a key twice", ["a", "a"]),
    ("no key", [""]),
]


@pytest.mark.parametrize(("what", "keys"), WRONG)
async def test_what_makes_no_sense_ends_the_batch(what: str, keys: list[str], session: AsyncSession) -> None:
    """A protocol error ends the call with INVALID_ARGUMENT, and what ran is killed."""
    batch = session.batch()
    async with batch:
        for key in keys:
            await batch.run(key, "echo x")
        await batch.close()
        with pytest.raises(RequestError, match="key"):
            await batch.outcome()


async def test_every_event_of_a_command_comes_to_its_end(session: AsyncSession) -> None:
    """Each command's own events are in order, and its Exited is among them."""
    async with reader(session) as read:
        await read.batch.run("a", "echo a")
        await read.batch.run("b", "echo b")
        await read.end()
    for key in ("a", "b"):
        events = [each.event for each in read.seen if isinstance(each, BatchEvent) and each.key == key]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert isinstance(events[-1], Exited)
