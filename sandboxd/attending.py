# SPDX-License-Identifier: GPL-3.0-or-later
"""What clients do to a command that runs: leave it, come back, and feed it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sandboxd.errors import Forbidden
from sandboxd.jobs import Job
from sandboxd.judge import Question, judge
from sandboxd.model import Behavior, Needs

CALLER_LEFT = "caller_left"  # the cause of an execution that ended because nobody followed it any more
NOBODY_CAME_BACK = "nobody came back within {:g} s"


def let_go(job: Job, starter: bool, cancel: Callable[[str], None]) -> None:
    """A caller has stopped following. What is not to be kept ends with its starter; what is kept for a time ends after
    it, unless somebody follows it then."""
    request, execution = job.request, job.execution
    if execution.result is not None:
        return
    if not (request.keep_on_disconnect or request.background):
        if starter:
            cancel(CALLER_LEFT)
        return
    if request.detach_ttl is None or execution.followed:
        return

    def expire() -> None:
        if not execution.followed and execution.result is None:
            cancel(NOBODY_CAME_BACK.format(request.detach_ttl))

    if job.expiry is not None:
        job.expiry.cancel()
    job.expiry = asyncio.get_running_loop().call_later(request.detach_ttl, expire)


async def check_stdin(job: Job, ask: Callable[[], Question]) -> None:
    """What is written to an interpreter is code, so whoever writes must be allowed to start it now as it was then.

    Judged anew only when the mode or a rule has changed since. Raises Forbidden.
    """
    admitted, session = job.admitted, job.session
    if admitted is None:
        return  # it is judged, with all that was written to it, before it runs
    standing = (session.mode_in_force, session.revision)
    if job.standing is None:
        job.standing = (admitted.mode, admitted.revision)
    if standing == job.standing or not admitted.opaque:
        return
    fresh = await asyncio.to_thread(judge, ask(), admitted.opinions)
    if isinstance(fresh.outcome, Needs) or fresh.decision.behavior is not Behavior.ALLOW:
        raise Forbidden(
            f"this command takes code from its stdin, and may not be started now: {fresh.decision.message}",
            field="execution_id",
            fix="start it again, so that it is judged as things are now",
        )
    job.standing = standing
