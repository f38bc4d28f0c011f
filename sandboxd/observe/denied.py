# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that rules forbid to read, as far as they exist: what the globs of `Read(…)` rules match now.

Of a directory its files are named one by one where they are few: hidden as a whole it would look empty, and a command that
commits what it sees would commit that its files are gone. A walk is bounded by a number of entries, nearest first.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sandboxd.globs import is_glob, literal_prefix, path_overlaps
from sandboxd.observe.tree import LATE
from sandboxd.paths import is_within

MAX_ENTRIES = 20_000  # of all walks together
MAX_FILES = 200  # of one directory that are named; one with more is named itself
MAX_PATHS = 400  # each is a mount

# Without one of these nothing runs.
_SYSTEM = frozenset(
    ("/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc", "/run", "/sbin", "/sys", "/usr")
)
_SPECIAL = re.compile(r"[*?\[\\]")


@dataclass(frozen=True, slots=True)
class Denied:
    """Existing paths with the rule that forbids to read them. `partial`: there may be more."""

    paths: tuple[tuple[str, str], ...] = ()
    partial: bool = False


def denied(rules: Iterable[tuple[str, tuple[str, ...]]], roots: tuple[str, ...]) -> Denied:
    """What the rules, each as written with its absolute globs, match on this disk. Below `roots` everything is looked for,
    elsewhere what stands where the glob begins. The roots themselves, what holds them and whole system directories are left
    out, and links that a pattern matches: what they lead to is another file."""
    look = _Look(roots)
    for rule, globs in rules:
        for glob in globs:
            look.glob(rule, glob)
    return Denied(tuple(look.found.items())[:MAX_PATHS], look.left < 0 or len(look.found) > MAX_PATHS)


class _Look:
    def __init__(self, roots: tuple[str, ...]) -> None:
        self.roots = roots
        self.left = MAX_ENTRIES
        self.found: dict[str, str] = {}

    def glob(self, rule: str, glob: str) -> None:
        whole = glob.removesuffix("/**") or "/"
        if not is_glob(whole) and "\\" not in whole:
            self._add(rule, whole)
            return
        head = literal_prefix(glob)
        starts = (
            (head,) if any(is_within(head, root) for root in self.roots) else tuple(r for r in self.roots if is_within(r, head))
        )
        for start in starts or (head,):
            for path in self._walk(start):
                if path_overlaps(glob, _SPECIAL.sub(r"\\\g<0>", path)) and not os.path.islink(path):
                    self._add(rule, path)

    def _add(self, rule: str, path: str) -> None:
        if (
            path in self.found
            or path in _SYSTEM
            or any(is_within(root, path) for root in self.roots)
            or not os.path.lexists(path)
        ):
            return
        if os.path.isdir(path) and not os.path.islink(path) and any(is_within(path, root) for root in self.roots):
            files = self._files(path)
            if files is not None:
                for file in files:
                    self.found.setdefault(file, rule)
                return
        self.found[path] = rule

    def _files(self, directory: str) -> list[str] | None:
        """The files below a directory; None when they are many."""
        out = []
        for path in self._walk(directory):
            if os.path.isdir(path) or os.path.islink(path):
                continue
            out.append(path)
            if len(out) > MAX_FILES:
                return None
        return None if self.left < 0 else out

    def _walk(self, start: str) -> Iterator[str]:
        """Every entry below a directory, nearest first; links are not followed."""
        near, late = deque((start,)), deque[str]()
        while near or late:
            directory = near.popleft() if near else late.popleft()
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        self.left -= 1
                        if self.left < 0:
                            return
                        yield entry.path
                        if entry.is_dir(follow_symlinks=False):
                            (late if entry.name in LATE or entry.name == ".git" else near).append(entry.path)
            except OSError:
                continue
