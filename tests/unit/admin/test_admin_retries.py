"""Which errors the admin client tries again, for how long, and what it says when it gives up."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import kclient
from kclient.admin import NewTopic, PartialFailureError
from kclient.errors import (
    ErrorCode,
    InvalidTopicError,
    KafkaError,
    KafkaTimeoutError,
    NotControllerError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    ThrottlingQuotaExceededError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from kclient.protocol.messages import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DescribeClusterResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kclient.protocol.registry import ApiKey
from kclient.types import TopicPartition
from tests.fake_kafka import FakeKafka
from tests.unit.admin.scripted import KRAFT, VERSIONS, Controller, administering

pytestmark = pytest.mark.anyio

Call = Callable[..., Awaitable[None]]
CALLS: dict[str, Callable[[kclient.Admin], Call]] = {
    "create_topics": lambda admin: (
        lambda names, **options: admin.create_topics([NewTopic(name, 1) for name in names], **options)
    ),
    "delete_topics": lambda admin: admin.delete_topics,
    "create_partitions": lambda admin: (
        lambda names, **options: admin.create_partitions(dict.fromkeys(names, 3), **options)
    ),
}


@pytest.fixture(params=sorted(CALLS))
def call(request: pytest.FixtureRequest) -> Callable[[kclient.Admin], Call]:
    return CALLS[request.param]


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
)
async def test_what_passes_is_asked_for_again_and_the_rest_is_not(
    call: Callable[[kclient.Admin], Call], code: ErrorCode
) -> None:
    async with FakeKafka(brokers=2, versions={**VERSIONS, **KRAFT}) as kafka, administering(kafka) as admin:
        controller = Controller(kafka, {"a": [code, code], "c": [ErrorCode.INVALID_TOPIC_EXCEPTION]})
        with pytest.raises(InvalidTopicError, match="'c'"):
            await call(admin)(["a", "b", "c"])
        assert [names for _, names in controller.asked] == [["a", "b", "c"], ["a"], ["a"]]


async def test_a_quota_can_be_told_at_once(call: Callable[[kclient.Admin], Call]) -> None:
    async with FakeKafka(versions={**VERSIONS, **KRAFT}) as kafka, administering(kafka) as admin:
        codes = [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        controller = Controller(kafka, {"a": list(codes), "b": list(codes)})
        with pytest.raises(PartialFailureError) as caught:
            await call(admin)(["a", "b", "c"], retry_on_quota_violation=False)
        assert {name: type(error) for name, error in caught.value.failures.items()} == dict.fromkeys(
            ["a", "b"], ThrottlingQuotaExceededError
        )
        assert len(controller.asked) == 1


async def test_a_quota_that_stays_is_told_in_the_end() -> None:
    async with FakeKafka(versions={**VERSIONS, **KRAFT}) as kafka, administering(kafka) as admin:
        controller = Controller(kafka, {"a": [ErrorCode.THROTTLING_QUOTA_EXCEEDED] * 10_000})
        with pytest.raises(ThrottlingQuotaExceededError):
            await admin.create_topic("a", timeout=0.1)
        assert len(controller.asked) > 1


async def test_the_pause_that_a_quota_asks_for_is_kept() -> None:
    async with FakeKafka(versions={**VERSIONS, **KRAFT}) as kafka, administering(kafka) as admin:
        controller = Controller(kafka, {"a": [ErrorCode.THROTTLING_QUOTA_EXCEEDED]})
        controller.throttle_ms = 200
        begun = anyio.current_time()
        await admin.create_topic("a")
        assert anyio.current_time() - begun >= 0.2
        assert len(controller.asked) == 2


async def test_the_controller_is_looked_up_again_where_there_is_only_one() -> None:
    """Brokers of the times before KRaft: only the controller takes such requests."""
    async with FakeKafka(brokers=3, versions=VERSIONS) as kafka, administering(kafka) as admin:
        controller = Controller(kafka, {"a": [ErrorCode.NOT_CONTROLLER]})

        def moved(broker: Any) -> None:
            kafka.controller = 3

        controller.before = moved
        await admin.create_topic("a")
        assert [node for node, _ in controller.asked] == [1, 3]


async def test_retries_bounds_the_attempts(call: Callable[[kclient.Admin], Call]) -> None:
    async with FakeKafka(versions={**VERSIONS, **KRAFT}) as kafka:
        async with administering(kafka, retries=2) as admin:
            controller = Controller(kafka, {"a": [ErrorCode.REQUEST_TIMED_OUT] * 100})
            with pytest.raises(RequestTimedOutError):
                await call(admin)(["a"])
            assert len(controller.asked) == 3
        async with administering(kafka, retries=0) as admin:
            controller = Controller(kafka, {"a": [ErrorCode.NOT_CONTROLLER] * 100})
            with pytest.raises(NotControllerError):
                await call(admin)(["a"])
            assert len(controller.asked) == 1


async def test_retries_bounds_what_any_broker_is_asked() -> None:
    async with FakeKafka(versions={**VERSIONS, **KRAFT}) as kafka:
        asked = 0

        def describe(broker: Any, request: Any) -> DescribeClusterResponse:
            nonlocal asked
            asked += 1
            return DescribeClusterResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, cluster_id="", brokers=[])

        kafka.scripts[ApiKey.DESCRIBE_CLUSTER] = describe
        async with administering(kafka, retries=3) as admin:
            with pytest.raises(KafkaError):
                await admin.describe_cluster()
        assert asked == 4


async def test_attempts_come_ever_less_often() -> None:
    settings = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 80}
    async with FakeKafka(versions={**VERSIONS, **KRAFT}) as kafka, administering(kafka, **settings) as admin:
        controller = Controller(kafka, {"a": [ErrorCode.REQUEST_TIMED_OUT] * 6})
        begun = anyio.current_time()
        await admin.create_topic("a")
        assert anyio.current_time() - begun >= (20 + 40 + 4 * 80) * 0.8 / 1000
        assert len(controller.asked) == 7


@pytest.mark.parametrize(
    ("name", "code", "error"),
    [
        ("create_topics", ErrorCode.TOPIC_ALREADY_EXISTS, TopicExistsError),
        ("delete_topics", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UnknownTopicOrPartitionError),
    ],
)
async def test_who_may_have_done_it_itself_says_so(name: str, code: ErrorCode, error: type[KafkaError]) -> None:
    async with FakeKafka(versions={**VERSIONS, **KRAFT}) as kafka, administering(kafka) as admin:
        Controller(kafka, {"a": [ErrorCode.REQUEST_TIMED_OUT, code]})
        with pytest.raises(error, match="An earlier attempt that got no answer may have done it"):
            await CALLS[name](admin)(["a"])
        controller = Controller(kafka)

        def hang_up(broker: Any) -> None:
            controller.before = None
            controller.codes = {"a": deque([code])}
            broker.hang_up()

        controller.before = hang_up
        with pytest.raises(error, match="An earlier attempt"):
            await CALLS[name](admin)(["a"])
        Controller(kafka, {"a": [code]})
        with pytest.raises(error) as caught:
            await CALLS[name](admin)(["a"])
        assert "attempt" not in str(caught.value), "asked at once and refused: it was somebody else"


async def test_time_that_runs_out_names_what_was_tried() -> None:
    async with FakeKafka(brokers=2, versions={**VERSIONS, **KRAFT}) as kafka, administering(kafka) as admin:
        Controller(kafka, {"a": [ErrorCode.REQUEST_TIMED_OUT] * 100_000})
        with pytest.raises(KafkaTimeoutError, match=r"Creating topics did not succeed within 0\.2 s"):
            await admin.create_topic("a", timeout=0.2)


@pytest.mark.parametrize("call", ["delete_records", "list_offsets"])
async def test_what_a_broker_has_answered_is_not_asked_again_for_its_other_partitions(call: str) -> None:
    """All records of a partition would be deleted once more, those included that came after the deletion."""
    passing, final = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_OUT_OF_RANGE
    codes = {1: deque([passing, passing]), 2: deque([final])}
    asked: list[list[int]] = []

    def partitions(request: Any) -> list[tuple[int, int]]:
        asked.append([part.partition_index for part in request.topics[0].partitions])
        return [(number, codes[number].popleft() if codes.get(number) else 0) for number in asked[-1]]

    def delete(_broker: Any, request: Any) -> DeleteRecordsResponse:
        parts = [
            DeleteRecordsPartitionResult(partition_index=number, low_watermark=5, error_code=code)
            for number, code in partitions(request)
        ]
        return DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(name="t", partitions=parts)])

    def offsets(_broker: Any, request: Any) -> ListOffsetsResponse:
        parts = [
            ListOffsetsPartitionResponse(partition_index=number, offset=5, error_code=code)
            for number, code in partitions(request)
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=parts)])

    wanted = [TopicPartition("t", number) for number in range(3)]
    versions = {**VERSIONS, **KRAFT, ApiKey.DELETE_RECORDS: (0, 2)}
    async with FakeKafka({"t": 3}, versions=versions) as kafka, administering(kafka) as admin:
        kafka.scripts |= {ApiKey.DELETE_RECORDS: delete, ApiKey.LIST_OFFSETS: offsets}
        with pytest.raises(OffsetOutOfRangeError, match="t-2") as caught:
            await getattr(admin, call)(dict.fromkeys(wanted, -1))
        assert asked == [[0, 1, 2], [1], [1]]
        assert sorted(caught.value.results) == wanted[:2]
        told = await getattr(admin, call)(dict.fromkeys(wanted, -1))
        assert list(told) == wanted


async def test_a_second_close_waits_for_the_first() -> None:
    async with FakeKafka(versions={**VERSIONS, **KRAFT}) as kafka, administering(kafka) as admin:
        await admin.describe_topics(["t"])
        aclose = admin._cluster.aclose
        begun, go_on = anyio.Event(), anyio.Event()
        ended: list[float | None] = []

        async def slow() -> None:
            begun.set()
            await go_on.wait()
            await aclose()

        async def close(timeout: float | None) -> None:
            await admin.close(timeout)
            ended.append(timeout)

        admin._cluster.aclose = slow  # type: ignore[method-assign]
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(close, 20)
                await begun.wait()
                tasks.start_soon(close, None)
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
                await close(0.05)
                assert ended == [0.05]
                go_on.set()
        assert sorted(ended[1:], key=str) == [20, None]
