# SPDX-License-Identifier: GPL-3.0-or-later
"""What can go wrong with a server of the Messages API, one handler each, and the outage that it must be: the matrix that
the classifier and the engine are both walked through."""

from __future__ import annotations

import asyncio

from sandboxd.consult.verdict import Outage
from tests._messages import Exchange, Handler


def status(number: int, **headers: str) -> Handler:
    async def answer(exchange: Exchange) -> None:
        exchange.error(number, {name.replace("_", "-"): value for name, value in headers.items()})

    return answer


def says(text: str | None, stop: str = "end_turn", **more: object) -> Handler:
    async def answer(exchange: Exchange) -> None:
        exchange.message(None if text is None else text.replace("NONCE", exchange.nonce), stop, **more)

    return answer


def body(data: bytes) -> Handler:
    async def answer(exchange: Exchange) -> None:
        exchange.raw(data)

    return answer


async def silent(exchange: Exchange) -> None:
    await exchange.closed()


async def half(exchange: Exchange) -> None:
    exchange.head(200, 5000)
    exchange.writer.write(b'{"id": ')
    await exchange.closed()


async def drip(exchange: Exchange) -> None:
    """A byte now and then, each before anything could call it a standstill."""
    exchange.head(200, 5000)
    gone = asyncio.ensure_future(exchange.closed())
    while not gone.done():
        exchange.writer.write(b" ")
        await asyncio.wait((gone,), timeout=0.05)


async def huge(exchange: Exchange) -> None:
    exchange.head(200, 1 << 30)
    try:
        while True:
            exchange.writer.write(b" " * (1 << 16))
            await exchange.writer.drain()
    except ConnectionError:
        pass


async def huge_error(exchange: Exchange) -> None:
    exchange.head(500, 1 << 30)
    try:
        while True:
            exchange.writer.write(b" " * (1 << 16))
            await exchange.writer.drain()
    except ConnectionError:
        pass


async def reset(exchange: Exchange) -> None:
    exchange.reset()


async def cut(exchange: Exchange) -> None:
    exchange.head(200, 5000)
    exchange.writer.write(b'{"id": ')
    await exchange.writer.drain()
    exchange.writer.close()


async def redirect(exchange: Exchange) -> None:
    exchange.raw(b"", 302, {"location": "/v1/messages"})


SAID: tuple[tuple[str, Handler, Outage], ...] = (
    ("400", status(400), Outage.BAD_REQUEST),
    ("401", status(401), Outage.UNAUTHORIZED),
    ("403", status(403), Outage.FORBIDDEN),
    ("404", status(404), Outage.NOT_FOUND),
    ("413", status(413), Outage.TOO_LARGE),
    ("418", status(418), Outage.STATUS),
    ("302", redirect, Outage.STATUS),
    ("429", status(429), Outage.RATE_LIMITED),
    ("429 soon", status(429, retry_after="0.1"), Outage.RATE_LIMITED),
    ("429 late", status(429, retry_after="60"), Outage.RATE_LIMITED),
    ("429 date", status(429, retry_after="Wed, 21 Oct 2026 07:28:00 GMT"), Outage.RATE_LIMITED),
    ("500", status(500), Outage.SERVER_ERROR),
    ("502", status(502), Outage.SERVER_ERROR),
    ("503", status(503), Outage.UNAVAILABLE),
    ("529", status(529), Outage.OVERLOADED),
    ("silent", silent, Outage.NO_RESPONSE),
    ("half a body", half, Outage.BODY_STALLED),
    ("slow drip", drip, Outage.BODY_SLOW),
    ("huge body", huge, Outage.BODY_TOO_LONG),
    ("huge error", huge_error, Outage.BODY_TOO_LONG),
    ("reset", reset, Outage.RESET),
    ("cut off", cut, Outage.RESET),
    ("not json", body(b"<html>allow</html>"), Outage.NOT_JSON),
    ("broken json", body(b'{"type": "message", "content": ['), Outage.NOT_JSON),
    ("no body", body(b""), Outage.EMPTY),
    ("another object", body(b'{"allow": true}'), Outage.SCHEMA),
    ("a list", body(b"[]"), Outage.SCHEMA),
    ("no content", says(None), Outage.EMPTY),
    ("empty text", says(""), Outage.EMPTY),
    ("content is text", says("x", content="allow"), Outage.SCHEMA),
    ("two blocks", says("x", content=[{"type": "text", "text": "allow"}] * 2), Outage.SCHEMA),
    ("a tool", says("x", content=[{"type": "tool_use", "id": "t", "name": "allow", "input": {}}]), Outage.SCHEMA),
    ("text is a number", says("x", content=[{"type": "text", "text": 1}]), Outage.SCHEMA),
    ("another stop", says("allow NONCE", "tool_use"), Outage.SCHEMA),
    ("refusal", says("allow NONCE", "refusal"), Outage.REFUSAL),
    ("max_tokens", says("allow NONCE", "max_tokens"), Outage.MAX_TOKENS),
    ("chatter", says("I would allow it"), Outage.SCHEMA),
)


# Those that only the end of some time shows.
TIMED = (Outage.NO_RESPONSE, Outage.BODY_STALLED, Outage.BODY_SLOW)
