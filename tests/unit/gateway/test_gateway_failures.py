"""When the store fails under a running gateway: nothing half done, nobody left waiting, and the reason is told."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.errors import ErrorCode, KafkaError, RequestTimedOutError
from kclient.gateway import Gateway
from kclient.gateway.append import AppendState
from kclient.gateway.partition_states import PartitionPhase
from kclient.gateway.rows.keys import CHECKPOINTS
from kclient.gateway.rows.partitions import decode_checkpoint
from kclient.gateway.topics import catalogue, remains, sweeping
from kclient.htp import ConflictError, StorageError, open_store
from kclient.htp.embedded.manager import SqliteManager
from kclient.htp.embedded.syncer import Syncer
from kclient.htp.memory.broker import MemoryBroker
from kclient.htp.memory.manager import MemoryManager
from kclient.htp.port import CAP_NOWAIT
from kclient.protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsTopic
from kclient.records import decode_records, read_header
from tests.all_rows import scan_all
from tests.domains import domains_among
from tests.gateway_wire import Wire, batch_of, connect, names, produce_request, running
from tests.slow_store import Gates, SlowStore

pytestmark = pytest.mark.anyio

EARLIEST, LATEST = -2, -1


async def failing(*_: object, **__: object) -> None:
    raise StorageError("the disk is on fire")


# --- threads of the store ---


def die(*_: object) -> None:
    raise SystemExit("killed by the test")


async def test_the_thread_that_syncs_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by an exception that nobody thought of: the waiting append fails, and the gateway, with the reason."""
    async with Gateway(f"embedded:{tmp_path / 'data'}", listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t")
        assert (await wire.produce("t", batch_of(b"a"))).error_code == 0
        partition = gateway.parts.partitions.get("t", 0)
        assert partition is not None
        monkeypatch.setattr(Syncer, "_finish", die)
        batch = batch_of(b"b")
        append = partition.append(batch, read_header(batch))
        with anyio.fail_after(10):
            with pytest.raises(StorageError, match="the thread that syncs has ended: SystemExit"):
                await gateway.wait()
        assert isinstance(gateway.failure, StorageError)
        assert append.state is AppendState.FAILED
        assert "the thread that syncs has ended" in str(append.error)
        with pytest.raises(StorageError, match="the thread that syncs has ended"):
            await gateway.parts.broker.open(partition.place, None, epoch=99)  # type: ignore[arg-type]
        assert await wire.frame() is None, "connections are closed"
    monkeypatch.undo()
    async with running(f"embedded:{tmp_path / 'data'}") as (_, wire):
        assert (await wire.values("t"))[0] == b"a"


async def test_the_thread_of_the_database_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Gateway(f"embedded:{tmp_path / 'data'}", listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t")
        manager = gateway.parts.manager
        assert isinstance(manager, SqliteManager)
        monkeypatch.setattr(manager._writer, "_transact", die)
        with anyio.fail_after(10):
            with pytest.raises(StorageError, match="the thread that writes it has ended: SystemExit"):
                await manager.commit({"a": b"1"})
            with pytest.raises(StorageError, match="the thread that writes it has ended"):
                await gateway.wait()
        with pytest.raises(StorageError, match="the thread that writes it has ended"):
            await manager.get(["a"])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kclient-htp")]
    monkeypatch.undo()
    async with running(f"embedded:{tmp_path / 'data'}") as (_, wire):
        assert (await wire.produce("t", batch_of(b"a"))).base_offset == 0


async def test_a_round_of_syncs_that_fails_in_a_new_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any exception is a failed sync: what waited for it fails, the next round goes on."""
    async with running(f"embedded:{tmp_path / 'data'}") as (gateway, wire):
        await wire.create("t")
        with monkeypatch.context() as patch:

            def new(*_: object) -> None:
                raise MemoryError("no room for the plan")

            patch.setattr(Syncer, "_sync", new)
            row = await wire.produce("t", batch_of(b"lost"))
            assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "no room for the plan" in str(row.error_message)
            for version in (3, 4):
                row = await wire.produce("t", batch_of(b"lost"), version=version)
                known = ErrorCode.NOT_LEADER_OR_FOLLOWER if version < 4 else ErrorCode.KAFKA_STORAGE_ERROR
                assert row.error_code == known, "after what older producers do not know they do not try again"
        assert (await wire.produce("t", batch_of(b"a"))).error_code == 0
        assert await wire.values("t") == [b"a"]
        assert gateway.failure is None


async def test_what_is_told_of_a_sync_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Gateway(f"embedded:{tmp_path / 'data'}", listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t")
        partition = gateway.parts.partitions.get("t", 0)
        assert partition is not None
        await partition.ready()

        def broken(*_: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(type(partition), "_synced", broken)
        await wire.send(produce_request("t", batch_of(b"a")), 9)
        with anyio.fail_after(10):
            with pytest.raises(StorageError, match="settling a sync failed: RuntimeError"):
                await gateway.wait()
        await wire.aclose()


# --- DeleteRecords ---


async def test_deleting_records_that_cannot_be_recorded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start has not moved, for nobody, and no later checkpoint brings it back."""
    async with running(url) as (gateway, wire):
        await wire.create("t")
        for number in range(6):
            await wire.produce("t", batch_of(b"%d" % number))
        with monkeypatch.context() as patch:
            patch.setattr(type(gateway.parts.manager), "commit", failing)
            assert (await wire.delete_records("t", 4)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await wire.offset("t", EARLIEST)).offset == 0
        assert await wire.values("t") == [b"%d" % number for number in range(6)]
        await wire.produce("t", batch_of(b"6"))
    async with running(url) as (_, wire):
        assert (await wire.offset("t", EARLIEST)).offset == 0
        assert len(await wire.values("t")) == 7
        assert (await wire.delete_records("t", 4)).low_watermark == 4
    async with running(url) as (_, wire):
        assert await wire.values("t", 4) == [b"4", b"5", b"6"]


async def test_the_start_moves_when_that_is_recorded(url: str) -> None:
    gates = Gates(open_store(url))
    store: Any = gates.store
    async with store, Gateway(store, listen=None) as gateway, anyio.create_task_group() as group:
        wire, other = connect(gateway), connect(gateway)
        await wire.create("t")
        for number in range(6):
            await wire.produce("t", batch_of(b"%d" % number))
        recording = gates.hold("commit")
        deleted = anyio.Event()

        async def delete() -> None:
            assert (await other.delete_records("t", 4)).low_watermark == 4
            deleted.set()

        group.start_soon(delete)
        with anyio.fail_after(10):
            await recording.reached.wait()
        assert (await wire.offset("t", EARLIEST)).offset == 0
        assert len(await wire.values("t")) == 6
        # a checkpoint that is written meanwhile comes afterwards, and knows of it
        partition = gateway.parts.partitions.get("t", 0)
        assert partition is not None
        group.start_soon(partition.checkpoints.write)
        await anyio.wait_all_tasks_blocked()
        recording.open()
        with anyio.fail_after(10):
            await deleted.wait()
        assert (await wire.offset("t", EARLIEST)).offset == 4
        await wire.aclose()
        await other.aclose()
    async with running(url) as (_, wire):
        assert (await wire.offset("t", EARLIEST)).offset == 4


async def test_closing_knows_of_a_start_that_was_recorded_just_now(url: str) -> None:
    """Its own checkpoint does not come after that of the trim with an older start in it."""
    recorded, go_on = anyio.Event(), anyio.Event()
    held = False

    @asynccontextmanager
    async def around(name: str) -> AsyncIterator[None]:
        nonlocal held
        yield
        if held and name == "commit":
            held = False
            recorded.set()
            await go_on.wait()

    store: Any = SlowStore(open_store(url), around)
    async with store, Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t")
        for number in range(6):
            await wire.produce("t", batch_of(b"%d" % number))
        partition = gateway.parts.partitions.get("t", 0)
        assert partition is not None
        held = True
        async with anyio.create_task_group() as group:
            group.start_soon(partition.trim, 4)
            with anyio.fail_after(10):
                await recorded.wait()
            assert (await wire.produce("t", batch_of(b"6"))).error_code == 0
            group.start_soon(gateway.parts.partitions.checkpoint)
            await anyio.wait_all_tasks_blocked()
            go_on.set()
        (row,) = (await scan_all(gateway.parts.manager, CHECKPOINTS)).values()
        checkpoint = decode_checkpoint(row.value)
        assert (checkpoint.start_offset, checkpoint.next_offset) == (4, 7)
        await wire.aclose()


@pytest.mark.own_places
async def test_nothing_is_read_before_it_counts_as_stored(url: str) -> None:
    """Where a store shows a message before it answers the call that sent it: no end is told that falls again."""
    sent, go_on = anyio.Event(), anyio.Event()
    held = False

    @asynccontextmanager
    async def around(name: str) -> AsyncIterator[None]:
        yield
        if held and name == "send":
            sent.set()
            await go_on.wait()

    class Awaited(SlowStore):
        @property
        def broker(self) -> Any:
            broker = super().broker
            broker.capabilities = broker.capabilities - {CAP_NOWAIT}
            return broker

    store: Any = Awaited(open_store(url), around)
    async with store, Gateway(store, listen=None) as gateway:
        wire, producer = connect(gateway), connect(gateway)
        await wire.create("t")
        await wire.produce("t", batch_of(b"0", b"1"))
        partition = gateway.parts.partitions.get("t", 0)
        assert partition is not None
        held = True
        async with anyio.create_task_group() as group:
            group.start_soon(producer.produce, "t", batch_of(b"2", b"3"))
            with anyio.fail_after(10):
                await sent.wait()
                while len((pulled := await partition.pull(0)).data) < 130:  # until it is synced, and so visible
                    await anyio.sleep(0.005)
            assert pulled.last == 3
            answer = await wire.fetch("t", 0)
            assert [record.value for record in decode_records(answer.records or b"", "t", 0)] == [b"0", b"1"]
            assert answer.high_watermark == answer.last_stable_offset == 2
            assert (await wire.offset("t", LATEST)).offset == 2
            assert (await wire.fetch("t", 2)).high_watermark == 2
            go_on.set()
        assert await wire.values("t") == [b"0", b"1", b"2", b"3"]
        await wire.aclose()
        await producer.aclose()


# --- deleting topics ---


async def test_what_a_deletion_could_not_remove_is_removed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "_SWEEP_S", 0.01)
    async with running() as (gateway, wire):
        parts = gateway.parts
        await wire.create("t", 3)
        await wire.produce("t", batch_of(b"old"))
        old = parts.topics.get("t")
        assert old is not None
        partition = parts.partitions.of(old, 0)
        assert partition is not None
        with monkeypatch.context() as patch:
            patch.setattr(MemoryBroker, "delete", failing)
            assert await wire.delete("t") == 0, "it has gone, whatever is left of it"
            assert partition.state is PartitionPhase.GONE
            assert (await wire.metadata("t")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert (await wire.create("t")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        with anyio.fail_after(10):
            while await domains_among(parts.manager, ["t"]):
                await anyio.sleep(0.01)
            while await scan_all(parts.manager, "kafka/intent/"):
                await anyio.sleep(0.01)
        assert not await scan_all(parts.manager, "kafka/log")
        assert (await wire.create("t")).error_code == 0
        assert await wire.values("t") == []


@pytest.mark.domains
async def test_a_deletion_does_not_wait_for_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partition is removed when it is opened no more, and what other deletions have left meanwhile."""
    monkeypatch.setattr(remains, "_LEAVING_S", 0.01)
    monkeypatch.setattr(sweeping, "_SWEEP_S", 0.01)
    gates = Gates(open_store(f"memory:{next(names)}"))
    store: Any = gates.store
    async with store, Gateway(store, listen=None) as gateway:
        wire, other, left = connect(gateway), connect(gateway), gateway.parts.topics.left
        for name in ("hung", "t"):
            await wire.create(name)
        opening = gates.hold("open")
        await other.send(produce_request("hung", batch_of(b"a")), 9)
        with anyio.fail_after(5):
            await opening.reached.wait()
            assert await wire.delete("hung") == 0
            row = (await other.read(produce_request("hung", b""), 9)).responses[0].partition_responses[0]
            assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert (await wire.create("hung")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            with monkeypatch.context() as patch:
                patch.setattr(MemoryBroker, "delete", failing)
                assert await wire.delete("t") == 0
                assert left.keys() == {"hung", "t"}
            while "t" in left:
                await anyio.lowlevel.checkpoint()
            assert await domains_among(gateway.parts.manager, ["hung", "t"]) == ["hung"]
            gates.open()
            while left:
                await anyio.lowlevel.checkpoint()
        assert not await domains_among(gateway.parts.manager, ["hung"])
        assert not gateway.parts.catalogue._remains._leaving
        assert (await wire.create("hung")).error_code == 0
        assert (await wire.produce("hung", batch_of(b"new"))).base_offset == 0
        await wire.aclose()
        await other.aclose()


async def test_the_next_start_removes_what_a_deletion_left(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(url) as (gateway, wire):
        await wire.create("t", 3)
        await wire.produce("t", batch_of(b"old"))
        assert await wire.commit("g", "t", 1) == 0
        for partition in gateway.parts.partitions.opened():
            await partition.checkpoints.write()
        with monkeypatch.context() as patch:
            patch.setattr(type(gateway.parts.broker), "delete", failing)
            assert await wire.delete("t") == 0
    async with running(url) as (gateway, wire):
        manager = gateway.parts.manager
        assert not await domains_among(manager, ["t"])
        assert not [key for prefix in ("kafka/intent", "kafka/log", "brk/") for key in await scan_all(manager, prefix)]
        assert await wire.committed("g", "t") == -1
        await wire.create("t")
        assert (await wire.produce("t", batch_of(b"new"))).base_offset == 0
    async with running(url) as (gateway, wire):
        assert await wire.values("t") == [b"new"]


async def test_a_deletion_that_could_not_be_recorded_has_not_happened(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(url) as (gateway, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"a"))
        assert await wire.commit("g", "t", 1) == 0
        with monkeypatch.context() as patch:
            patch.setattr(type(gateway.parts.manager), "commit", failing)
            assert await wire.delete("t") == ErrorCode.KAFKA_STORAGE_ERROR
        assert await wire.values("t") == [b"a"]
        assert await wire.committed("g", "t") == 1
        assert (await wire.produce("t", batch_of(b"b"))).base_offset == 1
    async with running(url) as (_, wire):
        assert await wire.values("t") == [b"a", b"b"]


class Answers:
    """Those of the manager about the row of t: a test has them lost, from the next commit on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: bool = True
        """Whether commits are made whose answers are lost."""
        self._lost: frozenset[str] = frozenset()
        self._begun = False
        """Whether a commit was lost: before it changes a topic, the gateway looks at its row."""
        self._commit, self._get = MemoryManager.commit, MemoryManager.get
        monkeypatch.setattr(MemoryManager, "commit", lambda *args, **options: self.commit(*args, **options))
        monkeypatch.setattr(MemoryManager, "get", lambda *args: self.get(*args))

    @property
    def lost(self) -> frozenset[str]:
        """Of these calls."""
        return self._lost

    @lost.setter
    def lost(self, calls: frozenset[str]) -> None:
        self._lost, self._begun = calls, False

    async def commit(self, manager: MemoryManager, writes: Any, *args: Any, **options: Any) -> int:
        lost = "commit" in self.lost and "kafka/topic/t" in writes
        version = 0 if lost and not self.made else await self._commit(manager, writes, *args, **options)
        if lost:
            self._begun = True
            raise StorageError("the answer to a commit was lost")
        return version

    async def get(self, manager: MemoryManager, keys: Any) -> Any:
        if "get" in self.lost and self._begun and "kafka/topic/t" in keys:
            raise StorageError("the answer to a look was lost")
        return await self._get(manager, keys)


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("who", ["the gateway", "a client"])
async def test_what_may_be_deleted_takes_nothing_until_that_is_known(
    monkeypatch: pytest.MonkeyPatch, made: bool, who: str
) -> None:
    monkeypatch.setattr(sweeping, "_SWEEP_S", 0.01 if who == "the gateway" else 1000.0)
    answers = Answers(monkeypatch)
    async with running() as (gateway, wire):
        topics = gateway.parts.topics
        await wire.create("t")
        await wire.produce("t", batch_of(b"a"))
        assert await wire.commit("g", "t", 1) == 0
        answers.made, answers.lost = made, frozenset(("commit", "get"))
        for _ in range(2):
            assert await wire.delete("t") == ErrorCode.KAFKA_STORAGE_ERROR
            assert (await wire.produce("t", batch_of(b"b"))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert (await wire.create("t")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert list(topics.unsure) == ["t"]
        answers.lost = frozenset()
        if who == "a client":
            created = (await wire.create("t")).error_code
            assert created == (0 if made else ErrorCode.TOPIC_ALREADY_EXISTS)
        else:
            with anyio.fail_after(10):
                while topics.unsure or topics.left:
                    await anyio.sleep(0.01)
            assert (await wire.create("t")).error_code == (0 if made else ErrorCode.TOPIC_ALREADY_EXISTS)
        assert await wire.committed("g", "t") == (-1 if made else 1)
        assert (await wire.produce("t", batch_of(b"c"))).base_offset == (0 if made else 1)
        assert await wire.values("t") == ([b"c"] if made else [b"a", b"c"])
        assert not topics.unsure
        assert not topics.left


async def test_closing_ends_the_partitions_of_a_topic_that_may_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch)
    async with running() as (gateway, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"a"))
        partition = gateway.parts.partitions.get("t", 0)
        assert partition is not None
        answers.lost = frozenset(("commit", "get"))
        assert await wire.delete("t") == ErrorCode.KAFKA_STORAGE_ERROR
        assert not partition.busy
    with pytest.raises(KafkaError, match="t-0 is gone"):
        await partition.ready()


async def grow(wire: Wire, count: int) -> int:
    wanted = CreatePartitionsTopic(name="t", count=count, assignments=None)
    answer = await wire(CreatePartitionsRequest(topics=[wanted], timeout_ms=1000), 3)
    return int(answer.results[0].error_code)


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("seen", [False, True])
async def test_what_became_of_a_change_is_found_out(monkeypatch: pytest.MonkeyPatch, made: bool, seen: bool) -> None:
    """At once where the store tells it, else before the next one: which does not make anew what is in use."""
    answers = Answers(monkeypatch)
    lost = frozenset(("commit",) if seen else ("commit", "get"))
    url = f"memory:{next(names)}"
    async with running(url) as (gateway, wire):

        async def retention() -> str | None:
            return (await wire.configs(2, "t"))["retention.ms"][0]

        await wire.create("t", 2)
        answers.made = made
        answers.lost = lost
        told = 0 if made and seen else ErrorCode.KAFKA_STORAGE_ERROR
        assert await wire.alter(2, "t", ("retention.ms", 0, "1000")) == told
        assert (await retention() == "1000") is (made and seen)
        answers.lost = frozenset()
        assert await wire.alter(2, "t", ("retention.bytes", 0, "7")) == 0
        assert (await retention() == "1000") is made, "the next change is one of what there is"
        assert (await wire.configs(2, "t"))["retention.bytes"][0] == "7"
        answers.lost = lost
        assert await grow(wire, 4) == told
        answers.lost = frozenset()
        assert await grow(wire, 4) == (ErrorCode.INVALID_PARTITIONS if made else 0)
        assert len((await wire.metadata("t")).topics[0].partitions) == 4
        for number in range(4):
            assert not (await wire.produce("t", batch_of(b"%d" % number), number)).error_code
        assert not gateway.parts.topics.unsure
    async with running(url) as (_, wire):
        for number in range(4):
            assert await wire.values("t", 0, number) == [b"%d" % number]
        assert (await retention() == "1000") is made


async def test_a_change_that_nobody_repeats_is_found_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "_SWEEP_S", 0.01)
    answers = Answers(monkeypatch)
    async with running() as (gateway, wire):
        await wire.create("t")
        answers.lost = frozenset(("commit", "get"))
        assert await wire.alter(2, "t", ("max.message.bytes", 0, "2000")) == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await wire.produce("t", batch_of(bytes(10_000)))).error_code == 0
        answers.lost = frozenset()
        with anyio.fail_after(10):
            while gateway.parts.topics.unsure:
                await anyio.sleep(0.01)
        assert (await wire.produce("t", batch_of(bytes(10_000)))).error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_a_topic_whose_row_cannot_be_read_after_a_change_is_served_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = Answers(monkeypatch)
    async with running() as (gateway, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"a"))
        key, manager = "kafka/topic/t", gateway.parts.manager
        row = (await manager.get([key]))[key].value
        answers.lost = frozenset(("commit", "get"))
        assert await wire.alter(2, "t", ("retention.ms", 0, "1000")) == ErrorCode.KAFKA_STORAGE_ERROR
        answers.lost = frozenset()
        await manager.commit({key: b"nonsense"})
        assert await wire.delete("t") == ErrorCode.KAFKA_STORAGE_ERROR, "nobody knows what would be deleted"
        assert await wire.values("t") == [b"a"]
        await manager.commit({key: row})
        assert await wire.alter(2, "t", ("retention.ms", 0, "-1")) == 0


