"""Writes that go to the store in parts: what goes in between, and what keeps its order."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kclient.concurrency import Completion
from kclient.errors import ErrorCode, KafkaError
from kclient.gateway.groups.offsets import OffsetCommit
from kclient.gateway.groups.writer import MAX_BYTES, GroupWriter, Row, Write
from kclient.gateway.rows.groups import CommittedOffset, decode_offset
from kclient.htp.errors import StorageFullError
from kclient.htp.port import Manager
from kclient.protocol.messages import JoinGroupRequest, JoinGroupRequestProtocol
from kclient.types import TopicPartition
from tests.all_rows import scan_all
from tests.unit.gateway_groups.harness import (
    FakeTopic,
    Harness,
    coordinator,
    fresh_name,
    reset,
    stored,
    subscription,
)
from tests.unit.gateway_groups.moments import Moments

pytestmark = pytest.mark.anyio


@pytest.fixture
def store() -> Iterator[str]:
    name = fresh_name()
    yield name
    reset(name)


class Stored:
    """The keys that went to the store, commit by commit; one of them may fail."""

    def __init__(self, box: Harness, monkeypatch: pytest.MonkeyPatch, *, failing: int | None = None) -> None:
        self.commits: list[list[str]] = []
        manager: Any = type(box.manager)
        commit, seen, numbers = manager.commit, self.commits, itertools.count()

        async def watched(self: Any, writes: Any, *args: Any, **options: Any) -> Any:
            await anyio.lowlevel.checkpoint()
            if next(numbers) == failing:
                raise StorageFullError("no space left")
            seen.append(list(writes))
            return await commit(self, writes, *args, **options)

        monkeypatch.setattr(manager, "commit", watched)

    @property
    def groups(self) -> list[str]:
        """Whose rows were in each commit."""
        return ["".join(sorted({key.split("/")[1] for key in keys})) for keys in self.commits]


def offsets(topic: str, count: int, at: int = 1) -> dict[TopicPartition, CommittedOffset]:
    return {TopicPartition(topic, number): CommittedOffset(at) for number in range(count)}


@pytest.mark.parametrize("large", ["commit", "deletion"])
async def test_small_writes_of_others_go_between_the_parts_of_a_large_one(
    store: str, monkeypatch: pytest.MonkeyPatch, large: str
) -> None:
    async with coordinator(store) as box:
        monkeypatch.setattr("kclient.gateway.groups.writer.MAX_ROWS", 100)
        if large == "deletion":
            assert await box.store_offsets("g", offsets("a", 1950)).wait() is ErrorCode.NONE
            write = box.groups.deletion.delete("g")
            assert isinstance(write, Write)
        else:
            write = box.store_offsets("g", offsets("a", 1950))
        seen = Stored(box, monkeypatch)
        own = box.store_offsets("g", offsets("b", 1))
        other = box.store_offsets("h", offsets("a", 1))
        assert await other.wait() is ErrorCode.NONE
        assert not write.done
        later = box.store_offsets("h", offsets("b", 1))
        assert await later.wait() is ErrorCode.NONE
        assert not write.done
        assert not own.done
        assert await write.wait() is ErrorCode.NONE
        assert await own.wait() is ErrorCode.NONE
        assert [group for group in seen.groups if group != "h"] == ["g"] * 21
        assert seen.groups.count("h") == 2
        assert seen.commits[-1] == ["group-offset/g/b/0"]


async def test_what_a_large_commit_adds_is_counted_once(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else there is no room for the offsets of others for as long as it takes."""
    async with coordinator(store) as box:
        monkeypatch.setattr("kclient.gateway.groups.writer.MAX_ROWS", 100)
        Stored(box, monkeypatch)
        record: Any = box.topics.get("a")
        large, account, most = OffsetCommit(), box.groups._memory.offsets, 0
        for number in range(1950):
            large.add(record, number, CommittedOffset(1))
        for _ in box.groups.committed.measure("g", large):
            pass
        write = box.groups.committed.commit("g", large)
        expected = account.held
        while not write.done:
            most = max(most, account.held)
            await anyio.lowlevel.checkpoint()
        assert account.held <= most <= expected + 2_000
        assert account.held == expected


