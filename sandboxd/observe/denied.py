# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that rules forbid to read, as far as they exist: what the globs of `Read(…)` rules match now.

Of a directory its files are named one by one where they are few: hidden as a whole it would look empty, and a command that
commits what it sees would commit that its files are gone. A walk is bounded by a number of entries, nearest first.

What was found is kept until a directory that was gone through has another change time, which no program can set (inode(7));
one that changed shortly before it was read is read again. In large made directories (tree.LATE) a change is seen when
something else has changed.
"""

from __future__ import annotations

import fnmatch
import os
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sandboxd.errors import tells_of_path
from sandboxd.globs import is_glob, literal_prefix, path_overlaps
from sandboxd.observe.tree import LATE, SETTLE
from sandboxd.paths import is_within, parents

MAX_ENTRIES = 20_000  # of all walks together
MAX_FILES = 200  # of one directory that are named; one with more is named itself
MAX_PATHS = 400  # each is a mount
MAX_KEPT = 32  # answers that are remembered

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


_Rules = tuple[tuple[str, tuple[str, ...]], ...]
_Identity = tuple[int, int, int]  # device, inode, change time
_kept: OrderedDict[tuple[_Rules, tuple[str, ...]], tuple[Denied, tuple[tuple[str, _Identity | None], ...]]] = OrderedDict()
_lock = threading.Lock()


def denied(rules: Iterable[tuple[str, tuple[str, ...]]], roots: tuple[str, ...]) -> Denied:
    """What the rules, each as written with its absolute globs, match on this disk. Below `roots` everything is looked for,
    elsewhere what stands where the glob begins. The roots themselves, what holds them and whole system directories are left
    out, and links that a pattern matches: what they lead to is another file."""
    key = (tuple(rules), roots)
    with _lock:
        known = _kept.get(key)
    if known is not None and all(_identity(directory) == identity for directory, identity in known[1]):
        return known[0]
    look = _Look(roots)
    look.run(key[0])
    found = Denied(tuple(look.found.items())[:MAX_PATHS], look.left < 0 or len(look.found) > MAX_PATHS)
    with _lock:
        _kept[key] = (found, tuple(look.seen.items()))
        _kept.move_to_end(key)
        while len(_kept) > MAX_KEPT:
            _kept.popitem(last=False)
    return found


def _identity(directory: str) -> _Identity | None:
    """What changes with a directory's entries; None where there is none."""
    try:
        status = os.lstat(directory)
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_ctime_ns)


class _Look:
    def __init__(self, roots: tuple[str, ...]) -> None:
        self.roots = roots
        self.left = MAX_ENTRIES
        self.found: dict[str, str] = {}
        self.seen: dict[str, _Identity | None] = {}  # what the answer rests on

    def run(self, rules: _Rules) -> None:
        patterns: dict[str, list[tuple[str, str, re.Pattern[str] | None]]] = {}
        for rule, globs in rules:
            for glob in globs:
                whole = glob.removesuffix("/**") or "/"
                if not is_glob(whole) and "\\" not in whole:
                    self._plain(rule, whole)
                elif not glob.endswith("/**") or whole not in globs:  # a directory that matches stands for all below it
                    for start in self._starts(literal_prefix(glob)):
                        patterns.setdefault(start, []).append((rule, glob, _last(glob)))
        for start, wanted in patterns.items():
            self._matching(start, wanted)

    def _starts(self, head: str) -> tuple[str, ...]:
        if any(is_within(head, root) for root in self.roots):
            return (head,)
        return tuple(root for root in self.roots if is_within(root, head)) or (head,)

    def _matching(self, start: str, wanted: list[tuple[str, str, re.Pattern[str] | None]]) -> None:
        for name, path in self._walk(start):
            for rule, glob, last in wanted:
                if last is not None and not last.match(name):
                    continue
                if path_overlaps(glob, _SPECIAL.sub(r"\\\g<0>", path)) and not os.path.islink(path):
                    self._add(rule, path)
                    break

    def _plain(self, rule: str, path: str) -> None:
        above = next((each for each in parents(path)[:-1] if os.path.isdir(each)), "/") if path != "/" else "/"
        self._rests_on(above)
        self._add(rule, path)

    def _add(self, rule: str, path: str) -> None:
        if path in self.found or path in _SYSTEM or any(is_within(root, path) for root in self.roots):
            return
        if not os.path.lexists(path):
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
        for _, path in self._walk(directory):
            if os.path.isdir(path) or os.path.islink(path):
                continue
            out.append(path)
            if len(out) > MAX_FILES:
                return None
        return None if self.left < 0 else out

    def _walk(self, start: str) -> Iterator[tuple[str, str]]:
        """Every entry below a directory with its name, nearest first; links are not followed."""
        near, late = deque((start,)), deque[str]()
        while near or late:
            made = not near
            directory = late.popleft() if made else near.popleft()
            if not made:
                self._rests_on(directory)
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        self.left -= 1
                        if self.left < 0:
                            return
                        yield entry.name, entry.path
                        if entry.is_dir(follow_symlinks=False):
                            (late if made or entry.name in LATE or entry.name == ".git" else near).append(entry.path)
            except OSError as error:
                tells_of_path(error)

    def _rests_on(self, directory: str) -> None:
        """Before it is read. One that changed just now is noted so that it is read again: clock ticks are coarse."""
        identity = _identity(directory)
        settled = identity is None or time.time_ns() - identity[2] > SETTLE
        self.seen[directory] = identity if settled else (0, 0, 0)


def _last(glob: str) -> re.Pattern[str] | None:
    """What the name of everything that matches looks like; None where that is not simple."""
    name = glob.rpartition("/")[2]
    return None if name == "**" or "[" in name or "\\" in name else re.compile(fnmatch.translate(name))
