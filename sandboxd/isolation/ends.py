# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon's side of a box's descriptors, and putting its first process into control groups while it gets ready."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

_STATUS_SIZE = 65536
_READY = 30.0  # seconds for bwrap to say which process it made
GO = 0  # on the control pipe, where signals are 1 to 64: the box may start its command


class Ends:
    """The daemon's ends of a box's pipes, and the control groups that it is in."""

    def __init__(self, status: int, control: int, info: int, errors: int, groups: tuple[str, ...]) -> None:
        for fd in (status, control, info, errors):
            os.set_blocking(fd, False)
        self._status, self._control, self._info, self._errors = status, control, info, errors
        self._lock = threading.Lock()
        self._joining: threading.Thread | None = None
        self._inner: int | None = None
        self.failure = ""
        self.groups = groups

    def join(self, fds: tuple[int, ...]) -> None:
        """Put the box's first process into the groups behind `fds` (of `cgroups.join`, closed here), then let it go on.

        Moving a process between groups of version 1 makes the kernel wait for milliseconds; meanwhile that process
        starts its interpreter. It starts no command before it is told.
        """
        self._joining = threading.Thread(target=self._join, args=(fds,), name="sandboxd-join", daemon=True)
        self._joining.start()

    def _join(self, fds: tuple[int, ...]) -> None:
        try:
            pid = self._wait_inner()
            if pid is not None:
                for fd in fds:
                    os.write(fd, str(pid).encode())
                self.send(GO)
        except OSError as error:
            self.failure = f"its limits cannot be set: {error.strerror}"
            self.close_control()
        finally:
            for fd in fds:
                os.close(fd)

    def _wait_inner(self) -> int | None:
        """The box's first process, once bwrap has said which; None when it ended before."""
        text = ""
        poll = select.poll()
        poll.register(self._info, select.POLLIN)
        while poll.poll(_READY * 1000):
            piece = _drain(self._info)
            text += piece
            self._inner = _child_pid(text)
            if self._inner is not None or not piece:
                return self._inner
        return None

    def inner_pid(self) -> int | None:
        """Process 1 of the box as this namespace sees it, once bwrap has said so."""
        if self._joining is None and self._inner is None:
            self._inner = _child_pid(_drain(self._info))
        return self._inner

    def send(self, number: int) -> None:
        """Write a signal's number, or GO; nothing when nobody is there to take it."""
        if self._joining is not None and self._joining is not threading.current_thread():
            self._joining.join()  # a signal must not come before GO
        with self._lock:
            if self._control >= 0:
                try:
                    os.write(self._control, bytes((number,)))
                except OSError:
                    pass  # nobody is there any more

    def status(self) -> str:
        return _drain(self._status)

    def complaint(self) -> str:
        return self.failure or _drain(self._errors).strip().rpartition("\n")[2].removeprefix("bwrap: ")

    def close_control(self) -> None:
        with self._lock:
            if self._control >= 0:
                os.close(self._control)
                self._control = -1

    def close(self) -> None:
        """Close everything; only when the box has ended."""
        if self._joining is not None:
            self._joining.join()
        self.close_control()
        for fd in (self._status, self._info, self._errors):
            os.close(fd)


def _child_pid(text: str) -> int | None:
    """What bwrap writes to its --info-fd is a JSON object, perhaps not complete yet."""
    _, found, rest = text.partition('"child-pid":')
    digits = rest.strip().partition(",")[0].strip(" \n}")
    complete = found and ("," in rest or "}" in rest)
    return int(digits) if complete and digits.isdigit() else None


def _drain(fd: int) -> str:
    """All that a pipe holds now, as text; never waits."""
    try:
        return os.read(fd, _STATUS_SIZE).decode(errors="replace")
    except BlockingIOError:
        return ""


class Opened:
    """Descriptors opened for one start: all are closed at the end but those to `keep`. `undo` is called after that, the last
    first, when the start fails."""

    def __init__(self) -> None:
        self._fds: set[int] = set()
        self.given: list[int] = []
        self.undo: list[Callable[[], object]] = []

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)
        if kind is not None:
            for each in reversed(self.undo):
                each()

    def take(self, fd: int) -> int:
        self._fds.add(fd)
        return fd

    def keep(self, *fds: int) -> None:
        self._fds.difference_update(fds)

    def pipe(self) -> tuple[int, int]:
        read, write = os.pipe2(os.O_CLOEXEC)
        return self.take(read), self.take(write)

    def data(self, content: bytes) -> int:
        """A descriptor from which the box reads `content`. It is closed before the command starts."""
        fd = self.take(os.memfd_create("sandboxd", os.MFD_CLOEXEC))
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        self.given.append(fd)
        return fd
