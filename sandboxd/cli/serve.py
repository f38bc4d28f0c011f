# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd serve`: the daemon in the foreground. SIGTERM drains and ends it, SIGHUP reloads."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys

from sandboxd import daemon
from sandboxd.config import directories


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "SIGTERM or SIGINT: let running commands end, then stop. SIGHUP: read the configuration again."
    parser.add_argument("--config", metavar="FILE", help="instead of the user's config.toml; the organisation's still holds")
    parser.add_argument("--runtime-dir", metavar="DIR", help="where the sockets are (default: $XDG_RUNTIME_DIR/sandboxd)")
    parser.add_argument("--state-dir", metavar="DIR", help="where the record is (default: ~/.local/state/sandboxd)")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="overrides `daemon.log_level`")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    dirs = directories(runtime=options.runtime_dir, state=options.state_dir)
    return asyncio.run(daemon.serve(options.config, dirs, log_level=options.log_level.upper() if options.log_level else None))
