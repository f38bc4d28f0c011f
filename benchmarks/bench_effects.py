# SPDX-License-Identifier: GPL-3.0-or-later
"""A whole judgement beside one bare bashlex parse of the same line; what of it is effects, rules and waterfall; a command that
comes again; the tables in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import bashlex

from benchmarks.measure import Case, Measured, against, duration, figure, middle, sample
from sandboxd.analyze import _READ_TEXTS, TABLES, _Line, analyze
from sandboxd.effects.tables import Tables
from sandboxd.model import Analysis, AnalysisContext, Behavior, Inputs, RuleSet, Scope, Source
from sandboxd.policy.rules import parse_rule
from sandboxd.policy.waterfall import evaluate, walk

CONTEXT = AnalysisContext("/home/ada/work", "/home/ada", "/home/ada/work")
ROUNDS = 40  # samples of a line
_SCOPE = Scope("/home/ada/work", "/home/ada")
_RULES = RuleSet(
    tuple(
        parse_rule(text, behavior, Source.USER, "bench")
        for behavior, text in (
            (Behavior.DENY, "Bash(rm -rf:*)"),
            (Behavior.DENY, "Read(./.env)"),
            (Behavior.ASK, "Bash(git push:*)"),
            (Behavior.ALLOW, "Bash(npm run:*)"),
            (Behavior.ALLOW, "Edit(src/**)"),
            (Behavior.ALLOW, "WebFetch(domain:example.com)"),
        )
    )
)
# Lines of the kind that agents send; another file of rows with `cmd` can be measured by naming it here.
ROWS = os.environ.get("SANDBOXD_BENCH_COMMANDS", "")
LINES = (
    "ls -la",
    "git status",
    "cat README.md | head -50",
    "cd src && grep -rn 'def main' --include=*.py . | head -20",
    "find . -type f -name '*.py' -not -path './.venv/*' | xargs wc -l | sort -n | tail",
    "python3 -m pytest tests/unit -q 2>&1 | tail -30",
    "git diff HEAD~1 --stat && git log --oneline -5",
    "sed -n '10,60p' src/app/main.py",
    'for f in a b c; do echo "$f"; wc -l "$f.txt"; done',
    "mkdir -p build && cp -r src/* build/ && rm -rf build/tmp",
    "awk -F: '$3 > 1000 {print $1}' /etc/passwd | sort -u",
    "if [ -f package.json ]; then npm test; else echo 'no tests'; fi",
    "curl -s https://example.com/api | jq -r '.items[].name'",
    "docker ps --format '{{.Names}}' | grep web",
    "tar czf out.tgz -C build . && ls -lh out.tgz",
    "echo 'hello' > notes.txt; cat notes.txt",
)


def _commands() -> list[str]:
    """The lines to measure on; those that bashlex refuses have nothing to be compared with."""
    found = [json.loads(row)["cmd"] for row in Path(ROWS).read_text().splitlines() if row.strip()] if ROWS else list(LINES)
    return [text for text in found if _parses(text)]


def _parses(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bashlex.parse(text)
    except Exception:  # bashlex raises eight kinds
        return False
    return True


def _ratio(name: str, judge: Callable[[str], object], goal: float) -> Case:
    """Median over the lines of `judge` / one bare bashlex parse, taken in turns in small blocks; p95 is that of the lines."""
    return Case(name, "x", lambda seconds: _ratios(judge, seconds), goal)


def _ratios(judge: Callable[[str], object], seconds: float) -> Measured:
    texts = _commands()
    share = seconds / len(texts)
    return middle([against(*sample(*_both(judge, text), seconds=share, rounds=ROUNDS)).value for text in texts])


def _alternating(_: float) -> Measured:
    """Likewise, but one after the other: each finds the processor's caches filled by the other one."""
    ratios = []
    for text in _commands():
        both = _both(_beyond_shell, text)
        ours, theirs = zip(*([_once(work) for work in both] for _ in range(ROUNDS)), strict=True)
        ratios.append(against(ours, theirs).value)
    return middle(ratios)


def _both(judge: Callable[[str], object], text: str) -> tuple[Callable[[], object], Callable[[], object]]:
    return lambda: judge(text), lambda: bashlex.parse(text)


def _once(work: Callable[[], object]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


def _whole(text: str) -> object:
    """The whole judgement of a text that is new, when the shapes of its parts have been seen."""
    _READ_TEXTS.clear()
    return _beyond_shell(text)


def _beyond_shell(text: str) -> object:
    """Effects and waterfall of a text whose reading is remembered (`_Line` goes on from there)."""
    return walk(_inputs(_Line(text, CONTEXT, TABLES).run()))


def _again(text: str) -> object:
    return evaluate(_inputs(analyze(text, CONTEXT)))


def _inputs(analysis: Analysis) -> Inputs:
    return Inputs(analysis, _RULES, _SCOPE)


def _resident() -> float:
    """MB of memory that the tables of the lines' tools add to a process that has loaded everything else."""
    program = (
        "import json,sys,psutil\n"
        "from sandboxd.analyze import TABLES, analyze\n"
        "from sandboxd.shell.script import parse\n"
        "from benchmarks.bench_effects import CONTEXT, _commands\n"
        "commands = _commands()\n"
        "[parse(text) for text in commands]\n"
        "names = set(TABLES.names()) & {word for text in commands for word in text.replace('|', ' ').split()}\n"
        "analyze('true', CONTEXT)\n"
        "me = psutil.Process()\n"
        "before = me.memory_info().rss\n"
        "[TABLES.find(name) for name in names]\n"
        "print((me.memory_info().rss - before) / 1e6)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent
    )
    return float(done.stdout)


def _load_git() -> object:
    return Tables().find("git")


def cases() -> list[Case]:
    line = LINES[4]
    return [
        _ratio("effects.whole_vs_bashlex", _whole, 1.0),
        _ratio("effects.beyond_shell_vs_bashlex", _beyond_shell, 0.35),
        Case("effects.beyond_shell_alternating", "x", _alternating),
        _ratio("effects.again_vs_bashlex", _again, 0.12),
        duration("effects.cached", lambda: analyze(line, CONTEXT), unit="us", goal=20),
        duration("effects.one_pipeline", lambda: _Line(line, CONTEXT, TABLES).run(), unit="us"),
        duration("effects.largest_table", _load_git, unit="ms", rounds=20),
        figure("effects.tables_rss", _resident, unit="MB", goal=10),
    ]
