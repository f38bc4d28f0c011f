# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands: from text to frames, the form in which the grammar and the walk get it.

The reader finds the tokens, tells reserved words from plain ones, and writes for each top-level statement a *shape*: the
text with every word replaced by a placeholder (`w0`, `r1` …), which the grammar then parses. A run of plain words of one
command is one placeholder; assignments, redirect targets and `for` lists have their own. What the grammar cannot read is
rewritten into what it can: `case` into a group of `if`s, `select` into `for`, an arithmetic `for` into `while`, `elif` into
a nested `if`, newlines into `;`; `time` and `coproc` are taken off.

To add a construct: recognise its first word in `Reader._reserved`, read its header there, and write a shape that has the
same commands under the same conditions.
"""

from __future__ import annotations

import re

from sandboxd.model.shell import Assignment, CommandKind, Note, Part, PartKind, Redirect, RedirectOp, Span, Word, WordFlag
from sandboxd.shell.lexer import MAX_COMMANDS, Budget, Lexer
from sandboxd.shell.words import Mode, finish

# A word ends before one of these; `<(` and `>(` do not end it.
_END = r"(?=[ \t\n;&|()]|[<>](?!\()|\Z)"
_TOKEN = re.compile(
    r"(?:[ \t]|\\\n)*+(?:"
    r"([^ \t\n;&|()<>'\"\\$`*?\[{~#][^ \t\n;&|()<>'\"\\$`*?\[{~]*+)"
    + _END  # 1: a word of ordinary characters
    + r"|('[^']*+'|\"[^\"\\$`]*+\")"
    + _END  # 2: one quoted string
    + r"|(\{\}?|\[\[?)"
    + _END  # 3: a brace or bracket alone
    + r"|(\n)"  # 4
    r"|(?![<>]\()(;;&|;&|;;|;|&&|&>>|&>|&|\|\||\|&|\||\(|\)|<<<|<<-|<<|<&|<>|<|>>|>&|>\||>)"  # 5: an operator
    r"|(\#[^\n]*+)"  # 6: a comment
    r"|(\Z)"  # 7
    r"|())"  # 8: any other word
)
_PLAIN, _QUOTED, _SOLO, _NEWLINE, _OPERATOR, _COMMENT, _EOF, _OTHER = range(1, 9)
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:(\+?)=|\[)")
_APPEND_OR_SET = re.compile(r"(\+?)=")
_DESCRIPTOR = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}(?=[<>](?!\())")
_BLANKS = re.compile(r"(?:[ \t]|\\\n)*+")
_GAP = re.compile(r"(?:[ \t]|\\\n)*+(?:#[^\n]*+)?(?:\n(?:[ \t\n]|\\\n)*+(?:#[^\n]*+)?)*+")
_IDENTIFIER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)" + _END)
_TIME_OPTIONS = re.compile(r"(?:(?:[ \t]|\\\n)++-p" + _END + r")?(?:(?:[ \t]|\\\n)++--" + _END + r")?")
_COPROC_NAME = re.compile(r"[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]+(?=\(|(?:\{|if|for|while|until|case|select|\[\[)" + _END + r")")
_EMPTY_PARENTHESES = re.compile(r"[ \t]*\([ \t]*\)")

_RESERVED = frozenset(
    [
        "!",
        "{",
        "}",
        "if",
        "then",
        "elif",
        "else",
        "fi",
        "for",
        "while",
        "until",
        "do",
        "done",
        "case",
        "esac",
        "select",
        "function",
        "time",
        "coproc",
        "[[",
    ]
)
_CLOSERS = frozenset(["then", "elif", "else", "fi", "do", "done", "esac", "}"])
_DECLARING = frozenset(("declare", "typeset", "local", "readonly", "export", "alias"))
_REDIRECTS = {op.value: op for op in RedirectOp}
_REDIRECTS["<<-"] = RedirectOp.HEREDOC
_LITERAL = PartKind.LITERAL

# Where the next token stands: at the start of a list or pipeline, behind `|`, in a simple command, behind a compound
# command, behind a function's head.
_START, _PIPE, _IN, _AFTER, _BODY = range(5)


class Slot:
    """What stands behind the placeholders of one command, or of one other group of words."""

    __slots__ = (
        "assignment_frames", "assignments", "count", "end", "frames", "kind", "name", "notes", "redirect_frames", "redirects",
        "role", "start", "words",
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


class Frame:
    """The statements of a text or of one substitution: (shape, what its placeholders stand for), in order."""

    __slots__ = ("statements", "uncertain")

    def __init__(self) -> None:
        self.statements: list[tuple[str, list[Slot]]] = []
        self.uncertain = False  # variables and directory cannot be followed in it (coproc)


class _Heredoc:
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


class _Build:
    """A frame while it is read."""

    __slots__ = ("closer", "documented", "frame", "items", "notes", "out", "slot", "stack", "state")

    def __init__(self, closer: str) -> None:
        self.frame = Frame()
        self.closer = closer
        self.out: list[str] = []
        self.items: list[Slot] = []
        self.stack: list[list[int | str]] = []  # [kind, number]: open constructs
        self.slot: Slot | None = None  # the command, or the redirects of the compound command, that is being read
        self.state = _START
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
        if self.state in (_IN, _AFTER):
            if self.stack:
                self.out.append(";")
            else:
                self.cut()
            self.state = _START


class Reader(Lexer):
    """Reads the commands of one text; see `Lexer` for the parameters."""

    def __init__(self, text: str, budget: Budget, base: int = 0, fixed: Span | None = None) -> None:
        super().__init__(text, budget, base, fixed)
        self._pending: list[_Heredoc] = []

    def nested(self, text: str, base: int, fixed: Span | None) -> Lexer:
        return Reader(text, self.budget, base, fixed)

    def frame(self, pos: int, closer: str) -> tuple[Frame, int]:
        self.deeper(pos)
        saved = self.found, self.extra, self._pending
        self.found, self.extra, self._pending = [], set(), []
        b = _Build(closer)
        pos = self._read(b, pos, bool(saved[2]))
        if self._pending:
            raise self.refuse("unparsed.heredoc", pos, pos, "no body follows")
        if b.stack:
            raise self.refuse("unparsed.syntax", pos, pos, f"`{b.stack[-1][0]}` is not closed")
        b.cut()
        self.found, self.extra, self._pending = saved
        self.budget.depth -= 1
        return b.frame, pos

    def _read(self, b: _Build, pos: int, awaited: bool) -> int:
        """Read until the frame's closer; returns the offset behind it. `awaited`: an outer here-document has no body yet."""
        text = self.text
        token = _TOKEN.match
        simple = self.fixed is None
        base = self.base
        while True:
            match = token(text, pos)
            assert match is not None  # the last alternative is empty
            kind = match.lastindex or _OTHER
            start = match.start(kind)
            pos = match.end()
            if kind == _PLAIN or kind == _SOLO:
                value = match.group(kind)
                if b.state != _IN:
                    if value in _RESERVED:
                        pos = self._reserved(b, value, start, pos)
                        continue
                    if text[pos : pos + 1] in ("<", ">") and value.isascii() and value.isdigit():
                        pos = self._redirect(b, start, pos, self._number(value, start, pos))
                        continue
                    slot = self._begin(b, start)
                else:
                    assert b.slot is not None
                    slot = b.slot
                    if text[pos : pos + 1] in ("<", ">") and value.isascii() and value.isdigit():
                        pos = self._redirect(b, start, pos, self._number(value, start, pos))
                        continue
                if "=" in value and (not slot.words or text[pos : pos + 1] == "("):
                    pos = self._other(b, slot, start)
                    continue
                if not slot.words:
                    b.put("w", slot)
                span = Span(start + base, pos + base) if simple else self.span(start, pos)
                slot.words.append(Word(span, (Part(_LITERAL, value),), (value,)))
                slot.end = pos
            elif kind == _QUOTED:
                slot = b.slot if b.state == _IN and b.slot is not None else self._begin(b, start)
                if not slot.words:
                    b.put("w", slot)
                value = text[start + 1 : pos - 1]
                span = Span(start + base, pos + base) if simple else self.span(start, pos)
                slot.words.append(Word(span, (Part(_LITERAL, value, True),), (value,)))
                slot.end = pos
            elif kind == _OTHER:
                descriptor = _DESCRIPTOR.match(text, start)
                if descriptor is not None:
                    pos = self._redirect(b, start, descriptor.end(), descriptor.group(1))
                    continue
                slot = b.slot if b.state == _IN and b.slot is not None else self._begin(b, start)
                pos = self._other(b, slot, start)
            elif kind == _OPERATOR:
                operator = match.group(_OPERATOR)
                if text.startswith("\\\n", pos):
                    self._whole(operator, start, pos)
                if operator in _REDIRECTS:
                    pos = self._redirect(b, start, start, None)
                elif operator == ")" and not b.stack:
                    if b.closer != ")":
                        raise self.refuse("unparsed.syntax", start, pos, "`)` without `(`")
                    return pos
                else:
                    pos = self._operator(b, operator, start, pos)
            elif kind == _NEWLINE:
                b.terminate()
                if awaited:
                    raise self.refuse("unparsed.heredoc", start, pos, "a newline before the body of an outer here-document")
                if self._pending:
                    pos = self._bodies(pos, b.closer)
                    b.documented = b.closer == ")"
            elif kind == _EOF:
                if b.closer:
                    raise self.refuse("unparsed.quote", pos, pos, f"`{b.closer}` is missing")
                return pos

    # --- simple commands -----------------------------------------------------------------------------------------

    def _begin(self, b: _Build, start: int) -> Slot:
        if b.state >= _AFTER:
            raise self.refuse("unparsed.syntax", start, start + 1, "a word where none can stand")
        slot = self._slot(b, start)
        b.slot = slot
        b.state = _IN
        return slot

    def _slot(self, b: _Build, start: int, kind: CommandKind = CommandKind.SIMPLE, role: str = "") -> Slot:
        self.budget.commands += 1
        if self.budget.commands > MAX_COMMANDS:
            raise self.refuse("unparsed.commands", start)
        if b.documented and b.stack:
            raise self.refuse("unparsed.heredoc", start, start + 1, _REPRINTED)
        slot = Slot(start, kind, role)
        if b.notes:
            slot.notes, b.notes = b.notes, ()
        return slot

    def _whole(self, operator: str, start: int, pos: int) -> None:
        """Refuse an operator that backslash-newline joins to what makes it a longer one."""
        after = pos
        while self.text.startswith("\\\n", after):
            after += 2
        if operator + self.text[after : after + 1] in _OPERATOR_PREFIXES:
            raise self.refuse("unparsed.ambiguous", start, after + 1, "an operator is continued on the next line")

    def _take_found(self) -> list[Frame]:
        found = self.found
        if found:
            self.found = []
        return found

    def _other(self, b: _Build, slot: Slot, start: int) -> int:
        """A word that needs a closer look: quotes, expansions, or the form of an assignment."""
        text = self.text
        if not slot.words:
            assignment = _ASSIGNMENT.match(text, start)
            if assignment is not None:
                end = self._assignment(b, slot, assignment)
                if end:
                    return end
        pieces, end = self.word(start)
        first = pieces[0] if pieces else None
        if "\\\n" in text[start:end] and isinstance(first, str):
            self._continued(slot, start, end)
        mode = Mode.ARGUMENT
        declared = isinstance(first, str) and bool(slot.words) and slot.words[0].value in _DECLARING
        if declared:
            head = _ASSIGNMENT.match(text, start)
            if head is not None and (head.group(2) is not None or text.find("=", start, end) > 0):
                mode = Mode.DECLARED
        if text.startswith("(", end) and isinstance(pieces[-1] if pieces else None, str) and text[end - 1] == "=":
            if not declared or mode is not Mode.DECLARED:
                raise self.refuse("unparsed.syntax", start, end + 1, "an array where no assignment can stand")
            return self._declared_array(b, slot, start, end)
        if not slot.words:
            b.put("w", slot)
        slot.words.extend(finish(pieces, self.span(start, end), self.take_extra(), mode))
        if self.found:
            slot.frames.extend(self._take_found())
        slot.end = end
        return end

    def _continued(self, slot: Slot, start: int, end: int) -> None:
        """A word broken by backslash-newline is read as if whole; refuse where that makes it another kind of token."""
        raw = self.text[start:end]
        joined = raw.replace("\\\n", "")
        head, whole = _ASSIGNMENT.match(raw), _ASSIGNMENT.match(joined)
        if (not slot.words and joined in _RESERVED) or (head is None) != (whole is None):
            raise self.refuse("unparsed.ambiguous", start, end, "a reserved word or name is continued on the next line")
        if self.text[end : end + 1] in ("<", ">") and (joined.isdigit() or _DESCRIPTOR.match(joined + ">")):
            raise self.refuse("unparsed.ambiguous", start, end, "a descriptor is continued on the next line")

    def _assignment(self, b: _Build, slot: Slot, match: re.Match[str]) -> int:
        """An assignment before the command's name; 0 when it is none after all."""
        text = self.text
        start = match.start()
        name = match.group(1)
        pos = match.end()
        subscript = None
        append = match.group(2) == "+"
        if match.group(2) is None:
            subscript, pos = self.subscript(pos - 1)
            sign = _APPEND_OR_SET.match(text, pos)
            if sign is None:
                self.found.clear()
                self.extra.clear()
                return 0
            append = sign.group(1) == "+"
            pos = sign.end()
        elements: tuple[Word, ...] = ()
        value: Word | None = None
        if text.startswith("(", pos):
            if subscript is not None:
                raise self.refuse("unparsed.syntax", start, pos + 1, "an array cannot be an element")
            elements, pos = self._array(pos)
        else:
            value, pos = self._value(pos)
        if subscript is not None and not subscript.isdigit() and not subscript.startswith("-"):
            slot.notes += (Note("shell.evaluates", self.span(start, pos), "subscript"),)
        slot.assignments.append(Assignment(name, value, self.span(start, pos), append, subscript, elements))
        if self.found:
            slot.assignment_frames.append((len(slot.assignments) - 1, self._take_found()))
        if len(slot.assignments) == 1:
            b.put("a", slot)
        slot.end = pos
        return pos

    def _value(self, pos: int) -> tuple[Word, int]:
        pieces, end = self.word(pos)
        return finish(pieces, self.span(pos, end), self.take_extra(), Mode.VALUE)[0], end

    def _array(self, pos: int) -> tuple[tuple[Word, ...], int]:
        """`( … )` of an array assignment, from its parenthesis."""
        text = self.text
        opening = pos
        pos += 1
        words: list[Word] = []
        while True:
            gap = _GAP.match(text, pos)
            pos = gap.end() if gap else pos
            if text.startswith(")", pos):
                pos += 1
                if text[pos : pos + 1] not in _WORD_ENDS:
                    raise self.refuse("unparsed.ambiguous", opening, pos + 1, "text right behind an array")
                return tuple(words), pos
            if pos >= len(text):
                raise self.refuse("unparsed.quote", opening)
            start = pos
            if text[pos] == "[":
                # `[subscript]=value`: bash reads the subscript first, whatever stands in it.
                known = len(self.found)
                subscript, after = self.subscript(pos)
                del self.found[known:]  # found again below, with the whole word
                if _APPEND_OR_SET.match(text, after) is None:
                    raise self.refuse("unparsed.ambiguous", pos, after, "a bracket at the start of an array element")
                if not subscript.isdigit():
                    self.extra.add(WordFlag.EVALUATES)
            pieces, pos = self.word(pos)
            if pos == start:
                raise self.refuse("unparsed.syntax", pos, pos + 1, "an operator inside an array")
            words.extend(finish(pieces, self.span(start, pos), self.take_extra(), Mode.ARGUMENT))

    def _declared_array(self, b: _Build, slot: Slot, start: int, pos: int) -> int:
        """`name=( … )` as an argument of `declare` and its kin: one word, dynamic unless all its elements are literal."""
        elements, end = self._array(pos)
        source = self.text[start:end]
        span = self.span(start, end)
        flags = frozenset(flag for word in elements for flag in word.flags)
        if flags:
            head = Part(_LITERAL, self.text[start : pos + 1])
            inner = tuple(part for word in elements for part in word.parts)
            slot.words.append(Word(span, (head, *inner), (), flags))
        else:
            slot.words.append(Word(span, (Part(_LITERAL, source),), (source,)))
        slot.frames.extend(self._take_found())
        slot.end = end
        return end

    # --- redirects and here-documents ----------------------------------------------------------------------------

    def _number(self, value: str, start: int, end: int) -> int:
        if len(value) > 9:
            raise self.refuse("unparsed.ambiguous", start, end, "a descriptor number out of range")
        return int(value)

    def _redirect(self, b: _Build, start: int, pos: int, fd: int | str | None) -> int:
        """A redirection whose operator stands at `pos`."""
        text = self.text
        match = _TOKEN.match(text, pos)
        assert match is not None
        if match.lastindex != _OPERATOR or match.group(_OPERATOR) not in _REDIRECTS:
            raise self.refuse("unparsed.syntax", start, pos + 1)
        written = match.group(_OPERATOR)
        pos = match.end()
        if text.startswith("\\\n", pos):
            self._whole(written, start, pos)
        op = _REDIRECTS[written]
        if b.state == _AFTER:
            slot = b.slot
            if slot is None:
                slot = b.slot = Slot(start, CommandKind.COMPOUND, "redirects")
        else:
            slot = b.slot if b.state == _IN and b.slot is not None else self._begin(b, start)
        blanks = _BLANKS.match(text, pos)
        begin = blanks.end() if blanks else pos
        pieces, end = self.word(begin)
        if end == begin or text.startswith("#", begin):
            raise self.refuse("unparsed.syntax", start, end + 1, "a redirection without a target")
        span = self.span(start, end)
        if not slot.redirects:
            b.out.append(">")
            b.put("r", slot)
        if op is RedirectOp.HEREDOC:
            if any(isinstance(p, Part) and p.kind is not _LITERAL for p in pieces) or "\\\n" in text[begin:end]:
                raise self.refuse("unparsed.ambiguous", start, end, "the delimiter holds an expansion or continuation")
            delimiter = "".join([p if isinstance(p, str) else p.text for p in pieces])
            if "\n" in delimiter or text[begin : begin + 2] == '$"':
                raise self.refuse("unparsed.ambiguous", start, end, "the delimiter holds a newline")
            is_quoted = any(isinstance(p, Part) for p in pieces)
            target = Word(span, (Part(_LITERAL, "", True),), ("",))
            self._pending.append(_Heredoc(slot, len(slot.redirects), delimiter, is_quoted, written == "<<-", fd, span))
        else:
            mode = Mode.VALUE ^ Mode.COLON_TILDE if op is RedirectOp.HERESTRING else Mode.TARGET
            words = finish(pieces, self.span(begin, end), self.take_extra(), mode)
            target = words[0]
            if len(words) > 1:
                target = Word(target.span, target.parts, (), target.flags | {WordFlag.BRACE, WordFlag.SPLITS})
        slot.redirects.append(Redirect(op, target, span, fd))
        if self.found:
            slot.redirect_frames.extend(self._take_found())
        slot.end = max(slot.end, end)
        return end

    def _bodies(self, pos: int, closer: str) -> int:
        """Read the bodies of the pending here-documents, which begin at `pos`; returns the offset behind the last."""
        for document in self._pending:
            pos = self._document(document, pos, closer)
        self._pending = []
        return pos

    def _document(self, document: _Heredoc, pos: int, closer: str) -> int:
        text = self.text
        line = re.compile(("\t*" if document.strip else "") + re.escape(document.delimiter) + r"$", re.MULTILINE)
        end = pos
        while True:
            # Only a match at the start of a line counts, and not where the line before goes on.
            match = line.match(text, end)
            if match is not None and (document.quoted or not _odd_backslashes(text, pos, end - 1)):
                break
            newline = text.find("\n", end)
            if newline < 0:
                raise self.refuse("unparsed.heredoc", pos, None, f"`{document.delimiter}` is not found")
            end = newline + 1
        raw = text[pos:end]
        if closer and re.search(rf"^\t*{re.escape(document.delimiter)}[^\n]*\)", raw, re.MULTILINE):
            raise self.refuse("unparsed.heredoc", pos, end, "a line begins with the delimiter and closes the substitution")
        if not document.quoted and "\\\n" in raw:
            joined = re.sub(r"\\(\n|[^\n])", lambda m: "" if m.group(1) == "\n" else m.group(), raw)
            if any(line.match(one) for one in joined.split("\n")):
                raise self.refuse("unparsed.heredoc", pos, end, "lines joined by a backslash form the delimiter")
        body = re.sub(r"^\t+", "", raw, flags=re.MULTILINE) if document.strip else raw
        moved = self.fixed or (self.span(pos, end) if len(body) != len(raw) else None)
        if document.quoted:
            target = Word(self.span(pos, end), (Part(_LITERAL, body, True),), (body,))
        else:
            lexer = Reader(body, self.budget, pos + self.base, moved)
            target = lexer.body()
            document.slot.redirect_frames.extend(lexer.found)
        document.slot.redirects[document.index] = Redirect(RedirectOp.HEREDOC, target, document.span, document.fd)
        return min(match.end() + 1, len(text))

    # --- operators and reserved words ----------------------------------------------------------------------------

    def _operator(self, b: _Build, operator: str, start: int, pos: int) -> int:
        state = b.state
        ready = state == _IN or state == _AFTER
        if operator == ";" or operator == "&":
            if not ready:
                raise self.refuse("unparsed.syntax", start, pos, f"`{operator}` where a command is expected")
            if b.documented:
                raise self.refuse("unparsed.heredoc", start, pos, _REPRINTED)
            if operator == "&":
                b.out.append("&")
                b.slot = None
                b.state = _START
                if not b.stack:
                    b.cut()
            else:
                b.terminate()
        elif operator in ("&&", "||", "|", "|&"):
            if not ready:
                raise self.refuse("unparsed.syntax", start, pos, f"`{operator}` where a command is expected")
            b.out.append(operator)
            b.slot = None
            b.state = _PIPE if operator[-1] in "|&" and operator not in ("&&", "||") else _START
        elif operator == "(":
            return self._opening(b, start, pos)
        elif operator == ")":
            self._close(b, "(", start)
            b.out.append(")")
        elif b.stack and b.stack[-1][0] == "case" and operator in (";;", ";&", ";;&"):
            self._end_clause(b, start)
            return self._patterns(b, pos)
        else:
            raise self.refuse("unparsed.syntax", start, pos, f"`{operator}` where none can stand")
        return pos

    def _open(self, b: _Build, kind: str, pos: int, number: int = 0) -> None:
        self.deeper(pos)
        b.stack.append([kind, number])
        b.slot = None
        b.state = _START

    def _close(self, b: _Build, kind: str, pos: int) -> None:
        if not b.stack or b.stack[-1][0] != kind:
            raise self.refuse("unparsed.syntax", pos, pos + 1, f"nothing to close with this `{kind}`")
        b.stack.pop()
        self.budget.depth -= 1
        b.slot = None
        b.state = _AFTER

    def _opening(self, b: _Build, start: int, pos: int) -> int:
        """`(`: a subshell, an arithmetic command, or the parentheses of a function definition."""
        text = self.text
        if b.state == _IN:
            slot = b.slot
            assert slot is not None
            closing = _BLANKS.match(text, pos)
            after = closing.end() if closing else pos
            if not self._is_function_name(slot) or not text.startswith(")", after):
                raise self.refuse("unparsed.syntax", start, pos, "`(` inside a command")
            slot.role = "function"
            slot.name = slot.words[0].values[0]
            b.out[-1] = "f" + b.out[-1][1:] + " ( )"
            b.slot = None
            b.state = _BODY
            return after + 1
        if b.state == _AFTER:
            raise self.refuse("unparsed.syntax", start, pos, "`(` behind a command")
        if text.startswith("(", pos) and start not in self._not_arithmetic:
            arithmetic = self.arithmetic(pos + 1)
            if arithmetic is not None:
                end, expression = arithmetic
                self._lifted(b, "t", self._arithmetic_slot(b, start, end, expression))
                return end
            self._not_arithmetic.add(start)
        b.out.append("(")
        self._open(b, "(", start)
        return pos

    def _arithmetic_slot(self, b: _Build, start: int, end: int, expression: str) -> Slot:
        slot = self._slot(b, start, CommandKind.ARITHMETIC)
        span = self.span(start, end)
        flags = self.take_extra()
        if flags:
            word = Word(span, (Part(PartKind.ARITHMETIC, expression),), (), flags | {WordFlag.ARITHMETIC})
        else:
            word = Word(span, (Part(_LITERAL, expression, True),), (expression,))
        slot.words = [Word(span, (Part(_LITERAL, "(("),), ("((",)), word]
        slot.frames = self._take_found()
        slot.end = end
        return slot

    def _lifted(self, b: _Build, prefix: str, slot: Slot) -> None:
        """A construct that the grammar sees as a group around one word."""
        b.out.append("{")
        b.put(prefix, slot)
        b.out.append("; }")
        b.slot = None
        b.state = _AFTER

    def _is_function_name(self, slot: Slot) -> bool:
        if len(slot.words) != 1 or slot.assignments or slot.redirects or slot.count != 1:
            return False
        parts = slot.words[0].parts
        return len(parts) == 1 and parts[0].kind is _LITERAL and not parts[0].quoted and bool(slot.words[0].values)

    def _reserved(self, b: _Build, value: str, start: int, pos: int) -> int:
        """A reserved word where bash recognises it; returns the offset behind what it takes."""
        if b.state == _AFTER and value not in _CLOSERS:
            raise self.refuse("unparsed.syntax", start, pos, f"`{value}` behind a command")
        if value in _CLOSERS:
            self._closer(b, value, start)
        elif value == "if" or value == "while" or value == "until":
            b.out.append(value)
            self._open(b, "if" if value == "if" else "loop", start)
        elif value == "{":
            if b.stack and b.stack[-1][0] == "loop" and b.out[-1] == ";" and b.stack[-1][1]:
                b.out.append("do")
                b.stack[-1][0] = "loop{"
                b.state = _START
            else:
                b.out.append("{")
                self._open(b, "{", start)
        elif value == "for" or value == "select":
            return self._for(b, value, start, pos)
        elif value == "case":
            return self._case(b, start, pos)
        elif value == "[[":
            return self._test(b, start, pos)
        elif value == "function":
            return self._function(b, start, pos)
        elif value == "coproc":
            if b.closer == ")":
                raise self.refuse("unparsed.ambiguous", start, pos, "a coprocess in a substitution depends on the version")
            b.frame.uncertain = True
            b.notes = (Note("shell.coproc", self.span(start, pos)),)
            name = _COPROC_NAME.match(self.text, pos)
            return name.end() if name else pos
        elif b.state != _START:
            if value == "time" and b.state == _PIPE:
                return self._plain(b, value, start, pos)
            raise self.refuse("unparsed.syntax", start, pos, f"`{value}` where none can stand")
        elif value == "!":
            if b.out and b.out[-1] == "!":
                b.out.pop()
            else:
                b.out.append("!")
        else:  # time
            options = _TIME_OPTIONS.match(self.text, pos)
            pos = options.end() if options else pos
            following = _BLANKS.match(self.text, pos)
            if self.text[following.end() if following else pos :][:1] in ("\n", ";", "&", "|", ")", ""):
                b.put("z", self._slot(b, start, role="nothing"))
                b.state = _AFTER
        return pos

    def _plain(self, b: _Build, value: str, start: int, pos: int) -> int:
        """A reserved word that is an ordinary one in its place."""
        slot = self._begin(b, start)
        b.put("w", slot)
        slot.words.append(Word(self.span(start, pos), (Part(_LITERAL, value),), (value,)))
        slot.end = pos
        return pos

    def _closer(self, b: _Build, value: str, start: int) -> None:
        """A reserved word that ends a part of a compound command."""
        top = b.stack[-1] if b.stack else None
        kind = top[0] if top else ""
        if b.state not in (_START, _AFTER) or top is None:
            raise self.refuse("unparsed.syntax", start, start + len(value), f"`{value}` where none can stand")
        if value == "esac":
            if kind != "case":
                raise self.refuse("unparsed.syntax", start, start + 4, "`esac` without `case`")
            self._end_clause(b, start)
            b.out.append("}")
            self._close(b, "case", start)
            return
        if b.state == _AFTER:
            b.out.append(";")
        if value in ("then", "else", "elif", "fi") and kind == "if":
            if value == "elif":
                b.out.append("else if")
                top[1] = int(top[1]) + 1
                self.deeper(start)
            elif value == "fi":
                extra = int(top[1])
                b.out.append("fi" + " ; fi" * extra)
                self.budget.depth -= extra
                self._close(b, "if", start)
                return
            else:
                b.out.append(value)
        elif value == "do" and kind == "loop":
            b.out.append("do")
        elif value == "done" and kind == "loop":
            b.out.append("done")
            self._close(b, "loop", start)
            return
        elif value == "}" and kind in ("{", "loop{"):
            b.out.append("}" if kind == "{" else "done")
            self._close(b, str(kind), start)
            return
        else:
            raise self.refuse("unparsed.syntax", start, start + len(value), f"`{value}` where none can stand")
        b.slot = None
        b.state = _START

    # --- headers of compound commands ----------------------------------------------------------------------------

    def _gap(self, pos: int) -> int:
        """Skip blanks, newlines and comments inside a header."""
        match = _GAP.match(self.text, pos)
        end = match.end() if match else pos
        if self._pending and "\n" in self.text[pos:end]:
            raise self.refuse("unparsed.heredoc", pos, end, "a newline inside a header before the body")
        return end

    def _one_word(self, pos: int, mode: Mode) -> tuple[tuple[Word, ...], int]:
        pieces, end = self.word(pos)
        if end == pos:
            raise self.refuse("unparsed.syntax", pos, pos + 1, "a word is missing")
        return finish(pieces, self.span(pos, end), self.take_extra(), mode), end

    def _for(self, b: _Build, keyword: str, start: int, pos: int) -> int:
        text = self.text
        blanks = _BLANKS.match(text, pos)
        here = blanks.end() if blanks else pos
        if keyword == "for" and text.startswith("((", here):
            arithmetic = self.arithmetic(here + 2)
            if arithmetic is None:
                raise self.refuse("unparsed.syntax", start, here + 2, "`for ((` is not closed")
            end, expression = arithmetic
            b.out.append("while")
            b.put("t", self._arithmetic_slot(b, start, end, expression))
            b.out.append(";")
            self._open(b, "loop", start, 1)
            semicolon = _SEMICOLON.match(text, end)
            return semicolon.end() if semicolon else end
        name = _IDENTIFIER.match(text, here)
        if name is None:
            raise self.refuse("unparsed.syntax", start, here + 1, f"`{keyword}` needs a name")
        names = self._slot(b, here, CommandKind.WORDS, "name")
        names.name = name.group(1)
        words = self._slot(b, here, CommandKind.WORDS, keyword)
        pos = name.end()
        semicolon = _SEMICOLON.match(text, pos)
        if semicolon is not None:
            pos = semicolon.end()
            words.words = [_all_arguments(self.span(here, name.end()))]
        else:
            after = self._gap(pos)
            inside = _IN_WORD.match(text, after)
            if inside is None:
                pos = after
                words.words = [_all_arguments(self.span(here, name.end()))]
            else:
                pos = self._for_list(words, inside.end())
        words.frames = self._take_found()
        words.end = pos
        b.out.append("for")
        b.put("n", names)
        b.out.append("in")
        b.put("l", words)
        b.out.append(";")
        self._open(b, "loop", start, 1)
        return pos

    def _for_list(self, slot: Slot, pos: int) -> int:
        text = self.text
        slot.start = pos
        while True:
            blanks = _BLANKS.match(text, pos)
            pos = blanks.end() if blanks else pos
            if text.startswith("#", pos):
                newline = text.find("\n", pos)
                pos = len(text) if newline < 0 else newline
            char = text[pos : pos + 1]
            if char == ";":
                return pos + 1
            if char == "\n":
                return pos if self._pending else pos + 1
            words, pos = self._one_word(pos, Mode.ARGUMENT)
            slot.words.extend(words)

    def _case(self, b: _Build, start: int, pos: int) -> int:
        blanks = _BLANKS.match(self.text, pos)
        pos = blanks.end() if blanks else pos
        slot = self._slot(b, pos, CommandKind.WORDS)
        words, pos = self._one_word(pos, Mode.TILDE)
        slot.words.extend(words)
        slot.end = pos
        slot.frames = self._take_found()
        inside = _IN_WORD.match(self.text, self._gap(pos))
        if inside is None:
            raise self.refuse("unparsed.syntax", start, pos, "`case` without `in`")
        b.out.append("{")
        b.put("c", slot)
        b.out.append(";")
        self._open(b, "case", start)
        return self._patterns(b, inside.end())

    def _patterns(self, b: _Build, pos: int) -> int:
        """The patterns of the next clause, or `esac`."""
        text = self.text
        pos = self._gap(pos)
        last = _ESAC.match(text, pos)
        if last is not None:
            b.out.append("}")
            self._close(b, "case", pos)
            return last.end()
        slot = self._slot(b, pos, CommandKind.WORDS)
        if text.startswith("(", pos):
            pos += 1
        while True:
            blanks = _BLANKS.match(text, pos)
            words, pos = self._one_word(blanks.end() if blanks else pos, Mode.PATTERN)
            slot.words.extend(words)
            blanks = _BLANKS.match(text, pos)
            pos = blanks.end() if blanks else pos
            char = text[pos : pos + 1]
            pos += 1
            if char == ")":
                break
            if char != "|":
                raise self.refuse("unparsed.syntax", slot.start, pos, "a pattern needs `)`")
        slot.frames = self._take_found()
        slot.end = pos - 1
        b.out.append("if")
        b.put("p", slot)
        b.out.append("; then")
        b.stack[-1][1] = len(b.out)
        b.slot = None
        b.state = _START
        return pos

    def _end_clause(self, b: _Build, pos: int) -> None:
        if len(b.out) == b.stack[-1][1]:
            b.put("z", self._slot(b, pos, role="nothing"))
            b.out.append(";")
        elif b.state in (_IN, _AFTER):
            b.out.append(";")
        b.out.append("fi ;")
        b.slot = None
        b.state = _START

    def _function(self, b: _Build, start: int, pos: int) -> int:
        blanks = _BLANKS.match(self.text, pos)
        begin = blanks.end() if blanks else pos
        words, pos = self._one_word(begin, Mode.NONE)
        slot = self._slot(b, begin, role="function")
        slot.words.extend(words)
        slot.end = pos
        slot.count = 1
        if self.found or not self._is_function_name(slot):
            raise self.refuse("unparsed.syntax", begin, pos, "a function's name must be a plain word")
        slot.count = 0
        slot.name = words[0].values[0]
        b.put("f", slot)
        b.out.append("( )")
        b.slot = None
        b.state = _BODY
        empty = _EMPTY_PARENTHESES.match(self.text, pos)
        return empty.end() if empty else pos

    def _test(self, b: _Build, start: int, pos: int) -> int:
        """`[[ … ]]` from behind its opening."""
        text = self.text
        slot = self._slot(b, start, CommandKind.TEST)
        slot.words.append(Word(self.span(start, pos), (Part(_LITERAL, "[["),), ("[[",)))
        depth = 0
        while True:
            pos = self._gap(pos)
            match = _TEST_OPERATOR.match(text, pos)
            if match is not None:
                value = match.group()
                depth += (value == "(") - (value == ")")
                if depth < 0:
                    raise self.refuse("unparsed.syntax", pos, pos + 1)
                slot.words.append(Word(self.span(pos, match.end()), (Part(_LITERAL, value),), (value,)))
                pos = match.end()
                if value in ("==", "=", "!=", "=~"):
                    begin = self._gap(pos)
                    pieces, pos = self.regex(begin)
                    if pos == begin:
                        raise self.refuse("unparsed.syntax", begin, begin + 1, "a pattern is missing")
                    slot.words.extend(finish(pieces, self.span(begin, pos), self.take_extra(), Mode.PATTERN))
                elif value == "]]":
                    break
                continue
            words, pos = self._one_word(pos, Mode.TILDE)
            slot.words.extend(words)
        slot.frames = self._take_found()
        slot.end = pos
        self._lifted(b, "t", slot)
        return pos


