# SPDX-License-Identifier: GPL-3.0-or-later
"""Boxes that run several read-only commands of one session: what the next one sees is what it sees in a box of its own.

Whatever a command can leave is a row of LEFT or GONE: after it a script inside looks at everything that could have changed.
The probes run in such boxes too, and of the contract what a reading command can show.

To add a kind of thing: a row here, and where it stays a look at it in `zygote_again`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.isolation.conftest import HERE, Runner
from tests.isolation.test_isolation_contract import (
    test_a_read_only_command_changes_no_metadata,
    test_kill_leaves_nothing,
    test_no_descriptor_is_inherited,
    test_output_and_environment,
    test_privileges_are_gone,
    test_secrets_are_not_read,
    test_signals_reach_the_command,
    test_status,
    test_the_last_directory_is_reported,
    test_the_network_is_off,
    test_what_is_left_behind_ends_with_the_command,
)
from tests.isolation.test_isolation_life import (
    test_a_broken_promise_is_told_with_its_path,
    test_here_documents_and_substitutions_work_under_the_promise,
)
from tests.isolation.test_isolation_probes import scene, test_a_box_holds_against_every_probe

__all__ = [
    "scene",
    "test_a_box_holds_against_every_probe",
    "test_a_broken_promise_is_told_with_its_path",
    "test_a_read_only_command_changes_no_metadata",
    "test_here_documents_and_substitutions_work_under_the_promise",
    "test_kill_leaves_nothing",
    "test_no_descriptor_is_inherited",
    "test_output_and_environment",
    "test_privileges_are_gone",
    "test_secrets_are_not_read",
    "test_signals_reach_the_command",
    "test_status",
    "test_the_last_directory_is_reported",
    "test_the_network_is_off",
    "test_what_is_left_behind_ends_with_the_command",
]

pytestmark = pytest.mark.parametrize("who", ["root-reused", "plain-reused"], indirect=True, scope="session")


def python(text: str) -> str:
    """A command that runs a program without single quotes."""
    return f"/usr/bin/python3 -I -B -c 'import ctypes, os, socket, time; call = ctypes.CDLL(None).syscall;{text}'"


def number(x86: int, arm: int) -> int:
    return x86 if os.uname().machine == "x86_64" else arm


SERVER = 'server = socket.create_server(("127.0.0.1", 7777));'
QUEUE = f'call({number(240, 180)}, b"left", os.O_CREAT | os.O_RDONLY, 0o666, None)'
UNOPENED = f'call({number(240, 180)}, b"left", os.O_CREAT | os.O_RDWR, 0o666, None)'  # refused by Landlock, and yet made
LABEL = 'bytes(15) + b"\x01" + (0x12345).to_bytes(4, "big") + bytes([0, 255, 1, 0]) + bytes(8)'  # struct in6_flowlabel_req
FORBIDDEN = (
    "hostname x", "mount -t tmpfs none /mnt", "unshare -U true", "echo 5 > /proc/1/oom_score_adj", "echo x > /proc/1/comm",
    "echo 5 > /proc/1/timerslack_ns", "echo 9 > /proc/1/autogroup", "echo 1 > /proc/sys/net/ipv4/ip_forward",
    "echo 1 > /proc/sys/kernel/msgmax", "echo x > /dev/shm/x", "mkdir /sys/fs/cgroup/pids/x", "chmod 700 /dev",
)  # fmt: skip
# name -> a command, of which nothing stays: the box is used again
GONE = {
    "nothing": "true",
    "a failure": "exit 3",
    "a death": "kill -KILL $$",
    "variables, options, functions": "export LEFT=1; set -f; shopt -s extglob; f() { :; }; alias ll=ls; trap 'echo' EXIT TERM",
    "a directory": "cd /usr",
    "own limits": "ulimit -n 20; ulimit -c 0; umask 077; renice -n 5 -p $$; taskset -p 1 $$; ionice -c 3 -p $$",
    "a child": "sleep 1000 &",
    "a daemon": "setsid bash -c \"trap '' TERM HUP INT QUIT; sleep 1000 & sleep 1000\" & true",
    "a stopped child": "sleep 1000 & kill -STOP $!",
    "children of children": "for i in $(seq 40); do (sleep 1000 & sleep 1000) & done",
    "a child that forks on": "read -r _ < <(while :; do echo; true & done)",
    "signals to process 1": "for each in STOP TSTP TERM INT HUP QUIT KILL CHLD USR1 ALRM WINCH RTMIN; do kill -$each 1; done",
    "descriptors and locks": "exec 9< /etc/passwd; flock -s 9; sleep 1000 & exec 8<> <(:)",
    "a pipe": "cat <(sleep 1000) &",
    "terminals": f"read -r _ < <({python('import pty; [pty.openpty() for _ in range(3)]; print(flush=True); time.sleep(1000)')})",
    "memory": python('f = os.memfd_create("x"); os.write(f, bytes(50 << 20))'),
    "what is forbidden": "; ".join(FORBIDDEN),
    "keys": python(f'call({number(248, 217)}, b"user", b"x", b"x", 1, -3); call({number(250, 219)}, 1, b"x")'),
    "a core scheduling group": python("ctypes.CDLL(None).prctl(62, 2, 1, 0, 0)"),
    "an unnamed file": python('os.write(os.open(os.environ["TMPDIR"], os.O_TMPFILE | os.O_RDWR), bytes(9999))'),
    "a pair of sockets": python('a, b = socket.socketpair(); a.send(b"x")'),
    "bound sockets": python(f'{SERVER} u = socket.socket(2, 2); u.bind(("", 7778))'),
    "a watch": python(f'f = call({number(294, 26)}, 0); call({number(254, 27)}, f, b"/", 0xFFF)'),
    "a timer": python("import signal; signal.setitimer(signal.ITIMER_REAL, 1000)"),
}
# Held by nobody but a message in flight between two sockets that nobody holds: gone when the kernel looks for such, soon.
CYCLE = (
    "import array; a, b = socket.socketpair();"
    ' send = lambda s, *f: s.sendmsg([b"x"], [(1, 1, array.array("i", [each.fileno() for each in f]))]);'
)
EITHER = {
    "sockets in each other": python(f"{SERVER} {CYCLE} send(a, a, b, server); send(b, b, a)"),
    "a file in a socket": python(f'{CYCLE} f = open(os.environ["TMPDIR"] + "/x", "w"); os.unlink(f.name); send(a, a, b, f)'),
}
FAILS = {"a failure": [3, None], "a death": [None, 9], "what is forbidden": [1, None]}  # code and signal of the others: 0
# name -> (a command that leaves something, what the box says of it)
LEFT = {
    "a file": ("echo x > $TMPDIR/left", "tmp"),
    "a hidden directory": ("mkdir -p $TMPDIR/.left/deep", "tmp"),
    "a link": ("ln -s /etc $TMPDIR/etc", "tmp"),
    "a fifo": ("mkfifo $TMPDIR/left", "tmp"),
    "a file that went again": ("echo x > $TMPDIR/left; rm $TMPDIR/left", "tmp"),
    "a mode": ("chmod 700 $TMPDIR", "tmp"),
    "a sticky bit": ("chmod +t $TMPDIR", "tmp"),
    "a time": ("touch -d 2001-01-01 $TMPDIR", "tmp"),
    "a time of access": ("touch -a -d 2001-01-01 $TMPDIR", "tmp"),
    "an attribute": (python('os.setxattr(os.environ["TMPDIR"], "user.left", b"x")'), "tmp"),
    "the multiplexer's mode": ("chmod 600 /dev/pts/ptmx", "ptmx"),
    "shared memory": ("ipcmk -M 4096", "shm"),
    "semaphores": ("ipcmk -S 3", "sem"),
    "messages": ("ipcmk -Q", "msg"),
    "a message queue": (python(f"exit({QUEUE} < 0)"), "message queues"),
    "a message queue that does not open": (python(UNOPENED), "message queues"),
    "niceness": ("renice -n 5 -p 1", "scheduling"),
    "niceness of everybody": ("renice -n 5 -u $(id -u)", "scheduling"),
    "a policy": ("chrt -b -p 0 1", "scheduling"),
    "processors": ("taskset -p 1 1", "scheduling"),
    "input and output": ("ionice -c 3 -p 1", "scheduling"),
    "a limit": ("prlimit --pid 1 --nofile=64", "limits"),
    "a soft limit": ("prlimit --pid 1 --cpu=1000:", "limits"),
    "a connection": (
        python(f"{SERVER} c = socket.create_connection(server.getsockname()); a, _ = server.accept(); c.close(); a.close()"),
        "net/dev",
    ),
    "a datagram": (python('socket.socket(2, 2).sendto(b"x", ("127.0.0.1", 7))'), "net/dev"),
    "a try to reach out": (python('socket.socket().connect_ex(("192.0.2.1", 9))'), "net/snmp"),
    "a try by version 6": (python('socket.socket(10).connect_ex(("2001:db8::1", 9))'), "net/snmp6"),
    "a flow label": (python(f"socket.socket(10, 2).setsockopt(41, 32, {LABEL})"), "flowlabel"),
}


@pytest.fixture
def backend() -> str:
    return "reused"


@pytest.fixture
def confining() -> str:
    return "reused"


@pytest.fixture(scope="module")
def ws(who: Runner) -> Path:
    who.make("session/file", "kept\n")
    who.make("session-tmp")
    who.make("state.py", (HERE / "_state.py").read_text(encoding="utf-8"))
    return who.root / "session"


def reading(who: Runner, ws: Path, text: str, **more: object) -> dict[str, object]:
    """The specification of a command under the read-only promise."""
    return {
        "text": text, "workspace": str(ws), "uid": who.uid, "home": str(who.home), "tmp": str(who.root / "session-tmp"),
        "promise": True, "grants": [], "backend": who.backend, **more,
    }  # fmt: skip


def looked(who: Runner, ws: Path, **more: object) -> dict[str, object]:
    return reading(who, ws, f"/usr/bin/python3 -I -B {who.root}/state.py", **more)


@pytest.fixture(scope="module")
def seen(who: Runner, ws: Path) -> dict[str, dict[str, object]]:
    """For each row what the next command of the session saw, and how it came to its box; "" is a box of its own."""
    rows = {**GONE, **EITHER, **{name: f"set -e; {text}" for name, (text, _) in LEFT.items()}}
    specs = [looked(who, ws, backend="warm"), *(looked(who, ws, before=text) for text in rows.values())]
    results = dict(zip(("", *rows), who.runs(specs), strict=True))
    assert not any(each["lost"] for each in results.values())
    return results


def differs(seen: dict[str, dict[str, object]], name: str) -> dict[str, tuple[object, object]]:
    assert seen[""]["code"] == seen[name]["code"] == 0, seen[name]
    fresh, found = (json.loads(str(seen[each]["out"])) for each in ("", name))
    assert fresh.keys() == found.keys()
    return {key: (value, found[key]) for key, value in fresh.items() if found[key] != value}


@pytest.mark.parametrize("name", [*GONE, *EITHER, *LEFT])
def test_the_next_command_sees_a_box_as_its_own(seen: dict[str, dict[str, object]], name: str) -> None:
    """Whatever a command of the session did before: nothing of it can be seen."""
    assert differs(seen, name) == {}


@pytest.mark.parametrize("name", GONE)
def test_a_box_in_which_nothing_stays_is_used_again(seen: dict[str, dict[str, object]], name: str) -> None:
    """So the look at it is not stricter than it need be, and what it finds below is what was left."""
    assert seen[name]["before"] == FAILS.get(name, [0, None])
    assert (seen[name]["refused"], seen[name]["reused"]) == ("", 1)


@pytest.mark.parametrize("name", LEFT)
def test_a_box_in_which_something_stays_is_not_used_again(seen: dict[str, dict[str, object]], name: str) -> None:
    """Its first process says what it is."""
    assert seen[name]["before"] == [0, None]
    assert LEFT[name][1] in str(seen[name]["refused"])
    assert seen[name]["reused"] == 0
