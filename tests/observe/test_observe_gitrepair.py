# SPDX-License-Identifier: GPL-3.0-or-later
"""What survives of a change to a git configuration, and what a new repository's configuration may say. Checked by git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.observe.gitconfig import parse
from sandboxd.observe.gitrepair import harmless, put_right

BASE = (
    '[core]\n\trepositoryformatversion = 0\n\tbare = false\n# mine\n[remote "origin"]\n\turl = ../o\n'
    '\tfetch = +refs/heads/*:refs/remotes/origin/*\n[branch "main"]\n\tremote = origin\n\tmerge = refs/heads/main\n'
)

# what was appended, keys that are undone
CHANGES = [
    ('[branch "x"]\n\tremote = origin\n\tmerge = refs/heads/x\n\trebase = true\n\tpushRemote = origin\n', ()),
    ('[branch "x.y"]\n\tremote = .\n\tmerge = refs/heads/main\n', ()),
    ("[core]\n\tfsmonitor = ./x\n", ("core.fsmonitor",)),
    ("[core]\n\thooksPath = h\n", ("core.hookspath",)),
    ('[remote "evil"]\n\turl = ext::sh\n', ("remote.evil.url",)),
    ('[branch "x"]\n\tremote = ext::sh\n', ("branch.x.remote",)),
    ('[branch "x"]\n\tmerge = --upload-pack=x\n', ("branch.x.merge",)),
    ('[branch "x"]\n\tmergeOptions = --strategy=x\n', ("branch.x.mergeoptions",)),
    ("[include]\n\tpath = ../x\n", ("include.path",)),
    ('[url "ext::sh"]\n\tinsteadOf = ../o\n', ("url.ext::sh.insteadof",)),
    ("[alias]\n\tst = !id\n[core]\n\tsshCommand = x\n", ("alias.st", "core.sshcommand")),
    ("[broken\n", ("everything: git could not have read it",)),
]


@pytest.mark.parametrize(("added", "undone"), CHANGES, ids=[row[0][:30].strip() for row in CHANGES])
def test_only_the_record_of_branches_survives(added: str, undone: tuple[str, ...]) -> None:
    """What is undone is named; without anything to undo the text stays as git wrote it."""
    text, keys = put_right(BASE, BASE + added)
    assert keys == undone
    assert text == (BASE if undone else BASE + added)


def test_what_survives_beside_what_is_undone() -> None:
    """An upstream that was recorded together with something else is written anew, and git reads it."""
    text, keys = put_right(BASE, BASE + '[branch "a\\"b"]\n\tremote = origin\n\tmerge = refs/heads/a\n[alias]\n\tx = !id\n')
    assert keys == ("alias.x",)
    assert text.startswith(BASE)
    assert parse(text) == (*(parse(BASE) or ()), ('branch.a"b.remote', "origin"), ('branch.a"b.merge', "refs/heads/a"))


def test_removed_and_renamed_branches_go() -> None:
    """`branch -d` and `branch -m` change nothing but sections of branches, whatever these hold."""
    extra = (
        BASE
        + '[branch "f"]\n\tremote = origin\n\tmerge = refs/heads/f\n\tdescription = words\n\tvscode-merge-base = origin/main\n'
    )
    assert put_right(extra, BASE) == (BASE, ())
    renamed = extra.replace('"f"', '"g"')
    assert put_right(extra, renamed) == (renamed, ())


@pytest.mark.parametrize(
    "text",
    [
        BASE,
        "[user]\n\tname = n\n\temail = n@example.org\n[commit]\n\tgpgsign = false\n[init]\n\tdefaultBranch = main\n",
        "[core]\n\thooksPath = /dev/null\n\tfsmonitor = false\n\teditor = true\n",
        '[submodule "s"]\n\turl = ../s\n\tactive = true\n[pull]\n\trebase = false\n[receive]\n\tdenyCurrentBranch = ignore\n',
        "",
    ],
)
def test_an_ordinary_configuration_is_not_touched(text: str) -> None:
    """What test suites and tools write into new repositories stays byte for byte."""
    assert harmless(text) == (text, ())


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("[core]\n\tfsmonitor = ./x", "core.fsmonitor"),
        ("[core]\n\thooksPath = ../h", "core.hookspath"),
        ("[core]\n\teditor = vi", "core.editor"),
        ("[core]\n\tworktree = ../..", "core.worktree"),
        ("[core]\n\tsshCommand = x", "core.sshcommand"),
        ("[extensions]\n\tworktreeConfig = true", "extensions.worktreeconfig"),
        ('[filter "x"]\n\tclean = x', "filter.x.clean"),
        ('[diff "x"]\n\ttextconv = x', "diff.x.textconv"),
        ('[remote "o"]\n\turl = ext::sh -c x', "remote.o.url"),
        ('[remote "o"]\n\tuploadpack = x', "remote.o.uploadpack"),
        ("[include]\n\tpath = x", "include.path"),
        ("[credential]\n\thelper = !x", "credential.helper"),
        ("[alias]\n\tst = !x", "alias.st"),
        ("[pager]\n\tlog = x", "pager.log"),
        ("[merge]\n\ttool = x", "merge.tool"),
        ("[gpg]\n\tprogram = x", "gpg.program"),
        ("[safe]\n\tdirectory = *", "safe.directory"),
    ],
)
def test_what_could_run_something_is_taken_out(setting: str, key: str, tmp_path: Path) -> None:
    """Only that, and git reads what is left as before."""
    text, keys = harmless(BASE + setting + "\n")
    assert keys == (key,)
    assert parse(text) == parse(BASE)
    (tmp_path / "config").write_text(text, encoding="utf-8")
    listed = subprocess.run(
        ["git", "config", "-f", str(tmp_path / "config"), "--list"], capture_output=True, text=True, check=True
    )
    assert len(listed.stdout.splitlines()) == len(parse(BASE) or ())


def test_what_was_there_before_may_stay() -> None:
    """Of an existing repository only what is new is taken out."""
    text = BASE + "[core]\n\tfsmonitor = mine\n"
    assert harmless(text, frozenset(parse(text) or ())) == (text, ())


@given(st.text(alphabet='[]"\\=;#\n\t abcemnort.', max_size=80))
def test_nothing_unlisted_passes(text: str) -> None:
    """Whatever text: the result is read by the parser, and has only entries of the input that are harmless."""
    kept, _ = harmless(text)
    entries = parse(kept)
    assert entries is not None
    assert set(entries) <= set(parse(text) or ())
    assert harmless(kept) == (kept, ())
