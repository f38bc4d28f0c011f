# SPDX-License-Identifier: GPL-3.0-or-later
"""The sizing of the pool: caps hold whatever is used, what is used gets boxes, and nothing is kept for ever. No clock runs."""

from __future__ import annotations

from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from sandboxd.isolation import pool
from sandboxd.isolation.pool import (
    KEEP,
    KEEP_ONCE,
    QUIET,
    WINDOW,
    Caps,
    Decision,
    Demand,
    Stock,
    decide,
    ended,
    expected,
    started,
    wanted,
)  # fmt: skip

CAPS = Caps(boxes=6, per_template=4, templates=3, memory=100 << 20)


def use(*times: float, demand: Demand | None = None) -> Demand:
    """A demand after commands that started at these times and took 10 ms each."""
    demand = demand or Demand()
    for now in times:
        demand = ended(started(demand, now), now + 0.01)
    return demand


def test_the_first_use_makes_nothing_the_second_does() -> None:
    """A grant for one command leaves a template for a while, and no box."""
    once, twice = use(0), use(0, 1)
    assert wanted(once, CAPS) == 0
    assert wanted(twice, CAPS) == 2
    assert decide({"a": Stock(once, 0)}, CAPS, 5, 0.01).make == {}
    assert decide({"a": Stock(twice, 0)}, CAPS, 5, 1.01).make == {"a": 2}


def test_what_is_expected_is_made_before_its_first_use() -> None:
    """And kept as long as what was used again, but from the next window on what counts is use."""
    demand = expected(Demand(), 2, 0)
    assert decide({"a": Stock(demand, 0)}, CAPS, 0.01, -1).make == {"a": 2}
    assert decide({"a": Stock(demand, 0)}, CAPS, 0.01, 0).make == {}, "while others start commands"
    assert decide({"a": Stock(demand, 2)}, CAPS, KEEP - 1, 0).expire == ()
    assert decide({"a": Stock(demand, 2)}, CAPS, KEEP, 0).expire == ("a",)
    assert wanted(use(1, demand=demand), CAPS) == 2
    assert wanted(expected(use(1, 2, 3), 1, 4), CAPS) == 2
    assert wanted(use(WINDOW + 1, demand=demand), CAPS) == 0
    assert wanted(expected(Demand(), 9, 0), CAPS) == CAPS.per_template


def test_boxes_are_made_when_it_is_quiet() -> None:
    """Right after a start or an end nothing is made, and the decision says when to look again."""
    stock: dict[Hashable, Stock] = {"a": Stock(use(0, 1), 1)}
    busy = decide(stock, CAPS, 1.01, 1.01)
    assert (busy.make, busy.again) == ({}, 1.01 + QUIET)
    assert decide(stock, CAPS, 1.01 + QUIET, 1.01).make == {"a": 1}


def test_what_runs_at_once_decides_how_many() -> None:
    """Three beside each other want four; after two windows of less, less."""
    demand = Demand()
    for now in (0.0, 0.1, 0.2):
        demand = started(demand, now)
    for now in (0.3, 0.4, 0.5):
        demand = ended(demand, now)
    assert wanted(demand, CAPS) == 4
    assert wanted(use(WINDOW + 1, demand=demand), CAPS) == 4
    assert wanted(use(WINDOW + 1, 2 * WINDOW + 2, demand=demand), CAPS) == 2
    assert wanted(use(5 * WINDOW, demand=demand), CAPS) == 2


def test_below_the_low_water_mark_boxes_are_made_at_once() -> None:
    """Many at once leave no quiet moment: then some are made beside commands, not all."""
    demand = use(0, 1)
    for _ in range(8):
        demand = started(demand, 2)
    caps = Caps(boxes=16, per_template=8, templates=3)
    assert decide({"a": Stock(demand, 1)}, caps, 2, 2).make == {"a": pool.BATCH}
    assert decide({"a": Stock(demand, 2)}, caps, 2, 2).make == {}


