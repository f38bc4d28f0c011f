# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that the gates read: those git tracks, and those new in the working tree that it would."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("sandboxd/v1/", "proto/image.binpb")


@cache
def tracked() -> tuple[str, ...]:
    """Paths relative to the root, generated code left out. Links (sandboxd/profiles) are not files and are left out too."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = sorted(set(listed.stdout.split("\0")) - {""})
    return tuple(
        name for name in names if not name.startswith(GENERATED) and (ROOT / name).is_file() and not (ROOT / name).is_symlink()
    )


def python() -> tuple[str, ...]:
    return tuple(name for name in tracked() if name.endswith(".py"))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
