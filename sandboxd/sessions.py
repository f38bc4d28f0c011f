# SPDX-License-Identifier: GPL-3.0-or-later
"""Sessions: one agent's conversation with its workspace, directory, mode and rules, and who may touch it."""

from __future__ import annotations

import hashlib
import hmac
import os
import pwd
import secrets
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from enum import Enum, unique

from sandboxd import config as settings
from sandboxd import trust
from sandboxd.config import Config, Directories
from sandboxd.consult.hookdefs import Hook, parse_hooks_claude, parse_hooks_toml
from sandboxd.errors import ConfigError, Exhausted, Forbidden, NotFound, RequestError
from sandboxd.model import Behavior, Mode, Rule, RuleSet, Scope, Session, Source
from sandboxd.paths import expand_home, is_within, join
from sandboxd.policy import rules, sources


@unique
class Role(Enum):
    """Which socket a call came in on, and so what it may do."""

    AGENT = "agent"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """What a caller asks for. `workspace` "" = the repository around `cwd`, else `cwd`. Rules are texts like `Bash(ls)`."""

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


class SessionState:
    """A live session. Only the engine's loop changes it."""

    def __init__(self, session_id: str, secret: str, spec: SessionSpec, role: Role, isolation: Session) -> None:
        self.id = session_id
        self.secret = secret
        self.spec = spec
        self.owner_role = role
        self.isolation = isolation
        self.mode = spec.mode or Mode.DEFAULT
        self.headless = spec.headless
        self.profile = spec.profile
        self.cwd = os.path.realpath(spec.cwd) if spec.cwd else isolation.workspace
        self.created_at = time.time()
        self.cli_rules: tuple[Rule, ...] = ()
        self.session_rules: tuple[Rule, ...] = ()  # approved "for this session"
        self.rules = RuleSet()
        self.hooks: tuple[Hook, ...] = ()  # of trusted files only
        self.revision = ""
        self.context: tuple[str, ...] = ()  # what SessionStart hooks said
        self.rule_errors: tuple[str, ...] = ()
        self.ignored: tuple[str, ...] = ()  # what rule files say and we do not understand
        self.file_additional: tuple[str, ...] = ()  # additional directories from trusted rule files
        self.default_mode: Mode | None = None  # from trusted rule files
        self.forbid_bypass = False  # a rule file switches bypassPermissions off
        self._signature: object = None

    @property
    def workspace(self) -> str:
        return self.isolation.workspace

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
        )

    def refresh_rules(self, config: Config, dirs: Directories) -> None:
        """Read the rule files again if any changed.

        Raises ConfigError with file:line when there is no good state yet; later a bad file is kept out, the last good
        rules stay and `rule_errors` says so.
        """
        places = settings.rule_places(dirs, self.workspace, claude=config.policy.read_claude_settings)
        signature = (settings.rule_signature(places), trust.signature(dirs), config.policy, self.session_rules)
        if signature == self._signature:
            return
        try:
            texts = settings.read_rules(places)
            known = trust.load(dirs)
            files = [_parse_rules(text, known.covers(text)) for text in texts]
            found = [_parse_hooks(text) for text, file in zip(texts, files, strict=True) if file.trusted]
        except ConfigError as error:
            if self._signature is None:
                raise
            self.rule_errors = (str(error),)
            return
        merged = sources.merge(tuple(files), config.policy.strategy)
        self.rules = RuleSet((*self.cli_rules, *self.session_rules, *merged.rules), merged.strategy, merged.inert)
        self.hooks = tuple(hook for hooks, _ in found for hook in hooks)
        self.ignored = tuple(
            item for items in (*(file.ignored for file in files), *(more for _, more in found)) for item in items
        )
        trusted = [file for file in files if file.trusted]
        self.file_additional = tuple(
            join(self.workspace, expand_home(path, self.isolation.home))
            for file in trusted
            for path in file.additional_directories
        )
        self.default_mode = next((file.default_mode for file in trusted if file.default_mode is not None), None)
        self.forbid_bypass = any(file.forbid_bypass for file in files)
        if self.forbid_bypass and self.mode is Mode.BYPASS:
            self.mode = Mode.DEFAULT
        self.rule_errors = ()
        self._signature = signature
        digest = hashlib.sha256(repr((self.rules, self.hooks, config.policy, self.additional)).encode())
        self.revision = digest.hexdigest()[:16]


