# SPDX-License-Identifier: GPL-3.0-or-later
"""Asking hooks: external commands that get a JSON object on stdin and answer by exit status and JSON on stdout.

The protocol is the one that coding agents already use: exit 0 with JSON (`hookSpecificOutput.permissionDecision`, `updatedInput`,
`additionalContext`; for PermissionRequest `hookSpecificOutput.decision`), exit 2 = deny with stderr as the reason, anything
else is a failure. A hook that fails or is late has no opinion, unless its definition says that failing blocks.

A hook runs as the daemon's user, outside any sandbox: only trusted files may define one. It gets its own process group
(killed whole at the end), the system PATH, a directory outside the workspace and a short list of variables.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import IO, Any

from sandboxd.consult.hookdefs import Hook, HookEvent
from sandboxd.model import Behavior, Consultant, Opinion

MAX_STDOUT = 1 << 20  # bytes of an answer; more is a failure
MAX_STDERR = 1 << 14  # bytes of a reason that are kept
MAX_CONTEXT = 10_000  # characters of additionalContext that reach the model
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENV = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR")
_DECISIONS = {
    "allow": Behavior.ALLOW,
    "deny": Behavior.DENY,
    "ask": Behavior.ASK,
    "approve": Behavior.ALLOW,
    "block": Behavior.DENY,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What one hook said. `failure` is set when it had no valid answer; `updated` is a rewritten tool input."""

    hook: Hook
    verdict: Behavior | None = None
    reason: str = ""
    updated: Mapping[str, Any] | None = None
    context: str = ""
    failure: str = ""
    latency: float = 0.0  # seconds

    @property
    def opinion(self) -> Opinion | None:
        """Its opinion for the waterfall; None when it has none."""
        name = self.hook.origin
        if self.failure:
            verdict = Behavior.DENY if self.hook.blocks else Behavior.ASK
            reason = f"the hook failed: {self.failure}"
            return Opinion(Consultant.HOOK, verdict, reason, failed=not self.hook.blocks, name=name, latency=self.latency)
        if self.verdict is None:
            return None
        return Opinion(Consultant.HOOK, self.verdict, self.reason, name=name, latency=self.latency)


