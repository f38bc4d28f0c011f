# SPDX-License-Identifier: GPL-3.0-or-later
"""The exception tree, and the one table that gives each error its gRPC status and log level.

    SandboxdError
    ├── RequestError          the caller sent something invalid; names the field
    │   ├── NotFound          unknown session, execution, approval, decision
    │   ├── Forbidden         the caller's role does not permit it
    │   └── NotYet            a later version brings it
    ├── ConfigError           a configuration, rule or profile file is wrong; carries file:line
    │   ├── RuleError
    │   ├── ProfileError
    │   └── TableError        an effect table is wrong
    ├── IsolationError        no sandbox can be built; carries the fix
    ├── Exhausted             a bound of the daemon is reached; retry helps
    └── Unavailable           the daemon is draining, or cannot be reached

A DENY is a decision, not an error. Messages are lower-case; what the caller wrote stands in backticks.
"""

from __future__ import annotations

SHORT = frozenset((12, 23, 24))  # ENOMEM, ENFILE, EMFILE (asm-generic/errno-base.h): they say nothing of the path


class SandboxdError(Exception):
    """Base of all errors that sandboxd raises on purpose. `fix` is what the reader can do about it."""

    reason = "INTERNAL"

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message


class RequestError(SandboxdError):
    """The request is invalid. `field` is its path in the message (`command.text`)."""

    reason = "INVALID_REQUEST"

    def __init__(self, message: str, *, field: str = "", fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.field = field


class NotFound(RequestError):
    reason = "NOT_FOUND"


class Forbidden(RequestError):
    reason = "FORBIDDEN"


class NotYet(RequestError):
    reason = "NOT_YET"


class ConfigError(SandboxdError):
    """A file is wrong. `origin` is `file:line` (or `file` when the line is not known)."""

    reason = "INVALID_CONFIG"

    def __init__(self, message: str, *, origin: str = "", fix: str = "") -> None:
        super().__init__(f"{origin}: {message}" if origin else message, fix=fix)
        self.origin = origin


class RuleError(ConfigError):
    reason = "INVALID_RULE"


class ProfileError(ConfigError):
    reason = "INVALID_PROFILE"


class TableError(ConfigError):
    reason = "INVALID_TABLE"


class IsolationError(SandboxdError):
    """The command cannot be confined as required, so it does not run."""

    reason = "SANDBOX_UNAVAILABLE"


class Exhausted(SandboxdError):
    """Too much at once. `retry_after` in seconds."""

    reason = "EXHAUSTED"

    def __init__(self, message: str, *, retry_after: float = 1.0, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.retry_after = retry_after


class Unavailable(SandboxdError):
    reason = "UNAVAILABLE"


# error -> (gRPC status name, log level name); the first match along the class's ancestry counts.
STATUS: dict[type[SandboxdError], tuple[str, str]] = {
    NotFound: ("NOT_FOUND", "INFO"),
    Forbidden: ("PERMISSION_DENIED", "WARNING"),
    NotYet: ("UNIMPLEMENTED", "INFO"),
    RequestError: ("INVALID_ARGUMENT", "INFO"),
    ConfigError: ("FAILED_PRECONDITION", "WARNING"),
    IsolationError: ("FAILED_PRECONDITION", "ERROR"),
    Exhausted: ("RESOURCE_EXHAUSTED", "WARNING"),
    Unavailable: ("UNAVAILABLE", "INFO"),
    SandboxdError: ("INTERNAL", "ERROR"),
}


def status_of(error: BaseException) -> tuple[str, str]:
    """The gRPC status name and log level for any exception; what is not ours is INTERNAL."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return ("INTERNAL", "ERROR")


def tells_of_path(error: OSError) -> None:
    """For who takes an error of a path to mean that nothing is there. Raises IsolationError where this process lacks descriptors
    or memory: what stands there would count as absent, and be neither hidden nor guarded."""
    if error.errno in SHORT:
        raise IsolationError(f"the host cannot be looked at: {error.strerror}", fix="run fewer commands at once") from error
