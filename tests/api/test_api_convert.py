# SPDX-License-Identifier: GPL-3.0-or-later
"""The wire carries every value of the model: what the daemon encodes is what the client decodes."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from hypothesis import given
from hypothesis import strategies as st

from sandboxd import model
from sandboxd.api import bundles, convert
from sandboxd.client import decode
from sandboxd.v1 import analysis_pb2, execution_pb2, profile_pb2, session_pb2

TEXT = "cd ~ && echo “naïve” ∧ 𝔘𝔫𝔦 > out; rm -r build"

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
words = st.lists(names, max_size=3).map(tuple)
counts = st.integers(0, 2**40)
seconds = st.integers(0, 10**15).map(lambda nanoseconds: nanoseconds / 1e9)
spans = st.tuples(st.integers(0, len(TEXT)), st.integers(0, len(TEXT))).map(lambda pair: model.Span(min(pair), max(pair)))


def one_of(kind: type[Enum]) -> st.SearchStrategy[Any]:
    return st.sampled_from(list(kind))


def tuples(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=3).map(tuple)


effects = st.builds(
    model.Effect,
    kind=one_of(model.EffectKind),
    because=names,
    span=spans,
    target=st.none() | names,
    act=st.none() | one_of(model.Act),
    code=names,
    detail=names,
    recursive=st.booleans(),
    pattern=st.booleans(),
    fragments=words,
    sensitivity=one_of(model.Sensitivity),
    direction=st.none() | one_of(model.Direction),
    edit=st.just(False),  # stays in the daemon
)
decisions = st.builds(
    model.Decision,
    behavior=one_of(model.Behavior),
    step=names,
    reason=names,
    message=names,
    flip=names,
    immune=st.booleans(),
    protected=st.booleans(),
    promise=st.booleans(),
    evidence=tuples(
        st.builds(
            model.Evidence,
            text=names,
            span=st.none() | spans,
            subcommand=names,
            rule=names,
            source=names,
            origin=names,
            because=names,
        )
    ),
    grants=tuples(st.builds(model.Grant, one_of(model.GrantKind), names)),
    trace=tuples(st.builds(model.TraceEntry, names, names, st.none() | one_of(model.Behavior), names)),
    suggestions=words,
)
enforcements = st.builds(
    model.Enforcement,
    backend=names,
    layers=tuples(st.builds(model.LayerState, one_of(model.Layer), one_of(model.Strength), words)),
    landlock_abi=st.integers(0, 99),
)
limits = st.builds(
    model.Limits,
    wall=st.none() | seconds,
    cpu=st.none() | st.integers(0, 10**11),  # a Duration holds 10,000 years
    memory=st.none() | counts,
    pids=st.none() | counts,
    open_files=st.none() | counts,
    file_size=st.none() | counts,
    output=st.none() | counts,
)
profiles = st.builds(
    model.Profile,
    name=names,
    origin=names,
    description=names,
    read=words,
    deny_read=words,
    write=words,
    deny_write=words,
    tmp=names,
    home=names,
    network=one_of(model.NetworkMode),
    unix_allow=words,
    env_pass=words,
    env_set=st.dictionaries(names, names, max_size=3),
    limits=limits,
    require=one_of(model.Require),
    fallback=words,
    git_commit=st.booleans(),
    extra_deny=words,
    allow_ptrace=st.booleans(),
)
results = st.builds(
    model.Result,
    end=one_of(model.EndKind),
    code=st.integers(0, 255),
    signal=st.none() | st.integers(1, 64),
    cause=names,
    usage=st.builds(model.Usage, seconds, seconds, seconds, counts),
    stdout_bytes=counts,
    stderr_bytes=counts,
    truncated=st.booleans(),
    cwd=names,
    enforcement=st.none() | enforcements,
    promise_broken=words,
    violations=tuples(st.builds(model.Violation, names, names, names, names, names)),
    notes=words,
)
EXECUTION = "e-1"
# Of every length that takes another number of bytes to write down.
chunks = st.sampled_from((0, 1, 60, 100, 127, 128, 200, 16_000, 16_383, 16_384, 196_608, 2_097_152)).map(bytes)
sequences = st.integers(1, 2**40)
events = (
    st.builds(model.Queued, sequences, st.just(EXECUTION), names)
    | st.builds(model.Decided, sequences, st.just(EXECUTION), decisions)
    | st.builds(model.ApprovalNeeded, sequences, st.just(EXECUTION), names, decisions)
    | st.builds(model.Started, sequences, st.just(EXECUTION), enforcements, names)
    | st.builds(model.Output, sequences, one_of(model.Stream), counts, st.binary(max_size=20), seconds)
    | st.builds(model.Gap, sequences, one_of(model.Stream), counts, counts)
    | st.builds(model.Exited, sequences, st.just(EXECUTION), results)
)


@given(decisions)
def test_decision_round_trip(value: model.Decision) -> None:
    """A decision reaches the client whole, its spans counted in characters again."""
    assert decode.decision(_sent(convert.decision(value, TEXT)), TEXT) == value


@given(st.lists(effects, max_size=3), st.lists(st.none() | names, max_size=3), names, st.booleans(), st.booleans())
def test_analysis_round_trip(
    found: list[model.Effect], argv: list[str | None], via: str, unparsed: bool, read_only: bool
) -> None:
    """Subcommands, dynamic words, effects and why a text was not parsed reach the client."""
    command = model.AnalyzedCommand(model.Subcommand((), model.Span(0, 5)), tuple(argv), tuple(found), via=via)
    reason = model.Unparsed("syntax", model.Span(3, 9), detail="near `”`") if unparsed else None
    value = model.Analysis(TEXT, "/w", (command,), unparsed=reason, read_only=read_only, destructive=not read_only)
    assert decode.analysis(_sent(convert.analysis(value)), TEXT, "/w") == value


@given(profiles)
def test_profile_round_trip(value: model.Profile) -> None:
    """A profile reaches the client whole; what is not limited stays not limited."""
    assert decode.profile(_sent(convert.profile(value))) == value


@given(events)
def test_event_round_trip(value: model.Event) -> None:
    """Every kind of event reaches the client whole, under its execution's id."""
    message = _sent(convert.event(value, EXECUTION, TEXT))
    assert message.execution_id == EXECUTION
    assert decode.event(message, TEXT) == value


