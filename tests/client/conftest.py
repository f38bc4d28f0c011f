# SPDX-License-Identifier: GPL-3.0-or-later
"""A daemon of one's own, and a workspace in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import person as person
from tests.e2e.conftest import Place
from tests.e2e.conftest import base as base
from tests.e2e.conftest import new_place as new_place
from tests.e2e.conftest import served as served
from tests.e2e.conftest import start_daemon as start_daemon


@pytest.fixture
def tree(served: Place, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, and the environment by which a client finds the daemon."""
    for name, value in served.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    place = served.workspace()
    monkeypatch.chdir(place)
    return place
