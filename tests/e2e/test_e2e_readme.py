# SPDX-License-Identifier: GPL-3.0-or-later
"""The README's examples are true: each is run as it stands, and says what the README says."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.conftest import ROOT
from tests.e2e.conftest import Place

README = (ROOT / "README.md").read_text(encoding="utf-8")
CONSOLES = re.findall(r"(?ms)^```console\n(.*?)^```", README)
PROGRAMS = re.findall(r"(?ms)^```python\n(.*?)^```", README)


def said_as(shown: str, got: str) -> bool:
    """Whether `got` is what the README shows; `…` stands for any text."""
    return re.fullmatch(".*?".join(re.escape(piece) for piece in shown.split("…")), got, re.DOTALL) is not None


def test_there_are_examples() -> None:
    """The README still shows what it is about."""
    assert len(CONSOLES) >= 3
    assert PROGRAMS


@pytest.mark.parametrize("number", range(len(CONSOLES)))
def test_an_example_says_what_the_readme_says(number: int, new_place: Callable[[], Place]) -> None:
    """A stranger who types the line sees the lines below it; only paths, times and what is left out differ."""
    place = new_place()
    tree = place.workspace()
    (tree / "notes.txt").write_text("one\ntwo\n", encoding="utf-8")
    place.person.own(tree)
    for line, shown in re.findall(r"(?m)^\$ (.*)\n((?:(?!\$ ).*\n)*)", CONSOLES[number]):
        path = f"{place.person.sandboxd.parent}:/usr/local/bin:/usr/bin:/bin"
        done = place.person.run(["bash", "-c", f"exec 2>&1\n{line}"], cwd=tree, env={**place.env(), "PATH": path})
        got = done.stdout.replace(str(tree), "/home/me/demo")
        assert said_as(shown, got), f"$ {line}\n{got}"


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_python_example_runs(program: str, served: Place) -> None:
    """The client's example works as it stands against a running daemon."""
    tree = served.workspace()
    done = served.person.run([served.person.python, "-c", program], cwd=tree, env=served.env())
    assert done.returncode == 0, done
    assert "2e" in done.stdout
