# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the daemon listens, found as the daemon chooses it."""

from __future__ import annotations

import os
import socket

from sandboxd.errors import Unavailable

AGENT = "agent.sock"
ADMIN = "admin.sock"


def runtime_directory() -> str:
    """$XDG_RUNTIME_DIR/sandboxd, else `run` in the state directory ($XDG_STATE_HOME/sandboxd, ~/.local/state/sandboxd)."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return f"{runtime}/sandboxd"
    state = os.environ.get("XDG_STATE_HOME", "")
    base = state if state.startswith("/") else os.path.expanduser("~/.local/state")
    return f"{base}/sandboxd/run"


def socket_path(*, admin: bool) -> str:
    return f"{runtime_directory()}/{ADMIN if admin else AGENT}"


def listening(path: str) -> bool:
    """Whether somebody accepts connections there now; a socket that a dead daemon left behind does not count."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def find(*, admin: bool) -> str:
    """The gRPC address of a listening daemon. Raises Unavailable."""
    path = socket_path(admin=admin)
    if not listening(path):
        raise Unavailable(f"no daemon listens on `{path}`", fix="start one with `sandboxd serve`")
    return f"unix:{path}"
