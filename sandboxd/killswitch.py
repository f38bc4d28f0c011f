# SPDX-License-Identifier: GPL-3.0-or-later
"""The hard-coded protected set and its pure matcher; no configuration, no model, no network can change it.

Policy asks a human before any of these is touched, and isolation mounts them read-only: two lines, each of which holds
alone. Names are compared case-folded, at any depth, in any repository. Reading never touches.

To add a protected name: add it to the tuple it belongs to, a row each for it and for its nearest lookalike to
tests/corpus/policy_killswitch.toml, and the line in docs/threat-model.md. Nothing else.
"""

from __future__ import annotations

from functools import lru_cache

from sandboxd.globs import is_glob, literals, overlaps, path_overlaps
from sandboxd.paths import expand_home, is_within, strip_proc_root

# Directories: themselves and everything below. One with a slash is that chain of names.
PROTECTED_DIRS: tuple[str, ...] = (
    ".git",
    ".claude",
    ".sandboxd",
    ".codex",
    ".gemini",
    ".cursor",
    ".vscode",
    ".idea",
    ".husky",
    ".cargo",
    ".devcontainer",
    ".yarn",
    ".mvn",
    ".ssh",
    ".gnupg",
    ".config/git",
    ".config/fish",
    ".config/autostart",
    ".config/systemd",
)
PROTECTED_FILES: tuple[str, ...] = (
    ".gitconfig",
    ".gitmodules",
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".zlogout",
    ".inputrc",
    ".envrc",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    ".pnp.cjs",
    ".pnp.loader.mjs",
    ".pnpmfile.cjs",
    "bunfig.toml",
    ".bunfig.toml",
    ".bazelrc",
    ".bazelversion",
    ".bazeliskrc",
    ".pre-commit-config.yaml",
    "lefthook.yml",
    "lefthook.yaml",
    ".lefthook.yml",
    ".lefthook.yaml",
    "gradle-wrapper.properties",
    "maven-wrapper.properties",
    ".devcontainer.json",
    ".ripgreprc",
    "pyrightconfig.json",
    ".mcp.json",
    ".claude.json",
)
# Absolute paths, each itself and everything below: what every login runs, and what cron runs.
PROTECTED_SYSTEM: tuple[str, ...] = (
    "/etc/profile.d",
    "/etc/bash.bashrc",
    "/etc/profile",
    "/etc/environment",
    "/etc/crontab",
    "/etc/anacrontab",
    "/etc/cron.d",
    "/etc/cron.hourly",
    "/etc/cron.daily",
    "/etc/cron.weekly",
    "/etc/cron.monthly",
    "/var/spool/cron",
    "/var/spool/anacron",
)
# Open below a protected directory: where agents keep their checkouts.
OPEN_BELOW: tuple[str, ...] = (".claude/worktrees",)
# Guarded in a workspace or repository root even while they do not exist. Never `.git`, nothing that belongs into a home
# directory's .config, nothing that tools look for in a deeper directory only.
ABSENT_DIRS: tuple[str, ...] = tuple(
    name for name in PROTECTED_DIRS if name not in (".git", ".ssh", ".gnupg") and "/" not in name
)
ABSENT_FILES: tuple[str, ...] = tuple(name for name in PROTECTED_FILES if not name.endswith("-wrapper.properties"))
# Inside a `.git` that git itself may write: these stay read-only (see isolation.plan).
GIT_CORE: tuple[str, ...] = ("hooks", "config", "config.worktree", "commondir", "info", "objects/info/alternates")

_SINGLE: dict[str, str] = {name: name for name in (*PROTECTED_DIRS, *PROTECTED_FILES) if "/" not in name}
_SINGLE["git~1"] = ".git"  # the short name that FAT and NTFS give it
_CHAINS: dict[str, dict[str, str]] = {}
for _name in PROTECTED_DIRS:
    if "/" in _name:
        _CHAINS.setdefault(_name.partition("/")[0], {})[_name.partition("/")[2]] = _name
_OPEN: dict[str, frozenset[str]] = {}
for _name in OPEN_BELOW:
    _OPEN[_name.partition("/")[0]] = frozenset((_name.partition("/")[2],))
