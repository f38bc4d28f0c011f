# SPDX-License-Identifier: GPL-3.0-or-later
"""Profile + decision + session + facts -> LaunchPlan. Pure: what it must know of the host comes in as `HostFacts`.

Mounts are applied in the order of the plan: the host read-only, fresh /proc, /dev, /run and /tmp, then one tree of
entries (the longest path wins, deny wins ties), then what the killswitch protects, and last the seals.
"""

from __future__ import annotations

from collections.abc import Iterable

from sandboxd.errors import IsolationError
from sandboxd.isolation import environment
from sandboxd.isolation.entries import (
    NO_GRANT,
    OWN,
    PATH_GRANTS,
    PROFILE,
    PROMISE,
    PROTECTED,
    SECRET,
    Access,
    Entry,
    HostFacts,
    HostPath,
    strictest,
    target_of,
)
from sandboxd.isolation.gitmounts import git_configs, git_links
from sandboxd.isolation.guards import guarded
from sandboxd.model import GrantKind, LaunchPlan, Mount, MountKind, NetworkMode, PlanRequest, Session
from sandboxd.paths import expand_home, is_within, join, parents

__all__ = ["NO_GRANT", "OWN", "PROMISE", "PROTECTED", "SECRET", "HostFacts", "HostPath", "place", "plan", "wanted"]

TMP_SIZE = 1 << 30  # bytes of a private /tmp and of /dev/shm; the kernel counts only what is used
SCRATCH_SIZE = 256 << 20  # bytes of the private TMPDIR under the read-only promise
STUB_SIZE = 1 << 20  # bytes of a tmpfs that only holds mount points
TMP = "/tmp"  # noqa: S108  inside the box
SHM = "/dev/shm"  # noqa: S108  inside the box
SCRATCH = "/run/tmp"  # TMPDIR under the promise, when /tmp is one that lasts, and read-only
REPORT_FILE = "/run/sandboxd/report"


def writable_root_problem(path: str, home: str, own: Iterable[str] = ()) -> str:
    """Why `path` must not be a writable root, "" when it may. Both absolute and normalized."""
    if path == "/":
        return "`/` is the whole machine"
    if path == home:
        return f"`{path}` is a home directory"
    if is_within(home, path):
        return f"`{path}` holds the home directory `{home}`"
    for each in own:
        if is_within(each, path) or is_within(path, each):
            return f"`{path}` holds or lies in `{each}`, which is sandboxd's own"
    return ""


def place(path: str, session: Session) -> str:
    """A profile's path made absolute: `~`, `$WORKSPACE`, else seen from the workspace."""
    if path == "$WORKSPACE" or path.startswith("$WORKSPACE/"):
        path = session.workspace + path[len("$WORKSPACE") :]
    return join(session.workspace, expand_home(path, session.home))


def wanted(request: PlanRequest) -> tuple[str, ...]:
    """The paths whose existence and real place the plan needs to know."""
    session, profile = request.session, request.profile
    named = (*profile.read, *profile.write, *profile.deny_read, *profile.deny_write, *profile.unix_allow)
    targets = [target_of(grant, request) for grant in request.grants if grant.kind in PATH_GRANTS]
    out = [place(path, session) for path in named]
    out += [session.workspace, *session.additional, *session.own, *targets, *request.facts.repositories]
    out += (*request.facts.hooks_paths, *(path for path, _ in request.denied))
    out += [parents(path)[0] for path in targets if path != "/"]
    return tuple(dict.fromkeys((*out, session.spill) if session.spill else out))


