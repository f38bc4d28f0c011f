# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules that "always allow" would write: as narrow as they can be and still help the next time.

A rule names the whole command, or program and subcommand where the subcommand says what is done (`cargo test:*`). Never a
bare interpreter, shell, wrapper, package runner or `git`, and nothing at all for a line with a here-document, a part that
could not be read, or a word that is not known.
"""

from __future__ import annotations

import re

from sandboxd.model import Analysis, AnalyzedCommand, CommandKind, EffectKind, Inputs, RedirectOp
from sandboxd.policy.patterns import host_of

# Effects whose target a rule can name.
_NAMED = frozenset((EffectKind.READ, EffectKind.WRITE, EffectKind.NETWORK))
_BARE = re.compile(r"""[^ \t\n'"\\*()]+""")
_GLOB_CHARS = re.compile(r"[*?\[\\]")
_RULED = re.compile(r"[A-Za-z][A-Za-z0-9_]*|mcp__[A-Za-z0-9_.-]+__[A-Za-z0-9_.-]+")
_READS = frozenset((EffectKind.READ, EffectKind.ENV, EffectKind.EXEC))
_WRITE, _HEREDOC = EffectKind.WRITE, RedirectOp.HEREDOC
_SIMPLE = CommandKind.SIMPLE
# What rules that allow see through.
HARMLESS_WRAPPERS = frozenset(("timeout", "time", "nice", "nohup", "stdbuf", "command", "builtin"))
_MAX_WORDS = 12
_MAX_LENGTH = 200
_MAX_RULES = 4

# Program -> subcommands after which anything may follow. What is not here is suggested word for word.
_PREFIXES: dict[str, frozenset[str]] = {
    program: frozenset(verbs.split())
    for program, verbs in {
        "git": "add commit fetch pull switch merge stash tag cherry-pick revert restore",
        "cargo": "build check test clippy fmt doc bench",
        "go": "build test vet fmt",
        "npm": "ci install test",
        "pnpm": "install test",
        "yarn": "install test",
        "make": "",
        "ruff": "check format",
        "docker": "build",
        "terraform": "fmt validate plan",
        "dotnet": "build test",
        "gradle": "build test",
        "mvn": "compile test package",
    }.items()
}
_SCRIPTS = frozenset(("npm", "pnpm", "yarn", "bun"))  # `npm run NAME`
_PLAIN = frozenset(("pytest", "mypy", "black", "isort", "eslint", "prettier", "tsc", "jest", "vitest", "shellcheck", "rubocop"))
# A rule with only one of these as its words would allow anything at all.
_NEVER_ALONE = frozenset(
    (
        *("sh", "bash", "zsh", "dash", "ksh", "fish", "python", "python3", "node", "deno", "bun", "perl", "ruby", "php", "lua"),
        *("env", "sudo", "doas", "su", "xargs", "find", "nohup", "timeout", "time", "nice", "stdbuf", "eval", "exec", "source"),
        *("npx", "bunx", "pnpx", "uvx", "pipx", "uv", "poetry", "git", "ssh", "docker", "kubectl", "awk", "sed", "make", "."),
    )
)


def suggest(analysis: Analysis, commands: tuple[AnalyzedCommand, ...] | None = None) -> tuple[str, ...]:
    """Narrow allow rules that would together cover `commands` (all that do more than read, when None); () when there is
    no narrow way to say it."""
    if analysis.unparsed is not None:
        return ()
    out: dict[str, None] = {}
    asked = None if commands is None else {id(command) for command in commands}
    for group in _groups(analysis):
        for command in group:
            for redirect in command.subcommand.redirects:
                if redirect.op is _HEREDOC:
                    return ()
        if asked is not None and asked.isdisjoint(map(id, group)):
            continue
        rules = _for_group(group)
        if rules is None:
            return ()
        out.update(dict.fromkeys(rules))
    return tuple(out) if len(out) <= _MAX_RULES else ()


def suggest_tool(inputs: Inputs) -> tuple[str, ...]:
    """Narrow allow rules for one use of a tool that is not a command: the file it edits or reads, the host it fetches from,
    else the tool itself. () where a target is not known."""
    out: dict[str, None] = {}
    effects = inputs.analysis.effects
    edited = {effect.target for effect in effects if effect.kind is EffectKind.WRITE}
    for effect in effects:
        if effect.pattern or (effect.target is None and effect.kind in _NAMED) or effect.code == "tool.argument":
            return ()
        target = effect.target or ""
        if effect.kind is EffectKind.WRITE:
            out[f"Edit(/{_escape(target)})"] = None
        elif effect.kind is EffectKind.READ:
            if target not in edited:
                out[f"Read(/{_escape(target)}{'/**' if effect.recursive else ''})"] = None
        elif effect.kind is EffectKind.NETWORK and inputs.tool == "WebFetch":
            out[f"WebFetch(domain:{host_of(target)})"] = None
        elif _RULED.fullmatch(inputs.tool):
            subject = "" if inputs.tool.startswith("mcp__") or not inputs.texts else inputs.texts[0]
            plain = bool(subject.strip()) and not subject.endswith(("*", "\\")) and subject == subject.strip()
            out[f"{inputs.tool}({_parens(subject)})" if plain else inputs.tool] = None
    return tuple(out)


def _groups(analysis: Analysis) -> list[list[AnalyzedCommand]]:
    """Each command with those nested in its words, which follow it."""
    out: list[list[AnalyzedCommand]] = []
    for command in analysis.commands:
        if command.via and out:
            out[-1].append(command)
        else:
            out.append([command])
    return out


def _for_group(group: list[AnalyzedCommand]) -> tuple[str, ...] | None:
    """The rules for one command: its words, and the files that it and what is nested in it redirect to."""
    outer = group[0]
    files: list[str] = []
    words = False
    for command in group:
        for effect in command.effects:
            if effect.kind is _WRITE and effect.because.startswith("redirect."):
                if effect.target is None or effect.pattern:
                    return None
                files.append(f"Edit(/{_escape(effect.target)})")
            elif effect.kind not in _READS:
                words = True
    if not words:
        return tuple(files)
    through = len(group) == 1 or all(command.via == "" or command.via in HARMLESS_WRAPPERS for command in group)
    argv = (outer.harmless or outer.argv) if through else outer.argv
    if not outer.clean_env or not argv or len(argv) > _MAX_WORDS or outer.subcommand.kind is not _SIMPLE:
        return None
    known = [word for word in argv if word is not None]
    if len(known) != len(argv) or sum(map(len, known)) > _MAX_LENGTH:
        return None
    text = _words(known) if through else _quoted(known)
    return None if text is None else (f"Bash({text})", *files)


def _words(words: list[str]) -> str | None:
    name = words[0]
    verbs = _PREFIXES.get(name)
    if len(words) > 1 and verbs is not None and words[1] in verbs:
        return f"{name} {words[1]}:*"
    if len(words) > 2 and name in _SCRIPTS and words[1] == "run" and words[2].replace(":", "").replace("-", "").isalnum():
        return _quoted(words[:3]) if len(words) == 3 else f"{_quoted(words[:3])}:*"
    if name in _PLAIN:
        return f"{name}:*"
    if len(words) == 1 and name in _NEVER_ALONE and name != "make":
        return None
    return _quoted(words)


def _quoted(words: list[str]) -> str:
    """Words as the content of an exact rule."""
    return _parens(" ".join([word if _BARE.fullmatch(word) else "'" + word.replace("'", "'\\''") + "'" for word in words]))


def _escape(path: str) -> str:
    return _parens(_GLOB_CHARS.sub(r"\\\g<0>", path) if _GLOB_CHARS.search(path) else path)


def _parens(text: str) -> str:
    return text.replace("(", "\\(").replace(")", "\\)")
