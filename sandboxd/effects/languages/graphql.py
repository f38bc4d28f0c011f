# SPDX-License-Identifier: GPL-3.0-or-later
"""GraphQL requests: `query=…` is a document. A query only asks, a mutation changes the service, a subscription stays open.

The keywords are looked for anywhere in the text, strings and comments included: that a name holds one costs a question.
"""

from __future__ import annotations

import re

from sandboxd.effects.call import Call
from sandboxd.effects.roles import ROLES

_ASKS = re.compile(r"\s*(?:query\b|fragment\b|\{)")
_CHANGES = re.compile(r"\b(?:mutation|subscription)\b")


def read(call: Call) -> None:
    """The fields of `gh api graphql`: without a known query, with an unknown name or with a change, it is a change."""
    queries = 0
    for word in call.values("-f", "--raw-field", "-F", "--field"):
        if word.value is None:
            if word.values or "=" not in word.prefix or word.prefix.startswith("query="):
                break  # what it sets is not known
            continue
        name, _, text = word.value.partition("=")
        if name == "query":
            queries += 1
            if _ASKS.match(text) is None or _CHANGES.search(text) is not None:
                break
    else:
        if queries and not call.parsed.has("--input"):
            return
    call.effect(ROLES["system.remote"], f"{call.id}.query", call.span)
