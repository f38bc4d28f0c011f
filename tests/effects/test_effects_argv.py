# SPDX-License-Identifier: GPL-3.0-or-later
"""Words read by a table: options in every spelling, operands by place, and nothing unlisted let through."""

from __future__ import annotations

import pytest

from sandboxd.effects.argv import Parsed
from sandboxd.effects.examples import failures, words
from sandboxd.effects.reader import parse_table
from sandboxd.effects.rows import Table
from sandboxd.effects.tables import Tables
from sandboxd.errors import TableError
from tests.effects.effects_cases import changes

GNU = """
tool = "brew"
because = "made up"
abbreviations = true
numeric = true
operands = ["path.read", "path.write?"]
options.text = "-u|--unique -k|--key= --color[=] -i[=] --[no-]pager -z -v|--verbose --verify"
options.path.write = "-o|--output="
options.path.read = "--pair=="
"""
WORDS = """
tool = "brew"
because = "made up"
style = "words"
operands = ["path.read..."]
options.text = "-name= -list"
options.path.write = "-out="
"""
SUBS = """
tool = "brew"
because = "made up"
globals = "anywhere"
options.text = "-n|--namespace="
[sub.get]
operands = ["text..."]
[sub."set|put"]
operands = ["path.write"]
[sub."remote show"]
operands = ["text?"]
[sub.remote]
operands = []
"""
POSIX = """
tool = "brew"
because = "made up"
permute = false
operands = ["text", "command?"]
options.text = "-n="
"""
DD = """
tool = "brew"
because = "made up"
options.text = "bs= count="
options.path.read = "if="
options.path.write = "of="
"""
TAR = """
tool = "brew"
because = "made up"
bundle = true
operands = ["path.read..."]
options.text = "-t -v"
options.path.read = "-f="
options.path.write = "-o="
"""

# (table, words, options given as NAME or NAME=VALUE, operands, problem codes)
READ = [
    (GNU, "-u a", "-u", "a", ""),
    (GNU, "--unique a", "--unique", "a", ""),
    (GNU, "-uz a", "-u -z", "a", ""),
    (GNU, "-uk1 a", "-u -k=1", "a", ""),
    (GNU, "-k 1 a", "-k=1", "a", ""),
    (GNU, "--key 1 a", "--key=1", "a", ""),
    (GNU, "--key=1 a", "--key=1", "a", ""),
    (GNU, "--ke=1 a", "--ke=1", "a", ""),
    (GNU, "--out=x a", "--out=x", "a", ""),
    (GNU, "--o x a", "--o=x", "a", ""),
    (GNU, "--ver a", "", "a", "opaque.unlisted_option"),
    (GNU, "--color a", "--color", "a", ""),
    (GNU, "--color=x a", "--color=x", "a", ""),
    (GNU, "-i a", "-i", "a", ""),
    (GNU, "-i.bak a", "-i=.bak", "a", ""),
    (GNU, "-ui.bak a", "-u -i=.bak", "a", ""),
    (GNU, "--no-pager --pager a", "--no-pager --pager", "a", ""),
    (GNU, "--pair a b c", "--pair=b", "c", ""),
    (GNU, "a -u", "-u", "a", ""),
    (GNU, "-- -u", "", "-u", ""),
    (GNU, "a -- -o x", "", "a -o x", ""),
    (GNU, "-5 a", "", "a", ""),
    (GNU, "-u5 a", "-u", "a", ""),
    (GNU, "-", "", "-", ""),
    (GNU, "-x a", "", "a", "opaque.unlisted_option"),
    (GNU, "-ux a", "-u", "a", "opaque.unlisted_option"),
    (GNU, "--exec=x a", "", "a", "opaque.unlisted_option"),
    (GNU, "--unique=x a", "", "a", "opaque.unlisted_option"),
    (GNU, "--help", "", "", "opaque.unlisted_option"),
    (GNU, "$x a", "", "$x a", "opaque.dynamic_option"),
    (GNU, "${x} a", "", "$x a", "opaque.dynamic_option"),
    (GNU, "./$x a", "", "$x a", "opaque.dynamic_option"),
    (GNU, "./${x} a", "", "$x a", ""),
    (GNU, "-- ${x}", "", "$x", ""),
    (GNU, "-k ${x} a", "-k=$", "a", ""),
    (GNU, "-k$x a", "", "$ a", "opaque.dynamic_option"),
    (GNU, "-k${x} a", "-k=$", "a", ""),
    (GNU, "--key=${x} a", "--key=$", "a", ""),
    (GNU, "--key=$x a", "", "$ a", "opaque.dynamic_option"),
    (GNU, "-${x} a", "", "$ a", "opaque.dynamic_option"),
    (GNU, "-u${x} a", "", "$ a", "opaque.dynamic_option"),
    (GNU, "* a", "", "$ a", "opaque.dynamic_option"),
    (GNU, "a* b", "", "$ b", ""),
    (WORDS, "-name x -list a", "-name=x -list", "a", ""),
    (WORDS, "--name=x a", "--name=x", "a", ""),
    (WORDS, "-ln a", "", "a", "opaque.unlisted_option"),
    (WORDS, "-out a", "-out=a", "", ""),
    (SUBS, "get a", "", "a", ""),
    (SUBS, "-n x get a", "-n=x", "a", ""),
    (SUBS, "get -n x a", "-n=x", "a", ""),
    (SUBS, "put a", "", "a", ""),
    (SUBS, "remote show a", "", "a", ""),
    (SUBS, "rm a", "", "rm a", "opaque.unlisted_subcommand"),
    (SUBS, "$x a", "", "$ a", "opaque.unlisted_subcommand"),
    (SUBS, "-- get", "", "get", "opaque.unlisted_option opaque.unlisted_subcommand"),
    (POSIX, "-n 1 5 rm -rf x", "-n=1", "5 rm -rf x", ""),
    (POSIX, "5 -n 1", "", "5 -n 1", ""),
    (DD, "if=a of=b", "if=a of=b", "", ""),
    (DD, "if=${x}", "if=$", "", ""),
    (DD, "${x}", "", "$", "opaque.dynamic_option opaque.dynamic_option"),
    (TAR, "tf a b", "-t -f=a", "b", ""),
    (TAR, "-tf a b", "-t -f=a", "b", ""),
    (TAR, "tof a b", "-t -o=a -f=b", "", ""),
    (TAR, "tx a", "-t", "a", "opaque.unlisted_option"),
]


