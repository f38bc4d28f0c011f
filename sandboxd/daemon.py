# SPDX-License-Identifier: GPL-3.0-or-later
"""The composition root: configuration -> engine -> two gRPC servers in one loop; signals, health, drain."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import logging
import os
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from sandboxd import config as settings
from sandboxd import leftovers
from sandboxd.api.server import Server, build_server
from sandboxd.config import Config, Directories
from sandboxd.engine import Engine, State
from sandboxd.errors import ConfigError, SandboxdError, Unavailable
from sandboxd.isolation import backends, mountpoints
from sandboxd.record.audit import Record
from sandboxd.sessions import Role

log = logging.getLogger("sandboxd.daemon")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
SOCKETS = {Role.AGENT: "agent.sock", Role.ADMIN: "admin.sock"}


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a running daemon listens: paths of its Unix sockets."""

    agent: str
    admin: str


@contextlib.asynccontextmanager
async def running(config: Config, dirs: Directories, *, owner: bool = True) -> AsyncIterator[tuple[Engine, Addresses]]:
    """A whole daemon: engine, both servers, health. Everything is stopped and removed at the end.

    `owner`: this is the user's daemon, which closes what a crashed one left open in the record; an embedded one leaves
    the record of others alone. Raises ConfigError, Unavailable (another daemon owns the runtime directory).
    """
    with _locked(dirs.runtime):
        _private_directory(dirs.state)
        record = await asyncio.to_thread(Record, f"{dirs.state}/record.db")
        try:
            if owner:
                record.close_open_executions("daemon_restart")
                record.close_open_approvals("approval_expired: the daemon stopped before anybody answered")
            engine = Engine(config, dirs, record, ())
            if owner:
                await asyncio.to_thread(_take_over, engine)
            servers: list[Server] = []
            try:
                for role, name in SOCKETS.items():
                    servers.append(await _listen(engine, role, f"{dirs.runtime}/{name}"))
                await asyncio.to_thread(mountpoints.recover, f"{dirs.state}/mountpoints")
                backends.configure(config.isolation)
                engine.set_probes(await asyncio.to_thread(backends.probe_all))
                for server in servers:
                    server.set_serving(engine.state is State.SERVING)
                if owner:  # last: it takes the processor for a second. An embedded daemon starts it with its first question
                    engine.consulting.classifying.classifier.start()
                yield engine, Addresses(*(f"{dirs.runtime}/{name}" for name in SOCKETS.values()))
            finally:
                for server in servers:
                    server.set_serving(False)
                await engine.drain()
                await asyncio.gather(*(server.stop() for server in servers))
        finally:
            await asyncio.to_thread(record.close)
            for name in SOCKETS.values():
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{dirs.runtime}/{name}")


def _take_over(engine: Engine) -> None:
    """Find what an earlier daemon left, and remove what nobody can use."""
    settings = engine.config.run
    engine.past.load(keep=settings.keep_finished, max_age=settings.spill_age)
    engine.sessions.spills.sweep()
    leftovers.sweep()


@contextlib.asynccontextmanager
async def embedded(config: Config, dirs: Directories) -> AsyncIterator[tuple[Engine, Addresses]]:
    """A daemon for one command, on private sockets in a directory of its own; the record is the user's."""
    runtime = tempfile.mkdtemp(prefix="sandboxd-run-")
    try:
        own = Directories(config=dirs.config, state=dirs.state, runtime=runtime, home=dirs.home, system=dirs.system)
        async with running(config, own, owner=False) as pair:
            yield pair
    finally:
        shutil.rmtree(runtime, ignore_errors=True)


async def serve(config_path: str | None, dirs: Directories, log_level: str | None = None) -> int:
    """Run until SIGTERM or SIGINT; SIGHUP reloads. Returns the exit status. `log_level` overrides the configuration's."""
    _keep_memory()
    config = settings.load(dirs, config_path)
    logging.getLogger("sandboxd").setLevel(log_level or config.daemon.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with running(config, dirs) as (engine, addresses):
        engine.config_path = config_path

        def reload() -> None:
            _notify(b"RELOADING=1")
            try:
                engine.reload(settings.load(dirs, config_path))
                log.info("configuration reloaded")
            except SandboxdError as error:
                engine.report_error(str(error))
                log.error("reload failed, the last good configuration stays: %s", error)
            _notify(b"READY=1")

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, reload)
        if engine.state is State.SERVING:
            log.info("serving on %s and %s", addresses.agent, addresses.admin)
        else:
            log.error("no sandbox can be built here, so no command will run; `sandboxd doctor` tells the fix")
        _notify(b"READY=1")
        await stop.wait()
        _notify(b"STOPPING=1")
        log.info("draining")
    return 0


def _keep_memory() -> None:
    """Let the C library keep up to 16 MiB it has no use for now (mallopt(3)); else it gives back and fetches again, page by
    page, the buffers of every chunk of output, which costs more than all its copies."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # it is there in glibc
        mallopt(_M_TRIM_THRESHOLD, 16 << 20)
        mallopt(_M_MMAP_THRESHOLD, 4 << 20)


async def _listen(engine: Engine, role: Role, path: str) -> Server:
    """Start one server on a Unix socket of mode 0600. Only under the lock: binding silently steals a live socket."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    server = build_server(engine, role, f"unix:{path}")
    before = os.umask(0o177)
    try:
        await server.start()
    finally:
        os.umask(before)
    return server


@contextlib.contextmanager
def _locked(runtime: str) -> Iterator[None]:
    """Hold the runtime directory. Raises Unavailable when another daemon has it."""
    _private_directory(runtime)
    handle = os.open(f"{runtime}/lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"another daemon owns `{runtime}`", fix="use it, stop it, or pass --runtime-dir") from None
        yield
    finally:
        os.close(handle)


def _private_directory(path: str) -> None:
    """Make sure `path` is a directory of ours that nobody else may enter. Raises ConfigError."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise ConfigError(f"`{path}` is not a directory of this user", fix="remove it or name another one")
    if stat.S_IMODE(info.st_mode) & 0o077:
        os.chmod(path, 0o700)


def _notify(message: bytes) -> None:
    """Tell systemd (sd_notify(3)): one datagram to NOTIFY_SOCKET, `@` meaning the abstract namespace."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    target = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto(message, target)
    except OSError as error:
        log.warning("systemd was not notified: %s", error)
