# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment of a box: fixed values, then the profile's, then the session's. Nothing is inherited by chance. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from sandboxd.errors import IsolationError
from sandboxd.model import PlanRequest, Profile, Session
from sandboxd.model.launch import CWD_REPORT_FD
from sandboxd.paths import expand_home

SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# Sourced by the shell before the command (BASH_ENV): the command's own bytes stay as they were judged. An EXIT trap of the
# command replaces it, and `exec` skips it; then nothing is reported. What is reported is the command's claim.
REPORT = f"unset BASH_ENV\ntrap '{{ pwd -P >&{CWD_REPORT_FD}; }} 2>/dev/null' EXIT\n"

# Names that make programs run code, or undo what the box sets. They can be set by neither profile nor session.
# To add one: its name here, or its prefix below, and a row in tests/isolation/test_isolation_plan.py.
FORBIDDEN = frozenset((
    "BASH_ENV", "BASHOPTS", "CDPATH", "ENV", "GLOBIGNORE", "HOME", "IFS", "LANG", "LOGNAME", "NODE_OPTIONS", "PERL5DB",
    "PERL5LIB", "PERL5OPT", "PROMPT_COMMAND", "PS4", "RUBYLIB", "RUBYOPT", "SHELL", "SHELLOPTS", "TMPDIR", "USER"
))  # fmt: skip
FORBIDDEN_PREFIXES = ("BASH_FUNC_", "GIT_", "LC_", "LD_", "PYTHON")

_GIT_ALWAYS = (("core.checkStat", "minimal"),)  # foreign ids look changed in a user namespace: 12 times slower without it
# Readers that would run what the folder names: python imports its modules (a build or a test needs them), pip asks the
# rustc that a toolchain file chooses for its version, go fetches the toolchain of go.mod.
_READS = {"PYTHONSAFEPATH": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "GOTOOLCHAIN": "local"}
_GIT_READS = (
    ("diff.autoRefreshIndex", "false"),
    ("core.fsmonitor", "false"),
    ("core.hooksPath", "/dev/null"),
    ("core.pager", "cat"),
    ("log.showSignature", "false"),
    ("safe.bareRepository", "explicit"),
)


def forbidden(name: str) -> bool:
    """Whether neither a profile nor a session may set this variable."""
    return name in FORBIDDEN or name.startswith(FORBIDDEN_PREFIXES)


def search_path(profile: Profile, session: Session) -> tuple[str, ...]:
    """The directories of PATH inside: the system's first, then the profile's, then the session's."""
    own = [profile.env_set.get("PATH", ""), *(value for name, value in session.env if name == "PATH")]
    added = [expand_home(piece, session.home) for text in own for piece in text.split(":") if piece.startswith(("/", "~/"))]
    return tuple(dict.fromkeys((*SYSTEM_PATH, *added)))


def build(
    request: PlanRequest, host_env: Iterable[tuple[str, str]], user: str, scratch: str, report: str
) -> tuple[tuple[str, str], ...]:
    """All variables of the box. Raises IsolationError when the session sets one of the forbidden names."""
    profile, session = request.profile, request.session
    env = {name: value for name, value in host_env if not forbidden(name)}
    env |= {name: expand_home(value, session.home) for name, value in profile.env_set.items() if not forbidden(name)}
    for name, value in session.env:
        if forbidden(name):
            raise IsolationError(f"the session sets `{name}`, which decides what programs run", fix="leave it out")
        env[name] = value
    env |= {
        "HOME": session.home,
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "LOGNAME": user,
        "PATH": ":".join(search_path(profile, session)),
        "SHELL": "/bin/bash",
        "TERM": env.get("TERM", "xterm-256color") if request.tty else "dumb",
        "TMPDIR": scratch,
        "USER": user,
    }
    if request.promise:
        env |= _READS
    settings = list(_GIT_ALWAYS)
    if request.git_reads and not request.git_porcelain:
        settings += [*_GIT_READS, *request.facts.armed_git]
        env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat", "PAGER": "cat"}
    env["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, (key, value) in enumerate(settings):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    if request.report_cwd:
        env["BASH_ENV"] = report
    return tuple(sorted(env.items()))
