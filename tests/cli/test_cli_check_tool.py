# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd check --tool`: the use of a tool, judged without a daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandboxd.cli.main import USAGE, main


def check(home: Path, *words: str) -> int:
    workspace = home / "ws"
    workspace.mkdir(exist_ok=True)
    return main(["check", "--cwd", str(workspace), "--workspace", str(workspace), *words])


@pytest.mark.parametrize(
    ("words", "status", "step"),
    [
        (("--tool", "Read", "--input", '{"file_path": "a"}'), 0, "2e"),
        (("--tool", "Write", "--input", '{"file_path": "a", "content": ""}'), 1, "3"),
        (("--mode", "acceptEdits", "--tool", "Write", "--input", '{"file_path": "a", "content": ""}'), 0, "2f"),
        (("--deny", "Edit(a)", "--tool", "Write", "--input", '{"file_path": "a", "content": ""}'), 126, "1d"),
        (("--tool", "Bash", "--input", '{"command": "ls"}'), 0, "2e"),
        (("--tool", "mcp__a__b"), 1, "3"),
    ],
)
def test_uses(words: tuple[str, ...], status: int, step: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer for a tool has the shape and the exit status of the answer for a command."""
    assert check(home, "-o", "json", *words) == status
    assert json.loads(capsys.readouterr().out)["step"] == step


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tool", "Read", "--input", "{"), "not a JSON object"),
        (("--tool", "Read", "--input", "[]"), "not a JSON object"),
        (("--tool", "Read", "--input", '{"file_path": "\\ud800"}'), "not a JSON object"),
        (("--tool", "Read"), "`input.file_path` is missing"),
        (("--tool", "Read", "--input", "{}", "--", "ls"), "judges no command"),
        (("--input", "{}", "--", "ls"), "belongs to a tool"),
    ],
)
def test_wrong_uses(words: tuple[str, ...], said: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong with a use is said in one line, and nothing is judged."""
    assert check(home, *words) == USAGE
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
