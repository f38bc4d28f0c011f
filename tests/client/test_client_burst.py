# SPDX-License-Identifier: GPL-3.0-or-later
"""A burst of reading commands through the daemon: its session's boxes, and what the status says of them."""

from __future__ import annotations

from pathlib import Path

from sandboxd.client import Client
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
