# SPDX-License-Identifier: GPL-3.0-or-later
"""Model values as they go over the wire. `requests` reads what comes in; the client's `decode` is the inverse of this.

To add a member to an enum: add it to the model and, under the upper-case snake form of its value, to the .proto file;
the tables below are total or this module does not load. To add a field: add it to both, here, and in
`sandboxd.client.decode`; the round-trip test finds what is forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from sandboxd import model
from sandboxd.v1 import admin_pb2, analysis_pb2, execution_pb2, profile_pb2, session_pb2


def wire_name(member: Enum, prefix: str) -> str:
    """The wire name of an enum member: `PREFIX_` and its value in upper-case snake form."""
    return f"{prefix}_{re.sub('(?<=[a-z])(?=[A-Z])', '_', str(member.value)).upper()}"


def _table(kind: type[Enum], wire: Any, prefix: str, unset: Enum | None = None) -> dict[Any, Any]:
    """Member -> wire number, total over `kind`; `unset` stands for UNSPECIFIED. ValueError when the wire lacks one."""
    numbers = {member: wire.Value(wire_name(member, prefix)) for member in kind if member is not unset}
    return {**numbers, unset: 0}


BEHAVIOR = _table(model.Behavior, analysis_pb2.Behavior, "BEHAVIOR")
EFFECT_KIND = _table(model.EffectKind, analysis_pb2.EffectKind, "EFFECT_KIND")
ACT = _table(model.Act, analysis_pb2.Act, "ACT")
SENSITIVITY = _table(model.Sensitivity, analysis_pb2.Sensitivity, "SENSITIVITY", model.Sensitivity.NONE)
DIRECTION = _table(model.Direction, analysis_pb2.Direction, "DIRECTION")
GRANT_KIND = _table(model.GrantKind, analysis_pb2.GrantKind, "GRANT_KIND")
MODE = _table(model.Mode, session_pb2.Mode, "MODE")
NETWORK_MODE = _table(model.NetworkMode, profile_pb2.NetworkMode, "NETWORK_MODE")
REQUIREMENT = _table(model.Require, profile_pb2.Requirement, "REQUIREMENT")
LAYER = _table(model.Layer, profile_pb2.Layer, "LAYER")
STRENGTH = _table(model.Strength, profile_pb2.Strength, "STRENGTH")
END = _table(model.EndKind, execution_pb2.End, "END")
STREAM = _table(model.Stream, execution_pb2.OutputStream, "OUTPUT_STREAM")


def duration(seconds: float) -> Duration:
    """Seconds as a Duration, to the nanosecond; whole ones exactly."""
    out = Duration()
    out.FromNanoseconds(seconds * 1_000_000_000 if isinstance(seconds, int) else round(seconds * 1e9))
    return out


def timestamp(seconds: float) -> Timestamp:
    """Seconds since the epoch as a Timestamp."""
    out = Timestamp()
    out.FromNanoseconds(round(seconds * 1e9))
    return out


ToSpan = Callable[[model.Span | None], analysis_pb2.Span | None]


def spans(text: str) -> ToSpan:
    """What turns character spans of `text` into wire spans, which count UTF-8 bytes. Spans beyond its end are clamped."""
    last = len(text)
    if text.isascii():

        def plain(span: model.Span | None) -> analysis_pb2.Span | None:
            return None if span is None else analysis_pb2.Span(start=min(span.start, last), end=min(span.end, last))

        return plain
    starts = list(accumulate((len(char.encode("utf-8", "surrogatepass")) for char in text), initial=0))

    def wide(span: model.Span | None) -> analysis_pb2.Span | None:
        return None if span is None else analysis_pb2.Span(start=starts[min(span.start, last)], end=starts[min(span.end, last)])

    return wide


def effect(value: model.Effect, span: ToSpan) -> analysis_pb2.Effect:
    return analysis_pb2.Effect(
        kind=EFFECT_KIND[value.kind],
        target=value.target,
        because=value.because,
        span=span(value.span),
        act=ACT[value.act],
        code=value.code,
        detail=value.detail,
        recursive=value.recursive,
        pattern=value.pattern,
        fragments=value.fragments,
        sensitivity=SENSITIVITY[value.sensitivity],
        direction=DIRECTION[value.direction],
    )


def subcommand(value: model.AnalyzedCommand, span: ToSpan) -> analysis_pb2.Subcommand:
    return analysis_pb2.Subcommand(
        argv=[analysis_pb2.Argument(value=word) for word in value.argv],
        span=span(value.subcommand.span),
        via=value.via,
        effects=[effect(item, span) for item in value.effects],
    )


def analysis(value: model.Analysis) -> analysis_pb2.Analysis:
    span = spans(value.text)
    unparsed = value.unparsed
    return analysis_pb2.Analysis(
        subcommands=[subcommand(item, span) for item in value.commands],
        unparsed=None
        if unparsed is None
        else analysis_pb2.Unparsed(reason=unparsed.reason, span=span(unparsed.span), detail=unparsed.detail),
        read_only=value.read_only,
        concurrency_safe=value.concurrency_safe,
        destructive=value.destructive,
        changes_cwd=value.changes_cwd,
    )


def decision(value: model.Decision, text: str) -> analysis_pb2.Decision:
    """A decision about `text` (needed to count its spans in bytes)."""
    span = spans(text)
    return analysis_pb2.Decision(
        behavior=BEHAVIOR[value.behavior],
        step=value.step,
        reason=value.reason,
        message=value.message,
        flip=value.flip,
        immune=value.immune,
        protected=value.protected,
        promise=value.promise,
        evidence=[
            analysis_pb2.Evidence(
                text=item.text,
                span=span(item.span),
                subcommand=item.subcommand,
                rule=item.rule,
                source=item.source,
                origin=item.origin,
                because=item.because,
            )
            for item in value.evidence
        ],
        grants=[analysis_pb2.Grant(kind=GRANT_KIND[item.kind], target=item.target) for item in value.grants],
        trace=[
            analysis_pb2.TraceEntry(
                step=item.step,
                name=item.name,
                outcome=BEHAVIOR[item.outcome],
                reason=item.reason,
            )
            for item in value.trace
        ],
        suggestions=value.suggestions,
    )


@lru_cache(maxsize=64)
def enforcement(value: model.Enforcement | None) -> profile_pb2.Enforcement | None:
    """There are few, and each command sends one twice: the message is the same each time, to be put into others, not changed."""
    if value is None:
        return None
    return profile_pb2.Enforcement(
        backend=value.backend,
        overall=STRENGTH[value.overall],
        layers=[
            profile_pb2.LayerState(layer=LAYER[state.layer], strength=STRENGTH[state.strength], missing=state.missing)
            for state in value.layers
        ],
        landlock_abi=value.landlock_abi,
    )


def probe(value: model.Probe) -> admin_pb2.BackendProbe:
    return admin_pb2.BackendProbe(
        backend=value.backend,
        works=value.works,
        enforcement=enforcement(value.enforcement),
        error=value.error,
        fix=value.fix,
    )


def profile(value: model.Profile) -> profile_pb2.Profile:
    limits = value.limits
    return profile_pb2.Profile(
        name=value.name,
        origin=value.origin,
        description=value.description,
        read=value.read,
        deny_read=value.deny_read,
        write=value.write,
        deny_write=value.deny_write,
        tmp=value.tmp,
        home=value.home,
        network=NETWORK_MODE[value.network],
        unix_allow=value.unix_allow,
        env_pass=value.env_pass,
        env_set=value.env_set,
        limits=profile_pb2.Limits(
            wall=None if limits.wall is None else duration(limits.wall),
            cpu=None if limits.cpu is None else duration(limits.cpu),
            memory_bytes=limits.memory,
            pids=limits.pids,
            open_files=limits.open_files,
            file_size_bytes=limits.file_size,
            output_bytes=limits.output,
        ),
        require=REQUIREMENT[value.require],
        fallback=value.fallback,
        git_commit=value.git_commit,
        extra_deny=value.extra_deny,
        allow_ptrace=value.allow_ptrace,
    )


def result(value: model.Result) -> execution_pb2.Result:
    usage = value.usage
    return execution_pb2.Result(
        end=END[value.end],
        exit_code=value.code,
        signal=value.signal,
        cause=value.cause,
        usage=execution_pb2.Usage(
            wall=duration(usage.wall),
            user=duration(usage.user),
            system=duration(usage.system),
            max_rss_bytes=usage.max_rss,
        ),
        stdout_bytes=value.stdout_bytes,
        stderr_bytes=value.stderr_bytes,
        truncated=value.truncated,
        cwd=value.cwd,
        enforcement=enforcement(value.enforcement),
        promise_broken=value.promise_broken,
        violations=[
            execution_pb2.Violation(
                kind=item.kind, path=item.path, rule=item.rule, confidence=item.confidence, advice=item.advice
            )
            for item in value.violations
        ],
        notes=value.notes,
        spill_path=value.spill_path,
    )


def tool(value: model.Tool) -> admin_pb2.Tool:
    out = admin_pb2.Tool(
        name=value.name,
        description=value.description,
        aliases=value.aliases,
        read_only=value.read_only,
        concurrency_safe=value.concurrency_safe,
        destructive=value.destructive,
        classifier_input=value.classifier_input,
        interrupt_behavior=execution_pb2.INTERRUPT_BEHAVIOR_CANCEL if value.cancels else execution_pb2.INTERRUPT_BEHAVIOR_BLOCK,
        max_result_chars=value.max_result_chars,
        deferred=value.deferred,
        search_hint=value.search_hint,
    )
    out.input_schema.update(value.schema)
    return out


def model_text(value: model.ModelText | None) -> execution_pb2.ModelText | None:
    if value is None:
        return None
    return execution_pb2.ModelText(text=value.text, whole=value.whole, spill_path=value.spill_path)


def output(value: model.Output) -> execution_pb2.Output:
    """All of a chunk of output but its bytes."""
    out = execution_pb2.Output(stream=STREAM[value.stream], offset=value.offset)
    out.elapsed.seconds, out.elapsed.nanos = divmod(round(value.at * 1e9), 1_000_000_000)
    return out


def event(value: model.Event, execution_id: str, text: str) -> execution_pb2.Event:
    """One event of the execution of `text`. What goes out is serialized by `bundles`, which saves output two copies."""
    out = execution_pb2.Event()
    out.sequence, out.execution_id = value.seq, execution_id
    match value:
        case model.Output():
            out.output.CopyFrom(output(value))
            out.output.data = value.data
        case model.Queued():
            out.queued.reason = value.reason
            out.queued.SetInParent()
        case model.Decided():
            out.decided.decision.CopyFrom(decision(value.decision, text))
        case model.ApprovalNeeded():
            out.approval_needed.approval_id = value.approval_id
            out.approval_needed.decision.CopyFrom(decision(value.decision, text))
        case model.Advice():
            out.advice.approval_id = value.approval_id
            out.advice.text = value.text
        case model.Started():
            out.started.enforcement.CopyFrom(_present(enforcement(value.enforcement)))
            out.started.profile = value.profile
        case model.Gap():
            out.gap.stream = STREAM[value.stream]
            out.gap.offset = value.offset
            out.gap.length = value.length
        case model.Progress():
            out.progress.elapsed.CopyFrom(duration(value.elapsed))
            out.progress.output_bytes = value.output_bytes
            out.progress.last_line = value.last_line
        case model.Exited():
            out.exited.result.CopyFrom(result(value.result))
    return out


def _present(value: profile_pb2.Enforcement | None) -> profile_pb2.Enforcement:
    assert value is not None
    return value
