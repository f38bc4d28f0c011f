# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings: where they come from, how they combine, and the rule files that stand beside them.

Precedence, lowest first: the defaults below, the user's `config.toml` (or the file named by `--config`), the
organisation's `/etc/sandboxd/config.toml`, whose values nobody below can change.

To add a setting: add the field with its default and unit to the section class below, its range to `_RANGES` if it has
one, and use it; the loader, the error messages and `sandboxd status` know it from the class.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import pwd
import tempfile
from dataclasses import dataclass, field
from enum import Enum, unique
from functools import lru_cache
from typing import Any, get_type_hints

from sandboxd.errors import ConfigError
from sandboxd.model import Mode, Source, Strategy
from sandboxd.tomltext import TomlText

SYSTEM_DIR = "/etc/sandboxd"


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    log_level: str = "INFO"  # DEBUG, INFO, WARNING, ERROR
    drain_seconds: float = 10.0  # how long SIGTERM waits for running commands before it kills them


@dataclass(frozen=True, slots=True)
class PolicySettings:
    strategy: Strategy = Strategy.DENY_OVERRIDES
    auto_allow_if_sandboxed: bool = False
    read_claude_settings: bool = True  # also read `.claude/settings.json` permission blocks
    allow_unsandboxed: bool = False  # whether a human may agree to a request to run a command without any sandbox
    excluded_commands: tuple[str, ...] = ()  # as in `Bash(…)` rules; a line of nothing else runs without one, when agreed to


@dataclass(frozen=True, slots=True)
class SessionSettings:
    max_mode: tuple[Mode, ...] = (Mode.DEFAULT, Mode.PLAN, Mode.DONT_ASK)  # modes the agent socket may ask for
    roots: tuple[str, ...] = ("~",)  # workspaces of the agent socket must lie below one of these
    profiles: tuple[str, ...] = ("workspace", "read-only", "ci", "build")  # those it may name, besides the default one
    env: tuple[str, ...] = ("LANG", "TZ", "NO_COLOR", "CI")  # names the agent socket may set
    max_sessions: int = 1000
    max_parallel: int = 10  # read-only commands of one session at once


@unique
class BackendChoice(Enum):
    AUTO = "auto"  # native, or bwrap where that cannot build a box
    NATIVE = "native"
    BWRAP = "bwrap"
    LANDLOCK = "landlock"


@dataclass(frozen=True, slots=True)
class IsolationSettings:
    profile: str = "workspace"
    profile_dirs: tuple[str, ...] = ()  # searched before the shipped profiles; the user's own directory comes first
    backend: BackendChoice = BackendChoice.AUTO
    pool_boxes: int = 16  # boxes that wait ready for a command, for the whole daemon; 0 = none
    pool_memory: int = 64 << 20  # bytes that they may take together, at 2 MiB each
    pool_session_boxes: bool = True  # whether a read-only command may run in the box of one before it, where nothing is left


@dataclass(frozen=True, slots=True)
class RunSettings:
    timeout: float = 600.0  # seconds, when the request names none
    max_timeout: float = 3600.0  # seconds
    grace: float = 2.0  # seconds between TERM and KILL
    max_output: int = 1 << 30  # bytes of one execution that are kept
    max_executions: int = 256  # running or waiting at once, for the whole daemon
    keep_finished: int = 1000  # finished executions that stay attachable
    heartbeat: float = 10.0  # seconds between two signs of life of a command that runs; 0 = none
    max_result_chars: int = 50_000  # characters of one result that a model reads; beyond, a preview and a file
    max_batch_chars: int = 200_000  # characters of all results of a batch
    max_result_bytes: int = 400_000  # bytes of output beyond which a result is always a preview
    tmp_quota: int = 4 << 30  # bytes on disk of a session's /tmp; a command that makes it grow beyond is ended
    spill_quota: int = 1 << 30  # bytes of all stored results together
    spill_age: float = 7 * 86_400.0  # seconds a stored result, or the output of an earlier daemon, is kept


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    expires: float = 600.0  # seconds until an unanswered approval counts as DENY
    front_end: bool = False  # an agent's front-end may answer its own sessions' approvals, with their approval secret


@unique
class ProviderKind(Enum):
    NONE = "none"
    ANTHROPIC = "anthropic"  # a server of the Messages API
    COMMAND = "command"  # any program


