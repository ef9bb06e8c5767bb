"""The cache of fetch sessions, apart and through Fetch (KIP-227)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kclient.errors import (
    ErrorCode,
    FetchSessionIdNotFoundError,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpochError,
)
from kclient.gateway.fetch_sessions import EVICTION_S, FetchPlan, FetchSessionCache, Key, Wanted
from kclient.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchRequestPartition,
    FetchRequestTopic,
)
from tests.gateway_wire import Wire, batch_of, running


def key(partition: int) -> Key:
    return Key("t", bytes(16), partition)


def want(partition: int, offset: int = 0) -> Wanted:
    return Wanted(key(partition), offset, 1000)


def start(cache: FetchSessionCache, *partitions: int, now: float = 0.0) -> FetchPlan:
    return cache.plan(0, 0, [want(number) for number in partitions], [], now, by_id=False)


def go_on(
    cache: FetchSessionCache, plan: FetchPlan, epoch: int, *changes: Wanted, forget: tuple[Key, ...] = ()
) -> FetchPlan:
    return cache.plan(plan.session_id, epoch, changes, forget, 1.0, by_id=False)


def test_a_session_remembers_its_partitions() -> None:
    cache = FetchSessionCache(10)
    first = start(cache, 0, 1, 2)
    assert (len(first.wanted), first.incremental, first.session_id != 0) == (3, False, True)
    second = go_on(cache, first, 1, want(1, 50), want(3), forget=(key(0),))
    assert second.incremental
    assert {item.key.partition: item.offset for item in second.wanted} == {1: 50, 2: 0, 3: 0}
    with pytest.raises(InvalidFetchSessionEpochError):
        go_on(cache, first, 1)
    assert len(go_on(cache, first, 2).wanted) == 3


def test_unknown_sessions_and_other_names() -> None:
    cache = FetchSessionCache(10)
    with pytest.raises(FetchSessionIdNotFoundError):
        cache.plan(5, 1, [], [], 0.0, by_id=False)
    plan = start(cache, 0)
    with pytest.raises(FetchSessionTopicIdError):
        cache.plan(plan.session_id, 1, [], [], 0.0, by_id=True)


def test_ending_a_session() -> None:
    cache = FetchSessionCache(10)
    plan = start(cache, 0)
    last = cache.plan(plan.session_id, -1, [want(0)], [], 0.0, by_id=False)
    assert (last.session_id, len(last.wanted), len(cache)) == (0, 1, 0)
    emptied = start(cache, 0)
    assert go_on(cache, emptied, 1, forget=(key(0),)).session_id == 0
    assert len(cache) == 0


def test_a_new_session_takes_the_place_of_the_old_one() -> None:
    cache = FetchSessionCache(10)
    plan = start(cache, 0)
    cache.plan(plan.session_id, 0, [want(0)], [], 0.0, by_id=False)
    assert len(cache) == 1


def test_a_full_cache_keeps_who_is_busy() -> None:
    cache = FetchSessionCache(2)
    busy, idle = start(cache, 0), start(cache, 1)
    assert start(cache, 2, now=10).session_id == 0  # served without a session
    cache.plan(busy.session_id, 1, [], [], 100.0, by_id=False)
    late = start(cache, 2, now=EVICTION_S + 1)
    assert late.session_id != 0
    with pytest.raises(FetchSessionIdNotFoundError):
        go_on(cache, idle, 1)
    go_on(cache, busy, 2)


class Share:
    """What a connection holds."""

    def __init__(self) -> None:
        self.kept = 0

    def keep(self, size: int) -> None:
        self.kept += size


MANY = 1000
SIZE = 300 * MANY


def making(cache: FetchSessionCache, owner: Share | None = None, partitions: int = MANY) -> Iterator[None]:
    wanted = [want(number) for number in range(partitions)]
    return cache.plan_steps(0, 0, wanted, [], 0.0, by_id=False, owner=owner)


def finished(steps: Iterator[None]) -> FetchPlan:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            plan: FetchPlan = end.value
            return plan


def test_sessions_that_are_made_at_once_keep_to_their_memory() -> None:
    cache = FetchSessionCache(100, memory=2 * SIZE)
    on_their_way = [making(cache) for _ in range(2)]
    for steps in on_their_way:
        next(steps)
    late = [finished(making(cache)) for _ in range(3)]
    plans = [finished(steps) for steps in on_their_way]
    assert [plan.session is not None for plan in plans + late] == [True, True, False, False, False]
    assert [len(plan.wanted) for plan in plans + late] == [MANY] * 5  # all are served


def test_a_session_that_grows_keeps_to_its_memory() -> None:
    cache = FetchSessionCache(1, memory=2 * SIZE)
    share = Share()
    plan = finished(making(cache, share))
    more = [want(number) for number in range(MANY, 2 * MANY)]
    assert len(cache.plan(plan.session_id, 1, more, [], 0.0, by_id=False).wanted) == 2 * MANY
    assert share.kept == 2 * SIZE
    with pytest.raises(FetchSessionIdNotFoundError, match="no memory for 2048 partitions"):
        cache.plan(plan.session_id, 2, [want(number) for number in range(5 * MANY)], [], 0.0, by_id=False)
    assert (len(cache), share.kept) == (0, 0)
    assert finished(making(cache, share)).session is not None


def test_what_is_forgotten_is_given_back_and_repeated_ones_count_once() -> None:
    cache = FetchSessionCache(1, memory=SIZE)
    share = Share()
    plan = cache.plan(0, 0, [want(number // 2) for number in range(MANY)], [], 0.0, by_id=False, owner=share)
    assert share.kept == SIZE // 2
    go_on(cache, plan, 1, forget=tuple(key(number) for number in range(100)))
    assert share.kept == SIZE // 2 - 100 * 300
    go_on(cache, plan, 2, forget=tuple(key(number) for number in range(MANY)))
    assert (len(cache), share.kept) == (0, 0)


def test_names_of_topics_count() -> None:
    """They may be long, and each partition may come with its own."""
    cache = FetchSessionCache(10, memory=SIZE)
    share = Share()
    wanted = [Wanted(Key(f"{number:0249}", bytes(16), 0), 0, 1000) for number in range(MANY)]
    plan = cache.plan(0, 0, wanted, [], 0.0, by_id=False, owner=share)
    assert plan.session is None
    plan = cache.plan(0, 0, wanted[: MANY // 2], [], 0.0, by_id=False, owner=share)
    assert plan.session is not None
    assert (MANY // 2) * 500 < share.kept < SIZE
    before = share.kept
    plan = cache.plan(plan.session_id, 1, wanted[:10], [], 0.0, by_id=False)
    assert share.kept == before
    with pytest.raises(FetchSessionIdNotFoundError, match="no memory"):
        cache.plan(plan.session_id, 2, wanted, [], 0.0, by_id=False)
    assert share.kept == 0


def test_very_many_partitions_are_measured_in_steps() -> None:
    cache = FetchSessionCache(10)
    steps = making(cache, partitions=10_000)
    next(steps)
    assert len(cache) == 0
    assert finished(steps).session is not None


def test_a_session_whose_client_goes_while_it_is_made_leaves_nothing() -> None:
    discarded: list[object] = []
    cache = FetchSessionCache(1, memory=SIZE, discard=discarded.append)
    share = Share()
    steps = making(cache, share)
    next(steps)
    assert (len(cache), share.kept) == (1, SIZE)
    steps.close()  # type: ignore[attr-defined]
    assert (len(cache), share.kept, len(discarded)) == (0, 0, 1)
    steps = making(cache, share)
    next(steps)
    cache.drop_all_of(share)
    assert finished(steps).session is None
    assert (len(cache), share.kept) == (0, 0)


def test_a_session_that_ends_while_a_request_of_it_is_read_is_told() -> None:
    """Its owner's connection has ended, and the request came over another one."""
    cache = FetchSessionCache(1, discard=dict.popitem)
    share = Share()
    plan = finished(making(cache, share))
    steps = cache.plan_steps(plan.session_id, 1, [], [], 0.0, by_id=False)
    next(steps)
    cache.drop_all_of(share)
    with pytest.raises(FetchSessionIdNotFoundError):
        finished(steps)
    assert (len(cache), share.kept) == (0, 0)


