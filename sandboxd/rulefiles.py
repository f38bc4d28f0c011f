# SPDX-License-Identifier: GPL-3.0-or-later
"""What the rule files in force for a workspace say together: rules, hooks, modes, and what of it waits for trust."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass

from sandboxd import config as settings
from sandboxd import trust
from sandboxd.config import Config, Directories, RuleFormat, RuleText
from sandboxd.consult.hookdefs import Hook, parse_hooks_claude, parse_hooks_toml
from sandboxd.errors import ConfigError
from sandboxd.model import Mode, RuleSet
from sandboxd.paths import expand_home, join
from sandboxd.policy import sources
from sandboxd.policy.sources import SourceFile

_PROJECT = re.compile(r"\$(?:\{(?:CLAUDE|SANDBOXD)_PROJECT_DIR\}|(?:CLAUDE|SANDBOXD)_PROJECT_DIR\b)")
_HOME = re.compile(r"\$(?:\{HOME\}|HOME\b)")


@dataclass(frozen=True, slots=True)
class RuleFile:
    """One rule file as it was read. `ignored` is what it says and nobody understands."""

    text: RuleText
    source: SourceFile
    hooks: tuple[Hook, ...]
    ignored: tuple[str, ...]

    @property
    def trusted(self) -> bool:
        return self.source.trusted


@dataclass(frozen=True, slots=True)
class RuleFiles:
    """All of them together. `additional` and `default_mode` come from trusted files only; `guarded` are the files that
    hook commands name, which no command may change: they run outside every box."""

    rules: RuleSet
    hooks: tuple[Hook, ...] = ()
    ignored: tuple[str, ...] = ()
    additional: tuple[str, ...] = ()
    default_mode: Mode | None = None
    forbid_bypass: bool = False
    guarded: tuple[str, ...] = ()


def signature(config: Config, dirs: Directories, workspace: str) -> object:
    """Changes when any of the files, the list of trusted ones or the settings about them does."""
    places = settings.rule_places(dirs, workspace, claude=config.policy.read_claude_settings)
    return (settings.rule_signature(places), trust.signature(dirs), config.policy)


def read(config: Config, dirs: Directories, workspace: str) -> RuleFiles:
    """Read them all. Raises ConfigError with file:line for the first that is wrong."""
    places = settings.rule_places(dirs, workspace, claude=config.policy.read_claude_settings)
    known = trust.load(dirs)
    files = []
    for text in settings.read_rules(places):
        trusted = known.covers(text)
        files.append(parse(text, trusted, hooks=trusted))  # what is wrong in hooks that do not count harms nobody
    merged = sources.merge(tuple(file.source for file in files), config.policy.strategy)
    counting = [file for file in files if file.trusted]
    hooks = tuple(hook for file in counting for hook in file.hooks)
    return RuleFiles(
        rules=merged,
        hooks=hooks,
        ignored=tuple(item for file in files for item in file.ignored),
        additional=tuple(
            join(workspace, expand_home(path, dirs.home)) for file in counting for path in file.source.additional_directories
        ),
        default_mode=next((file.source.default_mode for file in counting if file.source.default_mode is not None), None),
        forbid_bypass=any(file.source.forbid_bypass for file in files),
        guarded=tuple(dict.fromkeys(path for hook in hooks for path in named_files(hook.command, workspace, dirs.home))),
    )


def errors(config: Config, dirs: Directories, workspace: str) -> tuple[str, ...]:
    """What is malformed in the files, the first error of each; hooks that wait for trust too. Raises ConfigError for a
    file that cannot be read."""
    out = []
    for text in settings.read_rules(settings.rule_places(dirs, workspace, claude=config.policy.read_claude_settings)):
        try:
            parse(text, trusted=False)
        except ConfigError as error:
            out.append(str(error))
    return tuple(out)


def parse(text: RuleText, trusted: bool, *, hooks: bool = True) -> RuleFile:
    """One file; its `hooks` too unless told not to. Raises ConfigError with file:line."""
    place = text.place
    claude = place.format is RuleFormat.CLAUDE
    rules = sources.parse_claude_settings if claude else sources.parse_settings_toml
    source = rules(text.text, place.source, place.path, trusted)
    if not hooks:
        return RuleFile(text, source, (), source.ignored)
    if claude:
        found, more = parse_hooks_claude(text.text, place.source, place.path)
        return RuleFile(text, source, found, (*source.ignored, *more))
    return RuleFile(text, source, parse_hooks_toml(text.text, place.source, place.path), source.ignored)


def named_files(command: str, workspace: str, home: str) -> tuple[str, ...]:
    """The existing files that a hook's command names, as absolute paths: what it runs, and what it is given."""
    text = _HOME.sub(lambda _: home, _PROJECT.sub(lambda _: workspace, command))
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        words = text.split()
    out: dict[str, None] = {}
    for word in words:
        path = join(home, expand_home(word.strip(";&|()<>"), home))
        try:
            if "/" in word and os.path.isfile(path):
                out[os.path.realpath(path)] = None
        except ValueError:  # a NUL
            continue
    return tuple(out)
