# SPDX-License-Identifier: GPL-3.0-or-later
"""The command `sandboxd`: finds the command group, imports only that one, and turns errors into exit statuses.

To add a command group: write a module with `configure(parser)` that sets `run`, and add a line to COMMANDS.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from sandboxd.errors import RequestError, RuleError, SandboxdError

USAGE = 2
FAILED = 125  # sandboxd itself failed
INTERRUPTED = 130

COMMANDS = (
    ("run", "run one command: judged, confined, streamed"),
    ("check", "say what would be decided about a command, and why; nothing runs"),
    ("explain", "what is known about a tool: its options, operands and effects"),
    ("rules", "the permission rules in force, and what is wrong with them"),
    ("trust", "let a workspace's files allow something, or no longer"),
    ("serve", "run the daemon"),
    ("status", "how the daemon is"),
    ("doctor", "what this machine can confine, and how to fix what it cannot"),
    ("executions", "what runs and has lately run: list, follow, signal, end"),
    ("session", "list, create, change and end sessions"),
    ("approvals", "questions that wait for a human"),
    ("decisions", "what was decided, and why"),
    ("profile", "isolation profiles"),
    ("eval", "measure the classifier on labelled commands of your own"),
    ("completion", "print the completion script for bash"),
)
# Commands whose last argument is a command line: everything behind the first `--` is theirs, unread.
_TAKE_TEXT = ("run", "check")


class Parser(argparse.ArgumentParser):
    """argparse, with errors in our form: lower-case, one line, then where help is."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}\ntry `{self.prog} --help`", file=sys.stderr)
        sys.exit(USAGE)


def build_parser(*names: str) -> Parser:
    """The parser, complete for the named groups; of the others it knows the name and one line."""
    parser = Parser(prog="sandboxd", description="Understands, judges, confines and runs shell commands.", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    groups = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=Parser)
    for name, summary in COMMANDS:
        group = groups.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False)
        if name in names:
            _load(name).configure(group)
    return parser


def _load(name: str) -> Any:
    """A command group's module. What is loaded stays for good: collections while it comes find nothing and cost a tenth of
    the start, and later ones need not look at it again."""
    gc.disable()
    try:
        return importlib.import_module(f"sandboxd.cli.{name}")
    finally:
        gc.freeze()
        gc.enable()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if not word.startswith("-")), "")
    text: list[str] | None = None
    if command in _TAKE_TEXT and "--" in arguments:
        at = arguments.index("--")
        arguments, text = arguments[:at], arguments[at + 1 :]
    try:
        parser = build_parser(command)
        options = parser.parse_args(arguments)
        if options.version:
            from sandboxd import __version__

            print(f"sandboxd {__version__}")
            return 0
        if options.command is None:
            parser.print_help(sys.stderr)
            return USAGE
        if text is not None:
            if options.text:
                parser.error(f"`{options.text[0]}` stands before `--`: the whole command belongs behind it")
            options.text = text
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else USAGE
    except SandboxdError as error:
        print(f"sandboxd: {error}", file=sys.stderr)
        return _status(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads any more. Point stdout elsewhere, or the interpreter complains when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as if SIGPIPE had ended it


def _status(error: SandboxdError) -> int:
    """2 when what the caller typed is wrong, else 125."""
    typed = isinstance(error, RequestError) or (isinstance(error, RuleError) and error.origin.startswith("--"))
    return USAGE if typed else FAILED


if __name__ == "__main__":
    sys.exit(main())
