"""Trimming: whole messages before a position may go, others never do."""

from __future__ import annotations

import pytest

from kclient.htp.contract.marks import subject
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.errors import PositionError

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("trimming")]

CONTENTS = [b"%d" % number for number in range(10)]


async def test_what_does_not_lie_before_a_position_stays(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    for each in CONTENTS:
        await sandbox.send(topic, each)
    there = await sandbox.positions(topic)
    kept = 0
    for number in (3, 3, 7, 0):
        start = await topic.trim(there[number][0])
        kept = max(kept, number)
        status = await topic.status()
        assert status.start == start <= there[kept][0]
        left = await sandbox.positions(topic)
        assert left == there[-len(left) :]
        assert len(left) >= len(there) - kept
        assert status.end == status.next > there[-1][1]


async def test_the_start_is_the_first_position_that_can_be_read(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    for each in CONTENTS:
        await sandbox.send(topic, each)
    there = await sandbox.positions(topic)
    start = await topic.trim(there[6][0])
    await topic.pull(start)
    with pytest.raises(PositionError) as info:
        await topic.pull(start - 1)
    assert info.value.start == start


async def test_trimming_everything(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic = await sandbox.open(place)
    await sandbox.send(topic, *CONTENTS)
    there = await sandbox.positions(topic)
    before = await topic.status()
    start = await topic.trim(before.end)
    after = await topic.status()
    assert before.start <= start <= before.end
    assert (after.start, after.end, after.next) == (start, before.end, before.next)
    await sandbox.send(topic, b"more")
    found = await sandbox.positions(topic)
    assert found[-1][2] == b"more"
    assert found[-1][0] > there[-1][1], "no position is given twice"
    await sandbox.reopen()
    topic = await sandbox.open(place)
    assert (await topic.status()).start >= start
    assert (await sandbox.positions(topic))[-1] == found[-1]


async def test_no_position_is_given_twice_where_nothing_is_left(sandbox: Sandbox) -> None:
    """The topic is closed, taken over, or the store opened again, while it holds no message."""
    place = await sandbox.create()
    topic = await sandbox.open(place)
    await sandbox.send(topic, *CONTENTS)
    last = (await sandbox.positions(topic))[-1][1]
    for number in range(3):
        await topic.trim((await topic.status()).end)
        before = await topic.status()
        if number == 0:
            await topic.close()
        elif number == 2:
            await sandbox.reopen()
        topic = await sandbox.open(place, epoch=1 + number)
        after = await topic.status()
        assert (after.end, after.next) == (before.end, before.next)
        await sandbox.send(topic, b"%d" % number)
        [*_, (first, position, payload)] = await sandbox.positions(topic)
        assert payload == b"%d" % number
        assert first > last
        last = position


async def test_what_was_trimmed_stays_away(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic = await sandbox.open(place)
    for each in CONTENTS:
        await sandbox.send(topic, each)
    there = await sandbox.positions(topic)
    start = await topic.trim(there[8][0])
    for epoch in (1, 2):
        await sandbox.reopen()
        topic = await sandbox.open(place, epoch=epoch)
        assert (await topic.status()).start == start
        assert (await sandbox.content(topic))[-2:] == CONTENTS[-2:]


async def test_an_empty_topic_is_trimmed_in_vain(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    start = (await topic.status()).start
    assert await topic.trim(start) == start
    await sandbox.send(topic, b"a")
    assert await sandbox.content(topic) == [b"a"]


async def test_trimming_while_others_read(sandbox: Sandbox) -> None:
    """Who reads what is trimmed is told where the topic begins; what was read stays whole."""
    topic = await sandbox.topic()
    for each in CONTENTS:
        await sandbox.send(topic, each * 1000)
    there = await sandbox.positions(topic)
    pulled = await topic.pull(there[0][0], max_messages=1)
    copy = bytes(pulled.data)
    await topic.trim(there[5][0])
    assert bytes(pulled.data) == copy
    position = (await topic.status()).start
    assert (await sandbox.content(topic, position))[-5:] == [each * 1000 for each in CONTENTS[5:]]
