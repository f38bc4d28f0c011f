# SPDX-License-Identifier: GPL-3.0-or-later
"""What the safety steps of the waterfall look for: certain catastrophes (1d), what needs a human (1e), touches (1g).

Everything is judged on evidence: a literal path, a pattern or fragment that can name a protected one, the real path that
observe saw, or a program that safety knows by name. A wholly unknown target is no evidence where the mount plan guards it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from sandboxd import killswitch
from sandboxd.model import Act, AnalyzedCommand, Effect, EffectKind, Inputs, PartKind, Sensitivity, Unparsed, WordFlag
from sandboxd.paths import is_within, join, normalize
from sandboxd.policy import programs, unread
from sandboxd.policy.destinations import destination
from sandboxd.policy.gittouch import Argv
from sandboxd.policy.programs import interesting
from sandboxd.sensitive import sensitivity

_CHANGES = frozenset((EffectKind.WRITE, EffectKind.DELETE))
# Members as names of this module: Python 3.11 looks an enum's members up in Python.
_READ, _OPAQUE, _SETTINGS, _RENAME = EffectKind.READ, EffectKind.OPAQUE, Sensitivity.SETTINGS, Act.RENAME
_DELETE, _EXTRACT, _WRITE, _LINK, _METADATA = EffectKind.DELETE, Act.EXTRACT, Act.WRITE, Act.LINK, Act.METADATA
# Devices that every program may write to.
SINKS = frozenset(
    # Not those that a line can open from a file itself: standard input, descriptors from 3 on.
    ("/dev/null", "/dev/zero", "/dev/full", "/dev/stdout", "/dev/stderr", "/dev/fd/1", "/dev/fd/2", "/dev/tty", "/dev/ptmx")
)
BLOCK_DEVICE = re.compile(
    r"/dev/(?:(?:[shv]d|xvd)[a-z]|nvme\d|mmcblk\d|dm-\d|md\d|loop\d|nbd\d|sr\d|disk/|mapper/.|zvol/|root$)"
    r"|/dev/(?:k?mem|port)$"
)
_KERNEL = ("/proc/sys", "/sys", "/proc/sysrq-trigger", "/proc/kcore", "/proc/irq", "/proc/acpi")
_TOPLEVEL = re.compile(r"\brev-parse\b[^;&|]*--show-(?:toplevel|cdup)\b")
# Operators after which a variable can still hold anything.
_PLAIN = frozenset(("", ":-", "-", ":=", "=", ":?", "?"))
# A variable that this line binds to what is harmless to take apart: a loop over names, a temporary directory.
_BOUND = r"\b(?:for|select)\s+{0}\b|\b{0}=[\"']?(?:\$\(|`)\s*mktemp\b"
# One that it binds to what a command prints.
_SUBSTITUTED = r"\b{0}=[\"']?(?:\$\(|`)"
# Tests of find that pick some files out of a tree.
_NARROWS = frozenset(
    (
        *("-name", "-iname", "-path", "-ipath", "-wholename", "-iwholename", "-regex", "-iregex", "-lname", "-newer"),
        *("-mtime", "-mmin", "-ctime", "-cmin", "-atime", "-amin", "-size", "-empty", "-user", "-group"),
        *("-perm", "-links", "-inum", "-samefile", "-nouser", "-nogroup"),
    )
)
_ENTERS = frozenset(("cd.operand", "pushd.operand"))
_SYMBOLIC = re.compile(r"--symbolic|-[a-zA-Z]*s[a-zA-Z]*")
_ROOTS = frozenset(("/", "/*", "~", "~/", "~/*"))
# Effects that are git's own ordinary writes (see programs.GIT for those that are not).
_MIRROR = "mirror"  # a tree is made like another one
_GIT_OWN = ("git.write", "git.worktree")


class Finding(NamedTuple):
    """One thing that a safety step holds against the command. `path` is the protected path to grant, when it is known."""

    code: str
    message: str
    command: AnalyzedCommand | None = None
    effect: Effect | None = None
    path: str = ""


@dataclass(frozen=True, slots=True)
class Safety:
    """All findings, in order of the commands. `settings`: an agent's permission settings are read."""

    catastrophes: tuple[Finding, ...] = ()
    interactions: tuple[Finding, ...] = ()
    touches: tuple[Finding, ...] = ()
    settings: tuple[Finding, ...] = ()


