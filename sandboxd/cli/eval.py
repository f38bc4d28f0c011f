# SPDX-License-Identifier: GPL-3.0-or-later
"""`sandboxd eval`: how often the configured classifier is wrong, how long it takes and what it costs, on your own rows.

A row is a JSON object a line: `id`, `cmd`, `label` (`allow` or `block`), and if it matters `cwd` and `user` (what the user
wrote, a list of strings). Every row goes to the classifier, also those that rules would decide without it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxd.analyze import analyze
from sandboxd.cli import terminal, text
from sandboxd.config import ClassifierSettings, ProviderKind, directories, load
from sandboxd.consult.classifier import Classifier, Question
from sandboxd.consult.classifier_prompt import Matter, imitates, question
from sandboxd.consult.transcript import Transcript, UserMessage
from sandboxd.consult.verdict import Failure, Verdict
from sandboxd.errors import RequestError
from sandboxd.model import AnalysisContext, Facts, Scope
from sandboxd.policy.risk import risk

_UNBOUNDED = 1 << 40  # tokens: an evaluation has no session's budget


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Exit status: 0 measured, 1 a wrong allow or an outage among the answers, 2 bad input."
    parser.add_argument("--corpus", required=True, metavar="FILE", help="labelled rows, JSON lines: id, cmd, label, cwd, user")
    parser.add_argument("--provider", choices=("anthropic", "command"), help="default: the configured one")
    parser.add_argument("--model", metavar="NAME", help="default: the configured one")
    parser.add_argument("--base-url", metavar="URL", help="any server of the Messages API")
    parser.add_argument("--parallel", type=int, default=4, metavar="N", help="questions at once (default: 4)")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="only the first N rows")
    text.add_output_option(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    cmd: str
    allow: bool
    cwd: str = "/workspace"
    user: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answered:
    row: Row
    said: Verdict | Failure
    seconds: float


def run(options: argparse.Namespace) -> int:
    rows = read_rows(options.corpus)[: options.limit or None]
    settings = _settings(options)
    answers, spent = asyncio.run(_ask_all(rows, settings, max(options.parallel, 1)))
    report = _report(answers, spent, settings)
    if options.output == "json":
        terminal.print_json(report)
    else:
        _print(report, answers)
    return 1 if report["false_allow"] or report["outages"] else 0


def read_rows(path: str) -> list[Row]:
    """The rows of a file. Raises RequestError naming the line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"`{path}` cannot be read: {error}", field="--corpus", fix="name a file of JSON lines") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(_row(json.loads(line)))
            except (ValueError, TypeError, KeyError) as error:
                what = f"`{error.args[0]}` is missing" if isinstance(error, KeyError) else str(error)
                fix = 'write {"id": …, "cmd": …, "label": "allow"}'
                raise RequestError(f"{path}:{number}: {what}", field="--corpus", fix=fix) from None
    if not rows:
        raise RequestError(f"`{path}` has no rows", field="--corpus")
    return rows


def _row(data: Any) -> Row:
    if not isinstance(data, dict):
        raise TypeError("not an object")
    user, cwd = data.get("user", []), data.get("cwd") or "/workspace"
    if data["label"] not in ("allow", "block"):
        raise ValueError("`label` must be allow or block")
    if not isinstance(data["cmd"], str) or not isinstance(cwd, str) or not cwd.startswith("/"):
        raise ValueError("`cmd` must be a string and `cwd` an absolute path")
    if not isinstance(user, list) or not all(isinstance(each, str) for each in user):
        raise ValueError("`user` must be a list of strings")
    return Row(str(data["id"]), data["cmd"], data["label"] == "allow", cwd, tuple(user))


def _settings(options: argparse.Namespace) -> ClassifierSettings:
    settings = load(directories()).classifier
    given = {
        "provider": ProviderKind(options.provider) if options.provider else None,
        "model": options.model,
        "base_url": options.base_url,
    }
    settings = dataclasses.replace(settings, **{key: value for key, value in given.items() if value is not None})
    if settings.provider is ProviderKind.NONE or (settings.provider is ProviderKind.COMMAND and not settings.command):
        raise RequestError("no classifier is configured", field="--provider", fix="set `[classifier]` in config.toml")
    return dataclasses.replace(settings, session_tokens=_UNBOUNDED, session_cost=0.0)


