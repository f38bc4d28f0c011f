# SPDX-License-Identifier: GPL-3.0-or-later
"""The only reader of the workspace: answers the facts that an analysis asked for.

    paths.py         where a path really leads
    tree.py          protected names and repositories below a root, kept fresh by directory ctime
    gitconfig.py     a repository's configuration, read without running git (pure)
    repositories.py  which git directories belong to a work tree, what their configuration arms
    facts.py         all of it as one Facts value
    denied.py        the files that rules forbid to read
    executed.py      the files whose content a command executes, with their digests

Nothing here raises for what it finds on disk, follows into something that blocks, or runs anything; what cannot be read
gives the stricter fact.
"""

from sandboxd.observe.denied import Denied, denied
from sandboxd.observe.executed import Executed, executed
from sandboxd.observe.facts import observe

__all__ = ["Denied", "Executed", "denied", "executed", "observe"]
