# SPDX-License-Identifier: GPL-3.0-or-later
"""Protected names that do not exist: guarded while a command runs, and nothing is left. Real boxes, real git."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from sandboxd.isolation import mountpoints
from sandboxd.killswitch import ABSENT_DIRS, ABSENT_FILES
from sandboxd.model.launch import PLACEHOLDER_MODE
from tests.isolation.conftest import HERE, Runner
from tests.isolation.test_isolation_work import git


@pytest.fixture
def repository(who: Runner, request: pytest.FixtureRequest) -> Path:
    """A repository with an ignored and an untracked file beside a tracked one."""
    path = who.make(f"absent-{abs(hash(request.node.name)) % 100000}")
    git(path, "init", "-q", "-b", "main")
    for name, text in (("file", "one\n"), (".gitignore", "ignored\n"), ("ignored", ""), ("sub/deep", "x\n")):
        who.make(f"{path.name}/{name}", text)
    git(path, "add", "-A")
    git(path, "commit", "-q", "-m", "first")
    who.make(f"{path.name}/untracked", "u\n")
    for each in (path, *path.rglob("*")):
        os.chown(each, who.uid, -1, follow_symlinks=False)
    return path


def spec(who: Runner, repository: Path, **more: object) -> dict[str, object]:
    return {"registry": str(who.root / "registry"), "observe": True, **more}


def left(repository: Path) -> list[str]:
    return sorted(each.name for each in repository.iterdir() if each.name != ".git")


def registered(registry: Path) -> list[str]:
    """The files of boxes; what is spare for the next ones stays beside them."""
    return [name for name in os.listdir(registry) if name.endswith(".box")]


def test_every_absent_name_is_guarded(who: Runner, repository: Path) -> None:
    """None can be made, written, moved onto or removed, by whatever spelling; afterwards the directory is as it was."""
    before = left(repository)
    names = " ".join((*ABSENT_DIRS, *ABSENT_FILES))
    text = (
        f"for n in {names}; do (echo x > $n) 2>/dev/null && echo wrote $n; (echo x > $n/x) 2>/dev/null && echo wrote $n/x;"
        "rm -rf $n 2>/dev/null && echo removed $n; mv -T sub $n 2>/dev/null && echo moved $n;"
        "ln -sfT file $n 2>/dev/null && echo linked $n; done; echo end"
    )
    result = who(text, repository, **spec(who, repository))
    assert (result.error, result.out) == ("", "end\n")
    assert left(repository) == before
    assert registered(who.root / "registry") == []


def test_git_sees_nothing_of_it(who: Runner, repository: Path) -> None:
    """`git status` is the same before, inside, outside at the same time, and after; `git add -A` adds what it would add."""
    before = git(repository, "status", "--porcelain", "--ignored")
    seen: list[str] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.append(git(repository, "status", "--porcelain", "--ignored"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        text = "for i in 1 2 3; do git status --porcelain --ignored; done; ls -A | wc -l >&2"
        result = who(text, repository, **spec(who, repository))
    finally:
        stop.set()
        watcher.join()
    assert result.out == before * 3
    assert int(result.err) > len(ABSENT_DIRS) + len(ABSENT_FILES)  # they were there
    assert set(seen) == {before}
    assert git(repository, "status", "--porcelain", "--ignored") == before


def test_programs_that_look_for_those_files_go_on(who: Runner, repository: Path) -> None:
    """Listing, copying, searching and archiving a workspace work while the mount points stand in it."""
    text = "set -e; grep -rs one . ; find . -type f | wc -l; tar cf /tmp/x.tar . 2>/dev/null; tar tf /tmp/x.tar | grep -c file"
    result = who(text, repository, **spec(who, repository, tmp=str(who.make("absent-tmp"))))
    assert (result.code, result.err) == (0, "")


def test_the_message_says_what_stopped_it(who: Runner, repository: Path) -> None:
    """A write to a guarded name that does not exist is a violation of the killswitch."""
    result = who("echo x > .envrc; mkdir -p .vscode/x", repository, **spec(who, repository))
    found = {path: rule for kind, path, rule in result.violations if kind == "write"}
    assert "killswitch" in found[f"{repository}/.envrc"]
    assert "killswitch" in found[f"{repository}/.vscode/x"]


def test_a_grant_opens_its_name_only(who: Runner, repository: Path) -> None:
    """What a person allowed can be made; what is beside it cannot."""
    grants = [("workspace_write", ""), ("protected", f"{repository}/.vscode/tasks.json")]
    text = "mkdir .vscode && echo '{}' > .vscode/tasks.json; echo x > .envrc; mkdir .idea/x"
    result = who(text, repository, **spec(who, repository, grants=grants))
    assert (repository / ".vscode/tasks.json").read_text(encoding="utf-8") == "{}\n"
    assert not (repository / ".envrc").exists()
    assert not (repository / ".idea").exists()
    assert f"{repository}/.vscode" not in result.created


def test_what_exists_already_is_not_taken_for_ours(who: Runner, repository: Path) -> None:
    """A person's empty directory, and one with the same mode but with something in it, stay."""
    who.make(f"{repository.name}/.idea")
    who.make(f"{repository.name}/.mvn/kept", "x").parent.chmod(PLACEHOLDER_MODE)
    result = who("mkdir .idea/x; touch .mvn/y; echo end", repository, **spec(who, repository))
    assert result.out == "end\n"
    assert (repository / ".idea").is_dir()
    assert (repository / ".mvn/kept").exists()
    assert sorted(os.listdir(repository / ".mvn")) == ["kept"]


