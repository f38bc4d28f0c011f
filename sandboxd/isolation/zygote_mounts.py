# SPDX-License-Identifier: GPL-3.0-or-later
"""Building the file system of a box with the mount calls of Linux 5.12, inside its user and mount namespace.

What to mount comes as steps (see `mountsteps`). Sources are looked up in the tree of the host, targets in the new one, and
neither through a symbolic link: a command can swap one in between. Mount points are only made in file systems that were
made here.

Runs in the zygote's children: built-in modules only.
"""

import _ctypes
import posix

from sandboxd.isolation.child import Failure, call

AARCH64 = posix.uname().machine == "aarch64"
SYS_CLONE, SYS_UNSHARE, SYS_PIVOT_ROOT, SYS_UMOUNT2, SYS_MOUNT, SYS_CAPSET = (
    (220, 97, 41, 39, 40, 91) if AARCH64 else (56, 272, 155, 166, 165, 126)
)
# The same numbers on every architecture.
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_FSOPEN, SYS_FSCONFIG, SYS_FSMOUNT = 428, 429, 430, 431, 432
SYS_OPENAT2, SYS_MOUNT_SETATTR = 437, 442
CLOEXEC, PATH, NOFOLLOW, DIRECTORY = posix.O_CLOEXEC, posix.O_PATH, posix.O_NOFOLLOW, posix.O_DIRECTORY
OPEN_TREE_CLONE, AT_RECURSIVE, AT_EMPTY_PATH = 1, 0x8000, 0x1000
MOVE_FROM_FD, MOVE_TO_FD = 0x4, 0x40  # MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH
SET_STRING, CREATE = 1, 6  # FSCONFIG_*
RDONLY, NOSUID, NODEV, NOEXEC = 1, 2, 4, 8  # MOUNT_ATTR_*
MS_REC, MS_PRIVATE, MNT_DETACH = 0x4000, 1 << 18, 2
RESOLVE_NO_LINKS, RESOLVE_IN_ROOT = 0x02 | 0x04, 0x10  # NO_MAGICLINKS | NO_SYMLINKS
ELOOP, ENOENT = 40, 2
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
)


def open_real(root: int, path: str) -> int:
    """An O_PATH descriptor of an absolute path below `root`, of which no part may be a link. Raises OSError."""
    how = (PATH | CLOEXEC).to_bytes(8, "little") + bytes(8) + (RESOLVE_NO_LINKS | RESOLVE_IN_ROOT).to_bytes(8, "little")
    fd = call("syscall", SYS_OPENAT2, root, encoded(path), how, 24)
    if fd == 0xFFFFFFFF:
        code = _ctypes.get_errno()
        raise OSError(code, posix.strerror(code), path)
    return fd


