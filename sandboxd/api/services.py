# SPDX-License-Identifier: GPL-3.0-or-later
"""Sessions, approvals, profiles, decisions and administration. Every method is a few lines: read, ask the engine, answer."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandboxd import toolbox
from sandboxd.api import convert, figures, requests, transcripts
from sandboxd.api.access import Access, followed, secret
from sandboxd.config import load
from sandboxd.consult.approvals import ApprovalChange, Pending
from sandboxd.engine import Engine, State
from sandboxd.errors import ConfigError, NotFound, ProfileError
from sandboxd.isolation import profiles
from sandboxd.model import Mode
from sandboxd.record.audit import DecisionRow
from sandboxd.record.understood import understood
from sandboxd.sessions import SessionState
from sandboxd.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    approval_pb2,
    approval_pb2_grpc,
    decision_pb2,
    decision_pb2_grpc,
    profile_pb2,
    profile_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    tool_pb2,
    tool_pb2_grpc,
)


class Sessions(session_pb2_grpc.SessionServiceServicer):
    def __init__(self, access: Access) -> None:
        self._access = access
        self._engine = access.engine

    async def Create(
        self, request: session_pb2.SessionServiceCreateRequest, context: Any
    ) -> session_pb2.SessionServiceCreateResponse:
        spec = requests.session_spec(request)
        if spec.profile:
            self._engine.catalog.profile(spec.profile)
        state = await self._engine.create_session(spec, self._access.role, secret(context))
        prompts = self._engine.config.approvals.front_end
        return session_pb2.SessionServiceCreateResponse(
            session=_session(state, self._engine),
            session_secret=state.secret,
            approval_secret=state.approval_secret if prompts else "",
        )

    async def Get(self, request: session_pb2.SessionServiceGetRequest, context: Any) -> session_pb2.SessionServiceGetResponse:
        state = self._access.session(request.session_id, context)
        return session_pb2.SessionServiceGetResponse(session=_session(state, self._engine))

    async def List(self, request: session_pb2.SessionServiceListRequest, context: Any) -> session_pb2.SessionServiceListResponse:
        session = self._access.scope(request.session_id, context)
        sessions = self._engine.sessions
        states = sessions.list() if session is None else sessions.family(session)
        return session_pb2.SessionServiceListResponse(sessions=[_session(state, self._engine) for state in states])

    async def Update(
        self, request: session_pb2.SessionServiceUpdateRequest, context: Any
    ) -> session_pb2.SessionServiceUpdateResponse:
        state = self._access.session(request.session_id, context)
        self._engine.sessions.update(
            state,
            self._access.role,
            mode=requests.mode(request.mode),
            cwd=request.cwd if request.HasField("cwd") else None,
            headless=request.headless if request.HasField("headless") else None,
        )
        return session_pb2.SessionServiceUpdateResponse(session=_session(state, self._engine))

    async def Delete(
        self, request: session_pb2.SessionServiceDeleteRequest, context: Any
    ) -> session_pb2.SessionServiceDeleteResponse:
        await self._engine.end_session(self._access.session(request.session_id, context))
        return session_pb2.SessionServiceDeleteResponse()

    async def AddTranscript(
        self, request: session_pb2.SessionServiceAddTranscriptRequest, context: Any
    ) -> session_pb2.SessionServiceAddTranscriptResponse:
        state = self._access.session(request.session_id, context)
        added = transcripts.entries(request, state, self._access.role)
        before = state.transcript.messages
        state.transcript = state.transcript.add(*added)
        ids = [f"u{number}" for number in range(before + 1, state.transcript.messages + 1)]
        return session_pb2.SessionServiceAddTranscriptResponse(user_message_ids=ids)


class Approvals(approval_pb2_grpc.ApprovalServiceServicer):
    """Open on the admin socket, and to front-ends that the configuration lets prompt (Access.approver)."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._engine = access.engine

    async def List(
        self, request: approval_pb2.ApprovalServiceListRequest, context: Any
    ) -> approval_pb2.ApprovalServiceListResponse:
        found = self._engine.approvals.list(self._access.approver(request.session_id, context))
        return approval_pb2.ApprovalServiceListResponse(approvals=[_approval(item) for item in found])

    async def Watch(
        self, request: approval_pb2.ApprovalServiceWatchRequest, context: Any
    ) -> AsyncIterator[approval_pb2.ApprovalServiceWatchResponse]:
        session_id = self._access.approver(request.session_id, context)
        async with followed(self._engine.approvals.watch(session_id)) as changes:
            async for change in changes:
                yield _change(change)

    async def Resolve(
        self, request: approval_pb2.ApprovalServiceResolveRequest, context: Any
    ) -> approval_pb2.ApprovalServiceResolveResponse:
        approval_id = requests.required(request.approval_id, "approval_id")
        resolution = self._engine.consulting.resolve(
            approval_id,
            requests.behavior(request.verdict, "verdict"),
            requests.approval_scope(request.scope),
            self._access.approves_as(approval_id, request.who, context),
            request.rule,
            request.reason,
        )
        return approval_pb2.ApprovalServiceResolveResponse(rule=resolution.rule)


