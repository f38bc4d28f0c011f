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
import json
import os
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from sandboxd.consult.hookdefs import Hook, HookEvent
from sandboxd.consult.programs import SYSTEM_PATH, Bounds, converse
from sandboxd.model import Behavior, Consultant, Opinion
from sandboxd.paths import is_within

MAX_STDOUT = 1 << 20  # bytes of an answer; more is a failure
MAX_STDERR = 1 << 14  # bytes of a reason that are kept
MAX_CONTEXT = 10_000  # characters of additionalContext that reach the model
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
        """The new text of input field `key`, if a hook changed it, and who did. Raises ValueError when two disagree, or one
        writes what is no text."""
        text, who = _agreed(
            [(each.updated[key], each.hook.origin) for each in self.replies if each.updated and key in each.updated]
        )
        if text is not None and not isinstance(text, str):
            raise ValueError(f"hook {who} rewrites `{key}` to what is no text")
        return text, who

    def rewritten_input(self) -> tuple[Mapping[str, Any] | None, str]:
        """The new input as a whole, if a hook changed it, and who did. Raises ValueError when two disagree."""
        return _agreed([(reply.updated, reply.hook.origin) for reply in self.replies if reply.updated is not None])


def _agreed(said: list[tuple[Any, str]]) -> tuple[Any, str]:
    """What all say, and who; None when nobody says anything."""
    if any(what != said[0][0] for what, _ in said):
        raise ValueError(f"hooks {' and '.join(who for _, who in said)} rewrite the input differently")
    return said[0] if said else (None, "")


def outside(workspace: str, home: str) -> str:
    """Where hooks run: the home, unless that lies in the workspace, whose files must not be found by a relative name."""
    return "/" if is_within(home, workspace) else home


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

    bounds = Bounds(hook.timeout, MAX_STDOUT, MAX_STDERR)
    try:
        ran = await converse(("/bin/sh", "-c", hook.command), data, bounds, env=env, cwd=cwd)
    except TimeoutError:  # which is an OSError too
        return failed(f"no answer within {hook.timeout:g} s")
    except OSError as error:
        return failed(f"cannot start: {error.strerror}")
    if ran.out is None:
        return failed(f"more than {MAX_STDOUT} bytes of output")
    return _reply(hook, ran.code, ran.out, ran.err, time.monotonic() - begin)


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
    if updated is not None and not isinstance(updated, dict):
        raise TypeError("`updatedInput` must be an object")
    return Reply(hook, verdict, reason, updated, context[:MAX_CONTEXT], latency=latency)


def _verdict(word: Any) -> Behavior:
    if word not in _DECISIONS:
        raise ValueError(f"unknown decision `{word}`")
    return _DECISIONS[word]
