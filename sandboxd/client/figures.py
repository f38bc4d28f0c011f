# SPDX-License-Identifier: GPL-3.0-or-later
"""The figures of the daemon's classifier and of its pool of boxes, as the client answers them. Numbers count since the daemon
started."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.v1 import admin_pb2, session_pb2


@dataclass(frozen=True, slots=True)
class ClassifierUsage:
    """What questions cost, as the server counts it. `cost` in the currency of the configured prices, 0 without prices."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float = 0.0


NO_USAGE = ClassifierUsage()


@dataclass(frozen=True, slots=True)
class Speculation:
    """Questions sent before it was known whether the answer is needed, and what became of them."""

    started: int = 0
    used: int = 0
    cancelled: int = 0
    wasted: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class ClassifierWorker:
    """The process that speaks to the server. `memory` in resident bytes."""

    pid: int
    ready: bool
    restarts: int
    memory: int


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """`boxes` are ready now, of `templates` more can be made at once. Commands got a box that was ready (`warm`), one made of
    a template, or one made of nothing (`cold`); or that of a command of the same session before them (`reused`)."""

    boxes: int
    templates: int
    warm: int
    from_template: int
    cold: int
    reused: int


def pool(message: admin_pb2.Pool) -> PoolInfo:
    return PoolInfo(message.boxes, message.templates, message.warm, message.from_template, message.cold, message.reused)


@dataclass(frozen=True, slots=True)
class ClassifierInfo:
    """`state`: off, closed (questions go out), open (it kept failing, questions fail at once), half-open (being tried).

    `outages` are the questions that got no verdict, by reason code; they are never among `denied`. `retry_after` in seconds.
    `breakers_open`: sessions with so many denials that a human is asked instead.
    """

    provider: str
    model: str
    state: str
    last_outage: str
    retry_after: float
    allowed: int
    denied: int
    outages: dict[str, int]
    cached: int
    coalesced: int
    advised: int
    cancelled: int
    speculation: Speculation
    usage: ClassifierUsage
    worker: ClassifierWorker | None
    breakers_open: int


def usage(message: session_pb2.ClassifierUsage) -> ClassifierUsage:
    return ClassifierUsage(
        message.requests,
        message.input_tokens,
        message.output_tokens,
        message.cache_read_tokens,
        message.cache_write_tokens,
        message.cost,
    )


def classifier(message: admin_pb2.ClassifierStatus) -> ClassifierInfo:
    early, worker = message.speculation, message.worker
    return ClassifierInfo(
        provider=message.provider,
        model=message.model,
        state=_STATES.get(message.state, "off"),
        last_outage=message.last_outage,
        retry_after=message.retry_after.ToNanoseconds() / 1e9,
        allowed=message.allowed,
        denied=message.denied,
        outages=dict(sorted(message.outages.items())),
        cached=message.cached,
        coalesced=message.coalesced,
        advised=message.advised,
        cancelled=message.cancelled,
        speculation=Speculation(early.started, early.used, early.cancelled, early.wasted, early.failed),
        usage=usage(message.usage),
        worker=ClassifierWorker(worker.pid, worker.ready, worker.restarts, worker.memory_bytes)
        if message.HasField("worker")
        else None,
        breakers_open=message.breakers_open,
    )


_STATES = {
    admin_pb2.CLASSIFIER_STATE_OFF: "off",
    admin_pb2.CLASSIFIER_STATE_CLOSED: "closed",
    admin_pb2.CLASSIFIER_STATE_OPEN: "open",
    admin_pb2.CLASSIFIER_STATE_HALF_OPEN: "half-open",
}