class Profiles(profile_pb2_grpc.ProfileServiceServicer):
    def __init__(self, access: Access) -> None:
        self._engine = access.engine

    async def List(self, request: profile_pb2.ProfileServiceListRequest, context: Any) -> profile_pb2.ProfileServiceListResponse:
        return profile_pb2.ProfileServiceListResponse(
            profiles=[convert.profile(item) for item in self._engine.catalog.profiles()]
        )

    async def Get(self, request: profile_pb2.ProfileServiceGetRequest, context: Any) -> profile_pb2.ProfileServiceGetResponse:
        name = requests.required(request.name, "name")
        return profile_pb2.ProfileServiceGetResponse(profile=convert.profile(self._engine.catalog.profile(name)))

    async def Validate(
        self, request: profile_pb2.ProfileServiceValidateRequest, context: Any
    ) -> profile_pb2.ProfileServiceValidateResponse:
        text = requests.profile_text(request)
        return await asyncio.to_thread(_validated, text, self._engine.catalog.profile_dirs)


class Decisions(decision_pb2_grpc.DecisionServiceServicer):
    def __init__(self, access: Access) -> None:
        self._access = access
        self._engine = access.engine

    async def Get(self, request: decision_pb2.DecisionServiceGetRequest, context: Any) -> decision_pb2.DecisionServiceGetResponse:
        session = self._access.scope(request.session_id, context)
        decision_id = requests.required(request.decision_id, "decision_id")
        row = await asyncio.to_thread(self._engine.record.decision, decision_id)
        if session is not None and row.session_id != session.id:
            raise NotFound(f"no decision `{decision_id}`", field="decision_id", fix="list the decisions of your session")
        answer = decision_pb2.DecisionServiceGetResponse(decision=_decision(row))
        found = understood(row.text, row.cwd, row.analysis)
        if found is not None:
            answer.decision.analysis.CopyFrom(convert.analysis(found))
        return answer

    async def List(
        self, request: decision_pb2.DecisionServiceListRequest, context: Any
    ) -> decision_pb2.DecisionServiceListResponse:
        session = self._access.scope(request.session_id, context)
        size, before = requests.page(request.page_size, request.page_token)
        behaviors = tuple(requests.behavior(number, "behaviors") for number in request.behaviors)
        rows = await asyncio.to_thread(
            self._engine.record.decisions, None if session is None else session.id, behaviors or None, size, before
        )
        return decision_pb2.DecisionServiceListResponse(
            decisions=[_decision(row) for row in rows],
            next_page_token=str(rows[-1].row) if len(rows) == size else "",
        )

    async def Watch(
        self, request: decision_pb2.DecisionServiceWatchRequest, context: Any
    ) -> AsyncIterator[decision_pb2.DecisionServiceWatchResponse]:
        session = self._access.scope(request.session_id, context)
        async with followed(self._engine.decisions.watch()) as rows:
            async for row in rows:
                if session is None or row.session_id == session.id:
                    yield decision_pb2.DecisionServiceWatchResponse(decision=_decision(row))


class Tools(tool_pb2_grpc.ToolServiceServicer):
    def __init__(self, access: Access) -> None:
        self._access = access
        self._engine = access.engine

    async def Register(self, request: tool_pb2.ToolServiceRegisterRequest, context: Any) -> tool_pb2.ToolServiceRegisterResponse:
        session = self._access.session(request.session_id, context)
        session.declare(tuple(map(requests.tool, request.tools)), tuple(request.remove))
        return tool_pb2.ToolServiceRegisterResponse(names=[tool.name for tool in session.tools])

    async def Search(self, request: tool_pb2.ToolServiceSearchRequest, context: Any) -> tool_pb2.ToolServiceSearchResponse:
        session = self._access.session(request.session_id, context)
        query, most = requests.required(request.query, "query"), requests.most(request.max_results, 5, toolbox.MAX_FOUND)
        style = requests.tool_format(request.format)
        tools = toolbox.search(query, (tool for tool in self._engine.tools(session) if tool.deferred), most)
        return tool_pb2.ToolServiceSearchResponse(tools=map(convert.tool, tools), json=toolbox.as_json(tools, style))

    async def Report(self, request: tool_pb2.ToolServiceReportRequest, context: Any) -> tool_pb2.ToolServiceReportResponse:
        session = self._access.session(request.session_id, context)
        decision_id, answer = requests.required(request.decision_id, "decision_id"), requests.plain(request.response)
        notes = await self._engine.tool_uses.report(session, decision_id, answer, failed=request.failed)
        return tool_pb2.ToolServiceReportResponse(notes=notes)


