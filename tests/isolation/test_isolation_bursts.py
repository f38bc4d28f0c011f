# SPDX-License-Identifier: GPL-3.0-or-later
"""Who gets the box of an earlier command, and when it is let go. What is left in one: test_isolation_session.py."""

from __future__ import annotations

import dataclasses
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.errors import IsolationError
from sandboxd.isolation import backends, cgroups, pool
from sandboxd.isolation.kept import Kept
from sandboxd.isolation.native import Native
from sandboxd.isolation.nativebox import NativeBox
from sandboxd.isolation.plan import plan
from sandboxd.isolation.pool import Caps, Demand, Stock, decide, keeps, share
from sandboxd.isolation.shelf import Figures
from sandboxd.model import Grant, GrantKind, LaunchPlan, Limits, Stdio
from tests.isolation import _drive
from tests.isolation.test_isolation_native import _move_and_make, _remove_and_make, _replace, nothing_outlives, planned, run, ws

__all__ = ["ws"]

CAPS = Caps(session=True)
FORKS = """/usr/bin/python3 -I -c '
import os, subprocess
for _ in range(40):
    try:
        subprocess.Popen(["sleep", "100"])
    except OSError:
        pass
'"""


@pytest.fixture
def native() -> Iterator[Native]:
    made = Native()
    made.configure(CAPS)
    assert made.probe().works
    yield made
    made.close()


def reads(ws: Path, text: str, **spec: Any) -> LaunchPlan:
    """The plan of a command under the read-only promise."""
    return planned(ws, text, promise=True, grants=(), **spec)


def figures(native: Native) -> Figures:
    found = native.figures()
    assert found is not None
    return found


def burst(native: Native, launch: LaunchPlan) -> str:
    """Run a command in a ready box, which then waits for the session's next one; what it said. Again where another test
    changed the host in between."""
    for _ in range(5):
        assert native.prepare(launch, 1, 30)
        said, _ = run(native, launch)
        if native.kept(launch) == "":
            return said
    pytest.fail("no box was kept, five times")


def reused(native: Native, launch: LaunchPlan) -> tuple[str, bool]:
    """What a command says, and whether it got the box of one before it."""
    before = figures(native).reused
    said, _ = run(native, launch)
    return said, figures(native).reused == before + 1


def test_a_burst_shares_a_box(native: Native, ws: Path) -> None:
    """Each command has its own text, directory, variables and output."""
    burst(native, reads(ws, "true"))
    for number in range(5):
        text = f'echo {number} "$A" "$PWD" "$$"; cd /; A=9; exit {number}'
        launch = dataclasses.replace(reads(ws, text), cwd=f"{ws}/.git" if number % 2 else str(ws), env=(("A", f"a{number}"),))
        before = figures(native).reused
        said, status = run(native, launch)
        assert said.split()[:3] == [f"{number}", f"a{number}", launch.cwd]
        assert int(said.split()[3]) > 2, "a box of its own would start again with process 2"
        assert status.code == number
        assert figures(native).reused == before + 1
        assert native.kept(launch) == ""


def test_another_session_gets_a_box_of_its_own(native: Native, ws: Path) -> None:
    """Though everything else of its plan is the same."""
    burst(native, reads(ws, "true"))
    assert reused(native, reads(ws, "echo mine; echo $$", session="other")) == ("mine\n2\n", False)
    assert reused(native, reads(ws, "echo mine"))[1]


@pytest.mark.parametrize("number", range(3))
def test_another_plan_gets_a_box_of_its_own(native: Native, ws: Path, number: int) -> None:
    """One that may write; one with other limits; one that hides more."""
    (ws / ".env").touch()
    others = (
        planned(ws, "echo $$"),
        dataclasses.replace(reads(ws, "echo $$"), limits=Limits(pids=100)),
        reads(ws, "echo $$", env_files=[f"{ws}/.env"]),
    )
    burst(native, reads(ws, "true"))
    before = figures(native).reused
    run(native, others[number])
    assert figures(native).reused == before


