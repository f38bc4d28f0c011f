# SPDX-License-Identifier: GPL-3.0-or-later
"""The protected set, the secrets and the globs: names as people and attackers spell them."""

from __future__ import annotations

import fnmatch
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd import killswitch
from sandboxd.globs import literal_prefix, overlaps, path_overlaps
from sandboxd.model import Sensitivity
from sandboxd.sensitive import SECRET_PATHS, fragments_sensitivity, pattern_sensitivity, secret_masks, sensitivity
from tests.policy.policy_cases import HOME, rows


@pytest.mark.parametrize("row", rows("policy_killswitch", "path"), ids=lambda row: str(row["path"]))
def test_protected(row: dict[str, Any]) -> None:
    """A path is protected exactly when a component of it is, in whatever case; names that only begin alike are not."""
    assert killswitch.protected(row["path"], HOME) == (row["name"] or None)


@pytest.mark.parametrize("row", rows("policy_killswitch", "pattern"), ids=lambda row: str(row["pattern"]))
def test_protected_pattern(row: dict[str, Any]) -> None:
    """A glob is evidence when it can match a protected name and says something of it."""
    assert killswitch.protected_pattern(row["pattern"], HOME) == (row["name"] or None)


@pytest.mark.parametrize("row", rows("policy_killswitch", "fragments"), ids=lambda row: "+".join(row["fragments"]) or "none")
def test_protected_fragments(row: dict[str, Any]) -> None:
    """The literal pieces of a target are evidence when a protected name is spelled or begun in them."""
    assert killswitch.protected_fragments(tuple(row["fragments"])) == (row["name"] or None)


@pytest.mark.parametrize("row", rows("policy_killswitch", "catastrophe"), ids=lambda row: str(row["path"]))
def test_catastrophe(row: dict[str, Any]) -> None:
    """Deleting the root, a top-level directory, a home, the workspace or a parent of it is a catastrophe."""
    assert killswitch.catastrophic_pattern(row["path"], HOME, "/srv/team/app") is not None


@pytest.mark.parametrize("row", rows("policy_killswitch", "ordinary"), ids=lambda row: str(row["path"]))
def test_no_catastrophe(row: dict[str, Any]) -> None:
    """Deleting anything below the workspace, or one other directory, is an ordinary mutation."""
    assert killswitch.catastrophic_pattern(row["path"], HOME, "/srv/team/app") is None


@pytest.mark.parametrize("name", [*killswitch.PROTECTED_DIRS, *killswitch.PROTECTED_FILES])
def test_every_name_at_any_depth(name: str) -> None:
    """Every protected name is found in the root, deep down, in upper case, and as what a fragment spells."""
    for path in (f"/{name}", f"/a/b/c/{name}", f"/a/{name.upper()}", f"{HOME}/{name}"):
        assert killswitch.protected(path, HOME) == name
    assert killswitch.protected_fragments((f"/{name}",)) == name
    assert killswitch.protected(f"/a/x{name}", HOME) is None
    assert killswitch.protected(f"/a/{name}x", HOME) is None


@pytest.mark.parametrize("path", [HOME, "/", "/home", "/root", f"{HOME}/.config", "/etc", "/var/spool"])
def test_tree_over_protected(path: str) -> None:
    """A tree operation over a directory that holds protected names by name reaches them."""
    assert killswitch.covers_protected(path, HOME) is not None


@pytest.mark.parametrize("path", ["/srv/app", "/srv/app/node_modules", f"{HOME}/src", "/usr/lib", "/tmp"])
def test_tree_over_nothing(path: str) -> None:
    """Any other directory is no evidence, whatever may lie in it."""
    assert killswitch.covers_protected(path, HOME) is None


def test_absent_names() -> None:
    """What is guarded while it is absent never includes `.git`, and nothing that belongs into a deeper directory."""
    assert ".git" not in killswitch.ABSENT_DIRS
    assert all("/" not in name for name in (*killswitch.ABSENT_DIRS, *killswitch.ABSENT_FILES))
    assert ".claude" in killswitch.ABSENT_DIRS
    assert ".mcp.json" in killswitch.ABSENT_FILES


@pytest.mark.parametrize("row", rows("policy_sensitive", "path"), ids=lambda row: str(row["path"]))
def test_sensitivity(row: dict[str, Any]) -> None:
    """A secret is one in every home, also through the kernel's aliases of the root."""
    assert sensitivity(row["path"], HOME) is Sensitivity(row["is"])


