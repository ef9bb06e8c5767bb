"""Other messages in place of those of a closed segment, as compaction needs them."""

from __future__ import annotations

from itertools import pairwise

import anyio
import pytest

from kclient.errors import IllegalStateError
from kclient.htp.contract.marks import needs, subject
from kclient.htp.contract.messages import OVERHEAD, message, payloads
from kclient.htp.contract.sandbox import EPOCH, Sandbox
from kclient.htp.errors import FencedError, OrderError, PositionError, UnknownTopicError
from kclient.htp.port import CAP_REWRITE, OpenTopic, RewritableTopic, TopicSettings

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("rewriting"), needs(CAP_REWRITE)]

SMALL = TopicSettings(segment_bytes=4 * (OVERHEAD + 10), index_interval_bytes=100, dense=True)
"""Four messages of ten bytes."""
CONTENT = [b"number %03d" % number for number in range(10)]


def rewritable(topic: OpenTopic) -> RewritableTopic:
    """A topic that can be rewritten, as the capability promises."""
    assert isinstance(topic, RewritableTopic)
    return topic


async def filled(sandbox: Sandbox) -> RewritableTopic:
    """A topic of three segments: four messages, four, two."""
    topic = await sandbox.topic(settings=SMALL)
    for number, content in enumerate(CONTENT):
        await sandbox.send(topic, content, timestamp=number * 10)
    return rewritable(topic)


async def rewritten(topic: RewritableTopic, first: int, *messages: bytes) -> None:
    """Put messages in the place of those of a segment."""
    rewriting = await topic.rewrite(first)
    for each in messages:
        await rewriting.append([each])
    assert rewriting.size == sum(map(len, messages))
    await rewriting.commit()


async def test_a_segment_has_other_messages(sandbox: Sandbox) -> None:
    topic = await filled(sandbox)
    before = await topic.segments()
    whole = message(4, b"in place of four", count=4, timestamp=55)
    await rewritten(topic, 4, whole)
    expected = [*CONTENT[:4], b"in place of four", *CONTENT[8:]]
    assert await sandbox.content(topic) == expected
    assert [payloads((await topic.pull(at, max_messages=1)).data) for at in (4, 5, 7)] == [[b"in place of four"]] * 3
    after = await topic.segments()
    assert after[1] == before[1]._replace(size=len(whole), max_timestamp=55)
    assert (after[0], after[2]) == (before[0], before[2])
    found = await topic.find_by_timestamp(51)
    assert found is not None
    assert (found.first, found.last, found.max_timestamp) == (4, 7, 55)
    await sandbox.send(topic, b"what follows")
    assert await sandbox.content(topic) == [*expected, b"what follows"]


