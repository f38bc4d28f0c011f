# SPDX-License-Identifier: GPL-3.0-or-later
"""What a word can mean to a tool: the roles that effect tables use, each with the effect it stands for.

To add a role: one line in `_ROLES`, one in docs/tables.md, its name in table.schema.json, and, when it is more than one effect
on one target, a case in fill.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sandboxd.model import Act, Direction, EffectKind


@dataclass(frozen=True, slots=True, eq=False)
class Role:
    """`kind` None = no effect by itself. `code` is the reason code its effects carry. `quiet`: looks at names and
    metadata, not at contents, so never secret. `harmless`: an unknown word in its place changes nothing."""

    name: str
    kind: EffectKind | None = None
    act: Act | None = None
    recursive: bool = False
    direction: Direction | None = None
    code: str = ""
    quiet: bool = False

    path: bool = field(init=False)
    nests: bool = field(init=False)  # what stands in its place is a command

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.name.startswith("path."))
        object.__setattr__(self, "nests", self.name in ("command", "code.rest"))

    @property
    def dangerous(self) -> bool:
        """Whether an option with this role does more than read what it names."""
        return self.name not in _TAME


_TAME = frozenset(("text", "path.stat", "path.read", "path.tree", "path.linked", "glob.read", "git.object", "git.format"))

_READ, _WRITE, _DELETE = EffectKind.READ, EffectKind.WRITE, EffectKind.DELETE
_NET = EffectKind.NETWORK

_ROLES = (
    Role("text"),
    Role("path.stat", _READ, quiet=True),
    Role("path.read", _READ),
    Role("path.tree", _READ, recursive=True),
    Role("glob.read", _READ),
    Role("path.write", _WRITE, Act.TRUNCATE),
    Role("path.append", _WRITE, Act.APPEND),
    Role("path.create", _WRITE, Act.CREATE),
    Role("path.edit", _WRITE, Act.WRITE),
    Role("path.meta", _WRITE, Act.METADATA),
    Role("path.meta_tree", _WRITE, Act.METADATA, recursive=True),
    Role("path.delete", _DELETE, Act.DELETE),
    Role("path.delete_tree", _DELETE, Act.DELETE, recursive=True),
    Role("path.rename", _DELETE, Act.RENAME),
    Role("path.into", _WRITE, Act.WRITE),
    Role("path.into_tree", _WRITE, Act.WRITE, recursive=True),
    Role("path.mirror", _DELETE, Act.DELETE, recursive=True, code="mirror"),
    Role("path.link", _WRITE, Act.LINK),
    Role("path.linked", _READ, quiet=True),
    Role("path.extract", _WRITE, Act.EXTRACT, recursive=True),
    Role("path.chdir"),
    Role("path.send", _READ),
    Role("command"),
    Role("code.shell"),
    Role("code.rest"),
    Role("program"),
    Role("url.fetch", _NET, direction=Direction.FETCH),
    Role("url.send", _NET, direction=Direction.SEND),
    Role("host.fetch", _NET, direction=Direction.FETCH),
    Role("host.send", _NET, direction=Direction.SEND),
    Role("host.listen", _NET, direction=Direction.LISTEN),
    Role("send"),
    Role("secret", _READ, code="secret.output"),
    Role("secret.named", _READ, code="secret.output"),
    Role("value", _READ),
    Role("name"),
    Role("env", EffectKind.ENV),
    *(Role(f"process.{name}", EffectKind.PROCESS, code=f"process.{name}") for name in ("signal", "priority", "trace")),
    *(
        Role(f"system.{name}", EffectKind.SYSTEM, code=f"system.{name}")
        for name in (
            "privilege",
            "power",
            "device",
            "service",
            "package",
            "network",
            "kernel",
            "account",
            "mount",
            "setting",
            "container",
            "schedule",
            "remote",
        )
    ),
    Role("git.object", _READ),
    Role("git.format"),
    Role("git.remote"),
    Role("git.write", _WRITE, Act.WRITE, code="git.write"),
    Role("git.worktree", _WRITE, Act.WRITE, code="git.worktree"),
    Role("git.config", _WRITE, Act.WRITE, code="git.config"),
    Role("git.global", _WRITE, Act.WRITE, code="git.config"),
    *(
        Role(f"opaque.{name}", EffectKind.OPAQUE, code=f"opaque.{name}")
        for name in ("code", "config", "plugin", "program", "script", "remote", "build", "hooks", "unlisted_value")
    ),
)

ROLES: dict[str, Role] = {role.name: role for role in _ROLES}
TEXT = ROLES["text"]
