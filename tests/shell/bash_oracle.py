# SPDX-License-Identifier: GPL-3.0-or-later
"""What the real bash runs for a text, and whether a Script accounts for it.

Every text runs as `bash --noprofile --norc -c TEXT` inside a bubblewrap sandbox: read-only root, private /tmp, no network,
no other process in sight. PATH is empty and bash's hook for unknown commands logs directory and argv of everything that
would have run; names that begin with `f` fail, all others succeed. Builtins that would hide a command are switched off.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxd.model import CommandKind, PartKind, Script, Subcommand, Word, WordFlag

_START = "/tmp/s/work"
_HOME = "/tmp/home"
_NOBODY = 65534
_PRELUDE = r"""
enable -n echo test true false pwd [ kill
PATH=/nonexistent
readonly SANDBOXD_LOG
command_not_found_handle() {
  local record
  printf -v record '%s\x1c' "$PWD" "$@"
  printf '%s\x1d' "${record//$'\n'/$'\x1e'}" >> "$SANDBOXD_LOG"
  case $1 in f*) return 1;; echo) printf '%s\n' "${*:2}";; esac
  return 0
}
"""
# A case has two seconds. `kill -9 -1` reaches everything in the sandbox's own process namespace but its init and the driver
# itself: what a case leaves behind never lives to see the next one, least of all something that multiplies.
_DRIVER = r"""
fresh() { rm -rf $start; mkdir -p $start; cd $start || exit 9; }
clear() { kill -9 -1; wait; }
start=/tmp/s/work
fresh
mkfifo /tmp/s/nothing
exec 3<>/tmp/s/nothing
number=0
while IFS= read -r -d '' text; do
  [ -d d1/d2 ] && [ -d d2/d1 ] || { fresh; mkdir -p d1/d2 d2/d1; }
  BASH_ENV=/tmp/io/prelude SANDBOXD_LOG=/tmp/io/$number.log \
    timeout -s KILL 2 bash --noprofile --norc -c "$text" </dev/null >/dev/null 2>&1 3<&-
  [ $? = 137 ] && clear
  set -- /proc/[0-9]*
  if [ $# -gt 2 ]; then
    [ $# -le 20 ] && for _ in 1 2 3 4 5; do
      read -t 0.01 -r _ <&3
      set -- /proc/[0-9]*
      [ $# -le 2 ] && break
    done
    [ $# -gt 2 ] && clear
  fi
  number=$((number + 1))
done < /tmp/io/cases
clear
"""
_PROCESSES = 100  # at one time in one sandbox


@dataclass(frozen=True, slots=True)
class Run:
    """One argv that bash ran, and the directory it ran in, relative to the start ("" = there), or from `~`."""

    cwd: str
    argv: tuple[str, ...]


def available() -> bool:
    return shutil.which("bwrap") is not None and shutil.which("bash") is not None


def run(texts: Sequence[str]) -> list[list[Run] | None]:
    """The commands that bash ran for each text; None where the log cannot be read (two writers at one time)."""
    if not texts:
        return []
    with tempfile.TemporaryDirectory(prefix="sandboxd-oracle-") as name:
        io = Path(name)
        (io / "prelude").write_text(_PRELUDE)
        (io / "driver").write_text(_DRIVER)
        (io / "cases").write_bytes(b"".join(text.encode() + b"\0" for text in texts))
        user: dict[str, Any] = {}
        if os.geteuid() == 0:
            # Hostile text runs as nobody even before the sandbox: root is not held by `ulimit -u`.
            os.chown(name, _NOBODY, _NOBODY)
            user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
        argv = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/", "/", "--dev", "/dev"]
        argv += ["--proc", "/proc", "--tmpfs", "/tmp", "--dir", _HOME, "--bind", name, "/tmp/io", "--tmpfs", "/run"]
        argv += ["--clearenv", "--setenv", "LC_ALL", "C.UTF-8", "--setenv", "HOME", _HOME, "--setenv", "PATH", "/usr/bin:/bin"]
        argv += [
            "--cap-drop",
            "ALL",
            "bash",
            "-c",
            f"ulimit -t 120 -u {_PROCESSES} -f 20000; exec bash /tmp/io/driver 2>/dev/null",
        ]
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, timeout=60 + len(texts), cwd="/", **user)
        return [_records(io / f"{index}.log") for index in range(len(texts))]


def _records(path: Path) -> list[Run] | None:
    if not path.exists():
        return []
    out: list[Run] = []
    # Fields end with 0x1c, records with 0x1d; 0x1e is a newline, at which bash would flush half a record.
    *records, rest = path.read_bytes().decode(errors="surrogateescape").split("\x1d")
    for record in records:
        cwd, *words = record.replace("\x1e", "\n").split("\x1c")[:-1] or [""]
        if not cwd.startswith("/") or not words:
            return None
        out.append(Run(_relative(cwd), tuple(words)))
    return None if rest else out


def _relative(cwd: str) -> str:
    if cwd == _HOME or cwd.startswith(_HOME + "/"):
        return "~" + cwd.removeprefix(_HOME)
    path = posixpath.relpath(cwd, _START)
    return "" if path == "." else path


def missing(script: Script, runs: Iterable[Run]) -> list[Run]:
    """The runs that no subcommand of a parsed script accounts for, by argv and by directory."""
    commands = [command for command in script.subcommands if command.kind is CommandKind.SIMPLE and command.argv]
    return [one for one in runs if not any(_accounts(command, one) for command in commands)]


def _accounts(command: Subcommand, one: Run) -> bool:
    if command.cwds is not None and one.cwd not in command.cwds:
        return False
    words = command.argv
    while words and words[0].value in ("command", "builtin", "exec"):
        if _covers(words, one.argv):
            return True
        words = words[1:]
    return bool(words) and _covers(words, one.argv)


def _covers(words: Sequence[Word], argv: Sequence[str]) -> bool:
    """Whether `words` can become `argv`; a word that splits can become any number of words."""
    if words and not words[0].values:
        return True
    # reachable[j]: the words so far can have become the first j arguments
    reachable = {0}
    for word in words:
        following: set[int] = set()
        for at in reachable:
            if WordFlag.SPLITS in word.flags and not word.values:
                following.update(range(at, len(argv) + 1))
            elif at < len(argv) and fits(word, argv[at]):
                following.add(at + 1)
        reachable = following
    return len(argv) in reachable


def fits(word: Word, text: str) -> bool:
    """Whether one word can have this text."""
    if word.values:
        return text in word.values
    pattern = "".join([re.escape(part.text) if part.kind is PartKind.LITERAL else ".*" for part in word.parts])
    return re.fullmatch(pattern, text, re.DOTALL) is not None
