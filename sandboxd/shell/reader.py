# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands: from text to frames, the form in which the grammar and the walk get it.

The reader finds the tokens, tells reserved words from plain ones, and writes for each top-level statement a *shape*: the
text with every word replaced by a placeholder (`w0`, `r1` …), which the grammar then parses. A run of plain words of one
command is one placeholder; assignments, redirect targets and `for` lists have their own. What the grammar cannot read is
rewritten into what it can: `case` into a group of `if`s, `select` into `for`, an arithmetic `for` into `while`, `elif` into
a nested `if`, newlines into `;`; `time` and `coproc` are taken off.
"""

from __future__ import annotations

import re

from sandboxd.model.shell import Assignment, Note, Part, PartKind, Span, Word, WordFlag
from sandboxd.shell import tokens
from sandboxd.shell.compounds import Compounds
from sandboxd.shell.frames import AFTER, BODY, INSIDE, PIPE, START, Build, Frame, Slot
from sandboxd.shell.redirects import REPRINTED
from sandboxd.shell.tokens import EOF, NEWLINE, OPERATOR, OTHER, PLAIN, QUOTED, SOLO, TOKEN
from sandboxd.shell.words import Mode, finish

_DECLARING = frozenset(("declare", "typeset", "local", "readonly", "export", "alias"))
_LITERAL = PartKind.LITERAL


class Reader(Compounds):
    """Reads the commands of one text; see `Lexer` for the parameters."""

    def nested(self, text: str, base: int, fixed: Span | None) -> Reader:
        return Reader(text, self.budget, base, fixed)

    def frame(self, pos: int, closer: str) -> tuple[Frame, int]:
        self.deeper(pos)
        saved = self.found, self.extra, self.pending, self.nested_quotes
        self.found, self.extra, self.pending, self.nested_quotes = [], set(), [], False
        b = Build(closer)
        pos = self._read(b, pos, bool(saved[2]))
        if self.pending:
            raise self.refuse("unparsed.heredoc", pos, pos, "no body follows")
        if b.stack:
            raise self.refuse("unparsed.syntax", pos, pos, f"`{b.stack[-1][0]}` is not closed")
        b.cut()
        self.found, self.extra, self.pending, self.nested_quotes = saved
        self.budget.depth -= 1
        return b.frame, pos

    def _read(self, b: Build, pos: int, awaited: bool) -> int:
        """Read until the frame's closer; returns the offset behind it. `awaited`: an outer here-document has no body yet."""
        text = self.text
        token = TOKEN.match
        simple = self.fixed is None
        base = self.base
        while True:
            match = token(text, pos)
            assert match is not None  # the last alternative is empty
            kind = match.lastindex or OTHER
            start = match.start(kind)
            pos = match.end()
            if kind in (PLAIN, SOLO):
                value = match.group(kind)
                if b.state != INSIDE:
                    if value in tokens.RESERVED:
                        pos = self.reserved(b, value, start, pos)
                        continue
                    if text[pos : pos + 1] in ("<", ">") and value.isascii() and value.isdigit():
                        pos = self.redirect(b, start, pos, self._number(value, start, pos))
                        continue
                    slot = self.begin(b, start)
                else:
                    assert b.slot is not None
                    slot = b.slot
                    if slot.notes and len(slot.words) == 1 and value in tokens.RESERVED:
                        # bash takes the word behind `coproc` for a name, so the next one may be reserved.
                        raise self.refuse("unparsed.ambiguous", start, pos, f"`{value}` behind `coproc` and a word")
                    if slot.redirects and not slot.words and value in tokens.RESERVED:
                        # In a substitution bash prints the redirection last and reads that: the word is then reserved.
                        raise self.refuse("unparsed.ambiguous", start, pos, f"`{value}` behind a redirection")
                    if text[pos : pos + 1] in ("<", ">") and value.isascii() and value.isdigit():
                        pos = self.redirect(b, start, pos, self._number(value, start, pos))
                        continue
                if "=" in value and (not slot.words or text[pos : pos + 1] == "("):
                    pos = self._other(b, slot, start)
                    continue
                if not slot.words:
                    b.put("w", slot)
                span = Span(start + base, pos + base) if simple else self.span(start, pos)
                slot.words.append(Word(span, (Part(_LITERAL, value),), (value,)))
                slot.end = pos
            elif kind == QUOTED:
                slot = b.slot if b.state == INSIDE and b.slot is not None else self.begin(b, start)
                if not slot.words:
                    b.put("w", slot)
                value = text[start + 1 : pos - 1]
                span = Span(start + base, pos + base) if simple else self.span(start, pos)
                slot.words.append(Word(span, (Part(_LITERAL, value, True),), (value,)))
                slot.end = pos
            elif kind == OTHER:
                descriptor = tokens.DESCRIPTOR.match(text, start)
                if descriptor is not None:
                    pos = self.redirect(b, start, descriptor.end(), descriptor.group(1))
                    continue
                slot = b.slot if b.state == INSIDE and b.slot is not None else self.begin(b, start)
                pos = self._other(b, slot, start)
            elif kind == OPERATOR:
                operator = match.group(OPERATOR)
                if text.startswith("\\\n", pos):
                    self.whole(operator, start, pos)
                if operator in tokens.REDIRECTS:
                    pos = self.redirect(b, start, start, None)
                elif operator == ")" and not b.stack:
                    if b.closer != ")":
                        raise self.refuse("unparsed.syntax", start, pos, "`)` without `(`")
                    return pos
                else:
                    pos = self._operator(b, operator, start, pos)
            elif kind == NEWLINE:
                b.terminate()
                if awaited:
                    raise self.refuse("unparsed.heredoc", start, pos, "a newline before the body of an outer here-document")
                if self.pending:
                    pos = self.bodies(pos, b.closer)
                    b.documented = b.closer == ")"
            elif kind == EOF:
                if b.closer:
                    raise self.refuse("unparsed.quote", pos, pos, f"`{b.closer}` is missing")
                return pos

    def _other(self, b: Build, slot: Slot, start: int) -> int:
        """A word that needs a closer look: quotes, expansions, or the form of an assignment."""
        text = self.text
        if not slot.words:
            assignment = tokens.ASSIGNMENT.match(text, start)
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
            head = tokens.ASSIGNMENT.match(text, start)
            if head is not None and (head.group(2) is not None or text.find("=", start, end) > 0):
                mode = Mode.DECLARED
        if text.startswith("(", end) and isinstance(pieces[-1] if pieces else None, str) and text[end - 1] == "=":
            if not declared or mode is not Mode.DECLARED:
                raise self.refuse("unparsed.syntax", start, end + 1, "an array where no assignment can stand")
            return self._declared_array(b, slot, start, end)
        self.check_braces(start, end)
        if not slot.words:
            b.put("w", slot)
        slot.words.extend(finish(pieces, self.span(start, end), self.take_extra(), mode))
        if self.found:
            slot.frames.extend(self.take_found())
        slot.end = end
        return end

    def _continued(self, slot: Slot, start: int, end: int) -> None:
        """A word broken by backslash-newline is read as if whole; refuse where that makes it another kind of token."""
        raw = self.text[start:end]
        joined = raw.replace("\\\n", "")
        head, whole = tokens.ASSIGNMENT.match(raw), tokens.ASSIGNMENT.match(joined)
        if (not slot.words and joined in tokens.RESERVED) or (head is None) != (whole is None):
            raise self.refuse("unparsed.ambiguous", start, end, "a reserved word or name is continued on the next line")
        if self.text[end : end + 1] in ("<", ">") and (joined.isdigit() or tokens.DESCRIPTOR.match(joined + ">")):
            raise self.refuse("unparsed.ambiguous", start, end, "a descriptor is continued on the next line")

    def _assignment(self, b: Build, slot: Slot, match: re.Match[str]) -> int:
        """An assignment before the command's name; 0 when it is none after all."""
        text = self.text
        start = match.start()
        name = match.group(1)
        pos = match.end()
        subscript = None
        append = match.group(2) == "+"
        if match.group(2) is None:
            subscript, pos = self.subscript(pos - 1)
            sign = tokens.APPEND_OR_SET.match(text, pos)
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
            slot.assignment_frames.append((len(slot.assignments) - 1, self.take_found()))
        if len(slot.assignments) == 1:
            b.put("a", slot)
        slot.end = pos
        return pos

    def _value(self, pos: int) -> tuple[Word, int]:
        pieces, end = self.word(pos)
        self.nested_quotes = False  # no braces are expanded here
        return finish(pieces, self.span(pos, end), self.take_extra(), Mode.VALUE)[0], end

    def _array(self, pos: int) -> tuple[tuple[Word, ...], int]:
        """`( … )` of an array assignment, from its parenthesis."""
        text = self.text
        opening = pos
        pos += 1
        words: list[Word] = []
        while True:
            gap = tokens.GAP.match(text, pos)
            pos = gap.end() if gap else pos
            if text.startswith(")", pos):
                pos += 1
                if text[pos : pos + 1] not in tokens.WORD_ENDS:
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
                if tokens.APPEND_OR_SET.match(text, after) is None:
                    raise self.refuse("unparsed.ambiguous", pos, after, "a bracket at the start of an array element")
                if not subscript.isdigit():
                    self.extra.add(WordFlag.EVALUATES)
            pieces, pos = self.word(pos)
            if pos == start:
                raise self.refuse("unparsed.syntax", pos, pos + 1, "an operator inside an array")
            self.check_braces(start, pos)
            words.extend(finish(pieces, self.span(start, pos), self.take_extra(), Mode.ARGUMENT))

    def _declared_array(self, b: Build, slot: Slot, start: int, pos: int) -> int:
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
        slot.frames.extend(self.take_found())
        slot.end = end
        return end

    def _operator(self, b: Build, operator: str, start: int, pos: int) -> int:
        state = b.state
        ready = state in (INSIDE, AFTER)
        if operator == ";" or operator == "&":
            if not ready:
                raise self.refuse("unparsed.syntax", start, pos, f"`{operator}` where a command is expected")
            if b.documented:
                raise self.refuse("unparsed.heredoc", start, pos, REPRINTED)
            if operator == "&":
                b.out.append("&")
                b.slot = None
                b.state = START
                if not b.stack:
                    b.cut()
            else:
                b.terminate()
        elif operator in ("&&", "||", "|", "|&"):
            if not ready:
                raise self.refuse("unparsed.syntax", start, pos, f"`{operator}` where a command is expected")
            b.out.append(operator)
            b.slot = None
            b.state = PIPE if operator[-1] in "|&" and operator not in ("&&", "||") else START
        elif operator == "(":
            return self._opening(b, start, pos)
        elif operator == ")":
            number = int(b.stack[-1][1]) if b.stack else 0
            self.close(b, "(", start)
            if number:
                self.check_read_twice(number - 1, pos)
            b.out.append(")")
        elif b.stack and b.stack[-1][0] == "case" and operator in (";;", ";&", ";;&"):
            self.end_clause(b, start)
            return self.patterns(b, pos)
        else:
            raise self.refuse("unparsed.syntax", start, pos, f"`{operator}` where none can stand")
        return pos

    def _opening(self, b: Build, start: int, pos: int) -> int:
        """`(`: a subshell, an arithmetic command, or the parentheses of a function definition."""
        text = self.text
        if b.state == INSIDE:
            slot = b.slot
            assert slot is not None
            closing = tokens.BLANKS.match(text, pos)
            after = closing.end() if closing else pos
            if not self.is_function_name(slot) or not text.startswith(")", after):
                raise self.refuse("unparsed.syntax", start, pos, "`(` inside a command")
            slot.role = "function"
            slot.name = slot.words[0].values[0]
            b.out[-1] = "f" + b.out[-1][1:] + " ( )"
            b.slot = None
            b.state = BODY
            return after + 1
        if b.state == AFTER:
            raise self.refuse("unparsed.syntax", start, pos, "`(` behind a command")
        if text.startswith("(", pos) and start not in self._not_arithmetic:
            arithmetic = self.arithmetic(pos + 1)
            if arithmetic is not None:
                end, expression = arithmetic
                self.lifted(b, "t", self.arithmetic_slot(b, start, end, expression))
                return end
            self._not_arithmetic.add(start)
            b.out.append("(")
            self.open(b, "(", start, start + 1)
            return pos
        b.out.append("(")
        self.open(b, "(", start)
        return pos
