# SPDX-License-Identifier: GPL-3.0-or-later
"""git at work in a box, a command line at a time as a person would: rebase, merge, stash, push, worktrees, clones.

Each step is a box of its own, with the facts that are observed before it, so the state of an operation under way has to
survive from one to the next. The names of the git commands in a line are what policy reads out of it.
To add a case: a row in FLOWS (name, the lines, what the host's git says at the end).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.isolation.conftest import Result, Runner
from tests.isolation.test_isolation_work import git
from tests.isolation.test_isolation_work import repository as repository

_NAMES = re.compile(r"\bgit (?:-\S+ \S+ )*([a-z-]+)")


def line(who: Runner, repository: Path, text: str, **more: object) -> Result:
    """One line of git porcelain."""
    spec = {"observe": True, "git_porcelain": True, "git_names": _NAMES.findall(text), "registry": str(who.root / "registry")}
    return who(text, repository, **{**spec, **more})


SIDE = "git checkout -q -b side && echo side > file && git commit -q -a -m side && git checkout -q main"
BOTH = f"{SIDE} && echo main > file && git commit -q -a -m main"
LOG = "log --format=%s"
FLOWS: list[tuple[str, list[str], str, str]] = [
    ("merge", [SIDE, "git merge -q --no-ff -m merged side"], f"{LOG} --first-parent", "merged first"),
    ("merge with a conflict", [BOTH, "git merge -q side; true", "echo both > file && git add file && git commit -q -m both"],
     f"{LOG} --first-parent", "both main first"),
    ("merge given up", [BOTH, "git merge -q side; true", "git merge --abort"], LOG, "main first"),
    ("rebase", [f"{SIDE} && echo x > other && git add other && git commit -q -m other", "git rebase -q main side"],
     "log --format=%s side", "side other first"),
    ("rebase with a conflict", [BOTH, "git rebase -q main side; true", "echo both > file && git add file",
     "git -c core.editor=true rebase --continue"], "log --format=%s side", "side main first"),
    ("rebase given up", [BOTH, "git rebase -q main side; true", "git rebase --abort"], "log --format=%s side", "side first"),
    ("cherry-pick", [SIDE, "git cherry-pick side"], LOG, "side first"),
    ("cherry-pick with a conflict", [BOTH, "git cherry-pick side; true",
     "echo both > file && git add file && git -c core.editor=true cherry-pick --continue"], LOG, "side main first"),
    ("revert", ["git commit -q --allow-empty -m empty && echo x > x && git add x && git commit -q -m x",
     "git revert --no-edit HEAD"], LOG, 'Revert "x" x empty first'),
    ("stash", ["echo x >> file && git stash push -q -m kept", "git stash list | grep -c kept", "git stash pop -q"],
     "status --porcelain", "M file"),
    ("amend", ["echo x >> file && git commit -q -a --amend -m again"], LOG, "again"),
    ("reset", ["git commit -q --allow-empty -m x", "git reset -q --soft HEAD~1"], LOG, "first"),
    ("bisect", ["for i in 1 2 3; do git commit -q --allow-empty -m $i; done", "git bisect start HEAD HEAD~3 >/dev/null",
     "git bisect good >/dev/null", "git bisect reset 2>/dev/null"], LOG, "3 2 1 first"),
    ("worktree", ["git worktree add -q wt -b w", "cd wt && echo x > x && git add x && git commit -q -m in-wt",
     "git worktree remove wt && git worktree prune"], "log --format=%s w", "in-wt first"),
    ("patches", [SIDE, "git format-patch -q -1 side && git am -q 0001-side.patch"], LOG, "side first"),
    ("apply", [SIDE, "git diff main side > d && git apply d && git commit -q -a -m applied"], LOG, "applied first"),
    ("clone", ["git clone -q . copy && cd copy && git log -1 --format=%s"], LOG, "first"),
    ("submodule", ["git init -q lib && cd lib && git -c user.name=t -c user.email=t@t commit -q --allow-empty -m lib",
     "git -c protocol.file.allow=always submodule add -q ./lib dep && git commit -q -m dep"], LOG, "dep first"),
    ("notes and tags", ["git tag -a v1 -m v1 && git notes add -m note && git describe"], "tag", "v1"),
    ("maintenance", ["git repack -q -a -d && git gc -q && git fsck --no-progress && git prune && git pack-refs --all"], LOG,
     "first"),
    ("move and remove", ["git mv file moved && git commit -q -m moved", "git rm -q moved && git commit -q -m removed"], LOG,
     "removed moved first"),
    ("restore and clean", ["echo x > file; touch junk; git restore file && git clean -q -f"], "status --porcelain", ""),
    ("sparse", ["mkdir d && touch d/f && git add d && git commit -q -m d", "git switch -q --detach HEAD~1", "git switch -q main"],
     LOG, "d first"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "lines", "asked", "said"), FLOWS, ids=[row[0] for row in FLOWS])
def test_flow(who: Runner, repository: Path, name: str, lines: list[str], asked: str, said: str) -> None:
    """Every step ends well, nothing of it is undone, and the host's git sees what it should."""
    if who.kind == "dropped" or who.backend == "native":
        pytest.skip("the same box as the plain user's, or as a ready one")
    for each in lines:
        result = line(who, repository, each)
        assert (result.error, result.code) == ("", 0), f"{each}: {result.err}"
        assert (result.planted, result.disarmed) == ((), ()), each
        assert not any("put right" in note for note in result.notes) or name == "submodule", (each, result.notes)
    assert " ".join(git(repository, *asked.split()).split()) == said
    config = (repository / ".git/config").read_text(encoding="utf-8")
    assert "hook" not in config.lower()


