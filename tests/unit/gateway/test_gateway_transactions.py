"""Partitions that hold transactions, seen by clients: with a small coordinator, which tests have in hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import kclient
from kclient import TopicPartition
from kclient.concurrency import loop_soon
from kclient.errors import ErrorCode, NotLeaderOrFollowerError
from kclient.gateway import Gateway, aborted, assembly
from kclient.gateway.handlers.produce import ProduceHandler
from kclient.gateway.partition import Partition
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.partition_states import PartitionPhase
from kclient.gateway.peers import EndOfTransaction, LocalPeers
from kclient.gateway.rows.keys import ABORTED
from kclient.htp import StorageError, open_store
from kclient.htp.port import CAP_NOWAIT
from kclient.net.fair_queue import SLICE, FairQueue
from kclient.protocol.messages.produce import PartitionProduceData, ProduceRequest
from kclient.records import EndMarker, decode_records, iter_headers
from tests.all_rows import scan_all
from tests.gateway_wire import Wire, batch_of, connect, fetch_request, names, produce_request, running
from tests.slow_store import SlowStore
from tests.small_transactions import COMMITTED, SmallCoordinator, Transactor, coordinated, local_peers
from tests.uncertain_store import Fate, UncertainStore

pytestmark = pytest.mark.anyio

LATEST, MAX_TIMESTAMP = -1, -3
CHUNK = 16
"""Aborted transactions of a row, in these tests."""


@asynccontextmanager
async def transacting(
    monkeypatch: pytest.MonkeyPatch, htp: str | None = None
) -> AsyncIterator[tuple[Gateway, Wire, SmallCoordinator, Transactor]]:
    coordinator = coordinated(monkeypatch)
    async with running(htp) as (gateway, wire):
        yield gateway, wire, coordinator, Transactor(wire, coordinator, local_peers(gateway, coordinator), "x")


async def committed_values(wire: Wire, topic: str, offset: int = 0, partition: int = 0) -> list[bytes]:
    """What a consumer with `isolation.level=read_committed` reads."""
    found: list[bytes] = []
    while True:
        answer = await wire.fetch(topic, offset, partition, isolation_level=COMMITTED, partition_max_bytes=1 << 16)
        assert not answer.error_code
        assert answer.aborted_transactions is not None
        if not answer.records:
            assert offset == answer.last_stable_offset
            return found
        hidden = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions]
        records = decode_records(answer.records, topic, partition, start_offset=offset, aborted=hidden)
        found += [record.value for record in records]
        offset = max(header.next_offset for _, header in iter_headers(answer.records))


async def test_committed_records_are_seen_when_their_transaction_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async with transacting(monkeypatch) as (_, wire, _, transactor):
        await wire.create("t")
        transactor.begin()
        assert await transactor.send("t", b"a", b"b") == ErrorCode.NONE
        assert await wire.values("t") == [b"a", b"b"]
        assert await committed_values(wire, "t") == []
        answer = await wire.fetch("t", 0)
        assert (answer.high_watermark, answer.last_stable_offset, answer.aborted_transactions) == (2, 0, None)
        assert (await wire.offset("t", LATEST)).offset == 2
        assert (await wire.offset("t", LATEST, isolation_level=COMMITTED)).offset == 0
        assert (await wire.offset("t", MAX_TIMESTAMP)).offset == 0
        assert (await wire.offset("t", MAX_TIMESTAMP, isolation_level=COMMITTED)).offset == -1
        assert (await wire.offset("t", 1)).offset == 0
        assert (await wire.offset("t", 1, isolation_level=COMMITTED)).offset == -1
        assert list((await transactor.end(committed=True)).values()) == [ErrorCode.NONE]
        assert await committed_values(wire, "t") == [b"a", b"b"]
        assert (await wire.offset("t", LATEST, isolation_level=COMMITTED)).offset == 3


async def test_aborted_records_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with transacting(monkeypatch) as (gateway, wire, coordinator, transactor):
        other = Transactor(wire, coordinator, local_peers(gateway, coordinator), "other")
        await wire.create("t")
        transactor.begin()
        other.begin()
        await transactor.send("t", b"no")
        await other.send("t", b"yes")
        await transactor.send("t", b"nor this")
        await other.end(committed=True)
        assert await committed_values(wire, "t") == []
        await transactor.end(committed=False)
        assert await committed_values(wire, "t") == [b"yes"]
        assert await wire.values("t") == [b"no", b"yes", b"nor this"]


async def test_our_consumer_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = coordinated(monkeypatch)
    async with Gateway(f"memory:{next(names)}", listen="127.0.0.1:0") as gateway:
        wire = connect(gateway)
        transactor = Transactor(wire, coordinator, local_peers(gateway, coordinator), "x")
        await wire.create("t")
        for number in range(20):
            transactor.begin()
            await transactor.send("t", b"%d" % number)
            await transactor.end(committed=number % 3 > 0)
        transactor.begin()
        await transactor.send("t", b"open")
        async with kclient.Consumer(
            bootstrap_servers=gateway.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            assert (await consumer.end_offsets([TopicPartition("t", 0)])) == {TopicPartition("t", 0): 40}
            found: list[bytes] = []
            with anyio.fail_after(20):
                while len(found) < 13:
                    found += [record.value for record in await consumer.poll(timeout=1.0)]
            assert found == [b"%d" % number for number in range(20) if number % 3]
            assert await consumer.position(TopicPartition("t", 0)) == 40
        await wire.aclose()


async def test_who_waits_for_committed_records_is_woken_by_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with transacting(monkeypatch) as (gateway, wire, _, transactor):
        await wire.create("t")
        transactor.begin()
        await transactor.send("t", b"a")
        reader = connect(gateway)
        request = fetch_request("t", 0, max_wait_ms=60_000, isolation_level=COMMITTED)
        await reader.send(request, 11)
        await anyio.wait_all_tasks_blocked()
        await transactor.send("t", b"b")  # visible, and not committed
        with anyio.move_on_after(0.05) as waited:
            await reader.frame()
        assert waited.cancelled_caught
        await transactor.end(committed=True)
        with anyio.fail_after(20):
            answer = await reader.read(request, 11)
        row = answer.responses[0].partitions[0]
        assert [record.value for record in decode_records(row.records, "t", 0)] == [b"a", b"b"]
        await reader.aclose()


async def test_a_batch_outside_of_the_transaction_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with transacting(monkeypatch) as (_, wire, coordinator, transactor):
        await wire.create("t", 2)
        assert await transactor.send("t", b"a") == ErrorCode.INVALID_TXN_STATE  # none has begun
        transactor.begin()
        assert await transactor.send("t", b"a", version=11) == ErrorCode.INVALID_TXN_STATE  # which adds nothing
        assert await transactor.send("t", b"a", version=12) == ErrorCode.NONE
        assert [add for _, _, add in coordinator.asked] == [True, False, True]
        assert await transactor.send("t", b"b", version=11) == ErrorCode.NONE  # it is open: nobody is asked
        assert len(coordinator.asked) == 3
        assert await wire.values("t") == [b"a", b"b"]


async def test_a_newer_epochs_batch_waits_for_the_end_of_the_older_ones_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first is decided, its end on the way here: what is sent under the next epoch is not ended by it."""
    async with transacting(monkeypatch) as (_, wire, coordinator, transactor):
        await wire.create("t")
        transactor.begin()
        assert await transactor.send("t", b"first") == ErrorCode.NONE
        first = coordinator.transactions.pop("x")
        transactor.epoch += 1
        transactor._sequences.clear()
        assert await transactor.send("t", b"early") == ErrorCode.INVALID_TXN_STATE
        coordinator.transactions["x"] = first
        assert set((await transactor.end(committed=True)).values()) == {ErrorCode.NONE}
        transactor.begin()
        assert await transactor.send("t", b"second") == ErrorCode.NONE
        assert set((await transactor.end(committed=False)).values()) == {ErrorCode.NONE}
        assert await committed_values(wire, "t") == [b"first"]


