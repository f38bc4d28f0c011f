# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of one execution on disk: append, and read again from any sequence number.

One file an execution, mode 0600, made at the first byte of output. It holds frames: a fixed header (payload length,
sequence number, stream, byte offset in the stream, seconds since the start) and the payload. A frame is whole or absent:
a write that the disk cuts short is cut away again, and from then on the spool is full.

A large payload begins at a page of the file, behind a frame of padding: the kernel then moves whole pages, in two thirds of
the time.

Writes land in the page cache and are made on the event loop's thread; the cost is a copy of one chunk.
"""

from __future__ import annotations

import bisect
import os
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from sandboxd.errors import NotFound
from sandboxd.model import Event, Gap, Output, Stream

HEADER = struct.Struct("<IQBQd")
INDEX_EVERY = 64  # frames between two index entries
RECENT = 4  # frames kept in memory too, for followers that keep up

PAGE = 4096
ALIGNED = 1 << 15  # bytes of payload from which padding is worth its place
_PADDING = 255  # in a header, in the place of the stream

_STREAMS = (Stream.STDOUT, Stream.STDERR)
_NUMBER = {stream: number for number, stream in enumerate(_STREAMS)}


def frames(path: str, size: int | None = None) -> Iterator[Output]:
    """The events of a spool file in order, to `size` bytes or to the last whole frame. For any thread, and for what a
    daemon that is gone left behind. A file that is not there is empty; one that cannot be read ends early."""
    try:
        file = open(path, "rb")  # noqa: SIM115  closed below, but only when it could be opened
    except OSError:
        return
    with file:
        end = os.fstat(file.fileno()).st_size if size is None else size
        position = 0
        while position + HEADER.size <= end:
            header = file.read(HEADER.size)
            if len(header) < HEADER.size:
                return
            length, seq, number, offset, at = HEADER.unpack(header)
            position += HEADER.size + length
            if number == _PADDING:
                file.seek(position)
                continue
            if number >= len(_STREAMS) or position > end:
                return
            data = file.read(length)
            if len(data) < length:
                return
            yield Output(seq, _STREAMS[number], offset, data, at)


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept of an ended execution's output. For any thread."""

    path: str
    size: int  # bytes of the spool
    behind: tuple[Event, ...]  # what the full spool could not take: gaps, and the last bytes
    output_bytes: int  # what the command wrote, kept or not

    def chunks(self) -> Iterator[tuple[Stream, bytes]]:
        """Both streams in the order of arrival; a line says where something is missing."""
        for event in frames(self.path, self.size):
            yield event.stream, event.data
        for other in self.behind:
            if isinstance(other, Gap):
                yield other.stream, f"\n[{other.length} bytes of {other.stream.value} were not kept]\n".encode()
            elif isinstance(other, Output):
                yield other.stream, other.data


