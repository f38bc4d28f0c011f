# SPDX-License-Identifier: GPL-3.0-or-later
"""The launch plan: what is mounted for which profile, decision and host, and what is refused. No disk, no kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandboxd.errors import IsolationError
from sandboxd.isolation import environment, view
from sandboxd.isolation.plan import SCRATCH, HostFacts, HostPath, plan, wanted, writable_root_problem
from sandboxd.isolation.view import Reach
from sandboxd.killswitch import GIT_CORE
from sandboxd.model import (
    Facts,
    Grant,
    GrantKind,
    LaunchPlan,
    MountKind,
    NetworkMode,
    PlanRequest,
    Profile,
    Session,
)

WS = "/home/ann/proj"
SESSION = Session("s", WS, "/home/ann", 1000, 1000, "/tmp/sandboxd-1/s", own=("/home/ann/.config/sandboxd",))
WRITES = (Grant(GrantKind.WORKSPACE_WRITE),)
FACTS = Facts(
    observed=True,
    repositories=(f"{WS}/.git", f"{WS}/sub/.git"),
    protected=(f"{WS}/.git", f"{WS}/sub/.git", f"{WS}/.claude", f"{WS}/.bashrc"),
    hooks_paths=(f"{WS}/githooks",),
)
SECRETS = (HostPath("/home/ann/.ssh", "/home/ann/.ssh", True), HostPath("/home/ann/.netrc", "/home/ann/.netrc", False))
GIT = tuple(f"{WS}/.git/{name}" for name in ("hooks", "config", "info"))
FILES = frozenset((f"{WS}/.bashrc", "/home/ann/.netrc", "/etc/hosts", "/home/ann/.gitconfig"))


def make(
    request: PlanRequest | None = None, absent: Iterable[str] = (), secrets: tuple[HostPath, ...] = SECRETS, **changes: Any
) -> LaunchPlan:
    """A plan on a host where everything that is asked for exists, but `absent`."""
    asked = request or PlanRequest("true", WS, Profile("workspace", "p"), SESSION, WRITES, False, FACTS)
    asked = dataclasses.replace(asked, **changes)
    names = wanted(asked)
    paths = {name: HostPath(name, name, name not in FILES) for name in names if name not in absent}
    return plan(asked, HostFacts(frozenset(names), paths, secrets=secrets, git=GIT))


def reach(launch: LaunchPlan, path: str) -> Reach:
    return view.at(launch, path).reach


def test_a_decision_that_writes_opens_the_workspace_and_nothing_else() -> None:
    """The workspace is writable, everything around it is not, /tmp is the session's."""
    launch = make()
    assert reach(launch, f"{WS}/src/a.py") is Reach.WRITE
    assert reach(launch, "/home/ann/other") is Reach.READ
    assert reach(launch, "/usr/bin/ls") is Reach.READ
    assert launch.writable[0] == WS
    tmp = view.at(launch, "/tmp/x").mount
    assert (tmp.kind, tmp.source) == (MountKind.WRITABLE, SESSION.tmp)


@pytest.mark.parametrize("changes", [{"promise": True}, {"grants": ()}, {"promise": True, "grants": WRITES}])
def test_without_a_grant_or_under_the_promise_nothing_of_the_host_is_writable(changes: dict[str, Any]) -> None:
    """No writable mount of a host path, but the session's /tmp for a command that is not under the promise."""
    launch = make(**changes)
    writable = [mount.source for mount in launch.mounts if mount.kind is MountKind.WRITABLE]
    assert writable == ([] if changes.get("promise") else [SESSION.tmp])
    assert WS not in launch.writable


def test_the_promise_keeps_the_sessions_tmp_readable_and_gives_a_private_one() -> None:
    """Earlier temporary files can be read, TMPDIR is a fresh tmpfs."""
    launch = make(promise=True)
    assert reach(launch, "/tmp/earlier") is Reach.READ
    assert dict(launch.env)["TMPDIR"] == SCRATCH
    assert reach(launch, f"{SCRATCH}/x") is Reach.PRIVATE
    assert launch.writable == (SCRATCH,)


