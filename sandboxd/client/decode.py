# SPDX-License-Identifier: GPL-3.0-or-later
"""Wire messages as model values: the inverse of what the daemon does before it sends them.

A number that this version does not know comes from a newer daemon and is read as the strictest member there is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from typing import Any

from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from sandboxd import model
from sandboxd.errors import RequestError
from sandboxd.v1 import admin_pb2, analysis_pb2, execution_pb2, profile_pb2, session_pb2


def _table(kind: type[Enum], wire: Any, prefix: str) -> dict[int, Any]:
    """Wire number -> member, without UNSPECIFIED."""
    members: dict[str, Any] = {f"{prefix}_{re.sub('(?<=[a-z])(?=[A-Z])', '_', str(m.value)).upper()}": m for m in kind}
    return {number: members[name] for name, number in wire.items() if name in members}


BEHAVIOR: dict[int, model.Behavior] = _table(model.Behavior, analysis_pb2.Behavior, "BEHAVIOR")
EFFECT_KIND: dict[int, model.EffectKind] = _table(model.EffectKind, analysis_pb2.EffectKind, "EFFECT_KIND")
ACT: dict[int, model.Act] = _table(model.Act, analysis_pb2.Act, "ACT")
SENSITIVITY: dict[int, model.Sensitivity] = _table(model.Sensitivity, analysis_pb2.Sensitivity, "SENSITIVITY")
DIRECTION: dict[int, model.Direction] = _table(model.Direction, analysis_pb2.Direction, "DIRECTION")
GRANT_KIND: dict[int, model.GrantKind] = _table(model.GrantKind, analysis_pb2.GrantKind, "GRANT_KIND")
MODE: dict[int, model.Mode] = _table(model.Mode, session_pb2.Mode, "MODE")
NETWORK_MODE: dict[int, model.NetworkMode] = _table(model.NetworkMode, profile_pb2.NetworkMode, "NETWORK_MODE")
REQUIREMENT: dict[int, model.Require] = _table(model.Require, profile_pb2.Requirement, "REQUIREMENT")
LAYER: dict[int, model.Layer] = _table(model.Layer, profile_pb2.Layer, "LAYER")
STRENGTH: dict[int, model.Strength] = _table(model.Strength, profile_pb2.Strength, "STRENGTH")
END: dict[int, model.EndKind] = _table(model.EndKind, execution_pb2.End, "END")
STREAM: dict[int, model.Stream] = _table(model.Stream, execution_pb2.OutputStream, "OUTPUT_STREAM")

MODE_NUMBER: dict[model.Mode, Any] = {member: number for number, member in MODE.items()}
BEHAVIOR_NUMBER: dict[model.Behavior, Any] = {member: number for number, member in BEHAVIOR.items()}


def seconds(value: Duration | Timestamp) -> float:
    return value.ToNanoseconds() / 1e9


def behavior(number: int) -> model.Behavior:
    return BEHAVIOR.get(number, model.Behavior.DENY)


FromSpan = Callable[[analysis_pb2.Span], model.Span]


def spans(text: str) -> FromSpan:
    """What turns wire spans of `text`, which count UTF-8 bytes, into spans of characters."""
    if text.isascii():
        return lambda span: model.Span(span.start, span.end)
    ends = list(accumulate((len(char.encode("utf-8", "surrogatepass")) for char in text), initial=0))
    index = {end: position for position, end in enumerate(ends)}
    last = len(text)
    return lambda span: model.Span(index.get(span.start, last), index.get(span.end, last))


def effect(message: analysis_pb2.Effect, span: FromSpan) -> model.Effect:
    return model.Effect(
        kind=EFFECT_KIND.get(message.kind, model.EffectKind.OPAQUE),
        because=message.because,
        span=span(message.span),
        target=message.target if message.HasField("target") else None,
        act=ACT.get(message.act),
        code=message.code,
        detail=message.detail,
        recursive=message.recursive,
        pattern=message.pattern,
        fragments=tuple(message.fragments),
        sensitivity=SENSITIVITY.get(message.sensitivity, model.Sensitivity.NONE),
        direction=DIRECTION.get(message.direction),
    )


def analysis(message: analysis_pb2.Analysis, text: str, cwd: str) -> model.Analysis:
    """An analysis of `text`. Words come back as their values: the wire does not carry how they were written."""
    span = spans(text)
    unparsed = message.unparsed
    return model.Analysis(
        text=text,
        cwd=cwd,
        commands=tuple(
            model.AnalyzedCommand(
                subcommand=model.Subcommand(argv=(), span=span(item.span)),
                argv=tuple(word.value if word.HasField("value") else None for word in item.argv),
                effects=tuple(effect(one, span) for one in item.effects),
                via=item.via,
            )
            for item in message.subcommands
        ),
        unparsed=model.Unparsed(reason=unparsed.reason, span=span(unparsed.span), detail=unparsed.detail)
        if message.HasField("unparsed")
        else None,
        read_only=message.read_only,
        concurrency_safe=message.concurrency_safe,
        destructive=message.destructive,
        changes_cwd=message.changes_cwd,
    )


def decision(message: analysis_pb2.Decision, text: str) -> model.Decision:
    """A decision about `text`."""
    span = spans(text)
    return model.Decision(
        behavior=behavior(message.behavior),
        step=message.step,
        reason=message.reason,
        message=message.message,
        flip=message.flip,
        immune=message.immune,
        protected=message.protected,
        promise=message.promise,
        evidence=tuple(
            model.Evidence(
                text=item.text,
                span=span(item.span) if item.HasField("span") else None,
                subcommand=item.subcommand,
                rule=item.rule,
                source=item.source,
                origin=item.origin,
                because=item.because,
            )
            for item in message.evidence
        ),
        grants=tuple(model.Grant(GRANT_KIND[item.kind], item.target) for item in message.grants if item.kind in GRANT_KIND),
        trace=tuple(model.TraceEntry(item.step, item.name, BEHAVIOR.get(item.outcome), item.reason) for item in message.trace),
        suggestions=tuple(message.suggestions),
    )


def enforcement(message: profile_pb2.Enforcement) -> model.Enforcement:
    return _enforcement(message.SerializeToString(deterministic=True))


@lru_cache(maxsize=64)
def _enforcement(serialized: bytes) -> model.Enforcement:
    """There are few, and each command brings one twice."""
    message = profile_pb2.Enforcement.FromString(serialized)
    return model.Enforcement(
        backend=message.backend,
        layers=tuple(
            model.LayerState(LAYER[item.layer], STRENGTH.get(item.strength, model.Strength.NONE), tuple(item.missing))
            for item in message.layers
            if item.layer in LAYER
        ),
        landlock_abi=message.landlock_abi,
    )


def probe(message: admin_pb2.BackendProbe) -> model.Probe:
    return model.Probe(
        backend=message.backend,
        works=message.works,
        enforcement=enforcement(message.enforcement) if message.HasField("enforcement") else None,
        error=message.error,
        fix=message.fix,
    )


def profile(message: profile_pb2.Profile) -> model.Profile:
    limits = message.limits
    return model.Profile(
        name=message.name,
        origin=message.origin,
        description=message.description,
        read=tuple(message.read),
        deny_read=tuple(message.deny_read),
        write=tuple(message.write),
        deny_write=tuple(message.deny_write),
        tmp=message.tmp,
        home=message.home,
        network=NETWORK_MODE.get(message.network, model.NetworkMode.OFF),
        unix_allow=tuple(message.unix_allow),
        env_pass=tuple(message.env_pass),
        env_set=dict(message.env_set),
        limits=model.Limits(
            wall=seconds(limits.wall) if limits.HasField("wall") else None,
            cpu=limits.cpu.seconds if limits.HasField("cpu") else None,
            memory=limits.memory_bytes if limits.HasField("memory_bytes") else None,
            pids=limits.pids if limits.HasField("pids") else None,
            open_files=limits.open_files if limits.HasField("open_files") else None,
            file_size=limits.file_size_bytes if limits.HasField("file_size_bytes") else None,
            output=limits.output_bytes if limits.HasField("output_bytes") else None,
        ),
        require=REQUIREMENT.get(message.require, model.Require.FULL),
        fallback=tuple(message.fallback),
        git_commit=message.git_commit,
        extra_deny=tuple(message.extra_deny),
        allow_ptrace=message.allow_ptrace,
    )


def result(message: execution_pb2.Result) -> model.Result:
    usage = message.usage
    return model.Result(
        end=END.get(message.end, model.EndKind.FAILED),
        code=message.exit_code,
        signal=message.signal if message.HasField("signal") else None,
        cause=message.cause,
        usage=model.Usage(seconds(usage.wall), seconds(usage.user), seconds(usage.system), usage.max_rss_bytes),
        stdout_bytes=message.stdout_bytes,
        stderr_bytes=message.stderr_bytes,
        truncated=message.truncated,
        cwd=message.cwd,
        enforcement=enforcement(message.enforcement) if message.HasField("enforcement") else None,
        promise_broken=tuple(message.promise_broken),
        violations=tuple(
            model.Violation(item.kind, item.path, item.rule, item.confidence, item.advice) for item in message.violations
        ),
        notes=tuple(message.notes),
        spill_path=message.spill_path,
    )


def tool(message: admin_pb2.Tool) -> model.Tool:
    return model.Tool(
        name=message.name,
        description=message.description,
        schema=json_format.MessageToDict(message.input_schema),
        aliases=tuple(message.aliases),
        read_only=message.read_only,
        concurrency_safe=message.concurrency_safe,
        destructive=message.destructive,
        classifier_input=tuple(message.classifier_input),
        cancels=message.interrupt_behavior == execution_pb2.INTERRUPT_BEHAVIOR_CANCEL,
        max_result_chars=message.max_result_chars if message.HasField("max_result_chars") else None,
        deferred=message.deferred,
        search_hint=message.search_hint,
    )


def tool_message(value: model.Tool) -> admin_pb2.Tool:
    """What declares a tool."""
    cancels = execution_pb2.INTERRUPT_BEHAVIOR_CANCEL if value.cancels else execution_pb2.INTERRUPT_BEHAVIOR_BLOCK
    return admin_pb2.Tool(
        name=value.name,
        description=value.description,
        input_schema=struct(value.schema, "tools.input_schema"),
        aliases=value.aliases,
        read_only=value.read_only,
        concurrency_safe=value.concurrency_safe,
        destructive=value.destructive,
        classifier_input=value.classifier_input,
        interrupt_behavior=cancels,
        max_result_chars=value.max_result_chars,
        deferred=value.deferred,
        search_hint=value.search_hint,
    )


def struct(values: Mapping[str, Any], field: str) -> Struct:
    """Plain values as a Struct. Raises RequestError for what JSON has not."""
    try:
        return json_format.ParseDict(dict(values), Struct())
    except (json_format.ParseError, ValueError, TypeError, UnicodeEncodeError, RecursionError):
        raise RequestError(f"`{field}` is no JSON object", field=field, fix="send what `json.dumps` takes") from None


def model_text(message: execution_pb2.ModelText) -> model.ModelText:
    return model.ModelText(message.text, message.whole, message.spill_path)


def event(message: execution_pb2.Event, text: str) -> model.Event | None:
    """One event of the execution of `text`; None for a kind that this version does not know."""
    seq, execution_id = message.sequence, message.execution_id
    match message.WhichOneof("kind"):
        case "output":
            output = message.output
            stream = STREAM.get(output.stream, model.Stream.STDERR)
            return model.Output(seq, stream, output.offset, output.data, seconds(output.elapsed))
        case "queued":
            return model.Queued(seq, execution_id, message.queued.reason)
        case "decided":
            return model.Decided(seq, execution_id, decision(message.decided.decision, text))
        case "approval_needed":
            needed = message.approval_needed
            return model.ApprovalNeeded(seq, execution_id, needed.approval_id, decision(needed.decision, text))
        case "advice":
            return model.Advice(seq, execution_id, message.advice.approval_id, message.advice.text)
        case "started":
            return model.Started(seq, execution_id, enforcement(message.started.enforcement), message.started.profile)
        case "gap":
            return model.Gap(seq, STREAM.get(message.gap.stream, model.Stream.STDERR), message.gap.offset, message.gap.length)
        case "progress":
            progress = message.progress
            return model.Progress(seq, execution_id, seconds(progress.elapsed), progress.output_bytes, progress.last_line)
        case "exited":
            return model.Exited(seq, execution_id, result(message.exited.result))
    return None
