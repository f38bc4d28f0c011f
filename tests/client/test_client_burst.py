# SPDX-License-Identifier: GPL-3.0-or-later
"""A burst of reading commands through the daemon: its session's boxes, and what the status says of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sandboxd.client import Client, PoolInfo
from tests._require import require


def test_a_burst_of_reads_shares_boxes(tree: Path) -> None:
    """Each sees the workspace as it is now; the status counts those in a used box."""
    require("userns", "landlock")
    with Client(admin=True) as client, client.session() as session:
        reused = 0
        for number in range(200):  # another test may change the host, which empties the pool
            (tree / "now").write_text(f"{number}\n", encoding="utf-8")
            done = session.run("cat now")
            assert (done.stdout, done.exit_code) == (f"{number}\n".encode(), 0)
            assert done.result.enforcement is not None
            assert done.result.enforcement.backend == "native"
            pool = client.status().pool
            reused = pool.reused if pool is not None else 0
            if reused >= 5:
                break
        assert reused >= 5


def pool_of(client: Client) -> PoolInfo:
    found = client.status().pool
    assert found is not None
    return found


def until(client: Client, boxes: int) -> bool:
    """Whether so many boxes wait, in a while."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if pool_of(client).boxes == boxes:
            return True
    return False


def test_a_session_finds_a_box_for_its_first_command(tree: Path) -> None:
    """It is made while the agent thinks, and goes with a session that never ran anything."""
    require("userns", "landlock")
    with Client(admin=True) as client:
        with client.session() as session:
            session.run("true")  # from here on the pool has figures
        assert until(client, 0), pool_of(client)
        templates = pool_of(client).templates  # that of the trial run goes by itself
        for _ in range(5):  # another test may change the host, which empties the pool
            with client.session() as session:
                ready = until(client, 1)
                before = pool_of(client).warm
                assert session.run("ls").exit_code == 0
                if ready and pool_of(client).warm == before + 1:
                    break
        else:
            pytest.fail("no first command found a box, five times")
        with client.session():
            assert until(client, 1), pool_of(client)
        assert until(client, 0), pool_of(client)
        assert pool_of(client).templates <= templates
