# SPDX-License-Identifier: GPL-3.0-or-later
"""Allow rules that say next to nothing: whole tools, interpreters, package runners. In auto mode they do not count.

Whoever wrote `Bash(python:*)` meant to be asked less; in auto mode a classifier looks at every such command instead, and
a rule that lets any code through would only blind it.

To add a program: a word in one of the tables, and a row in tests/policy/test_policy_auto.py.
"""

from __future__ import annotations

import re

from sandboxd.model import Behavior, Inputs, Rule, RuleSet
from sandboxd.policy.modes import MODES, effective


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TOOLS = _words("Bash Agent Task")
# With anything behind them they run anything.
_PROGRAMS = _words(
    "sh bash zsh dash ksh fish csh tcsh source . python pypy ipython node nodejs deno bun perl ruby irb php lua luajit tclsh "
    "Rscript julia ghci osascript pwsh gawk awk mawk sed tsx ts-node claude codex gemini aider"
)
# So do these, and behind some words they still do, when the last one is such a program itself.
_WRAPPERS = _words(
    "env sudo doas xargs nohup timeout time nice stdbuf setsid strace ltrace entr command builtin exec eval busybox "
    "npx bunx pnpx uvx"
)
# Whatever stands behind them, more words make them run anything.
_ALWAYS = _words("find fd ssh su chroot unshare nsenter flock watch parallel script expect gdb vim vi emacs ed at batch")
# Likewise behind one of these subcommands, or behind none.
_RUNNERS: dict[str, frozenset[str]] = {
    program: _words(verbs)
    for program, verbs in {
        "npm": "run exec x run-script start test explore",
        "pnpm": "run exec dlx",
        "yarn": "run exec dlx node",
        "uv": "run tool",
        "pipx": "run",
        "poetry": "run",
        "pipenv": "run",
        "hatch": "run",
        "rye": "run",
        "conda": "run",
        "bundle": "exec",
        "cargo": "run",
        "go": "run",
        "dotnet": "run exec",
        "nix": "run",
        "git": "",
        "make": "",
        "just": "",
        "task": "",
    }.items()
}
# Behind one of these subcommands, and behind any words after it.
_INSIDE: dict[str, frozenset[str]] = {
    "docker": _words("run exec compose"),
    "podman": _words("run exec compose"),
    "kubectl": _words("exec run debug"),
    "nix": _words("shell develop"),
}
_OPEN = (*_PROGRAMS, *_WRAPPERS, *_ALWAYS)
_VERSION = re.compile(r"[\d.]+$")
_CACHE: dict[int, tuple[RuleSet, RuleSet, tuple[Rule, ...]]] = {}
_CACHE_SIZE = 64


def too_broad(rule: Rule) -> bool:
    """Whether an allow rule leaves open what is run."""
    if rule.behavior is not Behavior.ALLOW or rule.tool not in _TOOLS:
        return False
    content = rule.content
    if content is None or rule.tool != "Bash":
        return content is None or content.strip() in ("", "*")
    head, star, _ = (f"{content[7:]}:*" if content.startswith("prefix:") else content).partition("*")
    if not star:
        return False
    open_word = not head.endswith((" ", ":", "\t"))
    words = head.rstrip(": \t").split()
    if not words or (open_word and len(words) == 1):
        return True
    if open_word:  # `uv run p*` is `uv run python` too
        words[-1] = next((program for program in _OPEN if program.startswith(words[-1])), words[-1])
    return _runs_anything(words)


def _runs_anything(words: list[str]) -> bool:
    """Whether a command that begins with these words, none of them cut, may still run anything."""
    name = words[0].rsplit("/", 1)[-1]
    rest = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if name in _PROGRAMS or _VERSION.sub("", name) in _PROGRAMS:
        return not rest
    if name in _WRAPPERS:
        return not rest or _runs_anything(rest[-1:])
    if name in _ALWAYS:
        return True
    if name in _INSIDE and (not rest or rest[0] in _INSIDE[name]):
        return True
    verbs = _RUNNERS.get(name)
    if verbs is None:
        return False
    return not rest or (rest[0] in verbs and (len(rest) == 1 or _runs_anything(rest[-1:])))


def in_force(inputs: Inputs) -> RuleSet:
    """The rules that count in the mode in force. The same object every time for the same rules."""
    return _split(inputs.rules)[1] if _narrows(inputs) else inputs.rules


def set_aside(inputs: Inputs) -> tuple[Rule, ...]:
    """The rules that do not count because of the mode."""
    return _split(inputs.rules)[2] if _narrows(inputs) else ()


def _narrows(inputs: Inputs) -> bool:
    return MODES[inputs.mode if inputs.max_mode is None else effective(inputs.mode, inputs.max_mode)].classifies


def _split(rules: RuleSet) -> tuple[RuleSet, RuleSet, tuple[Rule, ...]]:
    found = _CACHE.get(id(rules))
    if found is not None and found[0] is rules:
        return found
    aside = tuple(rule for rule in rules.rules if too_broad(rule))
    narrowed = rules
    if aside:
        narrowed = RuleSet(tuple(rule for rule in rules.rules if rule not in aside), rules.strategy, (*rules.inert, *aside))
    if len(_CACHE) >= _CACHE_SIZE:
        _CACHE.clear()  # in one step: several threads judge at once
    found = _CACHE[id(rules)] = (rules, narrowed, aside)
    return found
