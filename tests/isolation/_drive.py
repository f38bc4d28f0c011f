# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds and runs one box from a plain dictionary; the tests call it in process, or as a script run by another user.

As a script: the dictionary as JSON on stdin, the answer as JSON on stdout. Nothing of the test runner is needed.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pwd
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sandboxd.errors import IsolationError, SandboxdError
from sandboxd.isolation import backends, mountsteps, profiles
from sandboxd.isolation.native import Native
from sandboxd.isolation.plan import plan
from sandboxd.isolation.pool import Caps
from sandboxd.isolation.shelf import Figures
from sandboxd.isolation.violations import limits_met, promise_broken, vanished, violations
from sandboxd.model import Analysis, Box, ExitStatus, Facts, Grant, GrantKind, LaunchPlan, PlanRequest, Require, Session, Stdio
from sandboxd.observe import aftermath, observe

WRITE = ("workspace_write", "")


def request(spec: dict[str, Any]) -> PlanRequest:
    """The plan's input; what a spec leaves out is as plain as it can be."""
    uid = spec.get("uid", os.getuid())
    entry = pwd.getpwuid(uid)
    session = Session(
        id=spec.get("session", "test"),
        workspace=spec["workspace"],
        home=spec.get("home", entry.pw_dir),
        uid=uid,
        gid=entry.pw_gid,
        tmp=spec.get("tmp", ""),
        own=tuple(spec.get("own", ())),
        spill=spec.get("spill", ""),
        registry=spec.get("registry", ""),
        additional=tuple(spec.get("additional", ())),
        env=tuple(tuple(pair) for pair in spec.get("env", ())),
    )
    return PlanRequest(
        text=spec["text"],
        cwd=spec.get("cwd", spec["workspace"]),
        profile=profiles.load(spec.get("profile", "workspace"), (profiles.SHIPPED_DIR,)),
        session=session,
        grants=tuple(Grant(GrantKind(kind), target) for kind, target in spec.get("grants", (WRITE,))),
        promise=spec.get("promise", False),
        facts=Facts(
            observed=True,
            repositories=tuple(spec.get("repositories", ())),
            protected=tuple(spec.get("protected", ())),
            hooks_paths=tuple(spec.get("hooks_paths", ())),
            armed_git=tuple(tuple(pair) for pair in spec.get("armed_git", ())),
            env_files=tuple(spec.get("env_files", ())),
        )
        if not spec.get("observe", False)
        else observe(
            Analysis(spec["text"], spec["workspace"], ()),
            workspace=spec["workspace"],
            home=session.home,
            path_env="/usr/bin:/bin",
        ),
        git_reads=spec.get("git_reads", False),
        git_porcelain=spec.get("git_porcelain", False),
        git_names=tuple(spec.get("git_names", ())),
        report_cwd=spec.get("report_cwd", False),
    )


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Run one command to its end. `error` is set, and nothing else, when no box could be built."""
    with _daemon(spec.get("leak", ""), spec.get("daemon_env", {})):
        try:
            for _ in range(5):
                done = _run(request(spec), spec.get("then", ""), spec.get("backend", "bwrap"), spec.get("before", "true"))
                if not done["lost"]:
                    break
            return done
        except SandboxdError as error:
            return {"error": str(error)}


def _run(asked: PlanRequest, then: str, way: str, before: str) -> dict[str, Any]:
    """`then` is what to do at the first output: `kill` the box, or send it a signal by number.

    The backend `warm` is `native` with a box that is ready before its command comes; `reused` likewise, and the box has run
    the command `before` of the same session, where that leaves nothing and both only read.
    """
    name = "native" if way in ("warm", "reused") else way
    launch = plan(asked, backends.host_facts(asked.session, asked))
    watch = aftermath.begin(asked, launch)
    probes = tuple(probe for probe in PROBES if probe.backend == name)
    require = Require.NONE if name == "none" else asked.profile.require
    backend = backends.choose(dataclasses.replace(asked.profile, fallback=(name,), require=require), probes)
    refused, ended = "", ExitStatus(None, None)
    if way in ("warm", "reused"):
        prepare(launch)
    if way == "reused" and launch.kept_for:
        refused, ended = _used(launch, before)
    at_first = _figures()
    ends, child = _pipes(asked.report_cwd)
    try:
        box = backend.start(launch, child)
    finally:
        for fd in {child.stdin, child.stdout, child.stderr, child.cwd_report} - {-1}:
            os.close(fd)
    out, err, cwd = _read_all(ends, box, then)
    box.kill()
    status = box.reap()
    report = aftermath.settle(watch, asked, launch) if watch is not None else aftermath.Report()
    reused = _figures().reused - at_first.reused
    return {
        "out": out,
        "err": err,
        "cwd": cwd,
        "code": status.code,
        "signal": status.signal,
        "violations": [[each.kind, each.path, each.rule] for each in violations(err, status.code, launch)],
        "planted": [each.path for each in report.violations if each.kind == "planted"],
        "created": [each.path for each in report.violations if each.kind == "protected_created"],
        "changed": [each.path for each in report.violations if each.kind == "protected_changed"],
        "disarmed": [[each.path, each.rule] for each in report.violations if each.kind == "disarmed"],
        "notes": [*report.notes, *vanished(status, launch)],
        "limits": [each.rule for each in limits_met(status, err, launch)],
        "oom": status.oom_kills,
        "broken": list(promise_broken(err, launch)),
        "reused": reused,
        # Another test changed the host, and the pool was emptied.
        "lost": way == "reused" and bool(launch.kept_for) and not reused and refused in ("", "no box was kept"),
        "refused": refused,
        "before": [ended.code, ended.signal],
        "enforcement": {state.layer.value: state.strength.value for state in box.enforcement.layers},
    }


def prepare(launch: LaunchPlan) -> None:
    """Have a box ready for a plan, if boxes can be made before their command for it at all."""
    native = _native()
    native.configure(Caps(session=True))  # which gives up what an earlier command had
    try:
        ready = native.prepare(launch, timeout=20)
    except IsolationError:
        return  # and the start says so
    assert ready or not mountsteps.steps(launch).shared, "no box got ready"


def _used(launch: LaunchPlan, text: str) -> tuple[str, ExitStatus]:
    """Run a command in a box that was ready; why it is not kept for the session's next one, "" when it is."""
    native = _native()
    before = dataclasses.replace(launch, argv=(*launch.argv[:-1], text))
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    box = native.start(before, Stdio(null, null, null))
    os.close(null)
    select.select([box.pidfd], [], [])
    ended = box.reap()
    return native.kept(launch, timeout=20), ended


