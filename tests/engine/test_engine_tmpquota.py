# SPDX-License-Identifier: GPL-3.0-or-later
"""A session's /tmp lies on the host's disk: a command cannot fill it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from sandboxd import tmpquota
from sandboxd.model import EndKind, Mode
from sandboxd.tmpquota import BEYOND, used
from tests.engine.conftest import House

FILL = "head -c 3000000 /dev/zero >/tmp/a; while head -c 500000 /dev/zero >>/tmp/a; do sleep 0.1; done"


async def test_a_command_that_fills_tmp_is_ended(house: House) -> None:
    """It is told why, and the next one can make room."""
    run = dataclasses.replace(house.engine.config.run, tmp_quota=4_000_000, grace=0.0)
    house.engine.reload(dataclasses.replace(house.engine.config, run=run))
    session = house.session(Mode.BYPASS)
    filled, _, _ = await house.run(FILL, session)
    assert filled.end is EndKind.CANCELLED
    assert "`run.tmp_quota` = 4000000 bytes" in filled.cause
    assert used(session.isolation.tmp) > 4_000_000
    cleared, _, _ = await house.run("rm /tmp/a; read -r -t 1.5 < <(sleep 100); echo done", session)
    assert (cleared.end, cleared.code) == (EndKind.EXITED, 0)
    assert used(session.isolation.tmp) < 100_000


def test_what_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes on the disk of everything below, links as themselves, and a bounded number of entries."""
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/er/file").write_bytes(b"x" * 100_000)
    (tmp_path / "deep/sparse").touch()
    os.truncate(tmp_path / "deep/sparse", 1 << 30)
    (tmp_path / "link").symlink_to("/usr")
    assert 100_000 <= used(str(tmp_path)) < 200_000
    assert used(f"{tmp_path}/missing") == 0
    many = tmp_path / "many"
    many.mkdir()
    monkeypatch.setattr(tmpquota, "MOST", 10)
    for number in range(11):
        (many / str(number)).touch()
    assert used(str(many)) == BEYOND