@unique
class Speculate(Enum):
    AUTO = "auto"  # what rules leave open is asked before hooks have answered; outside auto mode as advice
    OFF = "off"  # asked only when it decides
    ALWAYS = "always"  # also what rules allow, to compare; the organisation's file only


@unique
class OnOutage(Enum):
    DENY = "deny"
    ASK = "ask"  # a human, if one is attached; the organisation's file only


@dataclass(frozen=True, slots=True)
class ClassifierSettings:
    provider: ProviderKind = ProviderKind.NONE
    model: str = "claude-haiku-4-5"
    base_url: str = ""  # "" = the maker's own; any server that speaks the Messages API
    api_key_file: str = ""  # read by the worker alone; "" = ANTHROPIC_API_KEY of the daemon
    proxy: str = ""  # an HTTP proxy for the worker
    command: tuple[str, ...] = ()  # argv of the provider `command`
    command_env: tuple[str, ...] = ()  # names of the daemon's environment that it gets
    speculate: Speculate = Speculate.AUTO
    on_outage: OnOutage = OnOutage.DENY
    deadline: float = 8.0  # seconds for one verdict, all tries together
    max_input: int = 60_000  # characters of command, facts and conversation; more is not judged
    cache_ttl: float = 300.0  # seconds that a verdict is remembered
    session_tokens: int = 2_000_000  # budget of one session; used up = unavailable
    session_cost: float = 0.0  # likewise, in the currency of the prices; 0 = no limit
    price_input: float = 0.0  # for a million tokens; reads from the prompt cache count a tenth, writes a quarter more
    price_output: float = 0.0


@dataclass(frozen=True, slots=True)
class Config:
    daemon: DaemonSettings = field(default_factory=DaemonSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    sessions: SessionSettings = field(default_factory=SessionSettings)
    isolation: IsolationSettings = field(default_factory=IsolationSettings)
    run: RunSettings = field(default_factory=RunSettings)
    approvals: ApprovalSettings = field(default_factory=ApprovalSettings)
    classifier: ClassifierSettings = field(default_factory=ClassifierSettings)


# (section, key) -> (smallest, largest) allowed value
_RANGES: dict[tuple[str, str], tuple[float, float]] = {
    ("daemon", "drain_seconds"): (0, 600),
    ("sessions", "max_sessions"): (1, 100_000),
    ("sessions", "max_parallel"): (1, 100),
    ("isolation", "pool_boxes"): (0, 256),
    ("isolation", "pool_memory"): (0, 1 << 30),
    ("run", "timeout"): (0.01, 86_400),
    ("run", "max_timeout"): (0.01, 86_400),
    ("run", "grace"): (0, 60),
    ("run", "max_output"): (1 << 16, 1 << 40),
    ("run", "max_executions"): (1, 10_000),
    ("run", "keep_finished"): (0, 100_000),
    ("run", "heartbeat"): (0, 3600),
    ("run", "max_result_chars"): (0, 10_000_000),
    ("run", "max_batch_chars"): (0, 100_000_000),
    ("run", "max_result_bytes"): (0, 16 << 20),
    ("run", "tmp_quota"): (1 << 20, 1 << 44),
    ("run", "spill_quota"): (0, 1 << 40),
    ("run", "spill_age"): (0, 366 * 86_400),
    ("approvals", "expires"): (1, 86_400),
    ("classifier", "deadline"): (0.1, 120),
    ("classifier", "max_input"): (1_000, 1_000_000),
    ("classifier", "cache_ttl"): (0, 86_400),
    ("classifier", "session_tokens"): (0, 1 << 40),
    ("classifier", "session_cost"): (0, 1e9),
    ("classifier", "price_input"): (0, 1e6),
    ("classifier", "price_output"): (0, 1e6),
}
# Values that only the organisation's file may give: they send more, or ask where others deny.
_ORGANISATION = {("classifier", "speculate"): Speculate.ALWAYS, ("classifier", "on_outage"): OnOutage.ASK}
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True)
class Directories:
    """Where this user's sandboxd keeps things; all absolute. `system` is the organisation's directory."""

    config: str
    state: str
    runtime: str
    home: str
    system: str = SYSTEM_DIR

    @property
    def user_config(self) -> str:
        return f"{self.config}/config.toml"

    @property
    def user_rules(self) -> str:
        return f"{self.config}/settings.toml"

    @property
    def effects(self) -> str:
        """The folder of the user's own effect tables (docs/tables.md)."""
        return f"{self.config}/effects"

    @property
    def own(self) -> tuple[str, ...]:
        """What no box may see."""
        return tuple(dict.fromkeys((self.config, self.state, self.runtime)))


