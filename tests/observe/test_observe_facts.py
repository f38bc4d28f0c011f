# SPDX-License-Identifier: GPL-3.0-or-later
"""What is protected, whose the repositories are, what their configuration arms: on real trees made by the real git."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandboxd.model import Analysis, Facts
from sandboxd.observe import observe, tree

PATH = "/usr/local/bin:/usr/bin:/bin"


def git(directory: Path, *arguments: str) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.com",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.com",
    }
    command = ["git", "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", *arguments]
    subprocess.run(command, cwd=directory, check=True, capture_output=True, env=env)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "home/work"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def repository(workspace: Path) -> Path:
    git(workspace, "init")
    git(workspace, "commit", "--allow-empty", "-m", "x")
    return workspace


def look(workspace: Path, *, wanted: tuple[str, ...] = (), programs: tuple[str, ...] = (), **options: object) -> Facts:
    analysis = Analysis("", str(workspace), (), wanted=wanted, programs=programs)
    settings: dict[str, object] = {"workspace": str(workspace), "home": str(workspace.parent), "path_env": PATH}
    return observe(analysis, **(settings | options))  # type: ignore[arg-type]  # keywords by name


def names(paths: tuple[str, ...], root: Path) -> set[str]:
    return {os.path.relpath(path, root) for path in paths}


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


class TestProtected:
    def test_names(self, workspace: Path) -> None:
        """Every protected name that exists is found, at any depth, in any case; its lookalikes are not."""
        (workspace / "a/b/.husky").mkdir(parents=True)
        for name in (".claude", ".VSCode", "sub/.config/git", "sub/.config/other"):
            (workspace / name).mkdir(parents=True)
        for name in (".mcp.json", ".BashRC", "a/.npmrc", "a/.npmrc2", "npmrc", "a/pyrightconfig.json"):
            (workspace / name).touch()
        assert names(look(workspace).protected, workspace) == {
            ".claude",
            ".VSCode",
            "sub/.config/git",
            ".mcp.json",
            ".BashRC",
            "a/.npmrc",
            "a/b/.husky",
            "a/pyrightconfig.json",
        }

    def test_home(self, workspace: Path) -> None:
        """The home directory's own are found too, not those of what lies beside the workspace."""
        home = workspace.parent
        (home / ".ssh").mkdir()
        (home / ".config/fish").mkdir(parents=True)
        (home / "other/.vscode").mkdir(parents=True)
        assert names(look(workspace).protected, home) == {".ssh", ".config/fish"}

    def test_open_below(self, workspace: Path) -> None:
        """A protected directory is not entered but for what is open below it."""
        (workspace / ".claude/.vscode").mkdir(parents=True)
        (workspace / ".claude/worktrees/one/.vscode").mkdir(parents=True)
        assert names(look(workspace).protected, workspace) == {".claude", ".claude/worktrees/one/.vscode"}

    def test_link(self, workspace: Path) -> None:
        """A protected name that is a link is reported, and where it leads; a linked directory is not entered."""
        (workspace / "real/.vscode").mkdir(parents=True)
        (workspace / ".claude").symlink_to("real")
        (workspace / "up").symlink_to("..")
        facts = look(workspace)
        assert names(facts.protected, workspace) == {".claude", "real/.vscode"}
        assert facts.real(f"{workspace}/.claude") == f"{workspace}/real"

    def test_fresh(self, workspace: Path) -> None:
        """What appears or goes is seen at once, however fast, and changes the fingerprint."""
        (workspace / "a/b").mkdir(parents=True)
        seen = set()
        for _ in range(20):
            assert look(workspace).protected == ()
            seen.add(look(workspace).fingerprint)
            (workspace / "a/b/.vscode").mkdir()
            assert names(look(workspace).protected, workspace) == {"a/b/.vscode"}
            seen.add(look(workspace).fingerprint)
            (workspace / "a/b/.vscode").rmdir()
        assert len(seen) == 2

    def test_modification_time_set_back(self, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Setting a directory's modification time back hides nothing."""
        monkeypatch.setattr(tree, "SETTLE", -(1 << 62))  # every listing counts as settled
        before = os.stat(workspace)
        assert look(workspace).protected == ()
        (workspace / ".vscode").mkdir()
        os.utime(workspace, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert names(look(workspace).protected, workspace) == {".vscode"}

    def test_bounds(self, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Beyond the bound the answer says that it is partial; what is near, and not made by tools, comes first."""
        monkeypatch.setattr(tree, "MAX_DIRECTORIES", 20)
        for number in range(30):
            (workspace / f"node_modules/m{number}/x").mkdir(parents=True)
        (workspace / "src/deep/deeper/.vscode").mkdir(parents=True)
        facts = look(workspace)
        assert names(facts.protected, workspace) == {"src/deep/deeper/.vscode"}
        assert facts.notes == (f"scan_partial:{workspace}",)

    def test_large_made_directories(self, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Deep in a large made directory a change is seen in turns, after few looks; what is near at once."""
        monkeypatch.setattr(tree, "SETTLE", -(1 << 62))
        monkeypatch.setattr(tree, "LATE_STEP", 7)
        for number in range(30):
            (workspace / f"node_modules/m{number}").mkdir(parents=True)
        assert look(workspace).protected == ()
        (workspace / "node_modules/m29/.git").mkdir()
        looks = next(count for count in range(30) if look(workspace).protected)
        assert looks < 5
        (workspace / "node_modules/new/.git").mkdir(parents=True)
        assert "node_modules/new/.git" in names(look(workspace).protected, workspace)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
    def test_unreadable(self, workspace: Path) -> None:
        """A directory that cannot be read makes the answer partial."""
        (workspace / "locked").mkdir(mode=0)
        code = "import os,sys; from sandboxd.observe.tree import Tree\nos.setuid(65534); print(Tree(sys.argv[1]).look().partial)"
        for directory in (workspace, *list(workspace.parents)[:4]):
            os.chmod(directory, 0o755)
        done = subprocess.run(
            [sys.executable, "-c", code, str(workspace)],
            check=False,
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert done.stdout == "True\n", done.stderr

    def test_missing_workspace(self, tmp_path: Path) -> None:
        """A workspace that is not there has nothing in it."""
        facts = look(tmp_path / "gone")
        assert facts.observed
        assert facts.repositories == ()


class TestRepositories:
    def test_plain_and_nested(self, repository: Path) -> None:
        """The repository at the root and those below it."""
        inner = repository / "vendor/lib"
        inner.mkdir(parents=True)
        git(inner, "init")
        facts = look(repository)
        assert names(facts.repositories, repository) == {".git", "vendor/lib/.git"}
        assert names(facts.protected, repository) == {".git", "vendor/lib/.git"}
        assert facts.notes == ()

    def test_above(self, repository: Path) -> None:
        """A workspace inside a repository has that repository."""
        (repository / "pkg/a").mkdir(parents=True)
        assert look(repository / "pkg/a", home=str(repository.parent)).repositories == (f"{repository}/.git",)

    def test_worktree(self, repository: Path) -> None:
        """A linked work tree has its own git directory and the main one, since both name each other."""
        git(repository, "worktree", "add", "../tree")
        facts = look(repository.parent / "tree", home="/nonexistent")
        assert facts.repositories == (f"{repository}/.git/worktrees/tree", f"{repository}/.git")
        assert facts.notes == ()

    def test_worktree_that_does_not_agree(self, repository: Path) -> None:
        """A `.git` file that names somebody else's git directory gives no repository; what it names is protected."""
        git(repository, "worktree", "add", "../tree")
        thief = repository.parent / "thief"
        thief.mkdir()
        (thief / ".git").write_text(f"gitdir: {repository}/.git/worktrees/tree\n")
        facts = look(thief, home="/nonexistent")
        assert facts.repositories == ()
        assert f"{repository}/.git/worktrees/tree" in facts.protected
        assert facts.notes == (f"git_dir_not_agreed:{thief}/.git",)

    def test_git_file_to_a_main_repository(self, repository: Path) -> None:
        """Nor does one that names another repository's git directory itself."""
        thief = repository.parent / "thief"
        thief.mkdir()
        (thief / ".git").write_text(f"gitdir: {repository}/.git\n")
        facts = look(thief, home="/nonexistent")
        assert facts.repositories == ()
        assert f"{repository}/.git" in facts.protected

    def test_link(self, repository: Path) -> None:
        """A `.git` that is a link is no grant for where it leads."""
        other = repository.parent / "other"
        other.mkdir()
        (other / ".git").symlink_to(repository / ".git")
        facts = look(other, home="/nonexistent")
        assert facts.repositories == ()
        assert set(facts.protected) == {f"{other}/.git", f"{repository}/.git"}

    def test_submodule(self, repository: Path, tmp_path: Path) -> None:
        """A submodule's git directory lies in its parent's and names the work tree back."""
        other = tmp_path / "other"
        other.mkdir()
        git(other, "init")
        git(other, "commit", "--allow-empty", "-m", "x")
        git(repository, "submodule", "add", str(other), "libs/sub")
        facts = look(repository)
        assert names(facts.repositories, repository) == {".git", ".git/modules/libs/sub"}
        assert facts.notes == ()

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_foreign_owner(self, repository: Path) -> None:
        """A git directory of another user is protected, not opened."""
        os.chown(repository / ".git", 65534, 65534)
        facts = look(repository)
        assert facts.repositories == ()
        assert names(facts.protected, repository) == {".git"}

    @pytest.mark.parametrize("text", ["", "gitdir: ", "gitdir: nowhere", "x" * 5000, "gitdir: \0", "gitdir: ../work"])
    def test_nonsense(self, workspace: Path, text: str) -> None:
        """A broken `.git` file is protected and leads nowhere."""
        (workspace / ".git").write_text(text)
        facts = look(workspace)
        assert facts.repositories == ()
        assert names(facts.protected, workspace) == {".git"}

    def test_fifo(self, workspace: Path) -> None:
        """A `.git` or a configuration that is a FIFO blocks nobody."""
        os.mkfifo(workspace / ".git")
        (workspace / "sub").mkdir()
        git(workspace / "sub", "init")
        (workspace / "sub/.git/config").unlink()
        os.mkfifo(workspace / "sub/.git/config")
        facts = look(workspace)
        assert facts.notes[-1] == f"git_config_unreadable:{workspace}/sub/.git/config"


class TestConfiguration:
    def test_hooks_path(self, repository: Path) -> None:
        """core.hooksPath is found wherever it leads: relative, in home, through a link."""
        for value, place in (
            ("tools/hooks", "tools/hooks"),
            ("./a/../hooks", "hooks"),
            ("~/hooks", "../hooks"),
            ("/opt/x", "/opt/x"),
        ):
            git(repository, "config", "core.hooksPath", value)
            assert look(repository).hooks_paths == (os.path.normpath(repository / place),)
        (repository / "real").mkdir()
        (repository / "lnk").symlink_to("real")
        git(repository, "config", "core.hooksPath", "lnk")
        assert look(repository).hooks_paths == (f"{repository}/real",)

    def test_armed(self, repository: Path) -> None:
        """What the configuration arms comes with the value that stops it, or as a note when nothing does."""
        append(repository / ".git/config", '[filter "x"]\n\tsmudge = evil\n[diff "y"]\n\tcommand = evil\n')
        facts = look(repository)
        assert facts.armed_git == (("filter.x.smudge", ""), ("filter.x.required", "false"))
        assert facts.notes == ("git_armed:diff.y.command",)

    def test_neutral_values_work(self, repository: Path, tmp_path: Path) -> None:
        """With the neutral values put over it, git runs nothing that the repository configured, and still works."""
        mark = tmp_path / "ran"
        evil = f"sh -c 'touch {mark}; cat'"
        for key in ("filter.x.clean", "filter.x.smudge", "diff.x.textconv", "core.fsmonitor", "core.pager", "pager.diff"):
            git(repository, "config", key, evil)
        git(repository, "config", "filter.x.required", "true")
        (repository / ".gitattributes").write_text("*.txt filter=x diff=x\n")
        (repository / "a.txt").write_text("one\n")
        git(repository, "add", ".")
        git(repository, "commit", "-m", "y")
        (repository / "a.txt").write_text("two\n")
        os.utime(repository / "a.txt", (1, 1))
        mark.unlink()
        facts = look(repository)
        disarmed = [part for key, value in facts.armed_git for part in ("-c", f"{key}={value}")]
        for command in (("status",), ("diff",), ("log", "-p"), ("show", "HEAD:a.txt"), ("blame", "a.txt"), ("grep", "two")):
            git(repository, *disarmed, *command)
            assert not mark.exists(), command

    def test_include(self, repository: Path) -> None:
        """An included file, conditional or not, counts as the configuration itself."""
        (repository / "extra").write_text("[core]\n\thooksPath = elsewhere\n")
        append(repository / ".git/config", '[includeIf "gitdir:/x/"]\n\tpath = ../extra\n')
        assert names(look(repository).hooks_paths, repository) == {"elsewhere"}

    def test_include_loop(self, repository: Path) -> None:
        """A loop of includes ends."""
        append(repository / ".git/config", "[include]\n\tpath = config\n")
        assert look(repository).notes == ()

    def test_too_many_includes(self, repository: Path) -> None:
        """A chain of includes beyond the bound is said."""
        for number in range(30):
            (repository / f".git/i{number}").write_text(f"[include]\npath=i{number + 1}\n")
        append(repository / ".git/config", "[include]\n\tpath = i0\n")
        assert [note.partition(":")[0] for note in look(repository).notes] == ["git_config_unreadable"]

    def test_worktree_configuration(self, repository: Path) -> None:
        """config.worktree counts, whether or not git is told to read it."""
        (repository / ".git/config.worktree").write_text("[core]\nhooksPath=h\n")
        assert names(look(repository).hooks_paths, repository) == {"h"}

    def test_commondir(self, repository: Path) -> None:
        """A commondir planted in a plain `.git` makes its configuration count."""
        (repository / "evil").mkdir()
        (repository / "evil/config").write_text("[core]\nhooksPath=h\n")
        (repository / ".git/commondir").write_text("../evil\n")
        assert names(look(repository).hooks_paths, repository) == {"h"}

    def test_broken(self, repository: Path) -> None:
        """A configuration that git would refuse is unreadable, not empty."""
        append(repository / ".git/config", "[core\n")
        assert look(repository).notes == (f"git_config_unreadable:{repository}/.git/config",)

    def test_changed(self, repository: Path) -> None:
        """A changed configuration is read again."""
        assert look(repository).hooks_paths == ()
        git(repository, "config", "core.hooksPath", "h")
        assert names(look(repository).hooks_paths, repository) == {"h"}


class TestPrograms:
    def test_by_name_and_path(self, workspace: Path, tmp_path: Path) -> None:
        """A program in a writable tree is untrusted: by path, through PATH, through a link in a system directory."""
        for directory in ("bin", "../../system"):
            (workspace / directory).mkdir()
        for name in ("bin/tool", "run.sh"):
            (workspace / name).write_text("#!/bin/sh\n")
            (workspace / name).chmod(0o755)
        (tmp_path / "system/linked").symlink_to(workspace / "run.sh")
        facts = look(
            workspace,
            programs=("ls", "tool", "./run.sh", "linked", "missing", "/bin/ls", "./nothere", "/proc/self/exe"),
            path_env=f"{PATH}:{tmp_path}/system:{workspace}/bin:.",
        )
        assert facts.untrusted_programs == ("tool", "./run.sh", "linked", "./nothere", "/proc/self/exe")

    def test_system_first(self, workspace: Path) -> None:
        """A workspace cannot shadow a system program."""
        (workspace / "ls").write_text("#!/bin/sh\n")
        (workspace / "ls").chmod(0o755)
        assert look(workspace, programs=("ls",), path_env=f"{PATH}:{workspace}").untrusted_programs == ()


class TestWhole:
    def test_wanted(self, workspace: Path) -> None:
        """Each wanted path gets its fact, in order; too many get the unresolved one."""
        (workspace / "x").touch()
        wanted = tuple(f"{workspace}/{name}" for name in ("x", "y", *map(str, range(600))))
        facts = look(workspace, wanted=wanted)
        assert [fact.path for fact in facts.paths] == list(wanted)
        assert facts.paths[0].exists
        assert facts.real(wanted[1]) == wanted[1]
        assert facts.real(wanted[-1]) is None

    def test_fingerprint(self, repository: Path) -> None:
        """The same state has the same fingerprint; a link that moves, or a hard link that appears, changes it."""
        (repository / "l").symlink_to("a")
        (repository / "f").touch()
        wanted = (f"{repository}/l", f"{repository}/f")
        first = look(repository, wanted=wanted).fingerprint
        assert look(repository, wanted=wanted).fingerprint == first
        (repository / "l").unlink()
        (repository / "l").symlink_to("b")
        second = look(repository, wanted=wanted).fingerprint
        assert second != first
        os.link(repository / "f", repository / "g")
        assert look(repository, wanted=wanted).fingerprint not in (first, second)

    def test_many_threads(self, repository: Path) -> None:
        """Many threads that look at once, while the tree changes, all get an answer of one of its states."""
        (repository / "d").mkdir()
        with ThreadPoolExecutor(8) as pool:
            looks = [pool.submit(look, repository) for _ in range(200)]
            for number in range(50):
                (repository / f"d/{number}").mkdir()
            (repository / "d/7/.vscode").mkdir()
            for each in looks:
                assert set(each.result().repositories) == {f"{repository}/.git"}
        assert f"{repository}/d/7/.vscode" in look(repository).protected

    def test_fast(self, repository: Path) -> None:
        """A small workspace that was looked at before takes about a millisecond (a wide bound, for busy machines)."""
        for number in range(40):
            (repository / f"src/d{number}").mkdir(parents=True)
        look(repository)
        best = min(self.timed(repository) for _ in range(20))
        assert best < 0.01

    def timed(self, repository: Path) -> float:
        start = time.perf_counter()
        look(repository, wanted=(f"{repository}/a", f"{repository}/src/d1/x"), programs=("git", "ls", "head"))
        return time.perf_counter() - start
