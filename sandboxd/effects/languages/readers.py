# SPDX-License-Identifier: GPL-3.0-or-later
"""The reader of each little language, by the name that tables use."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sandboxd.effects.call import Call
from sandboxd.effects.languages import (
    awk,
    builtins,
    curl,
    env,
    fd,
    find,
    graphql,
    jq,
    operands,
    printf,
    ps,
    sed,
    shell,
    sql,
    tar,
    test,
    xargs,
)

READERS: Mapping[str, Callable[[Call], None]] = {
    "assign": operands.assign,
    "awk": awk.read,
    "builtin": builtins.read,
    "curl": curl.read,
    "env": env.read,
    "fd": fd.read,
    "find": find.read,
    "graphql": graphql.read,
    "jq": jq.read,
    "located": operands.located,
    "members": operands.members,
    "output": operands.output,
    "printf": printf.read,
    "ps": ps.read,
    "remote": operands.remote,
    "response": operands.response,
    "sed": sed.read,
    "shell": shell.read,
    "sql": sql.read,
    "tar": tar.read,
    "test": test.read,
    "xargs": xargs.read,
    "yq": operands.yq,
}
