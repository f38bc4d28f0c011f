# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd status`: how the running daemon is. Exit status 0 when it serves, 1 when it does not, 125 when none listens."""

from __future__ import annotations

import argparse
import sys

from sandboxd.cli import figures, metrics, terminal, text
from sandboxd.cli.connect import handler
from sandboxd.client import AsyncClient


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Exit status: 0 serving, 1 starting, degraded or draining, 125 no daemon listens."
    text.add_output_option(parser)
    parser.add_argument("--metrics", action="store_true", help="print the figures in Prometheus's text format")
    parser.set_defaults(run=handler(_status, needs_daemon=True))


async def _status(client: AsyncClient, options: argparse.Namespace) -> int:
    status = await client.status()
    if options.metrics:
        sys.stdout.write(metrics.exposition(status))
        return 0 if status.state == "serving" else 1
    if options.output == "json":
        terminal.print_json(status)
        return 0 if status.state == "serving" else 1
    on = terminal.colourful(sys.stdout)
    colour = terminal.GREEN if status.state == "serving" else terminal.RED
    rows = [
        ("state", terminal.paint(status.state, terminal.BOLD, colour, on=on)),
        ("version", status.version),
        ("uptime", f"{status.uptime:.0f} s"),
        ("enforcement", "nothing can be confined" if status.enforcement is None else text.enforcement(status.enforcement)),
        *((f"backend {item.backend}", "works" if item.works else f"{item.error}; {item.fix}") for item in status.backends),
        ("sessions", str(status.sessions)),
        ("commands", f"{status.running} running, {status.waiting} waiting"),
        ("approvals", f"{status.approvals} waiting for a human"),
        *figures.pool(status.pool),
        *figures.classifier(status.classifier),
        ("sockets", status.runtime),
        ("record", status.state_directory),
        *(("error", terminal.shown(error, 1000)) for error in status.errors),
    ]
    print(terminal.table(rows))
    return 0 if status.state == "serving" else 1
