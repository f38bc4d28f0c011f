# SPDX-License-Identifier: GPL-3.0-or-later
"""The figures of the classifier and of the pool of boxes on the wire."""

from __future__ import annotations

from sandboxd.api import convert
from sandboxd.consult.classifier import ClassifierStatus, Spent
from sandboxd.isolation.shelf import Figures
from sandboxd.v1 import admin_pb2, session_pb2

_STATES = {
    "off": admin_pb2.CLASSIFIER_STATE_OFF,
    "closed": admin_pb2.CLASSIFIER_STATE_CLOSED,
    "open": admin_pb2.CLASSIFIER_STATE_OPEN,
    "half-open": admin_pb2.CLASSIFIER_STATE_HALF_OPEN,
}


def usage(spent: Spent) -> session_pb2.ClassifierUsage:
    return session_pb2.ClassifierUsage(
        requests=spent.requests,
        input_tokens=spent.input,
        output_tokens=spent.output,
        cache_read_tokens=spent.cache_read,
        cache_write_tokens=spent.cache_write,
        cost=spent.cost,
    )


def classifier(status: ClassifierStatus, breakers_open: int) -> admin_pb2.ClassifierStatus:
    early, worker = status.speculation, status.worker
    return admin_pb2.ClassifierStatus(
        provider=status.provider,
        model=status.model,
        state=_STATES[status.state],
        last_outage=status.last_outage,
        retry_after=convert.duration(status.retry_after) if status.retry_after else None,
        allowed=status.allowed,
        denied=status.denied,
        outages=dict(status.outages),
        cached=status.cached,
        coalesced=status.coalesced,
        advised=status.advised,
        cancelled=status.cancelled,
        speculation=admin_pb2.Speculation(
            started=early.started, used=early.used, cancelled=early.cancelled, wasted=early.wasted, failed=early.failed
        ),
        usage=usage(status.spent),
        worker=None
        if worker is None
        else admin_pb2.ClassifierWorker(pid=worker.pid, ready=worker.ready, restarts=worker.restarts, memory_bytes=worker.memory),
        breakers_open=breakers_open,
    )


def pool(figures: Figures | None) -> admin_pb2.Pool | None:
    if figures is None:
        return None
    return admin_pb2.Pool(
        boxes=figures.boxes,
        templates=figures.templates,
        warm=figures.warm,
        from_template=figures.from_template,
        cold=figures.cold,
        reused=figures.reused,
    )
