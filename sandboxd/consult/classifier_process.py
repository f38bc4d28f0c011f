# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon's end of the classifier's worker process: started in the background, started again when it dies.

The protocol is told in classifier_worker.py. A request that is not waited for any more is cancelled there at once, which
closes its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from sandboxd.consult.verdict import Failure, Outage

log = logging.getLogger("sandboxd.classifier")

PROGRAM = os.path.join(os.path.dirname(__file__), "classifier_worker.py")
KEY = "SANDBOXD_CLASSIFIER_KEY"
MAX_LINE = 2 << 20  # bytes of one line of the worker
FIRST_WAIT, LONGEST_WAIT = 0.1, 30.0  # seconds before a new start
MARGIN = 0.15  # of the time left, but no more than MOST: so much sooner the worker gives up, so that it can say why
MOST_MARGIN = 0.2  # seconds
_ENV = ("LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")
_OUTAGES = {outage.value: outage for outage in Outage}


@dataclass(frozen=True, slots=True)
class Server:
    """Where the worker asks, and where it finds its key: in a file, else in `key`. "" everywhere = the default."""

    base_url: str = ""
    key_file: str = ""
    proxy: str = ""
    key: str = ""

    @property
    def line(self) -> dict[str, Any]:
        return {"op": "configure", "base_url": self.base_url, "key_file": self.key_file, "proxy": self.proxy}


@dataclass(frozen=True, slots=True)
class WorkerState:
    """`memory` in resident bytes; `restarts` without its first start."""

    pid: int
    ready: bool
    restarts: int
    memory: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The text of a Messages answer, and what its usage block counts."""

    text: str
    usage: dict[str, int]


class WorkerProcess:
    """One worker at a time. All methods run on one event loop."""

    def __init__(self, server: Server, program: str = PROGRAM) -> None:
        self._server = server
        self._program = program
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pipe: asyncio.WriteTransport | None = None
        self._up: asyncio.Future[bool] | None = None  # of this life: True when ready, False when it ended before
        self._life: asyncio.Task[None] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        """Start in the background. Idempotent."""
        if self._life is None:
            self._up = asyncio.get_running_loop().create_future()
            self._life = asyncio.create_task(self._live(), name="classifier-worker")

    def configure(self, server: Server) -> None:
        """Use another server from the next request on. A new key needs a new process."""
        again = server.key != self._server.key
        self._server = server
        if again:
            self.kill()
        elif self._pipe is not None:
            self._tell(server.line)

    def kill(self) -> None:
        """End the process; it is started again."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        """End it for good; its life ends a moment later."""
        if self._life is not None:
            self._life.cancel()

    async def close(self) -> None:
        """End it for good, and wait for that."""
        if self._life is not None:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)
            self._life = None

    def state(self) -> WorkerState | None:
        """The process that runs now; None between two lives."""
        process = self.process
        if process is None or process.returncode is not None or self._up is None:
            return None
        try:
            with open(f"/proc/{process.pid}/statm", encoding="ascii") as file:
                pages = int(file.read().split()[1])
        except (OSError, IndexError):  # it has just ended
            return None
        ready = self._up.done() and self._up.result()
        return WorkerState(process.pid, ready, self.starts - 1, pages * os.sysconf("SC_PAGESIZE"))

    async def ready(self) -> bool:
        """Whether this life of the worker can answer; waits until that is known."""
        self.start()
        assert self._up is not None
        return await asyncio.shield(self._up)

    async def send(self, request: dict[str, Any], seconds: float) -> tuple[Answer | Failure, dict[str, int]]:
        """One Messages request. The answer or the outage, and the usage; within `seconds` whatever happens.

        A caller that is cancelled takes the request with it.
        """
        begun = False
        try:
            async with asyncio.timeout(seconds) as bound:
                if not await self.ready():
                    return Failure(Outage.WORKER_FAILED, "it ended while it was starting"), {}
                begun = True
                left = (bound.when() or 0.0) - asyncio.get_running_loop().time()
                return _read(await self._ask(request, left - min(left * MARGIN, MOST_MARGIN)))
        except TimeoutError:
            return Failure(Outage.DEADLINE if begun else Outage.WORKER_STARTING), {}

    async def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        number = next(self._numbers)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._tell({"op": "ask", "id": number, "timeout": seconds, "request": request})
            return await future
        finally:
            if self._waiting.pop(number, None) is not None:  # cancelled: no answer came
                self._tell({"op": "cancel", "id": number})

    def _tell(self, message: dict[str, Any]) -> None:
        if self._pipe is not None and not self._pipe.is_closing():
            self._pipe.write(json.dumps(message).encode() + b"\n")

    # -- its lives -----------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        wait = FIRST_WAIT
        while True:
            answered = False
            try:
                answered = await self._one_life()
            except OSError as error:
                log.error("the classifier's process cannot be started: %s", error)
            finally:
                self._ended()
            self._up = loop.create_future()
            wait = FIRST_WAIT if answered else min(wait * 2, LONGEST_WAIT)
            log.warning("the classifier's process ended; it is started again in %.1f s", wait)
            await asyncio.sleep(wait)

    async def _one_life(self) -> bool:
        """Start the process and read its lines until it ends. Whether it ever answered."""
        loop = asyncio.get_running_loop()
        env = {name: os.environ[name] for name in _ENV if name in os.environ} | {"PATH": "/usr/bin:/bin"}
        if self._server.key:
            env[KEY] = self._server.key
        self.starts += 1
        process = subprocess.Popen(  # noqa: ASYNC220  a vfork: Popen without preexec_fn returns at exec
            (sys.executable, "-I", self._program),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd="/",
            start_new_session=True,
        )
        self.process = process
        answered, hearing = False, None
        with process:
            try:
                reader = asyncio.StreamReader(limit=MAX_LINE, loop=loop)
                hearing, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader, loop=loop), process.stdout)
                self._pipe, _ = await loop.connect_write_pipe(lambda: asyncio.streams.FlowControlMixin(loop), process.stdin)
                self._tell(self._server.line)
                while line := await reader.readline():
                    answered = self._heard(json.loads(line)) or answered
            except ValueError as error:  # no line, or not JSON: whatever this is, it is not our worker
                log.error("the classifier's process says what cannot be read: %s", error)
            finally:
                for pipe in (hearing, self._pipe):
                    if pipe is not None:
                        pipe.close()
                self._pipe = None
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait()  # it has been killed, or has ended: this does not wait
        return answered

    def _heard(self, message: dict[str, Any]) -> bool:
        if message.get("op") == "ready":
            if self._up is not None and not self._up.done():
                self._up.set_result(True)
            return False
        future = self._waiting.pop(message.get("id", 0), None)
        if future is not None and not future.done():
            future.set_result(message)
        return True

    def _ended(self) -> None:
        if self._up is not None and not self._up.done():
            self._up.set_result(False)
        for future in self._waiting.values():
            if not future.done():
                future.set_result({"op": "outage", "outage": Outage.WORKER_DIED.value})
        self._waiting.clear()


def _read(message: dict[str, Any]) -> tuple[Answer | Failure, dict[str, int]]:
    """What a line of the worker means; what is not understood is a failure."""
    usage = message.get("usage", {})
    if message.get("op") == "answer" and isinstance(message.get("text"), str):
        return Answer(message["text"], usage), usage
    outage = _OUTAGES.get(message.get("outage", ""), Outage.WORKER_FAILED)
    return Failure(outage, str(message.get("detail", "")), float(message.get("retry_after", 0.0))), usage
