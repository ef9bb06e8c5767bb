"""Topics that are bound to brokers: one, or several, at each of which the messages are apart."""

from __future__ import annotations

import pytest

from kclient.htp.contract.marks import subject
from kclient.htp.contract.report import NOT_TESTABLE, VERDICT
from kclient.htp.contract.sandbox import Sandbox
from kclient.htp.errors import BindingError, FencedError, UnknownTopicError
from kclient.htp.port import CAP_FENCED_SENDS, OpenTopic, Place

pytestmark: list[pytest.MarkDecorator] = [pytest.mark.anyio, subject("bindings")]


@pytest.fixture
async def several(sandbox: Sandbox, request: pytest.FixtureRequest) -> list[str]:
    """Two brokers, or three; what only a store with several can do."""
    brokers = await sandbox.manager.brokers()
    if len(brokers) < 2:
        request.node.user_properties.append((VERDICT, NOT_TESTABLE))
        pytest.skip(f"{NOT_TESTABLE}: the store has one broker")
    return brokers[:3]


async def bound(sandbox: Sandbox, brokers: list[str], name: str = "some/topic") -> list[Place]:
    """A new topic that is bound to these brokers."""
    first = await sandbox.create(name, broker=brokers[0])
    return [first, *[await sandbox.bind(first.topic, broker) for broker in brokers[1:]]]


async def filled(sandbox: Sandbox, places: list[Place]) -> list[OpenTopic]:
    """Topics that hold a message which names their broker."""
    topics = [await sandbox.open(place) for place in places]
    for topic in topics:
        await sandbox.send(topic, topic.place.broker.encode())
    return topics


async def check(sandbox: Sandbox, places: list[Place]) -> None:
    """Assert that each place holds that message and no other."""
    for place in places:
        assert await sandbox.content(await sandbox.open(place)) == [place.broker.encode()]


# --- one broker ---


async def test_the_brokers_are_told_in_an_order_that_stays(sandbox: Sandbox) -> None:
    brokers = await sandbox.manager.brokers()
    assert brokers
    assert all(brokers), "a name is not empty"
    assert len(set(brokers)) == len(brokers)
    await sandbox.reopen()
    assert await sandbox.manager.brokers() == brokers


async def test_a_topic_is_at_the_broker_that_it_was_made_with(sandbox: Sandbox) -> None:
    for broker in await sandbox.manager.brokers():
        place = await sandbox.create(broker, broker=broker)
        info = await sandbox.manager.describe_topic(place.topic)
        assert (info.broker, place.broker, info.places) == (broker, broker, (place,))
        await filled(sandbox, [place])
        await check(sandbox, [place])


async def test_a_topic_is_opened_only_at_the_broker_that_keeps_it(sandbox: Sandbox) -> None:
    place = await sandbox.create(broker=(await sandbox.manager.brokers())[0])
    elsewhere = place._replace(broker="there is no such broker")
    topic, *_ = await filled(sandbox, [place])
    with pytest.raises(UnknownTopicError):
        await sandbox.open(elsewhere, epoch=9)
    await sandbox.send(topic, b"nothing was sealed")
    await sandbox.broker.delete([elsewhere], epoch=9)
    assert len(await sandbox.content(topic)) == 2, "nor deleted"


async def test_binding_a_topic_where_it_is_changes_nothing(sandbox: Sandbox) -> None:
    first, *_ = await sandbox.manager.brokers()
    place = await sandbox.create(broker=first)
    assert await sandbox.manager.bind(place.topic, first) == place
    assert (await sandbox.manager.describe_topic(place.topic)).places == (place,)


async def test_a_topic_is_bound_only_to_brokers_that_there_are(sandbox: Sandbox) -> None:
    first, *_ = await sandbox.manager.brokers()
    for broker in ("there is no such broker", ""):
        with pytest.raises(BindingError):
            await sandbox.manager.create_topic(sandbox.name(), broker=broker)
    place = await sandbox.create(broker=first)
    with pytest.raises(BindingError):
        await sandbox.manager.bind(place.topic, "there is no such broker")
    assert (await sandbox.manager.describe_topic(place.topic)).places == (place,)


async def test_what_is_bound_is_a_topic_that_was_made_with_a_broker(sandbox: Sandbox) -> None:
    first, *_ = await sandbox.manager.brokers()
    with pytest.raises(UnknownTopicError):
        await sandbox.manager.bind(sandbox.name("missing"), first)
    info = await sandbox.manager.create_topic(sandbox.name())
    if info.broker is None:  # a backend may bind every topic to one
        with pytest.raises(BindingError):
            await sandbox.manager.bind(info.topic, first)
        assert await sandbox.manager.describe_topic(info.topic) == info