async def test_a_batch_that_was_delayed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with transacting(monkeypatch) as (gateway, wire, coordinator, transactor):
        topic_id = await wire.create("t")
        transactor.begin()
        go_on = anyio.Event()
        coordinator.before_answer = go_on.wait
        async with anyio.create_task_group() as tasks:
            codes: list[int] = []

            async def send() -> None:
                codes.append(await transactor.send("t", b"late"))

            tasks.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            coordinator.transactions["x"].partitions.add(PartitionId(topic_id.topic_id, 0))
            assert list((await transactor.end(committed=False)).values()) == [ErrorCode.NONE]
            go_on.set()
        assert codes == [ErrorCode.INVALID_TXN_STATE]
        assert await wire.values("t") == []
        assert (await wire.fetch("t", 0)).last_stable_offset == 1
        assert not gateway.parts.partitions.get("t", 0).log.transactions._verifications  # type: ignore[union-attr]


def numbered(number: int, partitions: Sequence[int] = (0,), producer_id: int = 1001) -> ProduceRequest:
    """A producer's batch of this sequence number, for some partitions of t."""
    batch = batch_of(b"%d" % number, transactional=True, producer_id=producer_id, producer_epoch=0, sequence=number)
    request = produce_request("t", batch, transactional_id="x")
    request.topic_data[0].partition_data = [
        PartitionProduceData(index=index, records=bytearray(batch)) for index in partitions
    ]
    return request


