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

CHUNK = 65536  # bytes; the size a pipe holds by default, and the best message size for the transport
COALESCE = 0.004  # seconds that small writes may wait for company
STDIN_BUFFER = 1 << 20  # bytes of stdin held for a command that does not read
PTY_BUFFER = 1 << 20  # bytes; more than the kernel holds between the two ends of a terminal
END_OF_FILE = b"\x04"  # what a terminal takes for it (VEOF)


class Pump:
    """Moves what the command writes to `sink(stream, data)`, in order of arrival, in chunks of at most CHUNK bytes.

    The first bytes after a quiet moment go out at once; what follows within COALESCE seconds is gathered.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sink: Callable[[Stream, bytes], None]) -> None:
        self._loop = loop
        self._sink = sink
        self._fds: dict[int, Stream] = {}
        self._pending: list[tuple[Stream, bytearray]] = []
        self._size = 0
        self._flushed = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self.paused = False

    def add(self, fd: int, stream: Stream) -> None:
        """Take over the read end `fd` (it is closed here)."""
        self._fds[fd] = stream
        if not self.paused:
            self._loop.add_reader(fd, self._readable, fd, stream)

    def pause(self) -> None:
        """Stop reading: the pipe fills up and the command waits in write()."""
        self.paused = True
        for fd in self._fds:
            self._loop.remove_reader(fd)

    def resume(self) -> None:
        self.paused = False
        for fd, stream in self._fds.items():
            self._loop.add_reader(fd, self._readable, fd, stream)

    def drain(self) -> None:
        """Take what lies in the pipes right now, then flush. To be called when the command is dead.

        A process that escaped and still holds the write end cannot prolong it: only the bytes present at this moment
        are read, never waited for.
        """
        for fd, stream in tuple(self._fds.items()):
            # A terminal tells less than it holds; what it holds is little.
            left = PTY_BUFFER if os.isatty(fd) else _readable_bytes(fd)
            while left > 0:
                try:
                    data = _read(fd, min(left, CHUNK))
                except BlockingIOError:
                    break
                if not data:
                    break
                left -= len(data)
                self._take(stream, data)
        self.flush()

    def flush(self) -> None:
        """Hand on what is gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flushed = self._loop.time()
        pending, self._pending, self._size = self._pending, [], 0
        for stream, data in pending:
            self._sink(stream, bytes(data))

    def close(self) -> None:
        """Stop reading and close all read ends; what is gathered is dropped. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pending = []
        for fd in tuple(self._fds):
            self._finish(fd)

    def _finish(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        del self._fds[fd]
        os.close(fd)

    def _readable(self, fd: int, stream: Stream) -> None:
        try:
            data = _read(fd, CHUNK)
        except BlockingIOError:
            return
        if data:
            self._take(stream, data)
        else:
            self._finish(fd)

    def _take(self, stream: Stream, data: bytes) -> None:
        if not self._pending:
            now = self._loop.time()
            if len(data) * 2 >= CHUNK or now - self._flushed >= COALESCE:
                self._flushed = now
                self._sink(stream, data)
                return
            self._timer = self._loop.call_at(self._flushed + COALESCE, self.flush)
        if self._pending and self._pending[-1][0] is stream and len(self._pending[-1][1]) + len(data) <= CHUNK:
            self._pending[-1][1].extend(data)
        else:
            self._pending.append((stream, bytearray(data)))
        self._size += len(data)
        if self._size >= CHUNK:
            self.flush()


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


def _readable_bytes(fd: int) -> int:
    """Bytes in the pipe now (FIONREAD, pipe(7))."""
    count: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0]
    return count
