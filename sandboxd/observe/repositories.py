# SPDX-License-Identifier: GPL-3.0-or-later
"""Which git directories belong to a work tree, and what their configuration makes git run. git itself is never run.

What a workspace says is not believed alone: the git directory that a `.git` file names counts as the work tree's own
only when it names that work tree back and belongs to the same user. One that does not is protected, never opened.
"""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from sandboxd.observe.gitconfig import Entry, disarm, included, parse
from sandboxd.observe.paths import Resolver
from sandboxd.paths import expand_home, is_within, normalize

MAX_CONFIG = 1 << 20  # bytes of a configuration file
MAX_LINK = 4096  # bytes of a `.git` file and its kin
MAX_INCLUDES = 20  # files a repository
MAX_FILES = 512  # configuration files remembered

# Codes of notes. A note says what could not be made sure of; the rest of it names the place.
UNREADABLE = "git_config_unreadable"
ARMED = "git_armed"
FOREIGN = "git_dir_not_agreed"


@dataclass(slots=True)
class Findings:
    """What the repositories of a workspace add up to."""

    repositories: dict[str, None] = field(default_factory=dict)
    protected: dict[str, None] = field(default_factory=dict)
    hooks_paths: dict[str, None] = field(default_factory=dict)
    armed_git: dict[tuple[str, str], None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)


class Repositories:
    """Reads repositories; remembers parsed configuration files by inode, size and change time."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, tuple[tuple[int, int, int, int], tuple[Entry, ...] | None]] = OrderedDict()
        self._lock = threading.Lock()

    def examine(self, dot_git: str, owner: int, home: str, resolver: Resolver, into: Findings) -> None:
        """Add what the `.git` entry at the absolute path `dot_git` means; `owner` is the uid of the workspace."""
        work_tree = dot_git.rpartition("/")[0] or "/"
        try:
            status = os.lstat(dot_git)
        except OSError:
            return
        if stat.S_ISDIR(status.st_mode):
            git_dir = dot_git
            if status.st_uid == owner:
                into.repositories[git_dir] = None
            else:
                into.protected[git_dir] = None
                into.notes[f"{FOREIGN}:{git_dir}"] = None
        else:
            named = self._named(dot_git, status.st_mode)
            git_dir = (resolver.real(below(work_tree, named)) if named else None) or ""
            if not git_dir or not _is_git_dir(git_dir):
                into.notes[f"{FOREIGN}:{dot_git}"] = None
                return
            mains = self._agreed(git_dir, dot_git, work_tree, owner, resolver)
            if stat.S_ISREG(status.st_mode) and status.st_uid == owner and mains:
                into.repositories.update(dict.fromkeys(mains))
            else:
                into.protected[git_dir] = None
                into.notes[f"{FOREIGN}:{dot_git}"] = None
        self._configuration(git_dir, work_tree, home, resolver, into)

    def _named(self, dot_git: str, mode: int) -> str | None:
        """Where a `.git` that is no directory leads."""
        if stat.S_ISLNK(mode):
            return dot_git
        text = read_text(dot_git, MAX_LINK)
        return text[8:].strip() if text is not None and text.startswith("gitdir: ") else None

    def _agreed(self, git_dir: str, dot_git: str, work_tree: str, owner: int, resolver: Resolver) -> tuple[str, ...]:
        """The git directories of a work tree whose `.git` is a file, when they name it back; else none."""
        common = read_text(f"{git_dir}/commondir", MAX_LINK)
        back = read_text(f"{git_dir}/gitdir", MAX_LINK)
        if common is not None and back is not None:  # a linked work tree
            main = resolver.real(below(git_dir, common.strip()))
            named = resolver.real(below(git_dir, back.strip()))
            if main is None or named != resolver.real(dot_git) or not is_within(git_dir, f"{main}/worktrees"):
                return ()
            return (git_dir, main) if _owned(git_dir, owner) and _owned(main, owner) and _is_git_dir(main) else ()
        if common is not None:
            return ()
        entries = self._entries(f"{git_dir}/config") or ()  # a submodule
        place = next((value for key, value in reversed(entries) if key == "core.worktree"), None)
        if not place or resolver.real(below(git_dir, place)) != resolver.real(work_tree):
            return ()
        return (git_dir,) if _owned(git_dir, owner) else ()

    def _configuration(self, git_dir: str, work_tree: str, home: str, resolver: Resolver, into: Findings) -> None:
        """Every file git would take configuration from for this work tree, and what it arms."""
        queue = [f"{git_dir}/config", f"{git_dir}/config.worktree"]
        common = read_text(f"{git_dir}/commondir", MAX_LINK)
        if common is not None:
            main = resolver.real(below(git_dir, common.strip()))
            queue.append(f"{main}/config" if main is not None else f"{git_dir}/commondir/config")
        seen: set[str] = set()
        while queue:
            path = queue.pop(0)
            if path in seen:
                continue
            if len(seen) >= MAX_INCLUDES:
                into.notes[f"{UNREADABLE}:{path}"] = None
                break
            seen.add(path)
            if not os.path.lexists(path):
                continue
            entries = self._entries(path)
            if entries is None:
                into.notes[f"{UNREADABLE}:{path}"] = None
                continue
            neutral, armed = disarm(entries)
            into.armed_git.update(dict.fromkeys(neutral))
            for key in armed:
                if key != "core.worktree" or not _leads_home(entries, git_dir, work_tree, resolver):
                    into.notes[f"{ARMED}:{key}"] = None
            for key, value in entries:
                if key == "core.hookspath" and value:
                    hooks = below(work_tree, expand_home(value, home))
                    into.hooks_paths[resolver.real(hooks) or normalize(hooks)] = None
            base = path.rpartition("/")[0]
            queue += [below(base, expand_home(each, home)) for each in included(entries)]

    def _entries(self, path: str) -> tuple[Entry, ...] | None:
        """The entries of a configuration file; none for one that does not exist, None for one that cannot be read."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError):
            return None
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
        with self._lock:
            known = self._files.get(path)
            if known is not None and known[0] == identity:
                self._files.move_to_end(path)
                return known[1]
        text = read_text(path, MAX_CONFIG)
        entries = parse(text) if text is not None else None
        with self._lock:
            self._files[path] = (identity, entries)
            if len(self._files) > MAX_FILES:
                self._files.popitem(last=False)
        return entries


def below(base: str, path: str) -> str:
    """`path` seen from `base`; `..` is left for the resolver, which knows where links lead."""
    return path if path.startswith("/") else f"{base}/{path}"


def read_text(path: str, limit: int) -> str | None:
    """The text of a regular file of at most `limit` bytes, else None. Never blocks on a FIFO or a device."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = b""
        while len(data) <= limit:
            piece = os.read(descriptor, limit + 1 - len(data))
            if not piece:
                return data.decode("utf-8", "surrogateescape")
            data += piece
        return None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _leads_home(entries: tuple[Entry, ...], git_dir: str, work_tree: str, resolver: Resolver) -> bool:
    """Whether every core.worktree names the work tree that it was found in."""
    real = resolver.real(work_tree)
    return all(resolver.real(below(git_dir, value or "")) == real for key, value in entries if key == "core.worktree")


def _owned(path: str, owner: int) -> bool:
    try:
        return os.lstat(path).st_uid == owner
    except OSError:
        return False


def _is_git_dir(path: str) -> bool:
    """Whether git would take it for a git directory, roughly: it has a HEAD, and objects or a commondir."""
    return os.path.lexists(f"{path}/HEAD") and (os.path.lexists(f"{path}/objects") or os.path.lexists(f"{path}/commondir"))
