# SPDX-License-Identifier: GPL-3.0-or-later
"""What happens to a command that was called read-only and tried to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxd.model import Mode
from tests.engine.conftest import House

# A table that is wrong: fallocate(1) of util-linux makes files.
WRONG = 'tool = "fallocate"\nbecause = "said to read only"\noperands = ["path.read..."]\n[options]\ntext = "-l="\n'


async def test_a_broken_promise_is_not_given_again(house: House) -> None:
    """The kernel holds the promise; from then on the same text is judged as one that writes, and runs only when allowed."""
    tables = Path(house.engine.dirs.effects)
    tables.mkdir(parents=True)
    (tables / "fallocate.toml").write_text(WRONG)
    house.engine.reload(house.engine.config)
    session = house.session()
    text = "fallocate -l 10 made"
    broken, _, _ = await house.run(text, session)
    assert broken.code != 0
    assert broken.promise_broken
    assert any("judged as a command that writes" in note for note in broken.notes)
    denied, _, _ = await house.run(text, session)
    decision = house.engine.record.decisions(limit=1)[0]
    assert (denied.code, decision.decision.step) == (126, "3")
    assert "read-only promise" in decision.decision.message
    assert not (house.workspace / "made").exists()
    other, _, _ = await house.run("fallocate -l 11 made", session)
    assert other.promise_broken  # another text is another question
    trusting = house.session(Mode.BYPASS)
    trusting.remember_broken(text, trusting.cwd)
    made, _, _ = await house.run(text, trusting)
    assert (made.code, (house.workspace / "made").stat().st_size) == (0, 10)


async def test_what_only_reads_keeps_the_promise_in_every_mode(house: House) -> None:
    """In bypassPermissions too a command that is said to read gets nothing to write; where that was wrong, it is allowed the next
    time as one that writes."""
    tables = Path(house.engine.dirs.effects)
    tables.mkdir(parents=True)
    (tables / "fallocate.toml").write_text(WRONG)
    house.engine.reload(house.engine.config)
    session = house.session(Mode.BYPASS)
    text = "fallocate -l 10 made"
    broken, _, _ = await house.run(text, session)
    decision = house.engine.record.decisions(limit=1)[0].decision
    assert (decision.step, decision.promise, decision.grants) == ("2a", True, ())
    assert broken.promise_broken
    assert not (house.workspace / "made").exists()
    again, _, _ = await house.run(text, session)
    decision = house.engine.record.decisions(limit=1)[0].decision
    assert (again.code, decision.step, decision.promise) == (0, "2a", False)
    assert (house.workspace / "made").stat().st_size == 10


@pytest.mark.parametrize("text", ["cat .env", "grep -rh KEY . | sort", "cat $(ls -A | head -1)"])
async def test_bypass_hides_nothing_of_the_workspace(house: House, text: str) -> None:
    """In bypassPermissions what only reads sees the files that the promise hides in other modes, named or met."""
    (house.workspace / ".env").write_text("KEY=1\n")
    result, said, _ = await house.run(text, house.session(Mode.BYPASS))
    assert (result.code, said) == (0, "KEY=1\n")


async def test_bypass_does_not_open_what_a_rule_denies(house: House) -> None:
    """A file that a rule forbids to read stays hidden, though the mode opens the others of its kind."""
    (house.workspace / ".env").write_text("KEY=1\n")
    (house.workspace / "a.txt").write_text("KEY=2\n")
    _, said, _ = await house.run('for f in .e*v a.txt; do cat "$f"; done', house.session(Mode.BYPASS, deny=("Read(.env)",)))
    assert said == "KEY=2\n"
