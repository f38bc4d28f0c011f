# SPDX-License-Identifier: GPL-3.0-or-later
"""A real daemon, a real command line and a real repository, for whoever runs the tests and for a plain user."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests._require import require
from tests._users import User, current

READY_SECONDS = 30.0  # a cold start with a trial sandbox takes well under one


@dataclass(slots=True)
class Place:
    """One person at one machine: an empty home, the directories of their sandboxd, and what they type."""

    person: User
    home: Path
    count: int = 0
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def runtime(self) -> Path:
        return self.home / "run"

    def env(self) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "SECRET_TOKEN": "hunter2-of-the-caller",
            **self.extra,
        }

    def workspace(self) -> Path:
        """A new repository with one commit, owned by the person."""
        self.count += 1
        tree = self.home / f"ws{self.count}"
        tree.mkdir()
        (tree / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
        (tree / "Makefile").write_text("deploy:\n\t@echo deployed\nhello:\n\t@echo hello\n", encoding="utf-8")
        self.person.own(tree)
        for words in ("init -q -b main", "config user.name t", "config user.email t@t", "add -A", "commit -q -m first"):
            done = self.person.run(["git", *words.split()], cwd=tree, env=self.env())
            assert done.returncode == 0, done.stderr
        return tree

    def sandboxd(self, *words: str, cwd: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end, without a terminal."""
        return self.person.run([self.person.sandboxd, *words], cwd=cwd, env=self.env(), timeout=timeout)

    @contextmanager
    def started(self, *words: str, cwd: Path, pass_fds: Sequence[int] = ()) -> Iterator[subprocess.Popen[str]]:
        """Run the command line beside the test; it is gone at the end, whatever the test found."""
        child: subprocess.Popen[str] = subprocess.Popen(  # type: ignore[call-overload]  # mypy cannot see keywords through a dict
            [str(self.person.sandboxd), *words],
            cwd=cwd,
            env=self.person.env(self.env()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
            **self.person.ids(),
        )
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()
            child.communicate(timeout=READY_SECONDS)


def said(child: subprocess.Popen[str], text: str, seconds: float = 20.0) -> bool:
    """Whether the next thing that `child` says, within `seconds` and before it ends, is `text`."""
    assert child.stdout is not None
    ready, _, _ = select.select([child.stdout], [], [], seconds)
    return bool(ready) and os.read(child.stdout.fileno(), 65536) == text.encode()


@dataclass(slots=True)
class Daemon:
    """A running `sandboxd serve`."""

    place: Place
    process: subprocess.Popen[bytes]
    notices: socket.socket
    log: Path

    def wait_for(self, notice: bytes) -> None:
        """Wait until the daemon says `notice` (sd_notify(3)); its log is in the failure."""
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end:
            self.notices.settimeout(max(0.01, end - time.monotonic()))
            try:
                if notice in self.notices.recv(4096).split(b"\n"):
                    return
            except TimeoutError:
                break
        pytest.fail(f"the daemon never said {notice!r}: {self.log.read_text()}")

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)
        self.wait_for(b"READY=1")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(READY_SECONDS)


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A directory that no sandbox covers with a private one, as /tmp would be."""
    parent = "/home" if os.geteuid() == 0 else str(Path.home())
    path = Path(tempfile.mkdtemp(prefix="sbxd-e2e-", dir=parent))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module", params=["runner", "plain"])
def person(request: pytest.FixtureRequest, base: Path) -> User:
    """Whoever runs the tests (root in CI), and a plain user."""
    require("bwrap", "userns")
    if request.param == "runner":
        return current(base)
    user: User = request.getfixturevalue("plain_user")
    return user


@pytest.fixture(scope="module")
def new_place(person: User, base: Path) -> Callable[[], Place]:
    """Makes a place with a home of its own."""

    def make() -> Place:
        home = Path(tempfile.mkdtemp(prefix="h", dir=base))
        home.chmod(0o700)
        place = Place(person, home)
        place.runtime.mkdir(mode=0o700)
        person.own(home)
        return place

    return make


@pytest.fixture(scope="module")
def place(new_place: Callable[[], Place]) -> Place:
    """A place where no daemon runs: `run` embeds one."""
    return new_place()


@pytest.fixture(scope="module")
def start_daemon() -> Iterator[Callable[[Place], Daemon]]:
    """Starts daemons and ends those that still run."""
    started: list[Daemon] = []

    def start(place: Place) -> Daemon:
        notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        address = place.home / "notify"
        notices.bind(str(address))
        os.chmod(address, 0o666)
        log = place.home / "daemon.log"
        with open(log, "wb") as out:
            process: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]  # keywords through a dict
                [str(place.person.sandboxd), "serve"],
                cwd=place.home,
                env=place.person.env({**place.env(), "NOTIFY_SOCKET": str(address)}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                **place.person.ids(),
            )
        daemon = Daemon(place, process, notices, log)
        started.append(daemon)
        daemon.wait_for(b"READY=1")
        return daemon

    yield start
    for daemon in started:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.process.wait()
        daemon.notices.close()


@pytest.fixture(scope="module")
def served(new_place: Callable[[], Place], start_daemon: Callable[[Place], Daemon]) -> Iterator[Place]:
    """A place where the daemon runs for all tests of the module, and still stops as it should after them."""
    place = new_place()
    daemon = start_daemon(place)
    yield place
    assert daemon.stop() == 0, daemon.log.read_text()


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether `condition` comes true within `seconds`."""
    end, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        if time.monotonic() > end:
            return False
        pause.wait(0.02)
    return True


def running(marker: str) -> list[int]:
    """The processes whose command line holds `marker`, in whatever namespace."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
