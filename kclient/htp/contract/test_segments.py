"""Segments, which retention decides upon, and searching by time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kclient.htp.contract.marks import needs, subject
from kclient.htp.contract.messages import OVERHEAD
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.port import CAP_FIND_BY_TIMESTAMP, CAP_SEGMENTS, OpenTopic, SegmentInfo, TopicSettings

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("segments")]

SMALL = TopicSettings(segment_bytes=4 * (OVERHEAD + 10), index_interval_bytes=100)
"""Four messages of ten bytes."""


def consistent(infos: list[SegmentInfo]) -> None:
    """Assert that segments follow on each other, and that the last one is written to."""
    assert infos
    assert [info.active for info in infos] == [False] * (len(infos) - 1) + [True]
    for before, after in pairwise(infos):
        assert before.first < before.next <= after.first


async def fill(sandbox: Sandbox, topic: OpenTopic, count: int) -> None:
    """Send messages of ten bytes, one by one, each ten milliseconds later than the one before."""
    for number in range(count):
        await sandbox.send(topic, b"0123456789", timestamp=number * 10)


@needs(CAP_SEGMENTS)
async def test_a_segment_ends_when_it_is_full(sandbox: Sandbox) -> None:
    topic = await sandbox.topic(settings=SMALL)
    [only] = await topic.segments()
    assert (only.size, only.max_timestamp, only.active) == (0, -1, True)
    await fill(sandbox, topic, 10)
    infos = await topic.segments()
    consistent(infos)
    assert [(each.size, each.max_timestamp) for each in infos] == [
        (4 * (OVERHEAD + 10), 30),
        (4 * (OVERHEAD + 10), 70),
        (2 * (OVERHEAD + 10), 90),
    ]
    assert all(each.modified_ms > 1_500_000_000_000 for each in infos)
    there = await sandbox.positions(topic)
    assert [sum(each.first <= first < each.next for first, _, _ in there) for each in infos] == [4, 4, 2]
    assert infos[-1].next == (await topic.status()).next


@needs(CAP_SEGMENTS)
async def test_segments_are_dropped_whole(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic = await sandbox.open(place, settings=SMALL)
    await fill(sandbox, topic, 10)
    before = await topic.segments()
    assert await topic.trim(before[0].next - 1) == before[0].first, "one of its messages does not lie before that"
    assert await topic.segments() == before
    start = await topic.trim(before[1].next - 1)
    assert before[0].next <= start <= before[1].first
    assert await topic.segments() == before[1:]
    assert (await topic.status()).size == 6 * (OVERHEAD + 10)
    await sandbox.reopen()
    topic = await sandbox.open(place, settings=SMALL)
    after = await topic.segments()
    assert [each[:4] for each in after] == [each[:4] for each in before[1:]]


@needs(CAP_SEGMENTS)
async def test_a_segment_is_closed_on_demand(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    await topic.roll()
    assert len(await topic.segments()) == 1, "it is empty"
    await sandbox.send(topic, b"a")
    for _ in range(2):
        await topic.roll()
    infos = await topic.segments()
    consistent(infos)
    assert len(infos) == 2
    end = (await topic.status()).end
    assert await topic.trim(end) == end
    assert len(await topic.segments()) == 1
    await sandbox.send(topic, b"b")
    assert await sandbox.content(topic) == [b"b"]


@needs(CAP_SEGMENTS)
async def test_a_segment_ends_by_its_age(sandbox: Sandbox) -> None:
    topic = await sandbox.topic(settings=TopicSettings(segment_ms=0))
    for _ in range(2):
        await sandbox.send(topic, b"a")
    assert len(await topic.segments()) == 2


@needs(CAP_SEGMENTS)
async def test_settings_may_be_changed(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic = await sandbox.open(place, settings=SMALL)
    await fill(sandbox, topic, 5)
    assert len(await topic.segments()) == 2
    await topic.configure(TopicSettings())
    await fill(sandbox, topic, 8)
    assert len(await topic.segments()) == 2
    topic = await sandbox.open(place, settings=SMALL)
    await fill(sandbox, topic, 1)
    assert len(await topic.segments()) == 3


# --- searching by time ---

STAMPS = [5, 1, 7, 7, 3, 20, 2, 30, 25, 40]


@needs(CAP_FIND_BY_TIMESTAMP)
async def test_the_first_message_that_is_not_older_is_found(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic = await sandbox.open(place, settings=SMALL)
    for stamp in STAMPS:
        await sandbox.send(topic, b"0123456789", timestamp=stamp)
    for _ in range(2):
        there = await sandbox.positions(topic)
        starts = [there[number][0] for number in (0, 1, 4, 9)]
        for timestamp in range(45):
            for start in starts:
                expected = [
                    (*position[:2], stamp)
                    for position, stamp in zip(there, STAMPS, strict=True)
                    if stamp >= timestamp and position[1] >= start
                ]
                found = await topic.find_by_timestamp(timestamp, start=start)
                assert found == (expected[0] if expected else None), (timestamp, start)
        await sandbox.reopen()
        topic = await sandbox.open(place, settings=SMALL)


@needs(CAP_FIND_BY_TIMESTAMP)
async def test_nothing_is_found_where_there_is_nothing(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    assert await topic.find_by_timestamp(0) is None
    await sandbox.send(topic, b"a")
    assert await topic.find_by_timestamp(0) is None, "it has no time"
    await sandbox.send(topic, b"b", timestamp=10)
    end = (await topic.status()).end
    assert await topic.find_by_timestamp(10, start=end) is None
    found = await topic.find_by_timestamp(10)
    assert found is not None
    assert found.max_timestamp == 10


@needs(CAP_FIND_BY_TIMESTAMP)
async def test_what_was_trimmed_is_not_found(sandbox: Sandbox) -> None:
    topic = await sandbox.topic(settings=SMALL)
    await fill(sandbox, topic, 10)
    start = await topic.trim((await sandbox.positions(topic))[8][0])
    found = await topic.find_by_timestamp(0)
    assert found is not None
    assert found.first >= start
