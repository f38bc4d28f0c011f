# SPDX-License-Identifier: GPL-3.0-or-later
"""The record keeps what happened, without secrets, across crashes, full disks and versions."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxd.errors import ConfigError, NotFound, RequestError, Unavailable
from sandboxd.model import (
    Analysis,
    AnalyzedCommand,
    Behavior,
    Consultant,
    Decision,
    Effect,
    EffectKind,
    EndKind,
    Enforcement,
    Evidence,
    Grant,
    GrantKind,
    Layer,
    LayerState,
    Opinion,
    Result,
    Span,
    Strength,
    Subcommand,
    TraceEntry,
    Usage,
    Violation,
)
from sandboxd.record.audit import Record
from sandboxd.record.schema import VERSION

DENY = Decision(
    behavior=Behavior.DENY,
    step="1d",
    reason="rule_deny",
    message="`make deploy` is denied by `Bash(make deploy:*)`",
    flip="remove the rule",
    immune=True,
    evidence=(Evidence("make deploy", Span(0, 11), "make deploy", rule="Bash(make deploy:*)", origin="x.toml:3"),),
    grants=(Grant(GrantKind.HOST, "example.com"),),
    trace=(TraceEntry("1a", "rule.tool.deny", None), TraceEntry("1d", "tool.deny", Behavior.DENY, "rule_deny")),
    suggestions=("Bash(make test:*)",),
)
ALLOW = Decision(Behavior.ALLOW, "2e", "read_only", "reads only", promise=True)
ENFORCEMENT = Enforcement("bwrap", (LayerState(Layer.FILESYSTEM, Strength.PARTIAL, ("landlock",)),), landlock_abi=7)
RESULT = Result(
    EndKind.SIGNALED,
    137,
    9,
    usage=Usage(1.5, 0.25, 0.5, 4096),
    stdout_bytes=7,
    enforcement=ENFORCEMENT,
    violations=(Violation("write", "/x", "workspace"),),
    notes=("a note",),
)
SPAN = Span(0, 4)
ANALYSIS = Analysis(
    text="make",
    cwd="/w",
    commands=(
        AnalyzedCommand(
            Subcommand((), SPAN), ("make", None), (Effect(EffectKind.OPAQUE, "make", SPAN, target="Makefile"),), via="bash -c"
        ),
    ),
    destructive=True,
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "record.db")


@pytest.fixture
def record(path: str) -> Iterator[Record]:
    opened = Record(path)
    yield opened
    opened.close()


async def decide(record: Record, number: int, decision: Decision = ALLOW, text: str = "make", **options: Any) -> None:
    values: dict[str, Any] = {"session_id": f"s{number % 2}", "execution_id": f"e{number}", "cwd": "/w", "mode": "default"}
    await record.record_decision(decision_id=f"d{number}", text=text, decision=decision, **(values | options))


class TestDecisions:
    async def test_comes_back_whole(self, record: Record) -> None:
        """A decision is read back with its whole trace, equal to what was decided."""
        made = await record.record_decision(
            decision_id="d1",
            session_id="s1",
            execution_id="e1",
            text="make deploy",
            cwd="/w",
            mode="plan",
            decision=DENY,
            analysis=ANALYSIS,
            at=12.5,
            durable=True,
        )
        read = record.decision("d1")
        assert read.decision == DENY == made.decision
        assert (read.text, read.cwd, read.mode, read.at, read.row) == ("make deploy", "/w", "plan", 12.5, 1)
        analysis = json.loads(read.analysis)
        assert analysis["destructive"] is True
        assert analysis["commands"] == [
            {
                "argv": ["make", None],
                "via": "bash -c",
                "span": [0, 4],
                "effects": [{"kind": "opaque", "because": "make", "span": [0, 4], "target": "Makefile"}],
            }
        ]

    async def test_read_your_writes(self, record: Record) -> None:
        """A read sees what was handed in before it, though nobody awaited the commit."""
        for number in range(50):
            await decide(record, number)
            assert record.decision(f"d{number}").decision == ALLOW

    async def test_lists_and_pages(self, record: Record) -> None:
        """Lists come newest first, by session and behaviour, and page by row number."""
        for number in range(10):
            await decide(record, number, DENY if number % 3 == 0 else ALLOW)
        assert [row.decision_id for row in record.decisions(limit=3)] == ["d9", "d8", "d7"]
        assert [row.decision_id for row in record.decisions(limit=3, before=record.decision("d7").row)] == ["d6", "d5", "d4"]
        assert [row.decision_id for row in record.decisions("s1", Behavior.DENY)] == ["d9", "d3"]
        assert len(record.decisions(behavior=(Behavior.DENY, Behavior.ALLOW))) == 10
        assert record.decisions("nobody") == ()

    def test_unknown(self, record: Record) -> None:
        """What is not there is NotFound; an unreasonable page is refused."""
        with pytest.raises(NotFound):
            record.decision("nope")
        with pytest.raises(NotFound):
            record.execution("nope")
        for limit in (0, 1001):
            with pytest.raises(RequestError):
                record.decisions(limit=limit)

    async def test_no_secrets_in_the_file(self, record: Record, path: str) -> None:
        """Neither text, nor evidence, nor analysis brings a secret into the file; quotes in it do not break the JSON."""
        secret = "hun'ter\"2\\x"
        text = f"API_TOKEN=abcdef123 curl -u me:xyzzy42 -d '{secret}'"
        bad = Decision(Behavior.ASK, "3", "default", f"because {text}", evidence=(Evidence(f'password="{text}'),))
        analysis = Analysis(text, "/w", (AnalyzedCommand(Subcommand((), SPAN), (text,), ()),))
        await decide(record, 1, bad, text, analysis=analysis, durable=True, secrets=(secret,))
        row = record.decision("d1")
        assert json.loads(row.analysis)
        assert "[redacted" in row.decision.message
        record.close()
        kept = b"".join(each.read_bytes() for each in Path(path).parent.iterdir())
        for needle in (b"abcdef123", b"xyzzy42", b'ter\\"2', b'ter"2'):
            assert needle not in kept

    async def test_names_that_are_no_text(self, record: Record) -> None:
        """A path with bytes that are no UTF-8 is kept readable, and its decision comes back whole."""
        odd = os.fsdecode(b"/w/caf\xe9")
        decision = Decision(Behavior.ASK, "3", "default", f"writes `{odd}`")
        await decide(record, 1, decision, f"touch {odd}", cwd=odd, durable=True)
        row = record.decision("d1")
        assert row.decision == decision
        assert row.cwd == "/w/caf\\udce9"
        assert list(record.export())


class TestExecutions:
    async def test_life(self, record: Record) -> None:
        """An execution is open while it runs and closed with its whole result."""
        await decide(record, 1, text="make x")
        record.record_execution_started("e1", "s1", "d1", "workspace", ENFORCEMENT, at=1.0)
        running = record.execution("e1")
        assert (running.end, running.result, running.finished) == (None, None, None)
        assert (running.text, running.cwd, running.profile, running.enforcement) == ("make x", "/w", "workspace", ENFORCEMENT)
        record.record_execution_finished("e1", RESULT, at=2.0)
        (ended,) = record.executions("s1")
        assert (ended.end, ended.result, ended.started, ended.finished) == (EndKind.SIGNALED, RESULT, 1.0, 2.0)

    async def test_never_started(self, record: Record) -> None:
        """A denied execution has a row too, tied to its last decision."""
        await decide(record, 1, ALLOW)
        await record.record_decision(
            decision_id="d2", session_id="s1", execution_id="e1", text="x", cwd="/", mode="plan", decision=DENY
        )
        record.record_execution_finished("e1", Result(EndKind.DENIED, 126))
        row = record.execution("e1")
        assert (row.session_id, row.decision_id, row.end, row.started) == ("s1", "d2", EndKind.DENIED, None)

    def test_restart(self, path: str) -> None:
        """What a killed daemon left open is closed as daemon_restart at the next start; what runs elsewhere is not."""
        code = (
            "import os, sys; from sandboxd.record.audit import Record; r = Record(sys.argv[1])\n"
            "r.record_execution_started('dead', 's', 'd', 'p', None); r.record_execution_finished('ended', __import__("
            "'sandboxd.model').model.Result(__import__('sandboxd.model').model.EndKind.EXITED, 0)); r.flush()\n"
            "print(flush=True); sys.stdin.read() if sys.argv[2] == 'live' else os.kill(os.getpid(), 9)"
        )
        dead = subprocess.run([sys.executable, "-c", code, path, "die"], check=False, stdout=subprocess.PIPE)
        assert dead.returncode == -9
        code = code.replace("'dead'", "'live'").replace("'ended'", "'ended2'")
        with subprocess.Popen([sys.executable, "-c", code, path, "live"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as live:
            assert live.stdout is not None
            live.stdout.readline()
            record = Record(path)
            assert record.close_open_executions("daemon_restart") == 1
            row = record.execution("dead")
            assert row.result == Result(EndKind.DAEMON_RESTART, 125, cause="daemon_restart")
            assert record.execution("live").end is None
            assert record.execution("ended").end is EndKind.EXITED
            assert record.close_open_executions("daemon_restart") == 0
            record.close()
            live.communicate()


class TestOthers:
    def test_approvals(self, record: Record) -> None:
        """An answer is kept with who gave it."""
        opinion = Opinion(Consultant.APPROVAL, Behavior.ALLOW, "fine", name="ada", latency=2.5)
        record.record_approval("a1", "e1", "s1", opinion, scope="always", rule="Bash(make:*)", at=3.0)
        (row,) = record.approvals("s1")
        assert (row.verdict, row.who, row.scope, row.rule, row.latency) == (
            Behavior.ALLOW,
            "ada",
            "always",
            "Bash(make:*)",
            2.5,
        )

    def test_open_questions_expire_with_their_daemon(self, tmp_path: Path) -> None:
        """What waited for a human when the daemon died is recorded as expired, once; what was answered stays as it was."""
        path = f"{tmp_path}/r.db"
        before = Record(path)
        before.record_approval_asked("a1", "e1", "s1", at=1.0)
        before.record_approval_asked("a2", "e2", "s1", at=1.0)
        before.record_approval("a2", "e2", "s1", Opinion(Consultant.APPROVAL, Behavior.ALLOW, "", name="ada"))
        before.close()
        after = Record(path)
        assert after.close_open_approvals("approval_expired: gone", at=5.0) == 1
        rows = {row.approval_id: row for row in after.approvals("s1")}
        assert (rows["a1"].verdict, rows["a1"].who, rows["a1"].reason) == (Behavior.DENY, "", "approval_expired: gone")
        assert rows["a1"].latency == 4.0
        assert rows["a2"].verdict is Behavior.ALLOW
        assert after.close_open_approvals("approval_expired: gone") == 0
        after.close()

    def test_sessions(self, record: Record) -> None:
        """A session's row follows its mode."""
        record.record_session("s1", "/w", "default", at=1.0)
        record.record_session("s1", "/w", "plan", profile="ci", at=2.0)
        (row,) = record.sessions()
        assert (row.mode, row.profile, row.workspace) == ("plan", "ci", "/w")

    async def test_export(self, record: Record) -> None:
        """Export gives every row as one line of JSON."""
        record.record_session("s1", "/w", "default")
        for number in range(3):
            await decide(record, number, DENY)
        record.record_execution_started("e1", "s1", "d1", "workspace", ENFORCEMENT)
        record.record_approval("a1", "e1", "s1", Opinion(Consultant.APPROVAL, Behavior.DENY, "no", name="ada"))
        lines = [json.loads(line) for line in record.export()]
        assert [line["kind"] for line in lines] == ["session", "decision", "decision", "decision", "execution", "approval"]
        assert lines[1]["decision"]["trace"][1]["name"] == "tool.deny"
        assert lines[4]["enforcement"]["backend"] == "bwrap"

    async def test_many_threads(self, record: Record) -> None:
        """Callers on many threads lose nothing."""

        def work(base: int) -> None:
            for number in range(100):
                asyncio.run(decide(record, base * 1000 + number, durable=number % 20 == 0))

        threads = [threading.Thread(target=work, args=(base,)) for base in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(record.decisions(limit=1000)) == 400

    async def test_cancelled_waiter(self, record: Record) -> None:
        """A caller that stops waiting for the disk neither loses the entry nor harms the writer."""
        task = asyncio.create_task(decide(record, 1, DENY, durable=True))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert record.decision("d1").decision == DENY

    async def test_duplicate_costs_itself_only(self, record: Record, caplog: pytest.LogCaptureFixture) -> None:
        """An entry that the database refuses fails alone; its neighbours are kept."""
        await decide(record, 1)
        with pytest.raises(Unavailable):
            await decide(record, 1, durable=True)
        await decide(record, 2, durable=True)
        assert len(record.decisions()) == 2
        assert "cannot be written" in caplog.text

    async def test_closed(self, record: Record) -> None:
        """After close nothing is taken, and a durable caller is told."""
        record.close()
        with pytest.raises(Unavailable):
            await decide(record, 1, durable=True)


class TestFile:
    def test_private(self, path: str) -> None:
        """Only its user can read the file and its companions, whatever the umask and whatever it was before."""
        Path(path).touch(0o644)
        record = Record(path)
        record.record_session("s1", "/w", "default")
        record.flush()
        for name in os.listdir(os.path.dirname(path)):
            assert stat.S_IMODE(os.stat(f"{os.path.dirname(path)}/{name}").st_mode) == 0o600
        record.close()

    def test_reopen(self, path: str) -> None:
        """What was written is there after a reopen."""
        first = Record(path)
        first.record_session("s1", "/w", "default")
        first.close()
        first.close()
        second = Record(path)
        assert len(second.sessions()) == 1
        second.close()

    def test_newer_schema(self, path: str) -> None:
        """A record of a newer sandboxd is refused with both versions and what to do, and left unchanged."""
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
        connection.close()
        with pytest.raises(ConfigError, match=rf"{path}: .*schema {VERSION + 1}.*up to {VERSION}.*; run the newer"):
            Record(path)

    def test_not_a_database(self, path: str) -> None:
        """Something else at that path is an error with its path and the fix."""
        Path(path).write_text("hello " * 1000)
        with pytest.raises(ConfigError, match="move the file away"):
            Record(path)

    def test_symlink(self, path: str, tmp_path: Path) -> None:
        """A link in place of the file is not followed."""
        (tmp_path / "other").touch()
        os.symlink(tmp_path / "other", path)
        with pytest.raises(ConfigError):
            Record(path)

    def test_no_directory(self, tmp_path: Path) -> None:
        """A missing directory is named."""
        with pytest.raises(ConfigError, match="No such file"):
            Record(str(tmp_path / "no" / "record.db"))


DISK_FULL = """
import asyncio, os, resource, sys
from sandboxd.errors import Unavailable
from sandboxd.model import Behavior, Decision
from sandboxd.record.audit import Record

async def main():
    record = Record(sys.argv[1])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    decision = Decision(Behavior.ALLOW, "2e", "read_only", "m" * 5000)
    async def put(number, durable=False):
        await record.record_decision(decision_id=f"d{number}", session_id="s", execution_id="e", text="x", cwd="/", mode="m",
                                     decision=decision, durable=durable)
    number = 0
    while not record.error:
        await put(number)
        record.flush()
        number += 1
    try:
        await put("refused")
    except Unavailable as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await put("after")
    assert record.error == "", record.error
    rows = [row.decision_id for row in record.decisions(limit=1000)]
    assert rows == ["dafter", *(f"d{n}" for n in reversed(range(number)))], rows
    record.close()

asyncio.run(main())
"""


def test_disk_full(path: str) -> None:
    """While the disk refuses, callers are told and nothing passes unrecorded; afterwards the backlog is written in order."""
    done = subprocess.run([sys.executable, "-c", DISK_FULL, path], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the record cannot be written" in done.stdout


async def test_what_is_in_no_hurry(path: str) -> None:
    """A lazy decision is read as soon as it is asked for, goes along with a durable one, and is there after a close."""
    record = Record(path)
    await decide(record, 1, lazy=True)
    assert record.decision("d1").decision == ALLOW
    await decide(record, 2, lazy=True)
    await decide(record, 3, durable=True)
    with sqlite3.connect(path) as reader:
        assert [name for (name,) in reader.execute("SELECT id FROM decisions ORDER BY row")] == ["d1", "d2", "d3"]
    reader.close()
    await decide(record, 4, lazy=True)
    await asyncio.to_thread(record.close)
    with sqlite3.connect(path) as reader:
        assert reader.execute("SELECT COUNT(*) FROM decisions").fetchone() == (4,)
    reader.close()
