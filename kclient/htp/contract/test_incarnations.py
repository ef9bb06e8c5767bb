"""A topic that is made anew shares nothing with its namesake, and a deletion reaches what it names alone."""

from __future__ import annotations

from contextlib import suppress

import anyio
import pytest

from kclient.htp.contract.marks import subject
from kclient.htp.contract.messages import FRAMING, OTHER_FRAMING
from kclient.htp.contract.refusals import all_refused
from kclient.htp.contract.report import NOT_TESTABLE, VERDICT
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.errors import FramingMismatchError, UnknownTopicError
from kclient.htp.port import OpenTopic, Place, Topic

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("incarnations")]


@pytest.fixture
async def told(sandbox: Sandbox, request: pytest.FixtureRequest) -> None:
    """What only a backend that tells incarnations can do."""
    if (await sandbox.create("probe")).incarnation == 0:
        request.node.user_properties.append((VERDICT, NOT_TESTABLE))
        pytest.skip(f"{NOT_TESTABLE}: the backend tells no incarnations")


async def empty_as_new(sandbox: Sandbox, topic: OpenTopic) -> None:
    """Assert that nothing was ever sent to a topic."""
    start, end, following, size = await topic.status()
    assert start == end == following
    assert size == 0
    if sandbox.ordinal:
        assert start == 0
    assert await sandbox.content(topic) == []


