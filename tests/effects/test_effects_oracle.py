# SPDX-License-Identifier: GPL-3.0-or-later
"""The claims against the machine: what is called read-only really runs and changes nothing, what is said to write writes."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandboxd.analyze import analyze
from sandboxd.effects.examples import DIRECTORY, HOME, run
from sandboxd.effects.languages import names
from sandboxd.effects.tables import Tables
from sandboxd.model import Act, AnalysisContext, EffectKind
from tests.effects import effects_cases
from tests.effects.effects_box import Box

pytestmark = pytest.mark.needs("bwrap", "userns")

TABLES = Tables()
# Values that turn every careless expansion into a file named `owned`.
NAMES = ("a", "b", "d", "f", "i", "k", "l", "n", "p", "s", "x", "y", "X", "dir", "file", "files", "name", "path")
HOSTILE = (
    {**dict.fromkeys(NAMES, "x[$(touch owned)]"), "a": "-v", "op": "-v", "o": "--output=owned"},
    dict.fromkeys(NAMES, "--output=owned"),
    dict.fromkeys(NAMES, "-delete"),
)
STDIN = "./a\n--output=owned\n-o owned\n-delete\n$(touch owned)\n; touch owned\n-exec touch owned {} +\nx[$(touch owned)]\n"
FILES = (
    "a",
    "b",
    "f",
    "x",
    "y",
    "a.txt",
    "b.txt",
    "x.sh",
    "a.py",
    "-n",
    "--output=owned",
    "src/a.c",
    "src/sub/b.c",
    "d/a",
    "[",
    "x y",
)
# Caches that a tool keeps for itself in the home, written as a side of reading; the box of a read-only command refuses them.
CACHES = ("home/.terraform.d", "home/.config", "home/.npm", "home/.cache")
# So many lines run between two looks; where something changed, each runs again by itself.
BATCH = 16


def _furnish(box: Box) -> None:
    box.make()
    for name in FILES:
        path = box.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("b 1\na 2\nw owned\ne touch owned\ntouch owned\n")
    _git(box.work, "init -q", "add a b src", "commit -qm first", "tag v1")
    for name in (".bashrc", ".profile", ".gitconfig", "notes"):
        (box.house / name).write_text("")
    box.own()


def _git(work: Path, *commands: str) -> None:
    """Run git commands with an author, where there is a git."""
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.com", "-c", "init.defaultBranch=main")
    for command in commands if shutil.which("git") else ():
        subprocess.run(["git", *who, *command.split()], cwd=work, check=True, capture_output=True)


@pytest.fixture
def folders() -> Iterator[contextlib.ExitStack]:
    """Temporary directories that the user of the boxes can reach; pytest's own belong to one user alone."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """Every line that the project's own rows and tables call read-only, with its directory and home as they are in the box."""
    found = [row["cmd"] for row in effects_cases.rows() if row["must"] != "mutates"]
    for name in TABLES.names():
        for table in TABLES.find(name):
            found += [example.run for example in table.examples if "read-only" in example.holds]
    context = AnalysisContext(effects_cases.CWD, effects_cases.HOME, effects_cases.CWD)
    return [text for text in dict.fromkeys(found) if analyze(text, context).read_only]


def test_what_is_called_read_only_changes_nothing(lines: list[str], folders: contextlib.ExitStack) -> None:
    """Each line runs for real, with harmless and with hostile variables and input; nothing is another after it."""
    bases = [folders.enter_context(tempfile.TemporaryDirectory(prefix="sandboxd-effects-")) for _ in range(2)]
    boxes = [Box(Path(base), effects_cases.CWD, effects_cases.HOME) for base in bases]
    changed: list[str] = []

    def work(number: int) -> int:
        box = boxes[number]
        box.make()
        box.own()
        assert box.works()
        _furnish(box)
        mine = lines[number :: len(boxes)]
        for at in range(0, len(mine), BATCH):
            batch = mine[at : at + BATCH]
            if not _changes(box, batch):
                continue
            for line in batch:
                _furnish(box)
                changed.extend(f"{line!r} changed {name}" for name in _changes(box, [line]))
            _furnish(box)
        return len(mine)

    with ThreadPoolExecutor(len(boxes)) as pool:
        done = sum(pool.map(work, range(len(boxes))))
    assert changed == []
    assert done == len(lines) > 250


def _changes(box: Box, batch: list[str]) -> list[str]:
    """What is another after these lines, but for caches."""
    before = box.seen()
    box.run(batch, *HOSTILE, stdin=STDIN)
    after = box.seen()
    found = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    kept = [name for name in found if not name.startswith(CACHES)]
    return sorted(kept if kept != ["home"] or len(found) == 1 else [])


# Tools of which every writing example must write on the fixture. Those that need a server, a device, a right that the box does
# not have, or input of a rare kind are not among them.
WRITERS = names(
    "ar awk bzip2 chmod cp csplit dd find gunzip gzip install ln mkdir mkfifo mv openssl patch rm rmdir sed sort split "
    "sqlite3 ssh-keygen tar tee touch truncate uniq unlink unxz unzip xxd xz zip zstd git make tac shuf time script env bash"
)
# Lines that write elsewhere, to a name that is not known, or not on this platform.
ELSEWHERE = frozenset(("sqlite3 app.db 'select 1'", "unzip -o a.zip -d ../out", "zstd --rm -c a"))


def _writes() -> list[str]:
    """The line of every example of these tools that claims an effect on a file."""
    found = []
    for name in sorted(WRITERS):
        for table in TABLES.find(name):
            for example in table.examples:
                claims = any(item.partition(" ")[0].partition(".")[0] in ("write", "delete") for item in example.holds)
                if claims and example.run not in ELSEWHERE and "$" not in example.run:
                    found.append(example.run)
    return list(dict.fromkeys(found))


def _stage(box: Box, line: str) -> None:
    """Files and directories for what the line reads, deletes or changes, so that it has something to do."""
    box.make()
    if line.startswith("git "):
        _repository(box)
    for name in ("z", "src/z"):
        _file(box.work / name)
    for word in line.split():
        if word.endswith("/") and not word.startswith(("/", "~")):
            (box.work / word).mkdir(parents=True, exist_ok=True)
    effects, _ = run(line, TABLES, TABLES.environment)
    paths = [
        (effect.target or "", effect)
        for effect in effects
        if effect.kind in (EffectKind.READ, EffectKind.WRITE, EffectKind.DELETE)
    ]
    for target, effect in sorted(paths, key=lambda pair: -len(pair[0])):
        for tree, root in ((box.work, DIRECTORY), (box.house, HOME)):
            if effect.pattern:
                target = target.replace("**/*", "inner")
            if target.startswith(f"{root}/"):
                path = tree / target.removeprefix(f"{root}/")
                if effect.recursive or line.startswith("rmdir"):
                    path.mkdir(parents=True, exist_ok=True)
                    if effect.recursive:
                        _file(path / "inner")
                elif effect.kind is not EffectKind.WRITE or effect.act in (Act.METADATA, Act.WRITE, Act.APPEND):
                    _file(path)
    box.own()


def _file(path: Path) -> None:
    """A file that a tool for its suffix understands."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    text = b"b 1\na 2\n"
    match path.suffix:
        case ".tar" | ".tgz":
            with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as archive:
                archive.add(__file__, "inner")
        case ".zip":
            with zipfile.ZipFile(path, "w") as zipped:
                zipped.writestr("inner", text)
        case ".gz":
            path.write_bytes(gzip.compress(text))
        case ".xz":
            path.write_bytes(lzma.compress(text))
        case ".diff" | ".patch":
            path.write_text("--- a.c\n+++ a.c\n@@ -1,2 +1,2 @@\n-b 1\n+c 1\n a 2\n")
        case _:
            path.write_bytes(text)


def _repository(box: Box) -> None:
    for name in ("a", "b", "d/x", ".bashrc", "tracked"):
        _file(box.work / name)
    _git(box.work, "init -q", "add .", "commit -qm first", "tag v1", "branch side")
    for name in ("a", ".bashrc", "new"):
        (box.work / name).write_text("changed")


@pytest.mark.parametrize("line", _writes())
def test_what_is_said_to_write_writes(line: str, folders: contextlib.ExitStack) -> None:
    """Each example with an effect on a file really changes something."""
    if shutil.which(line.split()[0]) is None:
        pytest.skip(f"{line.split()[0]} is not installed")
    base = Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="sandboxd-effects-")))
    box = Box(base, DIRECTORY, HOME)
    _stage(box, line)
    before = box.seen()
    box.run([line], stdin="./a\nb\n")
    assert box.seen() != before