def _parse_rules(text: settings.RuleText, trusted: bool) -> sources.SourceFile:
    parse = sources.parse_claude_settings if text.place.format is settings.RuleFormat.CLAUDE else sources.parse_settings_toml
    return parse(text.text, text.place.source, text.place.path, trusted)


def _parse_hooks(text: settings.RuleText) -> tuple[tuple[Hook, ...], tuple[str, ...]]:
    if text.place.format is settings.RuleFormat.CLAUDE:
        return parse_hooks_claude(text.text, text.place.source, text.place.path)
    return parse_hooks_toml(text.text, text.place.source, text.place.path), ()


class Sessions:
    """All live sessions; checks who may create, see and change them."""

    def __init__(self, config: Config, dirs: Directories) -> None:
        self.config = config
        self._dirs = dirs
        self._by_id: dict[str, SessionState] = {}
        self._tmp_root: str | None = None

    def create(self, spec: SessionSpec, role: Role) -> SessionState:
        """A new session. Raises RequestError naming the field, Forbidden, Exhausted, or ConfigError for a bad rule file."""
        if len(self._by_id) >= self.config.sessions.max_sessions:
            raise Exhausted("too many sessions", fix="delete some or raise `sessions.max_sessions`")
        workspace = _workspace(spec)
        owner = os.stat(workspace)
        if role is Role.AGENT:
            self._limit_agent(spec, workspace)
        self._check_places(spec, workspace)
        uid, gid, home = os.getuid(), os.getgid(), self._dirs.home
        if uid == 0 and owner.st_uid != 0:
            uid, gid, home = owner.st_uid, owner.st_gid, _home_of(owner.st_uid)
        session_id = f"s-{secrets.token_hex(8)}"
        tmp = self._make_tmp(session_id, uid, gid)
        spill = f"{self._dirs.state}/spill/{session_id}"
        isolation = Session(
            id=session_id,
            workspace=workspace,
            home=home,
            uid=uid,
            gid=gid,
            tmp=tmp,
            own=self._dirs.own,
            spill=spill if os.path.isdir(spill) else "",
            additional=spec.additional,
            env=spec.env,
        )
        state = SessionState(session_id, secrets.token_urlsafe(16), spec, role, isolation)
        try:
            state.cli_rules = tuple(
                rules.parse_rule(text, behavior, Source.CLI_ARG, f"--{behavior.value}")
                for behavior, texts in ((Behavior.DENY, spec.deny), (Behavior.ASK, spec.ask), (Behavior.ALLOW, spec.allow))
                for text in texts
            )
            state.refresh_rules(self.config, self._dirs)
            wished = state.default_mode
            if spec.mode is None and wished is not None and (role is Role.ADMIN or wished in self.config.sessions.max_mode):
                state.mode = wished
            _check_bypass(state, spec.mode or state.mode)
        except BaseException:
            _remove_tree(tmp)
            raise
        self._by_id[session_id] = state
        return state

    def get(self, session_id: str, secret: str, role: Role) -> SessionState:
        """The session, if the caller may see it. The agent socket needs its secret; both failures look the same."""
        state = self._by_id.get(session_id)
        if state is None or (role is Role.AGENT and not hmac.compare_digest(state.secret.encode(), secret.encode())):
            raise NotFound(f"no session `{session_id}` for this caller", field="session_id", fix="create one first")
        return state

    def find(self, session_id: str) -> SessionState | None:
        return self._by_id.get(session_id)

    def list(self) -> tuple[SessionState, ...]:
        return tuple(self._by_id.values())

    def update(
        self,
        state: SessionState,
        role: Role,
        *,
        mode: Mode | None = None,
        cwd: str | None = None,
        headless: bool | None = None,
    ) -> None:
        """Change a session. Only the admin socket loosens a mode or makes a headless session ask."""
        if mode is not None and mode is not state.mode:
            if role is Role.AGENT and mode not in self.config.sessions.max_mode:
                raise Forbidden(f"mode `{mode.value}` needs the admin socket", field="mode", fix="let a human set it")
            _check_bypass(state, mode)
            state.mode = mode
        if cwd is not None:
            target = join(state.cwd, cwd)
            if not os.path.isdir(target):
                raise RequestError(f"`{target}` is not a directory", field="cwd", fix="name an existing one")
            if not any(is_within(target, root) for root in (state.workspace, *state.additional)):
                raise RequestError(f"`{target}` is outside the workspace", field="cwd", fix="stay below the workspace")
            state.cwd = target
        if headless is not None:
            state.headless = headless

    def delete(self, state: SessionState) -> None:
        self._by_id.pop(state.id, None)
        _remove_tree(state.isolation.tmp)

    def close(self) -> None:
        """Forget all sessions and remove what they left in temporary directories."""
        for state in self.list():
            self.delete(state)
        if self._tmp_root is not None:
            _remove_tree(self._tmp_root)
            self._tmp_root = None

    def _limit_agent(self, spec: SessionSpec, workspace: str) -> None:
        limits = self.config.sessions
        roots = tuple(os.path.realpath(expand_home(root, self._dirs.home)) for root in limits.roots)
        if not any(is_within(workspace, root) for root in roots):
            raise Forbidden(
                f"workspace `{workspace}` is outside the configured roots", field="workspace", fix="add it to `sessions.roots`"
            )
        if spec.mode is not None and spec.mode not in limits.max_mode:
            allowed = ", ".join(mode.value for mode in limits.max_mode)
            raise Forbidden(f"mode `{spec.mode.value}` needs the admin socket", field="mode", fix=f"use one of {allowed}")
        if spec.allow or spec.additional:
            raise Forbidden("allow rules and additional directories need the admin socket", field="allow", fix="leave them out")
        for name, _ in spec.env:
            if name not in limits.env:
                raise Forbidden(f"environment name `{name}` is not allowed", field="env", fix="add it to `sessions.env`")

    def _check_places(self, spec: SessionSpec, workspace: str) -> None:
        for path in spec.additional:
            if not path.startswith("/") or not os.path.isdir(path):
                field = "additional_directories"
                raise RequestError(f"`{path}` is not an absolute directory", field=field, fix="name an existing one")
        if spec.cwd is not None:
            cwd = os.path.realpath(spec.cwd)
            if not os.path.isdir(cwd):
                raise RequestError(f"`{spec.cwd}` is not a directory", field="cwd", fix="name an existing one")
            if not any(is_within(cwd, root) for root in (workspace, *spec.additional)):
                raise RequestError(f"`{spec.cwd}` is outside the workspace `{workspace}`", field="cwd", fix="name one below it")
        for own in self._dirs.own:
            if is_within(workspace, own):
                raise RequestError(f"workspace `{workspace}` is sandboxd's own", field="workspace", fix="choose another")

    def _make_tmp(self, session_id: str, uid: int, gid: int) -> str:
        """The host directory behind the session's /tmp.

        It lies in the host's /tmp, which every box covers with its own, so one session's boxes never see another's;
        the parent may be entered but not listed, the directory itself belongs to the box's user alone.
        """
        if self._tmp_root is None:
            self._tmp_root = tempfile.mkdtemp(prefix="sandboxd-")
            os.chmod(self._tmp_root, 0o711)  # noqa: S103  a box's user must pass through, and can list nothing
        path = f"{self._tmp_root}/{session_id}"
        os.mkdir(path, 0o700)
        if uid != os.getuid():
            os.chown(path, uid, gid)
        return path


def _check_bypass(state: SessionState, mode: Mode) -> None:
    if mode is Mode.BYPASS and state.forbid_bypass:
        raise Forbidden("a settings file switches bypassPermissions off", field="mode", fix="use another mode")


def _workspace(spec: SessionSpec) -> str:
    """The real path of the workspace that a spec means. Raises RequestError."""
    start = spec.workspace or spec.cwd or ""
    if not start.startswith("/"):
        raise RequestError(f"workspace `{start}` is not an absolute path", field="workspace", fix="give an absolute path")
    real = os.path.realpath(start)
    if not os.path.isdir(real):
        raise RequestError(f"workspace `{start}` is not a directory", field="workspace", fix="create it first")
    return real if spec.workspace else enclosing_repository(real)


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


def _home_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return "/nonexistent"


def _remove_tree(path: str) -> None:
    """Remove a session's temporary directory; what a command left there may have any mode, never any depth of ours."""
    shutil.rmtree(path, ignore_errors=True)
