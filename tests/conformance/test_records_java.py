"""Kafka's own record classes read what we write, hash as we do, and write what we read."""

from __future__ import annotations

import random
import subprocess
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from kclient.records import (
    BatchBuilder,
    CompressionType,
    check_batch,
    decode_records,
    iter_headers,
    murmur2,
    restamp,
)
from kclient.records.compression import LEVELS

pytestmark = pytest.mark.maven

ORACLE = Path(__file__).parent.parent / "java" / "RecordsOracle.java"
SETTINGS = [
    (compression, level)
    for compression in CompressionType
    for level in (None, *((1, 5, LEVELS[compression][1]) if compression in LEVELS else ()))
]


def random_records(rng: random.Random, count: int) -> list[tuple[Any, ...]]:
    def data(most: int) -> bytes | None:
        size = rng.choice([0, 1, 63, 64, most])
        return None if rng.random() < 0.15 else rng.choice([rng.randbytes(size), b"abc" * (size // 3)])

    def headers() -> list[tuple[str, bytes | None]]:
        names = ["", "h", "key", "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n", "\N{SNOWMAN}" * 40]
        return [(rng.choice(names), data(100)) for _ in range(rng.choice([0, 0, 0, 1, 3, 70]))]

    start = rng.choice([-1, 0, 1_700_000_000_000, 2**40])
    return [(max(start + rng.randint(-(10**6), 10**6), -1), data(200), data(9000), headers()) for _ in range(count)]


def text(data: bytes | None) -> str:
    return "-" if data is None else "=" + b64encode(data).decode()


def printed(batch: bytes, records: list[tuple[Any, ...]], offset: int) -> list[str]:
    """What the oracle prints of a batch."""
    header = check_batch(batch)
    first = (
        f"batch {offset} {header.last_offset} {len(batch)} {header.compression.name.lower()} CreateTime "
        f"{header.producer_id} {header.producer_epoch} {header.base_sequence} "
        f"{str(header.is_transactional).lower()} {header.max_timestamp}"
    )
    lines = [first]
    for number, (timestamp, key, value, headers) in enumerate(records):
        line = ["record", str(offset + number), str(timestamp), text(key), text(value)]
        line.append("-" if key is None else str(murmur2(key)))
        for name, data in headers:
            line += [text(name.encode()), text(data)]
        lines.append(" ".join(line))
    return lines


def test_kafka_reads_and_writes_the_same(kafka_jars_4: Path, tmp_path: Path) -> None:
    rng = random.Random(2)
    written, expected, everything, offset = bytearray(), [], [], 0
    for compression, level in SETTINGS:
        for count in (1, 3, 200):
            records = random_records(rng, count)
            builder = BatchBuilder(
                limit=1 << 24, compression=compression, level=level, is_transactional=rng.random() < 0.5
            )
            for record in records:
                builder.append(*record)
            batch = builder.build(0, rng.randint(0, 2**62), rng.randint(0, 2**15 - 1), rng.randint(0, 2**31 - 1))
            restamp(batch, base_offset=offset, partition_leader_epoch=7)
            written += batch
            expected += printed(batch, records, offset)
            everything += [(offset + n, *record) for n, record in enumerate(records)]
            offset += count + rng.randint(0, 3)
    (tmp_path / "ours").write_bytes(written)
    command = ["java", "-cp", f"{kafka_jars_4}/*", str(ORACLE), str(tmp_path / "ours"), str(tmp_path / "javas")]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    assert output.splitlines() == expected

    theirs = (tmp_path / "javas").read_bytes()
    assert [header.compression for _, header in iter_headers(theirs)] == [c for c, _ in SETTINGS for _ in range(3)]
    read = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in decode_records(theirs, "t", 0)]
    assert read == everything
    assert uncompressed(theirs) == uncompressed(bytes(written))


def uncompressed(log: bytes) -> list[bytes]:
    """The records of the batches that are not compressed, which must be equal byte for byte."""
    headers = [(position, header) for position, header in iter_headers(log) if not header.compression]
    return [log[position + 61 : position + header.length] for position, header in headers]
