# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole lines through analysis: what changes something is never read-only, what only looks is."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxd.model import EffectKind, Sensitivity
from tests.effects.effects_cases import changes, rows, understood


@pytest.mark.parametrize("row", rows("mutates"), ids=lambda row: row["cmd"])
def test_what_changes_something_is_not_read_only(row: dict[str, Any]) -> None:
    """Every dangerous form is seen, and for the reason that the row names."""
    analysis = understood(row["cmd"])
    assert not analysis.read_only
    if "first" in row and analysis.unparsed is None:
        found = {name for effect in analysis.effects if changes(effect) for name in (effect.code, effect.because)}
        assert row["first"] in found


@pytest.mark.parametrize("row", rows("readonly"), ids=lambda row: row["cmd"])
def test_what_only_looks_is_read_only(row: dict[str, Any]) -> None:
    """Everyday harmless forms need no question."""
    analysis = understood(row["cmd"])
    assert analysis.unparsed is None
    assert [effect for effect in analysis.effects if changes(effect)] == []
    assert analysis.read_only


@pytest.mark.parametrize("row", rows("secret"), ids=lambda row: row["cmd"])
def test_what_shows_secrets_says_so(row: dict[str, Any]) -> None:
    """Reading a secret is a read, and marked, so that it is never allowed by itself."""
    analysis = understood(row["cmd"])
    assert analysis.read_only
    secret = [effect for effect in analysis.effects if effect.sensitivity is Sensitivity.SECRET]
    assert secret
    assert all(effect.kind is EffectKind.READ for effect in secret)