@pytest.mark.parametrize(
    "path", [".git/config", ".git/hooks/x", "sub/.git/config", ".claude/settings.json", ".bashrc", "githooks/x"]
)
def test_what_is_protected_is_read_only_in_a_writable_workspace(path: str) -> None:
    """The killswitch's second line, for everything that observe found."""
    assert reach(make(), f"{WS}/{path}") is Reach.READ


def test_a_profile_cannot_open_what_is_protected() -> None:
    """`write` naming a protected path makes no difference."""
    profile = Profile("mine", "p", write=("$WORKSPACE/.git/hooks", "$WORKSPACE/.claude"))
    launch = make(profile=profile)
    assert reach(launch, f"{WS}/.git/hooks/x") is Reach.READ
    assert reach(launch, f"{WS}/.claude/settings.json") is Reach.READ


def test_the_directories_above_something_protected_are_pinned() -> None:
    """Each directory between the workspace and a protected path is a mount point, so that it cannot be renamed away."""
    targets = [mount.target for mount in make().mounts if mount.kind is MountKind.WRITABLE]
    assert f"{WS}/sub" in targets


def test_porcelain_may_write_its_repository_but_not_its_core() -> None:
    """`.git` opens for git alone; hooks and info stay read-only, and so does the target of core.hooksPath.

    The configuration of the repository itself is writable, since git renames over it, and is put right afterwards.
    """
    launch = make(git_porcelain=True, git_names=("commit",))
    assert reach(launch, f"{WS}/.git/index") is Reach.WRITE
    assert reach(launch, f"{WS}/.bashrc") is Reach.WRITE  # a checkout must be able to write what it checks out
    for path in (".git/hooks/x", ".git/info/attributes", "githooks/pre-commit"):
        assert reach(launch, f"{WS}/{path}") is Reach.READ
    assert launch.git_configs == (f"{WS}/.git/config",)


def test_a_profile_can_forbid_commits() -> None:
    """`[git] commit = false` keeps the whole git directory read-only, for porcelain too."""
    launch = make(git_porcelain=True, profile=Profile("p", "p", git_commit=False))
    assert reach(launch, f"{WS}/.git/index") is Reach.READ


def test_an_operation_under_way_is_only_stepped_by_its_own_commands() -> None:
    """`rebase-merge` holds lines that the next step executes: `git add` cannot write it, `git rebase` can."""
    asked = PlanRequest("true", WS, Profile("p", "p"), SESSION, WRITES, False, FACTS, git_porcelain=True)
    names = wanted(asked)
    host = HostFacts(frozenset(names), {n: HostPath(n, n, True) for n in names}, git=(f"{WS}/.git/rebase-merge",))
    todo = f"{WS}/.git/rebase-merge/git-rebase-todo"
    assert reach(plan(dataclasses.replace(asked, git_names=("add",)), host), todo) is Reach.READ
    assert reach(plan(dataclasses.replace(asked, git_names=("rebase",)), host), todo) is Reach.WRITE


def test_a_grant_opens_one_protected_path() -> None:
    """`.git/config` granted: its directory is writable for the lock file, the hooks stay closed."""
    launch = make(grants=(*WRITES, Grant(GrantKind.PROTECTED, f"{WS}/.git/config")))
    assert reach(launch, f"{WS}/.git/config") is Reach.WRITE
    assert reach(launch, f"{WS}/.git/hooks/x") is Reach.READ
    assert reach(launch, f"{WS}/.claude/x") is Reach.READ


def test_secrets_are_hidden_unless_granted() -> None:
    """A secret is not readable in any box; a READ grant opens the one it names."""
    assert reach(make(), "/home/ann/.ssh/id") is Reach.NONE
    assert reach(make(promise=True), "/home/ann/.netrc") is Reach.NONE
    granted = make(grants=(Grant(GrantKind.READ, "~/.netrc"),))
    assert reach(granted, "/home/ann/.netrc") is Reach.READ
    assert reach(granted, "/home/ann/.ssh/id") is Reach.NONE
    inner = make(grants=(Grant(GrantKind.READ, "/home/ann/.ssh/config"),))
    assert reach(inner, "/home/ann/.ssh/config") is Reach.READ
    assert reach(inner, "/home/ann/.ssh/id") is Reach.NONE


