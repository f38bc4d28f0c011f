# SPDX-License-Identifier: GPL-3.0-or-later
"""`python -m benchmarks.run [NAME…]`: run every case of every bench module, print a table, write build/bench.json.

build/bench.json is `{name: {ratio, unit, goal, met, n}}`; an absolute figure stands in `ratio` with its unit. The table also
shows the same figure of the 95th percentiles. Names
given on the command line are prefixes and choose the cases. The whole run is bounded by TOTAL seconds: each case gets an
even share of what is left, at most SHARE, and what no time is left for is reported as not measured, never as met.
Exit status 1 when a case could not be measured; a missed goal is a fact for the table, not an error.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import traceback
from pathlib import Path
from time import perf_counter

import benchmarks
from benchmarks.measure import Case, Measured

TOTAL = 220.0  # seconds; leaves room under four minutes for building the cases
SHARE = 4.0  # seconds one case may sample
OUT = Path(__file__).resolve().parent.parent / "build" / "bench.json"


def collect() -> list[Case]:
    """The cases of all modules `benchmarks.bench_*`, in order of name; a name given twice is an error."""
    cases: list[Case] = []
    for module in sorted(pkgutil.iter_modules(benchmarks.__path__), key=lambda info: info.name):
        if module.name.startswith("bench_"):
            cases += importlib.import_module(f"benchmarks.{module.name}").cases()
    names = [case.name for case in cases]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SystemExit(f"bench: two cases have the name {', '.join(twice)}")
    return cases


def main(argv: list[str]) -> int:
    chosen = [case for case in collect() if not argv or case.name.startswith(tuple(argv))]
    if not chosen:
        print("bench: no case matches", file=sys.stderr)
        return 1
    end = perf_counter() + TOTAL
    record: dict[str, dict[str, object]] = {}
    failed = 0
    width = max(len(case.name) for case in chosen)
    print(f"{'case':<{width}}  {'median':>10} {'p95':>10} {'':<4} {'goal':>10}")
    for index, case in enumerate(chosen):
        left = end - perf_counter()
        measured = _measure(case, min(SHARE, left / (len(chosen) - index))) if left > 0 else None
        if measured is None:
            failed += 1
            record[case.name] = {"ratio": None, "unit": case.unit, "goal": case.goal, "met": False, "n": 0}
            print(f"{case.name:<{width}}  not measured")
            continue
        met = case.met(measured.value)
        record[case.name] = {
            "ratio": round(measured.value, 4),
            "unit": case.unit,
            "goal": case.goal,
            "met": met,
            "n": measured.n,
        }
        print(_row(case, measured, met, width), flush=True)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"\n{len(chosen) - failed} measured, {failed} not; written to {OUT.relative_to(OUT.parent.parent)}")
    return 1 if failed else 0


def _measure(case: Case, seconds: float) -> Measured | None:
    try:
        return case.run(seconds)
    except Exception:  # one broken case must not lose the figures of the others; it counts as not measured
        traceback.print_exc()
        return None


def _row(case: Case, measured: Measured, met: bool | None, width: int) -> str:
    sign = ">=" if case.higher else "<="
    goal = "" if case.goal is None else f"{sign} {case.goal:g}"
    verdict = {True: "met", False: "MISSED", None: ""}[met]
    p95 = "-" if measured.p95 is None else f"{measured.p95:.3f}"
    figure = f"{measured.value:>10.3f} {p95:>10} {case.unit:<4}"
    return f"{case.name:<{width}}  {figure} {goal:>10}  {verdict:<6}  n={measured.n:<5} {measured.note}".rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
