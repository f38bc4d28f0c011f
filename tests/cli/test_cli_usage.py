# SPDX-License-Identifier: GPL-3.0-or-later
"""What may be typed, and what wrong usage answers: status 2, one line on standard error, nothing on standard output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sandboxd.cli import main, text
from sandboxd.errors import RequestError

WRONG = (
    ("no-such-command", "invalid choice"),
    ("run", "no command is given"),
    ("run --", "no command is given"),
    ("run ls -- pwd", "`ls` stands before `--`"),
    ("run --mode yolo -- ls", "`yolo` is no mode; use one of default, plan"),
    ("run --timeout 0 -- ls", "`0` is not a positive number of seconds"),
    ("run --timeout soon -- ls", "`soon` is not a positive number of seconds"),
    ("run --timeout nan -- ls", "`nan` is not a positive number of seconds"),
    ("run --no-such-option -- ls", "unrecognized arguments: --no-such-option"),
    ("run --mod plan -- ls", "unrecognized arguments"),
    ("run -o xml -- ls", "invalid choice"),
    ("check", "no command is given"),
    ("check --jsonl -- ls", "--jsonl reads commands from standard input"),
    ("check --deny Bash(ls -- ls", "Bash(ls"),
    ("check --workspace /no/such/place -- ls", "`/no/such/place` is not a directory"),
    ("decisions", "the following arguments are required: ACTION"),
    ("decisions list -n 0", "`0` is not a number from 1 to 100000"),
    ("decisions list --behavior maybe", "invalid choice"),
    ("approvals allow", "the following arguments are required: ID"),
    ("session mode s-1 yolo", "`yolo` is no mode"),
    ("serve --log-level loud", "invalid choice"),
)


@pytest.mark.parametrize(("typed", "said"), WRONG, ids=[typed for typed, _ in WRONG])
def test_wrong_usage(typed: str, said: str, capsys: pytest.CaptureFixture[str], home: Path) -> None:
    """Wrong usage is status 2, says what is wrong on standard error, and prints nothing else."""
    assert main.main(typed.split()) == main.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`sandboxd` alone shows the commands, as usage."""
    assert main.main([]) == main.USAGE
    assert "doctor" in capsys.readouterr().err


@pytest.mark.parametrize("command", [name for name, _ in main.COMMANDS])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command has a help text of its own."""
    assert main.main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: sandboxd {command}")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` names the program and its version."""
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sandboxd 0.")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["git log | head"], "git log | head"),
        (["git", "log", "--oneline"], "git log --oneline"),
        (["echo", "a b", "$HOME"], "echo 'a b' '$HOME'"),
        (["git", "log", "--", "file"], "git log -- file"),
        ([""], ""),
    ],
)
def test_words_become_a_command(words: list[str], expected: str) -> None:
    """One word is bash source as it is; several words are quoted, so that none of them means more than itself."""
    assert text.command_text(words) == expected


def test_no_words_is_an_error() -> None:
    """No word at all is wrong usage."""
    with pytest.raises(RequestError, match="no command"):
        text.command_text([])


def test_status_without_a_daemon(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    """Asking a daemon that does not run fails with 125 and says how to start one."""
    assert main.main(["status"]) == main.FAILED
    assert "start one with `sandboxd serve`" in capsys.readouterr().err


def test_a_wrong_configuration_names_its_line(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    """A wrong configuration file is one clear error with file and line, status 125."""
    file = home / ".config/sandboxd/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[run]\ntimeout = 'soon'\n", encoding="utf-8")
    assert main.main(["check", "--", "ls"]) == main.FAILED
    assert f"{file}:2: `run.timeout` must be a number" in capsys.readouterr().err


def test_completion_knows_every_command() -> None:
    """The completion script is bash that bash accepts, and completes commands, actions and options."""
    script = subprocess.run(
        [sys.executable, "-m", "sandboxd.cli.main", "completion"], capture_output=True, text=True, check=True
    ).stdout
    for typed, expected in (
        ("sandboxd do", "doctor"),
        ("sandboxd session mo", "mode"),
        ("sandboxd run --time", "--timeout"),
        ("sandboxd approvals allow --sco", "--scope"),
    ):
        words = typed.split()
        ask = f"{script}\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _sandboxd; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=False)
        assert done.stderr == ""
        assert done.stdout.split() == [expected]