@pytest.mark.parametrize("row", rows("policy_sensitive", "pattern"), ids=lambda row: str(row["pattern"]))
def test_pattern_sensitivity(row: dict[str, Any]) -> None:
    """A glob is as sensitive as what it can match and speaks of."""
    assert pattern_sensitivity(row["pattern"], HOME) is Sensitivity(row["is"])


@pytest.mark.parametrize("row", rows("policy_sensitive", "fragments"), ids=lambda row: "+".join(row["fragments"]) or "none")
def test_fragments_sensitivity(row: dict[str, Any]) -> None:
    """What is known of a target is enough when it spells a secret."""
    assert fragments_sensitivity(tuple(row["fragments"]), HOME) is Sensitivity(row["is"])


def test_masks_are_secret() -> None:
    """Every path that isolation hides is one that policy asks about, and the other way round."""
    masks = secret_masks(HOME)
    for mask in masks:
        assert pattern_sensitivity(mask, HOME) is Sensitivity.SECRET, mask
    hidden = [path for path in SECRET_PATHS if not path.startswith(("**", "/proc/", "/dev/"))]
    assert len(masks) == len(hidden)
    assert all(mask.startswith("/") for mask in masks)


_NAMES = st.text(alphabet=".gitab", max_size=6)
_GLOBS = st.lists(st.sampled_from([".", "g", "i", "t", "a", "*", "?", "[gi]", "[!a]", "**"]), max_size=6).map("".join)


@given(_GLOBS, _NAMES)
def test_overlaps_is_matching(glob: str, name: str) -> None:
    """Against a plain name, `overlaps` is what fnmatch says."""
    assert overlaps(glob, name) == fnmatch.fnmatchcase(name, glob)


@given(_GLOBS, _GLOBS, _NAMES)
def test_overlaps_misses_nothing(left: str, right: str, name: str) -> None:
    """When one name matches both globs, the two overlap; and overlapping is symmetric."""
    if fnmatch.fnmatchcase(name, left) and fnmatch.fnmatchcase(name, right):
        assert overlaps(left, right)
    assert overlaps(left, right) == overlaps(right, left)


@pytest.mark.parametrize(
    ("glob", "path", "hit"),
    [
        ("/a/*", "/a/b", True),
        ("/a/*", "/a/b/c", False),
        ("/a/**", "/a", True),
        ("/a/**", "/a/b/c", True),
        ("/a/**/z", "/a/z", True),
        ("/a/**/z", "/a/b/c/z", True),
        ("/a/**/z", "/a/b/c", False),
        ("/a/**/x", "/a/b/**", True),
        ("/a/*/c", "/a/**", True),
        ("/a/\\*", "/a/b", False),
        ("/a/\\*", "/a/\\*", True),
        ("/a/[", "/a/[", True),
    ],
)
def test_path_overlaps(glob: str, path: str, hit: bool) -> None:
    """`**` spans any number of components, none included; an escaped or unclosed pattern is literal."""
    assert path_overlaps(glob, path) is hit


PIECES = st.lists(st.sampled_from(("a", "b", "*", "**", "?b", "[a-c]", ".x")), max_size=5)


@given(PIECES, PIECES, st.booleans())
def test_path_overlaps_is_what_it_means(left: list[str], right: list[str], dots: bool) -> None:
    """Two path globs have a path in common when their components pair off, `**` with any number of them."""

    def meet(one: list[str], other: list[str]) -> bool:
        if not one or not other:
            return set(one + other) <= {"**"}
        if one[0] == "**":
            return meet(one[1:], other) or meet(one, other[1:])
        if other[0] == "**":
            return meet(one, other[1:]) or meet(one[1:], other)
        return (one[0] == other[0] or overlaps(one[0], other[0], dots)) and meet(one[1:], other[1:])

    if left and right:
        assert path_overlaps("/" + "/".join(left), "/" + "/".join(right), dots) is meet(left, right)


def test_dots() -> None:
    """Without `dots` a leading wildcard leaves names with a dot alone, as bash does."""
    assert overlaps("*", ".git")
    assert not overlaps("*", ".git", dots=False)
    assert not overlaps("[!x]git", ".git", dots=False)
    assert overlaps(".*", ".git", dots=False)


def test_literal_prefix() -> None:
    """The part of a path glob before its first pattern is a directory."""
    assert literal_prefix("/a/b/*.py") == "/a/b"
    assert literal_prefix("/*") == "/"
    assert literal_prefix("/a/b") == "/a/b"


@given(st.integers(1, 40))
def test_globs_stay_quick(count: int) -> None:
    """The work of matching grows with the product of the lengths, not with the number of ways to match."""
    assert not overlaps("*a" * count + "b", "a" * 200)
