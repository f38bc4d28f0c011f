# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions for a human, and answers to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from sandboxd.model import Decision


@dataclass(frozen=True, slots=True)
class Ask:
    """A question for a human: may `text` run? `decision` says what is at stake and which rules could be kept."""

    approval_id: str
    text: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class Answer:
    """`scope` session and always keep `rule`, which must be one of `decision.suggestions`."""

    allow: bool
    scope: Literal["once", "session", "always"] = "once"
    rule: str = ""
    reason: str = ""


# True or False is an answer for this once. A plain function runs in a thread of its own.
OnAsk = Callable[[Ask], Answer | bool | Awaitable[Answer | bool]]
