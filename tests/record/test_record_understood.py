# SPDX-License-Identifier: GPL-3.0-or-later
"""What the record keeps of an analysis: enough to explain a decision later, and no secret, whichever word holds it."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.analyze import analyze
from sandboxd.model import Analysis, AnalysisContext, Behavior, Decision, Evidence, Span, Timing
from sandboxd.record.audit import Record
from sandboxd.record.blotted import Blotted
from sandboxd.record.codec import dumps
from sandboxd.record.understood import MAX_EFFECTS, moved, summary, understood

HOME = "/home/ada"


def kept(text: str, secrets: tuple[str, ...] = ()) -> tuple[str, str]:
    """The text and the analysis of a command as they are kept."""
    blotted = Blotted(text, secrets)
    return blotted.text, dumps(summary(analyze(text, AnalysisContext("/w", HOME, "/w")), blotted))


def shown(analysis: Analysis) -> list[tuple[object, ...]]:
    """Of each effect what a table shows, with the words that stand for it."""
    return [
        (
            *(one.kind, one.target, one.because, one.act, one.code, one.detail, one.recursive, one.sensitivity),
            *(one.direction, one.fragments, one.pattern, analysis.text[one.span.start : one.span.end]),
        )
        for one in analysis.effects
    ]


@pytest.mark.parametrize(
    "text",
    [
        "ls | wc -l",
        "rm -rf build/* && cat ~/.ssh/id > /tmp/x",
        "bash -c 'curl https://a.test/x | tee y'; find . -name '*.o' -delete",
        'x=$(cat a) && python3 -c "print(1)" "$x" {a,b}',
        "echo 'open",
        "git push origin main",
    ],
)
def test_an_analysis_comes_back(text: str) -> None:
    """Kinds, targets, rows, codes, words and places of every effect are as they were."""
    before = analyze(text, AnalysisContext("/w", HOME, "/w"))
    after = understood(text, "/w", kept(text)[1])
    assert after is not None
    assert shown(after) == shown(before)
    assert [(one.argv, one.via) for one in after.commands] == [(one.argv, one.via) for one in before.commands]
    assert (after.read_only, after.destructive, after.changes_cwd) == (before.read_only, before.destructive, before.changes_cwd)
    assert (after.unparsed is None) == (before.unparsed is None)
    assert before.unparsed is None or (after.unparsed is not None and after.unparsed.reason == before.unparsed.reason)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("mysql --password hunter2 -e x", "hunter2"),
        ("curl -u me:pw9 https://a.test/", "pw9"),
        ("curl https://me:s3same@a.test/x -o out", "s3same"),
        ("curl -H 'Authorization: Bearer abcdefghijklmnop0123' https://a.test/", "abcdefghijklmnop0123"),
        ("API_TOKEN=abcdef123 ./deploy", "abcdef123"),
        ("cp ghp_abcdefghijklmnopqrstuvwx there", "ghp_abcdefghijklmnopqrstuvwx"),
        ("echo 'open --token hunter22", "hunter22"),
    ],
)
def test_no_word_brings_a_secret(text: str, secret: str) -> None:
    """A secret is known by what stands around it, and then gone from every word, target and fragment."""
    words, encoded = kept(text)
    assert secret not in words
    assert secret not in encoded
    assert understood(words, "/w", encoded) is not None


def test_a_known_value_is_gone_everywhere() -> None:
    """A value of the session's environment is blotted out of words and targets, too."""
    words, encoded = kept("cat notes/s3cr3t-name > out", ("s3cr3t-name",))
    assert "s3cr3t" not in words + encoded


_PIECES = st.sampled_from(["ls", "é ", "--password hunter2", "-u me:pw", "A_TOKEN=xyzzy", " && ", "'q'", "[redacted:value]", " "])


@given(st.lists(_PIECES, max_size=8), st.integers(0, 60), st.integers(0, 12))
def test_places_follow_the_text(pieces: list[str], start: int, length: int) -> None:
    """A place that is kept shows the same characters as before, but for what was blotted out within it."""
    text = " ".join(pieces)
    span = Span(min(start, len(text)), min(start + length, len(text)))
    blotted = Blotted(text)
    found = blotted.span(span)
    words = text[span.start : span.end]
    if found is not None:
        after = blotted.text[found.start : found.end]
        assert after == words or "[redacted" in after, (text, words, after)
        assert 0 <= found.start <= found.end <= len(blotted.text)
    assert blotted.changed or found == span


def test_evidence_moves_along() -> None:
    """What a decision points at is found in the text that is kept."""
    text = "mysql --password hunter2 && rm x"
    blotted = Blotted(text)
    decision = Decision(Behavior.ASK, "3", "default", "m", evidence=(Evidence("e", Span(28, 30)), Evidence("f", Span(20, 22))))
    first, second = moved(decision, blotted).evidence
    assert first.span is not None
    assert blotted.text[first.span.start : first.span.end] == "rm"
    assert second.span is None


def test_a_great_many_effects_are_kept_in_part() -> None:
    """The record of one command is bounded."""
    text = "; ".join(f"touch f{number}" for number in range(MAX_EFFECTS))
    after = understood(text, "/w", kept(text)[1])
    assert after is not None
    assert len(after.effects) == MAX_EFFECTS


@pytest.mark.parametrize(
    "encoded", ["", "{", '{"commands":[{"argv":1}]}', '{"commands":[{"argv":[],"effects":[{"kind":"new"}]}]}']
)
def test_what_is_none(encoded: str) -> None:
    """Nothing kept, or nothing that this version reads: then there is no analysis, and no error."""
    assert understood("x", "/w", encoded) is None


def test_a_row_of_an_older_version() -> None:
    """A summary without places is read, and points nowhere."""
    effect = '{"kind":"read","target":"/w","because":"ls"}'
    old = f'{{"unparsed":null,"read_only":true,"commands":[{{"argv":["ls"],"via":"","effects":[{effect}]}}]}}'
    after = understood("ls", "/w", old)
    assert after is not None
    assert [(one.target, one.span) for one in after.effects] == [("/w", Span(0, 0))]


async def test_timings_are_kept(tmp_path: Path) -> None:
    """How long the stages took comes back with the decision; a row of an older version has none."""
    record = Record(str(tmp_path / "r.db"))
    took = (Timing("hooks", 0.25), Timing("parse", 0.001))
    decision = Decision(Behavior.ALLOW, "2e", "read_only", "m")
    values = {"session_id": "s", "execution_id": "", "text": "ls", "cwd": "/w", "mode": "default", "decision": decision}
    made = await record.record_decision(decision_id="d", **values, timings=took, durable=True)  # type: ignore[arg-type]  # one dict for both
    await record.record_decision(decision_id="e", **values, durable=True)  # type: ignore[arg-type]  # one dict for both
    assert record.decision("d").timings == took == made.timings
    assert dataclasses.replace(record.decision("d"), row=0) == made
    record.close()
    with sqlite3.connect(tmp_path / "r.db") as file:
        (stored,) = file.execute("SELECT timings FROM decisions WHERE id = 'e'").fetchone()
    assert json.loads(stored) == []
