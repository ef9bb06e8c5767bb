"""Building and reading record batches of 1 MB: 100-byte values, no keys, no compression, checksums compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder

from benchmarks.harness import alternating, rate, report
from kclient.records.arrow import ArrowDecoder
from kclient.records.batch_header import CompressionType
from kclient.records.chooser import load
from kclient.records.reader import RecordReader

LIMIT = 1 << 20
COUNT = 9000
ROUNDS = 20
STAMP = 1_700_000_000_000
VALUE = b"x" * 100
VALUES = [VALUE] * COUNT

COMPILED: Any = load("compiled")
INTERPRETED: Any = load("interpreted")


def append(implementation: Any, count: int = COUNT) -> Any:
    """A batch, one call a record."""
    builder = implementation.BatchBuilder(limit=LIMIT)
    add = builder.append
    for _ in range(count):
        add(STAMP, None, VALUE)
    return builder.build()


def append_with_handles(implementation: Any) -> None:
    """As a producer does: a handle is kept for every record."""
    builder = implementation.BatchBuilder(limit=LIMIT)
    add, handle = builder.append, implementation.LazyDelivery
    handles = [handle(builder, add(STAMP, None, VALUE)) for _ in range(COUNT)]
    builder.build()
    assert handles[-1].index == COUNT - 1


def append_many(implementation: Any) -> None:
    """A batch in one call."""
    builder = implementation.BatchBuilder(limit=LIMIT)
    assert builder.append_many(STAMP, VALUES) == COUNT
    builder.build()


def append_aiokafka() -> Any:
    """The same with aiokafka's compiled builder."""
    builder = AiokafkaBuilder(2, 0, False, -1, -1, -1, LIMIT)
    add = builder.append
    for offset in range(COUNT):
        add(offset, STAMP, None, VALUE, [])
    return builder.build()


def read_aiokafka(data: bytes) -> int:
    """Objects by aiokafka's compiled reader."""
    batch = AiokafkaBatch(data)
    assert batch.validate_crc()
    return len(list(batch))


def columns_from_aiokafka(data: bytes) -> int:
    """Columns of aiokafka's objects: what a user has to write."""
    records = list(AiokafkaBatch(data))
    return len(pa.array([record.value for record in records], pa.binary()))


def repeated(work: Callable[[], object], count: int = COUNT) -> Callable[[], float]:
    """Records a second of some rounds of the work."""

    def rounds() -> None:
        for _ in range(ROUNDS if count == COUNT else 2):
            work()

    return lambda: rate(count * (ROUNDS if count == COUNT else 2), rounds)


def main() -> None:
    """Print three tables."""
    data = bytes(append(COMPILED))
    read = RecordReader(COMPILED).decode_records
    read_interpreted = RecordReader(INTERPRETED).decode_records
    columns = ArrowDecoder(COMPILED).decode_arrow
    building = {
        "kclient, one by one": repeated(lambda: append(COMPILED)),
        "kclient, with a handle for each": repeated(lambda: append_with_handles(COMPILED)),
        "kclient, append_many": repeated(lambda: append_many(COMPILED)),
        "kclient, interpreted": repeated(lambda: append(INTERPRETED, 3000), 3000),
        "aiokafka": repeated(append_aiokafka),
    }
    report("build a batch", alternating(building))
    few = bytes(append(COMPILED, 3000))
    reading = {
        "kclient": repeated(lambda: read(data, "topic", 0)),
        "kclient, interpreted": repeated(lambda: read_interpreted(few, "topic", 0), 3000),
        "aiokafka": repeated(lambda: read_aiokafka(data)),
    }
    report("read a batch as objects", alternating(reading))
    arrow = {
        "kclient": repeated(lambda: columns([("topic", 0, data)])),
        "aiokafka, value column only": repeated(lambda: columns_from_aiokafka(data)),
    }
    report("read a batch as Arrow columns", alternating(arrow))
    compress()


def compress() -> None:
    """Build and read with each compression."""
    read = RecordReader(COMPILED).decode_records
    values = [b'{"tail": "N%05d", "delay": %d, "carrier": "UA"}' % (n * 7919 % 99991, n % 57) for n in range(COUNT)]
    building, reading = {}, {}
    for compression in CompressionType:

        def build(compression: CompressionType = compression) -> Any:
            builder = COMPILED.BatchBuilder(limit=LIMIT, compression=compression)
            builder.append_many(STAMP, values)
            return builder.build()

        data = bytes(build())
        name = f"{compression.name.lower()} ({len(data) / COUNT:.0f} bytes a record)"
        building[name] = repeated(build)
        reading[name] = repeated(lambda data=data: read(data, "topic", 0))
    report("build with append_many, JSON of 45 bytes", alternating(building), baseline=next(iter(building)))
    report("read as objects, JSON of 45 bytes", alternating(reading), baseline=next(iter(reading)))


if __name__ == "__main__":
    main()
