# SPDX-License-Identifier: GPL-3.0-or-later
"""A command on the caller's terminal: it may draw and be typed at; signs of life of one that is silent."""

from __future__ import annotations

import fcntl
import struct
import termios

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.cli.terminal import Filter
from tests.cli.conftest import terminal
from tests.e2e.conftest import Place

BYPASS = ("--mode", "bypassPermissions")

DRAWN = (
    (b"\x1b[2J\x1b[H\x1b[10;20Hhere", "\x1b[2J\x1b[H\x1b[10;20Hhere\x1b[0m"),
    (b"\x1b[?1049hfull\x1b[?1049l", "\x1b[?1049hfull\x1b[?1049l\x1b[0m"),
    (b"\x1b[?25l\x1b[?2004hleft", "\x1b[?25l\x1b[?2004hleft\x1b[?2004l\x1b[?25h\x1b[0m"),  # what it leaves is put back
    (b"\x1b[c\x1b[6n\x1b[18t", "\\x1b[c\\x1b[6n\\x1b[18t"),  # the terminal would answer as if somebody typed
    (b"\x1b[5i", "\\x1b[5i"),  # print
    (b"\x1b]52;c;ZXZpbA==\x07", "\\x1b]52;c;ZXZpbA==\x07"),
    (b"\x1bP+q544e\x1b\\", "\\x1bP+q544e\\x1b\\"),
    (b"\x1bc", "\\x1bc"),
    (b"\x1b[$p\x1b[?7$p", "\\x1b[$p\\x1b[?7$p"),
)


@pytest.mark.parametrize(("data", "expected"), DRAWN)
def test_a_program_may_draw(data: bytes, expected: str) -> None:
    """What draws passes; what makes the terminal answer, print or leave its screen is shown."""
    assert Filter(screen=True).feed(data, final=True) == expected


@pytest.mark.parametrize(("data", "expected"), DRAWN)
def test_drawing_may_be_cut(data: bytes, expected: str) -> None:
    """Drawing that comes byte by byte looks the same."""
    through = Filter(screen=True)
    pieces = [through.feed(data[at : at + 1]) for at in range(len(data))]
    assert "".join(pieces) + through.feed(b"", final=True) == expected


@given(st.lists(st.binary(max_size=8) | st.sampled_from([b"\x1b", b"[", b"]", b"P", b"?", b"c", b"n", b"\xc2\x9d"]), max_size=12))
def test_no_string_passes(chunks: list[bytes]) -> None:
    """No string sequence (clipboard, title, device control) comes through, wherever it is cut."""
    through = Filter(screen=True)
    out = "".join(through.feed(chunk) for chunk in chunks) + through.feed(b"", final=True)
    assert not any(start in out for start in ("\x1b]", "\x1bP", "\x1b_", "\x1b^", "\x1bX", "\x9d", "\x90", "\x1b[c", "\x1b[n"))


def test_typing_at_a_program(served: Place) -> None:
    """The program has a terminal of the caller's size; keys reach it, Ctrl-C too; the terminal is as before at the end."""
    tree = served.workspace()
    with terminal(served, "run", "--tty", *BYPASS, "--", "stty size; PS1='in> ' bash --norc -i", cwd=tree) as screen:
        screen.wait_for("in> ")
        before = termios.tcgetattr(screen._master)
        screen.type("bash -c 'echo u''p; exec tail -f /dev/null'\r")
        screen.wait_for("up\r\n")
        screen.type("\x03")
        screen.wait_for("in> ")
        fcntl.ioctl(screen._master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
        screen.type("until [ \"$(stty size)\" = '33 101' ]; do read -t 0.1 x; done; echo res''ized\r")
        screen.wait_for("resized")
        screen.type("exit 9\r")
        assert screen.wait() == 9, screen.shown
    assert not before[3] & termios.ECHO  # it was raw meanwhile


def test_a_terminal_needs_a_terminal(served: Place) -> None:
    """Without a terminal to lend, --tty is a usage error and nothing runs."""
    tree = served.workspace()
    done = served.sandboxd("run", "--tty", "--", "pwd", cwd=tree)
    assert done.returncode == 2
    assert "--tty" in done.stderr
