# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared by all tests: the `needs` mark, and whom a test runs as."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests._require import lacks, promised, require
from tests._users import User, throwaway

ROOT = Path(__file__).resolve().parent.parent

# Starting a program as another user is a real fork (CPython spawns by vfork only as the same user), and gRPC's handlers of
# forks, which would then run in the child, can crash it. Read when gRPC is first used.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

# Examples are not timed: machines are shared. Where CI is set, hypothesis loads its own profile, with fixed examples.
settings.register_profile("here", deadline=None)
if "CI" not in os.environ:
    settings.load_profile("here")


def pytest_configure() -> None:
    promised()  # a wrong name in SANDBOXD_REQUIRE stops the run here, with its own message


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        require(*mark.args)


def pytest_report_header() -> str:
    missing = {feature: lacks(feature) for feature in ("bwrap", "userns", "landlock", "seccomp")}
    return "kernel: " + ", ".join(f"{feature} {'no (' + why + ')' if why else 'yes'}" for feature, why in missing.items())


@pytest.fixture(scope="session")
def plain_user() -> Iterator[User]:
    """A throw-away user without privileges, with a home and a sandboxd of its own; removed at the end of the session."""
    require("user")
    with throwaway() as user:
        yield user
