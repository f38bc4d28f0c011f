# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/running.md is true: its example runs, its commands exist, its table has every setting with its default."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxd.cli.main import build_parser
from sandboxd.config import RunSettings
from tests.conftest import ROOT

DOC = (ROOT / "docs/running.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"(?ms)^```python example\n(.*?)^```", DOC)
UNITS = {"GiB": 1 << 30, "days": 86_400}


@pytest.mark.needs("bwrap", "userns")
def test_the_example_runs(tree: Path) -> None:
    """The batch of the page works as it stands, results in the order asked and texts behind them."""
    done = subprocess.run([sys.executable, "-c", EXAMPLE], cwd=tree, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["log 0", "notes 0", "files 0"]
    assert re.fullmatch(r"log [0-9a-f]{7,} first", lines[3])
    assert "notes remember the milk" in lines
    assert "files Makefile" in lines


def test_every_setting_is_there() -> None:
    """The table names each key of `[run]` once, with the default that holds."""
    said = {}
    for key, value in re.findall(r"(?m)^\| `(\w+)` \| ([^|]+) \|", DOC):
        number, _, unit = value.strip().replace(",", "").partition(" ")
        said[key] = float(number) * UNITS.get(unit, 1)
    assert said == {field.name: float(field.default) for field in dataclasses.fields(RunSettings)}  # type: ignore[arg-type]  # they are numbers


def test_the_commands_exist() -> None:
    """Each command line of the page is one that the command line takes."""
    lines = re.findall(r"(?m)^\$ (?:.*\| |id=\$\()?sandboxd (executions [^#\n]*|run [^#\n)]*)", DOC)
    assert len(lines) >= 8
    for line in lines:
        words = line.replace("$id", "e-1").split(" -- ")[0].split()
        build_parser(words[0]).parse_args(words)
