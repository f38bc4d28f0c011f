# SPDX-License-Identifier: GPL-3.0-or-later
"""One use of a tool that a front-end runs itself, from its check to its report: hooks around the judgement that commands get.

Nothing of the use runs here, so the hooks' answers come before the decision does: PreToolUse ones may rewrite the input,
PermissionRequest ones, and in auto mode the classifier, may settle an ASK. What stays an ASK is the front-end's to put
before its human.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandboxd import toolbox
from sandboxd.consult import hooks
from sandboxd.consult.hookdefs import Hook, HookEvent
from sandboxd.consult.race import first_eligible
from sandboxd.errors import Exhausted, NotFound, RequestError
from sandboxd.jobs import Stages
from sandboxd.judge import Judged, Question, judge
from sandboxd.model import Behavior, Consultant, Needs, Opinion, ToolCall
from sandboxd.policy.explain import steer
from sandboxd.policy.modes import MODES, looser
from sandboxd.session import SessionState

MAX_OPEN = 256  # uses whose hooks run at once
MAX_KEPT = 100  # uses of one session that wait for their report
_AGAIN = 3  # how often the files that a use is about may change while a hook thinks

Classified = Callable[[SessionState, Judged, ToolCall], Coroutine[Any, Any, Opinion | None]]

_AFTER = (HookEvent.POST_TOOL_USE, HookEvent.POST_TOOL_USE_FAILURE)


@dataclass(slots=True, eq=False)
class Use:
    """One use on its way. `call` is what is judged: a hook may have rewritten the input."""

    session: SessionState
    call: ToolCall
    decision_id: str = field(default_factory=lambda: f"d-{secrets.token_hex(8)}")
    rewritten: bool = False
    opinions: tuple[Opinion, ...] = ()
    notes: list[str] = field(default_factory=list)
    stages: Stages = field(default_factory=Stages)

    @property
    def names(self) -> tuple[str, ...]:
        """Its tool's name, then the aliases."""
        tool = self.call.tool
        return (self.call.name,) if tool is None else (tool.name, *tool.aliases)

    def hooks(self, *events: HookEvent) -> tuple[Hook, ...]:
        """The session's hooks that want to hear of it under any of its names."""
        return tuple(hook for hook in self.session.hooks if hook.event in events and any(map(hook.matches, self.names)))

    def payload(self) -> dict[str, Any]:
        return {
            "session_id": self.session.id,
            "cwd": self.session.cwd,
            "permission_mode": self.session.mode_in_force.value,
            "tool_name": self.call.name,
            "tool_input": self.call.input,
            "tool_use_id": self.decision_id,
        }


