# SPDX-License-Identifier: GPL-3.0-or-later
"""git operations that touch what is protected: they write configuration or hooks, or put given content under a name.

git's own ordinary writes (add, commit, checkout, merge, …) have no row: they are mutations, not touches, whatever the tree
they bring holds.

To add one: a row in `GIT`, and a row in tests/corpus/policy_safety.toml.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.killswitch import protected, protected_pattern
from sandboxd.policy.rules import git_words

Argv = tuple[str | None, ...]
ASKS = frozenset(("--help", "--version"))
HELP = ASKS | {"-h", "-V", "help", "version"}


@dataclass(frozen=True, slots=True)
class GitOp:
    """When one git subcommand is a touch. `verbs`: its first operand is one of these; `options`: one of these stands
    there; `paths`: an operand names something protected (`tree`: only where a tree is given before it; `unless`: not
    with one of these options); `always`: unless one of `unless` stands there."""

    why: str
    always: bool = False
    verbs: frozenset[str] = frozenset()
    options: frozenset[str] = frozenset()
    paths: bool = False
    tree: bool = False
    needs: frozenset[str] = frozenset()
    unless: frozenset[str] = frozenset()


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


WRITES_CONFIG = "writes the repository's configuration"
_CONTENT = "puts given content under a protected name"
INSTALLS_HOOKS = "installs hooks"

# git's own ordinary writes (add, commit, checkout, merge, …) have no row: they are mutations, not touches.
GIT: dict[str, GitOp] = {
    "remote": GitOp(WRITES_CONFIG, verbs=word_set("add set-url rename remove rm set-branches")),
    "submodule": GitOp(WRITES_CONFIG, verbs=word_set("add init set-url set-branch sync deinit"), options=word_set("--init")),
    "maintenance": GitOp(WRITES_CONFIG, verbs=word_set("start stop register unregister")),
    "sparse-checkout": GitOp(WRITES_CONFIG, verbs=word_set("set init add disable")),
    "svn": GitOp(WRITES_CONFIG, verbs=word_set("init clone")),
    "flow": GitOp(WRITES_CONFIG, verbs=word_set("init")),
    "crypt": GitOp(WRITES_CONFIG, verbs=word_set("init unlock lock")),
    "annex": GitOp(WRITES_CONFIG, verbs=word_set("init initremote enableremote config")),
    "lfs": GitOp(INSTALLS_HOOKS, verbs=word_set("install uninstall update")),
    "secrets": GitOp(INSTALLS_HOOKS, options=word_set("--install --add --register-aws")),
    "init": GitOp("brings hooks or moves the git directory", options=word_set("--template --separate-git-dir"), paths=True),
    "clone": GitOp("brings hooks or configuration", options=word_set("--template --separate-git-dir --config -c"), paths=True),
    "worktree": GitOp(_CONTENT, paths=True),
    "read-tree": GitOp(_CONTENT, paths=True),
    "subtree": GitOp(_CONTENT, paths=True),
    "credential-store": GitOp(_CONTENT, paths=True),
    "branch": GitOp(WRITES_CONFIG, options=word_set("--edit-description")),
    "bundle": GitOp(_CONTENT, paths=True),
    "checkout": GitOp(_CONTENT, paths=True, tree=True),
    "restore": GitOp(_CONTENT, paths=True, needs=word_set("--source -s")),
    "checkout-index": GitOp(_CONTENT, paths=True),
    "rm": GitOp("deletes a protected file", paths=True, unless=word_set("--cached -n --dry-run")),
    "mv": GitOp("renames a protected file", paths=True, unless=word_set("-n --dry-run")),
    "clean": GitOp("deletes protected files", paths=True, unless=word_set("-n --dry-run")),
    "update-index": GitOp(_CONTENT, options=word_set("--cacheinfo --index-info")),
    "apply": GitOp(
        "applies an unseen patch where it may write anything", options=word_set("--unsafe-paths --cached"), paths=True
    ),
    "fast-import": GitOp(_CONTENT, always=True),
    "mktree": GitOp(_CONTENT, always=True),
    "am": GitOp("applies an unseen patch", always=True, unless=word_set("--abort --quit --show-current-patch")),
}
_CONFIG_VALUED = word_set("-f --file --blob --type --default --value --url --comment")
_CONFIG_READS = word_set("--get --get-all --get-regexp --get-urlmatch --get-color --get-colorbool -l --list")
_CONFIG_WRITES = word_set(
    "--add --unset --unset-all --replace-all --rename-section --remove-section -e --edit"
    " set unset edit rename-section remove-section"
)


def known(argv: Argv) -> list[str]:
    """The known words after the program."""
    return [word for word in argv[1:] if word is not None]


def has(words: list[str], options: frozenset[str]) -> bool:
    """Whether one of the options stands there, alone or with `=value`."""
    return any(word in options or word.partition("=")[0] in options for word in words)


def operands_of(words: list[str]) -> list[str]:
    return [word for word in words if not word.startswith("-")]


def git_touch(argv: Argv) -> str | None:
    argv = git_words(argv)
    if len(argv) < 2 or argv[1] is None:
        return None
    verb = argv[1]
    if verb == "config":
        return WRITES_CONFIG if _config_writes(argv[2:]) else None
    op = GIT.get(verb)
    if op is None:
        return None
    words = known(argv[1:])
    if HELP.intersection(words) or has(words, op.unless):
        return None
    operands = operands_of(words)
    if op.always or has(words, op.options) or (operands and operands[0] in op.verbs):
        return op.why
    if op.paths and (not op.needs or has(words, op.needs) or any(word.startswith("-s") for word in words)):
        for word in _paths(words) if op.tree else _named(words):
            if is_protected(word):
                return op.why
    return None


def _named(words: list[str]) -> list[str]:
    """Operands, and the values of long options."""
    return [
        word.partition("=")[2] if word.startswith("--") else word for word in words if not word.startswith("-") or "=" in word
    ]


def _paths(words: list[str]) -> list[str]:
    """The paths of `git checkout <tree> [--] <path>…`; none when no tree is given."""
    if "--" in words:
        at = words.index("--")
        return words[at + 1 :] if operands_of(words[:at]) else []
    return operands_of(words)[1:]


def is_protected(word: str) -> bool:
    if word.startswith(":("):
        word = word.partition(")")[2]
    path = "/" + word.lstrip(":/")
    return protected(path, "/") is not None or protected_pattern(path, "/") is not None


def _config_writes(words: Argv) -> bool:
    """Whether a `git config` writes. A word that is not known counts as one that does, unless it is clear by then."""
    known = [word for word in words if word is not None]
    if _CONFIG_WRITES.intersection(known[:1]) or any(word in _CONFIG_WRITES and word.startswith("-") for word in known):
        return True
    if has(known, _CONFIG_READS) or (known and known[0] in ("get", "list")):
        return False
    operands, skip = 0, False
    for word in words:
        if skip:
            skip = False
        elif word is None:
            operands += 1
        elif word.startswith("-"):
            skip = word in _CONFIG_VALUED
        elif word in _CONFIG_WRITES and not operands:
            return True
        elif word in ("get", "list") and not operands:
            return False
        else:
            operands += 1
    return operands > 1 or (None in words and operands > 0 and words[-1] is None)
