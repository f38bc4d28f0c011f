# SPDX-License-Identifier: GPL-3.0-or-later
"""The tools that a session knows: those that sandboxd understands, and those that its front-end declared.

Nothing that a front-end declares can take the place of a tool that is understood here.

To add a tool that is understood: a row in `BUILT_IN`, its effects in `sandboxd.toolcalls`, and rows in
tests/engine/test_engine_toolcalls.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from enum import Enum, unique
from typing import Any

from sandboxd.errors import Exhausted, RequestError
from sandboxd.model import Tool, ToolCall
from sandboxd.schemas import check_schema, validate

MAX_TOOLS = 1_000  # that one session may declare
MAX_NAME = 128  # characters
MAX_TEXT = 16_384  # characters of a description
MAX_SCHEMA = 131_072  # characters of a schema as JSON
MAX_FOUND = 100  # tools that one search gives

# What a rule can name.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*|mcp__[A-Za-z0-9_.-]+?(?:__[A-Za-z0-9_.-]+)?")
_WORDS = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@unique
class Format(Enum):
    """Whose way of describing tools."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"


def _schema(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _text(about: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": about, **more}


def _path(about: str) -> dict[str, Any]:
    return _text(about, minLength=1, maxLength=4096)


def _count(about: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": 0, "description": about}


def _flag(about: str) -> dict[str, Any]:
    return {"type": "boolean", "description": about}


def _list(about: str, items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "description": about, **more}


_FILE = _path("The file, best as an absolute path.")
_OLD = _text("The text to replace, exactly as it stands in the file.")
_NEW = _text("What to put in its place.")
_ALL = _flag("Replace every place, not only the one.")

BUILT_IN: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "Bash",
            "Runs a line of bash in a sandbox, in the session's directory.",
            _schema(
                "command",
                command=_text("The line, as bash reads it.", minLength=1),
                timeout={"type": "number", "exclusiveMinimum": 0, "description": "How long it may run, in milliseconds."},
                description=_text("What it is for, in a few words. It has no say in what is allowed."),
                run_in_background=_flag("Go on without waiting for its end."),
                dangerouslyDisableSandbox=_flag("Run it without a sandbox, where that is permitted at all."),
            ),
            classifier_input=("command",),
        ),
        Tool(
            "Edit",
            "Replaces text in one file.",
            _schema("file_path", "old_string", "new_string", file_path=_FILE, old_string=_OLD, new_string=_NEW, replace_all=_ALL),
            classifier_input=("file_path", "new_string"),
        ),
        Tool(
            "Glob",
            "Finds files by a pattern of their paths.",
            _schema("pattern", pattern=_path("`*` one level, `**` any depth."), path=_path("Where to begin.")),
            read_only=True,
            concurrency_safe=True,
            classifier_input=("pattern", "path"),
        ),
        Tool(
            "Grep",
            "Searches the contents of files by a regular expression.",
            _schema(
                "pattern",
                pattern=_text("The regular expression.", minLength=1),
                path=_path("The file or directory to search."),
                glob=_path("Only files whose path matches this pattern."),
                type=_text("Only files of this type, as in `py`."),
                output_mode=_text("What to give of each match.", enum=["content", "files_with_matches", "count"]),
                **{"-A": _count("Lines after each match."), "-B": _count("Lines before it."), "-C": _count("Lines around it.")},
                **{"-i": _flag("Upper and lower case are the same."), "-n": _flag("Give line numbers.")},
                context=_count("Lines around each match."),
                multiline=_flag("A match may go over several lines."),
                head_limit=_count("Give no more than so many."),
                offset=_count("Leave out so many first."),
            ),
            read_only=True,
            concurrency_safe=True,
            classifier_input=("pattern", "path", "glob"),
        ),
        Tool(
            "LS",
            "Lists a directory.",
            _schema("path", path=_path("The directory."), ignore=_list("Patterns of names to leave out.", {"type": "string"})),
            read_only=True,
            concurrency_safe=True,
            classifier_input=("path",),
        ),
        Tool(
            "MultiEdit",
            "Replaces several texts in one file, one after the other.",
            _schema(
                "file_path",
                "edits",
                file_path=_FILE,
                edits=_list(
                    "The replacements.",
                    _schema("old_string", "new_string", old_string=_OLD, new_string=_NEW, replace_all=_ALL),
                    minItems=1,
                ),
            ),
            classifier_input=("file_path", "edits"),
        ),
        Tool(
            "NotebookEdit",
            "Replaces, inserts or deletes one cell of a notebook.",
            _schema(
                "notebook_path",
                "new_source",
                notebook_path=_path("The .ipynb file, best as an absolute path."),
                new_source=_text("What the cell is to hold."),
                cell_id=_text("Which cell; for an insertion the one before it."),
                cell_number=_count("Which cell, counted from 0."),
                cell_type=_text("What kind of cell.", enum=["code", "markdown"]),
                edit_mode=_text("What to do.", enum=["replace", "insert", "delete"]),
            ),
            classifier_input=("notebook_path", "new_source"),
        ),
        Tool(
            "Read",
            "Reads one file.",
            _schema(
                "file_path",
                file_path=_FILE,
                offset=_count("The line to begin at."),
                limit=_count("How many lines."),
                pages=_text("Of a PDF file: which pages, as in `1-5`."),
            ),
            read_only=True,
            concurrency_safe=True,
            classifier_input=("file_path",),
        ),
        Tool(
            "WebFetch",
            "Gets a page and answers a question about it.",
            _schema("url", url=_text("An http or https address.", minLength=1, maxLength=8192), prompt=_text("The question.")),
            read_only=True,
            concurrency_safe=True,
            classifier_input=("url", "prompt"),
        ),
        Tool(
            "WebSearch",
            "Searches the web.",
            _schema(
                "query",
                query=_text("What to look for.", minLength=1),
                allowed_domains=_list("Only pages of these.", {"type": "string"}),
                blocked_domains=_list("No pages of these.", {"type": "string"}),
            ),
            read_only=True,
            concurrency_safe=True,
            classifier_input=("query",),
        ),
        Tool(
            "Write",
            "Writes one file, in place of what it held.",
            _schema("file_path", "content", file_path=_FILE, content=_text("All that the file is to hold.")),
            destructive=True,
            classifier_input=("file_path", "content"),
        ),
    )
}


