# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model gets to read of ended executions: budgets of the configuration, files of the session."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from sandboxd.config import RunSettings
from sandboxd.jobs import Job
from sandboxd.model import UNLIMITED, EndKind, ModelText, Output, Result, Stream
from sandboxd.run.execution import Execution
from sandboxd.run.modeltext import model_text
from sandboxd.run.preview import Budgets, over
from sandboxd.run.spill import Spills
from sandboxd.run.spool import Kept

_NOWHERE = (
    "the whole output is not stored: the session's user cannot come to the daemon's state directory; "
    "`sandboxd executions logs` has it, and `sandboxd serve --state-dir` can put that directory where everybody may pass"
)


@dataclass(slots=True, eq=False)
class Given:
    """What a tool of the front-end's gave; `name` is that of its file, should a model be shown a part of it only."""

    session_id: str
    name: str
    data: bytes
    max_result_chars: int | None = None
    model: ModelText | None = None  # kept when it is a preview

    def kept(self) -> Kept:
        return Kept("", 0, (Output(1, Stream.STDOUT, 0, self.data, 0.0),), len(self.data))


def budgets(settings: RunSettings) -> Budgets:
    return Budgets(settings.max_result_chars, settings.max_batch_chars, settings.max_result_bytes)


async def settled(job: Job, result: Result, spills: Spills, settings: RunSettings) -> Result:
    """The result, with the place of the whole output when a model will only be shown a part of it."""
    limit = budgets(settings).of(job.request.max_result_chars)
    if limit is None or result.stdout_bytes + result.stderr_bytes <= limit:
        return result  # no more characters than bytes
    job.model = await _read(job, spills, settings)
    if job.model.whole:
        job.model = None
        return result
    notes = result.notes if job.session.isolation.spill else (*result.notes, _NOWHERE)
    return dataclasses.replace(result, spill_path=job.model.spill_path, notes=notes)


async def model_view(job: Job, spills: Spills, settings: RunSettings) -> ModelText:
    """What a model reads of it. After the end."""
    return job.model or await _read(job, spills, settings)


async def batch_view(sources: Sequence[Job | Given], spills: Spills, settings: RunSettings) -> tuple[ModelText, ...]:
    """What a model reads of a batch: each within its own budget, and the largest stored until all fit together."""
    texts = [source.model or await _read(source, spills, settings) for source in sources]
    sizes = [
        None if _limit(source) == UNLIMITED or source.model is not None else len(text.text)
        for source, text in zip(sources, texts, strict=True)
    ]
    taken = sum(len(source.model.text) for source in sources if source.model is not None)
    for number in over(sizes, max(0, settings.max_batch_chars - taken)):
        texts[number] = sources[number].model = await _read(sources[number], spills, settings, force=True)
    return tuple(texts)


def _limit(source: Job | Given) -> int | None:
    return source.max_result_chars if isinstance(source, Given) else source.request.max_result_chars


async def _read(source: Job | Given, spills: Spills, settings: RunSettings, *, force: bool = False) -> ModelText:
    if isinstance(source, Job) and (said := _denied(source.execution)) is not None:
        return said
    if isinstance(source, Given):
        store, kept = partial(spills.store, source.session_id, source.name), source.kept()
    else:
        store, kept = partial(spills.store, source.session.id, source.execution.id), source.execution.kept()
    return await asyncio.to_thread(model_text, kept, budgets(settings), _limit(source), store, force=force)


async def past_view(execution: Execution, settings: RunSettings) -> ModelText:
    """What a model reads of an execution of an earlier daemon. Its session is gone, and so is the place for the rest."""
    if (said := _denied(execution)) is not None:
        return said
    return await asyncio.to_thread(model_text, execution.kept(), budgets(settings), None, lambda *_: None)


def _denied(execution: Execution) -> ModelText | None:
    """Of a command that was denied a model reads what stopped it, and what to do instead; None for any other."""
    result = execution.result
    return ModelText(result.cause, whole=True) if result is not None and result.end is EndKind.DENIED else None
