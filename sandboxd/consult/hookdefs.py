# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hooks there are: `[[hook]]` tables of our settings files, `hooks` blocks of `.claude/settings.json`-style files.

    [[hook]]
    event = "PreToolUse"            # PreToolUse, PostToolUse, PostToolUseFailure, PermissionRequest, SessionStart, SessionEnd
    matcher = "Bash|Edit"           # tool names joined by `|`, `mcp__server__*`, or a regular expression for the whole name
    command = "/opt/checks/no-prod" # run by /bin/sh -c
    timeout = 30                    # seconds
    on_failure = "block"            # or "ignore" (default; "block" for the organisation's hooks)
    before_send = false             # true: it ends before anything of the command is sent to a classifier
    background = false              # true: nobody waits for it and its answer does not count
    env = ["CHECK_LEVEL"]           # names of the daemon's environment that it gets, beside the fixed few

To add an event: a member of `HookEvent`, its default time-out, and the place in the engine that fires it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any

from sandboxd.errors import ConfigError, RuleError
from sandboxd.model import Source
from sandboxd.tomltext import TomlText


@unique
class HookEvent(Enum):
    PRE_TOOL_USE = "PreToolUse"
    POST_TOOL_USE = "PostToolUse"
    POST_TOOL_USE_FAILURE = "PostToolUseFailure"
    PERMISSION_REQUEST = "PermissionRequest"
    SESSION_START = "SessionStart"
    SESSION_END = "SessionEnd"


DEFAULT_TIMEOUT = 600.0  # seconds
TIMEOUTS = {HookEvent.SESSION_END: 1.5}  # seconds; nobody waits long for a session that is over
MAX_TIMEOUT = 3600.0
_EVENTS = {event.value: event for event in HookEvent}
_KEYS = ("event", "matcher", "command", "timeout", "on_failure", "background", "before_send", "env")
_NAMES = re.compile(r"[A-Za-z0-9_.|*-]*")
_BELOW = re.compile(r"(mcp__(?:[A-Za-z0-9_-]+__)?)\*")


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook command. `origin` is `file:line`; `blocks`: when it fails, that counts as a deny."""

    event: HookEvent
    command: str
    source: Source
    origin: str
    matcher: str = ""
    timeout: float = DEFAULT_TIMEOUT
    blocks: bool = False
    background: bool = False
    env: tuple[str, ...] = ()
    before_send: bool = False

    def matches(self, tool: str) -> bool:
        """Whether it wants to hear of `tool`; events without a tool match every hook."""
        if self.matcher in ("", "*") or not tool:
            return True
        if not _NAMES.fullmatch(self.matcher):
            return re.fullmatch(self.matcher, tool) is not None
        return any(_names(each, tool) for each in self.matcher.split("|"))


def _names(pattern: str, tool: str) -> bool:
    """Whether one part of a matcher names a tool. `mcp__server__*` means that server's tools, as in rules, not a `_` or more."""
    below = _BELOW.fullmatch(pattern)
    return tool.startswith(below[1]) if below is not None else re.fullmatch(pattern, tool) is not None


