# SPDX-License-Identifier: GPL-3.0-or-later
"""The iron gate: every way in which a classifier can fail ends, in time, in an outage with its own code; never in an allow.

The real client in the real worker process speaks to a loopback server.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandboxd.analyze import analyze
from sandboxd.config import ClassifierSettings, ProviderKind
from sandboxd.consult import classifier_process
from sandboxd.consult.classifier import KEY_VARIABLE, Classifier, Purpose, Question, Speculation
from sandboxd.consult.classifier_process import Server, WorkerProcess
from sandboxd.consult.classifier_prompt import Matter, build
from sandboxd.consult.verdict import Failure, Outage, Verdict
from sandboxd.model import AnalysisContext, Facts, Scope
from tests._messages import Exchange, Handler, Loopback, allow, block
from tests._outages import SAID, TIMED, body, says, silent, status

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEADLINE = 30.0  # seconds; no row that is not about time comes near it, however busy the machine is
SHORT = 4.0  # seconds, for rows about time: the worker gives up at half of it, so that it is the one who says why
SLACK = 5.0  # for a busy machine
KEY = "k-loopback"
READY = '{"op": "ready"}'


def question(text: str = "make install", *, cautious: bool = False, key: str = "") -> Question:
    analysis = analyze(text, AnalysisContext("/home/ada/proj", "/home/ada", "/home/ada/proj"))
    matter = Matter(analysis, Facts(), Scope("/home/ada/proj", "/home/ada"), cautious=cautious)
    return Question("s-1", key or text, build(matter, 50_000))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def worker() -> AsyncIterator[WorkerProcess]:
    process = WorkerProcess(Server(key=KEY))
    assert await process.ready()
    yield process
    await process.close()


@pytest_asyncio.fixture(loop_scope="module")
async def server() -> AsyncIterator[Loopback]:
    async with Loopback() as loopback:
        yield loopback


def classifier(url: str, worker: WorkerProcess | None, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Classifier:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    settings = ClassifierSettings(provider=ProviderKind.ANTHROPIC, base_url=url, deadline=DEADLINE)
    return Classifier(replace(settings, **more), process=worker)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(("name", "bad", "outage"), SAID, ids=[row[0] for row in SAID])
async def test_a_bad_answer_is_an_outage(
    name: str,
    bad: Handler,
    outage: Outage,
    stage: int,
    worker: WorkerProcess,
    server: Loopback,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In either stage, with its own code, before the deadline, counted apart from denials."""
    deadline = SHORT if outage in TIMED else DEADLINE
    monkeypatch.setattr(classifier_process, "MARGIN", 0.5)
    monkeypatch.setattr(classifier_process, "MOST_MARGIN", SHORT / 2)

    async def answer(exchange: Exchange) -> None:
        await (bad(exchange) if exchange.stage == stage else block(exchange))

    server.answer = answer
    asked = classifier(server.url, worker, monkeypatch, deadline=deadline)
    begin = asyncio.get_running_loop().time()
    said = await asked.ask(question())
    assert asyncio.get_running_loop().time() - begin < deadline + SLACK
    assert isinstance(said, Failure), said
    assert said.outage is outage
    status = asked.status()
    assert status.outages == ((outage.value, 1),)
    assert (status.allowed, status.denied) == (0, 0)
    assert status.last_outage or outage is Outage.TOO_LARGE


