"""Who leads a topic: a newer epoch takes it over, and no older one comes after it."""

from __future__ import annotations

from contextlib import suppress

import anyio
import pytest

from kclient.htp.contract.marks import needs, subject
from kclient.htp.contract.messages import FRAMING
from kclient.htp.contract.refusals import all_refused
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.errors import FencedError, StoreClosedError, UnknownTopicError
from kclient.htp.port import CAP_FENCED_SENDS, OpenTopic
from kclient.htp.rows import GREATEST_EPOCH

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("epochs")]


async def test_a_topic_tells_where_it_is_and_under_which_epoch(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    for epoch in (0, 3, GREATEST_EPOCH):
        topic = await sandbox.open(place, epoch=epoch)
        assert (topic.place, topic.epoch) == (place, epoch)


async def test_the_same_epoch_gives_the_same_again(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    first = await sandbox.open(place)
    await sandbox.send(first, b"a")
    second = await sandbox.open(place)
    await sandbox.send(second, b"b")
    await sandbox.send(first, b"c")
    assert await sandbox.content(first) == await sandbox.content(second) == [b"a", b"b", b"c"]


async def test_the_successor_sees_what_the_other_had_sent(sandbox: Sandbox) -> None:
    """Whether it was synced by then or not; what it is told as the end stays below what comes."""
    place = await sandbox.create()
    old = await sandbox.open(place, epoch=1)
    await sandbox.send(old, b"a")
    sent = await sandbox.write(old, b"b")
    new = await sandbox.open(place, epoch=2)
    status = await new.status()
    assert status.end == status.next
    assert await sandbox.content(new) == [b"a", b"b"]
    await sent.synced()
    await sandbox.send(new, b"c")
    assert await sandbox.content(new) == [b"a", b"b", b"c"]
    assert await sandbox.content(new, status.end) == [b"c"]


@pytest.mark.parametrize("epoch", [-1, GREATEST_EPOCH + 1, 1 << 40])
async def test_an_epoch_that_could_not_be_recorded_is_refused(sandbox: Sandbox, epoch: int) -> None:
    place = await sandbox.create()
    with pytest.raises(ValueError):
        await sandbox.open(place, epoch=epoch)
    await sandbox.send(await sandbox.open(place, epoch=1), b"a")


# --- what a backend seals ---


@needs(CAP_FENCED_SENDS)
async def test_a_newer_epoch_ends_what_was_opened_under_older_ones(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    old = await sandbox.open(place, epoch=3)
    other = await sandbox.topic("other", epoch=3)
    await sandbox.send(old, b"a")
    messages = await sandbox.messages(old, b"late")
    new = await sandbox.open(place, epoch=4)
    with pytest.raises(FencedError) as info:
        await old.send(messages)
    assert info.value.epoch in (None, 4)
    await all_refused(sandbox, old, FencedError)
    await sandbox.send(new, b"b")
    assert await sandbox.content(new) == [b"a", b"b"]
    await sandbox.send(other, b"of the others' own")
    assert await sandbox.content(other) == [b"of the others' own"]


@needs(CAP_FENCED_SENDS)
async def test_an_older_epoch_cannot_open_it_any_more(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    await sandbox.open(place, epoch=7)
    with pytest.raises(FencedError) as info:
        await sandbox.open(place, epoch=6)
    assert info.value.epoch in (None, 7)
    topic = await sandbox.open(place, epoch=7)
    await topic.close()
    with pytest.raises(FencedError):
        await sandbox.open(place, epoch=6)
    await sandbox.send(await sandbox.open(place, epoch=7), b"a")


@needs(CAP_FENCED_SENDS)
async def test_a_seal_outlives_the_opening_of_the_store(sandbox: Sandbox) -> None:
    """Also where nothing was sent under the newer epoch, and where something was."""
    place = await sandbox.create()
    await sandbox.open(place, epoch=8)
    for older, newer in ((7, 9), (8, 10), (9, 10)):
        await sandbox.reopen()
        with pytest.raises(FencedError):
            await sandbox.open(place, epoch=older)
        topic = await sandbox.open(place, epoch=newer)
        await sandbox.send(topic, b"a")
    assert await sandbox.content(topic) == [b"a"] * 3


@needs(CAP_FENCED_SENDS)
async def test_an_older_epoch_deletes_nothing(sandbox: Sandbox) -> None:
    place, other = await sandbox.create("one"), await sandbox.create("two")
    topic, second = await sandbox.open(place, epoch=5), await sandbox.open(other, epoch=4)
    await sandbox.send(topic, b"a")
    await sandbox.send(second, b"b")
    with pytest.raises(FencedError):
        await sandbox.broker.delete([other, place], epoch=4)
    assert await sandbox.content(topic) == [b"a"]
    assert await sandbox.content(second) == [b"b"]
    await topic.close()
    with pytest.raises(FencedError):
        await sandbox.broker.delete([place], epoch=4)
    assert await sandbox.content(await sandbox.open(place, epoch=5)) == [b"a"]
    await sandbox.broker.delete([place, other], epoch=6)


@needs(CAP_FENCED_SENDS)
async def test_opening_and_taking_over_at_the_same_time(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    opened: dict[int, OpenTopic] = {}

    async def take(epoch: int) -> None:
        with suppress(FencedError):
            opened[epoch] = await sandbox.open(place, epoch=epoch)

    async with anyio.create_task_group() as group:
        for epoch in (3, 1, 5, 2, 4, 5):
            group.start_soon(take, epoch)
    leader = opened.pop(5)
    await sandbox.send(leader, b"a")
    for topic in opened.values():
        await all_refused(sandbox, topic, FencedError)
    assert await sandbox.content(leader) == [b"a"]


@needs(CAP_FENCED_SENDS)
async def test_nothing_is_sent_between_the_seal_and_what_the_successor_is_told(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    old = await sandbox.open(place, epoch=1)
    count = 0

    async def go_on_sending() -> None:
        nonlocal count
        with suppress(FencedError):
            while True:
                await sandbox.write(old, b"%d" % count)
                count += 1
                await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(go_on_sending)
        while count < 5:
            await anyio.lowlevel.checkpoint()
        new = await sandbox.open(place, epoch=2)
        end = (await new.status()).end
    there = await sandbox.content(new)
    assert there[:count] == [b"%d" % number for number in range(count)], "nothing that was written is missing"
    assert (await new.status()).end == end
    await sandbox.send(new, b"mine")
    assert await sandbox.content(new, end) == [b"mine"]


# --- closing ---


async def test_what_is_closed_stays_closed(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic = await sandbox.open(place)
    await sandbox.send(topic, b"a")
    await topic.close()
    await all_refused(sandbox, topic, UnknownTopicError)
    again = await sandbox.open(place)
    await all_refused(sandbox, topic, UnknownTopicError)
    await sandbox.send(again, b"b")
    await topic.close()
    assert await sandbox.content(again) == [b"a", b"b"]


async def test_opening_and_closing_at_the_same_time(sandbox: Sandbox) -> None:
    place = await sandbox.create()

    async def open_and_close() -> None:
        await (await sandbox.open(place)).close()

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(open_and_close)
    await sandbox.send(await sandbox.open(place), b"a")


async def test_a_closed_store_refuses_everything(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic, manager, broker = await sandbox.open(place), sandbox.manager, sandbox.broker
    await sandbox.send(topic, b"a")
    await sandbox.close()
    await all_refused(sandbox, topic, StoreClosedError)
    for refused in (
        manager.get([]),
        manager.scan("", limit=1),
        manager.commit({}),
        manager.changes([sandbox.rows]),
        manager.describe_topic(place.topic),
        manager.create_domain("domain"),
        manager.acquire(sandbox.key("lease"), "one", 60),
        manager.leases(""),
        broker.open(place, FRAMING, epoch=1),
        broker.delete([place], epoch=1),
    ):
        with pytest.raises(StoreClosedError):
            await refused
    for part in ("manager", "broker"):
        with pytest.raises(StoreClosedError):
            getattr(sandbox.store, part)
    await sandbox.close()


async def test_a_store_that_was_closed_has_not_failed(sandbox: Sandbox) -> None:
    """What has it fail for good is told to those who asked; closing is nothing of the kind."""
    told: list[BaseException] = []
    sandbox.store.on_failure(told.append)
    stop = sandbox.store.on_failure(told.append)
    stop()
    stop()
    await sandbox.send(await sandbox.topic(), b"a")
    await sandbox.close()
    assert told == []
