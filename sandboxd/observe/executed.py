# SPDX-License-Identifier: GPL-3.0-or-later
"""The files whose content a command executes, with their digests: an approval holds only while they stay the same.

Looked at are, for each command that runs code which was not read: the files among its words (a script, `./program`,
`make -f FILE`), and the files that its program looks for by name where it starts, above that up to the workspace, and in
the directories among its words (`make -C DIR`). What those files run in turn is not followed.

To add a program: a row in `PROJECT_FILES`, and one in tests/observe/test_observe_executed.py.
"""

from __future__ import annotations

import hashlib
import os
import stat

from sandboxd.model import Analysis, AnalyzedCommand, EffectKind
from sandboxd.paths import expand_home, is_within, join, parents

MAX_FILES = 256  # files a line
MAX_CONTENT = 4 << 20  # bytes read of all files together; what is larger counts by inode, size and times

_NODE = ("package.json", "pnpm-workspace.yaml")
_PYTHON = ("pyproject.toml", "setup.py", "setup.cfg", "Pipfile")
_PYTEST = ("pyproject.toml", "pytest.ini", "tox.ini", "setup.cfg", "conftest.py")
_COMPOSE = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_DOCKER = ("Dockerfile", *_COMPOSE)
_GRADLE = ("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "gradle.properties")
PROJECT_FILES: dict[str, tuple[str, ...]] = {
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "gmake": ("GNUmakefile", "makefile", "Makefile"),
    "bmake": ("BSDmakefile", "makefile", "Makefile"),
    "ninja": ("build.ninja",),
    "cmake": ("CMakeLists.txt", "CMakePresets.json"),
    "meson": ("meson.build",),
    "just": ("justfile", "Justfile", ".justfile"),
    "task": ("Taskfile.yml", "Taskfile.yaml"),
    "rake": ("Rakefile", "rakefile"),
    "bundle": ("Gemfile",),
    **dict.fromkeys(("npm", "npx", "pnpm", "yarn", "bun", "node"), _NODE),
    "deno": ("deno.json", "deno.jsonc"),
    **dict.fromkeys(("gulp", "grunt"), ("gulpfile.js", "Gruntfile.js")),
    **dict.fromkeys(("jest", "vitest", "eslint"), ("package.json", "jest.config.js", "vitest.config.ts", "eslint.config.js")),
    **dict.fromkeys(("pytest", "py.test"), _PYTEST),
    **dict.fromkeys(("tox", "nox"), ("tox.ini", "noxfile.py", "pyproject.toml", "setup.cfg")),
    **dict.fromkeys(
        ("pip", "pip3", "uv", "poetry", "hatch", "pdm", "pipenv"), ("pyproject.toml", "setup.py", "setup.cfg", "Pipfile")
    ),
    **dict.fromkeys(("python", "python3"), ("sitecustomize.py", "pyproject.toml", "conftest.py", "pytest.ini")),
    "cargo": ("Cargo.toml", "build.rs"),
    "go": ("go.mod", "go.work"),
    **dict.fromkeys(("gradle", "gradlew"), _GRADLE),
    **dict.fromkeys(("mvn", "mvnw"), ("pom.xml",)),
    "ant": ("build.xml",),
    "sbt": ("build.sbt",),
    "composer": ("composer.json",),
    **dict.fromkeys(("docker", "podman", "docker-compose"), _DOCKER),
    "vagrant": ("Vagrantfile",),
    "terraform": ("main.tf",),
    "ansible-playbook": ("ansible.cfg",),
    "pre-commit": (".pre-commit-config.yaml",),
}
_SOURCES = frozenset(("source", "."))

Executed = tuple[tuple[str, str], ...]  # real path, digest


def executed(analysis: Analysis, *, workspace: str, home: str) -> Executed:
    """The files and their digests, sorted. Blocking, bounded; never waits on a FIFO or a device, raises nothing."""
    paths: dict[str, None] = {}
    for command in analysis.commands:
        if _runs_code(command):
            for path in _candidates(command, analysis.cwd, workspace, home):
                if len(paths) < MAX_FILES:
                    paths[path] = None
    left = MAX_CONTENT
    out: dict[str, str] = {}
    for path in paths:
        found = _digest(path, left)
        if found is not None:
            real, digest, read = found
            out[real] = digest
            left -= read
    return tuple(sorted(out.items()))


def _runs_code(command: AnalyzedCommand) -> bool:
    """Whether a command runs something that its words do not show."""
    argv = command.bare or command.argv
    if not argv or argv[0] is None or "/" in argv[0] or argv[0] in _SOURCES:
        return bool(argv)
    return any(effect.kind is EffectKind.OPAQUE for effect in command.effects)


def _candidates(command: AnalyzedCommand, cwd: str, workspace: str, home: str) -> list[str]:
    """Absolute paths that may be files, those that count most first."""
    starts = [join(cwd, expand_home(start, home)) for start in command.subcommand.cwds or ("",)]
    words = dict.fromkeys(word for argv in (command.bare, command.argv) for word in argv if word)
    named: list[str] = []
    for word in words:
        for text in (word, word.partition("=")[2]):
            if text and "\0" not in text:
                named += [join(start, expand_home(text, home)) for start in starts]
    program = ((command.bare or command.argv)[0] or "").rpartition("/")[2]
    names = PROJECT_FILES.get(program, ())
    places = [above for start in starts for above in (start, *parents(start)) if above == start or is_within(above, workspace)]
    places += [path for path in named if names and os.path.isdir(path)]
    return [*named, *(f"{place}/{name}" for place in dict.fromkeys(places) for name in names)]


def _digest(path: str, most: int) -> tuple[str, str, int] | None:
    """Real path, digest and the bytes that were read of a regular file; None when there is none."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        real = os.path.realpath(path)
        status = os.stat(real)
        identity = f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
        if status.st_size > most:
            return real, identity, 0
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except PermissionError:
        return path, "unreadable", 0
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return real, identity, 0
        content = b""
        while len(content) <= most and (piece := os.read(descriptor, 1 << 18)):
            content += piece
    except OSError:
        return real, identity, 0
    finally:
        os.close(descriptor)
    return real, hashlib.blake2b(content, digest_size=16).hexdigest(), len(content)
