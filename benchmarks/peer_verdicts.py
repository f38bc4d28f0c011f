# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks one peer, by its own Python, of each line whether it only reads: a JSON list of texts on stdin, one of booleans on
stdout. Run by benchmarks/peers.py with the interpreter in .peers; imports nothing of sandboxd.

To add a peer: a function here and its name in JUDGES.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

# The types of action of nah that change nothing and send nothing.
NAH_READS = {"filesystem_read", "git_safe", "network_diagnostic", "container_read", "service_inspect", "service_read",
             "env_read", "browser_read", "db_safe", "agent_read"}  # fmt: skip


def bash_classify() -> Callable[[str], bool]:
    import bash_classify as peer  # type: ignore[import-not-found]  # it is in an environment of its own

    def judge(text: str) -> bool:
        return bool(peer.classify_expression(text).classification.name == "READONLY")

    return judge


def nah() -> Callable[[str], bool]:
    from nah.bash import classify_command  # type: ignore[import-not-found]  # likewise

    def judge(text: str) -> bool:
        stages: Any = classify_command(text).stages
        return bool(stages) and all(stage.action_type in NAH_READS for stage in stages)

    return judge


JUDGES = {"bash-classify": bash_classify, "nah": nah}


def answered(judge: Callable[[str], bool], text: str) -> bool:
    try:
        return judge(text)
    except Exception:  # a text that a peer fails on is one that it does not recognise
        return False


if __name__ == "__main__":
    chosen = JUDGES[sys.argv[1]]()
    json.dump([answered(chosen, text) for text in json.load(sys.stdin)], sys.stdout)
