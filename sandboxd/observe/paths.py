# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a path really leads, component by component, so that `..` counts from where a symlink led.

Only lstat and readlink are used: nothing is opened, so a FIFO or a device in the way blocks nothing.
"""

from __future__ import annotations

import errno
import os
import re
import stat

from sandboxd.model import PathFact

MAX_LINKS = 40  # symlinks followed for one path, as the kernel does (path_resolution(7))

# Links that mean another place for each process: what they mean to the command cannot be seen from here.
_PER_PROCESS = re.compile(r"/proc/(?:[^/]+/(?:task/[^/]+/)?(?:cwd|root|exe|fd|fdinfo|map_files|ns)(?=/|\Z)|self|thread-self)")


class Resolver:
    """Resolves paths as they are now; remembers prefixes, so use one for one moment and throw it away."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {"/": "/"}

    def real(self, path: str) -> str | None:
        """The real path of the absolute `path`, whose last components may be missing. None when it cannot be told:
        too many links, no permission to look, a process's own link, a name that is no file name."""
        return self._resolve(path, MAX_LINKS)

    def fact(self, path: str) -> PathFact:
        real = self.real(path)
        if real is None:
            return PathFact(path, None)
        try:
            status = os.lstat(real)
        except OSError as error:
            gone = error.errno in (errno.ENOENT, errno.ENOTDIR)
            return PathFact(path, real if gone else None)
        return PathFact(path, real, exists=True, is_dir=stat.S_ISDIR(status.st_mode), links=status.st_nlink)

    def _resolve(self, path: str, links: int) -> str | None:
        at = "/"
        pieces = [piece for piece in path.split("/") if piece not in ("", ".")]
        for number, piece in enumerate(pieces):
            if piece == "..":
                at = at.rpartition("/")[0] or "/"
                continue
            child = f"{at}/{piece}" if at != "/" else f"/{piece}"
            if child in self._known:
                known = self._known[child]
            else:
                known = self._step(child, links)
                self._known[child] = known
            if known is None:
                return None
            if known == "":  # missing: nothing below can be a link yet
                return _lexical(child, pieces[number + 1 :])
            at = known
        return at

    def _step(self, child: str, links: int) -> str | None:
        """The real path of `child`, whose parent is real; "" when it does not exist."""
        if child.startswith("/proc/") and _PER_PROCESS.match(child):
            return None
        try:
            mode = os.lstat(child).st_mode
            if not stat.S_ISLNK(mode):
                return child
            if links == 0:
                return None
            target = os.readlink(child)
        except OSError as error:
            return "" if error.errno in (errno.ENOENT, errno.ENOTDIR) else None
        except ValueError:  # NUL, or a character that no file name can hold
            return None
        base = child.rpartition("/")[0]
        return self._resolve(target if target.startswith("/") else f"{base}/{target}", links - 1)


def _lexical(base: str, pieces: list[str]) -> str:
    for piece in pieces:
        base = (base.rpartition("/")[0] or "/") if piece == ".." else f"{base.rstrip('/')}/{piece}"
    return base
