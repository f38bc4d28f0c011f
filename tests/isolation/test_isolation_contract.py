# SPDX-License-Identifier: GPL-3.0-or-later
"""One contract for every backend: how commands start, end and report, and what each backend promises to hold.

To add a backend: its name in BACKENDS, what it does not hold in GAPS. A promise of all backends is a test here; one of
bwrap alone belongs to the other modules.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxd.errors import IsolationError
from sandboxd.isolation import backends, interpreter
from sandboxd.isolation.plan import plan
from sandboxd.model import Probe, Profile, Require, Stdio
from tests.isolation import _drive
from tests.isolation.conftest import HERE, Result, Runner
from tests.isolation.test_isolation_life import alive

BACKENDS = ("native", "bwrap", "landlock", "none")
CONFINING = ("native", "bwrap", "landlock")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=CONFINING)
def confining(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def ws(who: Runner) -> Path:
    who.make("contract/file", "kept\n")
    return who.root / "contract"


def run(who: Runner, ws: Path, text: str, backend: str, **more: object) -> Result:
    more.setdefault("tmp", str(who.make("contract-tmp")))
    return who(text, ws, backend=backend, **more)


@pytest.mark.parametrize(
    ("text", "code", "signal"),
    [("true", 0, None), ("exit 3", 3, None), ("exit 143", 143, None), ("kill -TERM $$", None, 15), ("kill -KILL $$", None, 9),
     ("nonsense-command", 127, None)],
)  # fmt: skip
def test_status(who: Runner, ws: Path, backend: str, text: str, code: int | None, signal: int | None) -> None:
    """An exit status and a signal are told apart."""
    result = run(who, ws, text, backend)
    assert (result.code, result.signal, result.error) == (code, signal, "")


def test_output_and_environment(who: Runner, ws: Path, backend: str) -> None:
    """Streams are apart, the text may be long, nothing of the daemon's environment is passed on, the ids are the box's."""
    text = 'printf out; printf err >&2; test -z "$MY_API_TOKEN$BASH_ENV$LD_LIBRARY_PATH" || exit 9; id -u >&2; : ' + "x" * 64_000
    result = run(who, ws, text, backend, daemon_env={"MY_API_TOKEN": "t", "BASH_ENV": "/x", "LD_LIBRARY_PATH": "/x"})
    assert (result.out, result.err, result.code) == ("out", f"err{who.uid}\n", 0)


def test_no_descriptor_is_inherited(who: Runner, ws: Path, backend: str) -> None:
    """Only the three of the command."""
    leak = who.make("contract-leak", "")
    result = run(who, ws, "echo x >&7; ls /proc/self/fd | wc -l", backend, leak=str(leak))
    assert result.out == "4\n"  # and the listing's own
    assert leak.read_text(encoding="utf-8") == ""


def test_the_last_directory_is_reported(who: Runner, ws: Path, backend: str) -> None:
    """By the same means everywhere."""
    result = run(who, ws, "cd /usr; exit 4", backend, report_cwd=True)
    assert (result.cwd, result.code) == ("/usr\n", 4)


def test_signals_reach_the_command(who: Runner, ws: Path, backend: str) -> None:
    """The whole process group gets it."""
    result = run(who, ws, "trap 'echo got; exit 143' TERM; echo ready; sleep 1000", backend, then="15")
    assert (result.out, result.code) == ("ready\ngot\n", 143)


def test_kill_leaves_nothing(who: Runner, ws: Path, backend: str) -> None:
    """Not what ignores signals, not what left session and process group."""
    marker = f"1000.{os.getpid()}5"
    text = f"trap '' TERM HUP; for i in 1 2 3; do setsid sleep {marker} & done; (setsid setsid sleep {marker} &); echo up; wait"
    result = run(who, ws, text, backend, then="kill")
    assert (result.code, result.signal) == (None, 9)
    assert alive(marker) == []


def test_what_is_left_behind_ends_with_the_command(who: Runner, ws: Path, backend: str) -> None:
    """A daemon that a command made is gone when the command is."""
    marker = f"1000.{os.getpid()}6"
    result = run(who, ws, f"setsid sleep {marker} </dev/null >/dev/null 2>&1 & sleep 0.05; echo done", backend)
    assert result.out == "done\n"
    assert alive(marker) == []


def test_a_missing_directory_is_the_boxs_failure(who: Runner, ws: Path, backend: str) -> None:
    """It is told apart from a command that fails."""
    result = run(who, ws, "true", backend, cwd=str(ws / "missing"))
    assert "cannot enter" in result.error
    assert result.code is None


def test_rlimits_hold(who: Runner, ws: Path, backend: str) -> None:
    """File size and open files, whoever the user is."""
    profile = who.make("contract.toml", '[limits]\nfile_size = 1000\nopen_files = 64\n[isolation]\nrequire = "none"\n')
    text = "head -c 2000 /dev/zero > big; python3 -c 'import os; [os.dup(0) for _ in range(100)]'"
    result = run(who, ws, text, backend, profile=str(profile))
    assert (ws / "big").stat().st_size == 1000
    assert "Too many open files" in result.err
    assert len(result.limits) == 2


def test_writes_stay_where_the_decision_opened(who: Runner, ws: Path, confining: str) -> None:
    """The workspace when it is opened, nothing under the promise; the private TMPDIR always."""
    outside = who.make("contract-outside/file", "kept\n")
    text = (
        f'echo x > new; echo x > {outside}; rm {outside}; echo x > "$TMPDIR/t" && cat "$TMPDIR/t"; ls new 2>/dev/null; rm -f new'
    )
    opened = run(who, ws, text, confining)
    assert opened.out == "x\nnew\n"
    closed = run(who, ws, text, confining, promise=True, grants=[])
    assert closed.out == "x\n"
    assert outside.read_text(encoding="utf-8") == "kept\n"
    assert not (ws / "new").exists()


def test_secrets_are_not_read(who: Runner, ws: Path, confining: str) -> None:
    """Hidden by name, through any spelling; what is beside them is read."""
    who.make("home/.ssh/id_test", "sekret")
    who.make("home/.config/plain", "fine\n")
    who.make("contract-own/state", "sekret")
    text = "cd ~; cat .ssh/id_test; cat .ssh/*; cat $OWN; cat .config/plain; ls /usr >/dev/null && echo listed"
    text = text.replace("$OWN", f"{who.root}/contract-own/state")
    result = run(who, ws, text, confining, own=[str(who.root / "contract-own")], cwd=str(ws))
    assert result.out == "fine\nlisted\n"


def test_the_network_is_off(who: Runner, ws: Path, confining: str) -> None:
    """A server of the host cannot be reached, by address or by the path of its socket."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        path = str(who.root / f"contract-{confining}.sock")
        local.bind(path)
        os.chmod(path, 0o777)
        local.listen()
        text = (
            "python3 - <<'E'\nimport socket\n"
            f"for family, address in ((socket.AF_INET, ('127.0.0.1', {server.getsockname()[1]})), (socket.AF_UNIX, '{path}')):\n"
            "  try: socket.socket(family).connect(address); print('connected')\n  except OSError as e: print('no')\nE"
        )
        assert run(who, ws, text, confining).out == "no\nno\n"


