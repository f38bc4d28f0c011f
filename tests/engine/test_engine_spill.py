# SPDX-License-Identifier: GPL-3.0-or-later
"""Stored results in a daemon's life: settings that are reloaded, and a daemon of root that serves another user."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.model import EndKind, Mode
from tests.engine.conftest import House

pytestmark = pytest.mark.needs("bwrap", "userns")

LONG = "seq 20000"  # more characters than a model is shown


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory that everybody may pass through, as those of pytest are not."""
    parent = "/home" if os.geteuid() == 0 else str(Path.home())
    path = Path(tempfile.mkdtemp(prefix="sbxd-spill-", dir=parent))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


async def test_spill_settings_are_reloaded(house: House) -> None:
    """A new quota holds for the next result of a session that was there before."""
    session = house.session(Mode.BYPASS)
    first, _, _ = await house.run(LONG, session)
    assert os.path.getsize(first.spill_path) == first.stdout_bytes
    engine = house.engine
    engine.reload(dataclasses.replace(engine.config, run=dataclasses.replace(engine.config.run, spill_quota=5_000)))
    second, _, _ = await house.run(LONG, session)
    assert os.path.getsize(second.spill_path) == 5_000
    assert not os.path.exists(first.spill_path)


async def test_a_user_who_cannot_come_to_the_stored_results_is_told(house: House) -> None:
    """Root's state directory is closed to another user: nothing is stored there for nobody, and the result says what to do."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    os.chown(house.workspace, 65534, 65534)
    session = house.session(Mode.BYPASS)
    result, printed, _ = await house.run(LONG, session)
    assert (result.end, result.spill_path) == (EndKind.EXITED, "")
    assert [note for note in result.notes if "--state-dir" in note]
    text = await house.engine.executions.model_text(house.engine.executions.list(session)[0])
    assert text is not None
    assert "the rest could not be stored" in text.text
    assert printed.endswith("20000\n")
    os.chmod(house.engine.dirs.state, 0o711)
    other = house.session(Mode.BYPASS)
    result, printed, _ = await house.run(LONG, other)
    assert os.stat(result.spill_path).st_uid == 65534
    again, read, _ = await house.run(f"cat {result.spill_path}", other, max_result_chars=-1)
    assert (again.code, read) == (0, printed)
