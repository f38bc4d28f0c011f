# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of a session that belongs to another: it may do less than its parent, never more."""

from __future__ import annotations

import dataclasses

from sandboxd.model import Behavior, Rule, RuleSet
from sandboxd.policy.patterns import as_glob
from sandboxd.policy.rules import path_rule, project_of
from sandboxd.policy.sources import rank


def inherit(own: RuleSet, parent: RuleSet, narrowed: tuple[str, ...], parent_workspace: str, workspace: str) -> RuleSet:
    """`own` under `parent`: every deny and ask of both; the parent's allows (only those of `narrowed`, when it names
    any); what the child's own files allow beyond that is inert, and what they ask takes the place of no deny."""
    wanted = {text.strip() for text in narrowed}
    given: dict[Rule, None] = {}
    for rule in parent.rules:
        allows = rule.behavior is Behavior.ALLOW
        if allows and wanted and rule.text not in wanted:
            continue
        if workspace != parent_workspace:
            given[anchored(rule, parent_workspace)] = None
            if allows:
                continue  # what it says of paths there says nothing of paths here
        given[rule] = None
    allowed = {(rule.tool, rule.content) for rule in given if rule.behavior is Behavior.ALLOW}
    inert = list(own.inert)
    for rule in own.rules:
        if rule.behavior is Behavior.ALLOW and rule not in given:
            if (rule.tool, rule.content) not in allowed or path_rule(rule):
                inert.append(rule)
            continue
        if rule not in given:
            given[dataclasses.replace(rule, trusted=False)] = None
    return RuleSet(tuple(sorted(given, key=lambda rule: rank(rule.source))), own.strategy, tuple(inert))


def anchored(rule: Rule, workspace: str) -> Rule:
    """The same rule for a session in another workspace: a path that was seen from `workspace` becomes absolute."""
    content = rule.content
    if content is None or not path_rule(rule) or content.startswith(("//", "~")):
        return rule
    if content.startswith("/"):
        if project_of(rule.origin) is not None:
            return rule
        rest = content[1:]
    else:
        rest = content.removeprefix("./")
        if rule.behavior is not Behavior.ALLOW and "/" not in rest.rstrip("/") and rest != "**":
            rest = f"**/{rest}"  # a bare name means any depth
    absolute = f"/{as_glob(workspace)}/{rest}"
    return dataclasses.replace(rule, content=absolute, text=f"{rule.tool}({absolute})")
