# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose session a call is about, and whether this caller may touch it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, TypeVar, cast

from sandboxd.api.requests import required
from sandboxd.engine import Engine
from sandboxd.errors import Forbidden, NotFound
from sandboxd.run.execution import Execution
from sandboxd.sessions import Role, SessionState

_T = TypeVar("_T")

SECRET_KEY = "sandboxd-session-secret"  # noqa: S105  the name of a metadata key
APPROVAL_KEY = "sandboxd-approval-secret"


class Access:
    """The engine as one role sees it: what every servicer is built with."""

    def __init__(self, engine: Engine, role: Role) -> None:
        self.engine = engine
        self.role = role

    def session(self, session_id: str, context: Any) -> SessionState:
        """The session a call names. Raises RequestError (none named), NotFound (unknown, or the secret is wrong)."""
        return self.engine.sessions.get(required(session_id, "session_id"), secret(context), self.role)

    def past(self, session_id: str, execution_id: str, context: Any) -> Execution | None:
        """An execution of an earlier daemon, for whoever knows the secret that its session had; None for anybody else."""
        past = self.engine.past
        if self.role is not Role.ADMIN and not past.admits(session_id, secret(context)):
            return None
        return past.get(execution_id, session_id)

    def scope(self, session_id: str, context: Any) -> SessionState | None:
        """The session a call is limited to; None = all of them, which only the admin socket may leave open.

        Raises Forbidden when the agent socket leaves it open, NotFound.
        """
        if session_id:
            return self.session(session_id, context)
        if self.role is not Role.ADMIN:
            raise Forbidden("only the admin socket sees every session", field="session_id", fix="name your own session")
        return None

    def approver(self, session_id: str, context: Any) -> str | None:
        """The id of the session whose approvals a call may see and answer; None = all of them, for the admin socket alone.

        Raises Forbidden (front-ends may not prompt here), RequestError (no session named), NotFound (the secret is wrong).
        """
        if self.role is Role.ADMIN:
            return session_id or None
        self.engine.sessions.front_ends_may_prompt()
        return self.engine.sessions.approver(required(session_id, "session_id"), secret(context, APPROVAL_KEY)).id

    def approves_as(self, approval_id: str, who: str, context: Any) -> str:
        """The name under which a call answers an approval, which it must be entitled to. Raises as `approver` does."""
        if self.role is Role.ADMIN:
            return who or self.role.value
        self.engine.sessions.front_ends_may_prompt()
        try:
            self.engine.sessions.approver(self.engine.approvals.session_of(approval_id), secret(context, APPROVAL_KEY))
        except NotFound:
            raise NotFound(
                f"no approval `{approval_id}` for this caller", field="approval_id", fix="list those of your session"
            ) from None
        return f"front-end: {who}" if who else "front-end"


def secret(context: Any, name: str = SECRET_KEY) -> str:
    """The session secret (or another one) that came with a call, "" when none did."""
    for key, value in context.invocation_metadata() or ():
        if key == name:
            return str(value)
    return ""


def followed(events: AsyncIterator[_T]) -> AbstractAsyncContextManager[AsyncGenerator[_T, None]]:
    """Follow one of the engine's generators and close it, with what it holds, as soon as the caller stops."""
    return aclosing(cast("AsyncGenerator[_T, None]", events))