@dataclass(frozen=True, slots=True)
class Replies:
    """What all hooks of one event said together."""

    replies: tuple[Reply, ...] = ()

    @property
    def opinions(self) -> tuple[Opinion, ...]:
        return tuple(opinion for reply in self.replies if (opinion := reply.opinion) is not None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Failures and contexts, for the result."""
        failures = [f"hook {reply.hook.origin}: {reply.failure}" for reply in self.replies if reply.failure]
        return (*failures, *(reply.context for reply in self.replies if reply.context))

    def rewritten(self, key: str) -> tuple[str | None, str]:
        """The new text of input field `key`, if a hook changed it, and who did. Raises ValueError when two disagree."""
        texts = {
            reply.updated[key]: reply.hook.origin for reply in self.replies if reply.updated is not None and key in reply.updated
        }
        if len(texts) > 1:
            raise ValueError(f"hooks {' and '.join(texts.values())} rewrite the input differently")
        return next(iter(texts.items()), (None, ""))


async def ask(
    hooks: tuple[Hook, ...], event: HookEvent, payload: Mapping[str, Any], *, tool: str, workspace: str, cwd: str
) -> Replies:
    """Run every matching hook of `event` at once and wait for all but the background ones.

    `payload` is the JSON object they get. `cwd` is where they run, outside the workspace. Raises nothing; a caller that is
    cancelled takes the running hooks with it.
    """
    return Replies(tuple(await asyncio.gather(*each(hooks, event, payload, tool=tool, workspace=workspace, cwd=cwd))))


def each(
    hooks: tuple[Hook, ...], event: HookEvent, payload: Mapping[str, Any], *, tool: str, workspace: str, cwd: str
) -> list[Coroutine[Any, Any, Reply]]:
    """The same, one coroutine a hook, for those who race them. Background ones are started here."""
    chosen = [hook for hook in hooks if hook.event is event and hook.matches(tool)]
    if not chosen:
        return []
    data = json.dumps({**payload, "hook_event_name": event.value}).encode()
    for hook in chosen:
        if hook.background:
            task = asyncio.create_task(_run(hook, data, workspace, cwd))
            _BACKGROUND.add(task)
            task.add_done_callback(_BACKGROUND.discard)
    return [_run(hook, data, workspace, cwd) for hook in chosen if not hook.background]


_BACKGROUND: set[asyncio.Task[Reply]] = set()


async def end_background() -> None:
    """Stop the hooks nobody waits for; at the end of the daemon."""
    tasks = tuple(_BACKGROUND)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _run(hook: Hook, data: bytes, workspace: str, cwd: str) -> Reply:
    begin = time.monotonic()
    env = {name: os.environ[name] for name in (*_ENV, *hook.env) if name in os.environ}
    env |= {"PATH": SYSTEM_PATH, "SANDBOXD_PROJECT_DIR": workspace, "CLAUDE_PROJECT_DIR": workspace}

    def failed(what: str) -> Reply:
        return Reply(hook, failure=what, latency=time.monotonic() - begin)

    try:
        process = subprocess.Popen(  # noqa: ASYNC220  a vfork: Popen without preexec_fn returns at exec
            ("/bin/sh", "-c", hook.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        return failed(f"cannot start: {error.strerror}")
    with process:
        try:
            async with asyncio.timeout(hook.timeout):
                out, err = await _talk(process, data)
        except TimeoutError:
            return failed(f"no answer within {hook.timeout:g} s")
        finally:
            _end(process)
            code = process.wait()  # it has been killed, or has ended: this does not wait
    if out is None:
        return failed(f"more than {MAX_STDOUT} bytes of output")
    return _reply(hook, code, out, err, time.monotonic() - begin)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the hook's process group. Only before it is reaped: its number is not another's yet."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


async def _talk(process: subprocess.Popen[bytes], data: bytes) -> tuple[bytes | None, bytes]:
    """Feed stdin, read both streams until the hook itself has ended. Stdout is None when it said too much.

    asyncio's own subprocess would wait for the pipes, which a process that the hook left behind keeps open.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    pidfd = os.pidfd_open(process.pid)

    def gone() -> None:
        loop.remove_reader(pidfd)
        ended.set_result(None)

    loop.add_reader(pidfd, gone)
    feeding = asyncio.create_task(_feed(process.stdin, data))
    reading = [
        asyncio.create_task(_read(stream, most)) for stream, most in ((process.stdout, MAX_STDOUT), (process.stderr, MAX_STDERR))
    ]
    try:
        await asyncio.wait((ended, reading[0]), return_when=asyncio.FIRST_COMPLETED)
        if not ended.done() and reading[0].result()[1]:
            return None, b""
        await ended
        _end(process)  # what it left behind would hold the pipes open
        (out, over), (err, _) = await asyncio.gather(*reading)
        return (None if over else out), err
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        for task in (feeding, *reading):
            task.cancel()
        await asyncio.gather(feeding, *reading, return_exceptions=True)


async def _feed(stream: IO[bytes] | None, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(lambda: asyncio.streams.FlowControlMixin(loop), stream)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a hook need not read its input
        writer.write(data)
        await writer.drain()
    writer.close()


async def _read(stream: IO[bytes] | None, most: int) -> tuple[bytes, bool]:
    """The first `most` bytes of a pipe, read to its end, and whether there were more."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader, loop=loop), stream)
    kept, over = bytearray(), False
    try:
        while part := await reader.read(1 << 16):
            over = over or len(kept) + len(part) > most
            kept += part[: most - len(kept)]
            if over and most == MAX_STDOUT:
                break
    finally:
        transport.close()
    return bytes(kept), over


def _reply(hook: Hook, code: int, out: bytes, err: bytes, latency: float) -> Reply:
    said = err.decode("utf-8", "replace").strip()
    if code == 2:
        return Reply(hook, Behavior.DENY, said or "exit status 2", latency=latency)
    if code != 0:
        return Reply(hook, failure=f"exit status {code}{': ' + said[:500] if said else ''}", latency=latency)
    text = out.decode("utf-8", "replace").strip()
    if not text.startswith("{"):
        return Reply(hook, context=_context(text, hook.event), latency=latency)
    try:
        return _answer(hook, json.loads(text), latency)
    except (ValueError, TypeError, RecursionError) as error:
        return Reply(hook, failure=f"its answer is not understood: {error}", latency=latency)


def _context(text: str, event: HookEvent) -> str:
    """Plain output is context only where the protocol says so."""
    return text[:MAX_CONTEXT] if event is HookEvent.SESSION_START else ""


def _answer(hook: Hook, data: Any, latency: float) -> Reply:
    """Read the JSON answer. Raises ValueError or TypeError for what is not understood."""
    own = data.get("hookSpecificOutput", {})
    if not isinstance(own, dict):
        raise TypeError("`hookSpecificOutput` must be an object")
    if own.get("hookEventName", hook.event.value) != hook.event.value:
        raise ValueError(f"it answers `{own['hookEventName']}` to `{hook.event.value}`")
    verdict, reason, updated = None, "", None
    if hook.event is HookEvent.PERMISSION_REQUEST and "decision" in own:
        decision = own["decision"]
        verdict, reason = _verdict(decision.get("behavior")), decision.get("message", "")
        updated = decision.get("updatedInput")
    elif "permissionDecision" in own:
        verdict, reason = _verdict(own["permissionDecision"]), own.get("permissionDecisionReason", "")
        updated = own.get("updatedInput")
    elif "decision" in data:
        verdict, reason = _verdict(data["decision"]), data.get("reason", "")
    else:
        updated = own.get("updatedInput")
    if data.get("continue") is False:
        verdict, reason = Behavior.DENY, data.get("stopReason", "") or reason or "the hook stops"
    context = own.get("additionalContext", "")
    if not isinstance(reason, str) or not isinstance(context, str):
        raise TypeError("reasons and contexts must be strings")
    if updated is not None and (not isinstance(updated, dict) or not all(isinstance(value, str) for value in updated.values())):
        raise TypeError("`updatedInput` must be an object of strings")
    return Reply(hook, verdict, reason, updated, context[:MAX_CONTEXT], latency=latency)


def _verdict(word: Any) -> Behavior:
    if word not in _DECISIONS:
        raise ValueError(f"unknown decision `{word}`")
    return _DECISIONS[word]
