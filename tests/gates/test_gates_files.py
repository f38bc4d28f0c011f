# SPDX-License-Identifier: GPL-3.0-or-later
"""What every file of the repository keeps: size, licence, words, and a reason beside each suppressed warning.

To add a gate: a function from text to a list of complaints, a test over the tree, and a red row for each way to break it.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Callable, Iterable

import pytest

from tests.gates._tree import ROOT, python, read, tracked


def by_file(gate: Callable[[str], list[str]], names: Iterable[str]) -> dict[str, list[str]]:
    """The complaints of `gate` about each file that has any."""
    return {name: complaints for name in names if (complaints := gate(read(name)))}


# --- size ---------------------------------------------------------------------------------------------------------------

HARD, AIM = 800, 400  # lines of one module


def oversized(sizes: dict[str, int], bound: int) -> dict[str, int]:
    return {name: lines for name, lines in sizes.items() if lines > bound}


def test_no_module_is_longer_than_the_gate() -> None:
    """A module over 800 lines is two modules; those over 400 are listed (`pytest -rP`) to be looked at."""
    sizes = {name: read(name).count("\n") for name in python()}
    for name, lines in oversized(sizes, AIM).items():
        print(f"{name}: {lines} lines")
    assert oversized(sizes, HARD) == {}


def test_the_size_gate_is_red() -> None:
    """801 lines are too many, 800 are not."""
    assert oversized({"long.py": 801, "full.py": 800}, HARD) == {"long.py": 801}


# --- licence ------------------------------------------------------------------------------------------------------------

GPL = "SPDX-License-Identifier: GPL-3.0-or-later"
APACHE = "SPDX-License-Identifier: Apache-2.0"
# What carries no header: text for people, data in formats without comments, the licence itself.
BARE = re.compile(r"\.(md|jsonl|json|binpb|lock|txt|bin)$|^(LICENSE|\.gitignore)$|py\.typed$")


def unlicensed(name: str, text: str) -> bool:
    """Whether the file's first line (after `#!`) lacks the licence that it must carry."""
    lines = text.splitlines()[:2] or [""]
    first = lines[-1] if lines[0].startswith("#!") else lines[0]
    return (APACHE if name.startswith("proto/") and not name.endswith(".py") else GPL) not in first


def test_every_file_says_its_licence() -> None:
    """GPL-3.0-or-later everywhere, Apache-2.0 on the wire contract, on the first line."""
    assert [name for name in tracked() if not BARE.search(name) and unlicensed(name, read(name))] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", ""),
        ("a.py", "import os\n"),
        ("a.py", f'"""Doc."""\n# {GPL}\n'),
        ("a.py", f"# {APACHE}\n"),
        ("proto/a.proto", f"// {GPL}\n"),
        ("a.sh", "#!/bin/sh\necho\n"),
    ],
)
def test_the_licence_gate_is_red_for(name: str, text: str) -> None:
    """A missing, late or wrong header is seen."""
    assert unlicensed(name, text)


# --- words --------------------------------------------------------------------------------------------------------------

# Nothing here speaks of the place where it was written. A bracketed letter keeps a pattern from matching itself.
UNSPOKEN = {
    "a path of a workplace": re.compile(r"(?<![\w.])/wor[k]/|(?<![\w.])/tm[p]/(brief|bash_jobs)|/\.pyen[v]/|\.\./share[d]/"),
    "a package registry's host": re.compile(
        r"pypi\.or[g]|pythonhoste[d]|registry\.np[m]js|registry\.yar[n]pkg|deb\.debia[n]\.org|archive\.ubunt[u]|crates\.i[o]\b|"
        r"proxy\.golan[g]|rubygems\.or[g]|repo\d*\.mave[n]"
    ),
    "an issue or a document that is not here": re.compile(
        r"(?i)\bissue[s]?\s*#?\s?\d|\(#\d+\)|\bspec/\w+\.m[d]|\b(permissions|parsing|execution|isolation)\.m[d]\b|\bcorpor[a]/"
    ),
    "whoever wrote it": re.compile(r"(?i)\b(the CE[O]|our lea[d] |helper sessio[n]|Generated wit[h] |Co-Authored-B[y])"),
}


def spoken(text: str) -> list[str]:
    return [f"{what}: {hit.group()}" for what, pattern in UNSPOKEN.items() for hit in pattern.finditer(text)]


def test_nothing_speaks_of_the_workplace() -> None:
    """A stranger who reads the repository finds no path, host or number that means nothing to them."""
    assert by_file(spoken, [name for name in tracked() if not name.endswith((".binpb", ".bin"))]) == {}


