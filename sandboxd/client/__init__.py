# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python client.

    from sandboxd.client import Client

    with Client() as client:
        run = client.run("git log --oneline | head -3")
        print(run.exit_code, run.output)
        for event in client.start("make test", timeout=600):
            ...
        with client.session(mode="plan") as session:
            print(session.check("rm -r build").decision.message)

`Client(on_ask=…)` is asked when a decision is ASK. `AsyncClient` is the same for asyncio.
"""

from sandboxd.client.aio import AsyncClient
from sandboxd.client.asking import Answer, Ask
from sandboxd.client.batch import BatchEvent, BatchResult, BatchText, ExternalCancel, ExternalStart, Outcome
from sandboxd.client.blocking import Batch, Client, Execution, Session
from sandboxd.client.execution import AsyncExecution
from sandboxd.client.figures import ClassifierInfo, ClassifierUsage, PoolInfo
from sandboxd.client.session import AsyncSession, SessionBatch
from sandboxd.client.tools import Described
from sandboxd.client.transcripts import ToolUse, UserMessage
from sandboxd.client.values import (
    Approval,
    Check,
    DaemonStatus,
    DecisionRecord,
    ExecutionInfo,
    Problem,
    Run,
    SessionInfo,
    Settled,
    ToolCheck,
)
from sandboxd.model import Tool

__all__ = [
    "Answer",
    "Approval",
    "Ask",
    "AsyncClient",
    "AsyncExecution",
    "AsyncSession",
    "Batch",
    "BatchEvent",
    "BatchResult",
    "BatchText",
    "Check",
    "ClassifierInfo",
    "ClassifierUsage",
    "Client",
    "DaemonStatus",
    "DecisionRecord",
    "Described",
    "Execution",
    "ExecutionInfo",
    "ExternalCancel",
    "ExternalStart",
    "Outcome",
    "PoolInfo",
    "Problem",
    "Run",
    "Session",
    "SessionBatch",
    "SessionInfo",
    "Settled",
    "Tool",
    "ToolCheck",
    "ToolUse",
    "UserMessage",
]