def test_sandboxds_own_places_are_hidden_but_the_sessions_spill() -> None:
    """Configuration and state are out of reach; output that was stored for this session can be read."""
    session = dataclasses.replace(
        SESSION, own=("/home/ann/.local/state/sandboxd",), spill="/home/ann/.local/state/sandboxd/spill/s"
    )
    launch = make(session=session)
    assert reach(launch, "/home/ann/.local/state/sandboxd/audit.db") is Reach.NONE
    assert reach(launch, f"{session.spill}/1") is Reach.READ


@pytest.mark.parametrize("workspace", ["/", "/home", "/home/ann"])
def test_too_wide_a_workspace_is_read_only(workspace: str) -> None:
    """Reading works in `/`, home and above it; a command that must write is refused with the way out."""
    session = dataclasses.replace(SESSION, workspace=workspace)
    assert reach(make(session=session, promise=True, facts=Facts()), "/home/ann/x") is Reach.READ
    with pytest.raises(IsolationError, match="project directory below it"):
        make(session=session, facts=Facts())


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/", "whole machine"),
        ("/home/ann", "home directory"),
        ("/home", "holds the home"),
        ("/home/ann/.config", "sandboxd's own"),
        ("/home/ann/.config/sandboxd/profiles", "sandboxd's own"),
        ("/home/ann/proj", ""),
        ("/home/annabel", ""),
    ],
)
def test_writable_roots_that_are_refused(path: str, problem: str) -> None:
    """The list of the specification, with its nearest neighbours."""
    said = writable_root_problem(path, "/home/ann", ("/home/ann/.config/sandboxd",))
    assert problem in said
    assert bool(said) is bool(problem)


def test_the_longest_path_wins_and_deny_wins_ties() -> None:
    """One precedence for everything in a profile."""
    profile = Profile(
        "p",
        "p",
        write=("/srv/a", "/srv/a/b/c", "/srv/tie"),
        deny_write=("/srv/a/b", "/srv/tie"),
        deny_read=("/srv/secret",),
        read=("/srv/secret/open",),
    )
    launch = make(profile=profile)
    for path, expected in {
        "/srv/a/x": Reach.WRITE,
        "/srv/a/b/x": Reach.READ,
        "/srv/a/b/c/x": Reach.WRITE,
        "/srv/tie/x": Reach.READ,
        "/srv/secret/x": Reach.NONE,
        "/srv/secret/open/x": Reach.READ,
    }.items():
        assert reach(launch, path) is expected, path


def test_a_masked_home_shows_the_workspace_and_what_the_profile_names() -> None:
    """`home = "mask"` hides the rest."""
    launch = make(profile=Profile("p", "p", home="mask", read=("~/.gitconfig",)))
    assert reach(launch, "/home/ann/notes") is Reach.NONE
    facts = dataclasses.replace(FACTS, protected=(*FACTS.protected, "/home/ann/.profile"))
    assert reach(make(profile=Profile("p", "p", home="mask"), facts=facts), "/home/ann/.profile") is Reach.NONE
    assert reach(launch, "/home/ann/.gitconfig") is Reach.READ
    assert reach(launch, f"{WS}/x") is Reach.WRITE


def test_a_file_outside_is_opened_with_its_directory_when_that_is_narrow() -> None:
    """Tools rename over what they write, so a file's directory opens with it; /etc or a home never does."""
    narrow = make(grants=(Grant(GrantKind.WRITE, "/srv/app/conf/new.ini"),), absent=("/srv/app/conf/new.ini",))
    assert reach(narrow, "/srv/app/conf/new.ini") is Reach.WRITE
    wide = make(grants=(Grant(GrantKind.WRITE, "/etc/hosts"),))
    assert reach(wide, "/etc/hosts") is Reach.WRITE
    assert reach(wide, "/etc/passwd") is Reach.READ
    home = make(grants=(Grant(GrantKind.WRITE, "~/.gitconfig"),))
    assert reach(home, "/home/ann/.gitconfig") is Reach.WRITE
    assert reach(home, "/home/ann/x") is Reach.READ


