# SPDX-License-Identifier: GPL-3.0-or-later
"""Rule files: text in, rules out; and how files of several sources become one rule set. Reads no disk.

Our own file:

    [permissions]
    allow = ["Bash(npm run test:*)"]
    ask = ["Bash(git push:*)"]
    deny = ["Read(secrets/**)"]
    default_mode = "acceptEdits"
    additional_directories = ["../shared"]

    [[rule]]
    behavior = "deny"
    rule = "Bash(make deploy:*)"
    reason = "deployments go through CI"
    match = ["make deploy prod"]
    not_match = ["make deploy-docs"]

To add a key: a line in `_PERMISSIONS` or `_RULE`, its use below, a row in tests/corpus/policy_sources.toml.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from sandboxd.errors import RuleError
from sandboxd.model import Behavior, Mode, Rule, RuleSet, Source, Strategy
from sandboxd.policy.rules import parse_rule
from sandboxd.tomltext import TomlText

_BEHAVIORS = {behavior.value: behavior for behavior in Behavior}
_MODES = {mode.value: mode for mode in Mode}
_LISTS = ("deny", "ask", "allow")
_PERMISSIONS = (*_LISTS, "default_mode", "additional_directories")
_RULE = ("behavior", "rule", "reason", "match", "not_match")
_CLAUDE = (*_LISTS, "defaultMode", "additionalDirectories", "disableBypassPermissionsMode")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """What one rule file says. `trusted` False: it comes from a workspace that nobody has trusted.

    `ignored` names what was not understood, each as `file:line: what`; `forbid_bypass` is set when the file switches the
    mode bypassPermissions off.
    """

    source: Source
    origin: str
    trusted: bool
    rules: tuple[Rule, ...] = ()
    ignored: tuple[str, ...] = ()
    default_mode: Mode | None = None
    additional_directories: tuple[str, ...] = ()
    forbid_bypass: bool = False


def parse_settings_toml(text: str, source: Source, origin: str, trusted: bool) -> SourceFile:
    """Read our own rule file. Raises RuleError with file:line for anything unknown or malformed."""
    document = TomlText(text, origin, RuleError)
    for key in document.data:
        if key not in ("permissions", "rule", "hook"):  # consult.hookdefs reads the hooks
            raise document.fail(f"unknown section `{key}`", key, fix="use `[permissions]`, `[[rule]]` and `[[hook]]`")
    permissions = document.data.get("permissions", {})
    if not isinstance(permissions, dict):
        raise document.fail("`permissions` must be a table", "permissions", fix="write it as `[permissions]`")
    for key in permissions:
        if key not in _PERMISSIONS:
            raise document.fail(
                f"unknown key `permissions.{key}`", "permissions", key, fix=f"use one of {', '.join(_PERMISSIONS)}"
            )
    rules = []
    for name in _LISTS:
        line = _Lines(text, document.where("permissions", name))
        items = _strings(document, permissions.get(name, []), "permissions", name)
        rules += [parse_rule(item, _BEHAVIORS[name], source, line.of(item)) for item in items]
    mode = permissions.get("default_mode")
    if mode is not None and mode not in _MODES:
        raise document.fail(
            f"`permissions.default_mode` must be a mode, not `{mode}`",
            "permissions",
            "default_mode",
            fix=f"use one of {', '.join(_MODES)}",
        )
    tables = document.data.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise document.fail("`rule` must be an array of tables", "rule", fix="write each as `[[rule]]`")
    rules += [_rule_table(document, number, table, source) for number, table in enumerate(tables)]
    return SourceFile(
        source,
        origin,
        trusted,
        tuple(rules),
        default_mode=None if mode is None else _MODES[mode],
        additional_directories=_strings(
            document, permissions.get("additional_directories", []), "permissions", "additional_directories"
        ),
    )


def _rule_table(document: TomlText, number: int, table: dict[str, Any], source: Source) -> Rule:
    where = document.where("rule", number)
    for key in table:
        if key not in _RULE:
            raise document.fail(f"unknown key `{key}` in a rule", "rule", number, key, fix=f"use one of {', '.join(_RULE)}")
    behavior = table.get("behavior")
    if behavior not in _BEHAVIORS:
        raise document.fail(
            f"a rule's `behavior` must be allow, ask or deny, not `{behavior}`", "rule", number, "behavior", fix="say which"
        )
    text = table.get("rule")
    if not isinstance(text, str):
        raise RuleError("a rule has no `rule` text", origin=where, fix='write `rule = "Bash(git status)"`')
    reason = table.get("reason", "")
    if not isinstance(reason, str):
        raise document.fail("a rule's `reason` must be a string", "rule", number, "reason")
    return parse_rule(
        text,
        _BEHAVIORS[behavior],
        source,
        document.where("rule", number, "rule"),
        reason,
        _strings(document, table.get("match", []), "rule", number, "match"),
        _strings(document, table.get("not_match", []), "rule", number, "not_match"),
    )


def _strings(document: TomlText, value: Any, *path: str | int) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise document.fail(f"`{path[-1]}` must be a list of strings", *path)
    return tuple(value)


class _Lines:
    """Finds the line on which each item of a list stands, in order, from the list's own line on."""

    def __init__(self, text: str, where: str) -> None:
        name, separator, line = where.rpartition(":")
        known = bool(separator) and line.isdigit()
        self._file = name if known else where
        self._lines = text.splitlines()
        self._at = int(line) - 1 if known else 0
        self._known = known

    def of(self, item: str) -> str:
        if not self._known:
            return self._file
        forms = (item, json.dumps(item)[1:-1], json.dumps(item, ensure_ascii=False)[1:-1])
        for number in range(self._at, len(self._lines)):
            if any(form in self._lines[number] for form in forms):
                self._at = number
                return f"{self._file}:{number + 1}"
        return f"{self._file}:{self._at + 1}"