def home_directory() -> str:
    """The person's home: HOME when it is absolute, else the password database's."""
    home = os.environ.get("HOME", "")
    return os.path.normpath(home) if home.startswith("/") else pwd.getpwuid(os.getuid()).pw_dir


def directories(*, runtime: str | None = None, state: str | None = None) -> Directories:
    """The XDG directories of this user; arguments override. Nothing is created."""
    home = home_directory()

    def xdg(name: str, default: str) -> str:
        value = os.environ.get(name, "")
        return f"{value}/sandboxd" if value.startswith("/") else default

    state = os.path.abspath(state) if state else xdg("XDG_STATE_HOME", f"{home}/.local/state/sandboxd")
    return Directories(
        config=xdg("XDG_CONFIG_HOME", f"{home}/.config/sandboxd"),
        state=state,
        runtime=os.path.abspath(runtime) if runtime else xdg("XDG_RUNTIME_DIR", f"{state}/run"),
        home=home,
    )


def load(dirs: Directories, path: str | None = None) -> Config:
    """Read all configuration files in force. Raises ConfigError with file:line; a file named by `path` must exist."""
    config = Config()
    if path is not None:
        text = _read(path)
        if text is None:
            raise ConfigError(f"configuration file `{path}` does not exist", fix="name an existing file")
        config = merge(config, text, path)
    elif (text := _read(dirs.user_config)) is not None:
        config = merge(config, text, dirs.user_config)
    system = f"{dirs.system}/config.toml"
    if (text := _read(system)) is not None:
        config = merge(config, text, system, organisation=True)
    return config


def merge(config: Config, text: str, origin: str, *, organisation: bool = False) -> Config:
    """`config` with the values of one TOML text put over it. Raises ConfigError naming the key, its line and the fix."""
    document = TomlText(text, origin)
    sections = {f.name: f for f in dataclasses.fields(Config)}
    for section, values in document.data.items():
        if section not in sections:
            raise document.fail(f"unknown section `[{section}]`", section, fix=f"use one of {', '.join(sections)}")
        if not isinstance(values, dict):
            raise document.fail(f"`{section}` must be a table", section, fix=f"write it as `[{section}]`")
        current = getattr(config, section)
        hints = get_type_hints(type(current))
        changes = {}
        for key, value in values.items():
            if key not in hints:
                raise document.fail(f"unknown key `{section}.{key}`", section, key, fix=f"use one of {', '.join(hints)}")
            changes[key] = _coerce(document, section, key, value, hints[key])
            if not organisation and _ORGANISATION.get((section, key), ...) is changes[key]:
                raise document.fail(
                    f"`{section}.{key}` may be `{value}` in the organisation's file only", section, key, fix="use another value"
                )
        config = dataclasses.replace(config, **{section: dataclasses.replace(current, **changes)})
    if config.classifier.provider is ProviderKind.COMMAND and not config.classifier.command:
        raise document.fail("the provider `command` needs `classifier.command`", "classifier", "provider", fix="name a program")
    return config


def _coerce(document: TomlText, section: str, key: str, value: Any, kind: Any) -> Any:
    """One value in the type its field declares."""
    name = f"{section}.{key}"

    def wrong(what: str) -> ConfigError:
        return document.fail(f"`{name}` must be {what}, not `{value}`", section, key)

    if kind is bool:
        if not isinstance(value, bool):
            raise wrong("true or false")
        return value
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or (kind is int and not isinstance(value, int)):
            raise wrong("a number")
        low, high = _RANGES[section, key]
        if not low <= value <= high:
            raise wrong(f"between {low} and {high}")
        return kind(value)
    if kind is str:
        if not isinstance(value, str):
            raise wrong("a string")
        if key == "log_level" and value not in _LOG_LEVELS:
            raise wrong(f"one of {', '.join(_LOG_LEVELS)}")
        return value
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind, value, wrong)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise wrong("a list of strings")
    if kind == tuple[Mode, ...]:
        return tuple(_enum(Mode, item, wrong) for item in value)
    return tuple(value)


