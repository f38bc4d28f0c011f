# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that is shipped as data loads: effect tables, profiles, the systemd unit, the examples in the documents."""

from __future__ import annotations

import configparser
import json
import os
import re
import tomllib

import pytest

from sandboxd.config import Config, merge
from sandboxd.effects.tables import Tables
from sandboxd.isolation import profiles
from tests.gates._tree import ROOT, read, tracked


def test_every_effect_table_loads() -> None:
    """A table that is wrong is found here, with file and line, and not when an agent first uses the tool."""
    tables = Tables()
    for name in tables.names():
        assert tables.find(name)


def test_the_variables_load() -> None:
    """So is a wrong rule about environment variables."""
    assert Tables().environment


def test_the_tools_that_agents_use_most_have_tables() -> None:
    """The table loader finds tools at all; an empty folder would make every command opaque and this the only sign."""
    assert {"git", "ls", "cat", "grep", "find", "sed", "rm", "cp"} <= set(Tables().names())


@pytest.mark.parametrize("name", profiles.names((profiles.SHIPPED_DIR,)))
def test_every_shipped_profile_loads(name: str) -> None:
    """A shipped profile is read without complaint, describes itself, and its own `[[test]]` rows hold."""
    assert profiles.load(name, (profiles.SHIPPED_DIR,)).description
    assert profiles.check(name, (profiles.SHIPPED_DIR,)) == ()


def test_the_default_profile_is_shipped() -> None:
    """What the default configuration names is there."""
    assert Config().isolation.profile in profiles.names((profiles.SHIPPED_DIR,))


def test_every_data_file_is_packaged() -> None:
    """A wheel holds the profiles, which lie outside the package and are linked into it, and the link is not broken."""
    link = ROOT / "sandboxd" / "profiles"
    assert link.is_symlink()
    assert os.readlink(link) == "../profiles"
    assert (link / "workspace.toml").is_file()


def test_every_data_file_parses() -> None:
    """Also the rows of tests: a broken line would silently end a table."""
    wrong = {}
    for name in tracked():
        try:
            if name.endswith(".toml"):
                tomllib.loads(read(name))
            elif name.endswith((".json", ".jsonl")):
                for part in read(name).splitlines() if name.endswith(".jsonl") else [read(name)]:
                    json.loads(part)
        except ValueError as error:
            wrong[name] = str(error)
    assert wrong == {}


def test_the_systemd_unit_is_whole() -> None:
    """It tells systemd how to know that the daemon is ready, how to reload it, and sets nothing that forbids namespaces."""
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # how configparser is told that case matters
    unit.read_string(read("docs/systemd/sandboxd.service"))
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert "HUP" in service["ExecReload"]
    assert not set(service) & {"RestrictNamespaces", "SystemCallFilter", "ProtectSystem", "ProtectHome", "PrivateUsers"}


@pytest.mark.parametrize("name", [name for name in tracked() if name.endswith(".md")])
def test_examples_of_configuration_load(name: str) -> None:
    """A block that a document marks as `toml config` is a configuration that the daemon takes."""
    for block in re.findall(r"(?ms)^```toml config\n(.*?)^```", read(name)):
        merge(Config(), block, name)
