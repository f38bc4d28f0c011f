# SPDX-License-Identifier: GPL-3.0-or-later
"""The readers of little languages, by themselves: what a script or an expression would write, run or read."""

from __future__ import annotations

import pytest

from sandboxd.effects.languages import awk, sed, sql
from sandboxd.effects.languages.awk import NotAwk
from sandboxd.effects.languages.sed import NotSed

SED = [
    ("p", []),
    ("s/w x/e y/", []),
    ("s|a|b|w o", [("w", "o")]),
    ("s/a/b/gw o", [("w", "o")]),
    ("s/a/b/e", [("e", "")]),
    ("s/a/b/ge;w o", [("e", ""), ("w", "o")]),
    ("/x/w o", [("w", "o")]),
    ("1,/x/!w o", [("w", "o")]),
    ("{p;w o\n}", [("w", "o")]),
    ("w o;p", [("w", "o;p")]),
    ("r f\nR g", [("r", "f"), ("R", "g")]),
    ("e ls -l", [("e", "ls -l")]),
    ("1e", [("e", "")]),
    ("a\\\nw o\nw q", [("w", "q")]),
    ("a w o", []),
    ("i\\\nfoo\\\nw o\nw q", [("w", "q")]),
    ("y/w/e/;w o", [("w", "o")]),
    ("b w;w o\n:w", [("w", "o")]),
    ("# w o\nw q", [("w", "q")]),
    ("q5;w o", [("w", "o")]),
    ("l 3;w o", [("w", "o")]),
    ("\\|a|w o", [("w", "o")]),
    ("s,a\\,b,c,w o", [("w", "o")]),
    ("0~4w o", [("w", "o")]),
    ("/a/,+2w o", [("w", "o")]),
    ("v;w o", [("w", "o")]),
]


@pytest.mark.parametrize(("script", "found"), SED)
def test_sed_scripts_show_what_they_reach(script: str, found: list[tuple[str, str]]) -> None:
    """Each command with a file or a program is found, none is made up."""
    assert set(sed.actions(script, brackets=True)) == set(found)


@pytest.mark.parametrize("script", ["s/a", "s/a/b", "k", "{", "w", "s/a/b/q", "y/a", "1,", "s/[a/b/w o", "r"])
def test_no_sed_script_is_guessed(script: str) -> None:
    """What is not surely a script is refused, or reaches nothing when sed itself would refuse it."""
    try:
        found = sed.actions(script, brackets=True)
    except NotSed:
        return
    assert found == ()


def test_both_readings_of_brackets_count() -> None:
    """Old versions end an expression at a delimiter inside brackets, new ones do not."""
    assert ("w", "o") in (*sed.actions("s/[/]/b/w o", brackets=True),)


AWK = [
    ("{print}", []),
    ("$1 > 3", []),
    ("{print ($1 > 3)}", []),
    ('{print > "o"}', [("path.write", "o")]),
    ('{print >> "o"}', [("path.append", "o")]),
    ('{printf("%s", $1) > "o"}', [("path.write", "o")]),
    ('{print $1, $2 > ("o" NR)}', [("path.write", None)]),
    ("{print > $1}", [("path.write", None)]),
    ('{print "a" > "o" ".txt"}', [("path.write", None)]),
    ('{print | "sort"}', [("run", "sort")]),
    ("{print | c}", [("run", None)]),
    ('{print |& "sort"}', [("run", "sort")]),
    ('{"date" | getline d}', [("run", "date")]),
    ('{"da" "te" | getline d}', [("run", None)]),
    ('{getline x < "f"}', [("path.read", "f")]),
    ("{getline x < $1}", [("path.read", None)]),
    ('BEGIN{system("ls")}', [("run", "ls")]),
    ('BEGIN{system("ls " $1)}', [("run", None)]),
    ("BEGIN{system(c)}", [("run", None)]),
    ("{print ENVIRON}", [("environ", None)]),
    ("/system(x)/{print}", []),
    ('{print "system(x) > o | sh"}', []),
    ("{ n = split($0, a, /[|>]/); print n }", []),
    ("# print > x\n{print}", []),
    ("{ if (a / b > 1) print c }", []),
    ("{ x[$1] = $2 } END { for (k in x) print k, x[k] }", []),
    ("function f(a) { return a > 1 }\n{ print f($1) }", []),
    ('BEGIN { print 1,\n\n 2 > "o" }', [("path.write", "o")]),
    ('BEGIN { print 1 || # why\n\n 2 > "o" }', [("path.write", "o")]),
    ('{ print $1 ?\n 2 : 3 > "o" }', [("path.write", "o")]),
    ('{ print 1 in\n a > "o" }', [("path.write", "o")]),
    ("{ print\n}\n$2 > 4", []),
    ("{ print a[1]\n x > y }", []),
    ('BEGIN { ARGV[1] = "f" }', [("path.read", "f")]),
    ("BEGIN { ARGV[ARGC++] = x }", [("path.read", None)]),
    ('BEGIN { n = ARGV[1]; ARGV[1] = "" } FILENAME == ARGV[2] { print ARGV[2] }', []),
    ('BEGIN { sub(/a/, "b", ARGV[1]) }', [("path.read", None)]),
    ('BEGIN { split("f g", ARGV) }', [("path.read", None)]),
    ("BEGIN { for (k in ARGV) print ARGV[k] }", []),
]


