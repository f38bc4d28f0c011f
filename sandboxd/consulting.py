# SPDX-License-Identifier: GPL-3.0-or-later
"""Everybody whose word a command may need: hooks around it, and the race of hooks and humans for the answer to an ASK.

An answer rests on a *ground*: the command's bytes, its directory, the rules that tighten, the facts observed, and the
content of the files it executes. Whoever acts on the answer compares the ground again; when it moved, it is asked anew.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Coroutine
from typing import Any

from sandboxd.classifying import Ahead, Classifying, ground
from sandboxd.config import Directories, append_allow_rule
from sandboxd.consult import hooks
from sandboxd.consult.approvals import Approvals, Pending, Resolution
from sandboxd.consult.hookdefs import HookEvent
from sandboxd.consult.race import first_eligible
from sandboxd.errors import Forbidden
from sandboxd.jobs import Job
from sandboxd.judge import Judged, Question
from sandboxd.model import Behavior, Consultant, EndKind, Needs, Opinion, Result, Source, ToolCall
from sandboxd.policy.modes import looser
from sandboxd.policy.risk import risk
from sandboxd.policy.rules import parse_rule
from sandboxd.record.audit import Record
from sandboxd.session import SessionState
from sandboxd.sessions import Sessions

TOOL = "Bash"


class Consulting:
    """Hooks, approvals and their race. All methods run on the engine's loop."""

    def __init__(self, sessions: Sessions, record: Record, dirs: Directories) -> None:
        self.approvals = Approvals()
        self.classifying = Classifying(sessions.config.classifier)
        self._sessions = sessions
        self._record = record
        self._dirs = dirs

    # -- the race for an answer ---------------------------------------------------------------------------------------

    async def ask(self, job: Job, judged: Judged, grounds: str = "") -> Judged | None:
        """Put an ASK before a human, the PermissionRequest hooks and in auto mode the classifier at once; the first who
        may answer does.

        With `bubble` the human is the parent session's. `grounds`: of `judged`, where they are known. None when it is no
        longer the same question: a hook rewrote the command, or the mode changed so that it would not be asked, or not so:
        judge again.
        """
        session = job.session
        asker = session.asker
        needs = judged.outcome
        assert isinstance(needs, Needs)
        mode = judged.inputs.mode
        job.ground = grounds or await asyncio.to_thread(ground, judged, session.tightening)
        pending = None
        danger = risk(judged.analysis, judged.inputs.scope)
        decides = self.classifying.decides(judged)
        if not session.unattended and Consultant.APPROVAL in needs.who and not (decides and self.classifying.out(session)):
            pending = self.approvals.request(
                job.execution.id,
                asker.id,
                job.request.text,
                judged.analysis.cwd,
                needs.pending,
                expires_in=self._sessions.config.approvals.expires,
                binding=job.ground,
                risk=danger.score,
                risk_reasons=danger.reasons,
            )
            job.pending = pending
            self._record.record_approval_asked(pending.id, job.execution.id, asker.id)
            job.execution.approval_needed(pending.id, needs.pending)
        rewrites: dict[int, str] = {}
        began = time.monotonic()
        took: dict[str, float] = {}  # until each fell silent: all are asked at once
        heard = () if decides and session.unattended else session.hooks  # nobody there: the classifier comes first
        asking = hooks.each(heard, HookEvent.PERMISSION_REQUEST, job.payload(), **self._place(session))

        def eligible(opinion: Opinion) -> bool:
            return not isinstance(judged.with_opinion(opinion).outcome, Needs)

        async def timed(who: str, answer: Coroutine[Any, Any, Opinion | None]) -> Opinion | None:
            try:
                return await answer
            finally:
                took[who] = time.monotonic() - began

        others = [timed("permission hooks", self._heard(job, reply, rewrites)) for reply in asking]
        if decides:
            others.append(timed("classifier", self._classified(job, judged, attended=pending is not None)))
        elif pending is not None and self.classifying.advises(judged):
            others.append(self._advised(job, judged, pending))
        try:
            opinion = await first_eligible(pending, others, eligible, self._overtaken(session, judged))
        finally:
            job.pending = None
            if pending is not None:
                took["human"] = time.monotonic() - began
            for who, seconds in took.items():
                job.stages.took(who, seconds)
            self._answered(job, pending, asker)
        if opinion is not None and id(opinion) in rewrites:
            self._rewrite(job, rewrites[id(opinion)], opinion.name)
            job.opinions += (opinion,)
            return None
        if session.mode_in_force is not mode:
            if (
                opinion is None
                or opinion.who is not Consultant.APPROVAL
                or opinion.failed
                or not looser(session.mode_in_force, mode)
            ):
                return None
            judged = judged.under(session.mode_in_force)
            if not isinstance(judged.outcome, Needs):
                return None
        return judged.unattended() if opinion is None else judged.with_opinion(opinion)

    async def _heard(self, job: Job, reply: Coroutine[Any, Any, hooks.Reply], rewrites: dict[int, str]) -> Opinion | None:
        """A hook's opinion. One that rewrites is about the new command; a second rewrite of a command does not count."""
        said = hooks.Replies((await reply,))
        job.notes += said.notes
        opinion = next(iter(said.opinions), None)
        try:
            text, who = said.rewritten("command")
        except ValueError as error:
            return Opinion(Consultant.HOOK, Behavior.DENY, str(error))
        if opinion is None or text is None or text == job.request.text or opinion.verdict is not Behavior.ALLOW:
            return opinion
        if job.rewritten:
            job.notes.append(f"hook {who} rewrote the command again, which does not count")
            return None
        rewrites[id(opinion)] = text
        return opinion

    async def _classified(self, job: Job, judged: Judged, attended: bool) -> Opinion | None:
        opinion = await self.classifying.opinion(job.session, judged, job.ground, attended)
        if opinion is None:
            job.notes.append("the classifier gave no verdict, so a human was asked")
        return opinion

    async def classified_use(self, session: SessionState, judged: Judged, call: ToolCall) -> Opinion | None:
        """What the classifier says about the use of a tool, where it may answer. None leaves an ASK to the front-end's human."""
        if not self.classifying.decides(judged):
            return None
        grounds = await asyncio.to_thread(ground, judged, session.tightening)
        return await self.classifying.opinion(session, judged, grounds, not session.unattended, call)

    async def _advised(self, job: Job, judged: Judged, pending: Pending) -> None:
        """What the classifier thinks, shown beside the question. It decides nothing."""
        advice = await self.classifying.advice(job.session, judged, job.ground)
        if advice:
            self.approvals.advise(pending, advice)
            job.execution.advised(pending.id, advice)

    def ahead(self, job: Job, ask: Callable[[], Question]) -> Ahead:
        """Begin to ask the classifier while hooks still run."""
        return self.classifying.ahead(job.session, ask, TOOL)

    async def _overtaken(self, session: SessionState, judged: Judged) -> None:
        """Returns when the mode in force has changed so that the question is another one, or none."""
        mode, asked = judged.inputs.mode, judged.outcome
        assert isinstance(asked, Needs)
        with session.watched() as changed:
            while True:
                now = session.mode_in_force
                if now is not mode:
                    outcome = judged.under(now).outcome
                    if looser(mode, now) or not isinstance(outcome, Needs) or outcome.who != asked.who:
                        return
                await changed.wait()
                changed.clear()

    def _answered(self, job: Job, pending: Pending | None, asker: SessionState) -> None:
        if pending is None or (answer := pending.resolution) is None:
            return
        said = Opinion(Consultant.APPROVAL, answer.verdict, answer.reason, failed=not answer.who, name=answer.who)
        self._record.record_approval(pending.id, job.execution.id, asker.id, said, scope=answer.scope, rule=answer.rule)
        if answer.who:
            job.session.denials = job.session.denials.answered()

    def resolve(self, approval_id: str, verdict: Behavior, scope: str, who: str, rule: str = "", reason: str = "") -> Resolution:
        """A human's answer. `scope` is once, session or always; the last two add `rule`, one of those suggested.

        Raises NotFound, RequestError (already answered, unknown scope), Forbidden (a rule nobody suggested) or ConfigError
        (the rule cannot be written); the question stays open then.
        """
        pending = self.approvals.get(approval_id)
        wants_rule = verdict is Behavior.ALLOW and scope != "once"
        if wants_rule and rule not in pending.decision.suggestions:
            offered = ", ".join(f"`{text}`" for text in pending.decision.suggestions) or "none for this command"
            raise Forbidden(f"rule `{rule}` was not suggested", field="rule", fix=f"suggested: {offered}")
        if wants_rule and scope == "always" and who:
            append_allow_rule(self._dirs, rule, f"approved by {who}")  # first: where it fails, the question stays open
        resolution = self.approvals.resolve(approval_id, verdict, scope, who, rule, reason)
        session = self._sessions.find(pending.session_id)
        if wants_rule and scope == "session" and session is not None:
            session.session_rules += (parse_rule(rule, Behavior.ALLOW, Source.SESSION, f"approval {approval_id}"),)
        return resolution

    @staticmethod
    def answers(session: SessionState) -> bool:
        """Whether hooks may answer where nobody is there to ask."""
        return any(hook.event is HookEvent.PERMISSION_REQUEST and hook.matches(TOOL) for hook in session.hooks)

    # -- hooks around a command and a session -------------------------------------------------------------------------

    def _place(self, session: SessionState, tool: str = TOOL) -> dict[str, str]:
        return {"tool": tool, "workspace": session.workspace, "cwd": hooks.outside(session.workspace, self._dirs.home)}

    async def before(self, job: Job) -> None:
        """Run the PreToolUse hooks. One of them may rewrite the command, which is then what is judged and run."""
        session = job.session
        session.refresh_rules(self._sessions.config, self._dirs)
        if not session.hooks:
            return
        began = time.monotonic()
        replies = await hooks.ask(session.hooks, HookEvent.PRE_TOOL_USE, job.payload(), **self._place(session))
        if replies.replies:
            job.stages.took("hooks", time.monotonic() - began)
        job.notes += replies.notes
        job.opinions = replies.opinions
        try:
            text, who = replies.rewritten("command")
        except ValueError as error:
            job.opinions += (Opinion(Consultant.HOOK, Behavior.DENY, str(error)),)
            return
        if text is not None and text != job.request.text:
            self._rewrite(job, text, who)

    def _rewrite(self, job: Job, text: str, who: str) -> None:
        job.request = dataclasses.replace(job.request, text=text)
        job.rewritten = True
        job.notes.append(f"hook {who} rewrote the command to `{text}`")

    async def after(self, job: Job, result: Result) -> None:
        """Run PostToolUse hooks, or PostToolUseFailure ones when the command failed or was denied. They change nothing."""
        if not job.session.hooks:
            return
        fine = result.end is EndKind.EXITED and result.code == 0
        event = HookEvent.POST_TOOL_USE if fine else HookEvent.POST_TOOL_USE_FAILURE
        answer = {"end": result.end.value, "exit_code": result.code, "error": result.cause}
        payload = {**job.payload(), "tool_response": answer}
        replies = await hooks.ask(job.session.hooks, event, payload, **self._place(job.session))
        job.notes += [*replies.notes, *(reply.reason for reply in replies.replies if reply.verdict is Behavior.DENY)]

    async def session_began(self, session: SessionState) -> None:
        payload = {"session_id": session.id, "cwd": session.cwd, "source": "startup"}
        replies = await hooks.ask(session.hooks, HookEvent.SESSION_START, payload, **self._place(session, ""))
        session.context = replies.notes

    async def session_ended(self, session: SessionState) -> None:
        payload = {"session_id": session.id, "cwd": session.cwd, "reason": "deleted"}
        await hooks.ask(session.hooks, HookEvent.SESSION_END, payload, **self._place(session, ""))
