# SPDX-License-Identifier: GPL-3.0-or-later
"""Operands whose form decides what they are: `name=value` sets, `host:path` is on another machine, `scheme://` is
fetched, `@file` holds more options.

What the form cannot be told of (an expansion) counts as the worse of the two.
"""

from __future__ import annotations

import re

from sandboxd.effects.argv import several
from sandboxd.effects.call import Call
from sandboxd.effects.roles import ROLES
from sandboxd.effects.targets import resolve
from sandboxd.model import PartKind, Word

_PRIVATE = re.compile(r"(?<![.\w])(?:env|strenv|envsubst|load\w*|eval)\b|\$ENV\b")
_LOCATED = re.compile(r"[A-Za-z][\w+.-]*://|[\w.-]+@[\w.-]+:")
_LOCATED_OPTIONS = (
    *("-f", "--file", "-schema", "-relaxng", "-schematron"),
    *("-in", "-CAfile", "-untrusted", "-trusted", "-inkey", "-key", "-certfile", "-CRLfile"),
)
_RUNS = re.compile(r"(?<![.\w])system\b")


def assign(call: Call) -> None:
    """sysctl: `name` prints, `name=value` writes a kernel setting."""
    for word in call.parsed.operands:
        if not word.values or any("=" in value for value in word.values):
            call.effect(ROLES["system.kernel"], f"{call.id}.assignment", word.span, word.value)


def response(call: Call) -> None:
    """Compiler tools: `@file` is replaced by the options in the file, which can load plugins and write. javap fetches URLs."""
    if call.name == "javap":
        for word in call.parsed.operands:
            if any(":" in text for text in word.values or (word.prefix,)):
                call.host(ROLES["url.fetch"], word, f"{call.id}.url", word.span)
    for word in (*call.parsed.operands, *call.values("--file")):
        if call.parsed.level.inert:  # no option does harm; messages show the words of the file
            for text in word.values:
                if text[:1] == "@" and len(text) > 1:
                    call.named(ROLES["path.read"], text[1:], f"{call.id}.@file", word.span)
        elif _may_start(word, "@"):
            call.opaque("opaque.config", f"{call.id}.@file", word.span, "options from a file", call.mentions())


_LISTS = ("-l", "-t", "-p", "-c", "-v", "-Z", "-z")


def members(call: Call) -> None:
    """unzip: what stands behind the archive are members, whatever it looks like, so that it unpacks them."""
    lists = [given.span.start for given in call.parsed.given if given.name_in(_LISTS)]
    archive = call.parsed.operands[0].span if call.parsed.operands else call.span
    if lists and call.parsed.operands and min(lists) > archive.start:
        call.named(ROLES["path.extract"], ".", f"{call.id}.members", archive)


def remote(call: Call) -> None:
    """rsync, pandoc, cpio, ffmpeg: `host:path` and URLs talk to another machine."""
    for word in (*call.parsed.operands, *call.values("-I", "-F", "-O", "-i", *_INCLUDED)):
        if any(":" in text and "/" not in text.partition(":")[0] for text in word.values or (word.prefix,)):
            call.host(ROLES["host.send"], word, f"{call.id}.remote", word.span)
        elif not word.values and "/" not in word.prefix:
            call.host(ROLES["host.send"], None, f"{call.id}.remote", word.span)


_INCLUDED = ("--metadata-file", "--include-in-header", "--include-before-body", "--include-after-body")
_DOCUMENT = re.compile(r"\b(?:document|evaluate)\s*\(")
# Values of these are XPath expressions, or templates of attributes, which hold some.
_XPATHS = (
    *("-v", "--value-of", "-c", "--copy-of", "-m", "--match", "-i", "--if", "--elif", "--var", "-s", "--sort"),
    *("-a", "--attr", "-e", "--elem"),
)
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*:")
_PLAIN_SCHEME = re.compile(r"(?:file|https?):", re.I)


def located(call: Call) -> None:
    """xmllint, rpm, compose, openssl: a file can be a URL, or an address as git writes them."""
    for word in (*call.parsed.operands, *call.values(*_LOCATED_OPTIONS)):
        if any(_LOCATED.match(text) for text in word.values or (word.prefix,)):
            call.host(ROLES["url.fetch"], word, f"{call.id}.url", word.span)
    if call.name == "openssl":
        _stores(call)
    if call.id.startswith("xmlstarlet"):
        for word in call.values(*_XPATHS):
            if word.value is None or _DOCUMENT.search(word.value):
                call.opaque("opaque.code", f"{call.id}.document", word.span, "document() reads anything", call.mentions())


def _stores(call: Call) -> None:
    """The scheme of an address says what openssl loads to read it: `org.openssl.engine:` names a library. What exists as a
    file is read as one, so that a glob, or a word with a directory in front, loads nothing."""
    for word in (*call.parsed.operands, *call.values(*_LOCATED_OPTIONS)):
        if word.values:
            loads = any(_SCHEME.match(text) and not _PLAIN_SCHEME.match(text) for text in word.values)
        else:
            loads = any(target.path is None for target in resolve(word, call.place)) and not _leads(word)
        if loads:
            call.opaque("opaque.plugin", f"{call.id}.scheme", word.span, "its scheme says what is loaded", call.mentions())


def _leads(word: Word) -> bool:
    """Whether the word begins with a directory, or is what a process substitution becomes."""
    return "/" in word.prefix.partition(":")[0] or (bool(word.parts) and word.parts[0].kind is PartKind.PROCESS)


def output(call: Call) -> None:
    """pdftotext: the second operand is written, `-` is standard output; without it a file beside the first."""
    words = call.parsed.operands
    if len(words) != 2 or any(several(word) for word in words):
        call.path(ROLES["path.write"], None, f"{call.id}.output", call.span)
    elif words[1].value != "-":
        call.path(ROLES["path.write"], words[1], f"{call.id}.output", words[1].span)


def yq(call: Call) -> None:
    """yq: a word is an expression or a file; expressions can read files and the environment, and newer ones run programs."""
    words = call.parsed.operands
    if words and words[0].value is not None and not several(words[0]):
        words = words[:1]  # only the first can be an expression, the others are files
    for word in words:
        text = word.value
        if text is None or _RUNS.search(text) or text.endswith(".yq"):
            call.opaque("opaque.dynamic_code", f"{call.id}.expression", word.span, "may run a program", call.mentions())
        elif _PRIVATE.search(text):
            detail = "reads files or the environment"
            call.effect(ROLES["secret"], f"{call.id}.expression", word.span, detail=detail, secret=True)


def _may_start(word: Word, mark: str) -> bool:
    if word.values:
        return any(value.startswith(mark) for value in word.values)
    return not word.prefix or word.prefix.startswith(mark)
