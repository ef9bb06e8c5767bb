"""Who may touch a topic: incarnations and epochs, over every backend.

Whoever holds an incarnation that has gone, or an epoch that a newer one has followed, reaches nothing any more.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import pytest

from kclient.errors import KafkaError
from kclient.htp import (
    FencedError,
    OpenTopic,
    Place,
    Store,
    StoreClosedError,
    Topic,
    TopicSettings,
    UnknownTopicError,
    open_store,
)
from kclient.htp.embedded.broker import EmbeddedBroker
from kclient.htp.embedded.log import TopicLog
from kclient.htp.embedded.manager import SqliteManager
from kclient.htp.embedded.writer import Job
from kclient.testing.cancellation import Cancelled, Outcome, at_every_checkpoint
from tests.all_rows import scan_all
from tests.copied_stores import copy_as_killed
from tests.unit.htp.plain_messages import FRAMING, OVERHEAD, TOPIC, message, payloads

pytestmark = pytest.mark.anyio

SMALL = TopicSettings(segment_bytes=2 * (OVERHEAD + 1), index_interval_bytes=50)
OpenPlain = Callable[[], Store]


@pytest.fixture
def again(store_url: str) -> OpenPlain:
    """Open the same store, as often as one likes."""
    return lambda: open_store(store_url, settings=SMALL)


@pytest.fixture
async def store(again: OpenPlain) -> AsyncIterator[Store]:
    async with again() as store:
        await store.manager.create_domain(TOPIC.domain)
        yield store


async def created(store: Store, name: Topic = TOPIC) -> Place:
    return (await store.manager.create_topic(name)).place


async def send(topic: OpenTopic, *contents: bytes) -> None:
    first = (await topic.status()).next
    await (await topic.send([message(first + number, each) for number, each in enumerate(contents)])).synced()


async def content(topic: OpenTopic) -> list[bytes]:
    found, position = [], (await topic.status()).start
    while (pulled := await topic.pull(position)).data:
        found += payloads(pulled.data)
        position = pulled.last + 1
    return found


CALLS: dict[str, Callable[[OpenTopic], object]] = {
    "send": lambda topic: topic.send([message(100)]),
    "pull": lambda topic: topic.pull(0),
    "status": lambda topic: topic.status(),
    "trim": lambda topic: topic.trim(1),
    "find_by_timestamp": lambda topic: topic.find_by_timestamp(0),
    "segments": lambda topic: topic.segments(),
    "roll": lambda topic: topic.roll(),
    "configure": lambda topic: topic.configure(TopicSettings()),
    "send_nowait": lambda topic: topic.send_nowait([message(100)]),  # type: ignore[attr-defined]
    "pull_nowait": lambda topic: topic.pull_nowait(0),  # type: ignore[attr-defined]
    "status_nowait": lambda topic: topic.status_nowait(),  # type: ignore[attr-defined]
}


async def refuses(topic: OpenTopic, error: type[KafkaError]) -> None:
    """Every call of a topic that has ended is refused, except closing, which does nothing."""
    for name, call in CALLS.items():
        with pytest.raises(error):
            outcome = call(topic)
            assert not name.endswith("nowait")
            await outcome  # type: ignore[misc]
    await topic.close()


# --- incarnations ---


async def test_a_topic_is_opened_only_at_the_broker_that_keeps_it(store: Store) -> None:
    """Which is part of its place."""
    place = (await store.manager.create_topic(TOPIC, broker="brk-0")).place
    assert place.broker == "brk-0"
    topic = await store.broker.open(place, FRAMING, epoch=1)
    assert topic.place == place
    await send(topic, b"a")
    with pytest.raises(UnknownTopicError, match="brk-9"):
        await store.broker.open(place._replace(broker="brk-9"), FRAMING, epoch=2)
    assert await content(topic) == [b"a"], "nothing was sealed"
    await store.broker.delete([place._replace(broker="brk-9")], epoch=1)
    assert await content(topic) == [b"a"], "nor deleted"


async def test_deleting_ends_whoever_has_it_open(store: Store) -> None:
    place = await created(store)
    topic = await store.broker.open(place, FRAMING, epoch=1)
    await send(topic, b"a")
    unsynced = await topic.send([message(1, b"b")])
    await store.broker.delete([place], epoch=1)
    await refuses(topic, UnknownTopicError)
    await unsynced.synced()
    await store.manager.delete_topics([TOPIC])
    await store.broker.delete([place], epoch=1)
    assert not await scan_all(store.manager, "brk/")


@pytest.mark.slow
async def test_deleting_many(store: Store, again: OpenPlain) -> None:
    places = [await created(store, Topic(TOPIC.domain, str(number))) for number in range(70)]
    kept = places.pop()
    topics = [await store.broker.open(place, FRAMING, epoch=1) for place in [*places[::2], kept]]
    for topic in topics:
        await send(topic, b"a", b"b", b"c")
    await store.broker.delete([*places, *places], epoch=1)
    for topic in topics[:-1]:
        await refuses(topic, UnknownTopicError)
    assert await content(topics[-1]) == [b"a", b"b", b"c"]
    for place in places:
        await store.manager.delete_topics([place.topic])
    await store.aclose()
    async with again() as store:
        assert await content(await store.broker.open(kept, FRAMING, epoch=1)) == [b"a", b"b", b"c"]
        await store.broker.delete([kept], epoch=1)
        assert not await scan_all(store.manager, "brk/")


async def test_nothing_comes_back_when_a_trim_and_a_delete_meet(store: Store) -> None:
    for _ in range(5):
        place = await created(store)
        topic = await store.broker.open(place, FRAMING, epoch=1)
        await send(topic, b"a")
        await send(topic, b"b")
        await send(topic, b"c")

        async def trim(topic: OpenTopic = topic) -> None:
            with suppress(UnknownTopicError):
                await topic.trim(3)

        async with anyio.create_task_group() as group:
            group.start_soon(trim)
            await anyio.lowlevel.checkpoint()
            await store.broker.delete([place], epoch=1)
            await store.manager.delete_topics([TOPIC])
        assert not await scan_all(store.manager, "brk/")


async def test_a_trim_that_waits_for_a_sync_while_the_topic_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, go_on, deleted = anyio.Event(), anyio.Event(), anyio.Event()
    decided = EmbeddedBroker._decided

    async def slowly(broker: EmbeddedBroker, log: TopicLog) -> None:
        if not waits.is_set():
            waits.set()
            await go_on.wait()
        await decided(broker, log)

    async with open_store(f"embedded:{tmp_path / 'data'}") as store:
        await store.manager.create_domain(TOPIC.domain)
        place = await created(store)
        topic = await store.broker.open(place, FRAMING, epoch=1)
        await send(topic, b"a")

        async def trim() -> None:
            with suppress(UnknownTopicError):
                await topic.trim(1)

        async def delete() -> None:
            await store.broker.delete([place], epoch=1)
            deleted.set()

        monkeypatch.setattr(EmbeddedBroker, "_decided", slowly)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(trim)
                await waits.wait()
                group.start_soon(delete)
                with anyio.move_on_after(0.5):  # it has to wait for the trim; else it is done by then
                    await deleted.wait()
                go_on.set()
        assert not await scan_all(store.manager, "brk/")


# --- epochs ---


@pytest.mark.parametrize("backend", ["embedded"], indirect=True)
async def test_a_checkpoint_that_is_written_meanwhile_does_not_bring_back_the_older_epoch(
    store: Store, tmp_path: Path
) -> None:
    """The end of a sync has one written, while the newer epoch is being sealed."""
    assert isinstance(store.manager, SqliteManager)
    place = await created(store)
    old = await store.broker.open(place, FRAMING, epoch=1)
    free = threading.Event()
    store.manager._writer.submit(Job(lambda _: free.wait(30), lambda *_: lambda: None))
    async with anyio.create_task_group() as group:
        sent = await old.send([message(0, b"a")])
        group.start_soon(partial(store.broker.open, place, FRAMING, epoch=2))
        await sent.synced()
        free.set()
    await store.manager.get([])  # what was submitted is done
    with pytest.raises(FencedError):
        await store.broker.open(place, FRAMING, epoch=1)
    copy_as_killed(tmp_path / "data", tmp_path / "copy")  # as after a kill
    async with open_store(f"embedded:{tmp_path / 'copy'}") as copy:
        with pytest.raises(FencedError):
            await copy.broker.open(place, FRAMING, epoch=1)
        assert await content(await copy.broker.open(place, FRAMING, epoch=2)) == [b"a"]


@pytest.mark.parametrize("backend", ["embedded"], indirect=True)
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("closed", [False, True])
async def test_an_epoch_that_was_sealed_stays_so_whatever_becomes_of_its_opener(
    store: Store, again: OpenPlain, closed: bool, written: bool
) -> None:
    """It is cancelled, or the store closed: the checkpoint that the older one's log leaves does not take it back."""
    assert isinstance(store.manager, SqliteManager)
    assert isinstance(store.broker, EmbeddedBroker)
    place = await created(store)
    old = await store.broker.open(place, FRAMING, epoch=1)
    free, scope, broker = threading.Event(), anyio.CancelScope(), store.broker
    store.manager._writer.submit(Job(lambda _: free.wait(30), lambda *_: lambda: None))

    async def take_over() -> None:
        with scope, suppress(StoreClosedError):
            await broker.open(place, FRAMING, epoch=2)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(take_over)
            while not broker._checkpoints._sealing:
                await anyio.sleep(0.001)
            if written:
                await (await old.send([message(0, b"a")])).synced()
            if closed:
                group.start_soon(store.aclose)
                while broker._refusal is None:
                    await anyio.sleep(0.001)
            else:
                scope.cancel()
            free.set()
    await store.aclose()
    async with again() as store:
        with pytest.raises(FencedError):
            await store.broker.open(place, FRAMING, epoch=1)
        await store.broker.open(place, FRAMING, epoch=2)


