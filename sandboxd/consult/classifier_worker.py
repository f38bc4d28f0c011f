# SPDX-License-Identifier: GPL-3.0-or-later
"""The process that speaks to a server of the Messages API. Only importer of `anthropic`, only holder of the API key.

It imports nothing of sandboxd and is run by its path (`python -I`), so that no directory of an agent is on its path.
JSON lines on stdin and stdout:

    in   {"op": "configure", "base_url": "", "key_file": "", "proxy": ""}     first, and after a reload
         {"op": "ask", "id": 1, "timeout": 7.9, "request": {…}}     the body of POST /v1/messages
         {"op": "cancel", "id": 1}                                  closes the connection; no answer follows
    out  {"op": "ready"}                                            once, when it is loaded and configured
         {"op": "answer", "id": 1, "text": "…", "stop": "end_turn", "usage": {…}}
         {"op": "outage", "id": 1, "outage": "classifier.dns", "detail": "…", "retry_after": 0}

It ends when stdin does. The key comes in the environment variable SANDBOXD_CLASSIFIER_KEY, or from `key_file`; it appears
in no output.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import gc
import json
import os
import socket
import sys
from typing import Any

MAX_LINE = 4 << 20  # bytes of one line of input
MAX_BODY = 1 << 20  # bytes of an answer, errors included
STALL = 0.25  # of the time-out: so long may a body stand still
KEEP_ALIVE = 120.0  # seconds an unused connection is kept: the next question saves the time to make one
KEY = "SANDBOXD_CLASSIFIER_KEY"
_PR_SET_DUMPABLE = 4  # prctl(2): 0 = no other process of this user may read our memory or environment
_STATUS = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    413: "too_large",
    429: "rate_limited",
    503: "unavailable",
    529: "overloaded",
}


class Stopped(Exception):
    """The call is over, by our own bounds. `args[0]` is the outage."""


class Progress:
    """How far a call is: which time-out it would be."""

    def __init__(self, seconds: float) -> None:
        self.stall = seconds * STALL
        self.body = False


_progress: contextvars.ContextVar[Progress] = contextvars.ContextVar("progress")


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    key = os.environ.pop(KEY, "")
    os.nice(5)  # loading the client must not slow the daemon's start down
    gc.disable()  # a fifth of the time to load it would go into collections that find nothing
    import anthropic
    import httpx2

    gc.freeze()
    gc.enable()
    asyncio.run(Worker(anthropic, httpx2, key).run())


class Worker:
    """Reads lines, answers each question in a task of its own."""

    def __init__(self, anthropic: Any, httpx: Any, key: str) -> None:
        self.anthropic = anthropic
        self.httpx = httpx
        self.env_key = key
        self.client: Any = None
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        reader = asyncio.StreamReader(limit=MAX_LINE)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
        await self.warm()
        ready = False
        while line := await reader.readline():
            message = json.loads(line)
            match message["op"]:
                case "configure":
                    await self.configure(message["base_url"], message["key_file"], message["proxy"])
                    if not ready:
                        say({"op": "ready"})
                    ready = True
                case "ask":
                    number = message["id"]
                    self.tasks[number] = asyncio.create_task(self.ask(number, message["timeout"], message["request"]))
                case "cancel":
                    if message["id"] in self.tasks:
                        self.tasks[message["id"]].cancel()
        os._exit(0)  # nobody is there who would read an answer

    async def warm(self) -> None:
        """One request that goes nowhere: the client loads a quarter of a second's worth of itself at its first."""
        message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": "end_turn"}
        body = {**message, "stop_sequence": None, "usage": {"input_tokens": 0, "output_tokens": 0}}
        transport = self.httpx.MockTransport(lambda _: self.httpx.Response(200, json=body))
        client = self.anthropic.AsyncAnthropic(
            api_key="none",
            base_url="http://localhost",
            max_retries=0,
            http_client=self.anthropic.DefaultAsyncHttpxClient(transport=transport),
        )
        text = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
        asked = [{"role": "user", "content": [text]}]
        await client.messages.with_raw_response.create(
            model="m", max_tokens=1, system=[text], messages=asked, thinking={"type": "disabled"}
        )

    async def configure(self, base_url: str, key_file: str, proxy: str) -> None:
        """A client for this server. Calls under way keep the old one; its connections close with them."""
        key = self.env_key
        if key_file:
            try:
                with open(key_file, encoding="utf-8") as file:  # noqa: ASYNC230  a few bytes, while no question waits
                    key = file.read().strip()
            except (OSError, UnicodeDecodeError):
                key = ""
        if not key:
            self.client = None
            return
        self.client = self.anthropic.AsyncAnthropic(
            api_key=key,
            base_url=base_url or "https://api.anthropic.com",
            max_retries=0,
            http_client=self.anthropic.DefaultAsyncHttpxClient(transport=bounded(self.httpx, proxy), follow_redirects=False),
        )

    async def ask(self, number: int, seconds: float, request: dict[str, Any]) -> None:
        try:
            answer = await self._ask(seconds, request)
        finally:
            del self.tasks[number]
        say({**answer, "id": number})

    async def _ask(self, seconds: float, request: dict[str, Any]) -> dict[str, Any]:
        if self.client is None:
            return outage("no_key")
        progress = Progress(seconds)
        _progress.set(progress)
        try:
            async with asyncio.timeout(seconds):
                raw = await self.client.messages.with_raw_response.create(**request, timeout=seconds)
                body = raw.http_response.content
        except TimeoutError:
            return outage("body_slow" if progress.body else "no_response")
        except Exception as error:
            return self.failed(error, progress)
        return read(body)

    def failed(self, error: Exception, progress: Progress) -> dict[str, Any]:
        """Which outage an exception of the client is."""
        chain: list[BaseException] = []
        cause: BaseException | None = error
        while cause is not None and cause not in chain:
            chain.append(cause)
            cause = cause.__cause__ or cause.__context__
        for each in chain:
            if isinstance(each, Stopped):
                return outage(str(each))
        if isinstance(error, self.anthropic.APIStatusError):
            status = error.status_code
            code = _STATUS.get(status) or ("server_error" if status >= 500 else "status")
            return outage(code, f"status {status}", retry_after(error.response.headers.get("retry-after", "")))
        for each in chain:
            if isinstance(each, (TimeoutError, self.httpx.TimeoutException)):
                return outage("body_stalled" if progress.body else "no_response")
            if isinstance(each, socket.gaierror):
                return outage("dns")
            if isinstance(each, ConnectionRefusedError):
                return outage("connection_refused")
            if isinstance(each, (ConnectionResetError, BrokenPipeError, self.httpx.RemoteProtocolError, self.httpx.ReadError)):
                return outage("connection_reset")
        if isinstance(error, self.anthropic.APIConnectionError):
            text = " ".join(str(each).lower() for each in chain)
            if "name or service" in text or "name resolution" in text or "getaddrinfo" in text:
                return outage("dns")
            return outage("connection_refused" if "refused" in text else "connection", type(chain[-1]).__name__)
        return outage("worker_failed", type(error).__name__)


