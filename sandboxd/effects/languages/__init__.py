# SPDX-License-Identifier: GPL-3.0-or-later
"""Little languages inside arguments. Each module reads the `program` words of the tools that name it in their table.

To add one: a module here with `read(call: Call) -> None` (see effects/infer.py for Call), its name in LANGUAGES, a
line in docs/tables.md, and `language = "…"` in the tables of its tools.
"""

LANGUAGES = frozenset(
    (
        "awk",
        "fd",
        "find",
        "jq",
        "sed",
        "tar",
        "test",
        "xargs",
        "curl",
        "sql",
        "graphql",
        "shell",
        "env",
        "printf",
        "builtin",
        "assign",
        "output",
        "ps",
        "remote",
        "located",
        "response",
        "members",
        "yq",
    )
)


def names(text: str) -> frozenset[str]:
    """A set of words written as one text."""
    return frozenset(text.split())
