# SPDX-License-Identifier: GPL-3.0-or-later
"""What a command may have changed in a git configuration, and the text with everything else put back. Pure.

To let a setting through: a row in HARMLESS (any command's new repository may have it), and one in
tests/observe/test_observe_gitrepair.py. It must not make git run a program, read elsewhere or trust more.
"""

from __future__ import annotations

import re

from sandboxd.observe.gitconfig import Entry, parse

_UPSTREAM = re.compile(r"branch\.(.+)\.(remote|merge|rebase|pushremote)")
_BRANCH = re.compile(r"branch\.(.+)\.([a-z0-9-]+)")
_REBASE = frozenset(("true", "false", "merges", "interactive", "m", "i", "yes", "no"))

_WORDS = re.compile(r"[^\x00-\x1f]*")
_URL = re.compile(r"(?!-)(?!\w+::)[^\x00-\x1f]*")
_FLAG = re.compile(r"(?i)true|false|yes|no|on|off|[0-9]+|")
HARMLESS: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (re.compile(key), value)
    for key, value in (
        (r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks)", _WORDS),
        (r"core\.(autocrlf|safecrlf|eol|abbrev|quotepath|untrackedcache|checkstat|compression|longpaths|preloadindex)", _WORDS),
        (r"core\.fsmonitor", re.compile("false|")),
        (r"core\.hookspath", re.compile("/dev/null")),
        (r"core\.(editor|pager)", re.compile("true|false|:|cat|")),
        (r"(user|author|committer)\.(name|email)", _WORDS),
        (r"init\.defaultbranch", _WORDS),
        (r"extensions\.(objectformat|refstorage|partialclone|noop)", _WORDS),
        (r"(remote|submodule)\..*\.(url|pushurl)", _URL),
        (r"remote\..*\.(fetch|push|mirror|promisor|partialclonefilter|tagopt|prune|skipdefaultupdate)", _WORDS),
        (r"submodule\..*\.(active|branch|path|fetchrecursesubmodules)", _WORDS),
        (r"branch\..*\.(remote|pushremote)", _URL),
        (r"branch\..*\.(merge|rebase|description)", _WORDS),
        (r"(commit|tag|push)\.gpgsign", _FLAG),
        (r"(pull|push|merge|rebase|fetch|receive|gc|pack|color|advice|status|log|index|feature|rerere)\.[a-z]+", _FLAG),
        (r"(push\.default|pull\.ff|receive\.deny[a-z]+|merge\.(ff|conflictstyle)|gc\.auto)", re.compile(r"[a-z0-9-]*")),
    )
)


def put_right(before: str, after: str) -> tuple[str, tuple[str, ...]]:
    """The configuration as it may stay, and the keys whose change was undone.

    Git's record of which branch follows which survives: `branch.*.{remote,merge,rebase,pushRemote}`, for remotes that
    were known before. Where nothing else was changed, the text is `after` as it is.
    """
    old, new = parse(before), parse(after)
    if new is None:
        return before, ("everything: git could not have read it",)
    if old is None:
        return before, ("everything: it could not be read before",)
    remotes = frozenset(key.split(".", 1)[1].rpartition(".")[0] for key, _ in old if key.startswith("remote."))
    carried = frozenset((match[2], value) for key, value in old if (match := _BRANCH.fullmatch(key)))
    rest_before = [entry for entry in old if not _BRANCH.fullmatch(entry[0])]
    rest_after = [entry for entry in new if not _follows(entry, remotes, carried)]
    if rest_before == rest_after:
        return after, ()
    gained = [entry for entry in new if _follows(entry, remotes, carried) and entry not in old]
    text = before if before.endswith("\n") or not before else before + "\n"
    undone = dict.fromkeys(
        key for key, value in (*rest_after, *rest_before) if (key, value) not in old or (key, value) not in new
    )
    return text + "".join(_written(key, value or "") for key, value in gained), tuple(undone) or ("the order of entries",)


def harmless(text: str, known: frozenset[Entry] = frozenset()) -> tuple[str, tuple[str, ...]]:
    """The configuration without what could make git run something, and the keys taken out. `known` may stay."""
    entries = parse(text)
    if entries is None:
        return "", ("everything: git could not have read it",)
    bad = [entry for entry in entries if entry not in known and not _is_harmless(entry)]
    if not bad:
        return text, ()
    kept = (entry for entry in entries if entry not in bad)
    return "".join(_written(key, value) for key, value in kept), tuple(dict.fromkeys(key for key, _ in bad))


def _follows(entry: Entry, remotes: frozenset[str], carried: frozenset[tuple[str, str | None]]) -> bool:
    """Whether an entry is of a branch and may be new: a record of what it follows, or one that another branch had."""
    key, value = entry
    branch = _BRANCH.fullmatch(key)
    if branch is not None and (branch[2], value) in carried:
        return True
    match = _UPSTREAM.fullmatch(key)
    if match is None or value is None:
        return False
    if match[2] == "merge":
        return value.startswith("refs/")
    if match[2] == "rebase":
        return value.lower() in _REBASE
    return value == "." or value in remotes


def _is_harmless(entry: Entry) -> bool:
    key, value = entry
    return any(row.fullmatch(key) and allowed.fullmatch(value or "") for row, allowed in HARMLESS)


def _written(key: str, value: str | None) -> str:
    """One entry as git would write it, in a section of its own."""
    section, _, rest = key.partition(".")
    middle, dot, name = rest.rpartition(".")
    head = f'[{section} "{_escaped(middle)}"]' if dot else f"[{section}]"
    if value is None:
        return f"{head}\n\t{name}\n"
    return f'{head}\n\t{name} = "{_escaped(value)}"\n'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