def plan(request: PlanRequest, host: HostFacts) -> LaunchPlan:
    """The launch plan of one decided command.

    Raises IsolationError, with the fix, when the decision lets it write where no root may be writable.
    """
    profile, session = request.profile, request.session
    unseen = [path for path in wanted(request) if path not in host.looked]
    if unseen:  # taking it for absent would drop what denies it
        raise IsolationError(
            f"the host was not looked at for `{unseen[0]}`", fix="make the facts by `host_facts(session, request)`"
        )
    mounts = _Mounts()
    _base(mounts, request)
    entries, absent, planted = guarded(_entries(request, host), request, host)
    for entry in sorted(entries, key=_order):
        mounts.add(entry)
    for path in host.resolver:
        mounts.append(Mount(MountKind.READ_ONLY, path, path, optional=True, why="name resolution"))
    scratch = SCRATCH if request.promise and _kept_tmp(request) else TMP
    unix = bool(profile.unix_allow)
    granted = [target_of(grant, request) for grant in request.grants if grant.kind is GrantKind.PROTECTED]
    return LaunchPlan(
        argv=("bash", "--noprofile", "--norc", "-c", request.text),
        cwd=request.cwd,
        env=environment.build(request, host.env, host.user, scratch, REPORT_FILE),
        mounts=mounts.sealed(),
        network=_network(request),
        limits=profile.limits,
        uid=session.uid,
        gid=session.gid,
        require=profile.require,
        writable=(*mounts.writable(), scratch, *(() if request.promise else (SHM,))),
        deny_syscalls=profile.extra_deny,
        allow_unix_sockets=unix,
        allow_ptrace=profile.allow_ptrace,
        promise=request.promise,
        tty=request.tty,
        protected=tuple(dict.fromkeys((*request.facts.protected, *request.facts.hooks_paths))),
        profile=profile.name,
        files=((REPORT_FILE, environment.REPORT),) if request.report_cwd else (),
        must_stay_absent=planted,
        absent=absent,
        registry=session.registry if absent else "",
        git_configs=git_configs(request, host.git, granted),
        git_links=git_links(request, host.git, host.work_trees),
        private=(scratch,) if request.promise or not _kept_tmp(request) else (),
        kept_for=session.id if _ordinary(request) and not absent and not planted else "",
    )


def _order(entry: Entry) -> tuple[int, str, Access]:
    return (entry.path.count("/") if entry.path != "/" else 0, entry.path, entry.access)


def _ordinary(request: PlanRequest) -> bool:
    """Whether a command can do nothing but read, and use what its box has for itself."""
    opened = request.grants or request.tty or request.profile.unix_allow or request.profile.allow_ptrace
    return request.promise and not opened and _network(request) is not NetworkMode.HOST


def _network(request: PlanRequest) -> NetworkMode:
    """The profile's network; under the promise only where the decision names a host."""
    if request.promise and not any(grant.kind is GrantKind.HOST for grant in request.grants):
        return NetworkMode.OFF
    return request.profile.network


def _base(mounts: _Mounts, request: PlanRequest) -> None:
    profile, session = request.profile, request.session
    mounts.append(Mount(MountKind.READ_ONLY, "/", "/", why=PROMISE if request.promise else NO_GRANT))
    mounts.append(Mount(MountKind.PROC, "/proc", why="the kernel's own files"))
    mounts.append(Mount(MountKind.DEV, "/dev", why="only the harmless devices"))
    if not request.promise:
        mounts.append(Mount(MountKind.TMPFS, SHM, size=TMP_SIZE, why="private"))
    mounts.append(Mount(MountKind.TMPFS, "/run", size=STUB_SIZE, why="sockets and state of the host's services"))
    if not _kept_tmp(request):
        mounts.append(Mount(MountKind.TMPFS, TMP, size=TMP_SIZE, why="private, gone afterwards"))
        return
    source = TMP if profile.tmp == "host" else session.tmp
    if request.promise:
        mounts.append(Mount(MountKind.READ_ONLY, TMP, source, why=PROMISE))
        mounts.append(Mount(MountKind.TMPFS, SCRATCH, size=SCRATCH_SIZE, why="private, gone afterwards"))
    else:
        mounts.append(Mount(MountKind.WRITABLE, TMP, source, why=f"{PROFILE} `{profile.name}`: tmp = {profile.tmp}"))


def _kept_tmp(request: PlanRequest) -> bool:
    """Whether /tmp is one that lasts beyond the command."""
    return request.profile.tmp == "host" or (request.profile.tmp == "session" and bool(request.session.tmp))


