# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may import whom: the contracts of pyproject.toml hold here, and each of them is shown to catch what it forbids.

To add a contract: write it in pyproject.toml with an `id`, and add to BREACHES one import that breaks it.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINT = Path(sysconfig.get_path("scripts")) / "lint-imports"

# (contract that must turn red, module that breaks it, its offending line)
BREACHES = [
    ("layers", "policy.waterfall", "import sandboxd.engine"),
    ("layers", "shell.script", "from sandboxd.effects import argv"),
    ("layers", "isolation.protect", "from sandboxd import observe"),
    ("layers", "record.audit", "import sandboxd.run.process"),
    ("layers", "analyze", "def late():\n    from sandboxd import observe"),
    ("layers", "config", "from sandboxd.policy import sources"),
    ("layers", "killswitch", "from sandboxd.config import Config"),
    ("layers", "errors", "from sandboxd.paths import join"),
    ("layers", "api.service", "import sandboxd.daemon"),
    ("layers", "stray", "import json"),
    ("wire", "engine", "import grpc"),
    ("wire", "record.audit", "from google.protobuf import duration_pb2"),
    ("wire", "sessions", "from sandboxd.v1 import session_pb2"),
    ("cli-wire", "cli.run", "import grpc.aio"),
    ("cli-wire", "cli.run", "from sandboxd.v1 import execution_pb2"),
    ("client", "client.aio", "from sandboxd.config import Config"),
    ("client", "client.aio", "def embedded():\n    import sandboxd.engine"),
    ("bashlex", "shell.script", "from bashlex import ast"),
    ("bashlex", "analyze", "import bashlex"),
    ("anthropic", "consult.classifier", "import anthropic"),
    ("pure", "policy.waterfall", "import time"),
    ("pure", "effects.argv", "def late():\n    import os.path"),
    ("pure", "schedule.lanes", "import asyncio"),
    ("pure", "isolation.plan", "from sandboxd.isolation.reader import read"),
]


def contracts() -> list[dict[str, Any]]:
    with open(ROOT / "pyproject.toml", "rb") as file:
        found: list[dict[str, Any]] = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return found


def lint(tree: Path) -> tuple[int, str]:
    done = subprocess.run([LINT, "--no-logo", "--no-cache"], cwd=tree, capture_output=True, text=True, check=False, timeout=100)
    return done.returncode, done.stdout + done.stderr


def test_the_tree_keeps_its_contracts() -> None:
    """Every import in sandboxd goes the way that the architecture draws."""
    code, report = lint(ROOT)
    assert code == 0, report


@pytest.fixture
def skeleton(tmp_path: Path) -> Path:
    """A house with all rooms and nothing in them but what the contracts permit by name; it is green."""
    (layers,) = (contract for contract in contracts() if contract["id"] == "layers")
    rooms = set(re.findall(r"\w+", " ".join(layers["layers"]))) | {"v1"}
    package = tmp_path / "sandboxd"
    for room in rooms:
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").touch()
    (package / "__init__.py").touch()
    for name in {name for contract in contracts() for name in contract.get("source_modules", ())}:
        path = tmp_path / name.replace(".", "/")
        if not path.exists():
            path.with_suffix(".py").touch()
    for module, line in {
        "shell/grammar": "import bashlex",
        "effects/tables": "import os",
        "schedule/driver": "import asyncio",
        "isolation/reader": "import os",
        "consult/classifier_worker": "import anthropic",
    }.items():
        (package / f"{module}.py").write_text(line + "\n", encoding="utf-8")
    (tmp_path / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")
    return tmp_path


def test_the_skeleton_is_green(skeleton: Path) -> None:
    """What the contracts permit passes, so that the breaches below are red for their own reason."""
    code, report = lint(skeleton)
    assert code == 0, report


@pytest.mark.parametrize(("contract", "module", "line"), BREACHES, ids=lambda value: value.splitlines()[-1].strip())
def test_a_breach_turns_its_contract_red(skeleton: Path, contract: str, module: str, line: str) -> None:
    """One forbidden import, also one inside a function, breaks the build and names the contract."""
    path = skeleton / "sandboxd" / f"{module.replace('.', '/')}.py"
    if (path.with_suffix("") / "__init__.py").exists():
        path = path.with_suffix("") / "__init__.py"
    path.write_text(line + "\n", encoding="utf-8")
    code, report = lint(skeleton)
    names = {each["id"]: each["name"] for each in contracts()}
    broken = [each for each, name in names.items() if f"{name} BROKEN" in " ".join(report.split())]
    if module == "stray":
        assert "stray" in report
    assert code == 1
    assert contract in broken, report


def test_every_contract_is_shown_red() -> None:
    """No contract stands unproven."""
    assert {contract["id"] for contract in contracts()} == {contract for contract, _, _ in BREACHES}
