# SPDX-License-Identifier: GPL-3.0-or-later
"""From the tree to ordered subcommands, carrying along what is certain: values, directory, pipe context.

Each node is walked with the state before it and gives two states: the one after success and the one after failure. None is
a path that never arrives (`exit`). A loop's body starts with everything forgotten that the body may change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sandboxd.model.shell import Assignment, CommandKind, Note, PartKind, Redirect, RedirectOp, Span, Subcommand, Word, WordFlag
from sandboxd.shell import builtins, grammar
from sandboxd.shell.builtins import ANYTHING, HANDLERS, NOTHING, Change
from sandboxd.shell.frames import Frame, Slot
from sandboxd.shell.grammar import FOR, FUNCTION, GROUP, IF, LIST, LOOP, PIPE, SIMPLE, SUBSHELL, GrammarError, Node
from sandboxd.shell.state import State, Values, join

States = tuple[State | None, State | None]

_START = ("",)
_EXIT_CODE = re.compile(r"[0-9]{1,3}\Z")
_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HAS_FUNCTION = re.compile(r"\bf[0-9]")


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
        self.functions: dict[str, Change] = {}
        self.changes_cwd = False
        self._pipelines = 0
        self._lost = State({}, None, None, splits=False, lost=True)
        self._function_state = self._lost
        self._calls: dict[str, list[tuple[str, bool]]] = {}  # function -> (function called, whether beside itself)
        self._called: list[tuple[int, str]] = []  # index in `out` of each call of a function

    def run(self, frame: Frame) -> None:
        state = State({}, _START)
        if any(_HAS_FUNCTION.search(shape) for shape, _ in frame.statements) or _nests_function(frame):
            self._learn_functions(frame)
        self._frame(frame, state, Context())
        if self._called:
            self._mark_bombs()

    # --- functions -----------------------------------------------------------------------------------------------

    def _learn_functions(self, frame: Frame) -> None:
        """What the functions of the text change, before any of it is walked: a call may come before the definition."""
        definitions: list[tuple[str, Node, list[Slot]]] = []
        moves = False
        for one in all_frames(frame):
            for shape, items in one.statements:
                node = grammar.tree(shape)
                _definitions(node, items, definitions)
        for name, _, _ in definitions:
            self.functions[name] = NOTHING
        total = NOTHING
        for name, body, items in definitions:
            total = _merge(total, self._changes(body, items))
            if name in HANDLERS:
                total = ANYTHING
        for name in self.functions:
            self.functions[name] = total
        # A function can be called from inside any subshell, so every `cd` of the text counts, wherever it stands.
        for one in all_frames(frame):
            for _, items in one.statements:
                changes = [self._slot_changes(slot) for slot in items]
                moves = moves or any(change.moves or change.everything for change in changes)
        self._function_state = State({}, None if moves or total.everything else _START, None)

    def _mark_bombs(self) -> None:
        bombs = {name for name in self.functions if self._is_bomb(name)}
        for index, name in self._called:
            command = self.out[index]
            if name in bombs:
                note = Note("shell.fork_bomb", command.span, name)
                self.out[index] = _with_notes(command, (*command.notes, note))

    def _is_bomb(self, name: str) -> bool:
        """Whether `name` reaches itself through calls of which one runs beside its caller."""
        todo = [(name, False)]
        seen: set[tuple[str, bool]] = set()
        while todo:
            at, forked = todo.pop()
            for target, beside in self._calls.get(at, ()):
                step = (target, forked or beside)
                if target == name and step[1]:
                    return True
                if step not in seen:
                    seen.add(step)
                    todo.append(step)
        return False

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
        changes = self._changes(node, items)
        entry = self._apply(changes, state)
        if changes.moves:
            entry = entry.at(None, None)
        if node[0] == LOOP:
            ok, _ = self._walk(node[1], items, entry, context, operator)
            self._walk(node[2], items, ok if ok is not None else self._lost, context, ";")
            return entry, entry
        name = items[node[1]].name
        slot = items[node[2]]
        self._check((node[1],), items)
        self._check((node[2],), items)
        state = _settled(slot.words, state)
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
        self._walk(node[2], items, self._function_state, inner, "")

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
            self._nested(slot.frames, _settled(slot.words, state), context)
        if not (slot.assignments or slot.redirects or slot.notes) and slot.kind is CommandKind.SIMPLE:
            return self._command(slot, state, context, operator)
        if slot.redirect_frames:
            around = _settled([redirect.target for redirect in slot.redirects], _settled(slot.words, state))
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
                if redirect.target.flags & _CHANGING:
                    after = after.forget_all()
        if slot.assignments:
            assignments, after = self._assign(slot, after, context, note)
        if slot.kind is CommandKind.SIMPLE and words:
            if slot.assignments:
                after = before.forget(tuple([assignment.name for assignment in slot.assignments]))
            result = self._effect(words, after, context, note, slot)
        elif slot.kind is CommandKind.TEST:
            after = self._apply(builtins.condition(words, note), after)
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
                around = _settled(words, state)
                if slot.words:
                    # What stands in front of a command is not seen by the substitutions of what follows it there.
                    around = around.forget(tuple([one.name for one in out]))
                self._nested(frames[index], around, context)
            if not slot.words:
                builtins.environment(assignment.name, note)
            if value is None:
                elements = tuple([state.resolve(word) for word in assignment.elements])
                if any(word.flags & _CHANGING for word in elements):
                    note("shell.evaluates", assignment.name)
                    state = state.forget_all()
                out.append(Assignment(assignment.name, None, assignment.span, assignment.append, None, elements))
                state = state.pin(frozenset((assignment.name,)))
                continue
            value = state.resolve(value)
            if value.flags & _CHANGING:
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
        if name in self.functions:
            note("shell.function_shadows", name)
            beside = context.piped_in or context.piped_out or context.background or context.depth > 0
            if context.function:
                self._calls.setdefault(context.function, []).append((name, beside))
            else:
                self._called.append((len(self.out), name))
            change = self.functions[name]
            if change.moves and context.top:
                self.changes_cwd = True
            after = self._apply(change, state)
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
                moved = _move(name, rest, state)
                return moved.forget(change.names), state
        after = self._apply(change, state)
        if name == "exec" and rest:
            return after, after
        return after, after

    def _apply(self, change: Change, state: State) -> State:
        if change is NOTHING:
            return state
        if change.everything:
            return state.lose()
        if change.all_names:
            state = state.forget_all()
        if change.pinned:
            state = state.pin(change.pinned)
        if change.names:
            state = state.forget(change.names)
        for name, word in change.assigned:
            values = tuple([value.partition("=")[2] for value in word.values])
            # `export x+=…` and tilde prefixes never get here: their words are not literal, or are left out.
            state = state.assign(name, values)
        return state

    # --- what a construct may change, without walking it ---------------------------------------------------------

    def _changes(self, node: Node, items: list[Slot]) -> Change:
        kind = node[0]
        if kind == SIMPLE:
            return self._slot_changes(items[node[1][0]])
        total = NOTHING
        if kind == LIST:
            for _, part in node[1]:
                total = _merge(total, self._changes(part, items))
            return total
        if kind == PIPE:
            for part in node[2]:
                total = _merge(total, self._changes(part, items))
            return total
        if kind == FUNCTION:
            return NOTHING
        if kind == SUBSHELL:
            # What happens inside stays inside, yet a descriptor variable or a default may be set by its redirects.
            total = NOTHING
        elif kind == FOR:
            total = _merge(Change(frozenset((items[node[1]].name,))), self._slot_changes(items[node[2]]))
            total = _merge(total, self._changes(node[3], items))
        else:
            for part in node[1:-1]:
                if part is not None:
                    total = _merge(total, self._changes(part, items))
        if node[-1]:
            total = _merge(total, self._slot_changes(items[node[-1][0]]))
        return total

    def _slot_changes(self, slot: Slot) -> Change:
        total = NOTHING
        names = {assignment.name for assignment in slot.assignments}
        names.update(redirect.fd for redirect in slot.redirects if isinstance(redirect.fd, str))
        words = [*slot.words, *[a.value for a in slot.assignments if a.value is not None]]
        words.extend(word for a in slot.assignments for word in a.elements)
        words.extend(redirect.target for redirect in slot.redirects)
        if any(word.flags & _CHANGING for word in words):
            total = Change(all_names=True)
        if names:
            total = _merge(total, Change(frozenset(names)))
        if slot.kind is not CommandKind.SIMPLE or not slot.words or slot.role:
            return total
        arguments = tuple(slot.words)
        first = arguments[0].value
        if first in ("command", "builtin"):
            index = builtins.command_name(arguments)
            if index < 0:
                return ANYTHING
            arguments = arguments[index:]
            if not arguments:
                return total
            first = arguments[0].value
        if first is None:
            return ANYTHING
        if first in self.functions:
            total = _merge(total, self.functions[first])
        if first in HANDLERS:
            total = _merge(total, HANDLERS[first](arguments[1:], _ignore))
        return total


_CHANGING = frozenset((WordFlag.EVALUATES, WordFlag.ASSIGNS))
# Functions that bash calls by itself.
_WATCHED = frozenset(("command_not_found_handle", "command", "builtin", "exit", "echo", "true", "false", "pwd", "kill", ":"))


def _settled(words: Iterable[Word], state: State) -> State:
    """The state that holds while these words are expanded: one of them may change what another sees."""
    for word in words:
        if word.flags & _CHANGING:
            return state.forget_all()
    return state


def _ignore(code: str, detail: str) -> None:
    """A noter for looking ahead: the walk itself will note it."""


def _span(first: Span, last: Span) -> Span:
    return Span(first.start, max(first.end, last.end))


def _is_code(word: Word) -> bool:
    return word.value is not None and _EXIT_CODE.match(word.value) is not None


def _with_notes(command: Subcommand, notes: tuple[Note, ...]) -> Subcommand:
    return Subcommand(
        command.argv, command.span, command.assignments, command.redirects, command.kind, command.operator, command.depth,
        command.cwds, command.pipeline, command.piped_in, command.piped_out, command.background, notes,
    )  # fmt: skip


def _merge(a: Change, b: Change) -> Change:
    """Both changes, in any order and any number of times: an assigned value is then only a changed name."""
    if b is NOTHING and not a.assigned:
        return a
    return Change(
        a.names | b.names,
        a.pinned | b.pinned,
        all_names=a.all_names or b.all_names,
        everything=a.everything or b.everything,
        moves=a.moves or b.moves,
    )


def _list_values(words: tuple[Word, ...]) -> Values | None:
    """The values of a loop variable over these words, when all are certain."""
    out: list[str] = []
    for word in words:
        if not word.values:
            return None
        out.extend(word.values)
    return tuple(dict.fromkeys(out)) or None


def _move(name: str, words: tuple[Word, ...], state: State) -> State:
    """`cd`, `pushd` and `popd` when they succeed."""
    if words and words[0].value == "--":
        words = words[1:]
    if name == "popd":
        if words or not state.stack:
            return state.at(None, None)
        return state.at(state.stack[-1], state.stack[:-1])
    if name == "cd" and len(words) == 2 and words[0].value == "-L":
        words = words[1:]
    if name == "cd" and not words:
        return state.at(state.moved(("~",)), state.stack)
    if len(words) != 1 or (name == "pushd" and state.cwds is None):
        return state.at(None, None if name == "pushd" else state.stack)
    values = _directories(words[0])
    if values is None:
        return state.at(None, None if name == "pushd" else state.stack)
    stack = state.stack
    if name == "pushd":
        stack = None if stack is None or state.cwds is None else (*stack, state.cwds)
    return state.at(state.moved(values), stack)


def _directories(word: Word) -> Values | None:
    """The directories a word names: its values, or `~` with a literal rest; None when unknown or an option."""
    values = word.values
    if not values:
        parts = word.parts
        if parts[0].kind is not PartKind.TILDE or any(part.kind is not PartKind.LITERAL for part in parts[1:]):
            return None
        if parts[0].text not in ("~",):
            return None
        values = ("".join([part.text for part in parts]),)
    elif any(value.startswith(("-", "+", "~")) for value in values):
        return None
    return values


def _nests_function(frame: Frame) -> bool:
    return any(_HAS_FUNCTION.search(shape) for one in all_frames(frame) if one is not frame for shape, _ in one.statements)


def all_frames(frame: Frame) -> list[Frame]:
    """The frame and all that stand in its words, however deep."""
    out = [frame]
    for one in out:
        for _, items in one.statements:
            for slot in dict.fromkeys(items):
                out.extend(slot.frames)
                out.extend(slot.redirect_frames)
                for _, frames in slot.assignment_frames:
                    out.extend(frames)
    return out


def _definitions(node: Node, items: list[Slot], out: list[tuple[str, Node, list[Slot]]]) -> None:
    kind = node[0]
    if kind == FUNCTION:
        out.append((items[node[1]].name, node[2], items))
        _definitions(node[2], items, out)
    elif kind == LIST:
        for _, part in node[1]:
            _definitions(part, items, out)
    elif kind == PIPE:
        for part in node[2]:
            _definitions(part, items, out)
    elif kind == FOR:
        _definitions(node[3], items, out)
    elif kind != SIMPLE:
        for part in node[1:-1]:
            if part is not None:
                _definitions(part, items, out)
