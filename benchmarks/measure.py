# SPDX-License-Identifier: GPL-3.0-or-later
"""How things are measured here: interleaved samples, medians, a goal beside every figure.

A bench module (`benchmarks/bench_<area>.py`) has one function, `cases() -> list[Case]`. Three kinds of case:

    compare("shell.typical_vs_bash_n", ours, theirs, goal=1.0)        ratio ours/theirs, lower is better
    duration("shell.typical", work, unit="us", goal=200)              one call of `work`, in that unit
    figure("daemon.idle_rss", read_rss, unit="MB", goal=60)           whatever number `read_rss()` returns

Interleaved: ours and theirs take turns in small blocks, so that a machine that slows down slows both. The ratio is
that of the medians, and beside it stands that of the 95th percentiles. A block repeats its callable until it lasts at
least `MIN_BLOCK` seconds, so the clock's grain and the loop's own cost do not show.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter

MIN_BLOCK = 0.002  # seconds one sample lasts at least
SCALE = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # unit of duration -> how many make a second


@dataclass(frozen=True, slots=True)
class Measured:
    """`value` in the case's unit; `n` samples (of each side); `note` is shown in the table.

    `p95`: the same figure of the 95th percentiles instead of the medians, where there are samples to take them from: of
    times it is the slowest twentieth, whatever the value is made of.
    """

    value: float
    n: int
    note: str = ""
    p95: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table. `run(seconds)` measures for about that long and returns the figure.

    `goal` is met when the value is at most `goal` (at least, when `higher`); None = no goal, only reported.
    """

    name: str
    unit: str
    run: Callable[[float], Measured]
    goal: float | None = None
    higher: bool = False

    def met(self, value: float) -> bool | None:
        if self.goal is None:
            return None
        return value >= self.goal if self.higher else value <= self.goal


def compare(
    name: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    goal: float | None = None,
    rounds: int = 200,
) -> Case:
    """Median time of `ours` over that of `theirs`, from at most `rounds` interleaved samples of each."""

    def run(seconds: float) -> Measured:
        return against(*sample(ours, theirs, seconds=seconds, rounds=rounds))

    return Case(name, "x", run, goal)


def duration(
    name: str,
    work: Callable[[], object],
    *,
    unit: str = "us",
    goal: float | None = None,
    rounds: int = 200,
) -> Case:
    """Median time of one call of `work`, in `unit` (s, ms, us, ns)."""

    def run(seconds: float) -> Measured:
        (samples,) = sample(work, seconds=seconds, rounds=rounds)
        return middle([each * SCALE[unit] for each in samples])

    return Case(name, unit, run, goal)


def figure(
    name: str,
    read: Callable[[], float],
    *,
    unit: str,
    goal: float | None = None,
    higher: bool = False,
    rounds: int = 1,
) -> Case:
    """The median of `rounds` calls of `read`, which measures by itself: bytes, calls a second, a count."""

    def run(seconds: float) -> Measured:
        return middle([read() for _ in range(rounds)])

    return Case(name, unit, run, goal, higher)


def middle(samples: Sequence[float], note: str = "") -> Measured:
    """Median and 95th percentile of samples in the case's unit; of one, only that."""
    return Measured(median(samples), len(samples), note, percentile95(samples) if len(samples) > 1 else None)


def against(ours: Sequence[float], theirs: Sequence[float], *, unit: str = "us", note: str = "") -> Measured:
    """The ratio of the medians of two lots of seconds, and of their 95th percentiles; `unit` is that of the note."""
    value, p95 = median(ours) / median(theirs), percentile95(ours) / percentile95(theirs)
    said = " against ".join(
        f"{figure:.{1 if figure >= 100 else 2}f} {unit}"
        for figure in (each * SCALE[unit] for each in (median(ours), median(theirs)))
    )
    return Measured(value, len(ours), f"{said}; {note}" if note else said, p95)


def sample(*works: Callable[[], object], seconds: float, rounds: int) -> tuple[list[float], ...]:
    """Seconds per call of each of `works`, taken in turns, until `seconds` or `rounds` are used up (at least 3 rounds)."""
    repeats = [_repeats(work) for work in works]
    samples: tuple[list[float], ...] = tuple([] for _ in works)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        end = perf_counter() + seconds
        for done in range(max(rounds, 3)):
            if done >= 3 and perf_counter() >= end:
                break
            for work, count, out in zip(works, repeats, samples, strict=True):
                started = perf_counter()
                for _ in range(count):
                    work()
                out.append((perf_counter() - started) / count)
    finally:
        if collecting:
            gc.enable()
    return samples


def percentile95(samples: Sequence[float]) -> float:
    """The 95th percentile; of fewer than two samples, the largest."""
    return quantiles(samples, n=20, method="inclusive")[-1] if len(samples) > 1 else max(samples)


def _repeats(work: Callable[[], object]) -> int:
    """How often `work` must run for one sample to last MIN_BLOCK; the first call warms caches and is not counted."""
    work()
    count = 1
    while True:
        started = perf_counter()
        for _ in range(count):
            work()
        spent = perf_counter() - started
        if spent >= MIN_BLOCK:
            return count
        count = min(count * 16, max(count + 1, int(count * 1.2 * MIN_BLOCK / max(spent, 1e-9))))
