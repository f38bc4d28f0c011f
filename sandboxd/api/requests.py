# SPDX-License-Identifier: GPL-3.0-or-later
"""What comes over the wire, checked and turned into model values. Every error names the field and the fix."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TypeVar

from google.protobuf.struct_pb2 import Struct, Value

from sandboxd import model
from sandboxd.api import convert
from sandboxd.errors import Forbidden, RequestError, RuleError
from sandboxd.policy.rules import parse_rule
from sandboxd.sessions import Role, SessionSpec
from sandboxd.toolbox import Format
from sandboxd.v1 import admin_pb2, execution_pb2, profile_pb2, session_pb2

_T = TypeVar("_T")

MAX_DATA = 1 << 20  # bytes of one WriteStdin, characters of a profile
MAX_RULES = 100  # that come with one command
MAX_ID = 128  # characters of a caller's request_id

_SCOPES = ("once", "once", "session", "always")  # by wire number
_MODE: dict[int, model.Mode] = {number: member for member, number in convert.MODE.items() if number}
_FORMAT: dict[int, Format] = {admin_pb2.TOOL_FORMAT_ANTHROPIC: Format.ANTHROPIC, admin_pb2.TOOL_FORMAT_OPENAI: Format.OPENAI}
_BEHAVIOR: dict[int, model.Behavior] = {number: member for member, number in convert.BEHAVIOR.items() if number}


def mode(number: int, field: str = "mode") -> model.Mode | None:
    """The mode, None when unspecified."""
    return None if number == 0 else _member(_MODE, number, field)


def behavior(number: int, field: str) -> model.Behavior:
    if number == 0:
        raise RequestError(f"`{field}` is missing", field=field, fix="set it")
    return _member(_BEHAVIOR, number, field)


def approval_scope(number: int) -> str:
    """`once`, `session` or `always`; `once` when unspecified."""
    if not 0 <= number < len(_SCOPES):
        raise RequestError(f"`scope` has the unknown value {number}", field="scope", fix="use a value of this version")
    return _SCOPES[number]


def required(value: str, field: str) -> str:
    if not value:
        raise RequestError(f"`{field}` is missing", field=field, fix="set it")
    return value


def session_spec(message: session_pb2.SessionServiceCreateRequest) -> SessionSpec:
    for field in ("workspace", "cwd", "profile"):
        _no_nul(getattr(message, field), field)
    for field in ("allow", "ask", "deny", "additional_directories"):
        for item in getattr(message, field):
            _no_nul(item, field)
    for name, value in message.env.items():
        _no_nul(name + value, "env")
        if not name or "=" in name:
            raise RequestError(f"`{name}` is no name of an environment variable", field="env", fix="rename it")
    return SessionSpec(
        workspace=message.workspace,
        cwd=message.cwd or None,
        mode=mode(message.mode),
        profile=message.profile,
        headless=message.headless,
        allow=tuple(message.allow),
        ask=tuple(message.ask),
        deny=tuple(message.deny),
        env=tuple(sorted(message.env.items())),
        additional=tuple(message.additional_directories),
        parent_id=message.parent_session_id,
        outlives=message.outlives_parent,
    )


def check_request(message: execution_pb2.ExecutionServiceCheckCommandRequest, role: Role) -> model.Request:
    return _request(message.session_id, message.command, role)


def bash_request(session_id: str, call: model.ToolCall) -> model.Request:
    """The use of the tool Bash as the command that it is. Its time-out counts milliseconds."""
    given = call.input
    timeout = given.get("timeout")
    return model.Request(
        given["command"],
        session_id,
        timeout=None if timeout is None else timeout / 1000,
        background=bool(given.get("run_in_background")),
        unsandboxed=bool(given.get("dangerouslyDisableSandbox")),
    )


def tool(message: admin_pb2.Tool) -> model.Tool:
    return model.Tool(
        name=message.name,
        description=message.description,
        schema=plain(message.input_schema),
        aliases=tuple(message.aliases),
        read_only=message.read_only,
        concurrency_safe=message.concurrency_safe,
        destructive=message.destructive,
        classifier_input=tuple(message.classifier_input),
        cancels=cancels(message.interrupt_behavior),
        max_result_chars=message.max_result_chars if message.HasField("max_result_chars") else None,
        deferred=message.deferred,
        search_hint=message.search_hint,
    )


def tool_format(number: int) -> Format:
    return Format.ANTHROPIC if number == 0 else _member(_FORMAT, number, "format")


def plain(message: Struct) -> dict[str, Any]:
    """A Struct as plain values; whole numbers are integers. Raises RequestError for a number that is none."""
    return {name: _plain(value) for name, value in message.fields.items()}


def _plain(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "number_value":
            number = value.number_value
            if not math.isfinite(number):
                raise RequestError(f"`{number}` is no number of JSON", field="input", fix="send a finite one")
            return int(number) if number.is_integer() else number
        case "struct_value":
            return plain(value.struct_value)
        case "list_value":
            return [_plain(each) for each in value.list_value.values]
    return None


def start_request(message: execution_pb2.ExecutionServiceStartRequest, role: Role) -> model.Request:
    if len(message.request_id) > MAX_ID:
        raise RequestError(
            f"`request_id` has more than {MAX_ID} characters", field="request_id", fix="use a UUID or another short name"
        )
    ttl = message.detach_ttl.ToNanoseconds() / 1e9 if message.HasField("detach_ttl") else None
    if ttl is not None and not ttl > 0:
        raise RequestError(f"detach_ttl `{ttl}` is not positive", field="detach_ttl", fix="leave it out")
    return _request(
        message.session_id,
        message.command,
        role,
        request_id=message.request_id,
        background=message.background,
        keep_on_disconnect=message.keep_on_disconnect,
        detach_ttl=ttl,
    )


def batch_request(session_id: str, message: execution_pb2.BatchCommand, role: Role) -> model.Request:
    return _request(session_id, message.command, role)


def window(rows: int, columns: int) -> model.WindowSize:
    return model.WindowSize(rows, columns)


def cancels(number: int) -> bool:
    """Whether a call is dropped when the user speaks up."""
    if number not in execution_pb2.InterruptBehavior.values():
        field = "interrupt_behavior"
        raise RequestError(f"`{field}` has the unknown value {number}", field=field, fix="use a value of this version")
    return number == execution_pb2.INTERRUPT_BEHAVIOR_CANCEL


def stdin_data(message: execution_pb2.ExecutionServiceWriteStdinRequest) -> bytes:
    if len(message.data) > MAX_DATA:
        raise RequestError(f"`data` has more than {MAX_DATA} bytes", field="data", fix="write it in pieces")
    return message.data


def profile_text(message: profile_pb2.ProfileServiceValidateRequest) -> str:
    if len(message.text) > MAX_DATA:
        raise RequestError(f"the profile has more than {MAX_DATA} characters", field="text", fix="shorten it")
    return message.text


def most(number: int, default: int, limit: int) -> int:
    """How many results are wanted."""
    if number > limit:
        raise RequestError(f"`{number}` are too many results", field="max_results", fix=f"ask for at most {limit}")
    return number or default


def page(size: int, token: str) -> tuple[int, int | None]:
    """The page's size (100 when not said) and the row it starts before, None for the newest."""
    if not 0 <= size <= 1000:
        raise RequestError(f"`{size}` is no page size", field="page_size", fix="use 1 to 1000, or 0 for 100")
    if token and not (token.isascii() and token.isdecimal() and len(token) < 19):
        raise RequestError(f"`{token}` is no page token", field="page_token", fix="pass on `next_page_token` as it came")
    return size or 100, int(token) if token else None


