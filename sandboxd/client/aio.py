# SPDX-License-Identifier: GPL-3.0-or-later
"""The asynchronous client; `blocking` wraps it. One channel, any number of sessions and executions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from sandboxd.client import decode, values
from sandboxd.client.administration import Administration
from sandboxd.client.asking import OnAsk
from sandboxd.client.connection import TIMEOUT
from sandboxd.client.execution import AsyncExecution
from sandboxd.client.session import AsyncSession
from sandboxd.errors import Unavailable
from sandboxd.model import Mode
from sandboxd.v1 import session_pb2


class AsyncClient(Administration):
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
        super().__init__(address, on_ask is not None if admin is None else admin, timeout)
        self._on_ask = on_ask
        self._default: AsyncSession | None = None

    async def __aenter__(self) -> Self:
        self.connect()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

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

    # What exists already

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

    async def _own_session(self) -> AsyncSession:
        if self._default is None:
            self._default = await self.session()
        return self._default


def _absolute(path: str) -> str:
    return os.path.abspath(path)
