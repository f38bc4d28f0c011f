# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd check`: what would be decided, and why. Needs no daemon and runs nothing."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sandboxd import toolbox, toolcalls
from sandboxd.cli import report, terminal, text
from sandboxd.cli.main import USAGE
from sandboxd.config import Directories, directories, load
from sandboxd.effects.tables import Tables
from sandboxd.errors import RequestError
from sandboxd.judge import Judged, Question, judge
from sandboxd.model import Behavior, CommandKind, Rule, RuleSet, Scope, Session, Source, ToolCall
from sandboxd.policy.rules import excluded_rules, parse_rule
from sandboxd.sessions import Role, SessionSpec, SessionState, enclosing_repository

# Kinds whose words are executed as they stand; the others carry words or redirects that belong to a construct.
_EXECUTED = (CommandKind.SIMPLE, CommandKind.TEST, CommandKind.ARITHMETIC)

_EXIT = {Behavior.ALLOW: 0, Behavior.ASK: 1, Behavior.DENY: 126}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Exit status for one command: 0 allow, 1 ask, 126 deny. With --jsonl: one JSON object a line on standard input "
        "({id, cmd} and perhaps cwd), one answer a line; 0 when all were answered, 2 on bad input."
    )
    parser.add_argument("text", nargs="*", metavar="TEXT", help="the command; several words are quoted and joined")
    parser.add_argument("--tool", metavar="NAME", help="judge the use of a tool instead, as in --tool Edit")
    parser.add_argument("--input", metavar="JSON", help="with --tool: what it is called with, a JSON object")
    parser.add_argument("--jsonl", action="store_true", help="judge many commands: JSON lines in, JSON lines out")
    parser.add_argument("--workspace", metavar="DIR", help="look into this workspace (default: as `run` does; --jsonl: at none)")
    parser.add_argument("--cwd", metavar="DIR", help="where the command would start (default: here)")
    parser.add_argument("-v", "--verbose", action="store_true", help="show every step of the waterfall, and how long it took")
    text.add_policy_options(parser)
    text.add_output_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.jsonl:
        if options.text:
            raise RequestError("--jsonl reads commands from standard input", field="TEXT", fix="leave the command out")
        return _many(options)
    if options.tool is None and options.input is not None:
        raise RequestError("--input belongs to a tool", field="--input", fix="name it with --tool")
    call = None if options.tool is None else _call(options)
    if call is None:
        judged = judge(_question(text.command_text(options.text), options))
    elif call.name == toolcalls.BASH:
        judged = judge(_question(call.input["command"], options))
    else:
        judged = judge(replace(_question(toolcalls.shown(call), options), call=call))
    if options.output == "json":
        terminal.print_json({**_answer(judged), **_reasons(judged, verbose=options.verbose)})
    else:
        print(_explain(judged, on=terminal.colourful(sys.stdout), verbose=options.verbose))
    return _EXIT[judged.decision.behavior]


def _call(options: argparse.Namespace) -> ToolCall:
    """The use of a tool that the options name. Raises RequestError for an input that is none."""
    if options.text:
        raise RequestError("--tool judges no command", field="TEXT", fix="leave the command out")
    try:
        given = json.loads(options.input or "{}")
        json.dumps(given, ensure_ascii=False).encode()
    except ValueError as error:
        raise RequestError(f"not a JSON object: {error}", field="--input", fix='write {"name": "value"}') from None
    if not isinstance(given, dict):
        raise RequestError("not a JSON object", field="--input", fix='write {"name": "value"}')
    return toolbox.call(options.tool, given, ())


def _question(command: str, options: argparse.Namespace) -> Question:
    """The question that `run` would ask: with the rule files in force, and the workspace looked at."""
    dirs = directories()
    config = load(dirs)
    cwd = os.path.realpath(options.cwd or ".")
    workspace = os.path.realpath(options.workspace) if options.workspace else enclosing_repository(cwd)
    for place in (cwd, workspace):
        if not os.path.isdir(place):
            raise RequestError(f"`{place}` is not a directory", field="--workspace", fix="name an existing one")
    isolation = Session("check", workspace, dirs.home, os.getuid(), os.getgid(), tmp="/tmp", own=dirs.own)  # noqa: S108  the box's
    state = SessionState("check", "", SessionSpec(workspace, cwd), Role.ADMIN, isolation)
    state.cli_rules = _cli_rules(options)
    state.refresh_rules(config, dirs)
    return Question(
        text=command,
        cwd=cwd,
        scope=state.scope,
        rules=state.rules,
        mode=options.mode,
        observed=True,
        auto_allow_if_sandboxed=config.policy.auto_allow_if_sandboxed,
        excluded=excluded_rules(config.policy.excluded_commands),
        tables=_tables(dirs),
    )


