"""What every broker of HTP has to do; runs over each backend and each event loop.

A vendor's backend is certified by running this module with its URL in `conftest.py`.
"""

from __future__ import annotations

import anyio
import pytest

from kclient.htp import (
    FencedError,
    OrderError,
    PositionError,
    StoreClosedError,
    Topic,
    TopicSettings,
    UnknownTopicError,
)
from tests.unit.htp.by_name import NamedStore
from tests.unit.htp.conftest import OpenStore, prepare
from tests.unit.htp.plain_messages import FRAMING, OTHER, OVERHEAD, TOPIC, message, payloads, split

pytestmark = pytest.mark.anyio


async def send(store: NamedStore, first: int, *contents: bytes, topic: Topic = TOPIC) -> None:
    """Send messages of one ordinal each, and wait for the sync."""
    messages = [message(first + number, content) for number, content in enumerate(contents)]
    await (await store.broker.send(topic, messages)).synced()


async def test_an_empty_topic(store: NamedStore) -> None:
    assert await store.broker.status(TOPIC) == (0, 0, 0, 0)
    pulled = await store.broker.pull(TOPIC, 0)
    assert (len(pulled.data), pulled.first, pulled.last) == (0, 0, -1)


async def test_what_was_sent_is_pulled(store: NamedStore) -> None:
    sent = await store.broker.send(TOPIC, [message(0, b"a", count=3), message(3, b"b")])
    assert (sent.first, sent.last) == (0, 3)
    await sent.synced()
    assert sent.done
    pulled = await store.broker.pull(TOPIC, 0)
    assert split(pulled.data) == [(0, 2, b"a"), (3, 3, b"b")]
    assert (pulled.first, pulled.last) == (0, 3)
    assert await store.broker.start(TOPIC) == 0
    assert await store.broker.end(TOPIC) == 4
    assert (await store.broker.pull(OTHER, 0)).data == b""


async def test_a_position_inside_a_message_gives_the_whole_message(store: NamedStore) -> None:
    await (await store.broker.send(TOPIC, [message(0, b"a", count=10), message(10, b"b", count=10)])).synced()
    pulled = await store.broker.pull(TOPIC, 15)
    assert (pulled.first, pulled.last) == (10, 19)
    assert payloads(pulled.data) == [b"b"]


async def test_gaps_are_passed_over(store: NamedStore) -> None:
    await (await store.broker.send(TOPIC, [message(5, b"a"), message(9, b"b")])).synced()
    for position, first in ((0, 5), (5, 5), (6, 9), (9, 9)):
        assert (await store.broker.pull(TOPIC, position)).first == first
    assert await store.broker.end(TOPIC) == 10


async def test_limits_of_a_pull(store: NamedStore) -> None:
    await send(store, 0, *[b"x" * 100] * 20)
    one = OVERHEAD + 100
    for max_bytes, count in ((1, 1), (one, 1), (2 * one - 1, 1), (2 * one, 2), (10**6, 20)):
        pulled = await store.broker.pull(TOPIC, 0, max_bytes=max_bytes)
        assert len(split(pulled.data)) == count
        assert pulled.last == count - 1
    for max_messages in (0, 1, 7, 20, 100):
        pulled = await store.broker.pull(TOPIC, 0, max_messages=max_messages)
        assert len(split(pulled.data)) == max(1, min(20, max_messages))
    assert len(split((await store.broker.pull(TOPIC, 0, max_bytes=0)).data)) == 1
    assert (await store.broker.pull(TOPIC, 7, max_bytes=1)).first == 7


async def test_a_message_larger_than_the_limit_is_pulled_all_the_same(store: NamedStore) -> None:
    await send(store, 0, b"small", b"x" * 300_000, b"small")
    assert payloads((await store.broker.pull(TOPIC, 1, max_bytes=1000)).data) == [b"x" * 300_000]


