# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon's side of the processes that boxes come from: starting them, asking them, seeing that they are still good."""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Sequence

from sandboxd.errors import IsolationError
from sandboxd.isolation import interpreter, wire

Identities = tuple[tuple[int, int], ...]  # device and inode of each watched path
MODULES = ("child", "wire", "zygote_mounts", "zygote_again", "zygote_box", "zygote")
_PATIENCE = 5.0  # seconds for a queue to get shorter
SEQPACKET = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC


def pair() -> tuple[socket.socket, socket.socket]:
    """The daemon's end, which never waits, and the other."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


def send(sock: socket.socket, value: object, fds: tuple[int, ...]) -> None:
    """Like `wire.send`; where very many starts come at once it waits until some were taken. Raises OSError."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            wire.send(sock, value, fds)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS) or time.monotonic() > end:
                raise
        select.select([], [sock], [], 0.01)


class Zygote:
    """The process that forks templates. Any thread may start it: its end is that of its socket, not of a thread."""

    def __init__(self) -> None:
        python = interpreter.find(os.geteuid())
        self._sock, theirs = pair()
        boot = os.memfd_create("sandboxd", os.MFD_CLOEXEC)
        try:
            content = memoryview(interpreter.payload_of(python, MODULES, {"socket": theirs.fileno()}))
            while content:
                content = content[os.write(boot, content) :]
            os.lseek(boot, 0, os.SEEK_SET)
            self._process = subprocess.Popen(
                [python, *interpreter.FLAGS, "-c", interpreter.BOOT_MODULES, str(boot)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(boot, theirs.fileno()),
                env={},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            self._sock.close()
            raise IsolationError(f"cannot start {python}: {error.strerror}", fix="run fewer commands at once") from error
        finally:
            os.close(boot)
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def template(self, config: dict[str, object]) -> Template:
        """Ask for a template; it is being made when this returns. Raises IsolationError when the zygote is gone or choked."""
        ours, theirs = pair()
        try:
            send(self._sock, config, (theirs.fileno(),))
        except OSError as error:
            ours.close()
            raise IsolationError(f"the process that makes sandboxes does not answer: {error.strerror}") from error
        finally:
            theirs.close()
        return Template(ours)

    def close(self) -> None:
        """End it, and with it every template and box. Blocking: milliseconds."""
        self._sock.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Template:
    """A template as the daemon sees it. `seen` is None until it is ready; `failure` tells why it will never be."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._watch = -1
        self._changed: select.poll | None = None
        self.seen: Identities | None = None
        self.failure = ""
        self._holders = 0
        self._lock = threading.Lock()

    def look(self) -> None:
        """Take what it has said so far; never waits."""
        with self._lock:  # a command's end asks beside the pool: each would have half of the last words
            while self.seen is None and not self.failure:
                try:
                    body, fds = wire.read(self._sock, wire.DONT_WAIT)
                except BlockingIOError:
                    return
                except ConnectionResetError:  # as in NativeBox.look
                    continue
                except OSError as error:
                    self.failure = str(error.strerror)
                    return
                self._heard(body, fds)

    def _heard(self, body: bytes, fds: list[int]) -> None:
        if body[:2] == b"F ":
            self.failure = body[2:].decode(errors="replace").strip()
        elif not body:
            self.failure = "its first process ended without a word"
        elif not fds:  # the kernel drops a descriptor for which there is no room
            self.failure = os.strerror(errno.EMFILE)
        else:
            (self._watch,) = fds
            pairs = (word.split(":") for word in body.decode().split()[1:])
            self.seen = tuple((int(device), int(inode)) for device, inode in pairs)
            self._changed = watcher(self._watch)

    def unchanged(self) -> bool:
        """Whether nobody has removed one of its mounts from outside, as replacing a file that is guarded does."""
        return self._changed is None or not self._changed.poll(0)

    def ask(self, theirs: int, groups: Sequence[int], expected: Identities | None, spare: bool) -> None:
        """Ask for one box on that socket. `expected`: what the host has at the watched paths now, where `seen` is not known;
        `spare`: no command waits for it.

        Raises IsolationError when the template is gone or choked.
        """
        try:
            send(self._sock, (expected, spare), (theirs, *groups))
        except OSError as error:
            self.look()
            raise IsolationError(f"the sandbox could not be built: {self.failure or error.strerror}") from error

    def hold(self) -> None:
        """The pool does, and each of its boxes, which may have to tell why it was not made."""
        with self._lock:
            self._holders += 1

    def let_go(self) -> None:
        """The last one closes it; the process then ends when its last box has."""
        with self._lock:
            self._holders -= 1
            last = self._holders == 0
        if last:
            self._sock.close()
            if self._watch >= 0:
                os.close(self._watch)


def watcher(fd: int) -> select.poll:
    """Polls /proc/PID/mounts, which tells once of each change of that mount namespace (proc(5))."""
    poll = select.poll()
    poll.register(fd, select.POLLPRI)
    return poll
