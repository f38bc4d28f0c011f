# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a provider that keeps failing is asked at all. A pure value: outcomes and times in, the next value out.

Closed: every question goes out. After `TRIPS` outages in a row it opens: questions fail at once with the last outage, and
nobody waits for a deadline in vain. When its pause is over one question goes out as a trial (half-open); an answer closes
it, another outage opens it again for twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sandboxd.consult.verdict import Failure, Outage

TRIPS = 3  # outages in a row
FIRST_PAUSE = 2.0  # seconds
LONGEST_PAUSE = 60.0
# Asking again soon cannot help; opens at the first.
_LASTING = frozenset((Outage.NO_KEY, Outage.UNAUTHORIZED, Outage.FORBIDDEN, Outage.NOT_FOUND, Outage.WORKER_FAILED))


@dataclass(frozen=True, slots=True)
class Circuit:
    """`until`: open until this time (the caller's monotonic clock); `trying`: a trial is under way."""

    failures: int = 0
    pause: float = 0.0
    until: float = 0.0
    last: Failure | None = None
    trying: bool = False

    @property
    def closed(self) -> bool:
        return self.pause == 0.0

    def state(self, now: float) -> str:
        """`closed`, `open` or `half-open`."""
        return "closed" if self.closed else "open" if now < self.until and not self.trying else "half-open"

    def refuses(self, now: float) -> Failure | None:
        """Why a question does not go out now, with the time to wait; None when it may."""
        if self.closed or self.last is None or (now >= self.until and not self.trying):
            return None
        return replace(self.last, retry_after=max(self.until - now, 0.0))

    def asked(self) -> Circuit:
        """A question went out."""
        return self if self.closed else replace(self, trying=True)

    def withdrawn(self) -> Circuit:
        """It was cancelled: nothing is learnt, and the next one may try."""
        return replace(self, trying=False)

    def answered(self) -> Circuit:
        return Circuit()

    def failed(self, failure: Failure, now: float) -> Circuit:
        failures = self.failures + 1
        if failures < TRIPS and failure.outage not in _LASTING:
            return replace(self, failures=failures, last=failure, trying=False)
        pause = min(max(self.pause * 2, FIRST_PAUSE, failure.retry_after), LONGEST_PAUSE)
        return Circuit(failures, pause, now + pause, failure)
