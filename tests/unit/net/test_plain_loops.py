"""Under `asyncio.run`, `trio.run` and uvloop, without anyio's own runner: callbacks find no anyio loop there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio

from kclient.concurrency import Completion
from kclient.errors import KafkaTimeoutError
from kclient.net.connection import Connection
from kclient.net.server import Server, ServerConnection
from kclient.net.settings import ConnectionSettings
from kclient.protocol import framing
from kclient.protocol.messages import ApiVersionsResponse, MetadataRequest, MetadataRequestTopic

from .links import client_context, metadata_answer, server_context, supervised


class Handler:
    """Answers Metadata at once, by a task, by a completion, or never, as the topic says."""

    def connected(self, connection: ServerConnection) -> None:
        pass

    def disconnected(self, connection: ServerConnection) -> None:
        pass

    def begin(self, frame: memoryview, connection: ServerConnection) -> Any:
        header, message = framing.decode_request(frame)
        answer = ApiVersionsResponse() if header.api_key == 18 else metadata_answer(header, message)
        reply = framing.encode_response(answer, header.api_version, header.correlation_id)
        name = getattr(answer, "cluster_id", "")
        if name == "task":
            return self._later(reply)
        if name == "completion":
            completion: Completion[Any] = Completion()
            connection.context = completion, reply
            return completion
        if name == "release":
            waiting, earlier = connection.context
            waiting.set_result(earlier)
        if name == "never":
            return Completion()
        return reply

    async def _later(self, reply: Any) -> Any:
        await anyio.sleep(0.001)
        return reply


def uvloop_run(main: Callable[[], Awaitable[None]]) -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())  # type: ignore[arg-type]


RUNNERS: dict[str, Callable[..., Any]] = {
    "asyncio": lambda main: asyncio.run(main()),
    "debug": lambda main: asyncio.run(main(), debug=True),
    "uvloop": uvloop_run,
    "trio": trio.run,
}


@pytest.mark.parametrize("secure", [False, True], ids=["clear", "tls"])
@pytest.mark.parametrize("runner", sorted(RUNNERS))
def test_a_whole_exchange(runner: str, secure: bool) -> None:
    async def main() -> None:
        async with supervised() as supervisor:
            server = Server(Handler(), supervisor)
            listener = await server.listen_tcp(ssl_context=server_context() if secure else None)
            settings = ConnectionSettings(tls_context=client_context() if secure else None)
            connection = await Connection.open(listener.address, settings, supervisor=supervisor)

            async def ask(name: str, **options: Any) -> str:
                request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
                return str((await connection.request(request, 9, **options)).cluster_id)

            assert await ask("at once") == "at once"
            assert await ask("task") == "task"
            large = "x" * 30_000
            names = [large, "completion", "release", "task"] * 20
            requests = [MetadataRequest(topics=[MetadataRequestTopic(name=name)]) for name in names]
            pending = [connection.send_nowait(request, 9) for request in requests]
            with anyio.fail_after(20):
                assert [(await item).cluster_id for item in pending] == names
            with pytest.raises(KafkaTimeoutError), anyio.fail_after(20):
                await ask("never", timeout=0.02)
            await connection.aclose()
            await server.aclose(grace=0.01)

    RUNNERS[runner](main)
