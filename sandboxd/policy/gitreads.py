# SPDX-License-Identifier: GPL-3.0-or-later
"""When a git command that only reads may still run something: the repository's configuration names a program, or leads
elsewhere, in a way that no neutral value stops (observe says so in the notes of its facts).

To add a kind of key that arms git: its row in observe.gitconfig.ARMED and here, and rows in
tests/engine/test_engine_notes.py.
"""

from __future__ import annotations

from sandboxd.model import AnalyzedCommand, Facts
from sandboxd.policy.gittouch import word_set
from sandboxd.policy.rules import git_words

# Reading subcommands that never compare contents, so that no external diff starts.
_NO_DIFF = word_set(
    "rev-parse branch tag remote config ls-files ls-tree for-each-ref describe rev-list merge-base symbolic-ref show-ref"
    " name-rev var version help check-ignore check-attr count-objects grep fsck shortlog verify-commit verify-tag"
)
_MERGES = word_set("merge merge-tree merge-file cherry-pick rebase revert stash checkout switch pull apply am read-tree")
_CONNECTS = word_set("fetch ls-remote pull push clone archive remote submodule")
# First part of a key -> the only subcommands that look at it.
_LOOKED_AT: dict[str, frozenset[str]] = {
    "merge": _MERGES,
    "tar": word_set("archive"),
    "remote": _CONNECTS,
    "url": _CONNECTS,
    "protocol": _CONNECTS,
    "trailer": word_set("interpret-trailers commit"),
}
_CODES = ("git_armed", "git_config_unreadable", "git_dir_not_agreed")
_WHY = {
    "git_armed": "the repository's configuration (`{0}`) makes git run a program",
    "git_config_unreadable": "the configuration `{0}` cannot be read, and may make git run a program",
    "git_dir_not_agreed": "`{0}` leads to a git directory that does not lead back",
}


def armed(command: AnalyzedCommand, facts: Facts) -> tuple[str, str] | None:
    """Code and reason why this command's git may do more than read; None for what is no git, and where nothing is noted."""
    if not facts.notes:
        return None
    argv = command.bare or command.argv
    if not argv or argv[0] is None or argv[0].rpartition("/")[2] != "git":
        return None
    words = git_words(argv)
    verb = words[1] if len(words) > 1 else None
    for note in facts.notes:
        code, _, place = note.partition(":")
        if code in _CODES and (code != "git_armed" or _runs(place, verb)):
            return code, _WHY[code].format(place)
    return None


def _runs(key: str, verb: str | None) -> bool:
    """Whether a git subcommand looks at an armed key; one that is not known does."""
    if verb is None:
        return True
    section = key.partition(".")[0]
    if section == "diff":
        return verb not in _NO_DIFF
    looked_at = _LOOKED_AT.get(section)
    return looked_at is None or verb in looked_at