# bash 5.2 reads a substitution, prints the commands again and reads that. Behind a here-document its printer drops `;`, so
# that `$(cat <<E … E a; b)` runs `a b`; and it names a coprocess that had no name.
_REPRINTED = "what bash runs behind a here-document in a substitution depends on its version"
_WORD_ENDS = ("", " ", "\t", "\n", ";", "&", "|", ")", "<", ">")
_OPERATOR_PREFIXES = frozenset(
    [";;&", ";&", ";;", "&&", "&>", "&>>", "||", "|&", "<<", "<<<", "<<-", "<&", "<>", ">>", ">&", ">|", "((", "<(", ">("]
)
_SEMICOLON = re.compile(r"[ \t]*;(?![;&])")
_IN_WORD = re.compile(r"in" + _END)
_ESAC = re.compile(r"esac" + _END)
_TEST_OPERATOR = re.compile(r"(?:\]\]|==|=~|!=|=|!)" + _END + r"|&&|\|\||[()]|[<>](?!\()")


def _all_arguments(span: Span) -> Word:
    """The list of `for name; do`: the positional parameters."""
    flags = frozenset((WordFlag.VARIABLE, WordFlag.SPLITS))
    return Word(span, (Part(PartKind.VARIABLE, "@", True),), (), flags)


def _odd_backslashes(text: str, begin: int, newline: int) -> bool:
    """Whether an odd number of backslashes stands before the newline at `newline`, not before `begin`."""
    count = 0
    while newline - count - 1 >= begin and text[newline - count - 1] == "\\":
        count += 1
    return count % 2 == 1
