# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd run`: one command, judged, confined and streamed; exits as the command does."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time

from sandboxd.cli import interactive, prompt, terminal, text
from sandboxd.cli.connect import any_client, daemon_client
from sandboxd.cli.follow import feed, follow, sinks
from sandboxd.client import AsyncExecution, AsyncSession, Run
from sandboxd.errors import RequestError
from sandboxd.model import Behavior, EndKind, Result, Strength

INTERRUPT_CAUSE = "interrupted"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sandboxd run [options] -- TEXT"
    parser.epilog = (
        "Options stand before `--`. One word is bash source as it is; several words are quoted and joined. Exit status: the "
        "command's; 128+n when signal n ended it, 124 time-out, 125 sandboxd failed, 126 denied, 127 not found, 130 Ctrl-C, "
        "2 usage. Without a terminal nobody is asked: what would ask is denied."
    )
    parser.add_argument("text", nargs="*", metavar="TEXT", help="the command")
    text.add_policy_options(parser)
    parser.add_argument("--profile", default="", metavar="P", help="isolation profile (default: the configured one)")
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="seconds the command may run")
    parser.add_argument("--workspace", default="", metavar="DIR", help="default: the repository around the directory, else it")
    parser.add_argument("--cwd", default="", metavar="DIR", help="where it starts (default: here)")
    parser.add_argument("-t", "--tty", action="store_true", help="run it on a terminal of its own, for programs that draw")
    parser.add_argument("--background", action="store_true", help="leave it running in the daemon, and print its id")
    parser.add_argument("--stdin", action="store_true", help="with --background: keep its standard input open for `attach`")
    parser.add_argument(
        "--detach-ttl", type=_seconds, metavar="S", help="with --background: end it when nobody has followed it for S seconds"
    )
    parser.add_argument("--embedded", action="store_true", help="use no running daemon: be one for this command")
    parser.add_argument("--summary", action="store_true", help="say at the end what was decided, and how it was confined")
    parser.add_argument("-v", "--verbose", action="store_true", help="the summary, and every step of the decision")
    text.add_output_option(parser)
    parser.set_defaults(run=run)


def _seconds(value: str) -> float:
    """argparse type: a positive number of seconds."""
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"`{value}` is not a positive number of seconds")
    return number


def run(options: argparse.Namespace) -> int:
    for name in ("tty", "embedded") if options.background else ("stdin", "detach_ttl"):
        if getattr(options, name):
            option = f"--{name.replace('_', '-')}"
            belongs = "does not go with" if options.background else "needs"
            raise RequestError(f"{option} {belongs} --background", field=option, fix="leave one of them out")
    return asyncio.run(_main(options, text.command_text(options.text)))


async def _main(options: argparse.Namespace, command: str) -> int:
    """Run it; SIGINT, SIGTERM and SIGHUP end the command first and then this process, as the signal would have."""
    caught: list[signal.Signals] = []
    executions: list[AsyncExecution] = []
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()

    def interrupt(number: signal.Signals) -> None:
        caught.append(number)
        if len(caught) == 1 and executions:
            cancelling.append(loop.create_task(executions[0].cancel(INTERRUPT_CAUSE)))
        elif task is not None:
            task.cancel()

    cancelling: list[asyncio.Task[None]] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupt, number)
    try:
        on_ask = prompt.ask if prompt.available() and options.output == "text" else None
        connection = daemon_client(on_ask=on_ask) if options.background else any_client(embedded=options.embedded, on_ask=on_ask)
        async with connection as client:
            session = await client.session(
                options.workspace,
                cwd=options.cwd or os.getcwd(),
                mode=options.mode,
                profile=options.profile,
                allow=options.allow,
                ask=options.ask,
                deny=options.deny,
            )
            if options.background:
                done = await _left(session, command, options, executions)
            else:
                async with session:
                    done = await _follow(session, command, options, executions)
        status = 0 if done is None else done.exit_code
    except asyncio.CancelledError:
        if not caught:
            raise
        status = 128 + caught[0]
    else:
        if done is not None:
            report(done, options)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        await asyncio.gather(*cancelling, return_exceptions=True)
    return 128 + caught[0] if caught else status


async def _follow(session: AsyncSession, command: str, options: argparse.Namespace, executions: list[AsyncExecution]) -> Run:
    """Pass output on as it comes and, once the command runs, standard input too."""
    size = interactive.size() if options.tty else None
    forward = sys.stdin is not None and (size is not None or not sys.stdin.isatty())
    feeding: list[asyncio.Task[None]] = []
    async with (
        await session.start(command, timeout=options.timeout, stdin=forward, terminal=size) as execution,
        contextlib.AsyncExitStack() as raw,
    ):
        executions.append(execution)

        async def started() -> None:
            if size is not None:
                await raw.enter_async_context(interactive.raw(execution))
            if forward:
                feeding.append(asyncio.create_task(feed(execution, sys.stdin.fileno())))

        collect = options.output == "json"
        outlets = sinks(collect=collect, screen=size is not None)
        try:
            done = await follow(execution, outlets, quiet=collect or size is not None, on_started=started)
        finally:
            for task in feeding:
                task.cancel()
                await asyncio.wait([task])
    assert done is not None, "an execution ends with Exited"
    return done