@given(
    st.lists(events | st.builds(model.Output, sequences, one_of(model.Stream), counts, chunks, seconds), min_size=1, max_size=4),
    names,
)
def test_serialized_events(values: list[model.Event], key: str) -> None:
    """What goes out is what protobuf makes of the same messages, whatever the output."""
    messages = [convert.event(value, EXECUTION, TEXT) for value in values]
    together = execution_pb2.ExecutionServiceStartResponse(event=messages[0], more=messages[1:])
    start, attach, batch = (
        execution_pb2.ExecutionServiceStartResponse,
        execution_pb2.ExecutionServiceAttachResponse,
        execution_pb2.ExecutionServiceRunBatchResponse,
    )
    assert start.FromString(bundles.started(values, EXECUTION, TEXT)) == together
    for value, message in zip(values, messages, strict=True):
        assert attach.FromString(bundles.attached(value, EXECUTION, TEXT)) == attach(event=message)
        assert batch.FromString(bundles.in_batch(key, value, EXECUTION, TEXT)) == batch(key=key, event=message)


@given(st.booleans(), st.none() | enforcements, names)
def test_probe_round_trip(works: bool, enforcement: model.Enforcement | None, error: str) -> None:
    """What a trial run showed reaches the client whole."""
    value = model.Probe("bwrap", works, enforcement, error, fix=error)
    assert decode.probe(_sent(convert.probe(value))) == value


TABLES: tuple[tuple[type[Enum], Any, dict[Any, int], dict[int, Any], Enum | None], ...] = (
    (model.Behavior, analysis_pb2.Behavior, convert.BEHAVIOR, decode.BEHAVIOR, None),
    (model.EffectKind, analysis_pb2.EffectKind, convert.EFFECT_KIND, decode.EFFECT_KIND, None),
    (model.Act, analysis_pb2.Act, convert.ACT, decode.ACT, None),
    (model.Sensitivity, analysis_pb2.Sensitivity, convert.SENSITIVITY, decode.SENSITIVITY, model.Sensitivity.NONE),
    (model.Direction, analysis_pb2.Direction, convert.DIRECTION, decode.DIRECTION, None),
    (model.GrantKind, analysis_pb2.GrantKind, convert.GRANT_KIND, decode.GRANT_KIND, None),
    (model.Mode, session_pb2.Mode, convert.MODE, decode.MODE, None),
    (model.NetworkMode, profile_pb2.NetworkMode, convert.NETWORK_MODE, decode.NETWORK_MODE, None),
    (model.Require, profile_pb2.Requirement, convert.REQUIREMENT, decode.REQUIREMENT, None),
    (model.Layer, profile_pb2.Layer, convert.LAYER, decode.LAYER, None),
    (model.Strength, profile_pb2.Strength, convert.STRENGTH, decode.STRENGTH, None),
    (model.EndKind, execution_pb2.End, convert.END, decode.END, None),
    (model.Stream, execution_pb2.OutputStream, convert.STREAM, decode.STREAM, None),
)


@pytest.mark.parametrize(("kind", "wire", "encoded", "decoded", "unset"), TABLES, ids=lambda item: getattr(item, "__name__", ""))
def test_enums_are_total(
    kind: type[Enum], wire: EnumTypeWrapper, encoded: dict[Any, int], decoded: dict[int, Any], unset: Enum | None
) -> None:
    """Every member has one wire number and every wire number but UNSPECIFIED one member."""
    members = {member for member in kind if member is not unset}
    assert {decoded[encoded[member]] for member in members} == members
    assert sorted(decoded) == sorted(number for number in wire.values() if number)
    assert encoded[unset] == 0


@pytest.mark.parametrize(
    ("text", "span", "expected"),
    [
        ("rm x", (3, 4), (3, 4)),
        ("é x", (2, 3), (3, 4)),
        ("𝔘", (0, 1), (0, 4)),
        ("a\udc80b", (2, 3), (4, 5)),
        ("é", (1, 9), (2, 2)),
        ("e", (1, 9), (1, 1)),
    ],
)
def test_spans_count_bytes(text: str, span: tuple[int, int], expected: tuple[int, int]) -> None:
    """Wire spans count UTF-8 bytes, and never point behind the text."""
    message = convert.spans(text)(model.Span(*span))
    assert message is not None
    assert (message.start, message.end) == expected


@pytest.mark.parametrize("number", [0, 99])
def test_unknown_verdict_is_a_deny(number: int) -> None:
    """A behaviour that this client does not know, or that is missing, is read as DENY."""
    message = analysis_pb2.Decision()
    message.behavior = number  # type: ignore[assignment]  # a number of a later version
    assert decode.decision(message, "").behavior is model.Behavior.DENY


def test_unknown_event_is_skipped() -> None:
    """An event of a kind that a later version adds does not stop this client."""
    assert decode.event(execution_pb2.Event(sequence=3), "") is None


def _sent(message: Any) -> Any:
    """The message as it arrives."""
    return type(message).FromString(message.SerializeToString())