async def test_an_older_epoch_is_refused_whatever_becomes_of_the_checkpoint(store: Store) -> None:
    place = await created(store)
    topic = await store.broker.open(place, FRAMING, epoch=2)
    for key in await scan_all(store.manager, "brk/"):
        await store.manager.commit({key: b"damaged"})
    with pytest.raises(FencedError):
        await store.broker.open(place, FRAMING, epoch=1)
    await send(topic, b"a")
    assert await content(topic) == [b"a"]


async def test_a_topic_that_goes_on_further_on_ends_where_its_messages_end(store: Store) -> None:
    place = await created(store)
    topic = await store.broker.open(place, FRAMING, epoch=1)
    await send(topic, b"a", b"b", b"c")
    topic = await store.broker.open(place, FRAMING, epoch=2, next_position=100)
    assert (await topic.status())[:3] == (0, 3, 100)
    assert not (await topic.pull(3)).data
    await send(topic, b"d")
    assert (await topic.status())[:3] == (0, 101, 101)
    assert await content(topic) == [b"a", b"b", b"c", b"d"]
    assert [each.first for each in await topic.segments()][-1] == 100
    assert await topic.trim(100) == 100
    assert await content(topic) == [b"d"]


async def test_an_empty_topic_that_goes_on_further_on(store: Store, again: OpenPlain) -> None:
    place = await created(store)
    await store.broker.open(place, FRAMING, epoch=1)
    topic = await store.broker.open(place, FRAMING, epoch=2, next_position=100)
    assert await topic.status() == (100, 100, 100, 0)
    await topic.close()
    topic = await store.broker.open(place, FRAMING, epoch=2)
    assert await topic.status() == (100, 100, 100, 0)
    await send(topic, b"a")
    assert await topic.trim(101) == 101
    start = (await (await store.broker.open(place, FRAMING, epoch=3, next_position=200)).status()).start
    await store.aclose()
    async with again() as store:
        topic = await store.broker.open(place, FRAMING, epoch=4)
        assert await topic.status() == (start, start, 200, 0)
        await send(topic, b"b")
        assert await content(topic) == [b"b"]


