# SPDX-License-Identifier: GPL-3.0-or-later
"""Ways to touch what is protected, each put into a script that nobody could read beforehand: none gets through.

The script is what policy sees of it, `bash ./x.sh`, so only the kernel's line stands in the way.
To add a way: a row in TOUCHES, run in a repository with the files of `fixture` and a file `payload`.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from pathlib import Path

import pytest

from tests.isolation.conftest import Runner
from tests.isolation.test_isolation_work import git

TOUCHES: tuple[str, ...] = (
    # the configuration, by every tool that writes
    "echo '[alias]' >> .git/config",
    "cat payload > .git/config",
    "tee .git/config < payload",
    "cp payload .git/config",
    "cp --remove-destination payload .git/config",
    "install -m 755 payload .git/config",
    "mv payload .git/config",
    "ln -sf ../payload .git/config",
    "ln -f payload .git/config",
    "dd if=payload of=.git/config",
    "sed -i 1d .git/config",
    "perl -pi -e 's/core/evil/' .git/config",
    'python3 -c \'open(".git/config", "a").write("x")\'',
    "python3 - <<'E'\nimport os\nos.truncate('.git/config', 0)\nE",
    "truncate -s 0 .git/config",
    "sort -o .git/config payload",
    "split -b 4 payload .git/config",
    "rm -f .git/config",
    "unlink .git/config",
    "chmod 777 .git/config",
    "touch -d 2001-01-01 .git/config",
    "exec 9<> .git/config; echo x >&9",
    "printf x | dd of=.git/config conv=notrunc",
    'awk \'BEGIN { print "x" > ".git/config" }\'',
    "find . -name config -exec sh -c 'echo x >> \"$1\"' _ {} \\;",
    "printf '.git/config\\0' | xargs -0 -I{} cp payload {}",
    "flock .git/config true; : > .git/config",
    "busybox cp payload .git/config || perl -e 'open F, \">>.git/config\"; print F 1'",
    "sed -n 'w .git/config' payload",
    "sed 's/x/y/w .git/config' payload",
    "printf '1s/./x/\\nw\\nq\\n' | ed -s .git/config; ex -sc 'a|x' -cx .git/config </dev/null",
    "printf -- '--- a\\n+++ b\\n@@ -0,0 +1 @@\\n+x\\n' | patch -p0 .git/config",
    "curl -s -o .git/config file://$PWD/payload",
    "openssl rand -out .git/config 8",
    "base64 payload | base64 -d -o .git/config; gzip -c payload > .git/config",
    'node -e \'require("fs").appendFileSync(".git/config", "x")\'',
    "cc -x c -E payload -o .git/config",
    "make -f - <<< $'.git/config: payload\\n\\tcp payload .git/config\\n.PHONY: payload'",
    "tar cf a.tar --transform 's,payload,.git/config,' payload; tar xf a.tar",
    "echo payload | cpio -o > a.cpio; mkdir -p .git/hooks; cd .git && cpio -idu < ../a.cpio",
    'python3 -c \'import mmap; f = open(".git/config", "r+b"); mmap.mmap(f.fileno(), 0)[0:1] = b"x"\'',
    'python3 -c \'import ctypes; ctypes.CDLL(None).renameat2(-100, b"payload", -100, b".git/config", 2)\'',
    'python3 -c \'import os; os.sendfile(os.open(".git/config", 1), os.open("payload", 0), 0, 1)\'',
    "chattr +A .git/config; setfattr -n user.x -v 1 .git/config; setfacl -m o:rwx .git/config",
    "chmod -R 777 .; touch .git .claude .vscode",
    "git apply <<< $'--- /dev/null\\n+++ b/.claude/x\\n@@ -0,0 +1 @@\\n+x'",
    "git stash -u; git checkout -- .; git clean -fdx; git restore .",
    "git worktree add -f w; git submodule add ./sub m",
    "script -qc 'echo x >> .git/config' /dev/null",
    'awk \'BEGIN { print "x" | "cat >> .git/config" }\'',
    "echo 'echo x >> .git/config' | sh",
    "git config alias.st '!id'",
    "git config --file .git/config core.editor ./payload",
    "git remote add evil ext::sh",
    "git config core.hooksPath .",
    "GIT_DIR=.git git config core.fsmonitor ./payload",
    # spellings of the same
    "d=.g; e=it; echo x >> $d$e/config",
    "cd .git && echo x >> config",
    "cd sub && echo x >> ../.git/config",
    "echo x >> $(pwd)/.git/config",
    "echo x >> /proc/self/cwd/.git/config",
    "echo x >> /proc/$$/root$PWD/.git/config",
    "echo x >> .git/../.git/./config",
    "ln -s .git g; echo x >> g/config",
    "ln .git/config c && echo x >> c",
    "cp -l .git/config c && echo x >> c",
    "mv .git g; echo x >> g/config; mv g .git",
    "mv sub/../.git /tmp/g",
    "cp -r .git g && echo x >> g/config && rm -rf .git && mv g .git",
    "mkdir n; mount --bind n .git; echo x > .git/config",
    "unshare -Urm sh -c 'mount --bind sub .git; echo x > .git/config'",
    "exec 8< .git/config; echo x > /proc/self/fd/8",
    "bash -c 'sh -c \"echo x >> .git/config\"'",
    "nohup setsid sh -c 'echo x >> .git/config' & wait",
    "sh -c 'sleep 0.05; echo x >> .git/config' & disown",
    # hooks and what leads git elsewhere
    "cp payload .git/hooks/pre-commit",
    "ln -s ../../payload .git/hooks/post-checkout",
    "mkdir -p .git/hooks/x",
    "rm -rf .git/hooks && mkdir .git/hooks",
    "mv .git/hooks .git/h; mkdir .git/hooks",
    "chmod +x .git/hooks/*.sample",
    "tar cf a.tar payload; tar xf a.tar -C .git/hooks",
    "echo ../evil > .git/commondir",
    "echo '* filter=x' > .git/info/attributes",
    "echo /tmp > .git/objects/info/alternates",
    "echo x > .git/config.worktree",
    "mkdir -p .git/modules/m/hooks; cp payload .git/modules/m/hooks/post-checkout",
    "echo 'ref: refs/heads/evil' > .git/HEAD",
    "rm -rf .git",
    "find .git -type f -delete",
    "rm -rf ./* .[!.]*",
    "git init -q --template=. .",
    "git checkout -q -b evil",
    "git update-ref refs/heads/evil HEAD",
    # a nested repository
    "git -C sub config core.fsmonitor ./payload",
    "cp payload sub/.git/hooks/post-checkout",
    "mv sub s2; echo x >> s2/.git/config",
    "mv sub/.git sub/g; mkdir sub/.git",
    # settings of agents, editors and package managers
    "echo '{}' > .claude/settings.json",
    "echo x > .claude/hooks.json",
    "mkdir -p .claude/commands && cp payload .claude/commands/x.md",
    "mv .claude old",
    "rm -rf .claude",
    "mv payload .vscode/tasks.json",
    "cp payload .envrc",
    "ln -sf payload .bashrc",
    "mkdir -p .husky/_ && cp payload .husky/_/pre-commit",
    "cp payload .npmrc",
    "echo x > .mcp.json",
    "mkfifo .gitmodules",
    'python3 -c \'import os; os.makedirs(".idea"); open(".idea/workspace.xml", "w")\'',
    "mkdir .cargo; echo > .cargo/config.toml",
    "rmdir .devcontainer; mv sub .devcontainer",
    "cp payload .pre-commit-config.yaml",
    "echo x > .yarnrc.yml; echo x > .pnp.cjs",
    # the home directory
    "echo x >> ~/.bashrc",
    "cp payload ~/.profile",
    "rm -f ~/.bashrc",
    "echo x > ~/.zshenv",
    "mkdir -p ~/.config/autostart; cp payload ~/.config/autostart/x.desktop",
    "mkdir -p ~/.ssh; echo x >> ~/.ssh/authorized_keys",
    "git config --global alias.st '!id'",
    "ln -s ~/.bashrc notes; echo x >> notes",
    "echo x >> ../home/.bashrc",
    "echo x > /etc/profile.d/x.sh",
    "echo '* * * * * root id' > /etc/cron.d/x",
)


@pytest.fixture(scope="module")
def fixture(who: Runner) -> Path:
    """A repository with a nested one, settings of agents and editors, and a home with start files."""
    path = who.make("touched")
    for name in (".claude/settings.json", ".vscode/tasks.json", "sub/file", "file"):
        who.make(f"touched/{name}", "{}\n")
    for name in (".bashrc", ".profile"):
        who.make(f"home/{name}", "# mine\n")
    for place in (path, path / "sub"):
        git(place, "init", "-q", "-b", "main")
        git(place, "add", "file" if place.name == "sub" else ".claude")
        git(place, "commit", "-q", "-m", "first")
    for each in (path, *path.rglob("*")):
        os.chown(each, who.uid, -1, follow_symlinks=False)
    return path


def protected(workspace: Path, home: Path) -> dict[str, str]:
    """Every protected path that exists, with its mode and a digest of its content."""
    found = {}
    names = ".git .claude .vscode .idea .husky .cargo .devcontainer .envrc .bashrc .npmrc .mcp.json .gitmodules .profile .zshenv"
    kinds = f"{names} .pre-commit-config.yaml .yarnrc.yml .pnp.cjs .gitconfig .config .ssh".split()
    for root in (workspace, workspace / "sub", home):
        for name in kinds:
            top = root / name
            for each in (top, *(top.rglob("*") if top.is_dir() and not top.is_symlink() else ())):
                if os.path.lexists(each):
                    info = each.lstat()
                    content = each.read_bytes() if each.is_file() else b""
                    found[str(each)] = f"{info.st_mode:o} {hashlib.sha256(content).hexdigest()[:12]} {int(info.st_mtime)}"
    return found


# In the box, before each row: what rows before it made goes, what they took away comes back.
CLEAN = (
    "find . -mindepth 1 -maxdepth 1 ! -name .git ! -name .claude ! -name .vscode ! -name sub ! -name file"
    " -exec rm -rf {} + 2>/dev/null;"
    "for f in file sub/file; do echo '{}' > $f; done; rm -rf /tmp/* ~+/s2;"
)

TOGETHER = 8  # scripts in one box, to save time


def test_no_way_leads_to_what_is_protected(who: Runner, fixture: Path) -> None:
    """Each row as a script of its own, a few in each box: protected files and directories stay byte for byte."""
    if who.kind == "dropped":
        pytest.skip("the box is the plain user's")
    status = git(fixture, "status", "--porcelain")  # first: it may refresh the index itself
    before = protected(fixture, who.home)
    scripts = [f"printf 'x\\n' > payload; chmod +x payload; {row}\ntrue" for row in TOUCHES]
    runs = [f"{CLEAN} printf %s {shlex.quote(script)} > x.sh; timeout 20 bash ./x.sh < /dev/null" for script in scripts]
    texts = ["\n".join(runs[start : start + TOGETHER]) for start in range(0, len(runs), TOGETHER)]
    results = who.all([*texts, CLEAN], fixture, observe=True, registry=str(who.root / "registry"))
    assert {result.error for result in results} == {""}
    assert protected(fixture, who.home) == before
    assert git(fixture, "status", "--porcelain") == status
    assert sorted(each.name for each in fixture.iterdir()) == [".claude", ".git", ".vscode", "file", "sub"]
    assert not Path("/etc/profile.d/x.sh").exists()
    assert not Path("/etc/cron.d/x").exists()