def registered(present: tuple[Tool, ...], added: Iterable[Tool], removed: Iterable[str] = ()) -> tuple[Tool, ...]:
    """The declared tools of a session after a change, by name; a tool of a known name takes the place of that one.

    Raises RequestError naming the tool and what is wrong with it, or Exhausted; then nothing changes.
    """
    tools = {tool.name: tool for tool in present}
    for name in removed:
        tools.pop(name, None)
    for number, tool in enumerate(added):
        _check(tool, f"tools[{number}]")
        tools[tool.name] = tool
    if len(tools) > MAX_TOOLS:
        raise Exhausted(f"a session declares at most {MAX_TOOLS} tools", fix="remove some")
    taken: dict[str, str] = {}
    for tool in tools.values():
        for name in (tool.name, *tool.aliases):
            if name in taken:
                field = "tools.aliases"
                raise RequestError(f"`{name}` names both `{taken[name]}` and `{tool.name}`", field=field, fix="rename one")
            taken[name] = tool.name
    return tuple(tools[name] for name in sorted(tools))


def _check(tool: Tool, field: str) -> None:
    for name in (tool.name, *tool.aliases):
        if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
            raise RequestError(
                f"`{name}` is no name of a tool",
                field=f"{field}.name",
                fix=f"use letters, digits and `_`, or `mcp__server__tool`; at most {MAX_NAME} characters",
            )
        if name in BUILT_IN:
            raise RequestError(f"`{name}` is a tool that sandboxd knows itself", field=f"{field}.name", fix="rename it")
    if len(set(tool.aliases)) < len(tool.aliases) or tool.name in tool.aliases:
        raise RequestError(f"`{tool.name}` has a name twice", field=f"{field}.aliases", fix="name each once")
    if tool.read_only and tool.destructive:
        raise RequestError(
            f"`{tool.name}` cannot be read-only and destructive", field=f"{field}.destructive", fix="declare what it does"
        )
    if len(tool.description) > MAX_TEXT or len(tool.search_hint) > MAX_TEXT:
        raise RequestError(
            f"the description of `{tool.name}` is too long", field=f"{field}.description", fix=f"{MAX_TEXT} at most"
        )
    check_schema(tool.schema, f"{field}.input_schema")
    if len(json.dumps(tool.schema)) > MAX_SCHEMA:
        raise RequestError(f"the schema of `{tool.name}` is too long", field=f"{field}.input_schema", fix=f"{MAX_SCHEMA} at most")
    unknown = next((name for name in tool.classifier_input if name not in tool.schema.get("properties", {})), None)
    if unknown is not None:
        raise RequestError(
            f"`{tool.name}` has no property `{unknown}` for a classifier", field=f"{field}.classifier_input", fix="name its own"
        )


