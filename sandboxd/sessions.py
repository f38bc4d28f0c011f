# SPDX-License-Identifier: GPL-3.0-or-later
"""Sessions: one agent's conversation with its workspace, directory, mode and rules, and who may touch it."""

from __future__ import annotations

import dataclasses
import hmac
import os
import pwd
import secrets
import shutil
import tempfile

from sandboxd import leftovers
from sandboxd.config import Config, Directories
from sandboxd.errors import Exhausted, Forbidden, NotFound, RequestError, Unavailable
from sandboxd.isolation import environment
from sandboxd.model import Behavior, Mode, Session, Source
from sandboxd.paths import expand_home, is_within, join
from sandboxd.policy import rules
from sandboxd.policy.modes import looser
from sandboxd.run.spill import Spills
from sandboxd.session import Role, SessionSpec, SessionState, enclosing_repository

__all__ = ["MAX_DEPTH", "Role", "SessionSpec", "SessionState", "Sessions", "enclosing_repository"]

MAX_DEPTH = 8  # sessions above one another


class Sessions:
    """All live sessions; checks who may create, see and change them."""

    def __init__(self, config: Config, dirs: Directories) -> None:
        self.config = config
        self._dirs = dirs
        self.spills = Spills(f"{dirs.state}/spill", config.run.spill_quota, config.run.spill_age)
        self._by_id: dict[str, SessionState] = {}
        self._tmp_root: str | None = None

    def configure(self, config: Config) -> None:
        """Put a new configuration in force, for the sessions there are as well."""
        self.config = config
        self.spills.configure(config.run.spill_quota, config.run.spill_age)

    def create(self, spec: SessionSpec, role: Role, secret: str = "") -> SessionState:
        """A new session; the child of another when the spec names one, whose `secret` the agent socket must carry.

        Raises RequestError naming the field, NotFound, Forbidden, Exhausted, Unavailable when the disk has no place for
        it, or ConfigError for a bad rule file.
        """
        if len(self._by_id) >= self.config.sessions.max_sessions:
            raise Exhausted("too many sessions", fix="delete some or raise `sessions.max_sessions`")
        parent = self.get(spec.parent_id, secret, role) if spec.parent_id else None
        workspace = _workspace(spec, parent)
        owner = os.stat(workspace)
        if role is Role.AGENT:
            self._limit_agent(spec, workspace, parent)
        if parent is not None:
            _limit_child(spec, workspace, parent)
        self._check_places(spec, workspace)
        uid, gid, home = os.getuid(), os.getgid(), self._dirs.home
        if uid == 0 and owner.st_uid != 0:
            uid, gid, home = owner.st_uid, owner.st_gid, _home_of(owner.st_uid)
        session_id = f"s-{secrets.token_hex(8)}"
        tmp, spill = self._make_places(session_id, uid, gid)
        isolation = Session(
            id=session_id,
            workspace=workspace,
            home=home,
            uid=uid,
            gid=gid,
            tmp=tmp,
            own=self._dirs.own,
            spill=spill,
            registry=f"{self._dirs.state}/mountpoints",
            additional=spec.additional,
            env=spec.env if parent is None else tuple((dict(parent.isolation.env) | dict(spec.env)).items()),
        )
        state = SessionState(session_id, secrets.token_urlsafe(16), spec, role, isolation, parent)
        try:
            state.cli_rules = tuple(
                dataclasses.replace(  # an agent binds itself: its `ask` takes the place of nobody's deny
                    rules.parse_rule(text, behavior, Source.CLI_ARG, f"--{behavior.value}"), trusted=role is Role.ADMIN
                )
                for behavior, texts in ((Behavior.DENY, spec.deny), (Behavior.ASK, spec.ask), (Behavior.ALLOW, spec.allow))
                for text in texts
                if parent is None or behavior is not Behavior.ALLOW
            )
            state.refresh_rules(self.config, self._dirs)
            wished = state.default_mode
            if spec.mode is None and wished is not None and (role is Role.ADMIN or wished in self.config.sessions.max_mode):
                state.mode = wished
            _check_bypass(state, spec.mode or state.mode)
        except BaseException:
            _remove_tree(tmp)
            self.spills.drop(session_id)
            raise
        self._by_id[session_id] = state
        return state

    def get(self, session_id: str, secret: str, role: Role) -> SessionState:
        """The session, if the caller may see it. The agent socket needs its secret, or that of a session above it; all
        failures look the same."""
        state = self._by_id.get(session_id)
        if state is None or (role is Role.AGENT and not any(_same(each.secret, secret) for each in state.lineage)):
            raise NotFound(f"no session `{session_id}` for this caller", field="session_id", fix="create one first")
        return state

    def front_ends_may_prompt(self) -> None:
        """Raises Forbidden unless the configuration lets front-ends answer approvals."""
        if not self.config.approvals.front_end:
            raise Forbidden(
                "approvals are answered on the admin socket", fix="use it, or set `approvals.front_end = true` in config.toml"
            )

    def approver(self, session_id: str, secret: str) -> SessionState:
        """The session whose questions a front-end may answer that carries the approval secret of it, or of one above.

        Raises NotFound for anything that is wrong.
        """
        state = self._by_id.get(session_id)
        if state is None or not any(_same(each.approval_secret, secret) for each in state.lineage):
            raise NotFound(f"no session `{session_id}` for this caller", field="session_id", fix="create one first")
        return state

    def family(self, state: SessionState) -> tuple[SessionState, ...]:
        """A session and all below it."""
        return tuple(each for each in self._by_id.values() if state in each.lineage)

    def children(self, state: SessionState) -> tuple[SessionState, ...]:
        return tuple(each for each in self._by_id.values() if each.parent is state)

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
        if role is Role.AGENT and headless is False and state.headless:
            raise Forbidden("a headless session stays so", field="headless", fix="let a human change it on the admin socket")
        if mode is not None and mode is not state.mode:
            if role is Role.AGENT and looser(mode, state.mode):
                raise Forbidden(f"mode `{mode.value}` needs the admin socket", field="mode", fix="let a human set it")
            if state.parent is not None and looser(mode, state.parent.mode_in_force):
                raise Forbidden(
                    f"mode `{mode.value}` is looser than the parent session's", field="mode", fix="loosen the parent first"
                )
            _check_bypass(state, mode)
        if cwd is not None:
            target = join(state.cwd, cwd)
            if not os.path.isdir(target):
                raise RequestError(f"`{target}` is not a directory", field="cwd", fix="name an existing one")
            if not any(is_within(target, root) for root in (state.workspace, *state.additional)):
                raise RequestError(f"`{target}` is outside the workspace", field="cwd", fix="stay below the workspace")
            state.cwd = target
        if headless is not None:
            state.headless = headless
        if mode is not None:
            state.set_mode(mode)

    def delete(self, state: SessionState) -> None:
        self._by_id.pop(state.id, None)
        state.ended = True
        _remove_tree(state.isolation.tmp)
        self.spills.drop(state.id)

    def close(self) -> None:
        """Forget all sessions and remove what they left in temporary directories."""
        for state in self.list():
            self.delete(state)
        if self._tmp_root is not None:
            _remove_tree(self._tmp_root)
            os.close(self._tmp_claim)
            self._tmp_root = None

    def _limit_agent(self, spec: SessionSpec, workspace: str, parent: SessionState | None) -> None:
        limits = self.config.sessions
        roots = tuple(os.path.realpath(expand_home(root, self._dirs.home)) for root in limits.roots)
        if parent is None and not any(is_within(workspace, root) for root in roots):
            raise Forbidden(
                f"workspace `{workspace}` is outside the configured roots", field="workspace", fix="add it to `sessions.roots`"
            )
        bubbles = parent is not None and spec.mode is Mode.BUBBLE
        if spec.mode is not None and spec.mode not in limits.max_mode and not bubbles:
            allowed = ", ".join(mode.value for mode in limits.max_mode)
            raise Forbidden(f"mode `{spec.mode.value}` needs the admin socket", field="mode", fix=f"use one of {allowed}")
        if (spec.allow and parent is None) or spec.additional:
            raise Forbidden("allow rules and additional directories need the admin socket", field="allow", fix="leave them out")
        if parent is None and spec.profile not in ("", self.config.isolation.profile, *limits.profiles):
            raise Forbidden(
                f"profile `{spec.profile}` needs the admin socket", field="profile", fix="add it to `sessions.profiles`"
            )
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
        for name, _ in spec.env:
            if environment.forbidden(name):
                raise RequestError(f"`{name}` decides what programs run, and cannot be set", field="env", fix="leave it out")
        for own in self._dirs.own:
            if is_within(workspace, own):
                raise RequestError(f"workspace `{workspace}` is sandboxd's own", field="workspace", fix="choose another")

    def _make_places(self, session_id: str, uid: int, gid: int) -> tuple[str, str]:
        """Its /tmp and the directory of its stored results. Raises Unavailable, with neither left."""
        tmp = ""
        try:
            tmp = self._make_tmp(session_id, uid, gid)
            return tmp, self.spills.open(session_id, uid, gid)
        except OSError as error:
            if tmp:
                _remove_tree(tmp)
            self.spills.drop(session_id)
            raise no_place(error) from None

    def _make_tmp(self, session_id: str, uid: int, gid: int) -> str:
        """The host directory behind the session's /tmp.

        It lies in the host's /tmp, which every box covers with its own, so one session's boxes never see another's;
        the parent may be entered but not listed, the directory itself belongs to the box's user alone.
        """
        if self._tmp_root is None:
            self._tmp_root = tempfile.mkdtemp(prefix=leftovers.PREFIX)
            self._tmp_claim = leftovers.claim(self._tmp_root)
            os.chmod(self._tmp_root, 0o711)  # noqa: S103  a box's user must pass through, and can list nothing
        path = f"{self._tmp_root}/{session_id}"
        os.mkdir(path, 0o700)
        if uid != os.getuid():
            os.chown(path, uid, gid)
        return path