@pytest.mark.parametrize(
    "spec",
    [
        {"promise": False},
        {"grants": [("read", "/etc")]},
        {"grants": [("host", "example.org")], "profile": "network"},
        {"grants": [("workspace_write", "")], "promise": False},
    ],
    ids=str,
)
def test_only_a_plain_reading_command_leaves_its_box(native: Native, ws: Path, spec: dict[str, Any]) -> None:
    """Whatever a decision opened for one command, that box is used once."""
    launch = planned(ws, "true", **{"promise": True, "grants": (), **spec})
    assert launch.kept_for == ""
    assert native.prepare(launch, 1, 30)
    run(native, launch)
    assert native.kept(launch) == "no box was kept"


def test_a_terminal_has_a_box_of_its_own(ws: Path) -> None:
    """It is the first process's controlling terminal."""
    asked = _drive.request({"text": "true", "workspace": str(ws), "home": str(ws.parent / "home"), "promise": True, "grants": ()})
    assert plan(asked, backends.host_facts(asked.session, asked)).kept_for == "test"
    for other in (
        dataclasses.replace(asked, tty=True),
        dataclasses.replace(asked, promise=False),
        dataclasses.replace(asked, grants=(Grant(GrantKind.READ, "/etc"),)),
        dataclasses.replace(asked, profile=dataclasses.replace(asked.profile, allow_ptrace=True)),
        dataclasses.replace(asked, profile=dataclasses.replace(asked.profile, unix_allow=("/run/x",))),
    ):
        assert plan(other, backends.host_facts(other.session, other)).kept_for == ""


def test_two_commands_at_once_get_two_boxes(native: Native, ws: Path) -> None:
    """And a third, when both have ended, one of them."""
    burst(native, reads(ws, "true"))
    started = []
    for _ in range(2):
        (stdin, feed), (out, write) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        box = native.start(reads(ws, "read -r _; readlink /proc/self/ns/pid"), Stdio(stdin, write, write))
        os.close(stdin)
        os.close(write)
        started.append((box, feed, out))
    spaces = set()
    for box, feed, out in started:
        os.write(feed, b"\n")
        os.close(feed)
        assert select.select([box.pidfd], [], [], 30)[0]
        spaces.add(os.read(out, 100))
        os.close(out)
        assert box.reap().code == 0
    assert len(spaces) == 2
    assert native.kept(reads(ws, "true")) == ""
    assert run(native, reads(ws, "readlink /proc/self/ns/pid"))[0].encode() in spaces


@pytest.mark.parametrize(("name", "change"), [("tmp", _move_and_make), ("ws/.env", _replace), ("home/.ssh", _remove_and_make)])
def test_what_was_replaced_outside_makes_the_box_useless(native: Native, ws: Path, name: str, change: Any) -> None:
    """As with boxes that are ready: a mount on what somebody replaced is another one, or gone."""
    (ws.parent / "home/.ssh/id_test").unlink()
    (ws / ".env").touch()
    burst(native, reads(ws, "true", env_files=[f"{ws}/.env"]))
    change(ws.parent / name)
    assert reused(native, reads(ws, "echo $$", env_files=[f"{ws}/.env"])) == ("2\n", False)


def test_a_killed_command_takes_its_box_along(native: Native, ws: Path) -> None:
    """Kill ends every process of the box, of which nothing is kept; the next command gets another."""
    burst(native, reads(ws, "true"))
    read, write = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    before = figures(native).reused
    box = native.start(reads(ws, "setsid sleep 1000 & echo up; wait"), Stdio(null, write, null))
    assert figures(native).reused == before + 1
    os.close(write)
    os.close(null)
    assert os.read(read, 3) == b"up\n"
    inside = os.pidfd_open(box.pid)
    box.kill()
    assert select.select([box.pidfd], [], [], 30)[0]
    assert box.reap().signal == signal.SIGKILL
    assert select.select([inside], [], [], 30)[0], "process 1 outlived the kill"
    os.close(inside)
    os.close(read)
    assert native.kept(reads(ws, "true")) == "no box was kept"
    assert reused(native, reads(ws, "echo fine")) == ("fine\n", False)


def test_signals_reach_the_command_in_a_used_box(native: Native, ws: Path) -> None:
    """And one that comes too late, when the command has ended, no later one."""
    burst(native, reads(ws, "true"))
    read, write = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    box = native.start(
        reads(ws, "trap 'echo got; exit 7' TERM; echo up; while :; do read -r -t 1 _ <> <(:); done"), Stdio(null, write, null)
    )
    os.close(write)
    assert os.read(read, 3) == b"up\n"
    box.signal(signal.SIGTERM)
    assert select.select([box.pidfd], [], [], 30)[0]
    box.signal(signal.SIGKILL)
    assert box.reap().code == 7
    assert os.read(read, 4) == b"got\n"
    os.close(read)
    os.close(null)
    assert native.kept(reads(ws, "true")) == ""
    assert reused(native, reads(ws, "echo fine")) == ("fine\n", True)


