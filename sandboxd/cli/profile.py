# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd profile`: the isolation profiles, and a check of one that is being written."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from sandboxd.cli import terminal, text
from sandboxd.config import directories, load
from sandboxd.errors import NotFound, ProfileError
from sandboxd.isolation import profiles
from sandboxd.model import Profile, Session


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show_all = actions.add_parser("list", help="all profiles, by name")
    show_all.set_defaults(run=_list)
    show = actions.add_parser("show", help="one profile, with everything it extends put in")
    show.add_argument("name", metavar="NAME")
    show.set_defaults(run=_show)
    check = actions.add_parser("check", help="read a profile and run the tests in it; exit status 1 when one fails")
    check.add_argument("name", metavar="NAME-OR-FILE")
    check.set_defaults(run=_check)
    differ = actions.add_parser("diff", help="what two profiles say differently; exit status 1 when they do")
    differ.add_argument("one", metavar="NAME-OR-FILE")
    differ.add_argument("other", metavar="NAME-OR-FILE")
    differ.set_defaults(run=_diff)
    explain = actions.add_parser("explain", help="what a path is under a profile for a command that may write, and why")
    explain.add_argument("name", metavar="NAME-OR-FILE")
    explain.add_argument("path", metavar="PATH")
    explain.add_argument("--read-only", action="store_true", help="for a command that was judged read-only")
    explain.set_defaults(run=_explain)
    for action in (show_all, show, check, differ, explain):
        text.add_output_option(action)


def _directories() -> tuple[tuple[str, ...], str]:
    """Where profiles are searched, as the daemon does it, and the configured one's name."""
    dirs = directories()
    config = load(dirs)
    return (f"{dirs.config}/profiles", *config.isolation.profile_dirs, profiles.SHIPPED_DIR), config.isolation.profile


def _list(options: argparse.Namespace) -> int:
    places, configured = _directories()
    found = [profiles.load(name, places) for name in profiles.names(places)]
    if options.output == "json":
        terminal.print_json(found)
    else:
        rows = [("*" if item.name == configured else " ", item.name, item.network.value, item.description) for item in found]
        print(terminal.table(rows, (" ", "name", "network", "description")))
    return 0


def _show(options: argparse.Namespace) -> int:
    places, _ = _directories()
    known = profiles.names(places)
    if options.name not in known:
        raise NotFound(f"no profile `{options.name}`", field="NAME", fix=f"use one of {', '.join(known)}")
    found = profiles.load(options.name, places)
    if options.output == "json":
        terminal.print_json(found)
    else:
        print(terminal.table(_rows(found)))
    return 0


def _check(options: argparse.Namespace) -> int:
    """A file is read as such; anything else is the name of a profile."""
    places, _ = _directories()
    name = options.name
    if "/" not in name and name.endswith(".toml") and Path(name).is_file():
        name = f"./{name}"
    try:
        problems = profiles.check(name, places)
    except ProfileError as error:
        problems = (str(error),)
    if options.output == "json":
        terminal.print_json({"valid": not problems, "problems": problems})
    else:
        print("\n".join(problems) or "nothing is wrong with it")
    return 1 if problems else 0


def _diff(options: argparse.Namespace) -> int:
    places, _ = _directories()
    found = profiles.diff(profiles.load(options.one, places), profiles.load(options.other, places))
    if options.output == "json":
        terminal.print_json([{"key": key, "one": one, "other": other} for key, one, other in found])
    elif found:
        print(terminal.table([tuple(map(terminal.shown, row)) for row in found], ("key", options.one, options.other)))
    return 1 if found else 0


def _explain(options: argparse.Namespace) -> int:
    """For the current directory as the workspace and the host as it is."""
    places, _ = _directories()
    session = Session("explain", os.getcwd(), directories().home, os.getuid(), os.getgid(), "")
    reach, why, passed = profiles.explain(
        profiles.load(options.name, places), options.path, promise=options.read_only, session=session
    )
    if options.output == "json":
        terminal.print_json({"reach": reach.value, "why": why, "overruled": list(passed)})
    else:
        print(f"{reach.value}  {terminal.shown(why)}")
        for line in passed:
            print(f"      overruled: {terminal.shown(line)}")
    return 0


def _rows(profile: Profile) -> list[tuple[str, str]]:
    rows = []
    for name, value in terminal.plain(profile).items():
        if name == "limits":
            rows += [(f"limits.{key}", str(limit)) for key, limit in value.items() if limit is not None]
        elif isinstance(value, dict):
            rows += [(f"{name}.{key}", terminal.shown(str(item))) for key, item in value.items()]
        elif isinstance(value, list):
            rows += [(name, terminal.shown(str(item))) for item in value]
        elif value not in ("", None):
            rows.append((name, terminal.shown(str(value))))
    return rows
