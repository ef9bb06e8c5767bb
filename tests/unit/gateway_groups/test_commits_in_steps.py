"""Commits and deletions of so many offsets that they are worked on in steps, and what happens between two of these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import GeneratorType
from typing import Any, cast

import pytest

from kclient.errors import ErrorCode
from kclient.gateway.contexts import RequestContext
from kclient.gateway.groups.events import Leave
from kclient.gateway.groups.writer import Write
from kclient.htp.errors import StorageFullError
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
from tests.all_rows import scan_all
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
    topics = box.topics.by_name  # type: ignore[attr-defined]
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
        await box.groups.committed.topic_deleted("a")
        again = box.topics.by_name["a"] = FakeTopic("a", b"b" * 16, MANY)  # type: ignore[attr-defined]
        assert await codes_of(work) == {ErrorCode.UNKNOWN_TOPIC_ID}
        assert topics_of(box) == []
    async with coordinator(store) as box:
        box.topics.by_name["a"] = again  # type: ignore[attr-defined]
        assert topics_of(box) == []


async def test_a_commit_whose_topic_goes_while_it_is_stored(store: str) -> None:
    async with coordinator(store) as box:
        topic, work = many(box)
        work = until_it_waits(work)
        topic.gone = True
        await box.groups.committed.topic_deleted("a")
        assert await codes_of(work) == {ErrorCode.UNKNOWN_TOPIC_ID}
        assert topics_of(box) == []
        await box.groups.committed.forget_topic("a")
        assert await stored(box) == []


async def test_a_commit_is_refused_whole_when_its_member_has_gone_meanwhile(store: str) -> None:
    """The next generation has committed by then: that is not to be overwritten."""
    async with coordinator(store) as box:
        old = await box.member()
        fields = {"member_id": old.member_id, "generation_id_or_member_epoch": old.generation_id}
        _, work = many(box, **fields)
        assert box.groups.membership.leave("g", [Leave(old.member_id, None)]) == (ErrorCode.NONE, [ErrorCode.NONE])
        new = await box.member()
        assert new.generation_id > old.generation_id
        await committed(box, "g", a=100)
        assert await codes_of(work) == {ErrorCode.UNKNOWN_MEMBER_ID}
        offsets = box.groups.committed.of("g")
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
        deleted = box.groups.deletion.delete("g")
        assert isinstance(deleted, Write)
        assert await codes_of(work) == {0}
        assert await deleted.wait() is ErrorCode.NONE
        offsets = box.groups.committed.of("g")
        assert len(list(offsets.items()) if offsets else []) == len(await stored(box)) == (0 if submitted else MANY)


async def test_offsets_are_deleted_beside_the_deletion_of_their_group(store: str) -> None:
    async with coordinator(store) as box:
        _, work = many(box)
        assert await codes_of(work) == {0}
        wanted = [OffsetDeleteRequestPartition(partition_index=index) for index in range(MANY)]
        request = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="a", partitions=wanted)])
        work = begun(box, ApiKey.OFFSET_DELETE, request, 0)
        deleted = box.groups.deletion.delete("g")
        assert isinstance(deleted, Write)
        assert (await finished(work)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert await deleted.wait() is ErrorCode.NONE
        assert await stored(box) == []


def fails_from_part(box: Harness, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The store takes so many parts of a write, and no more."""
    monkeypatch.setattr("kclient.gateway.groups.writer.MAX_ROWS", 100)
    manager: Any = type(box.manager)
    commit, parts = manager.commit, 0

    async def until_then(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal parts
        parts += 1
        if parts > number:
            raise StorageFullError("no space left")
        return await commit(self, *args, **options)

    monkeypatch.setattr(manager, "commit", until_then)


def shown(box: Harness) -> list[tuple[int, int]]:
    offsets = box.groups.committed.of("g")
    return sorted((partition.partition, found.offset) for partition, found in offsets.items()) if offsets else []


@pytest.mark.parametrize("parts", [0, 1, 2])
async def test_a_commit_that_fails_half_way_is_shown_as_it_is_stored(
    store: str, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    """It goes to the store in parts: whoever asks is told the same before and after a restart."""
    async with coordinator(store) as box:
        _, work = many(box, 1)
        assert await codes_of(work) == {0}
        topic, work = many(box, 2)
        with monkeypatch.context() as patch:
            fails_from_part(box, patch, parts)
            assert await codes_of(work) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        live = shown(box)
        assert live == [(index, 2 if index < 100 * parts else 1) for index in range(MANY)]
    async with coordinator(store) as box:
        box.topics.by_name["a"] = topic  # type: ignore[attr-defined]
        box.groups.loader.load_offsets(await scan_all(box.manager, "group-offset/"), (), Counter(), lambda _: True)
        assert shown(box) == live


@pytest.mark.parametrize("parts", [0, 1, 3])
async def test_a_group_whose_deletion_fails_half_way_keeps_what_is_stored(
    store: str, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    async with coordinator(store) as box:
        _, work = many(box, 1)
        assert await codes_of(work) == {0}
        with monkeypatch.context() as patch:
            fails_from_part(box, patch, parts)
            deleted = box.groups.deletion.delete("g")
            assert isinstance(deleted, Write)
            assert await deleted.wait() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert shown(box) == [(index, 1) for index in range(100 * parts, MANY)]
        assert len(await stored(box)) == MANY - 100 * parts