async def codes_of(wire: Wire, request: ProduceRequest) -> list[int]:
    with anyio.fail_after(20):
        answer = await wire.read(request, 12)
    return [row.error_code for row in answer.responses[0].partition_responses]


@pytest.mark.parametrize("how", ["asked", "stalled"])
async def test_a_first_batch_that_could_not_be_verified_comes_before_those_behind_it(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("kclient.gateway.partition_life._REFUSAL_S", 0.0)
    coordinator = coordinated(monkeypatch)
    store: Any = UncertainStore(open_store(f"memory:{next(names)}"))
    async with store, Gateway(store, listen=None) as gateway:
        wire, other = connect(gateway), connect(gateway)
        await wire.create("t")
        await wire.produce("t", batch_of(b"plain"))
        partition = gateway.parts.partitions.get("t", 0)
        assert partition is not None
        transactor = Transactor(wire, coordinator, local_peers(gateway, coordinator), "x")
        transactor.begin()
        first, second = numbered(0), numbered(1)
        if how == "asked":
            coordinator.answers.append(ErrorCode.CONCURRENT_TRANSACTIONS)
            for request in (first, second):
                await wire.send(request, 12)
            assert await codes_of(wire, first) == [ErrorCode.CONCURRENT_TRANSACTIONS]
        else:
            store.broker.failing = StorageError("nobody answers")
            store.broker.fates.append(Fate.LOST)
            await other.send(produce_request("t", batch_of(b"lost")), 9)
            with anyio.fail_after(20):
                while partition.state is not PartitionPhase.STALLED:
                    await anyio.lowlevel.checkpoint()
                await wire.send(first, 12)
                assert await codes_of(wire, first) == [ErrorCode.KAFKA_STORAGE_ERROR]
                store.broker.failing = None
                while partition.state is not PartitionPhase.OPEN:
                    await anyio.lowlevel.checkpoint()
            await wire.send(second, 12)
        assert await codes_of(wire, second) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        for request in (numbered(0), numbered(1)):
            await wire.send(request, 12)
            assert await codes_of(wire, request) == [ErrorCode.NONE]
        assert await wire.values("t") == [b"plain", b"0", b"1"]
        await wire.aclose()
        await other.aclose()


async def test_a_partition_that_comes_amid_the_request_was_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Led elsewhere when the coordinator is asked, and here when the batch is appended: it is to be sent again."""
    async with transacting(monkeypatch) as (_, wire, _, transactor):
        await wire.create("t")
        transactor.begin()
        find, asked = ProduceHandler._partition, 0

        def partition(self: ProduceHandler, *arguments: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise NotLeaderOrFollowerError("another gateway leads it")
            return find(self, *arguments)

        monkeypatch.setattr(ProduceHandler, "_partition", partition)
        assert await transactor.send("t", b"a") == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await transactor.send("t", b"a") == ErrorCode.NONE
        await transactor.end(committed=True)
        assert await committed_values(wire, "t") == [b"a"]


async def test_a_partition_that_is_named_often_leaves_no_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    async with transacting(monkeypatch) as (gateway, wire, coordinator, transactor):
        await wire.create("t", 2)
        transactor.begin()
        request = numbered(0, [0, 0, 1, 0])
        await wire.send(request, 12)
        assert await codes_of(wire, request) == [ErrorCode.NONE] * 4
        assert [len(keys) for _, keys, _ in coordinator.asked] == [2]
        assert await wire.values("t") == await wire.values("t", 0, 1) == [b"0"]
        for request in (numbered(0, [0, 0], 7), numbered(0, [0, 0], 8)):
            await wire.send(request, 12)
            assert await codes_of(wire, request) == [ErrorCode.INVALID_TXN_STATE] * 2
        asked = len(coordinator.asked)
        request = numbered(0, [0])
        request.topic_data[0].partition_data += numbered(0, [0, 1], 7).topic_data[0].partition_data
        await wire.send(request, 12)
        assert await codes_of(wire, request) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 3
        assert len(coordinator.asked) == asked
        for index in (0, 1):
            partition = gateway.parts.partitions.get("t", index)
            assert partition is not None
            assert not partition.log.transactions._verifications


async def test_what_a_gateway_that_fails_has_not_verified_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be in no transaction, and sent again to the next gateway be told to be there already."""
    coordinator, htp = coordinated(monkeypatch), f"memory:{next(names)}"
    gateway = Gateway(htp, listen=None)
    await gateway.start()
    wire = connect(gateway)
    await wire.create("t", 2)
    Transactor(wire, coordinator, local_peers(gateway, coordinator), "x").begin()
    ready, waits = Partition.ready, anyio.Event()

    async def hang(self: Partition) -> None:
        if self.index == 1:
            waits.set()
            await anyio.sleep_forever()
        await ready(self)

    with monkeypatch.context() as patched, anyio.fail_after(20):
        patched.setattr(Partition, "ready", hang)
        await wire.send(numbered(0, [0, 1]), 12)
        await waits.wait()
        gateway._supervisor.fail(RuntimeError("it has failed"))
        await gateway.close()
    await wire.aclose()
    assert not coordinator.asked
    async with running(htp) as (_, wire):
        assert await wire.values("t") == await wire.values("t", 0, 1) == []


async def test_a_client_that_goes_away_while_it_is_verified_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with transacting(monkeypatch) as (gateway, wire, coordinator, transactor):
        await wire.create("t")
        transactor.begin()
        go_on = anyio.Event()
        coordinator.before_answer = go_on.wait
        gone = connect(gateway)
        sender = Transactor(gone, coordinator, local_peers(gateway, coordinator), "x")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sender.send, "t", b"a")
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        await gone.aclose()
        await anyio.wait_all_tasks_blocked()
        partition = gateway.parts.partitions.get("t", 0)
        assert partition is not None
        assert partition.log.transactions._verifications
        go_on.set()
        with anyio.fail_after(20):
            while partition.log.transactions._verifications:
                await anyio.lowlevel.checkpoint()


