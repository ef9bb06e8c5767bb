"""Kafka 3.9, the last release that knows message sets, reads ours, writes the same, and converts as we do."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kclient.records import (
    BatchBuilder,
    BatchHeader,
    CompressionType,
    MessageSetBuilder,
    batch_of_sent,
    decode_records,
    down_convert,
    encode_end_marker,
    iter_batches,
    iter_headers,
    restamp,
    up_convert,
)
from kclient.types import TimestampType
from tests.conformance.test_records_java import random_records, text
from tests.conftest import require_java
from tests.kafka_artifacts import KAFKA_3, kafka_jars

pytestmark = pytest.mark.maven

ORACLE = Path(__file__).parent.parent / "java" / "MessageFormatsOracle.java"
TYPES = {
    TimestampType.NO_TIMESTAMP: "NoTimestampType",
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}
APPENDED = 1_650_000_000_000
Record = tuple[int, bytes | None, bytes | None, Any]


class Case(NamedTuple):
    """A buffer, and the offset that a fetch asks for."""

    data: bytes
    first_offset: int
    plain: bool
    """Whether nothing in it is compressed, so that bytes can be compared."""
    one_set: bool
    """Whether it is a single message set that begins at offset 0, as a Produce request carries."""


def message_set(magic: Any, codec: CompressionType, records: list[Record], base: int, **settings: Any) -> bytes:
    builder = MessageSetBuilder(magic=magic, limit=1 << 26, compression=codec, **settings)
    for timestamp, key, value, _ in records:
        builder.append(timestamp, key, value)
    return bytes(builder.build(base))


def sparse_set(magic: Any, codec: CompressionType, records: list[Record], base: int) -> bytes:
    builder = MessageSetBuilder(magic=magic, limit=1 << 26, compression=codec)
    for number, (timestamp, key, value, _) in enumerate(records):
        builder.append_at(number * number, timestamp, key, value)
    return bytes(builder.build(base))


def batch(codec: CompressionType, records: list[Record], base: int, *, appended: bool = False, **kind: Any) -> bytes:
    builder = BatchBuilder(limit=1 << 26, compression=codec, **kind)
    for record in records:
        builder.append(*record)
    made = builder.build(0, 5, 0, 0)
    restamp(made, base_offset=base, partition_leader_epoch=3, log_append_time=APPENDED if appended else None)
    return bytes(made)


def cases() -> list[Case]:
    rng = random.Random(4)
    found = []
    for codec in CompressionType:
        plain = codec is CompressionType.NONE
        for count in (1, 60):
            records = random_records(rng, count)
            first = rng.choice([0, 100, 107, 200])
            found.append(Case(batch(codec, records, 100), first, plain, False))
            found.append(Case(batch(codec, records, 100, appended=True), first, plain, False))
            if codec is CompressionType.ZSTD:
                continue
            for magic in (0, 1):
                found.append(Case(message_set(magic, codec, records, 0), 0, plain, True))
                found.append(Case(message_set(magic, codec, records, 2**40), 2**40 + 3, plain, False))
                found.append(Case(sparse_set(magic, codec, records, 100), first, plain, False))
            found.append(Case(message_set(1, codec, records, 7, log_append_time=APPENDED), 9, plain, False))
    marker = [(APPENDED, *encode_end_marker(commit=True, coordinator_epoch=2), [])]
    mixed, offset = b"", 0
    for magic in (0, 1, 2, 1, 2, 0):
        for codec in (CompressionType.NONE, CompressionType.LZ4, CompressionType.SNAPPY):
            records = random_records(rng, 5)
            mixed += message_set(magic, codec, records, offset) if magic < 2 else batch(codec, records, offset)
            offset += 5
        mixed += batch(CompressionType.NONE, marker, offset, is_transactional=True, is_control=True)
        offset += 1
    found.append(Case(mixed, 12, False, False))
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what Kafka made of the cases."""
    require_java()
    folder = tmp_path_factory.mktemp("formats")
    (folder / "ours").mkdir()
    (folder / "theirs").mkdir()
    for number, case in enumerate(cases()):
        (folder / "ours" / f"{number}-{case.first_offset}").write_bytes(case.data)
    classpath = f"{kafka_jars(KAFKA_3)}/*"
    command = ["java", "-cp", classpath, str(ORACLE), str(folder / "ours"), str(folder / "theirs")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return folder / "theirs"


def told(data: bytes) -> list[tuple[Any, ...]]:
    return [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers) for r in decode_records(data, "t", 0)]


