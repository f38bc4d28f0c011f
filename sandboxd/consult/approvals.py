# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions to a human: asked, watched, answered once, or expired into a DENY.

An Approvals registry lives on one event loop. Deadlines run on the loop's monotonic clock, which comes in as a callable;
wall times stand in a Pending only to be shown. The registry itself changes no rule: a Resolution of scope `session` or
`always` names the rule, and the engine puts it in force.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum, unique

from sandboxd.consult.prompt import escape_for_prompt as escape_for_prompt
from sandboxd.consult.race import ResolveOnce
from sandboxd.errors import Exhausted, NotFound, RequestError
from sandboxd.model import Behavior, Consultant, Decision, Evidence, Opinion

SCOPES = ("once", "session", "always")

EXPIRES_IN = 600.0  # seconds
MAX_PENDING = 1000  # questions open at once
MAX_REMEMBERED = 1000  # answered ones kept to tell a second answer from an unknown id
MAX_UNREAD = 1000  # changes a watcher may leave unread

EXPIRED = "approval_expired"
CANCELLED = "approval_cancelled"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The one answer to a question. `who` is the approver's name, or "" for expiry and cancellation."""

    approval_id: str
    execution_id: str
    session_id: str
    verdict: Behavior
    scope: str
    who: str
    rule: str
    reason: str
    resolved: float  # seconds since the epoch


@unique
class Change(Enum):
    ADDED = "added"
    RESOLVED = "resolved"
    ADVISED = "advised"  # the same question, with advice among its evidence


@dataclass(frozen=True, slots=True)
class ApprovalChange:
    """`resolution` is set for RESOLVED."""

    kind: Change
    pending: Pending
    resolution: Resolution | None = None


@dataclass(slots=True, eq=False)
class Pending:
    """One open question. `created` and `expires` are seconds since the epoch, for display; `deadline` is what counts.

    `risk` (0 to 100, with its reasons) orders questions and decides nothing. `binding` is the digest of what the answer is
    bound to (command bytes, cwd, policy revision, executed files); whoever waits compares it with a fresh one before acting
    on an ALLOW.
    """

    id: str
    execution_id: str
    session_id: str
    text: str
    cwd: str
    decision: Decision
    binding: str
    created: float
    expires: float
    risk: int
    risk_reasons: tuple[str, ...]
    asked: float  # on the registry's clock
    deadline: float  # on the registry's clock
    _registry: Approvals
    _answer: ResolveOnce[Resolution]

    @property
    def resolution(self) -> Resolution | None:
        """The answer, or None while the question is open."""
        return self._answer.peek()

    async def wait(self) -> Opinion:
        """The human's answer. No answer before the deadline is a DENY with reason `approval_expired`.

        A waiter that is cancelled takes the question with it.
        """
        registry = self._registry
        try:
            while not self._answer.settled:
                try:
                    async with asyncio.timeout(self.deadline - registry.now()):
                        await self._answer.wait()
                except TimeoutError:
                    registry.expire()
        except asyncio.CancelledError:
            self.cancel("nobody waits for the answer any more")
            raise
        resolution = self._answer.peek()
        assert resolution is not None
        return Opinion(
            who=Consultant.APPROVAL,
            verdict=resolution.verdict,
            reason=resolution.reason,
            failed=not resolution.who,
            name=resolution.who,
            latency=max(0.0, registry.now() - self.asked),
        )

    def cancel(self, detail: str = "") -> None:
        """Close the question as DENY (`approval_cancelled`): another answer won, or the asker is gone. Idempotent."""
        self._registry.cancel(self, detail)


