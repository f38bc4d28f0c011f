# SPDX-License-Identifier: GPL-3.0-or-later
"""Ready boxes: used only while they are what a cold start would make, gone with whoever made them, and nothing grows.

What a box holds against, and how commands live in it, the other modules test on this backend too (`who`: native and warm).
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd.isolation import backends, mountsteps, shelf, wire
from sandboxd.isolation.native import Native, order
from sandboxd.isolation.plan import plan
from sandboxd.isolation.pool import Caps
from sandboxd.model import ExitStatus, LaunchPlan, Limits, Mount, MountKind, NetworkMode, Require, Stdio
from tests._require import require
from tests.isolation import _drive
from tests.isolation.conftest import HERE

# What of a plan a ready box is made for; what comes with the command; what concerns neither.
MADE_FOR = {"mounts", "files", "writable", "network", "limits", "uid", "gid", "deny_syscalls", "allow_unix_sockets",
            "allow_ptrace", "absent", "private", "kept_for"}  # fmt: skip
ORDERED = {"argv", "cwd", "env", "tty"}
NEITHER = {"require", "promise", "protected", "profile", "must_stay_absent", "registry", "git_configs", "git_links"}


@pytest.fixture
def native() -> Iterator[Native]:
    require("userns", "landlock")
    made = Native()
    assert made.probe().works
    yield made
    made.close()


@pytest.fixture
def ws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A workspace outside /tmp, which a box has of its own."""
    root = Path(f"/var/tmp/sandboxd-native-{os.getpid()}")
    shutil.rmtree(root, ignore_errors=True)
    for name in ("ws/.claude", "ws/.git", "home/.ssh", "tmp"):
        (root / name).mkdir(parents=True)
    (root / "ws/.bashrc").write_text("# mine\n", encoding="utf-8")
    (root / "home/.ssh/id_test").write_text("sekret", encoding="utf-8")
    yield root / "ws"
    shutil.rmtree(root)


def planned(ws: Path, text: str, **spec: Any) -> LaunchPlan:
    """The plan of a command that may write the workspace, of which some is protected."""
    spec = {
        "text": text, "workspace": str(ws), "home": str(ws.parent / "home"), "tmp": str(ws.parent / "tmp"),
        "protected": [f"{ws}/{name}" for name in (".claude", ".git", ".bashrc") if (ws / name).exists()], **spec,
    }  # fmt: skip
    asked = _drive.request(spec)
    return plan(asked, backends.host_facts(asked.session, asked))


def run(native: Native, launch: LaunchPlan) -> tuple[str, ExitStatus]:
    read, write = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        box = native.start(launch, Stdio(null, write, write))
    finally:
        os.close(write)
        os.close(null)
    said = b""
    while part := os.read(read, 65536):
        said += part
    os.close(read)
    assert select.select([box.pidfd], [], [], 30)[0], "the box does not end"
    box.kill()
    return said.decode(), box.reap()


def warm(native: Native) -> int:
    figures = native.figures()
    assert figures is not None
    return figures.warm


def run_ready(native: Native, launch: LaunchPlan, prepare: Callable[[], bool]) -> str:
    """What a command says that a box took which was ready. Once more where the host changed in between and took the boxes
    away: another test may make a user, which replaces files that every box hides."""
    for _ in range(5):
        assert prepare()
        before = warm(native)
        said, _ = run(native, launch)
        if warm(native) == before + 1:
            return said
    pytest.fail("no box was ready, five times")


def test_a_ready_box_takes_the_command(native: Native, ws: Path) -> None:
    """A plan that was prepared, or used twice, starts in a box that was ready; its text, directory and variables are its own."""
    for text, said in (("echo one", "one\n"), ("cd .. && pwd", f"{ws.parent}\n"), ('echo "$HOME"', f"{ws.parent}/home\n")):
        assert run_ready(native, planned(ws, text), lambda: native.prepare(planned(ws, "true"), 2)) == said


def test_boxes_get_ready_by_use(native: Native, ws: Path) -> None:
    """After two commands of one kind the next finds a box, without anybody asking for it."""
    launch = planned(ws, "true")

    def used() -> bool:
        run(native, launch)
        run(native, launch)
        return native.ready(launch)

    assert run_ready(native, launch, used) == ""


