"""The coordinator: it keeps time, stores what the groups ask for, and takes it up again after a restart."""

from __future__ import annotations

import gc
import itertools
import logging
import tracemalloc
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode, KafkaError
from kclient.gateway.clock import Clock
from kclient.gateway.groups import GroupCoordinator
from kclient.gateway.groups.events import Leave
from kclient.gateway.groups.offsets import GroupOffsets
from kclient.gateway.groups.states import GroupState
from kclient.gateway.groups.writer import Write
from kclient.gateway.rows.groups import CommittedOffset
from kclient.htp.errors import FencedError, StorageError
from kclient.memory_ledger import MemoryLedger
from kclient.protocol.messages import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
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
    subscription,
    topics_of,
)

pytestmark = pytest.mark.anyio

A0 = TopicPartition("a", 0)
A1 = TopicPartition("a", 1)
B0 = TopicPartition("b", 0)


@pytest.fixture
def store() -> Iterator[str]:
    name = fresh_name()
    yield name
    reset(name)


def late() -> Clock:
    """A clock whose wall time is days ahead."""
    return Clock(wall_ms=lambda: Clock().wall_ms() + 8 * 24 * 3_600_000)


async def test_members_and_offsets_survive_a_restart(store: str) -> None:
    async with coordinator(store) as box:
        joined = await box.member()
        assert (
            box.groups.committed.check_commit("g", joined.member_id, None, 1, missing=ErrorCode.ILLEGAL_GENERATION) == 0
        )
        await committed(box, "g", a=42)
    async with coordinator(store) as box:
        assert box.groups.table.groups["g"].group.state is GroupState.STABLE
        assert box.groups.membership.heartbeat("g", joined.member_id, None, 1) is ErrorCode.NONE
        again = await box.sync(joined)
        assert again.assignment == b"mine"
        offsets = box.groups.committed.of("g")
        assert offsets is not None
        found = offsets.get("a", 0)
        assert found is not None
        assert found.offset == 42


async def test_generation_of_an_empty_group_survives_a_restart(store: str) -> None:
    async with coordinator(store) as box:
        joined = await box.member()
        assert box.groups.membership.leave("g", [Leave(joined.member_id)]) == (ErrorCode.NONE, [ErrorCode.NONE])
    async with coordinator(store) as box:
        assert box.groups.table.groups["g"].group.state is GroupState.EMPTY
        assert (await box.join()).generation_id == 3


async def test_names_with_slashes_and_other_signs(store: str) -> None:
    group = "team/ä%2F é"
    async with coordinator(store) as box:
        await box.member(group)
        await committed(box, group, a=1)
        await committed(box, group + "/a", a=2)
    async with coordinator(store) as box:
        assert sorted(box.groups.table.groups) == [group, group + "/a"]
        offsets = box.groups.committed.of(group)
        assert offsets is not None
        assert [(str(partition), value.offset) for partition, value in offsets.items()] == [("a-0", 1)]


async def test_sessions_end_by_themselves(store: str) -> None:
    async with coordinator(store, group_min_session_timeout_ms=10) as box:
        joined = await box.join(session_timeout_ms=50, rebalance_timeout_ms=50)
        await box.sync(joined)
        group = box.groups.table.groups["g"].group
        with anyio.fail_after(10):
            while group.state is not GroupState.EMPTY:
                await anyio.sleep(0.005)
        assert box.groups.membership.heartbeat("g", joined.member_id, None, 1) is ErrorCode.UNKNOWN_MEMBER_ID


async def test_an_earlier_deadline_wakes_the_clock(store: str) -> None:
    """The retention check is ten minutes away when the group asks for its first delay."""
    async with coordinator(store, group_initial_rebalance_delay_ms=30) as box:
        with anyio.fail_after(10):
            await box.member()


async def test_a_cancelled_wait_changes_nothing(store: str) -> None:
    async with coordinator(store, group_initial_rebalance_delay_ms=50) as box:
        request = JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=30_000, protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("a"))],
        )  # fmt: skip
        finish = box.begin(request, 3)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await finish()
        assert scope.cancelled_caught
        with anyio.fail_after(10):
            second = await box.join()
        assert second.error_code == 0
        assert len(box.groups.table.groups["g"].group.members) == 2


