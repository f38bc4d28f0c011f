# SPDX-License-Identifier: GPL-3.0-or-later
"""CheckCommand over the socket: what the daemon adds to the judgement itself, beside a bare gRPC echo of the same answer.

Both servers are processes of their own on Unix sockets and take turns. What the judgement took (parse, effects, facts,
waterfall) is what the daemon recorded of each decision; the rest is gRPC, the question, the answer and the record. Goals:
at most 0.7 ms, and at most 1.6 times the echo.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import grpc

from benchmarks.measure import Case, Measured, percentile95
from benchmarks.running import daemon
from sandboxd.client import AsyncClient, AsyncSession
from sandboxd.v1 import execution_pb2 as pb
from sandboxd.v1 import execution_pb2_grpc

_SECRET = "sandboxd-session-secret"
_ECHO = """
import asyncio, sys
import grpc
from sandboxd.v1 import execution_pb2 as pb, execution_pb2_grpc
class Echo(execution_pb2_grpc.ExecutionServiceServicer):
    async def CheckCommand(self, request, context):
        return answer
async def main():
    server = grpc.aio.server()
    execution_pb2_grpc.add_ExecutionServiceServicer_to_server(Echo(), server)
    server.add_insecure_port(sys.argv[1])
    await server.start()
    print("up", flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)
    await server.stop(0)
answer = pb.ExecutionServiceCheckCommandResponse.FromString(bytes.fromhex(sys.argv[2]))
asyncio.run(main())
"""


def cases() -> list[Case]:
    return [
        Case("check.added", "ms", _measured(lambda added, _: added * 1e3), 0.7),
        Case("check.added_vs_echo", "x", _measured(lambda added, echo: added / echo), 1.6),
    ]


def _measured(figure: Callable[[float, float], float]) -> Callable[[float], Measured]:
    """A case: `figure` is made of the median seconds that the daemon adds, and those of an echo."""

    def run(seconds: float) -> Measured:
        with daemon() as place:
            return asyncio.run(_take_turns(place.address, place.workspace, seconds, figure))

    return run


async def _take_turns(address: str, workspace: str, seconds: float, figure: Callable[[float, float], float]) -> Measured:
    echoes = []
    async with AsyncClient(address, admin=True) as client, await client.session(workspace, headless=True) as session:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = execution_pb2_grpc.ExecutionServiceStub(channel)
            proof = ((_SECRET, session.secret),)
            answer = await stub.CheckCommand(_request(session, 0), metadata=proof)
            with _echo(answer) as other:
                async with grpc.aio.insecure_channel(other) as second:
                    bare = execution_pb2_grpc.ExecutionServiceStub(second)
                    end, number = time.perf_counter() + seconds, 0
                    took = {}
                    while time.perf_counter() < end:
                        number += 1
                        request = _request(session, number)
                        begin = time.perf_counter()
                        await bare.CheckCommand(request, metadata=proof)
                        between = time.perf_counter()
                        answer = await stub.CheckCommand(request, metadata=proof)
                        took[answer.decision_id] = time.perf_counter() - between
                        echoes.append(between - begin)
        records = await client.decisions(session_id=session.id, limit=len(took))
    added = [took[each.id] - sum(timing.seconds for timing in each.timings) for each in records if each.id in took]
    usual, slow = ((what(added), what(echoes)) for what in (median, percentile95))
    note = f"{usual[0] * 1e3:.2f} ms beyond the judgement, echo {usual[1] * 1e3:.2f} ms"
    return Measured(figure(*usual), len(added), note, figure(*slow))


def _request(session: AsyncSession, number: int) -> pb.ExecutionServiceCheckCommandRequest:
    """A line like those that agents write, and never the same."""
    command = pb.Command(text=f"git log --oneline -n {number + 1} | grep -v merge; wc -l src/*.py")
    return pb.ExecutionServiceCheckCommandRequest(session_id=session.id, command=command)


@contextmanager
def _echo(answer: pb.ExecutionServiceCheckCommandResponse) -> Iterator[str]:
    """A server that answers with the same bytes and does nothing else; its address."""
    with tempfile.TemporaryDirectory(prefix="sbxd-echo-") as directory:
        address = f"unix:{Path(directory)}/s"
        argv = [sys.executable, "-c", _ECHO, address, answer.SerializeToString().hex()]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            try:
                yield address
            finally:
                child.communicate(timeout=20)