def test_what_is_expected_is_ready_for_its_first_use(native: Native, ws: Path) -> None:
    """Nothing has run then; and what cannot be had is not missed."""
    launch = planned(ws, "echo first")

    def expected() -> bool:
        native.drain()
        native.expect(launch)
        return native.ready(launch)

    assert run_ready(native, launch, expected) == "first\n"
    for caps in (Caps(boxes=0), Caps(templates=1)):
        native.configure(caps)
        native.expect(dataclasses.replace(launch, limits=Limits(pids=77)))
        native.expect(launch)  # in nobody's place
        found = native.figures()
        assert found is not None
        assert found.templates == min(caps.boxes, caps.templates)
    native.configure(Caps())


def _move_and_make(path: Path) -> None:
    path.rename(path.with_name(path.name + "-old"))
    path.mkdir()


def _remove_and_make(path: Path) -> None:
    path.rmdir()
    path.mkdir()


def _replace(path: Path) -> None:
    other = path.with_name("new-file")
    other.write_text("# replaced\n", encoding="utf-8")
    other.rename(path)


def _there_and_back(path: Path) -> None:
    """The same inode stands there afterwards, but what was mounted on it is gone."""
    other = path.with_name("linked")
    other.hardlink_to(path)
    _replace(path)
    other.rename(path)


@pytest.mark.parametrize(
    ("name", "change", "text", "said"),
    [
        ("ws/.claude", _move_and_make, "echo x > .claude/settings.json", "Read-only"),
        ("ws/.claude", _remove_and_make, "echo x > .claude/settings.json", "Read-only"),
        ("ws/.bashrc", _replace, "echo x >> .bashrc", "Read-only"),
        ("ws/.bashrc", _there_and_back, "echo x >> .bashrc", "Read-only"),
        ("home/.ssh", _move_and_make, "cat ~/.ssh/key", "Permission denied"),
        ("ws", _move_and_make, "echo new > here && cat here", "new"),
        ("tmp", _move_and_make, "echo new > /tmp/here && cat /tmp/here", "new"),
    ],
    ids=["protected directory moved", "protected directory made anew", "protected file replaced", "there and back",
         "secrets moved", "workspace moved", "session's tmp moved"],
)  # fmt: skip
def test_what_was_replaced_is_guarded_as_it_is_now(
    native: Native, ws: Path, name: str, change: Callable[[Path], None], text: str, said: str
) -> None:
    """Somebody outside replaces a path on which boxes rely while they wait: the command gets a box that was made since."""
    assert native.prepare(planned(ws, "true"), 2)
    path = ws.parent / name
    change(path)
    if name == "home/.ssh":
        (path / "key").write_text("sekret", encoding="utf-8")
    before = warm(native)
    out, _ = run(native, planned(ws, text))
    assert said in out
    assert "sekret" not in out
    assert warm(native) == before
    if name == "ws":
        assert (ws / "here").exists()
    # and boxes made after that are used again
    assert said in run_ready(native, planned(ws, text), lambda: native.prepare(planned(ws, text)))


def test_no_user_namespace_below_a_box(native: Native, ws: Path) -> None:
    """Their number is none inside; the host's own limit is not touched by that."""
    limit = Path("/proc/sys/user/max_user_namespaces")
    before = limit.read_text(encoding="ascii")
    assert run(native, planned(ws, f"cat {limit}"))[0] == "0\n"
    assert limit.read_text(encoding="ascii") == before


LISTEN = """
import os, socket
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as own:
    own.close()
    print(os.readlink("/proc/self/ns/net"), server.getsockname()[1], flush=True)
    input()
"""
CONNECT = """
import os, socket, sys
print(os.readlink("/proc/self/ns/net"), socket.socket().connect_ex(("127.0.0.1", int(sys.argv[1]))))
"""


def test_each_box_has_a_network_of_its_own(native: Native, ws: Path) -> None:
    """Also where all come from one template: a loopback that works, and on which no other box can be reached."""
    for _ in range(3):
        (stdin, feed), (out, write) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        box = native.start(planned(ws, f"/usr/bin/python3 -c '{LISTEN}'"), Stdio(stdin, write, write))
        os.close(stdin)
        os.close(write)
        listening = os.read(out, 500).decode().split()
        assert len(listening) == 2, listening
        other, refused = run(native, planned(ws, f"/usr/bin/python3 -c '{CONNECT}' {listening[1]}"))[0].split()
        assert int(refused) == errno.ECONNREFUSED
        assert len({listening[0], other, os.readlink("/proc/self/ns/net")}) == 3
        os.close(feed)
        os.close(out)
        assert select.select([box.pidfd], [], [], 30)[0]
        box.reap()


