# SPDX-License-Identifier: GPL-3.0-or-later
"""What the use of a tool does, as the same effects that commands have: the same waterfall then judges it.

Tools run in the front-end, where no sandbox confines them. So nothing is left to a mount plan here: a path that cannot be
told for certain asks, and what nobody has declared is opaque.

To add a tool: a row in `sandboxd.toolbox.BUILT_IN`, and its effects in `_EFFECTS` here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from sandboxd import killswitch
from sandboxd.globs import is_glob
from sandboxd.model import (
    Act,
    Analysis,
    AnalyzedCommand,
    Behavior,
    CommandKind,
    Direction,
    Effect,
    EffectKind,
    Inputs,
    RuleSet,
    Scope,
    Sensitivity,
    Span,
    Subcommand,
    Tool,
    ToolCall,
)
from sandboxd.paths import expand_home, has_dotdot, is_within, join, strip_proc_root
from sandboxd.policy.patterns import as_glob
from sandboxd.policy.rules import index_rules
from sandboxd.policy.verdicts import judge_rules, place_of
from sandboxd.sensitive import SECRET_PATHS, pattern_sensitivity, sensitivity

BASH = "Bash"
AMBIGUOUS = "tool.ambiguous"  # the code of what only a human may let pass (policy.safety)
HOST_TMP = "/tmp"  # noqa: S108  where it may read, as every command may
MAX_SHOWN = 400  # characters of an input that stand in a message and in the record
MAX_STRINGS = 1_000  # strings of an opaque tool's input that are looked at

_PATH_KINDS = frozenset((EffectKind.READ, EffectKind.WRITE, EffectKind.DELETE))
# What leads out of /proc into another process's view of the files.
_PROC_LINK = re.compile(r"/proc/[^/]+(?:/task/[^/]+)?/(?:cwd|root|fd|map_files|exe)(?:/|\Z)")
# In a file search: from the first of these on, a component is a pattern. Braces and extended globs are among them.
_PATTERN = re.compile(r"[*?\[\]{}()!+@\\]")
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?\.?")
_DOTTED = re.compile(r"(?:(?:0|[1-9]\d{0,2})\.){3}(?:0|[1-9]\d{0,2})")
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|\d+)\.?")
_PORTS = {"http": 80, "https": 443}

# The property that rules for a tool mean, as in `Skill(pdf)`.
_SUBJECTS: dict[str, tuple[str, ...]] = {
    "Skill": ("skill", "command", "name"),
    "Agent": ("subagent_type",),
    "Task": ("subagent_type",),
}


class _Place:
    """Where a call is made, and how its effects look."""

    __slots__ = ("cwd", "home", "name", "span")

    def __init__(self, name: str, cwd: str, home: str, text: str) -> None:
        self.name = name
        self.cwd = cwd
        self.home = home
        self.span = Span(0, len(text))

    def effect(self, kind: EffectKind, target: str | None, **more: Any) -> Effect:
        return Effect(kind, f"tool.{self.name}", self.span, target, **more)

    def locate(self, path: str) -> Iterator[str | None]:
        """The paths that `path` can mean, by who reads it: with blanks around it or without; None where links decide."""
        for text in dict.fromkeys((path, path.strip())):
            if not text or "\0" in text or (text.startswith("~") and text != "~" and not text.startswith("~/")):
                yield None
                continue
            target = strip_proc_root(join(self.cwd, expand_home(text, self.home)))
            if _PROC_LINK.match(target):
                yield None
                continue
            if has_dotdot(text):
                yield None  # a link before the `..` changes where it leads
            yield target

    def reads(self, path: str, *, recursive: bool = False, name: str = "") -> Iterator[Effect]:
        """Reading `path`; `name` is a pattern that the names of what is read below it have."""
        for target in self.locate(path):
            if target is None:
                yield self.effect(EffectKind.READ, None, code=AMBIGUOUS, fragments=(path,), recursive=recursive)
                continue
            secret = sensitivity(target, self.home)
            if name and secret is Sensitivity.NONE:
                secret = pattern_sensitivity(join(target, f"**/{name}") if is_glob(name) else join(target, name), self.home)
            yield self.effect(EffectKind.READ, target, sensitivity=secret, recursive=recursive)

    def writes(self, path: str, act: Act) -> Iterator[Effect]:
        for target in self.locate(path):
            known = target is not None
            yield self.effect(EffectKind.WRITE, target, act=act, edit=known, fragments=() if known else (path,))


def _edit(given: Mapping[str, Any], at: _Place) -> Iterator[Effect]:
    """An edit shows what stands around it, so rules that forbid reading count."""
    path = given.get("file_path") or given.get("notebook_path") or ""
    yield from at.writes(path, Act.WRITE)
    yield from at.reads(path)


def _write(given: Mapping[str, Any], at: _Place) -> Iterator[Effect]:
    yield from at.writes(given["file_path"], Act.TRUNCATE)


def _read(given: Mapping[str, Any], at: _Place) -> Iterator[Effect]:
    yield from at.reads(given["file_path"])


def _list(given: Mapping[str, Any], at: _Place) -> Iterator[Effect]:
    yield from at.reads(given["path"])


def _grep(given: Mapping[str, Any], at: _Place) -> Iterator[Effect]:
    yield from at.reads(given.get("path") or at.cwd, recursive=True, name=given.get("glob", ""))


def _glob(given: Mapping[str, Any], at: _Place) -> Iterator[Effect]:
    pattern: str = given["pattern"]
    literal: list[str] = []
    pieces = pattern.split("/")
    for piece in pieces:
        if _PATTERN.search(piece):
            break
        literal.append(piece)
    if ".." in pieces[len(literal) :]:
        yield at.effect(EffectKind.READ, None, code=AMBIGUOUS, fragments=(pattern,), recursive=True)
    head = "/".join(literal) or ("/" if pattern.startswith("/") else "")
    base = given.get("path") or at.cwd
    whole = head if head.startswith(("/", "~")) else f"{base}/{head}" if head else base
    yield from at.reads(whole, recursive=len(literal) < len(pieces))


def _fetch(given: Mapping[str, Any], at: _Place) -> Iterator[Effect]:
    url: str = given["url"]
    target = host_of_url(url)
    if target is None and not url.strip().casefold().startswith(("http:", "https:")):
        yield at.effect(EffectKind.OPAQUE, None, code="tool.url", detail="an address that is not http or https")
        return
    if target is None:
        yield at.effect(EffectKind.NETWORK, None, code=AMBIGUOUS, direction=Direction.FETCH, fragments=(url,))
    else:
        yield at.effect(EffectKind.NETWORK, target, direction=Direction.FETCH)


def _search(given: Mapping[str, Any], at: _Place) -> Iterator[Effect]:
    yield at.effect(EffectKind.NETWORK, "search", direction=Direction.FETCH)


_EFFECTS: dict[str, Callable[[Mapping[str, Any], _Place], Iterator[Effect]]] = {
    "Edit": _edit,
    "Glob": _glob,
    "Grep": _grep,
    "LS": _list,
    "MultiEdit": _edit,
    "NotebookEdit": _edit,
    "Read": _read,
    "WebFetch": _fetch,
    "WebSearch": _search,
    "Write": _write,
}


def host_of_url(url: str) -> str | None:
    """The host (and port, when it is not the usual one) that an http address goes to; None where programs that read it
    could take it for different ones, so that nobody is shown the wrong one.

    The WHATWG URL standard, which browsers and Node follow, and RFC 3986 disagree on backslashes, control characters,
    blanks, percent signs in hosts and numbers as addresses.
    """
    if not url.isascii() or re.search(r"[\x00-\x20\x7f\\]", url):
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").casefold()
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not url[len(parts.scheme) :].startswith("://") or "@" in parts.netloc or "%" in parts.netloc:
        return None
    if ":" in host:
        shown = f"[{host}]"
        if not re.fullmatch(r"[0-9a-f:.]+", host):
            return None
    else:
        last = host.rstrip(".").rpartition(".")[2]
        if not _HOST.fullmatch(host) or (_NUMBER.fullmatch(last) and not _DOTTED.fullmatch(host)):
            return None
        shown = host
    return shown if port in (None, _PORTS[parts.scheme]) else f"{shown}:{port}"


def analyze_call(call: ToolCall, cwd: str, home: str) -> Analysis:
    """All that one use of a tool would do, made from `cwd`. Raises nothing for an input that fits the tool's schema."""
    text = shown(call)
    at = _Place(call.name, cwd, home, text)
    tool = call.tool
    understood = _EFFECTS.get(call.name)
    if understood is not None and tool is not None:
        effects = tuple(dict.fromkeys(understood(call.input, at)))
    elif tool is not None and tool.read_only:
        effects = ()
    else:
        code = "tool.undeclared" if tool is None else "tool.changes"
        effects = (at.effect(EffectKind.OPAQUE, None, code=code), *_touches(call.input, at))
    read_only = tool is not None and all(map(_harmless, effects))
    wanted = tuple(dict.fromkeys(each.target for each in effects if each.target is not None and each.kind in _PATH_KINDS))
    command = AnalyzedCommand(Subcommand((), at.span, kind=CommandKind.COMPOUND), (), effects)
    return Analysis(
        text=text,
        cwd=cwd,
        commands=(command,),
        read_only=read_only,
        concurrency_safe=tool is not None and tool.concurrency_safe,
        destructive=tool is not None and tool.destructive,
        wanted=wanted,
    )


