# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables are read when they are first asked for, by whichever thread comes first."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from sandboxd.effects.tables import Tables

THREADS = 8


def test_no_thread_sees_half_a_table() -> None:
    """However many threads ask at once, each finds every tool of the bundles: none is taken for unlisted, now or later."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in range(5):
                tables = Tables()
                together = threading.Barrier(THREADS)

                def ask(name: str, tables: Tables = tables, together: threading.Barrier = together) -> bool:
                    together.wait()
                    return bool(tables.find(name))

                names = ("echo", "cd", "cat", "echo", "printf", "pwd", "test", "ls")
                assert all(pool.map(ask, names))
                assert all(tables.find(name) for name in names)
    finally:
        sys.setswitchinterval(before)
