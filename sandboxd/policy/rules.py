# SPDX-License-Identifier: GPL-3.0-or-later
"""Permission rules: what they may say, and what they match.

    Tool  Tool()  Tool(*)                     the whole tool
    Bash(git status)                          exactly these words
    Bash(npm run:*)  Bash(prefix:npm run)  Bash(npm run *)    these words, and anything after them
    Bash(git * main)                          `*` elsewhere spans anything
    Read(~/projects/**)  Edit(src/*.py)       path globs: `*` one level, `**` any depth
    WebFetch(domain:example.com)              a host; `*.example.com` those below it
    mcp__server  mcp__server__*  mcp__server__tool  mcp__server__get_*  mcp__*
    Skill(name)  Agent(name)  Other(text:*)   exactly, or as a prefix

Parentheses inside are written `\\(` and `\\)`. Rules that tighten (deny, ask) see a command as written, without its
harmless wrappers and without any wrapper, by its program's last path component too; rules that allow see it only
without harmless wrappers.

To add a kind of rule: a row in `_FAMILIES`, its check in `_check_content`, its match in `Compiled`, a line above, and
rows in tests/corpus/policy_rules.toml.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sandboxd.errors import RuleError
from sandboxd.model import Analysis, AnalyzedCommand, Behavior, Effect, EffectKind, Rule, RuleSet, Source, Unparsed
from sandboxd.policy.patterns import (
    ArgvPattern,
    Place,
    argv_text,
    host_matches,
    in_text,
    in_words,
    literal_name,
    parse_argv_pattern,
    path_covered,
    path_globs,
    path_hit,
    split_words,
)
from sandboxd.policy.suggestions import suggest as suggest

# Which tools a rule's tool name speaks of, and which effects of a Bash command.
_FAMILIES: dict[str, str] = {
    "Bash": "bash",
    "Read": "read",
    "Edit": "edit",
    "Write": "edit",
    "MultiEdit": "edit",
    "NotebookEdit": "edit",
    "WebFetch": "web",
}
_ALSO: dict[str, frozenset[str]] = {
    "Read": frozenset(("Glob", "Grep", "LS", "NotebookRead")),
    "Edit": frozenset(("Write", "MultiEdit", "NotebookEdit")),
    "Agent": frozenset(("Task",)),
    "Task": frozenset(("Agent",)),
}
EFFECTS: dict[str, frozenset[EffectKind]] = {
    "read": frozenset((EffectKind.READ,)),
    "edit": frozenset((EffectKind.WRITE, EffectKind.DELETE)),
    "web": frozenset((EffectKind.NETWORK,)),
}
_TOOL = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_MCP = re.compile(r"mcp__(?:\*|[A-Za-z0-9_.-]+?(?:__(?:[A-Za-z0-9_.-]+\*?|\*))?)")
_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_HOST = re.compile(r"(?:\*\.)?[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\*|[0-9a-f:]*:[0-9a-f:]*")


def parse_rule(
    text: str,
    behavior: Behavior,
    source: Source,
    origin: str,
    reason: str = "",
    match: tuple[str, ...] = (),
    not_match: tuple[str, ...] = (),
    *,
    lenient: bool = False,
) -> Rule:
    """Read one rule. `origin` is `file:line` or a flag's name, for messages.

    `lenient` takes parentheses inside that are not escaped as they stand (other programs write them so). Raises
    RuleError that names the origin, what is wrong and the fix, also when an example in `match` is not matched or one in
    `not_match` is.
    """
    tool, content = _split(text.strip(), origin, lenient)
    rule = Rule(behavior, tool, content, text.strip(), source, origin, reason, match, not_match)
    if content is not None:
        _check_content(rule)
    for example in (*match, *not_match):
        wanted = example in match
        if _example(rule, example) is not wanted:
            verb = "does not match" if wanted else "matches"
            key = "match" if wanted else "not_match"
            raise RuleError(
                f"rule `{rule.text}` {verb} its example `{example}`", origin=origin, fix=f"correct the rule or its `{key}`"
            )
    return rule


def _split(text: str, origin: str, lenient: bool) -> tuple[str, str | None]:
    """Tool name and content. Content None is the whole tool."""

    def wrong(what: str, fix: str) -> RuleError:
        return RuleError(f"rule `{text}` {what}", origin=origin, fix=fix)

    if not text:
        raise wrong("is empty", "write `Tool` or `Tool(content)`")
    name, paren, rest = text.partition("(")
    if name.startswith("mcp__"):
        if not _MCP.fullmatch(name):
            raise wrong("names no MCP tool", "write `mcp__server`, `mcp__server__*` or `mcp__server__tool`")
        if rest not in ("", ")", "*)"):
            raise wrong("has a content, which MCP tools do not take", f"write `{name}`")
        return name, None
    if not _TOOL.fullmatch(name):
        raise wrong("does not begin with a tool name", "write `Tool` or `Tool(content)`, for example `Bash(git status)`")
    if not paren:
        return name, None
    content, bare, closed = _unescape(rest)
    if not closed or (bare and lenient and not _balanced(content)):
        raise wrong("is not closed", f"end it with `)`, for example `{name}({rest or 'content'})`")
    if bare and not lenient:
        escaped = content.replace("(", "\\(").replace(")", "\\)")
        raise wrong("has a parenthesis inside that is not escaped", f"write `{name}({escaped})`")
    if content in ("", "*"):
        return name, None
    if not content.strip():
        raise wrong("has an empty content", f"write `{name}` for the whole tool")
    return name, content


def _balanced(content: str) -> bool:
    """Whether each parenthesis outside quotes has its partner."""
    plain = _QUOTED.sub("", content)
    return plain.count("(") == plain.count(")")


def _unescape(rest: str) -> tuple[str, bool, bool]:
    """What stands before the last `)`: its text with `\\(` and `\\)` replaced, whether a bare parenthesis is left, closed."""
    if not rest.endswith(")") or _escaped(rest, len(rest) - 1):
        return rest, False, False
    out: list[str] = []
    bare = False
    body = rest[:-1]
    at = 0
    while at < len(body):
        char = body[at]
        if char == "\\" and body[at + 1 : at + 2] in ("(", ")"):
            out.append(body[at + 1])
            at += 2
            continue
        bare |= char in "()"
        out.append(char)
        at += 1
    return "".join(out), bare, True


def _escaped(text: str, at: int) -> bool:
    """Whether an odd number of backslashes stands before `at`."""
    count = 0
    while at - count - 1 >= 0 and text[at - count - 1] == "\\":
        count += 1
    return count % 2 == 1


def _check_content(rule: Rule) -> None:
    """Refuse contents that could only be meant otherwise."""
    content = rule.content or ""
    family = _FAMILIES.get(rule.tool, "text")

    def wrong(what: str, fix: str) -> RuleError:
        return RuleError(f"rule `{rule.text}` {what}", origin=rule.origin, fix=fix)

    if family == "bash":
        if content in (":*", "prefix:"):
            raise wrong("has an empty prefix", "write `Bash` for the whole tool, or the words before `:*`")
        if ":*" in content.removesuffix(":*"):
            raise wrong("has `:*` before its end", "`:*` stands last; write ` *` in the middle")
        if content.startswith("prefix:") and content.endswith(":*"):
            raise wrong("says twice that it is a prefix", f"write `Bash({content[len('prefix:') :]})`")
    elif family in ("read", "edit"):
        if content.endswith(":*"):
            raise wrong("ends in `:*`, which is for commands", f"write `{rule.tool}({content[:-2]}/**)`")
        if "\0" in content or "\n" in content:
            raise wrong("has a line break or NUL in its path", "write one path glob")
    elif family == "web":
        key, _, host = content.partition(":")
        if key != "domain":
            raise wrong("does not name a domain", "write `WebFetch(domain:example.com)`")
        if not _HOST.fullmatch(host.casefold()):
            raise wrong("does not name a host", "write the host alone: no scheme, port or path")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A rule ready to match in one place."""

    rule: Rule
    family: str
    tightens: bool
    argv: ArgvPattern | None = None
    globs: tuple[str, ...] = ()
    domain: str = ""

    def tool(self, tool: str) -> bool:
        """Whether the rule's tool name speaks of `tool`, whatever its content."""
        mine = self.rule.tool
        if mine == tool or tool in _ALSO.get(mine, ()):
            return True
        if not mine.startswith("mcp__"):
            return False
        return tool.startswith(mine[:-1] if mine.endswith("*") else f"{mine}__")

    def command(self, views: tuple[str, ...], exact: str) -> bool:
        """Whether a content rule for commands matches one of the argv texts; `exact` is the argv as written.

        A rule that allows sees the argv as written only when it has no wildcard, so that `Bash(timeout:*)` opens nothing.
        """
        pattern = self.argv
        if pattern is None:
            return False
        return any(map(pattern.matches, views)) or (not self.tightens and pattern.exact and pattern.matches(exact))

    def exact(self, argv: tuple[str | None, ...]) -> bool:
        """Whether the rule is exactly this argv as written, without a wildcard."""
        return self.argv is not None and self.argv.exact and self.argv.matches(argv_text(argv))

    def effect(self, effect: Effect, real: str | None = None) -> bool:
        """Whether the rule speaks of an effect. One that tightens: of its target or what that really is; one that
        allows: of both. An unresolved target is matched by a whole-tool rule only."""
        if effect.kind not in EFFECTS.get(self.family, ()):
            return False
        if self.rule.content is None:
            return True
        if effect.target is None:
            return False
        if self.family == "web":
            return host_matches(self.domain, effect.target, tightens=self.tightens)
        targets = (effect.target,) if real in (None, effect.target) else (effect.target, real or "")
        tree = effect.recursive and effect.kind is not EffectKind.READ
        if self.tightens:
            return any(path_hit(self.globs, one, pattern=effect.pattern, tree=tree) for one in targets)
        return all(path_covered(self.globs, one, pattern=effect.pattern, tree=effect.recursive) for one in targets)

    def text(self, text: str) -> bool:
        """Whether a content rule for any other tool matches what it was called with."""
        return self.argv is not None and (
            self.argv.matches(text) or (self.argv.prefix and text.startswith(self.argv.segments[0]))
        )

    def unparsed(self, text: str, unparsed: Unparsed) -> bool:
        """Whether a rule that tightens could be meant by a text that nobody could read."""
        return self.argv is not None and (in_text(self.argv, text) or in_words(self.argv, unparsed.words))


