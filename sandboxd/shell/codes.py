# SPDX-License-Identifier: GPL-3.0-or-later
"""Every reason code of the shell stage, with one sentence each.

To add a code: put it into NOTES (a construct that was read but matters) or REFUSALS (why a text was not read), raise or
attach it where the construct is recognised, and add a row with it to tests/corpus/shell_notes.jsonl.
"""

from __future__ import annotations

NOTES: dict[str, str] = {
    "shell.alias": "`alias` defines text that bash may put in place of a command name.",
    "shell.bind": "`bind -x` ties text that bash runs to a key.",
    "shell.callback": "an option names text that bash evaluates for each item (mapfile -C, compgen -C/-F/-W, complete).",
    "shell.coproc": "`coproc` runs the command beside the rest, with pipes to it.",
    "shell.dynamic_name": "the command name is not a literal: it may be any command, or vanish and leave the next word as one.",
    "shell.eval": "`eval` runs its arguments as shell text.",
    "shell.evaluates": "an expansion evaluates text: a variable in arithmetic or a subscript, ${!v}, ${v@P}.",
    "shell.exec": "`exec` replaces the shell, or changes the shell's own descriptors.",
    "shell.fork_bomb": "a function that starts itself again in a pipeline, in the background or in a substitution is called.",
    "shell.function_export": "a function is exported to every shell that is started from here.",
    "shell.function_shadows": "the name is a function or alias defined in this text, so it is not the command of that name.",
    "shell.hash": "`hash -p` ties a command name to another file.",
    "shell.heredoc_unterminated": "a here-document has no end, so all the text that follows is its body.",
    "shell.history": "`history` and `fc` bring back and run earlier text.",
    "shell.home_changed": "HOME or CDPATH is changed: `~` and `cd` lead elsewhere.",
    "shell.ifs_changed": "IFS is changed: unquoted expansions split elsewhere.",
    "shell.let": "`let` evaluates its arguments as arithmetic.",
    "shell.loads_builtin": "`enable` loads code into the shell, or switches builtins off.",
    "shell.names_evaluated": "a builtin is given a variable name that is not a plain literal; its subscript is evaluated.",
    "shell.attributes": "an attribute (-i, -n, -u …) makes later assignments to the variable evaluate or change text.",
    "shell.option": "a shell option changes how the following text is read or what it runs.",
    "shell.path_changed": "PATH is changed for the commands that follow.",
    "shell.prompt": "the variable holds text that bash itself expands or runs (PS4, PROMPT_COMMAND).",
    "shell.source": "`source` runs a file or stream as shell text.",
    "shell.test_arithmetic": "`[[ … -eq … ]]` evaluates an operand that is not a number as arithmetic.",
    "shell.test_variable": "`-v` evaluates the subscript of the name it is given.",
    "shell.trap": "`trap` keeps text that bash runs later.",
}

REFUSALS: dict[str, str] = {
    "unparsed.ambiguous": "two readings are possible and they differ in what runs.",
    "unparsed.commands": "the text holds more than 2,000 commands.",
    "unparsed.completeness": "the grammar lost or moved a word, so its tree is not trusted.",
    "unparsed.control_character": "the text holds a control character other than newline and tab.",
    "unparsed.encoding": "the text cannot be encoded as UTF-8.",
    "unparsed.grammar": "the grammar does not accept the text.",
    "unparsed.heredoc": "a here-document is not terminated, or stands where its body cannot be found for certain.",
    "unparsed.internal": "the parser failed; this is a defect of the parser, and the text is not trusted.",
    "unparsed.nesting": "the text nests more than 20 levels deep.",
    "unparsed.quote": "a quote, substitution or expansion is not closed.",
    "unparsed.size": "the text is larger than 64 kB.",
    "unparsed.syntax": "bash would not accept the text here, or only with an option that is off.",
}


class Refused(Exception):
    """The text cannot be read for certain. `code` is one of REFUSALS; `start` and `end` are offsets in the lexer's text."""

    def __init__(self, code: str, start: int, end: int, detail: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.start = start
        self.end = end
        self.detail = detail
