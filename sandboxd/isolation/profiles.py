# SPDX-License-Identifier: GPL-3.0-or-later
"""Isolation profiles: TOML files -> Profile. Unknown keys are errors; every error names file:line.

To add a key: a row in KEYS (section, key, check), the field in model.Profile, its line in profiles/schema.json and
docs/profiles.md, and what it does in isolation.plan. A test in tests/isolation compares KEYS with the schema.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from sandboxd.errors import ProfileError
from sandboxd.isolation import environment, seccomp, view
from sandboxd.isolation.hostfacts import host_facts
from sandboxd.isolation.plan import HostFacts, HostPath, plan, wanted, writable_root_problem
from sandboxd.model import (
    Facts,
    Grant,
    GrantKind,
    LaunchPlan,
    MountKind,
    NetworkMode,
    PlanRequest,
    Profile,
    Require,
    Session,
)
from sandboxd.paths import expand_home, is_within, join
from sandboxd.tomltext import TomlText

SHIPPED_DIR = str(Path(__file__).resolve().parent.parent / "profiles")
MAX_EXTENDS = 8
TOP = frozenset(("description", "extends"))
FALLBACKS = frozenset(("bwrap", "landlock", "none"))  # the names of backends that `fallback` may name

Check = Callable[[Any], str]  # "" when the value is right, else what it must be


def _strings(value: Any) -> str:
    right = isinstance(value, list) and all(isinstance(each, str) and each for each in value)
    return "" if right else "a list of strings"


def _paths(value: Any) -> str:
    wrong = _strings(value)
    if wrong:
        return wrong
    ok = all(each.startswith(("/", "~/", "$WORKSPACE")) or each == "~" for each in value)
    plain = all("*" not in each and "?" not in each and ".." not in each.split("/") for each in value)
    return "" if ok and plain else "a list of paths that begin with `/`, `~/` or `$WORKSPACE`, without globs and `..`"


def _one_of(*names: str) -> Check:
    known = ", ".join(f'"{name}"' for name in names)
    return lambda value: "" if value in names else f"one of {known}"


def _network(value: Any) -> str:
    if value == "proxy":
        return 'one of "off", "loopback", "host"; a proxy with allowed domains does not exist yet'
    return _one_of("off", "loopback", "host")(value)


def _variables(value: Any) -> str:
    wrong = _strings(value)
    if wrong:
        return wrong
    bad = [each for each in value if environment.forbidden(each) or not each.isidentifier()]
    return f"names of variables; `{bad[0]}` decides what programs run or is no name" if bad else ""


def _settings(value: Any) -> str:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        return "a table of strings"
    return _variables(list(value)) if value else ""


def _calls(value: Any) -> str:
    wrong = _strings(value)
    if wrong:
        return wrong
    bad = [each for each in value if not seccomp.known(each)]
    return f"names of system calls; `{bad[0]}` is not in the table" if bad else ""


def _backends(value: Any) -> str:
    wrong = _strings(value)
    return wrong or ("" if set(value) <= FALLBACKS else f"a list out of {', '.join(sorted(FALLBACKS))}")


def _switch(value: Any) -> str:
    return "" if isinstance(value, bool) else "true or false"


def _count(value: Any) -> str:
    return "" if isinstance(value, int) and not isinstance(value, bool) and value > 0 else "a whole number above 0"


def _seconds(value: Any) -> str:
    return "" if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else "a number above 0"


# (section, key) -> (field of Profile or of Limits, check of the value)
KEYS: Mapping[tuple[str, str], tuple[str, Check]] = {
    ("filesystem", "read"): ("read", _paths),
    ("filesystem", "deny_read"): ("deny_read", _paths),
    ("filesystem", "write"): ("write", _paths),
    ("filesystem", "deny_write"): ("deny_write", _paths),
    ("filesystem", "tmp"): ("tmp", _one_of("private", "session", "host")),
    ("filesystem", "home"): ("home", _one_of("read", "mask")),
    ("network", "mode"): ("network", _network),
    ("sockets", "unix_allow"): ("unix_allow", _paths),
    ("env", "pass"): ("env_pass", _variables),
    ("env", "set"): ("env_set", _settings),
    ("limits", "wall"): ("limits.wall", _seconds),
    ("limits", "cpu"): ("limits.cpu", _count),
    ("limits", "memory"): ("limits.memory", _count),
    ("limits", "pids"): ("limits.pids", _count),
    ("limits", "open_files"): ("limits.open_files", _count),
    ("limits", "file_size"): ("limits.file_size", _count),
    ("limits", "output"): ("limits.output", _count),
    ("isolation", "require"): ("require", _one_of("full", "fs", "none")),
    ("isolation", "fallback"): ("fallback", _backends),
    ("git", "commit"): ("git_commit", _switch),
    ("seccomp", "extra_deny"): ("extra_deny", _calls),
    ("seccomp", "allow_ptrace"): ("allow_ptrace", _switch),
}
SECTIONS = frozenset(section for section, _ in KEYS)
_ADDED = frozenset(
    ("read", "deny_read", "write", "deny_write", "unix_allow", "env_pass", "extra_deny")
)  # `extends` adds to these
_TEST_KEYS = frozenset(("path", "access", "expect"))
NOT_YET = {("network", "allow"): "per host", ("network", "deny"): "per host"}


@dataclass(frozen=True, slots=True)
class Row:
    """A `[[test]]`: `expect` is whether `access` (read or write) to `path` works under this profile."""

    path: str
    access: str
    expect: bool
    origin: str


def names(directories: tuple[str, ...]) -> tuple[str, ...]:
    """The profiles that can be loaded by name; of two with the same name the earlier directory's counts."""
    found = set()
    for directory in directories:
        try:
            found |= {name.removesuffix(".toml") for name in os.listdir(directory) if name.endswith(".toml")}
        except OSError:
            continue  # a directory that does not exist has no profiles
    return tuple(sorted(found))


