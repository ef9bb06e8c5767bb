"""What survives of a compacted log, compared with a plain list of records, one compaction after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.gateway.compaction import KeyNoting, LastOfProducer, LogCleaning
from kclient.records import (
    BatchBuilder,
    BatchHeader,
    CompressionType,
    KeyOffsets,
    decode_records,
    encode_end_marker,
    iter_headers,
    read_end_marker,
)

RETENTION = 1_000
MOST = 1 << 20


@dataclass
class Batch:
    """A batch of the model."""

    offset: int
    producer: int
    transaction: int
    """Which of all; -1 if it is in none."""
    rows: list[tuple[int, int, bytes | None, bytes | None]]
    """Offset, timestamp, key and value of each record that is left."""
    count: int
    """Offsets that it takes."""
    epoch: int
    committed: bool | None = None
    """How the transaction ended that it is the marker of; None for data."""
    horizon: int | None = None
    sequence: int = -1


@dataclass
class Log:
    """A log, as bytes and as a list."""

    batches: list[Batch] = field(default_factory=list)
    data: bytes = b""
    end: int = 0
    aborted: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The index of aborted transactions."""
    ended: dict[int, bool] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    transactions: int = 0
    remembered: dict[int, LastOfProducer] = field(default_factory=dict)
    """What a gateway remembers of the producers."""

    def append(self, producer: int, rows: list[Any], transactional: bool, epoch: int, codec: CompressionType) -> None:
        """A batch with data."""
        transaction = -1
        if transactional and producer >= 0:
            if producer not in self.open:
                self.open[producer] = (self.transactions, self.end)
                self.transactions += 1
            transaction = self.open[producer][0]
        elif producer in self.open:
            self.finish(producer, True, epoch)
        builder = BatchBuilder(limit=1 << 20, compression=codec, is_transactional=transaction >= 0)
        for stamp, key, value in rows:
            builder.append(stamp, key, value)
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        self.data += builder.build(self.end, producer, 0 if producer >= 0 else -1, sequence, epoch)
        placed = [(self.end + number, *row) for number, row in enumerate(rows)]
        self.batches.append(Batch(self.end, producer, transaction, placed, len(rows), epoch, sequence=sequence))
        self.end += len(rows)
        if producer >= 0:
            self.sequences[producer] = sequence + len(rows)
            self.remembered[producer] = LastOfProducer(0, self.end - 1)

    def finish(self, producer: int, commit: bool, epoch: int) -> None:
        """The end of a producer's transaction, if it has one."""
        if producer not in self.open:
            return
        transaction, first = self.open.pop(producer)
        builder = BatchBuilder(limit=1 << 10, is_transactional=True, is_control=True)
        builder.append(5, *encode_end_marker(commit=commit, coordinator_epoch=0))
        self.data += builder.build(self.end, producer, 0, -1, epoch)
        self.batches.append(Batch(self.end, producer, transaction, [], 1, epoch, committed=commit))
        self.ended[transaction] = commit
        if not commit:
            self.aborted[transaction] = producer, first
        self.end += 1

    def clean(self, now: int, keeps_aborts: bool) -> None:
        """Compact the list, in a way that has nothing in common with the real one."""
        last = {
            row[2]: row[0]
            for batch in self.batches
            for row in batch.rows
            if row[2] is not None and self.ended.get(batch.transaction, True)
        }
        left: list[Batch] = []
        seen: set[int] = set()
        for batch in self.batches:
            if batch.committed is not None:
                if batch.transaction in seen or (keeps_aborts and not batch.committed):
                    left.append(batch)
                elif batch.horizon is None:
                    left.append(replace(batch, horizon=now + RETENTION))
                elif now < batch.horizon:
                    left.append(batch)
                continue
            seen.add(batch.transaction)
            aborted = not self.ended.get(batch.transaction, True)
            dead = batch.horizon is not None and now >= batch.horizon
            rows = [
                row
                for row in batch.rows
                if not aborted and row[2] is not None and last[row[2]] == row[0] and (row[3] is not None or not dead)
            ]
            horizon = batch.horizon
            if horizon is None and any(row[3] is None for row in rows):
                horizon = now + RETENTION
            if rows:
                left.append(replace(batch, rows=rows, horizon=horizon))
            elif batch.producer >= 0 and self.remembered[batch.producer].offset == batch.offset + batch.count - 1:
                left.append(replace(batch, rows=[], horizon=None))
        self.batches = left
        if not keeps_aborts:  # whoever takes the markers away takes them out of the index, too
            self.aborted = {transaction: each for transaction, each in self.aborted.items() if transaction in seen}


