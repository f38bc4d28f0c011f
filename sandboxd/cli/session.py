# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd session`: the sessions of the running daemon."""

from __future__ import annotations

import argparse

from sandboxd.cli import figures, terminal, text
from sandboxd.cli.connect import handler
from sandboxd.client import AsyncClient, SessionInfo


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    create = actions.add_parser("create", help="open a session; prints its id and secret")
    create.add_argument("--workspace", default="", metavar="DIR", help="default: the repository around --cwd, else it")
    create.add_argument("--cwd", default="", metavar="DIR", help="default: here")
    create.add_argument("--profile", default="", metavar="P", help="isolation profile (default: the configured one)")
    create.add_argument("--headless", action="store_true", help="ask nobody: ASK becomes DENY")
    create.add_argument("--additional", action="append", default=[], metavar="DIR", help="another directory that it may use")
    text.add_policy_options(create)
    create.set_defaults(run=handler(_create, needs_daemon=True))

    show_all = actions.add_parser("list", help="all sessions, oldest first")
    show_all.set_defaults(run=handler(_list, needs_daemon=True))

    show = actions.add_parser("show", help="one session and what it runs")
    show.add_argument("id", metavar="ID")
    show.set_defaults(run=handler(_show, needs_daemon=True))

    delete = actions.add_parser("delete", help="end a session and everything it runs")
    delete.add_argument("id", metavar="ID")
    delete.set_defaults(run=handler(_delete, needs_daemon=True))

    mode = actions.add_parser("mode", help="change how much a session may do without asking")
    mode.add_argument("id", metavar="ID")
    mode.add_argument("mode", type=text.mode, metavar="MODE")
    mode.set_defaults(run=handler(_mode, needs_daemon=True))

    for action in (create, show_all, show, delete, mode):
        text.add_output_option(action)


async def _create(client: AsyncClient, options: argparse.Namespace) -> int:
    session = await client.session(
        options.workspace,
        cwd=options.cwd,
        mode=options.mode,
        profile=options.profile,
        headless=options.headless,
        allow=options.allow,
        ask=options.ask,
        deny=options.deny,
        additional=options.additional,
    )
    if options.output == "json":
        terminal.print_json({"session": session.info, "secret": session.secret})
    else:
        print(terminal.table([("id", session.id), ("secret", session.secret), ("workspace", session.info.workspace)]))
    return 0


async def _list(client: AsyncClient, options: argparse.Namespace) -> int:
    sessions = await client.sessions()
    if options.output == "json":
        terminal.print_json(sessions)
    elif sessions:
        rows = [
            (item.id, item.mode.value, item.profile or "-", "headless" if item.headless else "asks", terminal.shown(item.cwd))
            for item in sessions
        ]
        print(terminal.table(rows, ("id", "mode", "profile", "humans", "directory")))
    return 0


async def _show(client: AsyncClient, options: argparse.Namespace) -> int:
    session = await client.attach_session(options.id)
    executions = await session.executions()
    if options.output == "json":
        terminal.print_json({"session": session.info, "executions": executions})
        return 0
    _print(session.info)
    if executions:
        rows = [
            (item.id, item.state, "" if item.result is None else str(item.result.code), terminal.shown(item.text, 100))
            for item in executions
        ]
        print(f"\n{terminal.table(rows, ('execution', 'state', 'exit', 'command'))}")
    return 0


async def _delete(client: AsyncClient, options: argparse.Namespace) -> int:
    session = await client.attach_session(options.id)
    await session.delete()
    if options.output == "json":
        terminal.print_json({"deleted": session.id})
    return 0


async def _mode(client: AsyncClient, options: argparse.Namespace) -> int:
    session = await client.attach_session(options.id)
    info = await session.update(mode=options.mode)
    if options.output == "json":
        terminal.print_json(info)
    else:
        _print(info)
    return 0


def _print(info: SessionInfo) -> None:
    rows = [
        ("id", info.id),
        ("workspace", terminal.shown(info.workspace)),
        ("directory", terminal.shown(info.cwd)),
        (
            "mode",
            info.mode.value if info.mode is info.mode_in_force else f"{info.mode.value} (in force: {info.mode_in_force.value})",
        ),
        *((("parent", info.parent_id),) if info.parent_id else ()),
        ("profile", info.profile or "the configured one"),
        ("humans", "headless: ASK becomes DENY" if info.headless else "may be asked"),
        ("denials", f"{info.denials[0]} in a row, {info.denials[1]} in all" + (": a human is asked" if info.asks_human else "")),
        *((("classifier", figures.usage(info.classifier_usage)),) if info.classifier_usage.requests else ()),
        ("since", text.moment(info.created)),
        *(("allow", terminal.shown(rule)) for rule in info.allow),
        *(("ask", terminal.shown(rule)) for rule in info.ask),
        *(("deny", terminal.shown(rule)) for rule in info.deny),
        *(("also in", terminal.shown(path)) for path in info.additional),
        *(("error", terminal.shown(error, 1000)) for error in info.rule_errors),
        *(("no effect", terminal.shown(note, 400)) for note in info.rule_notes),
        *(("hooks said", terminal.shown(said, 400)) for said in info.context),
    ]
    print(terminal.table(rows))
