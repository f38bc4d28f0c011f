# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host has at paths at one time: each of them is looked at once for a start, whoever asks."""

from __future__ import annotations

import os

NOTHING = (0, 0)  # where nothing can be seen


class Look:
    """For one start, and no other: it remembers."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    def at(self, path: str) -> tuple[int, int]:
        """Device and inode of what stands at a path, of a link its own; NOTHING where nothing does."""
        found = self._seen.get(path)
        if found is None:
            try:
                status = os.lstat(path)
                found = status.st_dev, status.st_ino
            except (OSError, ValueError):
                found = NOTHING
            self._seen[path] = found
        return found