def table(text: str) -> Table:
    return parse_table(text, "brew.toml", "brew")


@pytest.mark.parametrize(("toml", "line", "given", "operands", "problems"), READ, ids=lambda value: str(value)[:40])
def test_words_are_read_as_getopt_would(toml: str, line: str, given: str, operands: str, problems: str) -> None:
    """Clusters, attached and separate values, abbreviations, `--`; an unknown word is no option only where it cannot be."""
    parsed = Parsed(table(toml), tuple(words(line)))
    seen = [
        option.name if option.value is None else f"{option.name}={'$' if option.value.value is None else option.value.value}"
        for option in parsed.given
    ]
    assert seen == given.split()
    assert ["$" if word.value is None else word.value for word in parsed.operands] == [
        "$" if word.startswith("$") else word for word in operands.split()
    ]
    assert [problem.code for problem in parsed.problems] == problems.split()


ROLES = [
    ('operands = ["path.read...", "path.into"]', "a b c", ["read /w/a", "write.write /w/c", "write.write /w/c/b"]),
    ('operands = ["path.read?", "path.write?"]', "a b", ["read /w/a", "write.truncate /w/b"]),
    ('operands = ["path.read?", "path.write?"]', "a", ["read /w/a", "read-only"]),
    ('operands = ["path.read?"]', "a b", ["opaque.unlisted_operand"]),
    ("", "a", ["opaque.unlisted_operand"]),
    ('operands = ["path.read"]', "a $x", ["opaque.dynamic_option"]),
    ('operands = ["path.read?", "path.write?"]\ninert = true', "$x", ["write"]),
    ('operands = ["path.read..."]\ninert = true', "$x *", ["read-only"]),
    ('operands = []\noptions.text = "-a"\n[[when]]\nany = "-a"\neffects = ["path.write out"]', "-a", ["write.truncate /w/out"]),
    ('operands = ["text..."]\n[[when]]\ncount = "2+"\noperands = ["path.delete..."]', "a", ["read-only"]),
    ('operands = ["text..."]\n[[when]]\ncount = "2+"\noperands = ["path.delete..."]', "a b", ["delete.delete /w/b"]),
    ('operands = ["text..."]\ninert = true\n[[when]]\ncount = "2+"\noperands = ["path.delete..."]', "$x", ["delete"]),
    ('operands = ["path.stat..."]\noptions.path.chdir = "-C="', "a -C /b", ["read /b/a"]),
    ('operands = ["text..."]\nbehind = "path.edit"', "a -- b", ["write.write /w/b"]),
    (
        'operands = ["text..."]\neffects = ["opaque.build", "host.fetch example.com"]',
        "a",
        ["opaque.build", "network.fetch example.com"],
    ),
    ('operands = ["url.fetch"]\noptions.send = "-d="', "-d x https://example.com/a", ["network.send example.com"]),
    ('operands = ["url.fetch"]', "https://example.com/a", ["network.fetch example.com", "read-only"]),
    ('operands = ["url.fetch"]', "https://example.com/${x}", ["network.send example.com"]),
    ('operands = ["url.fetch"]', "example.com/a", ["network.send example.com"]),
    ('operands = ["text?"]\nexact = ["--version"]', "--version", ["read-only"]),
    ('operands = ["text?"]\nexact = ["--version"]', "a --version", ["opaque.unlisted_option"]),
    ('operands = []\n[[option]]\nnames = "-m="\nvalues = "a b"\nseparator = ","', "-m a,b", ["read-only"]),
    ('operands = []\n[[option]]\nnames = "-m="\nvalues = "a b"\nseparator = ","', "-m a,c", ["opaque.unlisted_value"]),
    ('operands = []\n[[option]]\nnames = "-m="\nvalues = "a b"', "-m ${x}", ["opaque.unlisted_value"]),
    ('operands = []\n[[option]]\nnames = "-m="\nvalues = "a b"\notherwise = "process.signal"', "-m c", ["process.signal"]),
]


