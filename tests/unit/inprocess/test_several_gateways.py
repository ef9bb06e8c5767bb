"""Several gateways in the process on one store: clients that name the store find all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

import kclient
from kclient.errors import BrokerConnectionError
from kclient.gateway import Gateway
from kclient.gateway.local import find_local, local_port
from kclient.htp import LeaseHeldError
from kclient.inprocess import connect, reset
from kclient.net.address import Address, parse_address
from kclient.net.settings import ConnectionSettings

pytestmark = pytest.mark.anyio
PARTITIONS = 16
_names = itertools.count()


@pytest.fixture(params=["memory", "embedded"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of one."""
    if request.param == "embedded":
        yield f"embedded:{tmp_path / 'data'}"
    else:
        name = f"several-{next(_names)}"
        yield f"memory:{name}"
        reset(name)


def gateway(address: str, node_id: int) -> Gateway:
    return Gateway(
        address,
        listen=None,
        config={"node.id": node_id, "num.partitions": PARTITIONS, "group.initial.rebalance.delay.ms": 0},
    )


@pytest.mark.slow
async def test_a_client_reaches_whoever_leads(store: str) -> None:
    """Also while one joins, and while one leaves; and it is told nothing of any of it."""
    async with gateway(store, 1) as first:
        async with (
            kclient.Producer(bootstrap_servers=store) as producer,
            kclient.Consumer("t", group_id="g", bootstrap_servers=store, auto_offset_reset="earliest") as consumer,
        ):
            sent = 0

            async def send() -> None:
                nonlocal sent
                deliveries = [
                    await producer.send("t", value=b"%d" % (sent + each), partition=each % PARTITIONS)
                    for each in range(48)
                ]
                await producer.flush()
                for each in deliveries:
                    await each
                sent += len(deliveries)

            await send()
            async with gateway(store, 2) as second:
                with anyio.fail_after(20):  # until then it serves what it led
                    while sorted(first.parts.generations.current.newest.members) != [1, 2]:
                        await anyio.sleep(0.001)
                await send()
                assert second.parts.partitions.opened()
                assert second.connections
                assert {row.node_id for row in first.parts.cluster.others} == {2}
            await send()
            found: set[bytes | None] = set()
            with anyio.fail_after(30):
                while len(found) < sent:
                    for record in await consumer.poll(timeout=1.0):
                        assert record.value not in found
                        found.add(record.value)
            await consumer.commit()
        async with kclient.Admin(bootstrap_servers=store) as admin:
            cluster = await admin.describe_cluster()
            assert [(node.id, node.host, node.port) for node in cluster.nodes] == [(1, store, local_port(1))]


async def test_a_number_is_one_gateways_in_a_process(store: str) -> None:
    async with gateway(store, 3):
        with pytest.raises(LeaseHeldError, match=r"node\.id=3 in this process .* give this one another"):
            await gateway(store, 3).start()
        async with gateway(store, 4):
            pass
    async with gateway(store, 3):
        pass


async def test_one_that_is_gone_is_not_taken_for_another(store: str) -> None:
    address = parse_address(store)
    config = ConnectionSettings()
    async with gateway(store, 1):
        async with gateway(store, 2):
            assert find_local(Address(address.host, local_port(2), address.scheme)) is not None
            await (await connect(Address(address.host, local_port(2), address.scheme), config)).aclose()
        with pytest.raises(BrokerConnectionError, match="this gateway is gone, others serve its store"):
            await connect(Address(address.host, local_port(2), address.scheme), config)
        await (await connect(address, config)).aclose()
    assert find_local(address) is None
