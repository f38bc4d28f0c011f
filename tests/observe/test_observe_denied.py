# SPDX-License-Identifier: GPL-3.0-or-later
"""Which existing files a deny rule for reading means, so that the kernel can keep it too."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from sandboxd.errors import IsolationError
from sandboxd.model import EffectKind, Inputs, RuleSet, Scope, Strategy
from sandboxd.observe import denied
from sandboxd.observe.denied import MAX_FILES, MAX_PATHS
from sandboxd.policy.denials import denied_reads
from tests.policy.policy_cases import HOME, analysis, command, effect, ruleset


@pytest.fixture
def work(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    for name in (".env", "a/.env", "a/b/key.pem", "a/plain", "secrets/one", "secrets/deep/two", "node_modules/p/.env"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (root / "secrets/link").symlink_to("/etc/passwd")
    (root / "odd[1]").write_text("x")
    return root


def found(work: Path, *rules: str, strategy: Strategy = Strategy.DENY_OVERRIDES) -> dict[str, str]:
    """The files that these rules hide, below the workspace, with the rule that does."""
    inputs = Inputs(analysis(), ruleset(*rules, strategy=strategy), Scope(str(work), HOME))
    # The rules are compiled for the directory of the command; hand-made analyses stand in the cases' own workspace.
    globs = tuple(
        (text, tuple(glob.replace("/home/ada/proj", str(work)) for glob in each)) for text, each in denied_reads(inputs)
    )
    seen = denied(globs, (str(work),))
    assert not seen.partial
    return {path.removeprefix(f"{work}/"): rule for path, rule in seen.paths}


@pytest.mark.parametrize(
    ("rule", "files"),
    [
        ("Read(secrets/**)", {"secrets/one", "secrets/deep/two"}),
        ("Read(secrets)", {"secrets/one", "secrets/deep/two"}),
        ("Read(secrets/)", {"secrets/one", "secrets/deep/two"}),
        ("Read(./secrets/one)", {"secrets/one"}),
        ("Read(.env)", {".env", "a/.env", "node_modules/p/.env"}),
        ("Read(/.env)", {".env"}),
        ("Read(**/*.pem)", {"a/b/key.pem"}),
        ("Read(a/*)", {"a/.env", "a/plain", "a/b/key.pem"}),
        ("Read(nothing/**)", set()),
        ("Read(odd\\[1\\])", {"odd[1]"}),
        ("Read(**)", set()),
        ("Read(//**)", set()),
        ("Read(//etc/**)", set()),
        ("Read(//usr)", set()),
        ("Edit(secrets/**)", set()),
        ("Read", set()),
    ],
)
def test_what_a_rule_means(rule: str, files: set[str], work: Path) -> None:
    """The files below a directory, a name at any depth, a pattern; never the workspace itself, nor where a link leads."""
    seen = found(work, f"deny {rule}")
    assert set(seen) == files
    assert set(seen.values()) <= {rule}


def test_only_what_denies_for_certain(work: Path) -> None:
    """Ask and allow rules hide nothing; where sources are ordered, a rule that one above it may open does not either."""
    assert found(work, "ask Read(secrets/**)", "allow Read(a/**)") == {}
    order = Strategy.SOURCE_ORDER
    assert found(work, "allow@cliArg Read(secrets/one)", "deny Read(secrets/**)", strategy=order) == {}
    assert set(found(work, "allow@cliArg Read(secrets/one)", "deny@policySettings Read(secrets/**)", strategy=order))
    assert set(found(work, "allow Read(secrets/one)", "deny@cliArg Read(secrets/**)", strategy=order))
    assert set(found(work, "allow@cliArg Read(secrets/one)", "deny Read(secrets/**)"))


def test_many_files_are_hidden_by_their_directory(work: Path) -> None:
    """A mount a file is for few of them; and what is found is bounded, and said to be."""
    for number in range(MAX_FILES + 1):
        (work / f"secrets/{number}").write_text("x")
    assert set(found(work, "deny Read(secrets/**)")) == {"secrets"}
    for number in range(MAX_PATHS + 1):
        (work / f"{number}.key").write_text("x")
    seen = denied([("Read(*.key)", (f"{work}/**/*.key",))], (str(work),))
    assert (len(seen.paths), seen.partial) == (MAX_PATHS, True)


def test_an_effect_of_such_a_rule_is_denied_before() -> None:
    """The kernel keeps what policy denies where it can read the command."""
    body = analysis(command("cat x", effect(EffectKind.READ, "/home/ada/proj/secrets/one")))
    inputs = Inputs(body, ruleset("deny Read(secrets/**)"), Scope("/home/ada/proj", HOME))
    ((text, globs),) = denied_reads(inputs)
    assert text == "Read(secrets/**)"
    assert "/home/ada/proj/secrets/**" in globs
    assert denied_reads(Inputs(body, RuleSet(), inputs.scope)) == ()


def test_what_was_found_is_kept_until_something_changes(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look at the same place reads no directory; one at a place where something came to be finds it."""
    rules = [("Read(.env)", (f"{work}/**/.env", f"{work}/**/.env/**")), ("Read(new/**)", (f"{work}/new/**",))]
    monkeypatch.setattr(time, "time_ns", lambda: 1 << 62)  # all directories were read long after they changed
    first = denied(rules, (str(work),))
    assert len(first.paths) == 3
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", None)
        assert denied(rules, (str(work),)) is first
    for name in ("a/b", "."):
        before = os.lstat(work / name).st_ctime_ns
        while os.lstat(work / name).st_ctime_ns == before:  # until the clock has ticked
            (work / name / "tick").touch()
            (work / name / "tick").unlink()
        if name == ".":
            (work / "new").mkdir()
            (work / "new/file").touch()
        else:
            (work / name / ".env").touch()
        found = {path.removeprefix(f"{work}/") for path, _ in denied(rules, (str(work),)).paths}
        assert ("a/b/.env" in found, "new/file" in found) == (True, name == ".")


def test_a_directory_that_has_just_changed_is_read_again(work: Path) -> None:
    """What comes within a tick of the clock is not missed."""
    rules = [("Read(*.key)", (f"{work}/**/*.key",))]
    for number in range(20):
        (work / f"{number}.key").touch()
        assert len(denied(rules, (str(work),)).paths) == number + 1


def test_without_descriptors_nothing_counts_as_hidden(work: Path) -> None:
    """What could not be read is not taken for empty, neither now nor afterwards."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(IsolationError, match="cannot be looked at"):
            found(work, "deny Read(**/one)")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "secrets/one" in found(work, "deny Read(**/one)")