def _harmless(effect: Effect) -> bool:
    return effect.kind is EffectKind.READ or (effect.kind is EffectKind.NETWORK and effect.direction is Direction.FETCH)


def _touches(given: Mapping[str, Any], at: _Place) -> Iterator[Effect]:
    """Protected paths that an opaque tool is given: it may do anything to them. A text that only mentions one is none."""
    for number, text in enumerate(_strings(given)):
        if number >= MAX_STRINGS:
            return
        if len(text) > 4096 or any(char.isspace() for char in text.strip()):
            continue
        for target in at.locate(text.removeprefix("file://")):
            if target is not None and killswitch.protected(target, at.home) is not None:
                yield at.effect(EffectKind.WRITE, target, act=Act.WRITE, code="tool.argument")


def _strings(value: Any) -> Iterator[str]:
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            stack.extend(each.values())
        elif isinstance(each, (list, tuple)):
            stack.extend(each)


def texts(call: ToolCall) -> tuple[str, ...]:
    """What content rules for a tool match, as in `Skill(pdf)`: first what rules that allow see ("" = nothing), then what
    rules that tighten see besides."""
    strings = tuple(value for value in call.input.values() if isinstance(value, str))
    if call.name in _EFFECTS:
        return ("", *strings)
    keys = _SUBJECTS.get(call.name)
    if keys is not None:
        subject = next((call.input[key] for key in keys if isinstance(call.input.get(key), str)), "")
    else:
        subject = strings[0] if len(strings) == len(call.input) == 1 else ""
    return (subject, *strings)