def test_a_directory_that_is_not_there_is_this_commands_failure(native: Native, ws: Path) -> None:
    """In a box that was used before, too; it is not used again."""
    burst(native, reads(ws, "true"))
    with pytest.raises(IsolationError, match="cannot enter"):
        run(native, dataclasses.replace(reads(ws, "true"), cwd="/nonexistent"))
    assert reused(native, reads(ws, "echo fine")) == ("fine\n", False)


def test_the_end_of_a_session_ends_its_boxes(native: Native, ws: Path) -> None:
    """And no other's; with its temporary directory everything that shows it."""
    burst(native, reads(ws, "true"))
    native.forget("another", f"{ws.parent}/other")
    assert native.kept(reads(ws, "true")) == ""
    native.forget("test", f"{ws.parent}/other")
    assert native.kept(reads(ws, "true")) == "no box was kept"
    assert not reused(native, reads(ws, "true"))[1]
    burst(native, reads(ws, "true"))
    before = figures(native).templates  # the trial's may be among them
    native.forget("another", f"{ws.parent}/tmp")
    assert figures(native).templates == before - 1


def test_a_drain_and_a_reload_end_them(native: Native, ws: Path) -> None:
    """Nothing of the pool is left then, and with the setting off no box is used twice."""
    launch = reads(ws, "true")
    burst(native, launch)
    native.drain()
    assert native.kept(launch) == "no box was kept"
    burst(native, launch)
    native.configure(Caps(session=False))
    assert native.kept(launch) == "no box was kept"
    assert native.prepare(launch, 2, 30)
    for _ in range(3):
        run(native, launch)
    assert native.kept(launch) == "no box was kept"


