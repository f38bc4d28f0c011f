# SPDX-License-Identifier: GPL-3.0-or-later
"""Configuration: every wrong value names its file, line and fix; nothing is lost."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd import config as settings
from sandboxd.errors import ConfigError
from sandboxd.model import Mode, Source, Strategy
from sandboxd.tomltext import TomlText

WRONG = [
    ("[run]\ntimeout = 0\n", "f:2", "between"),
    ("\n[run]\ntimeout = true\n", "f:3", "a number"),
    ("[run]\n\nmax_output = 1.5\n", "f:3", "a number"),
    ("[runn]\n", "f:1", "unknown section `[runn]`"),
    ("[run]\nnope = 1\n", "f:2", "unknown key `run.nope`"),
    ("run = 1\n", "f:1", "must be a table"),
    ("[daemon]\nlog_level = 'LOUD'\n", "f:2", "one of DEBUG"),
    ("[policy]\nstrategy = 'first'\n", "f:2", "one of deny-overrides"),
    ("[policy]\nauto_allow_if_sandboxed = 'yes'\n", "f:2", "true or false"),
    ("[sessions]\nmax_mode = ['wild']\n", "f:2", "one of default"),
    ("[sessions]\nroots = '~'\n", "f:2", "a list of strings"),
    ("[sessions]\nprofiles = 'ci'\n", "f:2", "a list of strings"),
    ("[run\n", "f:1", "not valid TOML"),
    ("[classifier]\nprovider = 'magic'\n", "f:2", "one of none, anthropic, command"),
    ("[classifier]\n\non_outage = 'ask'\n", "f:3", "organisation"),
    ("[classifier]\nspeculate = 'always'\n", "f:2", "organisation"),
    ("[classifier]\nprovider = 'command'\n", "f:2", "needs `classifier.command`"),
    ("[classifier]\ndeadline = 0\n", "f:2", "between"),
]


@pytest.mark.parametrize(("text", "where", "what"), WRONG)
def test_wrong_value_names_line_and_fix(text: str, where: str, what: str) -> None:
    """A wrong file gives one error with file:line that says what is expected."""
    with pytest.raises(ConfigError) as caught:
        settings.merge(settings.Config(), text, "f")
    assert str(caught.value).startswith(where)
    assert what in str(caught.value)


def test_good_values_land_in_their_fields() -> None:
    """Values arrive in the declared types; what is not named keeps its default."""
    text = "[run]\ntimeout = 5\n[policy]\nstrategy = 'source-order'\n[sessions]\nmax_mode = ['plan']\nprofiles = []\n"
    config = settings.merge(settings.Config(), text, "f")
    assert config.run.timeout == 5.0
    assert config.run.grace == settings.RunSettings().grace
    assert config.policy.strategy is Strategy.SOURCE_ORDER
    assert config.sessions.max_mode == (Mode.PLAN,)
    assert config.sessions.profiles == ()
    assert "network" not in settings.SessionSettings().profiles


def test_the_organisation_may_ask_on_an_outage() -> None:
    """What others may not set stands in its file."""
    config = settings.merge(settings.Config(), "[classifier]\non_outage = 'ask'\n", "f", organisation=True)
    assert config.classifier.on_outage is settings.OnOutage.ASK


def dirs(tmp_path: Path) -> settings.Directories:
    return settings.Directories(
        config=f"{tmp_path}/config",
        state=f"{tmp_path}/state",
        runtime=f"{tmp_path}/run",
        home=f"{tmp_path}/home",
        system=f"{tmp_path}/etc",
    )


def test_the_organisation_has_the_last_word(tmp_path: Path) -> None:
    """The system file's values override the user's."""
    where = dirs(tmp_path)
    for folder, value in ((where.config, 5), (where.system, 7)):
        Path(folder).mkdir()
        (Path(folder) / "config.toml").write_text(
            f"[run]\ntimeout = {value}\ngrace = 1\n" if value == 5 else "[run]\ntimeout = 7\n"
        )
    config = settings.load(where)
    assert (config.run.timeout, config.run.grace) == (7.0, 1.0)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    """`--config` with a missing file is an error, not the defaults."""
    with pytest.raises(ConfigError, match="does not exist"):
        settings.load(dirs(tmp_path), f"{tmp_path}/none.toml")


def test_rule_places_are_in_source_order(tmp_path: Path) -> None:
    """Local before user before policy; only workspace files are marked as such."""
    places = settings.rule_places(dirs(tmp_path), "/w", claude=True)
    order = list(dict.fromkeys(place.source for place in places))
    assert order == [Source.LOCAL, Source.USER, Source.POLICY]
    assert {place.workspace for place in places if place.source is Source.LOCAL} == {True}
    assert not any(place.workspace for place in places if place.source is not Source.LOCAL)


def test_rule_signature_follows_changes(tmp_path: Path) -> None:
    """A changed, new or removed rule file changes the signature."""
    where = dirs(tmp_path)
    places = settings.rule_places(where, None, claude=False)
    empty = settings.rule_signature(places)
    settings.append_allow_rule(where, "Bash(ls)", "test")
    first = settings.rule_signature(places)
    settings.append_allow_rule(where, "Bash(pwd)", "test")
    assert len({empty, first, settings.rule_signature(places)}) == 3


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=4))
def test_appended_rules_come_back_whole(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    """Whatever an approved rule contains, the file stays valid TOML and holds exactly that text."""
    where = dirs(tmp_path_factory.mktemp("rules"))
    for text in texts:
        path = settings.append_allow_rule(where, text, "because")
    stored = [entry["rule"] for entry in tomllib.loads(Path(path).read_text())["rule"]]
    assert stored == texts


def test_a_broken_rule_file_is_never_rewritten(tmp_path: Path) -> None:
    """Appending to a file that is not TOML fails and leaves it as it was."""
    where = dirs(tmp_path)
    Path(where.config).mkdir()
    Path(where.user_rules).write_text("[[rule\n")
    with pytest.raises(ConfigError):
        settings.append_allow_rule(where, "Bash(ls)", "test")
    assert Path(where.user_rules).read_text() == "[[rule\n"
    assert [p.name for p in Path(where.config).iterdir() if p.name.startswith(".settings-")] == []


def test_lines_are_found_for_tables_arrays_and_dotted_keys() -> None:
    """`where` names the line of a key, or of its nearest known ancestor."""
    text = 'a.b = 1\n[t]\nx = """\n[no]\ny = 1\n"""\n[[r]]\nk = 1\n[[r]]\n\nk = 2\n[r.sub]\nz = 3\n'
    document = TomlText(text, "f")
    assert document.where("a", "b") == "f:1"
    assert document.where("t", "x") == "f:3"
    assert document.where("r", 0, "k") == "f:8"
    assert document.where("r", 1, "k") == "f:11"
    assert document.where("r", 1, "sub", "z") == "f:13"
    assert document.where("t", "missing") == "f:2"
    assert document.where("nowhere") == "f"
