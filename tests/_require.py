# SPDX-License-Identifier: GPL-3.0-or-later
"""`require("bwrap", "userns")`: skip where this machine cannot run a test, fail where it was promised to.

`SANDBOXD_REQUIRE=bwrap,userns,…` in the environment is that promise: a named feature that is missing then fails the
test instead of skipping it, so a green run cannot hide a sandbox that was never built.
Use it as a call inside a fixture or test, or as `pytestmark = pytest.mark.needs("bwrap", "userns")`.

To add a feature: one function below that returns "" when it is there, else what is missing, and its row in FEATURES.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
from collections.abc import Callable

import pytest

LANDLOCK_CREATE_RULESET = 444  # the same number on every architecture: include/uapi/asm-generic/unistd.h
LANDLOCK_CREATE_RULESET_VERSION = 1  # with a null attribute it answers the ABI version


def require(*features: str) -> None:
    """Skip (or, when SANDBOXD_REQUIRE names it, fail) the running test unless this machine has all `features`."""
    for feature in features:
        missing = lacks(feature)
        if missing and feature in promised():
            pytest.fail(f"SANDBOXD_REQUIRE names {feature}, but {missing}", pytrace=False)
        if missing:
            pytest.skip(f"needs {feature}: {missing}")


def promised() -> frozenset[str]:
    """The features that SANDBOXD_REQUIRE names; a name that does not exist is an error, not a promise kept by chance."""
    names = frozenset(name.strip() for name in os.environ.get("SANDBOXD_REQUIRE", "").split(",") if name.strip())
    unknown = sorted(names - FEATURES.keys())
    if unknown:
        raise pytest.UsageError(f"SANDBOXD_REQUIRE names {', '.join(unknown)}; known are {', '.join(FEATURES)}")
    return names


@functools.cache
def lacks(feature: str) -> str:
    """What is missing for `feature`, "" when it is there."""
    return FEATURES[feature]()


def _bwrap() -> str:
    return "" if shutil.which("bwrap") else "bwrap is not on PATH"


def _userns() -> str:
    """A real one, with a mapping: sysctls and security modules can forbid what `unshare` alone would show as possible."""
    if not shutil.which("unshare"):
        return "unshare (util-linux) is not on PATH"
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "true"], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stderr.strip() or f"unshare ended with {done.returncode}"


def _landlock() -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_CREATE_RULESET_VERSION)
    return "" if abi >= 1 else f"landlock_create_ruleset said {os.strerror(ctypes.get_errno())}"


def _seccomp() -> str:
    """Filters are listed in /proc since Linux 4.14; the file stands exactly when CONFIG_SECCOMP_FILTER does."""
    return "" if os.path.exists("/proc/sys/kernel/seccomp/actions_avail") else "this kernel has no seccomp filters"


def _user() -> str:
    if os.geteuid() != 0:
        return "only root can make a throw-away plain user"
    return "" if shutil.which("useradd") and shutil.which("userdel") else "useradd is not on PATH"


FEATURES: dict[str, Callable[[], str]] = {
    "bwrap": _bwrap,
    "userns": _userns,
    "landlock": _landlock,
    "seccomp": _seccomp,
    "user": _user,
}
