# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that safety knows by name, as tables over the decoded argv.

The effect tables say what a command does to paths; these say which commands mean something to the killswitch that no
path shows: tools that install hooks, programs that destroy devices or gain privilege, editors (git: gittouch.py). All
look-ups answer with a short phrase that completes "`cmd` …", or None.

To add one: a row in the table it belongs to, and a row in tests/corpus/policy_safety.toml.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from sandboxd.model import AnalyzedCommand
from sandboxd.policy.destinations import KNOWN
from sandboxd.policy.gittouch import (
    ASKS,
    HELP,
    INSTALLS_HOOKS,
    WRITES_CONFIG,
    Argv,
    git_touch,
    has,
    is_protected,
    known,
    operands_of,
    word_set,
)
from sandboxd.policy.oneliners import INTERPRETERS, changes, feeds

PRIVILEGE = frozenset(
    ("sudo", "sudoedit", "su", "doas", "pkexec", "run0", "runuser", "setcap", "nsenter", "dzdo", "gksudo", "kdesu", "machinectl")
)
_POWER = frozenset(("shutdown", "reboot", "halt", "poweroff"))
_POWER_VERBS = frozenset(("poweroff", "reboot", "halt", "kexec", "soft-reboot", "emergency", "rescue"))
_FORMATTERS = re.compile(r"mkfs(?:\..+)?|mke2fs|mkdosfs|mkswap|mkntfs|mkexfatfs|newfs|blkdiscard|zerofree")
_FORMAT_INITIALS = frozenset("mnbz")
_PARTITIONERS = frozenset(("fdisk", "sfdisk", "gdisk", "sgdisk", "cfdisk", "parted"))
_CONTAINERS = frozenset(("docker", "podman", "nerdctl"))

# What runs another program by name, and the words that may stand between.
_RUNNERS = frozenset(
    (
        *("npx", "bunx", "pnpx", "pnpm", "yarn", "npm", "bun", "corepack", "volta", "mise"),
        *("uvx", "uv", "pipx", "poetry", "pdm", "hatch", "rye", "pipenv", "python", "python3", "bundle"),
    )
)
_CONNECTING = frozenset(("exec", "dlx", "run", "x", "tool"))


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


_START_FILES = "writes start files of shells"
_NPMRC = "writes `.npmrc`"
INSTALLERS: dict[str, Installer] = {
    "husky": Installer(INSTALLS_HOOKS, verbs=None),
    "simple-git-hooks": Installer(INSTALLS_HOOKS, verbs=None),
    "pre-commit": Installer(
        INSTALLS_HOOKS, verbs=_verbs("install", "uninstall", "init-templatedir", "autoupdate", "migrate-config")
    ),
    "lefthook": Installer(INSTALLS_HOOKS, verbs=_verbs("install", "uninstall", "add")),
    "overcommit": Installer(INSTALLS_HOOKS, options=_verbs("--install", "-i", "--uninstall", "-u")),
    "scalar": Installer(WRITES_CONFIG, verbs=_verbs("clone", "register", "unregister", "reconfigure", "delete")),
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
    **dict.fromkeys(("conda", "mamba", "micromamba"), Installer(_START_FILES, verbs=_verbs("init", "shell init"))),
    "pipx": Installer(_START_FILES, verbs=_verbs("ensurepath")),
    "uv": Installer(_START_FILES, verbs=_verbs("tool update-shell")),
    "git-crypt": Installer(WRITES_CONFIG, verbs=_verbs("init", "unlock", "lock")),
    "cargo": Installer("writes `.cargo/credentials`", verbs=_verbs("login", "logout")),
    "ssh-keygen": Installer("rewrites `.ssh/known_hosts`", options=_verbs("-R")),
    "gpg": Installer("changes the keyring", options=_verbs("--import", "--gen-key", "--generate-key", "--full-generate-key")),
}
_ALIASES = {"pre_commit": "pre-commit", "gpg2": "gpg", "mvnw": "mvn"}


def program(argv: Argv) -> str | None:
    """The program's name without its directory."""
    return None if not argv or argv[0] is None else argv[0].rpartition("/")[2]


# What `catastrophe` knows, besides the formatters.
_DESTROYERS = frozenset(
    ("systemctl", "init", "telinit", "kexec", "wipefs", "cryptsetup", "sysctl", *_POWER, *_PARTITIONERS, *_CONTAINERS)
)
_INTERESTING = frozenset(
    ("git", "chmod", *(_DESTROYERS | PRIVILEGE | _RUNNERS | INSTALLERS.keys() | _ALIASES.keys() | KNOWN)),
)


