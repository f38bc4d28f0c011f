# SPDX-License-Identifier: GPL-3.0-or-later
"""What the confinement stopped, as far as the command's own words tell: error texts joined with its plan. Pure.

Nothing is decided on this; it tells a person or a model which line of which profile to change. A program that prints no
error, or prints it in another way, leaves nothing to see.
"""

from __future__ import annotations

import re

from sandboxd.isolation import view
from sandboxd.isolation.entries import ABSENT, NO_GRANT, OWN, PINNED, PROMISE, PROTECTED, SECRET
from sandboxd.model import ExitStatus, LaunchPlan, NetworkMode, Violation
from sandboxd.paths import is_within, join

MAX_VIOLATIONS = 8
MAX_LINES = 400  # of the tail of stderr

_READ_ONLY = re.compile(r"Read-only file system|EROFS|\[Errno 30\]")
_REMOTE = re.compile("unable to create temporary object directory")  # of git, pushing into a repository on this machine
_NO_DEVICE = re.compile(r"No such device or address|ENXIO|\[Errno 6\]")
_BUSY = re.compile(r"Device or resource busy|EBUSY|\[Errno 16\]")
_ACROSS = re.compile(r"Invalid cross-device link|cross-device link not permitted|EXDEV|\[Errno 18\]")
_DENIED = re.compile(r"Permission denied|EACCES|\[Errno 13\]")
_REFUSED = re.compile(r"Operation not permitted|EPERM|\[Errno 1\]")
_NETWORK = re.compile(
    r"Network is unreachable|ENETUNREACH|Could not resolve host|Temporary failure in name resolution|EAI_AGAIN"
    r"|Name or service not known|getaddrinfo|No address associated with hostname"
    r"|curl: \((?:5|6|7|28)\)(?!.*(?:localhost|127\.0\.0\.1|::1))"
)
_NO_FORK = re.compile(r"fork: (?:retry: )?Resource temporarily unavailable|can't start new thread|BlockingIOError: \[Errno 11\]")
_NO_TIME = re.compile(r"CPU time limit exceeded")
_TOO_LARGE = re.compile(r"File too large|File size limit exceeded|EFBIG|\[Errno 27\]")
_TOO_MANY = re.compile(r"Too many open files|EMFILE|\[Errno 24\]")
_SIGXCPU, _SIGXFSZ = 24, 25
_QUOTED = re.compile(r"""(?<!\w)'([^'\n]+)'|"([^"\n]+)"|`([^`'\n]+)[`']|‘([^’\n]+)’|“([^”\n]+)”""")
_BARE = re.compile(r"""(?:^|[\s:=(])((?:\.{0,2}/|~/)[^\s:'"`,;)]+|[\w.-]+/[^\s:'"`,;)]+)""")
_SHELL = re.compile(r"^(?:bash|sh): line \d+: (.+?): |^(?:/bin/)?(?:sh|dash): \d+: (?:cannot (?:create|open) )?(.+?): ")
# `prog: name: Read-only file system`, `cannot create name: Read-only …`, `prog: name: Cannot open: Read-only …`
_BEFORE = re.compile(r"""([^\s:'"`‘’“”]+):(?: Cannot [a-z]+:)? (?:Read-only file system|Permission denied|File exists)""")
_ERRNO = re.compile("E[A-Z]{3,}")
_PROGRAM = re.compile(r"^[^\s:]+(?=: )")


def violations(stderr_tail: str, exit_code: int | None, plan: LaunchPlan) -> tuple[Violation, ...]:
    """What was stopped, most telling first and each once. `exit_code` None = ended by a signal."""
    if exit_code == 0 and not stderr_tail:
        return ()
    found: dict[tuple[str, str], Violation] = {}
    for line in stderr_tail.splitlines()[-MAX_LINES:]:
        one = _of_line(line, plan)
        if one is not None and len(found) < MAX_VIOLATIONS:
            found.setdefault((one.kind, one.path), one)
    return tuple(found.values())


def promise_broken(stderr_tail: str, plan: LaunchPlan) -> tuple[str, ...]:
    """The paths that a command judged read-only tried to write, where they can be seen; only for such a plan."""
    if not plan.promise:
        return ()
    found = tuple(each.path for each in violations(stderr_tail, None, plan) if each.kind == "write")
    return tuple(path for path in found if path) or found


def _of_line(line: str, plan: LaunchPlan) -> Violation | None:
    if _READ_ONLY.search(line):
        return _write(_path(line, plan), plan)
    if _REMOTE.search(line):
        advice = "allow the repository's directory to be written by a rule or an approval"
        return Violation("write", "", "outside what the decision opened: the repository that git pushes to", advice=advice)
    if _NO_DEVICE.search(line):
        path = _path(line, plan)
        return _write(path, plan) if any(is_within(path, each) for each in _absent(plan)) else None
    if _BUSY.search(line):
        path = _path(line, plan)
        return (
            _write(path, plan)
            if path and any(is_within(path, each) or is_within(each, path) for each in (*plan.protected, *_absent(plan)))
            else None
        )
    if _ACROSS.search(line):
        return _across(line, plan)
    if _DENIED.search(line) or _REFUSED.search(line):
        path = _path(line, plan)
        if not path:
            return None
        seen = view.at(plan, path)
        if seen.reach is view.Reach.NONE:
            return _read(path, seen, plan)
        if seen.reach is view.Reach.READ and seen.why in (PROTECTED, ABSENT):
            return _write(path, plan)
        return None
    if plan.network is not NetworkMode.HOST and _NETWORK.search(line):
        return Violation(
            "network",
            "",
            f"profile `{plan.profile}`: network mode = {plan.network.value}",
            advice="use a profile with network, e.g. `--profile network`",
        )
    return None


