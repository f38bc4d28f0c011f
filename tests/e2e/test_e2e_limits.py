# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel stopped, through the whole daemon: the limits of a profile are named in the result, and so is a write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandboxd.isolation import cgroups
from tests.e2e.conftest import Place

BYPASS = ("--mode", "bypassPermissions")
BOMB = "import os, signal\nfor _ in range(200):\n    os.fork() or signal.pause()\n"


@pytest.fixture
def limited(place: Place) -> Place:
    """A place with a profile of its own."""
    profiles = place.home / ".config/sandboxd/profiles"
    profiles.mkdir(parents=True, exist_ok=True)
    text = (
        'extends = "workspace"\n[limits]\npids = 40\nmemory = 150000000\nfile_size = 100000\ncpu = 2\nwall = 20\n'
        '[isolation]\nrequire = "fs"\n'
    )
    (profiles / "tight.toml").write_text(text, encoding="utf-8")
    (place.home / ".config").chmod(0o700)
    place.person.own(place.home / ".config")
    return place


def result(place: Place, script: str, *words: str) -> dict[str, Any]:
    tree = place.workspace()
    (tree / "x.py").write_text(script, encoding="utf-8")
    place.person.own(tree / "x.py")
    more = (*words, "--output", "json", "--", "python3 x.py")
    done = place.sandboxd("run", *BYPASS, "--profile", "tight", *more, cwd=tree, timeout=90)
    assert done.stdout, done.stderr
    return dict(json.loads(done.stdout)["result"])


def rules(found: dict[str, Any]) -> str:
    return " ".join(each["rule"] for each in found["violations"] if each["kind"] == "limit")


def test_too_many_processes(limited: Place) -> None:
    """A fork bomb ends at the limit of the profile, and the result names the line."""
    if limited.person.uid == 0 and "pids" not in cgroups.available():
        pytest.skip("root's processes are only counted with a pids cgroup")
    found = result(limited, BOMB)
    assert "limits.pids = 40" in rules(found)


def test_too_much_memory(limited: Place) -> None:
    """What the kernel kills for want of memory ends as `out_of_memory`; where no limit can be set the result says so."""
    found = result(limited, "x = bytearray(400 << 20)\nprint(len(x))\n")
    layers = {each["layer"]: each["strength"] for each in found["enforcement"]["layers"]}
    if limited.person.uid == 0 and "memory" in cgroups.available():
        assert found["end"] == "out_of_memory"
        assert "limits.memory = 150000000" in rules(found)
    else:
        assert layers["limits"] == "partial"


def test_too_large_a_file_and_too_much_time(limited: Place) -> None:
    """A file ends where the profile says, and so does a process that computes for too long."""
    assert "limits.file_size = 100000" in rules(result(limited, "open('big', 'wb').write(bytes(200000))\n"))
    assert "limits.cpu = 2" in rules(result(limited, "while True: pass\n"))


def test_the_wall_clock_of_the_profile(limited: Place) -> None:
    """The profile's `wall` ends a command that waits for longer; the time that a caller asks for only shortens it."""
    found = result(limited, "import time\ntime.sleep(300)\n", "--timeout", "1")
    assert (found["end"], found["code"]) == ("timed_out", 124)


def test_a_write_outside_is_named(limited: Place) -> None:
    """The path, the line of defence and what would allow it stand in the result."""
    found = result(limited, f"open('{limited.home}/elsewhere', 'w')\n")
    (one,) = found["violations"]
    assert (one["kind"], one["path"]) == ("write", f"{limited.home}/elsewhere")
    assert "outside what the decision opened" in one["rule"]
    assert "[filesystem] write" in one["advice"]


def test_profiles_tell_what_a_path_is(limited: Place) -> None:
    """`diff` says what differs, `explain` what a path is and by which line, with and without the read-only promise."""
    tree = limited.workspace()
    done = limited.sandboxd("profile", "diff", "workspace", "tight", cwd=tree)
    assert done.returncode == 1
    assert "limits.pids" in done.stdout
    assert limited.sandboxd("profile", "diff", "tight", "tight", cwd=tree).returncode == 0
    written = limited.sandboxd("profile", "explain", "tight", f"{tree}/a.txt", cwd=tree)
    read = limited.sandboxd("profile", "explain", "tight", f"{tree}/a.txt", "--read-only", cwd=tree)
    outside = limited.sandboxd("profile", "explain", "tight", "/usr/bin/env", cwd=tree)
    assert ("write" in written.stdout, "read-only" in read.stdout) == (True, True), (written, read)
    assert "nothing in the decision allows it" in outside.stdout
