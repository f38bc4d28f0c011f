# SPDX-License-Identifier: GPL-3.0-or-later
"""A loopback server that speaks the Messages API, well or badly, as a test wishes. The real client talks to it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

USAGE = {"input_tokens": 100, "output_tokens": 5, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 40}


@dataclass
class Exchange:
    """One request, and the means to answer it."""

    server: Loopback
    request: dict[str, Any]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    key: str

    @property
    def blocks(self) -> list[str]:
        return [block["text"] for block in self.request["messages"][0]["content"]]

    @property
    def stage(self) -> int:
        return 1 if "two words" in self.blocks[-1] else 2

    @property
    def nonce(self) -> str:
        found = re.search(r"`allow (\w+)`|\"nonce\": \"(\w+)\"", self.blocks[-1])
        assert found is not None
        return found[1] or found[2]

    @property
    def question(self) -> dict[str, Any]:
        """The data of the command's fence."""
        found: dict[str, Any] = json.loads(self.blocks[1].splitlines()[2])
        return found

    def head(self, status: int, size: int | None, headers: dict[str, str] | None = None) -> None:
        lines = [f"HTTP/1.1 {status} X", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines.append("connection: close" if size is None else f"content-length: {size}")
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())

    def raw(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.head(status, len(body), headers)
        self.writer.write(body)

    def message(self, text: str | None, stop: str = "end_turn", **more: Any) -> None:
        content = [] if text is None else [{"type": "text", "text": text}]
        data = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": content, "stop_reason": stop}
        self.raw(json.dumps({**data, "stop_sequence": None, "usage": USAGE, **more}).encode())

    def error(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.raw(json.dumps({"type": "error", "error": {"type": "x", "message": "no"}}).encode(), status, headers)

    def verdict(self, allow: bool, **more: Any) -> None:
        """A proper answer of either stage."""
        word = "allow" if allow else "block"
        if self.stage == 1:
            self.message(f"{word} {self.nonce}")
            return
        category = "none" if allow else "destructive"
        said = {"reasoning": "because", "verdict": word, "category": category, "user_message": None, "nonce": self.nonce}
        self.message(json.dumps({**said, **more}))

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def closed(self) -> None:
        """Until the client has closed the connection."""
        while await self.reader.read(1 << 16):
            pass


Handler = Callable[[Exchange], Awaitable[None]]


async def allow(exchange: Exchange) -> None:
    exchange.verdict(True)


async def block(exchange: Exchange) -> None:
    exchange.verdict(False)


@dataclass
class Loopback:
    """`answer` is what each request gets. `arrived` and `left` hear of each request, and of each client that went early."""

    answer: Handler = allow
    requests: list[Exchange] = field(default_factory=list)
    arrived: asyncio.Queue[Exchange] = field(default_factory=asyncio.Queue)
    left: asyncio.Queue[float] = field(default_factory=asyncio.Queue)
    url: str = ""

    async def __aenter__(self) -> Loopback:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 22)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for exchange in self.requests:
            exchange.writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                assert head.startswith("POST /v1/messages")
                size = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
                key = re.search(r"(?:x-api-key:|authorization: bearer) (\S+)", head, re.IGNORECASE)
                assert size
                body = json.loads(await reader.readexactly(int(size[1])))
                exchange = Exchange(self, body, reader, writer, key[1] if key else "")
                self.requests.append(exchange)
                self.arrived.put_nowait(exchange)
                await self.answer(exchange)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def hold(self, exchange: Exchange) -> None:
        """An answer that never comes; tells `left` when the client goes."""
        await exchange.closed()
        self.left.put_nowait(asyncio.get_running_loop().time())