def test_what_is_not_used_goes() -> None:
    """Soon after one use, later after several, and never while a command runs."""
    assert decide({"a": Stock(use(0), 0)}, CAPS, KEEP_ONCE + 0.02, 0).expire == ("a",)
    kept = decide({"a": Stock(use(0, 1), 2)}, CAPS, KEEP_ONCE + 2, 0)
    assert (kept.expire, kept.again) == ((), 1.01 + KEEP)
    assert decide({"a": Stock(use(0, 1), 2)}, CAPS, KEEP + 2, 0).expire == ("a",)
    assert decide({"a": Stock(started(Demand(), 0), 0)}, CAPS, 10 * KEEP, 0).expire == ()


def test_too_many_templates_lose_the_oldest() -> None:
    """And room for boxes goes to what was used last."""
    stocks: dict[Hashable, Stock] = {name: Stock(use(at, at + 1), 0) for name, at in zip("abcde", range(5), strict=True)}
    decision = decide(stocks, CAPS, 20, 10)
    assert sorted(map(str, decision.expire)) == ["a", "b"]
    assert decision.make == {"e": 2, "d": 2, "c": 2}


def test_no_boxes_without_room() -> None:
    """By number or by memory."""
    for caps in (Caps(boxes=0), Caps(memory=pool.BOX_MEMORY - 1)):
        assert caps.budget == 0
        assert decide({"a": Stock(use(0, 1), 3)}, caps, 5, 2) == Decision({}, {"a": 3}, (), 1.01 + KEEP)


times = st.floats(0, 2000, allow_nan=False)
demands = st.builds(
    Demand,
    uses=st.integers(0, 50), last=times, running=st.integers(0, 30), peak=st.integers(0, 30), before=st.integers(0, 30),
    since=times,
)  # fmt: skip
caps_ = st.builds(Caps, st.integers(0, 20), st.integers(0, 10), st.integers(1, 5), st.integers(0, 64 << 20))
stocks_ = st.dictionaries(st.integers(0, 20), st.builds(Stock, demands, st.integers(0, 12)), max_size=12)


@given(stocks_, caps_, times, times)
def test_no_decision_breaks_a_cap(stocks: dict[Hashable, Stock], caps: Caps, now: float, last: float) -> None:
    """Whatever stands there: once it is done the caps hold, nothing is dropped that is not there, nothing made for what goes."""
    decision = decide(stocks, caps, now, min(last, now))
    gone = set(decision.expire)
    assert gone.isdisjoint(decision.make)
    assert gone.isdisjoint(decision.drop)
    left = {
        key: stock.idle + decision.make.get(key, 0) - decision.drop.get(key, 0)
        for key, stock in stocks.items()
        if key not in gone
    }
    assert all(count >= 0 for count in left.values())
    assert sum(left.values()) <= caps.budget
    assert all(count <= caps.per_template for count in left.values())
    assert sum(stock.demand.running == 0 for key, stock in stocks.items() if key in left) <= caps.templates
    assert decision.again is None or decision.again >= now


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 100, allow_nan=False)), max_size=40))
def test_demand_follows_starts_and_ends(steps: list[tuple[bool, float]]) -> None:
    """Never fewer than none run, the peak is never below what runs, and quiet windows forget."""
    demand, now = Demand(), 0.0
    for starts, gap in steps:
        now += gap
        demand = started(demand, now) if starts else ended(demand, now)
        assert 0 <= demand.running <= max(demand.peak, demand.before)
        assert demand.last == now
    while demand.running:
        demand = ended(demand, now)
    assert wanted(use(now + 3 * WINDOW, now + 4 * WINDOW + 1, now + 5 * WINDOW + 2, demand=demand), Caps()) == 2


@given(stocks_, caps_, times)
def test_decisions_come_to_rest(stocks: dict[Hashable, Stock], caps: Caps, now: float) -> None:
    """Doing what was decided, in a quiet moment, leads to a state in which nothing more is to do."""
    for _ in range(12):
        decision = decide(stocks, caps, now, now - 1)
        stocks = {
            key: Stock(stock.demand, stock.idle + decision.make.get(key, 0) - decision.drop.get(key, 0))
            for key, stock in stocks.items()
            if key not in decision.expire
        }
    assert not decide(stocks, caps, now, now - 1).make
    assert not decide(stocks, caps, now, now - 1).drop
