# SPDX-License-Identifier: GPL-3.0-or-later
"""Redirections and here-documents."""

from __future__ import annotations

import re

from sandboxd.model.shell import CommandKind, Note, Part, PartKind, Redirect, RedirectOp, Span, Word, WordFlag
from sandboxd.shell import tokens
from sandboxd.shell.frames import AFTER, INSIDE, Build, Frame, Heredoc, Slot
from sandboxd.shell.lexer import MAX_COMMANDS, Budget, Lexer
from sandboxd.shell.words import Mode, Piece, finish

_LITERAL = PartKind.LITERAL
_EXPANDS = re.compile(r"[^A-Za-z0-9_./:@%+,=^ -]")

# bash 5.2 reads a substitution, prints the commands again and reads that. Behind a here-document its printer drops `;`, so
# that `$(cat <<E … E a; b)` runs `a b`; and it names a coprocess that had no name.
REPRINTED = "what bash runs behind a here-document in a substitution depends on its version"


class Redirects(Lexer):
    """A lexer that knows slots, redirections and the here-documents that await their bodies."""

    def __init__(self, text: str, budget: Budget, base: int = 0, fixed: Span | None = None) -> None:
        super().__init__(text, budget, base, fixed)
        self.pending: list[Heredoc] = []

    def whole(self, operator: str, start: int, pos: int) -> None:
        """Refuse an operator that backslash-newline joins to what makes it a longer one."""
        after = pos
        while self.text.startswith("\\\n", after):
            after += 2
        if operator + self.text[after : after + 1] in tokens.LONGER:
            raise self.refuse("unparsed.ambiguous", start, after + 1, "an operator is continued on the next line")

    def take_found(self) -> list[Frame]:
        found = self.found
        if not found:
            return []  # not the one that the next command's are put in
        self.found = []
        return found

    def begin(self, b: Build, start: int) -> Slot:
        if b.state >= AFTER:
            raise self.refuse("unparsed.syntax", start, start + 1, "a word where none can stand")
        slot = self.slot(b, start)
        b.slot = slot
        b.state = INSIDE
        return slot

    def slot(self, b: Build, start: int, kind: CommandKind = CommandKind.SIMPLE, role: str = "") -> Slot:
        self.budget.commands += 1
        if self.budget.commands > MAX_COMMANDS:
            raise self.refuse("unparsed.commands", start)
        if b.documented and b.stack:
            raise self.refuse("unparsed.heredoc", start, start + 1, REPRINTED)
        slot = Slot(start, kind, role)
        slot.base = self.base
        slot.fixed = self.fixed
        if b.notes:
            slot.notes, b.notes = b.notes, ()
        return slot

    def _number(self, value: str, start: int, end: int) -> int:
        if len(value) > 9:
            raise self.refuse("unparsed.ambiguous", start, end, "a descriptor number out of range")
        return int(value)

    def redirect(self, b: Build, start: int, pos: int, fd: int | str | None) -> int:
        """A redirection whose operator stands at `pos`."""
        text = self.text
        match = tokens.TOKEN.match(text, pos)
        assert match is not None
        if match.lastindex != tokens.OPERATOR or match.group(tokens.OPERATOR) not in tokens.REDIRECTS:
            raise self.refuse("unparsed.syntax", start, pos + 1)
        written = match.group(tokens.OPERATOR)
        pos = match.end()
        if text.startswith("\\\n", pos):
            self.whole(written, start, pos)
        op = tokens.REDIRECTS[written]
        if b.state == AFTER:
            slot = b.slot
            if slot is None:
                slot = b.slot = Slot(start, CommandKind.COMPOUND, "redirects")
        else:
            slot = b.slot if b.state == INSIDE and b.slot is not None else self.begin(b, start)
        pieces: list[Piece]
        blanks = tokens.BLANKS.match(text, pos)
        begin = blanks.end() if blanks else pos
        if op in (RedirectOp.DUP_OUT, RedirectOp.DUP_IN) and text.startswith("-", begin):
            pieces, end = ["-"], begin + 1  # a token of its own: in `>&-n`, n is an argument
        else:
            pieces, end = self.word(begin)
            self.check_braces(begin, end)
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
            self.pending.append(Heredoc(slot, len(slot.redirects), delimiter, is_quoted, written == "<<-", fd, span))
        else:
            if op is RedirectOp.DUP_OUT and fd in (None, 1):
                self._expanded_twice(pieces, start, end)
            mode = Mode.VALUE ^ Mode.COLON_TILDE if op is RedirectOp.HERESTRING else Mode.TARGET
            words = finish(pieces, self.span(begin, end), self.take_extra(), mode)
            target = words[0]
            if len(words) > 1:
                target = Word(target.span, target.parts, (), target.flags | {WordFlag.BRACE, WordFlag.SPLITS})
        slot.redirects.append(Redirect(op, target, span, fd))
        if self.found:
            slot.redirect_frames.extend(self.take_found())
        slot.end = max(slot.end, end)
        return end

    def _expanded_twice(self, pieces: list[Piece], start: int, end: int) -> None:
        """`>&word` is turned into `&>word` after its expansion, and that is expanded again: `>&'$(x)'` runs x."""
        for piece in pieces:
            if isinstance(piece, Part) and piece.kind is not _LITERAL:
                self.extra.add(WordFlag.EVALUATES)
            elif not isinstance(piece, str) and _EXPANDS.search(piece.text):
                raise self.refuse("unparsed.ambiguous", start, end, "the quoted target of `>&` is expanded again")

    def bodies(self, pos: int, closer: str) -> int:
        """Read the bodies of the pending here-documents, which begin at `pos`; returns the offset behind the last."""
        for document in self.pending:
            pos = self._document(document, pos, closer)
        self.pending = []
        return pos

    def _document(self, document: Heredoc, pos: int, closer: str) -> int:
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
                if closer or self.budget.depth > 1:
                    raise self.refuse("unparsed.heredoc", pos, None, f"`{document.delimiter}` is not found")
                # bash warns and takes all that is left.
                end = len(text)
                note = Note("shell.heredoc_unterminated", document.span, document.delimiter)
                document.slot.notes += (note,)
                break
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
            lexer = self.nested(body, pos + self.base, moved)
            target = lexer.body()
            document.slot.redirect_frames.extend(lexer.found)
        document.slot.redirects[document.index] = Redirect(RedirectOp.HEREDOC, target, document.span, document.fd)
        return min(match.end() + 1 if match else end, len(text))


def _odd_backslashes(text: str, begin: int, newline: int) -> bool:
    """Whether an odd number of backslashes stands before the newline at `newline`, not before `begin`."""
    count = 0
    while newline - count - 1 >= begin and text[newline - count - 1] == "\\":
        count += 1
    return count % 2 == 1
