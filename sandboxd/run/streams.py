# SPDX-License-Identifier: GPL-3.0-or-later
"""The command's pipes on an event loop: bytes out of stdout and stderr, bytes into stdin.

Raw descriptors with `add_reader`, not StreamReader: that is faster (no second buffer) and back-pressure is simply not
reading. Only our own end of a pipe is non-blocking; the command's end stays as programs expect it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
import termios
from collections import deque
from collections.abc import Callable

from sandboxd.errors import Exhausted, RequestError
from sandboxd.model import Stream

CHUNK = 1 << 19  # bytes of one message at most: every message costs its sender and its reader about the same, whatever it holds
COALESCE = 0.004  # seconds that small writes may wait for company
REST = 0.001  # seconds between two looks at a pipe in full flow; the loop's clock has no finer grain
FLOW = 1 << 15  # bytes within COALESCE seconds that make a flow
PIPE = 1 << 20  # bytes that the pipe of one may hold: what a fast program writes while it is left alone
ROUNDS = PIPE // CHUNK  # chunks taken at one look
STDIN_BUFFER = 1 << 20  # bytes of stdin held for a command that does not read
PTY_BUFFER = 1 << 20  # bytes; more than the kernel holds between the two ends of a terminal
END_OF_FILE = b"\x04"  # what a terminal takes for it (VEOF)


class Pump:
    """Moves what the command writes to `sink(stream, data)`, in order of arrival, in chunks of at most CHUNK bytes.

    The first bytes after a quiet moment go out at once. Then the pipe is left to fill for a moment, COALESCE seconds or, in
    full flow, REST, and read by the clock: a program that writes line by line would wake the loop for every line, and two
    processes that wake each other for every few kilobytes are slower than either. Only one stream rests so; when another
    one has something, the resting one is read before it and watched again, which keeps their order.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sink: Callable[[Stream, bytes], None]) -> None:
        self._loop = loop
        self._sink = sink
        self._fds: dict[int, Stream] = {}
        self._deaf: set[int] = set()  # those the loop does not watch
        self._resting = -1
        self._flowing = False  # what rests brought FLOW bytes in COALESCE seconds when it was last read
        self._timer: asyncio.TimerHandle | None = None
        self.paused = False

    def add(self, fd: int, stream: Stream) -> None:
        """Take over the read end `fd` (it is closed here)."""
        self._fds[fd] = stream
        self._listen(fd)

    def pause(self) -> None:
        """Read no more: the pipe fills up and the command waits in write()."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        for fd in tuple(self._deaf):
            if fd != self._resting:
                self._listen(fd)
        if self._resting >= 0 and self._timer is None:
            self._rest(self._resting)

    def pull(self) -> None:
        """Take what a stream in full flow holds, before its rest is over: somebody waits for it."""
        if self._flowing and not self.paused and self._resting >= 0 and _held(self._resting) >= FLOW:
            self._take(self._resting)

    def drain(self) -> None:
        """Take what lies in the pipes right now. To be called when the command is dead.

        A process that escaped and still holds the write end cannot prolong it: only the bytes present at this moment
        are read, never waited for.
        """
        for fd in sorted(self._fds, key=lambda fd: fd != self._resting):
            # A terminal tells less than it holds; what it holds is little.
            left = PTY_BUFFER if os.isatty(fd) else _held(fd)
            while left > 0 and (count := self._take(fd, min(left, CHUNK))):
                left -= count

    def close(self) -> None:
        """Stop reading and close all read ends. Idempotent."""
        for fd in tuple(self._fds):
            self._finish(fd)

    def _listen(self, fd: int) -> None:
        self._deaf.discard(fd)
        self._loop.add_reader(fd, self._readable, fd)

    def _ignore(self, fd: int) -> None:
        if fd not in self._deaf:
            self._deaf.add(fd)
            self._loop.remove_reader(fd)

    def _readable(self, fd: int) -> None:
        if self.paused:
            self._ignore(fd)
            return
        other = self._resting
        if other >= 0:
            self._wake()
            self._take(other)
            if other in self._fds:
                self._listen(other)
        self._flowing = self._take(fd) >= FLOW
        if fd in self._fds:
            self._rest(fd)

    def _rest(self, fd: int) -> None:
        """Leave a pipe alone for a moment; one in full flow may hold more meanwhile."""
        if self._flowing and fd != self._resting:
            _widen(fd)
        self._resting = fd
        self._ignore(fd)
        self._timer = self._loop.call_later(REST if self._flowing else COALESCE, self._rested)

    def _rested(self) -> None:
        fd, rest = self._resting, REST if self._flowing else COALESCE
        self._timer = None
        if self.paused:
            return
        came = self._take(fd)
        if not came or fd not in self._fds:
            self._wake()
            if fd in self._fds:
                self._listen(fd)
            return
        flows = came * COALESCE >= FLOW * rest
        if flows and not self._flowing:
            _widen(fd)
        self._flowing = flows
        self._rest(fd)

    def _wake(self) -> None:
        """Nobody rests any more."""
        self._resting, self._flowing = -1, False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self, fd: int, size: int = CHUNK) -> int:
        """Hand on what a pipe holds, at most ROUNDS times `size`, less when that makes somebody pause; how much it was."""
        stream, taken = self._fds[fd], 0
        for _ in range(ROUNDS):
            try:
                data = _read(fd, size)
            except BlockingIOError:
                break
            if not data:
                self._finish(fd)
                break
            taken += len(data)
            self._sink(stream, data)
            if len(data) < size or self.paused:
                break
        return taken

    def _finish(self, fd: int) -> None:
        if fd == self._resting:
            self._wake()
        self._ignore(fd)
        self._deaf.discard(fd)
        del self._fds[fd]
        os.close(fd)


class Feeder:
    """Stdin of one command. Offsets make retries harmless: bytes already taken are skipped, a gap is an error."""

    def __init__(self) -> None:
        self.accepted = 0  # bytes taken from the caller so far
        self._eof = False
        self._broken = False  # the command closed its stdin, or had none
        self._queue: deque[bytes] = deque()
        self._buffered = 0
        self._fd = -1
        self._terminal = False
        self._midline = False
        self._ended = False  # a terminal has been told
        self._loop: asyncio.AbstractEventLoop | None = None

    def write(self, offset: int, data: bytes, eof: bool) -> int:
        """Take `data`, whose first byte is byte `offset` of stdin; `eof` closes stdin behind it.

        Returns how many bytes have been taken in all. Raises RequestError (field `offset`) for a gap or for bytes behind
        the end, Exhausted when the command does not read and the buffer is full; the same call may be made again.
        """
        if offset < 0 or offset > self.accepted:
            raise RequestError(
                f"offset `{offset}` leaves a gap: {self.accepted} bytes of stdin have arrived",
                field="offset",
                fix=f"send again from offset {self.accepted}",
            )
        fresh = data[self.accepted - offset :]
        if fresh and self._eof:
            raise RequestError(f"stdin was closed at offset {self.accepted}", field="offset")
        if fresh and not self._broken and self._buffered >= STDIN_BUFFER:
            raise Exhausted("the command does not read its stdin", retry_after=0.1)
        self.accepted += len(fresh)
        self._eof = self._eof or eof
        if self._broken:
            return self.accepted
        if fresh:
            self._queue.append(fresh)
            self._buffered += len(fresh)
        self._push()
        return self.accepted

    def attach(self, loop: asyncio.AbstractEventLoop, fd: int, *, terminal: bool = False) -> None:
        """Take over the write end `fd`; -1 = the command has no stdin, and what is written goes nowhere.

        A `terminal` is told of the end as a person would, and stays open.
        """
        self._loop = loop
        self._fd = fd
        self._terminal = terminal
        if fd < 0:
            self.close()
        else:
            self._push()

    def close(self) -> None:
        """Close the write end and drop what it did not take; idempotent."""
        self._broken = True
        self._queue.clear()
        self._buffered = 0
        if self._fd >= 0:
            assert self._loop is not None
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1

    def renew(self) -> bool:
        """Be as new for another write end, behind `close`. False when what was taken went into the first one."""
        if self.accepted:
            return False
        self._broken = self._ended = self._midline = False
        return True

    def _push(self) -> None:
        """Write what the pipe takes now; wait for the rest; close when the end is reached."""
        if self._fd < 0:
            return
        assert self._loop is not None
        while self._queue:
            head = self._queue[0]
            try:
                count = os.write(self._fd, head)
            except BlockingIOError:
                self._loop.add_writer(self._fd, self._push)
                return
            except OSError:  # the command closed it (EPIPE), or its terminal is gone (EIO)
                self.close()
                return
            self._midline = head[count - 1 : count] not in (b"\n", b"\r")
            self._buffered -= count
            if count == len(head):
                self._queue.popleft()
            else:
                self._queue[0] = head[count:]
        self._loop.remove_writer(self._fd)
        if self._eof and not self._terminal:
            self.close()
        elif self._eof and not self._ended:
            self._ended = True
            # In the middle of a line the first one only hands over what was typed (termios(3), VEOF).
            self._queue.append(END_OF_FILE * 2 if self._midline else END_OF_FILE)
            self._push()


def _read(fd: int, size: int) -> bytes:
    """What is there, b"" at the end. A terminal whose other end is closed says EIO (pty(7)). Raises BlockingIOError."""
    try:
        return os.read(fd, size)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


def _held(fd: int) -> int:
    """Bytes in the pipe now (FIONREAD, pipe(7))."""
    count: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0]
    return count


def _widen(fd: int) -> None:
    """Let a pipe hold more, where this user may have so much in pipes (pipe(7)); a terminal stays as it is."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE)
    except OSError:
        pass
