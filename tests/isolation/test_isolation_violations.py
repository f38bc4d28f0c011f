# SPDX-License-Identifier: GPL-3.0-or-later
"""What the box stopped, told from error texts of real programs joined with the plan."""

from __future__ import annotations

import pytest

from sandboxd.isolation.plan import HostFacts, HostPath, plan, wanted
from sandboxd.isolation.violations import MAX_VIOLATIONS, promise_broken, violations
from sandboxd.model import Facts, Grant, GrantKind, LaunchPlan, PlanRequest, Profile, Session

WS = "/home/ann/proj"


def launch(promise: bool = False, profile: Profile | None = None) -> LaunchPlan:
    session = Session("s", WS, "/home/ann", 1000, 1000, "/tmp/sandboxd/s", own=("/home/ann/.config/sandboxd",))
    facts = Facts(observed=True, repositories=(f"{WS}/.git",), protected=(f"{WS}/.git", f"{WS}/.bashrc", f"{WS}/sub/.git"))
    grants = () if promise else (Grant(GrantKind.WORKSPACE_WRITE),)
    asked = PlanRequest("x", WS, profile or Profile("workspace", "p"), session, grants, promise, facts)
    names = wanted(asked)
    secrets = (HostPath("/home/ann/.ssh", "/home/ann/.ssh", True),)
    return plan(asked, HostFacts(frozenset(names), {name: HostPath(name, name, True) for name in names}, secrets))


# what the program printed, kind, path, words of the rule
ROWS = [
    ("touch: cannot touch '/etc/x': Read-only file system", "write", "/etc/x", "outside what the decision opened"),
    ("bash: line 1: /usr/x: Read-only file system", "write", "/usr/x", "outside"),
    ("bash: line 3: .git/config: Read-only file system", "write", f"{WS}/.git/config", "killswitch"),
    ("rm: cannot remove '.bashrc': Device or resource busy\ncp: cannot create regular file './.bashrc': Read-only file system",
     "write", f"{WS}/.bashrc", "killswitch"),
    ("OSError: [Errno 30] Read-only file system: '/opt/a b'", "write", "/opt/a b", "outside"),
    ("Error: EROFS: read-only file system, open '/srv/x.js'", "write", "/srv/x.js", "outside"),
    ("fatal: Unable to create '/home/ann/proj/.git/index.lock': Read-only file system", "write", f"{WS}/.git/index.lock",
     "killswitch"),
    ("/bin/sh: 1: cannot create out.txt: Read-only file system", "write", f"{WS}/out.txt", "the workspace"),
    ("fatal: cannot mkdir r: Read-only file system", "write", f"{WS}/r", "the workspace"),
    ("tar: o.tar: Cannot open: Read-only file system", "write", f"{WS}/o.tar", "the workspace"),
    ("/usr/bin/ld: cannot open output file o: Read-only file system", "write", f"{WS}/o", "the workspace"),
    ("Can't open \"q\" for writing, Read-only file system", "write", f"{WS}/q", "the workspace"),
    ("install: cannot change \u2018a b\u2019: Read-only file system", "write", f"{WS}/a b", "the workspace"),
    ("ln: failed to create hard link 'sub/b' => 'a': Invalid cross-device link", "rename", f"{WS}/sub/b",
     "`/home/ann/proj/sub` is"),
    ("OSError: [Errno 18] Invalid cross-device link: 'a' -> 'sub/b'", "rename", f"{WS}/sub/b", "pinned: something below"),
    ("error: remote unpack failed: unable to create temporary object directory", "write", "", "outside what the decision opened"),
    ("cat: /home/ann/.ssh/id_rsa: Permission denied", "read", "/home/ann/.ssh/id_rsa", "secret"),
    ("PermissionError: [Errno 13] Permission denied: '/home/ann/.config/sandboxd/rules.toml'", "read",
     "/home/ann/.config/sandboxd/rules.toml", "sandboxd's own"),
    ("curl: (6) Could not resolve host: example.org", "network", "", "network mode = off"),
    ("curl: (7) Failed to connect to 192.0.2.1 port 80: Couldn't connect to server", "network", "", "network mode = off"),
    ("connect: Network is unreachable", "network", "", "network mode = off"),
    ("fatal: unable to access: Temporary failure in name resolution", "network", "", "network mode = off"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "path", "rule"), ROWS, ids=[row[0][:40] for row in ROWS])
def test_rows(text: str, kind: str, path: str, rule: str) -> None:
    """Kind, path and the line of defence are recognised."""
    found = violations(text + "\n", 1, launch())
    assert (found[-1].kind, found[-1].path) == (kind, path)
    assert rule in found[-1].rule
    assert found[-1].confidence == "inferred"


QUIET = [
    "make: *** [Makefile:3: all] Error 1",
    "cat: /root/x: Permission denied",  # the host's own permissions, nothing of ours
    "ls: cannot access 'x': No such file or directory",
    "curl: (7) Failed to connect to localhost port 8000 after 0 ms: Couldn't connect to server",
    "kill: (1) - Operation not permitted",
    "ln: failed to create hard link 'b' => 'a': Invalid cross-device link",  # both in the same mount
    "",
]


@pytest.mark.parametrize("text", QUIET)
def test_other_failures_are_not_ours(text: str) -> None:
    """An error that the box did not cause is not claimed."""
    assert violations(text, 1, launch()) == ()


def test_a_broken_promise_names_the_path() -> None:
    """Only under the promise, and only writes."""
    text = "bash: line 1: out.txt: Read-only file system\ncat: /home/ann/.ssh/k: Permission denied\n"
    assert promise_broken(text, launch(promise=True)) == (f"{WS}/out.txt",)
    assert promise_broken(text, launch()) == ()


def test_the_profiles_line_is_named() -> None:
    """What a profile denies says which key of which profile."""
    profile = Profile("strict", "p", deny_write=("$WORKSPACE/vendor",))
    found = violations("touch: cannot touch 'vendor/x': Read-only file system", 1, launch(profile=profile))
    assert found[0].rule == "profile `strict`: deny_write `$WORKSPACE/vendor`"


def test_much_output_gives_few_violations() -> None:
    """Each once, and not more than a reader takes in."""
    lines = [f"touch: cannot touch '/etc/{number % 50}': Read-only file system" for number in range(5000)]
    assert len(violations("\n".join(lines), 1, launch())) == MAX_VIOLATIONS
