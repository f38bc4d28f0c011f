# SPDX-License-Identifier: GPL-3.0-or-later
"""From the tree to ordered subcommands, carrying along what is certain: values, directory, pipe context.

Each node is walked with the state before it and gives two states: the one after success and the one after failure. None is
a path that never arrives (`exit`). A loop's body starts with everything forgotten that the body may change.
"""

from __future__ import annotations

import re

from sandboxd.model.shell import Assignment, CommandKind, Note, Redirect, RedirectOp, Span, Subcommand, Word, WordFlag
from sandboxd.shell import builtins, grammar
from sandboxd.shell.builtins import HANDLERS
from sandboxd.shell.changes import CHANGING, apply, changes, move, settled
from sandboxd.shell.frames import Frame, Slot
from sandboxd.shell.functions import START, Functions
from sandboxd.shell.grammar import FUNCTION, GROUP, IF, LIST, LOOP, PIPE, SIMPLE, SUBSHELL, GrammarError, Node
from sandboxd.shell.state import State, Values, join

States = tuple[State | None, State | None]

_EXIT_CODE = re.compile(r"[0-9]{1,3}\Z")
_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Context:
    """Where a node stands: what inherits from the constructs around it."""

    __slots__ = ("background", "depth", "function", "piped_in", "piped_out", "pipeline", "top")

    def __init__(self) -> None:
        self.depth = 0
        self.piped_in = False
        self.piped_out = False
        self.background = False
        self.pipeline = 0  # its number, 0 when it is none of several commands
        self.top = True  # runs in the shell itself, not in a subshell
        self.function = ""

    def inside(
        self,
        *,
        depth: int | None = None,
        piped_in: bool = False,
        piped_out: bool = False,
        background: bool = False,
        subshell: bool = False,
        function: str | None = None,
        pipeline: int = 0,
    ) -> Context:
        new = Context()
        new.depth = self.depth if depth is None else depth
        new.piped_in = self.piped_in or piped_in
        new.piped_out = self.piped_out or piped_out
        new.background = self.background or background
        new.pipeline = pipeline
        new.top = self.top and not subshell
        new.function = self.function if function is None else function
        return new


