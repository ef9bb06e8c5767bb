"""What is done to a topic leaves its neighbours alone."""

from __future__ import annotations

import anyio
import pytest

from kclient.htp.contract.marks import needs, subject
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.errors import FencedError, UnknownTopicError
from kclient.htp.port import CAP_FENCED_SENDS, OpenTopic

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("isolation")]

LIKE = ["a", "a/b", "a/b/c", "a.b", "A", "a b", "é", "%", "a" * 150]
"""Names that a careless backend takes for each other."""


async def filled(sandbox: Sandbox) -> dict[str, OpenTopic]:
    """A topic of each of these names, with its name in it."""
    topics = {name: await sandbox.topic(name) for name in LIKE}
    for name, topic in topics.items():
        await sandbox.send(topic, name.encode(), b"2", b"3")
    return topics


async def whole(sandbox: Sandbox, topics: dict[str, OpenTopic]) -> None:
    """Assert that each has what is its own."""
    for name, topic in topics.items():
        assert await sandbox.content(topic) == [name.encode(), b"2", b"3"], name


async def test_names_that_are_alike(sandbox: Sandbox) -> None:
    topics = await filled(sandbox)
    await whole(sandbox, topics)
    await sandbox.reopen()
    await whole(sandbox, {name: await sandbox.open(topic.place) for name, topic in topics.items()})


@pytest.mark.parametrize("name", ["a", "a/b", "A"])
async def test_a_deleted_topic_leaves_the_others(sandbox: Sandbox, name: str) -> None:
    topics = await filled(sandbox)
    gone = topics.pop(name)
    await sandbox.broker.delete([gone.place], epoch=1)
    await sandbox.manager.delete_topics([gone.place.topic])
    await whole(sandbox, topics)
    assert len(await sandbox.manager.list_topics(sandbox.domain)) == len(topics)
    await sandbox.reopen()
    await whole(sandbox, {each: await sandbox.open(topic.place) for each, topic in topics.items()})


async def test_a_trimmed_topic_leaves_the_others(sandbox: Sandbox) -> None:
    topics = await filled(sandbox)
    trimmed = topics.pop("a/b")
    await trimmed.trim((await trimmed.status()).end)
    await whole(sandbox, topics)


async def test_a_closed_topic_leaves_the_others(sandbox: Sandbox) -> None:
    topics = await filled(sandbox)
    await topics.pop("a/b").close()
    await whole(sandbox, topics)


async def test_topics_of_one_name_in_two_domains(sandbox: Sandbox) -> None:
    other = await sandbox.new_domain()
    one = await sandbox.topic("topic")
    two = await sandbox.open(await sandbox.create("topic", domain=other))
    await sandbox.send(one, b"one")
    await sandbox.send(two, b"two")
    await sandbox.broker.delete([one.place], epoch=1)
    await sandbox.manager.delete_topics([one.place.topic])
    assert await sandbox.content(two) == [b"two"]
    with pytest.raises(UnknownTopicError):
        await sandbox.open(one.place)


@needs(CAP_FENCED_SENDS)
async def test_a_taken_topic_leaves_the_others(sandbox: Sandbox) -> None:
    topics = await filled(sandbox)
    taken = topics.pop("a")
    await sandbox.open(taken.place, epoch=9)
    with pytest.raises(FencedError):
        await sandbox.write(taken, b"late")
    await whole(sandbox, topics)
    await sandbox.send(topics["a/b"], b"more")


async def test_deleting_many_of_them(sandbox: Sandbox) -> None:
    """Opened, never opened, and named twice."""
    places = [await sandbox.create(str(number)) for number in range(40)]
    kept = places.pop()
    topics = [await sandbox.open(place) for place in [*places[::2], kept]]
    for topic in topics:
        await sandbox.send(topic, b"a", b"b", b"c")
    await sandbox.broker.delete([*places, *places], epoch=1)
    for topic in topics[:-1]:
        with pytest.raises(UnknownTopicError):
            await topic.status()
    assert await sandbox.content(topics[-1]) == [b"a", b"b", b"c"]
    await sandbox.manager.delete_topics([place.topic for place in places])
    await sandbox.reopen()
    assert await sandbox.content(await sandbox.open(kept)) == [b"a", b"b", b"c"]


async def test_a_hundred_open_topics(sandbox: Sandbox) -> None:
    names = iter([f"{number:03}" for number in range(100)])
    topics: list[OpenTopic] = []

    async def work() -> None:
        for name in names:
            topic = await sandbox.topic(name)
            await sandbox.send(topic, name.encode())
            topics.append(topic)

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(work)
    assert len(topics) == 100
    for topic in topics:
        assert await sandbox.content(topic) == [topic.place.topic.name.encode()]
