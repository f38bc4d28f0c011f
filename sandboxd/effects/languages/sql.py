# SPDX-License-Identifier: GPL-3.0-or-later
"""SQL and the dot and backslash commands of its shells: a small set of statements that only read; the rest is OPAQUE."""

from __future__ import annotations

import re

from sandboxd.effects.call import Call

_STRINGS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.S)
_READS = re.compile(
    r"\s*(?:select|values|explain(?!\s+analyze)(?:\s+query\s+plan)?\s+select|show|describe|desc|pragma\s+\w+\s*\Z|pragma\s+\w+\s*\(\s*\w+\s*\)\s*\Z)\b|\s*pragma\s",
    re.I,
)
_PRAGMAS = re.compile(
    r"\s*pragma\s+(?:\w+\.)?(?:table_x?info|index_x?info|index_list|database_list|foreign_key_list|table_list|compile_options"
    r"|user_version|schema_version|page_count|page_size|integrity_check|quick_check|encoding|freelist_count|collation_list|function_list)"
    r"\s*(?:\(\s*['\"\w]*\s*\))?\s*\Z",
    re.I,
)
# Words with which a SELECT can still write, run, load or wait.
_DANGER = re.compile(
    r"\binto\b|\boutfile\b|\bdumpfile\b|\bload_file\b|\bload_extension\b|\bwritefile\b|\bedit\b|\breadfile\b|\bfts3_tokenizer\b"
    r"|\bdelete\b|\bupdate\b|\binsert\b|\bmerge\b|\bdrop\b|\balter\b|\bcreate\b|\btruncate\b|\bcopy\b|\bgrant\b|\bcall\b|\bdo\b|\bfor\s+(?:update|share)\b"
    r"|\bpg_\w*|\blo_\w+|\bdblink\w*|\bset_config\b|\bnextval\b|\bsetval\b|\bsleep\b|\bbenchmark\b|\bget_lock\b|\bxp_\w+|\bquery_to_xml\w*",
    re.I,
)
_DOTS = frozenset(
    [
        ".schema",
        ".tables",
        ".databases",
        ".indexes",
        ".indices",
        ".fullschema",
        ".headers",
        ".mode",
        ".width",
        ".help",
        ".show",
        ".dbinfo",
        ".lint",
        ".version",
    ]
)
_BACKSLASHES = re.compile(r"\\(?:d[a-zA-Z]*[+S]*|l\+?|z|conninfo|encoding|timing|x|pset|t|a|h\w*)(?:\s+[\w.*\"-]*)*\Z")


def read(call: Call) -> None:
    """Operands and options with the role `program` hold SQL; infer hands them over in `call.programs`."""
    for word in call.programs:
        if word.value is None:
            call.opaque("opaque.dynamic_code", f"{call.id}.sql", word.span, "SQL", call.mentions(True))
        elif not reads_only(word.value):
            call.opaque("opaque.code", f"{call.id}.sql", word.span, "SQL that is not known to only read", call.mentions(True))


def reads_only(text: str) -> bool:
    """Whether all statements in `text` are known to only read."""
    stripped = text.strip()
    if stripped.startswith("."):
        return stripped.split()[0] in _DOTS and "|" not in stripped and "\n" not in stripped
    if stripped.startswith("\\"):
        return _BACKSLASHES.match(stripped) is not None
    bare = _STRINGS.sub("''", text)
    if "'" in bare.replace("''", "") or '"' in bare or "\\" in bare or "$$" in bare or "`" in bare:
        return False
    statements = [statement for statement in bare.split(";") if statement.strip()]
    return bool(statements) and all(_statement(statement) for statement in statements)


def _statement(text: str) -> bool:
    if re.match(r"\s*pragma\b", text, re.I):
        return _PRAGMAS.match(text.replace("''", "x")) is not None
    return _READS.match(text) is not None and _DANGER.search(text) is None
