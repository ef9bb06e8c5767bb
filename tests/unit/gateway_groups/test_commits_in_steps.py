"""Commits and deletions of so many offsets that they are worked on in steps, and what happens between two of these."""

from __future__ import annotations

from collections.abc import Iterator
from types import GeneratorType
from typing import Any, cast

import pytest

from kclient.errors import ErrorCode
from kclient.gateway.core import RequestContext
from kclient.gateway.groups.events import Leave
from kclient.gateway.groups.writer import Write
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kclient.protocol.registry import ApiKey
from tests.unit.gateway_groups.harness import (
    FakeTopic,
    Harness,
    committed,
    coordinator,
    finished,
    fresh_name,
    reset,
    stored,
    topics_of,
    until_it_waits,
)

pytestmark = pytest.mark.anyio

MANY = 300


@pytest.fixture
def store() -> Iterator[str]:
    name = fresh_name()
    yield name
    reset(name)


def many(box: Harness, offset: int = 7, **fields: Any) -> tuple[FakeTopic, Any]:
    """A commit of so many partitions of a topic that it is worked on in steps; three of them are done."""
    topics = box.core.topics.by_name  # type: ignore[attr-defined]
    topic = topics["a"] = FakeTopic("a", b"a" * 16, MANY)
    wanted = [OffsetCommitRequestPartition(partition_index=index, committed_offset=offset) for index in range(MANY)]
    request = OffsetCommitRequest(
        **{"group_id": "g", **fields},
        topics=[OffsetCommitRequestTopic(name="a", topic_id=topic.topic_id, partitions=wanted)],
    )
    return topic, begun(box, ApiKey.OFFSET_COMMIT, request, 10)


def begun(box: Harness, key: ApiKey, request: ApiMessage, version: int) -> Any:
    handler = box.table.handlers[key]
    work = handler.begin(request, RequestContext(key, version, 7, "c", box.connection, cast("Any", None)))
    assert isinstance(work, GeneratorType)
    for _ in range(3):
        next(work)
    return work


async def codes_of(work: Any) -> set[int]:
    response = await finished(work)
    codes = [row.error_code for row in response.topics[0].partitions]
    assert len(codes) == MANY
    return set(codes)


async def test_a_commit_is_that_of_the_topic_that_it_found(store: str) -> None:
    """Many partitions are worked on in steps, and the topic may be made again between two of them."""
    async with coordinator(store) as box:
        old, work = many(box)
        old.gone = True
        box.groups.topic_deleted("a")
        again = box.core.topics.by_name["a"] = FakeTopic("a", b"b" * 16, MANY)  # type: ignore[attr-defined]
        assert await codes_of(work) == {ErrorCode.UNKNOWN_TOPIC_ID}
        assert topics_of(box) == []
    async with coordinator(store) as box:
        box.core.topics.by_name["a"] = again  # type: ignore[attr-defined]
        assert topics_of(box) == []


async def test_a_commit_whose_topic_goes_while_it_is_stored(store: str) -> None:
    async with coordinator(store) as box:
        topic, work = many(box)
        work = until_it_waits(work)
        topic.gone = True
        box.groups.topic_deleted("a")
        assert await codes_of(work) == {ErrorCode.UNKNOWN_TOPIC_ID}
        assert topics_of(box) == []
        await box.groups.forget_topic("a")
        assert await stored(box) == []


async def test_a_commit_is_refused_whole_when_its_member_has_gone_meanwhile(store: str) -> None:
    """The next generation has committed by then: that is not to be overwritten."""
    async with coordinator(store) as box:
        old = await box.member()
        fields = {"member_id": old.member_id, "generation_id_or_member_epoch": old.generation_id}
        _, work = many(box, **fields)
        assert box.groups.leave("g", [Leave(old.member_id, None)]) == (ErrorCode.NONE, [ErrorCode.NONE])
        new = await box.member()
        assert new.generation_id > old.generation_id
        await committed(box, "g", a=100)
        assert await codes_of(work) == {ErrorCode.UNKNOWN_MEMBER_ID}
        offsets = box.groups.offsets("g")
        assert offsets is not None
        assert [found.offset for _, found in offsets.items()] == [100]


@pytest.mark.parametrize("submitted", [False, True])
async def test_a_commit_beside_the_deletion_of_its_group(store: str, *, submitted: bool) -> None:
    """All of it is there afterwards if it came last, and nothing of it if it came first."""
    async with coordinator(store) as box:
        await committed(box, "g", b=1)
        _, work = many(box)
        if submitted:
            work = until_it_waits(work)
        deleted = box.groups.delete("g")
        assert isinstance(deleted, Write)
        assert await codes_of(work) == {0}
        assert await deleted.wait() is ErrorCode.NONE
        offsets = box.groups.offsets("g")
        assert len(list(offsets.items()) if offsets else []) == len(await stored(box)) == (0 if submitted else MANY)


async def test_offsets_are_deleted_beside_the_deletion_of_their_group(store: str) -> None:
    async with coordinator(store) as box:
        _, work = many(box)
        assert await codes_of(work) == {0}
        wanted = [OffsetDeleteRequestPartition(partition_index=index) for index in range(MANY)]
        request = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="a", partitions=wanted)])
        work = begun(box, ApiKey.OFFSET_DELETE, request, 0)
        deleted = box.groups.delete("g")
        assert isinstance(deleted, Write)
        assert (await finished(work)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert await deleted.wait() is ErrorCode.NONE
        assert await stored(box) == []
