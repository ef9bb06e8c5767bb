"""Where the store has no space to renew leases, all go on reading, nobody is taken for lost, and no zombie is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from kclient.gateway import ownership
from kclient.gateway.eviction import Eviction
from kclient.gateway.membership import ClusterView, LeaseLooks, Registration, lease_looks
from kclient.gateway.rows.gateways import Endpoint
from kclient.gateway.rows.keys import gateway_key
from kclient.htp import FencedError, open_store
from kclient.htp.errors import StorageFullError
from kclient.htp.port import Manager
from tests.gateway_wire import batch_of
from tests.unit.gateway_cluster.test_gateway_hand_over import generations_of, nothing_left
from tests.unit.gateway_cluster.together import joined
from tests.unit.gateway_cluster.two_gateways import until

pytestmark = pytest.mark.anyio

AT = {"PLAINTEXT": Endpoint("h", 9092, "PLAINTEXT")}


@contextmanager
def full(manager: Manager) -> Iterator[None]:
    """The store takes nothing that is to be kept."""

    async def refuse(*_args: Any, **_options: Any) -> None:
        raise StorageFullError("database or disk is full")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("renew", "acquire", "commit", "release"):
            patch.setattr(type(manager), name, refuse)
        yield


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases end soon."""
    monkeypatch.setattr(ownership, "LEASE_S", 0.6)
    monkeypatch.setattr(lease_looks, "LOOK_S", 0.05)


async def registered(manager: Manager, node_id: int, *, fenced: bool = True) -> Registration:
    registration = Registration(manager, None, fenced=fenced)
    await registration.take(node_id)
    await registration.publish(AT)
    return registration


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("fenced", [True, False])
async def test_a_lease_goes_on_while_nobody_can_renew_one(url: str, fenced: bool) -> None:
    """But not where it alone tells how long a gateway may serve."""
    async with open_store(url) as store, anyio.create_task_group() as group:
        registration = await registered(store.manager, 2, fenced=fenced)
        group.start_soon(registration.renew)
        with full(store.manager):
            await until(lambda: registration.held.short_of_space)
            end = registration.lease.expires if not fenced else time.monotonic() + ownership.LEASE_S
            await until(lambda: time.monotonic() > end)
            assert (registration.lease.expires > time.monotonic()) is fenced
        await until(lambda: not registration.held.short_of_space)
        assert registration.lease.expires > time.monotonic()
        group.cancel_scope.cancel()


@pytest.mark.usefixtures("short")
async def test_a_lease_that_was_acquired_meanwhile_is_over(url: str) -> None:
    async with open_store(url) as store:
        registration = await registered(store.manager, 2)
        (found,) = await store.manager.leases(gateway_key(2))
        await store.manager.acquire(gateway_key(2), "node-3/evicts", 30.0, over=found)
        with full(store.manager), anyio.fail_after(20), pytest.raises(FencedError):
            await registration.renew()


async def test_nobody_is_lost_while_nobody_can_renew_a_lease(url: str) -> None:
    now = 0.0
    async with open_store(url) as store:
        manager = store.manager
        first, lease = await generations_of(manager, 1)
        second, other = await generations_of(manager, 2)
        watcher = Eviction(manager, other, second, nothing_left, LeaseLooks(manager, lambda: now))
        await watcher.look()
        other.short_of_space = True
        now += 100
        await watcher.look()
        other.short_of_space = False
        now += 100
        await watcher.look()
        assert sorted(second.current.newest.members) == [1, 2], "it is watched anew"
        for _ in range(32):
            now += 1
            await watcher.look()
        assert list(second.current.newest.members) == [2]
        with pytest.raises(FencedError):
            await manager.renew(lease.current)
        assert first.current.newest.number < second.current.newest.number


async def test_clients_are_told_of_all_while_nobody_can_renew_a_lease(url: str) -> None:
    now = 0.0
    async with open_store(url) as store:
        own = await registered(store.manager, 1)
        await registered(store.manager, 2)
        view = ClusterView(store.manager, 1, LeaseLooks(store.manager, lambda: now), lease=own.held)
        await view.read_all()
        await view.look()
        own.held.short_of_space = True
        now += 100
        assert await view.look() > 0
        own.held.short_of_space = False
        await view.look()
        assert [row.node_id for row in view.others] == [2], "it is watched anew"
        for _ in range(32):
            now += 1
            await view.look()
        assert view.others == ()


@pytest.mark.usefixtures("short")
async def test_what_is_stored_can_be_read_at_all_gateways(url: str) -> None:
    async with open_store(url) as store, joined(store, 1) as (first, wire), joined(store, 2) as (second, other):
        await until(lambda: len(first.parts.generations.current.newest.members) == 2)
        await wire.create("t", 8)
        await until(lambda: second.parts.topics.get("t") is not None)
        record = first.parts.topics.get("t")
        assert record is not None
        of = [wire if first.parts.leadership.leads(record, index) else other for index in range(8)]
        assert set(of) == {wire, other}
        for index, each in enumerate(of):
            assert (await each.produce("t", batch_of(b"a"), index)).error_code == 0
        with full(store.manager):
            await until(lambda: first.parts.lease.short_of_space and second.parts.lease.short_of_space)
            end = time.monotonic() + 2 * ownership.LEASE_S
            await until(lambda: time.monotonic() > end)
            for index, each in enumerate(of):
                assert await each.values("t", 0, index) == [b"a"]
        await until(lambda: not (first.parts.lease.short_of_space or second.parts.lease.short_of_space))
        for index, each in enumerate(of):
            assert (await each.produce("t", batch_of(b"b"), index)).base_offset == 1
        assert sorted(first.parts.generations.current.newest.members) == [1, 2]