def no_place(error: OSError) -> Unavailable:
    """For the caller, when the disk refuses what every session needs."""
    return Unavailable(
        f"no session can be opened: {error.strerror}", fix="see the disk of the state directory and of the temporary one"
    )


def _check_bypass(state: SessionState, mode: Mode) -> None:
    if mode is Mode.BYPASS and state.forbid_bypass:
        raise Forbidden("a settings file switches bypassPermissions off", field="mode", fix="use another mode")


def _limit_child(spec: SessionSpec, workspace: str, parent: SessionState) -> None:
    """A child's places, mode, profile and rules are a subset of its parent's, whoever makes it."""
    if len(parent.lineage) >= MAX_DEPTH:
        raise RequestError(f"sessions are nested {MAX_DEPTH} deep", field="parent_session_id", fix="use one further up")
    roots = (parent.workspace, *parent.additional)
    for field, places in (("workspace", (workspace,)), ("additional_directories", spec.additional)):
        outside = next((place for place in places if not any(is_within(os.path.realpath(place), root) for root in roots)), None)
        if outside is not None:
            raise Forbidden(f"`{outside}` is outside the parent session's places", field=field, fix="stay below them")
    if spec.mode is not None and looser(spec.mode, parent.mode_in_force):
        raise Forbidden(
            f"mode `{spec.mode.value}` is looser than the parent session's", field="mode", fix="loosen the parent first"
        )
    if spec.profile and spec.profile != parent.profile:
        raise Forbidden("a child session has its parent's profile", field="profile", fix="leave it out")
    allowed = {rule.text for rule in parent.rules.rules if rule.behavior is Behavior.ALLOW}
    missing = next((text for text in spec.allow if text.strip() not in allowed), None)
    if missing is not None:
        raise Forbidden(f"the parent session has no allow rule `{missing}`", field="allow", fix="name one of its own")


def _same(secret: str, given: str) -> bool:
    return hmac.compare_digest(secret.encode(), given.encode("utf-8", "surrogateescape"))


def _workspace(spec: SessionSpec, parent: SessionState | None) -> str:
    """The real path of the workspace that a spec means. Raises RequestError."""
    start = spec.workspace or spec.cwd or ""
    if parent is not None and not spec.workspace:
        return parent.workspace
    if not start.startswith("/"):
        raise RequestError(f"workspace `{start}` is not an absolute path", field="workspace", fix="give an absolute path")
    real = os.path.realpath(start)
    if not os.path.isdir(real):
        raise RequestError(f"workspace `{start}` is not a directory", field="workspace", fix="create it first")
    return real if spec.workspace else enclosing_repository(real)


def _home_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return "/nonexistent"


def _remove_tree(path: str) -> None:
    """Remove a session's temporary directory; what a command left there may have any mode, never any depth of ours."""
    shutil.rmtree(path, ignore_errors=True)