async def test_binding_under_an_older_epoch_of_a_lease_is_refused(sandbox: Sandbox) -> None:
    *_, broker = await sandbox.manager.brokers()
    first, *_ = await sandbox.manager.brokers()
    place = await sandbox.create(broker=first)
    old = await sandbox.manager.acquire(sandbox.key("lease"), "one", 60)
    lease = await sandbox.manager.acquire(sandbox.key("lease"), "one", 60)
    with pytest.raises(FencedError):
        await sandbox.manager.bind(place.topic, broker, lease=old)
    assert (await sandbox.manager.describe_topic(place.topic)).places == (place,)
    await sandbox.bind(place.topic, broker, lease=lease)


# --- several ---


async def test_a_topic_has_a_place_at_each_of_its_brokers(sandbox: Sandbox, several: list[str]) -> None:
    places = await bound(sandbox, several[::-1])
    alone = await sandbox.create("alone", broker=several[1])
    assert [place.broker for place in places] == several[::-1]
    assert {place.topic for place in places} == {sandbox.name()}
    incarnations = [place.incarnation for place in places]
    assert incarnations == sorted(set(incarnations)) or set(incarnations) == {0}
    for _ in range(2):
        info = await sandbox.manager.describe_topic(sandbox.name())
        assert (info.place, info.broker, list(info.places)) == (places[0], several[-1], places)
        listed = await sandbox.manager.list_topics(sandbox.domain)
        assert [list(each.places) for each in listed] == [[alone], places]
        assert await sandbox.manager.list_topics(sandbox.domain, "some/") == [info]
        await sandbox.reopen()


async def test_binding_twice_changes_nothing(sandbox: Sandbox, several: list[str]) -> None:
    places = await bound(sandbox, several)
    assert [await sandbox.manager.bind(sandbox.name(), broker) for broker in several] == places
    assert list((await sandbox.manager.describe_topic(sandbox.name())).places) == places


async def test_messages_at_each_broker_are_apart(sandbox: Sandbox, several: list[str]) -> None:
    places = await bound(sandbox, several)
    await filled(sandbox, places)
    await check(sandbox, places)
    await sandbox.reopen()
    await check(sandbox, places)
    await sandbox.broker.delete(places[:1], epoch=1)
    await check(sandbox, places[1:])


async def test_a_place_is_one_broker_in_one_incarnation(sandbox: Sandbox, several: list[str]) -> None:
    first, second, *_ = places = await bound(sandbox, several)
    if first.incarnation == 0:
        return
    for wrong in (
        first._replace(broker=second.broker),
        second._replace(broker=first.broker),
        second._replace(broker=""),
        first._replace(incarnation=second.incarnation),
    ):
        with pytest.raises(UnknownTopicError):
            await sandbox.open(wrong)
    await filled(sandbox, places)
    await sandbox.broker.delete([second._replace(broker=first.broker)], epoch=1)
    await check(sandbox, places)


async def test_epochs_at_each_broker_are_apart(sandbox: Sandbox, several: list[str]) -> None:
    if not sandbox.claims(CAP_FENCED_SENDS):
        return
    first, second, *_ = places = await bound(sandbox, several)
    older = await sandbox.open(first, epoch=3)
    await sandbox.open(second, epoch=9)
    await sandbox.send(older, b"a")
    with pytest.raises(FencedError):
        await sandbox.broker.delete(places, epoch=8)
    assert await sandbox.content(older) == [b"a"], "then none was deleted"
    await sandbox.broker.delete(places, epoch=9)
    with pytest.raises(UnknownTopicError):
        await older.status()


async def test_a_topic_goes_with_its_bindings(sandbox: Sandbox, several: list[str]) -> None:
    places, others = await bound(sandbox, several), await bound(sandbox, several, "other")
    old = await filled(sandbox, places)
    await filled(sandbox, others)
    await sandbox.manager.delete_topics([sandbox.name()])
    with pytest.raises(UnknownTopicError):
        await sandbox.manager.describe_topic(sandbox.name())
    await check(sandbox, others)
    again = await bound(sandbox, several[:2])
    assert list((await sandbox.manager.describe_topic(sandbox.name())).places) == again
    for place in again:
        topic = await sandbox.open(place)
        assert await sandbox.content(topic) == []
        await sandbox.send(topic, b"new")
    if places[0].incarnation:
        for topic in old[:2]:  # a later incarnation was opened there
            with pytest.raises(UnknownTopicError):
                await sandbox.send(topic, b"late")
    domain = await sandbox.new_domain()
    await sandbox.create("topic", domain=domain, broker=several[0])
    await sandbox.manager.delete_domain(domain)
    await sandbox.manager.create_domain(domain)
    place = await sandbox.create("topic", domain=domain, broker=several[1])
    assert (await sandbox.manager.describe_topic(place.topic)).places == (place,)
