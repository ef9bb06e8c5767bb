"""A partition over extents: the same as a list of batches, whatever is trimmed, lost, opened again or replaced."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import anyio
import pytest

from kclient.errors import IllegalStateError
from kclient.gateway.extents import BARE, Chunks, Encoding, Enveloped, Extent, ExtentStore, ExtentTopic
from kclient.gateway.ownership import HeldLease
from kclient.gateway.rows.keys import chunks_key, extents_key
from kclient.htp import (
    ConflictError,
    DamagedError,
    FencedError,
    OrderError,
    OutcomeUnknownError,
    Place,
    PositionError,
    StorageError,
    Topic,
    TopicSettings,
)
from kclient.records import iter_headers
from kclient.records.restamping import place_batch
from tests.gateway_wire import batch_of
from tests.plain_store import HEAD, PlainStore
from tests.sweeps import slow
from tests.uncertain_store import UNKNOWN, Fate, UncertainBroker, UncertainStore

names = (f"extents-{number}" for number in count())
pytestmark = pytest.mark.anyio

ID = b"\x01" * 16


@dataclass
class Bed:
    """A partition on a plain store, and what has to be in it."""

    store: PlainStore
    place: Place
    lease: HeldLease
    encoding: Encoding
    topic: Any = None
    epoch: int = 0
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    """First and last offset of each, and its bytes."""
    next: int = 0
    start: int = 0

    async def open(self) -> ExtentTopic:
        self.epoch += 1
        partitions = ExtentStore(
            self.store.manager, self.store.broker, self.lease, lambda: 1_000, lambda *_: self.encoding
        )
        opened = await partitions.open(
            self.place, ID, 0, epoch=self.epoch, settings=TopicSettings(segment_bytes=3_000), next_offset=self.next
        )
        self.topic = opened
        return opened

    async def append(self, *values: bytes, timestamp: int = 5, wait: bool = True) -> Any:
        batch = batch_of(*values, timestamp=timestamp)
        place_batch(batch, self.next, 1)
        sent = await self.topic.send((batch,))
        if wait:
            await sent.synced()
        self.batches.append((self.next, self.next + len(values) - 1, bytes(batch)))
        self.next += len(values)
        return sent

    def trimmed(self, before: int) -> None:
        self.start = max(self.start, before)
        self.batches = [each for each in self.batches if each[1] >= before]

    async def read(self, offset: int, **options: Any) -> list[tuple[int, int, bytes]]:
        pulled = await self.topic.pull(offset, **options)
        found, data = [], bytes(pulled.data)
        for position, header in iter_headers(data):
            found.append((header.base_offset, header.last_offset, data[position : position + header.length]))
        if found:
            assert (pulled.first, pulled.last) == (found[0][0], found[-1][1])
        else:
            assert (pulled.first, pulled.last) == (offset, offset - 1)
        return found

    async def holds_from(self, offset: int) -> None:
        """What can be read from here is all that has to be there, in order."""
        expected = [each for each in self.batches if each[1] >= offset]
        found: list[tuple[int, int, bytes]] = []
        at = offset
        while some := await self.read(at, max_bytes=2_000):
            found += some
            at = some[-1][1] + 1
        assert found == expected


@asynccontextmanager
async def bed(encoding: Encoding = BARE) -> AsyncIterator[Bed]:
    async with PlainStore(next(names)) as store:
        await store.manager.create_domain("t")
        place = (await store.manager.create_topic(Topic("t", "0"), broker="brk-0")).place
        made = Bed(store, place, HeldLease(await store.manager.acquire("lease", "me", 100)), encoding)
        await made.open()
        yield made


def like_bytes(made: Bed) -> None:
    """A message takes as many positions as it has bytes."""
    inner = made.store.broker.opened[made.place]
    inner.width, inner.gap = (lambda length: length), 1


@pytest.mark.parametrize("seed", [*range(4), *slow(*range(4, 12))])
async def test_it_is_a_list_of_batches(seed: int) -> None:
    random = Random(seed)
    async with bed(Enveloped(bytes(16), 3, 1) if seed % 3 == 0 else BARE) as made:
        for extent in made.topic.extents:
            extent.chunks.unit = 1_500
        for step in range(250):
            if seed % 2 and not step % 10:
                like_bytes(made)
            match random.randrange(12):
                case 0:
                    before = random.randint(made.start, made.next)
                    start = await made.topic.trim(before)
                    assert start <= before or not made.batches
                    made.trimmed(before)
                case 1:
                    rows = made.topic.rows() if random.random() < 0.5 else {}
                    await made.store.manager.commit(rows)
                    await made.open()
                    status = await made.topic.status()
                    assert status.next == made.next
                    assert status.end == made.next or not made.batches
                    assert status.start <= made.start
                case 2:
                    await made.topic.roll()
                case 3:
                    await made.holds_from(random.randint(made.start, made.next))
                case 4:
                    await a_sync_fails(made, random)
                case _:
                    await made.append(*(random.randbytes(random.randrange(400)) for _ in range(random.randint(1, 5))))
        for offset in range(made.start, made.next + 1):
            expected = [each for each in made.batches if each[1] >= offset][:1]
            assert await made.read(offset, max_bytes=1) == expected
        segments = await made.topic.segments()
        assert [segment.active for segment in segments] == [False] * (len(segments) - 1) + [True]
        assert [segment.next for segment in segments] == [*(segment.first for segment in segments[1:]), made.next]


async def a_sync_fails(made: Bed, random: Random) -> None:
    """What was not synced is gone, and what comes next has its offsets, and perhaps its positions."""
    inner = made.store.broker.opened[made.place]
    before, kept = made.next, list(made.batches)
    inner.failing = lambda: True
    sent = []
    with suppress(StorageError):  # one that begins a chunk waits for the one before
        for _ in range(3):
            sent.append(await made.append(random.randbytes(300), wait=False))
    for each in sent:
        with pytest.raises(StorageError, match="has failed"):
            await each.synced()
    inner.failing = lambda: False
    made.next, made.batches = before, kept
    assert (await made.topic.status()).next == before


@pytest.mark.slow
async def test_random_access_needs_few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two offsets whose positions are known, and when the next read goes on where this one ended."""
    async with bed() as made:
        for _ in range(3_000):
            await made.append(b"x")
        inner, pulls = made.store.broker.opened[made.place], 0
        pull = inner.pull

        async def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal pulls
            pulls += 1
            return await pull(*arguments, **options)

        monkeypatch.setattr(inner, "pull", counted)
        assert len(made.topic.extents[0].chunks.all) == 1
        for offset in (2_500, 0, 1_000):
            pulls = 0
            assert (await made.read(offset, max_bytes=1))[0][0] == offset
            assert pulls <= 25
            for following in range(offset + 1, offset + 10):
                pulls = 0
                assert (await made.read(following, max_bytes=1))[0][0] == following
                assert pulls == 1


