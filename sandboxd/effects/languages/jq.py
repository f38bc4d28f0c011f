# SPDX-License-Identifier: GPL-3.0-or-later
"""jq filters: `env` and `$ENV` print secrets; `import`, `include` and `-f` read files; jq cannot write or run."""

from __future__ import annotations

import re

from sandboxd.effects.call import Call
from sandboxd.effects.roles import ROLES

_STRING = re.compile(r'"(?:[^"\\(]|\\[^(]|\((?!\\))*"')
_ENVIRONMENT = re.compile(r"\$ENV\b|\$__prog_args\b|(?<![.\w$\"])env\b(?!\s*:)")
_MODULES = re.compile(r"(?<![.\w$])(?:import|include|get_search_list|input_line_number_none)\b")


def read(call: Call) -> None:
    parsed = call.parsed
    operands = list(parsed.operands)
    filters = []
    if not parsed.has("-f", "--from-file") and operands:
        filters = [operands.pop(0)]
    elif parsed.has("-f", "--from-file") and operands:
        # jq 1.6 takes the first operand as the file of -f.
        call.path(ROLES["path.read"], operands.pop(0), "jq.-f", call.span)
        call.effect(ROLES["secret"], "jq.-f", call.span, detail="a filter in a file may print the environment", secret=True)
    if not parsed.has("--args", "--jsonargs"):
        for word in operands:
            call.path(ROLES["path.read"], word, "jq.operand", word.span)
    for word in filters:
        if word.value is None:
            call.effect(
                ROLES["secret"], "jq.filter", word.span, detail="an unknown filter may print the environment", secret=True
            )
            continue
        bare = word.value if "\\(" in word.value else _STRING.sub('""', word.value)
        if _ENVIRONMENT.search(bare):
            call.effect(ROLES["secret"], "jq.env", word.span, detail="the environment", secret=True)
        if _MODULES.search(bare):
            detail = "a module may print the environment"
            call.effect(ROLES["secret"], "jq.import", word.span, detail=detail, secret=True)