def _enum(kind: type[Enum], value: Any, wrong: Any) -> Enum:
    try:
        return kind(value)
    except ValueError:
        raise wrong(f"one of {', '.join(str(member.value) for member in kind)}") from None


# ---------------------------------------------------------------------------------------------------------------------
# Rule files. This module only reads and writes their text; policy.sources knows what it means.


@unique
class RuleFormat(Enum):
    TOML = "toml"  # our own settings.toml
    CLAUDE = "claude"  # a `.claude/settings.json`-style file


@dataclass(frozen=True, slots=True)
class RulePlace:
    """A place where rules may stand. `workspace`: it comes from the workspace, so what it allows is inert."""

    path: str
    source: Source
    format: RuleFormat
    workspace: bool = False


@dataclass(frozen=True, slots=True)
class RuleText:
    place: RulePlace
    text: str


@lru_cache(maxsize=256)
def rule_places(dirs: Directories, workspace: str | None, *, claude: bool) -> tuple[RulePlace, ...]:
    """Every file that may hold rules for a workspace, highest source first."""
    places = []
    if workspace is not None:
        places.append(RulePlace(f"{workspace}/.sandboxd/settings.toml", Source.LOCAL, RuleFormat.TOML, workspace=True))
        if claude:
            places.extend(
                RulePlace(f"{workspace}/.claude/{name}", Source.LOCAL, RuleFormat.CLAUDE, workspace=True)
                for name in ("settings.local.json", "settings.json")
            )
    places.append(RulePlace(dirs.user_rules, Source.USER, RuleFormat.TOML))
    if claude:
        places.append(RulePlace(f"{dirs.home}/.claude/settings.json", Source.USER, RuleFormat.CLAUDE))
    places.append(RulePlace(f"{dirs.system}/settings.toml", Source.POLICY, RuleFormat.TOML))
    if claude:
        places.append(RulePlace("/etc/claude-code/managed-settings.json", Source.POLICY, RuleFormat.CLAUDE))
    return tuple(places)


def rule_signature(places: tuple[RulePlace, ...]) -> tuple[tuple[int, int, int] | None, ...]:
    """A value that changes when any of the files does (inode, size, mtime)."""
    out: list[tuple[int, int, int] | None] = []
    for place in places:
        try:
            info = os.stat(place.path)
        except OSError:
            out.append(None)
        else:
            out.append((info.st_ino, info.st_size, info.st_mtime_ns))
    return tuple(out)


def read_rules(places: tuple[RulePlace, ...]) -> tuple[RuleText, ...]:
    """The texts of those files that exist. Raises ConfigError for one that exists and cannot be read."""
    out = []
    for place in places:
        text = _read(place.path)
        if text is not None:
            out.append(RuleText(place, text))
    return tuple(out)


def append_allow_rule(dirs: Directories, rule: str, reason: str) -> str:
    """Write one "always allow" rule to the user's settings; returns its path.

    The file is replaced atomically under a lock and must still be valid TOML, else ConfigError and nothing changes.
    """
    path = dirs.user_rules
    os.makedirs(dirs.config, mode=0o700, exist_ok=True)
    with open(f"{dirs.config}/.settings.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = _read(path) or "# SPDX-License-Identifier: CC0-1.0\n# Rules of this user; see docs/rules.md.\n"
        if before and not before.endswith("\n"):
            before += "\n"
        text = f'{before}\n[[rule]]\nbehavior = "allow"\nrule = {_quote(rule)}\nreason = {_quote(reason)}\n'
        TomlText(text, path)
        handle, temporary = tempfile.mkstemp(dir=dirs.config, prefix=".settings-")
        try:
            with os.fdopen(handle, "w") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    return path


def _quote(text: str) -> str:
    """A TOML basic string."""
    out = []
    for char in text:
        if char in '"\\':
            out.append("\\" + char)
        elif char < " " or char == "\x7f":
            out.append(f"\\u{ord(char):04x}")
        else:
            out.append(char)
    return '"' + "".join(out) + '"'


def _read(path: str) -> str | None:
    """The text of a file, None when there is none. Anything else that goes wrong is a ConfigError."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot be read: {exc}", origin=path) from None
