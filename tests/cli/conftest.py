# SPDX-License-Identifier: GPL-3.0-or-later
"""An empty home, so that no file of the person who runs the tests counts; a daemon of theirs; a terminal to type at."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests._require import require
from tests._users import User, current
from tests.e2e.conftest import Place
from tests.e2e.conftest import base as base
from tests.e2e.conftest import new_place as new_place
from tests.e2e.conftest import place as place
from tests.e2e.conftest import served as served
from tests.e2e.conftest import start_daemon as start_daemon

SECONDS = 30.0  # for anything that a terminal waits for


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def person(base: Path) -> User:
    """Whoever runs the tests; tests/e2e does the same as a plain user."""
    require("bwrap", "userns")
    return current(base)


class Terminal:
    """A terminal with one program on it, in the foreground: what is typed reaches it, what it shows is kept."""

    def __init__(self, master: int, child: subprocess.Popen[bytes]) -> None:
        self._master = master
        self.child = child
        self.shown = ""
        self._seen = 0

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, text: str) -> None:
        """Until `text` is shown, behind what was waited for before."""
        end = time.monotonic() + SECONDS
        while (at := self.shown.find(text, self._seen)) < 0:
            if not self._read(end):
                pytest.fail(f"`{text}` was never shown:\n{self.shown}")
        self._seen = at + len(text)

    def wait(self) -> int:
        """Until the program ends; its exit status."""
        end = time.monotonic() + SECONDS
        while self._read(end):
            pass
        return self.child.wait(SECONDS)

    def _read(self, end: float) -> bool:
        """Whether more was shown before `end`, on the monotonic clock."""
        ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
        try:
            data = os.read(self._master, 65536) if ready else b""
        except OSError:  # the program and everybody else has closed the other end
            data = b""
        self.shown += data.decode("utf-8", "replace")
        return bool(data)


@contextmanager
def terminal(place: Place, *words: str, cwd: Path) -> Iterator[Terminal]:
    """Run the command line on a terminal of its own, as a shell would: it is the foreground, so Ctrl-C is its signal."""
    master, slave = pty.openpty()
    try:
        # setsid --ctty makes the terminal the controlling one, without code between fork and exec.
        child = subprocess.Popen(
            ["setsid", "--ctty", "--wait", str(place.person.sandboxd), *words],
            cwd=cwd,
            env=place.person.env({**place.env(), "TERM": "xterm"}),
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
    finally:
        os.close(slave)
    try:
        yield Terminal(master, child)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait(SECONDS)
        os.close(master)
