# SPDX-License-Identifier: GPL-3.0-or-later
"""Random lines that set and use variables: those called read-only run for real, below values that turn every slip into a file.

A line is made of assignments of every kind, wrapped in every construct, and of uses as options, operands and arithmetic.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sandboxd.analyze import TABLES, _Line
from tests.effects.effects_box import NOBODY, Box
from tests.effects.effects_cases import CONTEXT, CWD, HOME

pytestmark = pytest.mark.needs("bwrap", "userns")


def _entries(text: str) -> tuple[str, ...]:
    """What stands between two blanks, or on a line; `\\n` is a line's end."""
    return tuple(entry.replace("\\n", "\n") for entry in re.split("\n|  ", text) if entry)


NAMES = ("v", "w", "i", "n")
GOOD = _entries(r"""
0  3  12  -1  08  abc  src/m  main  'ab'  f  $((i+1))  $((v + n))  $(($i*2))  $#  ${#w}  $?  $(git rev-parse HEAD)
$(git rev-list -2 HEAD)  $(git merge-base a b)  $(ls | wc -l)  $(wc -l < f)  `nproc`  $(pwd)  $(date +%s)  $(date +%Y-%m-%d)
src/*  ./*  $(git log -1 --format=%h)  "$(realpath f)"  a b  1 2""")
BAD = (
    "",
    *_entries(r"""
-ox  --output=x  'a[$(touch y)]'  '-k -ox'  'x -ox'  ''  *  ''*  $1  "$1"  $X  $(cat f)  v  w  =x  $((w))  $w  "$i"  ${v}
${w:--ox}  +ox  {-ox,a}  $(echo -ox # | wc -l\n)  `echo -ox # | wc -l`  -delete  $(date +%F%n%z)  ${!w}  ${v/?/-}  ${v#?}
${v:1}  ~  $((n=-5))  $'-ox'  a -ox  $@  "$@"  $*  $-  $0"""),
)
SETS = (
    *("N=V",) * 24,
    *_entries("for N in V; do U; done  for N in V V; do U; done  for N in V; do S; U; done") * 4,
    *_entries(r"""
N=V  for N in V; do U; done  for N in V V; do U; done  for N in V; do S; U; done  N+=V  N=V true  export N=V  declare N=V
local N=V  readonly N=V  declare -i N=V  declare -n N=w  declare -u N  typeset N=V  N=(V)  N[0]=V  N[i]=V  N=([i]=V)  N+=(V)
read N  read -r N <<< V  read -aN  IFS=a read N w  printf -v N %s V  printf -vN -- V  let N=V  ((N=3))  ((N=-5))  ((N++))
((N+=i))  : $((N--))  : ${N:=V}  x=${N:=V}  echo ${u:-${N:=V}}  cat <<< ${N=V}  cat <<E\n${N:=V}\nE\n:  getopts ab N
mapfile N  mapfile -t N <<< V  unset N  exec {N}</dev/null  select N in V; do U; break; done  wait -n -p N  coproc N { :; }
IFS=V  IFS=a  IFS=1  set -- V  set -- V; N=$1  eval N=V  trap 'N=V' DEBUG  [[ N=-5 -eq 1 ]]
shopt -s lastpipe; echo V | read N  set -k  N\\n=V  x=${N\\n:=V}  x=${N[0]:=V}  ((N\\n=-5))  ((N[0]=-5))  : ${a[N=-5]}
: ${s:N=-5}  x=N; read $x; S  for ((N=0; N<2; N++)); do U; done  for ((N=0; N<2; N++)); do S; done  git() { echo -ox; }
while read N; do U; done <<< V  shift  N=V w=$N  N=V; w=$N  w=V N=$((w+1))  N= ; : ${N:=V}  builtin read N
command printf -v N V  OPTIND=1"""),
)
USES = _entries(r"""
sort $N f  sort "$N"  sort $N  sort a$N  sort $N$M  sort "$N:$M"  sort $N-ox  sort -k $N f  sort -k $N -k -ox f
sort -k "$N" f  git diff $N  git show "$N"  git show $N --stat  git log -S $N -S --output=x  git diff $N..HEAD  head -$N f
head -n $N f  echo $((N+1))  echo $(($N+1))  [[ $N -eq 1 ]]  [[ N -eq 1 ]]  [ $N -eq 1 ]  N=$((N+1))  [ $N 'a[$(touch y)]' ]
test $N  echo ${a[N]}  echo ${a[$N]}  s=abc; echo ${s:N}  ((N++))  ((N<M))  ((N<3)) && U  uniq $N  uniq f $N  uniq "$N"
cat $N  for q in $N; do sort $q; done  for q in $N; do sort "$q"; done  N=$((N+M)); U
while [ $N -lt 2 ]; do N=$((N+1)); U; done  sort "$(git rev-parse HEAD)$N"  find $N -name a  find "$N"  grep $N f
find "$HOME/$N" -name a  sort "${N}"  sort ${N}x  sort $N $M  sort ${N:-a}  sort "${N:-f}"  seq $N  sort <<< $((N+1))""")
WRAPS = (
    *("B",) * 12,
    *_entries(r"""
B  if false; then B; fi  if true; then B; else S; fi  false && B  true || B  true && B  (B)  { B; }  B | cat  B &  k() { B; }
k() { B; }; k  k() { B; }; k -ox  for q in 1 2; do B; done  case a in b) B;; esac  until true; do B; done
for q in; do B; done  while :; do B; break; done  echo $(B)  B && S  B || S  S & U  bash -c 'B'  export N; bash -c 'B'"""),
)
# What uses give by their own text.
OPTIONS = frozenset(("-k", "-S", "--stat", "-n", "-name", "-l", "-1", "-2", "--format=%h"))
HOSTILE = ("--output=x", "-ox", "a[$(touch y)]", "-delete", "x -ox")
STDIN = "-ox\n--output=x\na[$(touch y)]\n"
# What stands for programs: options are told; sort, uniq and find do what they do.
_TOLD = 'printf "%s\\034" "$CASE" "${0##*/}" "$@" >> "$LOG"; printf "\\n" >> "$LOG"\n'
_GIT = """case $1 in
  rev-parse|merge-base) [ "$EMPTY" ] || echo abc123;;
  rev-list) [ "$EMPTY" ] || printf 'abc1\\ndef2\\n';;
  log) [ "$2" = -1 ] && echo abc1
    while [ $# -gt 0 ]; do case $1 in -S) shift;; --output=*) echo > x;; esac; shift; done;;
esac
"""
# A case has a second; what it leaves dies with the box. What is new in the directory is told and taken away.
_DRIVER = """ulimit -u 3000 -f 2000 -t 20
cd {cwd} || exit 9
want=$(ls -A); mark=$(cat f)
run() {{
  CASE=$1; shift
  env -i PATH={home}/bin:/usr/bin:/bin HOME={home} LC_ALL=C LOG={home}/log CASE=$CASE "${{@:2}}" \\
    timeout -s KILL 1 bash --noprofile --norc -c "$1" bash --output=x -ox 'a[$(touch y)]' </tmp/in >/dev/null 2>&1
  if [ "$(ls -A)" != "$want" ] || [ "$(cat f)" != "$mark" ]; then
    printf '%s\\034made\\034\\n' "$CASE" >> {home}/log
    rm -rf -- ./* ./.[!.]*; make
  fi
}}
make() {{ mkdir -p src; echo 3 > f; echo -- -ox > ./-ox; echo > ./--output=x; echo a > a; echo m > src/m; }}
printf %s {stdin} > /tmp/in
"""


