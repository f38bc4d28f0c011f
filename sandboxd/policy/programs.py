# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that safety knows by name, as tables over the decoded argv.

The effect tables say what a command does to paths; these say which commands mean something to the killswitch that no
path shows: git operations that write configuration, hooks or given content, tools that install hooks, programs that
destroy devices or gain privilege. All look-ups answer with a short phrase that completes "`cmd` …", or None.

To add one: a row in the table it belongs to, and a row in tests/corpus/policy_safety.toml.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sandboxd.killswitch import protected, protected_pattern
from sandboxd.model import AnalyzedCommand
from sandboxd.policy.rules import git_words

Argv = tuple[str | None, ...]

PRIVILEGE = frozenset(
    ("sudo", "sudoedit", "su", "doas", "pkexec", "run0", "runuser", "setcap", "nsenter", "dzdo", "gksudo", "kdesu", "machinectl")
)
_POWER = frozenset(("shutdown", "reboot", "halt", "poweroff"))
_POWER_VERBS = frozenset(("poweroff", "reboot", "halt", "kexec", "soft-reboot", "emergency", "rescue"))
_FORMATTERS = re.compile(r"mkfs(?:\..+)?|mke2fs|mkdosfs|mkswap|mkntfs|mkexfatfs|newfs|blkdiscard|zerofree")
_PARTITIONERS = frozenset(("fdisk", "sfdisk", "gdisk", "sgdisk", "cfdisk", "parted"))
_CONTAINERS = frozenset(("docker", "podman", "nerdctl"))
_ASKS = frozenset(("--help", "--version"))
_HELP = _ASKS | {"-h", "-V", "help", "version"}

# What runs another program by name, and the words that may stand between.
_RUNNERS = frozenset(
    (
        *("npx", "bunx", "pnpx", "pnpm", "yarn", "npm", "bun", "corepack", "volta", "mise"),
        *("uvx", "uv", "pipx", "poetry", "pdm", "hatch", "rye", "pipenv", "python", "python3", "bundle"),
    )
)
_CONNECTING = frozenset(("exec", "dlx", "run", "x", "tool"))


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


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_CONFIG = "writes the repository's configuration"
_CONTENT = "puts given content under a protected name"
_HOOKS = "installs hooks"

# git's own ordinary writes (add, commit, checkout, merge, …) have no row: they are mutations, not touches.
GIT: dict[str, GitOp] = {
    "remote": GitOp(_CONFIG, verbs=_set("add set-url rename remove rm set-branches")),
    "submodule": GitOp(_CONFIG, verbs=_set("add init set-url set-branch sync deinit"), options=_set("--init")),
    "maintenance": GitOp(_CONFIG, verbs=_set("start stop register unregister")),
    "sparse-checkout": GitOp(_CONFIG, verbs=_set("set init add disable")),
    "svn": GitOp(_CONFIG, verbs=_set("init clone")),
    "flow": GitOp(_CONFIG, verbs=_set("init")),
    "crypt": GitOp(_CONFIG, verbs=_set("init unlock lock")),
    "annex": GitOp(_CONFIG, verbs=_set("init initremote enableremote config")),
    "lfs": GitOp(_HOOKS, verbs=_set("install uninstall update")),
    "secrets": GitOp(_HOOKS, options=_set("--install --add --register-aws")),
    "init": GitOp("brings hooks or moves the git directory", options=_set("--template --separate-git-dir"), paths=True),
    "clone": GitOp("brings hooks or configuration", options=_set("--template --separate-git-dir --config -c"), paths=True),
    "worktree": GitOp(_CONTENT, paths=True),
    "bundle": GitOp(_CONTENT, paths=True),
    "checkout": GitOp(_CONTENT, paths=True, tree=True),
    "restore": GitOp(_CONTENT, paths=True, needs=_set("--source -s")),
    "checkout-index": GitOp(_CONTENT, paths=True),
    "rm": GitOp("deletes a protected file", paths=True, unless=_set("--cached -n --dry-run")),
    "mv": GitOp("renames a protected file", paths=True, unless=_set("-n --dry-run")),
    "clean": GitOp("deletes protected files", paths=True, unless=_set("-n --dry-run")),
    "update-index": GitOp(_CONTENT, options=_set("--cacheinfo --index-info")),
    "apply": GitOp("applies an unseen patch where it may write anything", options=_set("--unsafe-paths --cached"), paths=True),
    "fast-import": GitOp(_CONTENT, always=True),
    "mktree": GitOp(_CONTENT, always=True),
    "am": GitOp("applies an unseen patch", always=True, unless=_set("--abort --quit --show-current-patch")),
}
_CONFIG_VALUED = _set("-f --file --blob --type --default --value --url --comment")
_CONFIG_READS = _set("--get --get-all --get-regexp --get-urlmatch --get-color --get-colorbool -l --list")
_CONFIG_WRITES = _set(
    "--add --unset --unset-all --replace-all --rename-section --remove-section -e --edit"
    " set unset edit rename-section remove-section"
)


