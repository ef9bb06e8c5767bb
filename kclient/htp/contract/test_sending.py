"""Sending: in order, all or none, and what is told of it: written, then synced and visible."""

from __future__ import annotations

import anyio
import pytest

from kclient.htp.contract.marks import needs, subject
from kclient.htp.contract.messages import OVERHEAD
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.port import CAP_POSITIONS, OpenTopic, Sent

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("sending")]


async def test_what_is_sent_one_after_the_other_is_read_in_that_order(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    contents = [b"%d" % number for number in range(50)]
    for each in contents:
        await sandbox.send(topic, each)
    assert await sandbox.content(topic) == contents


async def test_what_is_sent_together_stays_together(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    await sandbox.send(topic, b"a", b"b", b"c")
    await sandbox.send(topic, b"d", b"e")
    assert await sandbox.content(topic) == [b"a", b"b", b"c", b"d", b"e"]


async def test_sends_need_not_wait_for_the_syncs_of_others(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    sent = [await sandbox.write(topic, b"%d" % number) for number in range(100)]
    for each in reversed(sent):
        await each.synced()
        assert each.done
    assert await sandbox.content(topic) == [b"%d" % number for number in range(100)]


async def test_what_is_synced_is_visible(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    before = await topic.status()
    sent = await sandbox.write(topic, b"a", b"b")
    written = await topic.status()
    assert written.next > before.next
    assert before.end <= written.end <= written.next
    await sent.synced()
    after = await topic.status()
    assert after.end == after.next == written.next
    assert after.start == before.start
    assert after.size == 2 * (OVERHEAD + 1)
    assert await sandbox.content(topic) == [b"a", b"b"]


async def test_nothing_is_read_before_it_is_visible(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    for number in range(20):
        sent = await sandbox.write(topic, b"%d" % number)
        seen = await topic.status()
        pulled = await topic.pull(seen.start)
        end = (await topic.status()).end
        assert pulled.last < end
        await sent.synced()


async def test_messages_of_every_size(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    contents = [b"", b"x", b"y" * 1000, b"z" * 65_536, b"", b"w" * 3_000_000, b"v"]
    await sandbox.send(topic, *contents[:3])
    for each in contents[3:]:
        await sandbox.send(topic, each)
    assert await sandbox.content(topic) == contents
    assert (await topic.status()).size == sum(map(len, contents)) + len(contents) * OVERHEAD


async def test_what_is_no_message_is_refused_with_all_that_comes_with_it(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    await sandbox.send(topic, b"a")
    before = await topic.status()
    for wrong in (b"more", None):
        whole, broken, last = await sandbox.messages(topic, b"b", b"c", b"d")
        broken = broken + wrong if wrong else broken[:-1]
        with pytest.raises(ValueError):
            await topic.send([whole, broken, last])
        assert await topic.status() == before, "nothing was appended"
    await sandbox.send(topic, b"b")
    assert await sandbox.content(topic) == [b"a", b"b"]


async def test_the_buffer_may_be_used_again(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    [whole] = await sandbox.messages(topic, b"first")
    for kind in (bytearray, memoryview):
        buffer = bytearray(whole)
        sent = await topic.send([buffer if kind is bytearray else memoryview(buffer)])
        buffer[:] = bytes(len(buffer))
        await sent.synced()
        [whole] = await sandbox.messages(topic, b"second")
    assert await sandbox.content(topic) == [b"first", b"second"]


async def test_callbacks_come_in_the_order_of_the_sends(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    order: list[int] = []
    all_done = anyio.Event()

    def note(sent: Sent, number: int) -> None:
        def called(error: BaseException | None) -> None:
            assert error is None
            order.append(number)
            if number == 9:
                all_done.set()

        sent.on_synced(called)

    for number in range(10):
        sent = await sandbox.write(topic, b"x")
        note(sent, number)
    with anyio.fail_after(60):
        await all_done.wait()
    assert order == list(range(10))
    late: list[BaseException | None] = []
    sent.on_synced(late.append)
    assert late == [None], "at once, if it is decided already"


async def test_topics_are_sent_to_side_by_side(sandbox: Sandbox) -> None:
    topics = [await sandbox.topic(f"topic/{number}") for number in range(20)]

    async def fill(topic: OpenTopic) -> None:
        for number in range(10):
            await sandbox.send(topic, b"%b %d" % (topic.place.topic.name.encode(), number))

    async with anyio.create_task_group() as group:
        for topic in topics:
            group.start_soon(fill, topic)
    for topic in topics:
        name = topic.place.topic.name.encode()
        assert await sandbox.content(topic) == [b"%b %d" % (name, number) for number in range(10)]


async def test_a_wait_for_a_sync_may_be_cancelled(sandbox: Sandbox) -> None:
    """It cancels the wait alone."""
    topic = await sandbox.topic()
    sent = await sandbox.write(topic, b"a")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await sent.synced()
    await sent.synced()
    assert await sandbox.content(topic) == [b"a"]


async def test_a_send_that_is_cancelled_appends_all_or_nothing(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    sent: Sent | None = None
    messages = await sandbox.messages(topic, b"a", b"b")
    with anyio.CancelScope() as scope:
        scope.cancel()
        sent = await topic.send(messages)
    if sent is not None:
        await sent.synced()
    there = [b"a", b"b"] if sent is not None else []
    assert await sandbox.content(topic) == there
    await sandbox.send(topic, b"c")
    assert await sandbox.content(topic) == [*there, b"c"]


@needs(CAP_POSITIONS)
async def test_a_send_tells_where_its_messages_are(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    sent = [await sandbox.send(topic, *contents) for contents in ([b"a"], [b"b", b"c"], [b"d"])]
    there = await sandbox.positions(topic)
    first, last = [each[0] for each in there], [each[1] for each in there]
    assert [(each.first, each.last) for each in sent] == [(first[0], last[0]), (first[1], last[2]), (first[3], last[3])]


async def test_a_send_tells_no_position_unless_that_is_claimed(sandbox: Sandbox) -> None:
    topic = await sandbox.topic()
    sent = await sandbox.send(topic, b"a")
    assert ((sent.first, sent.last) == (-1, -1)) is not sandbox.claims(CAP_POSITIONS)
