# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of one execution on disk: append, and read again from any sequence number.

Two files an execution, mode 0600, made at the first byte of output. `NAME.spool` holds what the command wrote, both streams
in the order of arrival and nothing else, so that the whole output can be had elsewhere by a second link (`run.spill`).
`NAME.index` holds one entry of fixed size for each chunk: sequence number, place, offset in the stream, length, stream,
seconds since the start. The entry is written behind its bytes: a daemon that is killed leaves whole chunks, and bytes that no
entry names are none. A write that the disk cuts short is cut away again, and from then on the spool is full.

Writes land in the page cache and are made on the event loop's thread, before anybody hears of the chunk; the cost is a copy.
What lies far back is put on the disk and out of the cache by `run.pagecache`.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from sandboxd.errors import NotFound
from sandboxd.model import Event, Gap, Output, Stream
from sandboxd.run.pagecache import Trim

ENTRY = struct.Struct("<QQQIBd")  # sequence, place of the first byte, its offset in the stream, length, stream, seconds
SUFFIX, INDEX = ".spool", ".index"
BLOCK = ENTRY.size << 12  # bytes of an index read at once
RECENT = 4  # chunks kept in memory too, for followers that keep up

_STREAMS = (Stream.STDOUT, Stream.STDERR)
_NUMBER = {stream: number for number, stream in enumerate(_STREAMS)}


def index_of(path: str) -> str:
    """The index that belongs to a spool."""
    return path.removesuffix(SUFFIX) + INDEX


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept of an ended execution's output. For any thread."""

    path: str
    size: int  # bytes of the spool
    behind: tuple[Event, ...]  # what the full spool could not take: gaps, and the last bytes
    output_bytes: int  # what the command wrote, kept or not

    @property
    def whole(self) -> str:
        """The file that holds just what `chunks` yields, "" when none does."""
        return "" if self.behind else self.path

    def chunks(self) -> Iterator[tuple[Stream, bytes]]:
        """Both streams in the order of arrival; a line says where something is missing."""
        for event in frames(self.path, self.size):
            yield event.stream, event.data
        yield from self._behind()

    def head(self, size: int) -> list[tuple[Stream, bytes]]:
        """The first `size` bytes of `chunks`."""
        out: list[tuple[Stream, bytes]] = []
        for stream, data in self.chunks():
            out.append((stream, data[:size]))
            size -= len(data)
            if size <= 0:
                break
        return out

    def tail(self, size: int) -> list[tuple[Stream, bytes]]:
        """At least the last `size` bytes of `chunks`, in whole pieces."""
        out = list(reversed(list(self._behind())))
        size -= sum(len(data) for _, data in out)
        for event in frames(self.path, self.size, backwards=True):
            if size <= 0:
                break
            out.append((event.stream, event.data))
            size -= len(event.data)
        return list(reversed(out))

    def _behind(self) -> Iterator[tuple[Stream, bytes]]:
        for other in self.behind:
            if isinstance(other, Gap):
                yield other.stream, f"\n[{other.length} bytes of {other.stream.value} were not kept]\n".encode()
            elif isinstance(other, Output):
                yield other.stream, other.data


def frames(path: str, size: int, *, backwards: bool = False) -> Iterator[Output]:
    """The events of the first `size` bytes of a spool, in order or the last first. For any thread. Ends early where the
    files cannot be read; one that is not there is empty."""
    spool = Spool(path, 0)
    try:
        spool.adopt(size)
        for number in reversed(range(spool.count)) if backwards else range(spool.count):
            yield spool.read(number)
    except NotFound:
        return
    finally:
        spool.rest()


