# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd executions`: what the running daemon runs and has lately run; seen, followed, fed and ended from anywhere."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from sandboxd.cli import prompt, terminal, text
from sandboxd.cli.connect import daemon_client, handler
from sandboxd.cli.follow import feed, follow, sinks
from sandboxd.cli.run import report
from sandboxd.client import AsyncClient, AsyncExecution, ExecutionInfo
from sandboxd.errors import RequestError
from sandboxd.model import Exited


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "`sandboxd run --background -- TEXT` prints the id of one that goes on alone. It ends with its session "
        "(`sandboxd session delete`), which also forgets what it printed."
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    show_all = actions.add_parser("list", help="all that run or wait, and those that ended lately, newest first")
    show_all.add_argument("--session", default="", metavar="ID", help="only this session's")
    show_all.add_argument("--running", action="store_true", help="only those that have not ended")
    show_all.set_defaults(run=handler(_list, needs_daemon=True))

    show = actions.add_parser("show", help="how one stands or ended, and what a model reads of it")
    show.set_defaults(run=handler(_show, needs_daemon=True))

    logs = actions.add_parser("logs", help="what it has printed so far; as JSON, its events, one a line")
    logs.add_argument("-f", "--follow", action="store_true", help="and what it prints from now on, to its end")
    logs.add_argument("--from", dest="start", type=_sequence, default=1, metavar="N", help="only from event N on")
    logs.set_defaults(run=handler(_logs, needs_daemon=True))

    attach = actions.add_parser("attach", help="follow it as `run` would, from its beginning; Ctrl-C leaves it running")
    attach.add_argument("--stdin", action="store_true", help="pass standard input on to it, up to its end")
    attach.add_argument("--summary", action="store_true", help="say at the end what was decided, and how it was confined")
    attach.set_defaults(run=handler(_attach, needs_daemon=True), verbose=False)

    send = actions.add_parser("signal", help="send a signal to it")
    kill = actions.add_parser("kill", help="send KILL to it")
    cancel = actions.add_parser("cancel", help="end it: TERM, then KILL to all of it; waits until it is over")
    cancel.add_argument("--cause", default="", metavar="TEXT", help="for the record and the result")
    send.set_defaults(run=handler(_signal, needs_daemon=True))
    kill.set_defaults(run=handler(_signal, needs_daemon=True), signal=int(signal.SIGKILL))
    cancel.set_defaults(run=handler(_cancel, needs_daemon=True))

    for action in (show, logs, attach, send, kill, cancel):
        action.add_argument("id", metavar="ID")
    send.add_argument("signal", type=_number, metavar="SIGNAL", help="by name or number, as in `HUP` or `1`")
    for action in (show_all, show, logs, attach, send, kill, cancel):
        text.add_output_option(action)


def _sequence(value: str) -> int:
    """argparse type: the number of an event."""
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"`{value}` is no number of an event; they count from 1")
    return int(value)


def _number(value: str) -> int:
    """argparse type: a signal by name, with or without SIG, or by number."""
    if value.isdecimal() and 1 <= int(value) <= 64:
        return int(value)
    try:
        return int(signal.Signals[f"SIG{value.upper().removeprefix('SIG')}"])
    except KeyError:
        raise argparse.ArgumentTypeError(f"`{value}` is no signal; see signal(7)") from None


async def _list(client: AsyncClient, options: argparse.Namespace) -> int:
    found = await client.executions()
    if options.session:
        found = await (await client.attach_session(options.session)).executions()
    if options.running:
        found = tuple(item for item in found if item.result is None)
    if options.output == "json":
        terminal.print_json(found)
    elif found:
        rows = [(item.id, item.state, _status(item), item.session_id, terminal.shown(item.text, 100)) for item in found]
        print(terminal.table(rows, ("id", "state", "exit", "session", "command")))
    return 0


