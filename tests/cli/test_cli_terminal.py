# SPDX-License-Identifier: GPL-3.0-or-later
"""What reaches a terminal: colours, and nothing that moves, hides or forges."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.cli import terminal

FILTERED = (
    (b"plain\ttext\r\n", "plain\ttext\r\n"),
    (b"a\bb", "a\bb"),
    ("ünï — 𝔘".encode(), "ünï — 𝔘"),
    (b"\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m\x1b[0m"),
    (b"\x1b[38;2;1;2;3mrgb\x1b[m", "\x1b[38;2;1;2;3mrgb\x1b[m\x1b[0m"),
    (b"\x1b[4:3mcurly", "\x1b[4:3mcurly\x1b[0m"),
    (b"\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
    (b"\x1b[1A\x1b[2K", "\\x1b[1A\\x1b[2K"),
    (b"\x1b]52;c;ZXZpbA==\x07", "\\x1b]52;c;ZXZpbA==\\x07"),
    (b"\x1b]0;title\x1b\\", "\\x1b]0;title\\x1b\\"),
    (b"\x1b[?1049h", "\\x1b[?1049h"),
    (b"\x1b[>4;2m", "\\x1b[>4;2m"),
    (b"\x1bc", "\\x1bc"),
    (b"\x1b\x1b[31mx", "\\x1b\x1b[31mx\x1b[0m"),
    (b"\x9b2J", "\\x9b2J"),
    (b"\xc2\x9b2J", "\\x9b2J"),
    (b"\xff\xfe", "\\xff\\xfe"),
    (b"\x00\x0e\x7f", "\\x00\\x0e\\x7f"),
    (b"\x1b", "\\x1b"),
    (b"\x1b[12", "\\x1b[12"),
    (b"\xe2\x82", "\\xe2\\x82"),
)


@pytest.mark.parametrize(("data", "expected"), FILTERED)
def test_only_colours_pass(data: bytes, expected: str) -> None:
    """Colour sequences pass and are switched off at the end; every other control sequence is shown."""
    assert terminal.Filter().feed(data, final=True) == expected


@pytest.mark.parametrize(("data", "expected"), FILTERED)
def test_cutting_changes_nothing(data: bytes, expected: str) -> None:
    """Output that comes byte by byte looks the same as output that comes at once."""
    through = terminal.Filter()
    pieces = [through.feed(data[at : at + 1]) for at in range(len(data))]
    assert "".join(pieces) + through.feed(b"", final=True) == expected


@given(st.lists(st.binary(max_size=12) | st.sampled_from([b"\x1b", b"[", b"3", b";", b"m", b"\xc2", b"\x9b"]), max_size=12))
def test_nothing_else_reaches_the_terminal(chunks: list[bytes]) -> None:
    """Whatever the bytes and wherever they are cut, what is left has no control but colours and line characters."""
    through = terminal.Filter()
    out = "".join(through.feed(chunk) for chunk in chunks) + through.feed(b"", final=True)
    rest = re.sub(r"\x1b\[[0-9;:]*m", "", out)
    assert not re.search(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]", rest)


@given(st.text(), st.integers(1, 50))
def test_held_back_text_is_bounded(text: str, size: int) -> None:
    """An endless unfinished sequence is not collected for ever."""
    through = terminal.Filter()
    data = b"\x1b[" + b"1" * 200 + text.encode("utf-8", "replace")
    fed = sum(len(through.feed(data[at : at + size])) for at in range(0, len(data), size))
    assert len(data) - fed <= 200 + len(text.encode("utf-8", "replace"))
    assert len(through._held) <= 64


@pytest.mark.parametrize(
    ("rows", "head", "expected"),
    [
        ([], (), ""),
        ([("a", "b"), ("ccc", "d")], (), "a    b\nccc  d"),
        ([("x", "1")], ("name", "n"), "name  n\nx     1"),
        ([("日本", "x"), ("a", "y")], (), "日本  x\na     y"),
        ([("\x1b[31mred\x1b[0m", "x"), ("blue", "y")], (), "\x1b[31mred\x1b[0m   x\nblue  y"),
    ],
)
def test_tables_line_up(rows: list[tuple[str, ...]], head: tuple[str, ...], expected: str) -> None:
    """Columns line up as a terminal shows them: wide characters count twice, colours not at all."""
    assert terminal.table(rows, head) == expected


@pytest.mark.parametrize(
    ("tty", "env", "expected"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colours_only_where_wanted(tty: bool, env: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours only on a terminal, without NO_COLOR, and not on a dumb one."""

    class Stream:
        def isatty(self) -> bool:
            return tty

    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert terminal.colourful(Stream()) is expected  # type: ignore[arg-type]  # all that is asked of a stream