async def _left(session: AsyncSession, command: str, options: argparse.Namespace, executions: list[AsyncExecution]) -> Run | None:
    """`_background`; a session in which nothing was left running ends."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(session)
        done = await _background(session, command, options, executions)
        if done is None:
            stack.pop_all()
    return done


async def _background(
    session: AsyncSession, command: str, options: argparse.Namespace, executions: list[AsyncExecution]
) -> Run | None:
    """Start it and leave it, with its session; None when it runs, what became of it otherwise."""
    async with await session.start(
        command, timeout=options.timeout, stdin=options.stdin, background=True, detach_ttl=options.detach_ttl
    ) as execution:
        executions.append(execution)
        done = await follow(execution, sinks(collect=True), quiet=True)
    if done is not None:
        return done
    if options.output == "json":
        terminal.print_json({"execution_id": execution.id, "session_id": session.id})
    else:
        print(execution.id)
        hint = (
            f"`sandboxd executions attach {execution.id}` follows it, `sandboxd session delete {session.id}` ends and forgets it"
        )
        print(f"sandboxd: {hint}", file=sys.stderr)
    return None


# What is said at the end, on standard error


def report(done: Run, options: argparse.Namespace) -> None:
    """How it went. `options` has `output`, `summary` and `verbose`."""
    if options.output == "json":
        terminal.print_json({"exit_code": done.exit_code, "decision": done.decision, **_details(done)})
        return
    on = terminal.colourful(sys.stderr)
    lines = []
    decision, result = done.decision, done.result
    if options.verbose and decision is not None:
        lines += [
            f"  {entry.step:<3} {entry.name}: {entry.outcome.value if entry.outcome else '-'} {entry.reason}".rstrip()
            for entry in decision.trace
        ]
    if decision is not None and decision.behavior is Behavior.DENY:
        lines += [text.verdict(decision, on=on), *text.reasons(decision)]
    elif result.end is EndKind.FAILED or (result.end is EndKind.CANCELLED and result.cause != INTERRUPT_CAUSE):
        lines.append(f"{result.end.value}: {terminal.shown(result.cause, 1000)}")
    elif result.end is EndKind.TIMED_OUT:
        lines.append(f"timed out after {result.usage.wall:.1f} s; everything it started was killed")
    lines += _stopped(result)
    if done.dropped:
        lines.append(f"{done.dropped} bytes of output were dropped")
    lines += [terminal.shown(note, 1000) for note in result.notes]
    if options.summary or options.verbose:
        lines.append(_summary(done, on=on))
    for line in lines:
        print(f"sandboxd: {line}" if not line.startswith(" ") else line, file=sys.stderr)


def _stopped(result: Result) -> list[str]:
    """What the kernel line of defence held back."""
    lines = [
        f"the sandbox stopped a {item.kind} of `{terminal.shown(item.path)}` ({item.rule}, {item.confidence})"
        + (f"; {item.advice}" if item.advice else "")
        for item in result.violations
    ]
    lines += [f"the read-only promise held against: {terminal.shown(item)}" for item in result.promise_broken]
    return lines


def _summary(done: Run, *, on: bool) -> str:
    """What was decided, by which step, under which enforcement, and how it ended, in one line."""
    decision, result = done.decision, done.result
    if decision is None:
        return f"not judged; {result.end.value}"
    colour = terminal.VERDICT_COLOURS[decision.behavior.value]
    verb = "allowed" if decision.behavior is Behavior.ALLOW else "denied"
    said = terminal.paint(verb, terminal.BOLD, colour, on=on)
    if result.enforcement is None:
        return f"{said} by {text.step(decision)}; it did not run"
    kept = decision.promise and result.enforcement.overall is not Strength.NONE  # without a sandbox nobody keeps it
    promise = ", read-only promise" if kept else ""
    ended = f"exit {result.code}" if result.end is EndKind.EXITED else f"{result.end.value} ({result.code})"
    return (
        f"{said} by {text.step(decision)}{promise}; profile {done.profile}; enforcement {text.enforcement(result.enforcement)}; "
        f"{ended} in {result.usage.wall:.2f} s"
    )


def _details(done: Run) -> dict[str, object]:
    return {
        "result": done.result,
        "profile": done.profile,
        "stdout": done.stdout,
        "stderr": done.stderr,
        "dropped": done.dropped,
        "time": time.time(),
    }
