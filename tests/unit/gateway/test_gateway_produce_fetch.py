"""Produce and Fetch through a whole gateway in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import slow_reads
from kclient.htp.embedded.topic import EmbeddedTopic
from kclient.protocol.messages import FetchRequest
from kclient.protocol.messages.metadata import MetadataRequest
from kclient.records import CompressionType, read_header
from tests.gateway_wire import batch_of, connect, fetch_request, produce_request, running
from tests.unit.htp.disks import HangingFiles

pytestmark = pytest.mark.anyio


async def test_what_is_produced_is_fetched() -> None:
    async with running() as (_, wire):
        await wire.create("t", 2)
        first = await wire.produce("t", batch_of(b"a", b"b"))
        second = await wire.produce("t", batch_of(b"c"))
        assert (first.error_code, first.base_offset, second.base_offset) == (0, 0, 2)
        assert await wire.values("t") == [b"a", b"b", b"c"]
        assert await wire.values("t", 1) == [b"b", b"c"]
        assert await wire.values("t", partition=1) == []


@pytest.mark.parametrize("version", range(3, 14))
async def test_every_produce_version_with_batches(version: int) -> None:
    async with running() as (gateway, wire):
        created = await wire.create("t")
        request = produce_request("t", batch_of(b"a"))
        request.topic_data[0].topic_id = created.topic_id
        response = await wire(request, version)
        row = response.responses[0].partition_responses[0]
        assert (row.error_code, row.base_offset) == (0, 0)
        assert await wire.values("t") == [b"a"]
        assert gateway.parts.topics.get("t") is not None


@pytest.mark.parametrize("version", range(4, 19))
async def test_every_fetch_version(version: int) -> None:
    async with running() as (_, wire):
        created = await wire.create("t")
        await wire.produce("t", batch_of(b"a"))
        request = fetch_request("t", 0)
        request.topics[0].topic_id = created.topic_id
        response = await wire(request, version)
        answer = response.responses[0].partitions[0]
        assert (answer.error_code, answer.high_watermark) == (0, 1)
        assert read_header(answer.records).count == 1


@pytest.mark.parametrize("acks", [-1, 1])
async def test_offsets_are_told(acks: int) -> None:
    async with running() as (_, wire):
        await wire.create("t")
        for expected in range(3):
            assert (await wire.produce("t", batch_of(b"a"), acks=acks)).base_offset == expected


async def test_acks_0_has_no_answer_and_keeps_its_place() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        for _ in range(3):
            await wire.send(produce_request("t", batch_of(b"quiet"), acks=0), 9)
        answered = await wire.produce("t", batch_of(b"loud"))
        assert answered.base_offset == 3


async def test_acks_0_to_nowhere_closes_the_connection() -> None:
    async with running() as (gateway, wire):
        await wire.send(produce_request("nowhere", batch_of(b"a"), acks=0), 9)
        assert await wire.frame() is None
        assert (await connect(gateway).metadata("t")).topics


async def test_other_acks_are_refused() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        row = await wire.produce("t", batch_of(b"a"), acks=2)
        assert row.error_code == ErrorCode.INVALID_REQUIRED_ACKS


def broken(batch: bytearray) -> bytearray:
    batch[-1] ^= 1
    return batch


@pytest.mark.parametrize(
    ("made", "error", "version"),
    [
        (lambda: broken(batch_of(b"a")), ErrorCode.CORRUPT_MESSAGE, 9),
        (lambda: batch_of(b"a")[:65], ErrorCode.CORRUPT_MESSAGE, 9),
        (lambda: b"", ErrorCode.INVALID_RECORD, 9),
        (lambda: batch_of(b"a") + batch_of(b"b"), ErrorCode.INVALID_RECORD, 9),
        (lambda: batch_of(b"a" * 2000), ErrorCode.MESSAGE_TOO_LARGE, 9),
        (lambda: batch_of(b"a", timestamp=1), ErrorCode.INVALID_TIMESTAMP, 9),
        (lambda: batch_of(b"a", timestamp=1 << 50), ErrorCode.INVALID_TIMESTAMP, 9),
        (lambda: batch_of(b"a", producer_id=1, producer_epoch=0, sequence=-1), ErrorCode.INVALID_RECORD, 9),
        (lambda: batch_of(b"a", transactional=True), ErrorCode.INVALID_RECORD, 9),
        (
            lambda: batch_of(b"a", transactional=True, producer_id=1, producer_epoch=0, sequence=0),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            9,
        ),
        (lambda: batch_of(b"a", compression=CompressionType.ZSTD), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 6),
        (lambda: batch_of(b"a", compression=CompressionType.ZSTD), ErrorCode.NONE, 7),
    ],
)
async def test_batches_are_checked(made: Callable[[], bytes], error: ErrorCode, version: int) -> None:
    batch = made()  # now, since its timestamp is looked at
    async with running() as (_, wire):
        await wire.create("t", max_message_bytes="1000", message_timestamp_before_max_ms="1000000")
        row = await wire.produce("t", batch, version=version)
        assert row.error_code == error, row.error_message
        assert (await wire.produce("t", batch_of(b"next"))).base_offset == (1 if error == ErrorCode.NONE else 0)


async def test_a_transactional_id_that_nobody_has_initialized() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        batch = batch_of(b"a", transactional=True, producer_id=1, producer_epoch=0, sequence=0)
        response = await wire(produce_request("t", batch, transactional_id="x"), 9)
        row = response.responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert "transactional.id 'x' is not known" in row.error_message
        assert "INVALID_PRODUCER_ID_MAPPING" not in row.error_message


async def test_unknown_partitions() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        assert (await wire.produce("t", batch_of(b"a"), 1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await wire.produce("u", batch_of(b"a"))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await wire.fetch("t", 0, 1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        request = fetch_request("t", 0)
        request.topics[0].topic_id = b"x" * 16
        answer = (await wire(request, 13)).responses[0].partitions[0]
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_an_idempotent_producer_is_answered_twice_with_one_offset() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"other"))
        batch = bytes(batch_of(b"a", b"b", producer_id=9, producer_epoch=0, sequence=0))
        assert [(await wire.produce("t", batch)).base_offset for _ in range(3)] == [1, 1, 1]
        late = batch_of(b"d", producer_id=9, producer_epoch=0, sequence=3)
        assert (await wire.produce("t", late)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        bumped = batch_of(b"c", producer_id=9, producer_epoch=1, sequence=0)
        assert (await wire.produce("t", bumped)).base_offset == 3
        old = batch_of(b"x", producer_id=9, producer_epoch=0, sequence=2)
        assert (await wire.produce("t", old)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await wire.values("t") == [b"other", b"a", b"b", b"c"]


async def test_log_append_time() -> None:
    async with running() as (_, wire):
        await wire.create("t", message_timestamp_type="LogAppendTime")
        row = await wire.produce("t", batch_of(b"a", timestamp=5))
        assert row.log_append_time_ms > 1_600_000_000_000
        header = read_header((await wire.fetch("t", 0)).records or b"")
        assert header.max_timestamp == row.log_append_time_ms
        assert await wire.values("t") == [b"a"]  # the checksum is right


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("given", [CompressionType.NONE, CompressionType.ZSTD])
async def test_a_topic_may_ask_for_a_codec(codec: str, given: CompressionType) -> None:
    async with running() as (_, wire):
        await wire.create("t", compression_type=codec)
        await wire.produce("t", batch_of(b"a" * 100, b"b", compression=given))
        header = read_header((await wire.fetch("t", 0)).records or b"")
        assert header.compression.name.lower() == codec.replace("uncompressed", "none")
        assert await wire.values("t") == [b"a" * 100, b"b"]


async def test_what_decompresses_to_too_much_is_refused() -> None:
    bomb = batch_of(b"\0" * 200_000, compression=CompressionType.GZIP)
    async with running(config={"message.max.decompressed.bytes": 100_000}) as (_, wire):
        for codec in ("producer", "lz4"):
            await wire.create(codec, compression_type=codec)
            row = await wire.produce(codec, bomb)
            assert row.error_code == ErrorCode.MESSAGE_TOO_LARGE
            assert "100000" in row.error_message
            await wire.produce(codec, batch_of(b"small"))
            assert await wire.values(codec) == [b"small"]


async def test_a_batch_that_grows_beyond_max_message_bytes_is_refused() -> None:
    async with running() as (_, wire):
        await wire.create("t", compression_type="uncompressed", max_message_bytes="1000")
        row = await wire.produce("t", batch_of(b"\0" * 2_000, compression=CompressionType.GZIP))
        assert row.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert "max.message.bytes" in row.error_message
        assert await wire.values("t") == []


async def test_a_fetch_into_a_batch_returns_the_whole_batch() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        batch = batch_of(b"a", b"b", b"c", compression=CompressionType.LZ4)
        await wire.produce("t", batch)
        answer = await wire.fetch("t", 2)
        assert bytes(answer.records or b"")[21:] == batch[21:]  # nothing behind the checksum is touched


async def test_what_is_not_at_hand_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmbeddedTopic, "pull_nowait", lambda *_, **__: None)  # as where the disk has to be asked
    async with running(f"embedded:{tmp_path / 'data'}") as (_, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"a", b"b"))
        assert await wire.values("t") == [b"a", b"b"]


async def test_limits() -> None:
    async with running() as (_, wire):
        await wire.create("t", 2)
        for partition in (0, 1):
            for _ in range(3):
                await wire.produce("t", batch_of(b"x" * 1000), partition)
        one = len(batch_of(b"x" * 1000))
        # The first batch comes however large it is; a later partition stays empty rather than exceed the limit.
        request = fetch_request("t", 0, max_bytes=10, partition_max_bytes=10)
        request.topics[0].partitions.append(fetch_request("t", 0, 1).topics[0].partitions[0])
        response = await wire(request, 11)
        sizes = [(answer.partition_index, len(answer.records)) for answer in response.responses[0].partitions]
        assert sizes == [(0, one), (1, 0)]
        assert len((await wire.fetch("t", 0, partition_max_bytes=2 * one + 5)).records or b"") == 2 * one


@pytest.mark.many_partitions
async def test_many_partitions_are_read_in_the_order_of_the_request() -> None:
    async with running() as (_, wire):
        await wire.create("t", 300)
        for partition in (0, 299):
            await wire.produce("t", batch_of(b"x"), partition)
        request = fetch_request("t", 0, max_bytes=10, partition_max_bytes=10)
        request.topics[0].partitions += [fetch_request("t", 0, n).topics[0].partitions[0] for n in range(1, 300)]
        answers = (await wire(request, 11)).responses[0].partitions
        assert [answer.partition_index for answer in answers] == list(range(300))
        assert [answer.partition_index for answer in answers if answer.records] == [0]


async def test_a_session_that_its_client_ends_is_there_no_more() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        request = fetch_request("t", 0)
        request.session_epoch = 0
        session = (await wire(request, 11)).session_id
        assert session
        last = fetch_request("t", 0)
        last.session_id, last.session_epoch = session, -1
        assert (await wire(last, 11)).error_code == 0
        again = FetchRequest(session_id=session, session_epoch=1, max_wait_ms=0)
        assert (await wire(again, 11)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_offsets_out_of_range() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"a"))
        assert (await wire.fetch("t", 1)).error_code == 0
        assert (await wire.fetch("t", 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await wire.fetch("t", -1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_leader_epochs_are_checked() -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        epoch = gateway.parts.identity.leader_epoch
        assert (await wire.fetch("t", 0, leader_epoch=epoch)).error_code == 0
        assert (await wire.fetch("t", 0, leader_epoch=epoch + 1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await wire.fetch("t", 0, leader_epoch=epoch - 1)).error_code == ErrorCode.FENCED_LEADER_EPOCH


async def test_a_long_poll_is_woken_by_the_first_batch() -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        other = connect(gateway)
        request = fetch_request("t", 0, max_wait_ms=60_000)
        await wire.send(request, 11)
        await other.produce("t", batch_of(b"a"))
        with anyio.fail_after(10):
            response = await wire.read(request, 11)
        assert response.responses[0].partitions[0].high_watermark == 1
        await other.aclose()


async def test_a_long_poll_waits_for_min_bytes() -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        other = connect(gateway)
        one = len(batch_of(b"x" * 100))
        request = fetch_request("t", 0, max_wait_ms=60_000, min_bytes=3 * one)
        await wire.send(request, 11)
        for _ in range(3):
            await other.produce("t", batch_of(b"x" * 100))
        with anyio.fail_after(10):
            response = await wire.read(request, 11)
        assert len(response.responses[0].partitions[0].records) == 3 * one
        await other.aclose()


async def test_a_long_poll_ends() -> None:
    async with running() as (_, wire):
        await wire.create("t")
        answer = await wire.fetch("t", 0, max_wait_ms=20)
        assert (answer.error_code, answer.records) == (0, b"")


async def test_a_long_poll_ends_when_its_topic_is_deleted() -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        request = fetch_request("t", 0, max_wait_ms=60_000)
        await wire.send(request, 11)
        await wire.send(MetadataRequest(topics=[]), 9)  # answered after the fetch: keeps the order honest
        await gateway.parts.catalogue.delete("t")
        with anyio.fail_after(10):
            response = await wire.read(request, 11)
            await wire.read(MetadataRequest(), 9)
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_gateway_that_closes_answers_long_polls() -> None:
    request = fetch_request("t", 0, max_wait_ms=60_000)
    async with running() as (gateway, wire):
        await wire.create("t")
        await wire.send(request, 11)
        with anyio.fail_after(10):
            partition = gateway.parts.partitions.get("t", 0)
            assert partition is not None
            while not partition.waiters:
                await anyio.lowlevel.checkpoint()
        await gateway.aclose()
        with anyio.fail_after(10):
            response = await wire.read(request, 11)
        assert response.responses[0].partitions[0].error_code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("min_bytes", "max_bytes", "partition_max_bytes", "arrives_late"),
    [
        (6 << 20, 50 << 20, 20 << 20, False),  # more than is read of one partition at once
        (6 << 20, 50 << 20, 20 << 20, True),
        (3 << 20, 1 << 20, 20 << 20, False),  # more than the answer may hold: Kafka waits for as much as it may
        (3 << 20, 1 << 20, 20 << 20, True),
        (2**31 - 1, 2**31 - 1, 2**31 - 1, False),
    ],
)
async def test_a_fetch_waits_for_no_more_than_an_answer_holds(
    min_bytes: int, max_bytes: int, partition_max_bytes: int, arrives_late: bool
) -> None:
    async with running() as (gateway, wire):
        await wire.create("t")
        request = fetch_request(
            "t", 0, max_wait_ms=120_000, min_bytes=min_bytes, max_bytes=max_bytes,
            partition_max_bytes=partition_max_bytes,
        )  # fmt: skip
        reader = connect(gateway)
        if arrives_late:
            await reader.send(request, 11)
        for _ in range(8):
            await wire.produce("t", batch_of(bytes(900_000)))
        if not arrives_late:
            await reader.send(request, 11)
        with anyio.fail_after(30):
            answer = (await reader.read(request, 11)).responses[0].partitions[0]
        assert len(answer.records) > min(max_bytes, 4 << 20) - 1_000_000
        await reader.aclose()


async def test_a_fetch_does_not_wait_for_a_batch_that_has_no_room() -> None:
    """A partition that has more than it may give counts as what it may give, as in Kafka."""
    async with running() as (_, wire):
        await wire.create("t", 2)
        for _ in range(3):
            await wire.produce("t", batch_of(bytes(400_000)))
        for min_bytes in (1 << 20, (1 << 20) + 1):
            request = fetch_request("t", 0, max_wait_ms=300, min_bytes=min_bytes, partition_max_bytes=1 << 20)
            began = anyio.current_time()
            answer = (await wire(request, 11)).responses[0].partitions[0]
            assert (anyio.current_time() - began >= 0.29) is (min_bytes > 1 << 20)
            assert 800_000 < len(answer.records) < 1 << 20


async def test_a_fetch_waits_for_more_than_a_partition_may_give() -> None:
    """As in Kafka: what `partition_max_bytes` leaves out does not count."""
    async with running() as (_, wire):
        await wire.create("t")
        for _ in range(4):
            await wire.produce("t", batch_of(bytes(900_000)))
        request = fetch_request("t", 0, max_wait_ms=300, min_bytes=3 << 20, partition_max_bytes=1 << 20)
        began = anyio.current_time()
        answer = (await wire(request, 11)).responses[0].partitions[0]
        assert anyio.current_time() - began >= 0.29
        assert 900_000 < len(answer.records) < 1 << 20


@pytest.mark.slow
async def test_a_fetch_does_not_wait_for_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other partitions are answered, and once the disk answers it is, too."""
    monkeypatch.setattr(slow_reads, "_LONG_S", 0.05)
    files = HangingFiles("brk-1")
    monkeypatch.setattr("kclient.htp.embedded.Files", lambda: files)
    async with running(f"embedded:{tmp_path}/data", mapping="broker", brokers=2) as (gateway, wire):
        await wire.create("t", 2)
        record = gateway.parts.topics.get("t")
        assert record is not None
        hanging = next(index for index, place in enumerate(record.places) if place.broker == "brk-1")
        for index in range(2):
            await wire.produce("t", batch_of(b"a"), index)

        def request(*, max_wait_ms: int = 0, offset: int = 0) -> FetchRequest:
            made = fetch_request("t", 0, hanging, max_wait_ms=max_wait_ms)
            made.topics[0].partitions += fetch_request("t", offset, 1 - hanging).topics[0].partitions
            return made

        async def fetch(wanted: FetchRequest) -> dict[int, tuple[int, bool]]:
            response = await wire(wanted, 11)
            rows = response.responses[0].partitions
            return {row.partition_index: (row.error_code, bool(row.records)) for row in rows}

        files.hang()
        try:
            with anyio.fail_after(20):
                for _ in range(3):
                    found = await fetch(request())
                    assert found == {hanging: (ErrorCode.KAFKA_STORAGE_ERROR, False), 1 - hanging: (0, True)}
                for version in (3, 5):
                    rows = (await wire(request(), version)).responses[0].partitions
                    codes = {row.partition_index: row.error_code for row in rows}
                    assert codes == {hanging: ErrorCode.NOT_LEADER_OR_FOLLOWER, 1 - hanging: 0}, "they know no other"
                began = anyio.current_time()
                found = await fetch(request(max_wait_ms=200, offset=1))
                assert anyio.current_time() - began >= 0.19, "it waits for the other one"
                assert found == {hanging: (ErrorCode.KAFKA_STORAGE_ERROR, False), 1 - hanging: (0, False)}
                sent = request(max_wait_ms=60_000, offset=1)
                await wire.send(sent, 11)
                files.go_on()
                row = (await wire.read(sent, 11)).responses[0].partitions[0]
                assert (row.partition_index, row.error_code, bool(row.records)) == (hanging, 0, True)
        finally:
            files.go_on()
