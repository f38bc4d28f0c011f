# SPDX-License-Identifier: GPL-3.0-or-later
"""What the effect tests share: one analysis in a fixed place, and what of it changes anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sandboxd.analyze import analyze
from sandboxd.model import Analysis, AnalysisContext, Direction, Effect, EffectKind

CWD = "/home/ada/work"
HOME = "/home/ada"
CONTEXT = AnalysisContext(CWD, HOME, CWD)
LINES = Path(__file__).parent.parent / "corpus" / "effects_lines.jsonl"


def rows(must: str | None = None) -> list[dict[str, Any]]:
    """The rows of the corpus, or those with this answer."""
    found = [json.loads(line) for line in LINES.read_text().splitlines()]
    return [row for row in found if must is None or row["must"] == must]


def understood(text: str) -> Analysis:
    return analyze(text, CONTEXT)


def changes(effect: Effect) -> bool:
    """Whether the effect is more than looking."""
    if effect.kind is EffectKind.NETWORK:
        return effect.direction is not Direction.FETCH
    return effect.kind not in (EffectKind.READ, EffectKind.ENV, EffectKind.EXEC)


def shown(effect: Effect) -> str:
    """`write.truncate /home/ada/work/x`, the way tables of expectations spell it."""
    more = effect.act.value if effect.act else effect.direction.value if effect.direction else effect.code
    head = f"{effect.kind.value}.{more}" if more and effect.kind is not EffectKind.OPAQUE else more or effect.kind.value
    return f"{head} {effect.target}" if effect.target is not None else head