def lines(seed: int, count: int) -> Iterator[str]:
    """So many lines of this seed."""
    chance = random.Random(seed)
    for _ in range(count):
        lead = chance.choice(("", "", "i=0; ", "i=0; n=3; ", "v=0\n", "v=1 w=-2; i=0\n"))
        pieces = [_filled(chance, "B", 0) for _ in range(chance.choice((1, 2, 2, 3)))]
        yield lead + chance.choice(("; ", "\n", "\n")).join([*pieces, _filled(chance, chance.choice(USES), 0)])


def _filled(chance: random.Random, text: str, depth: int) -> str:
    """`text` with what its capitals stand for: B(ody), S(et), U(se), N(ame), M (another name), V(alue)."""
    name, other = chance.choice(NAMES), chance.choice(NAMES)
    out = []
    for at, letter in enumerate(text):
        alone = not (text[at - 1 : at].isalpha() or text[at + 1 : at + 2].isalpha()) or text[at - 2 : at] == "-v"
        if letter == "B" and alone:
            made = _filled(chance, chance.choice(WRAPS).replace("B", chance.choice(("S", "S", "U"))), depth + 1)
        elif letter == "S" and alone and text[at - 1 : at] != "-":
            made = _filled(chance, chance.choice(SETS) if depth < 3 else "N=V", depth + 1)
        elif letter == "U" and alone:
            made = _filled(chance, chance.choice(USES) if depth < 3 else "sort $N", depth + 1)
        elif letter == "V" and alone:
            made = chance.choice(GOOD if chance.random() < 0.8 else BAD)
        elif letter in "NM" and (alone or text[at - 1 : at] in "av"):
            made = name if letter == "N" else other
        else:
            made = letter
        out.append(made)
    return "".join(out)