def load(name_or_path: str, directories: tuple[str, ...]) -> Profile:
    """Read a profile with what it extends. Raises ProfileError with file:line and the fix."""
    return _load(name_or_path, directories, ())[0]


def check(name_or_path: str, directories: tuple[str, ...]) -> tuple[str, ...]:
    """Run a profile's `[[test]]` rows; the failures, in words. Raises ProfileError when it cannot be read."""
    profile, rows = _load(name_or_path, directories, ())
    failures = []
    for row in rows:
        got = reach(profile, row.path)
        works = got is view.Reach.WRITE if row.access == "write" else got in (view.Reach.WRITE, view.Reach.READ)
        if works is not row.expect:
            wanted_word = "allowed" if row.expect else "denied"
            failures.append(f"{row.origin}: {row.access} of `{row.path}` should be {wanted_word}, and the path is `{got.value}`")
    return tuple(failures)


def diff(one: Profile, other: Profile) -> tuple[tuple[str, str, str], ...]:
    """What two profiles say differently: (key as written in TOML, value in `one`, value in `other`)."""
    out = []
    for (section, key), (field, _) in KEYS.items():
        left, right = _value(one, field), _value(other, field)
        if left != right:
            out.append((f"{section}.{key}", left, right))
    return tuple(out)


def explain(
    profile: Profile, path: str, *, promise: bool = False, session: Session | None = None
) -> tuple[view.Reach, str, tuple[str, ...]]:
    """What a path is under a profile, the line that decides it, and what else speaks of it, for a command that may write
    the workspace (or, under `promise`, that was judged read-only).

    Without a session: on a host where everything that the profile names exists.
    """
    launch, home, workspace = _example(profile, promise=promise, session=session)
    where = path.replace("$WORKSPACE", workspace, 1) if path.startswith("$WORKSPACE") else path
    where = join(workspace, expand_home(where, home))
    seen = view.at(launch, where)
    others = [mount for mount in launch.mounts if mount.why and mount.kind is not MountKind.SEAL]
    passed = tuple(
        f"`{mount.target}`: {mount.why}" for mount in others if is_within(where, mount.target) and mount is not seen.mount
    )
    return seen.reach, f"`{seen.mount.target}`: {seen.why}", passed[::-1]


def reach(profile: Profile, path: str) -> view.Reach:
    """What a path is under a profile, for a command that may write the workspace, on a host where everything exists."""
    return explain(profile, path)[0]


def _example(profile: Profile, *, promise: bool, session: Session | None) -> tuple[LaunchPlan, str, str]:
    """The plan of a command that may write; the home and the workspace in it."""
    real = session is not None
    if session is None:
        session = Session("test", "/home/user/project", "/home/user", 1000, 1000, "/tmp/sandboxd/test")  # noqa: S108  no real path
    grants = () if promise else (Grant(GrantKind.WORKSPACE_WRITE),)
    request = PlanRequest("true", session.workspace, profile, session, grants, promise, Facts())
    if real:
        return plan(request, host_facts(session, request)), session.home, session.workspace
    everything = {name: HostPath(name, name, is_dir=True) for name in wanted(request)}
    launch = plan(request, HostFacts(looked=frozenset(everything), paths=everything))
    return launch, session.home, session.workspace