async def test_it_is_the_same_after_opening_again(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic = rewritable(await sandbox.open(place, settings=SMALL))
    for content in CONTENT:
        await sandbox.send(topic, content)
    await rewritten(topic, 0, message(0, b"all", count=4))
    await rewritten(topic, 4, message(4, b"first" * 20), message(5, b"others" * 20, count=3))
    after = await topic.segments()
    assert (await topic.status()).size == sum(each.size for each in after)
    await sandbox.reopen()
    topic = rewritable(await sandbox.open(place, settings=SMALL))
    assert await sandbox.content(topic) == [b"all", b"first" * 20, b"others" * 20, *CONTENT[8:]]
    assert [each[:4] for each in await topic.segments()] == [each[:4] for each in after]
    await rewritten(topic, 4, message(4, b"once more", count=4))
    assert await sandbox.content(topic) == [b"all", b"once more", *CONTENT[8:]]


async def test_nothing_is_seen_before_the_commit(sandbox: Sandbox) -> None:
    topic = await filled(sandbox)
    rewriting = await topic.rewrite(0)
    await rewriting.append([message(0, b"new", count=4)])
    assert await sandbox.content(topic) == CONTENT
    await rewriting.discard()
    await rewriting.discard()
    assert await sandbox.content(topic) == CONTENT
    for use in (rewriting.commit, lambda: rewriting.append([message(0)])):
        with pytest.raises(IllegalStateError):
            await use()


async def test_messages_that_do_not_fit_are_refused(sandbox: Sandbox) -> None:
    topic = await filled(sandbox)
    rewriting = await topic.rewrite(4)
    for wrong in (message(3, b"below"), message(5, b"a gap"), message(4, b"too many", count=5)):
        with pytest.raises(OrderError):
            await rewriting.append([wrong])
    with pytest.raises(ValueError, match="buffer of"):
        await rewriting.append([message(4) + b"more"])
    await rewriting.append([message(4), message(5)])
    with pytest.raises(OrderError):
        await rewriting.commit()
    await rewriting.discard()
    empty = await topic.rewrite(4)
    with pytest.raises(OrderError):
        await empty.commit()
    await empty.discard()
    assert await sandbox.content(topic) == CONTENT


@pytest.mark.parametrize("first", [8, 10, 1, 100])
async def test_only_closed_segments_are_rewritten(sandbox: Sandbox, first: int) -> None:
    topic = await filled(sandbox)
    with pytest.raises(PositionError):
        await topic.rewrite(first)


async def test_a_segment_that_was_trimmed_meanwhile(sandbox: Sandbox) -> None:
    topic = await filled(sandbox)
    rewriting = await topic.rewrite(0)
    await rewriting.append([message(0, b"new", count=4)])
    assert await topic.trim(4) == 4
    with pytest.raises(PositionError):
        await rewriting.commit()
    await rewriting.discard()
    assert await sandbox.content(topic) == CONTENT[4:]


async def test_a_segment_that_was_rewritten_meanwhile(sandbox: Sandbox) -> None:
    topic = await filled(sandbox)
    first, second = [await topic.rewrite(0) for _ in range(2)]
    for rewriting, content in ((first, b"first"), (second, b"second")):
        await rewriting.append([message(0, content, count=4)])
    await first.commit()
    with pytest.raises(PositionError):
        await second.commit()
    await second.discard()
    assert await sandbox.content(topic) == [b"first", *CONTENT[4:]]


async def test_who_was_fenced_rewrites_nothing(sandbox: Sandbox) -> None:
    topic = await filled(sandbox)
    rewriting = await topic.rewrite(0)
    await rewriting.append([message(0, b"new", count=4)])
    newer = await sandbox.open(topic.place, epoch=EPOCH + 1, settings=SMALL)
    with pytest.raises(FencedError):
        await rewriting.commit()
    with pytest.raises(FencedError):
        await topic.rewrite(0)
    await rewriting.discard()
    assert await sandbox.content(newer) == CONTENT


async def test_a_topic_that_was_deleted_is_not_rewritten(sandbox: Sandbox) -> None:
    topic = await filled(sandbox)
    rewriting = await topic.rewrite(0)
    await rewriting.append([message(0, b"new", count=4)])
    await sandbox.broker.delete([topic.place], epoch=EPOCH)
    with pytest.raises(UnknownTopicError):
        await rewriting.commit()
    await rewriting.discard()


async def test_readers_go_on(sandbox: Sandbox) -> None:
    """Whoever reads meanwhile sees each message once, in the old segment or in the new one."""
    topic = await filled(sandbox)
    done = anyio.Event()

    async def read() -> None:
        while not done.is_set():
            found = await sandbox.positions(topic)
            assert found[0][0] == 0
            assert found[-1][1] == 9
            for before, after in pairwise(found):
                assert after[0] == before[1] + 1 or after[0] <= before[1], "no hole"

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(read)
        for number in range(20):
            await rewritten(topic, 4, message(4, b"x" * number), message(5, b"%d" % number, count=3))
            await rewritten(topic, 0, message(0, b"y" * number, count=4))
        done.set()