def _entries(request: PlanRequest, host: HostFacts) -> list[Entry]:
    profile, session = request.profile, request.session
    writes = not request.promise and any(grant.kind is GrantKind.WORKSPACE_WRITE for grant in request.grants)
    out = [_home(request)] if profile.home == "mask" else []
    for root in (session.workspace, *session.additional):
        if writes:
            _refuse(root, session)
        out.append(Entry(root, Access.WRITE if writes else Access.NO_WRITE, "the workspace" if writes else _why_not(request)))
    for names, access, key in (
        (profile.read, Access.READ, "read"),
        (() if request.promise else profile.write, Access.WRITE, "write"),
        (profile.deny_write, Access.DENY_WRITE, "deny_write"),
        (profile.deny_read, Access.HIDE, "deny_read"),
    ):
        for name in names:
            found = host.paths.get(place(name, session))
            if found is not None:
                if access is Access.WRITE:
                    _refuse(found.real, session)
                out.append(Entry(found.real, access, f"{PROFILE} `{profile.name}`: {key} `{name}`", found.is_dir))
    out += _hidden(request, host)
    for grant in request.grants:
        if grant.kind is GrantKind.READ:
            found = host.paths.get(target_of(grant, request))
            if found is not None:
                out.append(Entry(found.real, Access.READ, "allowed for this command", found.is_dir))
        elif grant.kind in (GrantKind.WRITE, GrantKind.PROTECTED) and not request.promise:
            opened = _opened(target_of(grant, request), request, host)
            if opened is not None:
                out.append(opened)
    return strictest(out)


def _home(request: PlanRequest) -> Entry:
    return Entry(request.session.home, Access.HIDE, f"{PROFILE} `{request.profile.name}`: home = mask")


def _why_not(request: PlanRequest) -> str:
    return PROMISE if request.promise else NO_GRANT


def _hidden(request: PlanRequest, host: HostFacts) -> list[Entry]:
    """Secrets, sandboxd's own directories, sockets that the profile does not name."""
    profile, session = request.profile, request.session
    reads = [target_of(grant, request) for grant in request.grants if grant.kind in PATH_GRANTS]
    reads += [host.paths[path].real for path in reads if path in host.paths]
    out = [
        Entry(secret.real, Access.HIDE, SECRET, secret.is_dir)
        for secret in host.secrets
        if not any(is_within(secret.path, read) or is_within(secret.real, read) for read in reads)
    ]
    if request.promise:
        named = frozenset(reads)
        out += [Entry(path, Access.HIDE, SECRET, is_dir=False) for path in request.facts.env_files if path not in named]
    for path, rule in request.denied:
        found = host.paths.get(path)
        if found is not None and not is_within(session.workspace, found.real):
            out.append(Entry(found.real, Access.HIDE, f"rule `{rule}`", found.is_dir))
    for path in session.own:
        found = host.paths.get(path)
        if found is not None:
            out.append(Entry(found.real, Access.HIDE, OWN, found.is_dir))
    if profile.tmp == "host" and session.tmp:
        out.append(Entry(parents(session.tmp)[0], Access.HIDE, OWN))
    if session.spill and session.spill in host.paths:
        out.append(Entry(host.paths[session.spill].real, Access.READ, "the session's stored output"))
    if profile.unix_allow:
        allowed = [place(path, session) for path in profile.unix_allow]
        out += [
            Entry(path, Access.HIDE, f"{PROFILE} `{profile.name}`: not in unix_allow", is_dir=False)
            for path in host.sockets
            if not any(is_within(path, each) for each in allowed)
        ]
        for path in allowed:
            found = host.paths.get(path)
            if found is not None:
                out.append(Entry(found.real, Access.READ, f"{PROFILE} `{profile.name}`: unix_allow", found.is_dir))
    return out


