"""Groups go with the last of their offsets, unless somebody is in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kclient.errors import ErrorCode
from kclient.gateway.groups.events import Leave
from kclient.gateway.rows.groups import CommittedOffset
from kclient.htp import StorageError
from kclient.protocol.messages import (
    ListGroupsRequest,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kclient.types import TopicPartition
from tests.all_rows import scan_all
from tests.unit.gateway_groups.harness import Harness, committed, coordinator, fresh_name, reset, stored

pytestmark = pytest.mark.anyio

A0 = TopicPartition("a", 0)


@pytest.fixture
def store() -> Iterator[str]:
    name = fresh_name()
    yield name
    reset(name)


async def listed(box: Harness) -> list[str]:
    return [group.group_id for group in (await box.ask(ListGroupsRequest())).groups]


async def delete_offset(box: Harness, topic: str, group: str = "g") -> int:
    wanted = [OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])]
    answer = await box.ask(OffsetDeleteRequest(group_id=group, topics=wanted))
    return int(answer.error_code or answer.topics[0].partitions[0].error_code)


async def rows(box: Harness) -> list[str]:
    """All that is stored of groups."""
    await committed(box, "another", e=1)  # what was begun before is stored with it, or before it
    return [*await scan_all(box.manager, "group/"), *await stored(box)]


async def left_by_its_member(box: Harness) -> None:
    joined = await box.member()
    await committed(box, "g", a=1, b=1)
    box.groups.membership.leave("g", [Leave(joined.member_id)])


async def test_with_the_last_one_that_is_deleted(store: str) -> None:
    async with coordinator(store) as box:
        await committed(box, "g", a=1, b=1)
        assert await delete_offset(box, "a") == 0
        assert await listed(box) == ["g"]
        assert await delete_offset(box, "b") == 0
        assert await listed(box) == []
        assert await delete_offset(box, "b") == ErrorCode.GROUP_ID_NOT_FOUND
        assert await rows(box) == ["another/e/0"]


async def test_one_that_had_members_goes_with_its_row(store: str) -> None:
    async with coordinator(store) as box:
        await left_by_its_member(box)
        await delete_offset(box, "a")
        await delete_offset(box, "b")
        assert await listed(box) == []
        assert await rows(box) == ["another/e/0"]
    async with coordinator(store) as box:
        assert await listed(box) == ["another"]


async def test_with_the_last_topic(store: str) -> None:
    async with coordinator(store) as box:
        await left_by_its_member(box)
        await committed(box, "h", a=1)
        topics: Any = box.topics
        for name, left in (("a", ["g"]), ("b", [])):
            topics.by_name[name].gone = True
            await box.groups.committed.topic_deleted(name)
            assert await listed(box) == left
        for name in "ab":
            await box.groups.committed.forget_topic(name)
        assert await rows(box) == ["another/e/0"]


async def test_not_while_somebody_is_in_it(store: str) -> None:
    async with coordinator(store) as box:
        await box.member()
        await committed(box, "g", b=1)
        assert await delete_offset(box, "b") == 0
        assert await listed(box) == ["g"]
        pending = await box.join("p", version=4)
        assert pending.error_code == ErrorCode.MEMBER_ID_REQUIRED
        await committed(box, "p", b=1)
        assert await delete_offset(box, "b", "p") == 0
        assert await listed(box) == ["g", "p"], "its member is expected"


async def test_not_while_another_offset_is_on_its_way(store: str) -> None:
    async with coordinator(store) as box:
        await committed(box, "g", a=1)
        deletion = box.begin(
            OffsetDeleteRequest(
                group_id="g",
                topics=[OffsetDeleteRequestTopic(name="a", partitions=[OffsetDeleteRequestPartition()])],
            )
        )
        late = box.store_offsets("g", {TopicPartition("b", 0): CommittedOffset(5)})
        await deletion()
        assert await late.wait() is ErrorCode.NONE
        assert await listed(box) == ["g"]
        assert await stored(box) == ["g/b/0"]


async def test_one_whose_first_commit_fails_is_none(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_args: Any, **_kwargs: Any) -> int:
        raise StorageError("the disk is full")

    async with coordinator(store) as box:
        await left_by_its_member(box)
        with monkeypatch.context() as patch:
            patch.setattr(type(box.manager), "commit", fail)
            assert await box.store_offsets("new", {A0: CommittedOffset(1)}).wait() is not ErrorCode.NONE
            assert await delete_offset(box, "a") != 0
        assert "g" in await listed(box)
        assert await delete_offset(box, "a") == 0
        assert await listed(box) == ["g", "new"], "what could not be stored may be there, and goes with it"