async def test_what_is_found_by_time() -> None:
    async with bed() as made:
        made.topic.extents[0].chunks.unit = 500
        for number in range(100):
            await made.append(bytes(100), timestamp=number * 10)
        for timestamp, start in [(0, 0), (355, 0), (990, 0), (10, 70), (500, 49), (500, 51)]:
            found = await made.topic.find_by_timestamp(timestamp, start=start)
            first = next(number for number in range(start, 100) if number * 10 >= timestamp)
            assert found == (first, first, first * 10)
        assert await made.topic.find_by_timestamp(991) is None
        assert await made.topic.find_by_timestamp(5, start=100) is None
        segments = await made.topic.segments()
        assert len(segments) > 10
        assert sum(segment.size for segment in segments) == sum(len(batch) for _, _, batch in made.batches)
        assert max(segment.max_timestamp for segment in segments) == 990


async def test_offsets_that_were_given_are_not_given_again() -> None:
    async with bed() as made:
        await made.append(b"a", b"b")
        made.next = 1
        with pytest.raises(OrderError, match="2 is the next"):
            await made.append(b"c")
        made.next = 50
        await made.open()
        assert (await made.topic.status())[1:3] == (2, 50)
        made.next = 49
        with pytest.raises(OrderError, match="50 is the next"):
            await made.append(b"c")