def parse_hooks_toml(text: str, source: Source, origin: str) -> tuple[Hook, ...]:
    """The `[[hook]]` tables of one settings file. Raises ConfigError with file:line, naming the key and the fix."""
    document = TomlText(text, origin, ConfigError)
    tables = document.data.get("hook", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise document.fail("`hook` must be an array of tables", "hook", fix="write each as `[[hook]]`")
    return tuple(_table(document, number, table, source) for number, table in enumerate(tables))


def _table(document: TomlText, number: int, table: dict[str, Any], source: Source) -> Hook:
    def wrong(message: str, key: str, fix: str) -> ConfigError:
        return document.fail(message, "hook", number, key, fix=fix)

    for key in table:
        if key not in _KEYS:
            raise wrong(f"unknown key `{key}` in a hook", key, f"use one of {', '.join(_KEYS)}")
    event = _EVENTS.get(table.get("event", ""))
    if event is None:
        raise wrong(f"unknown hook event `{table.get('event', '')}`", "event", f"use one of {', '.join(_EVENTS)}")
    command, matcher = table.get("command"), table.get("matcher", "")
    if not isinstance(command, str) or not command.strip():
        raise wrong("a hook needs a `command`", "command", "name a shell command")
    problem = _matcher_problem(matcher)
    if problem:
        raise wrong(problem, "matcher", "use tool names joined by `|`, or a regular expression")
    timeout = table.get("timeout", TIMEOUTS.get(event, DEFAULT_TIMEOUT))
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout <= MAX_TIMEOUT:
        raise wrong(f"`timeout` must be a number of seconds up to {MAX_TIMEOUT:g}", "timeout", "for example `timeout = 30`")
    on_failure = table.get("on_failure", "block" if source is Source.POLICY else "ignore")
    if on_failure not in ("block", "ignore"):
        raise wrong(f"`on_failure` must be block or ignore, not `{on_failure}`", "on_failure", "use one of them")
    background = table.get("background", False)
    if not isinstance(background, bool):
        raise wrong("`background` must be true or false", "background", "use one of them")
    before_send = table.get("before_send", False)
    if not isinstance(before_send, bool) or (before_send and background):
        raise wrong("`before_send` must be true or false, and goes with no background hook", "before_send", "use one of them")
    env = table.get("env", [])
    if not isinstance(env, list) or not all(isinstance(name, str) and name.isidentifier() for name in env):
        raise wrong("`env` must be a list of variable names", "env", 'for example `env = ["CHECK_LEVEL"]`')
    return Hook(
        event,
        command,
        source,
        document.where("hook", number),
        matcher,
        float(timeout),
        on_failure == "block",
        background,
        tuple(env),
        before_send,
    )


def _matcher_problem(matcher: Any) -> str:
    if not isinstance(matcher, str):
        return "`matcher` must be a string"
    try:
        re.compile(matcher if matcher != "*" else "")
    except re.error as error:
        return f"`matcher` is no regular expression: {error}"
    return ""


def parse_hooks_claude(text: str, source: Source, origin: str) -> tuple[tuple[Hook, ...], tuple[str, ...]]:
    """The `hooks` block of a `.claude/settings.json`-style file, and what in it is not understood, each as `file: what`.

    Raises RuleError when a command hook of a known event is malformed. The text is known to be a JSON object.
    """
    data = json.loads(text or "{}")
    block = data.get("hooks", {})
    if not isinstance(block, dict):
        raise RuleError("`hooks` must be an object", origin=origin)
    hooks: list[Hook] = []
    ignored: list[str] = []
    off = data.get("disableAllHooks", False)
    if off is True:
        return (), (f"{origin}: `disableAllHooks` turns off the hooks of this file, and of no other",)
    if off is not False:
        ignored.append(f"{origin}: `disableAllHooks` is neither true nor false")
    for name, groups in block.items():
        event = _EVENTS.get(name)
        if event is None:
            ignored.append(f"{origin}: hook event `{name}` is not known here")
            continue
        if not isinstance(groups, list):
            raise RuleError(f"`hooks.{name}` must be a list", origin=origin)
        for group in groups:
            if (
                not isinstance(group, dict)
                or not isinstance(group.get("hooks"), list)
                or _matcher_problem(group.get("matcher", ""))
            ):
                raise RuleError(f"an entry of `hooks.{name}` is malformed", origin=origin, fix="give it `matcher` and `hooks`")
            for entry in group["hooks"]:
                kind = entry.get("type") if isinstance(entry, dict) else None
                if kind != "command":
                    ignored.append(f"{origin}: hook type `{kind}` of `{name}` is not known here")
                    continue
                hooks.append(_claude_entry(event, group.get("matcher", ""), entry, source, _line(text, entry, origin)))
    return tuple(hooks), tuple(ignored)


def _line(text: str, entry: dict[str, Any], origin: str) -> str:
    """`file:line` of the first place where the entry's command stands."""
    for form in (json.dumps(entry.get("command")), json.dumps(entry.get("command"), ensure_ascii=False)):
        at = text.find(form)
        if at >= 0:
            return f"{origin}:{text.count(chr(10), 0, at) + 1}"
    return origin


def _claude_entry(event: HookEvent, matcher: str, entry: dict[str, Any], source: Source, origin: str) -> Hook:
    command = entry.get("command")
    timeout = entry.get("timeout", TIMEOUTS.get(event, DEFAULT_TIMEOUT))
    if not isinstance(command, str) or not command.strip():
        raise RuleError(f"a hook of `{event.value}` needs a `command`", origin=origin)
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout <= MAX_TIMEOUT:
        raise RuleError(f"the `timeout` of a hook of `{event.value}` must be seconds up to {MAX_TIMEOUT:g}", origin=origin)
    background = entry.get("async") is True
    return Hook(event, command, source, origin, matcher, float(timeout), source is Source.POLICY, background)
