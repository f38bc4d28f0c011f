# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd completion`: a completion script for bash, made from the parsers themselves.

Use it with `source <(sandboxd completion)`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from sandboxd.cli.main import COMMANDS, build_parser

_SCRIPT = """\
# completion of sandboxd for bash; use it with: source <(sandboxd completion)
_sandboxd() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} path= index
  for ((index = 1; index < COMP_CWORD; index++)); do
    [[ ${{COMP_WORDS[index]}} == -- ]] && {{ compopt -o default; return; }}
    [[ ${{COMP_WORDS[index]}} == [a-z]* ]] && case "$path ${{COMP_WORDS[index]}}" in
      {paths}) path="$path ${{COMP_WORDS[index]}}" ;;
    esac
  done
  case "$path" in
{cases}
  esac
}}
complete -o default -F _sandboxd sandboxd
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Use it with: source <(sandboxd completion)"
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    print(script(), end="")
    return 0


def script() -> str:
    parsers = dict(_walk(build_parser(*(name for name, _ in COMMANDS)), ""))
    paths = "|".join(f"'{path}'" for path in parsers if path)
    cases = "\n".join(
        f"    '{path}') mapfile -t COMPREPLY < <(compgen -W '{' '.join(_words(parser))}' -- \"$word\") ;;"
        for path, parser in parsers.items()
    )
    return _SCRIPT.format(paths=paths, cases=cases)


def _walk(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from _walk(child, f"{path} {name}")


def _words(parser: argparse.ArgumentParser) -> list[str]:
    words: list[str] = []
    for action in parser._actions:
        words += action.choices if isinstance(action, argparse._SubParsersAction) else action.option_strings
    return words
