# SPDX-License-Identifier: GPL-3.0-or-later
"""The grammar: bashlex on placeholders. The only importer of bashlex, and it never shows it a word of the user.

A shape is text of placeholders (a letter and a number), operators and reserved words, see `reader`. Its tree becomes nested
tuples, which are kept in a bounded cache: the same shapes come again and again. Every placeholder must come back exactly
once and in order, and nothing else may come back as a word; else the tree is not trusted.

Nodes: (SIMPLE, items) · (LIST, ((operator before, node), …)) · (PIPE, negated, nodes, operators) ·
(IF, condition, then, else or None, redirects) · (LOOP, condition, body, redirects) · (FOR, name, words, body, redirects) ·
(GROUP, body, redirects) · (SUBSHELL, body, redirects) · (FUNCTION, name, body). Items and redirects are placeholder numbers.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from bashlex import parse as parser

SIMPLE, LIST, PIPE, IF, LOOP, FOR, GROUP, SUBSHELL, FUNCTION = range(9)

Node = tuple[Any, ...]

_PLACEHOLDER = re.compile(r"[a-z]([0-9]+)")
_CACHED_SHAPES = 2_048
_CACHED_LENGTH = 1_000  # characters; longer shapes seldom come twice


class CacheInfo(NamedTuple):
    hits: int
    misses: int
    maxsize: int | None
    size: int


class GrammarError(Exception):
    """The shape is not accepted, or its tree is not complete. `code` is one of codes.REFUSALS."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


def tree(shape: str) -> Node:
    """The tree of a shape. Raises GrammarError, and nothing else."""
    result = _cached(shape) if len(shape) <= _CACHED_LENGTH else _parse(shape)
    if isinstance(result, GrammarError):
        raise GrammarError(result.code, result.detail)
    return result


def forget() -> None:
    """Empty the cache, for measurements."""
    _cached.cache_clear()


def cache_info() -> CacheInfo:
    """Hits, misses and size of the cache."""
    return CacheInfo(*_cached.cache_info())


def _parse(shape: str) -> Node | GrammarError:
    try:
        trees = parser(shape)
    except Exception as error:  # bashlex raises eight kinds, also AttributeError and RecursionError
        return GrammarError("unparsed.grammar", f"{type(error).__name__}: {error}"[:200])
    if len(trees) != 1:
        return GrammarError("unparsed.completeness", "the grammar saw several statements")
    seen: list[int] = []
    try:
        node = _convert(trees[0], seen)
    except (GrammarError, RecursionError, AttributeError, IndexError, ValueError) as error:
        return GrammarError("unparsed.completeness", str(error)[:200])
    if seen != list(range(len(_PLACEHOLDER.findall(shape)))):
        return GrammarError("unparsed.completeness", "a word was lost")
    return node


_cached = lru_cache(maxsize=_CACHED_SHAPES)(_parse)


def _number(node: Any, seen: list[int]) -> int:
    match = _PLACEHOLDER.fullmatch(node.word) if node.kind == "word" else None
    if match is None or getattr(node, "parts", None):
        raise GrammarError("unparsed.completeness", f"unexpected {node.kind}")
    number = int(match.group(1))
    seen.append(number)
    return number


def _redirect(node: Any, seen: list[int]) -> int:
    if node.kind != "redirect" or node.type != ">" or node.input is not None or node.heredoc is not None:
        raise GrammarError("unparsed.completeness", f"unexpected {node.kind}")
    return _number(node.output, seen)


def _reserved(node: Any, *words: str) -> None:
    if node.kind != "reservedword" or node.word not in words:
        raise GrammarError("unparsed.completeness", f"unexpected {node.kind}")


def _convert(node: Any, seen: list[int]) -> Node:
    kind = node.kind
    if kind == "command":
        return (SIMPLE, tuple([_redirect(p, seen) if p.kind == "redirect" else _number(p, seen) for p in node.parts]))
    if kind == "pipeline":
        return _pipeline(node.parts, seen)
    if kind == "list":
        return _list(node.parts, seen)
    if kind == "compound":
        return _compound(node, seen)
    if kind == "function":
        name, opening, closing, body = node.parts
        _reserved(opening, "(")
        _reserved(closing, ")")
        return (FUNCTION, _number(name, seen), _convert(body, seen))
    raise GrammarError("unparsed.completeness", f"unknown node {kind}")


def _list(parts: list[Any], seen: list[int]) -> Node:
    out: list[tuple[str, Node]] = []
    operator = ""
    background = ""
    for part in parts:
        if part.kind == "operator":
            if part.op not in (";", "&", "&&", "||"):
                raise GrammarError("unparsed.completeness", f"unknown operator {part.op}")
            operator = part.op
            background = operator
        else:
            out.append((operator, _convert(part, seen)))
            background = ""
    if background == "&":
        out.append(("&", (LIST, ())))
    return (LIST, tuple(out))


def _pipeline(parts: list[Any], seen: list[int]) -> Node:
    negated = parts[0].kind == "reservedword"
    if negated:
        _reserved(parts[0], "!")
        parts = parts[1:]
    nodes: list[Node] = []
    operators: list[str] = []
    for index, part in enumerate(parts):
        if index % 2:
            if part.kind != "pipe":
                raise GrammarError("unparsed.completeness", f"unexpected {part.kind}")
            operators.append(part.pipe)
        else:
            nodes.append(_convert(part, seen))
    return (PIPE, negated, tuple(nodes), tuple(operators))


def _compound(node: Any, seen: list[int]) -> Node:
    parts = node.list
    first = parts[0]
    if first.kind == "reservedword":
        if len(parts) != 3:
            raise GrammarError("unparsed.completeness", "unexpected group")
        _reserved(first, "{", "(")
        _reserved(parts[2], "}" if first.word == "{" else ")")
        head: Node = (GROUP if first.word == "{" else SUBSHELL, _convert(parts[1], seen))
    elif len(parts) != 1:
        raise GrammarError("unparsed.completeness", "unexpected compound")
    elif first.kind == "if":
        head = _if(first.parts, seen)
    elif first.kind in ("while", "until"):
        keyword, condition, do, body, done = first.parts
        _reserved(keyword, "while", "until")
        _reserved(do, "do")
        _reserved(done, "done")
        head = (LOOP, _convert(condition, seen), _convert(body, seen))
    elif first.kind == "for":
        keyword, name, inside, words, semicolon, do, body, done = first.parts
        for part, word in ((keyword, "for"), (inside, "in"), (semicolon, ";"), (do, "do"), (done, "done")):
            _reserved(part, word)
        head = (FOR, _number(name, seen), _number(words, seen), _convert(body, seen))
    else:
        raise GrammarError("unparsed.completeness", f"unknown node {first.kind}")
    return (*head, tuple([_redirect(r, seen) for r in node.redirects]))


def _if(parts: list[Any], seen: list[int]) -> Node:
    _reserved(parts[0], "if")
    _reserved(parts[2], "then")
    condition = _convert(parts[1], seen)
    then = _convert(parts[3], seen)
    otherwise = None
    if len(parts) == 7:
        _reserved(parts[4], "else")
        otherwise = _convert(parts[5], seen)
    elif len(parts) != 5:
        raise GrammarError("unparsed.completeness", "unexpected if")
    _reserved(parts[-1], "fi")
    return (IF, condition, then, otherwise)