def test_who_was_served_comes_last_the_next_time() -> None:
    cache = FetchSessionCache(1)
    plan = start(cache, 0, 1, 2)
    assert plan.session is not None
    cache.answered(plan.session, [key(0)])
    assert [item.key.partition for item in go_on(cache, plan, 1).wanted] == [1, 2, 0]


def test_news_is_what_the_client_was_not_told() -> None:
    item = want(0)
    assert item.is_news(0, 5, 0, 0)
    assert not item.is_news(0, 5, 0, 0)
    assert item.is_news(0, 6, 0, 0)
    assert item.is_news(0, 6, 1, 0)
    assert item.is_news(0, 6, 1, 10)
    assert item.is_news(3, -1, -1, 0)
    assert item.is_news(3, -1, -1, 0)
    assert item.is_news(0, 6, 1, 0)


class Session:
    """A consumer's side of a session."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.id = 0
        self.epoch = 0

    async def fetch(self, *wanted: tuple[int, int], forget: tuple[int, ...] = ()) -> dict[int, int]:
        """The size of what comes, by partition."""
        rows = [
            FetchRequestPartition(partition=number, fetch_offset=offset, partition_max_bytes=10000)
            for number, offset in wanted
        ]
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            session_id=self.id,
            session_epoch=self.epoch,
            topics=[FetchRequestTopic(topic="t", partitions=rows)] if rows else [],
            forgotten_topics_data=[FetchRequestForgottenTopic(topic="t", partitions=list(forget))] if forget else [],
        )
        response = await self.wire(request, 11)
        assert not response.error_code, response
        self.id = response.session_id
        self.epoch += 1
        return {row.partition_index: len(row.records or b"") for item in response.responses for row in item.partitions}


@pytest.mark.anyio
async def test_only_changes_go_over_the_wire() -> None:
    async with running() as (_, wire):
        await wire.create("t", 3)
        session = Session(wire)
        assert await session.fetch((0, 0), (1, 0), (2, 0)) == {0: 0, 1: 0, 2: 0}
        assert await session.fetch() == {}
        await wire.produce("t", batch_of(b"a"), 1)
        size = len(batch_of(b"a"))
        assert await session.fetch() == {1: size}
        assert await session.fetch() == {1: size}  # the offset was not moved
        assert await session.fetch((1, 1)) == {}
        assert await session.fetch(forget=(1,)) == {}
        await wire.produce("t", batch_of(b"a"), 1)
        assert await session.fetch() == {}


@pytest.mark.anyio
@pytest.mark.parametrize("many", [1, 100])
async def test_names_that_no_topic_has_are_kept_in_no_session(many: int) -> None:
    async with running() as (_, wire):
        for name, kept in (("n" * 249, True), ("n" * 250, False), ("\N{ROCKET}" * 249, False)):
            rows = [FetchRequestPartition(partition=number, fetch_offset=0) for number in range(many)]
            topics = [FetchRequestTopic(topic=name, partitions=rows)]
            answer = await wire(FetchRequest(max_wait_ms=0, session_id=0, session_epoch=0, topics=topics), 11)
            assert bool(answer.session_id) is kept
            assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.anyio
async def test_a_wrong_session_is_told() -> None:
    async with running() as (_, wire):
        request = FetchRequest(max_wait_ms=0, session_id=77, session_epoch=3)
        assert (await wire(request, 11)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
