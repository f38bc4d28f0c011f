# SPDX-License-Identifier: GPL-3.0-or-later
"""sandboxd: the map of the house, one line a stage, in the order a request walks through it.

model       the immutable values that flow (errors, paths, killswitch and secrets stand beside it)
config      settings and rule files, their sources and precedence
shell       text -> subcommands
effects     subcommand -> effects
analyze     shell and effects to a fixpoint over nested commands
observe     the facts that an analysis asked for; the only reader of the workspace
policy      analysis + facts + rules + mode -> decision
consult     answers from outside that policy may need: approvals, hooks, classifier
schedule    which command may start when
isolation   how a decided command is confined
run         spawn, stream, time out, kill
record      what was decided and done, and why
rulefiles   what the rule files of a workspace say, and what of it waits for trust
sessions    one agent's conversation: workspace, cwd, mode, rules; who may make, see and change it
catalog     profiles, effect tables, what the trial runs showed
consulting  hooks around a command, and the race of hooks and humans for the answer to an ASK
tooluses    hooks around the use of a tool that a front-end runs itself
confining   a decided command in its box
questions   what is asked about a command now, put to the judge
decisions   where a decision goes: the record, and those who watch
processing  one command from text to result; the order of all stages stands in one function
executions  all executions, until they are forgotten; what is done to one from outside
engine      the parts put together; sessions begin and end, configuration, status, the end
api         the RPC methods, a few lines each
daemon      composition root: config -> engine -> server
client      the Python client
cli         the command `sandboxd`
"""

__version__ = "0.1.0"