def path_rule(rule: Rule) -> bool:
    """Whether a rule's content is a path glob."""
    return _FAMILIES.get(rule.tool) in ("read", "edit")


def compile_rule(rule: Rule, place: Place) -> Compiled:
    family = _FAMILIES.get(rule.tool, "mcp" if rule.tool.startswith("mcp__") else "text")
    tightens = rule.behavior is not Behavior.ALLOW
    content = rule.content
    if content is None or family == "mcp":
        return Compiled(rule, family, tightens)
    if family == "bash":
        return Compiled(rule, family, tightens, argv=parse_argv_pattern(content, quoted_star=tightens))
    if family in ("read", "edit"):
        globs = path_globs(content, project_of(rule.origin), place, tightens=tightens)
        return Compiled(rule, family, tightens, globs=globs)
    if family == "web":
        return Compiled(rule, family, tightens, domain=content.partition(":")[2].casefold().rstrip("."))
    prefix = content.endswith("*")
    text = content.removesuffix("*").removesuffix(":") if prefix else content
    return Compiled(rule, family, tightens, argv=ArgvPattern((text,), prefix))


def project_of(origin: str) -> str | None:
    """The project directory of the settings file that `origin` (`file:line`) names."""
    for folder in ("/.claude/", "/.sandboxd/"):
        project, found, _ = origin.rpartition(folder)
        if found:
            return project or "/"
    return None


