# SPDX-License-Identifier: GPL-3.0-or-later
"""A listing from memory is the one that a fresh look would give, whatever happened to the directory in between."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from sandboxd.isolation import hostfacts
from sandboxd.isolation.listings import GRAIN, Listings
from sandboxd.model import Session

NAMES = ("a", "b", "c", "d")


class Counted:
    """`os.listdir`, and how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        real = os.listdir

        def listdir(path: str) -> list[str]:
            self.calls += 1
            return real(path)

        monkeypatch.setattr(os, "listdir", listdir)


def change(root: Path, chance: random.Random) -> None:
    """One change of a small tree: an entry made, removed, renamed or replaced, also the directory itself, or by a link."""
    directory = root / chance.choice(("x", "y"))
    entry = directory / chance.choice(NAMES)
    other = directory / chance.choice(NAMES)
    match chance.randrange(6):
        case 0:
            entry.touch()
        case 1:
            entry.unlink(missing_ok=True)
        case 2:
            if entry.exists():
                entry.rename(other)  # as many names as before, or one less
        case 3:
            os.utime(directory, ns=(0, 0))  # a program may set the modification time, not the change time
            entry.touch()
            os.utime(directory, ns=(0, 0))
        case 4:
            (root / "x").rename(root / "z")
            (root / "y").rename(root / "x")
            (root / "z").rename(root / "y")
        case 5:
            path = root / "link"
            path.unlink(missing_ok=True)
            path.symlink_to(chance.choice(("x", "y")))


@pytest.mark.parametrize("seed", range(4))
def test_never_another_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Through bursts of changes within one tick of the kernel's clock, and through quiet in which listings are remembered."""
    chance = random.Random(seed)
    fresh = os.listdir
    counted = Counted(monkeypatch)
    known = Listings()
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("x")
    end = time.monotonic() + 1.5
    asked = 0
    while time.monotonic() < end:
        for _ in range(chance.randrange(4)):
            change(tmp_path, chance)
            for name in ("x", "link"):
                assert known.names(f"{tmp_path}/{name}") == set(fresh(f"{tmp_path}/{name}"))
        quiet = time.monotonic() + chance.choice((0.0, 0.001, 0.005, GRAIN, 2 * GRAIN))
        while True:
            asked += 3
            for name in ("x", "y", "link"):
                assert known.names(f"{tmp_path}/{name}") == set(fresh(f"{tmp_path}/{name}"))
            if time.monotonic() >= quiet:
                break
    assert 0 < counted.calls < asked, "nothing was remembered"


def test_when_it_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a listing made GRAIN after the directory was first seen in that state is taken from memory."""
    counted = Counted(monkeypatch)
    now = 0.0
    known = Listings(lambda: now)
    for moment, calls in ((0.0, 1), (GRAIN * 0.9, 2), (GRAIN * 1.1, 3), (GRAIN * 1.2, 3), (1000.0, 3)):
        now = moment
        assert known.names(str(tmp_path)) == set()
        assert counted.calls == calls
    (tmp_path / "new").touch()
    assert known.names(str(tmp_path)) == {"new"}
    assert counted.calls == 4
    now += GRAIN * 0.9
    known.names(str(tmp_path))
    assert counted.calls == 5


def test_where_times_say_nothing() -> None:
    """A file system whose directories change without their times, as /proc, is read every time."""
    now = 0.0
    known = Listings(lambda: now)
    null = os.open(os.devnull, os.O_RDONLY)
    for number in range(200, 205):
        now += 1
        os.dup2(null, number)
        try:
            assert str(number) in known.names("/proc/self/fd")
        finally:
            os.close(number)
        assert str(number) not in known.names("/proc/self/fd")
    os.close(null)


def test_what_cannot_be_listed(tmp_path: Path) -> None:
    """What is gone, or no directory, is an error as it would be without memory."""
    known = Listings()
    inner = tmp_path / "d"
    inner.mkdir()
    known.names(str(inner))
    inner.rmdir()
    with pytest.raises(FileNotFoundError):
        known.names(str(inner))
    inner.touch()
    with pytest.raises(NotADirectoryError):
        known.names(str(inner))


def test_secrets_as_they_are_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secrets that a plan hides are those of this moment, whatever was remembered of the moment before."""
    home, workspace = tmp_path / "home", tmp_path / "ws"
    home.mkdir()
    workspace.mkdir()
    session = Session("s", str(workspace), str(home), os.getuid(), os.getgid(), str(tmp_path / "tmp"))
    chance = random.Random(7)
    secrets = (
        ".netrc",
        ".ssh/id_rsa",
        ".aws/credentials",
        ".docker/config.json",
        ".config/gh/hosts.yml",
        ".local/share/keyrings/x",
    )
    end = time.monotonic() + 1.5
    memory = hostfacts.listings
    seen = set()
    while time.monotonic() < end:
        path = home / chance.choice(secrets)
        if path.exists():
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
        for _ in range(chance.choice((1, 1, 60))):
            found = hostfacts.host_facts(session)
            monkeypatch.setattr(hostfacts, "listings", Listings())
            assert set(found.secrets) == set(hostfacts.host_facts(session).secrets)
            monkeypatch.setattr(hostfacts, "listings", memory)
        seen.add(len(found.secrets))
    assert len(seen) > 1


# What is made in a home: files by their names, links with where they lead. Which secrets a plan then hides.
HOMES: tuple[tuple[tuple[str, ...], tuple[tuple[str, str], ...], tuple[str, ...]], ...] = (
    ((), (), ()),
    (("notes",), (), ()),
    ((".config/gh/hosts.yml",), (), (".config/gh/hosts.yml",)),
    ((".config/containers/auth.json", ".config/notes"), (), (".config/containers/auth.json",)),
    ((".local/share/fish/fish_history",), (), (".local/share/fish/fish_history",)),
    ((".cache/huggingface/token",), (), (".cache/huggingface/token",)),
    ((".terraform.d/credentials.tfrc.json",), (), (".terraform.d/credentials.tfrc.json",)),
    (("there/containers/auth.json",), ((".config", "there"),), (".config/containers/auth.json",)),
    (("there/auth.json",), ((".config/containers", "there"),), (".config/containers/auth.json",)),
    ((".config",), (), ()),
    ((), ((".config", "nowhere"), (".docker", ".docker")), ()),
)


@pytest.mark.parametrize(("files", "links", "hidden"), HOMES)
def test_secrets_at_any_depth(
    files: tuple[str, ...], links: tuple[tuple[str, str], ...], hidden: tuple[str, ...], tmp_path: Path
) -> None:
    """A secret is hidden where it is found below directories that hold nothing else, and behind a link."""
    home, workspace = tmp_path / "home", tmp_path / "ws"
    for directory in (home, workspace):
        directory.mkdir()
    for name in files:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch(0o600)
    for name, target in links:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).symlink_to(home / target)
    session = Session("s", str(workspace), str(home), os.getuid(), os.getgid(), str(tmp_path / "tmp"))
    found = {path.path for path in hostfacts.host_facts(session).secrets if path.path.startswith(f"{home}/")}
    assert found == {f"{home}/{name}" for name in hidden}