def test_the_hosts_devices_are_used_and_not_changed(native: Native, ws: Path) -> None:
    """As root too, to whom they belong: their mode and times stay, while reading and writing through them works."""
    before = os.stat("/dev/full").st_ctime_ns
    out, _ = run(
        native,
        planned(ws, "chmod 666 /dev/full; touch -a /dev/full; echo x > /dev/null; cat /dev/null; head -c 2 /dev/zero | wc -c"),
    )
    assert out.count("/dev/full") == 2
    assert out.endswith("2\n")
    assert os.stat("/dev/full").st_ctime_ns == before


def test_many_at_once(native: Native, ws: Path) -> None:
    """More starts than a socket's queue holds, of plans that share nothing: all run."""
    launches = [dataclasses.replace(planned(ws, "true"), limits=Limits(pids=100 + number)) for number in range(60)]
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    boxes = [native.start(launch, Stdio(null, null, null)) for launch in launches]
    os.close(null)
    for box in boxes:
        assert select.select([box.pidfd], [], [], 60)[0]
        box.kill()
        assert box.reap().code == 0


def test_a_replacement_outside_ends_no_command(native: Native, ws: Path) -> None:
    """What somebody replaces while a command runs makes its template useless for the next, and does not touch that command."""
    (stdin, feed), (out, write) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    run(native, planned(ws, "true"))  # so that the template stays
    box = native.start(planned(ws, 'echo up; read -r line; echo "$line"'), Stdio(stdin, write, write))
    os.close(stdin)
    os.close(write)
    assert os.read(out, 10) == b"up\n"
    _replace(ws / ".bashrc")
    for _ in range(3):
        assert run(native, planned(ws, "echo x >> .bashrc"))[1].code == 1
    os.write(feed, b"alive\n")
    assert os.read(out, 10) == b"alive\n"
    os.close(feed)
    os.close(out)
    assert select.select([box.pidfd], [], [], 30)[0]
    assert box.reap().code == 0


def test_a_new_protected_path_is_another_plan(native: Native, ws: Path) -> None:
    """What became protected since a box was made is not open in it: that box is not used."""
    assert native.prepare(planned(ws, "true"), 2)
    (ws / ".vscode").mkdir()
    protected = [f"{ws}/{name}" for name in (".claude", ".git", ".bashrc", ".vscode")]
    out, _ = run(native, planned(ws, "echo x > .vscode/tasks.json", protected=protected))
    assert "Read-only" in out
    assert warm(native) == 0


def test_absent_protected_paths_are_guarded_in_a_ready_box(native: Native, ws: Path) -> None:
    """Their mount points are made with the command and gone after it; the box that waited guards them."""
    registry = str(ws.parent / "registry")
    shutil.rmtree(ws / ".claude")
    launch = planned(ws, "mkdir -p .claude/x; echo x > .mcp.json; ls -A", registry=registry)
    assert launch.absent
    assert native.prepare(launch, 2)
    assert sorted(os.listdir(ws)) == [".bashrc", ".git"]
    out = run_ready(native, launch, lambda: native.prepare(launch, 2))
    assert out.count("Read-only") + out.count("No such device") + out.count("Permission denied") >= 2, out
    assert sorted(os.listdir(ws)) == [".bashrc", ".git"]


def test_a_mount_of_the_host_empties_the_pool(tmp_path: Path, ws: Path) -> None:
    """What somebody mounts while boxes wait is seen by the next command. In a mount namespace of the test's own."""
    require("userns", "user")
    (ws / "data").mkdir()
    script = (
        "import sys, subprocess, pathlib\n"
        "from tests.isolation import test_isolation_native as t\n"
        "native = t.Native(); assert native.probe().works\n"
        f"ws = pathlib.Path({str(ws)!r})\n"
        "assert native.prepare(t.planned(ws, 'true'), 2)\n"
        "subprocess.run(['mount', '-t', 'tmpfs', 'none', ws / 'data'], check=True)\n"
        "(ws / 'data/there').touch()\n"
        "print(t.run(native, t.planned(ws, 'ls data'))[0].strip(), t.warm(native)); native.close()\n"
    )
    root = str(HERE.parent.parent)
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "there 0\n", done.stderr


