"""A store that cannot tell whether it has stored something: the gateway finds out, and loses and doubles nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.partition import Partition
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.partition_states import PartitionPhase
from kclient.gateway.peers import EndOfTransaction, LocalPeers
from kclient.gateway.rows.keys import UNITS
from kclient.htp import FencedError, StorageError, open_store
from kclient.htp.port import CAP_NOWAIT
from kclient.protocol import messages as m
from kclient.records import EndMarker, decode_records, iter_headers
from tests.all_rows import scan_all
from tests.gateway_wire import Wire, batch_of, connect, fetch_request, names, produce_request
from tests.plain_store import open_plain
from tests.slow_store import Gates
from tests.small_transactions import COMMITTED, SmallTransaction, Transactor, coordinated, local_peers
from tests.sweeps import slow
from tests.uncertain_store import UNKNOWN, Fate, UncertainBroker, UncertainStore

pytestmark = pytest.mark.anyio

on_some = pytest.mark.parametrize("kind", ["memory", "embedded that waits", "plain"], indirect=True)
RETRIABLE = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
THERE = {Fate.STORED, Fate.SYNCED}
"""What is stored although nobody said so."""
LATER = (Fate.SYNCED, Fate.VANISHED)
AT_ONCE = [fate for fate in UNKNOWN if fate not in LATER]


@pytest.fixture(params=["memory", "embedded that waits", "plain", *slow("memory that waits", "embedded")])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again without a pause."""
    monkeypatch.setattr("kclient.gateway.partition_life._REFUSAL_S", 0.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a partition that is not open soon its clients are told so, as users are."""
    monkeypatch.setattr("kclient.gateway.partition_life._SOON_S", 0.5)


class Url(str):
    """Of one store of a kind."""

    waits: bool = False


@pytest.fixture
def url(kind: str, tmp_path: Path) -> Url:
    if kind == "plain":
        return Url(f"plain:{next(names)}")
    found = Url(f"embedded:{tmp_path / 'data'}" if "embedded" in kind else f"memory:{next(names)}")
    found.waits = "waits" in kind
    return found


def opened(url: Url) -> UncertainStore:
    inner = open_plain(url.removeprefix("plain:")) if url.startswith("plain:") else open_store(url)
    return UncertainStore(inner, [CAP_NOWAIT] if url.waits else ())


@asynccontextmanager
async def serving(url: Url) -> AsyncIterator[tuple[Gateway, Wire, UncertainBroker]]:
    store: Any = opened(url)
    async with store, Gateway(store, listen=None) as gateway:
        wire = connect(gateway)
        try:
            yield gateway, wire, store.broker
        finally:
            await wire.aclose()


def partition_of(gateway: Gateway) -> Partition:
    found = gateway.parts.partitions.get("t", 0)
    assert found is not None
    return found


async def answer(wire: Wire) -> m.PartitionProduceResponse:
    with anyio.fail_after(20):
        response: m.ProduceResponse = await wire.read(produce_request("t", b""), 9)
    return response.responses[0].partition_responses[0]


def batches(count: int, *, first: int = 0) -> list[bytes]:
    return [
        bytes(batch_of(b"%d" % number, producer_id=4, producer_epoch=0, sequence=number))
        for number in range(first, first + count)
    ]


async def deliver(wire: Wire, wanted: Sequence[bytes], topic: str = "t") -> list[int]:
    """As an idempotent producer does: all at once, and again in order what was refused; the offsets."""
    offsets: dict[bytes, int] = {}
    with anyio.fail_after(30):
        while left := [batch for batch in wanted if batch not in offsets]:
            for batch in left:
                await wire.send(produce_request(topic, bytearray(batch)), 9)
            for batch in left:
                row = await answer(wire)
                if row.error_code:
                    assert row.error_code in RETRIABLE, row
                else:
                    offsets[batch] = row.base_offset
    return [offsets[batch] for batch in wanted]


async def stored_epochs(wire: Wire) -> list[tuple[int, int]]:
    """Offset and leader epoch of all batches."""
    records = (await wire.fetch("t", 0)).records or b""
    return [(header.base_offset, header.partition_leader_epoch) for _, header in iter_headers(records)]


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("fate", UNKNOWN, ids=lambda fate: fate.name)
async def test_an_idempotent_producers_batches_are_there_once_and_in_order(url: Url, fate: Fate) -> None:
    topics = {"first": 0, "third": 2, "last": 4}
    async with serving(url) as (_, wire, broker):
        for name, place in topics.items():
            await wire.create(name)
            broker.fates.extend([Fate.KNOWN] * place + [fate])
            offsets = await deliver(wire, batches(5), name)
            assert fate in broker.met[-10:]
            assert offsets == list(range(5))
            assert [type(error) for error in await broker.arrive()] == ([FencedError] if fate is Fate.LATE else [])
            assert await wire.values(name) == [b"%d" % number for number in range(5)]
            assert await deliver(wire, batches(5), name) == offsets, "each is known as a repeat"
            assert await deliver(wire, batches(2, first=5), name) == [5, 6]
            assert await wire.values(name) == [b"%d" % number for number in range(7)]
    async with serving(url) as (_, wire, _):
        for name in topics:
            assert await wire.values(name) == [b"%d" % number for number in range(7)]
            assert await deliver(wire, batches(5, first=2), name) == [2, 3, 4, 5, 6], "recovery knows them too"


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("fate", UNKNOWN, ids=lambda fate: fate.name)
async def test_without_sequence_numbers_what_is_stored_is_told_so_and_nothing_else(url: Url, fate: Fate) -> None:
    """A producer that is not idempotent sends again what is told to have failed: that must not be there."""
    async with serving(url) as (gateway, wire, broker):
        await wire.create("t")
        there = [b"a"]
        assert (await wire.produce("t", batch_of(b"a"))).base_offset == 0
        for acks in (-1, 1):
            broker.fates.append(fate)
            row = await wire.produce("t", batch_of(b"b"), acks=acks)
            if fate in THERE or (acks == 1 and fate is Fate.VANISHED):  # it was told to be written, as it was
                assert (row.error_code, row.base_offset) == (0, len(there))
            else:
                assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            with anyio.fail_after(20):
                while partition_of(gateway).log.pending or partition_of(gateway).state is not PartitionPhase.OPEN:
                    await anyio.lowlevel.checkpoint()
            await broker.arrive()
            there += [b"b"] if fate in THERE else []
            assert (await wire.produce("t", batch_of(b"c"))).base_offset == len(there)
            there.append(b"c")
            assert await wire.values("t") == there


@pytest.mark.usefixtures("soon")
@on_some
async def test_what_is_stamped_by_the_log_is_found_too(url: Url) -> None:
    """Its checksum is not the one that it came with."""
    async with serving(url) as (_, wire, broker):
        await wire.create("t", message_timestamp_type="LogAppendTime")
        broker.fates.append(Fate.STORED)
        row = await wire.produce("t", batch_of(b"a"))
        assert (row.error_code, row.base_offset) == (0, 0)
        assert row.log_append_time_ms > 0
        assert await wire.values("t") == [b"a"]


@on_some
async def test_the_leader_epoch_is_raised_and_told(url: Url) -> None:
    async with serving(url) as (gateway, wire, broker):
        await wire.create("t", 2)
        before = (await wire.metadata("t")).topics[0].partitions[0].leader_epoch
        await wire.produce("t", batch_of(b"a", b"b"))
        broker.fates.append(Fate.STORED)
        await wire.produce("t", batch_of(b"c"))
        await wire.produce("t", batch_of(b"d"))
        assert await stored_epochs(wire) == [(0, before), (2, before), (3, before + 1)]
        told = (await wire.metadata("t")).topics[0].partitions
        shared = gateway.parts.topics.get("t").mapping.unit(1) == 0  # type: ignore[union-attr]
        epochs = [before + 1, before + shared]
        assert [row.leader_epoch for row in told] == epochs, "the other partition's is what it was, if it has its own"
        described = (await wire(m.DescribeTopicPartitionsRequest(), 0)).topics[-1]
        assert [row.leader_epoch for row in described.partitions] == epochs
        assert (await wire.offset("t", -1)).leader_epoch == before + 1
        assert await end_of(wire, before) == (0, before, 3)
        assert await end_of(wire, before + 1) == (0, before + 1, 4)
        assert (await end_of(wire, before, current=before))[0] == ErrorCode.FENCED_LEADER_EPOCH
        assert (await wire(fetch_request("t", 0, leader_epoch=before), 11)).responses[0].partitions[
            0
        ].error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert list(await scan_all(gateway.parts.manager, UNITS)) == [
            f"{UNITS}{gateway.parts.topics.get('t').topic_id.hex()}/0"  # type: ignore[union-attr]
        ]
    async with serving(url) as (gateway, wire, _):
        row = (await wire.metadata("t")).topics[0].partitions[0]
        assert row.leader_epoch > before + 1
        assert await end_of(wire, before) == (0, before, 3), "the history is kept"
        assert not await scan_all(gateway.parts.manager, UNITS), "and what it takes is nothing any more"


async def end_of(wire: Wire, epoch: int, *, current: int = -1) -> tuple[int, int, int]:
    asked = m.OffsetForLeaderPartition(partition=0, leader_epoch=epoch, current_leader_epoch=current)
    request = m.OffsetForLeaderEpochRequest(topics=[m.OffsetForLeaderTopic(topic="t", partitions=[asked])])
    row = (await wire(request, 4)).topics[0].partitions[0]
    return row.error_code, row.leader_epoch, row.end_offset


@pytest.mark.usefixtures("soon")
async def test_any_number_of_times_in_a_row(url: Url) -> None:
    """Also while what has queued is appended, and before the partition was open for the first time."""
    fates = [
        Fate.LOST, Fate.STORED, Fate.KNOWN, Fate.LATE, Fate.SYNCED, Fate.SYNCED, Fate.KNOWN, Fate.VANISHED, Fate.LOST,
        Fate.LOST, Fate.KNOWN, Fate.KNOWN, Fate.STORED, Fate.LATE,
    ]  # fmt: skip
    async with serving(url) as (_, wire, broker):
        await wire.create("t")
        broker.fates.extend(fates)
        for first in range(0, 20, 5):
            assert await deliver(wire, batches(5, first=first)) == list(range(first, first + 5))
            await broker.arrive()
        assert not broker.fates
        assert await wire.values("t") == [b"%d" % number for number in range(20)]
        assert broker.epochs == sorted(broker.epochs)


@asynccontextmanager
async def gated(url: Url) -> AsyncIterator[tuple[Gateway, Wire, UncertainBroker, Gates]]:
    store = opened(url)
    gates = Gates(store)
    slow: Any = gates.store
    async with store, Gateway(slow, listen=None) as gateway:
        wire = connect(gateway)
        try:
            yield gateway, wire, store.broker, gates
        finally:
            gates.open()
            await wire.aclose()


@on_some
async def test_what_comes_meanwhile_waits_in_its_order(url: Url) -> None:
    async with gated(url) as (gateway, wire, broker, gates), anyio.create_task_group() as group:
        await wire.create("t")
        await wire.produce("t", batch_of(b"0"))
        parked, asking, other = connect(gateway), connect(gateway), connect(gateway)
        request = fetch_request("t", 1, max_wait_ms=60_000)
        await parked.send(request, 11)
        opening = gates.hold("open")
        broker.fates.append(Fate.LOST)
        await wire.send(produce_request("t", batch_of(b"lost")), 9)
        with anyio.fail_after(20):
            await opening.reached.wait()
        partition = partition_of(gateway)
        assert partition.state is PartitionPhase.REOPENING
        found: list[Any] = []
        group.start_soon(ask, asking, found)
        for number in range(1, 6):
            await other.send(produce_request("t", batch_of(b"%d" % number)), 9)
        short = await other_fetch(gateway)
        assert (short.error_code, short.high_watermark) == (0, 1), "who does not want to wait does not"
        await anyio.wait_all_tasks_blocked()
        assert not found
        opening.open()
        assert (await answer(wire)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert [(await answer(other)).base_offset for _ in range(1, 6)] == list(range(1, 6))
        with anyio.fail_after(20):
            row = (await parked.read(request, 11)).responses[0].partitions[0]
        assert row.error_code == 0
        assert row.high_watermark > 1
        assert await wire.values("t") == [b"%d" % number for number in range(6)]
        for each in (parked, asking, other):
            await each.aclose()


async def ask(wire: Wire, found: list[Any]) -> None:
    found.append(await wire.offset("t", -1))


async def other_fetch(gateway: Gateway) -> Any:
    wire = connect(gateway)
    row = await wire.fetch("t", 1, max_wait_ms=1)
    await wire.aclose()
    return row


@on_some
async def test_a_fetch_under_way_goes_on_with_the_topic_that_is_opened_anew(url: Url) -> None:
    """It was sealed between the question and the answer: that is no error of the consumer's."""
    async with gated(url) as (gateway, wire, broker, gates), anyio.create_task_group() as group:
        await wire.create("t")
        await wire.produce("t", batch_of(b"0"))
        partition = partition_of(gateway)
        reading = gates.hold("pull")
        found: list[bytes] = []

        async def pull() -> None:
            pulled = await partition.pull(0)
            found.append(bytes(pulled.data))

        group.start_soon(pull)
        with anyio.fail_after(20):
            while not (reading.reached.is_set() or found):
                await anyio.lowlevel.checkpoint()
            if found:
                return  # a shared topic reads what is at hand, and asks nobody
            broker.fates.append(Fate.STORED)
            assert (await wire.produce("t", batch_of(b"1"))).base_offset == 1
        reading.open()
        with anyio.fail_after(20):
            while not found:
                await anyio.lowlevel.checkpoint()
        assert len(list(iter_headers(found[0]))) in (1, 2)


@pytest.mark.usefixtures("soon")
@on_some
async def test_while_it_cannot_be_opened_anew_appends_are_refused_and_it_is_tried_again(url: Url) -> None:
    async with serving(url) as (gateway, wire, broker):
        await wire.create("t")
        await wire.produce("t", batch_of(b"0"))
        broker.failing = StorageError("nobody answers")
        broker.fates.append(Fate.STORED)
        await wire.send(produce_request("t", batch_of(b"1")), 9)
        partition, other = partition_of(gateway), connect(gateway)
        with anyio.fail_after(20):
            while len(broker.epochs) < 5:
                await anyio.lowlevel.checkpoint()
        row = await other.produce("t", batch_of(b"refused"))
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await other.offset("t", -1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await other.fetch("t", 0)).high_watermark == 1
        assert partition.undecided
        assert len(set(broker.epochs[1:])) == 1, "raised once: nothing was sent under it"
        broker.failing = None
        assert (await answer(wire)).base_offset == 1
        assert await other.values("t") == [b"0", b"1"]
        await other.aclose()


@pytest.mark.usefixtures("soon")
@on_some
async def test_what_is_refused_meanwhile_does_not_come_before_what_is_not_known(url: Url) -> None:
    """A new producer's first batches: one that nobody knows of, and one behind it that is refused, and comes again."""
    async with serving(url) as (_, wire, broker):
        await wire.create("t")
        assert (await wire.offset("t", -1)).offset == 0  # it is open
        first, second = batches(2)
        for fate in (Fate.LOST, Fate.STORED):
            broker.failing = StorageError("nobody answers")
            broker.fates.append(fate)
            await wire.send(produce_request("t", bytearray(first)), 9)
            await wire.send(produce_request("t", bytearray(second)), 9)
            with anyio.fail_after(20):
                tried = len(broker.epochs)
                while len(broker.epochs) < tried + 3:
                    await anyio.lowlevel.checkpoint()
            broker.failing = None
            row = await answer(wire)
            assert row.error_code == (0 if fate is Fate.STORED else ErrorCode.KAFKA_STORAGE_ERROR)
            assert (await answer(wire)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            if fate is Fate.LOST:
                assert (await wire.produce("t", bytearray(second))).error_code == RETRIABLE[1]
        assert await deliver(wire, [first, second]) == [0, 1]
        assert await wire.values("t") == [b"0", b"1"]


@pytest.mark.parametrize("again", ["while the epoch is raised", "while it is opened", "while it is read"])
@on_some
async def test_a_topic_that_is_made_anew_meanwhile_shares_nothing(url: Url, again: str) -> None:
    call = {"while the epoch is raised": "commit", "while it is opened": "open", "while it is read": "status"}[again]
    async with gated(url) as (gateway, wire, broker, gates), anyio.create_task_group() as group:
        await wire.create("t")
        await wire.produce("t", batch_of(b"old"))
        held, other = gates.hold(call), connect(gateway)
        broker.fates.append(Fate.STORED)
        await wire.send(produce_request("t", batch_of(b"old too", producer_id=4, producer_epoch=0, sequence=0)), 9)
        with anyio.fail_after(20):
            await held.reached.wait()
        deleted = anyio.Event()

        async def make_anew() -> None:
            assert await other.delete("t") == 0
            assert (await other.create("t")).error_code == 0
            deleted.set()

        group.start_soon(make_anew)
        row = await answer(wire)
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        held.open()
        with anyio.fail_after(20):
            await deleted.wait()
            await held.passed.wait()
        assert await deliver(wire, batches(2)) == [0, 1]
        assert (await wire.offset("t", -1)).offset == 2
        assert await wire.values("t") == [b"0", b"1"]
        await anyio.wait_all_tasks_blocked()
        assert not await scan_all(gateway.parts.manager, UNITS)
        count = gateway.parts.partitions._around.producers.count
        assert count == 1, "what the old one remembered of producers does not count"
        await other.aclose()


@on_some
async def test_what_a_deleted_topic_leaves_is_removed_when_nobody_opens_it_any_more(
    url: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what opening it writes would come afterwards, and stay."""
    monkeypatch.setattr("kclient.gateway.topics.remains._LEAVING_S", 20.0)
    async with gated(url) as (gateway, wire, broker, gates), anyio.create_task_group() as group:
        await wire.create("t")
        await wire.produce("t", batch_of(b"old"))
        held, other, deleted = gates.hold("open"), connect(gateway), anyio.Event()
        broker.fates.append(Fate.STORED)
        await wire.send(produce_request("t", batch_of(b"old too")), 9)
        with anyio.fail_after(20):
            await held.reached.wait()

        async def delete() -> None:
            assert await other.delete("t") == 0
            deleted.set()

        group.start_soon(delete)
        assert (await answer(wire)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await anyio.wait_all_tasks_blocked()
        assert not deleted.is_set()
        assert (await wire.metadata("t")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        held.open()
        with anyio.fail_after(20):
            await deleted.wait()
        assert not gateway.parts.topics.left
        await other.aclose()


@on_some
async def test_a_topic_whose_epoch_was_raised_can_be_deleted(url: Url) -> None:
    """Its places in HTP know an epoch above the gateway's."""
    async with serving(url) as (gateway, wire, broker):
        await wire.create("t", 3)
        broker.fates.append(Fate.LOST)
        await wire.produce("t", batch_of(b"a"), 1)
        assert await scan_all(gateway.parts.manager, UNITS)
        assert await wire.delete("t") == 0
        assert not await scan_all(gateway.parts.manager, UNITS)
        assert "t" not in gateway.parts.topics.left
        assert (await wire.create("t", 3)).error_code == 0
        told = (await wire.metadata("t")).topics[0].partitions
        assert {row.leader_epoch for row in told} == {gateway.parts.identity.leader_epoch}
        assert (await wire.produce("t", batch_of(b"b"), 1)).base_offset == 0


@on_some
async def test_closing_waits_until_it_is_known(url: Url) -> None:
    async with gated(url) as (gateway, wire, broker, gates):
        await wire.create("t")
        held = gates.hold("open", 2)
        await wire.produce("t", batch_of(b"0"))
        broker.fates.append(Fate.STORED)
        await wire.send(produce_request("t", batch_of(b"1")), 9)
        with anyio.fail_after(20):
            await held.reached.wait()
            async with anyio.create_task_group() as group:
                group.start_soon(gateway.close)
                await anyio.wait_all_tasks_blocked()
                held.open()
                assert (await answer(wire)).base_offset == 1
    async with serving(url) as (_, wire, _):
        assert await wire.values("t") == [b"0", b"1"]


@pytest.mark.parametrize("fate", [*AT_ONCE, *slow(*LATER)], ids=lambda fate: fate.name)
@on_some
async def test_closing_before_it_is_known(url: Url, fate: Fate) -> None:
    """The next start finds out."""
    first, second = batches(2)
    async with serving(url) as (gateway, wire, broker):
        await wire.create("t")
        await wire.produce("t", bytearray(first))
        broker.failing = StorageError("nobody answers")
        broker.fates.append(fate)
        await wire.send(produce_request("t", bytearray(second)), 9)
        with anyio.fail_after(20):
            while not partition_of(gateway).undecided:
                await anyio.lowlevel.checkpoint()
            await gateway.close(0.5)
        assert partition_of_closed(gateway).state is PartitionPhase.GONE
    async with serving(url) as (_, wire, _):
        assert await deliver(wire, [second]) == [1]
        assert await wire.values("t") == [b"0", b"1"]


def partition_of_closed(gateway: Gateway) -> Partition:
    (record,) = gateway._parts.topics if gateway._parts is not None else ()
    return record.logs[0]


@pytest.mark.usefixtures("soon")
@on_some
async def test_what_was_written_with_one_acknowledgement_is_found_by_the_others(url: Url) -> None:
    """Several on their way, of which an early one's sync is not known: those behind it are not known either."""
    async with serving(url) as (_, wire, broker):
        await wire.create("t")
        broker.holding = []
        broker.fates.extend([Fate.SYNCED] * 3)
        for number in range(3):
            await wire.send(produce_request("t", batch_of(b"%d" % number)), 9)
        with anyio.fail_after(20):
            while len(broker.holding) < 3:
                await anyio.lowlevel.checkpoint()
        broker.holding[1].decide()
        assert [(await answer(wire)).base_offset for _ in range(3)] == [0, 1, 2]
        broker.holding[0].decide()
        broker.holding[2].decide()  # what comes late is no news
        broker.holding = None
        assert (await wire.produce("t", batch_of(b"3"))).base_offset == 3
        assert await wire.values("t") == [b"%d" % number for number in range(4)]


@on_some
async def test_settings_that_change_meanwhile_are_in_force_afterwards(url: Url) -> None:
    async with gated(url) as (gateway, wire, broker, gates), anyio.create_task_group() as group:
        await wire.create("t")
        await wire.produce("t", batch_of(b"0"))
        held, other = gates.hold("status"), connect(gateway)
        broker.fates.append(Fate.STORED)
        await wire.send(produce_request("t", batch_of(b"1")), 9)
        with anyio.fail_after(20):
            await held.reached.wait()
            assert await other.alter(2, "t", ("segment.bytes", 0, "1048576")) == 0
        held.open()
        assert (await answer(wire)).base_offset == 1
        configured: list[Any] = []
        partition = partition_of(gateway)
        topic = partition.stored_in
        assert topic.epoch == partition.log.leader_epoch
        group.start_soon(settings_of, topic, configured)
        await anyio.wait_all_tasks_blocked()
        for number in range(4):
            assert (await wire.produce("t", batch_of(bytes(400_000)))).base_offset == number + 2
        if not url.startswith("plain:"):
            assert len(await partition.segments()) > 1
        await other.aclose()


async def settings_of(topic: Any, found: list[Any]) -> None:
    found.append(await topic.status())


@on_some
async def test_deleting_records_meanwhile(url: Url) -> None:
    """The start moves once; what the store refused to drop it drops later."""
    async with gated(url) as (gateway, wire, broker, gates), anyio.create_task_group() as group:
        await wire.create("t")
        for number in range(3):
            await wire.produce("t", batch_of(b"%d" % number))
        trimming, other, rows = gates.hold("trim"), connect(gateway), list[Any]()

        async def delete_records() -> None:
            rows.append(await other.delete_records("t", 2))

        group.start_soon(delete_records)
        with anyio.fail_after(20):
            await trimming.reached.wait()
        broker.fates.append(Fate.STORED)
        await wire.send(produce_request("t", batch_of(b"3")), 9)
        await anyio.wait_all_tasks_blocked()
        trimming.open()
        assert (await answer(wire)).base_offset == 3
        assert (await other.delete_records("t", 2)).low_watermark == 2
        assert (await wire.offset("t", -2)).offset == 2
        assert await wire.values("t", 2) == [b"2", b"3"]
        await other.aclose()


# Transactions


async def committed(wire: Wire) -> list[bytes]:
    """What a consumer of committed records reads."""
    answer = await wire.fetch("t", 0, isolation_level=COMMITTED)
    hidden = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
    return [record.value for record in decode_records(answer.records or b"", "t", 0, aborted=hidden)]


@on_some
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("fate", [*AT_ONCE, *slow(*LATER)], ids=lambda fate: fate.name)
async def test_transactions_are_what_is_stored_of_them(url: Url, fate: Fate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is a first batch, another one or the end of which nobody knows."""
    coordinator = coordinated(monkeypatch)
    async with serving(url) as (gateway, wire, broker):
        await wire.create("t")
        transactor = Transactor(wire, coordinator, local_peers(gateway, coordinator), "x")
        expected: list[bytes] = []
        for place in range(4):
            transactor.begin()
            broker.fates.extend([Fate.KNOWN] * place + [fate])
            for value in (b"%d first" % place, b"%d second" % place):
                while code := await transactor.send("t", value):
                    assert code in RETRIABLE
            transaction = coordinator.transactions["x"]
            while set((await transactor.end(committed=place % 2 == 0)).values()) != {ErrorCode.NONE}:
                coordinator.transactions["x"] = transaction
            broker.fates.clear()
            expected += [b"%d first" % place, b"%d second" % place] if place % 2 == 0 else []
            assert [type(error) for error in await broker.arrive()] in ([], [FencedError])
            assert await committed(wire) == expected
            assert partition_of(gateway).log.last_stable_offset == partition_of(gateway).log.high_watermark
        assert fate in broker.met
        there = await wire.values("t")
        assert [value for value in there if b" " in value] == [
            b"%d %s" % (place, which) for place in range(4) for which in (b"first", b"second")
        ]
    async with serving(url) as (_, wire, _):
        assert await committed(wire) == expected


@on_some
async def test_a_transactions_first_batch_that_waits_until_the_partition_is_opened_anew(
    url: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator has been asked before: what it said still holds."""
    coordinator = coordinated(monkeypatch)
    async with gated(url) as (gateway, wire, broker, gates), anyio.create_task_group() as group:
        await wire.create("t")
        await wire.produce("t", batch_of(b"0"))
        transactor = Transactor(wire, coordinator, local_peers(gateway, coordinator), "x")
        other, codes, opening = connect(gateway), list[int](), gates.hold("open")

        async def stop_before_the_answer() -> None:
            broker.fates.append(Fate.STORED)
            await other.send(produce_request("t", batch_of(b"1")), 9)
            await opening.reached.wait()

        coordinator.before_answer = stop_before_the_answer
        transactor.begin()

        async def send() -> None:
            codes.append(await transactor.send("t", b"2"))

        group.start_soon(send)
        partition = partition_of(gateway)
        with anyio.fail_after(20):
            while not partition._queue:
                await anyio.lowlevel.checkpoint()
            opening.open()
            while not codes:
                await anyio.lowlevel.checkpoint()
        assert codes == [ErrorCode.NONE]
        assert not partition.log.transactions._verifications, "the word was given back"
        await transactor.end(committed=True)
        assert await committed(wire) == [b"0", b"1", b"2"]
        await other.aclose()


@on_some
async def test_an_append_that_is_lost_after_everything_was_deleted_leaves_the_leader_epochs(url: Url) -> None:
    async with serving(url) as (_, wire, broker):
        await wire.create("t")
        await wire.produce("t", batch_of(*[b"a"] * 10))
        before = (await wire.metadata("t")).topics[0].partitions[0].leader_epoch
        assert (await wire.delete_records("t", -1)).low_watermark == 10
        broker.fates.append(Fate.LOST)
        assert (await wire.produce("t", batch_of(b"b"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert await end_of(wire, before) == (0, before, 10)
        assert (await wire.produce("t", batch_of(b"b"))).base_offset == 10
        assert await end_of(wire, before) == (0, before, 10)
    async with serving(url) as (_, wire, _):
        assert await end_of(wire, before) == (0, before, 10), "the history is kept"


@asynccontextmanager
async def hung(url: Url, gates: Gates, broker: UncertainBroker, gateway: Gateway) -> AsyncIterator[None]:
    """The store does not answer when the first partition of t is opened anew."""
    opening, other = gates.hold("open"), connect(gateway)
    broker.fates.append(Fate.LOST)
    await other.send(produce_request("t", batch_of(b"lost")), 9)
    with anyio.fail_after(20):
        await opening.reached.wait()
    yield
    opening.open()
    assert (await answer(other)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    await other.aclose()


@pytest.mark.usefixtures("impatient")
@pytest.mark.own_places
@on_some
async def test_a_transactional_request_does_not_wait_for_a_store_that_hangs(
    url: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do its other partitions, nor what its connection asks next; and nothing comes before what was refused."""
    coordinator = coordinated(monkeypatch)
    coordinator.transactions["x"] = SmallTransaction(7)
    async with gated(url) as (gateway, wire, broker, gates):
        await wire.create("t", 2)
        for index in (0, 1):
            await wire.produce("t", batch_of(b"first"), index)
        batch = batch_of(b"0", transactional=True, producer_id=7, producer_epoch=0, sequence=0)
        request = produce_request("t", batch, transactional_id="x")
        request.topic_data[0].partition_data.append(m.PartitionProduceData(index=1, records=bytearray(batch)))
        async with hung(url, gates, broker, gateway):
            await wire.send(request, 12)
            await wire.send(produce_request("t", batch_of(b"next"), 1), 12)
            with anyio.fail_after(20):
                rows = (await wire.read(request, 12)).responses[0].partition_responses
                assert [row.error_code for row in rows] == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
                assert (await answer(wire)).error_code == ErrorCode.NONE
        behind = batch_of(b"1", transactional=True, producer_id=7, producer_epoch=0, sequence=1)
        for each, code in ((behind, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), (batch, 0), (behind, 0)):
            again = produce_request("t", bytearray(each), transactional_id="x")
            assert (await wire(again, 12)).responses[0].partition_responses[0].error_code == code
        assert await wire.values("t") == [b"first", b"0", b"1"]
        assert await wire.values("t", 0, 1) == [b"first", b"0", b"next"]


@on_some
async def test_a_coordinator_that_hangs_is_not_waited_for_beyond_the_requests_time(
    url: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kclient.gateway.handlers.produce._TIMEOUT_STEP_S", 0.01)
    coordinator = coordinated(monkeypatch)
    coordinator.transactions["x"] = SmallTransaction(7)
    async with serving(url) as (gateway, wire, _):
        await wire.create("t")
        await wire.produce("t", batch_of(b"first"))
        coordinator.before_answer = anyio.sleep_forever
        batch = batch_of(b"0", transactional=True, producer_id=7, producer_epoch=0, sequence=0)
        request = produce_request("t", batch, transactional_id="x")
        request.timeout_ms = 1
        with anyio.fail_after(20):
            row = (await wire(request, 12)).responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert not partition_of(gateway).log.transactions._verifications
        coordinator.before_answer = anyio.lowlevel.checkpoint
        request.timeout_ms = 20_000
        assert not (await wire(request, 12)).responses[0].partition_responses[0].error_code


@pytest.mark.usefixtures("impatient")
@on_some
async def test_one_store_that_hangs_does_not_hold_up_the_ends_of_other_transactions(
    url: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = coordinated(monkeypatch)
    async with gated(url) as (gateway, wire, broker, gates):
        peers = local_peers(gateway, coordinator)
        keys = []
        for name, transactional_id in (("t", "x"), ("u", "yy")):
            keys.append(PartitionId((await wire.create(name)).topic_id, 0))
            transactor = Transactor(wire, coordinator, peers, transactional_id)
            transactor.begin()
            assert await transactor.send(name, b"1") == ErrorCode.NONE
        ends = [EndOfTransaction(1001 + number, 0, EndMarker(True, 0), [key]) for number, key in enumerate(keys)]
        ends.append(EndOfTransaction(9, 0, EndMarker(True, 0), [PartitionId(bytes(16), 0)]))
        async with hung(url, gates, broker, gateway):
            with anyio.fail_after(20):
                codes = [dict(each) for each in await peers.write_markers(ends)]
            assert codes == [
                {keys[0]: ErrorCode.KAFKA_STORAGE_ERROR},
                {keys[1]: ErrorCode.NONE},
                {PartitionId(bytes(16), 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
            ]
            assert (await wire.fetch("u", 0, isolation_level=COMMITTED)).last_stable_offset == 2
        assert await peers.write_markers(ends[:1]) == [{keys[0]: ErrorCode.NONE}]
        assert await committed(wire) == [b"1"]


@pytest.mark.usefixtures("impatient")
async def test_an_end_that_does_not_become_durable_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LocalPeers.write_markers.__kwdefaults__, "patience_s", 0.1)
    coordinator = coordinated(monkeypatch)
    async with serving(Url(f"memory:{next(names)}")) as (gateway, wire, broker):
        key = PartitionId((await wire.create("t")).topic_id, 0)
        peers = local_peers(gateway, coordinator)
        transactor = Transactor(wire, coordinator, peers, "x")
        transactor.begin()
        assert await transactor.send("t", b"1") == ErrorCode.NONE
        broker.holding = []
        broker.fates.append(Fate.SYNCED)
        with anyio.fail_after(20):
            assert await transactor.end(committed=True) == {key: ErrorCode.REQUEST_TIMED_OUT}
        broker.holding.pop().decide()
        broker.holding = None
        with anyio.fail_after(20):
            while partition_of(gateway).state is not PartitionPhase.OPEN:
                await anyio.lowlevel.checkpoint()
        assert await committed(wire) == [b"1"]
