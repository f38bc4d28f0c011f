# SPDX-License-Identifier: GPL-3.0-or-later
"""An ended execution's output as a model reads it: all of it within its budget, else a preview and the place of the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sandboxd.model import Gap, ModelText, Stream
from sandboxd.run.preview import WINDOW, Budgets, decode, preview, whole_characters
from sandboxd.run.spill import Stored
from sandboxd.run.spool import Kept

MAX_MESSAGE = 16 << 20  # bytes that one answer carries: the bound of a call without a budget

Store = Callable[[Iterable[bytes], str], Stored | None]  # as `Spills.store`: what to write, and a file that holds just that


def model_text(kept: Kept, budgets: Budgets, max_chars: int | None, store: Store, *, force: bool = False) -> ModelText:
    """Blocking: reads the spool. `force`: store it even within its own budget, because the batch has no room for it."""
    limit = budgets.of(max_chars)
    if limit is None:
        return _exempt(kept)
    if kept.output_bytes <= budgets.absolute:
        text = decode(kept.chunks())
        if len(text) <= limit and not force:
            return ModelText(text, whole=not any(isinstance(event, Gap) for event in kept.behind))
        head = tail = text
    else:
        head, tail = decode(kept.head(WINDOW), cut=True), _tail(kept)
    stored = store((data for _, data in kept.chunks()), kept.whole)
    return ModelText(
        preview(head, tail, limit, _notice(kept, stored)), whole=False, spill_path="" if stored is None else stored.path
    )


def _tail(kept: Kept) -> str:
    begun: set[Stream] = set()
    pieces = []
    for stream, data in kept.tail(WINDOW):
        pieces.append((stream, data if stream in begun else whole_characters(data)))
        begun.add(stream)
    return decode(pieces)


def _exempt(kept: Kept) -> ModelText:
    """All that a message can carry, and never a file: reading that file would be just such a call again."""
    if kept.output_bytes <= MAX_MESSAGE:
        return ModelText(decode(kept.chunks()), whole=not any(isinstance(event, Gap) for event in kept.behind))
    left, pieces = MAX_MESSAGE, []
    for stream, data in kept.chunks():
        pieces.append((stream, data[:left]))
        left -= len(data)
        if left <= 0:
            break
    return ModelText(f"{decode(pieces, cut=True)}\n[cut here: {kept.output_bytes} bytes in all]\n", whole=False)


def _notice(kept: Kept, stored: Stored | None) -> str:
    if stored is None:
        return f"[… of {kept.output_bytes} bytes in all; the rest could not be stored …]"
    held = "all of it" if stored.complete else f"the first {stored.size} bytes"
    return f"[… of {kept.output_bytes} bytes in all; {held} in {stored.path} …]"
