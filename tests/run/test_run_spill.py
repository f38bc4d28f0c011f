# SPDX-License-Identifier: GPL-3.0-or-later
"""Stored results: whole, private, bounded; and the text a model gets instead of them."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from pathlib import Path

import pytest

from sandboxd.model import UNLIMITED, Result
from sandboxd.run.modeltext import MAX_MESSAGE, model_text
from sandboxd.run.preview import Budgets
from sandboxd.run.spill import Spills, Stored
from sandboxd.run.spool import Kept
from tests.run.conftest import Runner

SMALL = Budgets(result=1000, batch=3000, absolute=5000)


@pytest.fixture
def spills(tmp_path: Path) -> Spills:
    made = Spills(f"{tmp_path}/spill", 10_000, 3600)
    made.open("s", os.getuid(), os.getgid())
    return made


async def kept(runner: Runner, text: str, **options: object) -> Kept:
    execution = runner.make(text)
    ended = await runner.run(execution, text, **options)
    execution.finish(Result(ended.kind, ended.code))
    return execution.kept()


def never(chunks: object, whole: str) -> Stored | None:
    raise AssertionError("stored")


async def test_a_short_output_is_all_there(runner: Runner) -> None:
    """Within the budget a model reads everything, both streams, and nothing is stored."""
    found = model_text(await kept(runner, "echo out; echo err >&2"), SMALL, None, never)
    assert sorted(found.text.splitlines()) == ["err", "out"]
    assert found.whole
    assert found.spill_path == ""


async def test_a_long_output_is_stored_whole(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Over the budget all of it lies in a file of mode 0600, and the model gets both ends and the path."""
    spills = Spills(str(tmp_path_factory.mktemp("spill")), 1 << 20, 3600)
    spills.open("s", os.getuid(), os.getgid())
    for count in (400, 3000):  # below and above the absolute budget, in which case the text is never read as a whole
        found = model_text(await kept(runner, f"seq {count}"), SMALL, None, partial(spills.store, "s", f"e-{count}"))
        assert Path(found.spill_path).read_text() == "".join(f"{n}\n" for n in range(1, count + 1))
        assert stat.S_IMODE(os.stat(found.spill_path).st_mode) == 0o600
        assert found.text.startswith("1\n2\n")
        assert found.text.endswith(f"\n{count - 1}\n{count}\n")
        assert found.spill_path in found.text
        assert len(found.text) < 1000 + 200
        assert not found.whole


async def test_what_is_stored_is_the_spool_itself(runner: Runner, spills: Spills) -> None:
    """The whole output is a second link to the spool: nothing is copied, and it stays when the spool goes. Where the spool
    does not hold all of it, or another user is to read it, the text is written anew."""
    spills.quota = 1 << 20
    execution = runner.make()
    ended = await runner.run(execution, "seq 3000; echo err >&2")
    execution.finish(Result(ended.kind, ended.code))
    found = model_text(execution.kept(), SMALL, None, partial(spills.store, "s", "whole"))
    assert os.path.samefile(found.spill_path, f"{runner.spool_dir}/{execution.id}.spool")
    execution.close()
    numbers = "".join(f"{n}\n" for n in range(1, 3001))
    assert Path(found.spill_path).read_text() in (numbers + "err\n", "err\n" + numbers)
    cut = await kept(runner, "seq 3000", max_output=6000)
    found = model_text(cut, SMALL, None, partial(spills.store, "s", "cut"))
    assert os.stat(found.spill_path).st_nlink == 1
    assert "were not kept]" in Path(found.spill_path).read_text() or Path(found.spill_path).read_text() == numbers
    large = await kept(runner, "seq 3000")
    spills.quota = 10_000
    found = model_text(large, SMALL, None, partial(spills.store, "s", "large"))
    assert Path(found.spill_path).read_text() == numbers[:10_000]
    assert "the first 10000 bytes" in found.text
    if os.getuid() == 0:
        os.chown(f"{spills.root}/s", 65534, 65534)
        found = model_text(large, SMALL, None, partial(spills.store, "s", "other"))
        assert os.stat(found.spill_path).st_uid == 65534
        assert os.stat(large.path).st_uid == 0
    spills.drop("s")
    os.rmdir(spills.root)


async def test_colours_do_not_count(runner: Runner) -> None:
    """The budget counts what a model reads: sequences are stripped first."""
    text = r"for i in $(seq 100); do printf '\033[38;5;196m%s\033[0m\n' x; done"
    found = model_text(await kept(runner, text), Budgets(result=300, absolute=5000), None, never)
    assert found.text == "x\n" * 100