async def test_positions_outside() -> None:
    async with bed() as made:
        await made.append(b"a", b"b")
        assert await made.read(2) == []
        for outside in (-1, 3):
            with pytest.raises(PositionError) as told:
                await made.read(outside)
            assert (told.value.start, told.value.end) == (0, 2)


async def test_a_newer_leader_seals_an_older_one() -> None:
    async with bed() as made:
        await made.append(b"a")
        old = made.topic
        await made.open()
        batch = batch_of(b"b")
        place_batch(batch, 1, 1)
        with pytest.raises(FencedError):
            await old.send((batch,))
        with pytest.raises(FencedError):
            await old.trim(1)
        await made.holds_from(0)


@asynccontextmanager
async def uncertain(encoding: Encoding) -> AsyncIterator[tuple[Bed, UncertainBroker]]:
    store: Any = UncertainStore(PlainStore(next(names)))
    async with store:
        await store.manager.create_domain("t")
        place = (await store.manager.create_topic(Topic("t", "0"), broker="brk-0")).place
        made = Bed(store, place, HeldLease(await store.manager.acquire("lease", "me", 100)), encoding)
        await made.open()
        yield made, store.broker


@pytest.mark.parametrize("encoding", [BARE, Enveloped(bytes(16), 3, 1)], ids=["bare", "enveloped"])
@pytest.mark.parametrize("fate", UNKNOWN, ids=lambda fate: fate.name)
async def test_an_outcome_that_is_not_known_is_passed_on_and_nothing_is_sent_after_it(
    fate: Fate, encoding: Encoding
) -> None:
    async with uncertain(encoding) as (made, broker):
        made.topic.extents[0].chunks.unit = 500
        for number in range(20):
            await made.append(b"%d" % number, bytes(50))
        kept, offset = list(made.batches), made.next
        broker.fates.append(fate)
        told: list[BaseException | None] = []
        with pytest.raises(OutcomeUnknownError):
            sent = await made.append(b"unknown", wait=False)
            sent.on_synced(told.append)
            await sent.synced()
        if fate in (Fate.SYNCED, Fate.VANISHED):
            assert [type(error) for error in told] == [OutcomeUnknownError]
        met = len(broker.met)
        for _ in range(3):
            made.next = offset + 1
            with pytest.raises(StorageError, match="is not known, so nothing was sent"):
                await made.append(b"not sent", wait=False)
        assert len(broker.met) == met
        made.next = offset
        await made.open()
        assert [type(error) for error in await broker.arrive()] == ([FencedError] if fate is Fate.LATE else [])
        stored = fate in (Fate.STORED, Fate.SYNCED)
        assert (await made.topic.status())[1:3] == (offset + stored, offset + stored)
        made.batches = [*kept, *(await made.read(offset))]
        assert len(made.batches) == len(kept) + stored
        made.next = offset + stored
        await made.append(b"more")
        await made.holds_from(0)


async def test_what_waits_behind_an_outcome_that_is_not_known_was_not_sent() -> None:
    """A chunk begins with it: it waits until the one before is synced, of which nobody will know."""
    async with uncertain(BARE) as (made, broker):
        made.topic.extents[0].chunks.unit = 10
        broker.holding = []
        broker.fates.append(Fate.SYNCED)
        sent = await made.append(b"a", wait=False)
        async with anyio.create_task_group() as group:

            async def behind() -> None:
                with pytest.raises(StorageError, match="no chunk was begun"):
                    await made.append(b"b", wait=False)

            group.start_soon(behind)
            await anyio.wait_all_tasks_blocked()
            broker.holding[0].decide()
        with pytest.raises(OutcomeUnknownError):
            await sent.synced()
        assert len(broker.met) == 1