@pytest.mark.parametrize(
    "text",
    [
        "see /wor" + "k/main/x",
        "/tm" + "p/brief.md",
        "$HOME/.pyen" + "v/versions",
        "../share" + "d/spec",
        "https://pypi.or" + "g/simple",
        "registry.np" + "mjs.org",
        "as issu" + "e 2 asks",
        "Issu" + "e #14",
        "fixes it (" + "#7)",
        "spec/parsing.m" + "d",
        "section 9 of permissions.m" + "d",
        "corpor" + "a/attacks.jsonl",
        "as the CE" + "O said",
    ],
)
def test_the_word_gate_is_red_for(text: str) -> None:
    """Each kind of reference to the workplace is seen."""
    assert spoken(text)


@pytest.mark.parametrize(
    "text", ["src/work/main", "network/", "tests/corpus/rows.jsonl", "this issue", "the leading slash", "/tmp/x"]
)
def test_the_word_gate_is_green_for(text: str) -> None:
    """Plain words that only look alike pass."""
    assert spoken(text) == []


# --- suppressed warnings and things left undone -------------------------------------------------------------------------

SUPPRESSION = re.compile(r"#\s*(?P<what>noqa|type:\s*ignore|ruff:\s*noqa)(?P<rest>.*)", re.IGNORECASE)
REASONED = {
    "noqa": re.compile(r":\s*[A-Z]+\d+(\s*,\s*[A-Z]+\d+)*\s+\S.{7,}"),
    "type": re.compile(r"\[[\w-]+(\s*,\s*[\w-]+)*\]\s*#?\s*\S.{7,}"),
}


def unreasoned(source: str) -> list[str]:
    """Comments that suppress a warning without naming it and saying why, or that leave work for later."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type is not tokenize.COMMENT:
            continue
        for hit in [SUPPRESSION.search(token.string)]:
            if hit and not (shape := REASONED.get(hit["what"].split(":")[0].lower())):
                found.append(f"{token.start[0]}: {token.string}: suppresses a whole file")
            elif hit and shape and not shape.match(hit["rest"]):
                found.append(f"{token.start[0]}: {token.string}: no code or no reason")
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", token.string):
            found.append(f"{token.start[0]}: {token.string}: left for later")
    return found


def test_every_suppressed_warning_has_its_reason() -> None:
    """A `noqa` or `type: ignore` names its code and says why, and no comment leaves work for later."""
    assert by_file(unreasoned, python()) == {}


@pytest.mark.parametrize(
    "comment",
    [
        "noqa",
        "noqa: S108",
        "noqa: S108 x",
        "noqa  because it is so",
        "type: ignore",
        "type: ignore[arg-type]",
        "type: ignore  # because it is so",
        "ruff: noqa",
        "ruff: noqa: S101  because it is so",
        "TO" + "DO later",
        "FIX" + "ME",
    ],
)
def test_the_suppression_gate_is_red_for(comment: str) -> None:
    """A bare, unnamed, unexplained or file-wide suppression is seen."""
    assert unreasoned(f"x = 1  # {comment}\n")


@pytest.mark.parametrize(
    "comment",
    ["noqa: S108  the path inside the box", "noqa: S1, B2  two at once, for a reason", "type: ignore[misc]  # stub says so"],
)
def test_the_suppression_gate_is_green_for(comment: str) -> None:
    """A named suppression with its reason passes."""
    assert unreasoned(f"x = 1  # {comment}\n") == []


def test_every_lint_rule_that_is_off_has_its_reason() -> None:
    """A rule that pyproject.toml turns off for the whole tree says why on its line."""
    (block,) = re.findall(r"(?ms)^ignore = \[\n(.*?)^\]", read("pyproject.toml"))
    assert [line for line in block.splitlines() if not re.search(r"#\s*\S.{7,}", line)] == []


# --- source that Python itself doubts -----------------------------------------------------------------------------------


def test_no_source_makes_python_warn() -> None:
    """Bad escapes and comparisons that cannot hold are errors at compile time, not at import on some later Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in python():
            compile(read(name), str(ROOT / name), "exec", ast.PyCF_ONLY_AST)


# --- documents ----------------------------------------------------------------------------------------------------------

PLACE = re.compile(r"`((?:sandboxd|tests|docs|proto|profiles|benchmarks|\.ci)/[\w./-]*|[\w-]+\.(?:toml|md)|Makefile|LICENSE)`")
KNOWN_ELSEWHERE = {"config.toml", "settings.toml", "package.json"}  # files of a user or a workspace, not of this repository


def lost(text: str) -> list[str]:
    """The places that `text` names in backticks and that do not exist."""
    return [place for place in PLACE.findall(text) if place not in KNOWN_ELSEWHERE and not (ROOT / place).exists()]


def test_documents_point_to_what_exists() -> None:
    """Every file or folder that a document names in backticks is there, so "go to" never leads nowhere."""
    assert by_file(lost, [name for name in tracked() if name.endswith(".md")]) == {}


def test_the_document_gate_is_red() -> None:
    """A place that was renamed or never made is seen."""
    assert lost("see `sandboxd/nowhere.py`, `sandboxd/errors.py` and `nowhere.toml`") == ["sandboxd/nowhere.py", "nowhere.toml"]
