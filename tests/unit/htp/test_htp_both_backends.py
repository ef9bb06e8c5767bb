"""What memory and embedded do alike, beyond what the contract asks of every backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import anyio
import pytest

from kclient.htp import Store, Topic, TopicSettings, open_store
from kclient.testing.cancellation import Cancelled, Outcome, at_every_checkpoint
from tests.unit.htp.by_name import NamedStore
from tests.unit.htp.plain_messages import TOPIC, message

pytestmark = pytest.mark.anyio


@pytest.fixture
async def plain(store_url: str) -> AsyncIterator[Store]:
    async with open_store(store_url) as store:
        await store.manager.create_domain("a")
        yield store


async def test_a_topic_may_be_bound_when_it_is_made(plain: Store) -> None:
    await plain.manager.create_topic(Topic("a", "bound"), broker="brk-0")
    await plain.manager.create_topic(Topic("a", "unbound"))
    infos = await plain.manager.list_topics("a")
    assert [(info.topic.name, info.broker, info.place.broker) for info in infos] == [
        ("bound", "brk-0", "brk-0"),
        ("unbound", None, ""),
    ]


async def test_a_lease_that_nobody_waits_for_any_more_is_given_back(plain: Store) -> None:
    manager = plain.manager

    async def scenario(cancelled: Cancelled) -> None:
        if await cancelled(manager.acquire("gateway", "one", 60)) is Outcome.FINISHED:
            await manager.release(cancelled.result)
        await manager.release(await manager.acquire("gateway", "two", 60))

    await at_every_checkpoint(scenario)


async def test_a_wait_for_changes_may_be_cancelled_anywhere(plain: Store) -> None:
    token = (await plain.manager.changes(["a/"])).token

    async def scenario(cancelled: Cancelled) -> None:
        await cancelled(plain.manager.changes(["a/"], token, wait=0.01))
        assert not (await plain.manager.changes(["a/"], token)).changes

    assert await at_every_checkpoint(scenario) >= 1


async def test_a_task_that_is_cancelled_changes_no_topic(store: NamedStore) -> None:
    topic = store.broker.topic(TOPIC)
    await (await topic.send([message(0)])).synced()
    calls: list[Callable[[], Awaitable[object]]] = [
        partial(topic.send, [message(1)]),
        topic.roll,
        partial(topic.configure, TopicSettings(segment_bytes=1)),
        partial(topic.trim, 1),
        partial(topic.pull, 0),
        partial(topic.find_by_timestamp, 0),
        topic.segments,
        topic.status,
    ]
    for call in calls:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call()
        assert scope.cancelled_caught
    await (await topic.send([message(1)])).synced()
    assert [(each.first, each.next) for each in await topic.segments()] == [(0, 2)]


async def test_what_cannot_be_sent_is_told(store: NamedStore) -> None:
    for wrong, why in (
        ([message(2) + b"more"], "in a buffer of"),
        ([message(2), message((1 << 62) - 3, count=3)], "too large to be recorded"),
        ([], "no message"),
    ):
        with pytest.raises(ValueError, match=why):
            await store.broker.send(TOPIC, wrong)
    assert (await store.broker.status(TOPIC)).next == 0


async def test_what_asks_for_a_lease_for_ever_is_told(plain: Store) -> None:
    with pytest.raises(ValueError, match="lasts for some seconds"):
        await plain.manager.acquire("gateway", "one", float("inf"))