async def test_several_large_writes_go_one_after_the_other(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with coordinator(store) as box:
        monkeypatch.setattr("kclient.gateway.groups.writer.MAX_ROWS", 100)
        seen = Stored(box, monkeypatch)
        writes = [box.store_offsets(group, offsets("a", 150)) for group in "ggh"]
        writes += [box.store_offsets(group, offsets("a", 1, 2)) for group in "ghi"]
        for write in writes:
            assert await write.wait() is ErrorCode.NONE
        assert seen.groups == ["i", "g", "g", "h", "h", "h", "g", "g", "g"]


async def test_a_large_write_that_fails_lets_the_next_of_its_group_go(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coordinator(store) as box:
        monkeypatch.setattr("kclient.gateway.groups.writer.MAX_ROWS", 100)
        Stored(box, monkeypatch, failing=1)
        large = box.store_offsets("g", offsets("a", 300))
        next_ = box.store_offsets("g", offsets("b", 1))
        assert await large.wait() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await next_.wait() is ErrorCode.NONE
        assert len(await stored(box)) == 101


async def test_what_waits_behind_a_large_write_fails_with_it_when_the_gateway_ends(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coordinator(store) as box:
        monkeypatch.setattr("kclient.gateway.groups.writer.MAX_ROWS", 3)
        seen = Stored(box, monkeypatch)
        writer = GroupWriter(box.manager, box.lease, box.queue.flow(), box.memory.account("writes"))
        told: list[int] = []

        def telling(number: int) -> Callable[[ErrorCode], tuple[()]]:
            def tell(error: ErrorCode) -> tuple[()]:
                assert error is ErrorCode.COORDINATOR_NOT_AVAILABLE
                told.append(number)
                return ()

            return tell

        for number, count in enumerate((300, 1, 9, 1)):
            writer.submit("g", {f"g/{at}": b"1" for at in range(count)}, telling(number))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.run)
            while len(seen.commits) < 2:
                await anyio.lowlevel.checkpoint()
            writer.submit("g", {"g/0": b"2"}, telling(4))
            tasks.cancel_scope.cancel()
        assert told == [0, 1, 2, 3, 4]
        await writer.drain()


@pytest.mark.slow
async def test_what_goes_at_once_is_bounded_in_bytes_too(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row's key names the group, which may have 32 kB: small writes of many, and the parts of a large one."""
    async with coordinator(store) as box:
        seen = Stored(box, monkeypatch)
        many = [box.store_offsets(f"{number:05}" + "g" * 32_000, offsets("a", 20)) for number in range(20)]
        large = box.store_offsets("h" * 32_000, offsets("a", 200))
        quiet = box.store_offsets("quiet", offsets("a", 1))
        for write in (*many, large, quiet):
            assert await write.wait() is ErrorCode.NONE
        lengths = [sum(map(len, keys)) for keys in seen.commits]
        assert max(lengths) < MAX_BYTES + 33_000
        assert len(lengths) <= 3 * sum(lengths) // MAX_BYTES, "and they go together as far as that allows"
        assert await large.wait() is ErrorCode.NONE
        assert len(await stored(box)) == 20 * 20 + 200 + 1


async def test_no_row_is_made_before_its_turn(store: str) -> None:
    async with coordinator(store) as box:
        hanging = Hanging(box)
        tracemalloc.start()
        try:
            writes = [box.store_offsets(f"{number:05}" + "g" * 32_000, offsets("a", 60)) for number in range(20)]
            await hanging.reached.wait()
            assert tracemalloc.get_traced_memory()[1] < 8 << 20, "the keys of all of them would be 36 MiB"
        finally:
            tracemalloc.stop()
            hanging.open()
        for write in writes:
            assert await write.wait() is ErrorCode.NONE


class Hanging:
    """A store whose commits hang until it is opened."""

    def __init__(self, box: Harness) -> None:
        manager: Any = box.manager
        self.reached = anyio.Event()
        self._opened = anyio.Event()
        self._commit = manager.commit
        box.groups._writer._manager = cast("Manager", self)

    def open(self) -> None:
        self._opened.set()

    async def commit(self, *args: Any, **options: Any) -> Any:
        self.reached.set()
        await self._opened.wait()
        return await self._commit(*args, **options)


class Numbered:
    """A large write of the keys with these numbers."""

    few: int | None = None
    length: int = 0

    def __init__(self, rows: dict[str, bytes]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[tuple[str, Row]]:
        yield from self.rows.items()

    def stored(self) -> tuple[()]:
        return ()

    async def failed(self, manager: Manager) -> None:
        raise AssertionError


writes = st.lists(
    st.tuples(
        st.sampled_from("ghi"),
        st.integers(0, 5),
        st.integers(0, 9),
        st.booleans(),
        st.integers(0, 9).map(lambda number: number == 0),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=writes)
@example([("g", 0, 1, True, False), ("g", 0, 1, False, False), ("h", 0, 1, False, False), ("g", 0, 1, False, False)])
async def test_each_group_keeps_its_order(plan: list[tuple[str, int, int, bool, bool]]) -> None:
    """Whatever the mixture of small and large writes: the store has what was written last, and told of it in order."""
    store = fresh_name()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kclient.gateway.groups.writer.MAX_ROWS", 3)
        async with coordinator(store) as box:
            told: dict[str, list[int]] = {}
            expected: dict[str, bytes] = {}
            last: Completion[ErrorCode] | None = None
            for number, (group, first, count, large, pause) in enumerate(plan):
                rows = {f"{group}/{at}": b"%d" % number for at in range(first, first + count)}
                expected |= rows

                def done(error: ErrorCode, group: str = group, number: int = number) -> tuple[()]:
                    assert error is ErrorCode.NONE
                    told.setdefault(group, []).append(number)
                    return ()

                last = box.groups._writer.submit(group, Numbered(rows) if large else rows, done)
                if pause:
                    await anyio.lowlevel.checkpoint()
            await box.groups._writer.drain()
            assert last is None or last.done
            assert sum(map(len, told.values())) == len(plan)
            assert all(numbers == sorted(numbers) for numbers in told.values())
            rows_there = await box.manager.get(list(expected))
            assert {key: row.value for key, row in rows_there.items()} == expected
    reset(store)


# ---- topics that are deleted --------------------------------------------------------------------------------------


async def deleted(box: Harness, name: str) -> None:
    """As `Topics` does it."""
    topics: Any = box.topics
    record = topics.by_name.pop(name)
    record.gone = True
    topics.left.add((name, record.topic_id))
    await box.groups.committed.topic_deleted(name)
    await box.groups.committed.forget_topic(name)
    topics.left.discard((name, record.topic_id))


async def test_commits_go_between_the_rows_of_a_topic_that_many_groups_have_read(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coordinator(store) as box:
        for number in (3, 1, 2, 0):
            assert await box.store_offsets(f"g{number}", offsets("a", 10)).wait() is ErrorCode.NONE
        monkeypatch.setattr("kclient.gateway.groups.deleted_topics._PORTION", 2)
        monkeypatch.setattr("kclient.gateway.groups.deleted_topics._SORTED_AT_ONCE", 3)
        seen = Stored(box, monkeypatch)
        waited: list[int] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deleted, box, "a")
            while not seen.commits:
                await anyio.lowlevel.checkpoint()
            for _ in range(3):
                before = len(seen.commits)
                assert await box.store_offsets("quiet", offsets("b", 1)).wait() is ErrorCode.NONE
                waited.append(len(seen.commits) - before)
        assert max(waited) <= 5
        removed = [key for keys in seen.commits for key in keys if "/quiet/" not in key]
        assert removed == sorted(removed), "neighbours together"
        assert len(removed) == 40
        assert await stored(box) == ["quiet/b/0"]


async def test_a_topic_is_looked_for_in_slices(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with coordinator(store) as box:
        for number in range(10):
            assert await box.store_offsets(f"g{number}", offsets("a", 3)).wait() is ErrorCode.NONE
        async with anyio.create_task_group() as tasks:
            moments = Moments(monkeypatch, tasks, -1, anyio.lowlevel.checkpoint)
            topics: Any = box.topics
            topics.by_name.pop("a").gone = True
            await box.groups.committed.topic_deleted("a")
            assert moments.past >= 10


async def test_a_topic_is_forgotten_whole_where_its_deletion_is_cancelled(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coordinator(store) as box:
        for number in range(10):
            assert await box.store_offsets(f"g{number}", offsets("a", 3)).wait() is ErrorCode.NONE
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                scope.cancel()

            Moments(monkeypatch, tasks, 4, cancel)
            topics: Any = box.topics
            topics.by_name.pop("a").gone = True
            with anyio.CancelScope() as scope:
                await box.groups.committed.topic_deleted("a")
            assert scope.cancelled_caught
        await box.groups.committed.forget_topic("a")
        assert await stored(box) == []
        assert not any(managed.offsets for managed in box.groups.table.groups.values())


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("parts", [0, 1, 5])
async def test_a_topic_whose_deletion_fails_half_way_is_forgotten_later(
    store: str, monkeypatch: pytest.MonkeyPatch, parts: int, *, killed: bool
) -> None:
    """By the same gateway or, if that has been killed, by the next one."""
    monkeypatch.setattr("kclient.gateway.groups.deleted_topics._PORTION", 4)
    async with coordinator(store) as box:
        for number in range(3):
            assert await box.store_offsets(f"g{number}", offsets("a", 10)).wait() is ErrorCode.NONE
            assert await box.store_offsets(f"g{number}", offsets("b", 1)).wait() is ErrorCode.NONE
        left: Any = box.topics
        with monkeypatch.context() as patch:
            Stored(box, patch, failing=parts)
            with pytest.raises(KafkaError, match="topic a"):
                await deleted(box, "a")
        if not killed:
            await box.groups.committed.forget_topic("a")
            assert await stored(box) == ["g0/b/0", "g1/b/0", "g2/b/0"]
    async with coordinator(store) as box:
        topics: Any = box.topics
        topics.by_name.pop("a")
        topics.left = left.left
        box.groups.loader.load_offsets(await scan_all(box.manager, "group-offset/"), (), Counter(), lambda _: True)
        await box.groups.committed.forget_topic("a")
        assert await stored(box) == ["g0/b/0", "g1/b/0", "g2/b/0"]


@pytest.mark.parametrize(
    ("counts", "crowd", "others"),
    [
        ((2, 6, 1), 0, 3),
        ((6, 1, 6, 2), 0, 3),
        ((2, 6, 1), 20, 3),
        pytest.param((30, 1, 30, 2), 0, 3, marks=pytest.mark.slow),
        ((6, 1, 6, 2), 0, 0),
    ],
)
async def test_a_topic_that_goes_while_offsets_are_committed_leaves_none(
    monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...], crowd: int, others: int
) -> None:
    """Whatever the moment: its namesake has what was committed for that, and nothing else."""
    moment, moments = 0, None
    while moments is None or moments.past >= moment:
        store = fresh_name()
        with monkeypatch.context() as patch:
            async with coordinator(store) as box:
                patch.setattr("kclient.gateway.groups.writer.MAX_ROWS", 4)
                patch.setattr("kclient.gateway.groups.committed._FEW", 4)
                patch.setattr("kclient.gateway.groups.deleted_topics._PORTION", 3)
                assert await box.store_offsets("h", offsets("a", others)).wait() is ErrorCode.NONE
                for number in range(crowd):  # looked through before the others
                    assert await box.store_offsets(f"c{number}", offsets("b", 1)).wait() is ErrorCode.NONE
                topics: Any = box.topics
                namesake = FakeTopic("a", b"again" + bytes(11))

                async def go(box: Harness = box, namesake: FakeTopic = namesake) -> None:
                    await deleted(box, "a")
                    box.topics.by_name["a"] = namesake  # type: ignore[attr-defined]
                    assert await box.store_offsets("h", offsets("a", 1, 9)).wait() is ErrorCode.NONE

                async with anyio.create_task_group() as tasks:
                    Stored(box, patch)
                    moments = Moments(patch, tasks, moment, go)
                    under_way = [box.store_offsets("g", offsets("a", count)) for count in counts]
                    under_way.append(box.store_offsets("i", offsets("b", 1)))
                    for write in under_way:
                        assert await write.wait() is ErrorCode.NONE
                rows = await scan_all(box.manager, "group-offset/")
                ids = {key: decode_offset(row.value) for key, row in rows.items() if "/a/" in key}
                if topics.by_name.get("a") is namesake:
                    assert list(ids) == ["group-offset/h/a/0"], f"moment {moment}"
                    assert ids["group-offset/h/a/0"][1] == namesake.topic_id
                shown = [
                    f"group-offset/{group}/{each.topic}/{each.partition}"
                    for group, managed in box.groups.table.groups.items()
                    for each, _ in managed.offsets.items()
                ]
                assert sorted(shown) == sorted(rows)
        reset(store)
        moment += 1
    assert moment > 15


async def test_members_are_answered_while_offsets_expire(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Very many are answered in slices too, which are none of the other work's."""
    async with coordinator(store) as box:
        first = await box.member()
        for number in range(20):
            assert await box.store_offsets(f"g{number}", offsets("a", 1)).wait() is ErrorCode.NONE
        answers = [box.begin(join_request(), 3) for _ in range(20)]
        monkeypatch.setattr("kclient.gateway.groups.expiry.SLICE", 0.0)
        box.groups.expiry.expire()
        answers.append(box.begin(join_request(first.member_id), 3))
        with anyio.fail_after(20):
            for answer in answers:
                assert (await answer()).error_code == ErrorCode.NONE


def join_request(member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        member_id=member_id,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("a"))],
    )
