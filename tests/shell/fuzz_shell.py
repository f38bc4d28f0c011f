# SPDX-License-Identifier: GPL-3.0-or-later
"""A generator of shell text from a grammar, with mutations, and the loop that holds the parser against the real bash.

    python -m tests.shell.fuzz_shell [--seed N] [--cases N] [--batch N]

runs until it is stopped (or for `--cases`), prints the seed of each batch and every text that bash runs a command of which
the parser does not list. A batch is reproduced by its seed alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field

from sandboxd.model import Script
from sandboxd.shell.script import parse
from tests.shell import bash_oracle

_NAMES = ("c1", "c2", "c3", "f1", "f2", "rm", "ls", "cat", "echo")
_PLAIN = ("a", "x", "-n", "d1", "o", "a=b", "x/y", "1", "é", "a,b", "}", "{", "]", "[", "!", "#a", "in", "do", "time", "@")
_VARIABLES = ("v", "w", "x1")
_LITERALS = ("a", "b", "d1", "x y", "", "rm", "c1", "*", "1", "$(rm z)", "a'b", "~")
_HOSTILE = (
    "'", '"', "`", "$(", ")", "${", "}", "((", "))", "\\", "\\\n", "\n", ";", "&", "|", "<", ">", "<<E", "#", " ", "\t", "$'",
    "{", ",", "[", "]", "=", "$", "!", "time ", "if ", "fi", "do ", "done", "case ", "esac", "in ", ";;", "<(", "\\'", "&&",
    "E\n", "coproc ", "function ", "() ", "[[ ", "]] ", "$((", "~", "*", "{a,b}", "\\$", "\\`", "2>", ">&", "é", "-", "A=",
    "a[0]=",
)  # fmt: skip


_SEPARATORS = ("\\c<", "\\c]", "\\c^", "\\c\\", "\\c=", "\\c}", "\\c|", "\\c~")  # of the oracle's log, as escapes


@dataclass
class Generator:
    """Writes one text after another from a seeded source."""

    random: random.Random
    pending: list[str] = field(default_factory=list)
    budget: int = 0

    def text(self) -> str:
        self.pending = []
        self.budget = self.random.choice((4, 8, 16, 30))
        text = self.script(0) + self.newline()
        if self.random.random() < 0.3:
            text = self.mutate(text)
        return text.replace("\0", "")

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def newline(self) -> str:
        """A newline, and the bodies that are due at it."""
        bodies, self.pending = self.pending, []
        return "\n" + "".join(bodies)

    def separator(self) -> str:
        if self.pending or self.chance(0.3):
            return self.newline()
        return self.random.choice(("; ", ";", " ; ", " & ", "; # c\n", ";\n\n"))

    def end(self) -> str:
        """What ends a list inside a compound command."""
        if self.pending or self.chance(0.3):
            return self.newline()
        return self.random.choice(("; ", ";", " & "))

    def script(self, depth: int) -> str:
        count = self.random.choice((1, 1, 1, 2, 2, 3))
        out = self.and_or(depth)
        for _ in range(count - 1):
            out += self.separator() + self.and_or(depth)
        return out

    def and_or(self, depth: int) -> str:
        out = self.pipeline(depth)
        while self.chance(0.25):
            out += self.random.choice((" && ", " || ", "&&", "||")) + self.pipeline(depth)
        return out

    def pipeline(self, depth: int) -> str:
        out = self.random.choice(("! ", "time ", "time -p ", "! time ")) if self.chance(0.07) else ""
        out += self.command(depth)
        while self.chance(0.15):
            out += self.random.choice((" | ", "|", " |& ")) + self.command(depth)
        return out

    def command(self, depth: int) -> str:
        self.budget -= 1
        if depth < 4 and self.budget > 0 and self.chance(0.3):
            return self.compound(depth + 1) + ("" if self.chance(0.8) else " " + self.redirect(depth))
        return self.simple(depth)

    def simple(self, depth: int) -> str:
        kind = self.random.random()
        if kind < 0.12:
            return self.assignment(depth)
        if kind < 0.2:
            return self.random.choice(
                ("cd d1", "cd d2", "cd ..", "cd d1/..", "cd", 'cd "$v"', "pushd d1", "popd", "cd -", "cd $v")
            )
        if kind < 0.24:
            return self.random.choice(
                ("export v=a", "read v <<< 'c2'", "unset v", "declare w=b", "local v=1", "printf -v v b", "set -- rm x", "shift")
            )
        parts = []
        while self.chance(0.12):
            parts.append(self.assignment(depth) if self.chance(0.6) else self.redirect(depth))
        parts.append(self.name(depth))
        count = self.random.choice((0, 1, 1, 2, 2, 3))
        parts.extend([self.redirect(depth) if self.chance(0.12) else self.word(depth) for _ in range(count)])
        return self.random.choice((" ", " ", " ", "  ", "\t", " \\\n")).join(parts)

    def assignment(self, depth: int) -> str:
        name = self.random.choice(_VARIABLES)
        form = self.random.random()
        if form < 0.1:
            return f"{name}=({self.word(depth)} {self.word(depth)})"
        if form < 0.15:
            return f"{name}[{self.random.choice(('0', '1', '$(c3)', 'w'))}]={self.word(depth)}"
        if form < 0.25:
            return f"{name}+={self.word(depth)}"
        if form < 0.6:
            return f"{name}={self.random.choice(('a', 'd1', 'rm', 'c1', '1', chr(39) + 'x y' + chr(39), '', 'd1/d2'))}"
        return f"{name}={self.word(depth)}"

    def name(self, depth: int) -> str:
        name = self.random.choice(_NAMES)
        form = self.random.random()
        if form < 0.7:
            return name
        if form < 0.95:
            return self.disguise(name)
        return self.random.choice(("$v", '"$v"', "${v:-c1}", "$(echo rm)", "{c1,a}", "$w$v"))

    def disguise(self, text: str) -> str:
        """The same text, quoted in an odd way."""
        out = ""
        for char in text:
            out += self.random.choice(
                (char, char, f"'{char}'", f'"{char}"', f"\\{char}", f"$'{char}'", f"{char}''", f'""{char}', f"\\\n{char}",
                 f'$"{char}"', f"$'\\x{ord(char):02x}'")
            )  # fmt: skip
        return out

    def word(self, depth: int) -> str:
        out = self.piece(depth)
        while self.chance(0.3):
            out += self.piece(depth)
        return out

    def piece(self, depth: int) -> str:
        kind = self.random.random()
        if kind < 0.4 or depth > 5:
            return self.random.choice(_PLAIN)
        if kind < 0.5:
            return self.disguise(self.random.choice(("a", "ab", "rm", "x1")))
        if kind < 0.56:
            return "'" + self.random.choice(("a b", "$(rm q)", '"', "`", "\\", "${", "#", "a\nb", "")) + "'"
        if kind < 0.68:
            return '"' + "".join([self.quoted(depth) for _ in range(self.random.randrange(4))]) + '"'
        if kind < 0.72:
            return self.random.choice(
                ("*", "?", "[ab]", "~", "~/x", "{a,b}", "{1..3}", "{a,{b,c}}", "{}", "a{b,}c", "{a", "a}", "[!a]*")
            )
        if kind < 0.76:
            return self.random.choice(("$'a\\tb'", "$'\\''", '$"a"', "$'\\u0061'", "$'\\141'", "$'a\\nb'", "$'\\cA'"))
        return self.expansion(depth)

    def quoted(self, depth: int) -> str:
        if self.chance(0.5):
            return self.random.choice(
                ("a", " ", "'", "\\\\", '\\"', "\\$", "\\`", "\\a", "b\nc", "#", "*", "{a,b}", ")", "}", "\\\n", "~")
            )
        return self.expansion(depth)

    def expansion(self, depth: int) -> str:
        self.budget -= 1
        if depth > 5 or self.budget < -6:
            return self.random.choice(("$v", "${v}", '"$v"', "$1", "$@", "$#", "$?", "$"))
        kind = self.random.random()
        if kind < 0.2:
            return self.random.choice(("$v", "${v}", "$w", '"$v"', "$1", '"$@"', "$*", "$#", "$?", "$$", "${#v}", "$_", "${x1}"))
        if kind < 0.5:
            return self.substitution(depth)
        if kind < 0.75:
            operator = self.random.choice(
                (":-", "-", ":=", "=", ":+", "+", "#", "##", "%", "%%", "/", "//", "/#", "^", ",,", ":?")
            )
            operand = (
                self.word(depth + 1) if self.chance(0.7) else self.random.choice(("", "a b", "'}'", '"}"', "\\}", "a/b", "'a'"))
            )
            return "${" + self.random.choice(_VARIABLES) + operator + operand + "}"
        if kind < 0.85:
            return (
                "$(("
                + self.random.choice(
                    ("1+1", "(1)", "v", "$v+1", "$(echo 1)", "1+(2)", "v=1", "`echo 2`", "x1++", "0x1f", "${#v}")
                )
                + "))"
            )
        if kind < 0.88:
            return self.random.choice(
                ("$[1+1]", "${v@Q}", "${!v}", "${v[0]}", "${v[@]}", "${!v*}", "${v:1:1}", "${v:$(echo 0)}", "${v: -1}")
            )
        if kind < 0.94:
            return self.random.choice(("<(", ">(")) + self.inner(depth) + ")"
        return "`" + self.backticks(self.inner(depth)) + "`"

    def substitution(self, depth: int) -> str:
        return self.random.choice(("$(", "$( ")) + self.inner(depth) + self.random.choice((")", " )", "\n)", ";)"))

    def inner(self, depth: int) -> str:
        """A script inside a substitution; here-documents of it end inside, too."""
        outer, self.pending = self.pending, []
        text = self.script(depth + 2)
        if self.pending:
            text += self.newline()
        self.pending = outer
        return text

    def backticks(self, text: str) -> str:
        return text.replace("\\", "\\\\").replace("`", "\\`")

    def redirect(self, depth: int) -> str:
        kind = self.random.random()
        if kind < 0.25:
            return self.heredoc(depth)
        if kind < 0.4:
            return "<<<" + self.random.choice(("", " ")) + self.word(depth)
        fd = self.random.choice(("", "", "", "2", "10", "{fd}"))
        operator = self.random.choice((">", ">>", "<", ">|", "<>", ">&", "<&", "&>", "&>>"))
        if operator.startswith("&"):
            fd = ""
        target = self.random.choice(("o", "o", "/dev/null", "2", "1", "-", "1-", '"o"', "o$v", "$(echo o)"))
        return fd + operator + self.random.choice(("", " ")) + target

    def heredoc(self, depth: int) -> str:
        delimiter = self.random.choice(("E", "EOF", "E1"))
        strip = self.chance(0.25)
        is_quoted = self.chance(0.4)
        lines = []
        for _ in range(self.random.randrange(4)):
            line = self.random.choice(
                ("a", "", "rm x", "'", '"', "\\", "a \\\\", " E", "E E", "$v", "#", "a\\", "\\$(rm y)", "(", "`")
            )
            if line == "`" and not is_quoted:
                line = "`" + self.random.choice(("c3", "echo a", "rm \\$v")) + "`"
            if self.chance(0.4):
                line += self.random.choice(("$(c2 h)", "${v:-$(c3)}", "$((1+1))", '"$(c1)"', "${v:-a}", "'$(c1 i)'"))
            lines.append(("\t" * self.random.randrange(3) if strip else "") + line)
        lines.append(("\t" if strip and self.chance(0.5) else "") + delimiter)
        self.pending.append("\n".join(lines) + "\n")
        written = self.random.choice((f"'{delimiter}'", f'"{delimiter}"', f"\\{delimiter}")) if is_quoted else delimiter
        return ("<<-" if strip else "<<") + self.random.choice(("", " ")) + written

    def compound(self, depth: int) -> str:
        kind = self.random.randrange(13)
        body = self.script
        if kind == 0:
            return "(" + body(depth) + (self.newline() if self.pending else "") + ")"
        if kind == 1:
            return "{ " + body(depth) + self.end() + "}"
        if kind == 2:
            out = "if " + body(depth) + self.end() + "then " + body(depth) + self.end()
            while self.chance(0.3):
                out += "elif " + body(depth) + self.end() + "then " + body(depth) + self.end()
            if self.chance(0.5):
                out += "else " + body(depth) + self.end()
            return out + "fi"
        if kind == 3:
            words = " ".join([self.word(depth) for _ in range(self.random.randrange(4))])
            head = f"for v in {words}" if self.chance(0.85) else "for v"
            return head + self.header_end() + "do " + body(depth) + self.end() + "done"
        if kind == 4:
            return "while f1" + self.header_end() + "do " + body(depth) + self.end() + "done"
        if kind == 5:
            return "until c1 " + self.end_plain() + "do " + body(depth) + self.end() + "done"
        if kind == 6:
            return self.case(depth)
        if kind == 7:
            name = self.random.choice(("g1", "g2", "g3"))
            head = self.random.choice((f"{name}() ", f"function {name} ", f"{name} ()\n", f"function {name}() "))
            if self.pending:
                return "c1"
            return head + "{ " + body(depth) + self.end() + "}" + ("; " + name if self.chance(0.6) else "")
        if kind == 8:
            return "[[ " + self.condition(depth) + " ]]"
        if kind == 9:
            return self.random.choice(("((1))", "(( 0 ))", "((v=1))", "(( $(echo 1) ))", "((1<2))"))
        if kind == 10:
            return "for ((i=0;i<2;i++)); do " + body(depth) + self.end() + "done"
        if kind == 11:
            return "coproc " + self.simple(depth)
        return "for v in a b d1; do cd d1; c1 $v" + self.end() + "done"

    def header_end(self) -> str:
        if self.pending:
            return self.newline()
        return self.random.choice(("; ", "\n", " ;\n"))

    def end_plain(self) -> str:
        return self.newline() if self.pending else "; "

    def case(self, depth: int) -> str:
        out = "case " + self.word(depth) + " in "
        if self.pending:
            return "c1"
        for _ in range(self.random.randrange(1, 4)):
            pattern = self.random.choice(("a", "*", "a|b", "[ab]*", "'x y'", "$(c3)", '"$v"', "(a", "( a | b "))
            out += f"{pattern}) " + (self.script(depth) if self.chance(0.8) else "")
            if self.pending:
                out += self.newline()
            out += self.random.choice((";; ", ";;\n", ";& ", ";;& "))
        return out + "esac"

    def condition(self, depth: int) -> str:
        kind = self.random.randrange(6)
        if kind == 0:
            return self.random.choice(("-n ", "-z ", "-f ", "! -e ")) + self.word(depth)
        if kind == 1:
            return (
                self.word(depth)
                + self.random.choice((" == ", " = ", " != "))
                + self.random.choice(("a*", "$v", "'x y'", "@(a|b)", "$(c1)"))
            )
        if kind == 2:
            return "a =~ " + self.random.choice(("^(a|b)$", "a", "$(c1 r)", "[a-z]+", "'a b'", "(a b)"))
        if kind == 3:
            return self.condition(depth) + self.random.choice((" && ", " || ")) + self.condition(depth)
        if kind == 4:
            return "( " + self.condition(depth) + " )"
        return self.random.choice(("1 -eq 1", "1 -lt $(echo 2)", "a < b", "-v v", "a"))

    def mutate(self, text: str) -> str:
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            at = self.random.randrange(len(text) + 1)
            kind = self.random.random()
            if kind < 0.5:
                text = text[:at] + self.random.choice(_HOSTILE) + text[at:]
            elif kind < 0.75:
                text = text[:at] + text[at + self.random.choice((1, 1, 2, 5)) :]
            else:
                to = min(len(text), at + self.random.randrange(1, 12))
                where = self.random.randrange(len(text) + 1)
                text = text[:where] + text[at:to] + text[where:]
        return text


@dataclass
class Tally:
    """What a batch showed."""

    cases: int = 0
    parsed: int = 0
    ran: int = 0
    failures: list[tuple[str, list[bash_oracle.Run]]] = field(default_factory=list)


def batch(seed: int, count: int) -> Tally:
    """Generate `count` texts from `seed` and hold each against bash."""
    generator = Generator(random.Random(seed))
    tally = Tally(cases=count)
    read: list[tuple[str, Script]] = []
    for _ in range(count):
        text = generator.text()
        script = parse(text)
        if script.unparsed is not None:
            continue
        tally.parsed += 1
        # What is refused needs no check, and what multiplies is not run, sandbox or not.
        if not _not_run(script):
            read.append((text, script))
    suspects = []
    for (text, script), runs in zip(read, bash_oracle.run([text for text, _ in read]), strict=True):
        tally.ran += bool(runs)
        if runs is None or bash_oracle.missing(script, runs):
            suspects.append(text)
    if suspects:
        # Two commands that log at one time can tear a record; what is real shows again.
        again = bash_oracle.run(suspects * 3)
        for index, text in enumerate(suspects):
            script = parse(text)
            lost = [bash_oracle.missing(script, runs) for runs in again[index :: len(suspects)] if runs is not None]
            if not lost or all(lost):
                tally.failures.append((text, lost[0] if lost else []))
    return tally


def _not_run(script: Script) -> bool:
    """Whether a function of the text starts itself again beside itself, or the log could not be read."""
    if any(mark in script.text for mark in _SEPARATORS):
        return True
    return any(note.code == "shell.fork_bomb" for command in script.subcommands for note in command.notes)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=None, help="first seed; default: from the clock, printed")
    parser.add_argument("--cases", type=int, default=0, help="stop after that many; 0 = never")
    parser.add_argument("--batch", type=int, default=500)
    options = parser.parse_args(arguments)
    if not bash_oracle.available():
        print("bash and bwrap are needed", file=sys.stderr)
        return 2
    seed = options.seed if options.seed is not None else int(time.time())
    done = failed = parsed = 0
    while not options.cases or done < options.cases:
        tally = batch(seed, options.batch)
        done += tally.cases
        parsed += tally.parsed
        failed += len(tally.failures)
        print(
            f"seed {seed}: {tally.parsed}/{tally.cases} parsed, {tally.ran} ran something, {len(tally.failures)} lost", flush=True
        )
        for text, lost in tally.failures:
            print(f"  {text!r}\n    not listed: {[(one.cwd, *one.argv) for one in lost]}", flush=True)
        seed += 1
    print(f"{done} cases, {parsed} parsed, {failed} lost a command")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
