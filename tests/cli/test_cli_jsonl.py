# SPDX-License-Identifier: GPL-3.0-or-later
"""`check --jsonl`: the contract that tests and tools rely on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

KEYS = [
    "id",
    "parsed",
    "read_only",
    "concurrency_safe",
    "destructive",
    "behavior",
    "step",
    "reason",
    "protected",
    "effects",
    "subcommands",
]


def check(lines: list[Any] | bytes, *options: str, home: Path) -> subprocess.CompletedProcess[bytes]:
    data = lines if isinstance(lines, bytes) else b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    env = {**os.environ, "HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "sandboxd.cli.main", "check", "--jsonl", *options],
        input=data,
        capture_output=True,
        env=env,
        cwd=home,
        timeout=60,
        check=False,
    )


def answers(lines: list[Any], *options: str, home: Path) -> list[dict[str, Any]]:
    done = check(lines, *options, home=home)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_shape_and_order(home: Path) -> None:
    """Every question gets one answer, in order, with exactly the agreed keys; ids come back as they went in."""
    ids = ["a", 7, "ü", "z" * 300]
    got = answers([{"id": one, "cmd": "ls -la"} for one in ids], home=home)
    assert [answer["id"] for answer in got] == ids
    assert all(list(answer) == KEYS for answer in got)


def test_subcommands_are_decoded_argvs(home: Path) -> None:
    """Subcommands are what bash would run: nested and substituted ones too, null for a dynamic word, [] for assignments."""
    questions = {
        "quotes": "gr'ep' \"-n\" x\\ y file",
        "dynamic": 'cat "$f"',
        "assignment": "X=1",
        "nested": "bash -c 'rm -r build'",
        "substitution": "echo $(git status)",
        "loop": "for f in a b; do wc -l $f; done",
        "group": "{ ls; pwd; } > out",
    }
    got = {a["id"]: a["subcommands"] for a in answers([{"id": k, "cmd": v} for k, v in questions.items()], home=home)}
    assert got["quotes"] == [["grep", "-n", "x y", "file"]]
    assert got["dynamic"] == [["cat", None]]
    assert got["assignment"] == [[]]
    assert ["rm", "-r", "build"] in got["nested"]
    assert ["git", "status"] in got["substitution"]
    assert ["echo", None] in got["substitution"]
    assert all(argv[:1] == ["wc"] for argv in got["loop"])
    assert got["group"] == [["ls"], ["pwd"]]


def test_effects_name_kind_target_and_cause(home: Path) -> None:
    """An effect is kind, target (null when it is not known) and the row that says so."""
    (answer,) = answers([{"id": 1, "cmd": 'cp a.txt "$x"', "cwd": "/w"}], home=home)
    assert all(list(effect) == ["kind", "target", "because"] for effect in answer["effects"])
    assert {"read", "write"} <= {effect["kind"] for effect in answer["effects"]}
    assert "/w/a.txt" in {effect["target"] for effect in answer["effects"]}
    assert None in {effect["target"] for effect in answer["effects"]}


@pytest.mark.parametrize(
    ("command", "options", "behavior", "step"),
    [
        ("cat a.txt", (), "allow", "2e"),
        ("make deploy", (), "ask", "3"),
        ("make deploy", ("--mode", "bypassPermissions"), "allow", "2a"),
        ("make deploy", ("--mode", "plan"), "deny", "2p"),
        ("make deploy", ("--allow", "Bash(make:*)"), "allow", "2b"),
        ("make deploy", ("--allow", "Bash(make:*)", "--deny", "Bash(make deploy:*)"), "deny", "1d"),
        ("rm -rf /", ("--mode", "bypassPermissions"), "deny", "1d"),
        ("echo x >> .git/config", ("--mode", "bypassPermissions"), "ask", "1g"),
    ],
)
def test_modes_and_rules_count(command: str, options: tuple[str, ...], behavior: str, step: str, home: Path) -> None:
    """Modes and rules given on the command line decide as they do in `run`."""
    (answer,) = answers([{"id": 0, "cmd": command, "cwd": "/w"}], *options, home=home)
    assert (answer["behavior"], answer["step"]) == (behavior, step)


def test_protected_is_told_whichever_step_answers(home: Path) -> None:
    """`protected` says that there is evidence of a protected touch, also where an earlier step decided."""
    rows = [{"id": 0, "cmd": "tee .git/config"}, {"id": 1, "cmd": "echo .git/config"}, {"id": 2, "cmd": "rm -rf ~"}]
    got = answers(rows, "--deny", "Bash(tee:*)", home=home)
    assert [answer["protected"] for answer in got] == [True, False, True]


def test_unparsed_is_said_and_not_trusted(home: Path) -> None:
    """A text that bash itself would refuse is not parsed, not read-only, and not allowed."""
    (answer,) = answers([{"id": 0, "cmd": "cat 'a"}], home=home)
    assert (answer["parsed"], answer["read_only"], answer["behavior"]) == (False, False, "ask")


def test_workspace_gives_facts(home: Path) -> None:
    """With --workspace the disk is looked at: a link into .git is seen; without it nothing is."""
    (home / ".git").mkdir()
    (home / "lnk").symlink_to(".git")
    question = {"id": 0, "cmd": "tee lnk/config < in"}
    assert answers([question], home=home)[0]["protected"] is False
    assert answers([question], "--workspace", str(home), home=home)[0]["protected"] is True


BAD = (
    (b'{"id": 1, "cmd": "ls"}\n{"id": 2}\n', "stdin:2: `cmd` is missing"),
    (b'{"cmd": "ls"}\n', "stdin:1: `id` is missing"),
    (b"\n\nls\n", "stdin:3: not a JSON object"),
    (b'["ls"]\n', "stdin:1: not a JSON object"),
    (b'{"id": 1, "cmd": 7}\n', "stdin:1: `cmd` must be a string"),
    (b'{"id": 1, "cmd": "\\ud800"}\n', "stdin:1: `cmd` is not valid Unicode"),
    (b'{"id": 1, "cmd": "ls", "cwd": "sub"}\n', "stdin:1: `cwd` must be an absolute path"),
    (b'{"id": 1, "cmd": "\xff"}\n', "stdin:1: not a JSON object"),
)


@pytest.mark.parametrize(("data", "said"), BAD)
def test_bad_input_names_the_line(data: bytes, said: str, home: Path) -> None:
    """Bad input is status 2 and one line that names the line; what stood before it was answered."""
    done = check(data, home=home)
    assert done.returncode == 2
    assert said in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1
    assert len(done.stdout.splitlines()) == data[: data.find(b"\n")].count(b'"ls"') * (said.startswith("stdin:2"))


def test_nothing_in_nothing_out(home: Path) -> None:
    """No line is no error."""
    done = check(b"", home=home)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_it_needs_no_grpc(home: Path) -> None:
    """Deciding loads neither gRPC nor the daemon, so it starts fast and works without them."""
    code = (
        "import sys; from sandboxd.cli import main; status = main.main(['check', '--jsonl']); "
        "heavy = [m for m in ('grpc', 'sandboxd.v1', 'sandboxd.engine', 'sandboxd.daemon', 'anthropic') if m in sys.modules]; "
        "sys.exit(status or ', '.join(heavy) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=b'{"id": 1, "cmd": "git log"}', capture_output=True, cwd=home, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
