# SPDX-License-Identifier: GPL-3.0-or-later
"""Everyday read-only commands give the same output and status under the read-only promise as without a box.

To add a command: a row in EVERYDAY; one that must differ: in DIFFERS with the reason, which docs/profiles.md tells too.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.isolation.conftest import Runner
from tests.isolation.test_isolation_work import git

EVERYDAY: tuple[str, ...] = (
    # files
    "ls",
    "ls -la src",
    "ls -R",
    "tree -L 2 || true",
    "stat -c '%s %A %n' README.md",
    "file README.md || true",
    "du -sb src",
    "wc -l src/*.py",
    "cat README.md",
    "head -n 3 data.csv",
    "tail -n 2 data.csv",
    "nl README.md",
    "tac data.csv",
    "od -c README.md | head -2",
    "md5sum README.md",
    "sha256sum src/*",
    "cmp README.md README.md",
    "diff README.md data.csv",
    "diff <(head -1 data.csv) <(tail -1 data.csv)",
    "find . -name '*.py'",
    "find . -type d -not -path './.git/*' | sort",
    "readlink -f src/../README.md",
    "realpath src",
    "basename $PWD",
    "test -f README.md && echo yes",
    "[[ -d src ]] && echo dir",
    "pwd",
    "cd src && pwd",
    # text
    "grep -rn def src",
    "grep -c , data.csv",
    "grep -v x nothing || echo $?",
    "sed -n 2,3p data.csv",
    "awk -F, '{ s += $2 } END { print s }' data.csv",
    "cut -d, -f1 data.csv",
    "sort -t, -k2n data.csv",
    "sort data.csv | uniq -c",
    "tr a-z A-Z < README.md",
    "paste -sd+ data.csv",
    "join data.csv data.csv || true",
    "comm -12 <(sort data.csv) <(sort data.csv)",
    "column -t -s, data.csv || true",
    "fold -w 10 README.md",
    "expand README.md",
    "rev README.md",
    "xargs -n1 echo < data.csv",
    "printf '%05d\\n' 42",
    "seq 1 5 | paste -sd,",
    "base64 README.md",
    "echo aGVsbG8= | base64 -d",
    "strings README.md || true",
    "perl -ne 'print if /a/' data.csv",
    "iconv -f utf-8 -t ascii//TRANSLIT README.md",
    "sort --parallel=2 -S 1M data.csv",
    # shell
    'for f in src/*.py; do echo "$f"; done',
    'while read -r l; do echo "<$l>"; done < data.csv',
    "x=$(cat README.md); echo ${#x}",
    "cat <<< hello",
    "cat <<'E'\n$HOME\nE",
    "echo {a,b}{1,2}",
    "set -- a b c; echo $#",
    "type cd",
    "command -v bash",
    "date -u -d @0",
    "env -i sh -c 'echo $HOME'",
    "(exit 7)",
    "false",
    "true && echo ok",
    "nonsense-command-x",
    "sleep 0.01; echo slept",
    "ulimit -c",
    # git
    "git status",
    "git status --porcelain",
    "git log --oneline",
    "git log -p -1",
    "git diff",
    "git diff --stat HEAD~1",
    "git show --stat",
    "git branch -a",
    "git ls-files",
    "git blame HEAD -- README.md",
    "git rev-parse HEAD",
    "git describe --always",
    "git tag",
    "git remote -v",
    "git stash list",
    "git config --list --local",
    "git grep def",
    "git shortlog -sn HEAD",
    "git cat-file -p HEAD",
    "git reflog",
    "git check-ignore build || echo no",
    "git worktree list",
    "git rev-list --count HEAD",
    # tools of languages
    "python3 --version",
    'python3 -c \'import json,sys; print(json.load(open("package.json"))["name"])\'',
    "python3 -m json.tool package.json",
    "python3 -m py_compile --help | head -1",
    "python3 -c 'import src.mod; print(src.mod.f(2))' 2>&1 | tail -1",
    "node --version",
    "node -p '1+1'",
    "node -e 'console.log(require(\"./package.json\").name)'",
    "npm --version",
    "npm pkg get name",
    "npm ls --depth=0 2>/dev/null",
    "pip --version || true",
    "python3 -m pip --version | cut -d' ' -f1",
    "python3 -m pip list --format=freeze 2>/dev/null | head -3",
    "python3 -m pip show pip 2>/dev/null | head -2",
    "python3 -m pip config list",
    "python3 -m venv --help | head -1",
    "java -version",
    "cc --version | head -1",
    "cmake --version | head -1",
    "jq .name package.json",
    "jq -r '.scripts | keys[]' package.json",
    "make -n",
    "make --version | head -1",
    "sqlite3 -readonly db.sqlite 'select count(*) from t'",
    "man -P cat ls 2>/dev/null | head -3 || true",
    "perl -v | head -2",
    "openssl version || true",
    "tar tzf a.tgz",
    "unzip -l a.zip || true",
    "gzip -cd a.gz",
    "bc <<< '2^10' || true",
    "getent hosts localhost | head -1",
    "id -u",
    "whoami",
    "nproc",
    "uname -s",
    "printenv HOME",
    "locale -a | head -1",
)
BIG = "cat <<'E' | md5sum\n" + "0123456789abcdef\n" * 5500 + "E"  # 90 kB, which the shell puts into a file of its own
# (command, why it differs)
DIFFERS: tuple[tuple[str, str], ...] = (
    ("python3 -c 'import src.mod; print(src.mod.f(2))' 2>&1 | tail -1", "PYTHONSAFEPATH: no module of the workspace is imported"),
    ("ulimit -c", "a box leaves no core files"),
    ("python3 -m pip config list", "PIP_DISABLE_PIP_VERSION_CHECK: pip would run a compiler that a file names"),
)  # fmt: skip


MARK = "printf '\\0%s\\0' $?; printf '\\0' >&2"
TOGETHER = 12  # commands in one box, each by a shell of its own, to save time


@pytest.fixture(scope="module")
def workspace(who: Runner) -> Path:
    """A small project in several languages, under git, with a change that is not committed."""
    path = who.make("everyday")
    files = {
        "README.md": "# Project\n\nA small one.\n",
        "data.csv": "a,1\nb,2\nc,3\n",
        "src/mod.py": "def f(x):\n    return x * 2\n",
        "src/__init__.py": "",
        "package.json": '{"name": "small", "version": "1.0.0", "scripts": {"test": "echo t", "build": "echo b"}}\n',
        "Makefile": "all: out\nout: data.csv\n\tcp data.csv out\n",
        ".gitignore": "build\n*.sqlite\n",
    }
    for name, text in files.items():
        who.make(f"everyday/{name}", text)
    subprocess.run(["tar", "czf", "a.tgz", "src"], cwd=path, check=True)
    subprocess.run(["bash", "-c", "gzip -c data.csv > a.gz; sqlite3 db.sqlite 'create table t(a)'"], cwd=path, check=False)
    git(path, "init", "-q", "-b", "main")
    for message in ("first", "second"):
        git(path, "add", "-A")
        git(path, "commit", "-q", "--allow-empty", "-m", message)
    who.make("everyday/README.md", "# Project\n\nA small one, changed.\n")
    for each in (path, *path.rglob("*")):
        os.chown(each, who.uid, pwd.getpwuid(who.uid).pw_gid, follow_symlinks=False)
    git(path, "-c", "core.checkStat=default", "status")
    for each in (path / ".git").rglob("*"):
        os.chown(each, who.uid, pwd.getpwuid(who.uid).pw_gid, follow_symlinks=False)
    return path


@pytest.mark.parametrize("other", ["", "landlock"])
def test_they_say_the_same(who: Runner, workspace: Path, other: str) -> None:
    """Both outputs and the exit status of each, in the box and outside; also where there are no namespaces."""
    if who.kind == "dropped":
        pytest.skip("the box is the plain user's")
    if other and who.backend != "bwrap":
        pytest.skip("once is enough")
    commands = (*EVERYDAY, BIG)
    tmp = str(who.make("everyday-tmp"))
    boxed: dict[str, tuple[str, str, int]] = {}
    for reads in (True, False):
        chosen = [command for command in commands if command.startswith("git") is reads]
        groups = [chosen[start : start + TOGETHER] for start in range(0, len(chosen), TOGETHER)]
        texts = ["\n".join(f"bash --norc -c {shlex.quote(each)}; {MARK}" for each in group) for group in groups]
        results = who.all(
            texts, workspace, promise=True, grants=[], tmp=tmp, observe=True, git_reads=reads, backend=other or who.backend
        )
        for group, result in zip(groups, results, strict=True):
            assert result.error == ""
            out, err = result.out.split("\0"), result.err.split("\0")
            boxed |= {each: (out[2 * at], err[at], int(out[2 * at + 1])) for at, each in enumerate(group)}
    differ = []
    for command in commands:
        outside = direct(who, command, workspace)
        if boxed[command] != (outside.stdout, outside.stderr, outside.returncode):
            differ.append((command, boxed[command], outside.stdout, outside.stderr, outside.returncode))
    expected = {command for command, _ in DIFFERS}
    surprising = [row for row in differ if row[0] not in expected]
    assert surprising == [], surprising


def direct(who: Runner, command: str, workspace: Path) -> subprocess.CompletedProcess[str]:
    """The command without a box, in the environment that a box has."""
    name = pwd.getpwuid(who.uid).pw_name
    environment = {
        "HOME": str(who.home), "USER": name, "LOGNAME": name, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TERM": "dumb",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SHELL": "/bin/bash",
        "TMPDIR": str(who.root / "everyday-tmp"), "npm_config_update_notifier": "false",  # it has a network, the box has none
    }  # fmt: skip
    ids = {} if who.uid == os.geteuid() else {"user": who.uid, "group": pwd.getpwuid(who.uid).pw_gid, "extra_groups": []}
    return subprocess.run(  # type: ignore[call-overload,no-any-return]  # keywords through a dict
        ["bash", "--noprofile", "--norc", "-c", command],
        cwd=workspace, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False, **ids,
    )  # fmt: skip


def test_there_are_enough_of_them() -> None:
    """The table is as long as it says, and what it needs is mostly installed."""
    assert len(set(EVERYDAY)) == len(EVERYDAY) >= 98
    assert {"git", "sed", "awk"} <= {name for name in ("git", "sed", "awk") if shutil.which(name)}
