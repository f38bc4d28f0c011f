# SPDX-License-Identifier: GPL-3.0-or-later
"""What comes into being while a command runs, where no mount can stand: reported, and disarmed before anything uses it.

To add a way to plant something: a row in PLANTED (script, and what the host's git is asked to do afterwards).
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from sandboxd.model import Facts, Grant, GrantKind, LaunchPlan, Limits, NetworkMode, PlanRequest, Profile, Require, Session
from sandboxd.observe import aftermath
from tests.isolation.conftest import Runner
from tests.isolation.test_isolation_work import git, porcelain
from tests.isolation.test_isolation_work import repository as repository

EVIL = "printf '#!/bin/sh\\ntouch RAN\\n' > evil; chmod +x evil;"
PLANTED = [
    ("a hook", "git init -q r; cp evil r/.git/hooks/post-checkout", "r"),
    ("a hook that is a link", "git init -q r; ln -s ../../../evil r/.git/hooks/post-checkout", "r"),
    ("a hard-linked hook", "git init -q r; ln evil r/.git/hooks/post-checkout", "r"),
    ("a directory of hooks elsewhere", "git init -q r; mkdir h; cp evil h/post-checkout;"
     "git -C r config core.hooksPath ../h", "r"),
    ("hooks as a link", "git init -q r; rm -rf r/.git/hooks; mkdir h; cp evil h/post-checkout; ln -s ../../h r/.git/hooks", "r"),
    ("fsmonitor", "git init -q r; git -C r config core.fsmonitor ../evil", "r"),
    ("an included file", "git init -q r; printf '[core]\\nfsmonitor = ../evil\\n' > inc;"
     "git -C r config include.path ../../inc", "r"),
    ("a configuration that is a link", "git init -q r; git -C r config core.fsmonitor ../evil; mv r/.git/config c;"
     "ln -s ../../c r/.git/config", "r"),
    ("commondir", "git init -q r; git init -q s; git -C s config core.fsmonitor ../evil; mv s/.git s/g;"
     "echo ../../s/g > r/.git/commondir", "r"),
    ("config.worktree", "git init -q r; git -C r config extensions.worktreeConfig true;"
     "printf '[core]\\nfsmonitor = ../evil\\n' > r/.git/config.worktree", "r"),
    ("a `.git` file", "mkdir r; git init -q --bare b; git -C b config core.fsmonitor ../evil; git -C b config core.bare false;"
     "echo gitdir: ../b > r/.git", "r"),
    ("a bare repository", "git init -q --bare r; git -C r config core.fsmonitor ../evil; git -C r config core.bare false;"
     "git -C r config core.worktree .", "r"),
    ("deep below", "mkdir -p a/b/c; git init -q a/b/c/r; git -C a/b/c/r config core.fsmonitor ../../../../evil", "a/b/c/r"),
    ("in a directory of packages", "mkdir -p node_modules/p; git init -q node_modules/p; "
     "git -C node_modules/p config core.fsmonitor ../../evil", "node_modules/p"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "script", "where"), PLANTED, ids=[row[0] for row in PLANTED])
def test_what_was_planted_does_not_run(who: Runner, repository: Path, name: str, script: str, where: str) -> None:
    """A script makes a repository and arms it; the host's git, used there afterwards, runs nothing of it."""
    result = who(f"{EVIL} set -e; {script}", repository, observe=True, registry=str(who.root / "registry"))
    assert result.code == 0, result.err
    assert result.disarmed != (), "nothing was said"
    for each in (repository, *repository.rglob("*")):
        if not each.is_symlink():
            os.chown(each, os.getuid(), -1)
    use(repository / where)
    assert not any(each.name == "RAN" for each in repository.rglob("*"))


