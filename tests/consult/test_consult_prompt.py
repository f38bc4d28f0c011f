# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person is shown cannot hide, move or forge anything."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.consult.approvals import escape_for_prompt

ROWS = [
    ("git push", "git push"),
    ("größer 日本語 é", "größer 日本語 é"),
    ("a\tb", "a\\x09b"),
    ("a\rb", "a\\x0db"),
    ("a\nb", "a\n    b"),
    ("\x1b[2J", "\\x1b[2J"),
    ("\x9b31m", "\\u{9b}31m"),
    ("a\u202eb", "a\\u{202e}b"),
    ("a\u2066b\u2069", "a\\u{2066}b\\u{2069}"),
    ("a\u200bb\u200db\ufeff", "a\\u{200b}b\\u{200d}b\\u{feff}"),
    ("a\u00adb", "a\\u{ad}b"),
    ("a\u2028b", "a\\u{2028}b"),
    ("a\u00a0b\u3000c", "a\\u{a0}b\\u{3000}c"),
    ("a\u3164b\u2800", "a\\u{3164}b\\u{2800}"),
    ("a\ufe0fb\U000e0100", "a\\u{fe0f}b\\u{e0100}"),
    ("a\U000e0041b", "a\\u{e0041}b"),
    ("a\ud800b", "a\\u{d800}b"),
    ("", ""),
]


@pytest.mark.parametrize(("text", "shown"), ROWS)
def test_rows(text: str, shown: str) -> None:
    """Each kind of invisible or moving character is shown as its code; honest text stays as it is."""
    assert escape_for_prompt(text) == shown


def test_long_text_keeps_its_end() -> None:
    """A long command shows its head and its tail, and counts what it leaves out."""
    shown = escape_for_prompt("echo " + "a" * 5000 + "; rm -rf ~", limit=100)
    assert shown.startswith("echo aaa")
    assert shown.endswith("aaa; rm -rf ~")
    assert "4915 characters left out" in shown


@given(st.text(), st.integers(1, 50))
def test_nothing_hidden_remains(text: str, limit: int) -> None:
    """Whatever comes in, only visible characters, spaces and indented line breaks go out."""
    for size in (limit, 4000):
        shown = escape_for_prompt(text, limit=size)
        for character in shown.replace("\n    ", ""):
            assert character == " " or unicodedata.category(character)[0] not in "CZ", repr(character)
