"""Splits a batch that the broker refused as too large."""

from __future__ import annotations

from kclient.producer.batch import ProducerBatch, increment_sequence
from kclient.records import BatchBuilder, CompressionType, decode_records


def split_batch(
    batch: ProducerBatch, limit: int, compression: CompressionType, level: int | None
) -> list[ProducerBatch]:
    """The records of an encoded batch in batches of at most `limit` bytes, each with at least one record.

    They share out its sequence numbers, since they hold the same records in the same order.
    """
    assert batch.data is not None
    children: list[ProducerBatch] = []
    builder: BatchBuilder | None = None
    for record in decode_records(batch.data, *batch.tp, check_crcs=False):
        fields = (record.timestamp, record.key, record.value, record.headers)
        if builder is None or builder.append(*fields) < 0:
            builder = BatchBuilder(limit=limit, compression=compression, level=level)
            builder.append(*fields)
            children.append(ProducerBatch(batch.tp, builder, batch.created, 0, batch.outcomes))
    sequence = batch.base_sequence
    for child in children:
        child.close()
        child.full = True
        child.reserved = child.size
        child.doubtful, child.refused = batch.doubtful, batch.refused
        if batch.has_sequence:
            child.set_producer_state(batch.producer_id, batch.producer_epoch, sequence)
            sequence = increment_sequence(sequence, child.count)
    return children
