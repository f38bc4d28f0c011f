# SPDX-License-Identifier: GPL-3.0-or-later
"""After a command that could write, and before the next one may start: what no mount could guard is put right.

- A configuration that git itself had to be able to replace keeps only what `gitrepair.put_right` lets through. What leads a
  linked work tree to its repository is as it was, or gone.
- What must not come into being in a git directory is removed (`isolation.protect.settle`).
- Protected paths and git directories that came into being are reported, and protected files of the work tree that git
  changed (a checkout against read-only files would leave a wrong tree). What a command that could not be read made so is
  disarmed: hooks lose their execute bits, the configuration what could run something.

`begin` before the start, `settle` when the box has ended. Both block: `settle` looks at every directory of the workspace
once. The files belong to whoever wrote them: nothing is followed through a link, and a file is replaced, never written into.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass

from sandboxd.isolation import protect
from sandboxd.isolation.kernel import open_real
from sandboxd.model import Facts, GrantKind, LaunchPlan, PlanRequest, Violation
from sandboxd.observe.facts import forest
from sandboxd.observe.gitconfig import Entry, parse
from sandboxd.observe.gitrepair import harmless, put_right
from sandboxd.paths import expand_home, is_within, join

MAX_CONFIG = 1 << 20  # bytes
_FILE_TIMES = 5  # CLOCK_REALTIME_COARSE, from which the kernel takes the times of files
MAX_REPORTED = 20
MAX_LOOKED = 2000  # protected files and directories that are looked at for changes
ADVICE = "a person must allow it"
_MINIMAL = "[core]\n\trepositoryformatversion = 0\n"


@dataclass(frozen=True, slots=True)
class Watch:
    """What was there before: the time (kernel's own clock of file times, ns), configurations, links, bare repositories,
    for git the change times of protected files."""

    since: int
    roots: tuple[str, ...]
    configs: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]
    bares: tuple[tuple[str, frozenset[Entry]], ...]
    times: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Report:
    """What was found and done, for the result."""

    notes: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()


def begin(asked: PlanRequest, plan: LaunchPlan) -> Watch | None:
    """Take down what is needed to put things right; None for a command that cannot write."""
    if asked.promise:
        return None
    roots = tuple(root for root in (asked.session.workspace, *asked.session.additional) if _may_write(root, plan))
    configs = tuple((path, _text(path) or "") for path in plan.git_configs)
    links = tuple((path, text) for path in plan.git_links if (text := _text(path)) is not None)
    bares = [bare for root in roots for bare in forest.look(root).bares]
    known = tuple((bare, frozenset(parse(_text(f"{bare}/config") or "") or ())) for bare in bares)
    since = time.clock_gettime_ns(_FILE_TIMES)
    return Watch(since, roots, configs, links, known, _times(roots, asked.facts) if asked.git_porcelain else {})


def settle(watch: Watch, asked: PlanRequest, plan: LaunchPlan) -> Report:
    """Look at what the command left, put right what has to be, and say so."""
    notes: list[str] = []
    rule = "killswitch: it leads git elsewhere; it was removed"
    violations = [Violation("planted", path, rule, "seen") for path in protect.settle(plan)]
    for path, before in watch.configs:
        notes += _config(path, before, asked)
    for path, before in watch.links:
        if os.path.lexists(path) and _text(path) != before:
            _replace(path, before, asked)
            notes.append(f"`{path}` was put right: it led git elsewhere")
    granted = [
        join(asked.cwd, expand_home(grant.target, asked.session.home))
        for grant in asked.grants
        if grant.kind is GrantKind.PROTECTED
    ]
    trusted = asked.git_porcelain
    old = frozenset((*asked.facts.protected, *(path for path, _ in plan.absent)))
    known = dict(watch.bares)
    for root in watch.roots:
        seen = forest.look(root, thorough=True)
        made = [path for path in seen.protected if path not in old and _changed(path, watch.since)]
        made = [path for path in made if not any(is_within(path, each) or is_within(each, path) for each in granted)]
        if not trusted:
            git_dirs = {git_dir for path in made if (git_dir := _git_dir(path, root, asked.facts))}
            git_dirs.update(bare for bare in seen.bares if bare not in known or _changed(f"{bare}/config", watch.since))
            git_dirs.update(bare for bare in known if _changed(f"{bare}/hooks", watch.since))
            git_dirs.difference_update(old)
            for git_dir in sorted(git_dirs):
                done = _disarm(git_dir, watch.since, known.get(git_dir, frozenset()), asked)
                violations += [Violation("disarmed", git_dir, f"killswitch: {said}", "seen", ADVICE) for said in done]
        violations += [
            Violation("protected_created", path, "killswitch: it did not exist before the command", "seen")
            for path in made[:MAX_REPORTED]
        ]
        if len(made) > MAX_REPORTED:
            notes.append(f"{len(made) - MAX_REPORTED} more protected paths were created")
    if trusted:
        now = _times(watch.roots, asked.facts)
        changed = sorted(path for path, _ in now.items() ^ watch.times.items())
        changed = [path for path in dict.fromkeys(changed) if not any(is_within(path, each) for each in granted)]
        rule = "killswitch: git changed it in the work tree"
        violations += [Violation("protected_changed", path, rule, "seen") for path in changed[:MAX_REPORTED]]
        if len(changed) > MAX_REPORTED:
            notes.append(f"{len(changed) - MAX_REPORTED} more protected paths were changed")
    for hooks in asked.facts.hooks_paths:
        if not trusted and not any(is_within(hooks, target) for target in granted):
            rule = "killswitch: a hook can no longer run"
            violations += [
                Violation("disarmed", f"{hooks}/{name}", rule, "seen", ADVICE) for name in _silence(hooks, watch.since)
            ]
    return Report(tuple(notes), tuple(violations))


def _may_write(root: str, plan: LaunchPlan) -> bool:
    return any(is_within(root, path) or is_within(path, root) for path in plan.writable)


def _changed(path: str, since: int) -> bool:
    """Whether an entry, or the directory that it stands in, changed after `since`. Nobody can set these times (inode(7))."""
    for each in (path, path.rpartition("/")[0]):
        try:
            if os.lstat(each).st_ctime_ns >= since:
                return True
        except OSError:
            continue
    return False


def _times(roots: tuple[str, ...], facts: Facts) -> dict[str, int]:
    """The change times of the protected files of the work trees, which git may write where it tracks them."""
    out: dict[str, int] = {}
    pending = [path for path in facts.protected if not path.endswith("/.git") and any(is_within(path, root) for root in roots)]
    looked = 0
    while pending and looked < MAX_LOOKED:
        path = pending.pop()
        looked += 1
        try:
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode):
                pending += [f"{path}/{name}" for name in os.listdir(path)]
            else:
                out[path] = status.st_ctime_ns
        except OSError:
            continue
    return out


def _config(path: str, before: str, asked: PlanRequest) -> list[str]:
    """Put a configuration right; what was undone, in words."""
    now = _text(path)
    if now == before:
        return []
    text, undone = put_right(before, now) if now is not None else (before, ("everything: it is no file any more",))
    if undone:
        _replace(path, text, asked)
        return [f"`{path}` was put right; not kept: {', '.join(undone[:8])}"]
    return []


def _git_dir(path: str, root: str, facts: Facts) -> str:
    """The git directory that a new `.git` in the workspace is or names; "" when it is none of the command's making."""
    if not path.endswith("/.git"):
        return ""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return ""
    if stat.S_ISDIR(mode):
        return path
    text = os.readlink(path) if stat.S_ISLNK(mode) else (_text(path) or "").removeprefix("gitdir: ").strip()
    target = os.path.realpath(join(path.rpartition("/")[0], text)) if text and "\0" not in text else ""
    inside = is_within(target, root) and not any(is_within(target, each) for each in (*facts.repositories, *facts.protected))
    return target if target and inside else ""


def _disarm(git_dir: str, since: int, known: frozenset[Entry], asked: PlanRequest) -> list[str]:
    """Take out of a git directory what would make git run something; what was done, in words."""
    done = [f"the hook `{name}` can no longer run" for name in _silence(f"{git_dir}/hooks", since)]
    config = f"{git_dir}/config"
    if os.path.lexists(config):
        text = _text(config)
        kept, bad = harmless(text, known) if text is not None else (_MINIMAL, ("everything: it is no plain file",))
        if bad:
            _replace(config, kept or _MINIMAL, asked)
            done.append(f"taken out of its configuration: {', '.join(bad[:8])}")
    for name in ("config.worktree", "commondir"):
        path = f"{git_dir}/{name}"
        if os.path.lexists(path) and not (name == "commondir" and _leads_back(git_dir, asked.facts)):
            protect.remove(path)
            done.append(f"`{name}` was removed")
    return done


def _leads_back(git_dir: str, facts: Facts) -> bool:
    """Whether the `commondir` of a new work tree is that of a repository which was there before."""
    text = (_text(f"{git_dir}/commondir") or "").strip()
    return bool(text) and os.path.realpath(join(git_dir, text)) in facts.repositories


def _silence(hooks: str, since: int) -> list[str]:
    """Take the execute bits from hooks that are new or changed; their names."""
    done = []
    try:
        at = _directory(hooks)
    except OSError:
        if not os.path.islink(hooks):
            return []
        protect.remove(hooks)
        return ["(all: the directory was a link)"]
    try:
        for name in os.listdir(at):
            status = os.stat(name, dir_fd=at, follow_symlinks=False)
            if name.endswith(".sample") or status.st_ctime_ns < since or stat.S_ISDIR(status.st_mode):
                continue
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                if not status.st_mode & 0o111:
                    continue
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
                try:
                    os.fchmod(fd, stat.S_IMODE(status.st_mode) & ~0o111)
                finally:
                    os.close(fd)
            else:
                os.unlink(name, dir_fd=at)  # a link to a program
            done.append(name)
    except OSError as error:
        done.append(f"(not all: {error.strerror})")
    finally:
        os.close(at)
    return sorted(done)


def _text(path: str) -> str | None:
    """The text of a plain file, reached without following a link, else None."""
    try:
        at = _directory(path.rpartition("/")[0])
    except OSError:
        return None
    try:
        fd = os.open(path.rpartition("/")[2], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            data = file.read(MAX_CONFIG + 1)
        return data.decode("utf-8", "surrogateescape") if len(data) <= MAX_CONFIG else None
    except OSError:
        return None
    finally:
        os.close(at)


def _replace(path: str, text: str, asked: PlanRequest) -> None:
    """Put a new file in the place of `path`, whatever stands there: a link is replaced, not followed."""
    directory, _, name = path.rpartition("/")
    at = _directory(directory)
    try:
        fresh = f".{name}.{secrets.token_hex(6)}"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=at)
        with os.fdopen(fd, "wb") as file:
            if asked.session.uid != os.geteuid():
                os.fchown(fd, asked.session.uid, asked.session.gid)
            file.write(text.encode("utf-8", "surrogateescape"))
        try:
            os.rename(fresh, name, src_dir_fd=at, dst_dir_fd=at)
        except IsADirectoryError:
            protect.remove(path)
            os.rename(fresh, name, src_dir_fd=at, dst_dir_fd=at)
    finally:
        os.close(at)


def _directory(path: str) -> int:
    """A descriptor for reading a directory that is reached without links. Raises OSError."""
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = open_real(root, path.lstrip("/"), directory=True)
    finally:
        os.close(root)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=found)
    finally:
        os.close(found)