def test_a_new_file_in_a_wide_directory_is_refused_with_advice() -> None:
    """Opening all of /etc for one new file is not done; the message says what to do instead."""
    with pytest.raises(IsolationError, match="create an empty file"):
        make(grants=(Grant(GrantKind.WRITE, "/etc/new"),), absent=("/etc/new",))


def test_unix_sockets_that_are_not_named_are_hidden() -> None:
    """With sockets allowed, each one bound on the host is covered, unless the profile names it or a directory above it."""
    asked = PlanRequest("true", WS, Profile("p", "p", unix_allow=("$WORKSPACE", "/srv/db.sock")), SESSION, WRITES, False, Facts())
    names = wanted(asked)
    sockets = ("/srv/db.sock", "/srv/other.sock", f"{WS}/dev.sock", "/run/docker.sock")
    launch = plan(asked, HostFacts(frozenset(names), {n: HostPath(n, n, True) for n in names}, sockets=sockets))
    assert launch.allow_unix_sockets
    assert reach(launch, "/srv/other.sock") is Reach.NONE
    assert reach(launch, "/run/docker.sock") is Reach.NONE
    assert reach(launch, "/srv/db.sock") is Reach.READ
    assert reach(launch, f"{WS}/dev.sock") is Reach.WRITE


def test_network_reads_need_a_host_in_the_decision() -> None:
    """Under the promise the profile's network opens only with a grant for it."""
    profile = Profile("n", "p", network=NetworkMode.HOST)
    assert make(profile=profile).network is NetworkMode.HOST
    assert make(profile=profile, promise=True, grants=()).network is NetworkMode.OFF
    assert make(profile=profile, promise=True, grants=(Grant(GrantKind.HOST, "example.org"),)).network is NetworkMode.HOST


def test_a_workspace_in_tmp_is_reached_through_a_tmpfs_of_its_own() -> None:
    """Its mount point lies in no directory that a command could swap for a symlink between two boxes."""
    session = dataclasses.replace(SESSION, workspace="/tmp/deep/er/ws")
    launch = make(session=session, cwd="/tmp/deep/er/ws", facts=Facts())
    kinds = [(mount.kind, mount.target) for mount in launch.mounts if mount.target.startswith("/tmp")]
    assert kinds == [
        (MountKind.WRITABLE, "/tmp"),
        (MountKind.TMPFS, "/tmp/deep"),
        (MountKind.WRITABLE, "/tmp/deep/er/ws"),
        (MountKind.SEAL, "/tmp/deep"),
    ]


def test_the_shell_gets_the_judged_text_and_nothing_else() -> None:
    """The bytes that were analysed are the argument of `-c`; the report of the directory comes from a file beside."""
    launch = make(text="echo 'a b'\n", report_cwd=True)
    assert launch.argv == ("bash", "--noprofile", "--norc", "-c", "echo 'a b'\n")
    assert dict(launch.env)["BASH_ENV"] == launch.files[0][0]
    assert "BASH_ENV" not in dict(make().env)


def test_the_environment_is_built_from_nothing() -> None:
    """Fixed values, what the profile passes and sets, what the session sets; PATH begins with the system's directories."""
    profile = Profile("p", "p", env_set={"CI": "true", "PATH": "~/bin"}, env_pass=("EDITOR",))
    session = dataclasses.replace(SESSION, env=(("FOO", "1"), ("PATH", "/opt/x:relative")))
    asked = PlanRequest("true", WS, profile, session, WRITES, False, Facts())
    names = wanted(asked)
    env = dict(plan(asked, HostFacts(frozenset(names), {}, env=(("EDITOR", "vi"), ("LD_PRELOAD", "/x")), user="ann")).env)
    assert env.pop("PATH") == ":".join((*environment.SYSTEM_PATH, "/home/ann/bin", "/opt/x"))
    assert env == {
        "CI": "true",
        "EDITOR": "vi",
        "FOO": "1",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.checkStat",
        "GIT_CONFIG_VALUE_0": "minimal",
        "HOME": "/home/ann",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "LOGNAME": "ann",
        "SHELL": "/bin/bash",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        "USER": "ann",
    }


