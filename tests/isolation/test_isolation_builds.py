# SPDX-License-Identifier: GPL-3.0-or-later
"""Real builds under the profiles that should allow them: package managers, compilers and test runners, offline.

To add a build: a row in BUILDS (profile, name, program it needs, command, last line that it prints); what it reads is made
by the fixture `project`. A command runs as each kind of user, with each backend that has namespaces.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from tests._users import SYSTEM_PATH, User, readable_by_all
from tests.isolation.conftest import Result, Runner

PYTHON = "/usr/bin/python3"

# A package index on loopback; with a word it knows the names and no longer gives the files.
INDEX = """
import functools, http.server, sys, threading, subprocess
class Index(http.server.SimpleHTTPRequestHandler):
    def end_headers(self):
        self.send_header("Cache-Control", "max-age=3600")
        super().end_headers()
    def do_GET(self):
        if len(sys.argv) > 1 and self.path.endswith(".whl"):
            return self.send_error(404)
        if self.path == "/simple/tiny-example/":
            page = b'<a href="/wheels/tiny_example-1.0-py3-none-any.whl">tiny_example-1.0-py3-none-any.whl</a>'
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            return self.wfile.write(page)
        return super().do_GET()
    def log_message(self, *words):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8765), Index)
threading.Thread(target=server.serve_forever, daemon=True).start()
words = ["-m", "pip", "download", "--no-deps", "-d", "got", "-i", "http://127.0.0.1:8765/simple/", "tiny-example"]
words += ["--trusted-host", "127.0.0.1:8765"]  # a cache is kept for those only
done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
print(done.stdout, done.stderr, file=sys.stderr)
print("cached" if "Using cached" in done.stdout else "fetched" if done.returncode == 0 else "failed")
"""
LIBRARY = "pub fn twice(x: i32) -> i32 { x * 2 }\n#[test]\nfn it_doubles() { assert_eq!(twice(2), 4); }\n"
JAVA = (
    "public class Hello { public static void main(String[] a) throws Exception {\n"
    '  Thread t = new Thread(() -> System.out.println("java")); t.start(); t.join(); } }\n'
)
CMAKE = (
    "cmake_minimum_required(VERSION 3.10)\nproject(p C)\nadd_executable(p m.c)\nenable_testing()\nadd_test(NAME p COMMAND p)\n"
)
FORKSERVER = (
    "import multiprocessing as m\nif __name__ == '__main__':\n"
    "  with m.get_context('forkserver').Pool(2) as p: print(sum(p.map(abs, [-1, -2])))\n"
)
SPAWN = FORKSERVER.replace("forkserver", "spawn")
SERVER = "python3 -m http.server -b 127.0.0.1 8766 >/dev/null 2>&1 & "
ASK = (
    'python3 -c \'import time, urllib.request as u\nfor _ in range(200):\n  try: print(u.urlopen("http://127.0.0.1:8766/").status)'
    "\n  except OSError: time.sleep(.05); continue\n  break'; kill %1"
)

BUILDS = [
    ("workspace", "wheel", PYTHON, f"{PYTHON} -m pip install -q --no-index --find-links wheels --target t tiny-example"
     f" && PYTHONPATH=t {PYTHON} -c 'import tiny_example as t; print(t.VALUE)'", "41"),
    ("build", "source package", PYTHON, f"{PYTHON} -m pip install -q --no-index --no-build-isolation --find-links sources"
     f" --target s small-example && PYTHONPATH=s {PYTHON} -c 'import small_example as t; print(t.VALUE)'", "42"),
    ("workspace", "virtual environment", PYTHON, f"{PYTHON} -m venv --system-site-packages --without-pip v &&"
     " v/bin/python -m pip install -q --no-index --find-links wheels tiny-example && v/bin/python -c"
     " 'import tiny_example as t; print(t.VALUE)'", "41"),
    ("build", "index", PYTHON, f"rm -rf got; {PYTHON} index.py", "fetched"),
    ("build", "warm cache", PYTHON, f"rm -rf got; {PYTHON} index.py names-only", "cached"),
    ("workspace", "pytest", "@pytest", "@pytest -q -p no:cacheprovider tests 2>&1 | tail -1 | cut -d' ' -f1-2", "2 passed"),
    ("workspace", "pytest writes its cache", "@pytest", "@pytest -q tests >/dev/null && test -d .pytest_cache && echo kept",
     "kept"),
    ("build", "cargo build", "cargo", "cd crate && cargo build --offline -q && ls target/debug/*.rlib | wc -l", "1"),
    ("build", "cargo test", "cargo", "cd crate && cargo test --offline 2>&1 | grep -c 'it_doubles ... ok'", "1"),
    ("workspace", "rustc", "rustc", "echo 'fn main() { println!(\"rust\"); }' > m.rs && rustc m.rs -o m && ./m", "rust"),
    ("build", "npm ci", "npm", "cd app && npm ci --offline --no-audit --no-fund >/dev/null && node -p 'require(\"part\")'", "7"),
    ("build", "npm ls", "npm", "cd app && npm ls | grep -c part@1.0.0", "1"),
    ("workspace", "npm ls", "npm", "cd app && npm ls | grep -c part@1.0.0", "1"),
    ("build", "npm run", "npm", "cd app && npm run -s build && cat out", "built"),
    ("build", "npm pack", "npm", "cd app/part && npm pack --silent", "part-1.0.0.tgz"),
    ("workspace", "node server", "node", "node -e 'const h = require(\"http\"); const s = h.createServer((q, r) => r.end(\"hi\"))"
     ".listen(0, () => h.get({port: s.address().port}, r => r.on(\"data\", d => console.log(\"\" + d)).on(\"end\","
     " () => s.close())))'", "hi"),
    ("workspace", "node workers", "node", "node -e 'const w = require(\"worker_threads\"); new w.Worker("
     "\"require(`worker_threads`).parentPort.postMessage(3)\", {eval: true}).on(\"message\", m => console.log(m))'", "3"),
    ("workspace", "javac", "javac", "javac -J-Xmx128m Hello.java && java -Xmx64m Hello", "java"),
    ("build", "jar", "jar", "javac -J-Xmx128m Hello.java && jar -J-Xmx64m cfe h.jar Hello Hello.class &&"
     " java -Xmx64m -jar h.jar", "java"),
    ("workspace", "cmake", "cmake", "cmake -S c -B c/out >/dev/null && cmake --build c/out >/dev/null && cd c/out &&"
     " ctest | grep -c '100% tests passed'", "1"),
    ("workspace", "make in parallel", "make", "make -s -C many -j4 && ls many/*.out | wc -l", "12"),
    ("build", "fork server", PYTHON, f"{PYTHON} forkserver.py", "3"),
    ("workspace", "spawned workers", PYTHON, f"{PYTHON} spawn.py", "3"),
    ("workspace", "server and client", PYTHON, f"{SERVER} {ASK}", "200"),
    ("workspace", "named semaphore", PYTHON, f"{PYTHON} -c 'import _multiprocessing as m; s = m.SemLock(1, 1, 1, \"/s\", True);"
     " print(s.acquire())'", "True"),
    ("workspace", "memory in /dev/shm", PYTHON, "head -c 5000000 /dev/zero > /dev/shm/x && stat -c %s /dev/shm/x", "5000000"),
    ("workspace", "terminal program", PYTHON, "script -qec 'stty size; test -t 1 && echo terminal' /dev/null | tail -1 |"
     " tr -d '\\r'", "terminal"),
    ("workspace", "executable in TMPDIR", "cc", "echo 'int main(){return 0;}' > $TMPDIR/m.c; cc -o $TMPDIR/m $TMPDIR/m.c &&"
     " $TMPDIR/m; echo $?", "0"),
    ("ci", "make under ci", "make", "make -s -C many -j4 && ls many/*.out | wc -l", "12"),
    ("ci", "pytest under ci", "@pytest", "@pytest -q -p no:cacheprovider tests 2>&1 | tail -1 | cut -d' ' -f1-2", "2 passed"),
]  # fmt: skip


@pytest.fixture(scope="module")
def toolchain() -> Iterator[Path | None]:
    """A Rust toolchain where every user may run it. One in a home directory gets second names for its files elsewhere."""
    for cargo in (shutil.which("cargo", path=SYSTEM_PATH), *_toolchains()):
        if cargo is not None and readable_by_all(Path(cargo)):
            yield Path(cargo).parent
            return
    found = _toolchains()
    if not found:
        yield None
        return
    place = Path(tempfile.mkdtemp(prefix="sandboxd-toolchain-", dir="/var/tmp"))
    place.chmod(0o755)
    for name in ("bin", "lib"):
        shutil.copytree(found[0].parent.parent / name, place / name, copy_function=_linked, symlinks=True)
    yield place / "bin"
    shutil.rmtree(place)


def _toolchains() -> list[Path]:
    home = Path(os.environ.get("RUSTUP_HOME") or Path.home() / ".rustup")
    return sorted(home.glob("toolchains/stable*/bin/cargo"))


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def python(who: Runner, request: pytest.FixtureRequest) -> Path:
    """An interpreter with pytest that the box's user can run."""
    if who.kind in ("plain", "dropped"):
        user: User = request.getfixturevalue("plain_user")
        return user.python
    return Path(sys.executable)


