# SPDX-License-Identifier: GPL-3.0-or-later
"""A disk that is really full: a small file system of its own, in a mount namespace of its own, below the daemon's state."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd.errors import Unavailable
from sandboxd.model import EndKind
from tests.e2e.conftest import Daemon, Place
from tests.faults.conftest import BYPASS, client

pytestmark = [
    pytest.mark.needs("bwrap", "userns"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system for the daemon alone"),
]

MB = 1 << 20
STATE = ".local/state/sandboxd"


def mounting(folder: str, size: int) -> Callable[[Place], str]:
    """The daemon's view of `folder` of its state directory is a file system of `size` bytes."""

    def make(place: Place) -> str:
        target = place.home / STATE / folder
        target.mkdir(mode=0o700, parents=True)
        (place.home / STATE).chmod(0o700)
        mount = f'mount -t tmpfs -o size={size},mode=700 tmpfs {target} && exec "$@"'
        return f"set -- unshare --mount --propagation private sh -c '{mount}' sh \"$@\""

    return make


def seen(daemon: Daemon, path: str) -> Path:
    """A path as the daemon sees it."""
    return Path(f"/proc/{daemon.process.pid}/root{path}")


def fill(path: Path) -> None:
    """Write until there is no room."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


async def test_a_full_spool(start_in: Callable[[Callable[[Place], str]], Daemon]) -> None:
    """The command goes on to its end and its own status, its first and its last output come, the result says that not all
    was kept; the next command is as good as ever, and so is one in whose time there is room again."""
    daemon = start_in(mounting("spool", 2 * MB))
    place = daemon.place
    tree = place.workspace()
    assert not list((place.home / STATE / "spool").iterdir())  # the mount is not the host's
    async with client(place) as person:
        async with await person.session(str(tree), mode=BYPASS) as session:
            for _ in range(2):
                run = await session.run("echo first; head -c 8000000 /dev/zero; echo last; exit 4")
                assert (run.result.end, run.exit_code, run.result.truncated) == (EndKind.EXITED, 4, True)
                assert run.result.stdout_bytes == 8_000_011
                assert run.stdout.endswith(b"last\n")
                assert len(run.stdout) + run.dropped == 8_000_011
            small = await session.run("echo small; exit 5")
            assert (small.exit_code, small.output) == (5, "small\n")
            text = (await session.executions())[-1]
            shown = await session.model_text(text.id)
            assert shown is not None
            assert "first" in shown.text
            assert "last" in shown.text
            assert not shown.whole
        async with await person.session(str(tree), mode=BYPASS) as session:  # with the other session its output has gone
            run = await session.run("head -c 1000000 /dev/zero")
            assert (len(run.stdout), run.result.truncated) == (1_000_000, False)
    assert daemon.stop() == 0


async def test_a_full_state_directory(start_in: Callable[[Callable[[Place], str]], Daemon]) -> None:
    """When nothing at all can be written, nothing runs, since it would leave no record; the daemon goes on, says what is
    wrong, and works again when there is room."""
    daemon = start_in(mounting("", 6 * MB))
    place = daemon.place
    tree = place.workspace()
    ballast = seen(daemon, f"{place.home}/{STATE}/ballast")
    async with client(place) as person, await person.session(str(tree), mode=BYPASS) as session:
        reader = await person.session(str(tree))
        assert (await reader.run("cat a.txt")).output == "one\ntwo\n"
        fill(ballast)
        found = [await session.run("touch made"), await reader.run("cat a.txt")]
        for run in found:
            assert (run.exit_code, run.result.end) == (125, EndKind.FAILED)
            assert "the record cannot be written" in run.result.cause
        assert not (tree / "made").exists()
        sessions = len(await person.sessions())
        with pytest.raises(Unavailable, match="see the disk of the state directory"):
            await person.session(str(tree))
        assert len(await person.sessions()) == sessions
        assert (await person.status()).state == "serving"
        ballast.unlink()
        run = await session.run("echo after")
        assert (run.exit_code, run.output) == (0, "after\n")
        newest, *_ = await person.decisions(limit=1)
        assert newest.text == "echo after"
    assert daemon.stop() == 0
