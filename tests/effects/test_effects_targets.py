# SPDX-License-Identifier: GPL-3.0-or-later
"""From words to paths: every spelling leads to the path that is meant, and what is not known stays open, with its pieces."""

from __future__ import annotations

import pytest

from sandboxd.effects.examples import words
from sandboxd.effects.targets import Place, resolve
from tests.effects.effects_cases import HOME, changes, shown, understood

PLACE = Place(("/w",), HOME)

TARGETS = [
    ("a", "/w/a", False, False),
    ("./a//b/", "/w/a/b", False, False),
    ("/etc//passwd", "/etc/passwd", False, False),
    ("~/a", f"{HOME}/a", False, False),
    ("~", HOME, False, False),
    ("a/../b", "/w/b", False, True),
    ("../b", "/b", False, True),
    ("/proc/self/cwd/.git", "/w/.git", False, False),
    ("/proc/thread-self/cwd/.git", "/w/.git", False, False),
    ("/proc/self/root/etc", "/etc", False, False),
    ("/proc/1/cwd/.git", None, False, False),
    ("*.py", "/w/*.py", True, False),
    ("'*'.py", "/w/*.py", False, False),
    ("a/$X", None, False, False),
    ("$PWD/a", "/w/a", False, False),
    ("$(pwd)/a", "/w/a", False, False),
    ("''", None, False, False),
]


@pytest.mark.parametrize(("word", "path", "pattern", "dotdot"), TARGETS)
def test_a_word_leads_to_its_path(word: str, path: str | None, pattern: bool, dotdot: bool) -> None:
    """Lexical resolution, with marks for globs and for `..`, whose meaning a symlink can change."""
    (one,) = words(word)
    (target,) = resolve(one, PLACE)
    assert (target.path, target.pattern, target.dotdot) == (path, pattern, dotdot)


def test_unknown_directory_leaves_relative_paths_open() -> None:
    """Without a certain directory only absolute paths are known."""
    place = Place(None, HOME)
    relative, absolute = words("a /b")
    assert [target.path for target in resolve(relative, place)] == [None]
    assert [target.path for target in resolve(absolute, place)] == ["/b"]


def test_each_directory_gives_a_target() -> None:
    """Where two directories are possible, both targets count."""
    (word,) = words("a")
    assert {target.path for target in resolve(word, Place(("/x", "/y"), HOME))} == {"/x/a", "/y/a"}


# (line, one effect that it must have; the directory is /home/ada/work)
EFFECTS = [
    ("cd sub && rm x", "delete.delete /home/ada/work/sub/x"),
    ("cd sub; cd ..; rm x", "delete.delete /home/ada/work/x"),
    ("(cd sub; rm x)", "delete.delete /home/ada/work/sub/x"),
    ("pushd sub; rm x", "delete.delete /home/ada/work/sub/x"),
    ("builtin cd sub && rm x", "delete.delete /home/ada/work/sub/x"),
    ("command cd sub && rm x", "delete.delete /home/ada/work/sub/x"),
    ("env -C sub rm x", "delete.delete /home/ada/work/sub/x"),
    ("bash -c 'cd sub; rm x'", "delete.delete /home/ada/work/sub/x"),
    ("cd sub; bash -c 'rm x'", "delete.delete /home/ada/work/sub/x"),
    ("ln -s .git lnk; echo a > lnk/config", "write.truncate /home/ada/work/.git/config"),
    ("ln .bashrc b; echo a > b", "write.truncate /home/ada/work/.bashrc"),
    ("ln -s ~/.ssh k; cat k/id_rsa", "read /home/ada/.ssh/id_rsa"),
    ("cp a b", "write.write /home/ada/work/b"),
    ("cp a d", "write.write /home/ada/work/d/a"),
    ("cp x/config .git", "write.write /home/ada/work/.git/config"),
    ("mv a b", "delete.rename /home/ada/work/a"),
    ("mkdir -p a/b", "write.create /home/ada/work/a/b"),
    ("touch a", "write.metadata /home/ada/work/a"),
    ("chmod -R 700 a", "write.metadata /home/ada/work/a"),
    ("for f in a b; do rm $f; done", "delete.delete /home/ada/work/b"),
    ("f=a; rm $f", "delete.delete /home/ada/work/a"),
    ("rm {a,b}", "delete.delete /home/ada/work/b"),
    ("rm $'a\\x62'", "delete.delete /home/ada/work/ab"),
    ("rm ~+/a", "delete.delete /home/ada/work/a"),
    ("rm ${d:-.git}/config", "delete.delete /home/ada/work/.git/config"),
    ("sort a -o b", "write.truncate /home/ada/work/b"),
    ("tar -C /tmp -cf .git/config x", "write.truncate /home/ada/work/.git/config"),
    ("tar -C /tmp -xf a.tar", "write.extract /tmp"),
    ("tar xf a.tar -C out", "write.extract /home/ada/work/out"),
    ("find src -name '*.o' -delete", "delete.delete /home/ada/work/src/**/*.o"),
    ("find src -delete", "delete.delete /home/ada/work/src"),
    ("find src -exec rm {} +", "delete.delete"),
    ("> a", "write.truncate /home/ada/work/a"),
    ("{ ls; } > a", "write.truncate /home/ada/work/a"),
    ("for i in 1; do ls; done >> a", "write.append /home/ada/work/a"),
    ("ls > /dev/tcp/example.com/80", "network.send example.com:80"),
    ("xargs -I{} mv {} old", "delete.rename"),
]


@pytest.mark.parametrize(("line", "effect"), EFFECTS)
def test_effects_name_what_is_touched(line: str, effect: str) -> None:
    """The target is the path that the kernel would see, through directories, links, loops and quotes of the same line."""
    seen = {shown(found) for found in understood(line).effects}
    assert effect in seen | {text.partition(" ")[0] for text in seen}


def test_an_unresolved_target_keeps_its_pieces() -> None:
    """What cannot be resolved leaves evidence: the literal text around the unknown part."""
    (effect,) = (effect for effect in understood('echo x > "$d/.git/config"').effects if changes(effect))
    assert effect.target is None
    assert effect.fragments == ("/.git/config",)


def test_wanted_are_the_paths_whose_nature_matters() -> None:
    """The analysis tells observe which paths and programs to look up."""
    analysis = understood("cat lnk/../config '*' src/*.c; ls")
    assert "/home/ada/work/config" in analysis.wanted
    assert "/home/ada/work/*" in analysis.wanted
    assert "/home/ada/work/src" in analysis.wanted
    assert analysis.programs == ("cat", "ls")
    assert any(effect.code == "path.dotdot" for effect in analysis.effects)