def parse_claude_settings(text: str, source: Source, origin: str, trusted: bool) -> SourceFile:
    """Read the `permissions` block of a `.claude/settings.json`-style file as it is.

    Raises RuleError with file:line when the text is not JSON, names a key twice, or holds a malformed rule; what is well
    formed but not understood is listed in `ignored`.
    """
    data = _json(text, origin)
    ignored = [
        f"{_find(text, key, origin)}: `{key}` is not read"
        for key in data
        if key not in ("permissions", "hooks", "$schema", "disableAllHooks")
    ]
    block = data.get("permissions", {})
    if not isinstance(block, dict):
        raise RuleError("`permissions` must be an object", origin=_find(text, "permissions", origin))
    rules = []
    for key, value in block.items():
        if key not in _CLAUDE:
            ignored.append(f"{_find(text, key, origin)}: `permissions.{key}` is not understood")
        elif key in (*_LISTS, "additionalDirectories") and (
            not isinstance(value, list) or not all(isinstance(item, str) for item in value)
        ):
            raise RuleError(f"`permissions.{key}` must be a list of strings", origin=_find(text, key, origin))
    for name in _LISTS:
        lines = _Lines(text, _find(text, name, origin))
        rules += [parse_rule(item, _BEHAVIORS[name], source, lines.of(item), lenient=True) for item in block.get(name, [])]
    mode = block.get("defaultMode")
    if mode is not None and (not isinstance(mode, str) or mode not in _MODES):
        ignored.append(f"{_find(text, 'defaultMode', origin)}: mode `{mode}` is not known; the mode stays as it is")
        mode = None
    forbid = block.get("disableBypassPermissionsMode")
    if forbid not in (None, "disable"):
        ignored.append(f"{_find(text, 'disableBypassPermissionsMode', origin)}: `{forbid}` is not understood")
    return SourceFile(
        source,
        origin,
        trusted,
        tuple(rules),
        tuple(ignored),
        None if mode is None else _MODES[mode],
        tuple(block.get("additionalDirectories", [])),
        forbid == "disable",
    )


def _json(text: str, origin: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in pairs:
            if key in out:
                raise RuleError(f"the key `{key}` stands twice", origin=_find(text, key, origin), fix="merge the two")
            out[key] = value
        return out

    if not text.strip():
        return {}
    try:
        data = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise RuleError(f"not valid JSON: {error.msg}", origin=f"{origin}:{error.lineno}") from None
    except RecursionError:
        raise RuleError("nested too deeply", origin=origin) from None
    if not isinstance(data, dict):
        raise RuleError("must be a JSON object", origin=f"{origin}:1")
    return data


def _find(text: str, key: str, origin: str) -> str:
    """`file:line` of the first place where `key` stands as a key."""
    found = re.search(re.escape(json.dumps(key)) + r"\s*:", text)
    return origin if found is None else f"{origin}:{text.count(chr(10), 0, found.start()) + 1}"


_RANK = {source: rank for rank, source in enumerate(Source)}


def rank(source: Source) -> int:
    """0 is the highest source."""
    return _RANK[source]


def merge(files: tuple[SourceFile, ...], strategy: Strategy) -> RuleSet:
    """One rule set, in source order. What an untrusted file allows is inert and only reported; what it tightens counts,
    and takes no other rule's place."""
    rules: list[Rule] = []
    inert: list[Rule] = []
    for file in sorted(files, key=lambda file: rank(file.source)):
        if file.trusted:
            rules += file.rules
            continue
        for rule in file.rules:
            (inert if rule.behavior is Behavior.ALLOW else rules).append(replace(rule, trusted=False))
    return RuleSet(tuple(rules), strategy, tuple(inert))
