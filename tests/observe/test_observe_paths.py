# SPDX-License-Identifier: GPL-3.0-or-later
"""A path's real place is what the kernel would say, and what cannot be told is None."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxd.model import PathFact
from sandboxd.observe.paths import Resolver


def test_dotdot_after_a_link(tmp_path: Path) -> None:
    """`lnk/..` is the parent of where the link leads, not of the link."""
    (tmp_path / "repo/.git/hooks").mkdir(parents=True)
    (tmp_path / "lnk").symlink_to("repo/.git/hooks")
    assert Resolver().real(f"{tmp_path}/lnk/../config") == f"{tmp_path}/repo/.git/config"


def test_missing_tail(tmp_path: Path) -> None:
    """Components that do not exist yet stand where they would be made."""
    (tmp_path / "d").mkdir()
    (tmp_path / "l").symlink_to("d")
    (tmp_path / "dangling").symlink_to("nowhere/x")
    resolver = Resolver()
    assert resolver.real(f"{tmp_path}/l/new/file") == f"{tmp_path}/d/new/file"
    assert resolver.real(f"{tmp_path}/l/new/../file") == f"{tmp_path}/d/file"
    assert resolver.real(f"{tmp_path}/dangling") == f"{tmp_path}/nowhere/x"
    assert resolver.fact(f"{tmp_path}/dangling") == PathFact(f"{tmp_path}/dangling", f"{tmp_path}/nowhere/x")


def test_cannot_be_told(tmp_path: Path) -> None:
    """A loop, a process's own link, an impossible name: None."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "self").symlink_to("/proc/self/cwd/.git")
    resolver = Resolver()
    for path in ("a", "a/x", "self", "\0", "\ud800"):
        assert resolver.real(f"{tmp_path}/{path}") is None, path
    for path in ("/proc/self/cwd/x", "/proc/1/root", "/proc/thread-self/fd/3", "/proc/self", "/proc/7/task/7/cwd", "/dev/fd/0"):
        assert resolver.real(path) is None, path
    assert resolver.real("/proc/meminfo") == "/proc/meminfo"


def test_facts(tmp_path: Path) -> None:
    """Existence, directory, hard links; nothing is opened, so a FIFO does not block."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    os.link(tmp_path / "file", tmp_path / "twin")
    resolver = Resolver()
    assert resolver.fact(f"{tmp_path}/fifo") == PathFact(f"{tmp_path}/fifo", f"{tmp_path}/fifo", exists=True)
    assert resolver.fact(f"{tmp_path}/file") == PathFact(f"{tmp_path}/file", f"{tmp_path}/file", exists=True, links=2)
    assert resolver.fact(f"{tmp_path}").is_dir
    assert resolver.fact("/") == PathFact("/", "/", exists=True, is_dir=True, links=os.lstat("/").st_nlink)
    below_a_file = resolver.fact(f"{tmp_path}/file/x")
    assert (below_a_file.real, below_a_file.exists) == (f"{tmp_path}/file/x", False)


NAMES = st.sampled_from(["a", "b", "c"])
TARGETS = st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=4).map("/".join)


@settings(max_examples=150, deadline=None)
@given(
    entries=st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.none() | TARGETS), max_size=8),
    path=st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=6).map("/".join),
)
def test_as_the_kernel(entries: list[tuple[str, str | None]], path: str) -> None:
    """In any tangle of directories and links, an existing path resolves as the kernel resolves it."""
    with tempfile.TemporaryDirectory() as root:
        root = os.path.realpath(root)
        for place, target in entries:
            try:
                if target is None:
                    os.makedirs(f"{root}/{place}")
                else:
                    os.symlink(target, f"{root}/{place}")
            except OSError:
                continue
        real = Resolver().real(f"{root}/{path}")
        try:
            descriptor = os.open(f"{root}/{path}", os.O_PATH)
        except OSError:
            return
        kernel = os.readlink(f"/proc/self/fd/{descriptor}")
        os.close(descriptor)
        assert real == kernel
