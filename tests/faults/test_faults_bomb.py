# SPDX-License-Identifier: GPL-3.0-or-later
"""A fork bomb that policy cannot see into. Only a plain user runs it, below a limit on all that user's processes, so that
the machine is safe even where the sandbox's own limit should fail."""

from __future__ import annotations

import dataclasses
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests._require import require
from tests._users import User
from tests.e2e.conftest import Daemon, Place, eventually, running

MOST = 300  # processes and threads of the user, whatever happens
PROFILE = """
description = "Few processes."
[filesystem]
tmp = "session"
[network]
mode = "off"
[limits]
pids = 60
[isolation]
require = "fs"
"""
# Each call starts two of its kind and goes away; the script stays, so that only a limit or a kill ends them.
BOMB = "b() { b | b & }\nb 2>&1 | head -c 100000 >&2 &\nsleep {mark}\n"


@pytest.fixture
def house(plain_user: User) -> Iterator[Place]:
    require("bwrap", "userns", "user")
    home = Path(tempfile.mkdtemp(prefix="h", dir=plain_user.home))
    limited = home / "limited"  # every sandboxd of theirs
    limited.write_text(f'#!/bin/bash\nulimit -u {MOST} && exec {plain_user.sandboxd} "$@"\n')
    limited.chmod(0o755)
    place = Place(dataclasses.replace(plain_user, sandboxd=limited), home)
    place.runtime.mkdir(mode=0o700)
    profiles = home / ".config/sandboxd/profiles"
    profiles.mkdir(parents=True)
    (profiles / "few.toml").write_text(PROFILE)
    home.chmod(0o700)
    plain_user.own(home)
    yield place
    shutil.rmtree(home)


def heard(child: subprocess.Popen[str], text: bytes, seconds: float = 60.0) -> bool:
    """Whether `child` says that on standard error within `seconds`."""
    assert child.stderr is not None
    seen, end = b"", time.monotonic() + seconds
    while text not in seen:
        ready, _, _ = select.select([child.stderr], [], [], max(0.0, end - time.monotonic()))
        data = os.read(child.stderr.fileno(), 65536) if ready else b""
        if not data:
            return False
        seen += data
    return True


def daemon_limits(daemon: Daemon) -> list[str]:
    """Its soft and hard limit of processes."""
    (line,) = [
        line for line in Path(f"/proc/{daemon.process.pid}/limits").read_text().splitlines() if line.startswith("Max processes")
    ]
    return line.split()[2:4]


def test_a_fork_bomb(house: Place, start_daemon: Callable[[Place], Daemon]) -> None:
    """It meets the limit of its sandbox while another session's commands run as ever, and is gone, every process of it,
    when it is cancelled or its time is over."""
    daemon = start_daemon(house)
    assert daemon_limits(daemon) == [str(MOST), str(MOST)], "not without the limit"
    assert os.stat(f"/proc/{daemon.process.pid}").st_uid == house.person.uid != 0, "not as root, whom no limit binds"
    tree, other = house.workspace(), house.workspace()
    mark = f"75.{os.getpid()}"
    (tree / "bomb.sh").write_text(BOMB.replace("{mark}", mark))
    house.person.own(tree)
    run = ("run", "--mode", "bypassPermissions", "--profile", "few", "--timeout")
    with house.started(*run, "20", "--", "bash ./bomb.sh", cwd=tree) as child:
        assert heard(child, b"Resource temporarily unavailable"), daemon.log.read_text()
        assert 30 <= len(running("./bomb.sh")) <= 60
        assert house.sandboxd("run", "--", "cat a.txt", cwd=other).stdout == "one\ntwo\n"
        child.send_signal(2)
        assert child.wait(30) == 130
    assert eventually(lambda: not running("./bomb.sh"), 30)
    done = house.sandboxd(*run, "2", "--", "bash ./bomb.sh", cwd=tree)
    assert done.returncode == 124, done
    assert eventually(lambda: not running("./bomb.sh"), 30)
    assert eventually(lambda: not running(mark), 30)
    assert house.sandboxd("run", "--", "cat a.txt", cwd=tree).stdout == "one\ntwo\n"
    assert daemon.stop() == 0
