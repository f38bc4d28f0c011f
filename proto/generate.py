# SPDX-License-Identifier: GPL-3.0-or-later
"""Make sandboxd/v1 from proto/ with pinned tools, or check that it is as they make it.

    python proto/generate.py            write sandboxd/v1
    python proto/generate.py --check    change nothing; fail when sandboxd/v1 is not what would be written, when buf finds a
                                        lint error, when a change breaks clients of the committed image, or when the
                                        generated code does not load with the oldest supported protobuf
    python proto/generate.py --image    take the present files as the wire that later changes must not break

The tools live in an environment of their own under build/, because grpcio-tools pins a protobuf that the daemon does not:
code made by 1.76.0 loads with protobuf 6 and 7. Needs Python 3.11 or newer and, the first time, a package index.

To add a message or service: edit or add a file in proto/sandboxd/v1, run this, commit both.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
IMAGE = PROTO / "image.binpb"
OUT = Path("sandboxd/v1")
TOOLS = ROOT / "build" / "proto-tools"
PINS = ("grpcio-tools==1.76.0", "grpcio==1.76.0", "protobuf==6.31.1", "mypy-protobuf==3.7.0", "buf-bin==1.75.0")
PACKAGE = "# SPDX-License-Identifier: Apache-2.0\n"


def tools() -> Path:
    """The directory of the tools' programs; makes the environment when it is missing or its pins changed."""
    stamp = TOOLS / "pins"
    pins = "\n".join(PINS)
    if not stamp.is_file() or stamp.read_text() != pins:
        print(f"making {TOOLS.relative_to(ROOT)} ({', '.join(PINS)})", file=sys.stderr)
        venv.create(TOOLS, with_pip=True, clear=True)
        subprocess.run([TOOLS / "bin" / "pip", "install", "--quiet", *PINS], check=True)
        stamp.write_text(pins)
    return TOOLS / "bin"


def generate(programs: Path, target: Path) -> None:
    """Write the package below `target`, whose `sandboxd/v1` must exist."""
    subprocess.run(
        [
            programs / "python", "-m", "grpc_tools.protoc", "-I", PROTO,
            f"--plugin=protoc-gen-mypy={programs / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={programs / 'protoc-gen-mypy_grpc'}",
            f"--python_out={target}", f"--grpc_python_out={target}",
            f"--mypy_out=quiet:{target}", f"--mypy_grpc_out=quiet:{target}",
            *sorted(str(path.relative_to(PROTO)) for path in PROTO.glob("sandboxd/v1/*.proto")),
        ],
        check=True,
        cwd=PROTO,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},  # the plugin's own code is older than its protobuf, and says so
    )  # fmt: skip
    (target / OUT / "__init__.py").write_text(PACKAGE)


def files(base: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((base / OUT).iterdir()) if path.suffix in (".py", ".pyi")}


def write(programs: Path) -> None:
    """Replace the generated files, also those whose .proto file is gone."""
    with tempfile.TemporaryDirectory() as temporary:
        (Path(temporary) / OUT).mkdir(parents=True)
        generate(programs, Path(temporary))
        made, present = files(Path(temporary)), files(ROOT)
    for name in present.keys() - made.keys():
        (ROOT / OUT / name).unlink()
    for name, text in made.items():
        (ROOT / OUT / name).write_text(text)


def check(programs: Path) -> bool:
    """Say everything that is wrong; True when nothing is."""
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        (Path(temporary) / OUT).mkdir(parents=True)
        generate(programs, Path(temporary))
        made, present = files(Path(temporary)), files(ROOT)
    for name in sorted(made.keys() | present.keys()):
        before, after = present.get(name, "").splitlines(), made.get(name, "").splitlines()
        if before != after or (name in made) != (name in present):
            good = False
            lines = difflib.unified_diff(before, after, f"{OUT}/{name}", "as generated", lineterm="", n=1)
            print(f"{OUT}/{name} is not what `python proto/generate.py` writes:", *list(lines)[:20], sep="\n", file=sys.stderr)
    buf = programs / "buf"
    for arguments in (["lint"], ["format", "--diff", "--exit-code"], ["breaking", "--against", IMAGE]):
        good &= subprocess.run([buf, *arguments], cwd=PROTO).returncode == 0
    modules = sorted(f"sandboxd.v1.{path.stem}" for path in (ROOT / OUT).glob("*_pb2*.py"))
    good &= subprocess.run([programs / "python", "-W", "error", "-c", f"import {', '.join(modules)}"], cwd=ROOT).returncode == 0
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true")
    action.add_argument("--image", action="store_true")
    options = parser.parse_args()
    programs = tools()
    if options.check:
        return 0 if check(programs) else 1
    if options.image:
        subprocess.run([programs / "buf", "build", "--exclude-source-info", "-o", IMAGE], cwd=PROTO, check=True)
    else:
        write(programs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
