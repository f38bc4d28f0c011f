# SPDX-License-Identifier: GPL-3.0-or-later
"""git reads in a repository whose configuration names programs: git would run them by itself, here none of them runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sandboxd.model import Behavior, Decided, Output
from tests.engine.conftest import House

pytestmark = [
    pytest.mark.needs("bwrap", "userns"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]

MARK = "PLANTED"
SIGNED = (
    "tree {tree}\nauthor ada <ada@example.com> 1700000000 +0000\ncommitter ada <ada@example.com> 1700000000 +0000\n"
    "gpgsig -----BEGIN PGP SIGNATURE-----\n \n iQEzBAABCAAdFiEE\n -----END PGP SIGNATURE-----\n\nsigned\n"
)

# Reads that must be allowed by themselves.
READS = (
    "git status",
    "git status --short",
    "git diff",
    "git diff --stat",
    "git diff HEAD",
    "git log",
    "git log -p",
    "git log -1 --stat",
    "git show",
    "git show HEAD:f.txt",
    "git blame f.txt",
    "git grep two",
    "git ls-files -m",
    "git cat-file -p HEAD:f.txt",
    "git rev-parse HEAD",
    "git branch -v",
    "git describe --always",
    "cd sub && git status",
    "git -C sub log -p",
)
# Reads that may need a question; whatever comes of it, nothing planted runs.
OTHERS = (
    "git help log",
    "git log --help",
    "git archive HEAD",
    "git verify-commit HEAD",
    "git log --show-signature -1",
    "git log --format=%G?",
    "git show --textconv HEAD",
    "git cat-file --textconv HEAD:f.txt",
    "git cat-file --filters HEAD:f.txt",
    "git describe --always --dirty",
    "git diff --ext-diff",
    "git status -v",
    "git -c core.pager=./bin/pager log",
    "git --paginate log",
    "git verify-tag v1",
    "git tag -v v1",
    "cd inner && git status",
    "git -C inner status",
    "git -C inner log",
    "cd inner && git diff",
)


def _git(work: Path, *words: str, stdin: str = "") -> str:
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.com", "-c", "init.defaultBranch=main")
    return subprocess.run(["git", *who, *words], cwd=work, check=True, capture_output=True, text=True, input=stdin).stdout.strip()


def plant(work: Path) -> None:
    """A repository whose own configuration, attributes and hooks name programs, and a bare one inside it."""
    _git(work, "init", "-q")
    programs = work / "bin"
    hooks = work / "hooks"
    for folder in (programs, hooks, work / "sub"):
        folder.mkdir()
    for path in (
        *(programs / n for n in ("textconv", "clean", "smudge", "process", "gpg", "fsmonitor", "pager", "bare", "man")),
        *(hooks / n for n in ("post-index-change", "post-checkout")),
    ):
        path.write_text(f'#!/bin/sh\necho {MARK} {path.name} >&2\ncat ${{1:+"$1"}} 2>/dev/null\nexit 0\n')
        path.chmod(0o755)
    for name in ("f.txt", "p.bin", "sub/g.txt"):
        (work / name).write_text("one\n")
    _git(work, "add", "f.txt", "p.bin", "sub")
    _git(work, "commit", "-qm", "first")
    (work / ".gitattributes").write_text("*.txt diff=conv filter=plain\n*.bin filter=stream\n")
    tree = _git(work, "write-tree")
    signed = _git(work, "hash-object", "-t", "commit", "-w", "--stdin", stdin=SIGNED.format(tree=tree))
    _git(work, "update-ref", "HEAD", signed)
    settings = {
        "diff.conv.textconv": "textconv",
        "filter.plain.clean": "clean",
        "filter.plain.smudge": "smudge",
        "filter.stream.process": "process",
        "gpg.program": "gpg",
        "core.fsmonitor": "fsmonitor",
        "core.pager": "pager",
        "pager.log": "pager",
    }
    for key, name in settings.items():
        _git(work, "config", key, str(programs / name))
    _git(work, "config", "filter.plain.required", "true")
    _git(work, "config", "man.viewer", "planted")
    _git(work, "config", "man.planted.cmd", str(programs / "man"))
    _git(work, "config", "core.hooksPath", str(hooks))
    _git(work, "config", "log.showSignature", "true")
    for name in ("f.txt", "p.bin", "sub/g.txt"):
        (work / name).write_text("two\n")
    inner = work / "inner"
    _git(work, "init", "-q", "--bare", str(inner))
    with (inner / "config").open("a") as file:
        file.write(f"[core]\n\tbare = false\n\tworktree = ..\n\tfsmonitor = {programs}/bare\n")


def test_git_by_itself_runs_what_is_planted(tmp_path: Path) -> None:
    """The control: without the daemon each kind of program does run, so the other tests would see it."""
    plant(tmp_path)
    seen = ""
    for line in (*READS, *OTHERS):
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
        seen += done.stdout + done.stderr
    for name in ("textconv", "clean", "process", "gpg", "fsmonitor", "bare", "man"):
        assert f"{MARK} {name}" in seen, name


@pytest.mark.parametrize("line", READS)
async def test_reads_run_and_run_nothing_else(house: House, line: str) -> None:
    """Everyday reads are allowed by themselves in an armed repository, and work, and no planted program starts."""
    plant(house.workspace)
    result, text, events = await house.run(line, house.session())
    (decision,) = (event.decision for event in events if isinstance(event, Decided))
    assert (decision.behavior, decision.step) == (Behavior.ALLOW, "2e"), decision.message
    assert MARK not in _all(events)
    assert result.code == 0, text


@pytest.mark.parametrize("line", OTHERS)
async def test_odd_reads_run_nothing_planted_either(house: House, line: str) -> None:
    """Asked for or allowed: what is planted does not run."""
    plant(house.workspace)
    _, _, events = await house.run(line, house.session())
    assert MARK not in _all(events)


def _all(events: tuple[object, ...]) -> str:
    return b"".join(event.data for event in events if isinstance(event, Output)).decode()
