# SPDX-License-Identifier: GPL-3.0-or-later
"""A throw-away plain user with a working sandboxd of its own, so that tests run as root and as someone who is not.

The user's virtual environment is made from the system's Python: the one that runs the tests may lie in root's home.
The project is copied (root's clone may be unreadable too), the installed packages are used where they stand when the user
can read them, else copied.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PREFIX = "sbxd-test-"  # then the pid of the run that made the user
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class User:
    """Someone who runs sandboxd. `python` has the project installed, `sandboxd` is its command."""

    name: str
    uid: int
    gid: int
    home: Path
    python: Path
    sandboxd: Path

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """A login's bare environment: nothing of the test runner's own."""
        return {
            "HOME": str(self.home),
            "USER": self.name,
            "LOGNAME": self.name,
            "PATH": f"{self.sandboxd.parent}:{SYSTEM_PATH}",
            "LANG": "C.UTF-8",
            **(extra or {}),
        }

    def ids(self) -> dict[str, object]:
        """The keyword arguments of Popen that make a child run as this user; none when it already is."""
        return {} if self.uid == os.geteuid() else {"user": self.uid, "group": self.gid, "extra_groups": []}

    def run(
        self, argv: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run `argv` as this user, without a terminal, and return what it said. `timeout` in seconds."""
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [str(word) for word in argv],
            cwd=cwd or self.home,
            env=self.env(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **self.ids(),  # type: ignore[call-overload]  # three keywords of Popen whose types mypy cannot see through a dict
        )
        return done

    def own(self, path: Path) -> Path:
        """Give `path` and all below it to this user; returns it."""
        for each in (path, *path.rglob("*")):
            os.chown(each, self.uid, self.gid, follow_symlinks=False)
        return path


@contextmanager
def throwaway() -> Iterator[User]:
    """Make a user with a home under /home and an installation of their own, and remove both at the end.

    Home is under /home and not a temporary directory, since a sandbox puts its own /tmp over the real one. Users left by
    a run that was killed are removed first.
    """
    python = system_python()
    name = f"{PREFIX}{os.getpid()}"
    with _user_database():
        for left in pwd.getpwall():
            if left.pw_name.startswith(PREFIX) and not os.path.exists(f"/proc/{left.pw_name.removeprefix(PREFIX)}"):
                subprocess.run(["userdel", "--force", "--remove", left.pw_name], check=False, capture_output=True)
        subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", name], check=True, capture_output=True)
    entry = pwd.getpwnam(name)
    home = Path(entry.pw_dir)
    try:
        venv = _install(python, home / ".sandboxd-venv")
        user = User(name, entry.pw_uid, entry.pw_gid, home, venv / "bin" / "python", venv / "bin" / "sandboxd")
        user.own(venv)
        yield user
    finally:
        with _user_database():
            subprocess.run(["userdel", "--force", "--remove", name], check=False, capture_output=True)


@contextmanager
def _user_database() -> Iterator[None]:
    """One at a time: useradd gives up when another one holds the lock of /etc/passwd."""
    with open(Path(tempfile.gettempdir()) / f"{PREFIX}lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def current(home: Path) -> User:
    """Whoever runs the tests, with `home` as an empty home directory and the installation of this virtual environment."""
    entry = pwd.getpwuid(os.geteuid())
    command = Path(sysconfig.get_path("scripts")) / "sandboxd"
    return User(entry.pw_name, entry.pw_uid, entry.pw_gid, home, Path(sys.executable), command)


def system_python() -> Path:
    """A Python that every user can run and that can load the packages installed here (same minor version, same ABI)."""
    wanted = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (Path(sys.executable).resolve(), Path("/usr/bin") / wanted, Path("/usr/local/bin") / wanted):
        if candidate.exists() and readable_by_all(candidate):
            return candidate
    pytest.skip(f"needs user: no {wanted} that a plain user can run (the tests run {sys.executable})")


def readable_by_all(path: Path) -> bool:
    """Whether anyone can reach and read `path`: search permission on all directories above it, read on itself."""
    path = path.resolve()
    need = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
    return path.stat().st_mode & need == need and all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)


def _install(python: Path, venv: Path) -> Path:
    subprocess.run([str(python), "-m", "venv", "--without-pip", str(venv)], check=True, capture_output=True)
    site = venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "sandboxd", site / "sandboxd", ignore=ignore)
    packages = Path(sysconfig.get_path("purelib"))
    if not readable_by_all(packages):
        packages = Path(shutil.copytree(packages, venv / "packages", symlinks=True, ignore=ignore))
    (site / "packages.pth").write_text(f"{packages}\n", encoding="utf-8")
    command = venv / "bin" / "sandboxd"
    command.write_text(
        f"#!{venv / 'bin' / 'python'}\nimport sys\n\nfrom sandboxd.cli.main import main\n\nsys.exit(main())\n", encoding="utf-8"
    )
    command.chmod(0o755)
    return venv
