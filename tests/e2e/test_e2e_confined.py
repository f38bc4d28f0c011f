# SPDX-License-Identifier: GPL-3.0-or-later
"""What a command cannot do from inside, in the mode that asks nobody: only the kernel stands in its way.

Every probe here opens, looks or asks; none would harm the machine if the sandbox were missing.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Place

# Python that prints CONFINED when the kernel refused, and what it got otherwise. {name} is filled in from the test.
PROBES = {
    "write /proc/sys": "os.close(os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY))",
    "write /proc/sysrq-trigger": "os.close(os.open('/proc/sysrq-trigger', os.O_WRONLY))",
    "read a key": "print(open('{home}/.ssh/id_test').read())",
    "read the shadow file": "print(open('/etc/shadow').read())",
    "read sandboxd's state": "print(os.listdir('{home}/.local/state/sandboxd'))",
    "connect to the agent socket": "socket.socket(socket.AF_UNIX).connect('{runtime}/sandboxd/agent.sock')",
    "connect to the admin socket": "socket.socket(socket.AF_UNIX).connect('{runtime}/sandboxd/admin.sock')",
    "reach a server of the host": "socket.create_connection(('127.0.0.1', {port}), 2)",
    "have a route out": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))",
    "make a user namespace": "check(libc.unshare(0x10000000))",
    "mount": "check(libc.mount(b'none', b'/mnt', b'tmpfs', 0, None))",
    "trace a process": "check(libc.ptrace(0, 0, 0, 0))",
    "write outside the workspace": "open('{home}/elsewhere', 'w')",
    "become someone else": "os.setuid(12345)",
    "write git's config": "open('.git/config', 'a')",
    "plant a hook": "open('.git/hooks/pre-commit', 'w')",
    "redirect the repository": "open('.git/commondir', 'w')",
}
FRAME = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
try:
    {probe}
except OSError as error:
    print('CONFINED', type(error).__name__, error.errno)
else:
    print('FREE')
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server of the host on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def with_key(served: Place) -> Place:
    key = served.home / ".ssh" / "id_test"
    key.parent.mkdir(mode=0o700)
    key.write_text("the key\n", encoding="utf-8")
    served.person.own(key.parent)
    return served


ENVIRONMENTS = """
import glob, os
print(dict(os.environ))
for name in glob.glob('/proc/[0-9]*/environ'):
    try:
        print(name, open(name, 'rb').read())
    except OSError as error:
        print(name, error)
"""


def run_python(place: Place, source: str) -> subprocess.CompletedProcess[str]:
    tree = place.workspace()
    (tree / "probe.py").write_text(source, encoding="utf-8")
    place.person.own(tree / "probe.py")
    return place.sandboxd("run", "--mode", "bypassPermissions", "--", "python3 probe.py", cwd=tree)


@pytest.mark.parametrize("name", PROBES)
def test_a_command_inside_cannot(name: str, with_key: Place, port: int) -> None:
    """The kernel refuses it to root and to a plain user alike, in the mode that asks nobody."""
    probe = PROBES[name].format(home=with_key.home, runtime=with_key.runtime, port=port)
    done = run_python(with_key, FRAME.replace("{probe}", probe))
    assert done.stdout.startswith("CONFINED"), done
    assert done.returncode == 0, done


def test_no_secret_of_the_caller_gets_inside(with_key: Place) -> None:
    """Neither the command's environment nor that of any process it can see holds the caller's."""
    done = run_python(with_key, ENVIRONMENTS)
    assert "/proc/1/environ" in done.stdout, done
    assert "PATH" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


def test_the_same_without_a_daemon(place: Place) -> None:
    """An embedded daemon, which has the caller's environment itself, passes none of it on."""
    done = run_python(place, ENVIRONMENTS)
    assert "/proc/1/environ" in done.stdout, done
    assert "PATH" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


def test_no_file_of_the_caller_is_open_inside(place: Place, tmp_path: Path) -> None:
    """No descriptor inside is a file or directory of the host, which could be reopened for writing; none is inherited."""
    tree = place.workspace()
    (tree / "probe.py").write_text(
        "import os, stat\nfor name in sorted(os.listdir('/proc/self/fd'), key=int):\n"
        "    try:\n        mode = os.fstat(int(name)).st_mode\n    except OSError:\n        continue\n"
        "    print(name, 'HOST FILE' if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else 'fine')\n",
        encoding="utf-8",
    )
    place.person.own(tree)
    handle = os.open(tree / "a.txt", os.O_RDWR)
    try:
        os.set_inheritable(handle, True)
        words = ("run", "--mode", "bypassPermissions", "--", "python3 probe.py")
        with place.started(*words, cwd=tree, pass_fds=(handle,)) as child:
            out, err = child.communicate(timeout=60)
    finally:
        os.close(handle)
    assert child.returncode == 0, err
    assert "2 fine" in out
    assert "HOST FILE" not in out


def test_a_read_that_would_run_a_program_does_not(new_place: Callable[[], Place]) -> None:
    """A repository whose configuration names programs cannot make a plain read run them or show a key."""
    place = new_place()
    key = place.home / ".ssh" / "id_test"
    key.parent.mkdir(mode=0o700)
    key.write_text("the key\n", encoding="utf-8")
    tree = place.workspace()
    place.person.own(place.home)
    (tree / ".gitattributes").write_text("*.txt diff=leak\n", encoding="utf-8")
    with open(tree / ".git" / "config", "a", encoding="utf-8") as config:
        config.write(f'[diff "leak"]\n\ttextconv = cat {key} #\n[core]\n\tfsmonitor = "cat {key}; false"\n')
    (tree / "a.txt").write_text("three\n", encoding="utf-8")
    place.person.own(tree)
    done = place.sandboxd("run", "--", "git diff", cwd=tree)
    assert "the key" not in done.stdout + done.stderr, done
