# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions of the record's file: made, migrated, refused; and the JSON in it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.errors import ConfigError
from sandboxd.model import Behavior, Decision, Enforcement, Result, Span, TraceEntry
from sandboxd.record import schema
from sandboxd.record.codec import dumps, loads

# What each version brought; a new version is a row here.
TABLES = {1: {"sessions", "decisions", "executions", "approvals"}, 2: {"asked"}, 3: set()}


def tables(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    return found


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return int(found)


@pytest.mark.parametrize("start", range(schema.VERSION + 1))
def test_from_every_version(start: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of any earlier version ends up as the newest one; opening the newest changes nothing."""
    path = tmp_path / "r.db"
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:start])
        patch.setattr(schema, "VERSION", start)
        schema.prepare(str(path))
    assert version(path) == start
    schema.prepare(str(path))
    assert version(path) == schema.VERSION == max(TABLES)
    assert tables(path) == set().union(*TABLES.values())


def test_failed_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that fails leaves the file at the version it had."""
    path = tmp_path / "r.db"
    schema.prepare(str(path))
    before = tables(path)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "CREATE TABLE extra (x); NONSENSE"))
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    with pytest.raises(ConfigError, match="cannot be used"):
        schema.prepare(str(path))
    assert tables(path) == before
    assert version(path) == schema.VERSION - 1


@given(st.builds(Decision))
def test_decisions_round_trip(decision: Decision) -> None:
    """Any decision comes back equal."""
    assert loads(Decision, dumps(decision)) == decision


@given(st.builds(Result))
def test_results_round_trip(result: Result) -> None:
    """Any result comes back equal (but for a float that is no number, which JSON lacks)."""
    if "NaN" not in dumps(result):
        assert loads(Result, dumps(result)) == result


def test_lenient_in_one_way() -> None:
    """A missing field takes its default and an unknown one is skipped, so that neighbours in version understand each other."""
    text = '{"behavior":"allow","step":"2e","reason":"r","message":"m","evidence":[{"text":"t","span":[1,2]}],"new":1}'
    decision = loads(Decision, text)
    assert decision.evidence[0].span == Span(1, 2)
    assert decision.trace == ()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Decision, "{}"),
        (Decision, "[]"),
        (Decision, "null"),
        (Decision, '{"behavior":"maybe","step":"","reason":"","message":""}'),
        (Decision, '{"behavior":"allow","step":1,"reason":"","message":""}'),
        (Enforcement, '{"backend":"b","layers":{}'),
        (TraceEntry, '{"step":"1","name":"n","outcome":"x"}'),
    ],
)
def test_nonsense(kind: type, text: str) -> None:
    """What is no such value is a ValueError, never a half-made value."""
    with pytest.raises(ValueError):  # noqa: PT011  the messages are those of json and enum
        loads(kind, text)


def test_optional_enum() -> None:
    """None stays None where it may be."""
    entry = TraceEntry("1a", "n", None)
    assert loads(TraceEntry, dumps(entry)) == entry
    assert loads(TraceEntry, dumps(TraceEntry("1a", "n", Behavior.DENY))).outcome is Behavior.DENY
