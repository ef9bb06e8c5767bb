"""Domains, and the topics in them: made, listed, described, deleted; what the manager knows of them."""

from __future__ import annotations

import anyio
import pytest

from kclient.htp.contract.marks import subject
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.errors import (
    DomainExistsError,
    FencedError,
    TopicExistsError,
    UnknownDomainError,
    UnknownTopicError,
)
from kclient.htp.port import Topic

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("domains and topics")]

THOUSANDS = 2000


async def test_a_domain_is_made_once_and_deleted_once(sandbox: Sandbox) -> None:
    manager, name = sandbox.manager, f"{sandbox.domain}-more"
    with pytest.raises(UnknownDomainError):
        await manager.list_topics(name)
    await manager.create_domain(name)
    assert await manager.list_topics(name) == []
    with pytest.raises(DomainExistsError):
        await manager.create_domain(name)
    await manager.delete_domain(name)
    for refused in (manager.list_topics(name), manager.delete_domain(name)):
        with pytest.raises(UnknownDomainError):
            await refused


async def test_a_deleted_domain_takes_its_topics_with_it(sandbox: Sandbox) -> None:
    domain = await sandbox.new_domain()
    topic, neighbour = Topic(domain, "topic"), await sandbox.create("topic")
    await sandbox.create("topic", domain=domain)
    await sandbox.manager.delete_domain(domain)
    with pytest.raises(UnknownTopicError):
        await sandbox.manager.describe_topic(topic)
    with pytest.raises(UnknownDomainError):
        await sandbox.manager.create_topic(topic)
    await sandbox.manager.create_domain(domain)
    assert await sandbox.manager.list_topics(domain) == []
    assert (await sandbox.manager.describe_topic(neighbour.topic)).place == neighbour


async def test_a_topic_is_made_in_a_domain_that_is_there_once(sandbox: Sandbox) -> None:
    manager, topic = sandbox.manager, sandbox.name("a/b")
    with pytest.raises(UnknownDomainError):
        await manager.create_topic(Topic(f"{sandbox.domain}-missing", "a"))
    with pytest.raises(UnknownTopicError):
        await manager.describe_topic(topic)
    info = await manager.create_topic(topic)
    assert info.topic == topic
    assert info.place.topic == topic
    assert await manager.describe_topic(topic) == info
    with pytest.raises(TopicExistsError):
        await manager.create_topic(topic)
    assert await manager.describe_topic(topic) == info, "nothing has become of it"


async def test_topics_are_listed_by_name_and_by_prefix(sandbox: Sandbox) -> None:
    names = ["b", "a", "a/1", "a/10", "a/2", "a0", "é", "A", "x" * 200]
    infos = {name: await sandbox.manager.create_topic(sandbox.name(name)) for name in names}
    other = await sandbox.new_domain()
    await sandbox.manager.create_topic(Topic(other, "a/3"))
    for prefix in ("", "a", "a/", "a/1", "é", "x" * 199, "nothing"):
        expected = [infos[name] for name in sorted(names) if name.startswith(prefix)]
        assert await sandbox.manager.list_topics(sandbox.domain, prefix) == expected, prefix


async def test_deleting_topics_leaves_the_others(sandbox: Sandbox) -> None:
    names = [sandbox.name(each) for each in ("a", "a/b", "b", "c")]
    infos = [await sandbox.manager.create_topic(name) for name in names]
    missing = [sandbox.name("missing"), Topic(f"{sandbox.domain}-missing", "a")]
    await sandbox.manager.delete_topics([names[0], *missing, names[2], names[0]])
    assert await sandbox.manager.list_topics(sandbox.domain) == [infos[1], infos[3]]
    with pytest.raises(UnknownTopicError):
        await sandbox.manager.describe_topic(names[0])
    await sandbox.manager.delete_topics([])
    await sandbox.manager.delete_topics([names[0]])


async def test_a_topic_that_is_made_anew_is_another_one(sandbox: Sandbox) -> None:
    """Where the backend tells incarnations, each is greater than those of all that were made before."""
    seen = [await sandbox.create("one"), await sandbox.create("two")]
    for _ in range(3):
        seen.append(await sandbox.remake(seen[0]))
    incarnations = [place.incarnation for place in seen]
    assert incarnations == [0] * 5 or incarnations == sorted(set(incarnations))
    await sandbox.reopen()
    assert (await sandbox.manager.describe_topic(seen[-1].topic)).place == seen[-1]
    last = await sandbox.remake(seen[-1])
    assert last.incarnation > seen[-1].incarnation or last.incarnation == seen[-1].incarnation == 0


async def test_what_the_manager_knows_is_there_when_opened_again(sandbox: Sandbox) -> None:
    for name in ("a", "a/b", "gone"):
        await sandbox.manager.create_topic(sandbox.name(name))
    await sandbox.manager.delete_topics([sandbox.name("gone")])
    before = await sandbox.manager.list_topics(sandbox.domain)
    await sandbox.reopen()
    assert await sandbox.manager.list_topics(sandbox.domain) == before
    with pytest.raises(DomainExistsError):
        await sandbox.manager.create_domain(sandbox.domain)


async def test_a_deletion_under_an_older_epoch_of_a_lease_is_refused(sandbox: Sandbox) -> None:
    manager, name = sandbox.manager, sandbox.key("lease")
    place, domain = await sandbox.create(), await sandbox.new_domain()
    old = await manager.acquire(name, "one", 60)
    await manager.acquire(name, "one", 60)
    for refused in (manager.delete_topics([place.topic], lease=old), manager.delete_domain(domain, lease=old)):
        with pytest.raises(FencedError):
            await refused
    assert (await manager.describe_topic(place.topic)).place == place
    assert await manager.list_topics(domain) == []
    lease = await manager.acquire(name, "one", 0)  # it has run out, and is nobody else's
    await manager.delete_topics([place.topic], lease=lease)
    with pytest.raises(UnknownTopicError):
        await manager.describe_topic(place.topic)
    await manager.release(lease)


async def test_of_many_who_make_one_topic_one_does(sandbox: Sandbox) -> None:
    made: list[int] = []

    async def attempt(number: int) -> None:
        try:
            await sandbox.create("wanted")
        except TopicExistsError:
            return
        made.append(number)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(attempt, number)
    assert len(made) == 1
    assert len(await sandbox.manager.list_topics(sandbox.domain)) == 1


async def test_thousands_of_topics(sandbox: Sandbox) -> None:
    """Made side by side, listed whole and by prefix, and deleted in one call."""
    names = iter([f"{number % 10}/{number:05}" for number in range(THOUSANDS)])

    async def make() -> None:
        for name in names:
            await sandbox.manager.create_topic(sandbox.name(name))

    async with anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(make)
    expected = sorted(f"{number % 10}/{number:05}" for number in range(THOUSANDS))
    infos = await sandbox.manager.list_topics(sandbox.domain)
    assert [info.topic.name for info in infos] == expected
    assert len({info.incarnation for info in infos}) in (1, THOUSANDS)
    some = await sandbox.manager.list_topics(sandbox.domain, "7/")
    assert [info.topic.name for info in some] == [name for name in expected if name.startswith("7/")]
    await sandbox.manager.delete_topics([info.topic for info in infos if info not in some])
    assert await sandbox.manager.list_topics(sandbox.domain) == some