class Spool:
    """Append-only store of Output events. `limit` bounds the file in bytes; `size` is its length so far."""

    def __init__(self, path: str, limit: int) -> None:
        self.path = path
        self.limit = limit
        self.size = 0
        self.last = 0  # sequence number of the last event in it
        self.full = False
        self._made = False
        self._fd = -1
        self._count = 0
        self._recent: deque[tuple[int, Output, int]] = deque(maxlen=RECENT)
        self._index_seqs: list[int] = []
        self._index_positions: list[int] = []

    def adopt(self) -> dict[Stream, int]:
        """Take over the file of a daemon that is gone, to its last whole frame; bytes of each stream. Nothing is added.

        Call it on a new Spool. A file that is not there is empty.
        """
        self.full = self._made = True
        totals = dict.fromkeys(_STREAMS, 0)
        try:
            end = os.stat(self.path, follow_symlinks=False).st_size
        except OSError:
            return totals
        while self.size + HEADER.size <= end:
            length, seq, number, offset, _ = HEADER.unpack(self._pread(HEADER.size, self.size))
            if number == _PADDING and self.size + HEADER.size + length <= end:
                self.size += HEADER.size + length
                continue
            if number >= len(_STREAMS) or seq <= self.last or self.size + HEADER.size + length > end:
                break
            if self._count % INDEX_EVERY == 0:
                self._index_seqs.append(seq)
                self._index_positions.append(self.size)
            self._count += 1
            self.last = seq
            totals[_STREAMS[number]] = offset + length
            self.size += HEADER.size + length
        return totals

    @property
    def room(self) -> int:
        """Bytes of payload that the next event may have."""
        return 0 if self.full else max(0, self.limit - self.size - HEADER.size)

    def append(self, event: Output) -> bool:
        """Store the event. False when the limit is reached or the disk refuses: then neither it nor any later one is kept."""
        length = HEADER.size + len(event.data)
        if self.full or self.size + length > self.limit:
            self.full = True
            return False
        header = HEADER.pack(len(event.data), event.seq, _NUMBER[event.stream], event.offset, event.at)
        if len(event.data) >= ALIGNED and self.size + length + 2 * PAGE <= self.limit:
            padding = (-self.size - 2 * HEADER.size) % PAGE
            header = HEADER.pack(padding, 0, _PADDING, 0, 0.0) + bytes(padding) + header
            length = len(header) + len(event.data)
        if not self._write(header, event.data, length):
            self.full = True
            return False
        if self._count % INDEX_EVERY == 0:
            self._index_seqs.append(event.seq)
            self._index_positions.append(self.size)
        self._recent.append((self.size, event, self.size + length))
        self._count += 1
        self.last = event.seq
        self.size += length
        return True

    def _write(self, header: bytes, data: bytes, length: int) -> bool:
        try:
            if self._fd < 0:  # the first frame
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._fd = os.open(self.path, flags, 0o600)
                self._made = True
            written = os.pwritev(self._fd, (header, data), self.size)
        except OSError:  # no space, quota, file size limit, directory gone: the command goes on without its spool
            return False
        if written == length:
            return True
        try:
            os.ftruncate(self._fd, self.size)
        except OSError:
            pass  # the cut frame lies behind `size`, where nobody reads in this process
        return False

    def rest(self) -> None:
        """Let go of memory and descriptor; the file stays and is opened again when somebody reads."""
        self._recent.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def seek(self, seq: int) -> int:
        """The position of the first frame whose sequence number is `seq` or later; `size` when there is none.

        Raises NotFound when the file was removed or cut from outside.
        """
        entry = bisect.bisect_right(self._index_seqs, seq) - 1
        position = self._index_positions[entry] if entry >= 0 else 0
        while position < self.size:
            length, number, stream, _, _ = HEADER.unpack(self._pread(HEADER.size, position))
            if stream != _PADDING and number >= seq:
                break
            position += HEADER.size + length
        return position

    def read(self, position: int) -> tuple[Output, int]:
        """The frame that starts at `position`, and the position of the next one.

        Raises NotFound when the file was removed or cut from outside.
        """
        for place, event, behind in self._recent:
            if place == position:
                return event, behind
        length, seq, number, offset, at = HEADER.unpack(self._pread(HEADER.size, position))
        if number == _PADDING:
            return self.read(position + HEADER.size + length)
        data = self._pread(length, position + HEADER.size)
        return Output(seq, _STREAMS[number], offset, data, at), position + HEADER.size + length

    def _pread(self, length: int, position: int) -> bytes:
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            data = os.pread(self._fd, length, position)
        except OSError as error:
            raise NotFound(f"the output cannot be read: {self.path}: {error.strerror}", field="execution_id") from error
        if len(data) < length:
            raise NotFound(f"the output cannot be read: {self.path} was cut", field="execution_id")
        return data

    def close(self) -> None:
        """Close and remove the file; idempotent."""
        self.full = True
        self.rest()
        if self._made:
            self._made = False
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass
