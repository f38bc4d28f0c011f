# SPDX-License-Identifier: GPL-3.0-or-later
"""Words: quotes, expansions, here-document bodies. Where a substitution opens, the reader is called for its commands.

Each method takes the offset at which its construct begins and returns the offset behind it. What bash would read in two
ways depending on option or version is refused, never guessed. Runs of ordinary characters are taken by one regular
expression each, so that the time is linear in the text.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from sandboxd.model.shell import Part, PartKind, Span, Word, WordFlag
from sandboxd.shell import ansi
from sandboxd.shell.codes import Refused
from sandboxd.shell.words import Flags, Mode, Piece, finish

if TYPE_CHECKING:
    from sandboxd.shell.frames import Frame

MAX_DEPTH = 20
MAX_COMMANDS = 2_000

_RUN = re.compile(r"[^ \t\n;&|()<>'\"\\$`]++")
_DOUBLE_RUN = re.compile(r'[^"\\$`]++')
_BODY_RUN = re.compile(r"[^\\$`]++")
_OPERAND_RUN = re.compile(r"[^}'\"\\$`<>]++")
_QUOTED_OPERAND_RUN = re.compile(r"[^}'\"\\$`]++")
_ARITHMETIC_RUN = re.compile(r"[^()'\"\\$`\]]++")
_REGEX_RUN = re.compile(r"[^ \t\n;&<>()'\"\\$`]++")
_SUBSCRIPT_RUN = re.compile(r"[^\]\[ \t\n;&|()<>'\"\\$`]++")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME_OR_SPECIAL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-]")
_OPERATOR = re.compile(r":[-=?+]|[-=?+]|##?|%%?|//?|\^\^?|,,?|@[QUuLEPAKak](?=\})|:")
_BACKTICK = re.compile(r"(?:[^`\\]|\\.)*+", re.DOTALL)
_ANY_ESCAPE = re.compile(r"\\.", re.DOTALL)
_TICK_ESCAPE = re.compile(r"\\([$`\\])")
_TICK_ESCAPE_QUOTED = re.compile(r"\\([$`\\\"])")
_NUMBER_ONLY = re.compile(r"[ \t]*-?[0-9]*[ \t]*\Z")
_IDENTIFIER = re.compile(r"(?<![0-9A-Za-z_#@])[A-Za-z_]")
_ANSI = re.compile(r"(?:[^'\\]|\\.)*+'", re.DOTALL)
_SPECIAL_NAMES = "@*#?$!-_0123456789"
# Expansions to a number: bash evaluates them in arithmetic without reading further text.
_NUMERIC = frozenset("#?$!")
# Offset of the closing brace, operator, literal operand, the pieces of one that is not literal.
_Operation = tuple[int, str, str | None, tuple[Part, ...]]


class Budget:
    """Work counted over a whole text, so that every bound is a count."""

    __slots__ = ("commands", "depth")

    def __init__(self) -> None:
        self.commands = 0
        self.depth = 0


class Lexer(ABC):
    """The words of one text. `base` is its offset in the source; with `fixed`, every span is that one.

    `found` collects the frames of the substitutions met, `extra` the flags that nested operands add to the word.
    """

    def __init__(self, text: str, budget: Budget, base: int = 0, fixed: Span | None = None) -> None:
        self.text = text
        self.budget = budget
        self.base = base
        self.fixed = fixed
        self.found: list[Frame] = []
        self.extra: set[WordFlag] = set()
        # Double quotes stood inside an expansion inside double quotes, see `check_braces`.
        self.nested_quotes = False
        self._not_arithmetic: set[int] = set()

    @abstractmethod
    def frame(self, pos: int, closer: str) -> tuple[Frame, int]:
        """Read commands from `pos` to the unmatched `closer` ("" = the end of the text)."""

    @abstractmethod
    def nested(self, text: str, base: int, fixed: Span | None) -> Lexer:
        """A lexer of the same kind for a text taken out of this one."""

    def span(self, start: int, end: int) -> Span:
        return self.fixed or Span(start + self.base, end + self.base)

    def refuse(self, code: str, start: int, end: int | None = None, detail: str = "") -> Refused:
        return Refused(code, *self.span(start, len(self.text) if end is None else end), detail)

    def deeper(self, pos: int) -> None:
        self.budget.depth += 1
        if self.budget.depth > MAX_DEPTH:
            raise self.refuse("unparsed.nesting", pos)

    # --- words ---------------------------------------------------------------------------------------------------

    def word(self, pos: int) -> tuple[list[Piece], int]:
        """The pieces of the unquoted-context word that begins at `pos`; ends before a blank or operator."""
        text = self.text
        size = len(text)
        pieces: list[Piece] = []
        while pos < size:
            run = _RUN.match(text, pos)
            if run is not None:
                pieces.append(run.group())
                pos = run.end()
                if pos >= size:
                    break
            char = text[pos]
            if char in " \t\n;&|()":
                break
            if char in "<>":
                if text[pos + 1 : pos + 2] != "(":
                    break
                pos = self._process(pos, pieces)
            else:
                pos = self._special(pos, pieces)
        return pieces, pos

    def _special(self, pos: int, pieces: list[Piece]) -> int:
        """A quote, backslash, `$` or backtick outside double quotes."""
        text = self.text
        char = text[pos]
        if char == "'":
            end = text.find("'", pos + 1)
            if end < 0:
                raise self.refuse("unparsed.quote", pos)
            pieces.append(Part(PartKind.LITERAL, text[pos + 1 : end], True))
            return end + 1
        if char == '"':
            return self.double(pos + 1, pieces)
        if char == "\\":
            following = text[pos + 1 : pos + 2]
            if not following:
                # bash drops it or keeps it, depending on what stands before.
                raise self.refuse("unparsed.ambiguous", pos, pos + 1, "a backslash at the end of the text")
            if following != "\n":
                pieces.append(Part(PartKind.LITERAL, following, True))
            return pos + 2
        if char == "`":
            return self._backtick(pos, pieces, False)
        return self._dollar(pos, pieces, False)

    def double(self, pos: int, pieces: list[Piece]) -> int:
        """The inside of double quotes, from behind the opening one to behind the closing one."""
        text = self.text
        begin = pos
        count = len(pieces)
        while True:
            run = _DOUBLE_RUN.match(text, pos)
            if run is not None:
                pieces.append(Part(PartKind.LITERAL, run.group(), True))
                pos = run.end()
            char = text[pos : pos + 1]
            if char == '"':
                if len(pieces) == count:
                    pieces.append(Part(PartKind.LITERAL, "", True))
                return pos + 1
            if not char:
                raise self.refuse("unparsed.quote", begin - 1)
            pos = self._quoted_special(pos, pieces, '$`"\\')

    def _quoted_special(self, pos: int, pieces: list[Piece], escapable: str) -> int:
        text = self.text
        char = text[pos]
        if char == "\\":
            following = text[pos + 1 : pos + 2]
            if following == "\n":
                return pos + 2
            if following and following in escapable:
                pieces.append(Part(PartKind.LITERAL, following, True))
                return pos + 2
            pieces.append(Part(PartKind.LITERAL, "\\", True))
            return pos + 1
        if char == "`":
            return self._backtick(pos, pieces, True, heredoc='"' not in escapable)
        return self._dollar(pos, pieces, True)

    def body(self) -> Word:
        """The whole text as the body of a here-document whose delimiter was not quoted."""
        text = self.text
        pieces: list[Piece] = []
        pos = 0
        while pos < len(text):
            run = _BODY_RUN.match(text, pos)
            if run is not None:
                pieces.append(Part(PartKind.LITERAL, run.group(), True))
                pos = run.end()
                continue
            pos = self._quoted_special(pos, pieces, "$`\\")
        return finish(pieces, self.span(0, len(text)), self.take_extra(), Mode.NONE)[0]

    def check_braces(self, start: int, end: int) -> None:
        """Brace expansion works on raw text and pairs double quotes naively: in `"${v:-"{a,b}"}"` it sees the braces bare."""
        if self.nested_quotes:
            self.nested_quotes = False
            raw = self.text[start:end]
            if _BARE_BRACE.search(raw) and ("," in raw or ".." in raw):
                raise self.refuse("unparsed.ambiguous", start, end, "braces beside double quotes within double quotes")

    def check_read_twice(self, start: int, end: int) -> None:
        """Text that bash first took for arithmetic and then reads again: quotes may be decoded twice, bodies misplaced."""
        if _READ_TWICE.search(self.text, start, end):
            raise self.refuse("unparsed.ambiguous", start, end, "bash reads this twice, as arithmetic and as commands")

    def take_extra(self) -> Flags:
        if not self.extra:
            return _NONE
        flags = frozenset(self.extra)
        self.extra = set()
        return flags

    # --- expansions ----------------------------------------------------------------------------------------------

    def _dollar(self, pos: int, pieces: list[Piece], is_quoted: bool) -> int:
        text = self.text
        following = text[pos + 1 : pos + 2]
        if following == "(":
            return self._parenthesis(pos, pieces, is_quoted)
        if following == "{":
            return self._parameter(pos, pieces, is_quoted)
        name = _NAME.match(text, pos + 1)
        if name is not None:
            end = name.end()
            if text.startswith("\\\n", end) and _NAME_TAIL.match(text, end):
                raise self.refuse("unparsed.ambiguous", pos, end + 2, "a name is continued on the next line")
            pieces.append(Part(PartKind.VARIABLE, name.group(), is_quoted))
            return end
        if following and following in _SPECIAL_NAMES:
            pieces.append(Part(PartKind.VARIABLE, following, is_quoted))
            return pos + 2
        if following == "[":
            end, expression = self._bracket_arithmetic(pos + 2)
            pieces.append(Part(PartKind.ARITHMETIC, expression, is_quoted))
            return end
        if following == "'" and not is_quoted:
            quoted = _ANSI.match(text, pos + 2)
            if quoted is None:
                raise self.refuse("unparsed.quote", pos)
            value = ansi.decode(quoted.group()[:-1])
            if value is None:
                raise self.refuse("unparsed.encoding", pos, quoted.end(), "an escape without a certain meaning")
            pieces.append(Part(PartKind.LITERAL, value, True))
            return quoted.end()
        if following == '"' and not is_quoted:
            return self.double(pos + 2, pieces)
        if following == "\\" and text.startswith("\\\n", pos + 1):
            raise self.refuse("unparsed.ambiguous", pos, pos + 3, "an expansion is continued on the next line")
        pieces.append(Part(PartKind.LITERAL, "$", is_quoted))
        return pos + 1

    def _parenthesis(self, pos: int, pieces: list[Piece], is_quoted: bool) -> int:
        text = self.text
        if text.startswith("((", pos + 1) and pos not in self._not_arithmetic:
            arithmetic = self.arithmetic(pos + 3)
            if arithmetic is not None:
                end, expression = arithmetic
                pieces.append(Part(PartKind.ARITHMETIC, expression, is_quoted))
                return end
            self._not_arithmetic.add(pos)
            end = self._substitution(pos, pieces, is_quoted)
            # bash finds the end of this form by counting parentheses, not by reading commands; both must agree.
            self.check_read_twice(pos, end)
            if text[pos + 2 : end].count("(") + 1 != text[pos + 2 : end].count(")"):
                raise self.refuse("unparsed.ambiguous", pos, end)
            return end
        return self._substitution(pos, pieces, is_quoted)

    def _substitution(self, pos: int, pieces: list[Piece], is_quoted: bool) -> int:
        frame, end = self.frame(pos + 2, ")")
        self.found.append(frame)
        pieces.append(Part(PartKind.SUBSTITUTION, self.text[pos + 2 : end - 1], is_quoted))
        self.extra.add(WordFlag.SUBSTITUTION)
        return end

    def _process(self, pos: int, pieces: list[Piece]) -> int:
        frame, end = self.frame(pos + 2, ")")
        if not frame.statements:
            raise self.refuse("unparsed.ambiguous", pos, end, "an empty process substitution leaves no word")
        if _CASE.search(self.text, pos, end):
            # bash finds the end of this form a second time, and then takes the parenthesis of a pattern for it.
            raise self.refuse("unparsed.ambiguous", pos, end, "`case` inside a process substitution")
        self.found.append(frame)
        pieces.append(Part(PartKind.PROCESS, self.text[pos + 2 : end - 1]))
        self.extra.add(WordFlag.PROCESS)
        return end

    def _backtick(self, pos: int, pieces: list[Piece], is_quoted: bool, heredoc: bool = False) -> int:
        body = _BACKTICK.match(self.text, pos + 1)
        if body is None or self.text[body.end() : body.end() + 1] != "`":
            raise self.refuse("unparsed.quote", pos)
        inner = body.group()
        end = body.end() + 1
        if is_quoted and '"' in inner:
            self.nested_quotes = True
        if heredoc and '\\"' in inner:
            raise self.refuse("unparsed.ambiguous", pos, end)
        fixed = self.fixed
        if "\\" in inner:
            # Backslash-newline goes first, even inside single quotes, which mean nothing to bash before it reads the text.
            shorter = _ANY_ESCAPE.sub(lambda match: "" if match.group() == "\\\n" else match.group(), inner)
            shorter = (_TICK_ESCAPE_QUOTED if is_quoted else _TICK_ESCAPE).sub(r"\1", shorter)
            if len(shorter) != len(inner):
                fixed = fixed or self.span(pos, end)
                inner = shorter
        lexer = self.nested(inner, pos + 1 + self.base, fixed)
        frame, _ = lexer.frame(0, "")
        self.found.append(frame)
        pieces.append(Part(PartKind.SUBSTITUTION, inner, is_quoted))
        self.extra.add(WordFlag.SUBSTITUTION)
        return end

    def _parameter(self, pos: int, pieces: list[Piece], is_quoted: bool) -> int:
        """`${…}` from its `$`."""
        self.deeper(pos)
        text = self.text
        here = pos + 2
        op = ""
        mark = text[here : here + 1]
        if mark in ("#", "!") and text[here + 1 : here + 2] != "}":
            following = _NAME_OR_SPECIAL.match(text, here + 1)
            if following is not None and (mark == "!" or text[following.end() : following.end() + 1] in ("}", "[")):
                op = "length" if mark == "#" else "!"
                here += 1
        name = _NAME_OR_SPECIAL.match(text, here)
        if name is None:
            raise self.refuse("unparsed.syntax", pos, here + 1, "this form of ${ } is not known")
        here = name.end()
        if text.startswith("[", here):
            here, subscript = self._parameter_subscript(here)
            op = f"{'keys' if op == '!' and subscript in ('@', '*') else op}[{subscript}"
        elif op == "!" and text[here : here + 2] in ("@}", "*}"):
            op = "names" + text[here]
            here += 1
        if op.startswith("!"):
            self.extra.add(WordFlag.EVALUATES)
        default: str | None = None
        operand: tuple[Part, ...] = ()
        if not text.startswith("}", here):
            here, operator, default, operand = self._operation(pos, here, is_quoted)
            op = f"{op}{operator}"
        pieces.append(Part(PartKind.VARIABLE, name.group(), is_quoted, default, op, operand))
        self.extra.add(WordFlag.VARIABLE)
        self.budget.depth -= 1
        return here + 1

    def _parameter_subscript(self, here: int) -> tuple[int, str]:
        """`[…]` behind a parameter's name; what is not `@`, `*` or a number is evaluated."""
        subscript, end = self.subscript(here)
        if subscript not in ("@", "*") and not _NUMBER_ONLY.match(subscript):
            self.extra.add(WordFlag.EVALUATES)
        return end, subscript

    def _operation(self, pos: int, here: int, is_quoted: bool) -> _Operation:
        """The operator and operand of `${v…}`."""
        operator = _OPERATOR.match(self.text, here)
        if operator is None:
            return self._bad_operation(pos, here, is_quoted)
        op = operator.group()
        if op.startswith("@"):
            if op == "@P":
                self.extra.add(WordFlag.EVALUATES)
            return operator.end(), op, None, ()
        operand: list[Piece] = []
        end = self._operand(pos, operator.end(), operand, is_quoted)
        if is_quoted and _PROCESS_MARK.search(self.text, operator.end(), end):
            # Some operators (`:?`) expand their operand as if it were not quoted.
            raise self.refuse("unparsed.ambiguous", pos, end + 1, "a process substitution in a quoted operand")
        if op == ":":
            if not all(_NUMBER_ONLY.match(piece) for piece in self.text[operator.end() : end].split(":")):
                self.extra.add(WordFlag.EVALUATES)
                return end, op, None, ()
            return end, op, None, (Part(PartKind.LITERAL, self.text[operator.end() : end]),)
        if op in ("=", ":="):
            self.extra.add(WordFlag.ASSIGNS)
        if op[-1] not in "-=+":
            known = op[0] in "#%/" and all(isinstance(p, str) or p.kind is PartKind.LITERAL for p in operand)
            return (
                end,
                op,
                None,
                tuple([Part(PartKind.LITERAL, p) if isinstance(p, str) else p for p in operand] if known else ()),
            )
        if all(isinstance(p, str) or p.kind is PartKind.LITERAL for p in operand):
            return end, op, "".join([p if isinstance(p, str) else p.text for p in operand]), ()
        return end, op, None, tuple([Part(PartKind.LITERAL, p, is_quoted) if isinstance(p, str) else p for p in operand])

    def _bad_operation(self, pos: int, here: int, is_quoted: bool) -> _Operation:
        """A form that bash refuses when it comes to it ("bad substitution"); read on only where nothing in it can run."""
        operand: list[Piece] = []
        end = self._operand(pos, here, operand, is_quoted)
        if any(isinstance(piece, Part) and piece.kind is not PartKind.LITERAL for piece in operand):
            raise self.refuse("unparsed.syntax", pos, end + 1, "this form of ${ } is not known")
        self.extra.add(WordFlag.EVALUATES)
        return end, "bad", None, ()

    def _operand(self, pos: int, here: int, pieces: list[Piece], is_quoted: bool) -> int:
        """The operand of `${v…}` up to the offset of its closing brace."""
        text = self.text
        run_of = _QUOTED_OPERAND_RUN if is_quoted else _OPERAND_RUN
        while True:
            run = run_of.match(text, here)
            if run is not None:
                pieces.append(run.group())
                here = run.end()
            char = text[here : here + 1]
            if char == "}":
                return here
            if not char:
                raise self.refuse("unparsed.quote", pos)
            if char in "<>":
                if text.startswith("(", here + 1):
                    end = self._process(here, pieces)
                    if "}" in text[here:end]:
                        raise self.refuse("unparsed.ambiguous", here, end)
                    here = end
                else:
                    pieces.append(char)
                    here += 1
            elif not is_quoted:
                here = self._special(here, pieces)
            elif char == "'":
                # Inside double quotes a single quote still groups when bash looks for the brace, yet it protects nothing.
                end = text.find("'", here + 1)
                if end < 0 or any(special in text[here:end] for special in '}"$`\\'):
                    raise self.refuse("unparsed.ambiguous", here, None if end < 0 else end + 1)
                pieces.append(text[here : end + 1])
                here = end + 1
            elif char == '"':
                self.nested_quotes = True
                here = self.double(here + 1, pieces)
            elif text.startswith("$'", here):
                raise self.refuse("unparsed.ambiguous", here, here + 2)
            else:
                here = self._quoted_special(here, pieces, '$`"\\}')

    # --- arithmetic and subscripts -------------------------------------------------------------------------------

    def arithmetic(self, pos: int) -> tuple[int, str] | None:
        """`…))` from behind `((`: the offset behind it and the expression; None when the parentheses do not close so."""
        self.deeper(pos)
        mark = len(self.found)
        kept = set(self.extra)
        text = self.text
        here = pos
        depth = 0
        pieces: list[Piece] = []
        while True:
            run = _ARITHMETIC_RUN.match(text, here)
            if run is not None:
                pieces.append(run.group())
                here = run.end()
            char = text[here : here + 1]
            if not char:
                raise self.refuse("unparsed.quote", pos)
            if char == ")" and depth == 0:
                self.budget.depth -= 1
                if not text.startswith("))", here):
                    del self.found[mark:]
                    self.extra = kept
                    return None
                self._judge(pieces)
                return here + 2, text[pos:here]
            here, depth = self._arithmetic_piece(here, pieces, depth)
            if depth > MAX_DEPTH:
                raise self.refuse("unparsed.nesting", here)

    def _bracket_arithmetic(self, pos: int) -> tuple[int, str]:
        """`…]` from behind `$[`."""
        text = self.text
        here = pos
        pieces: list[Piece] = []
        self.deeper(pos)
        while True:
            run = _ARITHMETIC_RUN.match(text, here)
            if run is not None:
                pieces.append(run.group())
                here = run.end()
            char = text[here : here + 1]
            if not char:
                raise self.refuse("unparsed.quote", pos)
            if char == "]":
                if "[" in text[pos:here]:
                    raise self.refuse("unparsed.ambiguous", pos, here)
                self.budget.depth -= 1
                self._judge(pieces)
                return here + 1, text[pos:here]
            here, _ = self._arithmetic_piece(here, pieces, 0)

    def _arithmetic_piece(self, here: int, pieces: list[Piece], depth: int) -> tuple[int, int]:
        char = self.text[here]
        if char in "()]":
            pieces.append(char)
            return here + 1, depth + (char == "(") - (char == ")")
        if char == "'":
            raise self.refuse("unparsed.ambiguous", here, here + 1, "a single quote inside arithmetic")
        if char == '"':
            return self.double(here + 1, pieces), depth
        return self._quoted_special(here, pieces, '$`"\\'), depth

    def _judge(self, pieces: list[Piece]) -> None:
        """Flag an expression in which any name or any text from elsewhere is evaluated."""
        for piece in pieces:
            if isinstance(piece, str) or piece.kind is PartKind.LITERAL:
                if _IDENTIFIER.search(piece if isinstance(piece, str) else piece.text):
                    self.extra.add(WordFlag.EVALUATES)
            elif piece.kind is PartKind.ARITHMETIC or (piece.text in _NUMERIC and not piece.op) or piece.op == "length":
                continue
            else:
                self.extra.add(WordFlag.EVALUATES)

    def subscript(self, pos: int) -> tuple[str, int]:
        """`[…]` from its bracket: the text between and the offset behind it. Blanks and operators in it are refused."""
        text = self.text
        here = pos + 1
        pieces: list[Piece] = []
        while True:
            run = _SUBSCRIPT_RUN.match(text, here)
            if run is not None:
                here = run.end()
            char = text[here : here + 1]
            if char == "]":
                return text[pos + 1 : here], here + 1
            if not char or char in "[ \t\n;&|()<>":
                raise self.refuse("unparsed.ambiguous", pos, here + 1, "a subscript with blanks, brackets or operators")
            here = self._special(here, pieces)

    def regex(self, pos: int) -> tuple[list[Piece], int]:
        """A pattern or regular expression inside `[[ ]]`: parentheses belong to it, with what stands between them."""
        text = self.text
        pieces: list[Piece] = []
        depth = 0
        while True:
            run = _REGEX_RUN.match(text, pos)
            if run is not None:
                pieces.append(run.group())
                pos = run.end()
            char = text[pos : pos + 1]
            if not char:
                if depth:
                    raise self.refuse("unparsed.quote", pos)
                return pieces, pos
            if char == "(":
                depth += 1
                if depth > MAX_DEPTH:
                    raise self.refuse("unparsed.nesting", pos)
            elif char == ")":
                if depth == 0:
                    return pieces, pos
                depth -= 1
            elif char in "'\"\\$`":
                pos = self._special(pos, pieces)
                continue
            elif depth == 0:
                return pieces, pos
            elif char not in " \t":
                raise self.refuse("unparsed.ambiguous", pos, pos + 1, "an operator inside a pattern")
            pieces.append(char)
            pos += 1


_NONE: Flags = frozenset()
_PROCESS_MARK = re.compile(r"[<>]\(")
_READ_TWICE = re.compile(r"<<|\$['\"]|[\\`]")
_CASE = re.compile(r"\bcase\b")
_BARE_BRACE = re.compile(r"(?<!\$)\{")
_NAME_TAIL = re.compile(r"(?:\\\n)+[A-Za-z0-9_]")
