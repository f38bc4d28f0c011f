# SPDX-License-Identifier: GPL-3.0-or-later
"""A rule that denies reading is kept by the kernel too, whatever code a command runs."""

from __future__ import annotations

import pytest

from sandboxd.model import EndKind, Mode
from tests.engine.conftest import House

pytestmark = pytest.mark.needs("bwrap", "userns")


@pytest.mark.parametrize("rule", ["Read(secrets/**)", "Read(key)", "Read(secrets)", "Read(**/k?y)"])
async def test_code_cannot_read_what_a_rule_denies(rule: str, house: House) -> None:
    """An interpreter that opens the file gets an error that names the rule; other files are as ever, and nothing is lost."""
    secrets = house.workspace / "secrets"
    secrets.mkdir()
    (secrets / "key").write_text("hidden words")
    (house.workspace / "plain").write_text("shown words")
    session = house.session(Mode.BYPASS, deny=(rule,))
    result, text, _ = await house.run("""python3 -c 'print(open("sec" + "rets/key").read())'""", session)
    assert (result.end, result.code, text) == (EndKind.EXITED, 1, "")
    assert any(rule in violation.rule for violation in result.violations), result
    result, text, _ = await house.run("""python3 -c 'print(open("plain").read()); open("made", "w").write("x")'""", session)
    assert (result.code, text) == (0, "shown words\n")
    assert (secrets / "key").read_text() == "hidden words"
    result, text, _ = await house.run("""python3 -c 'print(open("secrets/key").read())'""", house.session(Mode.BYPASS))
    assert text == "hidden words\n"


async def test_a_reader_cannot_either(house: House) -> None:
    """Under the read-only promise as well: a read whose path is only known when it runs."""
    (house.workspace / "key").write_text("hidden words")
    session = house.session(Mode.BYPASS, deny=("Read(key)",))
    result, text, _ = await house.run('for f in k*y; do cat "$f"; done', session)
    assert "hidden words" not in text
    assert result.code != 0
    result, text, _ = await house.run('f=$(ls | head -1); cat "$f"', session)
    assert "hidden words" not in text