def read_only(text: str) -> bool:
    return _Line(text, CONTEXT, TABLES).run().read_only


def told(texts: Sequence[str], preset: Sequence[str] = ()) -> dict[str, set[str]]:
    """What running each text does that it must not. `preset` are values that all names have before, one after the other."""
    with tempfile.TemporaryDirectory() as base:
        box = Box(Path(base), CWD, HOME)
        os.chmod(base, 0o755)
        box.make()
        (box.house / "bin").mkdir()
        for program in ("git", "sort", "uniq", "find"):
            rest = _GIT if program == "git" else f'exec /usr/bin/{program} "$@"\n'
            path = box.house / "bin" / program
            path.write_text(f"#!/bin/sh\n{_TOLD}{rest}")
            path.chmod(0o755)
        (box.house / "log").touch()
        for name, body in (("f", "3\n"), ("-ox", "-- -ox\n"), ("--output=x", "\n"), ("a", "a\n"), ("src/m", "m\n")):
            (box.work / name).parent.mkdir(exist_ok=True)
            (box.work / name).write_text(body)
        box.own()
        script = [_DRIVER.format(cwd=CWD, home=HOME, stdin=shlex.quote(STDIN))]
        names = (*NAMES, "x", "X", "u", "a", "s")
        around = [[f"{name}={value}" for name in names] for value in preset] or [[], ["EMPTY=1"]]
        for at, text in enumerate(texts):
            for values in around:
                script += [" ".join(map(shlex.quote, ("run", str(at), text, *values)))]
        user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        subprocess.run(
            [*box._bwrap(), "bash", "--noprofile", "--norc", "-s"],
            input="\n".join([*script, f"printf 'end\\034\\n' >> {HOME}/log"]).encode(),
            capture_output=True,
            timeout=110,
            check=False,
            cwd="/",
            **user,
        )
        log = (box.house / "log").read_text(errors="replace").split("\034\n")
    assert "end" in log, "the box did not get to its end"
    found: dict[str, set[str]] = {}
    for entry in log:
        case, *argv = entry.split("\034")
        for before, word in pairwise(argv):
            # What stands behind these is their value, and what it would do as an option shows in a file.
            if word[:1] == "-" and word != "-" and word not in OPTIONS and before not in ("-k", "-S", "-name"):
                found.setdefault(texts[int(case)], set()).add(" ".join(argv))
        if argv == ["made"]:
            found.setdefault(texts[int(case)], set()).add("made a file")
    return found


def test_the_box_sees_every_slip() -> None:
    """An option out of a variable, one behind a value that vanished, arithmetic that runs text: the run tells each of them."""
    slips = (
        'v=-ox; sort "$v" f',
        "git log -S $v -S --output=x",
        "i='a[$(touch y)]'; echo $((i))",
        "find $1 -name a",
        "sort f -o f$v",
    )
    assert set(told([*slips, "v=2; sort -k $v f; head -$v f", "sort f"])) == set(slips)


def test_what_variables_hold() -> None:
    """Some lines that are called read-only give no program an option and make no file, whatever stands around."""
    texts = [text for text in lines(1, 1500) if read_only(text)]
    assert told(texts[:60]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 16))
def test_what_variables_hold_at_length(seed: int) -> None:
    """Thousands of lines; those that are called read-only do no more than their text says."""
    texts = [text for text in lines(seed, 8000) if read_only(text)]
    assert len(texts) > 200
    for at in range(0, len(texts), 200):
        assert told(texts[at : at + 200]) == {}
