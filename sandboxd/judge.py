# SPDX-License-Identifier: GPL-3.0-or-later
"""The deciding half of a request, without running anything: text -> analysis -> facts -> waterfall.

The engine goes through here for every command, once when it arrives and once more when its lane admits it;
`sandboxd check` goes through here and stops.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from sandboxd.analyze import TABLES, analyze, read
from sandboxd.effects.tables import Tables
from sandboxd.isolation.environment import SYSTEM_PATH
from sandboxd.model import (
    Analysis,
    AnalysisContext,
    Decision,
    Facts,
    Inputs,
    Mode,
    Needs,
    Opinion,
    Rule,
    RuleSet,
    Scope,
    Timing,
    ToolCall,
)
from sandboxd.observe import observe
from sandboxd.policy.patterns import Place
from sandboxd.policy.rules import excluded
from sandboxd.policy.waterfall import evaluate
from sandboxd.toolcalls import HOST_TMP, analyze_call, texts


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: one text in one place under one set of rules. `observed`: look at the workspace for facts.

    `tables`: what is known about tools, the user's own tables among it.
    """

    text: str
    cwd: str
    scope: Scope
    rules: RuleSet
    mode: Mode = Mode.DEFAULT
    headless: bool = False
    observed: bool = False
    enforcement_full: bool = True
    auto_allow_if_sandboxed: bool = False
    unsandboxed: str = ""
    excluded: tuple[Rule, ...] = ()  # what runs without a sandbox when a line holds nothing else
    tables: Tables = TABLES
    more_path: tuple[str, ...] = ()  # what profile and session add to PATH
    breaker_open: bool = False
    broke_promise: bool = False  # this text tried to write here when it ran under the read-only promise
    call: ToolCall | None = None  # the use of a tool that is not a shell; `text` is how it is shown then
    host_tmp: str = ""  # the session's temporary directory as the front-end sees it, which runs such a tool


@dataclass(frozen=True, slots=True)
class Judged:
    """The waterfall's inputs and what it said."""

    inputs: Inputs
    outcome: Decision | Needs
    timings: tuple[Timing, ...] = ()  # how long parse, effects, facts and waterfall took the first time

    @property
    def analysis(self) -> Analysis:
        return self.inputs.analysis

    @property
    def facts(self) -> Facts:
        return self.inputs.facts

    @property
    def decision(self) -> Decision:
        """The decision as it stands; an ASK while somebody could still answer."""
        return self.outcome.pending if isinstance(self.outcome, Needs) else self.outcome

    def with_opinion(self, opinion: Opinion) -> Judged:
        """The same question with one more answer from outside."""
        return self._again(self.inputs._replace(opinions=(*self.inputs.opinions, opinion)))

    def unattended(self) -> Judged:
        """The same question when nobody is left who could answer."""
        return self._again(self.inputs._replace(headless=True))

    def under(self, mode: Mode) -> Judged:
        """The same question in another mode."""
        return self._again(self.inputs._replace(mode=mode))

    def _again(self, inputs: Inputs) -> Judged:
        return Judged(inputs, evaluate(inputs), self.timings)


# PATH of every box, in this order: system directories first, so that a workspace cannot shadow a tool.
BOX_PATH = ":".join(SYSTEM_PATH)


def judge(question: Question, opinions: tuple[Opinion, ...] = ()) -> Judged:
    """Answer a question. Reads the workspace (only through observe) when `observed` is set; raises nothing."""
    scope = question.scope
    begin = time.perf_counter()
    parsed = begin
    if question.call is None:
        read(question.text)
        parsed = time.perf_counter()
        analysis = analyze(question.text, AnalysisContext(question.cwd, scope.home, scope.workspace), question.tables)
    else:
        analysis = analyze_call(question.call, question.cwd, scope.home)
    inferred = time.perf_counter()
    facts = Facts()
    if question.observed:
        facts = observe(
            analysis,
            workspace=scope.workspace,
            home=scope.home,
            additional=scope.additional,
            path_env=":".join((BOX_PATH, *question.more_path)),
        )
    if scope.guarded:  # as the targets of core.hooksPath: what runs there runs outside the box
        facts = dataclasses.replace(facts, hooks_paths=(*facts.hooks_paths, *scope.guarded))
    unsandboxed = question.unsandboxed
    if question.excluded and not unsandboxed and question.call is None:
        place = Place(question.cwd, scope.workspace, scope.home)
        unsandboxed = "excluded command" if excluded(question.excluded, analysis, place) else ""
    observed = time.perf_counter()
    inputs = Inputs(
        analysis=analysis,
        rules=question.rules,
        scope=scope,
        mode=question.mode,
        facts=facts,
        opinions=opinions,
        headless=question.headless,
        unsandboxed=unsandboxed,
        enforcement_full=question.enforcement_full,
        auto_allow_if_sandboxed=question.auto_allow_if_sandboxed,
        breaker_open=question.breaker_open,
        broke_promise=question.broke_promise,
    )
    if question.call is not None:
        inputs = _outside(inputs, question.call, question.host_tmp)
    outcome = evaluate(inputs)
    marks = (("parse", parsed - begin), ("effects", inferred - parsed), ("facts", observed - inferred))
    took = (*marks, ("waterfall", time.perf_counter() - observed))
    return Judged(inputs, outcome, tuple([Timing(stage, seconds) for stage, seconds in took if seconds]))


def _outside(inputs: Inputs, call: ToolCall, tmp: str) -> Inputs:
    """The inputs for what a front-end does itself: no sandbox is around it, and its /tmp is the host's, which it may read."""
    tool, scope = call.tool, inputs.scope
    return inputs._replace(
        tool=call.name,
        aliases=() if tool is None else tool.aliases,
        texts=texts(call),
        scope=dataclasses.replace(scope, tmp=tmp or scope.workspace, readable=(*scope.readable, HOST_TMP)),
        classifiable=tool is not None and bool(tool.classifier_input),
        enforcement_full=False,
        auto_allow_if_sandboxed=False,
    )