@pytest.mark.parametrize(("program", "found"), AWK)
def test_awk_programs_show_what_they_reach(program: str, found: list[tuple[str, str | None]]) -> None:
    """Redirects, pipes, getline and system are found; comparisons, strings, comments and expressions are not taken for them."""
    assert list(awk.actions(program)) == found


@pytest.mark.parametrize(
    "program",
    [
        '@load "x"',
        '@include "x"',
        "{@f(1)}",
        "{print SYMTAB}",
        "{x(1)}",
        "{print /[/]/}",
        '{print "a}',
        "{print $/a/}",
        "{`x`}",
        "{FUNCTAB[1]}",
        "BEGIN { getline /1; system(x); y = 1/1 }",
    ],
)
def test_no_awk_program_is_guessed(program: str) -> None:
    """What cannot be read for certain is refused."""
    with pytest.raises(NotAwk):
        awk.actions(program)


SQL_READS = [
    "select 1",
    "SELECT count(*) FROM t WHERE a = 'x; drop table t'",
    "select * from t; select 2;",
    "select * from (select 1)",
    "explain query plan select 1",
    "pragma table_info(t)",
    "pragma user_version",
    ".schema",
    ".tables",
    "\\dt",
    "\\d+ t",
    "\\l",
    "show tables",
    "select a, count(*) from t where b in (1, 2) group by a having max(c) > 3",
    "select coalesce(a, 'x') /* why */ from t -- done",
    "select a || '--' || b from t",
]
SQL_CHANGES = [
    "",
    "drop table t",
    "select 1; drop table t",
    "select * into outfile 'x' from t",
    "select load_extension('x')",
    "select writefile('a', 'b')",
    "select pg_sleep(1)",
    "select nextval('s')",
    "insert into t values (1)",
    "pragma journal_mode=wal",
    "pragma user_version = 3",
    "explain analyze delete from t",
    "with x as (delete from t returning *) select * from x",
    "select 'a' ; /* x */ delete from t",
    "select 1 -- \n; delete from t",
    ".shell rm x",
    ".output x",
    ".read x",
    ".import a b",
    ".save x",
    ".tables | rm",
    ".tables\n.shell rm x",
    "\\! rm x",
    "\\o x",
    "\\copy t to 'x'",
    "\\i x",
    "\\g x",
    "\\dt\n\\! rm x",
    "select 1 \\g x",
    "select `rm x`",
    "select $$a$$",
    "attach 'x' as y",
    "vacuum into 'x'",
    "copy t to program 'rm x'",
    "select 'a",
    "select 1 /*! into outfile 'x' */",
    "select 1 /*M! into outfile 'x' */",
    "select 1 --x into outfile 'y'",
    "select 'a\\'b', 1 into outfile 'x' -- '",
    "select 1 # '\n into outfile 'x' -- '",
    "select $q$ ' $q$; drop table t; --'",
    "select 1 /* /* */ ' */; drop table t; --'",
    "select [a'b], writefile('x', 'y') -- '",
    "select tidy_up()",
    "select app.tidy_up(1)",
    "select sys_exec('id')",
    "select net . http_post('http://h.example')",
]


@pytest.mark.parametrize("text", SQL_READS)
def test_sql_that_only_reads(text: str) -> None:
    """Queries and listings are known to read."""
    assert sql.reads_only(text)


@pytest.mark.parametrize("text", SQL_CHANGES)
def test_sql_that_may_change_something(text: str) -> None:
    """Whatever writes, runs, loads or cannot be told is not called a read."""
    assert not sql.reads_only(text)
