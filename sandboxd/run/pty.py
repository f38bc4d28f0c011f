# SPDX-License-Identifier: GPL-3.0-or-later
"""A terminal for a command: a pseudo-terminal (pty(7)) whose master end the daemon keeps.

The command's process 1 makes the slave end its controlling terminal (TIOCSCTTY), so Ctrl-C typed on it is SIGINT to
whatever is in the foreground inside the box, and nobody outside.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios

from sandboxd.errors import Exhausted, RequestError
from sandboxd.model import Stdio, WindowSize
from sandboxd.run.process import Pipes

IUTF8 = 0x4000  # asm-generic/termbits.h; the termios module does not name it
LARGEST = 65535  # struct winsize holds unsigned shorts


def open_terminal(size: WindowSize, *, report_cwd: bool) -> Pipes:
    """The descriptors of a command on a terminal. Raises Exhausted when there is none left, RequestError for a bad size."""
    opened: list[int] = []
    try:
        master, slave = os.openpty()
        opened += (master, slave)
        feed = os.dup(master)
        opened.append(feed)
        cwd = os.pipe2(os.O_CLOEXEC) if report_cwd else (-1, -1)
        opened += (fd for fd in cwd if fd >= 0)
        resize(master, size)
        attributes = termios.tcgetattr(slave)
        attributes[0] |= IUTF8  # erasing takes a whole character back
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        for fd in (master, cwd[0]):
            if fd >= 0:
                os.set_blocking(fd, False)  # of `feed` too: a duplicate shares it
    except OSError as error:
        _close(opened)
        raise Exhausted(f"no terminal for the command: {error.strerror}", fix="see /proc/sys/kernel/pty/max") from error
    except BaseException:
        _close(opened)
        raise
    child = Stdio(stdin=slave, stdout=slave, stderr=slave, cwd_report=cwd[1])
    return Pipes(child=child, stdin=feed, stdout=master, stderr=-1, cwd_report=cwd[0], terminal=True)


def resize(fd: int, size: WindowSize) -> None:
    """Set the terminal's size; the kernel sends SIGWINCH to its foreground group. Raises RequestError for a bad one."""
    for field, value in (("rows", size.rows), ("columns", size.columns)):
        if not 1 <= value <= LARGEST:
            raise RequestError(f"a terminal cannot have {value} {field}", field=field, fix=f"1 to {LARGEST}")
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
