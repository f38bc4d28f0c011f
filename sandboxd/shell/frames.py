# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reader hands on: frames of statements, and the slots behind the placeholders of their shapes."""

from __future__ import annotations

from sandboxd.model.shell import Assignment, CommandKind, Note, Redirect, Span, Word

# Where the next token stands: at the start of a list or pipeline, behind `|`, in a simple command, behind a compound
# command, behind a function's head.
START, PIPE, INSIDE, AFTER, BODY = range(5)


class Slot:
    """What stands behind the placeholders of one command, or of one other group of words."""

    __slots__ = (
        "assignment_frames", "assignments", "base", "count", "end", "fixed", "frames", "kind", "name", "notes", "redirect_frames",
        "redirects", "role", "start", "words",
    )  # fmt: skip

    def __init__(self, start: int, kind: CommandKind = CommandKind.SIMPLE, role: str = "") -> None:
        self.kind = kind
        self.role = role  # "", "for", "select", "name", "function", "redirects", "nothing"
        self.start = start
        self.end = start
        self.words: list[Word] = []
        self.assignments: list[Assignment] = []
        self.redirects: list[Redirect] = []
        self.frames: list[Frame] = []
        self.assignment_frames: list[tuple[int, list[Frame]]] = []
        self.redirect_frames: list[Frame] = []
        self.notes: tuple[Note, ...] = ()
        self.count = 0
        self.name = ""
        self.base = 0  # of the text it was read from, as in Lexer
        self.fixed: Span | None = None

    def span(self) -> Span:
        """Where it stands in the source."""
        return self.fixed or Span(self.start + self.base, self.end + self.base)


class Frame:
    """The statements of a text or of one substitution: (shape, what its placeholders stand for), in order."""

    __slots__ = ("statements", "uncertain")

    def __init__(self) -> None:
        self.statements: list[tuple[str, list[Slot]]] = []
        self.uncertain = False  # variables and directory cannot be followed in it (coproc)


class Heredoc:
    """A here-document whose body is still to come."""

    __slots__ = ("delimiter", "fd", "index", "quoted", "slot", "span", "strip")

    def __init__(
        self, slot: Slot, index: int, delimiter: str, quoted: bool, strip: bool, fd: int | str | None, span: Span
    ) -> None:
        self.slot = slot
        self.index = index
        self.delimiter = delimiter
        self.quoted = quoted
        self.strip = strip
        self.fd = fd
        self.span = span


class Build:
    """A frame while it is read."""

    __slots__ = ("closer", "documented", "frame", "items", "notes", "out", "slot", "stack", "state")

    def __init__(self, closer: str) -> None:
        self.frame = Frame()
        self.closer = closer
        self.out: list[str] = []
        self.items: list[Slot] = []
        self.stack: list[list[int | str]] = []  # [kind, number]: open constructs
        self.slot: Slot | None = None  # the command, or the redirects of the compound command, that is being read
        self.state = START
        self.notes: tuple[Note, ...] = ()
        self.documented = False  # a here-document stood in this substitution

    def put(self, prefix: str, slot: Slot) -> None:
        self.out.append(f"{prefix}{len(self.items)}")
        self.items.append(slot)
        slot.count += 1

    def cut(self) -> None:
        """End a top-level statement."""
        if self.out:
            self.frame.statements.append((" ".join(self.out), self.items))
            self.out = []
            self.items = []

    def terminate(self) -> None:
        """End a command as `;` or a newline does."""
        self.slot = None
        if self.state in (INSIDE, AFTER):
            if self.stack:
                self.out.append(";")
            else:
                self.cut()
            self.state = START
