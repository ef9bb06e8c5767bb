"""Building and reading record batches of 1 MB: 100-byte values, no keys, no compression, checksums compared.

The peers are aiokafka's compiled classes and kafka-python's, which are pure Python. Each reader makes an object of
every record and looks at its key and value, as the peers' records may make them when they are asked for. Ours gives the
records as one list, theirs come one after the other, which is faster for them than to keep them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AiokafkaSetBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder as KafkaPythonSetBuilder
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from benchmarks.harness import alternating, rate, report
from kclient.records import MessageSetBuilder
from kclient.records._implementation import load
from kclient.records.arrow import ArrowDecoder
from kclient.records.arrow_source import ArrowEncoder
from kclient.records.batch_header import CompressionType
from kclient.records.reader import RecordReader

LIMIT = 1 << 20
COUNT = 9000
FEW = 3000
ROUNDS = 20
STAMP = 1_700_000_000_000
VALUE = b"x" * 100
VALUES = [VALUE] * COUNT
TABLE = pa.table({"value": pa.array(VALUES, pa.binary())})
WIDE_TABLE = pa.table(
    {
        "key": pa.array([b"key %d" % n for n in range(COUNT)], pa.binary()),
        "value": pa.array(VALUES, pa.binary()),
        "timestamp": pa.array([STAMP * 1000 + n for n in range(COUNT)], pa.timestamp("us", "UTC")),
    }
)

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


def append_arrow(implementation: Any, table: Any) -> None:
    """Batches of a table's columns."""
    for _ in ArrowEncoder(implementation.BatchBuilder).encode_arrow(table, limit=LIMIT, timestamp=STAMP):
        pass


def append_peer(builder: Any, count: int = COUNT) -> Any:
    """The same with another client's builder."""
    batch = builder(2, 0, False, -1, -1, -1, LIMIT)
    add = batch.append
    for offset in range(count):
        add(offset, STAMP, None, VALUE, [])
    return batch.build()


def read_ours(read: Callable[..., Any], data: bytes) -> None:
    """Objects, each looked at."""
    for record in read(data, "topic", 0):
        record.key  # noqa: B018
        record.value  # noqa: B018


def read_peer(batch: Any) -> None:
    """Objects by another client's reader, each looked at."""
    assert batch.validate_crc()
    for record in batch:
        record.key  # noqa: B018
        record.value  # noqa: B018


def append_set(count: int = FEW) -> Any:
    """A message set of format v1."""
    builder = MessageSetBuilder(magic=1, limit=LIMIT)
    for _ in range(count):
        builder.append(STAMP, None, VALUE)
    return builder.build()


def append_set_peer(builder: Any, count: int = FEW) -> Any:
    """A message set of format v1 with another client's builder."""
    messages = builder(1, 0, LIMIT)
    for offset in range(count):
        messages.append(offset, STAMP, None, VALUE)
    return messages.build()


def read_set_peer(reader: Any, data: bytes) -> None:
    """Messages of format v1 by another client's reader, each looked at."""
    messages = reader(data)
    while messages.has_next():
        read_peer(messages.next_batch())


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
    """Print the tables."""
    build()
    read()
    old_formats()
    compress()


def build() -> None:
    """Building batches: one by one, many, of columns."""
    building = {
        "kclient, one by one": repeated(lambda: append(COMPILED)),
        "kclient, with a handle for each": repeated(lambda: append_with_handles(COMPILED)),
        "kclient, append_many": repeated(lambda: append_many(COMPILED)),
        "kclient, encode_arrow": repeated(lambda: append_arrow(COMPILED, TABLE)),
        "kclient, encode_arrow with keys and timestamps": repeated(lambda: append_arrow(COMPILED, WIDE_TABLE)),
        "aiokafka": repeated(lambda: append_peer(AiokafkaBuilder)),
    }
    report("build a batch", alternating(building))
    interpreted = {
        "kclient, interpreted": repeated(lambda: append(INTERPRETED, FEW), FEW),
        "kafka-python": repeated(lambda: append_peer(KafkaPythonBuilder, FEW), FEW),
    }
    report("build a batch without compiled code", alternating(interpreted))


def read() -> None:
    """Reading batches, to objects and to columns."""
    data, few = bytes(append(COMPILED)), bytes(append(COMPILED, FEW))
    decode, decode_interpreted = (RecordReader(each).decode_records for each in (COMPILED, INTERPRETED))
    columns = ArrowDecoder(COMPILED).decode_arrow
    reading = {
        "kclient": repeated(lambda: read_ours(decode, data)),
        "kclient, to Arrow columns": repeated(lambda: columns([("topic", 0, data)])),
        "aiokafka, to Arrow (the value's column only)": repeated(lambda: columns_from_aiokafka(data)),
        "aiokafka": repeated(lambda: read_peer(AiokafkaBatch(data))),
    }
    report("read a batch", alternating(reading))
    interpreted = {
        "kclient, interpreted": repeated(lambda: read_ours(decode_interpreted, few), FEW),
        "kafka-python": repeated(lambda: read_peer(KafkaPythonBatch(few)), FEW),
    }
    report("read a batch without compiled code", alternating(interpreted))


def old_formats() -> None:
    """Message sets of format v1, uncompressed."""
    building = {
        "kclient": repeated(append_set, FEW),
        "kafka-python": repeated(lambda: append_set_peer(KafkaPythonSetBuilder), FEW),
        "aiokafka": repeated(lambda: append_set_peer(AiokafkaSetBuilder), FEW),
    }
    report("build a message set v1", alternating(building))
    data = bytes(append_set())
    decode, decode_interpreted = (RecordReader(each).decode_records for each in (COMPILED, INTERPRETED))
    columns = ArrowDecoder(COMPILED).decode_arrow
    reading = {
        "kclient": repeated(lambda: read_ours(decode, data), FEW),
        "kclient, interpreted": repeated(lambda: read_ours(decode_interpreted, data), FEW),
        "kclient, to Arrow columns": repeated(lambda: columns([("topic", 0, data)]), FEW),
        "kafka-python": repeated(lambda: read_set_peer(KafkaPythonRecords, data), FEW),
        "aiokafka": repeated(lambda: read_set_peer(AiokafkaRecords, data), FEW),
    }
    report("read a message set v1", alternating(reading))


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
