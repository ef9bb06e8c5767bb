"""Positions that are the ordinals of the messages (capability `ordinal_positions`)."""

from __future__ import annotations

import pytest

from kclient.htp.contract.marks import needs, subject
from kclient.htp.contract.messages import OVERHEAD, message, payloads, split
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.errors import OrderError, PositionError
from kclient.htp.port import CAP_ORDINAL_POSITIONS, OpenTopic, TopicSettings

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("ordinals"), needs(CAP_ORDINAL_POSITIONS)]

GREATEST = (1 << 62) - 1


async def send(topic: OpenTopic, *messages: bytes) -> None:
    """Send messages and wait for the sync."""
    await (await topic.send(messages)).synced()


async def test_positions_are_ordinals(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    assert await topic.status() == (0, 0, 0, 0)
    sent = await topic.send([message(0, b"a", count=3), message(3, b"b")])
    assert (sent.first, sent.last) in ((0, 3), (-1, -1))
    await sent.synced()
    pulled = await topic.pull(0)
    assert split(pulled.data) == [(0, 2, b"a"), (3, 3, b"b")]
    assert (pulled.first, pulled.last) == (0, 3)
    assert await topic.status() == (0, 4, 4, 2 * OVERHEAD + 2)


async def test_an_ordinal_inside_a_message_gives_the_whole_message(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    await send(topic, message(0, b"a", count=10), message(10, b"b", count=10))
    for position in (10, 15, 19):
        pulled = await topic.pull(position)
        assert (pulled.first, pulled.last) == (10, 19)
        assert payloads(pulled.data) == [b"b"]


async def test_gaps_are_passed_over(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    await send(topic, message(5, b"a"), message(9, b"b"))
    for position, first in ((0, 5), (5, 5), (6, 9), (9, 9)):
        assert (await topic.pull(position)).first == first
    assert (await topic.status())[:3] == (0, 10, 10)


async def test_messages_must_follow_on(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    await send(topic, message(0, b"a"), message(1, b"b"))
    for wrong in ([message(1)], [message(2), message(2)], [message(5), message(4)], [message(5, count=-2)]):
        with pytest.raises(OrderError):
            await topic.send(wrong)
    with pytest.raises(ValueError):
        await topic.send([message(2), message(GREATEST - 2, count=3)])
    assert (await topic.status()).next == 2, "nothing was appended by what was refused"
    await send(topic, message(2, b"c"))
    assert await sandbox.content(topic) == [b"a", b"b", b"c"]


async def test_positions_outside_are_refused(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    await send(topic, message(0, b"a"), message(1, b"b"))
    assert len((await topic.pull(2)).data) == 0
    for position in (3, -1):
        with pytest.raises(PositionError) as info:
            await topic.pull(position)
        assert (info.value.start, info.value.end) == (0, 2)


async def test_a_topic_may_go_on_further_on(sandbox: Sandbox) -> None:
    """It ends where its messages end until there are more, and never goes back."""
    place = await sandbox.create()
    await send(await sandbox.open(place), message(0, b"a"))
    topic = await sandbox.open(place, epoch=2, next_position=100)
    assert (await topic.status())[:3] == (0, 1, 100)
    assert len((await topic.pull(1)).data) == 0
    with pytest.raises(OrderError):
        await topic.send([message(50)])
    await send(topic, message(100, b"b"))
    assert (await topic.status())[:3] == (0, 101, 101)
    topic = await sandbox.open(place, epoch=2, next_position=20)
    assert (await topic.status()).next == 101
    await sandbox.reopen()
    topic = await sandbox.open(place, epoch=2, next_position=200)
    assert (await topic.status()).next == 200
    await sandbox.reopen()
    topic = await sandbox.open(place, epoch=2)
    assert (await topic.status()).next == 200
    await send(topic, message(200, b"c"))
    found = [payloads((await topic.pull(position, max_messages=1)).data) for position in (0, 1, 101)]
    assert found == [[b"a"], [b"b"], [b"c"]]


async def test_an_empty_topic_that_goes_on_further_on(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    await sandbox.open(place, epoch=1)
    topic = await sandbox.open(place, epoch=2, next_position=100)
    assert (await topic.status())[2] == 100
    await topic.close()
    topic = await sandbox.open(place, epoch=2)
    assert (await topic.status()).next == 100
    await send(topic, message(100, b"a"))
    assert await topic.trim(101) in (100, 101)
    topic = await sandbox.open(place, epoch=3, next_position=200)
    await sandbox.reopen()
    topic = await sandbox.open(place, epoch=4)
    assert (await topic.status()).next == 200
    await send(topic, message(200, b"b"))
    assert (await sandbox.content(topic))[-1] == b"b"


async def test_a_topic_that_was_trimmed_to_nothing_does_not_begin_again(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic = await sandbox.open(place)
    await send(topic, message(0, b"a"), message(1, b"b"), message(2, b"c"))
    start = await topic.trim(3)
    await sandbox.reopen()
    topic = await sandbox.open(place)
    assert (await topic.status())[:3] == (start, 3, 3)
    with pytest.raises(OrderError):
        await topic.send([message(0)])
    await send(topic, message(3, b"d"))
    assert (await sandbox.content(topic, 3)) == [b"d"]


async def test_the_greatest_ordinal_is_recorded(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    await send(await sandbox.open(place), message(GREATEST - 1, b"a"))
    await sandbox.reopen()
    topic = await sandbox.open(place)
    assert (await topic.status()).next == GREATEST
    assert (await topic.pull(GREATEST - 1)).first == GREATEST - 1


@pytest.mark.parametrize("position", [-1, 1 << 62])
async def test_a_position_that_could_not_be_recorded_is_refused(sandbox: Sandbox, position: int) -> None:
    place = await sandbox.create()
    with pytest.raises(ValueError):
        await sandbox.open(place, next_position=position)
    topic = await sandbox.open(place, next_position=GREATEST)
    assert (await topic.status()).next == GREATEST


async def test_a_gap_in_a_dense_topic_is_refused_or_taken_whole(sandbox: Sandbox) -> None:
    """Whether a backend holds to `TopicSettings.dense` is its choice; half of it is none."""
    topic = await sandbox.topic(settings=TopicSettings(dense=True))
    await send(topic, message(0, b"a"))
    try:
        await send(topic, message(5, b"b"))
    except OrderError:
        await send(topic, message(1, b"b"))
    assert await sandbox.content(topic) == [b"a", b"b"]
