# SPDX-License-Identifier: GPL-3.0-or-later
"""The bound of a session's /tmp, which is a directory on the host's disk that no mount bounds.

A command that lasts is looked after: when it makes the directory grow beyond the bound, it is ended. One that is quicker than a
look can overstep once; then the next one that adds to it is ended.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

FIRST = 0.05  # seconds until the first look: most commands are over by then, and cost nothing here
EVERY = 1.0  # seconds between two looks
MOST = 200_000  # entries that a look counts; a directory that holds more is beyond any bound
BEYOND = 1 << 62  # bytes


def used(directory: str) -> int:
    """Bytes on the disk of all below `directory`, links not followed; what goes away meanwhile does not count. A file with
    several names counts once for each."""
    total = seen = 0
    todo = [directory]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if seen > MOST:
                        return BEYOND
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    try:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                    except OSError:
                        continue
        except OSError:  # gone, or closed by the command
            continue
    return total


async def watch(directory: str, bound: int, end: Callable[[str], None]) -> None:
    """Look until cancelled; call `end` with the cause when `directory` has grown, and beyond `bound` bytes."""
    await asyncio.sleep(FIRST)
    before = await asyncio.to_thread(used, directory)
    while True:
        await asyncio.sleep(EVERY)
        now = await asyncio.to_thread(used, directory)
        if now > bound and now > before:
            end(f"the session's /tmp holds more than `run.tmp_quota` = {bound} bytes")
            return
        before = min(before, now)
