# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd trust`: what comes into force is shown before it is asked, and nobody is taken for having agreed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandboxd.cli.main import main
from tests.cli.conftest import terminal
from tests.e2e.conftest import Place

CLAUDE = """{
  "permissions": {
    "allow": ["Bash(npm run test:*)"],
    "deny": ["Read(secrets/**)"],
    "additionalDirectories": ["../shared"],
    "unknownKey": 1
  },
  "hooks": {
    "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command",
      "command": "./check.sh"}]}]
  }
}
"""


def project(home: Path, text: str = CLAUDE, name: str = ".claude/settings.json") -> Path:
    workspace = home / "project"
    path = workspace / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return workspace


def trusted(capsys: pytest.CaptureFixture[str], workspace: Path) -> list[str]:
    capsys.readouterr()
    assert main(["trust", "--list", str(workspace), "-o", "json"]) == 0
    return [item["state"] for item in json.loads(capsys.readouterr().out)]


def test_everything_is_shown_with_its_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Allow rules, hooks and directories with the lines where they stand; what tightens needs no trust and is left out."""
    workspace = project(home)
    assert main(["trust", str(workspace), "--yes"]) == 0
    shown = capsys.readouterr().out
    for piece in ("settings.json (not trusted)", "Bash(npm run test:*)", "line 3", "PreToolUse hook", "./check.sh", "line 10"):
        assert piece in shown
    assert "../shared" in shown
    assert "unknownKey" in shown
    assert "outside every sandbox" in shown
    assert "secrets" not in shown
    assert trusted(capsys, workspace) == ["trusted"]


def test_nobody_is_asked_without_a_terminal(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal and without --yes nothing is trusted; the status says so."""
    workspace = project(home)
    assert main(["trust", str(workspace)]) == 2
    assert "--yes" in capsys.readouterr().err
    assert trusted(capsys, workspace) == []


def test_a_change_takes_the_trust_away(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed file is no longer trusted and shows as such; --revoke forgets it, also when it is gone."""
    workspace = project(home)
    main(["trust", str(workspace), "--yes"])
    project(home, CLAUDE.replace("npm", "pnpm"))
    assert trusted(capsys, workspace) == ["changed"]
    (workspace / ".claude" / "settings.json").unlink()
    assert trusted(capsys, workspace) == ["missing"]
    assert main(["trust", str(workspace), "--revoke"]) == 0
    assert "revoked" in capsys.readouterr().out
    assert trusted(capsys, workspace) == []
    assert main(["trust", str(workspace), "--revoke"]) == 0
    assert "nothing there" in capsys.readouterr().out


def test_hidden_text_is_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Control and bidirectional characters of the workspace's making appear escaped, not as what they do."""
    text = '[[hook]]\nevent = "PreToolUse"\ncommand = "true \\u202e\\u001b[2K # fine"\n'
    workspace = project(home, text, ".sandboxd/settings.toml")
    main(["trust", str(workspace), "--yes"])
    shown = capsys.readouterr().out
    assert "\\u{202e}" in shown
    assert "\x1b" not in shown


def test_malformed_files_are_errors(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be read cannot be trusted, and `rules check` reports every such file with its line."""
    workspace = project(home, '[permissions]\nallow = ["Bash(ls"]\n', ".sandboxd/settings.toml")
    project(home, '{"permissions": {"allow": ["Read("]}}')
    assert main(["trust", str(workspace), "--yes"]) == 125
    assert "settings.toml:2" in capsys.readouterr().err
    assert main(["rules", "check", "--workspace", str(workspace)]) == 1
    shown = capsys.readouterr().out
    assert "settings.toml:2" in shown
    assert "settings.json:1" in shown


def test_rules_that_can_do_nothing_are_reported(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An allow rule for what a human must agree to in any case is reported with its line."""
    settings = home / ".config" / "sandboxd" / "settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[permissions]\nallow = ["Bash(sudo apt:*)", "Edit(.git/config)", "Edit(~/.bashrc)", "Edit(src/**)"]\n')
    assert main(["rules", "check", "--workspace", str(home)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all("settings.toml:2" in line and "allows nothing" in line for line in lines)


@pytest.mark.needs("bwrap", "userns")
@pytest.mark.parametrize(("typed", "status", "state"), [("y\n", 0, "trusted"), ("n\n", 1, ""), ("\n", 1, "")])
def test_a_person_is_asked(place: Place, typed: str, status: int, state: str) -> None:
    """At a terminal the answer is y or it is no."""
    workspace = place.workspace()
    (workspace / ".sandboxd").mkdir()
    (workspace / ".sandboxd" / "settings.toml").write_text('[permissions]\nallow = ["Bash(make hello)"]\n')
    with terminal(place, "trust", str(workspace), cwd=workspace) as screen:
        screen.wait_for("Bash(make hello)")
        screen.wait_for("[y/N]")
        screen.type(typed)
        assert screen.wait() == status
    listed = place.sandboxd("trust", "--list", str(workspace), cwd=workspace).stdout
    assert (state in listed) if state else listed == ""
