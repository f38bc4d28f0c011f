# SPDX-License-Identifier: GPL-3.0-or-later
"""A decided command in its box: the plan, the run, what the kernel stopped, and where the session stands afterwards."""

from __future__ import annotations

import asyncio
import dataclasses
import os

from sandboxd import tmpquota
from sandboxd.catalog import Catalog
from sandboxd.config import RunSettings
from sandboxd.isolation import backends
from sandboxd.isolation.kernel import open_real
from sandboxd.isolation.planned import Plans
from sandboxd.isolation.violations import limits_met, promise_broken, vanished, violations
from sandboxd.jobs import Job
from sandboxd.judge import Judged
from sandboxd.model import Behavior, Enforcement, GrantKind, LaunchPlan, MountKind, PlanRequest, Profile, Result
from sandboxd.observe import aftermath, denied
from sandboxd.paths import is_within
from sandboxd.policy.denials import denied_reads
from sandboxd.record.audit import Record
from sandboxd.run.ended import Ended
from sandboxd.session import SessionState


async def confined(job: Job, judged: Judged, alone: bool, catalog: Catalog, record: Record, limits: RunSettings) -> Result:
    """Build the plan, start the box, follow it to its end and say what the kernel stopped.

    `alone`: nothing else of the session ran beside it, so its `cd` may move the session. Raises IsolationError.
    """
    execution, request, session = job.execution, job.request, job.session
    profile = catalog.profile(session.profile)
    analysis, decision = judged.analysis, judged.decision
    agreed = any(grant.kind is GrantKind.UNSANDBOXED for grant in decision.grants)
    bare = agreed and judged.inputs.unsandboxed != "profile none"  # that is the session's choice, and its backend's
    backend = catalog.no_sandbox() if bare else catalog.backend(profile, named=bool(session.profile))
    asked = dataclasses.replace(
        _asked(session, judged, profile),
        promise=decision.promise and not bare,
        report_cwd=alone and analysis.changes_cwd,
        tty=request.terminal is not None,
    )
    launch, watch = await session.preparing.do(_prepared, asked, judged, job.notes, session.plans)
    enforcement = backend.enforcement(launch)
    record.record_execution_started(execution.id, session.id, job.decision_id, profile.name, enforcement)
    job.started = True
    limit = min(request.timeout or limits.timeout, limits.max_timeout)
    if launch.limits.wall is not None:
        limit = min(limit, launch.limits.wall)
    report = aftermath.Report()
    tmp = session.isolation.tmp
    bounded = None
    if any(mount.source == tmp and mount.kind is MountKind.WRITABLE for mount in launch.mounts):
        bounded = asyncio.create_task(tmpquota.watch(tmp, limits.tmp_quota, execution.cancel))
    try:
        ended = await execution.run(
            lambda stdio: backend.start(launch, stdio),
            timeout=limit,
            grace=limits.grace,
            stdin=request.stdin,
            report_cwd=alone and analysis.changes_cwd,
            max_output=min(limits.max_output, launch.limits.output or limits.max_output),
            profile=profile.name,
            terminal=request.terminal,
            heartbeat=limits.heartbeat,
        )
    finally:
        if bounded is not None:
            bounded.cancel()
        if watch is not None and job.execution.started:  # before the lane is given back
            report = await _settled(session, watch, asked, launch)
            job.notes += report.notes
    if ended.status is not None:
        job.notes += vanished(ended.status, launch)
    if alone:
        job.notes += _move(session, ended)
    result = _result(ended, launch, enforcement, session.cwd, report)
    if result.promise_broken:
        session.remember_broken(request.text, analysis.cwd)
        job.notes.append("asked again, it is judged as a command that writes")
    return result


async def expect(session: SessionState, judged: Judged, catalog: Catalog) -> None:
    """Have a box ready soon for a command like this one, if it only reads. Raises SandboxdError, OSError."""
    decision = judged.decision
    if decision.behavior is not Behavior.ALLOW or not decision.promise:
        return
    profile = catalog.profile(session.profile)
    backend = catalog.backend(profile, named=bool(session.profile))
    launch = await session.preparing.do(_planned, _asked(session, judged, profile), judged, [], session.plans)
    backends.expect(backend, launch)