@pytest.mark.parametrize(("epoch", "position"), [(-1, 0), (1 << 31, 0), (1, -1), (1, 1 << 62)])
async def test_what_could_not_be_recorded_is_refused(store: Store, epoch: int, position: int) -> None:
    place = await created(store)
    with pytest.raises(ValueError, match="is not an integer from 0"):
        await store.broker.open(place, FRAMING, epoch=epoch, next_position=position)
    topic = await store.broker.open(place, FRAMING, epoch=1, next_position=(1 << 62) - 1)
    assert (await topic.status()).next == (1 << 62) - 1


@pytest.mark.parametrize("backend", ["memory"], indirect=True)
async def test_two_openings_of_one_store(store: Store, again: OpenPlain) -> None:
    place = await created(store)
    old = await store.broker.open(place, FRAMING, epoch=1)
    await send(old, b"a")
    async with again() as second:
        new = await second.broker.open(place, FRAMING, epoch=2)
        await refuses(old, FencedError)
        await send(new, b"b")
        with pytest.raises(FencedError):
            await store.broker.open(place, FRAMING, epoch=1)
        await store.broker.delete([place], epoch=2)
        await refuses(new, UnknownTopicError)


# --- closing ---


@pytest.mark.slow
async def test_a_take_over_cancelled_at_any_point(store_url: str, tmp_path: Path) -> None:
    """Afterwards either holds the topic whole, and nothing is lost."""
    lives = iter(range(1000))

    async def scenario(cancelled: Cancelled) -> None:
        url = f"{store_url}{next(lives)}"
        async with open_store(url, settings=SMALL) as store:
            await store.manager.create_domain(TOPIC.domain)
            place = await created(store)
            old = await store.broker.open(place, FRAMING, epoch=1)
            await send(old, b"a", b"b")
            await old.send([message(2, b"c")])
            outcome = await cancelled(store.broker.open(place, FRAMING, epoch=2, next_position=5))
            if outcome is Outcome.FINISHED:
                await refuses(old, FencedError)
            new = await store.broker.open(place, FRAMING, epoch=2, next_position=5)
            await refuses(old, FencedError)
            await send(new, b"d")
            assert await content(new) == [b"a", b"b", b"c", b"d"]
            outcome = await cancelled(new.trim(5))
            outcome = await cancelled(new.close())
            new = await store.broker.open(place, FRAMING, epoch=2)
            await send(new, b"e")
            assert (await content(new))[-2:] == [b"d", b"e"]
            await cancelled(store.broker.delete([place], epoch=2))
            await store.broker.delete([place], epoch=2)
            await refuses(new, UnknownTopicError)
            await store.manager.delete_topics([TOPIC])
            assert not await scan_all(store.manager, "brk/")

    assert await at_every_checkpoint(scenario) > 3


async def test_a_take_over_that_is_cancelled_waits_for_what_was_sent_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever opens it next under the same epoch has it while its end is not decided."""
    waits, go_on, ended = anyio.Event(), anyio.Event(), anyio.Event()

    async def slowly(_broker: EmbeddedBroker, _log: TopicLog) -> None:
        waits.set()
        await go_on.wait()

    async with open_store(f"embedded:{tmp_path / 'data'}") as store:
        await store.manager.create_domain(TOPIC.domain)
        place = await created(store)
        await store.broker.open(place, FRAMING, epoch=1)
        scope = anyio.CancelScope()

        async def take_over() -> None:
            with scope:
                await store.broker.open(place, FRAMING, epoch=2)
            ended.set()

        with monkeypatch.context() as patch, anyio.fail_after(20):
            patch.setattr(EmbeddedBroker, "_idle", slowly)
            async with anyio.create_task_group() as group:
                group.start_soon(take_over)
                await waits.wait()
                scope.cancel()
                await anyio.wait_all_tasks_blocked()
                assert not ended.is_set()
                go_on.set()
