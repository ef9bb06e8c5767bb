"""Several brokers, of which one hangs or gives its partitions away: it delays nobody but itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import kclient
from kclient.cluster import Backoff, ClusterSnapshot, PartitionMetadata, TopicMetadata
from kclient.consumer.fetch.list_offsets import OffsetAnswer, OffsetSearch
from kclient.consumer.group.offsets import committed_offsets, committed_request
from kclient.errors import (
    BrokerConnectionError,
    ErrorCode,
    KafkaTimeoutError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    RefreshCoordinatorError,
    TopicAuthorizationError,
    UnsupportedVersionError,
)
from kclient.net.server import ServerConnection
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    ListOffsetsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from kclient.protocol.registry import ApiKey
from kclient.types import Node, OffsetAndTimestamp, TopicPartition
from tests.fake_kafka import FakeBroker
from tests.fake_reads import ReadableKafka

T = [TopicPartition("t", number) for number in range(3)]
REQUEST_TIMEOUT = 1.0
PATIENCE = REQUEST_TIMEOUT + 4.0


@asynccontextmanager
async def reading(kafka: ReadableKafka, **settings: Any) -> AsyncIterator[kclient.Consumer]:
    defaults = {
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 20,
        "request_timeout_ms": round(REQUEST_TIMEOUT * 1000),
        "retry_backoff_ms": 10,
        "retry_backoff_max_ms": 50,
    }
    async with kclient.Consumer(bootstrap_servers=kafka.bootstrap, **{**defaults, **settings}) as consumer:  # type: ignore[arg-type]
        try:
            yield consumer
        finally:
            await consumer.close(timeout=0.2)


async def partitions_read(consumer: kclient.Consumer, count: int) -> list[int]:
    """The partitions of the next `count` records, in order."""
    found: list[int] = []
    while len(found) < count:
        found += [record.partition for record in await consumer.poll(1.0)]
    return sorted(found)


@pytest.mark.slow
@pytest.mark.anyio
async def test_positions_at_other_brokers_are_found_while_one_hangs() -> None:
    async with ReadableKafka({"t": 3}, brokers=3) as kafka, reading(kafka) as consumer:
        for number in range(3):
            kafka.fill("t", number, 1)
        await consumer.partitions_for("t")
        kafka.hung = {2}
        consumer.assign(T)
        with anyio.fail_after(REQUEST_TIMEOUT * 0.9):
            assert await partitions_read(consumer, 2) == [0, 2]
        kafka.move("t", 1, 3)
        with anyio.fail_after(PATIENCE):
            assert await partitions_read(consumer, 1) == [1]


@pytest.mark.anyio
async def test_committed_positions_do_not_wait_for_resets() -> None:
    """One partition's offset is committed, the other's has to be asked of a broker that hangs."""
    async with ReadableKafka({"t": 3}, brokers=3) as kafka, reading(kafka, group_id="g") as consumer:
        for number in range(3):
            kafka.fill("t", number, 1)
        kafka.committed = {T[0]: 0, T[2]: 0}
        await consumer.partitions_for("t")
        kafka.hung = {2}
        consumer.assign(T)
        with anyio.fail_after(REQUEST_TIMEOUT * 0.9):
            assert await partitions_read(consumer, 2) == [0, 2]


@pytest.mark.anyio
@pytest.mark.parametrize("api", [ApiKey.FETCH, None])
async def test_a_leader_that_hangs_stalls_its_partitions_for_one_request_timeout(api: ApiKey | None) -> None:
    async with ReadableKafka({"t": 3}, brokers=3) as kafka, reading(kafka) as consumer:
        consumer.assign(T)
        for number in range(3):
            kafka.fill("t", number, 1)
        with anyio.fail_after(10):
            assert await partitions_read(consumer, 3) == [0, 1, 2]
        if api is None:
            kafka.hung = {2}
        else:
            kafka.silent_at = {(2, api)}
        kafka.move("t", 1, 1)
        for number in range(3):
            kafka.fill("t", number, 1)
        with anyio.fail_after(REQUEST_TIMEOUT * 0.9):  # the others are none the worse
            assert await partitions_read(consumer, 2) == [0, 2]
        with anyio.fail_after(PATIENCE):
            assert await partitions_read(consumer, 1) == [1]


@pytest.mark.anyio
async def test_metadata_that_come_meanwhile_end_the_wait_for_a_leader_that_hangs() -> None:
    async with (
        ReadableKafka({"t": 3}, brokers=3) as kafka,
        reading(kafka, request_timeout_ms=30_000, metadata_max_age_ms=200) as consumer,
    ):
        consumer.assign(T)
        for number in range(3):
            kafka.fill("t", number, 1)
        with anyio.fail_after(10):
            assert await partitions_read(consumer, 3) == [0, 1, 2]
        kafka.silent_at = {(2, ApiKey.FETCH), (2, ApiKey.LIST_OFFSETS)}
        searching: dict[TopicPartition, int] = {}

        async def search() -> None:
            searching.update(await consumer.end_offsets(T))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(search)
            with anyio.fail_after(10):
                while (2, ApiKey.LIST_OFFSETS) not in kafka.asked:
                    await anyio.sleep(0.01)
                kafka.move("t", 1, 1)
                kafka.fill("t", 1, 1)
                assert await partitions_read(consumer, 1) == [1]
                while not searching:
                    await anyio.sleep(0.01)
        assert searching[T[1]] == 2


@pytest.mark.anyio
async def test_a_topic_that_was_deleted_and_created_again_is_read_from_its_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ReadableKafka({"t": 1}) as kafka, reading(kafka, metadata_max_age_ms=100) as consumer:
        consumer.assign(T[:1])
        kafka.fill("t", 0, 10)
        with anyio.fail_after(10):
            await partitions_read(consumer, 10)
        kafka.delete("t")
        kafka.create("t", 1)
        kafka.ids["t"] = b"another id......"
        kafka.fill("t", 0, 15)  # the position, 10, exists in the new one as well
        with anyio.fail_after(10):
            offsets: list[int] = []
            while len(offsets) < 15:
                offsets += [record.offset for record in await consumer.poll(1.0)]
        assert offsets == list(range(15))
    assert "Topic 't' was deleted and created again: offset 10 of t-0" in caplog.text


@pytest.mark.anyio
async def test_a_commit_finds_the_coordinator_that_took_over_from_one_that_is_gone() -> None:
    async with ReadableKafka({"t": 1}, brokers=2) as kafka, reading(kafka, group_id="g") as consumer:
        consumer.assign([T[0]])
        await consumer.commit({T[0]: 1})
        kafka.move("t", 0, 2)
        kafka.coordinator = 2
        kafka.brokers[1].down = True
        kafka.brokers[1].hang_up()
        with anyio.fail_after(PATIENCE):
            await consumer.commit({T[0]: 2}, timeout=PATIENCE)
        assert kafka.committed == {T[0]: 2}


class WithSessions(ReadableKafka):
    """Its brokers keep fetch sessions."""

    def __init__(self, topics: dict[str, int] | None = None) -> None:
        super().__init__(topics)
        self.fetches: list[tuple[int, int]] = []
        """Session and epoch of each request."""

    async def _fetch(self, broker: FakeBroker, version: int, request: Any) -> ApiMessage:
        self.fetches.append((request.session_id, request.session_epoch))
        response: Any = await super()._fetch(broker, version, request)
        response.session_id = 77 if request.session_epoch >= 0 else 0
        return response  # type: ignore[no-any-return]


@pytest.mark.anyio
async def test_a_broker_is_told_that_nothing_is_read_of_it_any_more() -> None:
    async with WithSessions() as kafka, reading(kafka) as consumer:
        kafka.fill("t", 0, 1)
        consumer.assign([T[0]])
        with anyio.fail_after(PATIENCE):
            assert await partitions_read(consumer, 1) == [0]
            consumer.assign([])
            while kafka.fetches[-1] != (77, -1):
                await anyio.sleep(0.005)


@pytest.mark.anyio
async def test_offsets_are_asked_for_as_a_consumer() -> None:
    """A number of a replica would have a broker take it for another one."""
    asked: list[Any] = []
    async with ReadableKafka() as kafka, reading(kafka, isolation_level="read_committed") as consumer:
        await consumer.partitions_for("t")
        answer = kafka._list_offsets

        def noted(broker: FakeBroker, request: Any) -> ListOffsetsResponse:
            asked.append(request)
            return answer(broker, request)

        kafka._list_offsets = noted  # type: ignore[method-assign]
        await consumer.end_offsets([T[0]])
    (request,) = asked
    assert (request.replica_id, request.isolation_level) == (-1, 1)


@pytest.mark.anyio
async def test_brokers_that_cannot_be_fetched_from_are_told_of() -> None:
    async with ReadableKafka() as kafka, reading(kafka) as consumer:
        del kafka.versions[ApiKey.FETCH]
        consumer.assign([T[0]])
        with anyio.fail_after(PATIENCE), pytest.raises(UnsupportedVersionError, match="FETCH"):
            await consumer.poll(PATIENCE)


@pytest.mark.anyio
async def test_a_position_that_does_not_exist_is_named() -> None:
    async with ReadableKafka({"t": 1}) as kafka, reading(kafka, auto_offset_reset="none") as consumer:
        consumer.assign(T[:1])
        consumer.seek(T[0], 77)
        with anyio.fail_after(10), pytest.raises(OffsetOutOfRangeError) as told:
            while not await consumer.poll(1.0):
                pass
        assert told.value.offsets == {T[0]: 77}
        assert told.value.partitions == [T[0]]
        assert "Offset 77 of t-0 does not exist (any more), and auto.offset.reset is none: seek" in str(told.value)


NEVER = {"retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}


@pytest.mark.anyio
async def test_a_transaction_that_is_about_to_commit_holds_up_its_own_partitions_only() -> None:
    async with ReadableKafka({"t": 3}) as kafka, reading(kafka, group_id="g", **NEVER) as consumer:
        for number in range(3):
            kafka.fill("t", number, 1)
        kafka.committed = {T[0]: 0, T[1]: 1}
        kafka.untold = {T[1]: ErrorCode.UNSTABLE_OFFSET_COMMIT}
        consumer.assign(T)
        with anyio.fail_after(PATIENCE):
            assert await partitions_read(consumer, 2) == [0, 2]


@pytest.mark.anyio
async def test_the_end_of_a_transaction_that_is_about_to_commit_is_waited_for() -> None:
    async with ReadableKafka({"t": 3}) as kafka, reading(kafka, group_id="g") as consumer:
        kafka.committed = {T[0]: 0, T[1]: 1}
        kafka.untold = {T[1]: ErrorCode.UNSTABLE_OFFSET_COMMIT}
        consumer.assign(T)
        with anyio.fail_after(PATIENCE):
            # time for one answer at least, also where the machine is busy: without any, that is what is told
            for call in (lambda: consumer.committed(T, timeout=0.3), lambda: consumer.position(T[1], timeout=0.3)):
                with pytest.raises(KafkaTimeoutError, match="t-1: an open transaction is about to commit an offset"):
                    await call()
            kafka.untold.clear()
            assert await consumer.position(T[1]) == 1
            offsets = [None if each is None else each.offset for each in (await consumer.committed(T)).values()]
            assert offsets == [0, 1, None]


@pytest.mark.anyio
async def test_an_offset_that_must_not_be_read_is_told_and_holds_up_no_others() -> None:
    async with ReadableKafka({"t": 3}) as kafka, reading(kafka, group_id="g", **NEVER) as consumer:
        for number in range(3):
            kafka.fill("t", number, 1)
        kafka.untold = {T[1]: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        consumer.assign(T)
        with anyio.fail_after(PATIENCE):
            with pytest.raises(TopicAuthorizationError, match="t-1"):
                await consumer.poll(1.0)
            assert await partitions_read(consumer, 2) == [0, 2]


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_another_coordinator_is_looked_for_where_a_partition_says_so(code: ErrorCode) -> None:
    """As in the first versions, which have no error for the whole."""
    partitions = [
        OffsetFetchResponsePartition(partition_index=number, committed_offset=5, metadata="", error_code=each)
        for number, each in enumerate((0, ErrorCode.UNSTABLE_OFFSET_COMMIT, code))
    ]
    with pytest.raises(RefreshCoordinatorError):
        committed_offsets(OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="t", partitions=partitions)]))


class Remembering(ReadableKafka):
    """Keeps the questions for committed offsets."""

    def __init__(self) -> None:
        super().__init__({"t": 1})
        self.questions: list[OffsetFetchRequest] = []

    def answer(
        self, broker: FakeBroker, key: ApiKey, version: int, request: Any, connection: ServerConnection
    ) -> ApiMessage | Awaitable[ApiMessage | None] | None:
        if key is ApiKey.OFFSET_FETCH:
            self.questions.append(request)
        return super().answer(broker, key, version, request, connection)


@pytest.mark.anyio
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
async def test_committed_offsets_are_those_that_no_transaction_is_about_to_change(isolation: str) -> None:
    async with Remembering() as kafka, reading(kafka, group_id="g", isolation_level=isolation) as consumer:
        kafka.committed = {T[0]: 3}
        kafka.fill("t", 0, 5)
        consumer.assign(T[:1])
        with anyio.fail_after(PATIENCE):
            assert await consumer.position(T[0]) == 3
            await consumer.committed(T[:1])
        assert [question.require_stable for question in kafka.questions] == [True, True]


@pytest.mark.parametrize("version", range(10))
def test_stable_offsets_are_asked_for_in_every_version_that_has_them(version: int) -> None:
    assert committed_request("g", T, version).require_stable is (version >= 7)


# ------------------------------------------------------------------ the search by itself


def snapshot(*leaders: int) -> ClusterSnapshot:
    partitions = {n: PartitionMetadata("t", n, leader_id=leader, leader_epoch=1) for n, leader in enumerate(leaders)}
    return ClusterSnapshot(
        nodes={n: Node(n, "b", 9092) for n in (1, 2, 3)}, topics={"t": TopicMetadata("t", partitions=partitions)}
    )


def found(*partitions: TopicPartition) -> OffsetAnswer:
    return OffsetAnswer({tp: OffsetAndTimestamp(7, 1, None) for tp in partitions}, {})


def new_search() -> OffsetSearch:
    return OffsetSearch(dict.fromkeys(T, -1), Backoff(100, 400, jitter=0))


def test_all_leaders_are_asked_at_once_and_each_answer_counts() -> None:
    search = new_search()
    questions, leaderless = search.plan(snapshot(1, 2, 3), 0.0)
    assert [question.node_id for question in questions] == [1, 2, 3]
    assert leaderless == []
    search.received(questions[2], found(T[2]), 0.0)
    search.received(questions[0], found(T[0]), 0.0)
    assert search.missing == [T[1]]
    assert search.plan(snapshot(1, 2, 3), 5.0) == ([], [])


def test_a_moved_partition_is_asked_for_at_its_new_leader_and_the_late_answer_dropped() -> None:
    search = new_search()
    late = search.plan(snapshot(1, 2, 3), 0.0)[0][1]
    (again,) = search.plan(snapshot(1, 3, 3), 1.0)[0]
    assert (again.node_id, list(again.wanted)) == (3, [T[1]])
    search.failed(late, BrokerConnectionError("it hung"), 2.0)
    assert search.plan(snapshot(1, 3, 3), 2.0) == ([], [])
    search.received(late, OffsetAnswer({T[1]: None}, {}), 2.0)
    assert T[1] in search.missing
    search.received(again, found(T[1]), 3.0)
    assert T[1] not in search.missing


def test_what_was_refused_is_asked_for_again_ever_less_often() -> None:
    search = OffsetSearch({T[0]: -1}, Backoff(100, 400, jitter=0))
    now, delays = 0.0, []
    for _ in range(4):
        (question,) = search.plan(snapshot(1), now)[0]
        assert search.received(question, OffsetAnswer({}, {T[0]: NotLeaderOrFollowerError()}), now)
        due = search.next_retry(now)
        assert due is not None
        assert search.plan(snapshot(1), now) == ([], [])
        delays.append(round(due - now, 3))
        now = due
    assert delays == [0.1, 0.2, 0.4, 0.4]
    assert isinstance(search.problem, NotLeaderOrFollowerError)
    assert not search.over


def test_what_is_refused_for_good_ends_the_search() -> None:
    search = new_search()
    question = search.plan(snapshot(1, 2, 3), 0.0)[0][0]
    search.received(question, OffsetAnswer({}, {T[0]: TopicAuthorizationError()}), 0.0)
    assert search.over
    assert isinstance(search.error, TopicAuthorizationError)


def test_a_partition_that_an_answer_leaves_out_is_asked_for_again() -> None:
    search = OffsetSearch({T[0]: -1}, Backoff(100, 400, jitter=0))
    (question,) = search.plan(snapshot(1), 0.0)[0]
    search.received(question, question.read(ListOffsetsResponse(topics=[])), 0.0)
    assert search.missing == [T[0]]
    assert search.next_retry(0.0) == pytest.approx(0.1)
    assert "did not answer for t-0" in str(search.problem)


def test_leaders_that_are_not_known_yet() -> None:
    search = new_search()
    questions, leaderless = search.plan(snapshot(1, -1), 0.0)
    assert [question.node_id for question in questions] == [1]
    assert leaderless == [T[1], T[2]]
    assert search.next_retry(0.0) == pytest.approx(0.1)


@pytest.mark.anyio
async def test_who_is_paused_while_its_records_fill_the_room_makes_room() -> None:
    async with ReadableKafka({"t": 2}) as kafka, reading(kafka, fetch_max_bytes=1) as consumer:
        consumer.assign(T[:2])
        kafka.fill("t", 0, 1)
        with anyio.fail_after(PATIENCE):
            while not consumer.metrics().value("buffered-bytes"):
                await anyio.sleep(0.01)
        consumer.pause(T[:1])
        kafka.fill("t", 1, 1)
        with anyio.fail_after(PATIENCE):
            assert await partitions_read(consumer, 1) == [1]
        consumer.resume(T[:1])
        with anyio.fail_after(PATIENCE):
            assert await partitions_read(consumer, 1) == [0]
