"""How many brokers a store has, over both backends; what they are for is in the contract (`test_bindings.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from kclient.errors import ConfigError
from kclient.htp import (
    BindingError,
    OpenTopic,
    Place,
    Store,
    StoreClosedError,
    TooFewBrokersError,
    Topic,
    open_store,
)
from tests.unit.htp.plain_messages import FRAMING, OTHER, TOPIC, message, payloads

pytestmark = pytest.mark.anyio

NAMES = ["brk-0", "brk-1", "brk-2"]
OpenPlain = Callable[..., Store]


@pytest.fixture
def again(store_url: str) -> OpenPlain:
    """Open the same store, as often as one likes; as it was, or with so many brokers."""
    return lambda brokers=None: open_store(store_url if brokers is None else f"{store_url}?brokers={brokers}")


@pytest.fixture
async def store(again: OpenPlain) -> AsyncIterator[Store]:
    async with again(3) as store:
        await store.manager.create_domain(TOPIC.domain)
        yield store


async def bound(store: Store, topic: Topic = TOPIC, *brokers: str) -> list[Place]:
    """A new topic that is bound to these brokers, or to all."""
    first, *further = brokers or NAMES
    place = (await store.manager.create_topic(topic, broker=first)).place
    return [place, *[await store.manager.bind(topic, broker) for broker in further]]


async def opened(store: Store, place: Place, epoch: int = 1) -> OpenTopic:
    return await store.broker.open(place, FRAMING, epoch=epoch)


async def send(topic: OpenTopic, *contents: bytes) -> None:
    first = (await topic.status()).next
    await (await topic.send([message(first + number, each) for number, each in enumerate(contents)])).synced()


async def content(topic: OpenTopic) -> list[bytes]:
    return payloads((await topic.pull((await topic.status()).start)).data)


@pytest.mark.slow
async def test_the_brokers_that_there_are(again: OpenPlain) -> None:
    for brokers, there in ((None, 1), (3, 3), (None, 3), (2, 2), (12, 12), (None, 12)):
        async with again(brokers) as store:
            assert await store.manager.brokers() == [f"brk-{number}" for number in range(there)]


async def test_an_error_names_the_brokers_that_there_are(store: Store) -> None:
    for name in ("brk-3", "", "brk"):
        with pytest.raises(BindingError, match="there is brk-0, brk-1, brk-2"):
            await store.manager.create_topic(TOPIC, broker=name)


async def test_not_fewer_than_hold_topics(store: Store, again: OpenPlain) -> None:
    await bound(store, TOPIC, "brk-0", "brk-1")
    await bound(store, OTHER, "brk-0")
    await store.aclose()
    for _ in range(2):
        with pytest.raises(TooFewBrokersError, match=r"brk-1.*brokers=2") as raised:
            await again(1).__aenter__()
        assert raised.value.needed == 2
    async with again(2) as store:
        assert await store.manager.brokers() == NAMES[:2]
        assert len((await store.manager.describe_topic(TOPIC)).places) == 2
        await store.manager.delete_topics([TOPIC])
    async with again(1) as store:
        assert await store.manager.brokers() == NAMES[:1]


async def test_more_than_there_were(again: OpenPlain) -> None:
    async with again() as store:
        await store.manager.create_domain(TOPIC.domain)
        (first,) = await bound(store, TOPIC, "brk-0")
        await send(await opened(store, first), b"a")
    async with again(3) as store:
        second = await store.manager.bind(TOPIC, "brk-2")
        await send(await opened(store, second), b"b")
    async with again() as store:
        assert await content(await opened(store, first)) == [b"a"]
        assert await content(await opened(store, second)) == [b"b"]


@pytest.mark.parametrize("brokers", ["0", "257", "-1", "x", "", "1.5", "99999999999", "٣"])
def test_what_is_no_number_of_brokers(store_url: str, brokers: str) -> None:
    with pytest.raises(ConfigError, match="1 to 256"):
        open_store(f"{store_url}?brokers={brokers}")


def test_options_of_an_address(store_url: str) -> None:
    for wrong in (0, True, 2.0, "3"):
        with pytest.raises(ConfigError, match="1 to 256"):
            open_store(store_url, brokers=wrong)
    with pytest.raises(ConfigError, match="is not an option"):
        open_store(f"{store_url}?shards=3")
    with pytest.raises(ConfigError, match="brokers=3"):
        open_store(f"{store_url}?brokers=3", brokers=4)
    open_store(f"{store_url}?brokers=3", brokers=3)


async def test_a_closed_store_tells_nothing(store: Store) -> None:
    manager = store.manager
    await bound(store, TOPIC, "brk-0")
    await store.aclose()
    with pytest.raises(StoreClosedError):
        await manager.brokers()
    with pytest.raises(StoreClosedError):
        await manager.bind(TOPIC, "brk-1")
