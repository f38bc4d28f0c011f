# SPDX-License-Identifier: GPL-3.0-or-later
"""The tokens of the shell language as regular expressions."""

from __future__ import annotations

import re

from sandboxd.model.shell import RedirectOp

# A word ends before one of these; `<(` and `>(` do not end it.
END = r"(?=[ \t\n;&|()]|[<>](?!\()|\Z)"

PLAIN, QUOTED, SOLO, NEWLINE, OPERATOR, COMMENT, EOF, OTHER = range(1, 9)
TOKEN = re.compile(
    r"(?:[ \t]|\\\n)*+(?:"
    + r"|".join(
        (
            r"([^ \t\n;&|()<>'\"\\$`*?\[{~#][^ \t\n;&|()<>'\"\\$`*?\[{~]*+)" + END,  # PLAIN: ordinary characters only
            r"('[^']*+'|\"[^\"\\$`]*+\")" + END,  # QUOTED: one quoted string
            r"(\{\}?|\[\[?)" + END,  # SOLO: a brace or bracket alone
            r"(\n)",
            r"(?![<>]\()(;;&|;&|;;|;|&&|&>>|&>|&|\|\||\|&|\||\(|\)|<<<|<<-|<<|<&|<>|<|>>|>&|>\||>)",
            r"(\#[^\n]*+)",
            r"(\Z)",
            r"()",  # OTHER: any other word
        )
    )
    + r")"
)
BLANKS = re.compile(r"(?:[ \t]|\\\n)*+")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:(\+?)=|\[)")
APPEND_OR_SET = re.compile(r"(\+?)=")
DESCRIPTOR = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}(?=[<>](?!\())")
# Blanks, comments and newlines, as between the parts of a header.
GAP = re.compile(r"(?:[ \t]|\\\n)*+(?:#[^\n]*+)?(?:\n(?:[ \t\n]|\\\n)*+(?:#[^\n]*+)?)*+")
IDENTIFIER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)" + END)
SEMICOLON = re.compile(r"[ \t]*;(?![;&])")
IN_WORD = re.compile(r"in" + END)
ESAC = re.compile(r"esac" + END)
TEST_OPERATOR = re.compile(r"(?:\]\]|==|=~|!=|=|!)" + END + r"|&&|\|\||[()]|[<>](?!\()")
TIME_OPTIONS = re.compile(r"(?:(?:[ \t]|\\\n)++-p" + END + r")?(?:(?:[ \t]|\\\n)++--" + END + r")?")
COPROC_NAME = re.compile(r"[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]+(?=\(|(?:\{|if|for|while|until|case|select|\[\[)" + END + r")")
EMPTY_PARENTHESES = re.compile(r"[ \t]*\([ \t]*\)")

WORD_ENDS = ("", " ", "\t", "\n", ";", "&", "|", ")", "<", ">")
RESERVED = frozenset(
    "! { } [[ if then elif else fi for while until do done case esac select function time coproc".split()  # noqa: SIM905  one line
)
CLOSERS = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}"))
REDIRECTS = {op.value: op for op in RedirectOp}
REDIRECTS["<<-"] = RedirectOp.HEREDOC
# What an operator can be the beginning of, when backslash-newline stands inside it.
LONGER = frozenset(
    (";;", ";;&", ";&", "&&", "&>", "&>>", "||", "|&", "<<", "<<<", "<<-", "<&", "<>", ">>", ">&", ">|", "((", "<(", ">(")
)