def shown(call: ToolCall) -> str:
    """A call in a line: `Read(/a/b)`, or the tool with its input cut."""
    given = call.input
    keys = ("file_path", "notebook_path", "url", "query", "path") if call.name in _EFFECTS else _SUBJECTS.get(call.name, ())
    subject = next((given[key] for key in keys if isinstance(given.get(key), str)), None)
    if call.name in ("Glob", "Grep"):
        subject = f"{given.get('pattern')} in {given['path']}" if "path" in given else str(given.get("pattern"))
    if subject is None:
        subject = json.dumps(given, ensure_ascii=False, sort_keys=True, default=str) if given else ""
    text = f"{call.name}({subject})"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def withheld(inputs: Inputs) -> tuple[str, ...]:
    """Globs that a tool which goes through a directory must leave out: what rules deny or ask to read, and secrets."""
    roots = [each.target for each in inputs.analysis.effects if each.kind is EffectKind.READ and each.recursive and each.target]
    if not roots:
        return ()
    out: dict[str, None] = {}
    for one in index_rules(inputs.rules, place_of(inputs)).effects.get(EffectKind.READ, ()):
        if one.rule.behavior is not Behavior.ALLOW:
            out.update(dict.fromkeys(one.globs))
    for secret in SECRET_PATHS:
        if secret.startswith("**/"):
            out.update(dict.fromkeys(join(as_glob(root), secret) for root in roots))
        elif _meets(expand_home(secret, inputs.scope.home), roots):
            out[expand_home(secret, inputs.scope.home)] = None
    return tuple(out)


def _meets(path: str, roots: Iterable[str]) -> bool:
    return any(is_within(path, root) for root in roots)


def denied(tool: Tool, rules: RuleSet, scope: Scope) -> bool:
    """Whether rules deny a tool whatever it is called with."""
    nothing = Analysis("", scope.workspace, ())
    return bool(judge_rules(Inputs(nothing, rules, scope, tool=tool.name, aliases=tool.aliases)).tool_denies)
