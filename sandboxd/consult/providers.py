# SPDX-License-Identifier: GPL-3.0-or-later
"""Who gives the verdict: a model behind a server of the Messages API (two stages), or any program (one question).

To add a provider: a class with `judge`, a member of config.Provider, a line in classifier.py's `_provider`, and its rows in
tests/consult/test_consult_outages.py.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sandboxd.consult.classifier_process import Answer, WorkerProcess
from sandboxd.consult.classifier_prompt import FIRST, HEAD, SECOND, Prompt
from sandboxd.consult.programs import SYSTEM_PATH, Bounds, converse
from sandboxd.consult.verdict import MAX_ANSWER, OUTAGES, Failure, Outage, Verdict, read_first, read_second

TRIES = 3  # of one stage
FIRST_WAIT = 0.2  # seconds before a second try, when the server names no time
FIRST_TOKENS = 40  # enough for two words with a nonce
SECOND_TOKENS = 700

Meter = Callable[[dict[str, int]], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """One question with its nonces and its end on the loop's clock."""

    prompt: Prompt
    session_nonce: str
    nonce: str
    deadline: float

    @property
    def left(self) -> float:
        return self.deadline - asyncio.get_running_loop().time()


class Provider(Protocol):
    async def judge(self, asked: Asked, meter: Meter) -> Verdict | Failure:
        """The verdict, before the deadline. Raises nothing; a caller that is cancelled takes the question with it."""


class Messages:
    """Stage 1 says allow or block in two words; only a block goes on to stage 2. A cautious question starts there."""

    def __init__(self, process: WorkerProcess, model: str) -> None:
        self._process = process
        self._model = model

    async def judge(self, asked: Asked, meter: Meter) -> Verdict | Failure:
        if not asked.prompt.cautious:
            said = await self._send(asked, FIRST, FIRST_TOKENS, meter)
            if isinstance(said, Failure):
                return said
            first = read_first(said.text, asked.nonce)
            if isinstance(first, Failure):
                return first
            if first:
                return Verdict(True, reason="nothing speaks against it")
        said = await self._send(asked, SECOND, SECOND_TOKENS, meter)
        return said if isinstance(said, Failure) else read_second(said.text, asked.nonce, asked.prompt.user_messages)

    async def _send(self, asked: Asked, last: str, most: int, meter: Meter) -> Answer | Failure:
        """One stage, tried again while that may help and time is left."""
        request = {
            "model": self._model,
            "max_tokens": most,
            "thinking": {"type": "disabled"},
            "system": [{"type": "text", "text": HEAD, "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": asked.prompt.blocks(asked.session_nonce, asked.nonce, last)}],
        }
        wait = FIRST_WAIT
        for attempt in range(1, TRIES + 1):
            said, usage = await self._process.send(request, max(asked.left, 0.0))
            meter(usage)
            if isinstance(said, Answer) or not OUTAGES[said.outage].again or attempt == TRIES:
                return said
            pause = max(said.retry_after, wait)
            if pause >= asked.left:
                return said
            await asyncio.sleep(pause)
            wait *= 2
        raise AssertionError("the last try returns")


class Command:
    """Any program: the question as one JSON object on stdin, a verdict like that of stage 2 as one object on stdout.

    It runs as the daemon's user, outside any sandbox, with a short environment. `prompt` and `system` are the texts that a
    model would get, for programs that hand them to one.
    """

    def __init__(self, argv: tuple[str, ...], env: tuple[str, ...]) -> None:
        self._argv = argv
        self._env = env

    async def judge(self, asked: Asked, meter: Meter) -> Verdict | Failure:
        prompt = asked.prompt
        question = {
            "version": 1,
            "nonce": asked.nonce,
            "question": json.loads(prompt.question),
            "conversation": [json.loads(line) for line in prompt.conversation.splitlines()],
            "system": HEAD,
            "prompt": "\n\n".join(block["text"] for block in prompt.blocks(asked.session_nonce, asked.nonce, SECOND)),
        }
        env: dict[str, str] = {name: os.environ[name] for name in ("HOME", "LANG", *self._env) if name in os.environ}
        bounds = Bounds(max(asked.left, 0.0), MAX_ANSWER, MAX_ANSWER)
        meter({})
        try:
            ran = await converse(self._argv, json.dumps(question).encode(), bounds, env=env | {"PATH": SYSTEM_PATH}, cwd="/")
        except TimeoutError:  # which is an OSError too
            return Failure(Outage.DEADLINE)
        except OSError as error:
            return Failure(Outage.COMMAND_FAILED, f"it cannot be started: {error.strerror}")
        if ran.code != 0 and ran.out is not None:
            return Failure(Outage.COMMAND_FAILED, f"exit status {ran.code}")
        return self._read(ran.out, asked)

    def _read(self, out: bytes | None, asked: Asked) -> Verdict | Failure:
        if out is None:
            return Failure(Outage.BODY_TOO_LONG)
        try:
            text = out.decode()
        except UnicodeDecodeError:
            return Failure(Outage.NOT_JSON)
        return read_second(text, asked.nonce, asked.prompt.user_messages)


def usage_of(usage: dict[str, Any]) -> tuple[int, int, int, int]:
    """Tokens of a usage block: input, output, read from the cache, written to it."""
    return (
        usage.get("input_tokens", 0),
        usage.get("output_tokens", 0),
        usage.get("cache_read_input_tokens", 0),
        usage.get("cache_creation_input_tokens", 0),
    )
