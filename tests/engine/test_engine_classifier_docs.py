# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/classifier.md says what the code does."""

from __future__ import annotations

import dataclasses
import json
import re
from enum import Enum
from pathlib import Path

from sandboxd.config import ClassifierSettings
from sandboxd.consult.circuit import LONGEST_PAUSE
from sandboxd.consult.transcript import MAX_ENTRIES, MAX_TOTAL
from sandboxd.consult.verdict import Outage
from sandboxd.policy.risk import CAUTIOUS

TEXT = (Path(__file__).parents[2] / "docs/classifier.md").read_text(encoding="utf-8")


def test_every_setting_is_told_with_its_default() -> None:
    """One row a setting, no row without one, and the default that counts."""
    told = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", TEXT, re.MULTILINE))
    defaults = {}
    for field in dataclasses.fields(ClassifierSettings):
        value = getattr(ClassifierSettings(), field.name)
        defaults[field.name] = json.dumps(value.value if isinstance(value, Enum) else value)
    assert told == defaults


def test_every_outage_is_told() -> None:
    """Each code stands in the table of outages, and none that does not exist."""
    table = TEXT[TEXT.index("| code `classifier.…`") : TEXT.index("After three outages")]
    cells = " ".join(line.split("|")[1] for line in table.splitlines()[2:] if line)
    assert sorted(f"classifier.{code}" for code in re.findall(r"`(\w+)`", cells)) == sorted(each.value for each in Outage)


def test_the_numbers_are_right() -> None:
    """Bounds that the text names."""
    assert f"most {LONGEST_PAUSE:.0f}. Then" in TEXT
    assert f"more than {MAX_ENTRIES}, or {MAX_TOTAL:,} characters" in TEXT
    assert f"from {CAUTIOUS} on the" in TEXT
