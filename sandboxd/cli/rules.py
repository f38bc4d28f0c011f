# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd rules`: the permission rules in force in a workspace, and what is wrong or without effect among them."""

from __future__ import annotations

import argparse
import os
from typing import Any

from sandboxd import rulefiles
from sandboxd.cli import terminal, text
from sandboxd.config import directories, load
from sandboxd.errors import ConfigError, RequestError
from sandboxd.model import Rule
from sandboxd.policy.shadows import shadows, unreachable
from sandboxd.rulefiles import RuleFiles


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("list", help="every rule in force, strongest source first")
    show.set_defaults(run=_list)
    check = actions.add_parser("check", help="malformed, shadowed, untrusted and unknown; exit status 1 when there is any")
    check.set_defaults(run=_check)
    for action in (show, check):
        action.add_argument("--workspace", default=".", metavar="DIR", help="whose project files count too (default: here)")
        text.add_output_option(action)


def _read(options: argparse.Namespace) -> RuleFiles:
    """The rules of a workspace. Raises ConfigError with file:line for a malformed one."""
    workspace = os.path.realpath(options.workspace)
    if not os.path.isdir(workspace):
        raise RequestError(f"`{options.workspace}` is not a directory", field="--workspace", fix="name an existing one")
    dirs = directories()
    return rulefiles.read(load(dirs), dirs, workspace)


def _list(options: argparse.Namespace) -> int:
    found = _read(options).rules
    if options.output == "json":
        terminal.print_json({"strategy": found.strategy, "rules": found.rules, "inert": found.inert})
        return 0
    rows = [_row(rule, "" if rule.trusted else "only tightens") for rule in found.rules] + [
        _row(rule, "inert: not trusted") for rule in found.inert
    ]
    if rows:
        print(terminal.table(rows, ("behavior", "rule", "source", "where", "")))
    return 0


def _row(rule: Rule, note: str) -> tuple[str, ...]:
    return (rule.behavior.value, terminal.shown(rule.text, 100), rule.source.value, terminal.shown(rule.origin), note)


def _check(options: argparse.Namespace) -> int:
    problems: list[tuple[str, str]] = []
    try:
        found = _read(options)
    except ConfigError as error:
        dirs = directories()
        malformed = rulefiles.errors(load(dirs), dirs, os.path.realpath(options.workspace)) or (str(error),)
        problems += [("malformed", item) for item in malformed]
    else:
        problems += [("no effect", item) for item in unreachable(found.rules)]
        problems += [("no effect", str(shadow)) for shadow in shadows(found.rules)]
        problems += [
            ("inert", f"{rule.origin}: `{rule.text}` ({rule.behavior.value}) comes from a workspace that is not trusted")
            for rule in found.rules.inert
        ]
        problems += [("not understood", item) for item in found.ignored]
    if options.output == "json":
        answer: list[dict[str, Any]] = [{"kind": kind, "message": message} for kind, message in problems]
        terminal.print_json({"valid": not problems, "problems": answer})
    else:
        lines = (f"{kind}: {terminal.shown(message, 1000)}" for kind, message in problems)
        print("\n".join(lines) or "nothing is wrong with them")
    return 1 if problems else 0
