# SPDX-License-Identifier: GPL-3.0-or-later
"""Which `.env` files git tracks, read out of index files of every version that git writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sandboxd.observe.gitindex import tracked_env_files


def git(place: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words], cwd=place, check=True)


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_tracked_files_are_found(tmp_path: Path, version: str) -> None:
    """At any depth, in every index format, with names that share a beginning; what is not added is not tracked."""
    names = (".emacs", ".env", ".env.test", "a/.env", "a/b/.environment", "a/b/file", "long/" * 30 + ".env", "ünï/.env")
    git(tmp_path, "init", "-q")
    for name in (*names, "x/.env"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("A=1\n", encoding="utf-8")
    git(tmp_path, "add", *names)
    if version == "3":
        git(tmp_path, "add", "-N", "x/.env")
    git(tmp_path, "update-index", "--index-version", version)
    wanted = {name for name in names if name.rpartition("/")[2].startswith(".env")} | ({"x/.env"} if version == "3" else set())
    assert tracked_env_files(str(tmp_path / ".git")) == wanted


@pytest.mark.parametrize(
    "data", [b"", b"DIRC", b"DIRC\0\0\0\2\0\0\0\5.env", b"x" * 200 + b".env", b"DIRC\0\0\0\4\0\0\0\1" + b"\xff" * 90]
)
def test_what_is_no_index_tracks_nothing(tmp_path: Path, data: bytes) -> None:
    """A file that is cut or something else makes every `.env` untracked, so hidden: the stricter answer."""
    (tmp_path / "index").write_bytes(data)
    assert tracked_env_files(str(tmp_path)) == frozenset()


def test_no_index_at_all(tmp_path: Path) -> None:
    """A new repository has none, and tracks nothing."""
    assert tracked_env_files(str(tmp_path)) == frozenset()
