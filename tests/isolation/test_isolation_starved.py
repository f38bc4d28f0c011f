# SPDX-License-Identifier: GPL-3.0-or-later
"""Forks, mounts, namespaces, descriptors and memory that the kernel really refuses while boxes are made and used.

In each case (`_starved.py`, where its docstring is the promise) the command that meets the failure runs in a box made from
the ground up or is refused in words, what waited is given up, boxes get ready again once the failure is over, nothing is
left of anything, and nothing ever ran unconfined.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.isolation import cgroups
from tests._require import require
from tests._users import User
from tests.isolation.conftest import HERE

TIME = 200  # seconds, of a machine that is busy
# The numbers of further namespaces can be set in it without touching the host's.
OWN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
NAMES = ("killed_meanwhile", "source_removed", "descriptors_used_up", "descriptors_of_a_look", "descriptors_of_other_backends")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory outside /tmp, which a box has of its own."""
    require("userns", "landlock")
    root = Path(tempfile.mkdtemp(prefix="sandboxd-starved-", dir="/var/tmp"))
    yield root
    shutil.rmtree(root)


def said(place: Path, scenario: str, *through: str) -> str:
    project = HERE.parent.parent
    argv = [*through, sys.executable, "-W", "error", str(HERE / "_starved.py"), scenario, str(place)]
    env = {**os.environ, "PYTHONPATH": str(project)}
    done = subprocess.run(argv, cwd=project, env=env, capture_output=True, text=True, timeout=TIME, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("scenario", NAMES)
def test_whoever_runs_the_tests(place: Path, scenario: str) -> None:
    """As that user."""
    require("bwrap")
    assert said(place, scenario) == "kept\n"


@pytest.mark.parametrize("scenario", [*NAMES, "template_cannot_fork", "template_cannot_fork_for_a_command", "zygote_cannot_fork"])
def test_a_plain_user(plain_user: User, scenario: str) -> None:
    """For whom the kernel counts processes, as it does not for root."""
    require("userns", "landlock", "bwrap")
    root = Path(tempfile.mkdtemp(prefix="starved-", dir=plain_user.home))
    scripts = root / "tests/isolation"
    scripts.mkdir(parents=True)
    for name in ("_starved.py", "_drive.py"):
        shutil.copy(HERE / name, scripts / name)
    (root / "place").mkdir()
    plain_user.own(root)
    argv = [str(plain_user.python), "-W", "error", str(scripts / "_starved.py"), scenario, str(root / "place")]
    done = plain_user.run(argv, env={"PYTHONPATH": str(root)}, timeout=TIME)
    assert done.stdout + done.stderr == "kept\n"


@pytest.mark.parametrize("scenario", ["namespaces_used_up", "networks_used_up"])
def test_no_more_namespaces(place: Path, scenario: str) -> None:
    """As the kernel says where their number is limited."""
    assert said(place, scenario, *OWN_NAMESPACE) == "kept\n"


def test_no_more_memory(place: Path) -> None:
    """In a control group, where this user can make one."""
    if "memory" not in cgroups.available():
        pytest.skip("no control group can be made")
    assert said(place, "memory_used_up") == "kept\n"