class ToolUses:
    """The uses that are being judged, and those that wait for their report. All methods run on the engine's loop."""

    def __init__(self, home: str, question: Callable[[Use], Question], classified: Classified) -> None:
        self._home = home
        self._question = question
        self._classified = classified
        self._open = 0
        self._kept: dict[str, dict[str, Use]] = {}

    async def judge(self, use: Use) -> Judged:
        """The decision on a use, after all hooks that have a say. Raises Exhausted when too many uses wait for hooks."""
        question = self._question(use)  # rules are read again here, and hooks with them
        if not use.hooks(*HookEvent) and not MODES[use.session.mode_in_force].classifies:
            return await self._judged(use, question)
        if self._open >= MAX_OPEN:
            raise Exhausted(f"{MAX_OPEN} uses of tools wait for hooks", retry_after=1.0, fix="wait for some of them")
        self._open += 1
        try:
            await self._before(use)
            judged = await self._settled(use)
            if judged.decision.behavior is Behavior.DENY:
                answer = {"end": "denied", "exit_code": 126, "error": steer(judged.decision)}
                await self._after(use, answer, failed=True)
            elif use.hooks(*_AFTER):
                self._keep(use)
            return judged
        finally:
            self._open -= 1

    async def report(
        self, session: SessionState, decision_id: str, answer: Mapping[str, Any], *, failed: bool
    ) -> tuple[str, ...]:
        """A use has ended; what its hooks have to say. Raises NotFound for one that none of them waits for."""
        use = self._kept.get(session.id, {}).pop(decision_id, None)
        if use is None:
            if not any(hook.event in _AFTER for hook in session.hooks):
                return ()
            fix = "report each use that CheckToolUse did not deny, once"
            raise NotFound(f"no use `{decision_id}` waits for its report", field="decision_id", fix=fix)
        use.notes.clear()
        await self._after(use, answer, failed=failed)
        return tuple(use.notes)

    def forget(self, session_id: str) -> None:
        self._kept.pop(session_id, None)

    def _keep(self, use: Use) -> None:
        kept = self._kept.setdefault(use.session.id, {})
        kept[use.decision_id] = use
        if len(kept) > MAX_KEPT:
            del kept[next(iter(kept))]

    async def _judged(self, use: Use, question: Question) -> Judged:
        judged = await asyncio.to_thread(judge, question, use.opinions)
        use.stages.judged(judged)
        return judged

    async def _before(self, use: Use) -> None:
        """Run the PreToolUse hooks. One of them may rewrite the input, which is then what is judged and to be used."""
        began = time.monotonic()
        replies = await hooks.ask(use.hooks(HookEvent.PRE_TOOL_USE), HookEvent.PRE_TOOL_USE, use.payload(), **self._place(use))
        if not replies.replies:
            return
        use.stages.took("hooks", time.monotonic() - began)
        use.notes += replies.notes
        said = hooks.Replies(tuple(_heard_by(use, reply) for reply in replies.replies))
        use.opinions = said.opinions
        try:
            self._rewrite(use, *_rewritten(use, said))
        except ValueError as error:
            use.opinions += (Opinion(Consultant.HOOK, Behavior.DENY, str(error)),)

    async def _settled(self, use: Use) -> Judged:
        """Judge it; where somebody may still settle it ask the PermissionRequest hooks, and look again when they have spoken:
        what they agreed to is what they were shown."""
        judged = await self._judged(use, self._question(use))
        for _ in range(_AGAIN):
            if not isinstance(judged.outcome, Needs):
                return judged
            opinion, call = await self._asked(use, judged)
            if opinion is None:
                break
            if call is not None:
                self._rewrite(use, call, opinion.name)
                use.opinions += (opinion,)
            fresh = await self._judged(use, self._question(use))
            moved = fresh.facts.fingerprint != judged.facts.fingerprint or looser(judged.inputs.mode, fresh.inputs.mode)
            if call is None and not moved:
                return fresh.with_opinion(opinion)
            judged = fresh
        return judged.unattended() if use.session.unattended else judged

    async def _asked(self, use: Use, judged: Judged) -> tuple[Opinion | None, ToolCall | None]:
        """The first answer that may settle it, with the call it is about when a hook rewrote that; a second rewrite of a use
        does not count."""
        event = HookEvent.PERMISSION_REQUEST
        calls: dict[int, ToolCall] = {}

        async def heard(answer: Coroutine[Any, Any, hooks.Reply]) -> Opinion | None:
            reply = await answer
            use.notes += hooks.Replies((reply,)).notes
            said = hooks.Replies((_heard_by(use, reply),))
            opinion = next(iter(said.opinions), None)
            if opinion is None or opinion.verdict is not Behavior.ALLOW:
                return opinion
            try:
                call, who = _rewritten(use, said)
            except ValueError as error:
                return Opinion(Consultant.HOOK, Behavior.DENY, str(error))
            if call is not None and use.rewritten:
                use.notes.append(f"hook {who} rewrote the input again, which does not count")
                return None
            if call is not None:
                calls[id(opinion)] = call
            return opinion

        def eligible(opinion: Opinion) -> bool:
            return not isinstance(judged.with_opinion(opinion).outcome, Needs)

        async def classified() -> Opinion | None:
            opinion = await self._classified(use.session, judged, use.call)
            if opinion is not None:
                use.stages.took("classifier", time.monotonic() - began)
            return opinion

        began = time.monotonic()
        outcome = judged.outcome
        first = isinstance(outcome, Needs) and Consultant.CLASSIFIER in outcome.who and use.session.unattended
        asking = hooks.each(() if first else use.hooks(event), event, use.payload(), **self._place(use))
        others = [*map(heard, asking), classified()]
        opinion = await first_eligible(None, others, eligible)
        if asking:
            use.stages.took("permission hooks", time.monotonic() - began)
        return opinion, None if opinion is None else calls.get(id(opinion))

    def _rewrite(self, use: Use, call: ToolCall | None, who: str) -> None:
        if call is not None:
            use.call, use.rewritten = call, True
            use.notes.append(f"hook {who} rewrote the input of {call.name}")

    async def _after(self, use: Use, answer: Mapping[str, Any], *, failed: bool) -> None:
        event = HookEvent.POST_TOOL_USE_FAILURE if failed else HookEvent.POST_TOOL_USE
        payload = {**use.payload(), "tool_response": answer}
        replies = await hooks.ask(use.hooks(event), event, payload, **self._place(use))
        use.notes += (*replies.notes, *(reply.reason for reply in replies.replies if reply.verdict is Behavior.DENY))

    def _place(self, use: Use) -> dict[str, str]:
        workspace = use.session.workspace  # `Use.hooks` has chosen by the names of the tool
        return {"tool": "", "workspace": workspace, "cwd": hooks.outside(workspace, self._home)}


def _heard_by(use: Use, reply: hooks.Reply) -> hooks.Reply:
    """What a reply may count for. An alias is the front-end's choice: a hook that knows the use by one only tightens."""
    if reply.hook.matches(use.call.name):
        return reply
    verdict = None if reply.verdict is Behavior.ALLOW else reply.verdict
    return dataclasses.replace(reply, verdict=verdict, updated=None)


def _rewritten(use: Use, said: hooks.Replies) -> tuple[ToolCall | None, str]:
    """The call with the input that a hook wrote, and who wrote it; None when nobody changed it. Raises ValueError when two
    disagree, or what is written does not fit the tool's schema."""
    given, who = said.rewritten_input()
    if given is None or given == use.call.input:
        return None, who
    try:
        return toolbox.call(use.call.name, given, use.session.tools), who
    except RequestError as error:
        raise ValueError(f"hook {who} rewrites the input to what does not fit {use.call.name}: {error}") from None
