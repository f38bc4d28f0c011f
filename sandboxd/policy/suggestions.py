# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules that "always allow" would write: as narrow as they can be and still help the next time.

A rule names the whole command, or program and subcommand where the subcommand says what is done (`cargo test:*`). Never a
bare interpreter, shell, wrapper, package runner or `git`, and nothing at all for a line with a here-document, a part that
could not be read, or a word that is not known.
"""

from __future__ import annotations

from sandboxd.model import Analysis, AnalyzedCommand, CommandKind, EffectKind, RedirectOp

_READS = frozenset((EffectKind.READ, EffectKind.ENV, EffectKind.EXEC))
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
    for command in analysis.commands:
        if any(redirect.op is RedirectOp.HEREDOC for redirect in command.subcommand.redirects):
            return ()
        if commands is None and all(
            effect.kind in (EffectKind.READ, EffectKind.ENV, EffectKind.EXEC) for effect in command.effects
        ):
            continue
        if commands is not None and command not in commands:
            continue
        rules = _for_command(command)
        if rules is None:
            return ()
        out.update(dict.fromkeys(rules))
    return tuple(out) if len(out) <= _MAX_RULES else ()


def _for_command(command: AnalyzedCommand) -> tuple[str, ...] | None:
    """The rules for one command: its words, and the files it redirects to."""
    rules: list[str] = []
    redirected = [e for e in command.effects if e.because.startswith("redirect.") and e.kind is EffectKind.WRITE]
    for effect in redirected:
        if effect.target is None or effect.pattern:
            return None
        rules.append(f"Edit(/{_escape(effect.target)})")
    rest = [e for e in command.effects if e not in redirected]
    if all(effect.kind in _READS for effect in rest):
        return tuple(rules)
    argv = command.harmless or command.argv
    if not command.clean_env or not argv or command.subcommand.kind is not CommandKind.SIMPLE:
        return None
    words = [word for word in argv if word is not None]
    if len(words) != len(argv) or len(words) > _MAX_WORDS or sum(map(len, words)) > _MAX_LENGTH:
        return None
    text = _words(words)
    return None if text is None else (f"Bash({text})", *rules)


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
    out = []
    for word in words:
        plain = word and not set(word) & set(" \t\n'\"\\*()")
        out.append(word if plain else "'" + word.replace("'", "'\\''") + "'")
    text = " ".join(out)
    return text.replace("(", "\\(").replace(")", "\\)")


def _escape(path: str) -> str:
    escaped = "".join("\\" + char if char in "*?[\\" else char for char in path)
    return escaped.replace("(", "\\(").replace(")", "\\)")
