# SPDX-License-Identifier: GPL-3.0-or-later
"""The Makefile keeps what the README says of it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.gates._tree import ROOT, read


def make(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", **(env or {})}
    return subprocess.run(["make", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_make_alone_prints_every_target() -> None:
    """Each target is listed with what it does, and nothing is done."""
    done = make()
    targets = set(re.findall(r"(?m)^\.PHONY: (.*)$", read("Makefile"))[0].split())
    listed = set(re.findall(r"(?m)^  make (\S+) +\S", done.stdout))
    assert done.returncode == 0, done
    assert listed == targets


@pytest.mark.parametrize(
    "text",
    [
        "git log --oneline | head",
        "echo 'single' \"double\" `tick` \\back",
        "echo $HOME $(id -u) $$ ${X:-/} $x",
        "echo a # not a comment; echo %s $@ $<",
        "two\nlines",
    ],
)
@pytest.mark.parametrize("by", ["argument", "environment"])
def test_a_command_reaches_sandboxd_byte_for_byte(text: str, by: str, tmp_path: Path) -> None:
    """`make run CMD=…` passes any text on as it is: no expansion by make, no second round of quoting."""
    command = tmp_path / "sandboxd"
    command.write_text('#!/bin/sh\nfor word; do printf "[%s]" "$word"; done\n', encoding="utf-8")
    command.chmod(0o755)
    # Not set up from here: a test must not change the environment that runs it.
    words = ["--old-file=setup", "run", f"BIN={tmp_path}"]
    done = make(*words, f"CMD={text}") if by == "argument" else make(*words, env={"CMD": text})
    assert done.stdout == f"[run][--summary][--][{text}]", done