def test_nested_repository_roots_are_guarded_too(who: Runner, repository: Path) -> None:
    """Where another repository's root is, the absent names are guarded as in the workspace root."""
    git(repository / "sub", "init", "-q")
    os.chown(repository / "sub/.git", who.uid, -1)
    result = who("echo x > sub/.envrc; mkdir sub/.claude/x; echo x > sub/plain; echo end", repository, **spec(who, repository))
    assert result.out == "end\n"
    assert sorted(each.name for each in (repository / "sub").iterdir()) == [".git", "deep", "plain"]


def test_a_read_only_command_makes_none(who: Runner, repository: Path) -> None:
    """Under the promise nothing is writable, so nothing is made."""
    result = who("ls -A", repository, **spec(who, repository, promise=True, grants=[]))
    assert result.out.split() == [".git", ".gitignore", "file", "ignored", "sub", "untracked"]


def test_a_workspace_that_cannot_be_written_is_left_alone(who: Runner, repository: Path) -> None:
    """Mount points that cannot be made are skipped: the command runs."""
    if who.kind != "plain":
        pytest.skip("root can write everywhere")
    repository.chmod(0o555)
    try:
        result = who("echo end", repository, **spec(who, repository))
    finally:
        repository.chmod(0o755)
    assert (result.out, result.error) == ("end\n", "")


def test_two_boxes_share_and_the_last_removes(tmp_path: Path) -> None:
    """Reference counts: a mount point stays as long as one box needs it."""
    registry, wanted = str(tmp_path / "registry"), [(f"{tmp_path}/.claude", True), (f"{tmp_path}/.envrc", False)]
    first = mountpoints.acquire(registry, wanted, os.getuid(), os.getgid())
    second = mountpoints.acquire(registry, wanted, os.getuid(), os.getgid())
    assert first is not None
    assert second is not None
    assert first.paths == second.paths == tuple(path for path, _ in wanted)
    assert first.release() == ()
    assert stat.S_ISSOCK((tmp_path / ".envrc").lstat().st_mode)
    assert (tmp_path / ".claude").is_dir()
    assert second.release() == ()
    assert os.listdir(tmp_path) == ["registry"]


def test_what_a_person_put_there_meanwhile_stays(tmp_path: Path) -> None:
    """Only what is still as it was made is removed."""
    lease = mountpoints.acquire(str(tmp_path / "registry"), [(f"{tmp_path}/.idea", True)], os.getuid(), os.getgid())
    assert lease is not None
    (tmp_path / ".idea").chmod(0o755)
    (tmp_path / ".idea/x").write_text("mine", encoding="utf-8")
    assert lease.release() == (f"{tmp_path}/.idea",)
    assert (tmp_path / ".idea/x").exists()