def test_every_field_of_a_plan_has_its_place() -> None:
    """A ready box is never used for a plan that differs in what it was made for. A new field has to be put somewhere."""
    assert {each.name for each in dataclasses.fields(LaunchPlan)} == MADE_FOR | ORDERED | NEITHER
    mount = Mount(MountKind.READ_ONLY, "/", "/")
    base = LaunchPlan(("bash",), "/", (), (mount,), NetworkMode.OFF, Limits(), 0, 0, Require.FS)
    other: dict[str, Any] = {
        "mounts": (mount, Mount(MountKind.TMPFS, "/tmp", size=1)), "files": (("/run/x", "x"),), "writable": ("/x",),
        "network": NetworkMode.HOST, "limits": Limits(pids=3), "uid": 1, "gid": 1, "deny_syscalls": ("mlock",),
        "allow_unix_sockets": True, "allow_ptrace": True, "absent": (("/x", True),), "private": ("/tmp",),
        "kept_for": "session",
    }  # fmt: skip
    assert other.keys() == MADE_FOR
    keys = {shelf.key_of(dataclasses.replace(base, **{name: value})) for name, value in other.items()}
    assert len(keys | {shelf.key_of(base)}) == len(other) + 1
    assert order(base, ()).keys() >= ORDERED


def test_a_guarded_path_is_never_part_of_a_template(ws: Path) -> None:
    """Two plans that differ in absent paths alone share boxes; each command's own guards come with it."""
    one = planned(ws, "true", registry=str(ws.parent / "registry"))
    fewer = dataclasses.replace(
        one, absent=one.absent[:1], mounts=tuple(each for each in one.mounts if each.target not in dict(one.absent[1:]))
    )
    assert len(one.absent) > 1
    assert shelf.key_of(one) == shelf.key_of(fewer)
    assert set(mountsteps.guards(one)) == {path for path, _ in one.absent}
    bound = {step[2] for step in mountsteps.steps(one).template if step[0] == "bind"}
    assert bound.isdisjoint(mountsteps.guards(one))


def test_a_large_environment_and_a_long_text(native: Native, ws: Path) -> None:
    """What does not fit into a message of a socket arrives whole, in ready and in cold boxes."""
    launch = planned(ws, ": " + "x" * 130_000 + '; echo "${#BIG}"')
    launch = dataclasses.replace(launch, env=(*launch.env, ("BIG", "y" * 120_000), ("MORE", "z" * 120_000)))
    assert run(native, launch)[0] == "120000\n"
    assert run_ready(native, launch, lambda: native.prepare(launch)) == "120000\n"


def test_process_limits_are_each_boxs_own(native: Native, ws: Path) -> None:
    """Boxes of one template do not use up each other's processes."""
    text = "for i in $(seq 20); do sleep 100 & done; echo up; read -r _"
    launch = dataclasses.replace(planned(ws, text), limits=Limits(pids=30))
    started = []
    for _ in range(3):
        (stdin, feed), (out, write) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        box = native.start(launch, Stdio(stdin, write, write))
        os.close(stdin)
        os.close(write)
        started.append((box, feed, out))
    for box, feed, out in started:
        assert os.read(out, 3) == b"up\n"
        os.close(feed)
        assert select.select([box.pidfd], [], [], 30)[0]
        assert box.reap().code == 1
        os.close(out)


def test_a_killed_zygote_is_replaced(native: Native, ws: Path) -> None:
    """Its templates and boxes end with it; the next command gets new ones."""
    launch = planned(ws, "echo fine")
    assert native.prepare(launch, 2)
    assert native.zygote_pid is not None
    family = descendants(native.zygote_pid)
    assert len(family) >= 3  # a template and two boxes
    pidfds = [os.pidfd_open(pid) for pid in family]
    os.kill(native.zygote_pid, signal.SIGKILL)
    for fd in pidfds:
        assert select.select([fd], [], [], 30)[0], "a box outlived the zygote"
        os.close(fd)
    assert run(native, launch)[0] == "fine\n"
    assert native.prepare(launch)
    assert run(native, launch)[0] == "fine\n"