async def test_reading_on_finds_every_message_once(store: NamedStore) -> None:
    contents = [bytes([number % 251]) * (number % 700) for number in range(1000)]
    await send(store, 0, *contents[:600])
    await send(store, 600, *contents[600:])
    for max_bytes in (1, 1000, 40_000, 10**7):
        found, position = [], 0
        while position < await store.broker.end(TOPIC):
            pulled = await store.broker.pull(TOPIC, position, max_bytes=max_bytes)
            found += payloads(pulled.data)
            position = pulled.last + 1
        assert found == contents


async def test_positions_outside_are_refused(store: NamedStore) -> None:
    await send(store, 0, b"a", b"b")
    assert (await store.broker.pull(TOPIC, 2)).data == b""
    with pytest.raises(PositionError) as info:
        await store.broker.pull(TOPIC, 3)
    assert (info.value.start, info.value.end) == (0, 2)
    with pytest.raises(PositionError):
        await store.broker.pull(TOPIC, -1)


async def test_messages_must_follow_on(store: NamedStore) -> None:
    await send(store, 0, b"a", b"b")
    for wrong in ([message(1)], [message(2), message(2)], [message(5), message(4)], [message(5, count=-2)]):
        with pytest.raises(OrderError):
            await store.broker.send(TOPIC, wrong)
    with pytest.raises(ValueError, match="in a buffer of"):
        await store.broker.send(TOPIC, [message(2) + b"more"])
    with pytest.raises(ValueError, match="too large to be recorded"):
        await store.broker.send(TOPIC, [message(2), message((1 << 62) - 3, count=3)])
    with pytest.raises(ValueError, match="no message"):
        await store.broker.send(TOPIC, [])
    assert (await store.broker.status(TOPIC)).next == 2, "nothing was appended by what was refused"
    await send(store, 2, b"c")
    assert payloads((await store.broker.pull(TOPIC, 0)).data) == [b"a", b"b", b"c"]


async def test_the_buffer_may_be_used_again(store: NamedStore) -> None:
    buffer = bytearray(message(0, b"first"))
    sent = await store.broker.send(TOPIC, [memoryview(buffer)])
    buffer[:] = bytes(len(buffer))
    await sent.synced()
    assert payloads((await store.broker.pull(TOPIC, 0)).data) == [b"first"]


async def test_callbacks_come_in_order(store: NamedStore) -> None:
    order: list[int] = []
    all_done = anyio.Event()
    for number in range(10):
        sent = await store.broker.send(TOPIC, [message(number)])

        def called(error: BaseException | None, number: int = number) -> None:
            assert error is None
            order.append(number)
            if number == 9:
                all_done.set()

        sent.on_synced(called)
    with anyio.fail_after(10):
        await all_done.wait()
    assert order == list(range(10))
    late: list[BaseException | None] = []
    sent.on_synced(late.append)
    assert late == [None], "at once, if it is decided already"


async def test_what_is_stored_is_there_when_opened_again(reopen: OpenStore) -> None:
    async with reopen() as store:
        await prepare(store)
        await send(store, 0, b"a", b"b")
    async with reopen() as store:
        assert await store.broker.open(TOPIC, FRAMING) == (0, 2, 2, 2 * OVERHEAD + 2)
        assert payloads((await store.broker.pull(TOPIC, 0)).data) == [b"a", b"b"]
        await send(store, 2, b"c")
        assert payloads((await store.broker.pull(TOPIC, 1)).data) == [b"b", b"c"]


async def test_closing_and_opening_a_topic(store: NamedStore) -> None:
    await send(store, 0, b"a")
    await store.broker.close(TOPIC)
    with pytest.raises(UnknownTopicError):
        await store.broker.pull(TOPIC, 0)
    await store.broker.close(TOPIC)
    await store.broker.open(TOPIC, FRAMING)
    await send(store, 1, b"b")
    assert payloads((await store.broker.pull(TOPIC, 0)).data) == [b"a", b"b"]


