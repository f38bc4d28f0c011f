# SPDX-License-Identifier: GPL-3.0-or-later
"""awk programs: output redirects, commands they run, files they read. Read token by token, not guessed.

A program is harmless when it has no `system`, no `|`, no `>` but as a comparison inside parentheses, no `getline <`
but from a literal file, and none of gawk's `@` directives and extension functions.
"""

from __future__ import annotations

import re

from sandboxd.effects.argv import literal
from sandboxd.effects.call import Call
from sandboxd.effects.roles import ROLES
from sandboxd.effects.targets import Target
from sandboxd.model import Word

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|\\\n)|(?P<comment>\#[^\n]*)|(?P<newline>\n)
    |(?P<string>"(?:[^"\\\n]|\\.|\\\n)*")|(?P<number>0[xX][0-9A-Fa-f]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*(?:::[A-Za-z_]\w*)?)
    |(?P<op>\|&|\|\||&&|>>|\+\+|--|\*\*=|\*\*|[-+*/%^=!<>]=|!~|[-+*/%^!~<>=?:;,(){}\[\]$|@&])""",
    re.X,
)
# After one of these a `/` divides; everywhere else it begins a regular expression.
_VALUE_END = frozenset((")", "]", "$", "++", "--"))
_STATEMENT = frozenset(
    [
        "getline",
        "print",
        "printf",
        "return",
        "delete",
        "exit",
        "in",
        "if",
        "while",
        "for",
        "do",
        "else",
        "next",
        "nextfile",
        "break",
        "continue",
        "case",
        "default",
        "switch",
    ]
)
_HARMLESS_CALLS = frozenset(
    [
        "length",
        "substr",
        "index",
        "split",
        "sub",
        "gsub",
        "gensub",
        "match",
        "sprintf",
        "sin",
        "cos",
        "atan2",
        "exp",
        "log",
        "sqrt",
        "int",
        "rand",
        "srand",
        "tolower",
        "toupper",
        "close",
        "fflush",
        "systime",
        "strftime",
        "mktime",
        "and",
        "or",
        "xor",
        "compl",
        "lshift",
        "rshift",
        "strtonum",
        "asort",
        "asorti",
        "patsplit",
        "isarray",
        "typeof",
        "bindtextdomain",
        "dcgettext",
        "dcngettext",
        "mkbool",
    ]
)
_JOINED = re.compile(r'"[ \t]*"')  # between two strings that are one
_STRING = re.compile(r'"([^"\\\n]{1,300})"')
_SYMBOLS = frozenset(("SYMTAB", "FUNCTAB"))
_STREAMS = frozenset(("/dev/stdout", "/dev/stderr", "/dev/stdin", "-", "/dev/null"))


# A newline ends a statement only behind one of these; behind any other operator it may go on (which ones differs: gawk goes
# on after `?` and `:`, busybox after `in` and `~`), however many newlines follow.
_CLOSES = frozenset((")", "]", "}", "{", ";", "++", "--"))


class NotAwk(Exception):
    """The program cannot be read for certain."""


def read(call: Call) -> None:
    parsed = call.parsed
    programs = call.values("-e", "--source")
    operands = list(parsed.operands)
    from_file = parsed.has("-f", "--file", "-E", "--exec")
    if not programs and not from_file and operands:
        programs.append(operands.pop(0))
    for word in operands:
        _operand(call, word)
    if call.appended:
        call.path(ROLES["path.read"], None, "awk.operand", call.span)
    if from_file:
        return
    for program in programs:
        if program.value is None:
            call.opaque("opaque.dynamic_code", "awk.program", program.span, "awk", call.mentions())
            continue
        try:
            found = actions(program.value)
        except NotAwk as error:
            call.opaque("opaque.code", "awk.program", program.span, str(error), call.mentions())
            continue
        for name, argument in found:
            _act(call, program, name, argument)


def _operand(call: Call, word: Word) -> None:
    """A file, or `name=value`."""
    value = word.value
    if value is not None and re.match(r"[A-Za-z_]\w*=", value):
        return
    if value != "-":
        call.path(ROLES["path.read"], word, "awk.operand", word.span)


def _act(call: Call, word: Word, name: str, argument: str | None) -> None:
    if name == "run":
        if argument is None:
            call.opaque("opaque.dynamic_code", "awk.run", word.span, "runs a command it makes up", call.mentions())
        else:
            call.code(literal(argument, word.span), "awk", "awk.run")
    elif name == "environ":
        call.effect(ROLES["secret"], "awk.environ", word.span, detail="the environment", secret=True)
    elif argument is not None and argument.startswith(("/inet", "/dev/tcp", "/dev/udp")):
        call.effect(ROLES["host.send"], "awk.inet", word.span)
    elif argument is not None and (argument not in _STREAMS or (argument == "-" and name != "path.read")):
        # gawk's `-` is standard output, that of mawk and others a file of this name.
        call.named(ROLES[name], argument, f"awk.{name}", word.span)
    elif argument is None:
        text = _JOINED.sub("", word.value or "")
        if "/inet" in text or any("/inet" in (value.value or value.prefix) for value in call.values("-v", "--assign")):
            call.effect(ROLES["host.send"], "awk.inet", word.span)
        pieces = (*call.mentions(), text, *_STRING.findall(text)) if name != "path.read" else (*call.mentions(), text)
        call.at(ROLES[name], Target(None, fragments=pieces), f"awk.{name}", word.span)


def actions(program: str) -> tuple[tuple[str, str | None], ...]:
    """(`run`, command), (`path.write`, file), (`path.append`, file), (`path.read`, file), (`environ`, None); None = unknown.

    Raises NotAwk.
    """
    tokens = _tokens(program)
    found: list[tuple[str, str | None]] = []
    depth = 0
    printing = -1  # bracket depth at which a print statement is open
    functions = {tokens[at + 1][1] for at, token in enumerate(tokens[:-1]) if token in (("name", "function"), ("name", "func"))}
    known = _HARMLESS_CALLS | _STATEMENT | functions
    for at, (kind, text) in enumerate(tokens):
        after = tokens[at + 1] if at + 1 < len(tokens) else ("newline", "\n")
        if kind == "op":
            if text in "([{":
                depth += 1
            elif text in ")]}":
                depth -= 1
                if depth < printing:
                    printing = -1
            elif text in (";",) and depth <= printing:
                printing = -1
            elif text == "@":
                raise NotAwk("an `@` directive or indirect call")
            elif text in ("|", "|&"):
                if after == ("name", "getline"):
                    found.append(("run", _lone(tokens, at - 1, -1)))
                else:
                    found.append(("run", _lone(tokens, at + 1, 1)))
            elif text == ">>":
                found.append(("path.append", _lone(tokens, at + 1, 1)))
            elif text == ">" and printing >= 0 and depth <= printing:
                found.append(("path.write", _lone(tokens, at + 1, 1)))
        elif kind == "newline":
            if depth <= printing and _may_end(tokens, at):
                printing = -1
        elif kind == "name":
            if text in ("print", "printf"):
                printing = depth
            elif text == "getline":
                _getline(tokens, at, found)
            elif text == "system":
                argument = (
                    tokens[at + 2] if at + 3 < len(tokens) and tokens[at + 3] == ("op", ")") and after == ("op", "(") else None
                )
                found.append(("run", _string(argument[1]) if argument is not None and argument[0] == "string" else None))
            elif text in _SYMBOLS:
                raise NotAwk(f"`{text}` reaches every function")
            elif text == "ENVIRON":
                found.append(("environ", None))
            elif text == "ARGV":
                _arguments(tokens, at, found)
            elif after == ("op", "(") and text not in known and ("::" in text or _adjacent(program, text)):
                raise NotAwk(f"unknown function `{text}`")
    return tuple(found)


def _adjacent(program: str, name: str) -> bool:
    """Whether the name stands right before `(` somewhere: a call of a user's or an extension's function."""
    return re.search(rf"\b{re.escape(name)}\(", program) is not None and name not in ("if", "while", "for", "BEGIN", "END")


def _may_end(tokens: list[tuple[str, str]], at: int) -> bool:
    """Whether the newline at `at` can be the end of a statement."""
    while at and tokens[at - 1][0] == "newline":
        at -= 1
    kind, text = tokens[at - 1] if at else ("newline", "")
    return text in _CLOSES if kind == "op" else text != "in"


def _arguments(tokens: list[tuple[str, str]], at: int, found: list[tuple[str, str | None]]) -> None:
    """`ARGV[n] = file`: what is put there is read as an operand would be. Comparing and printing an element is nothing."""
    position = at + 1
    if tokens[position : position + 1] != [("op", "[")]:
        if tokens[at - 1 : at] != [("name", "in")]:
            found.append(("path.read", None))
        return
    position = _behind_bracket(tokens, position)
    if tokens[position : position + 1] == [("op", "=")]:
        text = _lone(tokens, position + 1, 1)
        if text != "":
            found.append(("path.read", text))
    elif tokens[at - 1 : at] == [("name", "getline")] or tokens[position : position + 1] == [("op", ")")]:
        found.append(("path.read", None))


def _behind_bracket(tokens: list[tuple[str, str]], position: int) -> int:
    level = 0
    while position < len(tokens):
        level += {"[": 1, "]": -1}.get(tokens[position][1], 0)
        position += 1
        if level == 0:
            break
    return position


def _getline(tokens: list[tuple[str, str]], at: int, found: list[tuple[str, str | None]]) -> None:
    """`getline [var] [< file]`."""
    position = at + 1
    if position < len(tokens) and tokens[position] == ("op", "$"):
        position += 1
    if position < len(tokens) and tokens[position][0] in ("name", "number"):
        position += 1
        if position < len(tokens) and tokens[position] == ("op", "["):
            position = _behind_bracket(tokens, position)
    if position < len(tokens) and tokens[position] == ("op", "<"):
        found.append(("path.read", _lone(tokens, position + 1, 1)))


def _lone(tokens: list[tuple[str, str]], at: int, step: int) -> str | None:
    """The string at `at` when it is a whole expression, None when text is joined to it or it is no string."""
    if not 0 <= at < len(tokens) or tokens[at][0] != "string":
        return None
    beyond = tokens[at + step] if 0 <= at + step < len(tokens) else ("newline", "\n")
    if beyond[0] == "newline" or (beyond[0] == "op" and beyond[1] in (_AFTER if step > 0 else _BEFORE)):
        return _string(tokens[at][1])
    return None


_AFTER = frozenset((";", "}", ")", "&&", "||", ","))
_BEFORE = frozenset((";", "{", "}", "(", "&&", "||", ","))
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", '"': '"', "/": "/", "a": "\a", "b": "\b", "f": "\f", "r": "\r", "v": "\v"}


def _string(text: str) -> str | None:
    out = []
    body = text[1:-1]
    at = 0
    while at < len(body):
        if body[at] == "\\":
            known = _ESCAPES.get(body[at + 1 : at + 2])
            if known is None:
                return None
            out.append(known)
            at += 2
        else:
            out.append(body[at])
            at += 1
    return "".join(out)


def _tokens(program: str) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    at = 0
    opened: list[bool] = []  # for each open parenthesis, whether it holds the condition of a statement
    condition = False  # whether the last token closed such a condition: then a `/` begins a regular expression
    while at < len(program):
        if program[at] == "/" and out and out[-1] == ("name", "getline"):
            raise NotAwk("`getline` before `/`")
        if program[at] == "/" and (condition or _regex_may_start(out)):
            at = _regex(program, at)
            out.append(("regex", ""))
            condition = False
            continue
        match = _TOKEN.match(program, at)
        if match is None:
            raise NotAwk(f"unexpected `{program[at]}`")
        at = match.end()
        kind, text = match.lastgroup or "", match.group()
        if kind in ("space", "comment"):
            continue
        condition = False
        if text == "(":
            opened.append(bool(out) and out[-1][0] == "name" and out[-1][1] in ("if", "while", "for", "switch"))
        elif text == ")" and opened:
            condition = opened.pop()
        elif text == "$" and program[at : at + 1] == "/":
            raise NotAwk("`$` before `/`")
        out.append((kind, text))
    return out


def _regex_may_start(tokens: list[tuple[str, str]]) -> bool:
    if not tokens:
        return True
    kind, text = tokens[-1]
    if kind in ("number", "string", "regex"):
        return False
    if kind == "name":
        return text in _STATEMENT
    return text not in _VALUE_END


def _regex(program: str, at: int) -> int:
    """The offset behind the regular expression that starts at `at`. Both readings of `[/]` must agree on no newline."""
    at += 1
    bracket = False
    while at < len(program):
        char = program[at]
        if char == "\n":
            break
        if char == "\\":
            at += 2
            continue
        if char == "[" and not bracket:
            bracket = True
            if program[at + 1 : at + 2] == "^":
                at += 1
            if program[at + 1 : at + 2] == "]":
                at += 1
        elif char == "[" and program[at + 1 : at + 2] == ":":
            end = program.find(":]", at + 2)
            at = end + 1 if end > 0 else at
        elif char == "]":
            bracket = False
        elif char == "/":
            if bracket:
                # mawk and old awks end the expression here, gawk does not: which one runs is not known.
                raise NotAwk("a `/` inside brackets")
            return at + 1
        at += 1
    raise NotAwk("a regular expression is not ended")
