# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd decisions`: what was decided, and why, from the record."""

from __future__ import annotations

import argparse
import sys

from sandboxd.cli import report, terminal, text
from sandboxd.cli.connect import handler
from sandboxd.client import AsyncClient, DecisionRecord
from sandboxd.model import Behavior


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    show_all = actions.add_parser("list", help="the newest decisions, newest first")
    show_all.add_argument("-n", "--limit", type=_count, default=20, metavar="N", help="how many (default: 20)")
    show_all.add_argument("--session", default="", metavar="ID", help="only this session's")
    show_all.add_argument("--behavior", choices=[item.value for item in Behavior], help="only these")
    show_all.set_defaults(run=handler(_list, needs_daemon=False))

    show = actions.add_parser("show", help="one decision: what it would do, every step, how long it took, what would change it")
    show.add_argument("id", metavar="ID")
    show.set_defaults(run=handler(_show, needs_daemon=False))

    tail = actions.add_parser("tail", help="decisions as they are made")
    tail.set_defaults(run=handler(_tail, needs_daemon=True))

    for action in (show_all, show, tail):
        text.add_output_option(action)


def _count(value: str) -> int:
    """argparse type: 1 to 100,000."""
    if not value.isdecimal() or not 1 <= int(value) <= 100_000:
        raise argparse.ArgumentTypeError(f"`{value}` is not a number from 1 to 100000")
    return int(value)


async def _list(client: AsyncClient, options: argparse.Namespace) -> int:
    behaviors = (Behavior(options.behavior),) if options.behavior else ()
    found = await client.decisions(session_id=options.session, behaviors=behaviors, limit=options.limit)
    if options.output == "json":
        terminal.print_json(found)
    elif found:
        on = terminal.colourful(sys.stdout)
        print(terminal.table([_row(item, on=on) for item in found], ("id", "time", "decision", "step", "command")))
    return 0


async def _show(client: AsyncClient, options: argparse.Namespace) -> int:
    found = await client.decision(options.id)
    if options.output == "json":
        terminal.print_json(found)
        return 0
    on = terminal.colourful(sys.stdout)
    decision = found.decision
    effects = () if found.analysis is None else found.analysis.effects
    print("\n".join((report.source(found.text, decision, effects, on=on), "", *report.verdict(decision, on=on), "")))
    rows = [("mode", found.mode.value), ("directory", terminal.shown(found.cwd)), ("time", text.moment(found.created))]
    rows += [("session", found.session_id), ("execution", found.execution_id or "-")]
    rows += [("grant", f"{grant.kind.value} {terminal.shown(grant.target)}".rstrip()) for grant in decision.grants]
    print(terminal.table(rows))
    understood = "" if found.analysis is None else report.effects(found.analysis, on=on)
    for table in (understood, report.trace(decision), report.timings(found.timings)):
        if table:
            print(f"\n{table}")
    return 0


async def _tail(client: AsyncClient, options: argparse.Namespace) -> int:
    on = terminal.colourful(sys.stdout)
    async for item in client.watch_decisions():
        if options.output == "json":
            terminal.print_json(item)
        else:
            print("  ".join(_row(item, on=on)), flush=True)
    return 0


def _row(item: DecisionRecord, *, on: bool) -> tuple[str, ...]:
    decision = item.decision
    verdict = terminal.paint(f"{decision.behavior.value:5}", terminal.VERDICT_COLOURS[decision.behavior.value], on=on)
    return (item.id, text.moment(item.created), verdict, text.step(decision), terminal.shown(item.text, 100))
