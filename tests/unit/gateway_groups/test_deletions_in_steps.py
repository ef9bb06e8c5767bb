"""Deletions of groups that fail half-way, and what happens between any two of their steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode
from kclient.gateway.groups.events import Leave
from kclient.gateway.groups.offsets import GroupOffsets
from kclient.gateway.groups.writer import Write
from kclient.gateway.rows.groups import CommittedOffset
from kclient.htp.errors import OutcomeUnknownError, StorageError, StorageFullError
from kclient.protocol.messages.groups import LeaveGroupRequest
from kclient.protocol.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kclient.types import TopicPartition
from tests.unit.gateway_groups.harness import (
    FakeTopic,
    Harness,
    committed,
    coordinator,
    fresh_name,
    reset,
    stored,
    topics_of,
)
from tests.unit.gateway_groups.moments import Moments

pytestmark = pytest.mark.anyio


@pytest.fixture
def store() -> Iterator[str]:
    name = fresh_name()
    yield name
    reset(name)


async def commits(box: Harness, group: str, **offsets: int) -> None:
    """Three partitions of each topic."""
    now = box.clock.wall_ms()
    values = {
        TopicPartition(topic, number): CommittedOffset(at, commit_ms=now)
        for topic, at in offsets.items()
        for number in range(3)
    }
    assert await box.store_offsets(group, values).wait() is ErrorCode.NONE


def fails_half_way(box: Harness, monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    """Of a deletion of group `g` the part with partition 0 of topic `c` fails, so many times."""
    manager: Any = type(box.manager)
    commit, left = manager.commit, times

    async def failing(self: Any, writes: Any, *args: Any, **options: Any) -> Any:
        nonlocal left
        if left and writes.get("group-offset/g/c/0", b"") is None:
            left -= 1
            raise StorageFullError("no space left")
        return await commit(self, writes, *args, **options)

    monkeypatch.setattr("kclient.gateway.groups.writer.MAX_ROWS", 4)
    monkeypatch.setattr(manager, "commit", failing)


def loses_answers(box: Harness, monkeypatch: pytest.MonkeyPatch, error: type[Exception] = OutcomeUnknownError) -> None:
    """What goes to the store is done from now on, and nobody is told."""
    manager: Any = type(box.manager)
    commit = manager.commit

    async def losing(self: Any, *args: Any, **options: Any) -> Any:
        await commit(self, *args, **options)
        raise error("the answer was lost")

    monkeypatch.setattr(manager, "commit", losing)


async def silent(*_args: Any, **_options: Any) -> None:
    raise StorageError("no answer")


async def commits_in_doubt(box: Harness, group: str, topic: str, number: int) -> None:
    """An offset that the store has, and the gateway does not know it."""
    with pytest.MonkeyPatch.context() as patch:
        loses_answers(box, patch)
        lost = box.store_offsets(group, {TopicPartition(topic, number): CommittedOffset(7)})
        assert await lost.wait() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert f"{group}/{topic}/{number}" in await stored(box)


def deleted(box: Harness) -> Write:
    write = box.groups.deletion.delete("g")
    assert isinstance(write, Write)
    return write


async def topic_goes(box: Harness, name: str) -> None:
    """As it does when it is deleted, and another one of its name is made at once."""
    topics: Any = box.topics
    topics.by_name.pop(name).gone = True
    await box.groups.committed.topic_deleted(name)
    await box.groups.committed.forget_topic(name)
    topics.by_name[name] = FakeTopic(name, b"again" + bytes(11))


@pytest.mark.parametrize("namesake", [False, True])
@pytest.mark.parametrize("going", ["b", "d"])
async def test_a_topic_that_goes_while_a_group_is_put_back_takes_its_offsets_along(
    monkeypatch: pytest.MonkeyPatch, going: str, *, namesake: bool
) -> None:
    """Whatever the moment; a part of `b` has been removed with the group when the rest could not be, of `d` nothing."""
    moment, moments = 0, None
    while moments is None or moments.past >= moment:
        store = fresh_name()
        with monkeypatch.context() as patch:
            async with coordinator(store) as box:
                await commits(box, "g", a=1, b=2, c=3, d=4)
                fails_half_way(box, patch)
                async with anyio.create_task_group() as tasks:
                    moments = Moments(patch, tasks, moment, partial(topic_goes, box, going))
                    gone = deleted(box)
                    if namesake:
                        await commits(box, "g", e=5)
                    assert await gone.wait() is ErrorCode.COORDINATOR_NOT_AVAILABLE
                if moments.past > moment:
                    assert going not in topics_of(box), f"moment {moment}"
                    assert not [key for key in await stored(box) if key.startswith(f"g/{going}/")]
                assert ("e" in topics_of(box)) is namesake
        reset(store)
        moment += 1
    assert moment > 12


async def test_a_group_that_comes_while_another_is_put_back_and_goes_too_takes_all_along(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deletion is acknowledged: nothing of that name is there afterwards."""
    async with coordinator(store) as box:
        await commits(box, "g", a=1, b=2, c=3)
        fails_half_way(box, monkeypatch)
        first = deleted(box)
        newer = box.store_offsets("g", {TopicPartition("d", 0): CommittedOffset(4)})
        second = deleted(box)
        assert await first.wait() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await newer.wait() is ErrorCode.NONE
        assert await second.wait() is ErrorCode.NONE
        assert box.groups.committed.of("g") is None
        assert await stored(box) == []


