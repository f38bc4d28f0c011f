# SPDX-License-Identifier: GPL-3.0-or-later
"""One request on its way through the stages, and what makes a request valid at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sandboxd.consult.approvals import Pending
from sandboxd.errors import Forbidden, RequestError
from sandboxd.judge import Judged
from sandboxd.model import Decision, EffectKind, Mode, ModelText, Opinion, Request, Timing
from sandboxd.run.execution import Execution
from sandboxd.run.results import deciding
from sandboxd.schedule.driver import Place
from sandboxd.session import SessionState

MAX_TEXT = 131_000  # bytes: the kernel refuses an argv string of 128 KiB (MAX_ARG_STRLEN in binfmts.h)


@dataclass(frozen=True, slots=True)
class Turn:
    """A batch's hold on one of its calls: it enters the lane when `open` is set, and says so by calling `entered`."""

    open: asyncio.Event
    entered: Callable[[], None]


class Stages:
    """How long the stages of one judgement took, in seconds; a stage that took place again counts in all.

    To add a stage: a name where it belongs in `ORDER`, a `took` where it takes place, its word in decision.proto.
    """

    ORDER = ("hooks", "parse", "effects", "facts", "waterfall", "human", "classifier", "permission hooks", "lane", "admission")

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def took(self, stage: str, seconds: float) -> None:
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def judged(self, judged: Judged) -> None:
        for timing in judged.timings:
            self.took(timing.stage, timing.seconds)

    @property
    def timings(self) -> tuple[Timing, ...]:
        """In the order of the stages."""
        return tuple(Timing(stage, self._seconds[stage]) for stage in self.ORDER if stage in self._seconds)


class Admitted(NamedTuple):
    """What is kept of the judgement that allowed a command, as long as its execution is known: not the analysis, which can take
    megabytes. `revision` is that of the rules, `opaque` whether it runs code that cannot be read, `programs` those whose exit
    statuses tell how it ended."""

    mode: Mode
    revision: str
    opinions: tuple[Opinion, ...]
    opaque: bool
    programs: tuple[str, ...]

    @classmethod
    def of(cls, judged: Judged, revision: str) -> Admitted:
        analysis = judged.analysis
        opaque = analysis.unparsed is not None or any(
            effect.kind is EffectKind.OPAQUE for command in analysis.commands for effect in command.effects
        )
        return cls(judged.inputs.mode, revision, judged.inputs.opinions, opaque, deciding(analysis))


@dataclass(slots=True, eq=False)
class Job:
    """The engine's side of one execution."""

    execution: Execution
    request: Request  # as it runs: a hook may have rewritten the command
    session: SessionState
    asked: Request  # as it came
    decision_id: str = ""
    begun: bool = False  # its task has made its first step
    started: bool = False
    rewritten: bool = False
    opinions: tuple[Opinion, ...] = ()  # what hooks said before it was judged
    pending: Pending | None = None  # the question that is open about it
    ground: str = ""  # what an answer to that question rests on
    notes: list[str] = field(default_factory=list)
    stages: Stages = field(default_factory=Stages)
    task: asyncio.Task[None] | None = None
    turn: Turn | None = None  # its place in a batch
    place: Place | None = None  # its place in the session's order of arrival, outside of a batch
    admitted: Admitted | None = None
    decision: Decision | None = None
    standing: tuple[Mode, str] | None = None  # mode and rules under which its stdin was last found allowed
    model: ModelText | None = None  # kept when it is a preview
    expiry: asyncio.TimerHandle | None = None  # when it ends unless somebody comes back

    def payload(self) -> dict[str, Any]:
        """What a hook is told of it."""
        session = self.session
        return {
            "session_id": session.id,
            "cwd": self.request.cwd or session.cwd,
            "permission_mode": session.mode_in_force.value,
            "tool_name": "Bash",
            "tool_input": {"command": self.request.text},
            "tool_use_id": self.execution.id,
        }


def validate(request: Request, *, unsandboxed: bool = False) -> None:
    """Raise RequestError for what is no valid request, whoever sends it, and Forbidden for one to run without a sandbox where
    the configuration does not permit that at all (`unsandboxed`)."""
    if request.unsandboxed and not unsandboxed:
        raise Forbidden(
            "running without a sandbox is not permitted",
            field="command.dangerously_disable_sandbox",
            fix="leave it out; `policy.allow_unsandboxed` would let a human agree to it",
        )
    if "\0" in request.text:
        raise RequestError("the command contains a NUL character", field="command.text", fix="remove it")
    try:
        size = len(request.text.encode())
    except UnicodeEncodeError:
        raise RequestError("the command is not valid Unicode", field="command.text", fix="send UTF-8") from None
    if size > MAX_TEXT:
        raise RequestError(
            f"the command has {size} bytes, more than {MAX_TEXT}", field="command.text", fix="put it in a script file"
        )
    if request.timeout is not None and not request.timeout > 0:
        raise RequestError(f"timeout `{request.timeout}` is not positive", field="command.timeout", fix="leave it out")
