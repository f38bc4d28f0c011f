# SPDX-License-Identifier: GPL-3.0-or-later
"""A client for the command line: of the user's daemon, or of one that lives in this process for as long as it is needed."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from sandboxd import config as settings
from sandboxd import daemon
from sandboxd.client import AsyncClient
from sandboxd.client import address as addresses
from sandboxd.client.asking import OnAsk


@contextlib.asynccontextmanager
async def daemon_client(*, on_ask: OnAsk | None = None) -> AsyncIterator[AsyncClient]:
    """The running daemon's admin socket. Raises Unavailable when none listens."""
    async with AsyncClient(admin=True, on_ask=on_ask) as client:
        yield client


@contextlib.asynccontextmanager
async def any_client(*, embedded: bool = False, on_ask: OnAsk | None = None) -> AsyncIterator[AsyncClient]:
    """The running daemon's admin socket, or that of an embedded daemon when none listens or `embedded` says so."""
    if not embedded and addresses.listening(addresses.socket_path(admin=True)):
        async with daemon_client(on_ask=on_ask) as client:
            yield client
        return
    dirs = settings.directories()
    config = settings.load(dirs)
    logging.getLogger("sandboxd").setLevel(logging.CRITICAL)  # this process reports to its own user, in words
    async with (
        daemon.embedded(config, dirs) as (_, sockets),
        AsyncClient(f"unix:{sockets.admin}", admin=True, on_ask=on_ask) as client,
    ):
        yield client


def handler(
    work: Callable[[AsyncClient, argparse.Namespace], Coroutine[Any, Any, int]], *, needs_daemon: bool
) -> Callable[[argparse.Namespace], int]:
    """`run` of a command group: connects, does the work, gives the exit status."""

    async def connected(options: argparse.Namespace) -> int:
        async with daemon_client() if needs_daemon else any_client() as client:
            return await work(client, options)

    return lambda options: asyncio.run(connected(options))