def remote(who: Runner, repository: Path, place: Path) -> None:
    """A bare repository at `place`, as `origin`."""
    os.chown(place, os.getuid(), -1)  # git serves only what belongs to who runs it
    git(place, "init", "-q", "--bare", "-b", "main")
    git(repository, "remote", "add", "origin", str(place))
    for each in (repository / ".git", *(repository / ".git").rglob("*"), place, *place.rglob("*")):
        os.chown(each, who.uid, -1)


def test_push_and_pull_inside(who: Runner, repository: Path) -> None:
    """A remote in the workspace: `push -u` records what follows what, a clone pulls, and nothing is undone."""
    remote(who, repository, who.make(f"{repository.name}/origin.git"))
    pushed = line(who, repository, "git push -q -u origin main")
    assert (pushed.code, pushed.err, pushed.notes) == (0, "", ())
    assert git(repository, "rev-parse", "--abbrev-ref", "main@{u}") == "origin/main\n"
    text = "git clone -q origin.git copy && cd copy && git -c user.name=t -c user.email=t@t commit -q --allow-empty -m more"
    assert line(who, repository, text).code == 0
    assert line(who, repository, "cd copy && git push -q origin main").code == 0
    pulled = line(who, repository, "git pull -q --rebase && git fetch -q --prune")
    assert (pulled.code, pulled.err) == (0, "")
    assert git(repository, "log", "--format=%s") == "more\nfirst\n"


def test_push_outside_needs_a_grant(who: Runner, repository: Path) -> None:
    """A remote that nothing opened is read-only: the push fails and leaves nothing behind; opened by a grant it works."""
    place = who.make(f"{repository.name}-outside.git")
    remote(who, repository, place)
    before = (repository / ".git/config").read_text(encoding="utf-8")
    refused = line(who, repository, "git push -q -u origin main")
    assert refused.code != 0
    assert any(kind == "write" for kind, _, _ in refused.violations), refused.err
    assert git(place, "for-each-ref") == ""
    assert (repository / ".git/config").read_text(encoding="utf-8") == before
    grants = [("workspace_write", ""), ("write", str(place))]
    pushed = line(who, repository, "git push -q -u origin main", grants=grants)
    assert (pushed.code, pushed.err, pushed.notes) == (0, "", ())
    assert "refs/heads/main" in git(place, "for-each-ref")
    assert git(repository, "rev-parse", "--abbrev-ref", "main@{u}") == "origin/main\n"


