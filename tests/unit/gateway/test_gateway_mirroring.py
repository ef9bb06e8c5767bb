"""Topics that mirror another cluster's: batches at given offsets, what stands in holes, and who may write."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kclient.errors import KafkaStorageError, OutOfOrderSequenceError, PolicyViolationError
from kclient.gateway import Gateway
from kclient.gateway.append import Append, AppendState
from kclient.gateway.log import PartitionLog
from kclient.gateway.mirroring import fillers
from kclient.gateway.partition import Partition
from kclient.gateway.rows.topics import MirrorOrigin, TopicRow
from kclient.records import (
    BatchBuilder,
    BatchHeader,
    EndMarker,
    check_batch,
    encode_end_marker,
    iter_batches,
    iter_headers,
    read_header,
)
from tests.gateway_wire import batch_of, running

MIRROR = MirrorOrigin("cluster", bytes(range(16)))
ROW = TopicRow(bytes(16), 1, 1, "domain", [1], {"retention.ms": "-1"}, [])


@dataclass(frozen=True)
class Batch:
    """The fields of a header that the log reads."""

    base_offset: int
    count: int = 1
    producer_id: int = -1
    producer_epoch: int = 0
    base_sequence: int = 0
    is_transactional: bool = False
    is_control: bool = False
    partition_leader_epoch: int = 99
    max_timestamp: int = 1

    @property
    def length(self) -> int:
        return 61 + self.count * 10

    @property
    def last_offset_delta(self) -> int:
        return max(self.count - 1, 0)


def mirror(log: PartitionLog, batch: Batch, marker: EndMarker | None = None) -> Append:
    append = log.prepare_mirrored(batch, marker, 0)
    log.stored(append)
    return append


# The log


def test_a_batch_has_to_begin_at_the_next_offset() -> None:
    log = PartitionLog()
    mirror(log, Batch(0, 3))
    for wrong in (2, 4):
        with pytest.raises(OutOfOrderSequenceError, match="the next one is 3"):
            log.prepare_mirrored(Batch(wrong), None, 0)
    assert (log.next_offset, log.high_watermark) == (3, 0)
    log.durable(3)
    assert log.high_watermark == 3


def test_producers_are_known_without_their_beginning() -> None:
    log = PartitionLog()
    mirror(log, Batch(0, 1, producer_id=7, producer_epoch=3, base_sequence=17))
    mirror(log, Batch(1, 1, producer_id=7, producer_epoch=3, base_sequence=90))  # compaction left out what was between
    assert [each.first_sequence for each in log.windows[7].batches] == [17, 90]


def test_a_failed_batch_is_undone_with_those_behind_it() -> None:
    log = PartitionLog()
    mirror(log, Batch(0, 1, producer_id=7, base_sequence=0))
    log.durable(1)
    failed = mirror(log, Batch(1, 1, producer_id=7, base_sequence=1, is_transactional=True))
    mirror(log, Batch(2, 1, producer_id=8, base_sequence=0))
    log.failed(failed, KafkaStorageError("lost"))
    assert (log.next_offset, list(log.windows), log.windows[7].next_sequence) == (1, [7], 1)
    assert log.last_stable_offset == 1
    assert mirror(log, Batch(1, 1, producer_id=7, base_sequence=1)).base_offset == 1


def test_transactions_end_as_they_did_at_the_source() -> None:
    log = PartitionLog()
    mirror(log, Batch(0, 2, producer_id=7, is_transactional=True))
    log.durable(2)
    assert (log.high_watermark, log.last_stable_offset) == (2, 0)
    mirror(log, Batch(2, 1, producer_id=7, is_transactional=True, is_control=True), EndMarker(False, 5))
    log.durable(3)
    assert log.last_stable_offset == 3
    (chunk,) = log.transactions.aborted.chunks(0, 3)
    assert [each.first_offset for each in chunk.entries or ()] == [0]
    assert log.windows[7].coordinator_epoch == 5


def test_an_end_without_its_beginning_ends_nothing() -> None:
    log = PartitionLog()
    mirror(log, Batch(0, 1, producer_id=7, is_transactional=True, is_control=True), EndMarker(True, 5))
    log.durable(1)
    assert log.last_stable_offset == 1


@pytest.mark.parametrize("recovered", [False, True])
def test_what_compaction_has_emptied_begins_no_transaction(recovered: bool) -> None:
    log, empty = PartitionLog(), Batch(0, 0, producer_id=7, base_sequence=4, is_transactional=True)
    if recovered:
        log.recovered([empty], 0)
    else:
        mirror(log, empty)
        log.durable(1)
    assert (log.last_stable_offset, log.windows[7].transaction_start) == (1, -1)


# Holes


@pytest.mark.parametrize(("first", "end"), [(0, 1), (5, 5), (3, 1000), (7, 2**32 + 7), (0, 2**31)])
def test_holes_are_filled_to_the_last_offset(first: int, end: int) -> None:
    position = first
    for batch in fillers(first, end):
        header = check_batch(batch)
        assert (header.base_offset, header.count, header.producer_id) == (position, 0, -1)
        assert list(iter_batches(batch, "t", 0)) == [(header, [])]
        position = header.last_offset + 1
    assert position == end


# Rows


@pytest.mark.parametrize("mirror", [None, MIRROR, MIRROR._replace(taken_over=True), MirrorOrigin("", bytes(16))])
def test_rows_tell_of_mirrors(mirror: MirrorOrigin | None) -> None:
    assert TopicRow.decode(ROW._replace(mirror=mirror).encode()) == ROW._replace(mirror=mirror)


def test_only_rows_of_mirrors_are_of_the_new_format() -> None:
    assert b'"format":2' in ROW.encode().replace(b" ", b"")
    assert b'"format":4' in ROW._replace(mirror=MIRROR).encode().replace(b" ", b"")
    both = ROW._replace(mirror=MIRROR, brokers=["brk-1"])
    assert b'"format":4' in both.encode().replace(b" ", b"")
    assert TopicRow.decode(both.encode()) == both


@pytest.mark.parametrize("mirror", [MIRROR, MIRROR._replace(taken_over=True), MirrorOrigin("", bytes(16))])
def test_the_description_of_a_mirror_is_read_again(mirror: MirrorOrigin) -> None:
    assert MirrorOrigin.of(mirror.describe()) == mirror


@pytest.mark.parametrize("text", ["", "following", "taken over from", "x y/z"])
def test_another_text_describes_no_mirror(text: str) -> None:
    with pytest.raises(ValueError, match="does not tell of a mirror"):
        MirrorOrigin.of(text)


# Partitions


async def mirrored(gateway: Gateway, name: str = "flights") -> Partition:
    await gateway.parts.catalogue.create(name, 1, mirror=MIRROR)
    found = gateway.parts.partitions.get(name, 0)
    assert found is not None
    await found.ready()
    return found


def at(offset: int, *values: bytes) -> tuple[bytearray, BatchHeader]:
    batch = batch_of(*values, timestamp=17)
    batch[:8] = offset.to_bytes(8, "big")
    return batch, read_header(batch)


@pytest.mark.anyio
async def test_a_mirror_outlives_restarts_until_it_is_taken_over(url: str) -> None:
    async with running(url) as (gateway, wire):
        partition = await mirrored(gateway)
        partition.append_mirrored([at(7, b"a", b"b")])
        last = partition.append_mirrored([at(20, b"c")])
        await partition.settled()
        assert last.state is AppendState.DURABLE
        await partition.trim(7)
        assert await wire.values("flights", 7) == [b"a", b"b", b"c"]
        if url.startswith("memory:"):
            return
    async with running(url) as (gateway, wire):
        assert await wire.values("flights", 7) == [b"a", b"b", b"c"]
        assert (await wire.offset("flights", -2)).offset == 7
        refused = await wire.produce("flights", batch_of(b"mine"))
        assert (refused.error_code, refused.base_offset) == (PolicyViolationError.code, -1)
        await gateway.parts.catalogue.take_over("flights")
        assert (await wire.produce("flights", batch_of(b"mine"))).base_offset == 21
    async with running(url) as (gateway, wire):
        assert await wire.values("flights", 20) == [b"c", b"mine"]
        assert (await wire.produce("flights", batch_of(b"mine"))).base_offset == 22
        with pytest.raises(PolicyViolationError, match="mirrors no partition"):
            gateway.parts.partitions.get("flights", 0).append_mirrored([at(30, b"late")])  # type: ignore[union-attr]


@pytest.mark.anyio
async def test_nothing_is_appended_twice() -> None:
    async with running() as (gateway, wire):
        partition = await mirrored(gateway)
        partition.append_mirrored([at(0, b"a", b"b")])
        with pytest.raises(OutOfOrderSequenceError):
            partition.append_mirrored([at(0, b"a", b"b")])
        with pytest.raises(OutOfOrderSequenceError):
            partition.append_mirrored([at(1, b"b")])
        assert await wire.values("flights") == [b"a", b"b"]


@pytest.mark.anyio
async def test_leader_epochs_are_the_gateways_own() -> None:
    async with running() as (gateway, wire):
        partition = await mirrored(gateway)
        batch, _ = at(0, b"a")
        batch[12:16] = (4711).to_bytes(4, "big")
        partition.append_mirrored([(batch, read_header(batch))])
        await partition.settled()
        ((_, header),) = iter_headers((await wire.fetch("flights", 0)).records or b"")
        assert header.partition_leader_epoch == partition.log.leader_epoch


@pytest.mark.anyio
async def test_control_batches_are_read_again_after_a_restart(tmp_path: object) -> None:
    url = f"embedded:{tmp_path}/data"

    def end(offset: int) -> tuple[bytearray, BatchHeader]:
        builder = BatchBuilder(limit=1024, is_transactional=True, is_control=True)
        builder.append(17, *encode_end_marker(commit=False, coordinator_epoch=1))
        batch = builder.build(offset, producer_id=7, producer_epoch=0)
        return batch, read_header(batch)

    def data(offset: int, sequence: int) -> tuple[bytearray, BatchHeader]:
        batch = batch_of(b"x", producer_id=7, producer_epoch=0, sequence=sequence, transactional=True)
        batch[:8] = offset.to_bytes(8, "big")
        return batch, read_header(batch)

    async with running(url) as (gateway, _):
        partition = await mirrored(gateway)
        for each in (data(0, 0), end(1), data(5, 1)):
            partition.append_mirrored([each])
        await partition.settled()
        assert partition.log.last_stable_offset == 5
        gateway.parts.partitions.close()  # without a checkpoint
    async with running(url) as (gateway, wire):
        assert (await wire.offset("flights", -1, isolation_level=1)).offset == 5
        aborted = (await wire.fetch("flights", 0, isolation_level=1)).aborted_transactions or []
        assert [(each.producer_id, each.first_offset) for each in aborted] == [(7, 0)]


@pytest.mark.anyio
async def test_retention_leaves_mirrors_to_their_source() -> None:
    async with running(config={"log.retention.ms": 1000}) as (gateway, wire):
        partition = await mirrored(gateway)
        partition.append_mirrored([at(0, b"old")])
        await partition.settled()
        assert await gateway.apply_retention() == 0
        await gateway.parts.catalogue.take_over("flights")
        assert await gateway.apply_retention() == 1
        assert (await wire.offset("flights", -2)).offset == 1


@pytest.mark.anyio
async def test_what_it_mirrors_cannot_be_set_and_can_be_seen() -> None:
    async with running() as (gateway, wire):
        await mirrored(gateway)
        assert (await wire.configs(2, "flights"))["htp.mirror"] == (MIRROR.describe(), 4)
        assert await wire.alter(2, "flights", ("htp.mirror", 0, "x")) == 40
        assert await wire.alter(2, "flights", ("retention.ms", 0, "5")) == 0
        assert (await wire.produce("flights", batch_of(b"mine"))).error_code == PolicyViolationError.code
