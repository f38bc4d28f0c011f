# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rules speak of a command, and which of them count: step 1c's half that is about rules.

What a rule can speak of is a *unit*: the tool itself, one subcommand, one effect. `deny-overrides` takes every hit;
`source-order` takes, for each unit, the hits of the highest source that has one, and policySettings denies besides.
"""

from __future__ import annotations

from typing import NamedTuple

from sandboxd.model import AnalyzedCommand, Behavior, CommandKind, Effect, EffectKind, Inputs, Source, Strategy
from sandboxd.policy.broad import in_force
from sandboxd.policy.patterns import Place, argv_text
from sandboxd.policy.rules import Compiled, RuleIndex, index_rules, tight_views
from sandboxd.policy.sources import rank
from sandboxd.policy.suggestions import HARMLESS_WRAPPERS


class Hit(NamedTuple):
    """One rule that speaks of one unit. `maybe`: the program is not known, so it only may be the one the rule names."""

    compiled: Compiled
    command: AnalyzedCommand | None = None
    effect: Effect | None = None
    maybe: bool = False

    @property
    def behavior(self) -> Behavior:
        return self.compiled.rule.behavior


class Verdicts(NamedTuple):
    """The hits that count. `covered` are the subcommands whose words an allow rule covers, by identity, `wholly` those
    that a whole-tool rule allows; `exact`: a rule allows this very text, byte by byte."""

    tool_denies: tuple[Hit, ...] = ()
    tool_asks: tuple[Hit, ...] = ()
    tool_allows: tuple[Hit, ...] = ()
    denies: tuple[Hit, ...] = ()
    asks: tuple[Hit, ...] = ()
    allows: tuple[Hit, ...] = ()
    covered: frozenset[int] = frozenset()
    wholly: frozenset[int] = frozenset()
    exact: bool = False


_NONE = Verdicts()
# Members as names of this module: Python 3.11 looks an enum's members up in Python.
_WORDS, _SOURCE_ORDER = CommandKind.WORDS, Strategy.SOURCE_ORDER
_DENY, _ASK, _ALLOW = Behavior.DENY, Behavior.ASK, Behavior.ALLOW


def place_of(inputs: Inputs) -> Place:
    return Place(inputs.analysis.cwd, inputs.scope.workspace, inputs.scope.home)


def judge_rules(inputs: Inputs) -> Verdicts:
    """All rules of `inputs` against its analysis."""
    if not inputs.rules.rules:
        return _NONE
    return _Judge(inputs, index_rules(in_force(inputs), place_of(inputs))).run()


class _Judge:
    __slots__ = ("by_source", "covered", "hits", "index", "inputs", "opened", "seen_through", "wholly")

    def __init__(self, inputs: Inputs, index: RuleIndex) -> None:
        self.inputs = inputs
        self.index = index
        self.by_source = inputs.rules.strategy is _SOURCE_ORDER
        self.hits: list[Hit] = []
        self.covered: set[int] = set()
        self.wholly: set[int] = set()
        self.seen_through = True
        self.opened = False  # a rule names the outer command word for word, and with it what is nested there

    def run(self) -> Verdicts:
        inputs, index = self.inputs, self.index
        analysis = inputs.analysis
        tool = [Hit(one) for one in index.whole if self._names(one)] if index.whole else []
        exact = False
        units = 0
        if inputs.tool == "Bash":
            exact = bool(index.verbatim) and analysis.text.strip() in index.verbatim
            if analysis.unparsed is not None:
                self._unit(self._by_text(), tool)
                units = 1
            else:
                units = len(analysis.commands)
                for command in analysis.commands:
                    # Nested commands follow the one whose words hold them; rules that allow see one only through wrappers.
                    if not command.via:
                        self.seen_through, self.opened = True, False
                    elif command.via not in HARMLESS_WRAPPERS:
                        self.seen_through = False
                    if not tool and not self.opened and index.silent(command):
                        continue
                    hits = self._by_words(command) if index.commands else []
                    if hits or tool or self.opened:
                        self._unit(hits, tool, command)
        else:
            called = next(iter(analysis.commands), None)
            self._unit([Hit(one, called) for one in index.texts if self._says(one)], tool, called)
            units = 1
        if index.effects:
            self._effects(analysis.commands)
        if tool and not (self.by_source and units):
            self.hits.extend(self._settled(tool))
        return self._sorted(exact) if self.hits or exact else _NONE

    def _names(self, one: Compiled) -> bool:
        """Whether a rule speaks of the tool; one that tightens, by any of its names."""
        return one.tool(self.inputs.tool) or (one.tightens and any(map(one.tool, self.inputs.aliases)))

    def _says(self, one: Compiled) -> bool:
        """Whether the content of a rule speaks of what the tool was called with."""
        if not self._names(one):
            return False
        texts = self.inputs.texts or (self.inputs.analysis.text,)
        return any(map(one.text, texts)) if one.tightens else texts[0] != "" and one.text(texts[0])

    def _unit(self, hits: list[Hit], tool: list[Hit], command: AnalyzedCommand | None = None) -> None:
        """Settle one unit. Under source-order the whole-tool rules compete with the unit's own."""
        if command is not None and command.via and self.opened:
            self.covered.add(id(command))
        if not hits and not tool:
            return
        settled = self._settled([*hits, *tool])
        if command is not None:
            for hit in settled:
                if hit.behavior is Behavior.ALLOW:
                    self.covered.add(id(command))
                    if hit.compiled.rule.content is None:
                        self.wholly.add(id(command))
                    elif not command.via and hit.compiled.exact(command.argv):
                        self.opened = True
        self.hits.extend(settled)

    def _settled(self, hits: list[Hit]) -> list[Hit]:
        if not self.by_source or not hits:
            return hits
        # A rule that is not trusted counts besides the others, and displaces none.
        best = min((rank(hit.compiled.rule.source) for hit in hits if hit.compiled.rule.trusted), default=-1)
        return [
            hit
            for hit in hits
            if rank(hit.compiled.rule.source) == best
            or not hit.compiled.rule.trusted
            or (hit.compiled.rule.source is Source.POLICY and hit.behavior is Behavior.DENY)
        ]

    def _by_words(self, command: AnalyzedCommand) -> list[Hit]:
        if not command.argv or command.subcommand.kind is _WORDS:
            return []
        unknown = (command.bare or command.harmless or command.argv)[0] is None
        rules = self.index.commands if unknown else self.index.about(command)
        if not rules:
            return []
        tight = tight_views(command)
        loose = (argv_text(command.harmless or command.argv),)
        written = argv_text(command.argv)
        out = []
        for one in rules:
            if one.tightens:
                if one.command(tight, written):
                    out.append(Hit(one, command))
                elif unknown and one.rule.behavior is Behavior.DENY:
                    out.append(Hit(one, command, maybe=True))
            elif command.clean_env and self.seen_through and one.command(loose, written):
                out.append(Hit(one, command))
        return out

    def _effects(self, commands: tuple[AnalyzedCommand, ...]) -> None:
        """The rules about effects, after a quick no for nearly every literal path: it has none of the names of which each
        rule's path has one."""
        by_kind, by_name = self.index.effects, {} if self.inputs.facts.paths else self.index.names
        for command in commands:
            for effect in command.effects:
                kind = effect.kind
                if kind not in by_kind:
                    continue
                target = None if effect.pattern or effect.recursive else effect.target
                if target is not None and kind in by_name and by_name[kind].isdisjoint(target.split("/")):
                    continue
                found = self._by_effect(command, effect, by_kind[kind])
                if found:
                    self.hits.extend(self._settled(found))

    def _by_effect(self, command: AnalyzedCommand, effect: Effect, rules: tuple[Compiled, ...]) -> list[Hit]:
        real = None
        if effect.target is not None and self.inputs.facts.paths and effect.kind is not EffectKind.NETWORK and not effect.pattern:
            real = self.inputs.facts.real(effect.target)
        return [Hit(one, command, effect) for one in rules if one.effect(effect, real)]

    def _by_text(self) -> list[Hit]:
        analysis = self.inputs.analysis
        unparsed = analysis.unparsed
        if unparsed is None:
            return []
        return [Hit(one) for one in self.index.commands if one.tightens and one.unparsed(analysis.text, unparsed)]

    def _sorted(self, exact: bool) -> Verdicts:
        tools: dict[Behavior, list[Hit]] = {_DENY: [], _ASK: [], _ALLOW: []}
        contents: dict[Behavior, list[Hit]] = {_DENY: [], _ASK: [], _ALLOW: []}
        seen: set[tuple[int, int, int]] = set()
        for hit in self.hits:
            whole = hit.effect is None and hit.compiled.rule.content is None
            key = (id(hit.compiled), id(hit.command), id(hit.effect))
            if key in seen:
                continue
            seen.add(key)
            behavior = _ASK if hit.maybe else hit.compiled.rule.behavior
            (tools if whole else contents)[behavior].append(hit)
        return Verdicts(
            tuple(tools[_DENY]),
            tuple(tools[_ASK]),
            tuple(tools[_ALLOW]),
            tuple(contents[_DENY]),
            tuple(contents[_ASK]),
            tuple(contents[_ALLOW]),
            frozenset(self.covered),
            frozenset(self.wholly),
            exact,
        )