async def copied(made: Bed, name: str, first: int, until: int) -> Extent:
    """A compaction's work: some of the batches between two offsets, in a topic of their own."""
    place = (await made.store.manager.create_topic(Topic("t", name), broker="brk-0")).place
    topic = await made.store.broker.open(place, made.encoding.framing, epoch=made.epoch)
    kept = [each for each in made.batches if first <= each[0] and each[1] < until][::2]
    for _, _, batch in kept:
        await (await topic.send((made.encoding.wrap(batch),))).synced()
    made.batches = [each for each in made.batches if each in kept or not first <= each[0] < until]
    return Extent(place, first, until, (await topic.status()).end, Chunks.starting_at(first, 0))


@pytest.mark.parametrize("encoding", [BARE, Enveloped(bytes(16), 3, 1)], ids=["bare", "enveloped"])
async def test_other_extents_take_the_place_of_some(encoding: Encoding) -> None:
    """As a compaction does it: in one commit, while it is read and appended to, more than once, and after a restart."""
    async with bed(encoding) as made:
        made.topic.extents[0].chunks.unit = 1_000
        for number in range(100):
            await made.append(bytes(100), b"%d" % number)
        await made.topic.swap(0, 80, [await copied(made, "0.1", 0, 80)])
        await made.holds_from(0)
        assert [extent.place.topic.name for extent in made.topic.extents] == ["0.1", "0"]
        await made.append(b"more")
        await made.open()
        assert [extent.place.topic.name for extent in made.topic.extents] == ["0.1", "0"]
        await made.holds_from(0)
        await made.holds_from(81)

        await made.topic.swap(80, 160, [await copied(made, "0.2", 80, 160)])
        await made.holds_from(3)
        await made.topic.swap(0, 160, [await copied(made, "0.3", 0, 160)])
        await made.holds_from(0)
        assert [topic.topic.name for topic in await made.store.manager.list_topics("t")] == ["0", "0.3"]
        inner = made.store.broker.opened[made.place]
        assert (await inner.status()).start > 0, "what was copied is trimmed"

        await made.open()
        await made.holds_from(0)
        await made.topic.trim(150)
        made.trimmed(150)
        await made.holds_from(150)
        await made.topic.trim(170)
        made.trimmed(170)
        assert [extent.place for extent in made.topic.extents] == [made.place]
        assert [topic.topic.name for topic in await made.store.manager.list_topics("t")] == ["0"]
        await made.append(b"last")
        await made.open()
        assert (await made.topic.status()).end == made.next
        await made.holds_from(170)


