# SPDX-License-Identifier: GPL-3.0-or-later
"""git's configuration syntax, and which of its keys make git run a program. Pure.

To add a key that runs something: a row in NEUTRAL (the value that stops it) or in ARMED (when no value does), and a row
in tests/observe/test_observe_gitconfig.py.
"""

from __future__ import annotations

import re

Entry = tuple[str, str | None]  # key; value, None for a key without `=` (true)

# Keys as `section.name` or `section.*.name`, with the values under which git runs nothing of the repository's choice.
# A filter with an empty command passes its input through, unless it is `required` (git's convert.c).
NEUTRAL: dict[str, tuple[tuple[str, str], ...]] = {
    "filter.*.clean": (("clean", ""), ("required", "false")),
    "filter.*.smudge": (("smudge", ""), ("required", "false")),
    "filter.*.process": (("process", ""), ("required", "false")),
    "diff.*.textconv": (("textconv", "cat"),),
    "gpg.program": (("program", "false"),),
    "gpg.*.program": (("program", "false"),),
    "gpg.*.defaultkeycommand": (("defaultKeyCommand", "false"),),
    "core.fsmonitor": (("fsmonitor", "false"),),
    "core.hookspath": (("hooksPath", "/dev/null"),),
    "core.pager": (("pager", "cat"),),
    "core.editor": (("editor", "false"),),
    "sequence.editor": (("editor", "false"),),
    "core.askpass": (("askPass", "false"),),
    "core.sshcommand": (("sshCommand", "ssh"),),
    "core.gitproxy": (("gitProxy", "none"),),
    "core.alternaterefscommand": (("alternateRefsCommand", "false"),),
    "credential.helper": (("helper", ""),),
    "credential.*.helper": (("helper", ""),),
    "interactive.difffilter": (("diffFilter", "cat"),),
    "pager.*": (("", "false"),),
    "protocol.ext.allow": (("allow", "never"),),
    # `git help X` shows the page by the viewer that is configured.
    "man.*.cmd": (("cmd", "man"),),
    "man.*.path": (("path", "man"),),
    "help.format": (("format", "man"),),
}
# No value stops these: git runs them, or goes elsewhere than the command line says.
ARMED: tuple[str, ...] = (
    "diff.external",
    "diff.*.command",
    "merge.*.driver",
    "tar.*.command",
    "remote.*.uploadpack",
    "remote.*.receivepack",
    "remote.*.vcs",
    "url.*.insteadof",
    "trailer.*.command",
    "trailer.*.cmd",
    "protocol.allow",
    "core.worktree",
)
_ARMED = frozenset(ARMED)

_SECTION = re.compile(r'\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\\n]|\\.)*)")?\s*\]')
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", '"': '"', "\\": "\\"}


def parse(text: str) -> tuple[Entry, ...] | None:
    """The entries in order; None when git would refuse the file. Section and name are lower-case, the part between as
    written."""
    out: list[Entry] = []
    section = ""
    at = 1 if text.startswith("\ufeff") else 0
    text = text.replace("\r\n", "\n")
    while at < len(text):
        char = text[at]
        if char in " \t\n\r":
            at += 1
        elif char in "#;":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif char == "[":
            match = _SECTION.match(text, at)
            if match is None:
                return None
            section = match[1].lower()
            if match[2] is not None:
                section += "." + re.sub(r"\\(.)", r"\1", match[2])
            at = match.end()
        else:
            match = _NAME.match(text, at)
            if match is None:
                return None
            key = f"{section}.{match[0].lower()}" if section else match[0].lower()
            at = match.end()
            while at < len(text) and text[at] in " \t":
                at += 1
            if at < len(text) and text[at] == "=":
                value, at = _value(text, at + 1)
                if value is None:
                    return None
                out.append((key, value))
            elif at == len(text) or text[at] == "\n":
                out.append((key, None))
            else:
                return None
    return tuple(out)


def _value(text: str, at: int) -> tuple[str | None, int]:
    """The value that starts at `at`, and where the next line starts; None when it is malformed."""
    out: list[str] = []
    kept = 0  # characters that are not trailing space
    quoted = False
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\n":
            if quoted:
                return None, at
            break
        if char == "\\":
            if at == len(text):
                return None, at
            escape = text[at]
            at += 1
            if escape == "\n":
                continue
            if escape not in _ESCAPES:
                return None, at
            out.append(_ESCAPES[escape])
            kept = len(out)
        elif char == '"':
            quoted = not quoted
            kept = len(out)
        elif char in "#;" and not quoted:
            end = text.find("\n", at)
            at = len(text) if end < 0 else end + 1
            break
        elif char in " \t\r" and not quoted:
            if out or kept:
                out.append(char)
        else:
            out.append(char)
            kept = len(out)
    if quoted:
        return None, at
    return "".join(out[:kept]), at


def general(key: str) -> str:
    """`filter.lfs.clean` as `filter.*.clean`, `core.pager` as it is, `pager.log` as `pager.*`."""
    section, _, rest = key.partition(".")
    middle, dot, name = rest.rpartition(".")
    if dot:
        return key if f"{section}.{middle}.{name}" in NEUTRAL else f"{section}.*.{name}"
    return f"{section}.*" if f"{section}.*" in NEUTRAL else key


def disarm(entries: tuple[Entry, ...]) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Settings that stop what these entries would run, and the keys that nothing stops."""
    neutral: dict[tuple[str, str], None] = {}
    armed: dict[str, None] = {}
    for key, _ in entries:
        kind = general(key)
        for name, value in NEUTRAL.get(kind, ()):
            owner = key if not name else f"{key.rpartition('.')[0]}.{name}"
            neutral[(owner, value)] = None
        if kind in _ARMED:
            armed[key] = None
    return tuple(neutral), tuple(armed)


def included(entries: tuple[Entry, ...]) -> tuple[str, ...]:
    """The files that these entries include, conditions taken as met."""
    return tuple(
        value for key, value in entries if value and (key == "include.path" or (key[:10] == "includeif." and key[-5:] == ".path"))
    )
