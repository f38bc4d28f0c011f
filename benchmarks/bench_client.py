# SPDX-License-Identifier: GPL-3.0-or-later
"""What the box adds to what a client waits for: `true` in a ready box, against the same through the same daemon in none.

Both go from the client over gRPC through judgement, plan, streams and record and back; only that for one the daemon takes a
ready box and for the other starts the shell itself (`benchmarks.plain`). Goal: 1.15 times. The API has no call that runs a
command and answers once: `stream` takes the events of Start one by one to Exited, and `collected` is `run` of the blocking
client, which gives what a call with one answer would.

`warm` is the daemon as it comes, where a command that only reads may run in the box of its session's last one, one command
right after the other; `paused` is the same with PAUSE before each, as an agent thinks; `once` is a daemon that gives each command
a box of its own.

Boxes are made when nothing runs: before each sample the pool's figures are asked until boxes are ready, and a sample for which
the daemon used neither a ready box nor the session's own does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks import plain
from benchmarks.measure import Case, Measured, against
from benchmarks.running import daemon
from sandboxd.client import Client, PoolInfo, Session
from sandboxd.model import Exited

READY = 2  # boxes that wait before a sample
PATIENCE = 20.0  # seconds for that
ONCE = "[isolation]\npool_session_boxes = false\n"
PAUSE = 0.05  # seconds; what follows a command (its record, the look at its box) is over then
LEAST = 40  # samples of each side
MOST = 400


def cases() -> list[Case]:
    return [
        Case("client.warm_vs_plain_stream", "x", lambda seconds: _measure(_stream, seconds), 1.15),
        Case("client.warm_vs_plain_collected", "x", lambda seconds: _measure(_collected, seconds), 1.15),
        Case("client.paused_vs_plain_stream", "x", lambda seconds: _measure(_stream, seconds, pause=PAUSE), 1.15),
        Case("client.paused_vs_plain_collected", "x", lambda seconds: _measure(_collected, seconds, pause=PAUSE), 1.15),
        Case("client.once_vs_plain_stream", "x", lambda seconds: _measure(_stream, seconds, settings=ONCE), 1.15),
        Case("client.once_vs_plain_collected", "x", lambda seconds: _measure(_collected, seconds, settings=ONCE), 1.15),
    ]


def _stream(session: Session) -> None:
    with session.start("true") as execution:
        *_, last = execution
    assert isinstance(last, Exited), last


def _collected(session: Session) -> None:
    assert session.run("true").exit_code == 0


def _measure(work: Callable[[Session], None], seconds: float, *, settings: str = "", pause: float = 0.0) -> Measured:
    with (
        daemon(settings, module="benchmarks.plain", profiles={plain.PROFILE: plain.SETTINGS}) as house,
        Client(house.address, admin=True) as client,
        client.session(house.workspace, headless=True) as boxed,
        client.session(house.workspace, headless=True, profile=plain.PROFILE) as bare,
    ):
        for session in (boxed, bare, boxed, bare):
            work(session)
        ours: list[float] = []
        theirs: list[float] = []
        missed = 0
        end = time.perf_counter() + seconds
        while len(ours) < LEAST or (time.perf_counter() < end and len(ours) < MOST):
            before = ready(client)
            turn = ((boxed, ours), (bare, theirs))
            for session, out in turn if len(ours) % 2 else reversed(turn):
                time.sleep(pause)
                begun = time.perf_counter()
                work(session)
                out.append(time.perf_counter() - begun)
            if _from_ready(_pool(client)) != _from_ready(before) + 1:
                missed += 1
                assert missed < LEAST, "the daemon hardly ever has a ready box"
                ours.pop()
                theirs.pop()
    note = f"fastest {min(ours) * 1e3:.2f} against {min(theirs) * 1e3:.2f}; {missed} found no ready box"
    return against(ours, theirs, unit="ms", note=note)


def _pool(client: Client) -> PoolInfo:
    found = client.status().pool
    assert found is not None, "this machine has no native backend"
    return found


def _from_ready(found: PoolInfo) -> int:
    return found.warm + found.reused


def ready(client: Client) -> PoolInfo:
    """Wait until the daemon has ready boxes; its figures then."""
    end = time.monotonic() + PATIENCE
    while (found := _pool(client)).boxes < READY:
        assert time.monotonic() < end, "no box gets ready"
        time.sleep(0.005)
    return found