async def test_a_topic_that_another_gateway_has_deleted_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch)
    async with running() as (gateway, wire):
        await wire.create("t")
        answers.lost = frozenset(("commit", "get"))
        assert await wire.alter(2, "t", ("retention.ms", 0, "1000")) == ErrorCode.KAFKA_STORAGE_ERROR
        answers.lost = frozenset()
        await gateway.parts.manager.commit({"kafka/topic/t": None})
        assert await wire.delete("t") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not gateway.parts.topics.unsure


async def test_a_topic_that_was_made_though_the_store_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was deleted so: it is found out at once."""
    async with running() as (gateway, wire):
        commit = MemoryManager.commit

        async def done_and_failed(self: MemoryManager, writes: Any, *args: Any, **options: Any) -> int:
            version = await commit(self, writes, *args, **options)
            if "kafka/topic/t" in writes:
                raise StorageError("the answer was lost")
            return version

        with monkeypatch.context() as patch:
            patch.setattr(MemoryManager, "commit", done_and_failed)
            assert (await wire.create("t", 2)).error_code == 0
        assert (await wire.create("t", 2)).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert (await wire.produce("t", batch_of(b"a"), 1)).base_offset == 0
        with monkeypatch.context() as patch:
            patch.setattr(MemoryManager, "commit", done_and_failed)
            assert await wire.delete("t") == 0
        assert gateway.parts.topics.get("t") is None
        assert (await wire.create("t")).error_code == 0


async def tidy(gateway: Gateway) -> None:
    with anyio.fail_after(10):
        while gateway.parts.topics.left:
            await anyio.sleep(0.01)


@pytest.mark.domains
async def test_what_a_creation_left_that_nobody_repeats_is_dealt_with_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places that no topic has are removed; the topic is there if only the answer was lost."""
    monkeypatch.setattr(sweeping, "_SWEEP_S", 0.01)
    answers = Answers(monkeypatch)
    async with running() as (gateway, wire):
        with monkeypatch.context() as patch:
            make, made = MemoryManager.create_topic, 0

            async def making(*args: Any, **options: Any) -> Any:
                nonlocal made
                made += 1
                if made == 3:
                    raise StorageError("no space left")
                return await make(*args, **options)

            patch.setattr(MemoryManager, "create_topic", making)
            assert (await wire.create("u", 4)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await tidy(gateway)
        assert not await domains_among(gateway.parts.manager, ["u"])
        assert (await wire.metadata("u")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answers.lost = frozenset(("commit", "get"))
        assert (await wire.create("t", 2)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        answers.lost = frozenset()
        await tidy(gateway)
        assert not await scan_all(gateway.parts.manager, "kafka/intent/")
        assert len((await wire.metadata("t")).topics[0].partitions) == 2
        assert (await wire.produce("t", batch_of(b"a"), 1)).error_code == 0


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("then", ["delete", "create"])
async def test_a_topic_that_may_have_been_made(monkeypatch: pytest.MonkeyPatch, then: str, *, made: bool) -> None:
    """Nothing is done to it until that is known: a deletion that finds no topic would be followed by the topic."""
    monkeypatch.setattr(sweeping, "_SWEEP_S", 0.01)
    answers = Answers(monkeypatch)
    url = f"memory:{next(names)}"
    async with running(url) as (gateway, wire):
        answers.made, answers.lost = made, frozenset(("commit", "get"))
        assert (await wire.create("t", 2)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert await wire.delete("t") == ErrorCode.KAFKA_STORAGE_ERROR
        await anyio.sleep(0.03)  # it is looked up again meanwhile, and still not known
        assert (await wire.create("t")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        answers.lost = frozenset()
        if then == "delete":
            assert await wire.delete("t") == (0 if made else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            assert (await wire.create("t", 2)).error_code == (ErrorCode.TOPIC_ALREADY_EXISTS if made else 0)
        await tidy(gateway)
        topics = gateway.parts.topics
        assert ("t" in topics) is (then == "create")
        assert not topics.unsure
        assert not await scan_all(gateway.parts.manager, "kafka/intent/")
        if then == "create":
            assert (await wire.produce("t", batch_of(b"a"), 1)).error_code == 0
        else:
            assert not await domains_among(gateway.parts.manager, ["t"])
    async with running(url) as (gateway, wire):
        assert ("t" in gateway.parts.topics) is (then == "create")


async def test_what_the_deletion_of_a_damaged_topic_left_is_removed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "_SWEEP_S", 0.01)
    url = f"memory:{next(names)}"
    async with running(url) as (gateway, wire):
        await wire.create("t")
        await gateway.parts.manager.commit({"kafka/topic/t": b"nonsense"})
    async with running(url) as (gateway, wire):
        with monkeypatch.context() as patch:
            patch.setattr(MemoryBroker, "delete", failing)
            assert await wire.delete("t") == 0, "it has gone, whatever is left of it"
        await tidy(gateway)
        assert not await domains_among(gateway.parts.manager, ["t"])
        assert (await wire.create("t")).error_code == 0


@pytest.mark.domains
async def test_deleting_topics_does_not_hold_up_others(url: str) -> None:
    """While one is being removed, others are made, and that one's name waits."""
    gates = Gates(open_store(url))
    store: Any = gates.store
    async with store, Gateway(store, listen=None) as gateway, anyio.create_task_group() as group:
        wire, deleting, waiting = connect(gateway), connect(gateway), connect(gateway)
        await wire.create("t")
        removing = gates.hold("delete_domain")
        group.start_soon(deleting.delete, "t")
        with anyio.fail_after(10):
            await removing.reached.wait()
        assert (await wire.create("u")).error_code == 0
        assert await wire.delete("u") == 0
        created = anyio.Event()

        async def create(wire: Wire) -> None:
            assert (await wire.create("t")).error_code == 0
            created.set()

        group.start_soon(create, waiting)
        await anyio.wait_all_tasks_blocked()
        assert not created.is_set()
        removing.open()
        with anyio.fail_after(10):
            await created.wait()
        for each in (wire, deleting, waiting):
            await each.aclose()


async def test_what_fails_in_the_store_is_in_the_log_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets a code alone: whoever runs the gateway has to know the cause."""
    async with running() as (_, wire):
        await wire.create("t", 2)
        await wire.produce("t", batch_of(b"a"))

        async def full(*_args: Any, **_options: Any) -> None:
            raise StorageError(f"no space for {told}")

        with monkeypatch.context() as patch:
            patch.setattr(MemoryManager, "commit", full)
            for told, call in (
                ("deletions", partial(wire.delete, "t")),
                ("trims", partial(wire.delete_records, "t", 1)),
                ("topics", partial(wire.create, "u")),
            ):
                for _ in range(3):
                    answer = await call()
                    code = answer if isinstance(answer, int) else answer.error_code
                    assert code == ErrorCode.KAFKA_STORAGE_ERROR
                lines = [
                    each for each in caplog.records if each.getMessage() == f"a request failed: no space for {told}"
                ]
                assert 1 <= len(lines) <= 2
                assert all(each.levelname == "ERROR" for each in lines)


class Late:
    """A manager whose commit of a topic's row fails, and is made later.

    Args:
        monkeypatch: Puts it in the place of the store's.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._commit = MemoryManager.commit
        self._late: tuple[Any, ...] | None = None
        self._options: dict[str, Any] = {}
        self.waits = False
        """Whether the next such commit fails."""
        late = self

        async def commit(self: MemoryManager, writes: Any, *args: Any, **options: Any) -> int:
            if late.waits and "kafka/topic/t" in writes:
                late.waits, late._late, late._options = False, (self, writes, *args), options
                raise StorageError("no answer has come")
            return await late._commit(self, writes, *args, **options)

        monkeypatch.setattr(MemoryManager, "commit", commit)

    async def arrive(self) -> KafkaError | None:
        """The store gets to it; returns why it refuses it."""
        assert self._late is not None
        try:
            await self._commit(*self._late, **self._options)
        except KafkaError as error:
            return error
        return None


async def test_a_creation_that_arrives_when_its_places_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused: there would be a topic whose partitions cannot be opened."""
    late, delete, refused = Late(monkeypatch), MemoryBroker.delete, list[KafkaError | None]()

    async def arriving(self: MemoryBroker, *args: Any, **options: Any) -> None:
        refused.append(await late.arrive())
        await delete(self, *args, **options)

    async with running() as (gateway, wire):
        late.waits = True
        assert (await wire.create("t", 2)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        with monkeypatch.context() as patch:
            patch.setattr(MemoryBroker, "delete", arriving)
            await gateway.parts.catalogue.sweep()
        assert isinstance(refused[0], ConflictError)
        assert "t" not in gateway.parts.topics
        assert (await wire.create("t", 2)).error_code == 0
        assert (await wire.produce("t", batch_of(b"a"), 1)).error_code == 0


async def test_a_deletion_that_arrives_late_leaves_no_name_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "_SWEEP_S", 0.01)
    late = Late(monkeypatch)
    async with running() as (gateway, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"a"))
        late.waits = True
        assert await wire.delete("t") == ErrorCode.KAFKA_STORAGE_ERROR
        assert await wire.values("t") == [b"a"], "it has not been deleted"
        assert await late.arrive() is None
        with anyio.fail_after(10):  # the log of changes tells of it
            while (await wire.create("t")).error_code:
                await anyio.sleep(0.01)
        assert await wire.values("t") == []
        await tidy(gateway)
        assert not await scan_all(gateway.parts.manager, "kafka/intent/")


async def test_a_deletion_is_answered_while_its_store_removes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "_LONG_S", 0.05)
    monkeypatch.setattr(catalogue, "_SOON_S", 0.05)
    gates = Gates(open_store(f"memory:{next(names)}"))
    async with gates.store, Gateway(gates.store, listen=None) as gateway:
        wire = connect(gateway)
        await wire.create("t")
        await wire.produce("t", batch_of(b"old"))
        hung = gates.hold("delete")
        with anyio.fail_after(10):
            assert await wire.delete("t", timeout_ms=100) == 0
            assert hung.reached.is_set()
            again = await wire.create("t", timeout_ms=100)
            assert again.error_code == ErrorCode.REQUEST_TIMED_OUT, "it comes when the old one is out of its way"
            assert (await wire.metadata("t")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            gates.open()
            while gateway.parts.topics.left:
                await anyio.lowlevel.checkpoint()
            assert (await wire.create("t")).error_code == 0
        assert await wire.values("t") == []
        await wire.aclose()


async def test_nobody_waits_long_for_a_topic_amid_whose_change_the_store_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what others have left not removed, nor what other gateways change not followed."""
    monkeypatch.setattr(catalogue, "_SOON_S", 0.05)
    gates = Gates(open_store(f"memory:{next(names)}"))
    async with gates.store, Gateway(gates.store, listen=None) as gateway, anyio.create_task_group() as tasks:
        wire, another = connect(gateway), connect(gateway)
        for name in ("a", "b"):
            await wire.create(name)
        hung = gates.hold("delete")
        deleted = anyio.Event()

        async def delete() -> None:
            await another.delete("a")
            deleted.set()

        tasks.start_soon(delete)
        await hung.reached.wait()
        failed = gates.hold("delete")
        gates.failing = "delete"
        failed.open()
        assert await wire.delete("b") == 0, "what is left of it is removed later"
        assert list(gateway.parts.topics.left) == ["a", "b"]
        with anyio.fail_after(10):
            found = (await wire.metadata("a", create=True)).topics[0]
            assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            refused = await wire.create("a", timeout_ms=100)
            assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert refused.error_message is not None
            assert "the store has not answered" in refused.error_message
            with pytest.raises(RequestTimedOutError):
                await gateway.parts.catalogue.refresh("a")
            await gateway.parts.catalogue.sweep()
        assert list(gateway.parts.topics.left) == ["a"]
        gates.failing = None
        gates.open()
        assert (await wire.create("a")).error_code in (0, ErrorCode.REQUEST_TIMED_OUT)
        await deleted.wait()
        for each in (wire, another):
            await each.aclose()
