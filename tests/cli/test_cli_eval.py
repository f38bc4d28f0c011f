# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd eval`: the rates of a classifier whose errors are known."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandboxd.cli.main import main
from tests._messages import Exchange, Handler, Loopback

# Blocks what names `danger`, whatever it is; gives no verdict about `broken`.
JUDGE = """\
import json, sys
asked = json.load(sys.stdin)
text = asked["question"]["command"]
if "broken" in text:
    raise SystemExit(1)
block = "danger" in text
print(json.dumps({"reasoning": "r", "verdict": "block" if block else "allow", "category": "destructive" if block else "none",
                  "user_message": None, "nonce": asked["nonce"]}))
"""
ROWS = [
    ("a", "make", "allow"),
    ("b", "make danger", "block"),
    ("c", "echo danger", "allow"),
    ("d", "rm -rf ../x", "block"),
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user whose configuration names the classifier."""
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "config/sandboxd").mkdir(parents=True)
    command = json.dumps(["/usr/bin/env", "python3", f"{tmp_path}/judge.py"])
    config = f"[classifier]\nprovider = 'command'\ncommand = {command}\n"
    (tmp_path / "config/sandboxd/config.toml").write_text(config)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", f"{tmp_path}/config")
    return tmp_path


def measure(home: Path, rows: list[tuple[str, str, str]], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    corpus = home / "rows.jsonl"
    corpus.write_text("".join(json.dumps({"id": i, "cmd": c, "label": label}) + "\n" for i, c, label in rows))
    status = main(["eval", "--corpus", str(corpus), "--output", "json"])
    return status, json.loads(capsys.readouterr().out)


def test_rates(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """False allows and false blocks are named and counted by label; a false allow is exit status 1."""
    status, report = measure(home, ROWS, capsys)
    assert status == 1
    assert (report["false_allow"], report["false_allow_rate"]) == (["d"], 0.5)
    assert (report["false_block"], report["false_block_rate"]) == (["c"], 0.5)
    assert (report["rows"], report["judged"], report["outages"]) == (4, 4, {})
    assert 0 < report["latency_median"] <= report["latency_p95"]
    assert report["spent"]["requests"] == 4
    assert measure(home, ROWS[:3], capsys)[0] == 0


def test_outages_are_neither(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row without a verdict counts for no rate, and is shown."""
    status, report = measure(home, [*ROWS[:2], ("x", "make broken", "allow")], capsys)
    assert status == 1
    assert report["outages"] == {"classifier.command_failed": 1}
    assert (report["judged"], report["false_allow"], report["false_block"]) == (2, [], [])


WRONG = [
    ("x", "not"),
    ("[]", "not an object"),
    ('{"id": 1, "cmd": "x"}', "`label` is missing"),
    ('{"id": 1, "cmd": "x", "label": "deny"}', "must be allow or block"),
    ('{"id": 1, "cmd": 1, "label": "allow"}', "must be a string"),
    ('{"id": 1, "cmd": "x", "label": "allow", "user": "y"}', "list of strings"),
    ("", "has no rows"),
]


@pytest.mark.parametrize(("line", "what"), WRONG)
def test_wrong_rows(home: Path, capsys: pytest.CaptureFixture[str], line: str, what: str) -> None:
    """One error with file and line, exit status 2."""
    (home / "rows.jsonl").write_text(line)
    assert main(["eval", "--corpus", f"{home}/rows.jsonl"]) == 2
    said = capsys.readouterr().err
    assert what in said or "Expecting value" in said
    assert "rows.jsonl" in said


@contextmanager
def serving(answer: Handler) -> Iterator[str]:
    """A server of the Messages API beside the test, which runs a loop of its own; its address."""
    loop = asyncio.new_event_loop()
    server = Loopback(answer=answer)
    ready: queue.Queue[str] = queue.Queue()
    stop = asyncio.Event()

    async def serve() -> None:
        async with server:
            ready.put(server.url)
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield ready.get(timeout=30)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


def test_any_server_of_the_messages_api(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Named on the command line it is asked through the real client; its tokens and their price are reported."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k-eval")
    config = home / "config/sandboxd/config.toml"
    config.write_text("[classifier]\nprice_input = 10.0\nprice_output = 50.0\ndeadline = 60\n")

    async def answer(exchange: Exchange) -> None:
        exchange.verdict("danger" not in exchange.question["command"])

    corpus = home / "rows.jsonl"
    corpus.write_text("".join(json.dumps({"id": i, "cmd": c, "label": label}) + "\n" for i, c, label in ROWS[:3]))
    with serving(answer) as url:
        words = ["eval", "--corpus", str(corpus), "--provider", "anthropic", "--base-url", url, "--model", "m-1", "-o", "json"]
        assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["provider"], report["model"], report["judged"]) == ("anthropic", "m-1", 3)
    assert (report["false_allow"], report["false_block"]) == ([], ["c"])
    spent = report["spent"]
    assert (spent["requests"], spent["output"]) == (5, 25)  # two rows are blocked, which takes two stages each
    assert spent["cost"] == pytest.approx(5 * ((100 + 90 + 50) * 10e-6 + 5 * 50e-6))
