# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of a session that is about tools other than commands: judge their use, describe, declare and find them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf import json_format

from sandboxd.client import decode, values
from sandboxd.model import Tool
from sandboxd.v1 import admin_pb2, execution_pb2, tool_pb2

Format = Literal["anthropic", "openai"]
_FORMATS = {"anthropic": admin_pb2.TOOL_FORMAT_ANTHROPIC, "openai": admin_pb2.TOOL_FORMAT_OPENAI}


@dataclass(frozen=True, slots=True)
class Described:
    """Tools, and the same as one JSON array in the format asked for: byte for byte the same as long as the tools are."""

    tools: tuple[Tool, ...]
    json: str


class AsyncTools(ABC):
    """What `AsyncSession` can do with tools; the session says who it is and how it calls the daemon."""

    _client: Any  # an AsyncClient, which knows the stubs

    @property
    @abstractmethod
    def id(self) -> str:
        """Of the session."""

    @abstractmethod
    async def _call(self, method: Any, request: Any) -> Any:
        """One plain call with the session's secret. Raises the errors of `sandboxd.errors`."""

    async def check_tool(self, tool: str, input: Mapping[str, Any]) -> values.ToolCheck:
        """What is decided on the use of a tool; the front-end then runs it, or does not. Raises RequestError for an input
        that does not fit the tool's schema."""
        request = execution_pb2.ExecutionServiceCheckToolUseRequest(
            session_id=self.id, tool=tool, input=decode.struct(input, "input")
        )
        answer = await self._call(self._client._executions.CheckToolUse, request)
        return values.ToolCheck(
            decode.decision(answer.decision, answer.text),
            decode.analysis(answer.analysis, answer.text, ""),
            answer.decision_id,
            answer.text,
            tuple(answer.exclude),
            answer.steering,
            json_format.MessageToDict(answer.updated_input) if answer.HasField("updated_input") else None,
            tuple(answer.notes),
        )

    async def report_tool(
        self, decision_id: str, response: Mapping[str, Any] | None = None, *, failed: bool = False
    ) -> tuple[str, ...]:
        """Tell how the use of a tool ended that `check_tool` did not deny; what hooks have to say about it. Once for a use."""
        request = tool_pb2.ToolServiceReportRequest(
            session_id=self.id, decision_id=decision_id, failed=failed, response=decode.struct(response or {}, "response")
        )
        return tuple((await self._call(self._client._tools.Report, request)).notes)

    async def declare_tools(self, tools: Iterable[Tool] = (), *, remove: Iterable[str] = ()) -> tuple[str, ...]:
        """Declare tools that the front-end runs itself; all declared names, afterwards."""
        request = tool_pb2.ToolServiceRegisterRequest(
            session_id=self.id, tools=[decode.tool_message(tool) for tool in tools], remove=remove
        )
        return tuple((await self._call(self._client._tools.Register, request)).names)

    async def search_tools(self, query: str, *, most: int = 0, style: Format = "anthropic") -> Described:
        """The deferred tools that fit, best first; `most` 0 = as many as the daemon gives by default."""
        request = tool_pb2.ToolServiceSearchRequest(session_id=self.id, query=query, max_results=most, format=_FORMATS[style])
        return _described(await self._call(self._client._tools.Search, request))

    async def describe_tools(self, style: Format = "anthropic", *, deferred: bool = False) -> Described:
        """The tools of the session, for a model."""
        request = admin_pb2.AdminServiceDescribeToolsRequest(
            session_id=self.id, format=_FORMATS[style], include_deferred=deferred
        )
        return _described(await self._call(self._client._administration.DescribeTools, request))


def _described(answer: Any) -> Described:
    return Described(tuple(decode.tool(tool) for tool in answer.tools), answer.json)
