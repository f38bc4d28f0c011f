# SPDX-License-Identifier: GPL-3.0-or-later
"""Ordinary development works in a box: git, builds, test suites, servers on loopback. Real programs, each kind of user.

To add a case: a row in WORK (profile, command, what it prints at the end).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.isolation.conftest import Result, Runner

POOL = "import multiprocessing as m\nif __name__ == '__main__':\n  print(sum(m.Pool(2).map(abs, [-1, -2])))\n"
MANAGER = "import multiprocessing as m\nif __name__ == '__main__':\n  print(m.Manager().list([1, 2])[1])\n"
SHARED = "from multiprocessing import shared_memory as s\nx = s.SharedMemory(create=True, size=8); x.unlink(); print('ok')\n"
PTY = "import pty\npty.spawn(['sh', '-c', 'test -t 0 && echo tty'])\n"
SERVER = (
    "import http.server, threading, urllib.request as u\n"
    "s = http.server.HTTPServer(('localhost', 0), http.server.SimpleHTTPRequestHandler)\n"
    "threading.Thread(target=s.serve_forever, daemon=True).start()\n"
    "print(u.urlopen(f'http://localhost:{s.server_port}/').status)\n"
)
UNIX = (
    "import socket\nfor p in ('ws.sock', '/tmp/t.sock'):\n"
    "  s = socket.socket(socket.AF_UNIX); s.bind(p); s.listen(); c = socket.socket(socket.AF_UNIX); c.connect(p)\nprint('ok')\n"
)
UNIT = "import unittest\nclass T(unittest.TestCase):\n  def test_it(self): self.assertTrue(True)\n"

WORK = [
    ("workspace", "pool", "python3 pool.py", "3"),
    ("workspace", "shared memory", "python3 shared.py", "ok"),
    ("workspace", "pty", "python3 terminal.py", "tty"),
    ("workspace", "server", "python3 server.py 2>/dev/null", "200"),
    ("build", "manager", "python3 manager.py", "2"),
    ("build", "unix", "python3 unix.py", "ok"),
    ("workspace", "unittest", "python3 -m unittest -q test_unit.py 2>&1 | tail -1", "OK"),
    ("workspace", "make", "printf 'all: ; @echo made\\n' > Makefile; make -j2", "made"),
    ("workspace", "compile", "echo 'int main(){return 0;}' > m.c; cc -o m m.c && ./m && echo ran", "ran"),
    ("workspace", "threads", "python3 -c 'import threading as t; x=t.Thread(target=print,args=(7,)); x.start(); x.join()'", "7"),
    ("workspace", "node", 'node -e \'require("child_process").execFile("echo",["n"],(e,o)=>process.stdout.write(o))\'', "n"),
    ("workspace", "background", "sleep 0.1 & wait; echo waited", "waited"),
    ("workspace", "archive", "mkdir -p d; echo x > d/f; tar czf d.tgz d; tar tzf d.tgz | tail -1", "d/f"),
    ("workspace", "find", "find . -name '*.py' -newer pool.py | wc -l >/dev/null; echo found", "found"),
    (
        "workspace",
        "sqlite",
        'python3 -c \'import sqlite3; c=sqlite3.connect("x.db"); c.execute("create table t(a)"); print(1)\'',
        "1",
    ),
    ("workspace", "terminal", "script -qec tty /dev/null | grep -c pts", "1"),
    ("workspace", "program in TMPDIR", 'printf "#!/bin/sh\\necho ran\\n" > $TMPDIR/x; chmod +x $TMPDIR/x; $TMPDIR/x', "ran"),
    ("workspace", "venv", "python3 -m venv --without-pip v && v/bin/python -c 'print(1)'", "1"),
    (
        "workspace",
        "node and git",
        'node -p \'require("child_process").execFileSync("git", ["--version"]) + ""\' | cut -c1-3',
        "git",
    ),
    ("workspace", "links and renames", "echo x > h1; ln h1 h2; mkdir -p p/q; mv p r; mv h2 r/q/h3; echo moved", "moved"),
    ("workspace", "address space", "python3 -c 'import mmap; mmap.mmap(-1, 1 << 36, 0x4022); print(1)'", "1"),
    ("workspace", "names", "getent hosts localhost | grep -c localhost", "1"),
    ("workspace", "new repository", "git init -q demo && ls demo/.git/hooks | grep -c sample >/dev/null; echo made", "made"),
    (
        "build",
        "caches",
        "for d in .npm .cache/pip .cargo/registry .cache/go-build; do echo x > ~/$d/t || exit; done; echo kept",
        "kept",
    ),
    ("build", "npm install", "npm install --offline --no-audit --no-fund ./dep >/dev/null && node -p 'require(\"dep\")'", "7"),
    ("build", "npm rename", "mkdir -p node_modules/p/.vscode; mv node_modules/p node_modules/.p-x && echo moved", "moved"),
    ("build", "java", "java -Xmx64m -version 2>/dev/null; echo $?", "0"),
    ("build", "semaphores", "python3 -c 'import multiprocessing as m; m.Lock(); m.Semaphore(); print(1)'", "1"),
    ("network", "addresses", "python3 -c 'import socket; print(len(socket.if_nameindex()) > 0)'", "True"),
]
PROGRAMS = {
    "make": "make", "compile": "cc", "node": "node", "node and git": "node", "npm install": "npm", "npm rename": "npm",
    "java": "java", "terminal": "script",
}  # fmt: skip


@pytest.fixture(scope="module")
def ws(who: Runner) -> Path:
    scripts = {
        "pool": POOL,
        "manager": MANAGER,
        "shared": SHARED,
        "terminal": PTY,
        "server": SERVER,
        "unix": UNIX,
        "test_unit": UNIT,
    }
    for name, text in scripts.items():
        who.make(f"work/{name}.py", text)
    for name in (".npm", ".cache/pip", ".cargo/registry", ".cache/go-build"):
        who.make(f"home/{name}")
    who.make("work/package.json", '{"name": "w", "version": "1.0.0"}')
    who.make("work/dep/package.json", '{"name": "dep", "version": "1.0.0", "main": "i.js"}')
    who.make("work/dep/i.js", "module.exports = 7\n")
    who.make("work-tmp")
    return who.root / "work"


@pytest.mark.parametrize(("profile", "name", "text", "said"), WORK, ids=[row[1] for row in WORK])
def test_work(who: Runner, ws: Path, profile: str, name: str, text: str, said: str) -> None:
    """The command does in the box what it does outside."""
    if name in PROGRAMS and not shutil.which(PROGRAMS[name], path="/usr/bin:/bin"):
        pytest.skip(f"no {PROGRAMS[name]}")
    result = who(text, ws, profile=profile, tmp=str(who.root / "work-tmp"))
    assert result.error == ""
    assert result.out.strip().splitlines()[-1:] == [said], result.err


def git(directory: Path, *words: str) -> str:
    command = ["git", "-c", "safe.directory=*", "-c", "user.name=t", "-c", "user.email=t@example.org", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(who: Runner, request: pytest.FixtureRequest) -> Path:
    """A repository with one commit, a hook that tells when it ran, and a file to change."""
    name = f"repo-{abs(hash(request.node.name)) % 100000}"
    path = who.make(name)
    git(path, "init", "-q", "-b", "main")
    git(path, "config", "user.name", "t")
    git(path, "config", "user.email", "t@example.org")
    (path / "file").write_text("one\n", encoding="utf-8")
    git(path, "add", "-A")
    git(path, "commit", "-q", "-m", "first")
    for each in (path, *path.rglob("*")):
        shutil.chown(each, who.uid)
    return path


def porcelain(who: Runner, repository: Path, text: str, *names: str) -> Result:
    return who(
        text,
        repository,
        repositories=[f"{repository}/.git"],
        protected=[f"{repository}/.git"],
        git_porcelain=True,
        git_names=list(names),
    )


def test_git_porcelain_commits(who: Runner, repository: Path) -> None:
    """Add, commit, branch, switch, merge, tag, stash and reset work; the host sees the result."""
    result = porcelain(
        who,
        repository,
        "set -e; echo two >> file; git add -A; git commit -q -m second; git checkout -q -b side; echo s > side; git add side;"
        "git commit -q -m side; git switch -q main; git merge -q side; git tag v1;"
        "echo z >> file; git stash -q; git branch -q -d side;"
        "git reset -q --hard HEAD; git gc -q; git log --oneline | wc -l",
        "add", "commit", "checkout", "switch", "merge", "tag", "stash", "branch", "reset", "gc", "log",
    )  # fmt: skip
    assert (result.code, result.out.strip()) == (0, "3"), result.err
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "log", "--format=%s", "-1") == "side\n"


@pytest.mark.parametrize(
    "text",
    [
        "git config core.fsmonitor ./evil",
        "echo x > .git/hooks/post-commit",
        "mv .git .git2",
        "git config core.hooksPath evil; cat .git/config | grep -c evil; false",
        'python3 -c \'open(".git/config","a").write("x")\'',
        "rm -rf .git",
    ],
)
def test_an_opaque_command_cannot_touch_the_repository(who: Runner, repository: Path, text: str) -> None:
    """Not its configuration, not its hooks, not the directory itself; and git goes on working."""
    before = (repository / ".git/config").read_bytes()
    result = who(text, repository, repositories=[f"{repository}/.git"], protected=[f"{repository}/.git"])
    assert result.code != 0
    assert (repository / ".git/config").read_bytes() == before
    assert sorted(each.name for each in (repository / ".git/hooks").iterdir() if each.suffix != ".sample") == []
    assert git(repository, "status", "--porcelain") == ""


def test_porcelain_cannot_plant_hooks_or_configuration(who: Runner, repository: Path) -> None:
    """What a line of git runs on the way (here by an alias in the environment's place) finds the core read-only."""
    result = porcelain(
        who, repository, "echo x > .git/hooks/post-commit; echo x >> .git/config; echo x > .git/info/attributes", "add"
    )
    assert result.err.count("Read-only file system") == 2
    assert not (repository / ".git/hooks/post-commit").exists()
    assert "x\n" not in (repository / ".git/config").read_text(encoding="utf-8")
    assert any("put right" in note for note in result.notes)


def test_what_porcelain_planted_where_no_mount_can_stand_is_removed(who: Runner, repository: Path) -> None:
    """`commondir` did not exist, so nothing could guard it: it is gone again before anything outside reads it."""
    result = porcelain(who, repository, "mkdir evil; echo ../evil > .git/commondir; echo x > .git/config.worktree", "add")
    assert sorted(result.planted) == [f"{repository}/.git/commondir", f"{repository}/.git/config.worktree"]
    assert not (repository / ".git/commondir").exists()
    assert git(repository, "log", "--format=%s") == "first\n"


def test_git_records_upstreams(who: Runner, repository: Path) -> None:
    """`push -u`, `--set-upstream-to` and `checkout -b x origin/x` work: the record of what follows what survives."""
    origin = who.make(f"{repository.name}-origin.git")
    os.chown(origin, os.getuid(), -1)  # git serves only what belongs to who runs it
    git(origin, "init", "-q", "--bare")
    git(repository, "remote", "add", "origin", str(origin))
    git(repository, "push", "-q", "origin", "main:side")
    git(repository, "fetch", "-q", "origin")
    for each in (repository / ".git", *(repository / ".git").rglob("*"), origin, *origin.rglob("*")):
        shutil.chown(each, who.uid)
    result = porcelain(
        who,
        repository,
        "git checkout -q -b side origin/side; git branch -q --set-upstream-to=origin/side main",
        "checkout",
        "branch",
    )
    assert (result.code, result.notes, result.err) == (0, (), "")
    assert git(repository, "rev-parse", "--abbrev-ref", "main@{u}", "side@{u}") == "origin/side\norigin/side\n"


def test_what_else_git_writes_into_its_configuration_is_undone(who: Runner, repository: Path) -> None:
    """A line of porcelain that got more into `config` than it says: the rest is put back and reported, upstreams stay."""
    text = (
        "git branch side; git branch -q --set-upstream-to=main side; git config core.fsmonitor ./evil; git config alias.st '!id'"
    )
    result = porcelain(who, repository, text, "branch")
    config = (repository / ".git/config").read_text(encoding="utf-8")
    assert "evil" not in config
    assert "alias" not in config
    assert git(repository, "rev-parse", "--abbrev-ref", "side@{u}") == "main\n"
    assert any("core.fsmonitor" in note and "alias.st" in note for note in result.notes)


def test_git_status_shows_nothing_of_the_box(who: Runner, repository: Path) -> None:
    """Neither inside nor outside does a mount point show up, before, during or after."""
    who.make(f"{repository.name}/.claude/settings.json", "{}")
    before = git(repository, "status", "--porcelain")
    result = who(
        "git status --porcelain",
        repository,
        repositories=[f"{repository}/.git"],
        protected=[f"{repository}/.git", f"{repository}/.claude"],
        git_reads=True,
    )
    assert result.out == before == git(repository, "status", "--porcelain")


def test_git_reads_run_nothing(who: Runner, repository: Path) -> None:
    """fsmonitor and hooks of a hostile configuration do not run in a read, and a secret stays one through textconv."""
    marker = repository / "ran"
    git(repository, "config", "core.fsmonitor", f"touch {marker} && false")
    git(repository, "config", "diff.x.textconv", f"touch {marker}; cat {who.home}/.ssh/k #")
    (repository / ".gitattributes").write_text("file diff=x\n", encoding="utf-8")
    (repository / "file").write_text("two\n", encoding="utf-8")
    who.make("home/.ssh/k", "sekret")
    result = who(
        "git status --short; git diff",
        repository,
        promise=True,
        grants=[],
        git_reads=True,
        repositories=[f"{repository}/.git"],
        armed_git=[["diff.x.textconv", "cat"]],
    )
    assert "file" in result.out
    assert "sekret" not in result.out + result.err
    assert not marker.exists()


def test_a_linked_work_tree_commits(who: Runner, repository: Path) -> None:
    """`git worktree add`, then a commit in it: objects, refs and logs of the main repository are written, hooks are not."""
    made = who("git worktree add -q wt -b w", repository, observe=True, git_porcelain=True, git_names=["worktree"])
    assert (made.code, made.err, made.disarmed) == (0, "", ())
    text = "echo x > f; git add f; git commit -q -m linked; echo x > ../.git/hooks/post-commit; git log --format=%s -1"
    done = who(text, repository, cwd=str(repository / "wt"), observe=True, git_porcelain=True, git_names=["add", "commit"])
    assert done.out == "linked\n"
    assert "Read-only file system" in done.err
    assert git(repository, "log", "--format=%s", "-1", "w") == "linked\n"


def test_a_tracked_environment_file_is_stashed(who: Runner, repository: Path) -> None:
    """Nothing masks a tracked file for a command of git that writes: it can be hashed, stashed and restored."""
    (repository / ".env").write_text("A=1\n", encoding="utf-8")
    git(repository, "add", ".env")
    for each in (repository, *repository.rglob("*")):
        shutil.chown(each, who.uid)
    result = who("git stash -q; ls .env 2>&1; git stash pop -q; cat .env", repository, observe=True, git_porcelain=True)
    assert result.out.endswith("A=1\n")


@pytest.mark.parametrize(("allowed", "said"), [((), "no no"), (("one.sock",), "yes no"), (("",), "yes yes")])
def test_sockets_of_the_host_are_reached_by_name_only(who: Runner, allowed: tuple[str, ...], said: str) -> None:
    """Without `unix_allow` none is; with it those that it names, or that lie in a directory it names."""
    place = who.make("sockets")
    paths = ", ".join(f'"{place}/{name}"'.replace('/"', '"') for name in allowed)
    profile = who.make("sockets.toml", f'[sockets]\nunix_allow = [{paths}]\n[isolation]\nrequire = "fs"\n')
    listeners = []
    for name in ("one.sock", "two.sock"):
        (place / name).unlink(missing_ok=True)
        listeners.append(socket.socket(socket.AF_UNIX))
        listeners[-1].bind(str(place / name))
        (place / name).chmod(0o777)
        listeners[-1].listen()
    text = (
        "python3 - <<'E'\nimport socket\nfor n in ('one', 'two'):\n  try: socket.socket(socket.AF_UNIX)"
        f".connect(f'{place}/{{n}}.sock'); print('yes', end=' ')\n  except OSError: print('no', end=' ')\nE"
    )
    result = who(text, who.make("sockets-ws"), profile=str(profile))
    for each in listeners:
        each.close()
    assert (result.error, result.out.strip()) == ("", said)


@pytest.mark.parametrize(("grants", "said"), [([("host", "localhost")], "connected"), ([], "no")])
def test_a_read_over_the_network_cannot_write(who: Runner, grants: list[tuple[str, str]], said: str) -> None:
    """Under the promise the network is there only when the decision names a host; the file system stays read-only."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = (
            'python3 -c "import socket; '
            f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]})); print('connected')\""
            " 2>/dev/null || echo no; touch x 2>/dev/null && echo wrote"
        )
        result = who(text, who.make("net"), profile="network", promise=True, grants=grants)
    assert result.out == f"{said}\n"


def test_debuggers_work_where_a_profile_says_so(who: Runner) -> None:
    """Tracing is refused by default, and works inside a box whose profile allows it."""
    if not shutil.which("strace", path="/usr/bin:/bin"):
        pytest.skip("no strace")
    workspace = who.make("traced")
    profile = who.make("trace.toml", '[seccomp]\nallow_ptrace = true\n[isolation]\nrequire = "fs"\n')
    assert who("strace -o /dev/null true", workspace).code != 0
    assert who("strace -o /dev/null true && echo traced", workspace, profile=str(profile)).out == "traced\n"
