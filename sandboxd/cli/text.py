# SPDX-License-Identifier: GPL-3.0-or-later
"""Options that several command groups share, and decisions in words."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Sequence

from sandboxd.cli import terminal
from sandboxd.errors import RequestError
from sandboxd.model import Behavior, Decision, Enforcement, Mode, Strength

_VERBS = {Behavior.ALLOW: "allowed", Behavior.ASK: "has to be asked about", Behavior.DENY: "denied"}


def mode(name: str) -> Mode:
    """argparse type: a mode by its name."""
    try:
        return Mode(name)
    except ValueError:
        raise argparse.ArgumentTypeError(f"`{name}` is no mode; use one of {', '.join(m.value for m in Mode)}") from None


def add_policy_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mode", type=mode, default=Mode.DEFAULT, metavar="M", help="how much may be done without asking")
    for behavior in Behavior:
        parser.add_argument(
            f"--{behavior.value}",
            action="append",
            default=[],
            metavar="RULE",
            help=f"{behavior.value} what matches, as in `Bash(make:*)`; may be repeated",
        )


def add_output_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="how to print the answer")


def command_text(words: Sequence[str]) -> str:
    """The command line that words mean: one word is the text as it is, several are quoted and joined."""
    if not words:
        raise RequestError("no command is given", field="TEXT", fix="write it behind `--`")
    return words[0] if len(words) == 1 else shlex.join(words)


def moment(seconds: float) -> str:
    """A time as people here write it: local, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def step(decision: Decision) -> str:
    """`2e read_only`: the step that answered, by number and name."""
    name = next((entry.name for entry in decision.trace if entry.step == decision.step), "")
    return f"{decision.step} {name}".rstrip()


def verdict(decision: Decision, *, on: bool) -> str:
    """The decision in one line."""
    colour = terminal.VERDICT_COLOURS[decision.behavior.value]
    verb = terminal.paint(_VERBS[decision.behavior], terminal.BOLD, colour, on=on)
    return f"{verb} by step {step(decision)} ({decision.reason}): {terminal.shown(decision.message, 400)}"


def reasons(decision: Decision) -> list[str]:
    """What the decision rests on, and what would turn it, one line each."""
    out = []
    for item in decision.evidence:
        where = ", ".join(part for part in (item.rule and f"rule `{item.rule}`", item.source, item.origin, item.because) if part)
        out.append(f"  because: {terminal.shown(item.text, 400)}{f' [{where}]' if where else ''}")
    if decision.flip:
        out.append(f"  to change it: {terminal.shown(decision.flip, 400)}")
    return out


def enforcement(value: Enforcement | None) -> str:
    """`bwrap, full` or `bwrap, partial (landlock: not in this kernel)`."""
    if value is None:
        return "not confined: it never ran"
    weak = [
        f"{state.layer.value}: {', '.join(state.missing) or state.strength.value}"
        for state in value.layers
        if state.strength is not Strength.FULL
    ]
    return f"{value.backend}, {value.overall.value}" + (f" ({'; '.join(weak)})" if weak else "")
