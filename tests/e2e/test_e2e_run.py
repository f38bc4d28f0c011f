# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd run` from the outside: what a person sees, and what is left in their repository.

To add a case: a Row below. `left` is what the command may leave in the workspace; anything else that appears, changes or
goes fails the test, whatever else it asserts.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.conftest import Place

BYPASS = ("--mode", "bypassPermissions")
RULES = ("--allow", "Bash(make:*)", "--deny", "Bash(make deploy:*)")


@dataclass(frozen=True)
class Row:
    """A line typed in a fresh repository: exit status, patterns that stdout and stderr must hold, files left."""

    name: str
    text: str
    exit: int
    options: tuple[str, ...] = ()
    out: str = ""
    err: str = ""
    left: dict[str, str] = field(default_factory=dict)


ROWS = (
    Row("read-only pipeline", "git log --oneline | head -3", 0, out=r"^[0-9a-f]{7,} first\n$", err=r"2e.*read_only"),
    Row("write, nobody to ask", "echo hi > out.txt", 126, err=r"\b3\b.*acceptEdits"),
    Row("write in acceptEdits", "echo hi > out.txt", 0, ("--mode", "acceptEdits"), err=r"2f", left={"out.txt": "hi\n"}),
    Row("write in plan", "echo hi > out.txt", 126, ("--mode", "plan"), err=r"2p"),
    Row("write in dontAsk", "echo hi > out.txt", 126, ("--mode", "dontAsk"), err=r"\b3\b"),
    Row("write in bypass", "echo hi > out.txt", 0, BYPASS, err=r"2a", left={"out.txt": "hi\n"}),
    Row("append to git's config", "echo x >> .git/config", 126, BYPASS, err=r"1g.*\.git/config"),
    Row("the same from inside .git", "cd .git && tee config < ../a.txt", 126, BYPASS, err=r"1g"),
    Row("the same from code that names it", "python3 -c \"open('.git/config','a').write('x')\"", 126, BYPASS, err=r"step 1g"),
    Row("the same from opaque code", "python3 -c \"open('.g' + 'it/config','a').write('x')\"", 1, BYPASS, err=r"Read-only file"),
    Row("denied by a rule", "make deploy", 126, RULES, err=r"1d.*Bash\(make deploy:\*\).*(cliArg|--deny)"),
    Row("allowed by a rule", "make hello", 0, RULES, out=r"^hello\n", err=r"2b"),
    Row("delete the empty home", "rm -rf ~", 126, BYPASS, err=r"1d"),
    Row("exit status", "exit 7", 7, BYPASS),
    Row("killed by a signal", "kill -9 $$", 137, BYPASS),
    Row("not found", "no-such-program-here", 127, BYPASS),
    Row("both streams", "echo out; echo err >&2", 0, out=r"^out\n$", err=r"^err\n"),
    Row("commit", "git commit -q --allow-empty -m second", 0, BYPASS),
    Row("unparsed", "echo 'unfinished", 126),
    Row("empty", "", 2),
)  # fmt: skip


def snapshot(tree: Path) -> dict[str, str]:
    """Every file of the work tree, and the files of .git that decide what runs later, with their contents."""
    found = {}
    for file in sorted(tree.rglob("*")):
        name = str(file.relative_to(tree))
        if not name.startswith(".git/") or re.match(r"\.git/(config|commondir|hooks/|info/)", name):
            found[name] = file.read_text(encoding="utf-8") if file.is_file() else "a directory"
    return found


def check(row: Row, place: Place) -> None:
    tree = place.workspace()
    before, at_home = snapshot(tree), set(place.home.iterdir())
    done = place.sandboxd("run", "--summary", *row.options, "--", row.text, cwd=tree)
    report = f"exit {done.returncode}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
    assert done.returncode == row.exit, report
    assert re.search(row.out, done.stdout), report
    assert re.search(row.err, done.stderr, re.DOTALL), report
    assert snapshot(tree) == {**before, **row.left}, report
    assert {path.name for path in set(place.home.iterdir()) - at_home} <= {".local"}, report


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_command_through_the_daemon(row: Row, served: Place) -> None:
    """A line given to a running daemon ends as the table says, and leaves in the repository only what the table says."""
    check(row, served)


@pytest.mark.parametrize("row", [ROWS[0], ROWS[1], ROWS[2], ROWS[6], ROWS[8]], ids=lambda row: row.name)
def test_a_command_without_a_daemon(row: Row, place: Place) -> None:
    """The same lines end the same when no daemon listens and `run` embeds one."""
    check(row, place)


CATASTROPHES = (
    "rm -rf /",
    "rm -rf ~",
    'rm -rf "${X:-/}"',
    ":(){ :|:& };:",
    ":(){ :|:& }; :",
    "find / -delete",
    "sudo rm -rf /",
)
MODES = ("default", "plan", "acceptEdits", "bypassPermissions", "dontAsk")


@pytest.mark.parametrize("mode", MODES)
def test_a_catastrophe_is_denied_in_every_mode(mode: str, place: Place) -> None:
    """What would certainly destroy the machine or the home is denied at 1d, whatever the mode. Judged, never run."""
    tree = place.workspace()
    for text in CATASTROPHES:
        done = place.sandboxd("check", "--mode", mode, "-o", "json", "--", text, cwd=tree)
        assert '"deny"' in done.stdout, f"{text}: {done}"
        assert '"1d"' in done.stdout, f"{text}: {done}"


def test_a_workspace_below_tmp_works(served: Place) -> None:
    """A sandbox has a /tmp of its own, yet a repository that lies in the real one is there and can be written."""
    tree = served.workspace()
    moved = Path(f"/tmp/sbxd-e2e-{os.getpid()}-{served.person.uid}")
    tree.rename(moved) if tree.stat().st_dev == Path("/tmp").stat().st_dev else pytest.skip("/tmp is another file system")
    try:
        done = served.sandboxd("run", "--mode", "acceptEdits", "--", "cat a.txt > b.txt", cwd=moved)
        assert done.returncode == 0, done
        assert (moved / "b.txt").read_text() == "one\ntwo\n"
    finally:
        moved.rename(tree)
