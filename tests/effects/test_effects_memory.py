# SPDX-License-Identifier: GPL-3.0-or-later
"""What is remembered of texts: the same answer for the same question, and never more than there is room for."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd import analyze as analysis
from sandboxd.analyze import analyze
from sandboxd.effects.tables import Tables
from sandboxd.effects.targets import MAX_PATH, Place, locate
from sandboxd.memory import Memory
from sandboxd.model import AnalysisContext, EffectKind, Inputs, Needs, RuleSet, Scope
from sandboxd.policy import waterfall

CONTEXT = AnalysisContext("/w", "/h", "/w")


@given(st.integers(16, 200), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 60)), max_size=60))
def test_it_holds_what_fits(room: int, asked: list[tuple[int, int]]) -> None:
    """An answer is the one that was given last for its question, or is forgotten; together they never take more than the room."""
    memory: Memory[int] = Memory(room)
    given_last: dict[int, tuple[int, int]] = {}
    for number, (question, size) in enumerate(asked):
        assert memory.keep(question, number, size) == number
        if size <= room // 8:
            given_last[question] = (number, size)
            assert memory.get(question) == number
        assert sum(size for key, (_, size) in given_last.items() if memory.get(key) is not None) <= room
        for key, (answer, _) in given_last.items():
            assert memory.get(key) in (answer, None)


def test_the_same_question_is_answered_from_memory() -> None:
    """A command that comes again is not understood again."""
    assert analyze("ls remembered", CONTEXT) is analyze("ls remembered", CONTEXT)


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (lambda number: ";".join(f"a{number}b{each}" for each in range(1_900)), 40),
        (lambda number: f"cat > f{number} <<'E'\n" + f"line {number}\n" * 3_000 + "E\n", 300),
        (lambda number: f"echo 'open {number} " + "word " * 12_000, 40),
        (lambda number: f"echo 'open {number} " + " ".join(f"{each:x}" for each in range(3_000)), 120),
        (lambda number: f"cat /{number}" + "/x" * 20_000, 300),
    ],
)
def test_no_texts_fill_the_memory(monkeypatch: pytest.MonkeyPatch, kind: object, count: int) -> None:
    """However much there is to know of texts that never come again, what is kept of them stays within its room, and what
    that is said to take is what it takes."""
    assert callable(kind)
    room = 4 << 20
    for module, name in ((analysis, "_DONE"), (analysis, "_READ_TEXTS"), (waterfall, "_ANSWERED")):
        monkeypatch.setattr(module, name, Memory(room))
    waterfall.evaluate(Inputs(analyze(kind(-1), CONTEXT), RuleSet(), Scope("/w", "/h")))
    tracemalloc.start()
    try:
        for number in range(count):
            waterfall.evaluate(Inputs(analyze(kind(number), CONTEXT), RuleSet(), Scope("/w", "/h")))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 3 * room


def test_names_of_no_tool_do_not_add_up() -> None:
    """Names that no tool has are remembered up to a bound; the tables that were read stay."""
    tables = Tables()
    found = tables.find("ls")
    for number in range(20_000):
        assert tables.find(f"no-such-tool-{number}") == ()
    assert len(tables._absent) <= 8_192
    assert tables.find("ls") is found


@pytest.mark.parametrize("size", [199, 201, 300, 5_000])
def test_long_names(size: int) -> None:
    """A name that no file can have is that of a tool that is not known, and nothing fails."""
    found = analyze("a" * size + " x", CONTEXT)
    assert found.unparsed is None
    assert [effect.code for effect in found.effects if effect.kind is EffectKind.OPAQUE] == ["opaque.unlisted_tool"]


def test_long_paths() -> None:
    """What the kernel would not take as a path is none that is known, and its text is evidence."""
    path = "/a" * MAX_PATH + "/.git/config"
    (target,) = locate(path, Place(("/w",), "/h"))
    assert target.path is None
    assert target.fragments == (path,)
    decision = waterfall.evaluate(Inputs(analyze(f"echo x > {path}", CONTEXT), RuleSet(), Scope("/w", "/h")))
    assert isinstance(decision, Needs)
    assert decision.pending.protected
