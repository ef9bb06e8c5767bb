"""What every manager of HTP has to do; runs over each backend and each event loop."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import anyio
import pytest

from kclient.htp import (
    ConflictError,
    DomainExistsError,
    FencedError,
    HtpError,
    Lease,
    LeaseHeldError,
    LeaseInfo,
    Manager,
    Topic,
    TopicExistsError,
    UnknownDomainError,
    UnknownTopicError,
)
from kclient.htp.port import CAP_EXCLUSIVE
from kclient.htp.rows import GREATEST_EPOCH, scan_pages
from kclient.testing.cancellation import Cancelled, Outcome, at_every_checkpoint
from tests.all_rows import scan_all
from tests.domains import domains_among
from tests.unit.htp.conftest import OpenStore

pytestmark = pytest.mark.anyio


@pytest.fixture
async def manager(reopen: OpenStore) -> AsyncIterator[Manager]:
    async with reopen() as store:
        yield store.manager


async def test_domains(manager: Manager) -> None:
    assert await domains_among(manager, ["a", "b"]) == []
    await manager.create_domain("b")
    await manager.create_domain("a")
    with pytest.raises(DomainExistsError):
        await manager.create_domain("a")
    assert await domains_among(manager, ["a", "b"]) == ["a", "b"]
    await manager.create_topic(Topic("a", "t"))
    await manager.delete_domain("a")
    assert await domains_among(manager, ["a", "b"]) == ["b"]
    with pytest.raises(UnknownDomainError):
        await manager.delete_domain("a")
    with pytest.raises(UnknownTopicError):
        await manager.describe_topic(Topic("a", "t"))


async def test_topics(manager: Manager) -> None:
    topic = Topic("a", "x/y")
    with pytest.raises(UnknownDomainError):
        await manager.create_topic(topic)
    await manager.create_domain("a")
    await manager.create_domain("b")
    info = await manager.create_topic(topic)
    assert (info.topic, info.broker) == (topic, None)
    with pytest.raises(TopicExistsError):
        await manager.create_topic(topic)
    await manager.create_topic(Topic("a", "a"), broker="brk-0")
    await manager.create_topic(Topic("b", "x/y"))
    assert [(each.topic.name, each.broker) for each in await manager.list_topics("a")] == [
        ("a", "brk-0"),
        ("x/y", None),
    ]
    assert [each.topic.name for each in await manager.list_topics("a", "x/")] == ["x/y"]
    assert await manager.list_topics("a", "x/y/") == []
    await manager.delete_topics([topic])
    with pytest.raises(UnknownTopicError):
        await manager.describe_topic(topic)
    await manager.delete_topics([topic, Topic("c", "x")])
    assert (await manager.create_topic(topic)).incarnation > info.incarnation


async def test_values(manager: Manager) -> None:
    assert await manager.get(["a", "b"]) == {}
    first = await manager.commit({"a": b"1", "b": b""})
    second = await manager.commit({"a": b"2", "c": bytearray(b"3")})
    assert second > first > 0
    assert await manager.get(["a", "b", "missing"]) == {"a": (b"2", second), "b": (b"", first)}
    third = await manager.commit({"a": None, "missing": None})
    assert await manager.get(["a", "b", "c"]) == {"b": (b"", first), "c": (b"3", second)}
    assert await manager.commit({"a": b"4"}) > third


async def test_scanning(manager: Manager) -> None:
    keys = ["a", "a/", "a/1", "a/10", "a/2", "a/é", "a/😀", "a0", "A/1", "b", "%", "a/%", "a/_"]
    await manager.commit({key: key.encode() for key in keys})
    assert list(await scan_all(manager, "")) == sorted(keys)
    assert list(await scan_all(manager, "a/")) == sorted(key for key in keys if key.startswith("a/"))
    assert list(await scan_all(manager, "a/%")) == ["a/%"]
    assert await scan_all(manager, "nothing") == {}
    assert all(found.value == key.encode() for key, found in (await scan_all(manager, "a")).items())


async def test_scanning_to_the_end_of_what_text_can_be(manager: Manager) -> None:
    """What comes last behind a prefix is found, and what comes next is not."""
    last = "\U0010ffff"
    keys = ["a", "a" + last, "a" + last + "b", "a" + last * 3, "b", "\ud7ff", "\ud7ffx", "\ue000", last, last * 2]
    await manager.commit({key: key.encode() for key in keys})
    for prefix in ("", "a", "a" + last, "a" + last * 2, "\ud7ff", last, last * 2):
        expected = sorted(key for key in keys if key.startswith(prefix))
        assert list(await scan_all(manager, prefix)) == expected, ascii(prefix)


async def test_scanning_page_by_page(manager: Manager) -> None:
    keys = sorted(["b", "b/", *(f"a/{number}" for number in range(25)), "a/é", "a/😀", "a"])
    await manager.commit({key: key.encode() for key in keys})
    wanted = [key for key in keys if key.startswith("a/")]
    for limit in (1, 2, 7, 26, 27, 28):
        found: list[str] = []
        while page := await manager.scan("a/", after=found[-1] if found else "", limit=limit):
            assert len(page) <= limit
            found += page
            if len(page) < limit:
                break
        assert found == wanted
    assert list(await manager.scan("a/", after="a/7", limit=2)) == ["a/8", "a/9"]
    assert list(await manager.scan("a/", after="a/55", limit=2)) == ["a/6", "a/7"], "it need not be there"
    assert list(await manager.scan("b", after="a/7", limit=9)) == ["b", "b/"]
    assert await manager.scan("a/", after="b", limit=9) == {}


async def test_rows_that_come_and_go_while_pages_are_read(manager: Manager) -> None:
    await manager.commit({f"a/{number:04}": b"" for number in range(1500)})
    pages = []
    async for page in scan_pages(manager, "a/"):
        pages.append(page)
        await manager.commit({"a/0000": None, "a/0500+": b"", "a/1200": None, "a/1200+": b""})
    found = [key for page in pages for key in page]
    assert [len(page) for page in pages] == [1000, 500]
    assert found == sorted({f"a/{number:04}" for number in range(1500)} - {"a/1200"} | {"a/1200+"})


async def test_many_keys_in_one_commit(manager: Manager) -> None:
    keys = {f"key/{number:05}": str(number).encode() for number in range(2500)}
    version = await manager.commit(keys, dict.fromkeys(keys, 0))
    found = await manager.get(keys)
    assert {key: each.value for key, each in found.items()} == keys
    assert {each.version for each in found.values()} == {version}
    await manager.commit(dict.fromkeys(keys), dict.fromkeys(keys, version))
    assert await scan_all(manager, "key/") == {}


async def test_compare_and_set_over_several_keys(manager: Manager) -> None:
    version = await manager.commit({"a": b"1", "b": b"1"}, {"a": 0, "b": 0})
    with pytest.raises(ConflictError) as info:
        await manager.commit({"a": b"2", "new": b"2"}, {"a": version, "b": version - 1})
    assert (info.value.key, info.value.expected, info.value.found) == ("b", version - 1, version)
    with pytest.raises(ConflictError, match="'a' has version"):
        await manager.commit({"a": b"2"}, {"a": 0})
    with pytest.raises(ConflictError):
        await manager.commit({}, {"missing": version})
    assert await scan_all(manager, "") == {"a": (b"1", version), "b": (b"1", version)}
    assert await manager.commit({"a": b"2"}, {"a": version, "b": version, "missing": 0}) > version


async def test_a_value_that_was_deleted_and_written_again_conflicts(manager: Manager) -> None:
    version = await manager.commit({"a": b"1"})
    await manager.commit({"a": None})
    await manager.commit({"a": b"1"})
    with pytest.raises(ConflictError):
        await manager.commit({"a": b"2"}, {"a": version})


async def test_of_concurrent_commits_one_wins(manager: Manager) -> None:
    version = await manager.commit({"counter": b"0"})
    won: list[int] = []

    async def attempt(number: int) -> None:
        try:
            await manager.commit({"counter": str(number).encode()}, {"counter": version})
        except ConflictError:
            return
        won.append(number)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(attempt, number)
    assert len(won) == 1
    assert (await manager.get(["counter"]))["counter"].value == str(won[0]).encode()


async def test_leases(manager: Manager) -> None:
    asked = time.monotonic()
    lease = await manager.acquire("gateway", "one", 60)
    assert (lease.name, lease.holder, lease.ttl) == ("gateway", "one", 60)
    assert asked + 60 <= lease.expires <= time.monotonic() + 60
    with pytest.raises(LeaseHeldError) as info:
        await manager.acquire("gateway", "two", 60)
    assert info.value.holder == "one"
    assert (await manager.acquire("other", "two", 60)).epoch >= 1
    renewed = await manager.renew(lease)
    assert renewed.epoch == lease.epoch
    assert renewed.expires >= lease.expires
    await manager.release(renewed)
    assert (await manager.acquire("gateway", "two", 60)).epoch > lease.epoch


async def test_what_anybody_can_see_of_a_lease(manager: Manager) -> None:
    async def seen(*names: str) -> LeaseInfo:
        infos = await manager.leases("gateway")
        assert [info.name for info in infos] == ["gateway", *names]
        return infos[0]

    assert await manager.leases("gateway") == []
    lease = await manager.acquire("gateway", "one", 60, above=7)
    await manager.acquire("a gateway", "one", 60)
    infos = [await seen()]
    assert infos[0][:5] == ("gateway", "one", lease.epoch, 60.0, True)
    assert lease.epoch == 8
    await manager.acquire("gateway/2", "two", 60)
    assert await seen("gateway/2") == infos[0], "it is as it was"
    for _ in range(2):
        await manager.renew(lease)
        infos.append(await seen("gateway/2"))
        assert infos[-1][:5] == infos[0][:5]
    await manager.release(lease)
    infos.append(await seen("gateway/2"))
    assert infos[-1][:5] == ("gateway", "one", lease.epoch, 60.0, False)
    taken = await manager.acquire("gateway", "two", 5)
    infos.append(await seen("gateway/2"))
    assert infos[-1][:5] == ("gateway", "two", taken.epoch, 5.0, True)
    await manager.release(lease)
    assert await seen("gateway/2") == infos[-1], "it is another one's"
    assert len({info.version for info in infos}) == len(infos)


async def test_a_lease_is_taken_from_its_holder_as_it_was_seen(manager: Manager) -> None:
    lease = await manager.acquire("gateway", "one", 60)
    [before] = await manager.leases("gateway")
    await manager.renew(lease)
    with pytest.raises(LeaseHeldError):
        await manager.acquire("gateway", "two", 60, over=before)
    [now] = await manager.leases("gateway")
    taken = await manager.acquire("gateway", "two", 60, over=now)
    assert taken.epoch > lease.epoch
    with pytest.raises(LeaseHeldError):
        await manager.acquire("gateway", "three", 60, over=now)
    with pytest.raises(FencedError):
        await manager.renew(lease)


async def test_the_same_holder_gets_a_new_epoch_at_once(manager: Manager) -> None:
    before = await manager.acquire("gateway", "one", 60)
    after = await manager.acquire("gateway", "one", 60)
    assert after.epoch > before.epoch
    with pytest.raises(FencedError) as info:
        await manager.renew(before)
    assert info.value.epoch == after.epoch
    await manager.release(before)
    with pytest.raises(LeaseHeldError):
        await manager.acquire("gateway", "two", 60)


async def test_a_lease_that_nobody_waits_for_any_more_is_given_back(manager: Manager) -> None:
    async def scenario(cancelled: Cancelled) -> None:
        if await cancelled(manager.acquire("gateway", "one", 60)) is Outcome.FINISHED:
            await manager.release(cancelled.result)
        await manager.release(await manager.acquire("gateway", "two", 60))

    await at_every_checkpoint(scenario)


async def test_a_lease_that_ran_out(manager: Manager) -> None:
    """Its holder knows; the store has no clock."""
    lease = await manager.acquire("gateway", "one", 0)
    assert lease.expires <= time.monotonic()
    with pytest.raises(LeaseHeldError):
        await manager.acquire("gateway", "two", 60)
    renewed = await manager.renew(lease)
    assert renewed.epoch == lease.epoch, "nobody took it"
    [over] = await manager.leases("gateway")
    taken = await manager.acquire("gateway", "two", 60, over=over)
    assert taken.epoch > lease.epoch
    with pytest.raises(FencedError):
        await manager.renew(lease)


@pytest.mark.parametrize("ttl", [float("inf"), float("nan"), -1.0])
async def test_a_lease_that_nobody_could_see_end_is_refused(manager: Manager, ttl: float) -> None:
    with pytest.raises(ValueError, match="lasts for some seconds"):
        await manager.acquire("gateway", "one", ttl)
    assert await manager.leases("") == []


async def test_epochs_of_a_lease_come_to_an_end(manager: Manager) -> None:
    for above in (GREATEST_EPOCH, 1 << 70):
        with pytest.raises(HtpError, match="no epoch of 'gateway' is left"):
            await manager.acquire("gateway", "one", 60, above=above)
    lease = await manager.acquire("gateway", "one", 60, above=GREATEST_EPOCH - 1)
    with pytest.raises(LeaseHeldError):
        await manager.acquire("gateway", "two", 60)
    with pytest.raises(HtpError, match="no epoch of 'gateway' is left"):
        await manager.acquire("gateway", "one", 60)
    assert (await manager.renew(lease)).epoch == GREATEST_EPOCH


async def taken_from(manager: Manager, holder: str) -> tuple[Lease, Lease]:
    """A lease, and what another one has in its place."""
    lease = await manager.acquire("gateway", holder, 60)
    [over] = await manager.leases("gateway")
    return lease, await manager.acquire("gateway", "two", 60, over=over)


async def test_a_deletion_under_an_older_epoch_is_refused(manager: Manager) -> None:
    topic = Topic("a", "t")
    lease, taken = await taken_from(manager, "one")
    await manager.create_domain("a")
    await manager.create_topic(topic)
    with pytest.raises(FencedError):
        await manager.delete_topics([topic], lease=lease)
    with pytest.raises(FencedError):
        await manager.delete_domain("a", lease=lease)
    assert (await manager.describe_topic(topic)).topic == topic
    await manager.delete_topics([topic], lease=taken)
    await manager.delete_domain("a", lease=taken)
    assert await domains_among(manager, ["a"]) == []


async def test_a_commit_under_an_older_epoch_is_refused(manager: Manager) -> None:
    lease = await manager.acquire("gateway", "one", 0)  # it has run out, and is nobody else's
    await manager.commit({"a": b"1"}, lease=lease)
    lease, taken = await taken_from(manager, "one")
    with pytest.raises(FencedError):
        await manager.commit({"a": b"2"}, lease=lease)
    assert (await manager.get(["a"]))["a"].value == b"1"
    await manager.commit({"a": b"3"}, lease=taken)


async def test_all_of_it_is_there_when_opened_again(reopen: OpenStore) -> None:
    async with reopen() as store:
        await store.manager.create_domain("d")
        before = await store.manager.create_topic(Topic("d", "t"), broker="b")
        version = await store.manager.commit({"a": b"1"})
        lease = await store.manager.acquire("gateway", "one", 60)
    async with reopen() as store:
        assert await store.manager.list_topics("d") == [before]
        assert await store.manager.get(["a"]) == {"a": (b"1", version)}
        assert await store.manager.commit({"a": b"2"}) > version
        mine = await store.manager.acquire("gateway", "one", 60)
        assert mine.epoch > lease.epoch
    async with reopen() as store:
        if CAP_EXCLUSIVE not in store.broker.capabilities:
            with pytest.raises(LeaseHeldError):
                await store.manager.acquire("gateway", "two", 60)
            return
        [left] = await store.manager.leases("gateway")
        assert left[:5] == ("gateway", "one", mine.epoch, 60.0, False), "nobody else had the store meanwhile"
        assert (await store.manager.renew(mine)).epoch == mine.epoch
        with pytest.raises(LeaseHeldError):
            await store.manager.acquire("gateway", "two", 60)
    async with reopen() as store:
        assert (await store.manager.acquire("gateway", "two", 60)).epoch > mine.epoch
