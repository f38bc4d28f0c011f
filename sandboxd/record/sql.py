# SPDX-License-Identifier: GPL-3.0-or-later
"""The statements of the record, and the way between rows and values."""

from __future__ import annotations

import json
from typing import Any

from sandboxd.model import Behavior, Decision, EndKind, Enforcement, Result, Timing
from sandboxd.record.codec import dumps, loads
from sandboxd.record.rows import ApprovalRow, DecisionRow, ExecutionRow, SessionRow
from sandboxd.redact import redact

SELECT_SESSION = "SELECT id, parent, workspace, mode, profile, at FROM sessions"
SELECT_DECISION = "SELECT row, id, session, execution, text, cwd, mode, at, document, analysis, timings FROM decisions"
SELECT_EXECUTION = (
    "SELECT e.row, e.id, e.session, e.decision, COALESCE(d.text, ''), COALESCE(d.cwd, ''), e.profile, e.enforcement,"
    " e.started, e.finished, e.end, e.result FROM executions e LEFT JOIN decisions d ON d.id = e.decision"
)
SELECT_APPROVAL = "SELECT row, id, execution, session, verdict, scope, who, rule, reason, latency, at FROM approvals"

INSERT_SESSION = "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?, ?)"
INSERT_DECISION = (
    "INSERT INTO decisions (id, session, execution, text, cwd, mode, at, behavior, step, reason, document, analysis,"
    " timings) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
INSERT_EXECUTION = (
    "INSERT INTO executions (id, session, decision, profile, enforcement, started, owner) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
# id, session or "", decision or "", finished, end, code, result, owner
FINISH_EXECUTION = (
    "INSERT INTO executions (id, session, decision, profile, finished, end, code, result, owner) VALUES (?1,"
    " COALESCE(NULLIF(?2, ''), (SELECT session FROM decisions WHERE execution = ?1 ORDER BY row DESC LIMIT 1), ''),"
    " COALESCE(NULLIF(?3, ''), (SELECT id FROM decisions WHERE execution = ?1 ORDER BY row DESC LIMIT 1), ''),"
    " '', ?4, ?5, ?6, ?7, ?8) ON CONFLICT (id) DO UPDATE SET finished = excluded.finished, end = excluded.end,"
    " code = excluded.code, result = excluded.result"
)
CLOSE_EXECUTIONS = "UPDATE executions SET finished = ?, end = ?, code = ?, result = ? WHERE end IS NULL AND owner = ?"
INSERT_APPROVAL = (
    "INSERT INTO approvals (id, execution, session, verdict, scope, who, rule, reason, latency, at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
INSERT_ASKED = "INSERT OR IGNORE INTO asked VALUES (?, ?, ?, ?, ?)"
OPEN_ASKED = "SELECT DISTINCT owner FROM asked WHERE id NOT IN (SELECT id FROM approvals)"
COUNT_ASKED = "SELECT COUNT(*) FROM asked WHERE owner = ? AND id NOT IN (SELECT id FROM approvals)"
# now, reason, owner
EXPIRE_ASKED = (
    "INSERT OR IGNORE INTO approvals (id, execution, session, verdict, scope, who, rule, reason, latency, at)"
    " SELECT id, execution, session, 'deny', 'once', '', '', ?2, MAX(0, ?1 - at), ?1 FROM asked"
    " WHERE owner = ?3 AND id NOT IN (SELECT id FROM approvals)"
)


def document(value: object, secrets: tuple[str, ...]) -> str:
    """As JSON without secrets. Encoded text is only searched: to blot something out there could break the JSON."""
    text = dumps(value)
    escaped = tuple(json.dumps(secret, ensure_ascii=False)[1:-1] for secret in secrets)
    if redact(text, escaped) == text:
        return text
    return dumps(value, lambda each: redact(each, secrets))


def conditions(
    number: str, session_id: str | None, before: int | None, session: str = "session"
) -> tuple[list[str], list[object]]:
    """Clauses for WHERE and their values; `number` and `session` are column names."""
    where: list[str] = []
    values: list[object] = []
    if session_id is not None:
        where.append(f"{session} = ?")
        values.append(session_id)
    if before is not None:
        where.append(f"{number} < ?")
        values.append(before)
    return where, values


def session_row(values: tuple[Any, ...]) -> SessionRow:
    return SessionRow(*values)


def decision_row(values: tuple[Any, ...]) -> DecisionRow:
    row, decision_id, session_id, execution_id, text, cwd, mode, at, encoded, analysis, timings = values
    decision = loads(Decision, encoded)
    took = loads(tuple[Timing, ...], timings)
    return DecisionRow(decision_id, session_id, execution_id, text, cwd, mode, at, decision, analysis, row, took)


def execution_row(values: tuple[Any, ...]) -> ExecutionRow:
    row, execution_id, session_id, decision_id, text, cwd, profile, enforcement, started, finished, end, result = values
    return ExecutionRow(
        execution_id=execution_id,
        session_id=session_id,
        decision_id=decision_id,
        text=text,
        cwd=cwd,
        profile=profile,
        enforcement=None if enforcement is None else loads(Enforcement, enforcement),
        started=started,
        finished=finished,
        end=None if end is None else EndKind(end),
        result=None if result is None else loads(Result, result),
        row=row,
    )


def approval_row(values: tuple[Any, ...]) -> ApprovalRow:
    row, approval_id, execution_id, session_id, verdict, scope, who, rule, reason, latency, at = values
    return ApprovalRow(approval_id, execution_id, session_id, Behavior(verdict), scope, who, rule, reason, latency, at, row)


def line(kind: str, row: object) -> str:
    return f'{{"kind":"{kind}",{dumps(row)[1:]}'