def _value(profile: Profile, field: str) -> str:
    """A field as TOML would write it, roughly."""
    holder, _, name = field.rpartition(".")
    value = getattr(profile.limits if holder else profile, name)
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={text}" for key, text in sorted(value.items())) or "none"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _load(name_or_path: str, directories: tuple[str, ...], chain: tuple[str, ...]) -> tuple[Profile, tuple[Row, ...]]:
    path = _find(name_or_path, directories)
    if path in chain or len(chain) >= MAX_EXTENDS:
        raise ProfileError(f"`extends` goes round: {' -> '.join((*chain, path))}", origin=path, fix="remove one of them")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"cannot be read: {error}", origin=path) from None
    document = TomlText(text, path, ProfileError)
    name = os.path.basename(path).removesuffix(".toml")
    base = Profile(name, path)
    parent = document.data.get("extends")
    if parent is not None:
        if not isinstance(parent, str) or not parent:
            raise document.fail("`extends` must be the name of a profile", "extends")
        base = replace(_load(parent, directories, (*chain, path))[0], name=name, origin=path, description="")
    return _read(document, base), _rows(document)


def _find(name_or_path: str, directories: tuple[str, ...]) -> str:
    if "/" in name_or_path:
        if os.path.isfile(name_or_path):
            return os.path.abspath(name_or_path)
    else:
        for directory in directories:
            path = f"{directory}/{name_or_path}.toml"
            if os.path.isfile(path):
                return path
    known = ", ".join(names(directories)) or "none"
    raise ProfileError(f"there is no profile `{name_or_path}`", fix=f"use one of: {known}")


def _read(document: TomlText, base: Profile) -> Profile:
    fields: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for section, content in document.data.items():
        if section in TOP:
            if not isinstance(content, str):
                raise document.fail(f"`{section}` must be a string", section)
        elif section == "test":
            continue
        elif section not in SECTIONS:
            known = ", ".join(sorted((*SECTIONS, *TOP, "test")))
            raise document.fail(f"unknown key `{section}`", section, fix=f"known are {known}")
        elif not isinstance(content, dict):
            raise document.fail(f"`{section}` must be a table", section)
        else:
            for key, value in content.items():
                field = _checked(document, section, key, value)
                target = limits if field.startswith("limits.") else fields
                target[field.removeprefix("limits.")] = value
    if "description" in document.data:
        fields["description"] = document.data["description"]
    return _merge(base, fields, limits)


def _checked(document: TomlText, section: str, key: str, value: Any) -> str:
    """The field that a key fills. Raises ProfileError for an unknown key or a wrong value."""
    row = KEYS.get((section, key))
    if row is None:
        if (section, key) in NOT_YET:
            raise document.fail(
                f"`{section}.{key}`: the network cannot be opened {NOT_YET[section, key]} yet",
                section,
                key,
                fix='use `mode = "host"` or `"off"`',
            )
        known = ", ".join(name for part, name in KEYS if part == section)
        raise document.fail(f"unknown key `{section}.{key}`", section, key, fix=f"known are {known}")
    field, test = row
    wrong = test(value)
    if wrong:
        raise document.fail(f"`{section}.{key}` must be {wrong}", section, key)
    if field == "write":
        _check_roots(document, value)
    return field


def _check_roots(document: TomlText, roots: list[str]) -> None:
    home = os.path.expanduser("~")
    own = [os.environ.get(name, f"{home}/{default}") for name, default in _OWN]
    for root in roots:
        if root.startswith("$WORKSPACE"):
            continue
        where = join("/", expand_home(root, home))
        problem = writable_root_problem(where, home, [f"{each}/sandboxd" for each in own])
        if problem:
            raise document.fail(
                f"`{root}` cannot be writable: {problem}",
                "filesystem",
                "write",
                fix="name the directories in it that commands need",
            )


_OWN = (("XDG_CONFIG_HOME", ".config"), ("XDG_STATE_HOME", ".local/state"))


def _merge(base: Profile, fields: dict[str, Any], limits: dict[str, Any]) -> Profile:
    """`base` with what a file says: lists are added to, tables merged, single values replaced."""
    values: dict[str, Any] = {}
    for field, value in fields.items():
        if field in _ADDED:
            values[field] = tuple(dict.fromkeys((*getattr(base, field), *value)))
        elif field == "env_set":
            values[field] = {**base.env_set, **value}
        elif field == "network":
            values[field] = NetworkMode(value)
        elif field == "require":
            values[field] = Require(value)
        else:
            values[field] = tuple(value) if isinstance(value, list) else value
    return replace(base, limits=replace(base.limits, **limits), **values) if limits else replace(base, **values)


def _rows(document: TomlText) -> tuple[Row, ...]:
    rows = document.data.get("test", [])
    if not isinstance(rows, list):
        raise document.fail("`test` must be written `[[test]]`", "test")
    out = []
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or set(row) != _TEST_KEYS:
            raise document.fail(f"a test has the keys {', '.join(sorted(_TEST_KEYS))}", "test", number)
        if row["access"] not in ("read", "write") or row["expect"] not in ("allow", "deny") or not isinstance(row["path"], str):
            raise document.fail('`access` is "read" or "write", `expect` is "allow" or "deny"', "test", number)
        out.append(Row(row["path"], row["access"], row["expect"] == "allow", document.where("test", number)))
    return tuple(out)