@dataclass(frozen=True, slots=True)
class RuleIndex:
    """The rules of a session in one place, by what they are asked: `whole` tools, `commands`, `effects` by their kind,
    other `texts`. `by_program` gives the numbers of the commands' rules that name that program, `by_any` those of rules
    that may speak of every program. `names` holds, by kind of effect, a component of each path that its rules match, where
    all of them have one."""

    whole: tuple[Compiled, ...]
    commands: tuple[Compiled, ...]
    effects: dict[EffectKind, tuple[Compiled, ...]]
    names: dict[EffectKind, frozenset[str]]
    texts: tuple[Compiled, ...]
    by_program: dict[str, tuple[int, ...]]
    by_any: tuple[int, ...]
    verbatim: frozenset[str]  # the texts that rules allow byte by byte

    def silent(self, command: AnalyzedCommand) -> bool:
        """A quick yes for nearly every command that no rule for words can speak of: it has one view, of a program that none
        names."""
        argv = command.argv
        if self.by_any or command.harmless is not argv or command.bare is not argv or not argv:
            return False
        name = argv[0]
        return name is not None and name not in self.by_program and "/" not in name

    def about(self, command: AnalyzedCommand) -> list[Compiled]:
        """The commands' rules that can speak of the program in one of its views, with or without directory, in their order."""
        found = [*self.by_any]
        last = None
        for argv in (command.argv, command.harmless, command.bare):
            name = argv[0] if argv else None
            if name is not None and name != last:
                last = name
                found += self.by_program.get(name, ())
                if "/" in name:
                    found += self.by_program.get(name.rpartition("/")[2], ())
        return [self.commands[number] for number in sorted(set(found))] if found else []


# RuleSet -> its index. By identity, since a rule set is made once for a session and asked for every command; the entry
# holds the rule set, so that its identity stays taken.
_CACHE: dict[tuple[int, Place], tuple[RuleSet, RuleIndex]] = {}
_CACHE_SIZE = 128


