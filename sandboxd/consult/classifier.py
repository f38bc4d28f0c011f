# SPDX-License-Identifier: GPL-3.0-or-later
"""The classifier as the engine sees it: a question in, a verdict or an outage out, before one deadline.

Equal questions of a session in flight are one request; its verdict is remembered for a while, an outage never. A question
that nobody waits for any more is cancelled at once. All methods run on one event loop; `start` returns at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, unique

from sandboxd.config import ClassifierSettings, ProviderKind
from sandboxd.consult.circuit import Circuit
from sandboxd.consult.classifier_process import Server, WorkerProcess, WorkerState
from sandboxd.consult.classifier_prompt import Prompt
from sandboxd.consult.providers import Asked, Command, Messages, Provider, usage_of
from sandboxd.consult.verdict import OUTAGES, Failure, Outage, Verdict

log = logging.getLogger("sandboxd.classifier")

MAX_CACHE = 1000  # verdicts of all sessions
MAX_IN_FLIGHT = 16
CACHE_READ, CACHE_WRITE = 0.1, 1.25  # of the price of an input token
KEY_VARIABLE = "ANTHROPIC_API_KEY"


@unique
class Purpose(Enum):
    EARLY = "early"  # before it is known whether the answer is needed
    DECIDE = "decide"
    ADVICE = "advice"  # shown to a human, decides nothing


@dataclass(frozen=True, slots=True)
class Question:
    """`key` is the digest of all that the verdict rests on; `prompt` the verdict where no model is needed for it, an outage
    when it cannot be asked."""

    session: str
    key: str
    prompt: Prompt | Verdict | Failure


@dataclass(frozen=True, slots=True)
class Spent:
    """What questions cost. Tokens as the server counts them; `cost` in the currency of the configured prices."""

    requests: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        return self.input + self.output + self.cache_read + self.cache_write

    def plus(self, usage: dict[str, int], settings: ClassifierSettings) -> Spent:
        given, made, read, wrote = usage_of(usage)
        price = (given + CACHE_READ * read + CACHE_WRITE * wrote) * settings.price_input + made * settings.price_output
        return Spent(
            self.requests + 1,
            self.input + given,
            self.output + made,
            self.cache_read + read,
            self.cache_write + wrote,
            self.cost + price / 1e6,
        )


@dataclass(frozen=True, slots=True)
class Speculation:
    """Questions asked early, since the daemon started. Each is counted in `started`, and once more when it is known what
    became of it: it was needed, it was ended before its answer came, it was answered in vain, or it had failed."""

    started: int = 0
    used: int = 0
    cancelled: int = 0
    wasted: int = 0
    failed: int = 0


@dataclass(slots=True)
class Counters:
    """Since the daemon started. `cancelled` is about questions of every kind, the other figures about those that decide."""

    allowed: int = 0
    denied: int = 0
    cached: int = 0
    coalesced: int = 0
    advised: int = 0
    cancelled: int = 0
    early: Counter[str] = field(default_factory=Counter)  # by the fields of Speculation
    outages: Counter[Outage] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class ClassifierStatus:
    """What `sandboxd status` tells. `state` is the circuit's; outages stand apart from denials."""

    provider: str
    model: str
    state: str
    last_outage: str
    retry_after: float
    allowed: int
    denied: int
    cached: int
    coalesced: int
    advised: int
    cancelled: int
    speculation: Speculation
    outages: tuple[tuple[str, int], ...]
    spent: Spent
    worker: WorkerState | None


@dataclass(slots=True, eq=False)
class _Flight:
    task: asyncio.Task[Verdict | Failure]
    early: bool
    waiters: int = 0


@dataclass(slots=True)
class _Kept:
    verdict: Verdict
    until: float
    early: bool  # asked early, and not needed yet


