"""A store that fails: what is told, what is left, and that it goes on afterwards (where it offers `faults`)."""

from __future__ import annotations

import pytest

from kclient.htp.contract.marks import needs, needs_fault, subject
from kclient.htp.contract.messages import OVERHEAD, payloads
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.errors import DamagedError, FencedError, OutcomeUnknownError, StorageError, StorageFullError
from kclient.htp.port import (
    CAP_FENCED_SENDS,
    FAULT_DAMAGE,
    FAULT_FULL,
    FAULT_SYNC,
    FAULT_UNKNOWN,
    FAULT_WRITE,
)

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("faults")]


@needs_fault(FAULT_WRITE)
async def test_a_write_that_fails_appends_nothing(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic, neighbour = await sandbox.open(place), await sandbox.topic("other")
    await sandbox.send(topic, b"a")
    await sandbox.send(neighbour, b"x")
    before = await topic.status()
    sandbox.faults.fail_write()
    with pytest.raises(StorageError) as info:
        await sandbox.write(topic, b"lost", b"lost too")
    assert info.value.retriable
    assert await topic.status() == before
    await sandbox.send(topic, b"b")
    await sandbox.send(neighbour, b"y")
    assert await sandbox.content(topic) == [b"a", b"b"]
    assert await sandbox.content(neighbour) == [b"x", b"y"]
    await sandbox.reopen()
    assert await sandbox.content(await sandbox.open(place)) == [b"a", b"b"]


@needs_fault(FAULT_FULL)
async def test_a_full_disk_refuses_whole_sends_until_there_is_space(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic = await sandbox.open(place)
    await sandbox.send(topic, b"a")
    sandbox.faults.fill(2 * OVERHEAD + 50)
    await sandbox.send(topic, b"b")
    before = await topic.status()
    for contents in ([b"x" * 1000], [b"x", b"x" * 1000]):
        with pytest.raises(StorageFullError):
            await sandbox.write(topic, *contents)
        assert await topic.status() == before, "nothing was appended"
    assert await sandbox.content(topic) == [b"a", b"b"], "what is there is read"
    sandbox.faults.clear()
    await sandbox.send(topic, b"c" * 1000)
    assert await sandbox.content(topic) == [b"a", b"b", b"c" * 1000]
    await sandbox.reopen()
    assert await sandbox.content(await sandbox.open(place)) == [b"a", b"b", b"c" * 1000]


@needs_fault(FAULT_SYNC)
async def test_a_sync_that_fails_loses_what_it_was_to_keep_and_what_came_after(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic, neighbour = await sandbox.open(place), await sandbox.topic("other")
    await sandbox.send(topic, b"a", b"b")
    before = await topic.status()
    sandbox.faults.fail_sync()
    sent = await sandbox.write(topic, b"lost")
    errors: list[BaseException | None] = []
    sent.on_synced(errors.append)
    with pytest.raises(StorageError):
        await sent.synced()
    assert sent.done
    assert [isinstance(error, StorageError) for error in errors] == [True]
    assert await topic.status() == before
    assert await sandbox.content(topic) == [b"a", b"b"]
    await sandbox.send(topic, b"c")
    await sandbox.send(neighbour, b"x")
    assert await sandbox.content(topic) == [b"a", b"b", b"c"]
    await sandbox.reopen()
    assert await sandbox.content(await sandbox.open(place)) == [b"a", b"b", b"c"]


@needs(CAP_FENCED_SENDS)
@needs_fault(FAULT_UNKNOWN)
async def test_what_became_of_a_send_is_known_to_whoever_opens_the_topic_next(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic = await sandbox.open(place, epoch=1)
    await sandbox.send(topic, b"a")
    sandbox.faults.lose_answer()
    with pytest.raises(OutcomeUnknownError) as info:
        await sandbox.write(topic, b"b")
    assert not isinstance(info.value, StorageError), "that would say that it is not stored"
    successor = await sandbox.open(place, epoch=2)
    found = await sandbox.content(successor)
    assert found in ([b"a"], [b"a", b"b"])
    with pytest.raises(FencedError):
        await topic.status()
    await sandbox.send(successor, b"c")
    assert await sandbox.content(successor) == [*found, b"c"]
    await sandbox.reopen()
    assert await sandbox.content(await sandbox.open(place, epoch=2)) == [*found, b"c"], "and it never comes later"


@needs_fault(FAULT_DAMAGE)
async def test_what_is_damaged_is_told_and_served_to_nobody(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic, neighbour = await sandbox.open(place), await sandbox.topic("other")
    contents = [b"%d" % number * 50 for number in range(10)]
    for each in contents:
        await sandbox.send(topic, each)
    await sandbox.send(neighbour, b"x", b"y")
    there = await sandbox.positions(topic)
    await sandbox.faults.damage(place, there[6][0])
    for _ in range(2):
        with pytest.raises(DamagedError) as info:
            await topic.pull(there[6][0])
        assert not info.value.retriable
        for first, last, payload in there[:6]:
            pulled = await topic.pull(first, max_messages=1)
            assert (pulled.first, pulled.last, payloads(pulled.data)) == (first, last, [payload])
        assert await sandbox.content(neighbour) == [b"x", b"y"]
        await sandbox.reopen()
        topic, neighbour = await sandbox.open(place), await sandbox.open(neighbour.place)
    end = (await topic.status()).end
    await sandbox.send(topic, b"more")
    assert (await topic.status()).end > end > there[-1][1], "no position is given twice"
    await sandbox.send(neighbour, b"z")
    assert await sandbox.content(neighbour) == [b"x", b"y", b"z"]