@pytest.mark.parametrize(("name", "script", "where"), PLANTED, ids=[row[0] for row in PLANTED])
def test_the_rows_are_real(tmp_path: Path, name: str, script: str, where: str) -> None:
    """Without the box each of them makes the host's git run the program: the test above would notice."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home")}
    subprocess.run(["bash", "-c", f"{EVIL} set -e; {script}"], cwd=tmp_path, env=environment, check=True)
    use(tmp_path / where)
    assert any(each.name == "RAN" for each in tmp_path.rglob("*"))


def use(place: Path) -> None:
    """What somebody might do with a repository; a broken one runs nothing, which is as good."""
    for words in ("status", "commit -q --allow-empty -m x", "checkout -q -b x", "checkout -q -B y"):
        try:
            git(place, *words.split())
        except subprocess.CalledProcessError:
            continue


def test_a_plain_new_repository_is_left_as_it_is(who: Runner, repository: Path) -> None:
    """Making repositories is ordinary work: a test suite's, with names, remotes and branches, keeps its configuration."""
    text = (
        "set -e; git init -q -b main r; cd r; git config user.name n; git config user.email n@example.org; echo x > f;"
        "git add f; git commit -q -m x; git remote add origin ../o; git config branch.main.remote origin; cat .git/config"
    )
    result = who(text, repository, observe=True, registry=str(who.root / "registry"))
    assert result.code == 0, result.err
    assert (repository / "r/.git/config").read_text(encoding="utf-8") == result.out
    assert result.disarmed == ()
    assert result.created == (f"{repository}/r/.git",)


def test_git_itself_may_make_repositories(who: Runner, repository: Path) -> None:
    """A line of git porcelain that was judged as such makes what it makes, hooks of its own template included."""
    result = porcelain(who, repository, "git init -q r; git -C r config core.editor vi", "init")
    assert "vi" in (repository / "r/.git/config").read_text(encoding="utf-8")
    assert result.disarmed == ()


