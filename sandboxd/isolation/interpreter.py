# SPDX-License-Identifier: GPL-3.0-or-later
"""The python3 that runs `child` inside a box, and what it is given.

The daemon's own interpreter may lie in a home directory that the box's user cannot read, or in a workspace that commands
can write; then the box would run what a command put there. So the system's comes first, and none is taken from a place
that is not root's or is not readable by everyone, but the daemon's own base interpreter as a last resort.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import stat
import subprocess
import sys
from functools import lru_cache
from importlib import resources
from importlib.abc import InspectLoader

from sandboxd.errors import IsolationError
from sandboxd.paths import parents

CANDIDATES = ("/usr/bin/python3", "/usr/local/bin/python3", "/bin/python3")
# Also tells which code this interpreter understands.
CHECK = (
    "import sys,_ctypes,_signal,posix,select,_socket,_frozen_importlib_external as e\n"
    "assert sys.version_info >= (3, 9)\nprint(e.MAGIC_NUMBER.hex())"
)
# Reads (code of child, its configuration) from a descriptor. Version 2 of marshal's format is read by every Python 3; the
# code inside is as its own compiler made it.
BOOT = (
    "import marshal,posix,sys;f=int(sys.argv[1]);c,a=marshal.loads(posix.read(f,1<<21));posix.close(f);"
    "exec(marshal.loads(c));main(a)"
)
# The same for several modules, of which the last one's `main` is called; each finds the others by their full names.
BOOT_MODULES = (
    "import marshal,posix,sys;f=int(sys.argv[1]);w,a=marshal.loads(posix.read(f,1<<21));posix.close(f)\n"
    "for n,c in w:\n m=sys.modules[n]=type(sys)(n);p=n.rpartition('.')\n"
    " p[0] and setattr(sys.modules[p[0]],p[2],m);c and exec(marshal.loads(c),m.__dict__)\n"
    "m.main(a)"
)
_COMPILE = (
    "import marshal,sys;s=marshal.loads(sys.stdin.buffer.read());"
    "sys.stdout.buffer.write(marshal.dumps([marshal.dumps(compile(t,n,'exec')) for n,t in s]))"
)
FLAGS = ("-I", "-S", "-B")


@lru_cache(maxsize=8)
def find(uid: int) -> str:
    """The interpreter for boxes of `uid`. Raises IsolationError with the fix when there is none."""
    for path in (*CANDIDATES, os.path.realpath(getattr(sys, "_base_executable", sys.executable))):
        if _usable(path, uid) and _magic(path):
            return path
    raise IsolationError(
        f"no python3 that user {uid} can run inside a box", fix="install python3 (3.9 or later) as /usr/bin/python3"
    )


@lru_cache(maxsize=8)
def compiled(python: str, modules: tuple[str, ...]) -> tuple[bytes, ...]:
    """Modules of this package, compiled by the interpreter that will run them. Raises IsolationError.

    Where that understands the same code as this one, the code is what an import here would use, which mostly lies compiled.
    """
    if _magic(python) == importlib.util.MAGIC_NUMBER.hex():
        specs = [importlib.util.find_spec(f"sandboxd.isolation.{name}") for name in modules]
        loaders = [spec.loader for spec in specs if spec is not None and isinstance(spec.loader, InspectLoader)]
        codes = [loader.get_code(f"sandboxd.isolation.{name}") for name, loader in zip(modules, loaders, strict=True)]
        return tuple(marshal.dumps(code) for code in codes if code is not None)
    package = resources.files("sandboxd.isolation")
    sources = [(f"<sandboxd {name}>", package.joinpath(f"{name}.py").read_bytes()) for name in modules]
    done = subprocess.run(
        [python, *FLAGS, "-c", _COMPILE], input=marshal.dumps(sources, 2), capture_output=True, env={}, check=False
    )
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise IsolationError(f"{python} cannot compile the box's first process: {reason}", fix="repair this python3")
    return tuple(marshal.loads(done.stdout))  # noqa: S302  the interpreter was found by `find`


def payload(python: str, config: dict[str, object]) -> bytes:
    """What BOOT reads."""
    return marshal.dumps((compiled(python, ("child",))[0], config), 2)


def payload_of(python: str, modules: tuple[str, ...], config: dict[str, object]) -> bytes:
    """What BOOT_MODULES reads: these modules of this package, in the order in which they need each other."""
    packages = (("sandboxd", b""), ("sandboxd.isolation", b""))
    names = (f"sandboxd.isolation.{each}" for each in modules)
    coded = zip(names, compiled(python, modules), strict=True)
    return marshal.dumps(((*packages, *coded), config), 2)


def _usable(path: str, uid: int) -> bool:
    """Whether `uid` can run it and nobody but root, or that user outside any box, can replace it."""
    try:
        real = os.path.realpath(path, strict=True)
        return all(_passes(os.stat(each), uid) for each in (real, *parents(real)))
    except OSError:
        return False


def _passes(info: os.stat_result, uid: int) -> bool:
    need = stat.S_IXOTH if info.st_uid != uid else stat.S_IXUSR
    readable = stat.S_ISDIR(info.st_mode) or info.st_mode & (stat.S_IROTH if info.st_uid != uid else stat.S_IRUSR)
    replaceable = info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX
    return bool(info.st_mode & need and readable and not replaceable and info.st_uid in (0, uid, os.getuid(), *_unmapped()))


@lru_cache(maxsize=1)
def _unmapped() -> tuple[int, ...]:
    """The uid that stands for every unmapped one in a user namespace; there root's files have it, outside nobody's do."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            whole = file.read().split() == ["0", "0", "4294967295"]
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
            return () if whole else (int(file.read()),)
    except (OSError, ValueError):
        return ()


@lru_cache(maxsize=8)
def _magic(path: str) -> str:
    """What code this interpreter understands; "" when it cannot run `child`."""
    try:
        done = subprocess.run([path, *FLAGS, "-c", CHECK], capture_output=True, env={}, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""
