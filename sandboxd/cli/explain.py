# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd explain TOOL`: what the effect tables know about a tool. What they do not list is OPAQUE, and asks."""

from __future__ import annotations

import argparse
import difflib

from sandboxd.cli import terminal, text
from sandboxd.config import directories
from sandboxd.effects.describe import LevelText, OptionText, ToolText, describe
from sandboxd.effects.tables import Tables
from sandboxd.errors import NotFound


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Exit status: 0, or 2 when nothing is known about the tool."
    parser.add_argument("tool", metavar="TOOL", help="a command's name: `git`")
    parser.add_argument("subcommand", nargs="*", metavar="SUBCOMMAND", help="only this one: `git remote add`")
    text.add_output_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    tables = Tables((directories().effects,))
    found = describe(tables.find(options.tool))
    if not found:
        near = difflib.get_close_matches(options.tool, tables.names(), 3)
        fix = f"did you mean {' or '.join(f'`{name}`' for name in near)}?" if near else "allow it by a rule, as in `Bash(NAME:*)`"
        raise NotFound(f"nothing is known about `{options.tool}`, so it is opaque and asks", field="TOOL", fix=fix)
    wanted = " ".join(options.subcommand)
    levels = [level for tool in found for level in tool.levels if not wanted or level.name == wanted]
    if not levels:
        known = ", ".join(dict.fromkeys(level.name for tool in found for level in tool.levels if level.name))
        raise NotFound(f"`{options.tool}` has no subcommand `{wanted}` here", field="SUBCOMMAND", fix=f"known: {known or 'none'}")
    if options.output == "json":
        terminal.print_json(found if not wanted else levels)
    elif wanted:
        print("\n\n".join(_level(options.tool, level) for level in levels))
    else:
        print("\n\n".join(_tool(tool) for tool in found))
    return 0


def _tool(tool: ToolText) -> str:
    rows = [("table", tool.origin)]
    if tool.wrapper:
        rows.append(("wrapper", tool.wrapper))
    if tool.exit_ok != (0,):
        rows.append(("results", "exit status " + ", ".join(map(str, tool.exit_ok))))
    rows += [("credentials", path) for path in tool.credentials]
    parts = [terminal.table(rows), *(_level(tool.name, level) for level in tool.levels)]
    if tool.examples:
        lines = (f"  {line}\n      {', '.join(said) or 'nothing'}" for line, said in tool.examples)
        parts.append("examples\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _level(tool: str, level: LevelText) -> str:
    lines = [f"{tool} {level.name}".rstrip()]
    lines += [f"  always: {effect}" for effect in level.effects]
    if level.operands is None:
        lines.append("  operands: none are known; any is opaque")
    elif level.operands:
        lines.append(f"  operands: {', '.join(level.operands)}")
    lines += [f"  {when}" for when in level.when]
    lines += [f"  only as it stands: {words}" for words in level.exact]
    lines += [f"  {note}" for note in level.notes]
    lines += [f"  {_option(option)}" for option in level.dangerous]
    if level.harmless:
        lines.append("  harmless: " + ", ".join(option.names for option in level.harmless))
    return "\n".join(lines)


def _option(option: OptionText) -> str:
    said = [option.role, *(f"one of {', '.join(option.values)}" for _ in option.values[:1]), option.otherwise, *option.also]
    return f"{option.names}: {'; '.join(part for part in said if part)}"