async def test_a_topic_that_is_made_anew_is_empty_though_nobody_deleted_the_messages(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    old = await sandbox.open(place, epoch=3)
    await sandbox.send(old, b"a", b"b", b"c")
    again = await sandbox.remake(place)
    new = await sandbox.open(again, epoch=1)
    await empty_as_new(sandbox, new)
    assert new.place == again
    await sandbox.send(new, b"x")
    assert await sandbox.content(new) == [b"x"]


async def test_nor_does_anything_of_it_come_back_when_the_store_is_opened_again(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    await sandbox.send(await sandbox.open(place, epoch=3), b"a", b"b", b"c")
    again = await sandbox.remake(place)
    await sandbox.reopen()
    new = await sandbox.open(again, epoch=1)
    await empty_as_new(sandbox, new)
    await sandbox.send(new, b"x")
    await sandbox.reopen()
    assert await sandbox.content(await sandbox.open(again, epoch=1)) == [b"x"]


async def test_a_topic_of_a_domain_that_is_made_anew_is_empty(sandbox: Sandbox) -> None:
    domain = await sandbox.new_domain()
    place = await sandbox.create("topic", domain=domain)
    await sandbox.send(await sandbox.open(place), b"a")
    await sandbox.manager.delete_domain(domain)
    await sandbox.manager.create_domain(domain)
    await empty_as_new(sandbox, await sandbox.open(await sandbox.create("topic", domain=domain)))


async def test_a_topic_whose_messages_were_deleted_too_is_empty(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    await sandbox.send(await sandbox.open(place, epoch=3), b"a", b"b")
    await sandbox.broker.delete([place], epoch=3)
    again = await sandbox.remake(place)
    await sandbox.broker.delete([place], epoch=3)
    topic = await sandbox.open(again, epoch=1)
    await empty_as_new(sandbox, topic)
    await sandbox.send(topic, b"x")
    assert await sandbox.content(topic) == [b"x"]


async def test_who_holds_the_old_one_reaches_nothing_of_the_new_one(sandbox: Sandbox, told: None) -> None:
    place = await sandbox.create()
    old = await sandbox.open(place, epoch=3)
    await sandbox.send(old, b"a")
    again = await sandbox.remake(place)
    new = await sandbox.open(again, epoch=1)
    await all_refused(sandbox, old, UnknownTopicError)
    await sandbox.send(new, b"x", b"y", b"z")
    await all_refused(sandbox, old, UnknownTopicError)
    assert await sandbox.content(new) == [b"x", b"y", b"z"]


async def test_only_the_present_incarnation_can_be_opened(sandbox: Sandbox, told: None) -> None:
    place = await sandbox.create()
    for wrong in (place.incarnation + 1, 0):
        with pytest.raises(UnknownTopicError):
            await sandbox.open(place._replace(incarnation=wrong))
    await sandbox.open(place)
    await sandbox.manager.delete_topics([place.topic])
    with pytest.raises(UnknownTopicError):
        await sandbox.open(place, epoch=2)
    again = await sandbox.create()
    for epoch in (1, 2):
        with pytest.raises(UnknownTopicError):
            await sandbox.open(place, epoch=epoch)
    await sandbox.reopen()
    with pytest.raises(UnknownTopicError):
        await sandbox.open(place, epoch=3)
    await sandbox.open(again)


async def test_deleting_the_messages_of_the_old_one_leaves_the_new_one_alone(sandbox: Sandbox, told: None) -> None:
    place = await sandbox.create()
    old = await sandbox.open(place)
    await sandbox.send(old, b"old")
    again = await sandbox.remake(place)
    new = await sandbox.open(again)
    await sandbox.send(new, b"new")
    for _ in range(2):
        await sandbox.broker.delete([place], epoch=1)
    assert await sandbox.content(new) == [b"new"]
    await old.close()
    await sandbox.send(new, b"more")
    await sandbox.reopen()
    assert await sandbox.content(await sandbox.open(again)) == [b"new", b"more"]


async def test_epochs_begin_anew_with_an_incarnation(sandbox: Sandbox, told: None) -> None:
    place = await sandbox.create()
    await sandbox.open(place, epoch=50)
    await sandbox.send(await sandbox.open(await sandbox.remake(place), epoch=2), b"a")


async def test_a_topic_has_to_be_there(sandbox: Sandbox) -> None:
    for topic in (sandbox.name("missing"), Topic(f"{sandbox.domain}-missing", "a")):
        with pytest.raises(UnknownTopicError):
            await sandbox.open(Place(topic, "", 1))
    await sandbox.broker.delete([Place(sandbox.name("missing"), "", 1)], epoch=1)


async def test_deleting_ends_whoever_has_it_open(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic = await sandbox.open(place)
    await sandbox.send(topic, b"a")
    await sandbox.broker.delete([place], epoch=1)
    await all_refused(sandbox, topic, UnknownTopicError)
    await sandbox.broker.delete([place], epoch=1)
    await sandbox.manager.delete_topics([place.topic])
    await sandbox.broker.delete([place], epoch=1)


async def test_a_sync_that_is_under_way_is_decided_all_the_same(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    topic = await sandbox.open(place)
    sent = await sandbox.write(topic, b"a")
    await sandbox.broker.delete([place], epoch=1)
    with anyio.fail_after(60):
        with suppress(Exception):  # synced or gone: that it is decided is what counts
            await sent.synced()
    assert sent.done


async def test_nothing_comes_back_when_a_trim_and_a_deletion_meet(sandbox: Sandbox) -> None:
    place = await sandbox.create()
    for _ in range(5):
        topic = await sandbox.open(place)
        await sandbox.send(topic, b"a", b"b", b"c")
        end = (await topic.status()).end

        async def trim(topic: OpenTopic = topic, end: int = end) -> None:
            with suppress(UnknownTopicError):
                await topic.trim(end)

        async with anyio.create_task_group() as group:
            group.start_soon(trim)
            await anyio.lowlevel.checkpoint()
            await sandbox.broker.delete([place], epoch=1)
        place = await sandbox.remake(place)
        await empty_as_new(sandbox, await sandbox.open(place))


async def test_a_topic_is_read_by_the_framing_that_it_was_written_with(sandbox: Sandbox) -> None:
    """A backend that knows the names refuses another one; none may lose anything by it."""
    place = await sandbox.create()
    topic = await sandbox.open(place)
    await sandbox.send(topic, b"a")
    try:
        await sandbox.broker.open(place, OTHER_FRAMING, epoch=1)
    except FramingMismatchError as error:
        assert (error.written, error.given) == (FRAMING.name, OTHER_FRAMING.name)
    assert await sandbox.content(await sandbox.open(place)) == [b"a"]
