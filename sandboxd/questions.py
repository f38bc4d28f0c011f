# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked about a command, or the use of a tool, at this moment: its text, and all that decides about it."""

from __future__ import annotations

import asyncio
import dataclasses
import os

from sandboxd import toolcalls
from sandboxd.catalog import Catalog
from sandboxd.config import Directories
from sandboxd.consult.hookdefs import HookEvent
from sandboxd.consulting import Consulting
from sandboxd.errors import RequestError
from sandboxd.isolation.environment import SYSTEM_PATH, search_path
from sandboxd.jobs import validate
from sandboxd.judge import Judged, Question, judge
from sandboxd.model import Opinion, Request
from sandboxd.paths import join
from sandboxd.session import SessionState
from sandboxd.sessions import Sessions
from sandboxd.tooluses import Use

_SHORT = 500  # characters of a command that may be judged on the loop's thread


class Questions:
    """Made of the configuration, rules, mode and directory in force: these may have changed since the last time."""

    def __init__(self, sessions: Sessions, catalog: Catalog, dirs: Directories) -> None:
        self._sessions = sessions
        self._catalog = catalog
        self._dirs = dirs

    def about(self, request: Request, session: SessionState) -> Question:
        """What is asked about a command now. Raises RequestError, Forbidden, or ConfigError for a bad rule file."""
        config, catalog = self._sessions.config, self._catalog
        validate(request, unsandboxed=config.policy.allow_unsandboxed)
        session.refresh_rules(config, self._dirs)
        cwd = join(session.cwd, request.cwd) if request.cwd else session.cwd
        if not os.path.isdir(cwd):
            raise RequestError(f"the directory `{cwd}` does not exist", field="command.cwd", fix="name an existing one")
        profile = catalog.profile(session.profile)
        return Question(
            unsandboxed="request" if request.unsandboxed else "profile none" if catalog.bare(profile) else "",
            excluded=catalog.excluded,
            text=request.text,
            cwd=cwd,
            scope=session.scope,
            rules=session.rules_with(request.rules),
            mode=session.mode_in_force,
            headless=session.unattended and not Consulting.answers(session),
            observed=True,
            enforcement_full=catalog.full(profile),
            auto_allow_if_sandboxed=config.policy.auto_allow_if_sandboxed,
            tables=catalog.tables,
            more_path=search_path(profile, session.isolation)[len(SYSTEM_PATH) :],
            breaker_open=session.denials.open,
            broke_promise=session.broke_promise(request.text, cwd),
        )

    def about_use(self, use: Use) -> Question:
        """What is asked about a use of a tool now. Raises as `about` does."""
        session = use.session
        question = self.about(Request(toolcalls.shown(use.call), session.id), session)
        headless = session.unattended and not use.hooks(HookEvent.PERMISSION_REQUEST)
        return dataclasses.replace(question, call=use.call, host_tmp=session.isolation.tmp, headless=headless)


async def put(session: SessionState, question: Question, opinions: tuple[Opinion, ...] = ()) -> Judged:
    """Put a question to the judge; on another thread what is long, or took long before."""
    if len(question.text) > _SHORT:
        return await asyncio.to_thread(judge, question, opinions)
    return await session.judging.do(judge, question, opinions)
