# SPDX-License-Identifier: GPL-3.0-or-later
"""The asynchronous client; `blocking` wraps it. One channel, any number of sessions and executions."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import grpc

from sandboxd.client import address as addresses
from sandboxd.client import decode, values
from sandboxd.client.batch import AsyncBatch
from sandboxd.client.failure import translate
from sandboxd.client.tools import AsyncTools
from sandboxd.client.transcripts import AsyncTranscripts
from sandboxd.errors import Exhausted, NotFound, RequestError, Unavailable
from sandboxd.model import (
    UNLIMITED,
    ApprovalNeeded,
    Behavior,
    Decided,
    Decision,
    Event,
    Exited,
    Gap,
    Mode,
    ModelText,
    Output,
    Profile,
    Started,
    Stream,
    WindowSize,
)
from sandboxd.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    approval_pb2,
    approval_pb2_grpc,
    decision_pb2,
    decision_pb2_grpc,
    execution_pb2,
    execution_pb2_grpc,
    profile_pb2,
    profile_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    tool_pb2_grpc,
)

SECRET_KEY = "sandboxd-session-secret"  # noqa: S105  the name of a metadata key
TIMEOUT = 30.0  # seconds one plain call may take
MAX_OUTPUT = 64 << 20  # bytes that `run` collects
STDIN_CHUNK = 1 << 16  # bytes of one WriteStdin
MAX_MESSAGE = 64 << 20  # bytes of one answer: a page of decisions with their traces

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.enable_http_proxy", 0),  # a proxy of the environment has no business between us and our socket
)
_SCOPES = {
    "once": approval_pb2.APPROVAL_SCOPE_ONCE,
    "session": approval_pb2.APPROVAL_SCOPE_SESSION,
    "always": approval_pb2.APPROVAL_SCOPE_ALWAYS,
}

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Ask:
    """A question for a human: may `text` run? `decision` says what is at stake and which rules could be kept."""

    approval_id: str
    text: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class Answer:
    """`scope` session and always keep `rule`, which must be one of `decision.suggestions`."""

    allow: bool
    scope: Literal["once", "session", "always"] = "once"
    rule: str = ""
    reason: str = ""


# True or False is an answer for this once. A plain function runs in a thread of its own.
OnAsk = Callable[[Ask], Answer | bool | Awaitable[Answer | bool]]


class AsyncClient:
    """A connection to the daemon.

        async with AsyncClient() as client:
            run = await client.run("git status")
            print(run.exit_code, run.output)

    `address` is a gRPC target (`unix:/…`), None finds the user's daemon. `admin` chooses its socket: the admin socket
    sees everything and may answer questions; default: admin when `on_ask` is given, else agent. `timeout` bounds plain
    calls, in seconds. Every method raises the errors of `sandboxd.errors`: Unavailable when no daemon answers,
    RequestError and its kin when the daemon refuses. A denied command is no error.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        admin: bool | None = None,
        on_ask: OnAsk | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self._address = address
        self._admin = on_ask is not None if admin is None else admin
        self._on_ask = on_ask
        self._timeout = timeout
        self._channel: grpc.aio.Channel | None = None
        self._default: AsyncSession | None = None
        self._streams: set[Any] = set()  # calls that still deliver

    async def __aenter__(self) -> Self:
        self.connect()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def connect(self) -> None:
        """Open the channel; nothing is sent yet. Raises Unavailable when no daemon listens."""
        if self._channel is not None:
            return
        target = self._address or addresses.find(admin=self._admin)
        channel = self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        self._sessions = session_pb2_grpc.SessionServiceStub(channel)
        self._executions = execution_pb2_grpc.ExecutionServiceStub(channel)
        self._approvals = approval_pb2_grpc.ApprovalServiceStub(channel)
        self._profiles = profile_pb2_grpc.ProfileServiceStub(channel)
        self._decisions = decision_pb2_grpc.DecisionServiceStub(channel)
        self._administration = admin_pb2_grpc.AdminServiceStub(channel)
        self._tools = tool_pb2_grpc.ToolServiceStub(channel)

    async def close(self) -> None:
        """End the default session and close the channel; commands that nobody keeps are cancelled. Idempotent."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        for call in self._streams:
            call.cancel()  # closing the channel alone does not tell the daemon
        try:
            if self._default is not None:
                with contextlib.suppress(Unavailable):
                    await self._default.delete()
        finally:
            self._default = None
            await channel.close()

    # Commands, in a session of this client's own around the current directory

    async def run(self, text: str, **options: Any) -> values.Run:
        """Run a command and wait for its end. Options as in `AsyncSession.run`."""
        return await (await self._own_session()).run(text, **options)

    async def start(self, text: str, **options: Any) -> AsyncExecution:
        """Start a command and follow its events. Options as in `AsyncSession.start`."""
        return await (await self._own_session()).start(text, **options)

    async def check(self, text: str, **options: Any) -> values.Check:
        """What would be decided now; nothing runs. Options as in `AsyncSession.check`."""
        return await (await self._own_session()).check(text, **options)

    async def session(
        self,
        workspace: str = "",
        *,
        cwd: str = "",
        mode: Mode | str = Mode.DEFAULT,
        profile: str = "",
        headless: bool | None = None,
        allow: Sequence[str] = (),
        ask: Sequence[str] = (),
        deny: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        additional: Sequence[str] = (),
    ) -> AsyncSession:
        """Open a session. Default workspace: the repository around `cwd` (default: the current directory), else `cwd`.

        `headless` (default: true without `on_ask`): nobody is there to ask, so ASK becomes DENY.
        """
        answer = await self._call(
            self._sessions.Create,
            session_pb2.SessionServiceCreateRequest(
                workspace=_absolute(workspace) if workspace else "",
                cwd=_absolute(cwd) if cwd or not workspace else "",
                mode=decode.MODE_NUMBER[Mode(mode)],
                profile=profile,
                headless=self._on_ask is None if headless is None else headless,
                allow=allow,
                ask=ask,
                deny=deny,
                env=env,
                additional_directories=additional,
            ),
        )
        return AsyncSession(self, values.session_info(answer.session), answer.session_secret)

    # What the daemon holds: everything on the admin socket

    async def sessions(self) -> tuple[values.SessionInfo, ...]:
        answer = await self._call(self._sessions.List, session_pb2.SessionServiceListRequest())
        return tuple(values.session_info(item) for item in answer.sessions)

    async def attach_session(self, session_id: str, secret: str = "") -> AsyncSession:
        """A session that exists already; the agent socket needs its secret."""
        answer = await self._call(self._sessions.Get, session_pb2.SessionServiceGetRequest(session_id=session_id), secret)
        return AsyncSession(self, values.session_info(answer.session), secret)

    async def attach_execution(
        self, execution_id: str, session_id: str = "", secret: str = "", *, from_sequence: int = 1
    ) -> AsyncExecution:
        """Follow an execution whose session may have gone with an earlier daemon; the agent socket needs its id and secret."""
        session = AsyncSession(self, values.unknown_session(session_id), secret)
        return await session.attach(execution_id, from_sequence=from_sequence)

    async def execution(self, execution_id: str, session_id: str = "", secret: str = "") -> values.ExecutionInfo:
        """How an execution stands, also one of an earlier daemon; the agent socket needs its session's id and secret."""
        return await AsyncSession(self, values.unknown_session(session_id), secret).execution(execution_id)

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

    # The inside, shared with sessions and executions

    async def _own_session(self) -> AsyncSession:
        if self._default is None:
            self._default = await self.session()
        return self._default

    async def _call(self, method: Any, request: Any, secret: str = "") -> Any:
        try:
            return await method(request, metadata=_metadata(secret), timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            raise translate(error) from None

    async def _stream(self, method: Any, request: Any, secret: str = "") -> AsyncIterator[Any]:
        call = method(request, metadata=_metadata(secret))
        self._streams.add(call)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise translate(error) from None
        finally:
            self._streams.discard(call)
            call.cancel()

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


class AsyncSession(AsyncTools, AsyncTranscripts):
    """One conversation: a workspace, a directory that follows `cd`, a mode, rules. Leaving `async with` deletes it."""

    def __init__(self, client: AsyncClient, info: values.SessionInfo, secret: str) -> None:
        self._client = client
        self.info = info
        self.secret = secret

    @property
    def id(self) -> str:
        return self.info.id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.delete()

    async def run(self, text: str, *, stdin: bytes | None = None, max_output: int = MAX_OUTPUT, **options: Any) -> values.Run:
        """Run a command, collect its output (at most `max_output` bytes) and wait for its end. Options as in `start`."""
        async with await self.start(text, stdin=stdin is not None, **options) as execution:
            return await execution.wait(stdin=stdin, max_output=max_output)

    async def start(
        self,
        text: str,
        *,
        cwd: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  it bounds the command, not this call
        stdin: bool = False,
        request_id: str = "",
        background: bool = False,
        keep_on_disconnect: bool = False,
        detach_ttl: float | None = None,
        terminal: WindowSize | None = None,
        max_result_chars: int | None = None,
        allow: Sequence[str] = (),
        ask: Sequence[str] = (),
        deny: Sequence[str] = (),
    ) -> AsyncExecution:
        """Start a command. `timeout` in seconds of running; `stdin`: keep standard input open for `write_stdin`;
        `request_id` makes a retry follow the first try; `background` ends the events at Started;
        `keep_on_disconnect`: it goes on when this client goes, at most `detach_ttl` seconds with nobody following;
        `terminal`: run it on one; `max_result_chars`: what a model is shown, UNLIMITED = everything; `allow`, `ask` and
        `deny`: rules for this command alone, above the session's (an agent's socket takes no `allow`).
        """
        request = execution_pb2.ExecutionServiceStartRequest(
            session_id=self.id,
            request_id=request_id,
            command=_command(
                text,
                cwd,
                timeout=timeout,
                stdin=stdin,
                terminal=terminal,
                max_result_chars=max_result_chars,
                allow=allow,
                ask=ask,
                deny=deny,
            ),
            background=background,
            keep_on_disconnect=keep_on_disconnect,
        )
        if detach_ttl is not None:
            request.detach_ttl.FromNanoseconds(round(detach_ttl * 1e9))
        messages = self._client._stream(self._client._executions.Start, request, self.secret)
        try:
            first = await anext(messages)  # it always comes; an error that stands before it is raised here
        except StopAsyncIteration:
            raise Unavailable("the daemon ended the stream before its first event", fix="see the daemon's log") from None
        return AsyncExecution(self._client, self, text, first.event.execution_id, messages, first)

    async def attach(self, execution_id: str, *, from_sequence: int = 1) -> AsyncExecution:
        """Follow an execution of this session from an event on."""
        known = await self.execution(execution_id)
        request = execution_pb2.ExecutionServiceAttachRequest(
            session_id=self.id, execution_id=execution_id, from_sequence=from_sequence
        )
        messages = self._client._stream(self._client._executions.Attach, request, self.secret)
        return AsyncExecution(self._client, self, known.text, execution_id, messages)

    def batch(self) -> SessionBatch:
        """Open a batch: the calls of one turn of a model, as they become known."""
        call = self._client._executions.RunBatch(metadata=_metadata(self.secret))
        return SessionBatch(call, self.id)

    async def execution(self, execution_id: str) -> values.ExecutionInfo:
        """How an execution of this session stands."""
        request = execution_pb2.ExecutionServiceGetRequest(session_id=self.id, execution_id=execution_id)
        answer = await self._call(self._client._executions.Get, request)
        text = decode.model_text(answer.model_text) if answer.HasField("model_text") else None
        return values.execution_info(answer.execution, text)

    async def model_text(self, execution_id: str) -> ModelText | None:
        """What a model reads of an execution; None before its end."""
        return (await self.execution(execution_id)).model_text

    async def check(
        self,
        text: str,
        *,
        cwd: str | None = None,
        allow: Sequence[str] = (),
        ask: Sequence[str] = (),
        deny: Sequence[str] = (),
    ) -> values.Check:
        """What would be decided now; nothing runs. `allow`, `ask` and `deny` as in `start`."""
        command = _command(text, cwd, allow=allow, ask=ask, deny=deny)
        answer = await self._call(
            self._client._executions.CheckCommand,
            execution_pb2.ExecutionServiceCheckCommandRequest(session_id=self.id, command=command),
        )
        analysis = decode.analysis(answer.analysis, text, cwd or self.info.cwd)
        return values.Check(decode.decision(answer.decision, text), analysis, answer.decision_id, answer.steering)

    async def update(
        self, *, mode: Mode | str | None = None, cwd: str | None = None, headless: bool | None = None
    ) -> values.SessionInfo:
        """Change what is given."""
        request = session_pb2.SessionServiceUpdateRequest(session_id=self.id, cwd=cwd, headless=headless)
        if mode is not None:
            request.mode = decode.MODE_NUMBER[Mode(mode)]
        self.info = values.session_info((await self._call(self._client._sessions.Update, request)).session)
        return self.info

    async def refresh(self) -> values.SessionInfo:
        """Ask the daemon how the session stands."""
        request = session_pb2.SessionServiceGetRequest(session_id=self.id)
        self.info = values.session_info((await self._call(self._client._sessions.Get, request)).session)
        return self.info

    async def executions(self) -> tuple[values.ExecutionInfo, ...]:
        request = execution_pb2.ExecutionServiceListRequest(session_id=self.id)
        answer = await self._call(self._client._executions.List, request)
        return tuple(values.execution_info(item) for item in answer.executions)

    async def delete(self) -> None:
        """End the session and everything it runs. Idempotent."""
        with contextlib.suppress(NotFound):
            await self._call(self._client._sessions.Delete, session_pb2.SessionServiceDeleteRequest(session_id=self.id))

    async def _call(self, method: Any, request: Any) -> Any:
        return await self._client._call(method, request, self.secret)


class SessionBatch(AsyncBatch):
    """A batch of a session."""

    async def run(self, key: str, text: str, *, cancel_on_interrupt: bool = False, **options: Any) -> None:
        """Ask for a command. Options: `cwd`, `timeout`, `stdin`, `terminal`, `max_result_chars` and rules, as in `start`."""
        await self.command(key, _command(text, options.pop("cwd", None), **options), cancel_on_interrupt=cancel_on_interrupt)


class AsyncExecution:
    """A command that was started. Iterate over its events once, or `wait`; leaving `async with` lets go of it."""

    def __init__(
        self,
        client: AsyncClient,
        session: AsyncSession,
        text: str,
        execution_id: str,
        messages: AsyncIterator[Any],
        first: Any = None,
    ) -> None:
        self._client = client
        self._session = session
        self._messages = messages
        self._first = first  # of the messages, when it was read already
        self._offset = 0
        self.text = text
        self.id = execution_id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop following it; unless it was started to be kept, the daemon ends it. Idempotent."""
        await self._messages.aclose()  # type: ignore[attr-defined]  # it is the generator of `_stream`

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The events to the last. While a question is open, `on_ask` is asked; its errors are raised here."""
        asking: asyncio.Task[None] | None = None
        try:
            message = await self._next(None) if self._first is None else self._first
            while message is not None:
                event = decode.event(message.event, self.text)
                if isinstance(event, ApprovalNeeded) and self._client._on_ask is not None:
                    asking = asyncio.create_task(self._client._answer(event, self.text))
                elif isinstance(event, (Decided, Exited)) and asking is not None:
                    await _stop(asking)
                    asking = None
                if event is not None:
                    yield event
                message = await self._next(asking)
        finally:
            if asking is not None:
                await _stop(asking)

    async def _next(self, asking: asyncio.Task[None] | None) -> Any:
        """The next message, None at the end; an error of the question that is being asked comes first."""
        if asking is None:
            return await anext(self._messages, None)
        following = asyncio.ensure_future(anext(self._messages, None))
        try:
            done, _ = await asyncio.wait({following, asking}, return_when=asyncio.FIRST_COMPLETED)
            if following not in done:
                await asking
            return await following
        finally:
            if not following.done():
                await _stop(following)

    async def wait(self, *, stdin: bytes | None = None, max_output: int = MAX_OUTPUT) -> values.Run:
        """Follow it to its end, feeding it `stdin`, and say how it went."""
        output = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
        decision, profile, left, dropped = None, "", max_output, 0
        feeding = None if stdin is None else asyncio.create_task(self._feed(stdin))
        try:
            async for event in self:
                match event:
                    case Output():
                        kept = event.data[:left]
                        output[event.stream] += kept
                        left -= len(kept)
                        dropped += len(event.data) - len(kept)
                    case Gap():
                        dropped += event.length
                    case Decided():
                        decision = event.decision
                    case Started():
                        profile = event.profile
                    case Exited():
                        return values.Run(
                            text=self.text,
                            result=event.result,
                            decision=decision,
                            profile=profile,
                            stdout=bytes(output[Stream.STDOUT]),
                            stderr=bytes(output[Stream.STDERR]),
                            dropped=dropped,
                        )
        finally:
            if feeding is not None:
                await _stop(feeding)
        raise Unavailable("the daemon ended the stream before the command's end", fix="attach to the execution again")

    async def write_stdin(self, data: bytes, *, eof: bool = False) -> None:
        """Feed the command, in pieces, waiting while it does not read. `eof` closes its standard input behind `data`."""
        pieces = [data[at : at + STDIN_CHUNK] for at in range(0, len(data), STDIN_CHUNK)] or [b""]
        for number, piece in enumerate(pieces, 1):
            request = execution_pb2.ExecutionServiceWriteStdinRequest(
                session_id=self._session.id,
                execution_id=self.id,
                offset=self._offset,
                data=piece,
                eof=eof and number == len(pieces),
            )
            while True:
                try:
                    self._offset = (await self._session._call(self._client._executions.WriteStdin, request)).offset
                    break
                except Exhausted as error:
                    await asyncio.sleep(error.retry_after)

    async def resize(self, size: WindowSize) -> None:
        """Change the size of its terminal."""
        request = execution_pb2.ExecutionServiceResizeRequest(
            session_id=self._session.id, execution_id=self.id, rows=size.rows, columns=size.columns
        )
        await self._session._call(self._client._executions.Resize, request)

    async def signal(self, number: int) -> None:
        """Send a signal to the command's process group."""
        request = execution_pb2.ExecutionServiceSignalRequest(session_id=self._session.id, execution_id=self.id, signal=number)
        await self._session._call(self._client._executions.Signal, request)

    async def cancel(self, cause: str = "") -> None:
        """End it: TERM, then KILL. The events go on to Exited. Idempotent."""
        request = execution_pb2.ExecutionServiceCancelRequest(session_id=self._session.id, execution_id=self.id, cause=cause)
        await self._session._call(self._client._executions.Cancel, request)

    async def _feed(self, data: bytes) -> None:
        with contextlib.suppress(RequestError):  # it ended, or was denied, without reading all of it
            await self.write_stdin(data, eof=True)


def _command(
    text: str,
    cwd: str | None,
    *,
    timeout: float | None = None,
    stdin: bool = False,
    terminal: WindowSize | None = None,
    max_result_chars: int | None = None,
    allow: Sequence[str] = (),
    ask: Sequence[str] = (),
    deny: Sequence[str] = (),
) -> execution_pb2.Command:
    try:
        command = execution_pb2.Command(text=text, cwd=cwd or "", stdin=stdin, allow=allow, ask=ask, deny=deny)
    except (ValueError, UnicodeEncodeError):
        raise RequestError("the command is not valid Unicode", field="command.text", fix="send UTF-8") from None
    if timeout is not None:
        command.timeout.FromNanoseconds(round(timeout * 1e9))
    if terminal is not None:
        command.terminal.rows, command.terminal.columns = terminal.rows, terminal.columns
    if max_result_chars == UNLIMITED:
        command.unlimited_result = True
    elif max_result_chars is not None:
        command.max_result_chars = max_result_chars
    return command


def _absolute(path: str) -> str:
    return os.path.abspath(path)


def _metadata(secret: str) -> tuple[tuple[str, str], ...]:
    return ((SECRET_KEY, secret),) if secret else ()


async def _stop(task: asyncio.Future[_T]) -> None:
    """Cancel a task and wait until it is over; its outcome no longer matters."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