@pytest.mark.parametrize("porcelain", [True, False])
def test_only_a_line_of_git_writes_the_configuration(who: Runner, repository: Path, porcelain: bool) -> None:
    """The same push from a script that nobody read finds the git directory read-only, and so cannot record anything."""
    remote(who, repository, who.make(f"{repository.name}/origin.git"))
    result = line(who, repository, "git push -q -u origin main", git_porcelain=porcelain)
    recorded = "[branch" in (repository / ".git/config").read_text(encoding="utf-8")
    assert recorded is porcelain
    assert ("Read-only file system" in result.err) is not porcelain


def test_a_work_tree_outside_needs_a_grant(who: Runner, repository: Path) -> None:
    """`git worktree add ../x` fails where nothing opened the place, and leaves no half of it."""
    result = line(who, repository, f"git worktree add -q ../{repository.name}-wt -b w")
    assert result.code != 0
    assert not (repository.parent / f"{repository.name}-wt").exists()
    place = who.make(f"{repository.name}-wt2")
    grants = [("workspace_write", ""), ("write", str(place))]
    done = line(who, repository, f"git worktree add -q ../{place.name} -b w2", grants=grants)
    assert (done.code, done.planted) == (0, ()), done.err
    assert git(place, "status", "--porcelain") == ""


def test_what_git_may_remove_it_cannot_bend(who: Runner, repository: Path) -> None:
    """A line that moves work trees gets them without mounts; what it wrote into what leads git from one to the repository is
    undone, and what it planted beside is gone."""
    assert line(who, repository, "git worktree add -q wt -b w").code == 0
    inside = ".git/worktrees/wt"
    before = {name: (repository / name).read_text(encoding="utf-8") for name in (f"{inside}/commondir", "wt/.git")}
    written = f"{inside}/commondir wt/.git {inside}/config.worktree"
    result = line(who, repository, f"git worktree list >/dev/null; for f in {written}; do echo ../../evil > $f; done")
    assert result.code == 0, result.err
    assert {name: (repository / name).read_text(encoding="utf-8") for name in before} == before
    assert sum("led git elsewhere" in note for note in result.notes) == 2
    assert not (repository / inside / "config.worktree").exists()
    assert line(who, repository, "cd wt && echo x > .git").err.count("Read-only file system") == 1
    assert line(who, repository, "git worktree move wt moved && cd moved && git status -s").code == 0


def test_a_step_under_way_is_not_another_commands(who: Runner, repository: Path) -> None:
    """A rebase holds commands that its next step runs: a line of other git commands cannot change them, nor can a script."""
    assert line(who, repository, BOTH).code == 0
    line(who, repository, "git rebase -q main side")
    todo = repository / ".git/rebase-merge/git-rebase-todo"
    before = todo.read_text(encoding="utf-8")
    for porcelain in (True, False):
        result = line(who, repository, f"echo exec ./evil >> {todo}; git status -s", git_porcelain=porcelain)
        assert "Read-only file system" in result.err
    assert todo.read_text(encoding="utf-8") == before