def test_privileges_are_gone(who: Runner, ws: Path, confining: str) -> None:
    """No capability, no new privileges, a filter; the host's kernel settings cannot be opened for writing, nor processes."""
    text = (
        "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | awk '{print $2}' | xargs;"
        "python3 -c 'import os; os.open(\"/proc/sys/vm/swappiness\", os.O_WRONLY)' 2>&1 | tail -1 | grep -oE 'Errno [0-9]+';"
        f"kill -0 {os.getpid()} 2>/dev/null && echo reached; unshare -U true 2>/dev/null && echo unshared; true"
    )
    lines = run(who, ws, text, confining).out.splitlines()
    none = "0000000000000000"
    assert lines[0].split()[0] == none
    assert lines[0].split()[2:] == ["1", "2"]
    assert lines[1:] in (["Errno 30"], ["Errno 13"])
    assert confining == "landlock" or lines[0].split()[1] == none


def test_a_read_only_command_changes_no_metadata(who: Runner, ws: Path, confining: str) -> None:
    """Neither mode nor times nor attributes, of its workspace or of anything else, by whatever call."""
    before = (ws / "file").stat()
    text = (
        "chmod 777 file; touch file; chmod +t .; python3 - <<'E'\nimport os\n"
        "for f, w in ((os.chmod, ('file', 0o777)), (os.utime, ('file',)), (os.setxattr, ('file', 'user.x', b'1')),\n"
        " (os.chown, ('file', os.getuid(), os.getgid())), (os.fchmod, (os.open('file', 0), 0o777))):\n"
        "  try: f(*w); print('did', f.__name__)\n  except OSError: pass\nE\necho end"
    )
    result = run(who, ws, text, confining, promise=True, grants=[])
    assert result.out == "end\n"
    after = (ws / "file").stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_ctime_ns) == (before.st_mode, before.st_mtime_ns, before.st_ctime_ns)


