# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon's figures as metrics, in the text format that Prometheus and its kin read (`sandboxd status --metrics`).

To add a metric: a row in METRICS. A name that was once shown keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sandboxd.client import ClassifierUsage, DaemonStatus

# Labels and their value.
Sample = tuple[dict[str, str], float]


@dataclass(frozen=True, slots=True)
class Metric:
    """`kind`: `gauge`, or `counter` for what only grows while the daemon lives."""

    name: str
    kind: str
    help: str
    read: Callable[[DaemonStatus], Iterable[Sample]]


def _one(read: Callable[[DaemonStatus], float]) -> Callable[[DaemonStatus], Iterable[Sample]]:
    return lambda status: (({}, read(status)),)


def _states(*states: str, of: Callable[[DaemonStatus], str]) -> Callable[[DaemonStatus], Iterable[Sample]]:
    """1 for the state that holds, 0 for the others."""
    return lambda status: [({"state": state}, float(of(status) == state)) for state in states]


def _tokens(used: ClassifierUsage) -> Iterable[Sample]:
    yield {"kind": "input"}, used.input_tokens
    yield {"kind": "output"}, used.output_tokens
    yield {"kind": "cache_read"}, used.cache_read_tokens
    yield {"kind": "cache_write"}, used.cache_write_tokens


METRICS: tuple[Metric, ...] = (
    Metric(
        "sandboxd_state",
        "gauge",
        "state of the daemon",
        _states("starting", "serving", "degraded", "draining", of=lambda status: status.state),
    ),
    Metric("sandboxd_uptime_seconds", "gauge", "seconds since the daemon started", _one(lambda status: status.uptime)),
    Metric("sandboxd_sessions", "gauge", "open sessions", _one(lambda status: status.sessions)),
    Metric(
        "sandboxd_commands",
        "gauge",
        "commands that have not ended",
        lambda status: [({"state": "running"}, status.running), ({"state": "waiting"}, status.waiting)],
    ),
    Metric("sandboxd_approvals_pending", "gauge", "questions that wait for a human", _one(lambda status: status.approvals)),
    Metric("sandboxd_config_errors", "gauge", "errors in configuration and rule files", _one(lambda status: len(status.errors))),
    Metric(
        "sandboxd_pool_boxes",
        "gauge",
        "sandboxes that wait for a command",
        lambda status: [] if status.pool is None else [({}, status.pool.boxes)],
    ),
    Metric(
        "sandboxd_pool_starts_total",
        "counter",
        "commands by where their sandbox came from",
        lambda status: (
            []
            if status.pool is None
            else [
                ({"from": "session"}, status.pool.reused),
                ({"from": "ready"}, status.pool.warm),
                ({"from": "template"}, status.pool.from_template),
                ({"from": "nothing"}, status.pool.cold),
            ]
        ),
    ),
    Metric(
        "sandboxd_classifier_state",
        "gauge",
        "whether questions to the classifier go out",
        _states("off", "closed", "open", "half-open", of=lambda status: status.classifier.state),
    ),
    Metric(
        "sandboxd_classifier_verdicts_total",
        "counter",
        "verdicts that decided, and advice that was shown",
        lambda status: [
            ({"outcome": "allowed"}, status.classifier.allowed),
            ({"outcome": "denied"}, status.classifier.denied),
            ({"outcome": "advice"}, status.classifier.advised),
        ],
    ),
    Metric(
        "sandboxd_classifier_outages_total",
        "counter",
        "questions that decided and got no verdict",
        lambda status: [({"reason": reason}, count) for reason, count in status.classifier.outages.items()],
    ),
    Metric(
        "sandboxd_classifier_cached_total",
        "counter",
        "questions answered from the cache",
        _one(lambda status: status.classifier.cached),
    ),
    Metric(
        "sandboxd_classifier_coalesced_total",
        "counter",
        "questions joined to an equal one under way",
        _one(lambda status: status.classifier.coalesced),
    ),
    Metric(
        "sandboxd_classifier_cancelled_total",
        "counter",
        "questions ended before their answer came",
        _one(lambda status: status.classifier.cancelled),
    ),
    Metric(
        "sandboxd_classifier_speculation_total",
        "counter",
        "questions asked before it was known whether the answer is needed, and what became of them",
        lambda status: [
            ({"event": "started"}, status.classifier.speculation.started),
            ({"event": "used"}, status.classifier.speculation.used),
            ({"event": "cancelled"}, status.classifier.speculation.cancelled),
            ({"event": "wasted"}, status.classifier.speculation.wasted),
            ({"event": "failed"}, status.classifier.speculation.failed),
        ],
    ),
    Metric(
        "sandboxd_classifier_requests_total",
        "counter",
        "requests sent to the classifier",
        _one(lambda status: status.classifier.usage.requests),
    ),
    Metric(
        "sandboxd_classifier_tokens_total", "counter", "tokens, as the server counts them", lambda s: _tokens(s.classifier.usage)
    ),
    Metric(
        "sandboxd_classifier_cost_total",
        "counter",
        "money, in the currency of the configured prices",
        _one(lambda status: status.classifier.usage.cost),
    ),
    Metric(
        "sandboxd_classifier_breakers_open",
        "gauge",
        "sessions whose denial breaker is open",
        _one(lambda status: status.classifier.breakers_open),
    ),
    Metric(
        "sandboxd_classifier_worker_restarts_total",
        "counter",
        "times the classifier's process was started again",
        lambda status: [({}, status.classifier.worker.restarts)] if status.classifier.worker is not None else (),
    ),
    Metric(
        "sandboxd_classifier_worker_memory_bytes",
        "gauge",
        "resident memory of the classifier's process",
        lambda status: [({}, status.classifier.worker.memory)] if status.classifier.worker is not None else (),
    ),
)


def exposition(status: DaemonStatus) -> str:
    """The text format, version 0.0.4: help and type before the samples of each name."""
    lines = []
    for metric in METRICS:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        for labels, value in metric.read(status):
            named = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"{metric.name}{f'{{{named}}}' if named else ''} {value:.17g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
