# SPDX-License-Identifier: GPL-3.0-or-later
"""What a client can see and do of the daemon as a whole; most of it is for the admin socket alone."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Sequence

from sandboxd.client import decode, values
from sandboxd.client.asking import Answer, Ask, OnAsk
from sandboxd.client.connection import Connection
from sandboxd.model import ApprovalNeeded, Behavior, Profile
from sandboxd.v1 import admin_pb2, approval_pb2, decision_pb2, execution_pb2, profile_pb2, session_pb2

_SCOPES = {
    "once": approval_pb2.APPROVAL_SCOPE_ONCE,
    "session": approval_pb2.APPROVAL_SCOPE_SESSION,
    "always": approval_pb2.APPROVAL_SCOPE_ALWAYS,
}


class Administration(Connection):
    """Sessions, executions, approvals, decisions and profiles of the daemon."""

    _on_ask: OnAsk | None = None

    async def sessions(self) -> tuple[values.SessionInfo, ...]:
        answer = await self._call(self._sessions.List, session_pb2.SessionServiceListRequest())
        return tuple(values.session_info(item) for item in answer.sessions)

    async def executions(self) -> tuple[values.ExecutionInfo, ...]:
        answer = await self._call(self._executions.List, execution_pb2.ExecutionServiceListRequest())
        return tuple(values.execution_info(item) for item in answer.executions)

    async def approvals(self) -> tuple[values.Approval, ...]:
        """The questions that wait for a human, the riskiest first and of equal ones the oldest."""
        answer = await self._call(self._approvals.List, approval_pb2.ApprovalServiceListRequest())
        return tuple(values.approval(item) for item in answer.approvals)

    async def watch_approvals(self) -> AsyncIterator[values.Approval | values.Settled]:
        """All questions that wait, then each as it is raised and as it is settled."""
        async for message in self._stream(self._approvals.Watch, approval_pb2.ApprovalServiceWatchRequest()):
            if message.HasField("raised"):
                yield values.approval(message.raised)
            else:
                yield values.settled(message.settled)

    async def resolve(self, approval_id: str, answer: Answer, *, who: str = "") -> None:
        """Answer a question; the first answer counts."""
        await self._call(
            self._approvals.Resolve,
            approval_pb2.ApprovalServiceResolveRequest(
                approval_id=approval_id,
                verdict=decode.BEHAVIOR_NUMBER[Behavior.ALLOW if answer.allow else Behavior.DENY],
                scope=_SCOPES[answer.scope],
                rule=answer.rule,
                reason=answer.reason,
                who=who,
            ),
        )

    async def decisions(
        self, *, session_id: str = "", behaviors: Sequence[Behavior] = (), limit: int = 100
    ) -> tuple[values.DecisionRecord, ...]:
        """The newest decisions, newest first."""
        found: list[values.DecisionRecord] = []
        token = ""
        while len(found) < limit:
            answer = await self._call(
                self._decisions.List,
                decision_pb2.DecisionServiceListRequest(
                    session_id=session_id,
                    behaviors=[decode.BEHAVIOR_NUMBER[item] for item in behaviors],
                    page_size=min(limit - len(found), 100),
                    page_token=token,
                ),
            )
            found.extend(values.decision_record(item) for item in answer.decisions)
            token = answer.next_page_token
            if not token:
                break
        return tuple(found)

    async def decision(self, decision_id: str) -> values.DecisionRecord:
        request = decision_pb2.DecisionServiceGetRequest(decision_id=decision_id)
        return values.decision_record((await self._call(self._decisions.Get, request)).decision)

    async def watch_decisions(self) -> AsyncIterator[values.DecisionRecord]:
        """Decisions as they are made, from now on."""
        async for message in self._stream(self._decisions.Watch, decision_pb2.DecisionServiceWatchRequest()):
            yield values.decision_record(message.decision)

    async def profiles(self) -> tuple[Profile, ...]:
        answer = await self._call(self._profiles.List, profile_pb2.ProfileServiceListRequest())
        return tuple(decode.profile(item) for item in answer.profiles)

    async def profile(self, name: str) -> Profile:
        return decode.profile((await self._call(self._profiles.Get, profile_pb2.ProfileServiceGetRequest(name=name))).profile)

    async def validate_profile(self, text: str) -> tuple[values.Problem, ...]:
        """What is wrong in the text of a profile; empty when nothing is."""
        answer = await self._call(self._profiles.Validate, profile_pb2.ProfileServiceValidateRequest(text=text))
        return tuple(values.Problem(item.origin, item.message, item.fix) for item in answer.problems)

    async def status(self) -> values.DaemonStatus:
        return values.daemon_status(await self._call(self._administration.GetStatus, admin_pb2.AdminServiceGetStatusRequest()))

    async def reload(self) -> None:
        """Make the daemon read its configuration again. Raises ConfigError with file:line."""
        await self._call(self._administration.Reload, admin_pb2.AdminServiceReloadRequest())

    async def _answer(self, event: ApprovalNeeded, text: str) -> None:
        """Put a question to the callback and send what it says."""
        assert self._on_ask is not None
        ask = Ask(event.approval_id, text, event.decision)
        if inspect.iscoroutinefunction(self._on_ask):
            said = await self._on_ask(ask)
        else:
            said = await asyncio.to_thread(self._on_ask, ask)
            if inspect.isawaitable(said):
                said = await said
        await self.resolve(event.approval_id, said if isinstance(said, Answer) else Answer(bool(said)))