@dataclass(frozen=True, slots=True)
class Installer:
    """A program that writes protected files under no name the command shows. `verbs` None = whatever its words are; a
    verb of two words stands for both in order; `options` likewise by option."""

    why: str
    verbs: frozenset[str] | None = frozenset()
    options: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()


def _verbs(*words: str) -> frozenset[str]:
    return frozenset(words)


_NPMRC = "writes `.npmrc`"
INSTALLERS: dict[str, Installer] = {
    "husky": Installer(_HOOKS, verbs=None),
    "simple-git-hooks": Installer(_HOOKS, verbs=None),
    "pre-commit": Installer(_HOOKS, verbs=_verbs("install", "uninstall", "init-templatedir", "autoupdate", "migrate-config")),
    "lefthook": Installer(_HOOKS, verbs=_verbs("install", "uninstall", "add")),
    "overcommit": Installer(_HOOKS, options=_verbs("--install", "-i", "--uninstall", "-u")),
    "scalar": Installer(_CONFIG, verbs=_verbs("clone", "register", "unregister", "reconfigure", "delete")),
    "crontab": Installer("changes a crontab", verbs=None),
    "systemctl": Installer(
        "changes user services",
        verbs=_verbs("enable", "disable", "mask", "unmask", "edit", "link", "revert", "preset", "add-wants", "set-property"),
        needs=_verbs("--user"),
    ),
    "claude": Installer(
        "changes the agent's settings",
        verbs=_verbs("config set", "config add", "config remove", "mcp add", "mcp add-json", "mcp remove", "plugin install"),
    ),
    "codex": Installer("changes the agent's settings", verbs=_verbs("mcp add", "mcp remove")),
    "gemini": Installer("changes the agent's settings", verbs=_verbs("mcp add", "mcp remove", "extensions install")),
    "npm": Installer(
        _NPMRC, verbs=_verbs("config set", "config delete", "config edit", "c set", "set", "login", "adduser", "logout")
    ),
    "pnpm": Installer(_NPMRC, verbs=_verbs("config set", "config delete", "set", "login")),
    "yarn": Installer(
        "writes `.yarnrc`", verbs=_verbs("config set", "config unset", "config delete", "set version", "plugin import")
    ),
    "gradle": Installer("writes `gradle-wrapper.properties`", verbs=_verbs("wrapper")),
    "gradlew": Installer("writes `gradle-wrapper.properties`", verbs=_verbs("wrapper")),
    "mvn": Installer("writes `maven-wrapper.properties`", verbs=_verbs("wrapper:wrapper")),
    "cargo": Installer("writes `.cargo/credentials`", verbs=_verbs("login", "logout")),
    "ssh-keygen": Installer("rewrites `.ssh/known_hosts`", options=_verbs("-R")),
    "gpg": Installer("changes the keyring", options=_verbs("--import", "--gen-key", "--generate-key", "--full-generate-key")),
}
_ALIASES = {"pre_commit": "pre-commit", "gpg2": "gpg", "mvnw": "mvn"}


def program(argv: Argv) -> str | None:
    """The program's name without its directory."""
    return None if not argv or argv[0] is None else argv[0].rpartition("/")[2]