def _native() -> Native:
    return next(each for each in backends.BACKENDS if isinstance(each, Native))


def _figures() -> Figures:
    return _native().figures() or Figures(0, 0, 0, 0, 0)


@contextmanager
def _daemon(leak: str, env: dict[str, str]) -> Iterator[None]:
    """A daemon that was started with descriptor 7 open for writing to `leak`, and with more in its environment."""
    before = dict(os.environ)
    os.environ.update(env)
    try:
        saved = fcntl.fcntl(7, fcntl.F_DUPFD_CLOEXEC, 200)
    except OSError:
        saved = -1
    if leak:
        fd = os.open(leak, os.O_WRONLY | os.O_CREAT, 0o666)
        if fd != 7:
            os.dup2(fd, 7)
            os.close(fd)
        os.set_inheritable(7, True)
    try:
        yield
    finally:
        if leak:
            os.close(7)
            if saved >= 0:
                os.dup2(saved, 7, inheritable=False)
        if saved >= 0:
            os.close(saved)
        os.environ.clear()
        os.environ.update(before)


def _pipes(report: bool) -> tuple[tuple[int, ...], Stdio]:
    out, err = os.pipe(), os.pipe()
    cwd = os.pipe() if report else (-1, -1)
    stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    return tuple(fd for fd in (out[0], err[0], cwd[0]) if fd >= 0), Stdio(stdin, out[1], err[1], cwd[1])


def _read_all(ends: tuple[int, ...], box: Box, then: str) -> tuple[str, str, str]:
    """Everything that the box says until it has ended: what it left running may hold the pipes longer, but dies with it.

    A signal is sent again while nothing comes of it: one that meets bash between fork and exec of a command waits there,
    in the trap handler that the child still has.
    """
    data = dict.fromkeys(ends, b"")
    open_ends = set(ends)
    sent = 0
    while open_ends or not select.select([box.pidfd], [], [], 0)[0]:
        ready = select.select([*open_ends, box.pidfd], [], [], 2)[0]
        if sent and not ready:
            box.signal(sent)
        for fd in ready:
            if fd == box.pidfd:
                continue
            part = os.read(fd, 65536)
            data[fd] += part
            if not part:
                open_ends.discard(fd)
            elif then == "kill":
                box.kill()
            elif then:
                sent, then = int(then), ""
                box.signal(sent)
    for fd in ends:
        os.close(fd)
    texts = [data[fd].decode(errors="replace") for fd in ends]
    return texts[0], texts[1], texts[2] if len(texts) > 2 else ""


try:
    os.fstat(7)
except OSError:  # kept for `leak`, whatever the backends open for themselves
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 7, inheritable=False)
PROBES = backends.probe_all()

if __name__ == "__main__":
    json.dump([run(spec) for spec in json.load(sys.stdin)], sys.stdout)
