# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model gets to read of ended executions: budgets of the configuration, files of the session."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from functools import partial

from sandboxd.config import RunSettings
from sandboxd.jobs import Job
from sandboxd.model import UNLIMITED, ModelText, Result
from sandboxd.run.execution import Execution
from sandboxd.run.modeltext import model_text
from sandboxd.run.preview import Budgets, over
from sandboxd.run.spill import Spills


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
    return dataclasses.replace(result, spill_path=job.model.spill_path)


async def model_view(job: Job, spills: Spills, settings: RunSettings) -> ModelText:
    """What a model reads of it. After the end."""
    return job.model or await _read(job, spills, settings)


async def batch_view(jobs: Sequence[Job], spills: Spills, settings: RunSettings) -> tuple[ModelText, ...]:
    """What a model reads of a batch: each within its own budget, and the largest stored until all fit together."""
    texts = [await model_view(job, spills, settings) for job in jobs]
    sizes = [
        None if job.request.max_result_chars == UNLIMITED or job.model is not None else len(text.text)
        for job, text in zip(jobs, texts, strict=True)
    ]
    taken = sum(len(job.model.text) for job in jobs if job.model is not None)
    for number in over(sizes, max(0, settings.max_batch_chars - taken)):
        texts[number] = jobs[number].model = await _read(jobs[number], spills, settings, force=True)
    return tuple(texts)


async def _read(job: Job, spills: Spills, settings: RunSettings, *, force: bool = False) -> ModelText:
    store = partial(spills.store, job.session.id, job.execution.id)
    kept = job.execution.kept()
    return await asyncio.to_thread(model_text, kept, budgets(settings), job.request.max_result_chars, store, force=force)


async def past_view(execution: Execution, settings: RunSettings) -> ModelText:
    """What a model reads of an execution of an earlier daemon. Its session is gone, and so is the place for the rest."""
    return await asyncio.to_thread(model_text, execution.kept(), budgets(settings), None, lambda _: None)