def cleaned(log: Log, data: bytes, start: int, now: int, keeps_aborts: bool, pieces: int) -> bytes:
    """What the real one makes of the bytes, which it gets in pieces."""
    offsets = KeyOffsets(400)
    noting = KeyNoting(offsets, start, log.aborted.values(), MOST)
    for piece in split(data, pieces):
        assert noting.feed(piece, log.end)
    assert offsets.end == log.end
    cleaning = LogCleaning(
        offsets, log.aborted.values(), log.remembered,
        now_ms=now, delete_retention_ms=RETENTION, max_decompressed=MOST, keeps_aborts=keeps_aborts,
    )  # fmt: skip
    made = [bytes(batch) for piece in split(data, pieces) for batch in cleaning.feed(piece)]
    made += map(bytes, cleaning.flush())
    stats = cleaning.stats
    assert (stats.read_bytes, stats.kept_bytes) == (len(data), sum(map(len, made)))
    assert (stats.changed == 0) == (b"".join(made) == data)
    return b"".join(made)


def split(data: bytes, most: int) -> Iterable[bytes]:
    """Whole batches, so many at a time."""
    begin = 0
    for number, (position, header) in enumerate(iter_headers(data), 1):
        end = position + header.length
        if number % most == 0 or end == len(data):
            yield data[begin:end]
            begin = end


def compare(log: Log, data: bytes) -> None:
    """The bytes hold what the list does, and every offset once."""
    place = 0
    found: dict[int, BatchHeader] = {}
    by_offset = {batch.offset: batch for batch in log.batches}
    for position, header in iter_headers(data):
        assert header.base_offset == place, "no gap"
        place = header.next_offset
        if header.count or header.producer_id >= 0:
            found[header.base_offset] = header
        if header.is_control and header.count:
            marker = read_end_marker(data[position : position + header.length])
            assert marker is not None
            assert marker.committed == by_offset[header.base_offset].committed
    assert place == log.end
    assert list(found) == list(by_offset)
    for batch in log.batches:
        header = found[batch.offset]
        assert header.delete_horizon == batch.horizon
        assert header.last_offset_delta == batch.count - 1
        assert (header.producer_id, header.base_sequence) == (batch.producer, batch.sequence)
        assert header.partition_leader_epoch == batch.epoch
        assert header.is_transactional == (batch.transaction >= 0)
        if batch.rows:
            assert header.max_timestamp == max(row[1] for row in batch.rows)
    records = [(record.offset, record.timestamp, record.key, record.value) for record in decode_records(data, "t", 0)]
    assert records == [row for batch in log.batches for row in batch.rows]


keys = st.sampled_from([None, b"a", b"b", b"c", b"d"])
rows = st.lists(
    st.tuples(st.integers(0, 5_000), keys, st.sampled_from([None, b"v", b"w" * 50])), min_size=1, max_size=4
)
steps = st.lists(
    st.tuples(st.just("data"), st.integers(-1, 2), rows, st.booleans(), st.sampled_from(CompressionType))
    | st.tuples(st.just("end"), st.integers(0, 2), st.booleans()),
    max_size=14,
)
pauses = st.integers(0, 2_000)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(steps, pauses), min_size=1, max_size=4), st.booleans(), st.integers(1, 4))
def test_what_is_left_is_what_a_list_has(rounds: list[tuple[list[Any], int]], keeps_aborts: bool, pieces: int) -> None:
    log, now, start, data = Log(), 10_000, 0, b""
    more: list[tuple[list[Any], int]] = [([], pause) for pause in (0, RETENTION, RETENTION, RETENTION)]
    for number, (work, pause) in enumerate([*rounds, *more]):
        log.data = b""
        for step in work:
            if step[0] == "data":
                log.append(step[1], step[2], step[3], number, step[4])
            else:
                log.finish(step[1], step[2], number)
        for producer in list(log.open):
            log.finish(producer, True, number)
        now += pause
        data = cleaned(log, data + log.data, start, now, keeps_aborts, pieces)
        start = log.end
        log.clean(now, keeps_aborts)
        compare(log, data)
