# SPDX-License-Identifier: GPL-3.0-or-later
"""How many boxes to keep ready, for which templates, and when to make them. Pure: times come in, decisions go out.

A template is kept for a while after its last use; boxes are kept ready for it from its second use on, as many as ran at once
lately and one more, and before that as many as somebody expects to need. They are made when nothing has started or ended for
a moment, since making one beside a command takes that command's processor; only when few are left they are made at once, and
where sessions keep boxes, when none is left: one that is made serves many commands. What the caps do not allow goes to those
used last.

All times in seconds, of any clock that does not go backwards.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

BOX_MEMORY = 2 << 20  # bytes that an idle box is taken to cost; measured by the benchmark warm.idle_box
WINDOW = 60.0  # for how long what ran at once counts
QUIET = 0.03  # nothing has started or ended for so long: the next command is not expected at once
KEEP_ONCE = 30.0  # a template that was used once
KEEP = 600.0  # one that was used again, or is expected to be
BATCH = 4  # boxes asked for at a time
KEEP_IDLE = 5.0  # a box that waits for the next command of its session
MAX_USES = 500  # commands of one box: what grows unseen in a process that never collects garbage has an end


@dataclass(frozen=True, slots=True)
class Caps:
    """`boxes`: idle at once; `per_template` of them for one; `templates` kept; `memory`: bytes of all idle boxes. Those that wait
    for their session count too."""

    boxes: int = 16
    per_template: int = 8
    templates: int = 12
    memory: int = 64 << 20
    session: bool = False  # whether a box may wait for the next command of the same session

    @property
    def budget(self) -> int:
        return min(self.boxes, self.memory // BOX_MEMORY)

    @property
    def sessions(self) -> int:
        """Of these at most so many wait for sessions, and others are ready for anyone."""
        return self.budget // 2 if self.session else 0


class Demand(NamedTuple):
    """What is known of the use of one template."""

    uses: int = 0
    last: float = 0.0  # its last start or end
    running: int = 0
    peak: int = 0  # most that ran at once since `since`
    before: int = 0  # likewise in the window before that
    since: float = 0.0
    expected: int = 0  # boxes that somebody said will be needed, in that time


@dataclass(frozen=True, slots=True)
class Stock:
    """One template: its demand, how many boxes are ready or being made, and since when others wait for their session."""

    demand: Demand
    idle: int
    session: bool = False  # whether its boxes can
    kept: tuple[float, ...] = ()  # the longest first


@dataclass(frozen=True, slots=True)
class Decision:
    """`make` and `drop`: boxes by template; `expire`: templates to let go; `again`: when to decide anew, None = on an event.

    `part`: how many boxes that wait for their session to let go, by template; those that have waited longest.
    """

    make: Mapping[Hashable, int]
    drop: Mapping[Hashable, int]
    expire: tuple[Hashable, ...]
    again: float | None
    part: Mapping[Hashable, int] = field(default_factory=dict)


def started(demand: Demand, now: float) -> Demand:
    """A command of this template has started."""
    moved = _moved(demand, now)
    running = moved.running + 1
    return moved._replace(uses=moved.uses + 1, last=now, running=running, peak=max(moved.peak, running))


def ended(demand: Demand, now: float) -> Demand:
    """A command of this template has ended."""
    moved = _moved(demand, now)
    return moved._replace(last=now, running=max(0, moved.running - 1))


def expected(demand: Demand, count: int, now: float) -> Demand:
    """So many boxes of this template will be needed, perhaps before it has been used."""
    moved = _moved(demand, now)
    return moved._replace(last=now, expected=max(moved.expected, count))


def _moved(demand: Demand, now: float) -> Demand:
    if now - demand.since < WINDOW:
        return demand
    gap = now - demand.since >= 2 * WINDOW
    return demand._replace(since=now, before=0 if gap else demand.peak, peak=demand.running, expected=0)


def wanted(demand: Demand, caps: Caps) -> int:
    """How many boxes to keep ready, were there room for all."""
    by_use = max(demand.peak, demand.before) + 1 if demand.uses >= 2 else 0
    return min(caps.per_template, max(by_use, demand.expected))


def share(stock: Stock, caps: Caps) -> int:
    """How many boxes may wait for sessions of this template: one is looked at while the next runs, so not fewer than `wanted`."""
    return wanted(stock.demand, caps) if stock.session and caps.session else 0


def keeps(stock: Stock, caps: Caps, uses: int, total: int) -> int:
    """For a box that has run `uses` commands of a session: 0 = let it go; else keep it, and of those that wait for a session of
    its template as many as that is more than 1, the ones that have waited longest, are let go for it. `total` wait in all."""
    mine = share(stock, caps)
    if uses >= MAX_USES or not mine:
        return 0
    surplus = max(0, len(stock.kept) + 1 - mine)
    return surplus + 1 if total + 1 - surplus <= caps.sessions else 0


def decide(stocks: Mapping[Hashable, Stock], caps: Caps, now: float, last_event: float) -> Decision:
    """What to do now. `last_event`: when anything last started or ended, of whatever template."""
    recent = sorted(stocks, key=lambda key: stocks[key].demand.last, reverse=True)
    expire = [key for key in recent if _expires(stocks[key].demand) <= now]
    kept = [key for key in recent if key not in expire]
    surplus = [key for key in kept[caps.templates :] if stocks[key].demand.running == 0]
    expire += surplus
    kept = [key for key in kept if key not in surplus]
    quiet = now - last_event >= QUIET
    # What runs comes back: its place stays free, else another box would be made while it runs, and dropped afterwards.
    room = caps.budget - min(caps.sessions, sum(share(stocks[key], caps) for key in kept))
    make: dict[Hashable, int] = {}
    drop: dict[Hashable, int] = {}
    waits = False
    for key in kept:
        stock = stocks[key]
        allowed = min(room, wanted(stock.demand, caps))
        room -= allowed
        missing = allowed - stock.idle
        if missing < 0:
            drop[key] = -missing
        elif missing > 0 and (quiet or stock.idle < max(allowed // 4, min(1, share(stock, caps)))):
            make[key] = min(missing, BATCH)
        elif missing > 0:
            waits = True
    times = [expires for key in kept if (expires := _expires(stocks[key].demand)) != float("inf")]
    if waits:
        times.append(last_event + QUIET)
    part = {key: gone for key in kept if (gone := _over(stocks[key], caps, now))}
    times += [since + KEEP_IDLE for key in kept for since in stocks[key].kept[part.get(key, 0) :]]
    return Decision(make, drop, tuple(expire), max(now, min(times)) if times else None, part)


def _over(stock: Stock, caps: Caps, now: float) -> int:
    """How many boxes have waited too long for their session, or are too many."""
    late = sum(since + KEEP_IDLE <= now for since in stock.kept)
    return max(late, len(stock.kept) - share(stock, caps))


def _expires(demand: Demand) -> float:
    """When a template is let go if nothing uses it until then."""
    if demand.running:
        return float("inf")
    return demand.last + (KEEP if demand.uses >= 2 or demand.expected else KEEP_ONCE)
