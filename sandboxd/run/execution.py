# SPDX-License-Identifier: GPL-3.0-or-later
"""One command's life: queued, decided, perhaps asked about, started, its output, its end.

The engine tells an Execution what happens; any number of followers read it back as events with rising sequence numbers,
from the first or from any later one. The terminal Exited is the last event and there is exactly one.

Memory is bounded whatever the command writes: output goes to the spool on disk. When the spool is full (limit or disk)
the command goes on; what it writes then is dropped but for the last TAIL bytes of each stream, which followers get at
the end, behind a Gap that counts what is missing.

Back-pressure: while a follower that had caught up lies more than WINDOW bytes behind, the pipes are not read and the
command waits in write(). A follower that is still replaying old output holds nobody up.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from sandboxd.errors import IsolationError, NotFound, RequestError
from sandboxd.model import (
    Advice,
    ApprovalNeeded,
    Box,
    Decided,
    Decision,
    EndKind,
    Event,
    Exited,
    ExitStatus,
    Gap,
    Output,
    Progress,
    Queued,
    Result,
    Started,
    Stdio,
    Stream,
    Usage,
    WindowSize,
)
from sandboxd.run import pty
from sandboxd.run.ended import CANCELLED_CODE, Ended, verdict
from sandboxd.run.preview import decode, whole_characters
from sandboxd.run.process import Process, open_pipes, read_cwd
from sandboxd.run.spool import Kept, Spool
from sandboxd.run.streams import CHUNK, Feeder, Pump

WINDOW = 2 * CHUNK  # bytes a live follower may lie behind
BUNDLE, MOST = 1 << 15, 64  # bytes of output, events: what is sent together at most, but for the last chunk
TAIL = 1 << 16  # bytes of each stream kept when the spool is full
STDERR_TAIL = 8192  # bytes of stderr kept for the search for violations
MAX_OUTPUT = 256 << 20  # bytes of spool where neither profile nor request say
TRIES = 3  # at building the box
LAST_LINE = 200  # characters of the last line that a heartbeat shows


@dataclass(slots=True, eq=False)
class _Follower:
    position: int  # in the spool: everything before it has been taken
    live: bool


class Execution:
    """All methods belong to the event loop's thread."""

    def __init__(self, execution_id: str, session_id: str, text: str, spool_dir: str) -> None:
        self.id = execution_id
        self.session_id = session_id
        self.text = text
        self.done = asyncio.Event()
        self.cancelled = asyncio.Event()  # set by cancel(), also before the start
        self.cancel_cause = ""
        self.result: Result | None = None
        self._spool = Spool(os.path.join(spool_dir, f"{execution_id}.spool"), MAX_OUTPUT)
        self._last = 0  # sequence number of the newest event
        self._held: dict[int, Event] = {}  # every event that is not in the spool: few
        self._followers: set[_Follower] = set()
        self._waiters: set[asyncio.Future[None]] = set()
        self._feeder = Feeder()
        self._pump: Pump | None = None
        self._process: Process | None = None
        self._started = False
        self._announced = False  # by its Started event
        self._stdin = True
        self._begin = 0.0
        self._bytes = {Stream.STDOUT: 0, Stream.STDERR: 0}
        self._spooled = {Stream.STDOUT: 0, Stream.STDERR: 0}
        self._tails = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
        self._stderr_tail = bytearray()
        self._terminal = -1  # our end of the command's terminal
        self._recent = b""  # the end of what came last
        self._beat: Progress | None = None
        self._pulsing: asyncio.TimerHandle | None = None
        self._closed = False

    @classmethod
    def past(
        cls, execution_id: str, session_id: str, text: str, spool_dir: str, decision: Decision | None, result: Result
    ) -> Execution:
        """An ended execution of a daemon that is gone: its output from the spool, the rest from the record.

        Output keeps its sequence numbers. Blocking. Raises NotFound when the spool cannot be read.
        """
        self = cls(execution_id, session_id, text, spool_dir)
        self._bytes = self._spool.adopt()
        self._emit(Queued(1, execution_id))
        if decision is not None:
            self._emit(Decided(2, execution_id, decision))
        self._last = max(self._last, self._spool.last)
        if result.end is EndKind.DAEMON_RESTART:
            out, err = (self._bytes[stream] for stream in (Stream.STDOUT, Stream.STDERR))
            result = dataclasses.replace(result, stdout_bytes=out, stderr_bytes=err, truncated=True)
        self.finish(result)
        return self

    @property
    def started(self) -> bool:
        """Whether its box was started; it may have ended since."""
        return self._process is not None

    @property
    def last_sequence(self) -> int:
        """The number of its newest event."""
        return self._last

    @property
    def followed(self) -> bool:
        """Whether anybody follows it now."""
        return bool(self._followers)

    # What the engine reports

    def queued(self, reason: str) -> None:
        """It has to wait; `reason` says for what."""
        self._emit(Queued(self._last + 1, self.id, reason))

    def decided(self, decision: Decision) -> None:
        self._emit(Decided(self._last + 1, self.id, decision))

    def approval_needed(self, approval_id: str, decision: Decision) -> None:
        self._emit(ApprovalNeeded(self._last + 1, self.id, approval_id, decision))

    def advised(self, approval_id: str, text: str) -> None:
        self._emit(Advice(self._last + 1, self.id, approval_id, text))

    def finish(self, result: Result) -> None:
        """Emit the terminal event. A second call changes nothing."""
        if self.result is not None:
            return
        self.result = result
        self._emit(Exited(self._last + 1, self.id, result), terminal=True)
        self.done.set()
        self._settle()

    async def run(
        self,
        start: Callable[[Stdio], Box],
        *,
        timeout: float | None,  # noqa: ASYNC109  it ends the command, not this call
        grace: float,
        stdin: bool,
        report_cwd: bool,
        max_output: int | None,
        profile: str,
        terminal: WindowSize | None = None,
        heartbeat: float = 0,
    ) -> Ended:
        """Start the box, follow it to its end, and leave nothing of it behind, however this ends.

        `timeout` and `grace` in seconds (`timeout` None = no limit; `grace` 0 = KILL at once), `max_output` in bytes of
        spool, `heartbeat` in seconds (0 = none). On a `terminal` there is one stream, and stdin is open.
        A box that could not be built is built again, TRIES times in all: a file of the host may have been replaced between the
        look at it and its mount. Raises what `start` raises (IsolationError), with nothing left over. Call it once.
        """
        assert not self._started, "an execution runs once"
        self._started = True
        self._stdin = stdin or terminal is not None
        if self.cancelled.is_set():
            return self._ended(EndKind.CANCELLED, CANCELLED_CODE, None, Usage(), None)
        self._spool.limit = MAX_OUTPUT if max_output is None else max_output
        for tries_left in reversed(range(TRIES)):
            try:
                return await self._attempt(start, timeout, grace, report_cwd, profile, terminal, heartbeat)
            except IsolationError:  # so nothing of the command has run
                if not tries_left or self.cancelled.is_set() or not self._feeder.renew():
                    raise
        raise AssertionError("the last try returns or raises")

    async def _attempt(
        self,
        start: Callable[[Stdio], Box],
        timeout: float | None,  # noqa: ASYNC109  it ends the command, not this call
        grace: float,
        report_cwd: bool,
        profile: str,
        terminal: WindowSize | None,
        heartbeat: float,
    ) -> Ended:
        """Build one box, with pipes of its own, and follow it to its end. Raises as `run`."""
        stdin = self._stdin
        loop = asyncio.get_running_loop()
        if terminal is None:
            pipes = open_pipes(stdin=stdin, report_cwd=report_cwd)
        else:
            pipes = pty.open_terminal(terminal, report_cwd=report_cwd)
            self._terminal = pipes.stdout
        pump = self._pump = Pump(loop, self._take)
        pump.add(pipes.stdout, Stream.STDOUT)
        if pipes.stderr >= 0:
            pump.add(pipes.stderr, Stream.STDERR)
        self._feeder.attach(loop, pipes.stdin, terminal=pipes.terminal)
        timer: asyncio.TimerHandle | None = None
        process: Process | None = None
        try:
            try:
                box = start(pipes.child)
            finally:
                pipes.close_child()
            process = self._process = Process(loop, box, grace)
            self._begin = loop.time()
            if not self._announced:
                self._announced = True
                self._emit(Started(self._last + 1, self.id, box.enforcement, profile))
            if timeout is not None:
                timer = loop.call_later(timeout, process.stop, EndKind.TIMED_OUT, "timeout")
            if heartbeat > 0:
                self._pulse(loop, heartbeat)
            status = await process.wait()
            pump.drain()
            self._flush_tails()
            usage = Usage(loop.time() - self._begin, status.user_seconds, status.system_seconds, status.max_rss)
            reported = read_cwd(pipes.cwd_report) if report_cwd else None
            kind, code = verdict(process.ending, status)
            return self._ended(kind, code, status.signal, usage, reported, status)
        finally:
            for each in (timer, self._pulsing):
                if each is not None:
                    each.cancel()
            self._terminal = -1
            pump.close()
            self._feeder.close()
            if pipes.cwd_report >= 0:
                os.close(pipes.cwd_report)
            if process is not None:
                await process.end()

    # What clients do

    async def events(self, from_seq: int = 1) -> AsyncIterator[Event]:
        """Replay from event `from_seq` and follow to the terminal event.

        Raises RequestError (field `from_seq`) below 1, NotFound when the execution has been closed
        or its spool was removed.
        """
        async with contextlib.aclosing(self.bundles(from_seq)) as bundles:  # type: ignore[type-var]  # it is a generator
            async for bundle in bundles:
                for event in bundle:
                    yield event

    async def bundles(self, from_seq: int = 1) -> AsyncIterator[tuple[Event, ...]]:
        """As `events`; what is there at one moment comes together, with at most BUNDLE bytes of output and a chunk."""
        if from_seq < 1:
            raise RequestError(f"`{from_seq}` is not a sequence number", field="from_seq", fix="they start at 1")
        self._check_open()
        if self.result is not None:
            from_seq = min(from_seq, self._last)  # the terminal event is always sent
        number = self._spool.seek(from_seq)
        position = self._spool.place(number)
        follower = _Follower(position, self._spool.size - position <= WINDOW)
        self._followers.add(follower)
        seq, beat = from_seq, self._beat
        try:
            while True:
                while seq <= self._last:
                    bundle: list[Event] = []
                    size = 0
                    while seq <= self._last and size < BUNDLE and len(bundle) < MOST:
                        event = self._held.get(seq)
                        if event is None:
                            self._check_open()
                            event = self._spool.read(number)
                            number += 1
                            size += len(event.data)
                            position += len(event.data)
                        bundle.append(event)
                        seq = event.seq + 1  # a daemon that is gone took some numbers along
                    yield tuple(bundle)
                    self._advance(follower, position)
                if self.result is not None:
                    if seq <= self._last + 1:
                        return
                    seq = self._last  # it asked for what never came; the terminal event is sent all the same
                    continue
                self._check_open()
                if self._beat is not beat and self._beat is not None:
                    beat = self._beat
                    yield (beat,)
                    continue  # more may have come meanwhile
                if not self._pull():
                    await self._changed()
        finally:
            self._followers.discard(follower)
            self._relieve()
            self._settle()

    def write_stdin(self, offset: int, data: bytes, eof: bool) -> int:
        """Feed the command; returns how many bytes of stdin have been taken in all.

        `offset` is where `data` stands in stdin as a whole, so that a retry is harmless. Bytes sent before the start are
        kept. Raises RequestError (field named), or Exhausted when the command does not read.
        """
        if self.result is not None:
            raise RequestError(f"execution `{self.id}` has ended", field="execution_id")
        if not self._stdin:
            raise RequestError("this execution has no stdin", field="execution_id", fix="start it with `stdin` set")
        return self._feeder.write(offset, data, eof)

    def resize(self, size: WindowSize) -> None:
        """Change the size of its terminal. Raises RequestError when it has none, or does not run."""
        if self._terminal < 0:
            raise RequestError(f"execution `{self.id}` has no terminal now", field="execution_id", fix="start it with one")
        pty.resize(self._terminal, size)

    def kept(self) -> Kept:
        """Its output as far as it was kept. After the end."""
        assert self.result is not None or self._process is not None
        behind = tuple(event for event in self._held.values() if isinstance(event, (Gap, Output)))
        return Kept(self._spool.path, self._spool.size, behind, sum(self._bytes.values()))

    def signal(self, number: int) -> None:
        """Send a signal (1 to 64) to the command's process group. Raises RequestError when it does not run."""
        if not 1 <= number <= 64:
            raise RequestError(f"`{number}` is not a signal number", field="signal", fix="1 to 64, see signal(7)")
        if self._process is None or self.result is not None:
            raise RequestError(f"execution `{self.id}` does not run", field="execution_id")
        self._process.signal(number)

    def cancel(self, cause: str) -> None:
        """End it: TERM, then KILL of the whole box. Before the start it only keeps `run` from starting. Idempotent."""
        if self.result is not None or self.cancelled.is_set():
            return
        self.cancel_cause = cause
        self.cancelled.set()
        if self._process is not None:
            self._process.stop(EndKind.CANCELLED, cause)

    def close(self) -> None:
        """Forget the output: the spool is removed, followers end with NotFound. Idempotent."""
        self._closed = True
        self._spool.close()
        self._wake()

    # The inside

    def _emit(self, event: Event, *, terminal: bool = False) -> None:
        if self.result is not None and not terminal:
            raise RuntimeError(f"event after the end of execution {self.id}: {type(event).__name__}")
        self._last = event.seq
        self._held[event.seq] = event
        self._wake()

    def _take(self, stream: Stream, data: bytes) -> None:
        """Output has come."""
        room = self._spool.room
        if 0 < room < len(data):
            self._take(stream, data[:room])
            data = data[room:]
        offset = self._bytes[stream]
        self._bytes[stream] += len(data)
        if stream is Stream.STDERR or self._terminal >= 0:
            _keep(self._stderr_tail, data, STDERR_TAIL)
        self._recent = data[-4 * LAST_LINE :]
        at = asyncio.get_running_loop().time() - self._begin
        if self._spool.append(Output(self._last + 1, stream, offset, data, at)):
            self._last += 1
            self._spooled[stream] += len(data)
            self._wake()
            if self._busy() or self._lagging(WINDOW):
                assert self._pump is not None
                self._pump.pause()
        else:
            _keep(self._tails[stream], data, TAIL)

    def _flush_tails(self) -> None:
        """What the full spool could not take: say how much is missing, and give the end of it."""
        at = asyncio.get_running_loop().time() - self._begin
        for stream, tail in self._tails.items():
            start = self._bytes[stream] - len(tail)
            missing = start - self._spooled[stream]
            if missing:
                self._emit(Gap(self._last + 1, stream, self._spooled[stream], missing))
            if tail:
                self._emit(Output(self._last + 1, stream, start, bytes(tail), at))

    def _pulse(self, loop: asyncio.AbstractEventLoop, interval: float) -> None:
        """Tell the followers that it still runs, again and again."""

        def beat() -> None:
            lines = decode([(Stream.STDOUT, whole_characters(self._recent))], cut=True).rstrip("\n")
            self._beat = Progress(
                seq=self._last,
                execution_id=self.id,
                elapsed=loop.time() - self._begin,
                output_bytes=sum(self._bytes.values()),
                last_line=lines[lines.rfind("\n") + 1 :][:LAST_LINE],
            )
            self._wake()
            self._pulsing = loop.call_later(interval, beat)

        self._pulsing = loop.call_later(interval, beat)

    def _ended(
        self,
        kind: EndKind,
        code: int,
        signal: int | None,
        usage: Usage,
        cwd: str | None,
        status: ExitStatus | None = None,
    ) -> Ended:
        return Ended(
            kind=kind,
            code=code,
            signal=signal,
            cause=self.cancel_cause if kind is EndKind.CANCELLED else "",
            usage=usage,
            stdout_bytes=self._bytes[Stream.STDOUT],
            stderr_bytes=self._bytes[Stream.STDERR],
            truncated=any(self._bytes[s] - len(self._tails[s]) > self._spooled[s] for s in Stream),
            reported_cwd=cwd,
            stderr_tail=self._stderr_tail.decode("utf-8", "replace"),
            status=status,
        )

    def _lagging(self, window: int) -> bool:
        limit = self._spool.size - window
        return any(follower.live and follower.position < limit for follower in self._followers)

    def _busy(self) -> bool:
        """Whether somebody follows, and is still occupied with what came before."""
        return not self._waiters and any(follower.live for follower in self._followers)

    def _pull(self) -> bool:
        """Look for more output on behalf of a follower that has caught up; whether there was any."""
        pump, last = self._pump, self._last
        if pump is None or self._lagging(WINDOW):
            return False
        if pump.paused:
            pump.resume()
        pump.pull()
        return self._last != last

    def _advance(self, follower: _Follower, position: int) -> None:
        follower.position = position
        if not follower.live:
            follower.live = self._spool.size - position <= WINDOW
        self._relieve()

    def _relieve(self) -> None:
        """Read on when nobody lies far behind any more."""
        if self._pump is not None and self._pump.paused and not self._busy() and not self._lagging(WINDOW // 2):
            self._pump.resume()

    def _settle(self) -> None:
        """A finished execution that nobody reads costs no descriptor and little memory."""
        if self.result is not None and not self._followers:
            self._spool.rest()

    def _check_open(self) -> None:
        if self._closed:
            raise NotFound(f"the output of execution `{self.id}` is gone", field="execution_id")

    async def _changed(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


def _keep(tail: bytearray, data: bytes, size: int) -> None:
    """Append and keep the last `size` bytes."""
    tail += data
    if len(tail) > size:
        del tail[:-size]