def index_rules(rules: RuleSet, place: Place) -> RuleIndex:
    """All rules in force, ready to match; remembered for the next command."""
    key = (id(rules), place)
    found = _CACHE.get(key)
    if found is not None and found[0] is rules:
        return found[1]
    compiled = tuple(compile_rule(rule, place) for rule in rules.rules)
    effects: dict[EffectKind, tuple[Compiled, ...]] = {}
    for one in compiled:
        for kind in EFFECTS.get(one.family, ()):
            effects[kind] = (*effects.get(kind, ()), one)
    commands = tuple(one for one in compiled if one.family == "bash" and one.argv is not None)
    by_program: dict[str, tuple[int, ...]] = {}
    for number, one in enumerate(commands):
        program = one.argv.first_word if one.argv is not None else None
        by_program[program or ""] = (*by_program.get(program or "", ()), number)
    index = RuleIndex(
        tuple(one for one in compiled if one.rule.content is None),
        commands,
        effects,
        {kind: names for kind, rules in effects.items() if (names := _names(rules))},
        tuple(one for one in compiled if one.family == "text" and one.argv is not None),
        by_program,
        by_program.pop("", ()),
        frozenset(one.rule.content for one in commands if one.rule.behavior is Behavior.ALLOW and one.rule.content is not None),
    )
    if len(_CACHE) >= _CACHE_SIZE:
        _CACHE.clear()  # in one step: several threads judge at once
    _CACHE[key] = (rules, index)
    return index


def _names(rules: tuple[Compiled, ...]) -> frozenset[str]:
    """A literal component of every glob of the rules; none when one of them has none, or is not about paths."""
    found = [literal_name(glob) for one in rules for glob in one.globs or ("*",)]
    return frozenset() if None in found else frozenset(name for name in found if name)


# git's options before its subcommand that take the next word.
_GIT_VALUED = frozenset(
    ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--super-prefix", "--config-env", "--attr-source")
)


def git_words(argv: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """`git -C x -c a=b push origin` as `git push origin`: without the options before the subcommand."""
    at = 1
    while at < len(argv):
        word = argv[at]
        if word is None or not word.startswith("-"):
            break
        at += 2 if word in _GIT_VALUED else 1
    return (argv[0], *argv[at:])


def tight_views(command: AnalyzedCommand) -> tuple[str, ...]:
    """The argv texts that rules which tighten see."""
    out: dict[str, None] = {}
    argvs = [command.argv]
    argvs += [argv for argv in (command.harmless, command.bare) if argv and argv not in argvs]
    for argv in argvs:
        if not argv:
            continue
        out[argv_text(argv)] = None
        program = argv[0]
        if program is None:
            continue
        name = program.rpartition("/")[2]
        if name != program:
            argv = (name, *argv[1:])
            out[argv_text(argv)] = None
        if name == "git" and len(argv) > 1 and (argv[1] or "").startswith("-"):
            out[argv_text(git_words(argv))] = None
    return tuple(out)


def matches(rule: Rule, command: AnalyzedCommand, place: Place) -> bool:
    """Whether a rule speaks of one subcommand: its words (`Bash`), or one of its effects (`Read`, `Edit`, `WebFetch`)."""
    compiled = compile_rule(rule, place)
    if compiled.family == "bash":
        if rule.content is None:
            return True
        if compiled.tightens:
            return compiled.command(tight_views(command), "")
        return command.clean_env and compiled.command((argv_text(command.harmless),), argv_text(command.argv))
    return any(compiled.effect(effect) for effect in command.effects)


def excluded_rules(texts: tuple[str, ...]) -> tuple[Rule, ...]:
    """`policy.excluded_commands` as rules. Raises RuleError for one that is none, or that would exclude everything."""
    origin = "policy.excluded_commands"
    found = tuple(parse_rule(f"Bash({text})", Behavior.ALLOW, Source.USER, origin, lenient=True) for text in texts)
    if any(rule.content is None for rule in found):
        raise RuleError("an excluded command must name a program", origin=origin, fix='for example `["docker:*"]`')
    return found


def excluded(rules: tuple[Rule, ...], analysis: Analysis, place: Place) -> bool:
    """Whether every subcommand of a line is one of these, seen as by rules that allow: then it runs without a sandbox."""
    return (
        analysis.unparsed is None
        and bool(analysis.commands)
        and all(bool(command.argv) and any(matches(rule, command, place) for rule in rules) for command in analysis.commands)
    )


def _example(rule: Rule, example: str) -> bool:
    """Whether a rule matches one of its own examples: a command, a path, a host or a text, by the rule's tool."""
    place = Place("/example", "/example", "/home/example")
    compiled = compile_rule(rule, place)
    if rule.content is None:
        return True
    if compiled.family == "bash":
        argv = split_words(example)
        return compiled.command((argv_text(argv),), argv_text(argv))
    if compiled.family in ("read", "edit"):
        target = path_globs(example, project_of(rule.origin), place, tightens=False)[0]
        hit = path_hit if compiled.tightens else path_covered
        return hit(compiled.globs, target, pattern=False, tree=False)
    if compiled.family == "web":
        return host_matches(compiled.domain, example, tightens=compiled.tightens)
    return compiled.text(example)
