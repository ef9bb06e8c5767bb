"""A gateway with quotas: connections that are muted for a time, and those that come too fast."""

from __future__ import annotations

import anyio
import pytest

from kclient.gateway import Gateway
from kclient.gateway.quotas.entities import QuotaKind
from tests.gateway_wire import batch_of, connect, names, produce_request
from tests.unit.gateway.quotabox import (
    IN,
    NOTHING,
    SHORT,
    alter,
    limited,
)
from tests.wire_session import until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("gone", ["closed", "aborted"])
async def test_a_muted_connection_whose_client_goes_is_freed(gone: str) -> None:
    async with limited(**{IN: 100}) as (gateway, client, _):
        answer = await client(produce_request("t", batch_of(bytes(100_000))), 9)
        assert answer.throttle_time_ms > 900_000
        await client.send(NOTHING, 12)
        server = gateway._server
        assert server is not None
        assert client.connection in server.connections
        if gone == "closed":
            await client.aclose()
        else:
            client.connection.abort()
        with anyio.fail_after(5):
            while client.connection in server.connections:
                await anyio.sleep(0.01)
        assert client.connection._muted is None


async def test_a_gateway_closes_while_connections_are_muted() -> None:
    async with limited(**{IN: 100}) as (gateway, client, _):
        await client(produce_request("t", batch_of(bytes(100_000))), 9)
        begun = anyio.current_time()
        await gateway.close()
        assert anyio.current_time() - begun < 5


async def test_what_a_muted_connection_holds_is_bounded() -> None:
    """It is not read: its client's sending stands still."""
    async with limited(**{IN: 100}) as (_, client, wire):
        await client(produce_request("t", batch_of(bytes(100_000))), 9)
        request = produce_request("t", batch_of(bytes(500_000)))
        sent = 0
        with anyio.move_on_after(0.3):
            for _ in range(200):
                await client.send(request, 9)
                sent += 1
        assert sent < 20
        assert client.connection.share.held < 16 << 20
        assert len(await wire.values("t")) == 1


async def test_addresses_that_connect_too_often(caplog: pytest.LogCaptureFixture) -> None:
    """They are closed a moment later, and the others are served (KIP-612)."""
    with anyio.fail_after(30):
        async with Gateway(f"memory:{next(names)}", listen="127.0.0.1:0", config=SHORT) as gateway:
            wire = connect(gateway)
            rate = {"connection_creation_rate": 3.0}
            assert await alter(wire, {"ip": "127.0.0.1"}, **rate) == (0, None)
            host, _, port = gateway.address.partition(":")
            streams = [await anyio.connect_tcp(host, int(port)) for _ in range(6)]
            closed = 0
            for stream in streams:
                with anyio.move_on_after(1.5):
                    with pytest.raises(anyio.EndOfStream):
                        await stream.receive()
                    closed += 1
            assert closed == 3
            assert gateway.connections == 4
            elsewhere = await anyio.connect_tcp(host, int(port), local_host="127.0.0.2")
            await until(lambda: _count(gateway), lambda count: count == 5)
            for stream in (*streams, elsewhere):
                await stream.aclose()
            assert gateway.parts.charged.throttles.count[QuotaKind.CONNECTION] == 3
            await wire.aclose()


async def _count(gateway: Gateway) -> int:
    return gateway.connections


async def test_a_gateway_that_takes_connections_slowly() -> None:
    with anyio.fail_after(30):
        listeners = {
            "listeners": "A://127.0.0.1:0,B://127.0.0.1:0", "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
            "listener.name.a.max.connection.creation.rate": 2, **SHORT,
        }  # fmt: skip
        async with Gateway(f"memory:{next(names)}", config=listeners) as gateway:
            streams = []
            for name in ("A", "B"):
                host, _, port = gateway.advertised[name].partition(":")
                streams += [await anyio.connect_tcp(host, int(port)) for _ in range(5)]
            await until(lambda: _count(gateway), lambda count: count >= 8)
            assert gateway.connections <= 9, "two of A, perhaps three, and five of B"
            await until(lambda: _count(gateway), lambda count: count == 10)
            assert gateway.parts.charged.throttles.seconds[QuotaKind.CONNECTION] > 0.3
            for stream in streams:
                await stream.aclose()
