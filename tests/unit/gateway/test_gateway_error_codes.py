"""A store that fails for a moment: producers, consumers and groups are told what makes Java's clients try again.

Who changes topics and settings is told that it was the store, and may ask again: Java's Admin does so by itself only
where another gateway has taken over (NOT_CONTROLLER)."""

from __future__ import annotations

from typing import Any

import pytest

from kclient.errors import ClosedError, ErrorCode, KafkaError, RecordTooLargeError, error_for
from kclient.gateway.error_codes import Role, code_of
from kclient.htp import StorageError
from kclient.htp.errors import ConflictError, FencedError, HtpError, PositionError, StorageFullError, UnknownTopicError
from kclient.htp.memory.manager import MemoryManager
from kclient.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kclient.protocol.messages.produce import InitProducerIdRequest
from kclient.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.gateway_wire import batch_of, produce_request, running

pytestmark = pytest.mark.anyio

# by the role of the broker that is asked: what Java's request handlers take for a failure that passes, and for the
# controller also what is not tried again by itself and says that it may be
MAY_BE_ASKED_AGAIN = {
    Role.LEADER: {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER},
    Role.GROUPS: {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR},
    Role.PRODUCERS: {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS},
    Role.CONTROLLER: {ErrorCode.NOT_CONTROLLER, ErrorCode.KAFKA_STORAGE_ERROR},
}
PASSING = [StorageError("x"), StorageFullError("x"), FencedError("x"), ClosedError("x")]


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_what_passes_may_be_asked_again(role: Role, error: KafkaError) -> None:
    assert code_of(error, role, told=True) in MAY_BE_ASKED_AGAIN[role]


@pytest.mark.parametrize("error", [StorageError("x"), StorageFullError("x")], ids=lambda error: type(error).__name__)
def test_the_controller_names_the_store(error: KafkaError) -> None:
    code = code_of(error, Role.CONTROLLER, told=True)
    assert code == ErrorCode.KAFKA_STORAGE_ERROR
    assert error_for(code).retriable


def all_errors_of_htp() -> set[type[HtpError]]:
    found, new = set(), {HtpError}
    while new:
        found |= new
        new = {below for kind in new for below in kind.__subclasses__()} - found
    return {kind for kind in found if kind.__module__.startswith("kclient.")}


@pytest.mark.parametrize("role", Role)
def test_every_error_of_htp_has_a_code(role: Role) -> None:
    kinds = all_errors_of_htp()
    assert {ConflictError, FencedError, PositionError, StorageError, UnknownTopicError} <= kinds
    for kind in kinds:
        assert code_of(kind.__new__(kind), role, told=True) != ErrorCode.UNKNOWN_SERVER_ERROR, kind


def test_errors_that_have_a_code_keep_it() -> None:
    for role in Role:
        assert code_of(RecordTooLargeError("x"), role) == ErrorCode.MESSAGE_TOO_LARGE
    assert code_of(PositionError.__new__(PositionError)) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert code_of(UnknownTopicError("x")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def on_fire(*_: object, **__: object) -> None:
    raise StorageError("the disk is on fire")


def commit() -> OffsetCommitRequest:
    rows = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    return OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=rows)])


CALLS: dict[str, tuple[Any, int, Any, Role]] = {
    "InitProducerId": (
        lambda: InitProducerIdRequest(transactional_id=None), 4, lambda answer: answer.error_code, Role.PRODUCERS,
    ),
    "OffsetCommit": (commit, 8, lambda answer: answer.topics[0].partitions[0].error_code, Role.GROUPS),
    "CreateTopics": (
        lambda: CreateTopicsRequest(topics=[CreatableTopic(name="new", num_partitions=1, replication_factor=1)]),
        7, lambda answer: answer.topics[0].error_code, Role.CONTROLLER,
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
async def test_when_the_manager_fails(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer says that it passes, and when the request is sent again it is done."""
    made, version, code, role = CALLS[call]
    async with running(config={"group.initial.rebalance.delay.ms": 0}) as (_, wire):
        await wire.create("t")
        with monkeypatch.context() as failing:
            failing.setattr(MemoryManager, "commit", on_fire)
            first = await wire(made(), version)
        assert code(first) in MAY_BE_ASKED_AGAIN[role], first
        again = await wire(made(), version)
        assert code(again) in (0, ErrorCode.TOPIC_ALREADY_EXISTS), again


async def test_when_the_log_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"a"))
        partition = gateway.parts.partitions.get("t", 0)
        assert partition is not None
        with monkeypatch.context() as failing:
            failing.setattr(type(partition.stored_in), "send", on_fire)
            failing.setattr(type(partition.stored_in), "send_nowait", _on_fire_now, raising=False)
            row = await wire.produce("t", batch_of(b"b"))
            assert row.error_code in MAY_BE_ASKED_AGAIN[Role.LEADER], row
        request = produce_request("t", batch_of(b"c"))
        answer = await wire(request, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        assert await wire.values("t") == [b"a", b"c"]


def _on_fire_now(*_: object, **__: object) -> None:
    raise StorageError("the disk is on fire")