@pytest.mark.parametrize(
    "name",
    [
        "BASH_ENV",
        "ENV",
        "LD_PRELOAD",
        "GIT_DIR",
        "PYTHONPATH",
        "BASH_FUNC_ls%%",
        "IFS",
        "PS4",
        "NODE_OPTIONS",
        "SHELLOPTS",
        "HOME",
    ],
)
def test_a_session_cannot_set_what_runs_code(name: str) -> None:
    """Such a variable is refused by name."""
    with pytest.raises(IsolationError, match="decides what programs run"):
        make(session=dataclasses.replace(SESSION, env=((name, "x"),)))


def test_git_reads_are_disarmed_by_environment() -> None:
    """Hooks, fsmonitor, pager and what observe found armed by name; not for lines on which git writes."""
    facts = dataclasses.replace(FACTS, armed_git=(("diff.x.textconv", "cat"),))
    env = dict(make(git_reads=True, promise=True, facts=facts).env)
    pairs = {env[f"GIT_CONFIG_KEY_{n}"]: env[f"GIT_CONFIG_VALUE_{n}"] for n in range(int(env["GIT_CONFIG_COUNT"]))}
    assert pairs == {
        "core.checkStat": "minimal",
        "core.fsmonitor": "false",
        "core.hooksPath": "/dev/null",
        "core.pager": "cat",
        "log.showSignature": "false",
        "safe.bareRepository": "explicit",
        "diff.autoRefreshIndex": "false",
        "diff.x.textconv": "cat",
    }
    assert (env["GIT_OPTIONAL_LOCKS"], env["PYTHONSAFEPATH"]) == ("0", "1")
    assert (env["PIP_DISABLE_PIP_VERSION_CHECK"], env["GOTOOLCHAIN"]) == ("1", "local")
    assert dict(make(git_reads=True, git_porcelain=True).env)["GIT_CONFIG_COUNT"] == "1"


def test_a_plan_needs_facts_made_for_it() -> None:
    """A path that nobody looked at is not taken for absent: that would drop what denies it."""
    profile = Profile("p", "p", deny_read=("/srv/secret",))
    asked = PlanRequest("true", WS, profile, SESSION, WRITES, False, Facts())
    with pytest.raises(IsolationError, match="not looked at"):
        plan(asked, HostFacts())


_NAMES = st.sampled_from(("a", "b", "c", ".git", ".claude"))
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map(lambda names: f"{WS}/" + "/".join(names))


@settings(max_examples=200, deadline=None)
@given(
    protected=st.lists(_PATHS, max_size=4),
    write=st.lists(_PATHS, max_size=3),
    deny=st.lists(_PATHS, max_size=3),
    below=st.lists(_NAMES, max_size=2),
    promise=st.booleans(),
)
@example(protected=[f"{WS}/a/a", f"{WS}/a/.git"], write=[], deny=[f"{WS}/a/.git"], below=[], promise=False)
def test_nothing_protected_is_ever_writable(
    protected: list[str], write: list[str], deny: list[str], below: list[str], promise: bool
) -> None:
    """Whatever a profile says, and however paths nest: without a grant every protected path is read-only or hidden."""
    profile = Profile("p", "p", write=tuple(write), deny_read=tuple(deny))
    launch = make(profile=profile, promise=promise, facts=Facts(observed=True, protected=tuple(protected)))
    for path in protected:
        assert reach(launch, "/".join((path, *below))) in (Reach.READ, Reach.NONE)
    if promise:
        assert not [mount for mount in launch.mounts if mount.kind is MountKind.WRITABLE]


def test_git_core_names_are_guarded() -> None:
    """What leads git to other code is in the killswitch's list."""
    assert {"hooks", "config", "commondir", "config.worktree", "info", "objects/info/alternates"} <= set(GIT_CORE)