async def test_an_exempt_call_is_never_stored(runner: Runner) -> None:
    """`unlimited` comes first: whatever the budgets are, the model gets all of it and no file is made."""
    found = model_text(await kept(runner, "seq 3000"), Budgets(0, 0, 0), UNLIMITED, never)
    assert found.text.splitlines()[-1] == "3000"
    assert found.whole


async def test_an_exempt_call_is_bounded_by_the_message(runner: Runner) -> None:
    """Without a budget the size of a message is the bound, and the text says that it was cut."""
    found = model_text(await kept(runner, f"head -c {MAX_MESSAGE + 10} /dev/zero | tr '\\0' x"), SMALL, UNLIMITED, never)
    assert not found.whole
    assert f"{MAX_MESSAGE + 10} bytes in all" in found.text


async def test_what_was_not_kept_is_said(runner: Runner) -> None:
    """A full spool leaves a gap, and the model's text says so."""
    found = model_text(await kept(runner, "seq 40000", max_output=1000), Budgets(), 400_000, never)
    assert "were not kept]" in found.text
    assert found.text.endswith("40000\n")
    assert not found.whole


async def test_a_disk_that_is_full(runner: Runner, monkeypatch: pytest.MonkeyPatch, spills: Spills) -> None:
    """When the disk refuses, the model still gets both ends, and is told how much was stored."""
    output = await kept(runner, "seq 3000")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        found = model_text(output, SMALL, None, lambda chunks, _: spills.store("s", "e", chunks))
    assert "the first 0 bytes" in found.text
    assert found.text.endswith("\n3000\n")
    spills.drop("s")
    os.rmdir(spills.root)


def test_quota_and_age(spills: Spills) -> None:
    """The oldest make room for the newest, what is too old goes, and one result cannot take more than all."""
    paths = []
    for number in range(4):
        stored = spills.store("s", f"e{number}", [b"x" * 3000])
        assert stored is not None
        paths.append(stored.path)
    assert [os.path.exists(path) for path in paths] == [False, True, True, True]
    large = spills.store("s", "large", [b"y" * 8000, b"z" * 8000])
    assert large == Stored(f"{spills.root}/s/large.txt", 10_000, False)
    assert [os.path.exists(path) for path in paths] == [False] * 4
    later = Spills(spills.root, 20_000, 60)  # of the next daemon
    later.sweep()
    assert os.path.exists(large.path)
    os.utime(large.path, (1e9, 1e9))
    later.sweep()
    assert not os.path.exists(large.path)
    assert not os.path.exists(f"{spills.root}/s")  # nobody's any more


def test_a_clock_that_jumps_loses_nothing(tmp_path: Path) -> None:
    """What this daemon stored grows old by the time that passes, whatever the date of its file says."""
    now = 100.0
    spills = Spills(f"{tmp_path}/spill", 10_000, 60, lambda: now)
    spills.open("s", os.getuid(), os.getgid())
    paths = []
    for name, date in (("first", 1e9), ("second", 4e9), ("third", 1e9)):
        stored = spills.store("s", name, [b"x" * 3000])
        assert stored is not None
        os.utime(stored.path, (date, date))
        paths.append(stored.path)
        now += 25
    assert [os.path.exists(path) for path in paths] == [True] * 3
    now += 1  # 76 s, 51 s and 26 s old
    spills.sweep(["s"])
    assert [os.path.exists(path) for path in paths] == [False, True, True]


def test_new_bounds_hold_for_what_is_stored_next(spills: Spills) -> None:
    """After a reload the new quota and age hold, for what lies there already, too."""
    first = spills.store("s", "first", [b"x" * 6000])
    assert first is not None
    spills.configure(2_000, 3600)
    second = spills.store("s", "second", [b"y" * 3000])
    assert second == Stored(f"{spills.root}/s/second.txt", 2_000, False)
    assert not os.path.exists(first.path)


def test_no_link_is_followed(spills: Spills, tmp_path: Path) -> None:
    """A link that lies where a result would go is neither followed nor replaced."""
    (tmp_path / "other").write_text("keep")
    os.symlink(tmp_path / "other", f"{spills.root}/s/e.txt")
    stored = spills.store("s", "e", [b"data"])
    assert stored is not None
    assert (tmp_path / "other").read_text() == "keep"


def test_another_user_comes_only_where_it_may(tmp_path: Path) -> None:
    """A box of another user gets a directory of its own when it can come there, else none, and nothing is stored for it."""
    if os.getuid() != 0:
        pytest.skip("needs root")
    made = Spills(f"{tmp_path}/spill", 1000, 60)
    assert made.open("s", 65534, 65534) == ""  # the temporary directory of the tests is private
    assert made.store("s", "e", [b"data"]) is None
    assert os.listdir(made.root) == []
