# SPDX-License-Identifier: GPL-3.0-or-later
"""What happens to a command that was called read-only and tried to write."""

from __future__ import annotations

from pathlib import Path

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