def test_no_mount_point_is_made_through_a_link(tmp_path: Path) -> None:
    """A directory on the way that is a link gets none, nor does what it leads to."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    lease = mountpoints.acquire(str(tmp_path / "registry"), [(f"{tmp_path}/link/.idea", True)], os.getuid(), os.getgid())
    assert lease is not None
    assert lease.paths == ()
    assert list((tmp_path / "real").iterdir()) == []
    lease.release()


def test_a_killed_daemon_leaves_nothing_after_the_next_start(tmp_path: Path) -> None:
    """SIGKILL in the middle of a command: the next start removes the mount points, and those of a live daemon stay."""
    workspace, registry = tmp_path / "ws", str(tmp_path / "registry")
    workspace.mkdir()
    (workspace / "kept").write_text("x", encoding="utf-8")
    live = mountpoints.acquire(registry, [(f"{workspace}/.mvn", True)], os.getuid(), os.getgid())
    asked = {
        "text": "echo > started; sleep 100",
        "workspace": str(workspace),
        "home": "/root",
        "registry": registry,
        "observe": True,
    }
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}
    with subprocess.Popen([sys.executable, str(HERE / "_drive.py")], stdin=subprocess.PIPE, env=environment) as daemon:
        assert daemon.stdin is not None
        daemon.stdin.write(json.dumps([asked]).encode())
        daemon.stdin.close()
        while not (workspace / "started").exists():
            assert daemon.poll() is None
        assert (workspace / ".vscode").is_dir()
        daemon.send_signal(signal.SIGKILL)
    assert (workspace / ".vscode").is_dir()
    assert f"{workspace}/.vscode" in mountpoints.recover(registry)
    assert sorted(os.listdir(workspace)) == [".mvn", "kept", "started"]
    assert live is not None
    live.release()
    assert mountpoints.recover(registry) == ()
    assert sorted(os.listdir(workspace)) == ["kept", "started"]


KILLED = """
import os, sys
from sandboxd.isolation import mountpoints, stubs
real = {name: getattr(stubs.Pool, name) for name in ("put", "take")}
calls = []
def killing(self, *words, **more):
    calls.append(words)
    if len(calls) == int(sys.argv[3]):
        os.kill(os.getpid(), 9)
    return real[sys.argv[2]](self, *words, **more)
setattr(stubs.Pool, sys.argv[2], killing)
wanted = [(f"{sys.argv[1]}/ws/.{name}", name < "c") for name in "abcd"]
mountpoints.acquire(f"{sys.argv[1]}/registry", wanted, os.getuid(), os.getgid()).release()
"""


@pytest.mark.parametrize(("during", "call"), [("put", 2), ("put", 4), ("take", 1), ("take", 2)])
def test_killed_while_they_are_made_or_removed(tmp_path: Path, during: str, call: int) -> None:
    """At whatever step the daemon is killed, the next start finds what stands."""
    (tmp_path / "ws").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), during, str(call)], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    mountpoints.recover(str(tmp_path / "registry"))
    assert os.listdir(tmp_path / "ws") == []
    assert registered(tmp_path / "registry") == []


def test_the_spare_ones_are_used_again(tmp_path: Path) -> None:
    """Making an inode costs more than moving a name: the second box gets those of the first."""
    wanted = [(f"{tmp_path}/.claude", True), (f"{tmp_path}/.envrc", False)]
    seen = []
    for _ in range(3):
        lease = mountpoints.acquire(str(tmp_path / "registry"), wanted, os.getuid(), os.getgid())
        assert lease is not None
        seen.append([os.lstat(path).st_ino for path, _ in wanted])
        lease.release()
    assert seen[0] == seen[1] == seen[2]


def test_a_workspace_on_another_file_system(tmp_path: Path) -> None:
    """Nothing can be moved there: they are made and removed in place."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        if os.stat(place).st_dev == os.stat(tmp_path).st_dev:
            pytest.skip("/dev/shm is no file system of its own here")
        wanted = [(f"{place}/{name}", name < "c") for name in "abcd"]
        for _ in range(2):
            lease = mountpoints.acquire(str(tmp_path / "registry"), wanted, os.getuid(), os.getgid())
            assert lease is not None
            assert sorted(os.listdir(place)) == list("abcd")
            assert lease.release() == ()
            assert os.listdir(place) == []


def test_what_came_into_one_of_them_stays(tmp_path: Path) -> None:
    """A person's editor that writes into the directory meanwhile keeps its file, and it never becomes a spare one."""
    lease = mountpoints.acquire(str(tmp_path / "registry"), [(f"{tmp_path}/.idea", True)], os.getuid(), os.getgid())
    assert lease is not None
    (tmp_path / ".idea/x").write_text("mine", encoding="utf-8")
    assert lease.release() == (f"{tmp_path}/.idea",)
    assert (tmp_path / ".idea/x").read_text(encoding="utf-8") == "mine"


def test_a_file_system_without_socket_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none can be made, an empty directory stands there: git does not show it either."""

    def refuse(*words: object, **more: object) -> None:
        raise OSError(errno.EPERM, "no socket nodes here")

    monkeypatch.setattr(os, "mknod", refuse)
    lease = mountpoints.acquire(str(tmp_path / "registry"), [(f"{tmp_path}/.envrc", False)], os.getuid(), os.getgid())
    assert lease is not None
    assert (tmp_path / ".envrc").is_dir()
    assert lease.paths == (f"{tmp_path}/.envrc",)
    assert lease.release() == ()
    assert os.listdir(tmp_path) == ["registry"]
