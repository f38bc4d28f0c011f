# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules in, decision out: the values of the judging stage."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from typing import NamedTuple

from sandboxd.model.effects import Analysis, Facts
from sandboxd.model.shell import Span


@unique
class Behavior(Enum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"

    __hash__ = object.__hash__  # as EffectKind


@unique
class Mode(Enum):
    DEFAULT = "default"
    PLAN = "plan"
    ACCEPT_EDITS = "acceptEdits"
    BYPASS = "bypassPermissions"
    DONT_ASK = "dontAsk"
    AUTO = "auto"
    BUBBLE = "bubble"

    __hash__ = object.__hash__  # as EffectKind


@unique
class Source(Enum):
    """Where a rule comes from, highest first."""

    CLI_ARG = "cliArg"
    COMMAND = "command"
    SESSION = "session"
    LOCAL = "localSettings"
    USER = "userSettings"
    POLICY = "policySettings"


@unique
class Strategy(Enum):
    """How conflicting rules are settled. Denies from policySettings are final in both."""

    DENY_OVERRIDES = "deny-overrides"
    SOURCE_ORDER = "source-order"


@dataclass(frozen=True, slots=True)
class Rule:
    """One permission rule. `text` is as written (`Bash(npm run:*)`), `origin` is `file:line` or a flag's name.

    `trusted` False: it comes from whoever it binds (a workspace nobody trusted, an agent, a child session), so it may only
    tighten: it takes no other rule's place.
    """

    behavior: Behavior
    tool: str
    content: str | None  # None = the whole tool
    text: str
    source: Source
    origin: str
    reason: str = ""
    match: tuple[str, ...] = ()
    not_match: tuple[str, ...] = ()
    trusted: bool = True


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All rules in force, in source order; `inert` are those of an untrusted workspace, kept to be reported."""

    rules: tuple[Rule, ...] = ()
    strategy: Strategy = Strategy.DENY_OVERRIDES
    inert: tuple[Rule, ...] = ()


@unique
class Consultant(Enum):
    HOOK = "hook"
    CLASSIFIER = "classifier"
    APPROVAL = "approval"  # a human


@dataclass(frozen=True, slots=True)
class Opinion:
    """An answer from outside. A failed opinion never allows."""

    who: Consultant
    verdict: Behavior
    reason: str
    failed: bool = False
    name: str = ""  # which hook, which approver
    latency: float = 0.0  # seconds
    code: str = ""  # the reason code of a failed one, the category of a classifier's denial


@unique
class GrantKind(Enum):
    WORKSPACE_WRITE = "workspace_write"
    WRITE = "write"  # one path outside the workspace
    READ = "read"  # one secret path, opened for this command
    PROTECTED = "protected"  # one protected path
    HOST = "host"  # one network host (or `*`)
    UNSANDBOXED = "unsandboxed"

    __hash__ = object.__hash__  # members are single: by identity, several times faster than Enum's own, which is Python


@dataclass(frozen=True, slots=True)
class Grant:
    """What an ALLOW opens, for this one command."""

    kind: GrantKind
    target: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that a step looked at: a rule, an effect, a path."""

    text: str
    span: Span | None = None
    subcommand: str = ""
    rule: str = ""
    source: str = ""
    origin: str = ""
    because: str = ""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """What one step of the waterfall said; `outcome` is None where it had nothing to say."""

    step: str
    name: str
    outcome: Behavior | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of the waterfall.

    `step` is the table's id (`2e`); `reason` the machine code (`read_only`), `message` one sentence for a person,
    `flip` the smallest change that would turn it. `immune`: only a human can turn this ASK into ALLOW. `protected`:
    there is evidence of a protected touch or a certain catastrophe, whichever step answered. `promise`: it runs under
    the read-only promise.
    """

    behavior: Behavior
    step: str
    reason: str
    message: str
    flip: str = ""
    immune: bool = False
    protected: bool = False
    promise: bool = False
    evidence: tuple[Evidence, ...] = ()
    grants: tuple[Grant, ...] = ()
    trace: tuple[TraceEntry, ...] = ()
    suggestions: tuple[str, ...] = ()  # narrow rules that "always allow" would write


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one stage of a judgement took, in seconds."""

    stage: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Needs:
    """The waterfall is at an ASK that one of `who` may settle; `pending` is the ASK as it stands without them."""

    who: frozenset[Consultant]
    pending: Decision


@dataclass(frozen=True, slots=True)
class Scope:
    """The places a session may use without asking. All absolute, lexical; `home` is the person's home directory.

    `own` are sandboxd's configuration and state directories (protected), `readable` extra readable roots
    (the session's spill), `tmp` the session's /tmp, `guarded` files that run outside every box (hook scripts).
    """

    workspace: str
    home: str
    additional: tuple[str, ...] = ()
    tmp: str = "/tmp"  # noqa: S108  the path inside the box
    own: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    guarded: tuple[str, ...] = ()


class Inputs(NamedTuple):
    """All that `policy.waterfall.evaluate` looks at. Nothing else can influence a decision."""

    analysis: Analysis
    rules: RuleSet
    scope: Scope
    mode: Mode = Mode.DEFAULT
    tool: str = "Bash"
    facts: Facts = Facts()
    opinions: tuple[Opinion, ...] = ()
    headless: bool = False
    unsandboxed: str = ""  # why it would run unsandboxed ("profile none", "request"), "" = sandboxed
    enforcement_full: bool = True  # from the cached probe
    auto_allow_if_sandboxed: bool = False
    max_mode: Mode | None = None
    aliases: tuple[str, ...] = ()  # other names of `tool`, for rules that tighten
    texts: tuple[str, ...] = ()  # what another tool was called with: first what allow rules match; () = the analysis's text
    classifiable: bool = True  # whether a classifier may be asked; else only a human settles an ASK
    breaker_open: bool = False  # the classifier denied so often that a human is asked instead
    broke_promise: bool = False  # it tried to write when it last ran under the read-only promise
