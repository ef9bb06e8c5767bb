"""Leases: epochs only grow, whoever holds an older one is refused, and the store reads no clock."""

from __future__ import annotations

import time

import anyio
import pytest

from kclient.htp.contract.marks import needs, subject
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.errors import FencedError, HtpError, LeaseHeldError
from kclient.htp.leases import acquire_when_over
from kclient.htp.port import CAP_EXCLUSIVE, Lease, LeaseInfo
from kclient.htp.rows import GREATEST_EPOCH

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("leases")]


async def seen(sandbox: Sandbox, name: str = "lease") -> LeaseInfo:
    """A lease as anybody can see it."""
    [info] = [each for each in await sandbox.manager.leases(sandbox.key(name)) if each.name == sandbox.key(name)]
    return info


async def test_a_lease_has_one_holder(sandbox: Sandbox) -> None:
    manager, name = sandbox.manager, sandbox.key("lease")
    asked = time.monotonic()
    lease = await manager.acquire(name, "one", 60)
    assert (lease.name, lease.holder, lease.ttl) == (name, "one", 60)
    assert asked + 60 <= lease.expires <= time.monotonic() + 60, "by this process's clock, from before it was asked for"
    with pytest.raises(LeaseHeldError) as info:
        await manager.acquire(name, "two", 60)
    assert info.value.holder == "one"
    assert (await manager.acquire(sandbox.key("other"), "two", 60)).epoch >= 1
    renewed = await manager.renew(lease)
    assert renewed.epoch == lease.epoch
    assert renewed.expires >= lease.expires
    await manager.release(renewed)
    assert (await manager.acquire(name, "two", 60)).epoch > lease.epoch


async def test_of_many_who_want_a_lease_one_has_it(sandbox: Sandbox) -> None:
    had: list[Lease] = []

    async def attempt(holder: str) -> None:
        try:
            had.append(await sandbox.manager.acquire(sandbox.key("lease"), holder, 60))
        except LeaseHeldError:
            return

    for number in range(3):
        async with anyio.create_task_group() as group:
            for each in range(10):
                group.start_soon(attempt, f"holder {each}")
        assert len(had) == number + 1
        await sandbox.manager.release(had[-1])
    epochs = [lease.epoch for lease in had]
    assert epochs == sorted(set(epochs))


async def test_what_anybody_can_see_of_a_lease(sandbox: Sandbox) -> None:
    manager, name = sandbox.manager, sandbox.key("lease")
    assert await manager.leases(sandbox.rows) == []
    lease = await manager.acquire(name, "one", 60, above=7)
    assert lease.epoch > 7
    infos = [await seen(sandbox)]
    assert infos[0][:5] == (name, "one", lease.epoch, 60.0, True)
    await manager.acquire(sandbox.key("lease/2"), "two", 60)
    assert [info.name for info in await manager.leases(name)] == [name, sandbox.key("lease/2")]
    assert await seen(sandbox) == infos[0], "it is as it was"
    for _ in range(2):
        await manager.renew(lease)
        infos.append(await seen(sandbox))
        assert infos[-1][:5] == infos[0][:5]
    await manager.release(lease)
    infos.append(await seen(sandbox))
    assert infos[-1][:5] == (name, "one", lease.epoch, 60.0, False)
    other = await manager.acquire(name, "two", 5)
    infos.append(await seen(sandbox))
    assert infos[-1][:5] == (name, "two", other.epoch, 5.0, True)
    await manager.release(lease)
    assert await seen(sandbox) == infos[-1], "it is another one's"
    assert len({info.version for info in infos}) == len(infos), "whoever watches it sees each change"


async def test_the_same_holder_has_a_new_epoch_at_once(sandbox: Sandbox) -> None:
    manager, name = sandbox.manager, sandbox.key("lease")
    before = await manager.acquire(name, "one", 60)
    after = await manager.acquire(name, "one", 60)
    assert after.epoch > before.epoch
    with pytest.raises(FencedError) as info:
        await manager.renew(before)
    assert info.value.epoch in (None, after.epoch)
    await manager.release(before)
    with pytest.raises(LeaseHeldError):
        await manager.acquire(name, "two", 60)