@lru_cache(maxsize=1024)
def interesting(word: str | None) -> bool:
    """Whether any table here knows the program that the first word of an argv names: a quick no for all others."""
    name = program((word,))
    return name is not None and (name in _INTERESTING or _formats(name))


def _formats(name: str) -> bool:
    return name[:1] in _FORMAT_INITIALS and _FORMATTERS.fullmatch(name) is not None


def views(command: AnalyzedCommand) -> tuple[Argv, ...]:
    """The argvs of a command that can differ: as written, and without its wrappers."""
    argv, bare = command.argv, command.bare or command.harmless
    return (argv,) if bare is argv or not bare or bare == argv else (argv, bare)


def privilege(argv: Argv) -> str | None:
    """How a command gains privilege."""
    name = program(argv)
    if name in PRIVILEGE:
        return "runs with more privilege"
    if name != "chmod" and name not in _CONTAINERS:
        return None
    words = known(argv)
    if name == "chmod" and any(re.fullmatch(r"[0-7]?[2-7][0-7]{3}|[ugoa]*\+[rwxXt]*s[rwxXst]*", word) for word in words):
        return "sets a setuid or setgid bit"
    if name in _CONTAINERS and any(word == "--privileged" or word == "--privileged=true" for word in words):
        return "starts a privileged container"
    return None


def catastrophe(argv: Argv) -> str | None:
    """Why running the program itself is a catastrophe."""
    name = program(argv)
    if name is None or (name not in _DESTROYERS and not _formats(name)):
        return None
    words = known(argv)
    if ASKS.intersection(words):
        return None
    operands = operands_of(words)
    if name in _POWER and "-c" not in words:
        return "stops the machine"
    if name == "systemctl" and _POWER_VERBS.intersection(operands):
        return "stops the machine"
    if name in ("init", "telinit") and word_set("0 6").intersection(operands):
        return "stops the machine"
    if name == "kexec" and has(words, word_set("-e --exec")):
        return "boots another kernel"
    if _formats(name) or (name == "wipefs" and has(words, word_set("-a --all -o --offset"))):
        files = operands and None not in argv and not any(word.startswith("/dev/") for word in operands)
        return None if files else "formats a device"
    if name in _PARTITIONERS and not has(words, word_set("-l --list -p --print -d --dump print")):
        return "rewrites a partition table" if any(word.startswith("/dev/") for word in operands) else None
    if name == "cryptsetup" and word_set("luksFormat erase luksErase").intersection(operands):
        return "erases a device"
    if name == "sysctl" and (has(words, word_set("-w --write -p --load --system")) or any("=" in word for word in operands)):
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
        why = git_touch((name, *argv[1:]))
        path = None if why is not None else _run_on(argv)
        return why if path is None else f"runs what changes `{path}`"
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
    words = known(argv)
    if HELP.intersection(words[:1]):
        return None
    if installer.needs and not installer.needs.intersection(words):
        return None
    if has(words, installer.options):
        return installer.why
    if installer.verbs is None:
        return None if name == "crontab" and "-l" in words else installer.why
    operands = operands_of(words)[:2]
    if operands and (operands[0] in installer.verbs or " ".join(operands) in installer.verbs):
        return installer.why
    return None


_IN_PLACE = re.compile(r"-[a-zA-Z]*i(?:\..*)?|--in-?place(?:=.*)?|-w|--write|--fix|--overwrite")
_OUTPUT = re.compile(r"-o|--out(?:put|file)?(?:-file)?")
_TELLS = re.compile(r"-o|-[a-zA-Z]*i|-w|--(?:out|in-?place|write|fix|overwrite)")  # how every option of these begins
_SEARCHERS = re.compile(r".*grep|ack|ag|rg|less|more|curl")
_EDITORS = word_set(
    "ed red ex vi vim nvim gvim nano pico emacs emacsclient micro joe jed kak hx mcedit code codium gedit kate subl"
)
_SHELLS = word_set("sh bash dash zsh ksh ash")
_MULTICALL = word_set("busybox toybox parallel rush")
_WRITERS = _EDITORS | _SHELLS | _MULTICALL
_READERS = word_set(
    "cat ls head tail grep egrep fgrep wc stat find du md5sum sha1sum sha256sum od hexdump strings diff cmp test sort uniq cut"
    " nl tac rev file readlink realpath less more"
)


# Opaque effects of shell text, or of an argv, that is put together when it runs.
_DYNAMIC = frozenset(("opaque.dynamic_command", "opaque.dynamic_code", "shell.eval"))


