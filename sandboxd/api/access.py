# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose session a call is about, and whether this caller may touch it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, TypeVar, cast

from sandboxd.api.requests import required
from sandboxd.engine import Engine
from sandboxd.errors import Forbidden
from sandboxd.sessions import Role, SessionState

_T = TypeVar("_T")

SECRET_KEY = "sandboxd-session-secret"  # noqa: S105  the name of a metadata key


class Access:
    """The engine as one role sees it: what every servicer is built with."""

    def __init__(self, engine: Engine, role: Role) -> None:
        self.engine = engine
        self.role = role

    def session(self, session_id: str, context: Any) -> SessionState:
        """The session a call names. Raises RequestError (none named), NotFound (unknown, or the secret is wrong)."""
        return self.engine.sessions.get(required(session_id, "session_id"), secret(context), self.role)

    def scope(self, session_id: str, context: Any) -> SessionState | None:
        """The session a call is limited to; None = all of them, which only the admin socket may leave open.

        Raises Forbidden when the agent socket leaves it open, NotFound.
        """
        if session_id:
            return self.session(session_id, context)
        if self.role is not Role.ADMIN:
            raise Forbidden("only the admin socket sees every session", field="session_id", fix="name your own session")
        return None


def secret(context: Any) -> str:
    """The session secret that came with a call, "" when none did."""
    for key, value in context.invocation_metadata() or ():
        if key == SECRET_KEY:
            return str(value)
    return ""


def followed(events: AsyncIterator[_T]) -> AbstractAsyncContextManager[AsyncGenerator[_T, None]]:
    """Follow one of the engine's generators and close it, with what it holds, as soon as the caller stops."""
    return aclosing(cast("AsyncGenerator[_T, None]", events))