async def _ask_all(rows: list[Row], settings: ClassifierSettings, parallel: int) -> tuple[list[Answered], dict[str, Any]]:
    classifier = Classifier(settings)
    room = asyncio.Semaphore(parallel)
    loop = asyncio.get_running_loop()

    async def ask(number: int, row: Row) -> Answered:
        async with room:
            begin = loop.time()
            said = await classifier.ask(_question(number, row, settings))
            return Answered(row, said, loop.time() - begin)

    try:
        classifier.start()
        if classifier.process is not None:
            await classifier.process.ready()
        answers = await asyncio.gather(*(ask(number, row) for number, row in enumerate(rows)))
        return answers, dataclasses.asdict(classifier.total)
    finally:
        await classifier.close()


def _question(number: int, row: Row, settings: ClassifierSettings) -> Question:
    scope = Scope(workspace=row.cwd, home=directories().home)
    analysis = analyze(row.cmd, AnalysisContext(row.cwd, scope.home, row.cwd))
    cautious = risk(analysis, scope).cautious or imitates(row.cmd)
    transcript = Transcript().add(*(UserMessage(each) for each in row.user))
    matter = Matter(analysis, Facts(), scope, "no rule allows it", transcript, cautious=cautious)
    return Question("eval", str(number), question(matter, settings.max_input))


def _report(answers: list[Answered], spent: dict[str, Any], settings: ClassifierSettings) -> dict[str, Any]:
    """Rates are of the rows with that label that got a verdict; an outage is neither right nor wrong."""
    judged = [answer for answer in answers if isinstance(answer.said, Verdict)]
    outages = Counter(answer.said.outage.value for answer in answers if isinstance(answer.said, Failure))
    times = sorted(answer.seconds for answer in judged) or [0.0]

    def wrong(allow: bool) -> tuple[list[str], float]:
        of_label = [answer for answer in judged if answer.row.allow is allow]
        ids = [answer.row.id for answer in of_label if isinstance(answer.said, Verdict) and answer.said.allow is not allow]
        return ids, len(ids) / len(of_label) if of_label else 0.0

    allowed, allow_rate = wrong(False)
    blocked, block_rate = wrong(True)
    return {
        "provider": settings.provider.value,
        "model": settings.model,
        "rows": len(answers),
        "judged": len(judged),
        "false_allow": allowed,
        "false_allow_rate": allow_rate,
        "false_block": blocked,
        "false_block_rate": block_rate,
        "outages": dict(outages),
        "latency_median": statistics.median(times),
        "latency_p95": times[min(int(len(times) * 0.95), len(times) - 1)],
        "spent": spent,
    }


def _print(report: dict[str, Any], answers: list[Answered]) -> None:
    spent = report["spent"]
    rows = [
        ("classifier", f"{report['provider']} {report['model']}"),
        ("rows", f"{report['rows']}, {report['judged']} with a verdict"),
        ("false allow", f"{report['false_allow_rate']:.1%} of those to block ({len(report['false_allow'])})"),
        ("false block", f"{report['false_block_rate']:.1%} of those to allow ({len(report['false_block'])})"),
        ("latency", f"median {report['latency_median']:.2f} s, 95 % within {report['latency_p95']:.2f} s"),
        ("requests", str(spent["requests"])),
        ("tokens", f"{spent['input']} in, {spent['output']} out, {spent['cache_read']} read from the cache"),
        ("cost", f"{spent['cost']:.4f}" if spent["cost"] else "no prices are configured"),
        *(("outage", f"{code}: {count}") for code, count in sorted(report["outages"].items())),
    ]
    print(terminal.table(rows))
    wrong = {*report["false_allow"], *report["false_block"]}
    for answer in answers:
        if answer.row.id in wrong and isinstance(answer.said, Verdict):
            what = "allowed" if answer.said.allow else "blocked"
            print(f"{what} wrongly: {terminal.shown(answer.row.id)}  {terminal.shown(answer.row.cmd, 100)}", file=sys.stderr)
            print(f"    {terminal.shown(answer.said.reason, 300)}", file=sys.stderr)