async def test_both_groups_of_a_name_are_put_back(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with coordinator(store) as box:
        await commits(box, "g", a=1, b=2, c=3)
        fails_half_way(box, monkeypatch, 2)
        first = deleted(box)
        newer = box.store_offsets("g", {TopicPartition("d", 0): CommittedOffset(4)})
        second = deleted(box)
        assert await first.wait() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await newer.wait() is ErrorCode.NONE
        assert await second.wait() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        offsets = box.groups.committed.of("g")
        shown = [] if offsets is None else [f"g/{each.topic}/{each.partition}" for each, _ in offsets.items()]
        assert shown == sorted(await stored(box))


@pytest.mark.parametrize("error", [OutcomeUnknownError, StorageError])
@pytest.mark.parametrize("few", [1, 10])
async def test_a_commit_whose_answer_was_lost_goes_with_its_group(
    store: str, monkeypatch: pytest.MonkeyPatch, error: type[Exception], few: int
) -> None:
    """Whether it went alone or with others."""
    monkeypatch.setattr("kclient.gateway.groups.committed._FEW", few)
    async with coordinator(store) as box:
        with monkeypatch.context() as patch:
            loses_answers(box, patch, error)
            lost = {TopicPartition("a", number): CommittedOffset(7) for number in range(2)}
            assert await box.store_offsets("g", lost).wait() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        await committed(box, "g", b=1)
        assert len(await stored(box)) == 3
        assert topics_of(box) == ["b"], "it is not told"
        assert await deleted(box).wait() is ErrorCode.NONE
        assert await stored(box) == []
    async with coordinator(store) as box:
        assert not box.groups.table.groups


async def test_a_commit_whose_answer_was_lost_goes_with_a_group_that_expires(store: str) -> None:
    async with coordinator(store) as box:
        await commits_in_doubt(box, "g", "a", 0)
        box.groups.expiry.expire()
        await box.groups._writer.drain()
        assert not box.groups.table.groups
        assert await stored(box) == []


async def test_a_commit_whose_answer_was_lost_is_remembered_though_nobody_joins_its_group(store: str) -> None:
    """Of a group of which nothing else is known: who asks to join it and does not come back does not end it."""
    async with coordinator(store) as box:
        await commits_in_doubt(box, "g", "a", 0)
        joined = await box.join(version=4)
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert (await box.ask(LeaveGroupRequest(group_id="g", member_id=joined.member_id), 1)).error_code == 0
        assert await deleted(box).wait() is ErrorCode.NONE
        assert await stored(box) == []


@pytest.mark.parametrize("tells", [False, True])
async def test_offsets_that_were_deleted_though_the_answer_was_lost_are_told_no_more(
    store: str, monkeypatch: pytest.MonkeyPatch, *, tells: bool
) -> None:
    """Those of members that go on from them would not after the next start; unless the store does not tell that."""
    partition = OffsetDeleteRequestPartition(partition_index=0)
    topics = [OffsetDeleteRequestTopic(name=name, partitions=[partition]) for name in ("a", "b")]
    async with coordinator(store) as box:
        await committed(box, "g", a=1, b=2, c=3)
        with monkeypatch.context() as patch:
            loses_answers(box, patch)
            if not tells:
                patch.setattr(type(box.manager), "get", silent)
            answer = await box.ask(OffsetDeleteRequest(group_id="g", topics=topics))
            assert [topic.partitions[0].error_code for topic in answer.topics] == [
                ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ]  # fmt: skip
        assert await stored(box) == ["g/c/0"]
        assert topics_of(box) == (["c"] if tells else ["a", "b", "c"])
        assert await deleted(box).wait() is ErrorCode.NONE
        assert box.groups._memory.offsets.held == 0


@pytest.mark.parametrize("again", [False, True])
async def test_a_commit_whose_answer_was_lost_goes_with_its_topic(store: str, *, again: bool) -> None:
    """Also where it was tried again."""
    async with coordinator(store) as box:
        await commits_in_doubt(box, "g", "a", 0)
        if again:
            await committed(box, "g", a=8)
        await topic_goes(box, "a")
        assert await stored(box) == []
        await committed(box, "g", a=9)
        assert await deleted(box).wait() is ErrorCode.NONE
        assert box.groups._memory.offsets.held == 0, "nothing is counted for ever"


@pytest.mark.parametrize("namesake", [False, True])
async def test_a_commit_whose_answer_was_lost_stays_with_a_group_that_is_put_back(
    store: str, monkeypatch: pytest.MonkeyPatch, *, namesake: bool
) -> None:
    async with coordinator(store) as box:
        await commits(box, "g", a=1, b=2, c=3)
        await commits_in_doubt(box, "g", "d", 0)
        fails_half_way(box, monkeypatch)
        first = deleted(box)
        if namesake:
            await committed(box, "g", e=5)
        assert await first.wait() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "g/d/0" in await stored(box)
        assert await deleted(box).wait() is ErrorCode.NONE
        assert await stored(box) == []


@pytest.mark.parametrize("namesake", [False, True])
@pytest.mark.parametrize("rows", [4, 2_000])
async def test_a_group_that_was_deleted_though_the_answer_was_lost_is_put_back_without_offsets(
    store: str, monkeypatch: pytest.MonkeyPatch, rows: int, *, namesake: bool
) -> None:
    """Those that the store has removed; in parts the first of them alone."""
    monkeypatch.setattr("kclient.gateway.groups.writer.MAX_ROWS", rows)
    async with coordinator(store) as box:
        await commits(box, "g", a=1, b=2)
        with monkeypatch.context() as patch:
            loses_answers(box, patch)
            write = deleted(box)
            if namesake:
                box.groups.table.create("g")
            assert await write.wait() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        there = box.groups.table.groups.get("g")
        shown = [] if there is None else [f"g/{each.topic}/{each.partition}" for each, _ in there.offsets.items()]
        assert shown == sorted(await stored(box)) == (["g/b/1", "g/b/2"] if rows == 4 else [])
        if rows == 4 or namesake:
            assert await deleted(box).wait() is ErrorCode.NONE
        else:
            assert box.groups.deletion.delete("g") is ErrorCode.GROUP_ID_NOT_FOUND, "nothing of it is left"
        assert await stored(box) == []


async def test_a_group_is_put_back_whole_where_the_store_does_not_tell_what_is_left(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be there still, and who reads on from it loses nothing."""
    async with coordinator(store) as box:
        await commits(box, "g", a=1)
        with monkeypatch.context() as patch:
            patch.setattr(type(box.manager), "get", silent)
            patch.setattr(type(box.manager), "commit", silent)
            assert await deleted(box).wait() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert topics_of(box) == ["a"]
        assert await deleted(box).wait() is ErrorCode.NONE


def test_offsets_of_a_topic_that_is_dropped_are_left_out_from_then_on() -> None:
    offsets = GroupOffsets()
    for topic, number in itertools.product("ab", range(3)):
        offsets.put(TopicPartition(topic, number), CommittedOffset(1))
    items = offsets.items()
    assert next(items)[0] == ("a", 0)
    offsets.drop_topic("a")
    offsets.put(TopicPartition("a", 1), CommittedOffset(2))
    assert [partition for partition, _ in items] == [("b", 0), ("b", 1), ("b", 2)]


async def test_offsets_are_not_deleted_of_a_group_that_goes_while_its_members_are_looked_at(store: str) -> None:
    """Nor of another one of its name."""
    async with coordinator(store) as box:
        member = await box.member()
        steps = box.groups.committed.check_delete("g", "a")
        next(steps)
        box.groups.membership.leave("g", [Leave(member.member_id, None)])
        assert await deleted(box).wait() is ErrorCode.NONE
        await commits(box, "g", a=1)
        with pytest.raises(StopIteration) as end:
            while True:
                next(steps)
        assert end.value.value == (ErrorCode.GROUP_ID_NOT_FOUND, ())
