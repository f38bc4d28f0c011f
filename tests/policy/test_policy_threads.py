# SPDX-License-Identifier: GPL-3.0-or-later
"""What the deciding stage remembers, used by several threads at once."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandboxd.analyze import analyze
from sandboxd.memory import Memory, size_of
from sandboxd.model import AnalysisContext, Behavior, Inputs, Mode, RuleSet, Scope, Source
from sandboxd.policy import rules, waterfall


def test_threads_share_what_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are judged on several threads; what they remember for each other never fails one of them."""
    monkeypatch.setattr(waterfall, "_ANSWERED", Memory(2 * size_of("ls 10", 1, 0)))
    monkeypatch.setattr(rules, "_CACHE_SIZE", 2)
    context = AnalysisContext("/w", "/h", "/w")
    sets = [RuleSet((rules.parse_rule(f"Bash(ls {number}:*)", Behavior.ALLOW, Source.USER, "t"),)) for number in range(4)]
    asked = [
        Inputs(analyze(f"ls {number}", context), sets[number % len(sets)], Scope("/w", "/h"), mode)
        for number in range(40)
        for mode in (Mode.DEFAULT, Mode.AUTO)
    ]
    wanted = [waterfall.walk(each) for each in asked]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            for answers in pool.map(lambda _: [[waterfall.evaluate(each) for each in asked] for _ in range(20)], range(6)):
                assert all(given == wanted for given in answers)
    finally:
        sys.setswitchinterval(interval)