def _opened(target: str, request: PlanRequest, host: HostFacts) -> Entry | None:
    """The writable entry of a grant: the path itself when it is a directory, else its directory (tools rename)."""
    session = request.session
    if target.startswith(("/proc/", "/dev/", "/run/")) or (is_within(target, TMP) and request.profile.tmp != "host"):
        return None  # the box has its own
    found = host.paths.get(target)
    if found is not None and found.is_dir:
        _refuse(found.real, session)
        return Entry(found.real, Access.WRITE, "allowed for this command")
    parent = host.paths.get(parents(target)[0]) if target != "/" else None
    if parent is not None and not _wide(parent.real, session, host):
        return Entry(parent.real, Access.WRITE, "allowed for this command")
    if found is not None:
        return Entry(found.real, Access.WRITE, "allowed for this command", is_dir=False)
    if any(is_within(target, root) for root in (session.workspace, *session.additional)):
        return None
    where = parents(target)[0] if target != "/" else "/"
    raise IsolationError(
        f"`{target}` does not exist and its directory `{where}` cannot be opened for one command",
        fix="create an empty file there first, or write somewhere else",
    )


def _wide(directory: str, session: Session, host: HostFacts) -> bool:
    """Whether a directory is too much to open for one file in it: near the root, a home, or one with secrets."""
    secret = any(is_within(directory, each.real) for each in host.secrets)
    return directory.count("/") < 2 or secret or bool(writable_root_problem(directory, session.home, session.own))


def _refuse(root: str, session: Session) -> None:
    problem = writable_root_problem(root, session.home, session.own)
    if problem:
        raise IsolationError(
            f"nothing can be written here: {problem}", fix="use a project directory below it as the workspace of the session"
        )


class _Mounts:
    """The list of mounts as it grows, and what holds at a path so far."""

    def __init__(self) -> None:
        self._list: list[Mount] = []
        self._own_tmp: set[str] = set()

    def append(self, mount: Mount) -> None:
        self._list.append(mount)

    def at(self, path: str) -> Mount:
        """The mount that decides about `path`: the last one that contains it."""
        return next(mount for mount in reversed(self._list) if is_within(path, mount.target))

    def add(self, entry: Entry) -> None:
        """Mount an entry, unless what is there already says the same."""
        below = self.at(entry.path)
        if entry.access is Access.HIDE:
            if below.kind in (MountKind.READ_ONLY, MountKind.WRITABLE) and below.source == below.target:
                kind = MountKind.HIDE_DIR if entry.is_dir else MountKind.HIDE_FILE
                self.append(Mount(kind, entry.path, why=entry.why))
            return
        kind = MountKind.WRITABLE if entry.access is Access.WRITE else MountKind.READ_ONLY
        same_tree = below.source == below.target and below.kind in (MountKind.READ_ONLY, MountKind.WRITABLE)
        if same_tree and (below.kind is kind or entry.access is Access.READ) and not entry.pin:
            return
        if entry.access is Access.DENY_WRITE and below.kind is not MountKind.WRITABLE:
            return  # it cannot be written; a mount would only show it again where it is hidden
        self._bridge(entry.path, below)
        self.append(Mount(kind, entry.path, entry.path, why=entry.why))

    def _bridge(self, path: str, below: Mount) -> None:
        """Where `path` lies deeper in a session's /tmp: an own tmpfs for the directories on the way.

        They would else be made in a place that commands can swap for symlinks between two boxes; a mount point cannot be
        swapped while every box of the session holds it.
        """
        rest = path[len(below.target) :].strip("/") if below.target != "/" else ""
        if below.source != below.target and below.kind in (MountKind.WRITABLE, MountKind.READ_ONLY) and "/" in rest:
            first = f"{below.target}/{rest.partition('/')[0]}"
            self.append(Mount(MountKind.TMPFS, first, size=STUB_SIZE, why="holds mount points"))
            self._own_tmp.add(first)

    def writable(self) -> tuple[str, ...]:
        return tuple(mount.target for mount in self._list if mount.kind is MountKind.WRITABLE and mount.source == mount.target)

    def sealed(self) -> tuple[Mount, ...]:
        """All mounts, and last what makes the helpers among them read-only."""
        targets = [mount.target for mount in self._list if mount.kind is MountKind.HIDE_DIR]
        targets += [*sorted(self._own_tmp), "/run", "/dev", "/proc"]
        return (*self._list, *(Mount(MountKind.SEAL, target) for target in targets))
