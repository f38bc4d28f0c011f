# SPDX-License-Identifier: GPL-3.0-or-later
"""The denial breaker of auto mode: after so many denials by the classifier a human is asked, not the classifier."""

from __future__ import annotations

from dataclasses import dataclass, replace

CONSECUTIVE = 3  # denials with no successful command between them
TOTAL = 20  # denials since the session began, or since a human last answered


@dataclass(frozen=True, slots=True)
class Breaker:
    """What a session has seen. `total` never falls; `heard` is what it was when a human last answered.

    Only the classifier's own denials count: an outage, a rule, a mode or a person is none.
    """

    consecutive: int = 0
    total: int = 0
    heard: int = 0

    @property
    def open(self) -> bool:
        """Whether the next ASK goes to a human (headless: is denied) instead of the classifier."""
        return self.consecutive >= CONSECUTIVE or self.total - self.heard >= TOTAL

    def denied(self) -> Breaker:
        """The classifier denied a command."""
        return replace(self, consecutive=self.consecutive + 1, total=self.total + 1)

    def ran(self) -> Breaker:
        """A command ran successfully: the run of denials is broken, the total stays."""
        return replace(self, consecutive=0) if self.consecutive else self

    def answered(self) -> Breaker:
        """A human answered, allow or deny: the classifier is heard again, and both counts begin anew."""
        return replace(self, consecutive=0, heard=self.total)