@lru_cache(maxsize=8)  # a command of thousands of words may have as many effects that ask the same of all of them
def edits(argv: Argv, code: str, mentions: tuple[str, ...]) -> str | None:
    """The protected path that a command which cannot be judged seems to change; `mentions` are the literal words it holds.

    A mention alone is no evidence. It is one in an editor, in text that is fed to a shell, in what a multi-call program or
    a job runner starts unless that is a reader, and beside an option that says, as options are commonly named, that the
    program writes: `-i`, `--write`, `-o FILE`.
    """
    if code in _DYNAMIC:
        found = _run_on(("", *mentions))
        if found is not None:
            return found
    name = program(argv)
    if name is None:
        return None
    if INTERPRETERS.fullmatch(name):
        text = "\n".join(dict.fromkeys((*known(argv[1:]), *mentions)))
        found = changes(text) or _run_on(argv) or (feeds(mentions) if all(word[:1] == "-" for word in known(argv[1:])) else None)
        if found is not None:
            return found
    if name in _TEXT_RUNNERS or name in _CHANGERS:
        found = _run_on(argv) or (_run_on(("", *mentions)) if name in _LATER else None)
        if found is not None:
            return found
    if name not in _WRITERS and not _tells(argv) and not any(word[:1] == "-" and _TELLS.match(word) for word in mentions):
        return None
    if _SEARCHERS.fullmatch(name):
        return None
    words = list(dict.fromkeys((*known(argv), *mentions)))
    options = [(at, word) for at, word in enumerate(words) if word[:1] == "-"]
    for at, word in options:
        option, _, value = word.partition("=")
        if _OUTPUT.fullmatch(option):
            value = value or (words[at + 1] if at + 1 < len(words) else "")
            if value and is_protected(value):
                return value
            if word in argv[:-1] and argv[argv.index(word) + 1] is None:  # a word that is not known, or begins with `~`
                return next((mention for mention in mentions if is_protected(mention)), None)
        elif word.startswith("-o") and is_protected(word[2:]):
            return word[2:]
    applet = name in _MULTICALL and not _READERS.issuperset(operands_of(words)[:1])
    fed = name in _SHELLS and code == "opaque.script"
    if name in _EDITORS or applet or fed or any(_IN_PLACE.fullmatch(word) for _, word in options):
        return next((word for word in operands_of(words) if is_protected(word)), None) or _commanded(name, words)
    return None


def _commanded(name: str, words: list[str]) -> str | None:
    """What the commands that an editor is given name: `-c 'e FILE' -c wq`."""
    tokens = (token for word in words for token in _TOKENS.findall(word)) if name in _EDITORS and len(words) > 1 else ()
    return next((token for token in tokens if is_protected(token)), None)


@lru_cache(maxsize=8)  # as `edits`: what differs are the mentions alone
def _tells(argv: Argv) -> bool:
    """Whether an option says that the program writes."""
    return any(word[:1] == "-" and _TELLS.match(word) for word in known(argv))


# What is known to change the paths behind it, and what runs the words or the text behind it.
_CHANGERS = word_set("rm rmdir unlink shred mv tee touch truncate chmod chown mkdir rimraf del-cli")
_TEXT_RUNNERS = _RUNNERS | word_set(
    "script expect entr direnv git npx watchexec nodemon chronic firejail proot fakeroot bwrap systemd-run tmux screen at batch"
    " gdb lldb rust-gdb rust-lldb psql sqlite3 mysql mariadb"
)
_LATER = word_set("at batch")  # run what comes in by standard input
# Subcommands of git that run what they are given.
_GIT_RUNS = word_set("rebase bisect submodule filter-branch difftool")
_TOKENS = re.compile(r"[^\s\"'`;|&()]+")


def _run_on(argv: Argv) -> str | None:
    """The protected path behind the name of a program that changes it, in words or text that another program runs."""
    if program(argv) == "git" and _GIT_RUNS.isdisjoint(argv[1:5]):
        return None
    changes = False
    for word in known(("", *argv)):
        if not changes and ">" not in word and not any(map(word.__contains__, _CHANGERS)):
            continue  # nearly every word, and some are whole programs
        tokens: list[str] = _TOKENS.findall(word)
        for token in tokens:
            target = token.rpartition(">")[2]
            if (changes or (target != token and len(tokens) > 1)) and not target.startswith("-") and is_protected(target):
                return target
            changes = changes or token.rpartition("/")[2] in _CHANGERS or (token.endswith(">") and len(tokens) > 1)
    return None