@pytest.mark.parametrize(("body", "line", "holds"), ROLES, ids=lambda value: str(value)[:60])
def test_roles_become_effects(body: str, line: str, holds: list[str]) -> None:
    """Operands by position and count, standing effects, conditions, directions: the table decides, the words fill in."""
    items = "\n".join(f'"{item}",' for item in holds)
    text = f'tool = "brew"\nbecause = "made up"\n{body}\n[[example]]\nrun = "brew {line}"\nis = [{items}]\n'
    made = table(text)
    tables = Tables()

    class Only:
        def find(self, name: str) -> tuple[Table, ...]:
            return (made,) if name == "brew" else tables.find(name)

    assert list(failures(made, Only(), tables.environment)) == []


WRONG = [
    ('tool = "brew"\n', "brew.toml:1", "no `because`"),
    ('tool = "tea"\nbecause = "x"\n', "brew.toml:1", "as the file is named"),
    ('tool = "brew"\nbecause = "x"\nnope = 1\n', "brew.toml:3", "unknown key `nope`"),
    ('tool = "brew"\nbecause = "x"\noperands = ["path.eat"]\n', "brew.toml:3", "unknown role `path.eat`"),
    ('tool = "brew"\nbecause = "x"\noperands = "text"\n', "brew.toml:3", "list of strings"),
    ('tool = "brew"\nbecause = "x"\noperands = ["text...", "text..."]\n', "brew.toml:3", "more than one"),
    ('tool = "brew"\nbecause = "x"\noperands = ["command", "text"]\n', "brew.toml:3", "must stand last"),
    ('tool = "brew"\nbecause = "x"\noptions.text = "-a -a="\n', "brew.toml:3", "listed twice"),
    ('tool = "brew"\nbecause = "x"\noptions.text = "qq"\n', "brew.toml:3", "is no option"),
    ('tool = "brew"\nbecause = "x"\ninert = true\noptions.path.write = "-o="\n', "brew.toml:4", "does more than read"),
    ('tool = "brew"\nbecause = "x"\nany = true\n', "brew.toml:3", "needs an `opaque.*` effect"),
    ('tool = "brew"\nbecause = "x"\nlanguage = "latin"\n', "brew.toml:3", "unknown language"),
    ('tool = "brew"\nbecause = "x"\noperands = ["program"]\n', "brew.toml:3", "no `language`"),
    ('tool = "brew"\nbecause = "x"\nuse = "more"\n', "brew.toml:3", "unknown set"),
    ('tool = "brew"\nbecause = "x"\n[[when]]\nany = "-q"\n', "brew.toml:4", "unlisted option `-q`"),
    ('tool = "brew"\nbecause = "x"\n[[when]]\ncount = "few"\n', "brew.toml:4", "must be like"),
    ('tool = "brew"\nbecause = "x"\nstyle = "loud"\n', "brew.toml:3", "must be one of"),
    ('tool = "brew"\nbecause = "x"\nraw = 1\n', "brew.toml:3", "true or false"),
    ('tool = "brew"\nbecause = "x"\n[[example]]\nrun = "brew"\n', "brew.toml:3", "needs `run` and `is`"),
    ('tool = "brew"\nbecause = \n', "brew.toml:2", "not TOML"),
    ('tool = "brew"\nbecause = "x"\nsame_as = "cat"\nraw = true\n', "brew.toml:4", "unknown key"),
]


