# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd doctor`: what this machine can confine, tried for real, with the fix for what it cannot.

To add a capability: a function that gives a Finding, and its place in `_findings`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, unique

from sandboxd import config as settings
from sandboxd import daemon
from sandboxd.cli import terminal, text
from sandboxd.client import AsyncClient, Run
from sandboxd.client import address as addresses
from sandboxd.config import Config, Directories
from sandboxd.errors import SandboxdError
from sandboxd.isolation import backends, bwrap, cgroups, landlock
from sandboxd.isolation.box import SYSTEM_PATH
from sandboxd.model import Enforcement, Probe, Strength

CANARY_PLACE = "/var/tmp"  # noqa: S108  a place that exists everywhere and that no profile opens
CANARY_TIMEOUT = 20.0  # seconds
MAX_NAMESPACES = "/proc/sys/user/max_user_namespaces"


@unique
class Verdict(Enum):
    PASS = "PASS"  # noqa: S105  a verdict, not a password
    WARN = "WARN"
    FAIL = "FAIL"


_COLOURS = {Verdict.PASS: terminal.GREEN, Verdict.WARN: terminal.YELLOW, Verdict.FAIL: terminal.RED}


@dataclass(frozen=True, slots=True)
class Finding:
    """`fix` is the exact thing to do, "" when nothing needs to be done."""

    name: str
    verdict: Verdict
    said: str
    fix: str = ""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Exit status: 0 when nothing fails, 1 otherwise. Warnings weaken the sandbox or leave something out."
    text.add_output_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    logging.getLogger("sandboxd").setLevel(logging.CRITICAL)
    findings = tuple(_findings())
    if options.output == "json":
        terminal.print_json(findings)
    else:
        on = terminal.colourful(sys.stdout)
        for item in findings:
            print(f"{terminal.paint(item.verdict.value, terminal.BOLD, _COLOURS[item.verdict], on=on)}  {item.name}: {item.said}")
            if item.fix:
                print(f"      fix: {item.fix}")
    return 1 if any(item.verdict is Verdict.FAIL for item in findings) else 0


def _findings() -> Iterator[Finding]:
    """Every capability, in the order in which one needs the other."""
    yield _python()
    yield _bubblewrap()
    yield _user_namespaces()
    yield _landlock()
    yield _control_groups()
    probes = backends.probe_all()
    for probe in probes:
        yield _rung(probe, probes)
    strongest = next((probe.enforcement for probe in probes if probe.works and probe.enforcement is not None), None)
    if strongest is not None:
        yield from _uncovered(strongest)
    dirs = settings.directories()
    yield _sockets(dirs)
    try:
        config = settings.load(dirs)
    except SandboxdError as error:
        yield Finding("configuration", Verdict.FAIL, error.message, error.fix or "correct the file")
        return
    yield Finding("configuration", Verdict.PASS, f"profile `{config.isolation.profile}`, directories {dirs.config}, {dirs.state}")
    if any(probe.works for probe in probes if probe.backend in backends.FULL):
        yield _canary(config, dirs)
    yield _classifier(config.classifier)


def _classifier(classifier: settings.ClassifierSettings) -> Finding:
    """Whether one is configured, and has what it needs; whether it answers, `sandboxd status` tells."""
    name = "classifier"
    match classifier.provider:
        case settings.ProviderKind.NONE:
            fix = "set `classifier.provider` in config.toml"
            return Finding(name, Verdict.WARN, "none: mode `auto` denies what rules leave open", fix)
        case settings.ProviderKind.COMMAND:
            if shutil.which(classifier.command[0]) is None:
                return Finding(name, Verdict.FAIL, f"`{classifier.command[0]}` is no program", "correct `classifier.command`")
            return Finding(name, Verdict.PASS, f"the program {classifier.command[0]}")
    place = classifier.api_key_file or "ANTHROPIC_API_KEY"
    there = os.access(place, os.R_OK) if classifier.api_key_file else place in os.environ
    if not there:
        fix = "write the key to a file of mode 0600 and name it in `classifier.api_key_file`"
        return Finding(name, Verdict.FAIL, f"no API key in {place}", fix)
    return Finding(name, Verdict.PASS, f"{classifier.model}, key from {place}")


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", Verdict.PASS, f"{version} on Linux {os.uname().release}")


def _bubblewrap() -> Finding:
    found = shutil.which("bwrap", path=SYSTEM_PATH)
    if found is None:
        said = f"not found in {SYSTEM_PATH}; sandboxd needs it where it cannot build a sandbox by itself"
        return Finding("bwrap", Verdict.WARN, said, bwrap.FIX_INSTALL)
    return Finding("bwrap", Verdict.PASS, found)


def _user_namespaces() -> Finding:
    try:
        with open(MAX_NAMESPACES, encoding="ascii") as file:
            limit = int(file.read())
    except (OSError, ValueError):
        return Finding("user namespaces", Verdict.FAIL, "this kernel has none", "use a kernel with CONFIG_USER_NS=y")
    if limit == 0:
        return Finding("user namespaces", Verdict.FAIL, "switched off", bwrap.FIX_USERNS)
    return Finding("user namespaces", Verdict.PASS, f"up to {limit}")


