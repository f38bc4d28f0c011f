# SPDX-License-Identifier: GPL-3.0-or-later
"""What is protected below a root: a walk bounded by a number of directories, nearest first, and kept fresh.

A directory is read again when its inode change time moved: an entry cannot be added without moving it, and no program
can set it (inode(7)). One that changed within SETTLE of being read is read again next time, since clock ticks are coarse.
An lstat costs a few microseconds, so what lies deep in large made directories (LATE) is checked in turns, LATE_STEP
directories a look: a change there is seen some looks later.

Symlinked directories are not entered, nor is a protected directory (it is protected as a whole), except for what is open
below it. In directories that tools fill with what others wrote (LATE) only `.git` counts: packages come with editor and
package manager settings that nobody uses there, each would cost a mount, and a package manager that renames the directory
of a package would fail on it.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass

from sandboxd.killswitch import OPEN_BELOW, PROTECTED_DIRS, PROTECTED_FILES, protected
from sandboxd.model.launch import PLACEHOLDER_MODE

MAX_DIRECTORIES = 20_000  # a root
NEAR = 5000  # directories of a root that are checked at every look
MAX_FOUND = 300  # protected paths a root
MAX_ENV_FILES = 100
MAX_ROOTS = 64  # walks remembered
LATE_STEP = 300
SETTLE = 100_000_000  # nanoseconds
# Walked after everything else: large, and made by tools from what lies elsewhere.
LATE = frozenset(("node_modules", "target", "build", "dist", "vendor", "venv", ".venv", ".tox", "__pycache__", ".cache"))

ENV_EXAMPLES = (".example", ".sample", ".template", ".dist")  # of these, nobody keeps secrets in them
_BARE = frozenset(("HEAD", "objects", "refs"))  # a directory with these is a git directory whatever its name

_NAMES = frozenset((*(name for name in (*PROTECTED_DIRS, *PROTECTED_FILES) if "/" not in name), "git~1"))
_HEADS = frozenset(name.partition("/")[0] for name in PROTECTED_DIRS if "/" in name)
_OPEN: dict[str, tuple[str, ...]] = {
    head: tuple(name for name in OPEN_BELOW if name.startswith(f"{head}/"))
    for head in {name.partition("/")[0] for name in OPEN_BELOW}
}


@dataclass(frozen=True, slots=True)
class Seen:
    """`protected` are existing protected paths, `gits` those of them that are named `.git`, nearest first.

    `bares` are directories with the shape of a git directory, `env_files` are `.env` and its kin.
    `partial` when a bound was reached or a directory could not be read: there may be more.
    """

    protected: tuple[str, ...]
    gits: tuple[str, ...]
    partial: bool
    bares: tuple[str, ...] = ()
    env_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Listing:
    """What one directory held: `below` are directories to enter, relative to it."""

    identity: tuple[int, int, int]  # device, inode, change time
    settled: bool
    below: tuple[str, ...]
    found: tuple[str, ...]
    bare: bool = False
    env_files: tuple[str, ...] = ()


_NOTHING = _Listing((0, 0, 0), False, (), ())
_State = tuple[str, _Listing]


class Tree:
    """The walk of one root. `depth` bounds how far down it goes, None = to the end."""

    def __init__(self, root: str, depth: int | None = None) -> None:
        self._root = root
        self._depth = depth
        self._lock = threading.Lock()
        self._seen: Seen | None = None
        self._listings: dict[str, _Listing] = {}
        self._near: list[_State] = []  # checked at every look
        self._late: list[_State] = []  # checked in turns
        self._turn = 0

    def look(self, *, thorough: bool = False) -> Seen:
        """What is there now. `thorough`: every directory is checked, not only a part of the late ones."""
        with self._lock:
            for path in self._stale(thorough):
                self._listings.pop(path, None)
                self._seen = None
            if self._seen is None:
                self._seen = self._walk()
            return self._seen

    def _stale(self, thorough: bool) -> list[str]:
        """The directories that may hold something else than when they were read."""
        part = self._late if thorough else self._late[self._turn : self._turn + LATE_STEP]
        if not thorough:
            self._turn = self._turn + LATE_STEP if self._turn + LATE_STEP < len(self._late) else 0
        out = []
        for path, listing in (*self._near, *part):
            try:
                status = os.lstat(path)
            except OSError:
                out.append(path)
                continue
            if not listing.settled or listing.identity != (status.st_dev, status.st_ino, status.st_ctime_ns):
                out.append(path)
        return out

    def _walk(self) -> Seen:
        """Go through the tree, nearest first, the large made directories at the end; read what is not known."""
        known, self._listings, self._near, self._late = self._listings, {}, [], []
        found: list[str] = []
        bares: list[str] = []
        env_files: list[str] = []
        partial = False
        soon = deque(((self._root, 0),))
        late: deque[tuple[str, int]] = deque()
        while soon or late:
            made = not soon
            path, depth = late.popleft() if made else soon.popleft()
            if len(self._listings) >= MAX_DIRECTORIES or len(found) >= MAX_FOUND:
                partial = True
                break
            listing = known.get(path) or _read(path, made)
            if listing is None:
                partial = True
                listing = _NOTHING
            self._listings[path] = listing
            states = self._late if made or len(self._near) >= NEAR else self._near
            states.append((path, listing))
            found += [f"{path}/{name}" for name in listing.found]
            env_files += [f"{path}/{name}" for name in listing.env_files]
            if listing.bare:
                bares.append(path)
            if depth == self._depth:
                continue
            below = [(f"{path}/{name}", depth + 1) for name in listing.below]
            if made or path.rpartition("/")[2] in LATE:
                late.extend(below)
            else:
                soon.extend(below)
        self._turn = 0
        gits = tuple(path for path in found if path.endswith("/.git"))
        return Seen(tuple(found), gits, partial, tuple(bares), tuple(env_files[:MAX_ENV_FILES]))


def _read(path: str, made: bool = False) -> _Listing | None:
    """The directory as it is now; None when it cannot be read. One that vanished, or is none, holds nothing.

    `made`: it lies in a directory that tools fill, where only `.git` counts.
    """
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return _NOTHING
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        return _NOTHING
    now = time.time_ns()
    below: list[str] = []
    found: list[str] = []
    env_files: list[str] = []
    shape = 0
    head = path.rpartition("/")[2]
    chained = head.lower() in _HEADS
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                folded = name.lower()
                if name in _BARE:
                    shape += 1
                elif folded.startswith(".env") and not made and _keeps_secrets(folded):
                    env_files.append(name)
                if folded in _NAMES or not name.isascii():
                    guarded = protected(f"/{name}", "/") is not None
                else:
                    guarded = chained and protected(f"/{head}/{name}", "/") is not None
                if guarded and made and folded != ".git":
                    guarded = False
                if guarded and _stands(entry):
                    found.append(name)
                    below += [name + each[len(folded) :] for each in _OPEN.get(folded, ())]
                elif entry.is_dir(follow_symlinks=False):
                    below.append(name)
    except OSError:
        return None
    identity = (status.st_dev, status.st_ino, status.st_ctime_ns)
    settled = now - status.st_ctime_ns > SETTLE
    bare = shape == len(_BARE)
    return _Listing(identity, settled, tuple(sorted(below)), tuple(sorted(found)), bare, tuple(sorted(env_files)))


def _keeps_secrets(name: str) -> bool:
    return (name == ".env" or name.startswith(".env.")) and not name.endswith(ENV_EXAMPLES)


def _stands(entry: os.DirEntry[str]) -> bool:
    """Whether there is something to protect: not a socket, FIFO or device, and not sandboxd's own mount point."""
    if entry.is_file(follow_symlinks=False) or entry.is_symlink():
        return True
    if not entry.is_dir(follow_symlinks=False):
        return False
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
        return mode & 0o7700 != PLACEHOLDER_MODE & 0o7700 or bool(os.listdir(entry.path))
    except OSError:
        return True


class Forest:
    """The walks of the roots in use, the least recently used dropped."""

    def __init__(self) -> None:
        self._trees: OrderedDict[tuple[str, int | None], Tree] = OrderedDict()
        self._lock = threading.Lock()

    def look(self, root: str, depth: int | None = None, *, thorough: bool = False) -> Seen:
        key = (root, depth)
        with self._lock:
            tree = self._trees.get(key)
            if tree is None:
                tree = self._trees[key] = Tree(root, depth)
            self._trees.move_to_end(key)
            if len(self._trees) > MAX_ROOTS:
                self._trees.popitem(last=False)
        return tree.look(thorough=thorough)
