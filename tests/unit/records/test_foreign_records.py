"""aiokafka and kafka-python read what we write, and we read what they write."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from kclient.records import CompressionType, check_batch
from tests.unit.records.faces import FACES, build, optional_bytes

# kafka-python and aiokafka take only str header keys that they can encode, and no None in some releases' headers.
foreign_headers = st.lists(st.tuples(st.text(max_size=8), st.binary(max_size=20)), max_size=3)
# aiokafka's builder takes -1 for "no first record yet", and then writes another timestamp.
foreign_rows = st.lists(
    st.tuples(st.integers(0, 2**62), optional_bytes, optional_bytes, foreign_headers), min_size=1, max_size=8
)
compressions = st.sampled_from(CompressionType)

READERS: dict[str, Any] = {"aiokafka": AiokafkaBatch, "kafka-python": KafkaPythonBatch}
BUILDERS: dict[str, Any] = {"aiokafka": AiokafkaBuilder, "kafka-python": KafkaPythonBuilder}


@pytest.mark.parametrize("reader", READERS)
@given(records=foreign_rows, compression=compressions)
def test_they_read_what_we_write(reader: str, records: list[Any], compression: CompressionType) -> None:
    for face in FACES:
        batch = READERS[reader](build(face, records, compression=compression))
        assert batch.validate_crc()
        read = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch]
        assert read == [(n, *record) for n, record in enumerate(records)]


@pytest.mark.parametrize("builder", BUILDERS)
@given(records=foreign_rows, compression=compressions, producer=st.integers(-1, 2**40))
def test_we_read_what_they_write(builder: str, records: list[Any], compression: CompressionType, producer: int) -> None:
    foreign = BUILDERS[builder](
        magic=2,
        compression_type=int(compression),
        is_transactional=False,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=7,
        batch_size=1 << 24,
    )
    for offset, (timestamp, key, value, headers) in enumerate(records):
        assert foreign.append(offset, timestamp, key, value, headers)
    batch = bytes(foreign.build())
    header = check_batch(batch)
    assert (header.count, header.producer_id, header.base_sequence) == (len(records), producer, 7)
    for face in FACES:
        decoded = face.decode_records(batch, "t", 0)
        assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in decoded] == records


@given(records=foreign_rows)
def test_we_write_the_same_bytes(records: list[Any]) -> None:
    foreign = KafkaPythonBuilder(2, 0, False, -1, -1, -1, 1 << 24)
    for offset, (timestamp, key, value, headers) in enumerate(records):
        foreign.append(offset, timestamp, key, value, headers)
    expected = bytearray(foreign.build())
    expected[12:16] = b"\xff" * 4  # their leader epoch of an unsent batch may differ; it is outside the checksum
    for face in FACES:
        assert build(face, records) == bytes(expected)
