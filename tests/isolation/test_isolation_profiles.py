# SPDX-License-Identifier: GPL-3.0-or-later
"""Profiles: what is shipped keeps its own promises, what is wrong gets one clear error with file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandboxd.errors import IsolationError, ProfileError
from sandboxd.isolation import backends, profiles
from sandboxd.isolation.profiles import KEYS, SHIPPED_DIR
from sandboxd.model import (
    Enforcement,
    Layer,
    LayerState,
    NetworkMode,
    Probe,
    Profile,
    Require,
    Strength,
)

SHIPPED = ("build", "ci", "network", "read-only", "workspace")


def test_what_is_shipped() -> None:
    """These five, found by name."""
    assert profiles.names((SHIPPED_DIR,)) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_keep_what_they_say(name: str) -> None:
    """Each loads, says what it is for, holds tests, and passes them."""
    profile = profiles.load(name, (SHIPPED_DIR,))
    assert profile.description
    assert "[[test]]" in Path(profile.origin).read_text(encoding="utf-8")
    assert profiles.check(name, (SHIPPED_DIR,)) == ()


def test_only_the_network_profile_has_network() -> None:
    """And none of them lets anything run without a confined file system."""
    loaded = [profiles.load(name, (SHIPPED_DIR,)) for name in SHIPPED]
    assert [each.name for each in loaded if each.network is NetworkMode.HOST] == ["network"]
    assert all(each.require in (Require.FULL, Require.FS) for each in loaded)


def write(directory: Path, name: str, text: str) -> str:
    path = directory / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_extends_adds_to_lists_and_replaces_values(tmp_path: Path) -> None:
    """Lists grow, tables merge, single values are replaced; limits one by one."""
    write(tmp_path, "base", "[filesystem]\nwrite = ['/srv/a']\ntmp = 'private'\n[env]\nset = {A='1'}\n[limits]\npids=9\ncpu=5\n")
    write(tmp_path, "own", "extends = 'base'\n[filesystem]\nwrite = ['/srv/b']\n[env]\nset = {B='2'}\n[limits]\ncpu=6\n")
    own = profiles.load("own", (str(tmp_path), SHIPPED_DIR))
    assert (own.name, own.write, own.tmp) == ("own", ("/srv/a", "/srv/b"), "private")
    assert own.env_set == {"A": "1", "B": "2"}
    assert (own.limits.pids, own.limits.cpu) == (9, 6)


def test_an_earlier_directory_wins_and_a_path_works(tmp_path: Path) -> None:
    """A user's `workspace.toml` replaces the shipped one; a file can be named by its path."""
    path = write(tmp_path, "workspace", "description = 'mine'\n")
    assert profiles.load("workspace", (str(tmp_path), SHIPPED_DIR)).description == "mine"
    assert profiles.load(path, (SHIPPED_DIR,)).origin == path


WRONG = [
    ("colour = 1", 1, "unknown key `colour`"),
    ("[filesystem]\nwrites = []", 2, "unknown key `filesystem.writes`"),
    ("[filesystem]\nwrite = '/srv'", 2, "a list of strings"),
    ("[filesystem]\nread = ['srv']", 2, "begin with"),
    ("[filesystem]\nread = ['/srv/*']", 2, "without globs"),
    ("[filesystem]\nwrite = ['/srv/../etc']", 2, "without globs"),
    ("[filesystem]\nwrite = ['/']", 2, "whole machine"),
    ("[filesystem]\nwrite = ['~']", 2, "home directory"),
    ("[filesystem]\nwrite = ['~/.']", 2, "home directory"),
    ("[filesystem]\nwrite = ['~/.local']", 2, "sandboxd's own"),
    ("[filesystem]\nwrite = ['~/.local/state']", 2, "sandboxd's own"),
    ("[filesystem]\n\nwrite = [\n '~/',\n]", 3, "home directory"),
    ("[filesystem]\nwrite = ['~/.config']", 2, "sandboxd's own"),
    ("[filesystem]\nwrite = ['~/.config/sandboxd/profiles']", 2, "sandboxd's own"),
    ("[filesystem]\ntmp = 'shared'", 2, 'one of "private", "session", "host"'),
    ("[network]\nmode = 'proxy'", 2, "does not exist yet"),
    ("[network]\nmode = 'on'", 2, 'one of "off", "loopback", "host"'),
    ("[network]\nallow = ['example.org:443']", 2, "cannot be opened per host yet"),
    ("[env]\nset = {LD_PRELOAD = '/x'}", 2, "`LD_PRELOAD` decides what programs run"),
    ("[env]\npass = ['BASH_ENV']", 2, "`BASH_ENV` decides"),
    ("[limits]\npids = 0", 2, "above 0"),
    ("[limits]\npids = true", 2, "above 0"),
    ("[limits]\nmemory = '1G'", 2, "whole number"),
    ("[isolation]\nrequire = 'some'", 2, 'one of "full", "fs", "none"'),
    ("[isolation]\nfallback = ['firejail']", 2, "bwrap, landlock, none"),
    ("[seccomp]\nextra_deny = ['nonsense']", 2, "`nonsense` is not in the table"),
    ("[git]\ncommit = 'yes'", 2, "true or false"),
    ("limits = 3", 1, "must be a table"),
    ("extends = 3", 1, "name of a profile"),
    ("[[test]]\npath = '/x'", 1, "a test has the keys"),
    ("[[test]]\npath = '/x'\naccess = 'go'\nexpect = 'allow'", 1, '"read" or "write"'),
    ("[filesystem\n", 1, "not valid TOML"),
]