def encoded(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def attributes(fd: int, attr: int, flags: int, step: str) -> None:
    """Add mount attributes to the mount behind a descriptor."""
    value = attr.to_bytes(8, "little") + bytes(24)  # struct mount_attr: attr_set, attr_clr, propagation, userns_fd
    call("syscall", SYS_MOUNT_SETATTR, fd, b"", AT_EMPTY_PATH | flags, value, len(value), step=step)


def clone_tree(fd: int, attr: int, step: str) -> int:
    """A copy, not yet mounted, of what is mounted at and below `fd`, with more attributes."""
    tree = call("syscall", SYS_OPEN_TREE, fd, b"", OPEN_TREE_CLONE | AT_RECURSIVE | AT_EMPTY_PATH | CLOEXEC, step=step)
    attributes(tree, attr, AT_RECURSIVE, step)
    return tree


def file_system(kind: bytes, options: tuple, attr: int) -> int:  # type: ignore[type-arg]  # of (key, value)
    """A new file system, not yet mounted."""
    name = kind.decode()
    context = call("syscall", SYS_FSOPEN, kind, 1, step=f"a new {name}")
    for key, value in options:
        call("syscall", SYS_FSCONFIG, context, SET_STRING, key, value, 0, step=f"{key.decode()} of a new {name}")
    call("syscall", SYS_FSCONFIG, context, CREATE, 0, 0, 0, step=f"a new {name}")
    fd = call("syscall", SYS_FSMOUNT, context, 1, attr, step=f"a new {name}")
    posix.close(context)
    return fd


def tmpfs(size: int, mode: int) -> int:
    options = ((b"size", b"%d" % size), (b"mode", b"%o" % mode))
    return file_system(b"tmpfs", options, NOSUID | NODEV)


def attach(tree: int, at: int, target: str) -> None:
    call("syscall", SYS_MOVE_MOUNT, tree, b"", at, b"", MOVE_FROM_FD | MOVE_TO_FD, step=f"mount at `{target}`")


def identity(fd: int) -> tuple:  # type: ignore[type-arg]  # (device, inode)
    status = posix.fstat(fd)
    return (status.st_dev, status.st_ino)


class Builder:
    """Makes a tree out of steps. `seen` is what the steps that name a watched path found there, in their order."""

    def __init__(self) -> None:
        self.host = posix.open("/", PATH | DIRECTORY | CLOEXEC)
        self.root = -1
        self.seen = []  # type: ignore[var-annotated]  # of (device, inode)
        self._blank = -1

    def start(self) -> None:
        """Put an empty file system, and over it a read-only copy of the host's whole tree, over the root.

        Paths still begin at the host's: looking one up does not go up into what covers the root itself.
        """
        call("syscall", SYS_MOUNT, 0, b"/", 0, MS_REC | MS_PRIVATE, 0, step="private mounts")
        self._blank = tmpfs(1 << 16, 0o755)
        posix.mkdir("directory", 0, dir_fd=self._blank)
        posix.close(posix.open("file", posix.O_CREAT | posix.O_WRONLY | CLOEXEC, 0, dir_fd=self._blank))
        self.root = clone_tree(self.host, RDONLY | NOSUID | NODEV, "a copy of the host's tree")
        attach(self._blank, self.host, "/")
        attach(self.root, self.host, "/")

    def enter(self) -> None:
        """Make the new tree the root, and let go of the host's."""
        posix.fchdir(self.root)
        call("syscall", SYS_PIVOT_ROOT, b".", b".", step="pivot_root")
        posix.fchdir(self.host)  # now mounted over the new root, and covered by the empty file system
        for _ in range(2):
            call("syscall", SYS_UMOUNT2, b".", MNT_DETACH, step="letting go of the host's tree")
        posix.chdir("/")
        for fd in (self.host, self._blank, self.root):
            posix.close(fd)

    def apply(self, steps: tuple) -> None:  # type: ignore[type-arg]  # see mountsteps
        for step in steps:
            getattr(self, step[0])(*step[1:])

    def point(self, target: str, make: str) -> int:
        """The mount point for `target`; `make` says what to make where there is none: "" nothing, "dir", "file"."""
        try:
            return open_real(self.root, target)
        except OSError as error:
            if error.errno == ELOOP:
                raise linked(target) from None
            if error.errno != ENOENT or not make:
                raise Failure(f"no mount point at `{target}`: {error.strerror}") from None
        at = posix.dup(self.root)
        *above, last = [name for name in target.split("/") if name]
        for name in above:
            try:
                down = posix.open(name, PATH | NOFOLLOW | DIRECTORY | CLOEXEC, dir_fd=at)
            except FileNotFoundError:
                posix.mkdir(name, 0o755, dir_fd=at)
                down = posix.open(name, PATH | NOFOLLOW | DIRECTORY | CLOEXEC, dir_fd=at)
            posix.close(at)
            at = down
        if make == "dir":
            posix.mkdir(last, 0o755, dir_fd=at)
        else:
            posix.close(posix.open(last, posix.O_CREAT | posix.O_EXCL | posix.O_WRONLY | CLOEXEC, 0o444, dir_fd=at))
        fd = posix.open(last, PATH | NOFOLLOW | CLOEXEC, dir_fd=at)
        posix.close(at)
        return fd

    def put(self, tree: int, target: str, make: str = "") -> None:
        at = self.point(target, make)
        attach(tree, at, target)
        posix.close(at)
        posix.close(tree)

    def bind(self, source: str, target: str, writable: bool, optional: bool, makes: bool) -> None:
        """Show a path of the host, with all that is mounted below it."""
        try:
            fd = open_real(self.host, source)
        except OSError as error:
            if error.errno == ELOOP and source != target:
                fd = posix.open(source, PATH | CLOEXEC)  # sandboxd's own directory, wherever its user has put it
            elif error.errno == ELOOP:
                raise linked(source) from None
            elif error.errno == ENOENT and optional:
                self.seen.append((0, 0))
                return
            else:
                raise Failure(f"`{source}` cannot be shown in the box: {error.strerror}") from None
        self.seen.append(identity(fd))
        make = "" if not makes else "dir" if posix.fstat(fd).st_mode & 0o170000 == 0o040000 else "file"
        tree = clone_tree(fd, NOSUID | NODEV | (0 if writable else RDONLY), f"a copy of `{source}`")
        posix.close(fd)
        self.put(tree, target, make)

    def tmpfs(self, target: str, size: int, mode: int, makes: bool) -> None:
        self.put(tmpfs(size, mode), target, "dir" if makes else "")

    def mkdir(self, target: str) -> None:
        posix.close(self.point(target, "dir"))

    def file(self, path: str, content: str) -> None:
        """A small read-only file in a file system that was made here."""
        directory, _, name = path.rpartition("/")
        at = self.point(directory, "dir")
        fd = posix.open(name, posix.O_CREAT | posix.O_EXCL | posix.O_WRONLY | CLOEXEC, 0o444, dir_fd=at)
        posix.write(fd, encoded(content))
        posix.close(fd)
        posix.close(at)

    def dev(self, target: str) -> None:
        """Harmless devices of the host in a directory of their own; the terminals come with each box.

        A read-only mount of a device can still be written through; it keeps root from changing the host's node (chmod).
        """
        self.put(tmpfs(1 << 20, 0o755), target)
        for name in DEVICES:
            fd = posix.open(f"/dev/{name}", PATH | NOFOLLOW | CLOEXEC)
            step = f"the device {name}"
            tree = call("syscall", SYS_OPEN_TREE, fd, b"", OPEN_TREE_CLONE | AT_EMPTY_PATH | CLOEXEC, step=step)
            attributes(tree, RDONLY | NOSUID | NOEXEC, 0, step)
            posix.close(fd)
            self.put(tree, f"{target}/{name}", "file")
        at = self.point(target, "")
        for name, content in LINKS:
            posix.symlink(content, name, dir_fd=at)
        for name in ("pts", "shm"):
            posix.mkdir(name, 0o755, dir_fd=at)
        posix.close(at)

    def hide(self, target: str, is_dir: bool) -> None:
        """Cover a path by an empty directory or file that cannot be read."""
        at = self.point(target, "")
        self.seen.append(identity(at))
        empty = posix.open("directory" if is_dir else "file", PATH | NOFOLLOW | CLOEXEC, dir_fd=self._blank)
        tree = clone_tree(empty, RDONLY | NOSUID | NODEV, f"a cover for `{target}`")
        attach(tree, at, target)
        for fd in (empty, tree, at):
            posix.close(fd)

    def hide_around(self, target: str) -> None:
        """Like `hide`, for a directory in which something is mounted afterwards; a later `seal` makes it read-only."""
        at = self.point(target, "")
        self.seen.append(identity(at))
        tree = tmpfs(1 << 16, 0o111)
        attach(tree, at, target)
        posix.close(tree)
        posix.close(at)

    def seal(self, target: str) -> None:
        at = self.point(target, "")
        attributes(at, RDONLY, 0, f"sealing `{target}`")
        posix.close(at)


def linked(path: str) -> Failure:
    return Failure(f"`{path}` is reached through a symbolic link, which a command could swap")


def fresh(steps: tuple) -> None:  # type: ignore[type-arg]  # see mountsteps
    """The file systems that each box has for itself, over the mount points of its template. Called in the box."""
    root = posix.open("/", PATH | DIRECTORY | CLOEXEC)
    for kind, target, *more in steps:
        if kind == "proc":  # read-only: as root a writable one would let a command set the host's kernel parameters
            tree = file_system(b"proc", (), RDONLY | NOSUID | NODEV | NOEXEC)
        elif kind == "pts":
            tree = file_system(b"devpts", ((b"ptmxmode", b"0666"), (b"mode", b"620")), NOSUID | NOEXEC)
        else:
            tree = tmpfs(*more)
        at = open_real(root, target)
        attach(tree, at, target)
        posix.close(at)
        posix.close(tree)
    posix.close(root)


def guard(paths: tuple) -> None:  # type: ignore[type-arg]  # of str
    """Make what stands at these paths read-only. Called in the box, which can still mount."""
    root = posix.open("/", PATH | DIRECTORY | CLOEXEC)
    for path in paths:
        try:
            fd = open_real(root, path)
        except OSError as error:
            if error.errno == ELOOP:
                raise linked(path) from None
            raise Failure(f"`{path}` cannot be guarded: {error.strerror}") from None
        tree = clone_tree(fd, RDONLY | NOSUID | NODEV, f"a guard at `{path}`")
        attach(tree, fd, path)
        posix.close(tree)
        posix.close(fd)
    posix.close(root)
