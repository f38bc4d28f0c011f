# SPDX-License-Identifier: GPL-3.0-or-later
"""Boxes for the tests: the same commands as root, as a plain user, and as a user whom a root daemon drops to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests._require import require
from tests._users import User
from tests.isolation import _drive

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Result:
    """How one command ended, as `_drive.run` tells it."""

    out: str = ""
    err: str = ""
    cwd: str = ""
    code: int | None = None
    signal: int | None = None
    error: str = ""
    violations: tuple[tuple[str, str, str], ...] = ()
    planted: tuple[str, ...] = ()
    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    disarmed: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    oom: int = 0
    broken: tuple[str, ...] = ()
    enforcement: dict[str, str] | None = None
    reused: int = 0
    lost: bool = False  # a box that ought to have been used again was not
    refused: str = ""
    before: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Runner:
    """Runs commands in boxes as one kind of user. `root` is a directory of that user, outside /tmp.

    With `reused` as its backend (only test_isolation_session.py asks for it) they are reading commands, each in a box that has
    run another one of the session.
    """

    kind: str
    root: Path
    home: Path
    uid: int
    runs: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
    backend: str = "bwrap"

    def __call__(self, text: str, workspace: Path, **spec: Any) -> Result:
        return self.all([text], workspace, **spec)[0]

    def all(self, texts: list[str], workspace: Path, **spec: Any) -> list[Result]:
        specs = [
            {
                "text": text, "workspace": str(workspace), "uid": self.uid, "home": str(self.home), "backend": self.backend,
                **({"promise": True, "grants": []} if self.backend == "reused" else {}), **spec,
            }
            for text in texts
        ]  # fmt: skip
        results = [Result(**{name: _frozen(value) for name, value in each.items()}) for each in self.runs(specs)]
        assert not any(each.lost or each.refused for each in results)
        return results

    def make(self, path: str, content: str | None = None) -> Path:
        """A file (or, without content, a directory) of this user below `root`."""
        target = self.root / path
        missing = [each for each in (target, *target.parents) if not each.exists()]
        if content is None:
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, encoding="utf-8")
        for each in {target, *missing}:
            os.chown(each, self.uid, -1)
        return target


def _frozen(value: Any) -> Any:
    """Lists, which JSON made of tuples, as tuples again."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


# Every user by every backend; those that go no way of their own are among the long tests.
_USUAL = ("root-bwrap", "plain-bwrap", "root-warm", "plain-warm", "dropped-native")
KINDS = [
    pytest.param(name, marks=() if name in _USUAL else pytest.mark.slow)
    for backend in ("bwrap", "native", "warm")
    for name in (f"{kind}-{backend}" for kind in ("root", "plain", "dropped"))
]


@pytest.fixture(scope="session", params=KINDS)
def who(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """The three ways to run, by each backend with namespaces: sandboxd and box as one user (root or not), and a root daemon
    with another user's box."""
    require("bwrap", "userns")
    param, _, backend = request.param.partition("-")
    if param != "plain" and os.geteuid() != 0:
        if param == "dropped":
            pytest.skip("needs root")
        root = tmp_path_factory.mktemp("who")
        yield Runner("self", root, root / "home", os.getuid(), lambda specs: [_drive.run(each) for each in specs], backend)
        return
    if param == "root":
        root = Path(tempfile.mkdtemp(prefix="sandboxd-test-", dir="/var/tmp"))
        root.chmod(0o755)
        try:
            yield Runner("root", root, root / "home", 0, lambda specs: [_drive.run(each) for each in specs], backend)
        finally:
            shutil.rmtree(root)
        return
    user: User = request.getfixturevalue("plain_user")
    root = Path(tempfile.mkdtemp(prefix=param, dir=user.home))  # made again where a worker comes back to it
    root.chmod(0o755)
    user.own(root)
    if param == "dropped":
        yield Runner("dropped", root, root / "home", user.uid, lambda specs: [_drive.run(each) for each in specs], backend)
        return
    script = user.home / "drive.py"
    shutil.copy(HERE / "_drive.py", script)

    def runs(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        done = subprocess_run(user, script, specs)
        return list(json.loads(done))

    yield Runner("plain", root, root / "home", user.uid, runs, backend)


def subprocess_run(user: User, script: Path, specs: list[dict[str, Any]]) -> str:
    """Run the driver as `user`."""

    done = subprocess.run(
        [str(user.python), str(script)],
        input=json.dumps(specs),
        env=user.env(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        **user.ids(),  # type: ignore[call-overload]  # three keywords of Popen whose types mypy cannot see through a dict
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)