async def test_all_tries_have_one_deadline(worker: WorkerProcess, server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a try and the wait after it took is gone for the next one."""

    async def late(exchange: Exchange) -> None:
        await (status(429, retry_after="5")(exchange) if len(server.requests) == 1 else silent(exchange))

    server.answer = late
    loop = asyncio.get_running_loop()
    begin = loop.time()
    said = await classifier(server.url, worker, monkeypatch, deadline=6.0).ask(question())
    assert isinstance(said, Failure)
    assert said.outage in (Outage.NO_RESPONSE, Outage.DEADLINE)
    assert len(server.requests) == 2
    assert 5.0 < loop.time() - begin < 9.0  # a deadline for each would be eleven


NONCES = ["allow 000000000000", '{"reasoning":"","verdict":"allow","category":"none","user_message":null,"nonce":"0"}']


@pytest.mark.parametrize("stage", [1, 2])
async def test_a_wrong_nonce_is_an_outage(
    stage: int, worker: WorkerProcess, server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer to another question, or one that was guessed."""
    server.answer = says(NONCES[stage - 1])
    said = await classifier(server.url, worker, monkeypatch).ask(question(cautious=stage == 2))
    assert isinstance(said, Failure)
    assert said.outage is Outage.WRONG_NONCE


def closed_port() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


# A name too long for the protocol fails in the resolver, with or without a network.
NO_NAME = f"http://{'.'.join(['a' * 60] * 5)}"


@pytest.mark.parametrize(("url", "outage"), [(closed_port(), Outage.REFUSED), (NO_NAME, Outage.DNS)], ids=["refused", "dns"])
async def test_no_connection_is_an_outage(
    url: str, outage: Outage, worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens, or the name is nobody's."""
    begin = asyncio.get_running_loop().time()
    said = await classifier(url, worker, monkeypatch).ask(question())
    assert isinstance(said, Failure)
    assert said.outage is outage
    assert asyncio.get_running_loop().time() - begin < DEADLINE + SLACK


async def test_no_key_is_an_outage_and_nothing_is_sent(
    worker: WorkerProcess, server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key file that is not there."""
    asked = classifier(server.url, worker, monkeypatch, api_key_file="/nonexistent/key")
    said = await asked.ask(question())
    assert isinstance(said, Failure)
    assert said.outage is Outage.NO_KEY
    assert server.requests == []


async def test_the_key_comes_from_its_file(
    worker: WorkerProcess, server: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker reads it; the daemon never does."""
    (tmp_path / "key").write_text("k-from-file\n")
    asked = classifier(server.url, worker, monkeypatch, api_key_file=f"{tmp_path}/key")
    assert isinstance(await asked.ask(question()), Verdict)
    assert [exchange.key for exchange in server.requests] == ["k-from-file"]


async def test_no_provider_is_an_outage() -> None:
    """The default."""
    said = await Classifier(ClassifierSettings()).ask(question())
    assert said == Failure(Outage.NO_PROVIDER)


async def test_over_long_input_is_an_outage_and_nothing_is_sent(
    worker: WorkerProcess, server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing of the provider's health: the next question goes out."""
    asked = classifier(server.url, worker, monkeypatch)
    for _ in range(5):
        assert await asked.ask(question("echo " + "x" * 60_000)) == Failure(Outage.INPUT_TOO_LONG)
    assert server.requests == []
    assert isinstance(await asked.ask(question()), Verdict)


async def test_a_worker_that_is_killed_is_an_outage_and_comes_back(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question under way ends at once; the next life answers. Nothing of the key stays in our environment."""
    asked = classifier(server.url, None, monkeypatch, deadline=60.0)
    assert asked.process is not None
    try:
        server.answer = server.hold
        task = asyncio.create_task(asked.ask(question()))
        await server.arrived.get()
        asked.process.kill()
        said = await task
        assert isinstance(said, Failure)
        assert said.outage is Outage.WORKER_DIED
        server.answer = allow
        assert await asked.ask(question()) == Verdict(True, reason="nothing speaks against it")
        assert asked.process.starts == 2
        assert server.requests[-1].key == KEY
        assert KEY_VARIABLE not in os.environ
    finally:
        await asked.close()


@pytest.mark.parametrize(
    ("program", "outage", "ready", "seconds"),
    [
        ("raise SystemExit(1)", Outage.WORKER_FAILED, False, DEADLINE),
        ("print('rubbish', flush=True); input()", Outage.WORKER_FAILED, False, DEADLINE),
        ("print('x' * 4_000_000, flush=True); input()", Outage.WORKER_FAILED, False, DEADLINE),
        ("input()\nwhile True: input()", Outage.WORKER_STARTING, False, 0.4),
        (f"print('{READY}', flush=True)\nwhile True: input()", Outage.DEADLINE, True, 0.4),
        (
            f"print('{READY}', flush=True)\nwhile 'ask' not in input(): pass\nprint('{{}}', flush=True)",
            Outage.WORKER_DIED,
            True,
            DEADLINE,
        ),
    ],
)
async def test_a_worker_that_does_not_work_is_an_outage(
    program: str, outage: Outage, ready: bool, seconds: float, tmp_path: Path
) -> None:
    """It ends, talks rubbish, never becomes ready, or never answers."""
    (tmp_path / "worker.py").write_text(program)
    process = WorkerProcess(Server(key=KEY), f"{tmp_path}/worker.py")
    try:
        assert not ready or await process.ready()
        said, _ = await process.send({}, seconds)
        assert isinstance(said, Failure)
        assert said.outage is outage
    finally:
        await process.close()


async def test_a_worker_that_keeps_dying_is_started_ever_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each time twice as late, up to a bound; meanwhile questions fail at once. Its state says how often, and where it is."""
    monkeypatch.setattr(classifier_process, "FIRST_WAIT", 0.002)
    monkeypatch.setattr(classifier_process, "LONGEST_WAIT", 0.01)
    (tmp_path / "worker.py").write_text("raise SystemExit(1)")
    process = WorkerProcess(Server(key=KEY), f"{tmp_path}/worker.py")
    try:
        async with asyncio.timeout(60):
            while process.starts < 6:
                assert not await process.ready()
        waits = [record.args[0] for record in caplog.records if isinstance(record.args, tuple) and record.args]
        assert waits[:4] == [0.004, 0.008, 0.01, 0.01]
    finally:
        await process.close()
    assert process.state() is None


async def test_the_state_of_a_worker(worker: WorkerProcess) -> None:
    """Its process, whether it can answer, how often it was started again, what it holds in memory."""
    state = worker.state()
    assert state is not None
    assert worker.process is not None
    assert (state.pid, state.ready, state.restarts) == (worker.process.pid, True, worker.starts - 1)
    assert state.memory > 10 << 20


# -- programs ------------------------------------------------------------------------------------------------------------

PROGRAM = """\
import json, sys
asked = json.load(sys.stdin)
said = {"reasoning": "r", "verdict": "allow", "category": "none", "user_message": None, "nonce": asked["nonce"]}
"""
PROGRAMS: tuple[tuple[str, Outage | bool], ...] = (
    ("print(json.dumps(said))", True),
    ("said['verdict'] = 'block'; print(json.dumps(said))", False),
    ("said['nonce'] = 'x'; print(json.dumps(said))", Outage.WRONG_NONCE),
    ("del said['nonce']; print(json.dumps(said))", Outage.WRONG_NONCE),
    ("print('allow')", Outage.SCHEMA),
    ("", Outage.EMPTY),
    ("sys.stdout.buffer.write(b'\\xff')", Outage.NOT_JSON),
    ("print('x' * 100_000)", Outage.BODY_TOO_LONG),
    ("print(json.dumps(said)); raise SystemExit(3)", Outage.COMMAND_FAILED),
    ("import signal; signal.pause()", Outage.DEADLINE),
)


@pytest.mark.parametrize(("program", "expected"), PROGRAMS)
async def test_any_program_may_be_the_classifier(program: str, expected: Outage | bool, tmp_path: Path) -> None:
    """JSON in, a strict verdict out; whatever else it does is an outage."""
    (tmp_path / "judge.py").write_text(PROGRAM + program)
    settings = ClassifierSettings(
        provider=ProviderKind.COMMAND,
        command=("/usr/bin/env", "python3", f"{tmp_path}/judge.py"),
        deadline=0.5 if expected is Outage.DEADLINE else DEADLINE,
    )
    said = await Classifier(settings).ask(question())
    assert (said.outage if isinstance(said, Failure) else said.allow) == expected


async def test_a_program_that_is_not_there_is_an_outage() -> None:
    """Named wrongly."""
    settings = ClassifierSettings(provider=ProviderKind.COMMAND, command=("/nonexistent/judge",))
    said = await Classifier(settings).ask(question())
    assert isinstance(said, Failure)
    assert said.outage is Outage.COMMAND_FAILED


# -- recovery, budgets, memory -------------------------------------------------------------------------------------------


async def test_an_outage_heals_without_a_restart(
    worker: WorkerProcess, server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After three outages nobody waits; when the pause is over one question tries, and its answer closes the circuit."""
    now = 1000.0
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    settings = ClassifierSettings(provider=ProviderKind.ANTHROPIC, base_url=server.url, deadline=5.0)
    asked = Classifier(settings, clock=lambda: now, process=worker)
    server.answer = body(b"{}")
    for number in range(3):
        assert asked.status().state == "closed"
        await asked.ask(question(key=f"q{number}"))
    assert asked.status().state == "open"
    sent = len(server.requests)
    said = await asked.ask(question())
    assert isinstance(said, Failure)
    assert said.outage is Outage.SCHEMA
    assert said.retry_after > 0
    assert len(server.requests) == sent
    now += 10
    assert asked.status().state == "half-open"
    await asked.ask(question(key="trial"))
    assert asked.status().state == "open"
    now += 10
    server.answer = allow
    assert isinstance(await asked.ask(question()), Verdict)
    assert asked.status().state == "closed"


async def test_a_session_has_its_budget(worker: WorkerProcess, server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens and money are counted from the usage block; what is used up is unavailable, for that session only."""
    asked = classifier(server.url, worker, monkeypatch, session_tokens=2000, price_input=10.0, price_output=50.0)
    await asked.ask(question(key="1"))
    spent = asked.spent("s-1")
    assert (spent.requests, spent.tokens) == (1, 1045)
    assert spent.cost == pytest.approx((100 + 90 + 50) * 10e-6 + 5 * 50e-6)
    await asked.ask(question(key="2"))
    assert await asked.ask(question(key="3")) == Failure(Outage.BUDGET)
    assert isinstance(await asked.ask(replace(question(key="3"), session="s-2")), Verdict)
    assert asked.status().state == "closed"
    money = classifier(server.url, worker, monkeypatch, session_cost=0.001, price_input=10.0)
    await money.ask(question())
    assert await money.ask(question(key="2")) == Failure(Outage.BUDGET)


async def test_equal_questions_are_one_request_and_are_remembered(
    worker: WorkerProcess, server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In flight they are joined; afterwards the verdict is kept for its time, per session and key. Outages are not."""
    now = 1000.0
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    asked = Classifier(
        ClassifierSettings(provider=ProviderKind.ANTHROPIC, base_url=server.url), clock=lambda: now, process=worker
    )
    assert {v.allow for v in await asyncio.gather(*(asked.ask(question()) for _ in range(5))) if isinstance(v, Verdict)} == {True}
    assert (len(server.requests), asked.counters.coalesced) == (1, 4)
    await asked.ask(question())
    assert (len(server.requests), asked.counters.cached) == (1, 1)
    await asked.ask(replace(question(), session="s-2"))
    await asked.ask(question(key="another"))
    assert len(server.requests) == 3
    now += 301
    await asked.ask(question())
    assert len(server.requests) == 4
    server.answer = body(b"{}")
    await asked.ask(question(key="bad"))
    await asked.ask(question(key="bad"))
    assert len(server.requests) == 6


async def test_a_cancelled_question_reaches_the_server_at_once(
    worker: WorkerProcess, server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is closed, but only when nobody else waits for the same answer (benchmarks/ say how soon)."""
    asked = classifier(server.url, worker, monkeypatch, deadline=30.0)
    loop = asyncio.get_running_loop()
    server.answer = server.hold
    took = []
    for number in range(7):
        tasks = [asyncio.create_task(asked.ask(question(key=str(number)), Purpose.EARLY)) for _ in range(2)]
        await server.arrived.get()
        tasks[0].cancel()
        await asyncio.wait((tasks[0],))
        assert server.left.empty()
        begin = loop.time()
        tasks[1].cancel()
        await asyncio.wait((tasks[1],))
        took.append(await server.left.get() - begin)
    assert min(took) < SLACK
    status = asked.status()
    assert (status.cancelled, status.outages, status.state) == (7, (), "closed")


async def test_figures_of_what_was_asked_early(worker: WorkerProcess, server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    """Used when it decided, wasted when its verdict was released unused."""
    asked = classifier(server.url, worker, monkeypatch)
    await asked.ask(question(key="a"), Purpose.EARLY)
    await asked.ask(question(key="a"))
    asked.release(question(key="a"))
    await asked.ask(question(key="b"), Purpose.EARLY)
    asked.release(question(key="b"))
    asked.release(question(key="b"))
    status = asked.status()
    assert (status.speculation, status.cancelled, status.cached) == (Speculation(started=2, used=1, wasted=1), 0, 0)
    assert len(server.requests) == 2


async def test_an_obedient_model_is_not_believed(
    worker: WorkerProcess, server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that says whatever the command tells it to say allows nothing, in either stage."""
    corpus = Path(__file__).parent.parent / "corpus/classifier_injections.jsonl"
    asked = classifier(server.url, worker, monkeypatch, deadline=30.0)
    for line in corpus.read_text().splitlines():
        row = json.loads(line)

        async def obey(exchange: Exchange, reply: str = row["reply"]) -> None:
            exchange.message(reply)

        server.answer = obey
        for cautious in (False, True):
            asked._circuit = type(asked._circuit)()
            said = await asked.ask(question(row["cmd"], cautious=cautious, key=f"{row['id']}{cautious}"))
            assert isinstance(said, Failure), row["id"]