def test_a_box_is_let_go_after_many_commands(native: Native, ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would grow unseen in its first process has an end."""
    monkeypatch.setattr(pool, "MAX_USES", 3)
    launch = reads(ws, "true")
    burst(native, launch)
    assert reused(native, launch)[1]
    assert native.kept(launch) == ""
    assert reused(native, launch)[1]
    assert native.kept(launch) == "no box was kept"


def test_a_killed_daemon_leaves_no_box(ws: Path) -> None:
    """One that waits for its session and one that runs its second command end with it."""
    script = (
        "import sys, os, pathlib\n"
        "from tests.isolation import test_isolation_bursts as t\n"
        "native = t.Native(); native.configure(t.CAPS); assert native.probe().works\n"
        f"ws = pathlib.Path({str(ws)!r})\n"
        "t.burst(native, t.reads(ws, 'true')); t.burst(native, t.reads(ws, 'true', session='other'))\n"
        "read, write = os.pipe()\n"
        "before = t.figures(native).reused\n"
        "box = native.start(t.reads(ws, 'setsid sleep 1000 & echo up; wait'), t.Stdio(read, write, write))\n"
        "assert os.read(read, 3) == b'up\\n' and t.figures(native).reused == before + 1\n"
        "print(native.zygote_pid, flush=True); sys.stdin.read()\n"
    )
    nothing_outlives(script, 5)  # zygote, template, a box that waits, one with its shell and a sleep


def test_a_limit_that_was_met_is_told_once(native: Native, ws: Path) -> None:
    """The counters of control groups go on; a result tells its own command's share."""
    if "pids" not in cgroups.available():
        pytest.skip("no pids control group can be made here")
    limits = Limits(pids=20)
    quiet = dataclasses.replace(reads(ws, "true"), limits=limits)
    burst(native, quiet)
    _, status = run(native, dataclasses.replace(reads(ws, FORKS), limits=limits))
    assert status.pids_refused > 0
    assert native.kept(quiet) == ""
    before = figures(native).reused
    _, status = run(native, quiet)
    assert (status.pids_refused, figures(native).reused - before) == (0, 1)


def test_nothing_grows_with_commands(native: Native, ws: Path) -> None:
    """100 commands of a session: no more descriptors or processes than before."""
    launch = reads(ws, "setsid sleep 1000 & echo out")
    burst(native, launch)
    native.drain()
    before = len(os.listdir("/proc/self/fd"))
    burst(native, launch)
    for _ in range(98):
        assert run(native, launch)[0] == "out\n"
        assert native.kept(launch) == ""
    native.drain()
    assert len(os.listdir("/proc/self/fd")) <= before


# -- who gets what: pure ---------------------------------------------------------------------------------------------------


class Fake:
    """A box of a session as `Kept` sees it."""

    def __init__(self, session: str, state: str) -> None:
        self.session, self.state, self.ready = session, state, False

    def look(self) -> None:
        self.ready = self.state in ("again", "changed")

    def usable(self) -> bool:
        return self.ready and self.state == "again"

    def over(self) -> bool:
        return self.state == "over"


names = st.sampled_from("abc")
steps = st.one_of(
    st.tuples(st.just("add"), names, st.sampled_from(("again", "over", "looking", "changed"))),
    st.tuples(st.sampled_from(("take", "forget")), names, st.just("")),
    st.tuples(st.sampled_from(("oldest", "useless")), st.just(""), st.just("")),
)


@given(st.lists(steps, max_size=60))
def test_nobody_gets_the_box_of_another_session(moves: list[tuple[str, str, str]]) -> None:
    """Whatever comes and goes: a box is handed out once, to the session whose command it ran, if it is as it was; and each
    is handed out, given up or still there."""
    kept, there = Kept(), set[Fake]()
    for now, (move, session, state) in enumerate(moves):
        gone: list[NativeBox] = []
        if move == "add":
            box = Fake(session, state)
            there.add(box)
            kept.add(cast(NativeBox, box), now)
        elif move == "take":
            found, gone = kept.take(session)
            assert all(each.session == session for each in gone)
            if found is not None:
                taken = cast(Fake, found)
                assert (taken.session, taken.state) == (session, "again")
                there.remove(taken)
            else:
                assert not any(each.session == session and each.state == "again" for each in there)
        elif move == "forget":
            gone = kept.forget(session)
            assert not kept.of(session)
        elif move == "oldest":
            gone = kept.oldest(1)
        else:
            gone = kept.useless()
        there -= {cast(Fake, each) for each in gone}
        assert {cast(Fake, each) for each in kept.boxes()} == there
        assert len(kept.since()) == len(there)


demands = st.builds(Demand, uses=st.integers(0, 9), last=st.just(0.0), running=st.integers(0, 9), peak=st.integers(0, 30))
caps_ = st.builds(Caps, st.integers(0, 20), st.integers(0, 10), st.integers(1, 5), st.integers(0, 64 << 20), st.booleans())


@given(demands, caps_, st.booleans(), st.integers(1, 120), st.lists(st.integers(0, 12), max_size=4))
def test_no_more_boxes_wait_for_sessions_than_the_caps_allow(
    demand: Demand, caps: Caps, session: bool, uses: int, others: list[int]
) -> None:
    """Not more of a template than run at once and one, half of all at most, none when it is off, none used up."""
    kept = 0
    for _ in range(20):
        stock = Stock(demand, 0, session, (0.0,) * kept)
        total = kept + sum(others)
        places = keeps(stock, caps, uses, total)
        assert places <= kept + 1
        if places:
            kept += 2 - places
            assert kept <= share(stock, caps) <= pool.wanted(demand, caps)
            assert kept + sum(others) <= max(caps.budget // 2, total)
            assert caps.session
            assert session
            assert uses < pool.MAX_USES


@given(demands, caps_, st.lists(st.floats(0, 20, allow_nan=False), max_size=8), st.floats(0, 40, allow_nan=False))
def test_a_box_does_not_wait_long_for_its_session(demand: Demand, caps: Caps, since: list[float], now: float) -> None:
    """After KEEP_IDLE seconds it is let go, and the thread wakes for that."""
    now = max([now, *since])
    stock = Stock(demand._replace(last=now), 0, True, tuple(sorted(since)))
    decision = decide({"a": stock}, caps, now, now)
    left = stock.kept[decision.part.get("a", 0) :]
    assert all(now - each < pool.KEEP_IDLE for each in left)
    assert len(left) <= share(stock, caps)
    if left:
        assert decision.again is not None
        assert decision.again <= left[0] + pool.KEEP_IDLE