# python in a box -> the errno names that may come of it; nothing of it would harm the host if the box were missing
WITHOUT_NAMESPACES = {
    "os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)": "EROFS EACCES",
    "os.open('/proc/{host}/environ', 0)": "EACCES ENOENT",
    "os.open('/proc/{host}/mem', 0)": "EACCES ENOENT",
    "os.open('/proc/{host}/fd/0', 0)": "EACCES ENOENT",
    "os.kill({host}, 0)": "EPERM ESRCH",
    "os.open('{fifo}', os.O_WRONLY | os.O_NONBLOCK)": "EACCES",
    "os.open(f'/proc/self/fd/{{os.open(\"{file}\", 0)}}', os.O_WRONLY)": "EROFS EACCES",
    "os.truncate('{file}', 0)": "EROFS EACCES",
    "os.link('{file}', '{file}-link')": "EROFS EACCES EXDEV",
    "os.rename('{file}', '{file}-moved')": "EROFS EACCES EXDEV",
    "os.mknod('{file}-node', 0o20666, os.makedev(1, 3))": "EPERM EROFS EACCES",
    "socket.socket(socket.AF_UNIX)": "EPERM",
    "socket.socket(40, socket.SOCK_STREAM)": "EPERM",
    "socket.socket(16, socket.SOCK_RAW, 9)": "EPERM",
    "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)": "EPERM",
    "raw(321, 280, 0, 0, 0)": "EPERM",  # bpf
    "raw(425, 425, 1, 0)": "EPERM",  # io_uring_setup
    "raw(101, 117, 0, 0, 0, 0)": "EPERM",  # ptrace
    "raw(250, 219, 0, -3, 0)": "EPERM",  # keyctl
    "raw(323, 282, 0)": "EPERM",  # userfaultfd
    "raw(298, 241, 0, 0, -1, -1, 0)": "EPERM",  # perf_event_open
    "raw(272, 97, 0x10000000)": "EPERM",  # unshare
    "raw(435, 435, 0, 0)": "ENOSYS",  # clone3
    "fcntl.ioctl(pty.openpty()[0], 0x5412, b'x')": "EPERM",  # TIOCSTI
    "os.write(7, b'x')": "EBADF",
    "os.setuid(12345)": "EPERM EINVAL",
}
ASK = """
import ctypes, errno, fcntl, os, pty, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def raw(x86, arm, *words):
    if libc.syscall(ctypes.c_long(x86 if os.uname().machine == "x86_64" else arm), *map(ctypes.c_long, words)) == -1:
        raise OSError(ctypes.get_errno(), "")
for line in sys.stdin.read().splitlines():
    try: eval(line); print("done")
    except OSError as error: print(errno.errorcode[error.errno])
"""


