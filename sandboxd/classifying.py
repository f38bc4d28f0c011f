# SPDX-License-Identifier: GPL-3.0-or-later
"""What the engine asks the classifier, when, and what becomes of the answer.

A question goes out when the synchronous rules have left it open, and only then: what a rule, the killswitch or a mode
decides is never sent. In auto mode the answer decides; in other modes it is advice to the human who is asked. The question
goes out *ahead*: a task for it exists before the first rule is tried, hooks run beside it, and it is cancelled the moment
its answer is not needed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Callable

from sandboxd.config import ClassifierSettings, OnOutage, ProviderKind, Speculate
from sandboxd.consult.classifier import Classifier, Purpose, Question
from sandboxd.consult.classifier_prompt import Matter, imitates
from sandboxd.consult.classifier_prompt import question as asked
from sandboxd.consult.hookdefs import HookEvent
from sandboxd.consult.transcript import tool_call
from sandboxd.consult.verdict import Failure, Verdict
from sandboxd.errors import SandboxdError
from sandboxd.judge import Judged, judge
from sandboxd.judge import Question as Judging
from sandboxd.model import Behavior, Consultant, Needs, Opinion, ToolCall
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
    """A judgement made at once, and the question that follows from it, which may turn out not to be needed."""

    def __init__(self, question: Judging | None = None, hooks: bool = False) -> None:
        self.question = question
        self.task: asyncio.Task[None] | None = None
        self._hooks = hooks  # they take their time, after which things are looked at again
        self._found: asyncio.Future[tuple[Judged, str]] = asyncio.get_running_loop().create_future()

    async def judged(self, question: Judging) -> tuple[Judged, str] | None:
        """The judgement on `question`, if it is still fresh, and where it left the question open the digest of its ground."""
        if self.task is None or self._hooks or question != self.question:
            return None
        return await self._found

    def tell(self, judged: Judged, grounds: str) -> None:
        if not self._found.done():
            self._found.set_result((judged, grounds))

    def fail(self, error: BaseException) -> None:
        if not self._found.done():
            self._found.set_exception(error)
            self._found.exception()  # whoever waits gets it; where nobody does, it is judged again

    def end(self) -> None:
        """The answer is not needed (any more). Idempotent; afterwards nothing of it is in flight."""
        if self.task is not None:
            self.task.cancel()
            self.task = None


class Classifying:
    """The classifier, with the knowledge of sessions and judgements that it lacks. All methods run on the engine's loop."""

    def __init__(self, settings: ClassifierSettings) -> None:
        self.classifier = Classifier(settings)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def settings(self) -> ClassifierSettings:
        return self.classifier.settings

    def decides(self, judged: Judged) -> bool:
        """Whether the classifier takes part in settling this; also where none is configured, which is an outage."""
        outcome = judged.outcome
        return isinstance(outcome, Needs) and Consultant.CLASSIFIER in outcome.who

    def out(self, session: SessionState) -> bool:
        """Whether it is known already that no question goes out, and that this denies: a human need not be troubled."""
        return self.settings.on_outage is OnOutage.DENY and self.classifier.refusal(session.id) is not None

    def advises(self, judged: Judged) -> bool:
        """Whether a human who is asked gets its advice: outside auto mode, and never about what only a human may allow."""
        outcome = judged.outcome
        if not self.classifier.on or self.settings.speculate is Speculate.OFF or not isinstance(outcome, Needs):
            return False
        decides = MODES[judged.inputs.mode].classifies
        return not decides and not outcome.pending.immune and not outcome.pending.protected

    def question(self, session: SessionState, judged: Judged, grounds: str, call: ToolCall | None = None) -> Question:
        """The question, with the digest of all that its answer rests on. `call`: it is about the use of a tool."""
        analysis, decision = judged.analysis, judged.decision
        matter = Matter(
            analysis,
            judged.facts,
            judged.inputs.scope,
            decision.message if call is None else decision.reason,  # a message shows all of a tool's input
            session.transcript,
            session.secrets,
            call=call,
        )
        matter = dataclasses.replace(matter, cautious=risk(analysis, judged.inputs.scope).cautious or imitates(matter.text))
        called = None if call is None else (call.name, matter.text)
        values = (grounds, session.transcript.digest, session.revision, matter.why, matter.cautious, called)
        key = hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()
        return Question(session.id, key, asked(matter, self.settings.max_input))

    async def opinion(
        self, session: SessionState, judged: Judged, grounds: str, attended: bool, call: ToolCall | None = None
    ) -> Opinion | None:
        """Its answer as an opinion for the waterfall. None leaves the question to the human who is there: on an outage, where
        the organisation says so, and about a command that tells its judge what to say."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        question = self.question(session, judged, grounds, call)
        if attended and self.classifier.on and isinstance(question.prompt, Verdict):
            return None
        said = await self.classifier.ask(question)
        if isinstance(said, Failure) and attended and self.settings.on_outage is OnOutage.ASK:
            return None
        return _opinion(said, self.name, loop.time() - begin, self.classifier.state)

    async def advice(self, session: SessionState, judged: Judged, grounds: str) -> str:
        """One sentence for the human, "" when there is nothing to say."""
        said = await self.classifier.ask(self.question(session, judged, grounds), Purpose.ADVICE)
        if isinstance(said, Failure):
            return ""
        return f"the classifier ({self.name}) would {'allow' if said.allow else 'block'} it: {_reason(said)}"

    @property
    def name(self) -> str:
        """Who answers: the model, or the program; "" where nobody does."""
        settings = self.settings
        match settings.provider:
            case ProviderKind.ANTHROPIC:
                return settings.model
            case ProviderKind.COMMAND:
                return settings.command[0].rsplit("/", 1)[-1]
        return ""

    def _goes_out(self, judged: Judged) -> bool:
        """Whether a question is sent before it is known to be needed."""
        if self.decides(judged) or self.advises(judged):
            return True
        decision = judged.decision
        always = self.settings.speculate is Speculate.ALWAYS
        return always and decision.behavior is Behavior.ALLOW and not decision.protected

    # -- ahead of the need ---------------------------------------------------------------------------------------------

    def ahead(self, session: SessionState, ask: Callable[[], Judging], tool: str) -> Ahead:
        """Begin to judge, and to ask where the rules leave the question open. Returns at once.

        Nothing begins where a hook must end before anything is sent, and where the request is no valid one: whoever asks
        next says so.
        """
        if not self.classifier.on or self.settings.speculate is Speculate.OFF:
            return Ahead()
        try:
            question = ask()  # first: it reads the rule files again, and with them the hooks
        except SandboxdError:
            return Ahead()
        hooks = [hook for hook in session.hooks if hook.event is HookEvent.PRE_TOOL_USE and hook.matches(tool)]
        if any(hook.before_send for hook in hooks):
            return Ahead()
        ahead = Ahead(question, bool(hooks))
        task = ahead.task = asyncio.create_task(self._ahead(session, question, ahead))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return ahead

    async def _ahead(self, session: SessionState, judging: Judging, ahead: Ahead) -> None:
        def look() -> tuple[Judged, str]:
            judged = judge(judging)
            return judged, ground(judged, session.tightening) if self._goes_out(judged) else ""

        try:
            judged, grounds = await asyncio.to_thread(look)
        except Exception as error:
            ahead.fail(error)
            return
        ahead.tell(judged, grounds)  # whoever waits for it goes on when this task waits: then the question is out
        if not grounds:
            return
        question = self.question(session, judged, grounds)
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


def _opinion(said: Verdict | Failure, name: str, latency: float, state: str) -> Opinion:
    if isinstance(said, Failure):
        reason, code = f"{said}; state: {state}", said.outage.value
        return Opinion(Consultant.CLASSIFIER, Behavior.DENY, reason, failed=True, name=name, latency=latency, code=code)
    verdict = Behavior.ALLOW if said.allow else Behavior.DENY
    return Opinion(Consultant.CLASSIFIER, verdict, _reason(said), name=name, latency=latency, code=said.category.value)