def test_what_git_changes_among_protected_files_is_reported(who: Runner, repository: Path) -> None:
    """A checkout must be able to write what it tracks; the result names what it changed, removed and left alone."""
    for name in (".claude/settings.json", ".vscode/tasks.json", ".mcp.json", ".idea/x"):
        who.make(f"{repository.name}/{name}", "{}\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "settings")
    git(repository, "checkout", "-q", "-b", "other")
    who.make(f"{repository.name}/.claude/settings.json", '{"hooks": 1}\n')
    git(repository, "rm", "-q", ".mcp.json")
    git(repository, "commit", "-q", "-a", "-m", "changed")
    git(repository, "checkout", "-q", "main")
    for each in (repository, *repository.rglob("*")):
        os.chown(each, who.uid, -1, follow_symlinks=False)
    git_names = ("checkout",)
    result = who("git checkout -q other", repository, observe=True, git_porcelain=True, git_names=git_names)
    assert (result.code, result.err) == (0, "")
    assert sorted(result.changed) == [f"{repository}/.claude/settings.json", f"{repository}/.mcp.json"]


def test_settings_deep_in_the_workspace_are_reported(who: Runner, repository: Path) -> None:
    """Below the roots nothing guards what does not exist: it is reported, with its place."""
    result = who("mkdir -p a/b/.vscode; echo '{}' > a/b/.vscode/tasks.json", repository, observe=True)
    assert result.created == (f"{repository}/a/b/.vscode",)


def test_packages_bring_settings_that_nobody_reports(who: Runner, repository: Path) -> None:
    """In directories that tools fill, editor and package manager settings are no news, and cost no mount."""
    text = "mkdir -p node_modules/p/.vscode; echo > node_modules/p/.npmrc; echo > node_modules/p/.vscode/settings.json"
    assert who(text, repository, observe=True).created == ()
    result = who("mv node_modules/p node_modules/q; rm -r node_modules; echo end", repository, observe=True)
    assert (result.out, result.err) == ("end\n", "")


def test_a_hard_link_to_a_protected_file_is_guarded(who: Runner, repository: Path) -> None:
    """The configuration has a second name in the work tree: a write through that name fails as well."""
    os.link(repository / ".git/config", repository / "innocent")
    before = (repository / "innocent").read_bytes()
    result = who("echo x >> innocent; rm -f innocent; mv file innocent; echo end", repository, observe=True)
    assert result.out == "end\n"
    assert "Read-only file system" in result.err
    assert (repository / ".git/config").read_bytes() == before


def test_hooks_elsewhere_are_guarded_or_silenced(who: Runner, repository: Path) -> None:
    """The target of core.hooksPath is read-only where it exists; a hook that comes into being there cannot run."""
    git(repository, "config", "core.hooksPath", "tools/hooks")
    os.chown(repository / ".git/config", who.uid, -1)
    text = "mkdir -p tools/hooks; printf '#!/bin/sh\\n' > tools/hooks/pre-commit; chmod +x tools/hooks/pre-commit"
    result = who(text, repository, observe=True)
    assert [path for path, _ in result.disarmed] == [f"{repository}/tools/hooks/pre-commit"]
    assert not os.access(repository / "tools/hooks/pre-commit", os.X_OK)
    again = who("chmod +x tools/hooks/pre-commit", repository, observe=True)
    assert "Read-only file system" in again.err


def test_untracked_environment_files_are_hidden_from_reads(who: Runner, repository: Path) -> None:
    """`.env` and its kin are no part of what a read-only command sees; a tracked one and an example are."""
    for name in (".env", ".env.local", ".env.example", "sub/.env.test"):
        who.make(f"{repository.name}/{name}", f"SECRET={name}\n")
    who.make(f"{repository.name}/tracked/.env", "SECRET=tracked\n")
    git(repository, "add", "tracked/.env")
    for each in (repository / ".git").rglob("*"):
        os.chown(each, who.uid, -1)
    text = "cat .env .env.local .env.example sub/.env.test tracked/.env 2>/dev/null; grep -rhs SECRET= . | wc -l"
    read = who(text, repository, observe=True, promise=True, grants=[])
    assert read.out == "SECRET=.env.example\nSECRET=tracked\n2\n"
    granted = who("cat .env", repository, observe=True, promise=True, grants=[("read", f"{repository}/.env")])
    assert granted.out == "SECRET=.env\n"
    assert who("cat .env", repository, observe=True).out == "SECRET=.env\n"


def test_what_vanishes_with_the_box_is_said(who: Runner, repository: Path) -> None:
    """A file left in a private /tmp or TMPDIR is named in the notes; a session's /tmp keeps it, and nothing is said."""
    private = who("echo x > /tmp/report.txt", repository, profile="read-only", grants=[])
    assert ["/tmp/report.txt" in note for note in private.notes] == [True]
    scratch = who('echo x > "$TMPDIR/kept"', repository, promise=True, grants=[], tmp=str(who.make("vanish-tmp")))
    assert ["kept" in note for note in scratch.notes] == [True]
    assert who("echo x > /tmp/report.txt", repository, tmp=str(who.make("vanish-tmp"))).notes == ()
    assert who("x=$(mktemp); rm $x; sort <<< b", repository, profile="read-only", grants=[]).notes == ()


def test_the_scan_of_a_large_workspace_is_quick(tmp_path: Path) -> None:
    """11,000 directories are looked at after a command in far less than a person notices (goal 50 ms, see benchmarks)."""
    for top in range(110):
        for below in range(100):
            (tmp_path / f"d{top}/e{below}").mkdir(parents=True)
    request = _request(tmp_path)
    plan = _plan(tmp_path)
    watch = aftermath.begin(request, plan)
    assert watch is not None
    aftermath.settle(watch, request, plan)
    start = time.perf_counter()
    assert aftermath.settle(watch, request, plan).violations == ()
    assert time.perf_counter() - start < 0.5
    (tmp_path / "d109/e99/.idea").mkdir()
    found = aftermath.settle(watch, request, plan).violations
    assert [each.path for each in found] == [f"{tmp_path}/d109/e99/.idea"]


def _request(workspace: Path) -> PlanRequest:
    session = Session("s", str(workspace), "/nowhere", os.getuid(), os.getgid(), "")
    return PlanRequest("true", str(workspace), Profile("p", "p"), session, (Grant(GrantKind.WORKSPACE_WRITE),), False, Facts())


def _plan(workspace: Path) -> LaunchPlan:
    argv = ("bash", "-c", "true")
    place = str(workspace)
    return LaunchPlan(argv, place, (), (), NetworkMode.OFF, Limits(), 0, 0, Require.FS, writable=(place,))
