"""A gateway registers, keeps its number, and is seen by the others from then to its end."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from kclient.gateway import Gateway, ownership
from kclient.gateway.membership import ClusterView, LeaseLooks, Registration, evicting
from kclient.gateway.rows.gateways import Endpoint, GatewayRow
from kclient.gateway.rows.keys import GATEWAYS, gateway_key
from kclient.htp import FencedError, LeaseHeldError, open_store
from kclient.htp.port import Manager
from kclient.protocol import messages as m
from tests.all_rows import scan_all
from tests.gateway_wire import connect, names, running
from tests.unit.gateway_cluster.two_gateways import several, until
from tests.unshared_store import unshared_store

pytestmark = pytest.mark.anyio

AT = {"PLAINTEXT": Endpoint("h", 9092, "PLAINTEXT")}


async def registered(manager: Manager, node_id: int | None = None) -> tuple[Registration, int]:
    registration = Registration(manager, None)
    if node_id is None:
        node_id = await registration.allot()
    await registration.take(node_id)
    await registration.publish(AT)
    return registration, node_id


async def rows_of(manager: Manager) -> dict[str, GatewayRow]:
    return {key: GatewayRow.decode(row.value) for key, row in (await scan_all(manager, GATEWAYS)).items()}


async def test_numbers_are_allotted_once_and_kept(url: str) -> None:
    async with open_store(url) as store:
        found: dict[int, Registration] = {}

        async def one() -> None:
            registration, node_id = await registered(store.manager)
            assert node_id not in found
            found[node_id] = registration

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(one)
        assert sorted(found) == [1, 2, 3, 4, 5]
        assert {key: row.run for key, row in (await rows_of(store.manager)).items()} == {
            gateway_key(node_id): registration.run for node_id, registration in found.items()
        }
        for node_id in (4, 2):
            await found[node_id].leave()
        assert (await registered(store.manager))[1] == 2, "it was free again"
        assert (await registered(store.manager))[1] == 4
        await registered(store.manager, 17)
        assert (await registered(store.manager))[1] == 18


async def test_numbers_that_are_allotted_are_numbers_of_brokers() -> None:
    """Also where somebody has the greatest that there is."""
    async with open_store(f"memory:{next(names)}") as store:
        await registered(store.manager, 2**31 - 1)
        await registered(store.manager, 2)
        assert [(await registered(store.manager))[1] for _ in range(3)] == [1, 3, 4]


async def test_a_given_number_is_the_last_ones_who_asks(url: str) -> None:
    async with open_store(url) as store:
        first, _ = await registered(store.manager, 5)
        second, _ = await registered(store.manager, 5)
        assert second.lease.epoch > first.lease.epoch
        with pytest.raises(FencedError):
            await first.publish(AT)
        await first.leave()
        await first.give_back(failed=False)
        (row,) = (await rows_of(store.manager)).values()
        assert (row.run, row.epoch) == (second.run, second.lease.epoch)
        await second.leave()
        assert not await rows_of(store.manager)
        assert not any(each.held for each in await store.manager.leases(GATEWAYS))


async def test_epochs_grow_though_the_lease_is_lost(url: str) -> None:
    async with open_store(url) as store:
        row = GatewayRow(5, "earlier", 40, AT)
        await store.manager.commit({gateway_key(5): row.encode()})
        registration, _ = await registered(store.manager, 5)
        assert registration.lease.epoch > 40


async def test_a_gateway_has_a_row_from_its_start_to_its_end(url: str) -> None:
    async with open_store(url) as store:
        for node_id, expected in ((7, 7), (-1, 7), (-1, 7)):
            config = {"node.id": node_id, "broker.rack": "here"}
            async with Gateway(store, listen="127.0.0.1:0", advertise="outside:77", config=config) as gateway:
                (row,) = (await rows_of(store.manager)).values()
                assert (row.node_id, row.rack) == (expected, "here")
                assert row.endpoints == {"PLAINTEXT": Endpoint("outside", 77, "PLAINTEXT")}
                assert gateway.parts.identity.node_id == expected
                wire = connect(gateway)
                assert [each.node_id for each in (await wire.metadata()).brokers] == [expected]
                assert (await wire.configs(4, str(expected)))["node.id"][0] == str(expected)
                await wire.aclose()
            assert not await rows_of(store.manager)


async def test_the_first_number_that_is_allotted_is_one() -> None:
    async with running(config={"node.id": -1}) as (gateway, _):
        assert gateway.parts.identity.node_id == 1


async def test_rows_of_gateways_that_have_ended_are_removed(url: str) -> None:
    async with unshared_store(url) as store:
        await registered(store.manager, 5)
        await store.manager.commit({gateway_key(6): b"damaged"})
        async with Gateway(store, listen=None) as gateway:
            assert list(await rows_of(store.manager)) == [gateway_key(1)]
            assert gateway.parts.cluster.others == ()


async def test_clients_are_told_of_all_by_listener(url: str) -> None:
    async with several(url, 3, listen="127.0.0.1:0", config={"broker.rack": "here"}) as gateways:
        for gateway, _ in gateways:
            await until(lambda cluster=gateway.parts.cluster: len(cluster.others) == 2)
        for number, (_, wire) in enumerate(gateways, 1):
            brokers = (await wire.metadata()).brokers
            order = [number, *(each for each in (1, 2, 3) if each != number)]
            assert [each.node_id for each in brokers] == order
            assert [each.rack for each in brokers] == ["here"] * 3
            for each in brokers[1:]:
                assert f"{each.host}:{each.port}" == gateways[each.node_id - 1][0].bootstrap
            told = (await wire(m.DescribeClusterRequest(), 1)).brokers
            assert [(each.broker_id, each.port) for each in told] == [(each.node_id, each.port) for each in brokers]
        await gateways[1][0].close()
        for number in (0, 2):
            await until(lambda cluster=gateways[number][0].parts.cluster: len(cluster.others) == 1)
        assert [each.node_id for each in (await gateways[0][1].metadata()).brokers] == [1, 3]


async def test_one_without_such_a_listener_is_left_out(url: str) -> None:
    async with several(url) as gateways:
        for gateway, _ in gateways:
            await until(lambda cluster=gateway.parts.cluster: cluster.others)
        assert [each.node_id for each in (await gateways[0][1].metadata()).brokers] == [1]


async def test_one_that_does_not_renew_is_lost(url: str) -> None:
    now = 0.0
    async with open_store(url) as store:
        view = ClusterView(store.manager, 1, LeaseLooks(store.manager, lambda: now))
        told: list[list[int]] = []
        view.on_change(lambda: told.append([row.node_id for row in view.others]))
        dead, _ = await registered(store.manager, 2)
        alive, _ = await registered(store.manager, 3)
        await view.read_all()
        for _ in range(4):
            await store.manager.renew(alive.lease)
            assert 0 < await view.look() <= 1.0
            now += ownership.LEASE_S / 3
        assert told == [[2, 3]]
        await store.manager.renew(alive.lease)
        await view.look()
        assert told == [[2, 3], [3]]
        again, _ = await registered(store.manager, 2)
        assert again.lease.epoch > dead.lease.epoch
        await view.read_all()
        await view.look()
        assert told == [[2, 3], [3], [2, 3]]
        await alive.leave()
        await view.read_all()
        assert told[3:] == [[2]]


async def test_a_number_that_is_taken_over_ends_the_first(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "LEASE_S", 0.1)
    async with open_store(url) as store:
        first, _ = await registered(store.manager, 2)
        await registered(store.manager, 2)
        with anyio.fail_after(20), pytest.raises(FencedError):
            await first.renew()


async def test_a_number_is_free_once_its_last_gateway_is_evicted(tmp_path: Path) -> None:
    """Whoever evicts it has its lease meanwhile, from another process, and is not taken for a gateway of the number."""
    async with (
        open_store(f"embedded:{tmp_path / 'data'}", together=True) as evictor,
        open_store(f"embedded:{tmp_path / 'data'}", together=True) as store,
    ):
        taken = await evictor.manager.acquire(gateway_key(2), evicting(1, 7), ownership.LEASE_S)
        registration = Registration(store.manager, None)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(registration.take, 2)
                await anyio.wait_all_tasks_blocked()
                await evictor.manager.release(taken)
        assert registration.lease.epoch > taken.epoch


async def test_an_eviction_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "LEASE_S", 0.1)
    async with (
        open_store(f"embedded:{tmp_path / 'data'}", together=True) as evictor,
        open_store(f"embedded:{tmp_path / 'data'}", together=True) as store,
    ):
        await evictor.manager.acquire(gateway_key(2), evicting(1, 7), 30.0)
        with anyio.fail_after(20), pytest.raises(LeaseHeldError, match=r"evicts an earlier gateway with node\.id=2"):
            await Registration(store.manager, None).take(2)