class Classifier:
    """`clock` is monotonic, in seconds. `process`: a worker that is there already."""

    def __init__(
        self,
        settings: ClassifierSettings,
        clock: Callable[[], float] = time.monotonic,
        process: WorkerProcess | None = None,
    ) -> None:
        self.settings = settings
        self.counters = Counters()
        self.total = Spent()
        self.process = process
        self._clock = clock
        self._key = ""
        self._circuit = Circuit()
        self._flights: dict[tuple[str, str], _Flight] = {}
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._sessions: dict[str, Spent] = {}
        self._nonces: dict[str, str] = {}
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._provider: Provider | None = None
        self._running = False
        self._configure()

    @property
    def on(self) -> bool:
        return self._provider is not None

    @property
    def state(self) -> str:
        """`off`, or how the circuit is: `closed`, `open`, `half-open`."""
        return self._circuit.state(self._clock()) if self.on else "off"

    def start(self) -> None:
        """Start what the provider needs, in the background."""
        self._running = True
        if self.process is not None:
            self.process.start()

    def configure(self, settings: ClassifierSettings) -> None:
        """Put other settings in force for the questions to come; what was remembered or known of the provider is not."""
        if settings == self.settings:
            return
        before, running = self.process, self._running
        self.settings = settings
        self._circuit = Circuit()
        self._drop(lambda _: True)
        self._configure()
        if before is not None and self.process is None:
            before.stop()
        if running:
            self.start()

    def _configure(self) -> None:
        settings = self.settings
        self._provider = None
        if settings.provider is ProviderKind.ANTHROPIC:
            # Out of our own environment: nothing that we start may inherit it.
            self._key = os.environ.pop(KEY_VARIABLE, "") or self._key
            server = Server(settings.base_url, settings.api_key_file, settings.proxy, self._key)
            if self.process is None:
                self.process = WorkerProcess(server)
            else:
                self.process.configure(server)
            self._provider = Messages(self.process, settings.model)
        else:
            self.process = None
            if settings.provider is ProviderKind.COMMAND:
                self._provider = Command(settings.command, settings.command_env)

    async def close(self) -> None:
        """End everything in flight and the worker process."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.process is not None:
            await self.process.close()

    async def ask(self, question: Question, purpose: Purpose = Purpose.DECIDE) -> Verdict | Failure:
        """The verdict, or why there is none. Cancelling the last one who waits cancels the request before this returns."""
        at = (question.session, question.key)
        kept = self._kept.get(at)
        if kept is not None and self._clock() < kept.until:
            if purpose is not Purpose.EARLY:
                self.counters.early["used"] += kept.early
                self.counters.cached += not kept.early
                kept.early = False
            return self._counted(kept.verdict, purpose)
        flight = self._flights.get(at)
        if flight is None:
            known = self.refusal(question.session) if isinstance(question.prompt, Prompt) else question.prompt
            if known is not None:
                return self._counted(known, purpose)
            self._circuit = self._circuit.asked()
            self.counters.early["started"] += purpose is Purpose.EARLY
            flight = self._flights[at] = _Flight(asyncio.create_task(self._fly(question)), purpose is Purpose.EARLY)
        else:
            self.counters.coalesced += not flight.early
        if purpose is not Purpose.EARLY and flight.early:
            self.counters.early["used"] += 1
            flight.early = False
        flight.waiters += 1
        try:
            said = await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            if flight.waiters == 1 and self._flights.get(at) is flight:
                del self._flights[at]
                if flight.task.done():  # in this very moment: what it said is booked, though nobody hears it
                    self._landed(at, flight.task.result(), flight.early)
                    self.release(question)
                else:
                    self.counters.cancelled += 1
                    self.counters.early["cancelled"] += flight.early
                    self._circuit = self._circuit.withdrawn()
                    flight.task.cancel()
            raise
        finally:
            flight.waiters -= 1
        if self._flights.get(at) is flight:
            del self._flights[at]
            self._landed(at, said, flight.early)
        return self._counted(said, purpose)

    def release(self, question: Question) -> None:
        """What was asked early is not needed (any more): a verdict that nobody used was in vain."""
        kept = self._kept.get((question.session, question.key))
        if kept is not None and kept.early:
            self.counters.early["wasted"] += 1
            kept.early = False

    def forget(self, session: str) -> None:
        """A session has ended."""
        self._sessions.pop(session, None)
        self._nonces.pop(session, None)
        self._drop(lambda at: at[0] == session)

    def _drop(self, which: Callable[[tuple[str, str]], bool]) -> None:
        """Forget verdicts; one that was asked early and is forgotten now was asked in vain."""
        for at in [at for at in self._kept if which(at)]:
            self.counters.early["wasted"] += self._kept.pop(at).early

    def spent(self, session: str) -> Spent:
        return self._sessions.get(session, Spent())

    def status(self) -> ClassifierStatus:
        counters, now, circuit = self.counters, self._clock(), self._circuit
        return ClassifierStatus(
            provider=self.settings.provider.value,
            model=self.settings.model if self.settings.provider is ProviderKind.ANTHROPIC else "",
            state=self.state,
            last_outage=str(circuit.last) if circuit.last is not None else "",
            retry_after=max(circuit.until - now, 0.0),
            allowed=counters.allowed,
            denied=counters.denied,
            cached=counters.cached,
            coalesced=counters.coalesced,
            advised=counters.advised,
            cancelled=counters.cancelled,
            speculation=Speculation(**counters.early),
            outages=tuple(sorted((outage.value, count) for outage, count in counters.outages.items())),
            spent=self.total,
            worker=self.process.state() if self.process is not None else None,
        )

    # -- one flight ----------------------------------------------------------------------------------------------------

    def refusal(self, session: str) -> Failure | None:
        """Why no question of a session goes out now; None when one would."""
        if self._provider is None:
            return Failure(Outage.NO_PROVIDER)
        spent, settings = self.spent(session), self.settings
        if spent.tokens >= settings.session_tokens or 0 < settings.session_cost <= spent.cost:
            return Failure(Outage.BUDGET)
        return self._circuit.refuses(self._clock())

    async def _fly(self, question: Question) -> Verdict | Failure:
        assert self._provider is not None
        assert isinstance(question.prompt, Prompt)
        deadline = asyncio.get_running_loop().time() + self.settings.deadline
        nonce = self._nonces.setdefault(question.session, secrets.token_hex(6))
        try:
            async with asyncio.timeout_at(deadline), self._room:
                asked = Asked(question.prompt, nonce, secrets.token_hex(6), deadline)
                return await self._provider.judge(asked, lambda usage: self._meter(question.session, usage))
        except TimeoutError:
            return Failure(Outage.DEADLINE)
        except Exception as error:
            log.exception("the classifier failed")
            return Failure(Outage.WORKER_FAILED, repr(error))

    def _meter(self, session: str, usage: dict[str, int]) -> None:
        self._sessions[session] = self.spent(session).plus(usage, self.settings)
        self.total = self.total.plus(usage, self.settings)

    def _landed(self, at: tuple[str, str], said: Verdict | Failure, early: bool) -> None:
        """The first who waits books what came: the circuit, and the verdict for the next time."""
        now = self._clock()
        if isinstance(said, Failure):
            if OUTAGES[said.outage].ours:
                self._circuit = self._circuit.withdrawn()
            else:
                self._circuit = self._circuit.failed(said, now)
            self.counters.early["failed"] += early
            return
        self._circuit = self._circuit.answered()
        while len(self._kept) >= MAX_CACHE:
            self.counters.early["wasted"] += self._kept.pop(next(iter(self._kept))).early
        self._kept[at] = _Kept(said, now + self.settings.cache_ttl, early)

    def _counted(self, said: Verdict | Failure, purpose: Purpose) -> Verdict | Failure:
        """Denials and outages are counted apart, and only where they decide."""
        if purpose is Purpose.DECIDE:
            if isinstance(said, Failure):
                self.counters.outages[said.outage] += 1
            elif said.allow:
                self.counters.allowed += 1
            else:
                self.counters.denied += 1
        elif purpose is Purpose.ADVICE:
            self.counters.advised += isinstance(said, Verdict)
        return said