@pytest.mark.parametrize("promise", [True, False], ids=["promise", "writes"])
def test_what_needs_no_namespace_holds_everywhere(who: Runner, ws: Path, confining: str, promise: bool) -> None:
    """Calls, sockets, other processes, files outside: refused by Landlock and the filter alone too, as root and others."""
    outside = who.make("contract-probes/file", "kept\n")
    fifo = outside.parent / "fifo"
    if not fifo.exists():
        os.mkfifo(fifo)
        os.chown(fifo, who.uid, -1)
    script = who.make("contract-ask.py", ASK)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    owner = None if who.uid == os.geteuid() else who.uid
    sleeper = subprocess.Popen(["sleep", "300"], user=owner)  # the same user's, so that nothing but the box is in the way
    try:
        lines = [each.format(host=sleeper.pid, fifo=fifo, file=outside) for each in WITHOUT_NAMESPACES]
        text = f"{interpreter.find(who.uid)} -I {script} <<'E'\n" + "\n".join(lines) + "\nE"
        result = run(who, ws, text, confining, promise=promise, grants=[] if promise else [("workspace_write", "")])
    finally:
        sleeper.kill()
        sleeper.wait()
        os.close(reader)
    answers = result.out.split()
    assert len(answers) == len(WITHOUT_NAMESPACES), result.err
    pairs = zip(WITHOUT_NAMESPACES.items(), answers, strict=True)
    wrong = [(ask, got) for (ask, wanted), got in pairs if got not in wanted.split()]
    assert wrong == []
    assert outside.read_text(encoding="utf-8") == "kept\n"


def test_what_the_backend_without_namespaces_lacks_is_said(who: Runner, ws: Path) -> None:
    """Each thing that it does not hold stands in words in its enforcement, and a terminal is refused, not run without."""
    backend = next(each for each in backends.BACKENDS if each.name == "landlock")

    def said(**more: object) -> dict[str, str]:
        spec = {"text": "true", "workspace": str(ws), "home": str(who.home), "uid": who.uid, **more}
        asked = _drive.request(spec)
        launch = plan(asked, backends.host_facts(asked.session, asked))
        return {state.layer.value: ", ".join(state.missing) for state in backend.enforcement(launch).layers}

    writes, reads = said(), said(promise=True, grants=())
    for words in ("protected paths inside a writable tree", "mode, times and attributes", "/tmp, /proc and /dev"):
        assert words in writes["filesystem"]
    assert "protected" not in reads["filesystem"]
    assert "mode" not in reads["filesystem"]
    for words in ("processes and System V objects of the host", "terminal"):
        assert words in writes["namespaces"]
    assert "Unix sockets that the profile does not name" in said(profile="build")["network"]
    asked = _drive.request({"text": "true", "workspace": str(ws), "home": str(who.home), "uid": who.uid})
    launch = dataclasses.replace(plan(asked, backends.host_facts(asked.session, asked)), tty=True)
    with pytest.raises(IsolationError, match="terminal"):
        backend.start(launch, Stdio(0, 1, 2))


def test_enforcement_tells_the_gaps(who: Runner, ws: Path) -> None:
    """FULL is only said by the backend that has namespaces."""
    said = {name: run(who, ws, "true", name).enforcement for name in BACKENDS}
    for name in backends.FULL:
        assert said[name] is not None
        assert (said[name] or {})["filesystem"] == "full"
    assert said["landlock"] is not None
    assert (said["landlock"]["filesystem"], said["landlock"]["namespaces"]) == ("partial", "none")
    assert said["landlock"]["syscalls"] == said["landlock"]["privileges"] == said["landlock"]["network"] == "full"
    assert said["none"] is not None
    assert {said["none"][name] for name in ("filesystem", "namespaces", "network", "syscalls", "landlock", "privileges")} == {
        "none"
    }


def test_where_user_namespaces_are_refused(who: Runner, ws: Path) -> None:
    """In such a place (another box) native and bwrap fail, and a profile that names `landlock` runs with it, confined."""
    script = who.make("nested.py", NESTED)
    python = interpreter.find(who.uid)
    inner = who.make("contract/inner")
    packages = who.root / "packages"  # a copy: the project may lie where this user, or a box, cannot look
    if not packages.exists():
        left_out = shutil.ignore_patterns("data", "v1", "__pycache__")
        shutil.copytree(HERE.parent.parent / "sandboxd", packages / "sandboxd", ignore=left_out)
    result = run(who, ws, f"PYTHONPATH={packages} {python} -B {script} {inner}", "bwrap")
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    assert (answer["native"], answer["bwrap"]) == (False, False)
    assert answer["backend"] == "landlock"
    assert answer["out"] == "in\n"
    assert answer["outside"] is False


