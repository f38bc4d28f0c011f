# SPDX-License-Identifier: GPL-3.0-or-later
"""The figures of the classifier and of the pool in words, for `sandboxd status` and `sandboxd session show`."""

from __future__ import annotations

from sandboxd.cli import terminal
from sandboxd.client import ClassifierInfo, ClassifierUsage, PoolInfo

_MB = 1 << 20
_STATES = {
    "off": "none is configured: mode auto denies what rules leave open",
    "closed": "questions go out",
    "open": "out: questions fail at once",
    "half-open": "out; the next question tries it again",
}


def pool(info: PoolInfo | None) -> list[tuple[str, str]]:
    """A row of a table, none where no boxes are made beforehand."""
    if info is None:
        return []
    waiting = f"{info.boxes} waiting, {_counted(info.templates, 'template')}"
    got = f"{info.reused} their session's, {info.warm} ready, {info.from_template} from a template, {info.cold} made anew"
    return [("sandboxes", f"{waiting}; commands got {got}")]


def classifier(info: ClassifierInfo) -> list[tuple[str, str]]:
    """Rows of a table. Outages stand apart from denials."""
    name = " ".join(part for part in (info.provider, info.model) if part)
    rows = [("classifier", terminal.shown(f"{name}: {_STATES[info.state]}" if info.state != "off" else _STATES["off"]))]
    if info.last_outage:
        wait = f", tried again in {info.retry_after:.0f} s" if info.retry_after >= 1 else ""
        rows.append(("last outage", terminal.shown(info.last_outage, 400) + wait))
    rows += [("outage", f"{terminal.shown(code)}: {count}") for code, count in info.outages.items()]
    if info.breakers_open:
        rows.append(("breaker", f"open in {_counted(info.breakers_open, 'session')}: humans are asked there"))
    if info.state == "off":
        return rows
    early, worker = info.speculation, info.worker
    rows += [
        ("verdicts", f"{info.allowed} allowed, {info.denied} denied, {info.advised} as advice"),
        ("saved", f"{info.cached} from the cache, {info.coalesced} joined to an equal question, {info.cancelled} cancelled"),
        (
            "asked ahead",
            f"{early.started}: {early.used} used, {early.cancelled} cancelled, {early.wasted} wasted, {early.failed} failed",
        ),
        ("spent", usage(info.usage)),
    ]
    if worker is not None:
        state = "ready" if worker.ready else "starting"
        rows.append(("worker", f"{state}, pid {worker.pid}, {worker.restarts} restarts, {worker.memory / _MB:.0f} MB"))
    elif info.provider == "anthropic":
        rows.append(("worker", "does not run; it is started again"))
    return rows


def usage(used: ClassifierUsage) -> str:
    """Requests, tokens and, where prices are configured, money."""
    tokens = f"{used.input_tokens} tokens in, {used.output_tokens} out, {used.cache_read_tokens} read from the cache"
    cost = f", cost {used.cost:.4f}" if used.cost else ""
    return f"{_counted(used.requests, 'request')}, {tokens}{cost}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
