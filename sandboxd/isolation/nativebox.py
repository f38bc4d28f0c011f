# SPDX-License-Identifier: GPL-3.0-or-later
"""A box of the native backend, as the daemon sees it: asleep in the pool, then with its command, then ended.

Where process 1 of a box can take more commands of one session (see `zygote_again`), each of them is a NativeBox of its own:
`successor` is the one for the next, asleep until process 1 has said that the box is as it was.
"""

from __future__ import annotations

import dataclasses
import os
import select
import signal
import socket
from collections.abc import Callable, Mapping, Sequence

from sandboxd.errors import IsolationError
from sandboxd.isolation import cgroups, wire
from sandboxd.isolation.box import ended_status, failure
from sandboxd.isolation.mountpoints import Lease
from sandboxd.isolation.zygotes import Template, pair, send, watcher
from sandboxd.model import Enforcement, ExitStatus

_END = 5.0  # seconds for the kernel to end a killed box
_HUNG_UP = select.EPOLLRDHUP | select.EPOLLHUP


class NativeBox:
    """See the module. `pidfd` is readable when the command has ended and nothing but process 1 is left, which waits to go.

    That is an epoll descriptor on the box's socket, whose other end is shut down then, or closed by the kernel; once the box
    is killed, on the process itself.
    """

    def __init__(self, sock: socket.socket, template: Template, groups: tuple[str, ...]) -> None:
        self._epoll = select.epoll()
        self._epoll.register(sock, _HUNG_UP)
        self._sock = sock
        self._template = template
        template.hold()
        self._groups = groups
        self._counters = cgroups.Counters(groups)
        self._lines: list[str] = []
        self._pid = 0
        self._process = -1  # pidfd of process 1
        self._watch = -1
        self._changed: select.poll | None = None
        self._killed = False
        self._lease: Lease | None = None
        self._enforcement: Enforcement | None = None
        self._orders: socket.socket | None = None  # the box's own socket, while `_sock` is that of a command's
        self._counted = (0, 0)  # what its control groups had counted before its command
        self._again = False
        self.session = ""  # whose next command may have the box
        self.uses = 1  # commands of the box, with this one
        self.ready = False
        self.refused = ""  # why it takes no other command
        self.on_start: Callable[[], None] | None = None  # called once, when it has its command
        self.on_end: Callable[[NativeBox], None] | None = None  # called once, when it has been reaped; it calls `dispose`

    # -- asleep ----------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take what the box has said so far; never waits."""
        while True:
            try:
                body, fds = wire.read(self._sock, wire.DONT_WAIT)
            except ConnectionResetError:  # it ended before it had read all; the kernel tells this once, before its last words
                continue
            except OSError:
                return
            if not body:
                return
            lines = body.decode(errors="replace").splitlines()
            if fds and body[:2] == b"P " and self._process < 0:
                self._pid, self._process = int(lines[0][2:]), fds.pop()
            elif body[:1] == b"R" and self._watch < 0:
                self.ready = True
                if fds:  # else too many are open here, and nobody can tell whether its mounts have changed: not `usable`
                    self._watch = fds.pop()
                    self._changed = watcher(self._watch)
                    self._again = lines[0] == "R again"
            elif self.uses > 1 and lines[0] == "A":
                self.ready = True
            elif self.uses > 1 and body[:1] == b"N":
                self.refused = lines[0][2:]
            for fd in fds:
                os.close(fd)
            self._lines += lines
            if lines[-1].startswith("X "):
                return  # its last word

    def begun(self) -> bool:
        """Wait until the box has its copy of the template's mounts; False when it will not, since they have changed."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while True:
            self.look()
            if self._pid:
                return True
            if failure(self._lines) or self.ended():
                return False
            if not poll.poll(_END * 1000):
                return True  # the machine is that busy; then the box tells at its end

    def usable(self) -> bool:
        """Whether it waits for a command, in the mounts that it was made with. Called once, right before `give`."""
        if not self.ready or self.ended():
            return False
        return self._changed is not None and not self._changed.poll(0)

    def says(self, timeout: float) -> bool:
        """Wait until the box says something; False when it does not, in `timeout` seconds."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def over(self) -> bool:
        """Whether it will never take a command again."""
        return bool(self.refused) or self.ended()

    def ended(self) -> bool:
        return bool(self._epoll.poll(0))

    def give(
        self, order: Mapping[str, object], fds: Sequence[int], enforcement: Enforcement, lease: Lease | None, session: str = ""
    ) -> None:
        """Send its command. The box takes the lease over when this returns. Raises IsolationError; nothing runs then.

        `session`: whose next command may have the box afterwards, if the box can take more; "" = nobody's.
        """
        self._enforcement = enforcement
        theirs = self._open(session) if session and self._again and self._process >= 0 else None
        try:
            more = (theirs.fileno(),) if theirs is not None else ()
            send(self._orders or self._sock, {**order, "again": theirs is not None}, (*fds, *more))
        except OSError as error:
            self.look()
            self._template.look()
            why = failure(self._lines) or self._template.failure or error.strerror
            raise IsolationError(f"the sandbox could not be built: {why}") from error
        finally:
            if theirs is not None:
                theirs.close()
        self._lease = lease
        if self.on_start is not None:
            self.on_start()

    def _open(self, session: str) -> socket.socket:
        """A socket for the command alone, whose end is that of the command and not of the box; the box's end of it."""
        ours, theirs = pair()
        self._epoll.unregister(self._sock)
        self._epoll.register(ours, _HUNG_UP)
        self._orders, self._sock, self.session = self._sock, ours, session
        return theirs

    def retire(self) -> None:
        """Give up a box that has no command; its owner then calls `dispose`."""
        self.look()
        self._epoll.close()

    # -- with its command ------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Process 1 of the box. Waits until it has been made; raises IsolationError when it will not be."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while not self._pid:
            self.look()
            if not self._pid and (self.ended() or not poll.poll(_END * 1000)):
                raise IsolationError(f"the sandbox could not be built: {failure(self._lines) or 'it has no first process'}")
        return self._pid

    @property
    def pidfd(self) -> int:
        return self._epoll.fileno()

    @property
    def enforcement(self) -> Enforcement:
        assert self._enforcement is not None, "a box has an enforcement once it has a command"
        return self._enforcement

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group; a no-op when it is gone. Raises ValueError outside 1..64."""
        if not 1 <= number <= 64:
            raise ValueError(f"`{number}` is not a signal number")
        try:
            self._sock.send(bytes((number,)))
        except OSError:
            pass  # nobody is there any more

    def kill(self) -> None:
        """End every process of the box at once; idempotent.

        Where its first process is not known yet, that finds its socket at an end and goes before or after it starts the
        command.
        """
        if self._epoll.closed or self._killed or self.ended():
            return
        self._killed = True
        self.look()
        if self._process >= 0:
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
            self._epoll.unregister(self._sock)
            self._epoll.register(self._process, select.EPOLLIN)
        else:
            self._sock.shutdown(socket.SHUT_WR)

    def reap(self) -> ExitStatus:
        """Collect the exit status and close `pidfd`; only after `pidfd` is readable.

        Raises IsolationError when the box could not be set up, so that nothing of the command ever ran.
        """
        while not self._epoll.poll(_END):
            if self._killed:
                break
        self.look()
        if "S" not in self._lines and self._orders is not None:
            self._sock, self._orders = self._orders, self._sock  # where the box tells why it takes no order
            self.look()
        ended = ended_status(self._lines)
        if ended is None and self._process >= 0:
            select.select([self._process], [], [], _END)  # what it ran ends before it does
        complaint = failure(self._lines)
        if "S" not in self._lines and not complaint:
            self._template.look()
            complaint = self._template.failure
        counted = self._counters.read()
        killed, refused = counted[0] - self._counted[0], counted[1] - self._counted[1]
        self._counted = counted
        self._epoll.close()
        if self.on_end is not None:
            self.on_end(self)
        else:
            self.dispose()
        if self._lease is not None:
            self._lease.release()
        if ended is not None:
            return dataclasses.replace(ended, oom_kills=killed, pids_refused=refused) if killed or refused else ended
        if "S" not in self._lines and not self._killed:
            raise IsolationError(f"the sandbox could not be built: {complaint or 'its first process ended without a word'}")
        return ExitStatus(None, int(signal.SIGKILL), oom_kills=killed, pids_refused=refused)

    def successor(self) -> NativeBox | None:
        """The same box for the session's next command, which it may yet refuse; None when it is for one command, or killed.

        For `on_end`; the successor then has all that the box takes.
        """
        if self._orders is None or self._killed or ended_status(self._lines) is None:
            return None
        box = NativeBox(self._orders, self._template, ())
        box._groups, box._counters = self._groups, self._counters
        box._pid, box._process, box._watch, box._changed = self._pid, self._process, self._watch, self._changed
        box._again, box.session, box.uses, box._counted = True, self.session, self.uses + 1, self._counted
        self._process = self._watch = -1
        self._orders, self._groups, self._counters = None, (), cgroups.Counters(())
        return box

    def dispose(self) -> None:
        """Let process 1 go, and with it what the box still takes. For its owner: it takes a moment that nobody need wait for."""
        self._sock.close()
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        for fd in (self._process, self._watch):
            if fd >= 0:
                os.close(fd)
        self._process = self._watch = -1
        self._template.let_go()
        self._counters.close()
        cgroups.remove(self._groups)