def bounded(httpx: Any, proxy: str) -> Any:
    """A transport whose bodies are neither longer than MAX_BODY nor stand still for long."""

    class Stream(httpx.AsyncByteStream):  # type: ignore[misc]  # the library is only known at run time
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        async def __aiter__(self) -> Any:
            progress = _progress.get()
            progress.body = True
            size = 0
            parts = aiter(self.inner)
            while True:
                try:
                    async with asyncio.timeout(progress.stall):
                        part = await anext(parts)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise Stopped("body_stalled") from None
                size += len(part)
                if size > MAX_BODY:
                    raise Stopped("body_too_long")
                yield part

        async def aclose(self) -> None:
            await self.inner.aclose()

    class Transport(httpx.AsyncHTTPTransport):  # type: ignore[misc]  # the library is only known at run time
        async def handle_async_request(self, request: Any) -> Any:
            request.headers["accept-encoding"] = "identity"  # a small body that unpacks to a huge one is none
            response = await super().handle_async_request(request)
            return httpx.Response(
                response.status_code, headers=response.headers, stream=Stream(response.stream), extensions=response.extensions
            )

    return Transport(proxy=proxy or None, limits=httpx.Limits(keepalive_expiry=KEEP_ALIVE))


def read(body: bytes) -> dict[str, Any]:
    """The text, stop reason and usage of a Messages answer."""
    if not body.strip():
        return outage("empty")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return outage("not_json")
    if not isinstance(data, dict) or data.get("type") != "message" or not isinstance(data.get("content"), list):
        return outage("schema", "not a message")
    used = data.get("usage")
    counts = used if isinstance(used, dict) else {}
    usage = {
        name: value
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        if type(value := counts.get(name)) is int and value >= 0
    }
    stop = data.get("stop_reason")
    blocks = [block for block in data["content"] if not (isinstance(block, dict) and block.get("type") == "thinking")]
    if stop in ("refusal", "max_tokens"):
        return {**outage(stop), "usage": usage}
    if not blocks:
        return {**outage("empty"), "usage": usage}
    if stop != "end_turn" or len(blocks) != 1:
        return {**outage("schema", "not one finished block of text"), "usage": usage}
    block = blocks[0]
    if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
        return {**outage("schema", "not a block of text"), "usage": usage}
    return {"op": "answer", "text": block["text"], "stop": stop, "usage": usage}


def outage(code: str, detail: str = "", wait: float = 0.0) -> dict[str, Any]:
    return {"op": "outage", "outage": f"classifier.{code}", "detail": detail, "retry_after": wait}


def retry_after(text: str) -> float:
    """Seconds of a Retry-After header; 0 when there is none or it is a date."""
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return min(seconds, 3600.0) if seconds > 0 else 0.0


def say(message: dict[str, Any]) -> None:
    """One line out. The pipe is only ever full when the daemon is gone."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