def _tables(dirs: Directories) -> Tables:
    """The shipped effect tables with the user's own ones. Raises TableError when one of those is wrong."""
    tables = Tables((dirs.effects,))
    tables.check()
    return tables


def _cli_rules(options: argparse.Namespace) -> tuple[Rule, ...]:
    return tuple(
        parse_rule(rule, behavior, Source.CLI_ARG, f"--{behavior.value}")
        for behavior in (Behavior.DENY, Behavior.ASK, Behavior.ALLOW)
        for rule in getattr(options, behavior.value)
    )


# Many commands


def _many(options: argparse.Namespace) -> int:
    """One answer a line, in order; stops at the first line that is no question."""
    rules = RuleSet(_cli_rules(options))
    dirs = directories()
    tables = _tables(dirs)
    here = os.path.realpath(options.cwd or ".")
    workspace = os.path.realpath(options.workspace) if options.workspace else None
    scopes: dict[str, Scope] = {}
    out = sys.stdout
    for number, line in _lines():
        try:
            identity, command, cwd = _read(line)
        except ValueError as error:
            out.flush()
            print(f"sandboxd: stdin:{number}: {error}", file=sys.stderr)
            return USAGE
        cwd = cwd or workspace or here
        root = workspace or cwd
        scope = scopes.get(root)
        if scope is None:
            scope = scopes[root] = Scope(workspace=root, home=dirs.home)
        observed = workspace is not None
        judged = judge(Question(command, cwd, scope, rules, options.mode, observed=observed, tables=tables))
        out.write(json.dumps({"id": identity, **_answer(judged)}) + "\n")
    return 0


def _lines() -> Iterator[tuple[int, bytes]]:
    """Lines of standard input with their numbers; empty ones are skipped."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        if line.strip():
            yield number, line


def _read(line: bytes) -> tuple[Any, str, str]:
    """id, command and cwd ("" = not given) of one line. Raises ValueError saying what is wrong with it."""
    try:
        question = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not a JSON object: {error}") from None
    if not isinstance(question, dict):
        raise ValueError('not a JSON object; write {"id": …, "cmd": …}')
    missing = [key for key in ("id", "cmd") if key not in question]
    if missing:
        raise ValueError(f"`{missing[0]}` is missing")
    command, cwd = question["cmd"], question.get("cwd")
    if not isinstance(command, str):
        raise ValueError("`cmd` must be a string")
    try:
        command.encode()
    except UnicodeEncodeError:
        raise ValueError("`cmd` is not valid Unicode: it holds half a surrogate pair") from None
    if cwd is not None and not (isinstance(cwd, str) and cwd.startswith("/")):
        raise ValueError("`cwd` must be an absolute path")
    return question["id"], command, cwd or ""


def _answer(judged: Judged) -> dict[str, Any]:
    analysis, decision = judged.analysis, judged.decision
    return {
        "parsed": analysis.unparsed is None,
        "read_only": analysis.read_only,
        "concurrency_safe": analysis.concurrency_safe,
        "destructive": analysis.destructive,
        "behavior": decision.behavior.value,
        "step": decision.step,
        "reason": decision.reason,
        "protected": decision.protected,
        "effects": [
            {"kind": effect.kind.value, "target": effect.target, "because": effect.because} for effect in analysis.effects
        ],
        "subcommands": [list(command.argv) for command in analysis.commands if command.subcommand.kind in _EXECUTED],
    }


def _reasons(judged: Judged, *, verbose: bool) -> dict[str, Any]:
    """Why it is so, beyond the answer that every line of --jsonl has."""
    decision = judged.decision
    out: dict[str, Any] = {"message": decision.message, "flip": decision.flip}
    if verbose:
        out |= {"evidence": decision.evidence, "trace": decision.trace}
        out["timings"] = {item.stage: item.seconds for item in judged.timings}
    return out


# One command, for a person


def _explain(judged: Judged, *, on: bool, verbose: bool) -> str:
    analysis, decision = judged.analysis, judged.decision
    out = [report.source(analysis.text, decision, analysis.effects, on=on), "", *report.verdict(decision, on=on)]
    facts = [
        name
        for name, value in (
            ("read-only", analysis.read_only),
            ("concurrency-safe", analysis.concurrency_safe),
            ("destructive", analysis.destructive),
        )
        if value
    ]
    out.append(f"  it is {', '.join(facts) or 'neither read-only nor destructive'}")
    if analysis.unparsed is not None:
        detail = f" ({terminal.shown(analysis.unparsed.detail)})" if analysis.unparsed.detail else ""
        out.append(f"  it could not be read for certain: {analysis.unparsed.reason}{detail}")
    more = (report.trace(decision), report.timings(judged.timings)) if verbose else ()
    tables = (report.effects(analysis, on=on), *more)
    return "\n".join((*out, *(f"\n{table}" for table in tables if table)))