async def test_ends_are_fenced_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with transacting(monkeypatch) as (_, wire, coordinator, transactor):
        await wire.create("t")
        transactor.begin()
        await transactor.send("t", b"a")
        assert list((await transactor.end(committed=True, bump=True, coordinator_epoch=2)).values()) == [0]
        transactor.begin()
        assert await transactor.send("t", b"b") == ErrorCode.NONE  # its sequences begin anew with the epoch
        transaction = coordinator.transactions["x"]
        old = list((await transactor.end(committed=False, coordinator_epoch=1)).values())
        assert old == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
        coordinator.transactions["x"] = transaction
        assert list((await transactor.end(committed=False, coordinator_epoch=2)).values()) == [ErrorCode.NONE]
        assert await committed_values(wire, "t") == [b"a"]


async def test_a_deleted_topics_transactions_are_not_its_namesakes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with transacting(monkeypatch) as (_, wire, _, transactor):
        await wire.create("t")
        transactor.begin()
        await transactor.send("t", b"a")
        assert await wire.delete("t") == 0
        await wire.create("t")
        assert (await wire.fetch("t", 0)).last_stable_offset == 0
        assert list((await transactor.end(committed=True)).values()) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert (await wire.fetch("t", 0)).high_watermark == 0


async def _no_checkpoint(_: object) -> None:
    await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("how", ["closed", "killed"])