async def test_a_topic_must_exist_and_be_open(store: NamedStore) -> None:
    unknown = Topic("domain", "unknown")
    with pytest.raises(UnknownTopicError):
        await store.broker.open(unknown, FRAMING)
    await store.manager.create_topic(unknown)
    for call in (
        store.broker.send(unknown, [message(0)]),
        store.broker.pull(unknown, 0),
        store.broker.status(unknown),
        store.broker.trim(unknown, 0),
        store.broker.segments(unknown),
    ):
        with pytest.raises(UnknownTopicError):
            await call


async def test_a_closed_store(reopen: OpenStore) -> None:
    store = reopen()
    async with store:
        await prepare(store)
        broker = store.broker
    with pytest.raises(StoreClosedError):
        await broker.send(TOPIC, [message(0)])
    with pytest.raises(StoreClosedError):
        _ = store.broker
    await store.aclose()


async def test_the_next_position_may_be_raised(reopen: OpenStore) -> None:
    async with reopen() as store:
        await prepare(store)
        await send(store, 0, b"a")
        assert (await store.broker.open(TOPIC, FRAMING, next_position=100)).next == 100
        with pytest.raises(OrderError):
            await store.broker.send(TOPIC, [message(50)])
        await send(store, 100, b"b")
        await store.broker.open(TOPIC, FRAMING, next_position=20)
    async with reopen() as store:
        await store.broker.open(TOPIC, FRAMING, next_position=200)
        assert (await store.broker.status(TOPIC)).next == 200
    async with reopen() as store:
        await store.broker.open(TOPIC, FRAMING)
        assert (await store.broker.status(TOPIC)).next == 200
        await send(store, 200, b"c")
        found = (
            (await store.broker.pull(TOPIC, 0)),
            (await store.broker.pull(TOPIC, 1)),
            (await store.broker.pull(TOPIC, 101)),
        )
        assert [payloads(each.data)[0] for each in found] == [b"a", b"b", b"c"]


# --- deleting and trimming ---


async def test_deleting_drops_the_messages(store: NamedStore) -> None:
    await send(store, 0, b"a")
    await store.broker.delete(TOPIC)
    await store.manager.delete_topics([TOPIC])
    await store.broker.delete(TOPIC)
    await store.manager.create_topic(TOPIC)
    assert await store.broker.open(TOPIC, FRAMING) == (0, 0, 0, 0)
    await send(store, 0, b"b")
    assert payloads((await store.broker.pull(TOPIC, 0)).data) == [b"b"]


SMALL = TopicSettings(segment_bytes=4 * (OVERHEAD + 10), index_interval_bytes=100)


async def test_segments_and_trimming(reopen: OpenStore) -> None:
    async with reopen(settings=SMALL) as store:
        await prepare(store)
        for number in range(10):
            await (await store.broker.send(TOPIC, [message(number, b"0123456789", timestamp=number * 10)])).synced()
        segments = await store.broker.segments(TOPIC)
        assert [(each.first, each.next, each.max_timestamp, each.active) for each in segments] == [
            (0, 4, 30, False), (4, 8, 70, False), (8, 10, 90, True),
        ]  # fmt: skip
        assert [each.size for each in segments] == [4 * (OVERHEAD + 10), 4 * (OVERHEAD + 10), 2 * (OVERHEAD + 10)]
        assert all(each.modified_ms > 0 for each in segments)
        assert await store.broker.trim(TOPIC, 3) == 0
        assert await store.broker.trim(TOPIC, 7) == 4
        assert (await store.broker.status(TOPIC)) == (4, 10, 10, 6 * (OVERHEAD + 10))
        with pytest.raises(PositionError):
            await store.broker.pull(TOPIC, 3)
        assert (await store.broker.pull(TOPIC, 5, max_messages=1)).first == 5
    async with reopen(settings=SMALL) as store:
        await store.broker.open(TOPIC, FRAMING)
        segments = await store.broker.segments(TOPIC)
        assert [(each.first, each.next, each.max_timestamp) for each in segments] == [(4, 8, 70), (8, 10, 90)]


