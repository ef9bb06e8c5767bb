"""What a store keeps in memory is bounded, counted and given up when the process is short of it; reading goes on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.htp import StorageFullError, TopicSettings
from kclient.htp.embedded.files import Files
from kclient.htp.embedded.index import MOST, SegmentIndex
from kclient.large_buffers import SMALLEST, LargeBuffers
from kclient.memory_ledger import CacheAccount, MemoryLedger, process_memory
from tests.example_budget import examples
from tests.unit.htp.by_name import NamedStore, named_store
from tests.unit.htp.conftest import prepare
from tests.unit.htp.plain_messages import FRAMING, OTHER, TOPIC, message, payloads

INTERVAL = 100


class Loop:
    """The one that runs."""

    is_current = True

    def post(self, function: object) -> bool:
        raise AssertionError("it is here")


class Waiting:
    """The connections of a server, which go on when there is more memory."""

    held = most = 0
    spare = 64 << 20
    waits = True

    def __init__(self, go_on: Callable[[], object]) -> None:
        self._go_on = go_on

    def refresh(self) -> None:
        self._go_on()

    def others_freed(self) -> None:
        self._go_on()

    def others_wait(self) -> None: ...


def indexed(sizes: list[int], stamps: list[int]) -> tuple[SegmentIndex, list[tuple[int, int, int]]]:
    """An index of messages with one ordinal each, and ordinal, place and timestamp of all of them."""
    index = SegmentIndex(0, INTERVAL)
    messages = []
    for ordinal, (size, stamp) in enumerate(zip(sizes, stamps, strict=True)):
        messages.append((ordinal, index.covered, stamp))
        index.add(ordinal, ordinal, size, stamp)
    return index, messages


def check(index: SegmentIndex, messages: list[tuple[int, int, int]], step: int = 1) -> None:
    places = {place: ordinal for ordinal, place, _ in messages}
    for ordinal, place, stamp in messages[::step]:
        where, first = index.entry_of(ordinal)
        assert where <= place
        assert places[where] == first <= ordinal
        assert index.place_of(ordinal) == where
        assert index.place_before(place + 1) in places
        blocks = index.blocks_since(stamp, 0)
        assert any(begin <= place < end for begin, end, _ in blocks)
        assert all(places[begin] == at for begin, _, at in blocks)
    assert index.max_timestamp == max(stamp for _, _, stamp in messages)


@pytest.mark.slow
def test_an_index_has_no_more_than_so_many_entries() -> None:
    count = 5 * MOST
    index, messages = indexed([INTERVAL] * count, [number * 7919 % 1000 for number in range(count)])
    assert MOST // 4 < len(index) <= MOST
    places = [place for _, place in index.entries()]
    assert len({after - before for before, after in pairwise(places)}) == 1, "the oldest blocks are as large as others"
    check(index, messages, 97)
    again = SegmentIndex.load(index.dump(0), 0, INTERVAL, index.covered)
    assert again is not None
    assert (len(again), again.covered, again.next) == (len(index), index.covered, index.next)
    check(again, messages, 97)


def test_an_index_that_was_cut_tells_of_nothing_behind() -> None:
    index, messages = indexed([INTERVAL] * 10, list(range(10)))
    place = messages[5][1]
    index.cut(place, 5)
    assert (index.covered, index.next, len(index)) == (place, 5, 5)
    index.add(7, 8, INTERVAL, 20)  # it need not go on with the ordinal that was there
    assert index.entry_of(5) == index.entry_of(6) == (messages[4][1], 4)
    assert index.entry_of(7) == (place, 7)


def test_an_index_that_was_stored_with_more_entries_is_thinned() -> None:
    large = SegmentIndex(0, 1)
    for number in range(MOST):
        large.add(number, number, 10, number)
    content = large.dump(0)
    read = SegmentIndex.load(content, 0, 1, large.covered)
    assert read is not None
    assert len(read) == MOST
    read.add(MOST, MOST, 10, MOST)
    assert len(read) <= MOST // 2 + 1
    check(read, [(number, number * 10, number) for number in range(MOST + 1)], 31)


@examples(100)
@given(
    st.lists(st.tuples(st.integers(20, 400), st.integers(0, 50)), min_size=1, max_size=300),
    st.integers(1, 40),
    st.integers(0, 300),
)
def test_a_thinned_index_finds_what_is_there(sizes: list[tuple[int, int]], most: int, cut: int) -> None:
    index, messages = indexed([size for size, _ in sizes], [stamp for _, stamp in sizes])
    index.thin(most)
    assert len(index) <= most
    check(index, messages)
    for size, stamp in sizes[:50]:
        messages.append((len(messages), index.covered, stamp))
        index.add(index.next, index.next, size, stamp)
    check(index, messages)
    if 0 < cut < len(messages):
        index.cut(messages[cut][1], cut)
        for ordinal, place, _ in messages[:cut]:
            assert index.place_of(ordinal) <= place
        assert (index.covered, index.next) == (messages[cut][1], cut)


def indexes() -> CacheAccount:
    found = [each for each in process_memory().accounts() if each.name == "indexes" and each.held]
    assert len(found) == 1
    assert isinstance(found[0], CacheAccount)
    return found[0]


async def send(store: NamedStore, numbers: range) -> None:
    for number in numbers:
        sent = await store.broker.send(TOPIC, [message(number, b"%d" % number, timestamp=number)])
    await sent.synced()


@pytest.mark.slow
@pytest.mark.anyio
async def test_indexes_are_thinned_when_memory_is_short(tmp_path: Path) -> None:
    settings = TopicSettings(segment_bytes=40_000, index_interval_bytes=1)
    async with named_store(f"embedded:{tmp_path}/data", settings=settings) as store:
        await prepare(store)
        await send(store, range(2500))
        account = indexes()
        before = account.held
        assert before > 2000 * 24
        while True:
            held = account.held
            process_memory().relieve()
            if account.held == held:
                break
        assert account.held < before // 2
        for number in range(0, 2500, 37):
            pulled = await store.broker.pull(TOPIC, number, max_bytes=100)
            assert payloads(pulled.data)[0] == b"%d" % number
            found = await store.broker.topic(TOPIC).find_by_timestamp(number)
            assert found is not None
            assert found.first == number
        await send(store, range(2500, 3000))
        assert payloads((await store.broker.pull(TOPIC, 2750, max_bytes=100)).data)[0] == b"2750"
        await store.broker.topic(TOPIC).trim(2000)
        assert account.held < before // 2
    assert account.held == 0
    async with named_store(f"embedded:{tmp_path}/data", settings=settings) as store:
        await store.broker.open(TOPIC, FRAMING)
        assert payloads((await store.broker.pull(TOPIC, 2900, max_bytes=100)).data)[0] == b"2900"
        assert indexes().held > 0
        await store.broker.delete(TOPIC)
        assert not [each for each in process_memory().accounts() if each.name == "indexes" and each.held > 2_000]


@pytest.mark.anyio
async def test_an_opening_that_fails_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with named_store(f"embedded:{tmp_path}/data", settings=TopicSettings(segment_bytes=100)) as store:
        await prepare(store)
        await send(store, range(20))
        account = indexes()
        await store.broker.close(TOPIC)
        before = account.held

        async def fail(*_: object) -> int:
            raise StorageFullError("no space left")

        with monkeypatch.context() as patch:
            patch.setattr(store.manager, "commit", fail)
            for topic in (TOPIC, TOPIC, OTHER, OTHER):  # the other one is open, and empty
                with pytest.raises(StorageFullError):
                    await store.broker.open(topic, FRAMING, next_position=100)
        assert account.held == before
        await store.broker.open(TOPIC, FRAMING, next_position=100)
        assert account.held > before
    assert account.held == 0


def test_read_buffers_count_and_are_given_up() -> None:
    ledger = MemoryLedger()
    part = ledger.part(16 * SMALLEST)
    pool = LargeBuffers()
    pool.count_in(ledger, Loop())
    (account,) = ledger.accounts()
    first = pool.take(SMALLEST)
    assert account.held == SMALLEST
    second = pool.take(SMALLEST)
    third = pool.take(SMALLEST)
    assert account.held == 2 * SMALLEST, "an eighth of all is for them"
    assert memoryview(first).nbytes == memoryview(second).nbytes == memoryview(third).nbytes == SMALLEST
    second[:3] = b"abc"
    assert ledger.relieve()
    assert account.held == 0
    assert bytes(second[:3]) == b"abc"
    pool.take(SMALLEST)
    assert account.held == SMALLEST
    part.close()


def test_read_buffers_that_make_room_may_all_be_given_up_amid_that() -> None:
    """Who waits for memory goes on as soon as there is more, and may want the rest."""
    ledger = MemoryLedger()
    part = ledger.part(16 * 4 * SMALLEST)
    pool = LargeBuffers()
    pool.count_in(ledger, Loop())
    (account,) = ledger.accounts()
    taken = [pool.take(SMALLEST) for _ in range(8)]
    assert account.held == 8 * SMALLEST
    del taken[:-1]
    waiting = [ledger.relieve]
    part.connections = Waiting(lambda: waiting and waiting.pop()())
    large = pool.take(4 * SMALLEST)
    assert not waiting
    assert account.held == pool.size == 4 * SMALLEST
    ledger.relieve()
    assert account.held == 0
    assert memoryview(large).nbytes == 4 * SMALLEST


@pytest.mark.anyio
async def test_a_store_that_was_closed_keeps_no_read_buffers(tmp_path: Path) -> None:
    files = Files()
    async with named_store(f"embedded:{tmp_path}/data", files=files):
        (account,) = [each for each in process_memory().accounts() if each.name == "read buffers"]
        taken = files.read_buffers.take(SMALLEST)
        assert account.held == SMALLEST
    assert account not in process_memory().accounts()
    assert account.held == 0
    assert files.read_buffers.size == 0
    assert memoryview(taken).nbytes == SMALLEST
    assert memoryview(files.read_buffers.take(SMALLEST)).nbytes == SMALLEST
    assert files.read_buffers.size == 0, "nor any that is asked for late"
    async with named_store(f"embedded:{tmp_path}/data", files=files):
        files.read_buffers.take(SMALLEST)
        assert files.read_buffers.size == SMALLEST
