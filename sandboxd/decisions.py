# SPDX-License-Identifier: GPL-3.0-or-later
"""Where every decision goes once it is made: into the record, and before those who watch."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

from sandboxd.jobs import Job
from sandboxd.judge import Judged
from sandboxd.model import Behavior, Decision, Timing
from sandboxd.record.audit import DecisionRow, Record
from sandboxd.session import SessionState

_BEHIND = 1000  # decisions that wait for one watcher


class Decisions:
    """Belongs to the engine's loop."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._watchers: set[asyncio.Queue[DecisionRow]] = set()

    async def keep_for(self, job: Job, judged: Judged, decision: Decision) -> None:
        """Keep the decision on an execution; one that denies or touches safety is on disk before anything else happens."""
        durable = decision.behavior is not Behavior.ALLOW or touches_safety(decision)
        text, timings = job.request.text, job.stages.timings
        job.decision_id = await self.keep(job.session, job.execution.id, text, judged, decision, timings, durable=durable)
        job.decision = decision

    async def keep(
        self,
        session: SessionState,
        execution_id: str,
        text: str,
        judged: Judged,
        decision: Decision,
        timings: tuple[Timing, ...],
        *,
        durable: bool,
        decision_id: str = "",
    ) -> str:
        """Put a decision into the record and before those who watch; its id. `durable`: return when it is on disk."""
        row = await self._record.record_decision(
            decision_id=decision_id or f"d-{secrets.token_hex(8)}",
            session_id=session.id,
            execution_id=execution_id,
            text=text,
            cwd=judged.analysis.cwd,
            mode=judged.inputs.mode.value,
            decision=decision,
            analysis=judged.analysis,
            durable=durable,
            lazy=not execution_id,
            timings=timings,
            secrets=session.secrets,
        )
        for queue in self._watchers:
            if not queue.full():
                queue.put_nowait(row)
        return row.decision_id

    async def watch(self) -> AsyncIterator[DecisionRow]:
        """Decisions as they are made. A watcher that falls 1,000 behind misses some; the record has them all."""
        queue: asyncio.Queue[DecisionRow] = asyncio.Queue(_BEHIND)
        self._watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)


def touches_safety(decision: Decision) -> bool:
    """Whether it is about what is protected, or was allowed because the mode asks about nothing (step 2a)."""
    return decision.protected or decision.step == "2a"
