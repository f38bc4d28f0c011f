# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading shell text, side by side with one bare `bashlex.parse` of the same text.

Over tests/corpus/shell_agent.jsonl, commands as coding agents write them. A ratio is the median over the texts of
ours / theirs, each text timed in turns; a text that bare bashlex cannot read is left out of the comparison. Goals: lexing
and grammar together 0.6 in the steady state and 1.4 with the cache of shapes empty.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median

import bashlex

from benchmarks.measure import Case, Measured, middle, sample
from sandboxd.shell import grammar
from sandboxd.shell.functions import all_frames
from sandboxd.shell.lexer import Budget
from sandboxd.shell.reader import Reader
from sandboxd.shell.script import parse

CORPUS = Path(__file__).parent.parent / "tests" / "corpus" / "shell_agent.jsonl"


def read(text: str) -> None:
    """Lexing and grammar of the text and of everything nested in it."""
    frame, _ = Reader(text, Budget()).frame(0, "")
    for one in all_frames(frame):
        for shape, _ in one.statements:
            grammar.tree(shape)


def read_cold(text: str) -> None:
    grammar.forget()
    read(text)


def readable(text: str) -> bool:
    try:
        bashlex.parse(text)
    except Exception:  # eight kinds are known
        return False
    return parse(text).unparsed is None


def ratio(name: str, ours: Callable[[str], object], texts: list[str], goal: float) -> Case:
    """The median over `texts` of the time of `ours` over that of bashlex."""

    def run(seconds: float) -> Measured:
        ratios: list[float] = []
        left: list[float] = []
        for text in texts:
            mine, theirs = sample(lambda t=text: ours(t), lambda t=text: bashlex.parse(t), seconds=seconds / len(texts), rounds=9)  # type: ignore[misc]  # a bound default
            ratios.append(median(mine) / median(theirs))
            left.append(median(mine))
        return middle(ratios, f"{median(left) * 1e6:.1f} us; p95 of the texts")

    return Case(name, "x", run, goal)


def cases() -> list[Case]:
    texts = [json.loads(line)["cmd"] for line in CORPUS.read_text().splitlines()]
    texts = [text for text in texts if readable(text)]
    return [
        ratio("shell.read_vs_bashlex", read, texts, 0.6),
        ratio("shell.read_cold_vs_bashlex", read_cold, texts, 1.4),
        ratio("shell.parse_vs_bashlex", parse, texts, 0.8),
    ]
