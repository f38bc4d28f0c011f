# SPDX-License-Identifier: GPL-3.0-or-later
"""git's configuration is read as git reads it, and everything in it that runs a program is known by name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxd.observe.gitconfig import ARMED, NEUTRAL, disarm, general, included, parse

ROWS: list[tuple[str, tuple[tuple[str, str | None], ...] | None]] = [
    ("", ()),
    ("[core]\n\tbare = false\n", (("core.bare", "false"),)),
    ("[Core]\nHooksPath=x", (("core.hookspath", "x"),)),
    ('[filter "L F"]\nclean = a b', (("filter.L F.clean", "a b"),)),
    ('[a "b\\"c\\\\d"]k=v', (('a.b"c\\d.k', "v"),)),
    ("[a.B]\nk=v", (("a.b.k", "v"),)),
    ("[a] k = v", (("a.k", "v"),)),
    ("[a]\nk", (("a.k", None),)),
    ("[a]\nk\nl", (("a.k", None), ("a.l", None))),
    ("[a]\nk ; x", None),
    ("[a]\nk=", (("a.k", ""),)),
    ("[a]\nk= v # c", (("a.k", "v"),)),
    ('[a]\nk="v # c" ; d', (("a.k", "v # c"),)),
    ('[a]\nk=" v "', (("a.k", " v "),)),
    ('[a]\nk=a"b c"d', (("a.k", "ab cd"),)),
    ("[a]\nk=a\\\nb", (("a.k", "ab"),)),
    ('[a]\nk=a\\n\\t\\"\\\\', (("a.k", 'a\n\t"\\'),)),
    ("[a]\r\nk=v\r\n", (("a.k", "v"),)),
    ("\ufeff[a]\nk=v", (("a.k", "v"),)),
    ("# c\n; d\n[a]\n# e\nk=v", (("a.k", "v"),)),
    ("[a]\nk=v1\nk=v2", (("a.k", "v1"), ("a.k", "v2"))),
    ("k=v", (("k", "v"),)),
    ("[a\nk=v", None),
    ('[a]\nk="v', None),
    ("[a]\nk=\\q", None),
    ("[a]\n1k=v", None),
    ("[a]\nk v", None),
]


@pytest.mark.parametrize(("text", "entries"), ROWS)
def test_rows(text: str, entries: tuple[tuple[str, str | None], ...] | None) -> None:
    """Each piece of the syntax, and each way to break it."""
    assert parse(text) == entries


def git_reads(path: Path) -> tuple[tuple[str, str | None], ...] | None:
    """What git itself reads."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", "config", "--file", str(path), "--no-includes", "--list", "-z"], check=False, capture_output=True, env=env
    )
    if done.returncode:
        return None
    out: list[tuple[str, str | None]] = []
    for item in done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        key, newline, value = item.partition("\n")
        out.append((key, value if newline else None))
    return tuple(out)


@pytest.mark.parametrize("text", [text for text, _ in ROWS])
def test_rows_as_git_reads_them(text: str, tmp_path: Path) -> None:
    """The table above is what the real git says."""
    path = tmp_path / "config"
    path.write_bytes(text.encode())
    assert parse(text) == git_reads(path)


WORDS = (
    "[a]",
    '[a "B c"]',
    "[a.B]",
    "[",
    "]",
    '"',
    "k",
    "key-2",
    "=",
    " = ",
    "v",
    " ",
    "\t",
    "\n",
    "\\\n",
    "\\n",
    "\\",
    "#c",
    ";d",
)
PIECES = st.sampled_from((*WORDS, "\n", "\r\n", "é"))


def spaced(entries: tuple[tuple[str, str | None], ...]) -> list[tuple[str, str | None]]:
    """Versions of git differ in whether a tab inside a value stays one."""
    return [(key, value and value.replace("\t", " ").replace("\r", " ")) for key, value in entries]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(PIECES, max_size=14))
def test_never_misses_what_git_reads(pieces: list[str], tmp_path: Path) -> None:
    """For any text: what git takes for an entry is found here, or the text is refused here (which counts as unreadable)."""
    text = "[s]\n" + "".join(pieces)
    path = tmp_path / "config"
    path.write_bytes(text.encode())
    ours = parse(text)
    if ours is not None:
        theirs = git_reads(path)
        assert theirs is None or spaced(ours) == spaced(theirs)


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("filter.lfs.clean", "filter.*.clean"),
        ("filter.a.b.clean", "filter.*.clean"),
        ("core.pager", "core.pager"),
        ("pager.log", "pager.*"),
        ("protocol.ext.allow", "protocol.ext.allow"),
        ("protocol.file.allow", "protocol.*.allow"),
        ("man.evil.cmd", "man.*.cmd"),
        ("man.woman.path", "man.*.path"),
        ("help.format", "help.format"),
        ("diff.external", "diff.external"),
        ("diff.x.command", "diff.*.command"),
    ],
)
def test_general(key: str, kind: str) -> None:
    """A key is recognised whatever stands in its middle."""
    assert general(key) == kind


def test_disarm() -> None:
    """Every armed key is stopped by a value, under its own name, or reported as one that nothing stops."""
    entries = parse(
        '[filter "x"]\nclean=evil\nprocess=evil\n[diff "y"]\ntextconv=evil\ncommand=evil\n[core]\nfsmonitor=evil\n'
        '[pager]\nlog=evil\n[diff]\nexternal=evil\n[user]\nname=me\n[remote "o"]\nuploadpack=evil\nurl=x\n'
    )
    assert entries is not None
    neutral, armed = disarm(entries)
    assert neutral == (
        ("filter.x.clean", ""),
        ("filter.x.required", "false"),
        ("filter.x.process", ""),
        ("diff.y.textconv", "cat"),
        ("core.fsmonitor", "false"),
        ("pager.log", "false"),
    )
    assert armed == ("diff.y.command", "diff.external", "remote.o.uploadpack")


def test_tables_are_disjoint() -> None:
    """A key is stopped by a value or by nothing, not both; all are written as they are looked up."""
    assert not set(NEUTRAL) & set(ARMED)
    for key in (*NEUTRAL, *ARMED):
        assert key == key.lower()
        assert general(key.replace("*", "x")) == key


def test_included() -> None:
    """Includes are followed, conditions taken as met."""
    entries = parse('[include]\npath=a\npath\n[includeIf "gitdir:~/x/"]\npath=b\n[includeother]\npath=c\n')
    assert entries is not None
    assert included(entries) == ("a", "b")