class Approvals:
    """The open questions of a daemon.

    `clock` is the clock of the deadlines (seconds, monotonic), `wall` gives seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self.now = clock
        self._wall = wall
        self._pending: dict[str, Pending] = {}
        self._answered: OrderedDict[str, Resolution] = OrderedDict()
        self._watchers: set[_Watcher] = set()

    def request(
        self,
        execution_id: str,
        session_id: str,
        text: str,
        cwd: str,
        decision: Decision,
        expires_in: float = EXPIRES_IN,
        binding: str = "",
        risk: int = 0,
        risk_reasons: tuple[str, ...] = (),
    ) -> Pending:
        """Ask. `expires_in` in seconds. Raises Exhausted when too many questions are open."""
        self.expire()
        if len(self._pending) >= MAX_PENDING:
            raise Exhausted(f"{MAX_PENDING} approvals are pending", retry_after=30.0, fix="answer or deny some first")
        asked, created = self.now(), self._wall()
        pending = Pending(
            id=secrets.token_hex(8),
            execution_id=execution_id,
            session_id=session_id,
            text=text,
            cwd=cwd,
            decision=decision,
            binding=binding,
            created=created,
            expires=created + expires_in,
            risk=risk,
            risk_reasons=risk_reasons,
            asked=asked,
            deadline=asked + expires_in,
            _registry=self,
            _answer=ResolveOnce(),
        )
        self._pending[pending.id] = pending
        self._tell(ApprovalChange(Change.ADDED, pending))
        return pending

    def resolve(self, approval_id: str, verdict: Behavior, scope: str, who: str, rule: str = "", reason: str = "") -> Resolution:
        """Answer. Raises NotFound for an unknown id, RequestError when it has been answered (or has expired) before.

        The first answer is applied, and no other. `rule` goes with ALLOW, needed for scope `always`, possible for `session`.
        """
        if verdict not in (Behavior.ALLOW, Behavior.DENY):
            raise RequestError(f"`{verdict.value}` is no answer", field="verdict", fix="allow or deny")
        if scope not in SCOPES:
            raise RequestError(f"`{scope}` is no scope", field="scope", fix=f"one of {', '.join(SCOPES)}")
        if not who:
            raise RequestError("an answer needs a name", field="who")
        if scope == "always" and verdict is Behavior.ALLOW and not rule:
            raise RequestError("scope `always` needs the rule to write", field="rule", fix="take one of the suggestions")
        if rule and (scope == "once" or verdict is not Behavior.ALLOW):
            raise RequestError("a rule goes with an allow for the session or for always", field="rule")
        pending = self.get(approval_id)
        said = reason or f"{'allowed' if verdict is Behavior.ALLOW else 'denied'} by {who}"
        return self._close(pending, verdict, scope, who, rule, said)

    def advise(self, pending: Pending, text: str) -> None:
        """Show advice beside an open question. It decides nothing, and comes too late for one that is answered."""
        if pending.id in self._pending:
            decision = pending.decision
            pending.decision = dataclasses.replace(decision, evidence=(*decision.evidence, Evidence(text, because="advice")))
            self._tell(ApprovalChange(Change.ADVISED, pending))

    def cancel(self, pending: Pending, detail: str = "") -> None:
        """See Pending.cancel."""
        if pending.id in self._pending:
            self._close(pending, Behavior.DENY, "once", "", "", f"{CANCELLED}: {detail}" if detail else CANCELLED)

    def expire(self) -> None:
        """Close every question whose deadline has passed, as DENY."""
        now = self.now()
        for pending in [p for p in self._pending.values() if p.deadline <= now]:
            self._close(pending, Behavior.DENY, "once", "", "", EXPIRED)

    def get(self, approval_id: str) -> Pending:
        """An open question. Raises NotFound for an unknown id, RequestError when it has been answered (or has expired)."""
        self.expire()
        before = self._answered.get(approval_id)
        if before is not None:
            by = f"{before.verdict.value} by {before.who}" if before.who else before.reason
            raise RequestError(f"approval `{approval_id}` has its answer already: {by}", field="approval_id")
        pending = self._pending.get(approval_id)
        if pending is None:
            raise NotFound(f"no approval `{approval_id}`", field="approval_id")
        return pending

    def session_of(self, approval_id: str) -> str:
        """The session that a question belongs to, open or answered. Raises NotFound."""
        known = self._pending.get(approval_id) or self._answered.get(approval_id)
        if known is None:
            raise NotFound(f"no approval `{approval_id}`", field="approval_id")
        return known.session_id

    def list(self, session_id: str | None = None) -> tuple[Pending, ...]:
        """The open questions, the riskiest first and of equal ones the oldest; of one session when given."""
        self.expire()
        found = (p for p in self._pending.values() if session_id is None or p.session_id == session_id)
        return tuple(sorted(found, key=lambda pending: -pending.risk))

    async def watch(self, session_id: str | None = None) -> AsyncIterator[ApprovalChange]:
        """The open questions as ADDED, in the order of `list`, then every change as it comes.

        Raises Exhausted when the reader falls too far behind; it may watch again.
        """
        watcher = _Watcher(session_id)
        for pending in self.list(session_id):
            watcher.changes.append(ApprovalChange(Change.ADDED, pending))
        self._watchers.add(watcher)
        try:
            while True:
                while watcher.changes:
                    yield watcher.changes.popleft()
                if watcher.lost:
                    raise Exhausted("the watcher of approvals fell behind", fix="watch again")
                watcher.wake.clear()
                await watcher.wake.wait()
        finally:
            self._watchers.discard(watcher)

    def _close(self, pending: Pending, verdict: Behavior, scope: str, who: str, rule: str, reason: str) -> Resolution:
        claimed = pending._answer.claim()
        assert claimed, "a pending question has no answer yet"
        resolution = Resolution(
            approval_id=pending.id,
            execution_id=pending.execution_id,
            session_id=pending.session_id,
            verdict=verdict,
            scope=scope,
            who=who,
            rule=rule,
            reason=reason,
            resolved=self._wall(),
        )
        del self._pending[pending.id]
        self._answered[pending.id] = resolution
        if len(self._answered) > MAX_REMEMBERED:
            self._answered.popitem(last=False)
        pending._answer.settle(resolution)
        self._tell(ApprovalChange(Change.RESOLVED, pending, resolution))
        return resolution

    def _tell(self, change: ApprovalChange) -> None:
        for watcher in self._watchers:
            watcher.tell(change)


class _Watcher:
    def __init__(self, session_id: str | None) -> None:
        self.session_id = session_id
        self.changes: deque[ApprovalChange] = deque()
        self.wake = asyncio.Event()
        self.lost = False

    def tell(self, change: ApprovalChange) -> None:
        if self.session_id is not None and change.pending.session_id != self.session_id:
            return
        if len(self.changes) >= MAX_UNREAD:
            self.lost = True
        if not self.lost:
            self.changes.append(change)
        self.wake.set()