def _request(session_id: str, command: execution_pb2.Command, role: Role, **more: Any) -> model.Request:
    if not command.text:
        raise RequestError("the command is empty", field="command.text", fix="put bash source there")
    _no_nul(command.cwd, "command.cwd")
    return model.Request(
        text=command.text,
        session_id=session_id,
        cwd=command.cwd or None,
        timeout=command.timeout.ToNanoseconds() / 1e9 if command.HasField("timeout") else None,
        stdin=command.stdin,
        unsandboxed=command.dangerously_disable_sandbox,
        terminal=_terminal(command),
        max_result_chars=_result_limit(command),
        rules=_rules(command, role) if command.allow or command.ask or command.deny else (),
        **more,
    )


def _rules(command: execution_pb2.Command, role: Role) -> tuple[model.Rule, ...]:
    """The rules that come with one command. An agent may only tighten."""
    if command.allow and role is not Role.ADMIN:
        raise Forbidden("allow rules need the admin socket", field="command.allow", fix="leave them out")
    if len(command.allow) + len(command.ask) + len(command.deny) > MAX_RULES:
        raise RequestError(f"more than {MAX_RULES} rules come with a command", field="command", fix="give them to the session")
    out = []
    for behavior, texts in (
        (model.Behavior.DENY, command.deny),
        (model.Behavior.ASK, command.ask),
        (model.Behavior.ALLOW, command.allow),
    ):
        field = f"command.{behavior.value}"
        for text in texts:
            _no_nul(text, field)
            try:
                rule = parse_rule(text, behavior, model.Source.COMMAND, field)
            except RuleError as error:
                raise RequestError(error.message, field=field, fix=error.fix) from None
            out.append(replace(rule, trusted=role is Role.ADMIN))
    return tuple(out)


def _terminal(command: execution_pb2.Command) -> model.WindowSize | None:
    if not command.HasField("terminal"):
        return None
    default = model.WindowSize()
    return model.WindowSize(command.terminal.rows or default.rows, command.terminal.columns or default.columns)


def _result_limit(command: execution_pb2.Command) -> int | None:
    """Characters that a model is shown; an exemption counts before anything else."""
    if command.unlimited_result:
        return model.UNLIMITED
    return command.max_result_chars if command.HasField("max_result_chars") else None


def _no_nul(text: str, field: str) -> None:
    if "\0" in text:
        raise RequestError(f"`{field}` holds a NUL character", field=field, fix="no program can be given one; remove it")


def _member(table: dict[int, _T], number: int, field: str) -> _T:
    try:
        return table[number]
    except KeyError:
        raise RequestError(f"`{field}` has the unknown value {number}", field=field, fix="use a value of this version") from None