# Characters that HFS+ ignores in names, so that `.g<U+200C>it` opens `.git` there.
_IGNORED = dict.fromkeys((*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF))


def _fold(path: str) -> str:
    return path.lower() if path.isascii() else path.translate(_IGNORED).casefold()


@lru_cache(maxsize=4096)
def protected(path: str, home: str) -> str | None:
    """The protected name that the absolute lexical `path` is or lies below, or None. `~` stands for `home`."""
    folded = _fold(strip_proc_root(expand_home(path, home)))
    pieces = folded.split("/")
    for at, piece in enumerate(pieces):
        name = _SINGLE.get(piece)
        if name is None and piece.startswith(".git") and (piece[-1] in ". " or ":" in piece):
            # NTFS leaves dots and blanks at the end of a name out, and `:` begins a stream of the file.
            name = _SINGLE.get(piece.partition(":")[0].rstrip(". "))
        if name is not None and pieces[at + 1 : at + 2] and pieces[at + 1] in _OPEN.get(piece, ()):
            continue
        if name is not None:
            return name
        chain = _CHAINS.get(piece)
        if chain is not None and at + 1 < len(pieces) and pieces[at + 1] in chain:
            return chain[pieces[at + 1]]
    return next((name for name in PROTECTED_SYSTEM if is_within(folded, name)), None)


@lru_cache(maxsize=1024)
def protected_pattern(pattern: str, home: str, dotglob: bool = False) -> str | None:
    """The protected name that the absolute shell glob `pattern` can match, or None.

    A glob is evidence when it says something of the name: it begins with the dot, or two characters of the name beside
    its extension stand in it. `*` and `*.json` are none, `.g*`, `.[!x]it`, `pyright*.json` are. In a pattern with a
    `**` component (a walk of the tree) a leading `*` can match a dot, and everywhere where the shell's `dotglob` may be set.
    """
    if not is_glob(pattern):
        return protected(pattern, home)
    folded = _fold(strip_proc_root(expand_home(pattern, home)))
    dots = dotglob or "**" in folded
    pieces = folded.split("/")
    for at, piece in enumerate(pieces):
        after = pieces[at + 1] if at + 1 < len(pieces) else None
        if dotglob and piece and not piece.strip("*?"):
            return ".git"  # it is meant to match what begins with a dot
        name = _evident_single(piece, dots) if is_glob(piece) else _SINGLE.get(piece)
        if name is not None and not (after is not None and after in _OPEN.get(name, ())):
            return name
        if after is None or piece == "**":
            continue
        for head, tails in _CHAINS.items():
            if piece != head and not _evident(piece, head, dots):
                continue
            for tail, whole in tails.items():
                if after in (tail, "**") or overlaps(after, tail, dots):
                    return whole
    return next((name for name in PROTECTED_SYSTEM if path_overlaps(folded, f"{name}/**", dots) and _anchored(folded)), None)


def _anchored(pattern: str) -> bool:
    """Whether the first component is literal: `/etc/*` speaks of `/etc`, `/*/x` of nothing in particular."""
    return not is_glob(pattern.lstrip("/").partition("/")[0])


@lru_cache(maxsize=2048)
def _evident_single(glob: str, dots: bool) -> str | None:
    if glob == "**":
        return None
    return next((_SINGLE[name] for name in _SINGLE if _evident(glob, name, dots)), None)


def _evident(glob: str, name: str, dots: bool) -> bool:
    if not is_glob(glob) or not overlaps(glob, name, dots):
        return False
    if name.startswith(".") and glob[0] in ".[\\":
        return True
    stem = name[: name.rfind(".")] if "." in name[1:] else name
    known = literals(glob)
    extension = name[len(stem) :]
    if extension and known.endswith(extension):
        known = known[: -len(extension)]
    return sum(char.isalnum() for char in known) >= 2


