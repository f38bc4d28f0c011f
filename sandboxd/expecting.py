# SPDX-License-Identifier: GPL-3.0-or-later
"""A box for the first command of a session, made while nobody waits for it.

Each session has a /tmp of its own, so it can have no box of another's. Most commands only read, and those have the same
mounts whatever they read: what is made for `true` is ready for them.
"""

from __future__ import annotations

import asyncio
import logging

from sandboxd.catalog import Catalog
from sandboxd.confining import expect
from sandboxd.errors import SandboxdError
from sandboxd.model import Request
from sandboxd.questions import Questions, put
from sandboxd.session import SessionState

log = logging.getLogger("sandboxd.engine")


class Expecting:
    """A task for a session that has just begun, one at a time: where many begin at once, it would only be in the way of those
    that already have commands. All methods run on the engine's loop."""

    def __init__(self, catalog: Catalog, questions: Questions) -> None:
        self._catalog = catalog
        self._questions = questions
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, session: SessionState) -> None:
        if self._tasks:
            return
        self._tasks[session.id] = asyncio.create_task(self._expect(session), name=f"expecting-{session.id}")

    async def end(self, session_id: str) -> None:
        """Expect nothing more of a session; nothing is made for it after this."""
        task = self._tasks.pop(session_id, None)
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def close(self) -> None:
        for session_id in tuple(self._tasks):
            await self.end(session_id)

    async def _expect(self, session: SessionState) -> None:
        try:
            judged = await put(session, self._questions.about(Request("true", session.id), session))
            await expect(session, judged, self._catalog)
        except (SandboxdError, OSError) as error:
            log.debug("no box for session %s beforehand: %s", session.id, error)  # its first command tells, if it still holds
        except Exception:
            log.exception("no box for session %s beforehand", session.id)
        finally:
            self._tasks.pop(session.id, None)
