# SPDX-License-Identifier: GPL-3.0-or-later
"""The other services over a real socket: sessions, approvals, decisions, profiles, the daemon's state, health, reflection."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from sandboxd.api import server
from sandboxd.client import Answer, AsyncExecution, AsyncSession, Settled
from sandboxd.errors import Forbidden, NotFound, RequestError
from sandboxd.model import ApprovalNeeded, Behavior, EndKind, Probe
from sandboxd.sessions import Role
from sandboxd.v1 import (
    admin_pb2,
    analysis_pb2,
    approval_pb2,
    decision_pb2,
    profile_pb2,
    session_pb2,
)
from tests.api.conftest import Socket, Wire, refused

real = pytest.mark.needs("bwrap", "userns")


# Sessions

CREATE: tuple[tuple[dict[str, Any], str], ...] = (
    ({"workspace": "relative"}, "workspace"),
    ({"workspace": "/no/such/place"}, "workspace"),
    ({"workspace": "", "cwd": ""}, "workspace"),
    ({"workspace": "/\0"}, "workspace"),
    ({"cwd": "/no/such/place"}, "cwd"),
    ({"cwd": "/usr"}, "cwd"),
    ({"mode": 99}, "mode"),
    ({"profile": "no-such-profile"}, "profile"),
    ({"additional_directories": ["relative"]}, "additional_directories"),
    ({"env": {"A=B": "x"}}, "env"),
    ({"env": {"A": "x\0"}}, "env"),
)


@pytest.mark.parametrize(("fields", "field"), CREATE, ids=[str(row[0])[:40] for row in CREATE])
async def test_a_wrong_session_names_its_field(fields: dict[str, Any], field: str, wire: Wire) -> None:
    """What is wrong in Create is named by its field, and no session is left."""
    request = session_pb2.SessionServiceCreateRequest(**{"workspace": wire.place, **fields})
    code, error = await refused(wire.admin.sessions.Create(request))
    assert code in ("INVALID_ARGUMENT", "NOT_FOUND")
    assert getattr(error, "field", "") == field
    assert wire.house.engine.sessions.list() == ()


async def test_a_malformed_rule_is_named(wire: Wire) -> None:
    """A rule that cannot be read is an error that quotes it."""
    request = session_pb2.SessionServiceCreateRequest(workspace=wire.place, allow=["Bash(ls"])
    code, error = await refused(wire.admin.sessions.Create(request))
    assert code == "FAILED_PRECONDITION"
    assert "`Bash(ls`" in str(error)


async def test_a_session_tells_what_its_files_say_in_vain(wire: Wire) -> None:
    """What is not understood in an agent's settings and what waits for trust is told with file and line; what a SessionStart
    hook says for the model comes with the session."""
    settings = wire.house.workspace / ".claude/settings.json"
    settings.parent.mkdir()
    permissions = {"allow": ["Bash(npm run test:*)"], "deny": ["Read(./.env)"], "defaultMode": "delegate", "strange": 1}
    settings.write_text(json.dumps({"permissions": permissions, "model": "x"}, indent=1))
    Path(wire.house.engine.dirs.user_rules).write_text("[[hook]]\nevent = 'SessionStart'\ncommand = 'echo remember this'\n")
    async with wire.client() as client:
        session = await client.session(wire.place)
        said = {note.removeprefix(f"{settings}:") for note in session.info.rule_notes}
        assert said == {
            "4: `Bash(npm run test:*)` (allow) is inert",
            "9: mode `delegate` is not known; the mode stays as it is",
            "10: `permissions.strange` is not understood",
            "12: `model` is not read",
        }
        assert session.info.context == ("remember this",)
        assert (await session.check("cat .env")).decision.step == "1d"


async def test_update_is_all_or_nothing(wire: Wire) -> None:
    """An Update with one wrong field changes none."""
    session, _ = await wire.admin.create(wire.house.workspace)
    request = session_pb2.SessionServiceUpdateRequest(session_id=session, mode=session_pb2.MODE_PLAN, cwd="/usr")
    code, error = await refused(wire.admin.sessions.Update(request))
    assert (code, getattr(error, "field", "")) == ("INVALID_ARGUMENT", "cwd")
    answer = await wire.admin.sessions.Get(session_pb2.SessionServiceGetRequest(session_id=session))
    assert answer.session.mode == session_pb2.MODE_DEFAULT
    assert answer.session.cwd == wire.place


async def test_delete_once(wire: Wire) -> None:
    """A deleted session is gone; deleting it again is NOT_FOUND."""
    session, _ = await wire.admin.create(wire.house.workspace)
    request = session_pb2.SessionServiceDeleteRequest(session_id=session)
    await wire.admin.sessions.Delete(request)
    assert (await refused(wire.admin.sessions.Delete(request)))[0] == "NOT_FOUND"
    assert not (await wire.admin.sessions.List(session_pb2.SessionServiceListRequest())).sessions


# Approvals


async def ask(session: AsyncSession, text: str) -> tuple[AsyncExecution, ApprovalNeeded]:
    execution = await session.start(text)
    async for event in execution:
        if isinstance(event, ApprovalNeeded):
            return execution, event
    raise AssertionError("nothing was asked")


@real
async def test_a_question_is_seen_and_answered_once(wire: Wire) -> None:
    """Watch shows the question and its answer; the first answer runs the command; a second one is refused, by whom it says."""
    async with (
        wire.client() as one,
        wire.client() as two,
        await one.session(wire.place, headless=False) as session,
    ):
        execution, event = await ask(session, "touch made")
        watch = two.watch_approvals()
        raised = await anext(watch)
        assert getattr(raised, "text", "") == "touch made"
        assert [item.id for item in await two.approvals()] == [event.approval_id]
        await two.resolve(event.approval_id, Answer(True, reason="fine"), who="ann")
        settled = await anext(watch)
        assert settled == Settled(raised.id, Behavior.ALLOW, "ann", "fine")
        with pytest.raises(RequestError, match="answer already: allow by ann"):
            await one.resolve(event.approval_id, Answer(False))
        await watch.aclose()  # type: ignore[attr-defined]  # it is a generator
        again = await session.attach(execution.id)
        assert (await again.wait()).result.code == 0
        await execution.close()
    assert (wire.house.workspace / "made").exists()


@real
async def test_a_question_outlives_its_watcher_and_not_its_caller(wire: Wire) -> None:
    """A watcher that comes later sees the question too; when the caller goes, the question is withdrawn."""
    async with (
        wire.client() as one,
        wire.client() as two,
        await one.session(wire.place, headless=False) as session,
    ):
        execution, event = await ask(session, "touch made")
        first = two.watch_approvals()
        await anext(first)
        await first.aclose()  # type: ignore[attr-defined]  # it is a generator
        second = two.watch_approvals()
        assert (await anext(second)).id == event.approval_id
        await execution.close()
        settled = await anext(second)
        assert (settled.id, getattr(settled, "verdict", None), getattr(settled, "who", "?")) == (
            event.approval_id,
            Behavior.DENY,
            "",
        )
        await second.aclose()  # type: ignore[attr-defined]  # it is a generator
        with pytest.raises(RequestError):
            await two.resolve(event.approval_id, Answer(True))
    assert not (wire.house.workspace / "made").exists()


@real
async def test_only_a_suggested_rule_is_kept(wire: Wire) -> None:
    """Always takes one of the suggested rules and no other; then the command is not asked about again."""
    async with wire.client() as one, await one.session(wire.place, headless=False) as session:
        execution, event = await ask(session, "touch made")
        for rule in ("Bash", "Bash(touch:*)", ""):
            with pytest.raises((Forbidden, RequestError)):
                await one.resolve(event.approval_id, Answer(True, "always", rule))
        await one.resolve(event.approval_id, Answer(True, "always", event.decision.suggestions[0]))
        assert (await (await session.attach(execution.id)).wait()).ok
        await execution.close()
        assert (await session.run("touch made")).ok


RESOLVE: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"approval_id": ""}, "INVALID_ARGUMENT", "approval_id"),
    ({"approval_id": "nobody"}, "NOT_FOUND", "approval_id"),
    ({"verdict": 0}, "INVALID_ARGUMENT", "verdict"),
    ({"verdict": 9}, "INVALID_ARGUMENT", "verdict"),
    ({"scope": 9}, "INVALID_ARGUMENT", "scope"),
)


@pytest.mark.parametrize(("fields", "status", "field"), RESOLVE, ids=[str(row[0]) for row in RESOLVE])
async def test_a_wrong_answer_names_its_field(fields: dict[str, Any], status: str, field: str, wire: Wire) -> None:
    """What is wrong in an answer is named by its field."""
    known = {"approval_id": "a", "verdict": analysis_pb2.BEHAVIOR_ALLOW, **fields}
    code, error = await refused(wire.admin.approvals.Resolve(approval_pb2.ApprovalServiceResolveRequest(**known)))
    assert (code, getattr(error, "field", "")) == (status, field)


# Decisions


@real
async def test_decisions_are_paged_filtered_and_watched(wire: Wire) -> None:
    """Pages follow each other without a gap, filters hold, a watcher sees each decision, and Get gives the same record."""
    async with wire.client() as client, await client.session(wire.place, headless=True) as session:
        watch = client.watch_decisions()
        coming = asyncio.ensure_future(anext(watch))
        # The watch must stand before the first decision: the daemon has it when the call's first step was taken.
        await client.status()
        texts = ["true", "touch x", "pwd", "rm -rf /"]
        for text in texts:
            await session.run(text)
        assert (await coming).text == "true"
        await watch.aclose()  # type: ignore[attr-defined]  # it is a generator
        seen: list[decision_pb2.DecisionRecord] = []
        token = ""
        while True:
            page = decision_pb2.DecisionServiceListRequest(page_size=1, page_token=token)
            answer = await wire.admin.decisions.List(page)
            seen += answer.decisions
            token = answer.next_page_token
            if not token:
                break
        assert [record.text for record in seen] == texts[::-1]
        denied = await client.decisions(behaviors=[Behavior.DENY])
        assert [record.text for record in denied] == ["rm -rf /", "touch x"]
        assert dataclasses.replace(await client.decision(denied[0].id), analysis=None) == denied[0]
        with pytest.raises(NotFound):
            await client.decision("d-none")


PAGES = (({"page_size": -1}, "page_size"), ({"page_size": 1001}, "page_size"), ({"page_token": "x"}, "page_token"))


@pytest.mark.parametrize(("fields", "field"), PAGES)
async def test_a_wrong_page_names_its_field(fields: dict[str, Any], field: str, wire: Wire) -> None:
    """A page that cannot be is an error with its field."""
    code, error = await refused(wire.admin.decisions.List(decision_pb2.DecisionServiceListRequest(**fields)))
    assert (code, getattr(error, "field", "")) == ("INVALID_ARGUMENT", field)


# Profiles and the daemon


@pytest.mark.parametrize("role", Role)
async def test_profiles_are_open_to_all(role: Role, wire: Wire) -> None:
    """Every socket may see the profiles, with what they extend put in."""
    socket = wire.admin if role is Role.ADMIN else wire.agent
    names = [item.name for item in (await socket.profiles.List(profile_pb2.ProfileServiceListRequest())).profiles]
    assert names == sorted(names)
    assert {"read-only", "workspace", "network"} <= set(names)
    found = (await socket.profiles.Get(profile_pb2.ProfileServiceGetRequest(name="network"))).profile
    assert found.network == profile_pb2.NETWORK_MODE_HOST
    assert (await refused(socket.profiles.Get(profile_pb2.ProfileServiceGetRequest(name="none"))))[0] == "NOT_FOUND"


async def test_a_wrong_profile_is_an_answer(wire: Wire) -> None:
    """Validate says line and fix of what is wrong, and gives the profile when nothing is."""
    validate = wire.admin.profiles.Validate
    request = profile_pb2.ProfileServiceValidateRequest
    bad = await validate(request(text='# mine\n[network]\nmode = "sometimes"\n'))
    assert [item.origin for item in bad.problems] == ["profile:3"]
    assert not bad.HasField("profile")
    good = await validate(request(text='extends = "workspace"\ndescription = "mine"\n'))
    assert list(good.problems) == []
    assert good.profile.description == "mine"


@pytest.mark.parametrize("role", Role)
async def test_status(role: Role, wire: Wire) -> None:
    """GetStatus tells version, state, back ends and what a command gets, on both sockets."""
    socket = wire.admin if role is Role.ADMIN else wire.agent
    answer = await socket.administration.GetStatus(admin_pb2.AdminServiceGetStatusRequest())
    works = any(probe.works for probe in answer.backends)
    assert answer.state == (admin_pb2.DAEMON_STATE_SERVING if works else admin_pb2.DAEMON_STATE_DEGRADED)
    assert answer.HasField("enforcement") is works
    assert answer.version


async def test_a_bad_reload_keeps_the_last_good_state(wire: Wire) -> None:
    """Reload of a wrong file is FAILED_PRECONDITION with file and line; the status shows it until a good one."""
    engine = wire.house.engine
    before = engine.config
    file = Path(engine.dirs.config) / "config.toml"
    file.write_text("[run]\ntimeuot = 1\n", encoding="utf-8")
    code, error = await refused(wire.admin.administration.Reload(admin_pb2.AdminServiceReloadRequest()))
    assert (code, getattr(error, "origin", "")) == ("FAILED_PRECONDITION", f"{file}:2")
    assert engine.config is before
    answer = await wire.agent.administration.GetStatus(admin_pb2.AdminServiceGetStatusRequest())
    assert any(f"{file}:2" in line for line in answer.config_errors)
    file.write_text("[run]\ntimeout = 7\n", encoding="utf-8")
    await wire.admin.administration.Reload(admin_pb2.AdminServiceReloadRequest())
    assert engine.config.run.timeout == 7.0
    answer = await wire.agent.administration.GetStatus(admin_pb2.AdminServiceGetStatusRequest())
    assert not answer.config_errors


@real
async def test_without_a_sandbox_nothing_runs(wire: Wire) -> None:
    """When no sandbox can be built, a command that may run is not run: it fails with 125 and the fix."""
    wire.house.engine.set_probes((Probe("bwrap", False, error="bwrap is missing", fix="install bubblewrap"),))
    async with wire.client() as client, await client.session(wire.place, mode="bypassPermissions") as session:
        run = await session.run("touch made")
        assert (run.result.end, run.result.code) == (EndKind.FAILED, 125)
        assert "install bubblewrap" in run.result.cause
        assert (await client.status()).state == "degraded"
    assert not (wire.house.workspace / "made").exists()


# Health and reflection


def sockets(wire: Wire) -> tuple[Socket, Socket]:
    return wire.agent, wire.admin


async def health(channel: grpc.aio.Channel, service: str = "") -> Any:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status


async def test_health_follows_the_daemon(wire: Wire) -> None:
    """The health service knows every service by name, and no other; both sockets have it."""
    for socket in sockets(wire):
        for name in ("", *server._SERVICES):
            assert await health(socket.channel, name) == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health(socket.channel, "sandboxd.v1.NoSuchService")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_server_is_not_serving_before_it_is_told(wire: Wire) -> None:
    """A server that was only started answers NOT_SERVING: health turns SERVING when a sandbox was built, not before."""
    address = wire.agent.address + "-new"
    made = server.build_server(wire.house.engine, Role.AGENT, address)
    await made.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            assert await health(channel) == health_pb2.HealthCheckResponse.NOT_SERVING
    finally:
        await made.stop(0)


async def test_reflection_lists_every_service(wire: Wire) -> None:
    """A tool that knows nothing of sandboxd finds all its services and their files."""
    for socket in sockets(wire):
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(socket.channel)  # type: ignore[arg-type]  # the stubs know no aio
        asked = (
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="sandboxd.v1.ExecutionService"),
        )
        call = stub.ServerReflectionInfo(iter(asked))
        listed, file = [answer async for answer in call]
        names = {item.name for item in listed.list_services_response.service}
        assert {*server._SERVICES, "grpc.health.v1.Health"} <= names
        assert file.file_descriptor_response.file_descriptor_proto