_INTERESTING = frozenset(
    (
        *("git", "chmod", "systemctl", "init", "telinit", "kexec", "wipefs", "cryptsetup", "sysctl"),
        *(PRIVILEGE | _POWER | _PARTITIONERS | _CONTAINERS | _RUNNERS | INSTALLERS.keys() | _ALIASES.keys()),
    )
)


def interesting(argv: Argv) -> bool:
    """Whether any table here knows the program: a quick no for all others."""
    name = program(argv)
    return name is not None and (name in _INTERESTING or _FORMATTERS.fullmatch(name) is not None)


def views(command: AnalyzedCommand) -> tuple[Argv, ...]:
    """The argvs of a command that can differ: as written, and without its wrappers."""
    bare = command.bare or command.harmless
    return (command.argv,) if not bare or bare == command.argv else (command.argv, bare)


def _known(argv: Argv) -> list[str]:
    return [word for word in argv[1:] if word is not None]


def _has(words: list[str], options: frozenset[str]) -> bool:
    return any(word in options or word.partition("=")[0] in options for word in words)


def _operands(words: list[str]) -> list[str]:
    return [word for word in words if not word.startswith("-")]


def privilege(argv: Argv) -> str | None:
    """How a command gains privilege."""
    name = program(argv)
    if name in PRIVILEGE:
        return "runs with more privilege"
    words = _known(argv)
    if name == "chmod" and any(re.fullmatch(r"[0-7]?[2-7][0-7]{3}|[ugoa]*\+[rwxXt]*s[rwxXst]*", word) for word in words):
        return "sets a setuid or setgid bit"
    if name in _CONTAINERS and any(word == "--privileged" or word == "--privileged=true" for word in words):
        return "starts a privileged container"
    return None


def catastrophe(argv: Argv) -> str | None:
    """Why running the program itself is a catastrophe."""
    name = program(argv)
    if name is None:
        return None
    words = _known(argv)
    if _ASKS.intersection(words):
        return None
    operands = _operands(words)
    if name in _POWER and "-c" not in words:
        return "stops the machine"
    if name == "systemctl" and _POWER_VERBS.intersection(operands):
        return "stops the machine"
    if name in ("init", "telinit") and _set("0 6").intersection(operands):
        return "stops the machine"
    if name == "kexec" and _has(words, _set("-e --exec")):
        return "boots another kernel"
    if _FORMATTERS.fullmatch(name) or (name == "wipefs" and _has(words, _set("-a --all -o --offset"))):
        files = operands and None not in argv and not any(word.startswith("/dev/") for word in operands)
        return None if files else "formats a device"
    if name in _PARTITIONERS and not _has(words, _set("-l --list -p --print -d --dump print")):
        return "rewrites a partition table" if any(word.startswith("/dev/") for word in operands) else None
    if name == "cryptsetup" and _set("luksFormat erase luksErase").intersection(operands):
        return "erases a device"
    if name == "sysctl" and (_has(words, _set("-w --write -p --load --system")) or any("=" in word for word in operands)):
        return "writes kernel settings"
    if name in _CONTAINERS and _host_root(words):
        return "mounts the host's root directory writable"
    return None


def _host_root(words: list[str]) -> bool:
    for at, word in enumerate(words):
        option, _, value = word.partition("=")
        if option in ("-v", "--volume", "--mount") and not value:
            value = words[at + 1] if at + 1 < len(words) else ""
        elif word.startswith("-v/"):
            value = word[2:]
        elif option not in ("-v", "--volume", "--mount"):
            continue
        if option == "--mount":
            fields = dict(field.partition("=")[::2] for field in value.split(","))
            source = fields.get("source", fields.get("src", ""))
            if source and not source.strip("/.") and not {"readonly", "ro"} & fields.keys():
                return True
        else:
            source, _, rest = value.partition(":")
            if source.startswith("/") and not source.strip("/.") and rest and "ro" not in rest.partition(":")[2].split(","):
                return True
    return False


def touch(argv: Argv) -> str | None:
    """Why a command touches something protected that none of its paths show."""
    name = program(argv)
    if name is None:
        return None
    if name == "git":
        return _git((name, *argv[1:]))
    if name in _RUNNERS:
        inner = _run_by(argv)
        if inner is not None:
            return _install(inner)
    return _install(argv)