def test_a_killed_template_is_replaced(native: Native, ws: Path) -> None:
    """Likewise."""
    launch = planned(ws, "echo fine")
    assert native.prepare(launch, 2)
    assert native.zygote_pid is not None
    templates = [pid for pid in children(native.zygote_pid) if children(pid)]
    assert templates
    for pid in templates:
        pidfds = [os.pidfd_open(each) for each in (pid, *children(pid))]
        os.kill(pid, signal.SIGKILL)
        for fd in pidfds:
            assert select.select([fd], [], [], 30)[0], "a box outlived its template"
            os.close(fd)
    assert run(native, launch)[0] == "fine\n"


def test_a_killed_daemon_leaves_nothing(ws: Path) -> None:
    """SIGKILL of the daemon ends the zygote, what waits and what runs."""
    script = (
        "import sys, os, pathlib\n"
        "from tests.isolation import test_isolation_native as t\n"
        "native = t.Native(); assert native.probe().works\n"
        f"ws = pathlib.Path({str(ws)!r})\n"
        "assert native.prepare(t.planned(ws, 'true'), 3)\n"
        "read, write = os.pipe()\n"
        "box = native.start(t.planned(ws, 'setsid sleep 1000 & echo up; wait'), t.Stdio(read, write, write))\n"
        "assert os.read(read, 3) == b'up\\n'\n"
        "print(native.zygote_pid, flush=True); sys.stdin.read()\n"
    )
    nothing_outlives(script, 6)  # zygote, template, two boxes that wait, one with its shell and a sleep


def test_nothing_grows(native: Native, ws: Path) -> None:
    """300 commands, ready and cold, good ones, killed ones and such as leave something running: no more descriptors,
    processes or mounts than before."""
    launch = planned(ws, "setsid sleep 1000 & echo out")
    for _ in range(3):
        run(native, launch)
    native.drain()
    assert native.zygote_pid is not None
    before = _levels(native.zygote_pid)
    for number in range(300):
        if number % 10 == 0:
            native.drain()
        out, status = run(native, launch)
        assert (out, status.code) == ("out\n", 0)
    native.drain()
    assert native.figures() is not None
    end = _levels(native.zygote_pid)
    assert end[0] <= before[0]
    assert end[2] == before[2]


def _levels(zygote: int) -> tuple[int, int, int]:
    """(descriptors here, processes below the zygote once all that is ending has ended, mounts here)."""
    for pid in descendants(zygote):
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([fd], [], [], 30)[0], f"process {pid} stays"
        os.close(fd)
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").count("\n")
    return len(os.listdir("/proc/self/fd")), len(descendants(zygote)), mounts


def test_a_pool_of_none_keeps_nothing(native: Native, ws: Path) -> None:
    """With `pool_boxes = 0` each command makes what it needs and nothing stays."""
    native.configure(Caps(boxes=0))
    launch = planned(ws, "echo fine")
    for _ in range(3):
        assert run(native, launch)[0] == "fine\n"
    figures = native.figures()
    assert figures is not None
    assert (figures.boxes, figures.templates, figures.warm, figures.from_template) == (0, 0, 0, 0)
    assert not native.prepare(launch)


def test_the_daemon_believes_no_message_of_a_box(native: Native, ws: Path) -> None:
    """What comes back from a process beside which a command ran is text; a marshalled value is only ever sent to it."""
    source = Path(wire.__file__).with_name("nativebox.py").read_text(encoding="utf-8")
    source += Path(wire.__file__).with_name("zygotes.py").read_text(encoding="utf-8")
    assert "wire.receive" not in source
    assert "loads" not in source


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def nothing_outlives(script: str, least: int) -> None:
    """Kill the daemon that `script` is, when it has printed its zygote's pid, and wait for the end of that family, of at least
    so many processes."""
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=HERE.parent.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdout is not None
        zygote = int(daemon.stdout.readline())
        family = [zygote, *descendants(zygote)]
        assert len(family) >= least
        pidfds = [os.pidfd_open(pid) for pid in family]
        daemon.kill()
    for fd in pidfds:
        assert select.select([fd], [], [], 30)[0], "something outlived the daemon"
        os.close(fd)


def descendants(pid: int) -> list[int]:
    below = children(pid)
    return below + [each for one in below for each in descendants(one)]


def test_figures_are_plain(native: Native, ws: Path) -> None:
    """Status can show them as they are."""
    run(native, planned(ws, "true"))
    figures = native.figures()
    assert figures is not None
    assert json.dumps(dataclasses.asdict(figures))