@lru_cache(maxsize=64)  # a command of many words may ask for the same pieces as often
def protected_fragments(fragments: tuple[str, ...]) -> str | None:
    """The protected name that the literal pieces of an otherwise unknown target give evidence of, or None.

    A whole component that is a protected name counts wherever it stands (`.git/$(echo config)`, `"$d/.git"`), and so do
    three characters or more of a dotted name before something unknown (`.gi$x`). `/build` says nothing.
    """
    for fragment in fragments:
        pieces = _fold(fragment).split("/")
        for at, piece in enumerate(pieces):
            name = _SINGLE.get(piece)
            if name is not None and not (at + 1 < len(pieces) and pieces[at + 1] in _OPEN.get(piece, ())):
                return name
            chain = _CHAINS.get(piece)
            if chain is not None and at + 1 < len(pieces) and pieces[at + 1] in chain:
                return chain[pieces[at + 1]]
        folded = "/".join(pieces)
        if folded.startswith("/"):
            system = next((name for name in PROTECTED_SYSTEM if is_within(folded.rstrip("/"), name)), None)
            if system is not None:
                return system
        last = pieces[-1]
        if len(last) >= 3 and last.startswith("."):
            begun = next((name for name in _SINGLE if name.startswith(last)), None)
            if begun is not None:
                return begun
        if is_glob(fragment):
            evident = protected_pattern(fragment if fragment.startswith("/") else "/" + fragment, "/")
            if evident is not None:
                return evident
    return None


def covers_protected(path: str, home: str = "") -> str | None:
    """The protected name that a tree operation over the directory `path` reaches by name: a home directory, its
    `.config`, `/etc`, or a directory above one of them. None for any other directory, whatever it may hold."""
    folded = _fold(strip_proc_root(expand_home(path, home)))
    if folded.rpartition("/")[2] in _CHAINS:
        return next(iter(_CHAINS[folded.rpartition("/")[2]].values()))
    if is_home(path, home) or (home and is_within(home, path)) or folded in ("/home", "/users", "/"):
        return ".bashrc"
    below = folded + "/"
    return next((name for name in PROTECTED_SYSTEM if name == folded or name.startswith(below)), None)


def is_home(path: str, home: str) -> bool:
    """Whether `path` is a home directory: the person's, root's, or any by its place."""
    if path in (home, "/root"):
        return True
    above, _, name = path.rpartition("/")
    return bool(name) and above in ("/home", "/Users")


def catastrophic_target(path: str, home: str, workspace: str | None) -> str | None:
    """Why a recursive delete or a move of the absolute lexical `path` is a catastrophe whoever asks, or None."""
    path = strip_proc_root(expand_home(path, home))
    if path == "/":
        return "the root directory"
    if is_home(path, home):
        return "a home directory"
    if path.count("/") == 1:
        return "a top-level directory"
    if home and is_within(home, path):
        return "a parent of the home directory"
    if workspace and path == workspace:
        return "the workspace itself"
    if workspace and is_within(workspace, path):
        return "a parent of the workspace"
    return None


def catastrophic_pattern(pattern: str, home: str, workspace: str | None) -> str | None:
    """Like catastrophic_target for a shell glob: `/*`, `~/*`, `/home/*`; everything in a directory is that directory.

    Everything in the workspace root is left to a human (`possibly_catastrophic`): build directories are emptied so.
    """
    pattern = strip_proc_root(expand_home(pattern, home))
    if not is_glob(pattern):
        return catastrophic_target(pattern, home, workspace)
    above, _, last = pattern.rpartition("/")
    if is_glob(above):
        return "a tree named by patterns only" if not above.strip("/*?.") else None
    parent = above or "/"
    if parent == "/":
        return "a top-level directory"
    if _everything(last):
        if is_home(parent, home):
            return "everything in a home directory"
        if (home and is_within(home, parent)) or (workspace and parent != workspace and is_within(workspace, parent)):
            return "a parent of the workspace or the home directory"
    return None


def empties(pattern: str, directory: str) -> bool:
    """Whether the shell glob `pattern` names everything in `directory`."""
    above, _, last = pattern.rpartition("/")
    return above == directory and _everything(last)


def _everything(glob: str) -> bool:
    return (bool(glob) and not glob.strip("*")) or glob in (".*", ".[!.]*", ".[^.]*", ".??*", "*.*", "?*")
