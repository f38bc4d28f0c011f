# SPDX-License-Identifier: GPL-3.0-or-later
"""From TOML to rows: reads one table file, checks every rule of docs/tables.md, and says file:line when one is broken."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from sandboxd.effects.languages import LANGUAGES
from sandboxd.effects.roles import ROLES, Role
from sandboxd.effects.rows import Arity, Example, Level, Operand, Option, Standing, Table, When
from sandboxd.errors import TableError
from sandboxd.model import EffectKind

# fmt: off
_LEVEL_KEYS = frozenset((
    "because", "operands", "options", "option", "use", "effects", "when", "sub",
    "exact", "any", "raw", "behind", "edit", "inert", "language", "permute",
))
_TOOL_KEYS = _LEVEL_KEYS | frozenset((
    "same_as", "style", "abbreviations", "numeric", "bundle", "globals", "wrapper",
    "credentials", "exit_ok", "notes", "set", "example",
))
# fmt: on
_OPTION_KEYS = frozenset(("names", "role", "effects", "values", "separator", "otherwise", "because"))
_WHEN_KEYS = frozenset(("any", "all", "none", "count", "operands", "effects", "edit"))
_SPEC = re.compile(r"(?P<names>[^=\[\]\s]+(?:\[no-\][^=\[\]\s]+)*)(?P<arity>==?|\[=\])?\Z")
_COUNT = re.compile(r"(\d+)(\+|-(\d+))?\Z")
_OPTION_NAME = re.compile(r"--?[^\s=|]*\Z|\+[^\s=|]+\Z|[A-Za-z_]+\Z")


def parse_table(text: str, origin: str, name: str) -> Table:
    """The table in `text`; `origin` is its file's name. Raises TableError with file:line."""
    reader = _Reader(text, origin)
    if reader.data.get("tool") != name:
        reader.fail("tool", f'`tool` must be "{name}", as the file is named')
    data = {key: value for key, value in reader.data.items() if key != "tool"}
    return reader.table(data, name, ())


def parse_bundle(text: str, origin: str) -> dict[str, Table]:
    """The tables of a file that holds several, each as `[tool.NAME]`."""
    reader = _Reader(text, origin)
    return {name: reader.table(data, name, ("tool", name)) for name, data in reader.data.get("tool", {}).items()}


