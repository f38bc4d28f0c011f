# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model gets to read: budgets, previews, cleaned text; nothing cut inside a character, nothing hidden in it."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.model import UNLIMITED, Stream
from sandboxd.run.preview import PREVIEW, Budgets, clean, decode, over, preview, whole_characters

CLEAN = [
    ("plain\n", "plain\n"),
    ("\x1b[31mred\x1b[0m", "red"),
    ("\x1b[1;38;5;196mred\x1b[m", "red"),
    ("a\x1b[2Jb\x1b[Hc", "abc"),  # clear the screen, go home
    ("\x1b]0;title\x07text", "text"),
    ("\x1b]52;c;aGk=\x1b\\text", "text"),  # set the clipboard
    ("\x1bPq#0\x1b\\text", "text"),
    ("\x1b(Btext\x1b=", "text"),
    ("\x9b31mred", "red"),  # the one-byte form of CSI
    ("\x1b]never ended", "never ended"),  # what looks like a sequence hides nothing
    ("10%\r20%\r\ndone\r\n", "10%\n20%\ndone\n"),
    ("a\0b\x08c\x7f", "abc"),
    ("tab\tstays\n", "tab\tstays\n"),
]


@pytest.mark.parametrize(("text", "expected"), CLEAN)
def test_clean(text: str, expected: str) -> None:
    """Terminal sequences and control characters go, text stays."""
    assert clean(text) == expected


TERMINAL = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("\x1b[]m;0123\x07\\\r\nP^_\x9b\x9c")), max_size=200)


@given(TERMINAL)
def test_clean_is_stable_and_leaves_no_control(text: str) -> None:
    """Whatever comes, the result holds no control character but tab and line feed, and cleaning again changes nothing."""
    once = clean(text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", once)
    assert clean(once) == once


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"))), st.lists(st.integers(0, 400), max_size=8))
def test_a_character_cut_between_chunks_is_whole(text: str, cuts: list[int]) -> None:
    """However the bytes of a stream were cut into chunks, and whatever the other stream says between, the text is whole."""
    data = text.encode()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [(Stream.STDOUT, data[a:b]) for a, b in itertools.pairwise(edges)]
    assert decode(chunks) == text
    mixed = [piece for chunk in chunks for piece in (chunk, (Stream.STDERR, b""))]
    assert decode(mixed) == text


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"))), st.integers(0, 50), st.integers(0, 50))
def test_cut_ends_are_whole_characters(text: str, front: int, back: int) -> None:
    """Bytes cut out of UTF-8 text anywhere decode to a part of that text, without a replacement character."""
    data = text.encode()
    middle = data[front : max(front, len(data) - back)]
    found = decode([(Stream.STDOUT, whole_characters(middle))], cut=True)
    assert found in text


@given(st.binary(max_size=300))
def test_binary_is_text(data: bytes) -> None:
    """What is not UTF-8 becomes text that can be sent as UTF-8."""
    decode([(Stream.STDOUT, data)]).encode("utf-8")


@given(st.lists(st.text("abcé漢", max_size=60), min_size=1, max_size=60), st.integers(0, 600))
def test_preview(lines: list[str], budget: int) -> None:
    """A preview is a head and a tail of the text around the notice, within the budget, cut at line ends where there are any."""
    text = "\n".join(lines) + "\n"
    shown = preview(text, text, budget, "NOTICE")
    head, _, tail = shown.partition("NOTICE\n")
    half = min(PREVIEW, budget) // 2
    assert len(head.removesuffix("\n")) <= half
    assert len(tail) <= half
    assert text.startswith(head.removesuffix("\n"))
    assert text.endswith(tail)
    if "\n" in text[:half]:
        assert head.endswith("\n")
        assert text.startswith(head)
    start = len(text) - len(tail)
    if "\n" in text[len(text) - min(half, len(text)) : -1]:
        assert text[start - 1] == "\n"


BUDGETS = [
    (None, 50_000),
    (100, 100),
    (300_000, 300_000),
    (10_000_000, 400_000),
    (UNLIMITED, None),
]


@pytest.mark.parametrize(("asked", "allowed"), BUDGETS)
def test_budget_of_a_result(asked: int | None, allowed: int | None) -> None:
    """The configured budget, or the call's own up to the absolute one; the exemption comes before everything."""
    assert Budgets().of(asked) == allowed


@given(st.builds(Budgets, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)))
def test_no_setting_reaches_an_exempt_call(budgets: Budgets) -> None:
    """However small the budgets are, `unlimited` stays unlimited: no loop of store, read, store."""
    assert budgets.of(UNLIMITED) is None


OVER = [
    ([10_000, 20_000], 30_000, []),
    ([10_000, 20_000], 29_999, [1]),
    ([20_000, 20_000, 20_000], 45_000, [0]),
    ([50_000, 60_000, 1_000], 10_000, [0, 1]),
    ([None, 100_000], 50_000, [1]),
    ([PREVIEW, PREVIEW], 10, []),
    ([], 0, []),
]


@pytest.mark.parametrize(("sizes", "budget", "stored"), OVER)
def test_over(sizes: list[int | None], budget: int, stored: list[int]) -> None:
    """The largest results of a batch are stored first, and no more than needed."""
    assert over(sizes, budget) == frozenset(stored)


@given(st.lists(st.one_of(st.none(), st.integers(0, 60_000)), max_size=12), st.integers(0, 200_000))
def test_over_fits_and_takes_the_largest(sizes: list[int | None], budget: int) -> None:
    """What is left fits or cannot be made smaller, and no stored result is smaller than one that stays."""
    chosen = over(sizes, budget)
    rest = [size for number, size in enumerate(sizes) if size is not None and number not in chosen]
    total = sum(rest) + len(chosen) * PREVIEW
    assert total <= budget or all(size <= PREVIEW for size in rest)
    if chosen:
        assert min(sizes[number] or 0 for number in chosen) >= max([size for size in rest if size > PREVIEW], default=0)