@pytest.fixture(scope="module")
def project(who: Runner) -> Path:
    """Small projects of several kinds, and what their package managers need to work without a network."""
    texts = {
        "index.py": INDEX,
        "forkserver.py": FORKSERVER,
        "spawn.py": SPAWN,
        "tests/test_a.py": "def test_a(tmp_path):\n    (tmp_path / 'x').write_text('x')\n\ndef test_b(): assert True\n",
        "crate/Cargo.toml": '[package]\nname = "tiny"\nversion = "0.1.0"\nedition = "2021"\n',
        "crate/src/lib.rs": LIBRARY,
        "app/package.json": '{"name": "app", "version": "1.0.0", "scripts": {"build": "echo built > out"},'
        ' "dependencies": {"part": "file:part"}}\n',
        "app/package-lock.json": LOCK,
        "app/part/package.json": '{"name": "part", "version": "1.0.0", "main": "i.js"}\n',
        "app/part/i.js": "module.exports = 7\n",
        "Hello.java": JAVA,
        "c/CMakeLists.txt": CMAKE,
        "c/m.c": "int main(void) { return 0; }\n",
        "many/Makefile": "all: $(foreach n,1 2 3 4 5 6 7 8 9 10 11 12,$n.out)\n%.out:\n\techo $* > $@\n",
    }
    for name, text in texts.items():
        who.make(f"builds/{name}", text)
    for name in (".cache/pip", ".npm", ".cargo/registry", ".cargo/git"):
        who.make(f"home/{name}")
    who.make("builds/wheels")
    who.make("builds/sources")
    _wheel(who.root / "builds/wheels/tiny_example-1.0-py3-none-any.whl")
    _source(who.root / "builds/sources/small-example-1.0.tar.gz")
    who.make("builds-tmp")
    return who.root / "builds"