NESTED = """
import json, os, sys
from sandboxd.isolation import backends, profiles
from sandboxd.isolation.plan import plan
from sandboxd.model import *
import dataclasses
inner = sys.argv[1]
probes = backends.probe_all()
profile = dataclasses.replace(profiles.load("workspace", (profiles.SHIPPED_DIR,)), fallback=("landlock",))
session = Session("s", inner, "/nonexistent", os.getuid(), os.getgid(), "")
text = f"echo in > x; cat x; echo out > {inner}/../escaped"
asked = PlanRequest(text, inner, profile, session, (Grant(GrantKind.WORKSPACE_WRITE),), False, Facts())
backend = backends.choose(profile, probes)
read, write = os.pipe()
null = os.open(os.devnull, os.O_RDWR)
box = backend.start(plan(asked, backends.host_facts(session, asked)), Stdio(null, write, null))
os.close(write)
out = b""
while part := os.read(read, 4096):
    out += part
box.reap()
works = {each.backend: each.works for each in probes}
print(json.dumps({"native": works["native"], "bwrap": works["bwrap"], "backend": backend.name, "out": out.decode(),
                  "outside": os.path.exists(f"{inner}/../escaped")}))
"""


def probe(name: str, *, works: bool = True) -> Probe:
    backend = next(each for each in backends.BACKENDS if each.name == name)
    enforcement = next(each.enforcement for each in backends.probe_all() if each.backend == name) if works else None
    return Probe(backend.name, works, enforcement, "" if works else "refused", "the fix")


@pytest.mark.parametrize(
    ("fallback", "require", "explicit", "chosen"),
    [
        ((), Require.FS, True, ""),
        (("landlock",), Require.FS, True, "landlock"),
        (("landlock",), Require.FULL, True, ""),
        (("landlock", "none"), Require.NONE, True, "landlock"),
        (("none",), Require.NONE, True, "none"),
        (("none",), Require.NONE, False, ""),
        (("none",), Require.FS, True, ""),
    ],
)
def test_fallback_is_only_what_the_profile_says(fallback: tuple[str, ...], require: Require, explicit: bool, chosen: str) -> None:
    """Where neither native nor bwrap works: only a backend runs that is named, strong enough, and for `none` asked for."""
    probes = (probe("native", works=False), probe("bwrap", works=False), probe("landlock"), probe("none"))
    profile = Profile("p", "p", fallback=fallback, require=require)
    if chosen:
        assert backends.choose(profile, probes, explicit=explicit).name == chosen
    else:
        with pytest.raises(IsolationError) as caught:
            backends.choose(profile, probes, explicit=explicit)
        assert "bwrap: refused" in str(caught.value)


def test_bwrap_is_used_where_native_does_not_work_or_the_configuration_says_so() -> None:
    """Without a word of the profile: both confine alike."""
    profile = Profile("p", "p")
    assert backends.choose(profile, (probe("native", works=False), probe("bwrap"))).name == "bwrap"
    assert backends.choose(profile, backends.probe_all(), preferred="bwrap").name == "bwrap"
    with pytest.raises(IsolationError, match="native: refused"):
        backends.choose(profile, (probe("native", works=False), probe("bwrap")), preferred="native")
    with pytest.raises(IsolationError, match="filesystem is partial"):
        backends.choose(profile, backends.probe_all(), preferred="landlock")


def test_the_strongest_is_used_where_it_works() -> None:
    """A fallback is none where the first backend works."""
    profile = Profile("p", "p", fallback=("none", "landlock"), require=Require.NONE)
    assert backends.choose(profile, backends.probe_all()).name == "native"
    assert sys.platform == "linux"
