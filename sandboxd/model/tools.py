# SPDX-License-Identifier: GPL-3.0-or-later
"""Tools other than a shell: what is known of one, and one use of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that an agent may use. What is not declared is the strictest: it may change anything, runs alone, and no
    classifier judges it.

    `schema` is a JSON Schema of its input. `classifier_input` names the properties that a classifier sees; empty: only a
    human may agree to an ASK about it. `cancels`: it is stopped when the user speaks up. `max_result_chars` None = as
    configured. `deferred`: it is described only when a search finds it.
    """

    name: str
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    read_only: bool = False
    concurrency_safe: bool = False
    destructive: bool = False
    classifier_input: tuple[str, ...] = ()
    cancels: bool = False
    max_result_chars: int | None = None
    deferred: bool = False
    search_hint: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One use of a tool with an input that fits its schema. `tool` None: nobody has declared what `name` does."""

    name: str
    input: Mapping[str, Any]
    tool: Tool | None = None