class Walker:
    """Walks the frames of one text. `out`, `functions` and `changes_cwd` are the result."""

    def __init__(self) -> None:
        self.out: list[Subcommand] = []
        self.changes_cwd = False
        self._pipelines = 0
        self._lost = State({}, None, None, splits=False, lost=True)
        self.functions = Functions(self._lost)

    def run(self, frame: Frame) -> None:
        self.functions.learn(frame)
        self._frame(frame, State({}, START), Context())
        for number, name in self.functions.bombs():
            command = self.out[number]
            self.out[number] = _with_notes(command, (*command.notes, Note("shell.fork_bomb", command.span, name)))

    # --- nodes ---------------------------------------------------------------------------------------------------

    def _frame(self, frame: Frame, state: State, context: Context) -> State | None:
        current: State | None = state.lose() if frame.uncertain else state
        operator = ""
        for shape, items in frame.statements:
            node = grammar.tree(shape)
            if current is None:
                current = self._lost
            if node[0] == SIMPLE and len(items) == 1:
                ok, failed = self._simple(node[1], items, current, context, operator)
            else:
                ok, failed = self._walk(node, items, current, context, operator)
            current = ok if ok is failed else join(failed, ok)
            operator = "&" if shape.endswith("&") else ";"
        return current

    def _nested(self, frames: list[Frame], state: State, context: Context) -> None:
        inner = context.inside(depth=context.depth + 1, subshell=True)
        inner.piped_in = context.piped_in
        inner.piped_out = True
        for frame in frames:
            self._frame(frame, state, inner)

    def _walk(self, node: Node, items: list[Slot], state: State, context: Context, operator: str) -> States:
        kind = node[0]
        if kind == SIMPLE:
            return self._simple(node[1], items, state, context, operator)
        if kind == LIST:
            return self._list(node[1], items, state, context, operator)
        if kind == PIPE:
            return self._pipe(node, items, state, context, operator)
        if kind == FUNCTION:
            self._definition(node, items, state, context)
            return state, state
        redirects = node[-1]
        if redirects:
            self._compound_redirects(redirects, items, state, context, operator)
        if kind == GROUP:
            return self._walk(node[1], items, state, context, operator)
        if kind == SUBSHELL:
            self._walk(node[1], items, state, context.inside(subshell=True), operator)
            return state, state
        if kind == IF:
            return self._if(node, items, state, context, operator)
        return self._loop(node, items, state, context, operator)

    def _list(self, parts: tuple[tuple[str, Node], ...], items: list[Slot], state: State, context: Context, op: str) -> States:
        ok: State | None = state
        failed: State | None = state
        if context.pipeline:
            context = context.inside()
        index = 0
        while index < len(parts):
            # One and-or list: up to the next `;` or `&`.
            end = index + 1
            while end < len(parts) and parts[end][0] in ("&&", "||"):
                end += 1
            beside = end < len(parts) and parts[end][0] == "&"
            before = join(failed, ok)
            if before is None:
                before = self._lost
            inner = context.inside(background=True, subshell=True) if beside else context
            ok, failed = self._walk(parts[index][1], items, before, inner, parts[index][0] if index else op)
            for operator, node in parts[index + 1 : end]:
                if operator == "&&":
                    ok, more = self._walk(node, items, ok if ok is not None else self._lost, inner, operator)
                    failed = join(failed, more)
                else:
                    more, failed = self._walk(node, items, failed if failed is not None else self._lost, inner, operator)
                    ok = join(ok, more)
            if beside:
                ok = failed = before
                if end == len(parts) - 1 and parts[end][1] == (LIST, ()):
                    break
            index = end
        return ok, failed

    def _pipe(self, node: Node, items: list[Slot], state: State, context: Context, operator: str) -> States:
        _, negated, nodes, operators = node
        if len(nodes) == 1:
            ok, failed = self._walk(nodes[0], items, state, context, operator)
            return (failed, ok) if negated else (ok, failed)
        self._pipelines += 1
        number = self._pipelines
        last = len(nodes) - 1
        for index, one in enumerate(nodes):
            inner = context.inside(piped_in=index > 0, piped_out=index < last, subshell=True, pipeline=number)
            self._walk(one, items, state, inner, operators[index - 1] if index else operator)
        return state, state

    def _if(self, node: Node, items: list[Slot], state: State, context: Context, operator: str) -> States:
        ok, failed = self._walk(node[1], items, state, context, operator)
        a, b = self._walk(node[2], items, ok if ok is not None else self._lost, context, ";")
        otherwise = failed if failed is not None else self._lost
        if node[3] is None:
            after = join(join(a, b), failed)
        else:
            c, d = self._walk(node[3], items, otherwise, context, ";")
            after = join(join(a, b), join(c, d))
        return after, after

    def _loop(self, node: Node, items: list[Slot], state: State, context: Context, operator: str) -> States:
        change = changes(node, items, self.functions.changes)
        entry = apply(change, state)
        if change.moves:
            entry = entry.at(None, None)
        if node[0] == LOOP:
            ok, _ = self._walk(node[1], items, entry, context, operator)
            self._walk(node[2], items, ok if ok is not None else self._lost, context, ";")
            return entry, entry
        name = items[node[1]].name
        slot = items[node[2]]
        self._check((node[1],), items)
        self._check((node[2],), items)
        state = settled(slot.words, state)
        self._nested(slot.frames, state, context)
        words = tuple([state.resolve(word) for word in slot.words])
        self._emit(slot, words, context, operator, state, name)
        body = entry
        values = _list_values(words)
        if slot.role == "for" and values is not None:
            body = entry.assign(name, values)
        self._walk(node[3], items, body, context, ";")
        after = entry.forget((name,))
        return after, after

    def _definition(self, node: Node, items: list[Slot], state: State, context: Context) -> None:
        slot = items[node[1]]
        self._check((node[1],), items)
        if slot.role != "function":
            raise GrammarError("unparsed.completeness", "a function without a name")
        if slot.name in HANDLERS or slot.name in _WATCHED:
            note = Note("shell.function_shadows", slot.span(), slot.name)
            self.out.append(
                Subcommand((), note.span, kind=CommandKind.COMPOUND, depth=context.depth, cwds=state.cwds, notes=(note,))
            )
        inner = context.inside(function=slot.name)
        inner.piped_in = inner.piped_out = False
        self._walk(node[2], items, self.functions.entry, inner, "")

    def _compound_redirects(self, indexes: tuple[int, ...], items: list[Slot], state: State, context: Context, op: str) -> None:
        slot = self._check(indexes, items)
        self._nested(slot.redirect_frames, state, context)
        redirects = tuple([self._redirect(redirect, state) for redirect in slot.redirects])
        notes = slot.notes
        if any(WordFlag.EVALUATES in redirect.target.flags for redirect in redirects):
            notes = (*notes, Note("shell.evaluates", redirects[0].span))
        self.out.append(
            Subcommand(
                (),
                _span(redirects[0].span, redirects[-1].span),
                (),
                redirects,
                CommandKind.COMPOUND,
                op,
                context.depth,
                state.cwds,
                self._number(context),
                context.piped_in,
                context.piped_out,
                context.background,
                notes,
            )
        )

    def _number(self, context: Context) -> int:
        """The number of the pipeline: a command that stands alone is one of its own."""
        if context.pipeline:
            return context.pipeline
        self._pipelines += 1
        return self._pipelines

    # --- commands ------------------------------------------------------------------------------------------------

    def _check(self, indexes: tuple[int, ...], items: list[Slot]) -> Slot:
        """All placeholders of a tree node belong to one slot, and no other has any of it."""
        slot = items[indexes[0]]
        if slot.count != len(indexes) or any(items[index] is not slot for index in indexes):
            raise GrammarError("unparsed.completeness", "a word moved to another command")
        return slot

    def _redirect(self, redirect: Redirect, state: State) -> Redirect:
        target = redirect.target
        if not target.flags or redirect.op is RedirectOp.DUP_OUT:
            return redirect  # what `>&` finds in a variable is expanded once more, so its value is not the target
        return Redirect(redirect.op, state.resolve(target), redirect.span, redirect.fd)

    def _simple(self, indexes: tuple[int, ...], items: list[Slot], state: State, context: Context, operator: str) -> States:
        slot = self._check(indexes, items)
        if slot.role == "nothing":
            return state, state
        if slot.frames:
            self._nested(slot.frames, settled(slot.words, state), context)
        if not (slot.assignments or slot.redirects or slot.notes) and slot.kind is CommandKind.SIMPLE:
            return self._command(slot, state, context, operator)
        if slot.redirect_frames:
            around = settled([redirect.target for redirect in slot.redirects], settled(slot.words, state))
            self._nested(slot.redirect_frames, around.forget(tuple([a.name for a in slot.assignments])), context)
        return self._command(slot, state, context, operator)

    def _command(self, slot: Slot, state: State, context: Context, operator: str) -> States:
        """Any command that is one slot: resolve, note, list it, and say what it changes."""
        notes: list[Note] = list(slot.notes)
        span = slot.span()

        def note(code: str, detail: str) -> None:
            notes.append(Note(code, span, detail))

        dynamic = False
        for word in slot.words:
            if word.flags:
                dynamic = True
                break
        before = state
        if dynamic:
            words = tuple([state.resolve(word) for word in slot.words])
            if any(WordFlag.EVALUATES in word.flags or WordFlag.ASSIGNS in word.flags for word in words):
                if any(WordFlag.EVALUATES in word.flags for word in words):
                    note("shell.evaluates", "")
                before = state = state.forget_all()
                words = tuple([state.resolve(word) for word in slot.words])
        else:
            words = tuple(slot.words)
        redirects: tuple[Redirect, ...] = ()
        after = state
        assignments: tuple[Assignment, ...] = ()
        if slot.redirects:
            around = state.forget(tuple([assignment.name for assignment in slot.assignments]))
            redirects = tuple([self._redirect(redirect, around) for redirect in slot.redirects])
            for redirect in redirects:
                if WordFlag.EVALUATES in redirect.target.flags:
                    note("shell.evaluates", "")
                if isinstance(redirect.fd, str):
                    after = after.forget((redirect.fd,))
                if redirect.target.flags & CHANGING:
                    after = after.forget_all()
        if slot.assignments:
            assignments, after = self._assign(slot, after, context, note)
        if slot.kind is CommandKind.SIMPLE and words:
            if slot.assignments:
                after = before.forget(tuple([assignment.name for assignment in slot.assignments]))
            result = self._effect(words, after, context, note, slot)
        elif slot.kind is CommandKind.TEST:
            after = apply(builtins.condition(words, note), after)
            result = (after, after)
        elif slot.kind is CommandKind.ARITHMETIC:
            if slot.words[1].flags:
                expression = slot.words[1].parts[0].text
                if WordFlag.EVALUATES in words[1].flags:
                    after = after.forget_all()
                after = after.forget(frozenset(_NAMES.findall(expression)))
            result = (after, after)
        else:
            result = (after, after)
        self.out.append(
            Subcommand(
                words,
                span,
                assignments,
                redirects,
                slot.kind,
                operator,
                context.depth,
                before.cwds,
                self._number(context),
                context.piped_in,
                context.piped_out,
                context.background,
                tuple(notes),
            )
        )
        return result

    def _emit(self, slot: Slot, words: tuple[Word, ...], context: Context, operator: str, state: State, name: str) -> None:
        """List the words of a loop over the variable `name`, which the loop sets."""
        span = slot.span()
        notes = list(slot.notes)
        if any(WordFlag.EVALUATES in word.flags for word in words):
            notes.append(Note("shell.evaluates", span))
        builtins.environment(name, lambda code, detail: notes.append(Note(code, span, detail)))
        self.out.append(
            Subcommand(
                words,
                span,
                (Assignment(name, None, span),) if name else (),
                kind=slot.kind,
                operator=operator,
                depth=context.depth,
                cwds=state.cwds,
                pipeline=self._number(context),
                notes=tuple(notes),
            )
        )

    def _assign(self, slot: Slot, state: State, context: Context, note: builtins.Noter) -> tuple[tuple[Assignment, ...], State]:
        """The assignments in front of a command, one after the other; each sees the ones before it."""
        frames = dict(slot.assignment_frames)
        out: list[Assignment] = []
        for index, assignment in enumerate(slot.assignments):
            value = assignment.value
            if index in frames:
                words = assignment.elements if value is None else (value,)
                around = settled(words, state)
                if slot.words:
                    # What stands in front of a command is not seen by the substitutions of what follows it there.
                    around = around.forget(tuple([one.name for one in out]))
                self._nested(frames[index], around, context)
            if not slot.words:
                builtins.environment(assignment.name, note)
            if value is None:
                elements = tuple([state.resolve(word) for word in assignment.elements])
                if any(word.flags & CHANGING for word in elements):
                    note("shell.evaluates", assignment.name)
                    state = state.forget_all()
                out.append(Assignment(assignment.name, None, assignment.span, assignment.append, None, elements))
                state = state.pin(frozenset((assignment.name,)))
                continue
            value = state.resolve(value)
            if value.flags & CHANGING:
                if WordFlag.EVALUATES in value.flags:
                    note("shell.evaluates", assignment.name)
                state = state.forget_all()
                value = state.resolve(assignment.value) if assignment.value is not None else value
            out.append(Assignment(assignment.name, value, assignment.span, assignment.append, assignment.subscript, ()))
            if assignment.subscript is not None:
                state = state.pin(frozenset((assignment.name,)))
            elif assignment.append:
                state = state.forget((assignment.name,))
            else:
                state = state.assign(assignment.name, value.values)
        return tuple(out), state

    def _effect(self, words: tuple[Word, ...], state: State, context: Context, note: builtins.Noter, slot: Slot) -> States:
        """What a simple command changes in the shell that runs it."""
        first = words[0]
        if first.value is None:
            if not first.values:
                note("shell.dynamic_name", "")
                if context.top:
                    self.changes_cwd = True
                lost = state.lose()
                return lost, lost
            known = [self._named(Word(first.span, first.parts, (v,)), v, words, state, context, note, slot) for v in first.values]
            ok, failed = known[0]
            for a, b in known[1:]:
                ok, failed = join(ok, a), join(failed, b)
            return ok, failed
        return self._named(first, first.value, words, state, context, note, slot)

    def _named(
        self, first: Word, name: str, words: tuple[Word, ...], state: State, context: Context, note: builtins.Noter, slot: Slot
    ) -> States:
        if name in self.functions.changes:
            note("shell.function_shadows", name)
            beside = context.piped_in or context.piped_out or context.background or context.depth > 0
            self.functions.call(name, context.function, beside, len(self.out))
            change = self.functions.changes[name]
            if change.moves and context.top:
                self.changes_cwd = True
            after = apply(change, state)
            if change.moves:
                after = after.at(None, None)
            return after, after
        if name == "command" or name == "builtin":
            index = builtins.command_name(words)
            if index < 0 or (index < len(words) and words[index].value is None):
                note("shell.dynamic_name", "")
                lost = state.lose()
                return lost, lost
            if index >= len(words):
                return state, state
            words = words[index:]
            name = words[0].value or ""
        if name == "exit":
            final = not slot.redirects and (len(words) == 1 or (len(words) == 2 and _is_code(words[1])))
            return (None, None) if final else (state, state)
        if name not in HANDLERS:
            return state, state
        rest = words[1:]
        change = HANDLERS[name](rest, note)
        if change.moves:
            if context.top:
                self.changes_cwd = True
            if not change.everything:
                moved = move(name, rest, state)
                return moved.forget(change.names), state
        after = apply(change, state)
        return after, after


# Functions that bash calls by itself.
_WATCHED = frozenset(("command_not_found_handle", "command", "builtin", "exit", "echo", "true", "false", "pwd", "kill", ":"))


def _span(first: Span, last: Span) -> Span:
    return Span(first.start, max(first.end, last.end))


def _is_code(word: Word) -> bool:
    return word.value is not None and _EXIT_CODE.match(word.value) is not None


def _with_notes(command: Subcommand, notes: tuple[Note, ...]) -> Subcommand:
    return Subcommand(
        command.argv, command.span, command.assignments, command.redirects, command.kind, command.operator, command.depth,
        command.cwds, command.pipeline, command.piped_in, command.piped_out, command.background, notes,
    )  # fmt: skip


def _list_values(words: tuple[Word, ...]) -> Values | None:
    """The values of a loop variable over these words, when all are certain."""
    out: list[str] = []
    for word in words:
        if not word.values:
            return None
        out.extend(word.values)
    return tuple(dict.fromkeys(out)) or None
