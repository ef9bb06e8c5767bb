"""Offsets of partitions that do not exist, and which answers of a coordinator are asked for again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from kclient.admin import OffsetReset, OffsetSpec, PartialFailureError, PartitionLag
from kclient.errors import ErrorCode, UnknownMemberIdError, UnknownTopicOrPartitionError
from kclient.gateway.handlers.groups_offsets import OffsetCommitHandler
from kclient.protocol.messages import (
    FindCoordinatorResponse,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kclient.protocol.registry import ApiKey
from kclient.sync import Admin
from kclient.testing import memory_broker
from kclient.types import TopicPartition
from tests.fake_kafka import FakeKafka
from tests.unit.admin.scripted import VERSIONS, administering

GROUPS = {ApiKey.FIND_COORDINATOR: (0, 2), ApiKey.OFFSET_COMMIT: (2, 8), ApiKey.OFFSET_DELETE: (0, 0)}
PASSING = [
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
]
T0, T9 = TopicPartition("t", 0), TopicPartition("t", 9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        lambda admin, tps: admin.alter_group_offsets("g", dict.fromkeys(tps, 0), timeout=50),
        lambda admin, tps: admin.delete_group_offsets("g", tps, timeout=50),
        lambda admin, tps: admin.reset_group_offsets("g", dict.fromkeys(tps, 0), timeout=50),
        lambda admin, tps: admin.reset_group_offsets("g", OffsetSpec.LATEST, tps, timeout=50),
    ],
    ids=["alter", "delete", "reset to offsets", "reset to a place"],
)
def test_an_unknown_topic_is_told_long_before_the_time_is_over(call: Callable[[Admin, Any], object]) -> None:
    with memory_broker() as address, Admin(bootstrap_servers=address) as admin:
        admin.create_topic("t")
        admin.alter_group_offsets("g", {T0: 0})
        begun = time.monotonic()
        with pytest.raises(UnknownTopicOrPartitionError, match="mistyped-0"):
            call(admin, [("mistyped", 0)])
        assert time.monotonic() - begun < 25


def test_a_committed_partition_that_does_not_exist_spoils_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    # as brokers that look at the topic only
    monkeypatch.setattr(OffsetCommitHandler, "_check", lambda *_: ErrorCode.NONE)
    with memory_broker() as address, Admin(bootstrap_servers=address) as admin:
        admin.create_topic("t")
        admin.alter_group_offsets("g", {T0: 0, T9: 5})
        lags = admin.group_lag("g")
        assert lags == {T0: PartitionLag(0, 0, None), T9: PartitionLag(5, None, None)}
        assert (lags[T0].lag, lags[T9].lag) == (0, None)
        assert admin.reset_group_offsets("g", OffsetSpec.EARLIEST) == {T0: OffsetReset(0, 0)}


def scripted(kafka: FakeKafka, codes: list[list[int]]) -> None:
    """A coordinator that gives these codes to the partitions of each request, in their order."""

    def commit(broker: Any, request: Any) -> OffsetCommitResponse:
        now = codes.pop(0)
        parts = [OffsetCommitResponsePartition(partition_index=n, error_code=code) for n, code in enumerate(now)]
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=parts)])

    def delete(broker: Any, request: Any) -> OffsetDeleteResponse:
        now = codes.pop(0)
        parts = [OffsetDeleteResponsePartition(partition_index=n, error_code=code) for n, code in enumerate(now)]
        return OffsetDeleteResponse(topics=[OffsetDeleteResponseTopic(name="t", partitions=parts)])

    kafka.scripts[ApiKey.FIND_COORDINATOR] = lambda broker, request: FindCoordinatorResponse(
        node_id=1, host=kafka.bootstrap.partition("/")[0], port=9092
    )
    kafka.scripts[ApiKey.OFFSET_COMMIT] = commit
    kafka.scripts[ApiKey.OFFSET_DELETE] = delete


@pytest.mark.anyio
@pytest.mark.parametrize("what", ["alter", "delete"])
async def test_what_a_coordinator_gets_over_is_asked_for_again_and_the_rest_is_not(what: str) -> None:
    async with FakeKafka({"t": 2}, versions={**VERSIONS, **GROUPS}) as kafka, administering(kafka) as admin:
        codes: list[list[int]] = [[code, 0] for code in PASSING]
        codes.append([ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_MEMBER_ID])
        scripted(kafka, codes)
        partitions = [("t", 0), ("t", 1)]
        with pytest.raises(PartialFailureError) as caught:
            if what == "alter":
                await admin.alter_group_offsets("g", dict.fromkeys(partitions, 0))
            else:
                await admin.delete_group_offsets("g", partitions)
        assert isinstance(caught.value.failures["t-1"], UnknownMemberIdError)
        assert codes == []


@pytest.mark.anyio
async def test_an_offset_in_a_topic_that_was_just_created_is_committed_as_soon_as_the_coordinator_knows_it() -> None:
    async with FakeKafka({"t": 2}, versions={**VERSIONS, **GROUPS}) as kafka, administering(kafka) as admin:
        codes: list[list[int]] = [[0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], [0, 0]]
        scripted(kafka, codes)
        await admin.alter_group_offsets("g", {("t", 0): 0, ("t", 1): 0})
        assert codes == []
