# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans that were made before. Pure, as planning is: what was made of the same request and the same host is the same."""

from __future__ import annotations

import dataclasses

from sandboxd.isolation.plan import HostFacts, plan
from sandboxd.model import LaunchPlan, PlanRequest

MAX_PLANS = 4  # remembered of a session: readers and writers take turns


class Plans:
    """The last plans of a session. A plan is made of its request and of what the host looks like, and of the command's text
    only what is executed; one that was made of the same is taken again."""

    def __init__(self) -> None:
        self._made: list[tuple[PlanRequest, HostFacts, LaunchPlan]] = []

    def plan(self, asked: PlanRequest, host: HostFacts) -> LaunchPlan:
        """As `isolation.plan.plan`."""
        bare = dataclasses.replace(asked, text="")
        for request, facts, launch in self._made:
            if request == bare and facts == host:
                return dataclasses.replace(launch, argv=(*launch.argv[:-1], asked.text))
        launch = plan(bare, host)
        self._made = [(bare, host, launch), *self._made[: MAX_PLANS - 1]]
        return dataclasses.replace(launch, argv=(*launch.argv[:-1], asked.text))
