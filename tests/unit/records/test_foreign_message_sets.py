"""aiokafka and kafka-python read the message sets that we write, and we read theirs."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from kclient.records import CompressionType, check_batch
from tests.unit.records.faces import FACES, message_set, optional_bytes
from tests.unit.records.test_message_sets import CODECS

# Of format v0, aiokafka knows no lz4 and kafka-python needs another package for it; Java's classes read and write it.
formats = st.sampled_from([(magic, codec) for magic in (0, 1) for codec in CODECS if magic or codec is not CODECS[3]])
foreign_rows = st.lists(st.tuples(st.integers(0, 2**62), optional_bytes, optional_bytes), min_size=1, max_size=8)

READERS: dict[str, Any] = {"aiokafka": AiokafkaRecords, "kafka-python": KafkaPythonRecords}
BUILDERS: dict[str, Any] = {"aiokafka": AiokafkaBuilder, "kafka-python": KafkaPythonBuilder}


def read_by(reader: str, data: bytes) -> list[Any]:
    batches = READERS[reader](data)
    records = []
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        records += [(r.offset, r.timestamp, r.key, r.value) for r in batch]
    return records


@pytest.mark.parametrize("reader", READERS)
@given(form=formats, records=foreign_rows, base=st.integers(0, 2**40))
def test_they_read_what_we_write(reader: str, form: tuple[int, CompressionType], records: list[Any], base: int) -> None:
    magic, codec = form
    read = read_by(reader, message_set(magic, records, base, compression=codec))
    assert read == [(base + n, stamp if magic else None, key, value) for n, (stamp, key, value) in enumerate(records)]


@pytest.mark.parametrize("builder", BUILDERS)
@given(form=formats, records=foreign_rows)
def test_we_read_what_they_write(builder: str, form: tuple[int, CompressionType], records: list[Any]) -> None:
    magic, codec = form
    foreign = BUILDERS[builder](magic=magic, compression_type=int(codec), batch_size=1 << 24)
    for offset, (stamp, key, value) in enumerate(records):
        assert foreign.append(offset, stamp, key, value)
    data = bytearray(foreign.build())
    if codec is not CompressionType.NONE:
        data[:8] = (len(records) - 1).to_bytes(8, "big")  # which they leave to the broker
    assert check_batch(data).magic == magic
    for face in FACES:
        read = [(r.offset, r.timestamp, r.key, r.value) for r in face.decode_records(data, "t", 0)]
        assert read == [
            (offset, stamp if magic else -1, key, value) for offset, (stamp, key, value) in enumerate(records)
        ]


@given(magic=st.sampled_from([0, 1]), records=foreign_rows)
def test_we_write_the_same_bytes(magic: int, records: list[Any]) -> None:
    for builder in BUILDERS.values():
        foreign = builder(magic=magic, compression_type=0, batch_size=1 << 24)
        for offset, (stamp, key, value) in enumerate(records):
            foreign.append(offset, stamp, key, value)
        assert message_set(magic, records) == bytes(foreign.build())
