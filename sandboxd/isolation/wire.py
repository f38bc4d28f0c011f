# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages between the daemon and the processes that make its boxes, with descriptors, on a SEQPACKET socket.

The daemon sends values, as marshal writes them; one that does not fit into a message (the kernel's limit is the socket's
send buffer, 208 KiB by default) travels in a memfd. What comes back are lines of text: the daemon never interprets more
than that of a process beside which a command ran. Both sides use this module, so it imports what every python3 has.
"""

import _socket
import marshal
import posix
import sys

INLINE = 16_384  # bytes of a value that go into the message itself
MAX_FDS = 16
DONT_WAIT = int(_socket.MSG_DONTWAIT)
_ROOM = _socket.CMSG_SPACE(4 * MAX_FDS)
_HERE, _APART = b"I", b"M"


def send(sock: "_socket.socket", value: object, fds: tuple = ()) -> None:  # type: ignore[type-arg]  # of int
    """Send a value and descriptors, which stay the sender's. Raises OSError: EPIPE when nobody is there, EAGAIN."""
    body = marshal.dumps(value, 2)  # type: ignore[arg-type]  # plain values only, which no type can say
    apart = -1
    kind = _HERE
    if len(body) > INLINE:
        apart = posix.memfd_create("sandboxd", posix.MFD_CLOEXEC)
        view = memoryview(body)
        while view:
            view = view[posix.write(apart, view) :]
        fds, kind, body = (apart, *fds), _APART, b""
    try:
        rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
        sock.sendmsg((kind + body,), ((_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights),) if rights else ())
    finally:
        if apart >= 0:
            posix.close(apart)


def receive(sock: "_socket.socket") -> "tuple | None":  # type: ignore[type-arg]  # (value, list of descriptors)
    """The next value, None when the other side is gone. Raises OSError. Only for those who are told by the daemon."""
    try:
        body, fds = read(sock)
    except ConnectionError:  # gone, with lines of ours that it had not read
        return None
    if not body:
        return None
    if body[:1] != _APART:
        return marshal.loads(body[1:]), fds  # noqa: S302  the daemon is believed
    apart, *others = fds
    body = posix.pread(apart, posix.fstat(apart).st_size, 0)
    posix.close(apart)
    return marshal.loads(body), others  # noqa: S302  the daemon is believed


def tell(sock: "_socket.socket", line: str, fds: tuple = ()) -> None:  # type: ignore[type-arg]  # of int
    """Send a line of text to the daemon, which reads nothing else. Raises OSError."""
    rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
    sock.sendmsg((f"{line}\n".encode(),), ((_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights),) if rights else ())


def read(sock: "_socket.socket", flags: int = 0) -> tuple:  # type: ignore[type-arg]  # (bytes, list of descriptors)
    """The bytes and descriptors of the next message; b"" when the other side is gone."""
    body, ancillary, _, _ = sock.recvmsg(INLINE + 64, _ROOM, _socket.MSG_CMSG_CLOEXEC | flags)
    fds = []
    for level, kind, data in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds += [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data) - len(data) % 4, 4)]
    return body, fds
