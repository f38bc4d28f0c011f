# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd approvals`: questions that wait for a human, seen and answered from another terminal."""

from __future__ import annotations

import argparse
import getpass
import sys

from sandboxd.cli import terminal, text
from sandboxd.cli.connect import handler
from sandboxd.client import Answer, Approval, AsyncClient, Settled
from sandboxd.consult.prompt import escape_for_prompt
from sandboxd.errors import NotFound, RequestError


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    show_all = actions.add_parser("list", help="the questions that wait, the riskiest first")
    show_all.set_defaults(run=handler(_list, needs_daemon=True))

    watch = actions.add_parser("watch", help="the questions that wait, then each as it comes and as it is settled")
    watch.set_defaults(run=handler(_watch, needs_daemon=True))

    allow = actions.add_parser("allow", help="let it run")
    allow.add_argument("id", metavar="ID")
    allow.add_argument("--scope", choices=("once", "session", "always"), default="once", help="how long the answer holds")
    allow.add_argument("--rule", default="", metavar="RULE", help="which suggested rule is kept (default: the first one)")
    allow.set_defaults(run=handler(_allow, needs_daemon=True))

    deny = actions.add_parser("deny", help="do not let it run")
    deny.add_argument("id", metavar="ID")
    deny.set_defaults(run=handler(_deny, needs_daemon=True))

    for answer in (allow, deny):
        answer.add_argument("--reason", default="", metavar="TEXT", help="for the record, and for the agent")
    for action in (show_all, watch, allow, deny):
        text.add_output_option(action)


async def _list(client: AsyncClient, options: argparse.Namespace) -> int:
    waiting = await client.approvals()
    if options.output == "json":
        terminal.print_json(waiting)
    else:
        for item in waiting:
            _print(item)
    return 0


async def _watch(client: AsyncClient, options: argparse.Namespace) -> int:
    async for item in client.watch_approvals():
        if options.output == "json":
            terminal.print_json({"kind": "settled" if isinstance(item, Settled) else "raised", "approval": item})
        elif isinstance(item, Settled):
            by = f" by {terminal.shown(item.who)}" if item.who else ""
            print(f"{item.id}  {item.verdict.value}{by}: {terminal.shown(item.reason, 400)}", flush=True)
        else:
            _print(item)
    return 0


async def _allow(client: AsyncClient, options: argparse.Namespace) -> int:
    rule = options.rule
    if options.scope == "once" and rule:
        raise RequestError("a rule is kept for a session or for always", field="--rule", fix="add --scope session or always")
    if options.scope != "once" and not rule:
        rule = await _first_suggestion(client, options.id)
    return await _resolve(client, options, Answer(True, options.scope, rule, options.reason))


async def _deny(client: AsyncClient, options: argparse.Namespace) -> int:
    return await _resolve(client, options, Answer(False, reason=options.reason))


async def _first_suggestion(client: AsyncClient, approval_id: str) -> str:
    for item in await client.approvals():
        if item.id == approval_id:
            if not item.decision.suggestions:
                raise RequestError("no rule is narrow enough to keep for this command", field="--scope", fix="allow it once")
            return item.decision.suggestions[0]
    raise NotFound(f"no approval `{approval_id}` waits", field="ID", fix="see `sandboxd approvals list`")


async def _resolve(client: AsyncClient, options: argparse.Namespace, answer: Answer) -> int:
    await client.resolve(options.id, answer, who=getpass.getuser())
    if options.output == "json":
        terminal.print_json({"id": options.id, "allow": answer.allow, "scope": answer.scope, "rule": answer.rule})
    elif answer.rule:
        print(f"kept `{terminal.shown(answer.rule)}` ({answer.scope})")
    return 0


def _print(item: Approval) -> None:
    on = terminal.colourful(sys.stdout)
    lines = [
        f"{terminal.paint(item.id, terminal.BOLD, on=on)}  since {text.moment(item.created)}, until {text.moment(item.expires)}"
        f"  in {terminal.shown(item.cwd)}",
        "    " + escape_for_prompt(item.text),
        f"  step {text.step(item.decision)}: {terminal.shown(item.decision.message, 400)}",
        *((f"  risk {item.risk} of 100: {terminal.shown(', '.join(item.risk_reasons), 400)}",) if item.risk else ()),
        *text.reasons(item.decision),
        *(f"  could always be allowed by `{terminal.shown(rule)}`" for rule in item.decision.suggestions),
    ]
    print("\n".join(lines), flush=True)