_NOTHING = Safety()


def look(inputs: Inputs) -> Safety:
    """Everything the safety steps need to know of a command."""
    return _Look(inputs).run()


def guarded(inputs: Inputs) -> bool:
    """Whether the sandbox guards every protected path: it is complete, and so is the list of those that exist."""
    return inputs.enforcement_full and not any(note.startswith("scan_partial") for note in inputs.facts.notes)


class _Look:
    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.scope = inputs.scope
        self.facts = inputs.facts
        self.catastrophes: list[Finding] = []
        self.interactions: list[Finding] = []
        self.touches: list[Finding] = []
        self.settings: list[Finding] = []
        # Links made on this line: name -> the protected name it leads to, and the command that made it.
        self.links: dict[str, tuple[str, AnalyzedCommand]] = {}
        self.linking: AnalyzedCommand | None = None  # the command that `linked` tells of: its sources that are protected
        self.linked: tuple[tuple[str, str], ...] = ()
        self.symbolic = False
        self.entered = ""  # the protected name that a `cd` on this line may have gone into

    def run(self) -> Safety:
        inputs = self.inputs
        if inputs.unsandboxed and inputs.unsandboxed != "profile none":
            why = f"it would run outside the sandbox ({inputs.unsandboxed})"
            self.interactions.append(Finding("interaction.unsandboxed", why))
        for command in inputs.analysis.commands:
            for argv in programs.views(command):
                if argv and interesting(argv[0]):
                    self._program(command, argv)
            for effect in command.effects:
                kind = effect.kind
                if kind is _READ:
                    self._read(command, effect)
                elif kind in _CHANGES:
                    self._change(command, effect)
                elif effect.code:
                    self._code(command, effect)
        if inputs.analysis.unparsed is not None:
            self._unparsed(inputs.analysis.text, inputs.analysis.unparsed)
        if not (self.catastrophes or self.interactions or self.touches or self.settings):
            return _NOTHING
        return Safety(_unique(self.catastrophes), _unique(self.interactions), _unique(self.touches), _unique(self.settings))

    def _unparsed(self, text: str, unparsed: Unparsed) -> None:
        """What the literal words of a text that nobody could parse still tell."""
        words = unparsed.words
        if unparsed.partial:
            why = "it could not be parsed, and is too long to be looked through"
            self.interactions.append(Finding("interaction.unread", why))
        if unread.is_bomb(text):
            self.catastrophes.append(Finding("catastrophe.fork_bomb", "it is a fork bomb"))
        if "rm" in words and not _ROOTS.isdisjoint(words):
            why = "it could not be parsed, and may delete the root or home directory"
            self.interactions.append(Finding("interaction.possibly_catastrophic", why))
        for word in dict.fromkeys(words):
            name = self._protected(join(self.inputs.analysis.cwd, word), False) if "\0" not in word else None
            if name is not None:
                why = f"it could not be parsed and names `{word}`, and `{name}` is protected"
                self.touches.append(Finding("protected.unparsed", why))
        for word, glob in unread.extended(text):
            name = self._protected(join(self.inputs.analysis.cwd, glob), True)
            if name is not None:
                why = f"it could not be parsed, and `{word}` can name `{name}`, which is protected"
                self.touches.append(Finding("protected.unparsed", why))

    def _program(self, command: AnalyzedCommand, argv: Argv) -> None:
        why = programs.catastrophe(argv)
        if why is not None:
            self.catastrophes.append(Finding("catastrophe.program", f"`{argv[0]}` {why}", command))
        why = programs.privilege(argv)
        if why is not None:
            self.interactions.append(Finding("interaction.privilege", f"`{argv[0]}` {why}", command))
        why = programs.touch(argv)
        if why is not None:
            self.touches.append(Finding("protected.program", f"`{_short(argv)}` {why}", command))
        path = destination(argv, command.subcommand.argv)
        if path is not None:
            text = f"`{argv[0]}` would write to `{path}`, which is protected"
            self.touches.append(Finding("protected.program", text, command))

    def _code(self, command: AnalyzedCommand, effect: Effect) -> None:
        """Effects that are themselves the reason."""
        code = effect.code
        if code == "shell.fork_bomb":
            self.catastrophes.append(Finding("catastrophe.fork_bomb", "it is a fork bomb", command, effect))
        elif code == "system.power":
            self.catastrophes.append(Finding("catastrophe.program", "it stops the machine", command, effect))
        elif code == "tool.ambiguous":
            self._ambiguous(command, effect)
        elif code == "system.privilege":
            self.interactions.append(Finding("interaction.privilege", "it runs with more privilege", command, effect))
        elif effect.kind is _OPAQUE:
            word = programs.edits(command.bare or command.argv, code, effect.fragments)
            if word is not None:
                text = f"it seems to edit `{word}`, which is protected"
                self.touches.append(Finding("protected.opaque", text, command, effect))

    def _change(self, command: AnalyzedCommand, effect: Effect) -> None:
        if effect.target is None:
            self._unresolved(command, effect)
            return
        if effect.target in SINKS and not effect.pattern:
            return
        tree = effect.recursive or effect.act is _RENAME
        self._catastrophe(command, effect, effect.target, tree)
        if not effect.code.startswith(_GIT_OWN):
            self._touch(command, effect, effect.target)
        real = None if effect.pattern else self.facts.real(effect.target)
        if real is not None and real != effect.target:
            if effect.kind is not _DELETE:
                self._catastrophe(command, effect, real, tree)
            if not effect.code.startswith(_GIT_OWN):
                self._touch(command, effect, real)

    def _catastrophe(self, command: AnalyzedCommand, effect: Effect, target: str, tree: bool) -> None:
        scope = self.scope
        why = None
        if effect.kind is _DELETE and tree:
            judge = killswitch.catastrophic_pattern if effect.pattern else killswitch.catastrophic_target
            why = judge(target, scope.home, scope.workspace)
            if why is not None and effect.code == _MIRROR:
                text = f"it deletes in {why} (`{target}`) whatever its source does not hold"
                self.interactions.append(Finding("interaction.possibly_catastrophic", text, command, effect))
                return
            if why is not None:
                verb = "moves" if effect.act is _RENAME else "deletes"
                self.catastrophes.append(Finding("catastrophe.tree", f"it {verb} {why} (`{target}`)", command, effect))
                return
            if effect.pattern and killswitch.empties(target, scope.workspace):
                found = Finding("interaction.possibly_catastrophic", "it empties the whole workspace", command, effect)
                self.interactions.append(found)
        elif effect.act is _METADATA and tree:
            why = killswitch.catastrophic_target(target, scope.home, None)
            if why is not None:
                text = f"it changes owner or permissions of {why} (`{target}`)"
                self.interactions.append(Finding("interaction.possibly_catastrophic", text, command, effect))
        if target.startswith(("/dev/", "/proc/", "/sys")):
            if BLOCK_DEVICE.match(target) or (effect.pattern and target.startswith("/dev/") and target not in SINKS):
                self.catastrophes.append(Finding("catastrophe.device", f"it writes to the device `{target}`", command, effect))
            elif any(is_within(target, kernel) for kernel in _KERNEL):
                found = Finding("catastrophe.kernel", f"it writes kernel settings (`{target}`)", command, effect)
                self.catastrophes.append(found)

    def _touch(self, command: AnalyzedCommand, effect: Effect, target: str) -> None:
        name = self._protected(target, effect.pattern)
        if name is not None and self._may_not_be(command, target):
            return
        if name is None and effect.act is _EXTRACT:
            name = killswitch.covers_protected(target, self.scope.home)
        if name is None and effect.act is _WRITE and effect.recursive and _spills(command.argv):
            name = killswitch.covers_protected(target, self.scope.home)
        if name is None and effect.kind is _DELETE and effect.recursive and not effect.pattern:
            name = killswitch.covers_protected(target, self.scope.home)
            if name is None and effect.code == _MIRROR:  # not `rm -rf`, which says what it deletes
                name = next((path for path in self.facts.protected if is_within(path, target)), None)
        if name is None and self.links:
            led = (name for link, (name, maker) in self.links.items() if maker is not command and is_within(target, link))
            name = next(led, None)
        if name is not None:
            self._touched(command, effect, name, "" if effect.pattern else target)
        elif effect.act is _LINK:
            self._link(command, effect, target)

    def _may_not_be(self, command: AnalyzedCommand, target: str) -> bool:
        """Whether `target` is only what `cp a/.npmrc b` would write if `b` were a directory, and nothing says that it is."""
        above, _, _ = target.rpartition("/")
        if self._protected(above, False) is not None:
            return False
        if not any(effect.kind is EffectKind.WRITE and effect.target == above for effect in command.effects):
            return False
        fact = next((fact for fact in self.facts.paths if fact.path == above), None)
        if fact is not None:
            return not fact.is_dir
        if is_within(self.scope.workspace, above) or is_within(self.scope.home, above) or above == self.inputs.analysis.cwd:
            return False
        named = above.rpartition("/")[2]
        return not any(word is not None and word.rstrip("/").endswith(named) and word.endswith("/") for word in command.argv)

    def _protected(self, target: str, pattern: bool) -> str | None:
        """The protected name of a target: by the constants, by the repositories observed, by what is sandboxd's own."""
        home = self.scope.home
        if pattern:
            text = self.inputs.analysis.text
            return killswitch.protected_pattern(target, home, "dotglob" in text or "GLOBIGNORE" in text)
        name = killswitch.protected(target, home)
        if name is not None:
            return name
        for place in (*self.facts.repositories, *self.facts.hooks_paths, *self.scope.own):
            if is_within(target, place):
                return place
        return None

    def _link(self, command: AnalyzedCommand, effect: Effect, target: str) -> None:
        """A link to a protected path: a hard one shares its content; writing through either comes later on the line."""
        if self.linking is not command:  # a command of many words makes many links of the same sources
            self.linking = command
            sources = ((e.target, e.pattern) for e in command.effects if e.kind is _READ and e.target is not None)
            found = ((path, self._protected(path, pattern)) for path, pattern in sources)
            self.linked = tuple([(path, name) for path, name in found if name is not None])
            self.symbolic = any(word and _SYMBOLIC.fullmatch(word) for word in command.argv[1:])
        for path, name in self.linked:
            self.links[target] = (name, command)
            if not self.symbolic:
                self._touched(command, effect, name, path)

    def _touched(self, command: AnalyzedCommand, effect: Effect, name: str, path: str) -> None:
        verb = _VERBS.get(effect.act, "changes") if effect.act is not None else "changes"
        shown = effect.target if effect.target is not None else "".join(effect.fragments)
        text = f"it {verb} `{shown}`, and `{name}` is protected"
        self.touches.append(Finding("protected.touch", text, command, effect, path))

    def _unresolved(self, command: AnalyzedCommand, effect: Effect) -> None:
        name = killswitch.protected_fragments(effect.fragments)
        if name is None and self.entered and command.subcommand.cwds is None:
            relative = bool(effect.fragments) and not effect.fragments[0].startswith(("/", "~"))
            name = self.entered if relative else None
        if name is not None:
            self._touched(command, effect, name, "")
        elif not guarded(self.inputs) and not effect.code.startswith(_GIT_OWN):
            text = "what it writes to is not known, and the sandbox here does not guard all protected paths"
            self.touches.append(Finding("protected.unknown", text, command, effect))
        if effect.kind is not _DELETE or not (effect.recursive or effect.act is _RENAME):
            return
        why = self._whole(command, effect)
        if why is not None:
            verb = "move" if effect.act is _RENAME else "delete"
            text = f"it would {verb} {why}"
            self.interactions.append(Finding("interaction.possibly_catastrophic", text, command, effect))
        elif effect.fragments and effect.recursive:
            scope = self.scope
            # What an expansion behind the first piece may hold stands behind them, with the piece in front.
            first, *more = effect.fragments
            path = first + "".join(piece for piece in more if not (first.endswith("/") and piece.startswith(first)))
            path = normalize(path) if path.startswith("/") else join(self.inputs.analysis.cwd, path)
            places = ("/", scope.home, scope.workspace)
            if path in places or any(killswitch.empties(path, place) for place in places) or path in ("/*", "/.*"):
                text = f"what is not known in it may make it delete `{path}`"
                self.interactions.append(Finding("interaction.possibly_catastrophic", text, command, effect))

    def _whole(self, command: AnalyzedCommand, effect: Effect) -> str | None:
        """What a tree operation names when its word is one expansion of which nothing is known: without quotes that may be
        several trees at once, and the root of the repository is never meant."""
        words = command.subcommand.argv
        if effect.because == "find.-delete":  # its first start; without one it is the current directory
            word = words[1] if len(words) > 1 and not _NARROWS.intersection(command.argv) else None
        else:
            word = next((word for word in words if word.span == effect.span), None)
        if word is None or word.values or len(word.parts) != 1:
            return None
        part = word.parts[0]
        if effect.fragments and part.kind is not PartKind.VARIABLE:
            return None
        if part.kind is PartKind.SUBSTITUTION:
            return "the root of the repository" if _TOPLEVEL.search(part.text) else None
        if part.kind is not PartKind.VARIABLE or part.quoted or part.op not in _PLAIN or WordFlag.SPLITS not in word.flags:
            return None
        name = re.escape(part.text)
        if effect.fragments and re.search(_SUBSTITUTED.format(name), self.inputs.analysis.text) is None:
            return None
        if part.text.isidentifier() and re.search(_BOUND.format(name), self.inputs.analysis.text):
            return None
        return f"whatever `${part.text}` holds, which is not known and not quoted"

    def _ambiguous(self, command: AnalyzedCommand, effect: Effect) -> None:
        """A tool outside every box is given what could be one thing or another: no rule can be sure to have seen it."""
        what = "".join(effect.fragments)
        text = f"programs could take `{what}` for different things"
        self.interactions.append(Finding("interaction.ambiguous", text, command, effect))

    def _read(self, command: AnalyzedCommand, effect: Effect) -> None:
        if effect.because in _ENTERS and effect.target is not None:
            self.entered = self._protected(effect.target, effect.pattern) or self.entered
        elif effect.because in _ENTERS:
            self.entered = killswitch.protected_fragments(effect.fragments) or self.entered
        if effect.code == "tool.ambiguous":
            self._ambiguous(command, effect)
        found = effect.sensitivity is _SETTINGS
        if not found and effect.target is not None and not effect.pattern and self.facts.paths:
            real = self.facts.real(effect.target)
            found = real is not None and real != effect.target and sensitivity(real, self.scope.home) is Sensitivity.SETTINGS
        if found:
            text = f"it reads an agent's permission settings (`{effect.target or ''.join(effect.fragments)}`)"
            self.settings.append(Finding("settings_read", text, command, effect))


_VERBS = {
    Act.CREATE: "creates",
    _WRITE: "writes",
    Act.APPEND: "appends to",
    Act.TRUNCATE: "writes",
    Act.DELETE: "deletes",
    _RENAME: "renames",
    _METADATA: "changes the attributes of",
    _LINK: "links",
    Act.MOUNT: "mounts over",
    _EXTRACT: "extracts over",
}


def _spills(argv: Argv) -> bool:
    """Whether a copy puts what a directory holds, not the directory, into its destination: `cp -r a/. b`, `rsync -a a/ b`."""
    ends = ("/.", "/") if argv and argv[0] == "rsync" else ("/.",)
    return any(word is not None and word.endswith(ends) for word in argv[1:])


def _short(argv: Argv) -> str:
    text = " ".join("…" if word is None else word for word in argv[:4])
    return text if len(argv) <= 4 else text + " …"


def _unique(findings: list[Finding]) -> tuple[Finding, ...]:
    """Without repetitions: one message once."""
    if len(findings) < 2:
        return tuple(findings)
    return tuple({finding.message: finding for finding in reversed(findings)}.values())[::-1]