@pytest.mark.parametrize(("text", "where", "what"), WRONG, ids=lambda value: str(value)[-40:])
def test_a_wrong_table_names_line_and_fault(text: str, where: str, what: str) -> None:
    """A table that breaks a rule is refused as a whole, with file:line."""
    with pytest.raises(TableError) as caught:
        table(text)
    assert str(caught.value).startswith(where)
    assert what in str(caught.value)


def test_only_reads_count_as_reads() -> None:
    """The helper of these tests agrees with the analysis on what a change is."""
    from tests.effects.effects_cases import understood

    for text in ("cat a", "rm a", "curl https://example.com", "curl -d a https://example.com", "kill 1", "sudo ls"):
        analysis = understood(text)
        assert analysis.read_only is not any(changes(effect) for effect in analysis.effects)


STARS = """
tool = "brew"
because = "made up"
globals = "anywhere"
abbreviations = true
options.opaque.config = "--endpoint-url= --endpoint-port="
[[option]]
names = "--header="
values = ["Accept: text/plain"]
otherwise = "send"
[sub."* describe-*|list-*"]
operands = ["value..."]
effects = ["host.fetch cloud"]
options.value = "--*[=]"
[sub."* list-keys"]
operands = []
effects = ["secret"]
[sub.plain]
operands = ["text"]
[sub.host]
operands = ["text"]
[sub.host.sub."*://*|plain"]
operands = []
effects = ["secret"]
"""


@pytest.mark.parametrize(
    ("line", "holds"),
    [
        ("brew ec2 describe-vms --ids a b --names=c", "read-only"),
        ("brew ec2 describe-", "read-only"),
        ("brew ec2 run-vms", "opaque.unlisted_subcommand"),
        ("brew ec2 list-keys", "secret.output"),
        ("brew ec2", "opaque.unlisted_subcommand"),
        ("brew host a", "read-only"),
        ("brew host x://y", "secret.output"),
        ("brew host ://", "secret.output"),
        ("brew host y:/", "read-only"),
        ("brew host x://${X}", "opaque.unlisted_subcommand"),
        ("brew host pla${X}", "opaque.unlisted_subcommand"),
        ("brew", "opaque.unlisted_subcommand"),
        ("brew plain x", "read-only"),
        ("brew plain describe-vms", "read-only"),
        ("brew ec2 describe-vms --endpoint=http://e.test", "opaque.unlisted_option"),
        ("brew ec2 describe-vms --endpoint-u http://e.test", "opaque.config"),
        ("brew ec2 describe-vms -x", "opaque.unlisted_option"),
        ("brew ec2 describe-vms --ids $X", "opaque.dynamic_option"),
        ("brew ec2 describe-vms --ids ${X}", "opaque.dynamic_option"),
        ("brew ec2 describe-vms --ids file://a", "read a"),
        ("brew ec2 describe-vms --filter k=@b", "network.send cloud"),
        ("brew ec2 describe-vms --filter=@b", "read b"),
        ("brew ec2 describe-vms --header 'Accept: text/plain'", "read-only"),
        ("brew ec2 describe-vms --header Accept:text/plain", "network.send cloud"),
    ],
)
def test_stars_fit_names_that_follow_a_rule(line: str, holds: str) -> None:
    """A glob names subcommands, `--*` options; what is listed by name, or may be short for it, keeps its meaning."""
    table = parse_table(f'{STARS}\n[[example]]\nrun = """{line}"""\nis = "{holds}"\n', "t.toml", "brew")
    tables = Tables()
    assert list(failures(table, _Only(table), tables.environment)) == []


class _Only:
    def __init__(self, table: Table) -> None:
        self.table = table

    def find(self, name: str) -> tuple[Table, ...]:
        return (self.table,) if name == self.table.name else ()
