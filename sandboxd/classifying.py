# SPDX-License-Identifier: GPL-3.0-or-later
"""What the engine asks the classifier, when, and what becomes of the answer.

A question goes out when the synchronous rules have left it open, and only then: what a rule, the killswitch or a mode
decides is never sent. In auto mode the answer decides; in other modes it is advice to the human who is asked. While hooks
still run it is asked *ahead*, and cancelled the moment it is not needed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

from sandboxd.config import ClassifierSettings, OnOutage, Speculate
from sandboxd.consult.classifier import Classifier, Purpose, Question
from sandboxd.consult.classifier_prompt import Matter, build, imitates
from sandboxd.consult.hookdefs import HookEvent
from sandboxd.consult.transcript import tool_call
from sandboxd.consult.verdict import Failure, Verdict
from sandboxd.judge import Judged, judge
from sandboxd.judge import Question as Judging
from sandboxd.model import Behavior, Consultant, Needs, Opinion
from sandboxd.observe import executed
from sandboxd.policy.modes import MODES
from sandboxd.policy.risk import risk
from sandboxd.session import SessionState


def ground(judged: Judged, tightening: str) -> str:
    """The digest of what an answer rests on. Reads the files that the command executes; blocking."""
    scope = judged.inputs.scope
    files = executed(judged.analysis, workspace=scope.workspace, home=scope.home)
    values = (judged.analysis.text, judged.analysis.cwd, tightening, judged.facts.fingerprint, files)
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()


class Ahead:
    """A question that may turn out not to be needed. `end` is idempotent; afterwards nothing of it is in flight."""

    def __init__(self, task: asyncio.Task[None] | None = None) -> None:
        self._task = task

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None


class Classifying:
    """The classifier, with the knowledge of sessions and judgements that it lacks. All methods run on the engine's loop."""

    def __init__(self, settings: ClassifierSettings) -> None:
        self.classifier = Classifier(settings)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def settings(self) -> ClassifierSettings:
        return self.classifier.settings

    def decides(self, judged: Judged) -> bool:
        """Whether the classifier takes part in settling this."""
        outcome = judged.outcome
        return self.classifier.on and isinstance(outcome, Needs) and Consultant.CLASSIFIER in outcome.who

    def advises(self, judged: Judged) -> bool:
        """Whether a human who is asked gets its advice: outside auto mode, and never about what only a human may allow."""
        outcome = judged.outcome
        if not self.classifier.on or self.settings.speculate is Speculate.OFF or not isinstance(outcome, Needs):
            return False
        decides = MODES[judged.inputs.mode].classifies
        return not decides and not outcome.pending.immune and not outcome.pending.protected

    def question(self, session: SessionState, judged: Judged, grounds: str) -> Question:
        """The question, with the digest of all that its answer rests on."""
        analysis = judged.analysis
        matter = Matter(
            analysis,
            judged.facts,
            judged.inputs.scope,
            judged.decision.message,
            session.transcript,
            session.secrets,
            cautious=risk(analysis, judged.inputs.scope).cautious or imitates(analysis.text),
        )
        values = (grounds, session.transcript.digest, session.revision, matter.why, matter.cautious)
        key = hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()
        return Question(session.id, key, build(matter, self.settings.max_input))

    async def opinion(self, session: SessionState, judged: Judged, grounds: str, attended: bool) -> Opinion | None:
        """Its answer as an opinion for the waterfall. None where an outage leaves the question to the human who is there."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        said = await self.classifier.ask(self.question(session, judged, grounds))
        if isinstance(said, Failure) and attended and self.settings.on_outage is OnOutage.ASK:
            return None
        return _opinion(said, self.name, loop.time() - begin)

    async def advice(self, session: SessionState, judged: Judged, grounds: str) -> str:
        """One sentence for the human, "" when there is nothing to say."""
        said = await self.classifier.ask(self.question(session, judged, grounds), Purpose.ADVICE)
        if isinstance(said, Failure):
            return ""
        return f"the classifier ({self.name}) would {'allow' if said.allow else 'block'} it: {_reason(said)}"

    @property
    def name(self) -> str:
        settings = self.settings
        return settings.command[0].rsplit("/", 1)[-1] if settings.command and not settings.model else settings.model

    # -- ahead of the need ---------------------------------------------------------------------------------------------

    def ahead(self, session: SessionState, ask: Callable[[], Judging], tool: str) -> Ahead:
        """Begin to ask, if hooks will take their time and the rules leave the question open. Returns at once."""
        speculate = self.settings.speculate
        if not self.classifier.on or speculate is Speculate.OFF:
            return Ahead()
        hooks = [hook for hook in session.hooks if hook.event is HookEvent.PRE_TOOL_USE and hook.matches(tool)]
        if any(hook.before_send for hook in hooks) or not (hooks or speculate is Speculate.ALWAYS):
            return Ahead()
        task = asyncio.create_task(self._ahead(session, ask()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return Ahead(task)

    async def _ahead(self, session: SessionState, judging: Judging) -> None:
        judged = await asyncio.to_thread(judge, judging)
        always = self.settings.speculate is Speculate.ALWAYS and judged.decision.behavior is Behavior.ALLOW
        if not (self.decides(judged) or (always and not judged.decision.protected)):
            return
        question = self.question(session, judged, await asyncio.to_thread(ground, judged, session.tightening))
        try:
            await self.classifier.ask(question, Purpose.EARLY)
            await asyncio.Event().wait()  # until it is known whether that was needed
        finally:
            self.classifier.release(question)

    def ran(self, session: SessionState, text: str) -> None:
        """A command is about to run: it belongs to what the next question is judged by."""
        if self.classifier.on:
            session.transcript = session.transcript.add(tool_call("Bash", {"command": text}))

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.classifier.close()


def _reason(said: Verdict) -> str:
    named = f" (asked for in {said.user_message})" if said.user_message else ""
    kind = "" if said.category.value == "none" else f"{said.category.value}: "
    return f"{kind}{said.reason}{named}"


def _opinion(said: Verdict | Failure, name: str, latency: float) -> Opinion:
    if isinstance(said, Failure):
        return Opinion(
            Consultant.CLASSIFIER, Behavior.DENY, str(said), failed=True, name=name, latency=latency, code=said.outage.value
        )
    verdict = Behavior.ALLOW if said.allow else Behavior.DENY
    return Opinion(Consultant.CLASSIFIER, verdict, _reason(said), name=name, latency=latency, code=said.category.value)
