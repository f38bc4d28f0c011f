# SPDX-License-Identifier: GPL-3.0-or-later
"""The files whose content a command executes: found as its program would find them, read with bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandboxd.analyze import analyze
from sandboxd.model import AnalysisContext
from sandboxd.observe import executed
from sandboxd.observe.executed import MAX_CONTENT


def found(work: Path, text: str, cwd: str = "") -> dict[str, str]:
    start = f"{work}/{cwd}".rstrip("/")
    analysis = analyze(text, AnalysisContext(start, str(work.parent), str(work)))
    return {
        os.path.relpath(path, work): digest for path, digest in executed(analysis, workspace=str(work), home=str(work.parent))
    }


def put(work: Path, name: str, text: str = "x\n") -> None:
    path = work / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


ROWS = [
    ("bash a.sh", ["a.sh"]),
    ("bash a.sh data.txt", ["a.sh", "data.txt"]),
    ("./a.sh", ["a.sh"]),
    ("sub/b.sh", ["sub/b.sh"]),
    ("cd sub && ./b.sh", ["sub/b.sh"]),
    ("cd sub && python3 ../m.py", ["m.py"]),
    (". ./a.sh", ["a.sh"]),
    ("source a.sh", ["a.sh"]),
    ("python3 m.py", ["m.py"]),
    ("node -r ./pre.js m.js", ["m.js", "package.json", "pre.js"]),
    ("make", ["Makefile"]),
    ("make -f other.mk", ["Makefile", "other.mk"]),
    ("make --file=other.mk", ["Makefile", "other.mk"]),
    ("make -C sub", ["Makefile", "sub/Makefile"]),
    ("npm run build", ["package.json"]),
    ("cd sub && npm test", ["package.json"]),
    ("sudo ./a.sh", ["a.sh"]),
    ("timeout 5 bash a.sh", ["a.sh"]),
    ("bash -c './a.sh'", ["a.sh"]),
    ("ls a.sh", []),
    ("cat m.py", []),
]


@pytest.mark.parametrize(("text", "names"), ROWS, ids=[row[0] for row in ROWS])
def test_what_is_executed(tmp_path: Path, text: str, names: list[str]) -> None:
    """Scripts among the words, programs by path, and the files that a tool looks for; nothing of a command that only reads."""
    work = tmp_path / "ws"
    for name in (
        *("a.sh", "data.txt", "m.py", "m.js", "pre.js", "other.mk", "Makefile", "package.json"),
        *("sub/b.sh", "sub/Makefile"),
    ):
        put(work, name)
    assert sorted(found(work, text)) == names


def test_a_link_counts_by_where_it_leads(tmp_path: Path) -> None:
    """The file behind a link is digested, and another target is another file."""
    put(tmp_path, "one.sh", "1")
    put(tmp_path, "two.sh", "2")
    (tmp_path / "go.sh").symlink_to("one.sh")
    before = found(tmp_path, "bash go.sh")
    assert list(before) == ["one.sh"]
    (tmp_path / "go.sh").unlink()
    (tmp_path / "go.sh").symlink_to("two.sh")
    assert list(found(tmp_path, "bash go.sh")) == ["two.sh"]


def test_content_decides_not_time(tmp_path: Path) -> None:
    """Touching a file changes nothing; one byte changes its digest."""
    put(tmp_path, "a.sh", "echo a")
    before = found(tmp_path, "bash a.sh")
    os.utime(tmp_path / "a.sh", (1, 1))
    assert found(tmp_path, "bash a.sh") == before
    put(tmp_path, "a.sh", "echo b")
    assert found(tmp_path, "bash a.sh") != before


def test_what_is_large_counts_by_its_state(tmp_path: Path) -> None:
    """A file beyond the bound is not read, and still shows a change."""
    with open(tmp_path / "big", "wb") as file:
        file.truncate(MAX_CONTENT + 1)
    os.chmod(tmp_path / "big", 0o755)
    before = found(tmp_path, "./big")
    assert list(before) == ["big"]
    with open(tmp_path / "big", "r+b") as file:
        file.write(b"y")
    assert found(tmp_path, "./big") != before


def test_nothing_blocks(tmp_path: Path) -> None:
    """FIFOs, devices and directories among the words are no files."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dir").mkdir()
    assert found(tmp_path, "bash pipe") == {}
    assert found(tmp_path, "bash dir /dev/zero") == {}