def _asked(session: SessionState, judged: Judged, profile: Profile) -> PlanRequest:
    analysis, decision = judged.analysis, judged.decision
    return PlanRequest(
        text=analysis.text,
        cwd=analysis.cwd,
        profile=profile,
        session=dataclasses.replace(session.isolation, additional=session.additional),
        grants=decision.grants,
        promise=decision.promise,
        facts=judged.facts,
        git_reads=analysis.git.reads,
        git_porcelain=analysis.git.porcelain,
        git_names=analysis.git.names,
    )


def _prepared(asked: PlanRequest, judged: Judged, notes: list[str], plans: Plans) -> tuple[LaunchPlan, aftermath.Watch | None]:
    launch = _planned(asked, judged, notes, plans)
    return launch, aftermath.begin(asked, launch)


def _planned(asked: PlanRequest, judged: Judged, notes: list[str], plans: Plans) -> LaunchPlan:
    rules = denied_reads(judged.inputs)
    if rules:  # whatever code it runs: what may not be read cannot be
        found = denied(rules, (asked.session.workspace, *asked.session.additional))
        asked = dataclasses.replace(asked, denied=found.paths)
        if found.partial:
            notes.append("there is so much to look through that not all files which rules forbid to read may be hidden")
    return plans.plan(asked, backends.host_facts(asked.session, asked))


async def _settled(session: SessionState, watch: aftermath.Watch, asked: PlanRequest, launch: LaunchPlan) -> aftermath.Report:
    """Put right what the command left; a caller that is cancelled meanwhile still waits for it."""
    if session.settling.quick:
        return await session.settling.do(aftermath.settle, watch, asked, launch)
    task = asyncio.create_task(session.settling.do(aftermath.settle, watch, asked, launch))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


def return_home(session: SessionState) -> list[str]:
    """A session whose directory was removed goes on in its workspace."""
    if os.path.isdir(session.cwd):
        return []
    gone, session.cwd = session.cwd, session.workspace
    return [f"`{gone}` no longer exists; the session is back in its workspace"]


def _move(session: SessionState, ended: Ended) -> list[str]:
    """Let the session's directory follow a command that ran alone. What the box reports is only believed in scope."""
    reported = ended.reported_cwd
    if reported is None or reported == session.cwd:
        return []
    root = next((root for root in (session.workspace, *session.additional) if is_within(reported, root)), None)
    if root is None:
        return [f"the directory stays `{session.cwd}`: `{reported}` is outside the workspace"]
    if not _real(root, reported):
        return [f"the directory stays `{session.cwd}`: `{reported}` is not a directory outside the box"]
    session.cwd = reported
    return []


def _real(root: str, path: str) -> bool:
    """Whether `path` is a directory below `root` that no link leads to. The command may still be changing the tree, so it is
    asked in one step (openat2(2))."""
    try:
        base = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.close(open_real(base, os.path.relpath(path, root), directory=True))
        finally:
            os.close(base)
    except (OSError, ValueError):
        return False
    return True


def _result(ended: Ended, launch: LaunchPlan, enforcement: Enforcement, cwd: str, report: aftermath.Report) -> Result:
    stopped = violations(ended.stderr_tail, ended.code, launch) if ended.code else ()
    limits = limits_met(ended.status, ended.stderr_tail, launch) if ended.code and ended.status is not None else ()
    return Result(
        end=ended.kind,
        code=ended.code,
        signal=ended.signal,
        cause=ended.cause,
        usage=ended.usage,
        stdout_bytes=ended.stdout_bytes,
        stderr_bytes=ended.stderr_bytes,
        truncated=ended.truncated,
        cwd=cwd,
        enforcement=enforcement,
        promise_broken=promise_broken(ended.stderr_tail, launch),  # some programs say so and go on
        violations=(*report.violations, *limits, *stopped),
    )
