# SPDX-License-Identifier: GPL-3.0-or-later
"""A remembered plan is the plan that would be made now."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sandboxd.isolation import backends
from sandboxd.isolation.plan import plan
from sandboxd.isolation.planned import MAX_PLANS, Plans
from sandboxd.isolation.profiles import load
from sandboxd.model import Facts, Grant, GrantKind, PlanRequest, Session

SHIPPED_DIR = str(Path(backends.__file__).parents[1] / "profiles")


def test_the_same_as_made_anew(tmp_path: Path) -> None:
    """Whatever differs from the last plans, request or host, the answer is that of planning itself, text and all."""
    profile = load("workspace", (SHIPPED_DIR,))
    session = Session("s", str(tmp_path), str(tmp_path.parent), 1000, 1000, "")
    reader = PlanRequest("cat a", str(tmp_path), profile, session, (), promise=True, facts=Facts(observed=True))
    grants = (Grant(GrantKind.WORKSPACE_WRITE),)
    writer = dataclasses.replace(reader, text="touch a", promise=False, grants=grants)
    plans = Plans()
    for step in range(MAX_PLANS + 2):
        for asked in (reader, writer, dataclasses.replace(reader, text=f"cat {step}"), dataclasses.replace(writer, tty=True)):
            host = backends.host_facts(session, asked)
            assert plans.plan(asked, host) == plan(asked, host)
        profile = dataclasses.replace(profile, deny_read=(*profile.deny_read, f"{tmp_path}/secret{step}"))
        (tmp_path / f"secret{step}").write_text("x")
        reader, writer = (dataclasses.replace(each, profile=profile) for each in (reader, writer))
