# SPDX-License-Identifier: GPL-3.0-or-later
"""Local variables that are arrays: bash expands what such a one is declared with again (`local -a x; local x="$1"`)."""

from __future__ import annotations

from sandboxd.model import Effect, EffectKind, Script

_DECLARES = frozenset(("local", "declare", "typeset"))
_FILLS = frozenset(("read", "mapfile", "readarray", "command", "builtin"))


def expanded_again(script: Script, lists: set[str]) -> list[Effect]:
    """An effect for each declaration whose value may be run as text; `lists` are the names that may be arrays by now, to which
    those of this text are added."""
    declared = []
    for command in script.subcommands:
        texts = command.texts
        lists.update(each.name for each in command.assignments if each.value is None or each.subscript is not None)
        if texts and texts[0] in _FILLS:
            lists.update(text for text in texts[1:] if text)
        at = next((at for at, text in enumerate(texts[:3]) if text not in ("command", "builtin", "--")), 0)
        if not texts or texts[at] not in _DECLARES:
            continue
        words = [(word, word.value if word.value is not None else word.prefix) for word in command.argv[at + 1 :]]
        listed = any(text[:1] == "-" and ("a" in text or "A" in text) for _, text in words)
        lists.update(text.partition("=")[0] for _, text in words if listed or "=(" in text)
        declared += [(word, text) for word, text in words if not word.values and text.endswith("=")]
    return [
        Effect(EffectKind.OPAQUE, "local.list", word.span, code="shell.names_evaluated")
        for word, text in declared
        if text[:-1].removesuffix("+") in lists
    ]