async def test_closing_answers_what_is_parked(store: str) -> None:
    answers: list[int] = []
    async with anyio.create_task_group() as tasks:
        async with coordinator(store, group_initial_rebalance_delay_ms=60_000) as box:

            async def wait() -> None:
                answers.append((await box.join()).error_code)

            tasks.start_soon(wait)
            while "g" not in box.groups.table.groups:
                await anyio.sleep(0)
        assert (await box.join()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert answers == [ErrorCode.NOT_COORDINATOR]


async def test_commits_of_one_partition_keep_their_order(store: str) -> None:
    async with coordinator(store) as box:
        writes = [box.store_offsets("g", {A0: CommittedOffset(offset)}) for offset in range(100)]
        offsets = box.groups.committed.of("g")
        assert offsets is not None
        assert offsets.get("a", 0) is None  # not visible before it is stored
        for write in writes:
            assert await write.wait() is ErrorCode.NONE
        assert offsets.get("a", 0) == CommittedOffset(99)
    async with coordinator(store) as box:
        offsets = box.groups.committed.of("g")
        assert offsets is not None
        assert offsets.get("a", 0) == CommittedOffset(99)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (StorageError("the disk is gone"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (FencedError("too late"), ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_a_failed_commit_is_not_visible(
    store: str,
    failure: Exception,
    code: ErrorCode,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with coordinator(store) as box:
        await committed(box, "g", a=1)

        async def fail(*_args: Any, **_kwargs: Any) -> int:
            raise failure

        with monkeypatch.context() as patch:
            patch.setattr(type(box.manager), "commit", fail)
            assert await box.store_offsets("g", {A0: CommittedOffset(2)}).wait() is code
            deleted = box.groups.deletion.delete("g")
            assert isinstance(deleted, Write)
            assert await deleted.wait() is code
        told = [record.getMessage() for record in caplog.records if str(failure) in record.getMessage()]
        assert told == [f"groups and offsets could not be stored: {failure}"] * 2, "once for each write"
        offsets = box.groups.committed.of("g")  # the group is still there, as it is in the store
        assert offsets is not None
        assert offsets.get("a", 0) is not None
        await committed(box, "g", a=3)


async def test_delete_takes_commits_along_that_are_under_way(store: str) -> None:
    async with coordinator(store) as box:
        await committed(box, "g", a=1)
        late = box.store_offsets("g", {B0: CommittedOffset(5)})
        deleted = box.groups.deletion.delete("g")
        assert isinstance(deleted, Write)
        again = box.store_offsets("g", {A1: CommittedOffset(7)})
        for write in (late, deleted, again):
            assert await write.wait() is ErrorCode.NONE
    async with coordinator(store) as box:
        offsets = box.groups.committed.of("g")
        assert offsets is not None
        assert [partition for partition, _ in offsets.items()] == [A1]


async def test_a_group_that_could_not_be_deleted_keeps_its_offsets(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if another one of its name has come meanwhile: what that commits is newer."""
    async with coordinator(store) as box:
        await committed(box, "g", a=1, b=2, c=3)
        commit = type(box.manager).commit

        async def fail_once(*_: Any, **__: Any) -> None:
            monkeypatch.setattr(type(box.manager), "commit", commit)
            raise StorageError("the disk is full")

        monkeypatch.setattr(type(box.manager), "commit", fail_once)
        deleted = box.groups.deletion.delete("g")
        assert isinstance(deleted, Write)
        late = box.store_offsets("g", {B0: CommittedOffset(20)})
        await box.groups.committed.topic_deleted("c")
        assert await deleted.wait() is not ErrorCode.NONE
        assert await late.wait() is ErrorCode.NONE
        await box.groups.committed.forget_topic("c")
        offsets = box.groups.committed.of("g")
        assert offsets is not None
        assert {partition.topic: found.offset for partition, found in offsets.items()} == {"a": 1, "b": 20}
        assert len(await stored(box)) == 2


class Made:
    """A row that is made."""

    few: int | None = None
    length: int = 0

    def __init__(self, value: bytes) -> None:
        self.value = value

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        yield "made", self.value

    def stored(self) -> tuple[()]:
        return ()


async def test_rows_that_are_made_go_alone(store: str) -> None:
    """Also behind a write that has none: all of its topics have gone."""
    async with coordinator(store) as box:
        writer = box.groups._writer
        writes = [
            writer.submit("g", {}, lambda _: ()),
            writer.submit("g", Made(b"1"), lambda _: ()),
            writer.submit("g", {"plain": b"2"}, lambda _: ()),
            writer.submit("g", {}, lambda _: ()),
            writer.submit("g", Made(b"3"), lambda _: ()),
        ]
        for write in writes:
            assert await write.wait() is ErrorCode.NONE
        rows = await box.manager.get(["made", "plain"])
        assert {key: row.value for key, row in rows.items()} == {"made": b"3", "plain": b"2"}


async def test_offsets_of_a_deleted_topic_go(store: str) -> None:
    async with coordinator(store) as box:
        await committed(box, "g", a=1, b=2)
        late = box.store_offsets("g", {A1: CommittedOffset(5)})
        topics: Any = box.topics
        topics.by_name["a"].gone = True  # before the groups are told: a commit that ends later looks at it
        await box.groups.committed.topic_deleted("a")
        assert topics_of(box) == ["b"]
        await box.groups.committed.forget_topic("a")
        assert await late.wait() is ErrorCode.NONE
        assert await stored(box) == ["g/b/0"]


async def test_offsets_that_could_not_be_removed_are_removed_later(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_args: Any, **_kwargs: Any) -> int:
        raise StorageError("the disk is full")

    async with coordinator(store) as box:
        await committed(box, "g", a=1, b=2)
        with monkeypatch.context() as patch:
            patch.setattr(type(box.manager), "commit", fail)
            await box.groups.committed.topic_deleted("a")
            with pytest.raises(KafkaError, match="topic a"):
                await box.groups.committed.forget_topic("a")
        await box.groups.committed.forget_topic("a")
        assert await stored(box) == ["g/b/0"]


async def test_offsets_of_a_deleted_topic_count_until_they_are_removed(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_args: Any, **_kwargs: Any) -> int:
        raise StorageError("the disk is full")

    async with coordinator(store) as box:
        await committed(box, "g" * 1000, a=1, b=1)
        account = box.groups._memory.offsets
        before, size = account.held, 220 + 230  # of an offset and its topic
        topics: Any = box.topics
        topics.by_name.pop("a").gone = True
        await box.groups.committed.topic_deleted("a")
        assert account.held > before - size + 1000
        with monkeypatch.context() as patch:
            patch.setattr(type(box.manager), "commit", refuse)
            with pytest.raises(KafkaError):
                await box.groups.committed.forget_topic("a")
        assert account.held > before - size + 1000
        await box.groups.committed.forget_topic("a")
        assert account.held == before - size


async def test_a_commit_leaves_nothing_of_a_topic_that_has_just_gone(store: str) -> None:
    async with coordinator(store) as box:
        topics: Any = box.topics
        del topics.by_name["a"]
        one = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
        wanted = [OffsetCommitRequestTopic(name=name, partitions=one) for name in "ab"]
        answer = await box.ask(OffsetCommitRequest(group_id="g", topics=wanted), 9)
        codes = [topic.partitions[0].error_code for topic in answer.topics]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
        assert await stored(box) == ["g/b/0"]


async def restarted(box: Harness) -> GroupCoordinator:
    """Another coordinator over the same store, as after a restart."""
    box.renew()
    await box.groups.start()
    return box.groups


async def test_offsets_of_a_topic_whose_deletion_was_cut_off_go(store: str) -> None:
    async with coordinator(store) as box:
        await committed(box, "g", a=1, b=2)
        topics: Any = box.topics
        topics.left.add(("a", topics.by_name.pop("a").topic_id))
        fresh = await restarted(box)
        assert topics_of(box) == ["b"]
        await fresh.committed.forget_topic("a")
        assert await stored(box) == ["g/b/0"]


@pytest.mark.parametrize("how", ["another id", "no topic"])
async def test_offsets_are_kept_where_nothing_tells_of_a_deletion(
    store: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They are not taken for those of a namesake, and are there again with their topic."""
    async with coordinator(store) as box:
        await committed(box, "g", a=1, b=2)
        topics: Any = box.topics
        topic = topics.by_name.pop("a")
        if how == "another id":
            topics.by_name["a"] = FakeTopic("a", b"another one here")
        await restarted(box)
        assert topics_of(box) == ["b"]
        assert "1 committed offsets of a topic a count as not committed" in caplog.text
        topics.by_name["a"] = topic
        await restarted(box)
        assert topics_of(box) == ["a", "b"]


async def test_offsets_that_belong_to_nothing_are_not_kept_for_ever(store: str) -> None:
    async with coordinator(store) as box:
        await committed(box, "g", a=1, b=2)
    async with coordinator(store, late()) as box:
        topics: Any = box.topics
        del topics.by_name["a"]
        await restarted(box)
        await committed(box, "g", b=3)  # the queue keeps the order
        assert await stored(box) == ["g/b/0"]


async def test_offsets_of_a_topic_that_cannot_be_read_are_there_and_do_not_expire(store: str) -> None:
    async with coordinator(store) as box:
        await committed(box, "g", a=1, b=2)
    async with coordinator(store, late()) as box:
        topics: Any = box.topics
        topics.by_name.clear()
        topics.damaged["a"] = "its row cannot be read"
        fresh = await restarted(box)
        assert topics_of(box) == ["a"]
        fresh.expiry.expire()
        assert topics_of(box) == ["a"]
        await fresh.committed.topic_deleted("a")
        await fresh.committed.forget_topic("a")
        assert await stored(box) == []


# ---- retention (KIP-211) ------------------------------------------------------------------------------------------


async def test_offsets_of_simple_consumers_expire(store: str) -> None:
    async with coordinator(store) as box:
        await committed(box, "g", a=1)
        box.groups.expiry.expire()
        assert box.groups.committed.of("g") is not None
    async with coordinator(store, late()) as box:
        box.groups.expiry.expire()
        assert box.groups.committed.of("g") is None
    async with coordinator(store) as box:
        assert not box.groups.table.groups


async def test_offsets_of_an_empty_group_count_from_when_it_became_empty(store: str) -> None:
    async with coordinator(store) as box:
        joined = await box.member()
        await committed(box, "g", a=1)
    async with coordinator(store, late()) as box:
        box.groups.expiry.expire()
        assert box.groups.committed.of("g")  # a member reads it
        box.groups.membership.leave("g", [Leave(joined.member_id)])
        box.groups.expiry.expire()
        assert box.groups.committed.of("g")  # empty since now


async def test_a_group_whose_row_cannot_be_read_counts_as_empty_since_the_start(store: str) -> None:
    """Its offsets may be old because nothing came, not because nobody read."""
    async with coordinator(store) as box:
        await box.member()
        await committed(box, "g", a=1)
        await box.manager.commit({"group/g": b"no row"})
    async with coordinator(store, late()) as box:
        box.groups.expiry.expire()
        assert topics_of(box) == ["a"]


async def test_nothing_expires_while_the_settings_cannot_be_read(store: str) -> None:
    async with coordinator(store) as box:
        await committed(box, "g", a=1)
    async with coordinator(store, late()) as box:
        box.dynamic.unreadable = True
        box.groups.expiry.expire()
        assert topics_of(box) == ["a"]
        box.dynamic.unreadable = False
        box.groups.expiry.expire()
        assert topics_of(box) == []


async def test_offsets_of_topics_nobody_reads_expire_in_a_stable_group(store: str) -> None:
    async with coordinator(store) as box:
        await box.member()
        await committed(box, "g", a=1, b=2)
    async with coordinator(store, late()) as box:
        box.groups.expiry.expire()
        await committed(box, "other", c=1)
        offsets = box.groups.committed.of("g")
        assert offsets is not None
        assert [partition for partition, _ in offsets.items()] == [A0]


async def test_retention_that_the_client_asked_for(store: str) -> None:
    async with coordinator(store) as box:
        now = box.clock.wall_ms()
        values = {A0: CommittedOffset(1, commit_ms=now, expire_ms=now - 1), B0: CommittedOffset(2, commit_ms=now)}
        await box.store_offsets("g", values).wait()
        box.groups.expiry.expire()
        await committed(box, "other", c=1)
        offsets = box.groups.committed.of("g")
        assert offsets is not None
        assert [partition for partition, _ in offsets.items()] == [B0]


async def test_groups_that_nothing_is_left_of_are_removed(store: str) -> None:
    async with coordinator(store) as box:
        joined = await box.join(version=4)
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        box.groups.expiry.expire()
        assert "g" in box.groups.table.groups  # its member is expected
        await committed(box, "h", a=1)
        box.groups.table.groups["g"].group.members.pending_joins.clear()
        box.groups.expiry.expire()
        assert list(box.groups.table.groups) == ["h"]


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 10_000])
def test_offsets_count_what_they_take(partitions: int) -> None:
    """Also those of topics of one partition each."""
    names = [f"topic-{number}" for number in range(10_000 // partitions)]
    account = MemoryLedger().part(1 << 30).account("offsets")
    gc.collect()
    tracemalloc.start()
    try:
        kept = GroupOffsets(account)
        for at, (name, number) in enumerate(itertools.product(names, range(partitions)), 1 << 40):
            kept.put(TopicPartition(name, number), CommittedOffset(at, at % 9973, commit_ms=at))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.75 * account.held < taken < 1.15 * account.held
    for name in names[::2]:
        kept.drop_topic(name)
    for name, number in itertools.product(names[1::2], range(partitions)):
        kept.put(TopicPartition(name, number), None)
    assert account.held == 0


async def test_full_groups_are_told_to_the_log_once_a_minute(
    store: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"connections.max.memory.bytes": 16 << 20, "group.max.session.timeout.ms": 1_000_000}
    large: dict[str, Any] = {
        "session_timeout_ms": 1_000_000,
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=bytes(3 << 20))],
    }

    def told() -> list[str]:
        return [line for line in caplog.messages if "connections.max.memory.bytes" in line]

    async with coordinator(store, **settings) as box:
        with caplog.at_level(logging.WARNING, "kclient.gateway.groups"):
            assert (await box.join("first", **large)).error_code == 0
            assert not told()
            for group in ("second", "third"):
                assert (await box.join(group, **large)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert len(told()) == 1
            assert "group second" in told()[0]
            later = box.clock.now() + 61.0
            monkeypatch.setattr(box.clock, "now", lambda: later)
            assert (await box.join("second", **large)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert len(told()) == 2