EVIL = "touch {marker}; cat {key} #"
# (configuration of the repository, its .gitattributes, the read)
READS = [
    (("core.fsmonitor", "touch {marker}; false"), "", "git status --short"),
    (("diff.x.textconv", EVIL), "file diff=x\n", "git diff; git show; git log -p -1; git grep one; git blame file"),
    (("diff.x.command", EVIL), "file diff=x\n", "git diff --no-ext-diff; git log -p -1"),
    (("filter.x.clean", EVIL), "file filter=x\n", "git status --short; git diff; git hash-object file"),
    (("filter.x.smudge", EVIL), "file filter=x\n", "git cat-file --filters HEAD:file; git archive HEAD >/dev/null"),
    (("filter.x.process", EVIL), "file filter=x\n", "git status --short; git diff"),
    (("gpg.program", "touch {marker}; true"), "", "git log --show-signature -1; git verify-commit HEAD"),
    (("core.pager", EVIL), "", "git log -1; git -p status"),
    (("pager.log", EVIL), "", "git -p log -1"),
    (("core.editor", EVIL), "", "git config -l; git var GIT_EDITOR"),
    (("core.sshCommand", EVIL), "", "git remote -v; git ls-remote ssh://nowhere.invalid/x"),
    (("credential.helper", "!" + EVIL), "", "git ls-remote https://nowhere.invalid/x"),
    (("core.hooksPath", "{place}/evil-hooks"), "", "git status; git diff; git log -1"),
    (("core.alternateRefsCommand", EVIL), "", "git rev-list --all; git for-each-ref"),
    (("alias.st", "!" + EVIL), "", "git status --short"),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "attributes", "text"), READS, ids=[row[0][0] for row in READS])
def test_reads_run_nothing_that_a_repository_names(
    who: Runner, repository: Path, setting: tuple[str, str], attributes: str, text: str
) -> None:
    """Whatever a configuration names as a program, a command judged a read does not run it, nor print a secret through it."""
    marker, key = repository / "ran", who.make("home/.ssh/k", "sekret")
    hooks = repository / "evil-hooks"
    hooks.mkdir()
    for name in ("post-index-change", "reference-transaction", "post-checkout"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {marker}\n", encoding="utf-8")
        (hooks / name).chmod(0o755)
    if "gpg" in setting[0]:  # a commit that looks signed
        signed = git(repository, "cat-file", "commit", "HEAD").replace("\n\n", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n"
                     " -----END PGP SIGNATURE-----\n\n", 1)  # fmt: skip
        done = subprocess.run(
            ["git", "-c", "safe.directory=*", "hash-object", "-t", "commit", "-w", "--stdin"],
            cwd=repository, input=signed, capture_output=True, text=True, check=True,
        )  # fmt: skip
        git(repository, "update-ref", "HEAD", done.stdout.strip())
    (repository / "file").write_text("one\ntwo\n", encoding="utf-8")
    if attributes:
        (repository / ".gitattributes").write_text(attributes, encoding="utf-8")
    git(repository, "config", setting[0], setting[1].format(marker=marker, key=key, place=repository))
    for each in (repository, *repository.rglob("*")):
        os.chown(each, who.uid, -1, follow_symlinks=False)
    # The promise alone would make `touch` fail: here the workspace may be written, so that what runs leaves its mark.
    for spec in ({"promise": True, "grants": []}, {}):
        result = who(text, repository, observe=True, git_reads=True, **spec)
        assert result.error == ""
        assert not marker.exists(), text
        assert "sekret" not in result.out + result.err


def test_a_bare_repository_runs_nothing_in_a_read(who: Runner, repository: Path) -> None:
    """A directory that only looks like a repository is none for a read: its fsmonitor does not run."""
    marker, place = repository / "ran", who.make(f"{repository.name}/innocent")
    git(place, "init", "-q", "--bare", ".")
    for key, value in (("core.fsmonitor", f"touch {marker}; false"), ("core.bare", "false"), ("core.worktree", str(repository))):
        git(place, "config", key, value)
    for each in (place, *place.rglob("*")):
        os.chown(each, who.uid, -1, follow_symlinks=False)
    for spec in ({"promise": True, "grants": []}, {}):
        result = who("cd innocent && git status", repository, observe=True, git_reads=True, **spec)
        assert result.error == ""
        assert not marker.exists()
