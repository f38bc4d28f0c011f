# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd trust`: which workspaces' files may allow something. What would come into force is shown before it is asked."""

from __future__ import annotations

import argparse
import os
import sys

from sandboxd import rulefiles, trust
from sandboxd.cli import terminal, text
from sandboxd.config import Directories, directories, load, read_rules, rule_places
from sandboxd.errors import RequestError
from sandboxd.model import Behavior
from sandboxd.rulefiles import RuleFile

DECLINED = 1


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Exit status: 0 done, 1 declined. Without a terminal it takes --yes."
    parser.add_argument("dir", nargs="?", metavar="DIR", help="the workspace whose files are meant")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--revoke", action="store_true", help="no longer trust its files")
    what.add_argument("--list", action="store_true", help="show what is trusted, all or below DIR, and what has changed since")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    text.add_output_option(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    dirs = directories()
    if options.list:
        return _list(dirs, options)
    if options.dir is None:
        raise RequestError("no workspace is named", field="DIR", fix="name its directory, or use --list")
    workspace = os.path.realpath(options.dir)
    if options.revoke:
        return _revoke(dirs, workspace, options)
    if not os.path.isdir(workspace):
        raise RequestError(f"`{options.dir}` is not a directory", field="DIR", fix="name an existing one")
    known = trust.load(dirs)
    claude = load(dirs).policy.read_claude_settings
    places = tuple(place for place in rule_places(dirs, workspace, claude=claude) if place.workspace)
    files = [rulefiles.parse(found, known.covers(found)) for found in read_rules(places)]
    waiting = [file for file in files if not file.trusted]
    if options.output == "json":
        terminal.print_json([_described(file) for file in files])
    elif not files:
        print(f"no rule files in `{terminal.shown(workspace)}`; looked for {', '.join(place.path for place in places)}")
    else:
        print("\n".join(line for file in files for line in _lines(file)))
    if not waiting:
        return 0
    if not options.yes and not _agreed(len(waiting)):
        print("nothing changed", file=sys.stderr)
        return DECLINED
    trust.change(dirs, tuple(file.text for file in waiting), trusted=True)
    return 0


def _agreed(count: int) -> bool:
    """Ask at the terminal. Raises RequestError when there is none."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise RequestError("nobody can be asked here", field="--yes", fix="read what is shown, then add --yes")
    files = "this file" if count == 1 else f"these {count} files"
    print(f"trust {files} exactly as shown? any later change revokes it [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _described(file: RuleFile) -> dict[str, object]:
    source = file.source
    return {
        "file": file.text.place.path,
        "trusted": file.trusted,
        "allow": [{"rule": rule.text, "where": rule.origin} for rule in source.rules if rule.behavior is Behavior.ALLOW],
        "hooks": [{"event": hook.event.value, "command": hook.command, "where": hook.origin} for hook in file.hooks],
        "additional_directories": source.additional_directories,
        "default_mode": None if source.default_mode is None else source.default_mode.value,
        "ignored": file.ignored,
    }


def _lines(file: RuleFile) -> list[str]:
    """What trusting a file brings into force, for a person; nothing of the workspace's making is hidden in it."""
    source = file.source
    state = "trusted" if file.trusted else "not trusted"
    rows = [
        ("  allow", terminal.shown(rule.text, 300), _line(rule.origin))
        for rule in source.rules
        if rule.behavior is Behavior.ALLOW
    ]
    rows += [(f"  {hook.event.value} hook", terminal.shown(hook.command, 300), _line(hook.origin)) for hook in file.hooks]
    rows += [("  directory", terminal.shown(path), "") for path in source.additional_directories]
    if source.default_mode is not None:
        rows.append(("  mode", source.default_mode.value, ""))
    out = [f"{terminal.shown(file.text.place.path, 1000)} ({state}):"]
    out.append(terminal.table(rows) if rows else "  allows nothing, runs nothing")
    out += [f"  not understood: {terminal.shown(item, 400)}" for item in file.ignored]
    if file.hooks:
        out.append("  hooks run as you, outside every sandbox")
    return out


def _line(origin: str) -> str:
    """`line 3` of `file:3`: the file is in the heading."""
    number = origin.rpartition(":")[2]
    return f"line {number}" if number.isdigit() else ""


def _revoke(dirs: Directories, workspace: str, options: argparse.Namespace) -> int:
    gone = trust.revoke(dirs, workspace)
    if options.output == "json":
        terminal.print_json({"revoked": gone})
    else:
        print("\n".join(f"revoked: {terminal.shown(path, 1000)}" for path in gone) or "nothing there was trusted")
    return 0


def _list(dirs: Directories, options: argparse.Namespace) -> int:
    root = None if options.dir is None else os.path.realpath(options.dir)
    rows = trust.listed(dirs, root)
    if options.output == "json":
        terminal.print_json([{"file": path, "state": state} for path, state in rows])
    elif rows:
        print(terminal.table([(terminal.shown(path, 1000), state) for path, state in rows], ("file", "state")))
    return 0
