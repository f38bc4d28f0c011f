# SPDX-License-Identifier: GPL-3.0-or-later
"""Files on which a box is mounted are replaced while boxes are made, as a package manager or an editor does."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sandboxd.model import EndKind
from tests.e2e.conftest import Place
from tests.faults.conftest import BYPASS, client

pytestmark = pytest.mark.needs("bwrap", "userns")

COMMANDS = 60
EVERY = 0.05  # seconds: sooner or later one falls between the look at the file and its mount, but not three in a row


async def test_files_are_replaced_while_boxes_are_made(served: Place) -> None:
    """A box that cannot be built because a file was replaced between the look at it and its mount is built again: no command
    fails for it."""
    tree = served.workspace()
    hidden = tree / "secret.txt"
    hidden.write_text("hidden")
    stop = threading.Event()

    def replace() -> None:
        fresh = Path(f"{hidden}.fresh")
        while not stop.wait(EVERY):
            fresh.write_text("hidden")
            os.replace(fresh, hidden)

    other = threading.Thread(target=replace)
    other.start()
    try:
        async with client(served) as person, await person.session(str(tree), mode=BYPASS, deny=["Read(./secret.txt)"]) as session:
            runs = [await session.run(f"echo {number} > made; cat made") for number in range(COMMANDS)]
    finally:
        stop.set()
        other.join()
    assert [run.result.cause for run in runs if run.result.end is not EndKind.EXITED] == []
    assert [run.output for run in runs] == [f"{number}\n" for number in range(COMMANDS)]
