# SPDX-License-Identifier: GPL-3.0-or-later
"""Standard streams that a command opens by name for writing: what they were opened from is what is written to."""

from __future__ import annotations

from sandboxd.effects.call import REOPENS
from sandboxd.model import Act, AnalyzedCommand, EffectKind, Redirect, RedirectOp

_INPUTS = ("/dev/stdin", "/dev/fd/0")
_REDIRECT_READ = f"redirect.{RedirectOp.READ.value}"


def reopened(commands: list[AnalyzedCommand]) -> list[AnalyzedCommand] | None:
    """The commands, with writes to who knows what for the streams that can be files: standard input, and the outputs where a
    redirect of the line makes an input of one. None when there are none."""
    redirects = [redirect for command in commands for redirect in command.subcommand.redirects]
    made = set(map(_makes, redirects))
    all_streams = "input" in made or {"opened", "copied"} <= made
    inputs = [effect for command in commands for effect in command.effects if effect.because == _REDIRECT_READ]
    pieces = tuple([piece for effect in inputs for piece in ((effect.target,) if effect.target else effect.fragments)])
    out = []
    for command in commands:
        effects = tuple(
            effect._replace(kind=EffectKind.WRITE, act=Act.WRITE, target=None, fragments=pieces)
            if effect.because == REOPENS and (all_streams or effect.target in _INPUTS)
            else effect
            for effect in command.effects
        )
        out.append(command if effects == command.effects else command._replace(effects=effects))
    return None if out == commands else out


def _makes(redirect: Redirect) -> str:
    """An `input` of an output (or of what an output may become), something `opened` for reading beside standard input, a
    descriptor `copied` that may be so."""
    fd = redirect.fd
    if redirect.op is RedirectOp.READ:
        return "" if fd is None or fd == 0 else "input" if fd in (1, 2) else "opened"
    if redirect.op not in (RedirectOp.DUP_IN, RedirectOp.DUP_OUT) or fd == 0:
        return ""
    if fd is None and redirect.op is RedirectOp.DUP_IN:
        return ""
    source = (redirect.target.value or "?").rstrip("-")
    return "input" if source == "0" else "" if source in ("1", "2", "") else "copied"