async def test_transactions_outlive_the_gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str) -> None:
    htp = f"embedded:{tmp_path}/data"
    coordinator = coordinated(monkeypatch)
    if how == "killed":
        monkeypatch.setattr(assembly.PartitionTable, "checkpoint", _no_checkpoint)
    async with running(htp) as (gateway, wire):
        transactor = Transactor(wire, coordinator, local_peers(gateway, coordinator), "x")
        await wire.create("t")
        for committed in (True, False):
            transactor.begin()
            await transactor.send("t", b"%d" % committed)
            await transactor.end(committed=committed)
        transactor.begin()
        await transactor.send("t", b"open")
    async with running(htp) as (gateway, wire):
        transactor._wire, transactor._peers = wire, local_peers(gateway, coordinator)
        assert await committed_values(wire, "t") == [b"1"]
        answer = await wire.fetch("t", 0)
        assert (answer.high_watermark, answer.last_stable_offset) == (5, 4)
        assert await transactor.send("t", b"still") == ErrorCode.NONE
        asked = len(coordinator.asked)
        assert await transactor.end(committed=True)
        assert len(coordinator.asked) == asked
        assert await committed_values(wire, "t") == [b"1", b"open", b"still"]


@pytest.mark.slow
async def test_very_many_aborted_transactions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They are kept in rows, read again when somebody needs them, and from the log where a row is damaged."""
    htp = f"embedded:{tmp_path}/data"
    coordinator = coordinated(monkeypatch)
    monkeypatch.setattr(aborted, "CHUNK", CHUNK)
    count = 2 * CHUNK + 5
    async with running(htp, durability="written") as (gateway, wire):
        transactor = Transactor(wire, coordinator, local_peers(gateway, coordinator), "x")
        await wire.create("t")
        for number in range(count):
            transactor.begin()
            assert await transactor.send("t", b"%d" % number) == ErrorCode.NONE
            await transactor.end(committed=number % CHUNK == 1)
        partition = gateway.parts.partitions.get("t", 0)
        assert partition is not None
        await partition.checkpoints.write()
        assert len(await scan_all(gateway.parts.manager, ABORTED)) == 3
        expected = [b"1", b"%d" % (CHUNK + 1), b"%d" % (2 * CHUNK + 1)]
        assert await committed_values(wire, "t") == expected
    async with running(htp, durability="written") as (gateway, wire):
        assert await committed_values(wire, "t") == expected
        rows = await scan_all(gateway.parts.manager, ABORTED)
        await gateway.parts.manager.commit(dict.fromkeys(rows, b"damaged"))
    async with running(htp, durability="written") as (gateway, wire):
        assert await committed_values(wire, "t") == expected
        begin = 2 * CHUNK + 8
        assert (await wire.delete_records("t", begin)).error_code == 0
        assert await committed_values(wire, "t", begin) == expected[2:]
        assert len(await scan_all(gateway.parts.manager, ABORTED)) == 2
        assert await wire.delete("t") == 0
        await anyio.wait_all_tasks_blocked()
        assert await scan_all(gateway.parts.manager, ABORTED) == {}


async def test_aborted_transactions_do_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A chunk that is full is written, though little was appended, and is in memory no more."""
    coordinator = coordinated(monkeypatch)
    monkeypatch.setattr(aborted, "CHUNK", CHUNK)
    async with running(f"embedded:{tmp_path}/data", durability="written") as (gateway, wire):
        transactor = Transactor(wire, coordinator, local_peers(gateway, coordinator), "x")
        await wire.create("t")
        for number in range(3 * CHUNK + 1):
            transactor.begin()
            assert await transactor.send("t", b"%d" % number) == ErrorCode.NONE
            await transactor.end(committed=False)
        partition = gateway.parts.partitions.get("t", 0)
        assert partition is not None
        found = partition.log.transactions.aborted
        assert len(found) == 3 * CHUNK + 1
        with anyio.fail_after(20):
            while sum(map(len, found.unsaved().values())) >= CHUNK:
                await anyio.sleep(0.005)
        assert not found.holds_full
        assert len(await scan_all(gateway.parts.manager, ABORTED)) >= 3
        assert await committed_values(wire, "t") == []