async def test_the_greatest_ordinal_is_recorded(reopen: OpenStore) -> None:
    greatest = (1 << 62) - 2
    async with reopen() as store:
        await prepare(store)
        await send(store, greatest, b"a")
        await store.broker.open(TOPIC, FRAMING, epoch=7)
    async with reopen() as store:
        with pytest.raises(FencedError):
            await store.broker.open(TOPIC, FRAMING, epoch=6)
        assert (await store.broker.open(TOPIC, FRAMING, epoch=7)).next == greatest + 1


async def test_a_log_trimmed_to_nothing_goes_on(reopen: OpenStore) -> None:
    async with reopen() as store:
        await prepare(store)
        await send(store, 0, b"a", b"b", b"c")
        assert await store.broker.trim(TOPIC, 3) == 3
        assert await store.broker.status(TOPIC) == (3, 3, 3, 0)
        assert await store.broker.trim(TOPIC, 3) == 3
    async with reopen() as store:
        assert await store.broker.open(TOPIC, FRAMING) == (3, 3, 3, 0)
        with pytest.raises(OrderError):
            await store.broker.send(TOPIC, [message(0)])
        await send(store, 3, b"d")
        assert payloads((await store.broker.pull(TOPIC, 3)).data) == [b"d"]


async def test_rolling(store: NamedStore) -> None:
    await store.broker.roll(TOPIC)
    assert len(await store.broker.segments(TOPIC)) == 1
    await send(store, 0, b"a")
    await store.broker.roll(TOPIC)
    await store.broker.roll(TOPIC)
    assert [each.first for each in await store.broker.segments(TOPIC)] == [0, 1]
    assert await store.broker.trim(TOPIC, 1) == 1
    await send(store, 1, b"b")
    assert (await store.broker.status(TOPIC)).start == 1


async def test_segments_are_rolled_by_age(store: NamedStore) -> None:
    await store.broker.open(TOPIC, FRAMING, settings=TopicSettings(segment_ms=0))
    await send(store, 0, b"a")
    await send(store, 1, b"b")
    assert len(await store.broker.segments(TOPIC)) == 2
    await store.broker.open(TOPIC, FRAMING, settings=TopicSettings())
    await send(store, 2, b"c")
    assert len(await store.broker.segments(TOPIC)) == 2


async def test_finding_by_timestamp(reopen: OpenStore) -> None:
    stamps = [5, 1, 7, 7, 3, 20, 2, 30, 25, 40]
    async with reopen(settings=SMALL) as store:
        await prepare(store)
        for number, stamp in enumerate(stamps):
            await (
                await store.broker.send(TOPIC, [message(number * 2, b"0123456789", count=2, timestamp=stamp)])
            ).synced()
        for timestamp in range(45):
            for start in (0, 1, 7, 8, 19):
                expected = [
                    number * 2 for number, stamp in enumerate(stamps) if stamp >= timestamp and number * 2 + 1 >= start
                ]
                found = await store.broker.find_by_timestamp(TOPIC, timestamp, start=start)
                assert (found.first if found else None) == (expected[0] if expected else None)
        found = await store.broker.find_by_timestamp(TOPIC, 6)
        assert found == (4, 5, 7)


# --- the calls without a switch of tasks ---


async def test_sending_and_pulling_at_once(store: NamedStore) -> None:
    broker = store.broker
    sent = broker.send_nowait(TOPIC, [message(0, b"a")])
    await sent.synced()
    assert broker.status_nowait(TOPIC).end == 1
    pulled = broker.pull_nowait(TOPIC, 0)
    assert pulled is not None
    assert payloads(pulled.data) == [b"a"]


@pytest.mark.parametrize("durability", ["synced", "written"])
async def test_both_durabilities(reopen: OpenStore, durability: str) -> None:
    async with reopen(durability=durability) as store:
        await prepare(store)
        await send(store, 0, b"a")
        assert await store.broker.end(TOPIC) == 1
    async with reopen(durability=durability) as store:
        await store.broker.open(TOPIC, FRAMING)
        assert payloads((await store.broker.pull(TOPIC, 0)).data) == [b"a"]
