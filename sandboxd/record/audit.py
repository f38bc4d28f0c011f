# SPDX-License-Identifier: GPL-3.0-or-later
"""The record: what was decided and done, and why. SQLite in WAL mode, one writing thread, redacted texts.

Writes return at once; a durable one is awaited until it is on disk. Reads see every write made before them, which can
mean waiting for one commit: milliseconds. All methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from sandboxd.errors import NotFound, RequestError
from sandboxd.model import Analysis, Behavior, Decision, EndKind, Enforcement, Opinion, Result, Timing
from sandboxd.record.blotted import Blotted
from sandboxd.record.codec import dumps
from sandboxd.record.rows import ApprovalRow, DecisionRow, ExecutionRow, SessionRow
from sandboxd.record.schema import connect, prepare
from sandboxd.record.sql import (
    CLOSE_EXECUTIONS,
    COUNT_ASKED,
    EXPIRE_ASKED,
    FINISH_EXECUTION,
    INSERT_APPROVAL,
    INSERT_ASKED,
    INSERT_DECISION,
    INSERT_EXECUTION,
    INSERT_SESSION,
    OPEN_ASKED,
    SELECT_APPROVAL,
    SELECT_DECISION,
    SELECT_EXECUTION,
    SELECT_SESSION,
    approval_row,
    conditions,
    decision_row,
    document,
    execution_row,
    line,
    session_row,
)
from sandboxd.record.understood import moved, summary
from sandboxd.record.writer import Statement, Writer
from sandboxd.redact import redact

__all__ = ["ApprovalRow", "DecisionRow", "ExecutionRow", "Record", "SessionRow"]

MAX_LIMIT = 1000  # rows a read
DEFAULT_LIMIT = 100


class Record:
    """Opens (and makes, or migrates) the file at `path`; its directory must exist.

    Raises ConfigError when the file is no record or belongs to a newer sandboxd.
    """

    def __init__(self, path: str) -> None:
        prepare(path)
        self._owner = _process_name(os.getpid())
        self._reader = connect(path)
        self._lock = threading.Lock()
        self._writer = Writer(path)

    @property
    def error(self) -> str:
        """Why the last write failed; "" when all is well."""
        return self._writer.error

    def close(self) -> None:
        """Write what is queued and close; idempotent."""
        self._writer.close()
        with self._lock:
            self._reader.close()

    def flush(self) -> None:
        """Wait until all that was handed in is committed, or failed."""
        self._writer.flush()

    # Writing

    def record_session(
        self, session_id: str, workspace: str, mode: str, *, profile: str = "", parent_id: str = "", at: float | None = None
    ) -> None:
        """A session was made, or its mode or profile changed."""
        values = (session_id, parent_id, workspace, mode, profile, time.time() if at is None else at)
        self._writer.put(lambda: (INSERT_SESSION, values))

    async def record_decision(
        self,
        *,
        decision_id: str,
        session_id: str,
        execution_id: str,
        text: str,
        cwd: str,
        mode: str,
        decision: Decision,
        analysis: Analysis | None = None,
        at: float | None = None,
        durable: bool = False,
        lazy: bool = False,
        secrets: tuple[str, ...] = (),
        timings: tuple[Timing, ...] = (),
    ) -> DecisionRow:
        """Keep a decision; with `durable` return only when it is on disk; `lazy`: nothing follows it, so that it may be
        written a moment later. The row comes back as it will be read.

        `secrets` are known values (of the environment, say) to blot out. Raises Exhausted when the disk does not keep up,
        Unavailable when a durable decision cannot be written.
        """
        self._writer.check()
        durable = durable or bool(self.error)  # while the disk fails, nothing passes that is not known to be written
        blotted = Blotted(text, secrets)
        decision = moved(decision, blotted)
        row = DecisionRow(
            decision_id=decision_id,
            session_id=session_id,
            execution_id=execution_id,
            text=blotted.text,
            cwd=cwd,
            mode=mode,
            at=time.time() if at is None else at,
            decision=decision,
            analysis="",
            timings=timings,
        )

        def statement() -> Statement:
            return (
                INSERT_DECISION,
                (
                    row.decision_id,
                    row.session_id,
                    row.execution_id,
                    row.text,
                    row.cwd,
                    row.mode,
                    row.at,
                    decision.behavior.value,
                    decision.step,
                    decision.reason,
                    document(decision, secrets),
                    "" if analysis is None else document(summary(analysis, blotted), secrets),
                    dumps(timings),
                ),
            )

        written = self._writer.put(statement, durable=durable, lazy=lazy)
        if durable:
            await asyncio.wrap_future(written)
        return row

    def record_execution_started(
        self,
        execution_id: str,
        session_id: str,
        decision_id: str,
        profile: str,
        enforcement: Enforcement | None,
        *,
        at: float | None = None,
    ) -> None:
        """A command is about to start. An execution open in the record is one that runs, or ran when the daemon died."""
        started = time.time() if at is None else at

        def statement() -> Statement:
            return (
                INSERT_EXECUTION,
                (
                    execution_id,
                    session_id,
                    decision_id,
                    profile,
                    None if enforcement is None else dumps(enforcement),
                    started,
                    self._owner,
                ),
            )

        self._writer.put(statement)

    def record_execution_finished(
        self,
        execution_id: str,
        result: Result,
        *,
        session_id: str = "",
        decision_id: str = "",
        at: float | None = None,
        secrets: tuple[str, ...] = (),
    ) -> None:
        """The end of an execution; one that never started (denied, failed, cancelled while it waited) gets its row here.

        Session and decision, when not given, come from the execution's last decision.
        """
        finished = time.time() if at is None else at

        def statement() -> Statement:
            return (
                FINISH_EXECUTION,
                (
                    execution_id,
                    session_id,
                    decision_id,
                    finished,
                    result.end.value,
                    result.code,
                    document(result, secrets),
                    self._owner,
                ),
            )

        self._writer.put(statement)

    def record_approval_asked(self, approval_id: str, execution_id: str, session_id: str, *, at: float | None = None) -> None:
        """A question was put to a human. One that has no answer in the record is open, or was when the daemon died."""
        values = (approval_id, execution_id, session_id, time.time() if at is None else at, self._owner)
        self._writer.put(lambda: (INSERT_ASKED, values))

    def record_approval(
        self,
        approval_id: str,
        execution_id: str,
        session_id: str,
        opinion: Opinion,
        *,
        scope: str = "once",
        rule: str = "",
        at: float | None = None,
    ) -> None:
        """A human's answer, or its absence (an opinion without a name)."""
        when = time.time() if at is None else at
        values = (
            approval_id,
            execution_id,
            session_id,
            opinion.verdict.value,
            scope,
            opinion.name,
            redact(rule),
            redact(opinion.reason),
            opinion.latency,
            when,
        )
        self._writer.put(lambda: (INSERT_APPROVAL, values))

    def close_open_executions(self, cause: str, *, at: float | None = None) -> int:
        """Close what a process that is gone left open, as DAEMON_RESTART. Returns how many.

        Executions of a sandboxd that is still alive (another user session's, an embedded one) are left alone.
        """
        gone = self._gone("SELECT DISTINCT owner FROM executions WHERE end IS NULL")
        finished = time.time() if at is None else at
        result = dumps(Result(end=EndKind.DAEMON_RESTART, code=125, cause=cause))
        count = 0
        for owner in gone:
            count += self._read("SELECT COUNT(*) FROM executions WHERE end IS NULL AND owner = ?", (owner,))[0][0]
            values = (finished, EndKind.DAEMON_RESTART.value, 125, result, owner)
            self._writer.put(
                lambda values=values: (  # type: ignore[misc]  # a default that binds the loop's value
                    CLOSE_EXECUTIONS,
                    values,
                )
            )
        return count

    def close_open_approvals(self, reason: str, *, at: float | None = None) -> int:
        """Give every question that a process which is gone left open its answer: expired, a DENY by nobody. Returns how many."""
        when = time.time() if at is None else at
        count = 0
        for owner in self._gone(OPEN_ASKED):
            values = (when, reason, owner)
            count += self._read(COUNT_ASKED, (owner,))[0][0]
            self._writer.put(lambda values=values: (EXPIRE_ASKED, values))  # type: ignore[misc]  # binds the loop's value
        return count

    def _gone(self, select: str) -> list[str]:
        """The owners of open rows that are no longer there; ourselves among them, who have just begun."""
        return [owner for (owner,) in self._read(select, ()) if owner == self._owner or not _is_alive(owner)]

    # Reading

    def decision(self, decision_id: str) -> DecisionRow:
        """Raises NotFound."""
        rows = self._read(f"{SELECT_DECISION} WHERE id = ?", (decision_id,))
        if not rows:
            raise NotFound(f"no decision `{decision_id}`", field="decision_id")
        return decision_row(rows[0])

    def decisions(
        self,
        session_id: str | None = None,
        behavior: Behavior | tuple[Behavior, ...] | None = None,
        limit: int = DEFAULT_LIMIT,
        before: int | None = None,
    ) -> tuple[DecisionRow, ...]:
        """Newest first. `before`: only rows older than that `row` number, for paging."""
        wanted = () if behavior is None else (behavior,) if isinstance(behavior, Behavior) else behavior
        where, values = conditions("row", session_id, before)
        if wanted:
            where.append(f"behavior IN ({', '.join('?' * len(wanted))})")
            values += [each.value for each in wanted]
        return tuple(map(decision_row, self._page(SELECT_DECISION, "row", where, values, limit)))

    def execution(self, execution_id: str) -> ExecutionRow:
        """Raises NotFound."""
        rows = self._read(f"{SELECT_EXECUTION} WHERE e.id = ?", (execution_id,))
        if not rows:
            raise NotFound(f"no execution `{execution_id}`", field="execution_id")
        return execution_row(rows[0])

    def executions(
        self, session_id: str | None = None, limit: int = DEFAULT_LIMIT, before: int | None = None
    ) -> tuple[ExecutionRow, ...]:
        """Newest first."""
        where, values = conditions("e.row", session_id, before, "e.session")
        return tuple(map(execution_row, self._page(SELECT_EXECUTION, "e.row", where, values, limit)))

    def approvals(
        self, session_id: str | None = None, limit: int = DEFAULT_LIMIT, before: int | None = None
    ) -> tuple[ApprovalRow, ...]:
        """Newest first."""
        where, values = conditions("row", session_id, before)
        return tuple(map(approval_row, self._page(SELECT_APPROVAL, "row", where, values, limit)))

    def sessions(self, limit: int = DEFAULT_LIMIT) -> tuple[SessionRow, ...]:
        """Newest first."""
        return tuple(map(session_row, self._page(SELECT_SESSION, "at", [], [], limit)))

    def export(self) -> Iterator[str]:
        """Everything as JSON lines, oldest first; each has a `kind`: session, decision, execution or approval."""
        for row in self._read(f"{SELECT_SESSION} ORDER BY at", ()):
            yield line("session", session_row(row))
        for kind, select, number, make in (
            ("decision", SELECT_DECISION, "row", decision_row),
            ("execution", SELECT_EXECUTION, "e.row", execution_row),
            ("approval", SELECT_APPROVAL, "row", approval_row),
        ):
            last = 0
            while rows := self._read(f"{select} WHERE {number} > ? ORDER BY {number} LIMIT {MAX_LIMIT}", (last,)):
                for row in rows:
                    yield line(kind, make(row))
                last = rows[-1][0]

    def _page(self, select: str, number: str, where: list[str], values: list[object], limit: int) -> list[tuple[Any, ...]]:
        if not 1 <= limit <= MAX_LIMIT:
            raise RequestError(f"`{limit}` rows cannot be read at once", field="page_size", fix=f"1 to {MAX_LIMIT}")
        condition = f" WHERE {' AND '.join(where)}" if where else ""
        return self._read(f"{select}{condition} ORDER BY {number} DESC LIMIT ?", (*values, limit))

    def _read(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        self._writer.flush()
        with self._lock:
            return self._reader.execute(statement, values).fetchall()


def _process_name(pid: int) -> str:
    """A process as `pid:start`; the start in clock ticks since boot (proc(5), stat field 22) tells a reused pid apart."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return f"{pid}:{stat.read().rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        return f"{pid}:"


def _is_alive(owner: str) -> bool:
    pid = owner.partition(":")[0]
    return pid.isdecimal() and not owner.endswith(":") and _process_name(int(pid)) == owner