def _write(path: str, plan: LaunchPlan) -> Violation:
    if not path:
        return Violation("write", "", "the file system of the box is read-only there")
    seen = view.at(plan, path)
    guard = next((each for each in (*plan.protected, *_absent(plan)) if is_within(path, each)), "")
    if guard or seen.why in (PROTECTED, ABSENT):
        return Violation(
            "write", path, f"killswitch: `{guard or seen.mount.target}` is protected", advice="a person must allow it"
        )
    if plan.promise:
        return Violation("write", path, PROMISE, advice="ask for it as a command that writes")
    if seen.why == NO_GRANT:
        advice = "allow it by a rule or an approval, or add the directory to the profile's `[filesystem] write`"
        return Violation("write", path, "outside what the decision opened", advice=advice)
    return Violation("write", path, seen.why)


def _across(line: str, plan: LaunchPlan) -> Violation | None:
    """A rename or a hard link between two mounts of a box: one of the paths lies in a directory that is pinned, or opened
    by itself. Where both lie in the same mount the host's own file systems are in the way."""
    paths = _paths(line, plan)
    mounts = {seen.mount.target: (path, seen) for path in paths if (seen := view.at(plan, path)).mount.target != "/"}
    pinned = next(((path, seen) for path, seen in mounts.values() if seen.why.startswith(PINNED)), None)
    if len(mounts) < 2 and pinned is None:
        return None
    path, seen = pinned or next(iter(mounts.values()))
    advice = "copy and remove instead of renaming or linking"
    return Violation("rename", path, f"`{seen.mount.target}` is a mount of its own: {seen.why}", advice=advice)


def _absent(plan: LaunchPlan) -> tuple[str, ...]:
    return tuple(path for path, _ in plan.absent)


def _read(path: str, seen: view.View, plan: LaunchPlan) -> Violation:
    if seen.why == SECRET:
        return Violation("read", path, f"secret: `{seen.mount.target}` is hidden in every box", advice="a person must allow it")
    if seen.why == OWN:
        return Violation("read", path, f"`{seen.mount.target}` is sandboxd's own")
    return Violation("read", path, seen.why or f"profile `{plan.profile}`")


def _path(line: str, plan: LaunchPlan) -> str:
    """The path that an error line speaks of, absolute, "" when none is seen."""
    return next(iter(_paths(line, plan)), "")


def _paths(line: str, plan: LaunchPlan) -> list[str]:
    """The paths that an error line may speak of, absolute, the most telling first."""
    shell = _SHELL.match(line)
    words = [shell[1] or shell[2]] if shell else []
    words += [next(filter(None, each)) for each in _QUOTED.findall(line)]
    words += _BEFORE.findall(line)
    program = _PROGRAM.match(line)
    bare = [word for word in _BARE.findall(line) if program is None or word != program[0]]
    # A tool names itself by its path, when it names nothing else.
    words += bare or ([program[0]] if program is not None and "/" in program[0] and not words else [])
    home = next((value for name, value in plan.env if name == "HOME"), "/")
    out = []
    for word in words:
        word = word.strip().rstrip(".,;:")
        if not word or "\0" in word or len(word) > 4096 or _ERRNO.fullmatch(word):
            continue
        if word.startswith("~/"):
            word = home + word[1:]
        out.append(join(plan.cwd, word))
    return out


def limits_met(status: ExitStatus, stderr_tail: str, plan: LaunchPlan) -> tuple[Violation, ...]:
    """The limits of the profile that a command ran into, as control groups, signals and error texts tell."""
    limits, out = plan.limits, []

    def met(name: str, value: object, what: str, confidence: str = "seen") -> None:
        rule = f"profile `{plan.profile}`: limits.{name} = {value}"
        out.append(Violation("limit", "", f"{rule}: {what}", confidence, f"raise `[limits] {name}` in a profile"))

    if status.oom_kills:
        met("memory", limits.memory, f"the kernel killed {status.oom_kills} of its processes for want of memory")
    if status.pids_refused:
        met("pids", limits.pids, "no more processes could be started")
    elif limits.pids is not None and _NO_FORK.search(stderr_tail):
        met("pids", limits.pids, "no more processes could be started", "inferred")
    ended = status.signal or (status.code - 128 if status.code is not None and status.code > 128 else 0)
    if limits.cpu is not None and (ended == _SIGXCPU or _NO_TIME.search(stderr_tail)):
        met("cpu", limits.cpu, "a process used up its processor time", "seen" if ended == _SIGXCPU else "inferred")
    if limits.file_size is not None and (ended == _SIGXFSZ or _TOO_LARGE.search(stderr_tail)):
        met("file_size", limits.file_size, "a file grew too large", "seen" if ended == _SIGXFSZ else "inferred")
    if limits.open_files is not None and _TOO_MANY.search(stderr_tail):
        met("open_files", limits.open_files, "too many files were open at once", "inferred")
    return tuple(out)


def vanished(status: ExitStatus, plan: LaunchPlan) -> tuple[str, ...]:
    """A note on what a command left in a directory that is gone with its box; none when it left nothing."""
    if not status.left:
        return ()
    place = " and ".join(plan.private)
    return (f"{place} was the command's own and is gone with it, and so is {', '.join(status.left)}",)