def _landlock() -> Finding:
    version = landlock.abi()
    if version == 0:
        fix = "use Linux 5.13 or later with `landlock` among the LSMs of the boot option `lsm=`"
        return Finding("Landlock", Verdict.WARN, "not in this kernel", fix)
    lacking = landlock.missing(version)
    if lacking:
        return Finding("Landlock", Verdict.WARN, f"ABI {version}, without {', '.join(lacking)}", "use a newer kernel")
    return Finding("Landlock", Verdict.PASS, f"ABI {version}")


def _control_groups() -> Finding:
    found = cgroups.found()
    if not found.places:
        said = "none can be made here; limits on processes and memory are rlimits, which count per process"
        fix = "delegate a control group to the daemon (`Delegate=yes` in its systemd unit), if you need such limits"
        return Finding("cgroups", Verdict.WARN, said, fix)
    return Finding("cgroups", Verdict.PASS, f"version {found.version}: {', '.join(sorted(found.places))}")


def _rung(probe: Probe, probes: tuple[Probe, ...]) -> Finding:
    """What a real trial run of one backend showed. Those in FULL are used where a profile says nothing, the first that works."""
    name = f"sandbox ({probe.backend})"
    used = next((each.backend for each in probes if each.works and each.backend in backends.FULL), "")
    if not probe.works or probe.enforcement is None:
        needed = probe.backend in backends.FULL and not used
        return Finding(name, Verdict.FAIL if needed else Verdict.WARN, probe.error or "the trial failed", probe.fix)
    overall = probe.enforcement.overall
    said = f"a trial ran; enforcement {overall.value}"
    if probe.backend == used:
        return Finding(name, Verdict.PASS if overall is Strength.FULL else Verdict.WARN, f"{said}; used")
    if probe.backend in backends.FULL:
        said += f'; used where {used} does not work, or `isolation.backend = "{probe.backend}"` says so'
    else:
        said += f'; used where a profile says `fallback = ["{probe.backend}"]` and nothing stronger works'
    return Finding(name, Verdict.PASS, said)


def _uncovered(enforcement: Enforcement) -> Iterator[Finding]:
    """What the strongest working backend does not enforce on this machine, and what none of them does."""
    for state in enforcement.layers:
        if state.strength is not Strength.FULL:
            lacking = f": {', '.join(state.missing)}" if state.missing else ""
            yield Finding(f"not covered ({state.layer.value})", Verdict.WARN, f"{state.strength.value}{lacking}")
    for gap in backends.GAPS:
        yield Finding("not covered", Verdict.PASS, gap)


def _sockets(dirs: Directories) -> Finding:
    try:
        info = os.stat(dirs.runtime)
    except FileNotFoundError:
        return Finding("sockets", Verdict.PASS, f"no daemon yet; `sandboxd serve` will listen in {dirs.runtime}")
    except OSError as error:
        return Finding("sockets", Verdict.FAIL, f"{dirs.runtime}: {error.strerror}", "make it accessible, or set XDG_RUNTIME_DIR")
    if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
        fix = f"chown {os.getuid()} {dirs.runtime} && chmod 700 {dirs.runtime}"
        return Finding("sockets", Verdict.FAIL, f"{dirs.runtime} is open to others", fix)
    listening = addresses.listening(f"{dirs.runtime}/{addresses.ADMIN}")
    return Finding("sockets", Verdict.PASS, f"{'a daemon listens' if listening else 'no daemon listens'} in {dirs.runtime}")


def _canary(config: Config, dirs: Directories) -> Finding:
    """Send a real command through the whole pipeline. It may do everything it likes, and must not get out."""
    escape = f"{CANARY_PLACE}/sandboxd-canary-{secrets.token_hex(8)}"
    command = f"bash -c 'echo out > {escape}'; echo in > inside; cat inside"
    with tempfile.TemporaryDirectory(prefix="sandboxd-canary-") as workspace:
        try:
            done = asyncio.run(_through_daemon(command, workspace, config, dirs))
        except SandboxdError as error:
            return Finding("canary", Verdict.FAIL, error.message, error.fix)
        inside = os.path.exists(f"{workspace}/inside")
    if os.path.exists(escape):
        os.unlink(escape)
        fix = "do not use sandboxd on this machine, and report this"
        return Finding("canary", Verdict.FAIL, f"a command wrote {escape}, outside its workspace", fix)
    if done.output != "in\n" or not inside:
        said = f"a command that should run did not: {terminal.shown(done.result.cause or done.stderr.decode(errors='replace'))}"
        return Finding("canary", Verdict.FAIL, said, "see `sandboxd run -v -- 'echo hello'`")
    return Finding("canary", Verdict.PASS, "a real command ran, wrote in its workspace, and could not write outside")


async def _through_daemon(command: str, workspace: str, config: Config, dirs: Directories) -> Run:
    async with (
        daemon.embedded(config, dirs) as (_, sockets),
        AsyncClient(f"unix:{sockets.admin}", admin=True) as client,
        await client.session(workspace, mode="bypassPermissions") as session,
    ):
        return await session.run(command, timeout=CANARY_TIMEOUT)
