# SPDX-License-Identifier: GPL-3.0-or-later
"""The helper that decides between skipping and failing is itself held to its word."""

from __future__ import annotations

import os

import pytest

from tests import _require
from tests._users import User


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> str:
    """A feature that no machine has."""
    monkeypatch.setitem(_require.FEATURES, "moonlight", lambda: "it is day")
    return "moonlight"


def test_a_missing_feature_skips_when_nobody_promised_it(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SANDBOXD_REQUIRE a machine that cannot run a test skips it and says what is missing."""
    monkeypatch.delenv("SANDBOXD_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs moonlight: it is day"):
        _require.require(absent)


def test_a_missing_feature_fails_when_it_was_promised(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SANDBOXD_REQUIRE naming it, the same lack is a failure: a green run means that it ran."""
    monkeypatch.setenv("SANDBOXD_REQUIRE", f"seccomp, {absent}")
    with pytest.raises(pytest.fail.Exception, match="SANDBOXD_REQUIRE names moonlight, but it is day"):
        _require.require(absent)


def test_a_promise_of_an_unknown_feature_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt name in SANDBOXD_REQUIRE stops the run instead of promising nothing."""
    monkeypatch.setenv("SANDBOXD_REQUIRE", "bwrp")
    with pytest.raises(pytest.UsageError, match="names bwrp; known are bwrap, userns"):
        _require.promised()


@pytest.mark.needs("user")
def test_the_plain_user_is_plain_and_has_the_project(plain_user: User) -> None:
    """The throw-away user is not root, has an empty home, none of the runner's environment, and can import sandboxd."""
    script = "import os, grpc, sandboxd.model as m; print(os.getuid(), os.getgroups(), sorted(os.environ), m.__file__)"
    done = plain_user.run([plain_user.python, "-c", script], env={"EXTRA": "1"})
    assert done.returncode == 0, done.stderr
    assert plain_user.uid != 0
    assert done.stdout.startswith(f"{plain_user.uid} [")
    assert "'EXTRA'" in done.stdout
    assert "PYTEST" not in done.stdout
    assert str(plain_user.home) in done.stdout
    assert not plain_user.run(["cat", "/etc/shadow"]).stdout
    assert os.geteuid() == 0