async def test_a_lease_is_taken_from_its_holder_as_it_was_seen(sandbox: Sandbox) -> None:
    manager, name = sandbox.manager, sandbox.key("lease")
    lease = await manager.acquire(name, "one", 60)
    before = await seen(sandbox)
    await manager.renew(lease)
    with pytest.raises(LeaseHeldError):
        await manager.acquire(name, "two", 60, over=before)
    now = await seen(sandbox)
    other = await manager.acquire(name, "two", 60, over=now)
    assert other.epoch > lease.epoch
    with pytest.raises(LeaseHeldError):
        await manager.acquire(name, "three", 60, over=now)
    with pytest.raises(FencedError):
        await manager.renew(lease)


async def test_a_lease_that_ran_out_is_its_holders_until_it_is_taken(sandbox: Sandbox) -> None:
    """Its holder knows that it is over; the store has no clock."""
    manager, name = sandbox.manager, sandbox.key("lease")
    lease = await manager.acquire(name, "one", 0)
    assert lease.expires <= time.monotonic()
    with pytest.raises(LeaseHeldError):
        await manager.acquire(name, "two", 60)
    assert (await manager.renew(lease)).epoch == lease.epoch, "nobody took it"
    other = await manager.acquire(name, "two", 60, over=await seen(sandbox))
    assert other.epoch > lease.epoch
    with pytest.raises(FencedError):
        await manager.renew(lease)


async def test_who_waits_for_a_lease_has_it_when_it_is_over(sandbox: Sandbox) -> None:
    """By the clock of the one who waits alone."""
    lease = await sandbox.manager.acquire(sandbox.key("lease"), "gone", 0.1)
    waited: list[LeaseInfo] = []
    other = await acquire_when_over(
        sandbox.manager, sandbox.key("lease"), "two", 60, waiting=lambda info, _seconds: waited.append(info)
    )
    assert other.epoch > lease.epoch
    assert [info.holder for info in waited] == ["gone"]


async def test_epochs_come_to_an_end(sandbox: Sandbox) -> None:
    """Whoever leads under an epoch tells it in 31 bits."""
    manager, name = sandbox.manager, sandbox.key("lease")
    with pytest.raises(HtpError):
        await manager.acquire(name, "one", 60, above=GREATEST_EPOCH)
    lease = await manager.acquire(name, "one", 60, above=GREATEST_EPOCH - 1)
    assert lease.epoch == GREATEST_EPOCH
    with pytest.raises(HtpError):
        await manager.acquire(name, "one", 60)
    assert (await manager.renew(lease)).epoch == GREATEST_EPOCH
    await manager.release(lease)


@pytest.mark.parametrize("ttl", [float("inf"), float("nan"), -1.0])
async def test_a_lease_that_nobody_could_see_end_is_refused(sandbox: Sandbox, ttl: float) -> None:
    with pytest.raises(ValueError):
        await sandbox.manager.acquire(sandbox.key("lease"), "one", ttl)
    assert await sandbox.manager.leases(sandbox.rows) == []


async def test_an_epoch_outlives_the_opening_of_the_store(sandbox: Sandbox) -> None:
    lease = await sandbox.manager.acquire(sandbox.key("lease"), "one", 60)
    released = await sandbox.manager.acquire(sandbox.key("released"), "one", 60)
    await sandbox.manager.release(released)
    await sandbox.reopen()
    assert (await sandbox.manager.acquire(sandbox.key("lease"), "one", 60)).epoch > lease.epoch
    assert (await sandbox.manager.acquire(sandbox.key("released"), "two", 60)).epoch > released.epoch


async def test_a_lease_is_held_also_when_the_store_was_opened_again(sandbox: Sandbox) -> None:
    """Nobody may have it meanwhile; but where nobody else can have had the store, a lease of before is free."""
    manager, name = sandbox.manager, sandbox.key("lease")
    lease = await manager.acquire(name, "one", 60)
    await sandbox.reopen()
    if not sandbox.claims(CAP_EXCLUSIVE):
        with pytest.raises(LeaseHeldError):
            await sandbox.manager.acquire(name, "two", 60)
    assert (await sandbox.manager.renew(lease)).epoch == lease.epoch
    with pytest.raises(LeaseHeldError):
        await sandbox.manager.acquire(name, "two", 60)


@needs(CAP_EXCLUSIVE)
async def test_a_store_that_is_nobody_elses_frees_the_leases_of_before(sandbox: Sandbox) -> None:
    name = sandbox.key("lease")
    lease = await sandbox.manager.acquire(name, "one", 60)
    await sandbox.reopen()
    assert (await seen(sandbox))[:5] == (name, "one", lease.epoch, 60.0, False)
    assert (await sandbox.manager.acquire(name, "two", 60)).epoch > lease.epoch
