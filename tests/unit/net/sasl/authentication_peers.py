"""A small server that asks for SASL, and what tests need to talk to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from kclient.concurrency import Supervisor
from kclient.net.connection import Connection
from kclient.net.sasl.plain import fixed_passwords
from kclient.net.sasl.scram import ScramCredential
from kclient.net.sasl.server import SaslHandler
from kclient.net.sasl.session import server_mechanisms
from kclient.net.sasl.unsecured import accept_unsecured
from kclient.net.server import Server, ServerConnection
from kclient.net.settings import ConnectionSettings
from kclient.net.streams import memory_pair
from kclient.protocol.framing import decode_request, encode_response
from kclient.protocol.messages import (
    ApiVersion,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

PASSWORD = "geheimnis"
SCRAM = {name: {"alice": ScramCredential.derive(name, PASSWORD)} for name in ("SCRAM-SHA-256", "SCRAM-SHA-512")}


@dataclass
class Clock:
    """A time that tests set."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Inner:
    """The handler behind the authentication: Metadata echoes its topics, `hold:` waits for an event."""

    requests: list[Any] = field(default_factory=list)
    released: anyio.Event = field(default_factory=anyio.Event)
    seen: list[str] = field(default_factory=list)

    def connected(self, connection: ServerConnection) -> None:
        self.seen.append("connected")

    def disconnected(self, connection: ServerConnection) -> None:
        self.seen.append("disconnected")

    def begin(self, frame: memoryview, connection: ServerConnection) -> Any:
        header, message = decode_request(frame)
        self.requests.append(message)
        if header.api_key == 18:
            ranges = [ApiVersion(api_key=key, min_version=0, max_version=top) for key, top in ((3, 13), (18, 4))]
            return encode_response(ApiVersionsResponse(api_keys=ranges), header.api_version, header.correlation_id)
        assert isinstance(message, MetadataRequest)
        names = ",".join(str(topic.name) for topic in message.topics or [])
        reply = encode_response(MetadataResponse(cluster_id=names), header.api_version, header.correlation_id)
        return self._later(reply) if names.startswith("hold") else reply

    async def _later(self, reply: Any) -> Any:
        await self.released.wait()
        return reply


@dataclass
class Peer:
    """A server on memory streams, and connections to it."""

    supervisor: Supervisor
    inner: Inner
    handler: SaslHandler
    server: Server
    wall: Clock
    opened: list[Connection] = field(default_factory=list)

    def connect(self, **settings: Any) -> Connection:
        mine, theirs = memory_pair("broker:9092", "client")
        self.server.attach(theirs)
        made = Connection.over(mine, "broker:9092", ConnectionSettings(**settings), supervisor=self.supervisor)
        self.opened.append(made)
        return made

    async def open(self, login: Any, **settings: Any) -> Connection:
        connection = self.connect(**settings)
        await connection.negotiate()
        await connection.authenticate(login)
        return connection

    @property
    def identity(self) -> Any:
        """Who the only connection is."""
        (connection,) = self.server.connections
        return self.handler.identity_of(connection)


@asynccontextmanager
async def peer(**options: Any) -> AsyncIterator[Peer]:
    """A server with every mechanism, for the user alice."""
    wall = Clock()
    mechanisms = options.pop("mechanisms", None) or server_mechanisms(
        plain=fixed_passwords({"alice": PASSWORD}),
        scram_sha_256=SCRAM["SCRAM-SHA-256"].get,
        scram_sha_512=SCRAM["SCRAM-SHA-512"].get,
        oauthbearer=accept_unsecured(clock=wall),
    )
    async with Supervisor("test") as supervisor:
        inner = Inner()
        handler = SaslHandler(inner, mechanisms, **{"failure_delay": 0.0, "clock": wall, **options})
        made = Peer(supervisor, inner, handler, Server(handler, supervisor), wall)
        try:
            yield made
        finally:
            for connection in made.opened:
                await connection.aclose()
            await made.server.aclose()
        supervisor.check()


def metadata(name: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


async def until(condition: Callable[[], Any]) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.001)