class Admin(admin_pb2_grpc.AdminServiceServicer):
    def __init__(self, access: Access) -> None:
        self._access = access
        self._engine = access.engine

    async def GetStatus(
        self, request: admin_pb2.AdminServiceGetStatusRequest, context: Any
    ) -> admin_pb2.AdminServiceGetStatusResponse:
        status = self._engine.status()
        return admin_pb2.AdminServiceGetStatusResponse(
            version=status.version,
            state=_STATE[status.state],
            uptime=convert.duration(status.uptime),
            backends=[convert.probe(item) for item in status.probes],
            enforcement=convert.enforcement(status.enforcement),
            sessions=status.sessions,
            running=status.running,
            waiting=status.waiting,
            pending_approvals=status.approvals,
            config_errors=status.errors,
            runtime_directory=status.runtime_dir,
            state_directory=status.state_dir,
            classifier=figures.classifier(status.classifier, status.breakers_open),
            pool=figures.pool(status.pool),
        )

    async def Reload(self, request: admin_pb2.AdminServiceReloadRequest, context: Any) -> admin_pb2.AdminServiceReloadResponse:
        try:
            config = load(self._engine.dirs, self._engine.config_path)
        except ConfigError as error:
            self._engine.report_error(str(error))
            raise
        self._engine.reload(config)
        return admin_pb2.AdminServiceReloadResponse()

    async def DescribeTools(
        self, request: admin_pb2.AdminServiceDescribeToolsRequest, context: Any
    ) -> admin_pb2.AdminServiceDescribeToolsResponse:
        session = self._access.session(request.session_id, context)
        style = requests.tool_format(request.format)
        tools = [tool for tool in self._engine.tools(session) if request.include_deferred or not tool.deferred]
        return admin_pb2.AdminServiceDescribeToolsResponse(tools=map(convert.tool, tools), json=toolbox.as_json(tools, style))


_STATE = {state: admin_pb2.DaemonState.Value(f"DAEMON_STATE_{state.name}") for state in State}


def _session(state: SessionState, engine: Engine) -> session_pb2.Session:
    return session_pb2.Session(
        session_id=state.id,
        workspace=state.workspace,
        cwd=state.cwd,
        mode=convert.MODE[state.mode],
        profile=state.profile,
        headless=state.headless,
        additional_directories=state.additional,
        allow=state.spec.allow,
        ask=state.spec.ask,
        deny=state.spec.deny,
        create_time=convert.timestamp(state.created_at),
        policy_revision=state.revision,
        rule_errors=state.rule_errors,
        parent_session_id="" if state.parent is None else state.parent.id,
        mode_in_force=convert.MODE[state.mode_in_force],
        denials=session_pb2.DenialCounters(
            consecutive=state.denials.consecutive, total=state.denials.total, open=state.denials.open
        ),
        rule_notes=state.rule_notes,
        context=state.context,
        classifier_usage=figures.usage(engine.consulting.classifying.classifier.spent(state.id)),
    )


def _approval(pending: Pending) -> approval_pb2.Approval:
    return approval_pb2.Approval(
        approval_id=pending.id,
        session_id=pending.session_id,
        execution_id=pending.execution_id,
        text=pending.text,
        cwd=pending.cwd,
        decision=convert.decision(pending.decision, pending.text),
        create_time=convert.timestamp(pending.created),
        expire_time=convert.timestamp(pending.expires),
        risk=pending.risk,
        risk_reasons=pending.risk_reasons,
    )


def _change(change: ApprovalChange) -> approval_pb2.ApprovalServiceWatchResponse:
    resolution = change.resolution
    if resolution is None:
        return approval_pb2.ApprovalServiceWatchResponse(raised=_approval(change.pending))
    return approval_pb2.ApprovalServiceWatchResponse(
        settled=approval_pb2.ApprovalSettled(
            approval_id=resolution.approval_id,
            verdict=convert.BEHAVIOR[resolution.verdict],
            who=resolution.who,
            reason=resolution.reason,
        )
    )


def _validated(text: str, directories: tuple[str, ...]) -> profile_pb2.ProfileServiceValidateResponse:
    """Read a profile's text as the file it would be, and run its tests."""
    with tempfile.TemporaryDirectory(prefix="sandboxd-profile-") as directory:
        path = Path(directory) / "profile.toml"
        path.write_text(text, encoding="utf-8")
        answer = profile_pb2.ProfileServiceValidateResponse()
        try:
            answer.profile.CopyFrom(convert.profile(replace(profiles.load(str(path), directories), origin="profile")))
            failures = profiles.check(str(path), directories)
        except ProfileError as error:
            origin = error.origin.replace(str(path), "profile")
            message = error.message.removeprefix(f"{error.origin}: ")
            answer.problems.add(origin=origin, message=message, fix=error.fix)
            return answer
        for failure in failures:
            answer.problems.add(origin="profile", message=failure.replace(str(path), "profile"))
        return answer


def _decision(row: DecisionRow) -> decision_pb2.DecisionRecord:
    return decision_pb2.DecisionRecord(
        decision_id=row.decision_id,
        session_id=row.session_id,
        execution_id=row.execution_id,
        text=row.text,
        cwd=row.cwd,
        mode=convert.MODE[Mode(row.mode)],
        create_time=convert.timestamp(row.at),
        decision=convert.decision(row.decision, row.text),
        timings=[decision_pb2.StageTime(stage=item.stage, elapsed=convert.duration(item.seconds)) for item in row.timings],
    )
