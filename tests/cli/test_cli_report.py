# SPDX-License-Identifier: GPL-3.0-or-later
"""What `check`, `explain` and `rules` show a person: the words that matter marked, and nothing that is not so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandboxd.cli import main, report
from sandboxd.model import Behavior, Decision, Effect, EffectKind, Evidence, Span


def decision(*spans: tuple[int, int]) -> Decision:
    evidence = tuple(Evidence("said", Span(*span)) for span in spans)
    return Decision(Behavior.DENY, "1d", "code", "message", evidence=evidence)


MARKED = (
    ("rm -rf /", ((7, 8),), "  rm -rf /\n         ^"),
    ("ls", (), "  ls"),
    ("a\nrm b\nc", ((5, 6),), "  a\n  rm b\n     ^\n  c"),
    ("cat a \\\n  b", ((4, 11),), "  cat a \\\n      ^^^\n    b\n  ^^^"),
    ("rm \x1b[2J", ((3, 7),), "  rm \\x1b[2J\n     ^^^^^^^"),
    ("rm x", ((3, 99),), "  rm x\n     ^"),
    ("", (), "  "),
)


@pytest.mark.parametrize(("command", "spans", "expected"), MARKED, ids=[repr(row[0]) for row in MARKED])
def test_the_words_that_decided_are_marked(command: str, spans: tuple[tuple[int, int], ...], expected: str) -> None:
    """Carets stand under the very words, on every line, also where a character is shown by several."""
    assert report.source(command, decision(*spans), on=False) == expected


def test_colours_say_what_happens_to_a_word() -> None:
    """With colours a word that decided is underlined in the verdict's colour, another has its effect's; nothing else is
    added, so without the colours it is the command."""
    effects = (Effect(EffectKind.READ, "cat.operand", Span(4, 5)), Effect(EffectKind.DELETE, "rm.operand", Span(10, 11)))
    shown = report.source("cat a; rm b", decision((10, 11)), effects, on=True)
    assert shown == "  cat \x1b[36ma\x1b[0m; rm \x1b[4;31mb\x1b[0m"


def check(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[list[str]], str]:
    """Exit status, the lines in columns, and the text."""
    status = main.main(["check", *words])
    text = capsys.readouterr().out
    return status, [[cell for cell in line.split("  ") if cell] for line in text.splitlines()], text


def test_check_shows_every_effect(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What is read, written, deleted and sent stands in the table with its target, its words and the row that says so."""
    place = home / "ws"
    place.mkdir()
    monkeypatch.chdir(place)
    status, rows, text = check("--", "rm -r old; cat a > b; curl https://x.example/", capsys=capsys)
    assert status == 1
    cells = {tuple(cell.strip() for cell in row[:4]) for row in rows}
    assert ("deleted", f"{place}/old/**", "old", "rm.operand") in cells
    assert ("read", f"{place}/a", "a", "cat.operand") in cells
    assert ("written", f"{place}/b", "b", "redirect.>") in cells
    assert any(row[:2] == ("sent to", "x.example") for row in cells)
    assert "<- decided" not in text


def test_check_verbose_shows_the_waterfall(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With -v every step stands in its order, and the one that decided is pointed at."""
    monkeypatch.chdir(home)
    status, rows, _ = check("-v", "--mode", "plan", "--", "touch x", capsys=capsys)
    assert status == 126
    (decided,) = (row for row in rows if row and row[-1].strip() == "<- decided")
    assert [cell.strip() for cell in decided[:3]] == ["2p", "mode.plan", "deny"]
    assert [row[0].strip() for row in rows[-4:]] == ["parse", "effects", "facts", "waterfall"]
    assert all(row[-1].strip().endswith(("ms", "s")) for row in rows[-4:])
    assert main.main(["check", "-v", "-o", "json", "--", "touch x"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["timings"]) == {"parse", "effects", "facts", "waterfall"}
    assert [entry["step"] for entry in answer["trace"]][-1] == answer["step"] == "3"


def test_explain(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tool is explained with its options and examples, a subcommand alone, and as JSON; an unknown one is wrong usage."""
    assert main.main(["explain", "wc"]) == 0
    text = capsys.readouterr().out
    assert "wc.toml:" in text
    assert "path.read" in text
    assert main.main(["explain", "git", "remote", "add"]) == 0
    assert capsys.readouterr().out.startswith("git remote add\n")
    assert main.main(["explain", "git", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "git"
    assert main.main(["explain", "no-such-tool"]) == main.USAGE
    assert "`no-such-tool`" in capsys.readouterr().err
    assert main.main(["explain", "git", "no-such"]) == main.USAGE


RULES = (
    ("", 0, "nothing is wrong with them"),
    ('deny = ["Bash(make:*)", "Bash(make deploy:*)"]', 1, "no effect:"),
    ('allow = ["Bash(ls:*)"]', 1, "inert:"),
    ('deny = ["Bash(ls"]', 1, "malformed:"),
    ('deny = ["Bash(rm:*)"]', 0, "nothing is wrong with them"),
)


@pytest.mark.parametrize(("line", "status", "said"), RULES, ids=[row[0] or "none" for row in RULES])
def test_rules_check(line: str, status: int, said: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is malformed, without effect or not trusted among the rules is told with its place, and the exit status says it."""
    file = home / "ws/.sandboxd/settings.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f"[permissions]\n{line}\n", encoding="utf-8")
    assert main.main(["rules", "check", "--workspace", str(home / "ws")]) == status
    text = capsys.readouterr().out
    assert text.startswith(said)
    if status:
        assert f"{file}:2" in text
    assert main.main(["rules", "check", "--workspace", str(home / "ws"), "-o", "json"]) == status
    assert json.loads(capsys.readouterr().out)["valid"] is (status == 0)


def test_rules_list(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every rule in force is listed with source and place, and those that are not in force say why."""
    file = home / "ws/.sandboxd/settings.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[permissions]\ndeny = ["Bash(rm:*)"]\nallow = ["Bash(ls:*)"]\n', encoding="utf-8")
    assert main.main(["rules", "list", "--workspace", str(home / "ws")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.startswith("deny") and "Bash(rm:*)" in line and f"{file}:2" in line and line.endswith("only tightens")
        for line in lines
    )
    assert any(line.startswith("allow") and line.endswith("inert: not trusted") for line in lines)
