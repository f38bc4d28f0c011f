# SPDX-License-Identifier: GPL-3.0-or-later
"""What a box must answer, tried from inside by `_inside.py`: as root, as a plain user, as the user a root daemon drops to.

To add a probe: a line in `_inside.py`, its expected answers here. Where two answers stand, either mechanism may come first.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.isolation.conftest import HERE, Runner

SECRET = "token-6f1d"
PROTECTED = (
    ".git/config", ".git/hooks/post-checkout", ".git/commondir", ".git/info/attributes", "sub/.git/hooks/post-checkout",
    "sub/.git/config", ".claude/settings.json", ".claude/hooks/x", ".bashrc", ".vscode/tasks.json",
)  # fmt: skip

READ_ONLY = "EROFS"
EITHER = "EROFS EACCES"
EXPECTED: dict[str, str] = {
    "sysctl vm/swappiness": EITHER,
    "sysctl kernel/core_pattern": EITHER,
    "sysctl kernel/modprobe": "EROFS EACCES ENOENT",
    "sysrq": "EROFS EACCES ENOENT",
    "proc mounts": EITHER,
    "sys": "EROFS EACCES ENOENT",
    "route out": "ENETUNREACH",
    "route out 6": "ENETUNREACH EADDRNOTAVAIL",
    "raw socket": "EPERM",
    "cgroup": "EROFS EACCES ENOENT",
    "proc 1 environ": "EACCES",
    "proc 1 memory": EITHER,
    "proc 1 descriptors": "EACCES",
    "descriptor 7": "EBADF",
    "descriptors": "device|pipe|device pipe",
    "reopened": EITHER,
    "fifo": "EACCES",
    "tiocsti": "EPERM",
    "tiocsti high bits": "EPERM",
    "tioclinux": "EPERM",
    "environment": "",
    "capabilities": "0000000000000000",
    "bounding": "0000000000000000",
    "no new privileges": "1",
    "filter": "2",
    "call clone3": "ENOSYS",
    "call x32": "ENOSYS",
    "socket unix": "EPERM",
    "socket abstract": "EPERM",
    "socket vsock": "EPERM",
    "socket packet": "EPERM",
    "socket alg": "EPERM",
    "netlink route": "16",
    "netlink audit": "EPERM",
    "pair stream": "2",
    "pair datagram": "EPERM",
    "connect out": "ENETUNREACH",
    "loopback": "hello",
    "write outside": READ_ONLY,
    "create outside": READ_ONLY,
    "chmod outside": READ_ONLY,
    "utime outside": READ_ONLY,
    "xattr outside": READ_ONLY,
    "truncate outside": READ_ONLY,
    "unlink outside": READ_ONLY,
    "link in": "EXDEV EROFS",
    "device": "EPERM EROFS EACCES",
    "write workspace": READ_ONLY,
    "write /tmp": READ_ONLY,
    "write TMPDIR": "done",
    "write shm": READ_ONLY,
    "write null": "done",
    "write run": READ_ONLY,
    "write dev": READ_ONLY,
    "rename above protected": "EROFS EBUSY EXDEV",
    "rename git": "EROFS EBUSY",
    "remove git": "EROFS EBUSY",
    "list secrets": "EACCES",
    "shared memory": "ENOENT",
    "kill host": "ESRCH",
    "processes": "True",
    "host name": "EPERM",
    "core limit": "0",
    "raise limit": "ValueError('not allowed to raise maximum limit')",
    "signal to init": "done",  # delivered and ignored: the kernel protects process 1 of a pid namespace
}
# What differs when the command may write the workspace.
WRITES = {
    "write workspace": "done",
    "write /tmp": "done",
    "write shm": "done",
    "reopened": "done",
    "fifo": "done",
    "link in": "EXDEV",
}
WRITES |= {"device": "EPERM"}


@pytest.fixture(scope="module")
def scene(who: Runner) -> Iterator[dict[str, object]]:
    """A workspace with repositories and secrets around it, and a host full of things that must stay out of reach."""
    for path in PROTECTED:
        if "commondir" not in path and "hooks/" not in path:
            who.make(f"ws/{path}", "{}\n")
    for path in ("ws/.git/hooks", "ws/sub/.git/hooks", "ws/.git/objects", "ws/.claude/hooks", "home/.ssh", "own"):
        who.make(path)
    who.make("home/.ssh/id_test", SECRET).chmod(0o600)
    who.make("home/.netrc", SECRET)
    who.make("own/state", SECRET)
    outside = who.make("outside/file", "kept\n")
    file = who.make("ws/file", "kept\n")
    fifo = str(who.root / "ws/fifo")
    os.mkfifo(fifo)
    os.chown(fifo, who.uid, -1)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x5B0D0000 + os.getpid() % 0xFFFF
    segment = libc.shmget(key, 4096, 0o1666)
    sleeper = subprocess.Popen(["sleep", "600"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, socket.socket(socket.AF_UNIX) as abstract:
        listener.bind(str(who.root / "host.sock"))
        os.chmod(who.root / "host.sock", 0o777)
        listener.listen()
        abstract.bind(f"\0sandboxd-{os.getpid()}")
        abstract.listen()
        yield {
            "workspace": str(who.root / "ws"),
            "file": str(file),
            "outside": str(outside),
            "fifo": fifo,
            "socket": str(who.root / "host.sock"),
            "abstract": f"sandboxd-{os.getpid()}",
            "shm_key": key,
            "host_pid": sleeper.pid,
            "protected": PROTECTED,
            "secrets": [str(who.home / ".ssh/id_test"), str(who.home / ".netrc"), str(who.root / "own/state"), "/etc/shadow"],
            "home": str(who.home),
        }
    libc.shmctl(segment, 0, None)
    sleeper.kill()
    sleeper.wait()
    os.close(reader)


@pytest.mark.parametrize("promise", [True, False], ids=["promise", "writes"])
def test_a_box_holds_against_every_probe(who: Runner, scene: dict[str, object], promise: bool, tmp_path: Path) -> None:
    """Each probe gives an expected answer, whoever runs the box, and the host is unchanged afterwards."""
    script = who.make("inside.py", (HERE / "_inside.py").read_text(encoding="utf-8"))
    session_tmp = who.make(f"session-tmp-{promise}")
    workspace = Path(str(scene["workspace"]))
    result = who(
        f"/usr/bin/python3 -I {script} {shlex.quote(json.dumps(scene))}",
        workspace,
        promise=promise,
        grants=[] if promise else [("workspace_write", "")],
        tmp=str(session_tmp),
        own=[str(who.root / "own")],
        repositories=[f"{workspace}/.git", f"{workspace}/sub/.git"],
        protected=[f"{workspace}/{name}" for name in (".git", "sub/.git", ".claude", ".bashrc", ".vscode")],
        leak=str(who.make("leak", "")),
        daemon_env={"MY_API_TOKEN": SECRET, "LD_LIBRARY_PATH": "/nowhere"},
    )
    assert result.error == ""
    assert result.code == 0, result.err
    answers: dict[str, str] = json.loads(result.out)
    ids = f"{who.uid} {pwd.getpwuid(who.uid).pw_gid}"
    wrong = {name: got for name, got in answers.items() if not _expected(name, got, promise, ids)}
    assert wrong == {}
    assert SECRET not in result.out
    assert (workspace / "file").read_text(encoding="utf-8") == "kept\n"
    assert Path(str(scene["outside"])).read_text(encoding="utf-8") == "kept\n"
    assert not (workspace / ".git/commondir").exists()
    assert (who.root / "leak").read_text(encoding="utf-8") == ""
    (workspace / "new").unlink(missing_ok=True)


def _expected(name: str, got: str, promise: bool, ids: str) -> bool:
    if name.startswith("protected "):
        return got == "EROFS"
    if (name.startswith("proc ") and "/" in name) or name in ("proc mtrr",):
        return got in ("EROFS", "EACCES", "ENOENT")
    if name == "ids":
        return got == ids
    if name.startswith("secret mode "):
        return got in ("EROFS", "EACCES", "EPERM")
    if name.startswith("secret "):
        return got in ("EACCES", "ENOENT")
    if name.startswith("call ") and name not in EXPECTED:
        return got == "EPERM"
    if name == "lease":
        return True  # of an own file, which harms nobody
    wanted = EXPECTED[name] if promise else WRITES.get(name, EXPECTED[name])
    return got in wanted.split(" ") or got in wanted.split("|") or got == wanted


def test_the_probes_notice_a_missing_box(tmp_path: Path) -> None:
    """Without a box the script refuses to try anything: the suite cannot harm the machine it runs on."""
    done = subprocess.run([sys.executable, str(HERE / "_inside.py"), "{}"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "writable" in done.stderr