def find(name: str, declared: tuple[Tool, ...]) -> Tool | None:
    """The tool of that name or alias."""
    built_in = BUILT_IN.get(name)
    if built_in is not None:
        return built_in
    return next((tool for tool in declared if name == tool.name or name in tool.aliases), None)


def call(name: str, given: Mapping[str, Any], declared: tuple[Tool, ...]) -> ToolCall:
    """One use of a tool, its input checked against the schema, under the tool's own name. Raises RequestError."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise RequestError(f"`{name[:MAX_NAME]}` is no name of a tool", field="tool", fix=f"1 to {MAX_NAME} characters")
    tool = find(name, declared)
    if tool is None:
        return ToolCall(name, given)
    validate(given, tool.schema, "input")
    return ToolCall(tool.name, given, tool)


def describe(tool: Tool, style: Format) -> dict[str, Any]:
    """A tool as the API of that style takes it."""
    if style is Format.OPENAI:
        function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.schema)}
        return {"type": "function", "function": function}
    return {"name": tool.name, "description": tool.description, "input_schema": dict(tool.schema)}


def as_json(tools: Iterable[Tool], style: Format) -> str:
    """The tools as one JSON text: byte for byte the same for the same tools, so that prompts which begin with it can be
    cached."""
    return json.dumps([describe(tool, style) for tool in tools], ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def search(query: str, tools: Iterable[Tool], most: int) -> tuple[Tool, ...]:
    """Those tools that fit a query, best first: by name (`select:A,B` asks for exactly these), else by the words of their
    names, hints and descriptions."""
    tools = tuple(tools)
    if query.startswith("select:"):
        wanted = [name.strip() for name in query.removeprefix("select:").split(",")]
        named = {name: tool for tool in tools for name in (tool.name, *tool.aliases)}
        found = {named[name].name: named[name] for name in wanted if name in named}
        return tuple(found.values())[:most]
    words = _words(query)
    if not words:
        raise RequestError("the query holds no word", field="query", fix="describe what the tool is to do, or `select:NAME`")
    ranked = [(-_score(words, query.strip(), tool), tool.name, tool) for tool in tools]
    return tuple(tool for score, _, tool in sorted(ranked, key=lambda each: each[:2]) if score < 0)[:most]


def _score(words: frozenset[str], query: str, tool: Tool) -> int:
    """A word in a name weighs more than one in the hint, that more than one in the description."""
    names = (tool.name, *tool.aliases)
    if query in names:
        return 1_000_000
    parts = frozenset().union(*(_words(name) for name in names))
    hint, about = _words(tool.search_hint), _words(tool.description)
    return sum(10 * (word in parts) + 4 * (word in hint) + (word in about) for word in words)


def _words(text: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in _WORDS.findall(_CAMEL.sub(" ", text)))