def printed(data: bytes) -> list[str]:
    """What the oracle prints of a buffer."""
    lines = []
    for _, header in iter_headers(data):
        records = _records_in(data, header)
        lines.append(
            f"batch {header.magic} {records[0][0] if header.count < 0 else header.base_offset} {header.last_offset} "
            f"{header.length} {header.compression.name.lower()} {TYPES[header.timestamp_type]}"
        )
        lines += [f"record {offset} {stamp} {text(key)} {text(value)}" for offset, stamp, _, key, value, _ in records]
    return lines


def _records_in(data: bytes, header: BatchHeader) -> list[tuple[Any, ...]]:
    (position,) = [position for position, found in iter_headers(data) if found == header]
    alone = data[position : position + header.length]
    if header.is_control:  # ours are not given to readers; the oracle shows them
        bare = bytearray(alone)
        bare[22] &= ~0x20
        return [
            (r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers)
            for r in decode_records(bare, "t", 0, check_crcs=False)
        ]
    return told(alone)


def test_kafka_reads_what_we_write(results: Path) -> None:
    for number, case in enumerate(cases()):
        assert (results / f"{number}.txt").read_text().splitlines() == printed(case.data)


def test_we_read_what_kafka_writes(results: Path) -> None:
    for number, case in enumerate(cases()):
        copy = (results / f"{number}.copy").read_bytes()
        assert told(copy) == told(case.data)
        if case.plain and {header.magic for _, header in iter_headers(copy)} != {2}:
            assert copy == case.data


def test_we_convert_down_as_kafka_does(results: Path) -> None:
    compared = 0
    for number, case in enumerate(cases()):
        for magic in (0, 1):
            path = results / f"{number}.down{magic}"
            if not path.exists():
                assert any(header.compression is CompressionType.ZSTD for _, header in iter_headers(case.data))
                continue
            theirs = path.read_bytes()
            ours = down_convert(case.data, magic, first_offset=case.first_offset)  # type: ignore[arg-type]
            assert shape(ours) == shape(theirs), (number, magic)
            assert told(ours) == told(theirs)
            if case.plain:
                assert ours == theirs
            compared += 1
    assert compared > 80


def test_we_convert_up_as_kafka_does(results: Path) -> None:
    compared = 0
    for number, case in enumerate(cases()):
        if not case.one_set:
            continue
        for magic in (1, 2):
            theirs = (results / f"{number}.up{magic}").read_bytes()
            ours = up_convert(case.data, magic)  # type: ignore[arg-type]
            assert shape(ours) == shape(theirs), (number, magic)
            assert told(ours) == told(theirs)
            if case.plain:
                assert ours == theirs
            compared += 1
    assert compared == 32


def test_we_keep_what_old_producers_send_as_kafka_does(results: Path) -> None:
    compared = 0
    for number, case in enumerate(cases()):
        magics = {header.magic for _, header in iter_headers(case.data)}
        if not case.one_set or 2 in magics:
            continue
        theirs = told((results / f"{number}.up2").read_bytes())
        ours = batch_of_sent(case.data)
        assert ours is not None
        (header,) = [header for _, header in iter_headers(ours)]
        assert (header.base_offset, header.last_offset_delta + 1) == (0, len(theirs))
        kept = told(ours)
        assert [row[0] for row in kept] == list(range(len(theirs)))
        assert [(row[1], *row[3:]) for row in kept] == [(row[1], *row[3:]) for row in theirs]
        compared += 1
    assert compared > 8


def shape(data: bytes) -> list[tuple[Any, ...]]:
    """What the headers say, but for what depends on the compressor."""
    return [
        (
            header.magic, header.base_offset, header.last_offset_delta, header.attributes, header.count,
            header.base_timestamp, header.max_timestamp, header.producer_id, header.base_sequence,
        )
        for _, header in iter_headers(data)
    ]  # fmt: skip


def test_the_cases_hold_every_format() -> None:
    headers = [header for case in cases() for header, _ in iter_batches(case.data, "t", 0)]
    combinations = {(header.magic, header.compression) for header in headers}
    assert combinations == {
        (magic, codec) for magic in (0, 1, 2) for codec in CompressionType if magic == 2 or codec < 4
    }