async def _show(client: AsyncClient, options: argparse.Namespace) -> int:
    item = await client.execution(options.id)
    if options.output == "json":
        terminal.print_json(item)
        return 0
    rows = [("id", item.id), ("session", item.session_id), ("command", terminal.shown(item.text, 1000)), ("state", item.state)]
    result, shown = item.result, item.model_text
    if result is not None:
        cause = f": {terminal.shown(result.cause, 1000)}" if result.cause else ""
        rows += [
            ("end", f"{result.end.value}, {_status(item)}{cause}"),
            ("took", f"{result.usage.wall:.2f} s; cpu {result.usage.user + result.usage.system:.2f} s"),
            ("output", f"{result.stdout_bytes} + {result.stderr_bytes} bytes" + (", not all kept" if result.truncated else "")),
            ("confined", text.enforcement(result.enforcement)),
            *(("note", terminal.shown(note, 1000)) for note in result.notes),
        ]
    if shown is not None:
        kept = f"; all of it in {terminal.shown(shown.spill_path, 1000)}" if shown.spill_path else ""
        rows.append(("a model reads", f"{len(shown.text)} characters, {'whole' if shown.whole else 'a preview'}{kept}"))
    print(terminal.table(rows))
    return 0


def _status(item: ExecutionInfo) -> str:
    return "" if item.result is None else str(item.result.code)


async def _logs(client: AsyncClient, options: argparse.Namespace) -> int:
    last = None if options.follow else (await client.execution(options.id)).last_sequence
    if last is not None and last < options.start:
        return 0
    async with await client.attach_execution(options.id, from_sequence=options.start) as execution:
        if options.output == "json":
            await _events(execution, last)
        else:
            await follow(execution, sinks(), quiet=not options.follow, last=last)
    return 0


async def _events(execution: AsyncExecution, last: int | None) -> None:
    async for event in execution:
        terminal.print_json({"kind": type(event).__name__.lower(), "event": event})
        if isinstance(event, Exited) or (last is not None and event.seq >= last):
            return


async def _attach(client: AsyncClient, options: argparse.Namespace) -> int:
    """Exits as the command does. A question that waits is asked here, too."""
    waits = (await client.execution(options.id)).state == "waiting"
    if waits and prompt.available() and options.output == "text":
        async with daemon_client(on_ask=prompt.ask) as asking:
            return await _attached(asking, options)
    return await _attached(client, options)


async def _attached(client: AsyncClient, options: argparse.Namespace) -> int:
    async with await client.attach_execution(options.id) as execution:
        feeding: asyncio.Task[None] | None = None
        if options.stdin:
            await execution.write_stdin(b"")  # it may have had some already; raises when it has ended or takes none
            feeding = asyncio.create_task(feed(execution, sys.stdin.fileno()))
        collect = options.output == "json"
        try:
            done = await follow(execution, sinks(collect=collect), quiet=collect)
        except asyncio.CancelledError:
            print(f"sandboxd: left running; `sandboxd executions cancel {options.id}` ends it", file=sys.stderr)
            raise
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.wait([feeding])
    assert done is not None, "an execution ends with Exited"
    report(done, options)
    return done.exit_code


async def _signal(client: AsyncClient, options: argparse.Namespace) -> int:
    async with await client.attach_execution(options.id) as execution:
        await execution.signal(options.signal)
    if options.output == "json":
        terminal.print_json({"id": options.id, "signal": options.signal})
    return 0


async def _cancel(client: AsyncClient, options: argparse.Namespace) -> int:
    if (await client.execution(options.id)).result is not None:
        raise RequestError(f"execution `{options.id}` has ended", field="ID", fix="see `sandboxd executions show`")
    async with await client.attach_execution(options.id) as execution:
        await execution.cancel(options.cause)
        done = await follow(execution, sinks(collect=True), quiet=True)
    assert done is not None, "an execution ends with Exited"
    if options.output == "json":
        terminal.print_json({"id": options.id, "result": done.result})
    else:
        print(f"{done.result.end.value}: {terminal.shown(done.result.cause, 1000)}")
    return 0