class _Reader:
    """One file being read: turns its data into values and finds line numbers for errors."""

    def __init__(self, text: str, origin: str) -> None:
        self.text = text
        self.origin = origin
        try:
            self.data: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            line = re.search(r"at line (\d+)", str(error))
            raise TableError(f"not TOML: {error}", origin=f"{origin}:{line[1]}" if line else origin) from error
        self.sets: dict[str, tuple[Option, ...]] = {}
        self.levels: dict[tuple[int, str, bool], Level] = {}

    def fail(self, word: str, message: str, fix: str = "") -> NoReturn:
        """Raise TableError at the first line that holds `word`, best on a key or a header."""
        lines = self.text.splitlines()
        wanted = word.strip()
        number = next((n for n, line in enumerate(lines, 1) if wanted and wanted in line), 1)
        raise TableError(message, origin=f"{self.origin}:{number}", fix=fix)

    def table(self, data: dict[str, Any], name: str, where: tuple[str, ...]) -> Table:
        origin = f"{self.origin}:{self._line_of(where)}"
        self._keys(data, _TOOL_KEYS, name)
        if "because" not in data:
            raise TableError(f"the table of `{name}` has no `because`", origin=origin, fix="name the manual it was made from")
        if "same_as" in data:
            self._keys(data, frozenset(("same_as", "because")), name)
            return Table(name, Level(name, data["because"], {}), origin, same_as=self._text(data, "same_as"))
        self.sets = {}
        for key, group in self._mapping(data, "set").items():
            self.sets[key] = tuple(self._options(group, key))
        style = self._choice(data, "style", ("gnu", "words"))
        anywhere = self._choice(data, "globals", ("before", "anywhere")) == "anywhere"
        root = self.level(data, name, None)
        if anywhere:
            root = _spread(root, root.options)
        wrapper = self._choice(data, "wrapper", ("", "harmless", "other"))
        return Table(
            name=name,
            root=root,
            origin=origin,
            words=style == "words",
            abbreviations=self._flag(data, "abbreviations"),
            numeric=self._flag(data, "numeric"),
            bundle=self._flag(data, "bundle"),
            anywhere=anywhere,
            wrapper=wrapper,
            credentials=tuple(self._text(data, "credentials").split()),
            exit_ok=frozenset((0, *data.get("exit_ok", ()))),
            examples=tuple(self._examples(data)),
        )

    def level(self, data: dict[str, Any], ident: str, parent: Level | None) -> Level:
        shared: dict[str, Option] = {}
        for name in self._text(data, "use").split():
            if name not in self.sets:
                self.fail(name, f"`use` names the unknown set `{name}`", f"add [set.{name}]")
            self._add(shared, self.sets[name], ident)
        own: dict[str, Option] = {}
        self._add(own, self._options(self._mapping(data, "options"), ident), ident)
        self._add(own, self._blocks(data), ident)
        options = {**shared, **own}
        because, permute = (parent.because, parent.permute) if parent else ("", True)
        level = Level(
            id=ident,
            because=self._text(data, "because") or because,
            options=options,
            operands=self._operands(data, ident),
            effects=self._standing(data, ident),
            when=tuple(self._whens(data, ident, options)),
            exact=frozenset(tuple(form.split()) for form in self._strings(data, "exact")),
            any=self._flag(data, "any"),
            raw=self._flag(data, "raw"),
            edit=self._flag(data, "edit"),
            inert=self._flag(data, "inert"),
            permute=self._flag(data, "permute", permute),
            language=self._text(data, "language"),
            behind=self._role(self._text(data, "behind"), ident) if "behind" in data else None,
            plus=any(name.startswith("+") for name in options),
            pairs=any(name[0] not in "+-" for name in options),
        )
        self._check(level)
        subs: dict[str, dict[str, Any]] = {}
        for key, group in self._mapping(data, "sub").items():
            if not isinstance(group, dict):
                self.fail(key, f"`sub.{key}` of `{ident}` must be a table")
            self._keys(group, _LEVEL_KEYS, f"{ident}.{key}")
            for path in itertools.product(*(piece.split("|") for piece in key.split())):
                self._place(subs, path, group, ident)
        return _with_subs(level, self._subs(subs, ident, level))

    def _place(self, tree: dict[str, dict[str, Any]], path: tuple[str, ...], group: dict[str, Any], ident: str) -> None:
        node = tree.setdefault(path[0], {})
        for word in path[1:]:
            node = node.setdefault(" ", {}).setdefault(word, {})
        if "" in node:
            self.fail(path[-1], f"subcommand `{' '.join(path)}` of `{ident}` is listed twice")
        node[""] = group

    def _subs(self, tree: dict[str, dict[str, Any]], ident: str, parent: Level) -> dict[str, Level]:
        out = {}
        for word, node in tree.items():
            level = self._shared(node.get("", {}), f"{ident}.{word}", parent)
            nested = self._subs(node.get(" ", {}), level.id, level)
            both = set(nested) & set(level.subs)
            if both:
                self.fail(both.pop(), f"subcommands of `{level.id}` are listed twice")
            out[word] = _with_subs(level, {**level.subs, **nested})
        return out

    def _shared(self, data: dict[str, Any], ident: str, parent: Level) -> Level:
        """The level of `data`, read once for all the names that have it in common."""
        if not data or "sub" in data:
            return self.level(data, ident, parent)
        key = (id(data), parent.because, parent.permute)
        if key not in self.levels:
            self.levels[key] = self.level(data, ident, parent)
        return replace(self.levels[key], id=ident)

    def _add(self, known: dict[str, Option], options: Iterable[Option], ident: str) -> None:
        for option in options:
            for name in option.names:
                if known.setdefault(name, option) != option:
                    self.fail(name, f"option `{name}` of `{ident}` is listed twice", "a level's own options override its sets")

    def _options(self, group: Mapping[str, Any], ident: str) -> Iterator[Option]:
        for role_name, specs in _flatten(group, ""):
            role = self._role(role_name, ident)
            if not isinstance(specs, str):
                self.fail(role_name, f"options `{role_name}` of `{ident}` must be one string")
            for spec in specs.split():
                yield self._option(spec, role)

    def _option(self, spec: str, role: Role, **more: Any) -> Option:
        match = _SPEC.match(spec)
        if match is None:
            plain, arity = (spec[:-3], "[=]") if spec.endswith("[=]") else (spec.rstrip("="), "=" if spec.endswith("=") else "")
        else:
            plain, arity = match["names"], match["arity"] or ""
        names = []
        for name in plain.split("|"):
            spellings = (name.replace("[no-]", ""), name.replace("[no-]", "no-")) if "[no-]" in name else (name,)
            for spelling in spellings:
                if not _OPTION_NAME.match(spelling) or (spelling[0] not in "+-" and arity != "="):
                    self.fail(spec, f"`{spec}` is no option", "write `-o|--output=`, `--color[=]`, `+x`, or `if=`")
                names.append(spelling)
        return Option(tuple(names), Arity(arity), role, **more)

    def _blocks(self, data: dict[str, Any]) -> Iterator[Option]:
        for block in data.get("option", ()):
            names = self._text(block, "names")
            self._keys(block, _OPTION_KEYS, f"option {names}")
            if len(names.split()) != 1:
                self.fail(names or "[[option]]", "`names` of an [[option]] must be one option", "write `-o|--output=`")
            more: dict[str, Any] = {"because": self._text(block, "because"), "effects": self._standing(block, names)}
            if "values" in block:
                listed = isinstance(block["values"], list)
                more["values"] = frozenset(self._strings(block, "values") if listed else self._text(block, "values").split())
                more["separator"] = self._text(block, "separator")
            if "otherwise" in block:
                more["otherwise"] = self._role(self._text(block, "otherwise"), names)
            yield self._option(names, self._role(block.get("role", "text"), names), **more)

    def _operands(self, data: dict[str, Any], ident: str) -> tuple[Operand, ...] | None:
        if "operands" not in data:
            return None
        out = []
        for word in self._strings(data, "operands"):
            many, optional = word.endswith("..."), word.endswith("?")
            out.append(Operand(self._role(word.rstrip(".?"), ident), many, optional))
        if sum(operand.many for operand in out) > 1:
            self.fail("operands", f"`operands` of `{ident}` has more than one `...`")
        if any(operand.role.name in ("command", "code.rest") for operand in out[:-1]):
            self.fail("operands", f"`command` and `code.rest` of `{ident}` must stand last")
        return tuple(out)

    def _whens(self, data: dict[str, Any], ident: str, options: Mapping[str, Option]) -> Iterator[When]:
        for block in data.get("when", ()):
            self._keys(block, _WHEN_KEYS, f"when of {ident}")
            names = {}
            for key in ("any", "all", "none"):
                names[key] = frozenset(self._text(block, key).split())
                for name in names[key]:
                    if name not in options:
                        self.fail(name, f"`when` of `{ident}` names the unlisted option `{name}`")
            count = None
            if "count" in block:
                match = _COUNT.match(self._text(block, "count"))
                if match is None:
                    self.fail("count", f'`count` of `{ident}` must be like "0", "2+", "1-2"')
                low = int(match[1])
                count = (low, None if match[2] == "+" else int(match[3] or low))
            yield When(
                **names,
                count=count,
                operands=self._operands(block, ident),
                effects=self._standing(block, ident),
                edit=self._flag(block, "edit"),
            )

    def _standing(self, data: dict[str, Any], ident: str) -> tuple[Standing, ...]:
        out = []
        for text in self._strings(data, "effects"):
            name, _, target = text.partition(" ")
            out.append(Standing(self._role(name, ident), target.strip() or None))
        return tuple(out)

    def _examples(self, data: dict[str, Any]) -> Iterator[Example]:
        for row in data.get("example", ()):
            self._keys(row, frozenset(("run", "is")), "example")
            holds = row.get("is", ())
            holds = (holds,) if isinstance(holds, str) else tuple(holds)
            if not holds or "run" not in row:
                self.fail("[[example]]", "an example needs `run` and `is`")
            needle = next((line for line in row["run"].splitlines() if line.strip()), "")
            number = next((n for n, line in enumerate(self.text.splitlines(), 1) if needle in line and "run" in line), 1)
            yield Example(row["run"], holds, f"{self.origin}:{number}")

    def _check(self, level: Level) -> None:
        opaque = any(standing.role.kind is EffectKind.OPAQUE for standing in level.effects)
        if level.any and not opaque:
            self.fail("any", f"`any = true` of `{level.id}` needs an `opaque.*` effect", "list its options and operands instead")
        if level.inert:
            for option in level.options.values():
                if option.dangerous:
                    self.fail(option.names[0], f"`{level.id}` is `inert`, but `{option.names[0]}` does more than read")
        programs = [option for option in level.options.values() if option.role.name == "program"]
        operands = [*(level.operands or ()), *(o for when in level.when for o in when.operands or ())]
        if not level.language and (programs or any(operand.role.name == "program" for operand in operands)):
            self.fail("program", f"`{level.id}` has a `program` but no `language`")
        if level.language and level.language not in LANGUAGES:
            self.fail("language", f"unknown language `{level.language}`", f"known are {', '.join(sorted(LANGUAGES))}")

    def _role(self, name: Any, ident: str) -> Role:
        role = ROLES.get(name)
        if role is None:
            self.fail(str(name), f"unknown role `{name}` in `{ident}`", "docs/tables.md lists the roles")
        return role

    def _keys(self, data: Mapping[str, Any], known: frozenset[str], ident: str) -> None:
        for key in data:
            if key not in known:
                self.fail(key, f"unknown key `{key}` in `{ident}`", f"known are {', '.join(sorted(known))}")

    def _mapping(self, data: Mapping[str, Any], key: str) -> dict[str, Any]:
        value = data.get(key, {})
        if not isinstance(value, dict):
            self.fail(key, f"`{key}` must be a table")
        return value

    def _text(self, data: Mapping[str, Any], key: str) -> str:
        value = data.get(key, "")
        if not isinstance(value, str):
            self.fail(key, f"`{key}` must be a string")
        return value

    def _strings(self, data: Mapping[str, Any], key: str) -> tuple[str, ...]:
        value = data.get(key, ())
        if isinstance(value, str) or not all(isinstance(item, str) for item in value):
            self.fail(key, f"`{key}` must be a list of strings")
        return tuple(value)

    def _flag(self, data: Mapping[str, Any], key: str, default: bool = False) -> bool:
        value = data.get(key, default)
        if not isinstance(value, bool):
            self.fail(key, f"`{key}` must be true or false")
        return value

    def _choice(self, data: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> str:
        value = data.get(key, choices[0])
        if value not in choices:
            self.fail(key, f"`{key}` must be one of {', '.join(choices)}")
        return str(value)

    def _line_of(self, where: tuple[str, ...]) -> int:
        header = f"[{'.'.join(where)}]" if where else "tool"
        return next((n for n, line in enumerate(self.text.splitlines(), 1) if line.startswith(header)), 1)


def _flatten(group: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """`{path: {read: "-f="}}` as `path.read`: dotted keys are how TOML writes role names."""
    for key, value in group.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _spread(level: Level, options: Mapping[str, Option]) -> Level:
    """The level with `options` accepted in all its subcommands too; a subcommand's own spelling wins."""
    subs = {name: _spread(sub, options) for name, sub in level.subs.items()}
    merged = {**options, **level.options}
    return replace(level, options=merged, subs=subs)


def _with_subs(level: Level, subs: dict[str, Level]) -> Level:
    globs = sorted((name for name in subs if "*" in name), key=len, reverse=True)
    return replace(level, subs=subs, globs=tuple(globs))