class Spool:
    """Append-only store of Output events, which are read by their number in it, from 0. `limit` bounds both files together,
    in bytes; `size` is what the command's output takes of it so far."""

    def __init__(self, path: str, limit: int) -> None:
        self.path = path
        self.limit = limit
        self.size = 0
        self.count = 0
        self.last = 0  # sequence number of the last event in it
        self.full = False
        self._made = False
        self._fds: tuple[int, int] | None = None  # output, index
        self._recent: deque[tuple[int, Output]] = deque(maxlen=RECENT)
        self._trim = Trim()

    def adopt(self, size: int | None = None) -> dict[Stream, int]:
        """Take over the files that another Spool has written, to the last whole chunk (within `size` bytes); how many bytes
        of each stream there are. Nothing is added. Call it on a new Spool. Files that are not there are empty."""
        self.full = self._made = True
        totals = dict.fromkeys(_STREAMS, 0)
        try:
            output, index = self._open()
            end = os.fstat(output).st_size if size is None else min(size, os.fstat(output).st_size)
            while block := os.pread(index, BLOCK, self.count * ENTRY.size):
                for seq, place, offset, length, stream, _ in ENTRY.iter_unpack(block[: len(block) // ENTRY.size * ENTRY.size]):
                    if stream >= len(_STREAMS) or seq <= self.last or place != self.size or place + length > end:
                        return totals
                    self.count += 1
                    self.last = seq
                    self.size = place + length
                    totals[_STREAMS[stream]] = offset + length
                if len(block) < ENTRY.size:
                    break
        except (NotFound, OSError):
            pass
        return totals

    @property
    def room(self) -> int:
        """Bytes that the next event may have."""
        return 0 if self.full else max(0, self.limit - self.size - (self.count + 1) * ENTRY.size)

    def append(self, event: Output) -> bool:
        """Store the event. False when the limit is reached or the disk refuses: then neither it nor any later one is kept."""
        length = len(event.data)
        if length > self.room or not self._write(event):
            self.full = True
            return False
        self._recent.append((self.count, event))
        self.count += 1
        self.last = event.seq
        self.size += length
        if self._fds is not None:
            self._trim.grown(self._fds[0], self.size)
        return True

    def _write(self, event: Output) -> bool:
        entry = ENTRY.pack(event.seq, self.size, event.offset, len(event.data), _NUMBER[event.stream], event.at)
        try:
            if self._fds is None:  # the first chunk
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                output = os.open(self.path, flags, 0o600)
                self._made = True
                try:
                    self._fds = output, os.open(index_of(self.path), flags, 0o600)
                except OSError:
                    os.close(output)
                    raise
            output, index = self._fds
            place = self.count * ENTRY.size
            if os.pwrite(output, event.data, self.size) == len(event.data) and os.pwrite(index, entry, place) == len(entry):
                return True
        except OSError:  # no space, quota, file size limit, directory gone: the command goes on without its spool
            pass
        if self._fds is not None:
            try:
                os.ftruncate(self._fds[0], self.size)
                os.ftruncate(self._fds[1], self.count * ENTRY.size)
            except OSError:
                pass  # what was cut lies behind `size`, where nobody reads in this process
        return False

    def rest(self) -> None:
        """Let go of memory and descriptors; the files stay and are opened again when somebody reads."""
        self._recent.clear()
        if self._fds is not None:
            for fd in self._fds:
                os.close(fd)
            self._fds = None

    def seek(self, seq: int) -> int:
        """The number of the first event whose sequence number is `seq` or later; `count` when there is none.

        Raises NotFound when a file was removed or cut from outside.
        """
        if seq > self.last:
            return self.count
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle)[0] < seq:
                low = middle + 1
            else:
                high = middle
        return low

    def place(self, number: int) -> int:
        """How many bytes lie before the event of that number. Raises as `seek`."""
        return self.size if number >= self.count else self._entry(number)[1]

    def read(self, number: int) -> Output:
        """The event of that number, below `count`. Raises NotFound when a file was removed or cut from outside."""
        for known, event in self._recent:
            if known == number:
                return event
        seq, place, offset, length, stream, at = self._entry(number)
        return Output(seq, _STREAMS[stream], offset, self._pread(0, length, place), at)

    def _entry(self, number: int) -> tuple[int, int, int, int, int, float]:
        return ENTRY.unpack(self._pread(1, ENTRY.size, number * ENTRY.size))

    def _pread(self, file: int, length: int, position: int) -> bytes:
        try:
            data = os.pread(self._open()[file], length, position)
        except OSError as error:
            raise NotFound(f"the output cannot be read: {self.path}: {error.strerror}", field="execution_id") from error
        if len(data) < length:
            raise NotFound(f"the output cannot be read: {self.path} was cut", field="execution_id")
        return data

    def _open(self) -> tuple[int, int]:
        """Descriptors of both files. Raises NotFound."""
        if self._fds is None:
            output = -1
            try:
                output = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                self._fds = output, os.open(index_of(self.path), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError as error:
                if output >= 0:
                    os.close(output)
                raise NotFound(f"the output cannot be read: {self.path}: {error.strerror}", field="execution_id") from error
        return self._fds

    def close(self) -> None:
        """Close and remove the files; idempotent."""
        self.full = True
        self.rest()
        if self._made:
            self._made = False
            remove(self.path)


def remove(path: str) -> None:
    """Remove a spool and its index; idempotent. Raises OSError."""
    for each in (index_of(path), path):
        try:
            os.unlink(each)
        except FileNotFoundError:
            pass
