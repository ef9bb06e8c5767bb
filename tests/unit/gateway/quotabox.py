"""What tests of a gateway's quotas have in common: a client with quotas, and the two APIs in short."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio

from kclient.gateway import Gateway
from kclient.gateway.contexts import Principal
from kclient.protocol import messages as m
from kclient.protocol.framing import encode_request
from kclient.protocol.message import ApiMessage
from tests.gateway_wire import Wire, connect, running

Names = Mapping[str, str | None]
IN, OUT, TIME, TOPICS = "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"
SHORT = {"quota.window.num": 2}
"""A rate over one to two seconds: what is too much by a tenth is throttled for 100 ms."""
CLIENT: Names = {"client-id": "x"}
"""What the clients of these tests call themselves."""


async def alter(
    wire: Wire, names: Names, *, validate_only: bool = False, **quotas: float | None
) -> tuple[int, str | None]:
    entity = [m.AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name) for kind, name in names.items()]
    ops = [m.OpData(key=name, value=value or 0.0, remove=value is None) for name, value in quotas.items()]
    entries = [m.AlterClientQuotasRequestEntryData(entity=entity, ops=ops)]
    (row,) = (await wire(m.AlterClientQuotasRequest(entries=entries, validate_only=validate_only), 1)).entries
    assert {each.entity_type: each.entity_name for each in row.entity} == names
    return row.error_code, row.error_message


async def describe(
    wire: Wire, *components: tuple[str, int, str | None], strict: bool = False
) -> list[tuple[Names, dict[str, float]]]:
    filters = [m.ComponentData(entity_type=kind, match_type=how, match=match) for kind, how, match in components]
    answer = await wire(m.DescribeClientQuotasRequest(components=filters, strict=strict), 1)
    assert answer.error_code == 0, answer.error_message
    return [
        ({each.entity_type: each.entity_name for each in row.entity}, {each.key: each.value for each in row.values})
        for row in answer.entries
    ]


class Client(Wire):
    """A connection whose client calls itself so, and is somebody perhaps."""

    def __init__(self, gateway: Gateway, client_id: str | None, user: str | None = None) -> None:
        server = gateway._server
        assert server is not None
        before = set(server.connections)
        super().__init__(connect(gateway).stream)
        (self.connection,) = server.connections - before
        self.client_id = client_id
        if user is not None:
            self.connection.context.principal = Principal(user)

    async def send(self, request: ApiMessage, version: int) -> None:
        await self.stream.send(encode_request(request, version, 1, self.client_id))

    async def timed(self, request: ApiMessage, version: int) -> tuple[Any, float]:
        """The answer, and how long it took."""
        begun = anyio.current_time()
        return await self(request, version), anyio.current_time() - begun


@asynccontextmanager
async def limited(names: Names = CLIENT, **quotas: float) -> AsyncIterator[tuple[Gateway, Client, Wire]]:
    """A gateway with a topic and quotas; a client called x, and the connection of an administrator, called test."""
    with anyio.fail_after(30):
        async with running(config=SHORT) as (gateway, wire):
            await wire.create("t")
            assert await alter(wire, names, **quotas) == (0, None)
            client = Client(gateway, "x")
            try:
                yield gateway, client, wire
            finally:
                await client.aclose()


NOTHING = m.MetadataRequest(topics=[])