async def test_a_reader_goes_on_when_what_it_reads_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with bed() as made:
        for number in range(40):
            await made.append(b"%d" % number)
        await made.topic.swap(0, 20, [await copied(made, "0.1", 0, 20)])
        inner = made.store.broker.opened[made.topic.extents[0].place]
        pull = inner.pull

        async def late(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(inner, "pull", pull)
            await made.topic.swap(0, 30, [await copied(made, "0.2", 0, 30)])
            return await pull(*arguments, **options)

        monkeypatch.setattr(inner, "pull", late)
        assert (await made.read(5, max_bytes=1)) == [each for each in made.batches if each[1] >= 5][:1]
        assert made.topic.extents[0].place.topic.name == "0.2"


async def test_a_reader_that_comes_to_what_was_swapped_away_goes_on_behind_it() -> None:
    """Though it read up to there from where those batches still lie."""
    async with bed() as made:
        for number in range(60):
            await made.append(b"%d" % number)
        await made.topic.swap(0, 15, [await copied(made, "0.1", 0, 15)])
        for offset in range(16, 20):
            assert (await made.read(offset, max_bytes=1))[0][0] == offset
        await made.topic.swap(20, 40, [])
        made.batches = [each for each in made.batches if not 20 <= each[0] < 40]
        await made.holds_from(16)
        await made.holds_from(25)


@pytest.mark.parametrize("wait", ["trim", "roll", "status"])
async def test_readers_meanwhile(wait: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is trimmed or measured while they look for a position is no reason to fail, or to miss something."""
    async with bed() as made:
        made.topic.extents[0].chunks.unit = 2_000
        for number in range(100):
            await made.append(b"%d" % number, timestamp=number)
        inner = made.store.broker.opened[made.place]
        pull, status = inner.pull, inner.status
        calls = count(1)

        def between(call: Any, at: int) -> Any:
            async def late(*arguments: Any, **options: Any) -> Any:
                if next(calls) == at:
                    if wait == "trim":
                        await made.topic.trim(70)
                    else:
                        await getattr(made.topic, wait)()
                return await call(*arguments, **options)

            return late

        for at in range(1, 12):
            calls = count(1)
            with monkeypatch.context() as patch:
                patch.setattr(inner, "pull", between(pull, at))
                assert (await made.read(80, max_bytes=1))[0][0] == 80
                made.topic._hints.clear()
                found = await made.topic.find_by_timestamp(75, start=10 if wait != "trim" else 70)
                assert found is not None
                assert found.first == 75
        for at in range(1, 4):
            calls = count(1)
            with monkeypatch.context() as patch:
                patch.setattr(inner, "pull", between(pull, 0))
                patch.setattr(inner, "status", between(status, at) if wait == "trim" else status)
                assert (await made.topic.find_by_timestamp(75)) == (75, 75, 75)


async def test_a_send_that_waits_while_a_sync_fails_is_undone_with_it() -> None:
    """Whoever sends was told so, and sends again."""
    async with bed() as made:
        await made.append(b"a")
        inner = made.store.broker.opened[made.place]
        inner.failing, inner._post = (lambda: True), (lambda _: None)
        first = await made.append(b"b", wait=False)
        outcome = []

        async def send() -> None:
            with pytest.raises(StorageError, match="sent before"):
                await made.append(b"c", wait=False)
            outcome.append("raised")

        async with anyio.create_task_group() as tasks, made.topic._changing:
            tasks.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            inner._sync()
            with pytest.raises(StorageError):
                await first.synced()
            inner.failing = lambda: False
        assert outcome == ["raised"]
        made.batches, made.next = made.batches[:1], 1
        await made.topic.status()
        await made.holds_from(0)


async def test_what_comes_while_all_is_trimmed_stays() -> None:
    async with bed() as made:
        for _ in range(10):
            await made.append(b"x" * 100)
        sent = await made.append(b"on its way", wait=False)
        await made.topic.trim(10)
        await sent.synced()
        made.trimmed(10)
        await made.holds_from(10)
        with pytest.raises(PositionError):
            await made.read(9)


@pytest.mark.parametrize("positions", ["with gaps", "like bytes"])
@pytest.mark.parametrize("where", [0, 30, 56, 59])
async def test_damage_costs_what_is_damaged(where: int, positions: str) -> None:
    async with bed() as made:
        if positions == "like bytes":
            like_bytes(made)
        for number in range(60):
            await made.append(bytes(number * 7))
        inner = made.store.broker.opened[made.place]
        damaged = made.batches[where][2]
        inner.damaged = lambda message: message == damaged
        for offset in range(60):
            if offset == where:
                with pytest.raises(DamagedError):
                    await made.read(offset, max_bytes=1)
            else:
                assert (await made.read(offset, max_bytes=1))[0][0] == offset
        assert (await made.topic.status()).end == (60 if where < 59 else 59)
        await made.topic.trim(where + 1)
        made.trimmed(where + 1)
        await made.holds_from(where + 1)


async def test_what_the_store_lost_is_forgotten_durably(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if that cannot be written at once: else its chunks would be taken for those of what came since."""
    async with bed() as made:
        made.topic.extents[0].chunks.unit = 500
        for _ in range(60):
            await made.append(bytes(50))
        await made.store.manager.commit(made.topic.rows())
        inner = made.store.broker.opened[made.place]
        segments = inner._inner._log._segments
        inner._visible = HEAD.unpack_from([message for each in segments for message in each.messages][30])[0]
        inner._cut_back(segments)
        made.batches, made.next = made.batches[:30], 60
        await made.open()
        with monkeypatch.context() as patch:

            async def refuse(*_: object) -> None:
                raise StorageError("the disk is full")

            patch.setattr(made.topic._rows, "write_chunks", refuse)
            with pytest.raises(StorageError, match="full"):
                await made.topic.status()
        assert (await made.topic.status())[1:3] == (30, 60)
        for _ in range(40):
            await made.append(bytes(70))
        await made.open()
        await made.holds_from(0)
        for offset in range(60, 100):
            assert (await made.read(offset, max_bytes=1))[0][0] == offset


async def test_closed_extents_are_known_without_the_row_of_their_chunks() -> None:
    async with bed() as made:
        for number in range(100):
            await made.append(bytes(100), timestamp=number)
        await made.topic.swap(0, 80, [await copied(made, "0.1", 0, 80)])
        before = await made.topic.status()
        assert before.size == sum(len(batch) for _, _, batch in made.batches)
        await made.store.manager.commit(dict.fromkeys(made.topic.rows()))
        await made.open()
        assert await made.topic.status() == before
        assert await made.topic.find_by_timestamp(11) == (12, 12, 12)
        assert await made.topic.find_by_timestamp(79) == (80, 80, 80), "nothing of what was swapped away"


async def test_what_does_not_fit_replaces_nothing() -> None:
    async with bed() as made:
        for _ in range(10):
            await made.append(b"a", b"b")
        wrong = Extent(Place(Topic("t", "0.1"), "brk-0", 99), 0, 12, 5, Chunks.starting_at(0, 0))
        for first, until in [(0, 11), (1, 12), (0, 10), (0, 22)]:
            with pytest.raises(IllegalStateError):
                await made.topic.swap(first, until, [wrong])
            await made.holds_from(0)
        for first, until in [(1, 12), (0, 11)]:  # amid batches
            amid = Extent(wrong.place, first, until, 5, Chunks.starting_at(first, 0))
            with pytest.raises(IllegalStateError, match="goes on at"):
                await made.topic.swap(first, until, [amid])
            await made.holds_from(0)
        other = await copied(made, "0.1", 0, 12)
        await made.store.manager.commit({extents_key(ID, 0): b"somebody else's"})
        with pytest.raises(ConflictError):
            await made.topic.swap(0, 12, [other])
        assert [extent.place for extent in made.topic.extents if extent.place != made.place] == []


async def test_chunks_that_are_damaged_are_found_again(caplog: pytest.LogCaptureFixture) -> None:
    async with bed() as made:
        made.topic.extents[0].chunks.unit = 500
        for _ in range(50):
            await made.append(bytes(50))
        rows = made.topic.rows()
        assert list(rows) == [chunks_key(ID, 0)]
        await made.store.manager.commit({key: row[:-1] + b"g" for key, row in rows.items()})
        await made.open()
        assert "cannot be read" in caplog.text
        assert (await made.topic.status())[:3] == (0, 50, 50)
        await made.holds_from(0)


async def test_a_damaged_list_is_not_guessed() -> None:
    async with bed() as made:
        await made.append(b"a")
        await made.store.manager.commit({extents_key(ID, 0): b'{"format":1,"extents":[]}'})
        with pytest.raises(StorageError, match="restore it from a backup"):
            await made.open()
        await made.store.manager.commit({extents_key(ID, 0): b'{"format":2,"extents":[]}'})
        with pytest.raises(StorageError, match="this version reads 1"):
            await made.open()
