"""The hot calls without a switch of tasks (capability `nowait`)."""

from __future__ import annotations

import anyio
import pytest

from kclient.htp.contract.marks import needs, subject
from kclient.htp.contract.messages import payloads
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.errors import PositionError
from kclient.htp.port import CAP_NOWAIT, DirectTopic

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("nowait"), needs(CAP_NOWAIT)]


async def direct(sandbox: Sandbox, name: str = "some/topic") -> DirectTopic:
    """A topic that has these calls."""
    topic = await sandbox.topic(name)
    assert isinstance(topic, DirectTopic)
    return topic


async def test_sending_and_reading_at_once(sandbox: Sandbox) -> None:
    topic = await direct(sandbox)
    first, second = await sandbox.messages(topic, b"a", b"b")
    sent = topic.send_nowait([first])
    assert sent is not None
    assert topic.status_nowait().next > topic.status_nowait().start
    await sent.synced()
    assert topic.status_nowait() == await topic.status()
    pulled = topic.pull_nowait(topic.status_nowait().start)
    if pulled is not None:  # else it comes from the disk
        assert payloads(pulled.data) == [b"a"]
    await (await topic.send([second])).synced()
    assert await sandbox.content(topic) == [b"a", b"b"]


async def test_both_ways_keep_one_order(sandbox: Sandbox) -> None:
    topic = await direct(sandbox)
    for number in range(30):
        [message] = await sandbox.messages(topic, b"%d" % number)
        if number % 3:
            await topic.send([message])
        else:
            while topic.send_nowait([message]) is None:
                await anyio.lowlevel.checkpoint()
    await sandbox.send(topic, b"30")
    assert await sandbox.content(topic) == [b"%d" % number for number in range(31)]


async def test_what_is_asked_for_at_once_is_checked_as_well(sandbox: Sandbox) -> None:
    topic = await direct(sandbox)
    await sandbox.send(topic, b"a")
    [message] = await sandbox.messages(topic, b"b")
    before = topic.status_nowait()
    with pytest.raises(ValueError):
        topic.send_nowait([message + b"more"])
    assert topic.status_nowait() == before
    for position in (-1, before.next + 1):
        with pytest.raises(PositionError):
            topic.pull_nowait(position)
