# SPDX-License-Identifier: GPL-3.0-or-later
"""`make bench-peers`: how long others take to start a confined command, and how well they tell what only reads.

`make peers` installs them (.ci/peers); what is not there is said and left out. Everything runs in throw-away directories.

Starts: `bash -c true` by each in turns, beside plain bash and sandboxd. Each peer gets the policy nearest to that of a command
judged read-only: the file system is seen and cannot be written, /tmp is its own, no network, no capability. Programs are
compared with a ready box from the daemon's side (benchmarks/bench_warm.py); servers with a client of `sandboxd serve`.
Before it is measured each is asked to write a file outside; one that can is reported so.

Verdicts: every line of tests/corpus/effects_lines.jsonl and every example of the tables of tools, each known to only read or to
change something. They are sandboxd's own tests, so that its own rows only show that those pass.

To add a peer: its package in .ci/peers, a method of `Starters` here (or a function in peer_verdicts.py).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import bench_client, bench_warm
from benchmarks.measure import percentile95
from benchmarks.running import ROOT, daemon
from sandboxd.analyze import analyze
from sandboxd.client import Client
from sandboxd.effects.tables import Tables
from sandboxd.model import AnalysisContext

PEERS = ROOT / ".peers"
LINES = ROOT / "tests/corpus/effects_lines.jsonl"
TRUE = ("bash", "--noprofile", "--norc", "-c", "true")
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
ROUNDS = 40
SECONDS = 45.0  # for all rounds
CONTEXT = AnalysisContext("/home/ada/work", "/home/ada", "/home/ada/work")
CHANGES = ("not read-only", "write", "delete", "process", "system", "network.send")

# Answers each line `run COMMAND` with the milliseconds that it took and its exit status.
SRT_LIBRARY = """
const { SandboxManager } = await import(process.argv[1]);
const { spawn } = await import('node:child_process');
const { createInterface } = await import('node:readline');
await SandboxManager.initialize(JSON.parse(process.argv[2]));
console.log('up');
for await (const line of createInterface({ input: process.stdin })) {
  const begun = performance.now();
  const wrapped = await SandboxManager.wrapWithSandbox(line);
  const code = await new Promise((done) => spawn(wrapped, { shell: true, stdio: 'ignore' }).on('exit', done));
  console.log(performance.now() - begun, code);
}
await SandboxManager.reset();
"""


@dataclass
class Starter:
    """One way to run a command. `run` takes shell text and returns seconds and exit status; `ours` names what it is compared
    with; `shown` is the command line, or what is asked of whom."""

    name: str
    shown: str
    run: Callable[[str], tuple[float, int]]
    ours: str = "ready box"
    taken: list[float] = field(default_factory=list)
    confines: bool = True


class Absent(Exception):
    """A peer is not installed or does not run here; the text says why."""


class Starters:
    """Makes them, in a throw-away home; `stack` ends what was started for them."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.home, self.workspace = root / "home", root / "ws"
        for path in (self.home / ".codex", self.workspace, root / "t"):
            path.mkdir(parents=True)
        self.stack = stack
        self.env = {"HOME": str(self.home), "CODEX_HOME": f"{self.home}/.codex", "PATH": PATH, "TMPDIR": f"{root}/t"}
        policy: dict[str, list[str]] = {"allowedDomains": [], "deniedDomains": []}
        self.srt_policy = {"network": policy, "filesystem": {"denyRead": [], "allowWrite": [], "denyWrite": []}}

    def program(self, name: str, *argv: str) -> Starter:
        def run(text: str) -> tuple[float, int]:
            begun = time.perf_counter()
            done = subprocess.run(
                [*argv, *TRUE[:-1], text], env=self.env, cwd=self.workspace,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, check=False, timeout=30,
            )  # fmt: skip
            return time.perf_counter() - begun, done.returncode

        return Starter(name, " ".join((*argv, *TRUE)).replace(str(self.home.parent), "…"), run)

    def bwrap(self) -> Starter:
        found = _which("bwrap")
        namespaces = ("--unshare-all", "--new-session", "--die-with-parent", "--cap-drop", "ALL")
        mounts = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")
        return self.program(_version([found, "--version"]), "bwrap", *namespaces, *mounts, "--")

    def firejail(self) -> Starter:
        found = _which("firejail")
        limits = ("--noprofile", "--read-only=/", "--private-dev", "--private-tmp", "--net=none", "--caps.drop=all")
        return self.program(_version([found, "--version"]), "firejail", "--quiet", *limits, "--seccomp", "--nonewprivs", "--")

    def codex(self) -> Starter:
        found = sorted(PEERS.glob("npm/node_modules/@openai/codex-linux-*/vendor/*/bin/codex"))
        if not found:
            raise Absent("codex is not installed")
        starter = self.program(
            _version([str(found[0]), "--version"]), str(found[0]), "sandbox", "-c", 'sandbox_mode="read-only"', "--"
        )
        starter.shown = starter.shown.replace(str(found[0].parent) + "/", "")
        return starter

    def srt(self) -> Starter:
        found = PEERS / "npm/node_modules/.bin/srt"
        if not found.exists():
            raise Absent("sandbox-runtime (srt) is not installed")
        settings = self.home / "srt.json"
        settings.write_text(json.dumps(self.srt_policy))
        starter = self.program(f"srt {_version([str(found), '--version'])}", str(found), "-s", str(settings), "--")
        starter.shown = starter.shown.replace(str(found.parent) + "/", "")
        return starter

    def srt_library(self) -> Starter:
        """As a front-end uses it that is written for Node.js: initialised once, so that neither is started each time."""
        package = PEERS / "npm/node_modules/@anthropic-ai/sandbox-runtime"
        if not (package / "dist/index.js").exists():
            raise Absent("sandbox-runtime (srt), the library, is not installed")
        argv = ["node", "--input-type=module", "-e", SRT_LIBRARY, str(package / "dist/index.js"), json.dumps(self.srt_policy)]
        child = self.stack.enter_context(_process(argv, self.env, self.workspace))
        if _line(child) != "up":
            raise Absent("sandbox-runtime (srt), the library, does not start here")

        def run(text: str) -> tuple[float, int]:
            assert child.stdin is not None
            child.stdin.write(text.encode() + b"\n")
            child.stdin.flush()
            taken, code = _line(child).split()
            return float(taken) / 1e3, int(code)

        version = json.loads((package / "package.json").read_text())["version"]
        return Starter(f"srt {version}, library", "SandboxManager.wrapWithSandbox(…), then spawn", run)

    def swe_rex(self) -> Starter:
        found = PEERS / "python/bin/swerex-remote"
        if not found.exists():
            raise Absent("SWE-ReX is not installed")
        token = secrets.token_hex()
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        argv = [str(found), "--host", "127.0.0.1", "--port", str(port), "--auth-token", token]
        self.stack.enter_context(_process(argv, self.env, self.workspace))
        connection = self.stack.enter_context(closing(HTTPConnection("127.0.0.1", port, timeout=30)))

        def ask(method: str, path: str, body: object = None) -> Any:
            headers = {"X-API-Key": token, "Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            return json.loads(connection.getresponse().read())

        def run(text: str) -> tuple[float, int]:
            begun = time.perf_counter()
            answer = ask("POST", "/execute", {"command": [*TRUE[:-1], text], "shell": False})
            return time.perf_counter() - begun, answer["exit_code"]

        end = time.monotonic() + 20
        while True:
            try:
                ask("GET", "/is_alive")
                break
            except (OSError, HTTPException):
                connection.close()
                if time.monotonic() > end:
                    raise Absent("SWE-ReX does not answer here") from None
                time.sleep(0.05)
        return Starter(f"SWE-ReX {_package('swe-rex')}", "POST /execute of swerex-remote, which confines nothing", run, "client")


def _process(argv: Sequence[str], env: dict[str, str], cwd: Path) -> Any:
    """A child that ends with its context."""

    class Process(subprocess.Popen[bytes]):
        def __exit__(self, *error: object) -> None:
            self.terminate()
            try:
                self.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
                self.wait()
            for stream in (self.stdin, self.stdout):
                if stream is not None:
                    stream.close()

    return Process(argv, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _line(child: subprocess.Popen[bytes]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().decode().strip()


def _which(name: str) -> str:
    found = shutil.which(name, path=PATH)
    if found is None:
        raise Absent(f"{name} is not installed")
    return found


def _version(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    return (
        (done.stdout.strip() or done.stderr.strip()).splitlines()[0].replace(" version", "") if done.returncode == 0 else argv[0]
    )


def _package(name: str) -> str:
    code = f"import importlib.metadata; print(importlib.metadata.version({name!r}))"
    return _version([str(PEERS / "python/bin/python"), "-c", code])


# -- starts ------------------------------------------------------------------------------------------------------------


def starts() -> dict[str, object]:
    """Measure, print, and return what was found."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sandboxd-peers-", dir="/var/tmp")))
        makers = Starters(root, stack)
        starters: list[Starter] = []
        for make in (makers.bwrap, makers.firejail, makers.codex, makers.srt, makers.srt_library, makers.swe_rex):
            try:
                starters.append(_tried(make(), root))
            except (Absent, OSError, subprocess.SubprocessError, ValueError) as error:
                print(f"left out: {error}")
        plain = makers.program("plain bash")
        here = bench_warm.scene()
        launch = here.plan("true")
        house = stack.enter_context(daemon())
        client = stack.enter_context(Client(house.address, admin=True))
        session = stack.enter_context(client.session(house.workspace, headless=True))
        ready = Starter("sandboxd, ready box", "", lambda _: (here.boxed(here.native, launch), 0))
        cold = Starter("sandboxd, nothing ready", "", lambda _: (here.boxed(here.templates, launch), 0))
        served = Starter("sandboxd, client", "", lambda text: _timed(lambda: session.run(text)))
        for _ in range(2):
            served.run("true")
        everyone = [plain, ready, cold, served, *starters]
        end = time.perf_counter() + SECONDS
        for number in range(ROUNDS):
            if number >= 10 and time.perf_counter() > end:
                break
            for each in everyone if number % 2 else reversed(everyone):
                if each is ready:
                    assert here.native.prepare(launch, 2, 30.0)
                elif each is cold:
                    here.templates.drain()
                elif each is served:
                    bench_client.ready(client)
                each.taken.append(each.run("true")[0])
    ours = {"ready box": ready, "nothing ready": cold, "client": served}
    return {each.name: row for each, row in _rows(plain, ours, starters)}


def _tried(starter: Starter, root: Path) -> Starter:
    """A peer that has run a command, and been asked to write outside of what it may."""
    _, code = starter.run("true")
    if code != 0:
        raise Absent(f"{starter.name} does not run here (its exit status is {code})")
    outside = root / f"outside-{len(os.listdir(root))}"
    starter.run(f"echo x > {outside}")
    starter.confines = not outside.exists()
    return starter


def _timed(work: Callable[[], object]) -> tuple[float, int]:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun, 0


def _rows(plain: Starter, ours: dict[str, Starter], starters: list[Starter]) -> Iterator[tuple[Starter, dict[str, object]]]:
    print(
        f"\n{'start of `bash -c true`':<28} {'ms':>8} {'p95':>8} {'/ plain':>8} {'ours / theirs':>14} {'p95':>7}   compared with"
    )
    for each in (plain, *ours.values(), *starters):
        theirs, slow = median(each.taken), percentile95(each.taken)
        row: dict[str, object] = {"ms": round(theirs * 1e3, 3), "p95": round(slow * 1e3, 3), "n": len(each.taken)}
        line = f"{each.name:<28} {theirs * 1e3:>8.2f} {slow * 1e3:>8.2f} {theirs / median(plain.taken):>8.2f}"
        if each in starters:
            mine = ours[each.ours].taken
            row |= {"ratio": round(median(mine) / theirs, 4), "confines": each.confines, "command": each.shown}
            line += f" {median(mine) / theirs:>14.3f} {percentile95(mine) / slow:>7.3f}   {each.ours}"
            line += "" if each.confines else "; it let the command write outside"
        print(line)
        yield each, row
    print(f"n = {len(plain.taken)}, in turns; less than 1 is faster than they. As run:")
    for each in starters:
        print(f"  {each.name}: {each.shown}")


# -- verdicts ----------------------------------------------------------------------------------------------------------


def corpora() -> dict[str, tuple[list[str], list[str]]]:
    """By name: lines that only read, lines that change something."""
    rows = [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]
    lines = tuple([row["cmd"] for row in rows if row["must"] == must] for must in ("readonly", "mutates"))
    tables = Tables()
    examples = {each.run: each.holds for name in tables.names() for table in tables.find(name) for each in table.examples}
    reads = [text for text, holds in examples.items() if "read-only" in holds]
    changes = [text for text, holds in examples.items() if any(item.startswith(CHANGES) for item in holds)]
    return {"lines": (lines[0], lines[1]), "examples of tables": (reads, changes)}


def verdicts() -> dict[str, object]:
    """Ask, print, and return what was found."""
    asked = corpora()
    judges: dict[str, Callable[[list[str]], list[bool]]] = {
        "sandboxd": lambda texts: [analyze(text, CONTEXT).read_only for text in texts]
    }
    for peer in ("bash-classify", "nah"):
        judges[peer] = lambda texts, peer=peer: _asked(peer, texts)  # type: ignore[misc]  # a bound default
    print(f"\n{'what only reads':<24} {'of':<20} {'harmless recognised':>22} {'harmful called read-only':>27}")
    found: dict[str, object] = {}
    for name, judge in judges.items():
        try:
            label = name if name == "sandboxd" else f"{name} {_package(name)}"
            for corpus, (reads, changes) in asked.items():
                right, wrong = sum(judge(reads)), sum(judge(changes))
                found[f"{label}, {corpus}"] = {"recognised": right / len(reads), "missed": wrong / len(changes)}
                shares = (f"{part} of {len(of)} = {part / len(of):.1%}" for part, of in ((right, reads), (wrong, changes)))
                print(f"{label:<24} {corpus:<20} {next(shares):>22} {next(shares):>27}")
        except Absent as error:
            print(f"left out: {error}")
    print("left out: codex: `codex execpolicy check` answers from rule files of its user alone, and comes with none")
    return found


def _asked(peer: str, texts: list[str]) -> list[bool]:
    python = PEERS / "python/bin/python"
    with tempfile.TemporaryDirectory(prefix="sandboxd-peers-") as home:
        done = subprocess.run(
            [str(python), "-I", str(Path(__file__).with_name("peer_verdicts.py")), peer],
            input=json.dumps(texts), capture_output=True, text=True, check=False, timeout=300,
            cwd=home, env={"HOME": home, "PATH": PATH},
        ) if python.exists() else None  # fmt: skip
    if done is None or done.returncode != 0:
        raise Absent(f"{peer} is not installed or does not run here: {done.stderr.strip().splitlines()[-1:] if done else ''}")
    return list(json.loads(done.stdout))


def main() -> int:
    found = {"starts": starts(), "verdicts": verdicts()}
    out = ROOT / "build" / "peers.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"\nwritten to {out.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