@pytest.mark.parametrize(("held", "decided"), [("pull", True), ("pull", False), ("get", True)])
async def test_what_is_deleted_while_it_is_read_is_not_given_out(
    monkeypatch: pytest.MonkeyPatch, held: str, decided: bool
) -> None:
    """Nobody could tell any more whether it was aborted: the store's answer, or that about the aborted, is late."""
    coordinator = coordinated(monkeypatch)
    monkeypatch.setattr(aborted, "CHUNK", 1)
    holding: list[anyio.Event] = []
    reached = anyio.Event()

    @asynccontextmanager
    async def around(name: str) -> AsyncIterator[None]:
        yield
        if name == held and holding:
            go_on = holding.pop()
            reached.set()
            await go_on.wait()

    store: Any = SlowStore(UncertainStore(open_store(f"memory:{next(names)}"), [CAP_NOWAIT]), around)
    async with store, Gateway(store, listen=None) as gateway:
        wire, admin = connect(gateway), connect(gateway)
        transactor = Transactor(wire, coordinator, local_peers(gateway, coordinator), "x")
        await wire.create("t")
        await wire.produce("t", batch_of(b"first"))
        transactor.begin()
        assert await transactor.send("t", b"no") == ErrorCode.NONE
        if decided:
            await transactor.end(committed=False)
        await wire.produce("t", batch_of(b"last"))
        partition = gateway.parts.partitions.get("t", 0)
        assert partition is not None
        await partition.checkpoints.write()  # what was aborted is read from its row
        go_on = anyio.Event()
        holding.append(go_on)
        request = fetch_request("t", 0, isolation_level=COMMITTED, max_wait_ms=1000)
        await wire.send(request, 11)
        with anyio.fail_after(20):
            await reached.wait()
            end = (await admin.delete_records("t", -1)).low_watermark
            assert end == (4 if decided else 3)
            go_on.set()
            row = (await wire.read(request, 11)).responses[0].partitions[0]
        assert (row.error_code, row.records) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")
        assert (await wire.fetch("t", end, isolation_level=COMMITTED)).error_code == ErrorCode.NONE
        await wire.aclose()
        await admin.aclose()


async def test_ends_take_turns_by_the_time_that_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where logs have to be opened for them: others are served after two milliseconds, and not after 64 ends."""
    count, each_s, now = 40, 0.001, 0.0
    append_end = Partition.append_end
    turns = [0]
    over = anyio.Event()

    def slowly(self: Partition, *args: Any, **options: Any) -> Any:
        nonlocal now
        now += each_s
        turns[-1] += 1
        return append_end(self, *args, **options)

    async def count_turns() -> None:
        while not over.is_set():
            turns.append(0)
            await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(Partition, "append_end", slowly)
    coordinator = coordinated(monkeypatch)
    async with running() as (gateway, wire):
        parts = gateway.parts
        flow = FairQueue(loop_soon(), clock=lambda: now).flow()
        peers = LocalPeers(parts.topics, parts.partitions, coordinator, lambda _: None, flow)
        created = await wire.create("t", count)
        partitions = [PartitionId(created.topic_id, number) for number in range(count)]
        for number in range(count):
            await wire.produce("t", batch_of(b"opened"), number)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count_turns)
            await anyio.lowlevel.checkpoint()
            end = EndOfTransaction(7, 0, EndMarker(True, 0), partitions)
            assert await peers.write_markers([end]) == [dict.fromkeys(partitions, ErrorCode.NONE)]
            over.set()
    assert sum(turns) == count
    assert max(turns) * each_s <= 2 * SLICE, "trio has tasks run in any order: a turn of another one may lie in between"
