"""Reading: whole messages from a position on, within limits; positions stay what they were."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kclient.htp.contract.marks import subject
from kclient.htp.contract.messages import OVERHEAD, payloads, split
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.errors import PositionError

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("reading")]


async def test_an_empty_topic(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    start, end, following, size = await topic.status()
    assert start == end == following >= 0
    assert size == 0
    pulled = await topic.pull(start)
    assert (len(pulled.data), pulled.first, pulled.last) == (0, start, start - 1)


async def test_limits_of_bytes(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    await sandbox.send(topic, *[b"x" * 100] * 20)
    start = (await topic.status()).start
    one = OVERHEAD + 100
    for max_bytes, most in ((0, 1), (1, 1), (one, 1), (2 * one - 1, 1), (2 * one, 2), (10**6, 20)):
        found = len(split((await topic.pull(start, max_bytes=max_bytes)).data))
        assert 1 <= found <= most, f"{found} messages in {max_bytes} bytes"


async def test_limits_of_messages(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    await sandbox.send(topic, *[b"x" * 100] * 20)
    start = (await topic.status()).start
    for max_messages in (0, 1, 7, 20, 100):
        found = len(split((await topic.pull(start, max_messages=max_messages)).data))
        assert 1 <= found <= max(1, max_messages)


async def test_a_message_larger_than_the_limit_is_read_all_the_same(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    await sandbox.send(topic, b"small", b"x" * 300_000, b"small")
    position = (await sandbox.positions(topic))[1][0]
    assert payloads((await topic.pull(position, max_bytes=1000)).data) == [b"x" * 300_000]


async def test_reading_on_finds_every_message_once(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    contents = [bytes([number % 251]) * (number % 700) for number in range(1000)]
    await sandbox.send(topic, *contents[:600])
    await sandbox.send(topic, *contents[600:])
    for limits in ({"max_bytes": 1}, {"max_bytes": 1000}, {"max_messages": 7}, {"max_bytes": 40_000}, {}):
        assert await sandbox.content(topic, **limits) == contents, limits


async def test_every_position_gives_the_message_that_holds_it_or_comes_next(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    await sandbox.send(topic, b"a", b"b")
    await sandbox.send(topic, b"c", b"d", b"e")
    there = await sandbox.positions(topic)
    assert [payload for _, _, payload in there] == [b"a", b"b", b"c", b"d", b"e"]
    assert all(first <= last for first, last, _ in there)
    assert all(before[1] < after[0] for before, after in pairwise(there)), "they only grow"
    start, end = (await topic.status())[:2]
    for position in range(start, min(end, start + 2000)):
        expected = next((each for each in there if each[1] >= position), None)
        pulled = await topic.pull(position, max_messages=1)
        if expected is None:
            assert (len(pulled.data), pulled.first, pulled.last) == (0, position, position - 1)
        else:
            assert (pulled.first, pulled.last, payloads(pulled.data)[0]) == expected


async def test_a_pull_tells_the_positions_of_its_first_and_last_message(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    await sandbox.send(topic, *[b"%d" % number for number in range(10)])
    there = await sandbox.positions(topic)
    for number, (first, _, payload) in enumerate(there):
        pulled = await topic.pull(first, max_messages=3)
        found = payloads(pulled.data)
        assert pulled.first == first
        assert found[0] == payload
        assert pulled.last == there[number + len(found) - 1][1]


async def test_the_end_is_read_as_nothing(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    await sandbox.send(topic, b"a")
    end = (await topic.status()).end
    for limits in ({}, {"max_bytes": 0}, {"max_messages": 1}):
        pulled = await topic.pull(end, **limits)
        assert (len(pulled.data), pulled.first, pulled.last) == (0, end, end - 1)


async def test_positions_outside_are_refused(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    await sandbox.send(topic, b"a", b"b")
    start, _, following, _ = await topic.status()
    for position in (start - 1, -1, following + 1, following + 1000):
        with pytest.raises(PositionError) as info:
            await topic.pull(position)
        assert (info.value.start, info.value.end) == (start, following)


async def test_positions_stay_what_they_were(sandbox: Sandbox) -> None:
    """Whatever is sent behind them, whoever has the topic, and however often the store is opened."""
    place = await sandbox.create()
    topic = await sandbox.open(place)
    await sandbox.send(topic, b"a", b"b")
    there = await sandbox.positions(topic)
    await sandbox.send(topic, b"c")
    assert (await sandbox.positions(topic))[:2] == there
    there = await sandbox.positions(topic)
    await topic.close()
    topic = await sandbox.open(place, epoch=2)
    assert await sandbox.positions(topic) == there
    for epoch in (2, 3):
        await sandbox.reopen()
        topic = await sandbox.open(place, epoch=epoch)
        assert await sandbox.positions(topic) == there
        await sandbox.send(topic, b"d")
        assert (await sandbox.positions(topic))[:-1] == there
        there = await sandbox.positions(topic)


async def test_what_was_read_stays_as_it_is(sandbox: Sandbox) -> None:
    """Nobody writes into a buffer that somebody was given."""
    topic = await sandbox.topic()
    contents = [bytes([number]) * 5000 for number in range(20)]
    await sandbox.send(topic, *contents)
    pulled = [(await topic.pull(first, max_messages=1)).data for first, _, _ in await sandbox.positions(topic)]
    await sandbox.send(topic, b"more")
    assert [payload for data in pulled for payload in payloads(data)] == contents