LOCK = """{"name": "app", "version": "1.0.0", "lockfileVersion": 3, "requires": true, "packages": {
 "": {"name": "app", "version": "1.0.0", "dependencies": {"part": "file:part"}},
 "node_modules/part": {"resolved": "part", "link": true}, "part": {"version": "1.0.0"}}}
"""


def _wheel(path: Path) -> None:
    """A wheel as PEP 427 describes it, with one module."""
    info = "tiny_example-1.0.dist-info"
    files = {
        "tiny_example.py": b"VALUE = 41\n",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-example\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in (*files.items(), (f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode())):
            wheel.writestr(name, data)


def _source(path: Path) -> None:
    """A source package that setuptools builds."""
    setup = b"from setuptools import setup\nsetup(name='small-example', version='1.0', py_modules=['small_example'])\n"
    files = {"setup.py": setup, "small_example.py": b"VALUE = 42\n", "PKG-INFO": b"Metadata-Version: 1.0\nName: small-example\n"}
    with tarfile.open(path, "w:gz") as package:
        for name, data in files.items():
            member = tarfile.TarInfo(f"small-example-1.0/{name}")
            member.size = len(data)
            package.addfile(member, BytesIO(data))


@pytest.mark.parametrize(("profile", "name", "program", "text", "said"), BUILDS, ids=[f"{row[1]} {row[0]}" for row in BUILDS])
def test_build(
    who: Runner, project: Path, toolchain: Path | None, python: Path, profile: str, name: str, program: str, text: str, said: str
) -> None:
    """The build does in the box what it does outside, without a network, and says the same at its end."""
    if who.kind == "dropped" or who.backend == "native":
        pytest.skip("the same box as the plain user's, or as a ready one")
    path = SYSTEM_PATH
    if program == "@pytest" and Path(pytest.__file__).is_relative_to("/tmp"):
        pytest.skip("pytest is installed in /tmp, of which every box has its own")
    if program in ("cargo", "rustc"):
        if toolchain is None:
            pytest.skip("no Rust toolchain")
        path = f"{SYSTEM_PATH}:{toolchain}"
    elif program != "@pytest" and not shutil.which(program, path=SYSTEM_PATH):
        pytest.skip(f"no {program}")
    text = text.replace("@pytest", f"{python} -m pytest")
    result = who(text, project, profile=profile, tmp=str(who.root / "builds-tmp"), env=[["PATH", path]])
    assert result.error == ""
    assert result.out.strip().splitlines()[-1:] == [said], f"{name}: {result.out}\n{result.err}"
    assert result.violations == ()
    _nothing_unsaid(result)


def _nothing_unsaid(result: Result) -> None:
    assert (result.broken, result.planted, result.disarmed, result.limits) == ((), (), (), ())
