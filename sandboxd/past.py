# SPDX-License-Identifier: GPL-3.0-or-later
"""Executions of a daemon that is gone: what they printed is in the spool, how they were judged and ended in the record.

A session does not outlive its daemon, but whoever holds its secret may still fetch what it ran: a digest of the secret is
kept beside the spool. All methods block.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import time

from sandboxd.errors import NotFound
from sandboxd.record.audit import ExecutionRow, Record
from sandboxd.run.execution import Execution
from sandboxd.run.spool import SUFFIX, remove

_PROOF = ".secret"


class Past:
    """`directory` is the spool's."""

    def __init__(self, record: Record, directory: str) -> None:
        self._record = record
        self._directory = directory
        self._rows: dict[str, ExecutionRow] = {}
        self._revived: dict[str, Execution] = {}

    def load(self, *, keep: int, max_age: float) -> None:
        """Find what an earlier daemon left, at most `keep` of it and nothing older than `max_age` seconds; remove the
        rest. What a sandboxd that is alive writes is left alone."""
        oldest = time.time() - max_age
        rows: list[ExecutionRow] = []
        for name in os.listdir(self._directory):
            if not name.endswith(SUFFIX):
                continue
            try:
                row = self._record.execution(name.removesuffix(SUFFIX))
            except NotFound:
                if _modified(f"{self._directory}/{name}") < oldest:
                    remove(f"{self._directory}/{name}")  # no row is written for what has just begun
                continue
            if row.end is None:
                continue
            if (row.finished or 0.0) < oldest:
                remove(f"{self._directory}/{name}")
            else:
                rows.append(row)
        rows.sort(key=lambda row: row.row, reverse=True)
        for row in rows[keep:]:
            remove(f"{self._directory}/{row.execution_id}{SUFFIX}")
        self._rows = {row.execution_id: row for row in reversed(rows[:keep])}
        sessions = {row.session_id for row in self._rows.values()}
        for name in os.listdir(self._directory):
            path = f"{self._directory}/{name}"
            if name.endswith(_PROOF) and name.removesuffix(_PROOF) not in sessions and _modified(path) < oldest:
                self._remove(name)

    def remember(self, session_id: str, secret: str) -> None:
        """Keep what proves, after a crash, whose session it was."""
        path = f"{self._directory}/{session_id}{_PROOF}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _digest(secret).encode())
        finally:
            os.close(fd)

    def forget(self, session_id: str) -> None:
        """The session has ended, and with it what it ran; idempotent."""
        self._remove(session_id + _PROOF)

    def admits(self, session_id: str, secret: str) -> bool:
        """Whether that is the secret of a session of an earlier daemon."""
        if "/" in session_id or not any(row.session_id == session_id for row in self._rows.values()):
            return False
        try:
            with open(f"{self._directory}/{session_id}{_PROOF}", encoding="ascii") as file:
                return hmac.compare_digest(file.read(), _digest(secret))
        except (OSError, UnicodeDecodeError):
            return False

    def get(self, execution_id: str, session_id: str | None = None) -> Execution | None:
        """That execution, of that session (of any, for None), or None."""
        row = self._rows.get(execution_id)
        if row is None or (session_id is not None and row.session_id != session_id):
            return None
        found = self._revived.get(execution_id)
        if found is None:
            decision = self._record.decision(row.decision_id).decision if row.decision_id else None
            assert row.result is not None
            found = Execution.past(execution_id, row.session_id, row.text, self._directory, decision, row.result)
            self._revived[execution_id] = found
        return found

    def list(self, session_id: str | None = None) -> tuple[Execution, ...]:
        """Oldest first."""
        ids = [each.execution_id for each in self._rows.values() if session_id is None or each.session_id == session_id]
        return tuple(found for each in ids if (found := self.get(each)) is not None)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._directory}/{name}")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _modified(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0
