# SPDX-License-Identifier: GPL-3.0-or-later
"""A daemon of its own for measurements and load: a child process in a temporary home, and what it costs."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Daemon:
    pid: int
    home: Path

    @property
    def address(self) -> str:
        """Of the admin socket."""
        return f"unix:{self.home}/r/sandboxd/admin.sock"

    @property
    def workspace(self) -> str:
        return str(self.home / "ws")

    @property
    def state(self) -> Path:
        return self.home / ".local/state/sandboxd"

    def memory(self) -> int:
        """Resident bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def mounts(self) -> int:
        """That it sees, of or at anything of its own: others may mount what they like meanwhile."""
        return Path(f"/proc/{self.pid}/mountinfo").read_text().count(str(self.home))

    def files(self, folder: str) -> dict[str, int]:
        """The files below a folder of its state directory, and their bytes."""
        found = {}
        for file in (self.state / folder).rglob("*"):
            try:
                if file.is_file():
                    found[str(file)] = file.stat().st_size
            except OSError:  # gone meanwhile
                continue
        return found

    def children(self) -> int:
        """Processes below it."""
        parents: dict[int, int] = {}
        for name in filter(str.isdecimal, os.listdir("/proc")):
            try:
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                pass
        count, ring = 0, {self.pid}
        while ring := {pid for pid, parent in parents.items() if parent in ring}:
            count += len(ring)
        return count


@contextmanager
def daemon(
    settings: str = "", *, wait: bool = True, module: str = "", profiles: Mapping[str, str] | None = None
) -> Iterator[Daemon]:
    """A daemon, serving unless `wait` is false; ended and removed at the end. `profiles` are files of its user; `module` is
    what runs instead of `sandboxd serve`."""
    with tempfile.TemporaryDirectory(prefix="sbxd-load-") as directory:
        home = Path(directory)
        for name in ("ws", "r", "t"):
            (home / name).mkdir(mode=0o700)
        config = home / ".config/sandboxd"
        config.mkdir(parents=True)
        (config / "config.toml").write_text(settings)
        (config / "profiles").mkdir()
        for name, text in (profiles or {}).items():
            (config / f"profiles/{name}.toml").write_text(text)
        env = {"HOME": directory, "XDG_RUNTIME_DIR": f"{home}/r", "PATH": os.environ["PATH"], "TMPDIR": f"{home}/t"}
        argv = [sys.executable, "-m", *([module] if module else ["sandboxd.cli.main", "serve"])]
        child = subprocess.Popen(argv, env=env, cwd=ROOT if module else None, stderr=subprocess.PIPE)
        try:
            assert child.stderr is not None
            while wait and select.select([child.stderr], [], [], 30)[0]:
                line = child.stderr.readline()
                if b"serving on" in line or not line:
                    break
            yield Daemon(child.pid, home)
        finally:
            child.terminate()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stderr is not None:
                child.stderr.close()