def _run_by(argv: Argv) -> Argv | None:
    """The command that a package runner starts, when it is one of ours."""
    for at, word in enumerate(argv[1:8], 1):
        if word is None:
            return None
        name = word.partition("@")[0]
        if _ALIASES.get(name, name) in INSTALLERS:
            return (name, *argv[at + 1 :])
        if not word.startswith("-") and word not in _CONNECTING:
            return None
    return None


def _install(argv: Argv) -> str | None:
    name = program(argv) or ""
    installer = INSTALLERS.get(_ALIASES.get(name, name))
    if installer is None:
        return None
    words = _known(argv)
    if _HELP.intersection(words[:1]):
        return None
    if installer.needs and not installer.needs.intersection(words):
        return None
    if _has(words, installer.options):
        return installer.why
    if installer.verbs is None:
        return None if name == "crontab" and "-l" in words else installer.why
    operands = _operands(words)[:2]
    if operands and (operands[0] in installer.verbs or " ".join(operands) in installer.verbs):
        return installer.why
    return None


def _git(argv: Argv) -> str | None:
    argv = git_words(argv)
    if len(argv) < 2 or argv[1] is None:
        return None
    verb = argv[1]
    if verb == "config":
        return _CONFIG if _config_writes(argv[2:]) else None
    op = GIT.get(verb)
    if op is None:
        return None
    words = _known(argv[1:])
    if _HELP.intersection(words) or _has(words, op.unless):
        return None
    operands = _operands(words)
    if op.always or _has(words, op.options) or (operands and operands[0] in op.verbs):
        return op.why
    if op.paths and (not op.needs or _has(words, op.needs) or any(word.startswith("-s") for word in words)):
        for word in _paths(words) if op.tree else _named(words):
            if _is_protected(word):
                return op.why
    return None


_IN_PLACE = re.compile(r"-[a-zA-Z]*i(?:\..*)?|--in-?place(?:=.*)?|-w|--write|--fix|--overwrite")
_OUTPUT = re.compile(r"-o|--out(?:put|file)?(?:-file)?")
_SEARCHERS = re.compile(r".*grep|ack|ag|rg|less|more|curl")


def edits_in_place(argv: Argv) -> str | None:
    """The protected operand of a program that no effect table knows, when an option says, as options are commonly
    named, that it writes: `-i`, `--write`, `-o FILE`."""
    name = program(argv)
    words = _known(argv)
    if name is None or _SEARCHERS.fullmatch(name):
        return None
    for at, word in enumerate(words):
        option, _, value = word.partition("=")
        if _OUTPUT.fullmatch(option):
            value = value or (words[at + 1] if at + 1 < len(words) else "")
            if value and _is_protected(value):
                return value
    if not any(map(_IN_PLACE.fullmatch, words)):
        return None
    return next((word for word in _operands(words) if _is_protected(word)), None)


def _named(words: list[str]) -> list[str]:
    """Operands, and the values of long options."""
    return [
        word.partition("=")[2] if word.startswith("--") else word for word in words if not word.startswith("-") or "=" in word
    ]


def _paths(words: list[str]) -> list[str]:
    """The paths of `git checkout <tree> [--] <path>…`; none when no tree is given."""
    if "--" in words:
        at = words.index("--")
        return words[at + 1 :] if _operands(words[:at]) else []
    return _operands(words)[1:]


def _is_protected(word: str) -> bool:
    if word.startswith(":("):
        word = word.partition(")")[2]
    path = "/" + word.lstrip(":/")
    return protected(path, "/") is not None or protected_pattern(path, "/") is not None


def _config_writes(words: Argv) -> bool:
    """Whether a `git config` writes. A word that is not known counts as one that does, unless it is clear by then."""
    known = [word for word in words if word is not None]
    if _CONFIG_WRITES.intersection(known[:1]) or any(word in _CONFIG_WRITES and word.startswith("-") for word in known):
        return True
    if _has(known, _CONFIG_READS) or (known and known[0] in ("get", "list")):
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