@pytest.mark.parametrize(("text", "line", "message"), WRONG, ids=[row[0].replace("\n", " ") for row in WRONG])
def test_wrong_profiles(tmp_path: Path, text: str, line: int, message: str) -> None:
    """One error each, naming file and line, and what would be right."""
    path = write(tmp_path, "wrong", text)
    with pytest.raises(ProfileError) as caught:
        profiles.check(path, (SHIPPED_DIR,))
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert message in str(caught.value)


def test_round_extends_and_missing_ones(tmp_path: Path) -> None:
    """A circle is named; a profile that does not exist gets the list of those that do."""
    write(tmp_path, "a", "extends = 'b'\n")
    write(tmp_path, "b", "extends = 'a'\n")
    with pytest.raises(ProfileError, match="goes round"):
        profiles.load("a", (str(tmp_path),))
    with pytest.raises(ProfileError, match="use one of: a, b"):
        profiles.load("c", (str(tmp_path),))


def test_a_failing_row_says_where(tmp_path: Path) -> None:
    """`check` names file, line, access and path."""
    row = "[[test]]\npath = '/etc/passwd'\naccess = 'write'\nexpect = 'allow'\n"
    path = write(tmp_path, "fails", row)
    assert profiles.check(path, ()) == (f"{path}:1: write of `/etc/passwd` should be allowed, and the path is `read`",)


def test_the_schema_knows_the_same_keys() -> None:
    """profiles/schema.json, for editors, lists exactly what the loader takes."""
    schema = json.loads((Path(SHIPPED_DIR) / "schema.json").read_text(encoding="utf-8"))
    assert schema["additionalProperties"] is False
    found = {
        (section, key)
        for section, part in schema["properties"].items()
        if part.get("type") == "object"
        for key in part["properties"]
    }
    assert found == set(KEYS)
    assert all(part["additionalProperties"] is False for part in schema["properties"].values() if part.get("type") == "object")


def probe(**weak: Strength) -> Probe:
    layers = tuple(
        LayerState(layer, weak.get(layer.value, Strength.FULL), ("why",) if layer.value in weak else ()) for layer in Layer
    )
    return Probe("bwrap", works=True, enforcement=Enforcement("bwrap", layers, 6))


@pytest.mark.parametrize(
    ("require", "network", "weak", "runs"),
    [
        (Require.FULL, NetworkMode.OFF, {}, True),
        (Require.FULL, NetworkMode.OFF, {"limits": Strength.PARTIAL}, False),
        (Require.FULL, NetworkMode.HOST, {"network": Strength.PARTIAL}, True),
        (Require.FULL, NetworkMode.OFF, {"network": Strength.PARTIAL}, False),
        (Require.FS, NetworkMode.OFF, {"limits": Strength.NONE, "landlock": Strength.NONE}, True),
        (Require.FS, NetworkMode.OFF, {"filesystem": Strength.PARTIAL}, True),
        (Require.FS, NetworkMode.OFF, {"filesystem": Strength.NONE}, False),
        (Require.FS, NetworkMode.OFF, {"privileges": Strength.NONE}, False),
    ],
)
def test_choosing(require: Require, network: NetworkMode, weak: dict[str, Strength], runs: bool) -> None:
    """`require` decides between running and refusing; a layer that the profile itself opens is no shortfall."""
    profile = Profile("p", "p", require=require, network=network)
    if runs:
        assert backends.choose(profile, (probe(**weak),)).name == "bwrap"
    else:
        with pytest.raises(IsolationError, match=r"is (partial|none) \(why\).*require"):
            backends.choose(profile, (probe(**weak),))


@pytest.mark.parametrize("probes", [(), (Probe("bwrap", works=False, error="not installed", fix="install it"),)])
def test_without_a_sandbox_nothing_is_chosen(probes: tuple[Probe, ...]) -> None:
    """No probe, or one that failed: refused with the fix, never bare."""
    with pytest.raises(IsolationError, match="install"):
        backends.choose(Profile("p", "p", require=Require.FS), probes)


def test_two_profiles_are_compared_key_by_key() -> None:
    """What differs is named as in the file, with both values; a profile does not differ from itself."""
    one, other = (profiles.load(name, (profiles.SHIPPED_DIR,)) for name in ("workspace", "network"))
    assert profiles.diff(one, other) == (("network.mode", "off", "host"),)
    assert profiles.diff(one, one) == ()


@pytest.mark.parametrize(
    ("name", "path", "promise", "reach", "why"),
    [
        ("workspace", "$WORKSPACE/src/x", False, "write", "the workspace"),
        ("workspace", "$WORKSPACE/src/x", True, "read", "the command was judged read-only"),
        ("workspace", "src/x", False, "write", "the workspace"),
        ("build", "~/.npm/x", False, "write", "profile `build`: write `~/.npm`"),
        ("read-only", "$WORKSPACE/x", False, "read", "nothing in the decision"),
        ("ci", "~/notes", False, "none", "home = mask"),
        ("ci", "~/.cargo/bin/x", False, "read", "read `~/.cargo/bin`"),
        ("workspace", "/run/x", False, "none", "services"),
    ],
)
def test_a_path_is_explained(name: str, path: str, promise: bool, reach: str, why: str) -> None:
    """What a path is under a profile, with the line that decides it, and the lines that it overrules."""
    found, line, overruled = profiles.explain(profiles.load(name, (profiles.SHIPPED_DIR,)), path, promise=promise)
    assert found.value == reach
    assert why in line
    assert all(each.startswith("`/") for each in overruled)
