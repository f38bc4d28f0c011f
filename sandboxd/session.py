# SPDX-License-Identifier: GPL-3.0-or-later
"""One session: its workspace, directory, mode and rules, and the session it belongs to."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, unique

from sandboxd import config as settings
from sandboxd import rulefiles
from sandboxd.config import Config, Directories
from sandboxd.consult.hookdefs import Hook
from sandboxd.consult.transcript import Transcript
from sandboxd.errors import ConfigError, Forbidden
from sandboxd.isolation.planned import Plans
from sandboxd.model import Behavior, Mode, Rule, RuleSet, Scope, Session, Tool
from sandboxd.pace import Pace
from sandboxd.paths import is_within
from sandboxd.policy.breaker import Breaker
from sandboxd.policy.inherit import inherit
from sandboxd.policy.modes import effective
from sandboxd.policy.sources import rank
from sandboxd.toolbox import registered

_MAX_BROKEN = 256  # broken promises that a session remembers
_SECRET_NAME = re.compile(r"pass|secret|token|key|credential|auth|cookie|session|dsn|(^|_)(pw|pwd|pat|url|uri)$", re.IGNORECASE)


@unique
class Role(Enum):
    """Which socket a call came in on, and so what it may do."""

    AGENT = "agent"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """What a caller asks for. `workspace` "" = the parent's, else the repository around `cwd`, else `cwd`. Rules are texts
    like `Bash(ls)`; the `allow` of a child narrows what it takes from its parent. `outlives`: it does not end with it."""

    workspace: str = ""
    cwd: str | None = None
    mode: Mode | None = None  # None = what the user's or organisation's settings say, else `default`
    profile: str = ""
    headless: bool = False
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    additional: tuple[str, ...] = ()
    parent_id: str = ""
    outlives: bool = False


class SessionState:
    """A live session. Only the engine's loop changes it."""

    def __init__(
        self, session_id: str, secret: str, spec: SessionSpec, role: Role, isolation: Session, parent: SessionState | None = None
    ) -> None:
        self.id = session_id
        self.secret = secret
        self.approval_secret = secrets.token_urlsafe(16)  # for a front-end that may prompt; opens nothing else
        self.spec = spec
        self.owner_role = role
        self.isolation = isolation
        self.parent = parent
        self.mode = spec.mode or Mode.DEFAULT
        self.headless = spec.headless
        self.profile: str = spec.profile if parent is None else parent.profile
        self.cwd = os.path.realpath(spec.cwd) if spec.cwd else isolation.workspace
        self.created_at = time.time()
        self.ended = False
        self.judging, self.preparing, self.settling = Pace(), Pace(), Pace()
        self.plans = Plans()
        self.denials = Breaker()
        # What the classifier may know of the conversation; a child begins with what its parent's user had said.
        self.transcript: Transcript = Transcript() if parent is None else parent.transcript
        self.declared: tuple[Tool, ...] = ()  # by its front-end; a child has its parent's
        self.cli_rules: tuple[Rule, ...] = ()
        self.session_rules: tuple[Rule, ...] = ()  # approved "for this session"
        self.rules = RuleSet()
        self.hooks: tuple[Hook, ...] = ()  # of trusted files only
        self.revision = ""  # changes with any rule in force
        self.tightening = ""  # changes with any deny or ask rule in force, and with the policy settings
        self.context: tuple[str, ...] = ()  # what SessionStart hooks said
        self.rule_errors: tuple[str, ...] = ()
        self.ignored: tuple[str, ...] = ()  # what rule files say and we do not understand
        self.guarded: tuple[str, ...] = ()  # files that hook commands name
        self.file_additional: tuple[str, ...] = ()  # additional directories from trusted rule files
        self.default_mode: Mode | None = None  # from trusted rule files
        self.forbid_bypass = False  # a rule file switches bypassPermissions off
        self._broken: dict[tuple[str, str], None] = {}  # (text, cwd) of what broke the read-only promise, oldest first
        self._signature: object = None
        self._with: tuple[tuple[Rule, ...], RuleSet, RuleSet] | None = None
        self._watchers: set[asyncio.Event] = set()

    @property
    def workspace(self) -> str:
        return self.isolation.workspace

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values of its environment that no record may hold: of names that are given to secrets."""
        return tuple(value for name, value in self.isolation.env if value and _SECRET_NAME.search(name))

    @property
    def rule_notes(self) -> tuple[str, ...]:
        """What rule files say without effect: what nobody understands, and what waits for trust."""
        return (*self.ignored, *(f"{rule.origin}: `{rule.text}` ({rule.behavior.value}) is inert" for rule in self.rules.inert))

    def remember_broken(self, text: str, cwd: str) -> None:
        """`text` tried to write under the read-only promise: from now on it is judged as one that writes."""
        self._broken[text, cwd] = None
        if len(self._broken) > _MAX_BROKEN:
            del self._broken[next(iter(self._broken))]

    def broke_promise(self, text: str, cwd: str) -> bool:
        return (text, cwd) in self._broken

    @property
    def additional(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.spec.additional, *self.file_additional)))

    @property
    def scope(self) -> Scope:
        return Scope(
            workspace=self.workspace,
            home=self.isolation.home,
            additional=self.additional,
            own=self.isolation.own,
            readable=(self.isolation.spill,) if self.isolation.spill else (),
            guarded=self.guarded,
        )

    # -- the tree of sessions ----------------------------------------------------------------------------------------

    @property
    def lineage(self) -> tuple[SessionState, ...]:
        """The session and those above it, nearest first."""
        return (self,) if self.parent is None else (self, *self.parent.lineage)

    @property
    def mode_in_force(self) -> Mode:
        """Its mode, but never looser than its parent's is now."""
        return self.mode if self.parent is None else effective(self.mode, self.parent.mode_in_force)

    @property
    def asker(self) -> SessionState:
        """The session whose approvers are asked: with `bubble` the parent's."""
        if self.parent is not None and self.mode_in_force is Mode.BUBBLE:
            return self.parent.asker
        return self

    @property
    def unattended(self) -> bool:
        """Whether nobody is there to ask: the asker, or a session above it, is headless, or the asker has ended."""
        asker = self.asker
        return asker.ended or any(each.headless for each in asker.lineage)

    def set_mode(self, mode: Mode) -> None:
        """Put a mode in force, and tell who waits for that."""
        self.mode = mode
        for event in self._watchers:
            event.set()

    @contextlib.contextmanager
    def watched(self) -> Iterator[asyncio.Event]:
        """An event that is set when the mode in force may have changed."""
        event = asyncio.Event()
        for each in self.lineage:
            each._watchers.add(event)
        try:
            yield event
        finally:
            for each in self.lineage:
                each._watchers.discard(event)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that its front-end declared, for it or for the session at the top."""
        return self.lineage[-1].declared

    def declare(self, added: tuple[Tool, ...], removed: tuple[str, ...]) -> None:
        """Change the declared tools. Raises Forbidden, and what `toolbox.registered` raises; then nothing changes."""
        if self.parent is not None:
            raise Forbidden(
                "a child session has its parent's tools", field="session_id", fix="declare them for the session at the top"
            )
        self.declared = registered(self.declared, added, removed)

    # -- rules -------------------------------------------------------------------------------------------------------

    def rules_with(self, more: tuple[Rule, ...]) -> RuleSet:
        """The rules in force for a command that comes with rules of its own, which stand above the session's. The same
        object for the same rules. What a child may do is bounded by its parent: there they only tighten."""
        if not more:
            return self.rules
        if self._with is None or self._with[0] != more or self._with[1] is not self.rules:
            own = more
            if self.parent is not None:
                own = tuple(replace(rule, trusted=False) for rule in more if rule.behavior is not Behavior.ALLOW)
            rules = sorted((*own, *self.rules.rules), key=lambda rule: rank(rule.source))
            self._with = (more, self.rules, RuleSet(tuple(rules), self.rules.strategy, self.rules.inert))
        return self._with[2]

    def refresh_rules(self, config: Config, dirs: Directories) -> None:
        """Read the rule files again if any changed.

        Raises ConfigError with file:line when there is no good state yet; later a bad file is kept out, the last good
        rules stay and `rule_errors` says so.
        """
        above = self.parent
        if above is not None and not above.ended:
            above.refresh_rules(config, dirs)
        signature = (
            rulefiles.signature(config, dirs, self.workspace),
            self.session_rules,
            None if above is None else above.revision,
        )
        if signature == self._signature:
            return
        try:
            found = rulefiles.read(config, dirs, self.workspace)
        except ConfigError as error:
            if self._signature is None:
                raise
            self.rule_errors = (str(error),)
            return
        own = found.rules
        self.rules = RuleSet((*self.cli_rules, *self.session_rules, *own.rules), own.strategy, own.inert)
        self.file_additional = found.additional
        self.hooks, self.guarded = found.hooks, found.guarded
        self.forbid_bypass = found.forbid_bypass
        if above is not None:
            self.rules = inherit(self.rules, above.rules, self.spec.allow, above.workspace, self.workspace)
            roots = (above.workspace, *above.additional)
            self.file_additional = tuple(path for path in found.additional if any(is_within(path, root) for root in roots))
            self.hooks = tuple(dict.fromkeys((*above.hooks, *found.hooks)))
            self.guarded = tuple(dict.fromkeys((*above.guarded, *found.guarded)))
            self.forbid_bypass = self.forbid_bypass or above.forbid_bypass
        self.ignored = found.ignored
        self.default_mode = found.default_mode
        if self.forbid_bypass and self.mode is Mode.BYPASS:
            self.set_mode(Mode.DEFAULT)
        self.rule_errors = ()
        self._signature = signature
        self.revision = _digest(self.rules, self.hooks, config.policy, self.additional)
        tight = tuple(rule for rule in self.rules.rules if rule.behavior is not Behavior.ALLOW)
        self.tightening = _digest(tight, self.hooks, config.policy)


def _digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def enclosing_repository(directory: str) -> str:
    """The nearest directory at or above that holds `.git`, unless that is `/` or a home directory; else `directory`."""
    current = directory
    homes = {settings.home_directory()}
    while current not in homes and current != "/":
        try:
            mode = os.lstat(f"{current}/.git").st_mode
        except OSError:
            mode = 0
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            return current
        current = os.path.dirname(current)
    return directory
