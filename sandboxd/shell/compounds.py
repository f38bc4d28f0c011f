# SPDX-License-Identifier: GPL-3.0-or-later
"""Reserved words and compound commands: their headers, and the shapes they are rewritten into.

To add a construct: recognise its first word in `Compounds.reserved`, read its header, and write a shape that has the same
commands under the same conditions.
"""

from __future__ import annotations

from sandboxd.model.shell import CommandKind, Note, Part, PartKind, Span, Word, WordFlag
from sandboxd.shell import tokens
from sandboxd.shell.frames import AFTER, BODY, INSIDE, PIPE, START, Build, Slot
from sandboxd.shell.redirects import Redirects
from sandboxd.shell.words import Mode, finish

_LITERAL = PartKind.LITERAL


class Compounds(Redirects):
    """Reads everything that begins with a reserved word."""

    def open(self, b: Build, kind: str, pos: int, number: int = 0) -> None:
        self.deeper(pos)
        b.stack.append([kind, number])
        b.slot = None
        b.state = START

    def close(self, b: Build, kind: str, pos: int) -> None:
        if not b.stack or b.stack[-1][0] != kind:
            raise self.refuse("unparsed.syntax", pos, pos + 1, f"nothing to close with this `{kind}`")
        b.stack.pop()
        self.budget.depth -= 1
        b.slot = None
        b.state = AFTER

    def arithmetic_slot(self, b: Build, start: int, end: int, expression: str) -> Slot:
        slot = self.slot(b, start, CommandKind.ARITHMETIC)
        span = self.span(start, end)
        flags = self.take_extra()
        if flags:
            word = Word(span, (Part(PartKind.ARITHMETIC, expression),), (), flags | {WordFlag.ARITHMETIC})
        else:
            word = Word(span, (Part(_LITERAL, expression, True),), (expression,))
        slot.words = [Word(span, (Part(_LITERAL, "(("),), ("((",)), word]
        slot.frames = self.take_found()
        slot.end = end
        return slot

    def lifted(self, b: Build, prefix: str, slot: Slot) -> None:
        """A construct that the grammar sees as a group around one word."""
        b.out.append("{")
        b.put(prefix, slot)
        b.out.append("; }")
        b.slot = None
        b.state = AFTER

    def is_function_name(self, slot: Slot) -> bool:
        if len(slot.words) != 1 or slot.assignments or slot.redirects or slot.count != 1:
            return False
        parts = slot.words[0].parts
        return len(parts) == 1 and parts[0].kind is _LITERAL and not parts[0].quoted and bool(slot.words[0].values)

    def reserved(self, b: Build, value: str, start: int, pos: int) -> int:
        """A reserved word where bash recognises it; returns the offset behind what it takes."""
        if b.state == AFTER and value not in tokens.CLOSERS:
            raise self.refuse("unparsed.syntax", start, pos, f"`{value}` behind a command")
        if value in tokens.CLOSERS:
            self._closer(b, value, start)
        elif value == "if" or value == "while" or value == "until":
            b.out.append(value)
            self.open(b, "if" if value == "if" else "loop", start)
        elif value == "{":
            if b.stack and b.stack[-1][0] == "loop" and b.out[-1] == ";" and b.stack[-1][1]:
                b.out.append("do")
                b.stack[-1][0] = "loop{"
                b.state = START
            else:
                b.out.append("{")
                self.open(b, "{", start)
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
            b.state = PIPE  # as behind `|`, `time` is no keyword here
            b.notes = (Note("shell.coproc", self.span(start, pos)),)
            name = tokens.COPROC_NAME.match(self.text, pos)
            return name.end() if name else pos
        elif b.state != START:
            if value == "time" and b.state == PIPE:
                return self._plain(b, value, start, pos)
            raise self.refuse("unparsed.syntax", start, pos, f"`{value}` where none can stand")
        elif value == "!":
            if b.out and b.out[-1] == "!":
                b.out.pop()
            else:
                b.out.append("!")
        else:  # time
            options = tokens.TIME_OPTIONS.match(self.text, pos)
            pos = options.end() if options else pos
            following = tokens.BLANKS.match(self.text, pos)
            if self.text[following.end() if following else pos :][:1] in ("\n", ";", "&", "|", ")", ""):
                b.put("z", self.slot(b, start, role="nothing"))
                b.state = AFTER
        return pos

    def _plain(self, b: Build, value: str, start: int, pos: int) -> int:
        """A reserved word that is an ordinary one in its place."""
        slot = self.begin(b, start)
        b.put("w", slot)
        slot.words.append(Word(self.span(start, pos), (Part(_LITERAL, value),), (value,)))
        slot.end = pos
        return pos

    def _closer(self, b: Build, value: str, start: int) -> None:
        """A reserved word that ends a part of a compound command."""
        top = b.stack[-1] if b.stack else None
        kind = top[0] if top else ""
        if b.state not in (START, AFTER) or top is None:
            raise self.refuse("unparsed.syntax", start, start + len(value), f"`{value}` where none can stand")
        if value == "esac":
            if kind != "case":
                raise self.refuse("unparsed.syntax", start, start + 4, "`esac` without `case`")
            self.end_clause(b, start)
            b.out.append("}")
            self.close(b, "case", start)
            return
        if b.state == AFTER:
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
                self.close(b, "if", start)
                return
            else:
                b.out.append(value)
        elif value == "do" and kind == "loop":
            b.out.append("do")
        elif value == "done" and kind == "loop":
            b.out.append("done")
            self.close(b, "loop", start)
            return
        elif value == "}" and kind in ("{", "loop{"):
            b.out.append("}" if kind == "{" else "done")
            self.close(b, str(kind), start)
            return
        else:
            raise self.refuse("unparsed.syntax", start, start + len(value), f"`{value}` where none can stand")
        b.slot = None
        b.state = START

    def _gap(self, pos: int) -> int:
        """Skip blanks, newlines and comments inside a header."""
        match = tokens.GAP.match(self.text, pos)
        end = match.end() if match else pos
        if self.pending and "\n" in self.text[pos:end]:
            raise self.refuse("unparsed.heredoc", pos, end, "a newline inside a header before the body")
        return end

    def _one_word(self, pos: int, mode: Mode) -> tuple[tuple[Word, ...], int]:
        pieces, end = self.word(pos)
        if end == pos:
            raise self.refuse("unparsed.syntax", pos, pos + 1, "a word is missing")
        self.check_braces(pos, end)
        return finish(pieces, self.span(pos, end), self.take_extra(), mode), end

    def _for(self, b: Build, keyword: str, start: int, pos: int) -> int:
        text = self.text
        blanks = tokens.BLANKS.match(text, pos)
        here = blanks.end() if blanks else pos
        if keyword == "for" and text.startswith("((", here):
            arithmetic = self.arithmetic(here + 2)
            if arithmetic is None:
                raise self.refuse("unparsed.syntax", start, here + 2, "`for ((` is not closed")
            end, expression = arithmetic
            b.out.append("while")
            b.put("t", self.arithmetic_slot(b, start, end, expression))
            b.out.append(";")
            self.open(b, "loop", start, 1)
            semicolon = tokens.SEMICOLON.match(text, end)
            return semicolon.end() if semicolon else end
        name = tokens.IDENTIFIER.match(text, here)
        if name is None:
            raise self.refuse("unparsed.syntax", start, here + 1, f"`{keyword}` needs a name")
        names = self.slot(b, here, CommandKind.WORDS, "name")
        names.name = name.group(1)
        words = self.slot(b, here, CommandKind.WORDS, keyword)
        pos = name.end()
        semicolon = tokens.SEMICOLON.match(text, pos)
        if semicolon is not None:
            pos = semicolon.end()
            words.words = [_all_arguments(self.span(here, name.end()))]
        else:
            after = self._gap(pos)
            inside = tokens.IN_WORD.match(text, after)
            if inside is None:
                pos = after
                words.words = [_all_arguments(self.span(here, name.end()))]
            else:
                pos = self._for_list(words, inside.end())
        words.frames = self.take_found()
        words.end = pos
        b.out.append("for")
        b.put("n", names)
        b.out.append("in")
        b.put("l", words)
        b.out.append(";")
        self.open(b, "loop", start, 1)
        return pos

    def _for_list(self, slot: Slot, pos: int) -> int:
        text = self.text
        slot.start = pos
        while True:
            blanks = tokens.BLANKS.match(text, pos)
            pos = blanks.end() if blanks else pos
            if text.startswith("#", pos):
                newline = text.find("\n", pos)
                pos = len(text) if newline < 0 else newline
            char = text[pos : pos + 1]
            if char == ";":
                return pos + 1
            if char == "\n":
                return pos if self.pending else pos + 1
            words, pos = self._one_word(pos, Mode.ARGUMENT)
            slot.words.extend(words)

    def _case(self, b: Build, start: int, pos: int) -> int:
        blanks = tokens.BLANKS.match(self.text, pos)
        pos = blanks.end() if blanks else pos
        slot = self.slot(b, pos, CommandKind.WORDS)
        words, pos = self._one_word(pos, Mode.TILDE)
        slot.words.extend(words)
        slot.end = pos
        slot.frames = self.take_found()
        inside = tokens.IN_WORD.match(self.text, self._gap(pos))
        if inside is None:
            raise self.refuse("unparsed.syntax", start, pos, "`case` without `in`")
        b.out.append("{")
        b.put("c", slot)
        b.out.append(";")
        self.open(b, "case", start)
        return self.patterns(b, inside.end())

    def patterns(self, b: Build, pos: int) -> int:
        """The patterns of the next clause, or `esac`."""
        text = self.text
        pos = self._gap(pos)
        last = tokens.ESAC.match(text, pos)
        if last is not None:
            b.out.append("}")
            self.close(b, "case", pos)
            return last.end()
        slot = self.slot(b, pos, CommandKind.WORDS)
        if text.startswith("(", pos):
            pos += 1
        while True:
            blanks = tokens.BLANKS.match(text, pos)
            words, pos = self._one_word(blanks.end() if blanks else pos, Mode.PATTERN)
            slot.words.extend(words)
            blanks = tokens.BLANKS.match(text, pos)
            pos = blanks.end() if blanks else pos
            char = text[pos : pos + 1]
            pos += 1
            if char == ")":
                break
            if char != "|":
                raise self.refuse("unparsed.syntax", slot.start, pos, "a pattern needs `)`")
        slot.frames = self.take_found()
        slot.end = pos - 1
        b.out.append("if")
        b.put("p", slot)
        b.out.append("; then")
        b.stack[-1][1] = len(b.out)
        b.slot = None
        b.state = START
        return pos

    def end_clause(self, b: Build, pos: int) -> None:
        if len(b.out) == b.stack[-1][1]:
            b.put("z", self.slot(b, pos, role="nothing"))
            b.out.append(";")
        elif b.state in (INSIDE, AFTER):
            b.out.append(";")
        b.out.append("fi ;")
        b.slot = None
        b.state = START

    def _function(self, b: Build, start: int, pos: int) -> int:
        blanks = tokens.BLANKS.match(self.text, pos)
        begin = blanks.end() if blanks else pos
        words, pos = self._one_word(begin, Mode.NONE)
        slot = self.slot(b, begin, role="function")
        slot.words.extend(words)
        slot.end = pos
        slot.count = 1
        if self.found or not self.is_function_name(slot):
            raise self.refuse("unparsed.syntax", begin, pos, "a function's name must be a plain word")
        slot.count = 0
        slot.name = words[0].values[0]
        b.put("f", slot)
        b.out.append("( )")
        b.slot = None
        b.state = BODY
        empty = tokens.EMPTY_PARENTHESES.match(self.text, pos)
        return empty.end() if empty else pos

    def _test(self, b: Build, start: int, pos: int) -> int:
        """`[[ … ]]` from behind its opening."""
        text = self.text
        slot = self.slot(b, start, CommandKind.TEST)
        slot.words.append(Word(self.span(start, pos), (Part(_LITERAL, "[["),), ("[[",)))
        depth = 0
        while True:
            pos = self._gap(pos)
            match = tokens.TEST_OPERATOR.match(text, pos)
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
        slot.frames = self.take_found()
        slot.end = pos
        self.lifted(b, "t", slot)
        return pos


def _all_arguments(span: Span) -> Word:
    """The list of `for name; do`: the positional parameters."""
    flags = frozenset((WordFlag.VARIABLE, WordFlag.SPLITS))
    return Word(span, (Part(PartKind.VARIABLE, "@", True),), (), flags)
