# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files of a workspace a human has said to trust: by path and SHA-256, so that any change takes the trust away.

Until then what such a file allows is inert (allow rules, hooks); what it denies or asks counts at once. The list is
`trust.json` in the user's configuration directory, which no box can see or write.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass

from sandboxd.config import Directories, RuleText
from sandboxd.errors import ConfigError
from sandboxd.paths import is_within


@dataclass(frozen=True, slots=True)
class Trust:
    """The trusted (path, digest) pairs at one time."""

    pairs: frozenset[tuple[str, str]] = frozenset()

    def covers(self, text: RuleText) -> bool:
        """Whether a rule file counts in full: it is not the workspace's, or a human has seen exactly these bytes."""
        return not text.place.workspace or (text.place.path, digest(text.text)) in self.pairs


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def signature(dirs: Directories) -> tuple[int, int, int] | None:
    """Changes when the list does."""
    try:
        info = os.stat(_path(dirs))
    except OSError:
        return None
    return (info.st_ino, info.st_size, info.st_mtime_ns)


def load(dirs: Directories) -> Trust:
    """The list as it stands. Raises ConfigError when it is there and cannot be read: nothing is trusted by mistake."""
    path = _path(dirs)
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        pairs = frozenset((str(name), str(data["files"][name])) for name in data["files"])
    except FileNotFoundError:
        return Trust()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"cannot be read: {error}", origin=path, fix="remove it and trust again") from None
    return Trust(pairs)


def listed(dirs: Directories, root: str | None = None) -> tuple[tuple[str, str], ...]:
    """Each file on the list (below `root`, when given) with its state: trusted, changed (and so not), or missing."""
    out = []
    for path, known in sorted(load(dirs).pairs):
        if root is not None and not is_within(path, root):
            continue
        try:
            with open(path, encoding="utf-8") as file:
                state = "trusted" if digest(file.read()) == known else "changed"
        except (OSError, UnicodeDecodeError):
            state = "missing"
        out.append((path, state))
    return tuple(out)


def revoke(dirs: Directories, workspace: str) -> tuple[str, ...]:
    """Trust no file of a workspace any longer, whether it still exists or not; returns those that were on the list."""
    gone = tuple(path for path, _ in sorted(load(dirs).pairs) if is_within(path, workspace))
    if gone:
        _write(dirs, gone, ())
    return gone


def change(dirs: Directories, texts: tuple[RuleText, ...], *, trusted: bool) -> None:
    """Trust exactly these files as they are, or no longer trust them. Atomic, under a lock."""
    paths = tuple(text.place.path for text in texts)
    _write(dirs, paths, tuple((text.place.path, digest(text.text)) for text in texts if trusted))


def _write(dirs: Directories, without: tuple[str, ...], more: tuple[tuple[str, str], ...]) -> None:
    os.makedirs(dirs.config, mode=0o700, exist_ok=True)
    with open(f"{dirs.config}/.trust.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = {path: seen for path, seen in load(dirs).pairs if path not in without} | dict(more)
        handle, temporary = tempfile.mkstemp(dir=dirs.config, prefix=".trust-")
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump({"version": 1, "files": dict(sorted(known.items()))}, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, _path(dirs))


def _path(dirs: Directories) -> str:
    return f"{dirs.config}/trust.json"
