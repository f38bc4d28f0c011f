# SPDX-License-Identifier: GPL-3.0-or-later
"""Lexical path arithmetic: strings in, strings out, no disk.

All results are absolute or relative exactly as said; `/` is the separator; nothing is resolved against the file
system, so `..` after a symlink is the caller's problem (observe answers it).
"""

from __future__ import annotations

import re
from functools import lru_cache

_PROC_ROOT = re.compile(r"^(?:/proc/(?:self|thread-self|\d+|self/task/\d+|\d+/task/\d+)/root)+(?=/|$)")


# An absolute path without an empty, `.` or `..` component: nearly every one, and nothing to do for it.
_NORMAL = re.compile(r"(?:/(?!\.{0,2}(?:/|\Z))[^/]*)+")


def normalize(path: str) -> str:
    """Collapse `//`, `.` and `..` lexically; an absolute path stays absolute. "" becomes "."."""
    if _NORMAL.fullmatch(path):
        return path
    absolute = path.startswith("/")
    out: list[str] = []
    for piece in path.split("/"):
        if piece in ("", "."):
            continue
        if piece == ".." and out and out[-1] != "..":
            out.pop()
        elif piece == ".." and absolute:
            continue
        else:
            out.append(piece)
    body = "/".join(out)
    return "/" + body if absolute else body or "."


def join(base: str, path: str) -> str:
    """`path` seen from the absolute directory `base`, normalized."""
    return normalize(path if path.startswith("/") else f"{base}/{path}")


def is_within(path: str, root: str) -> bool:
    """Whether the normalized absolute `path` is `root` or lies below it."""
    return path == root or path.startswith(root if root.endswith("/") else root + "/")


def is_within_any(path: str, roots: tuple[str, ...]) -> bool:
    """Whether `is_within` holds for one of `roots`."""
    return path in roots or path.startswith(_below(roots))


@lru_cache(maxsize=256)
def _below(roots: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(root if root.endswith("/") else root + "/" for root in roots)


def parents(path: str) -> tuple[str, ...]:
    """The directories above an absolute normalized path, nearest first, ending with `/`."""
    out = []
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        out.append(path)
    return tuple(out)


def has_dotdot(path: str) -> bool:
    """Whether a `..` component stands in it (then symlinks in its prefix matter)."""
    return ".." in path.split("/")


def expand_home(path: str, home: str) -> str:
    """`~` and `~/x` with `home` put in; anything else as it is."""
    if path == "~":
        return home
    if path.startswith("~/"):
        return f"{home}/{path[2:]}"
    return path


def strip_proc_root(path: str) -> str:
    """`/proc/self/root/etc/x` as `/etc/x`: the kernel's own alias of the root directory."""
    return (_PROC_ROOT.sub("", path) or "/") if path.startswith("/proc/") else path
