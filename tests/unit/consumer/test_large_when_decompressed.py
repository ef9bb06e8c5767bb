"""A fetch of a few kilobytes that holds hundreds of megabytes is handed out in pieces: no poll returns it at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kclient.consumer.fetch.completed_fetch import ENOUGH
from kclient.sync import Admin, Consumer, Producer
from kclient.testing import memory_broker
from kclient.types import TopicPartition

SIZE = 512 * 1024
COUNT = 300
"""Records of zeros: 150 MiB in all, which a fetch brings in some ten kilobytes."""
MOST = ENOUGH + 2 * 1024 * 1024
"""The last batch is handed out whole."""


@pytest.fixture(scope="module")
def bomb() -> Iterator[str]:
    with memory_broker() as address:
        settings = {"compression_type": "zstd", "batch_size": 900_000, "linger_ms": 50}
        with Producer(bootstrap_servers=address, **settings) as producer:  # type: ignore[arg-type]
            for _ in range(COUNT):
                producer.send("t", bytes(SIZE), partition=0)
        yield address


def reading(address: str, **settings: Any) -> Consumer:
    consumer = Consumer(bootstrap_servers=address, **settings)
    consumer.assign([TopicPartition("t", 0)])
    consumer.seek(TopicPartition("t", 0), 0)
    return consumer


@pytest.mark.slow
def test_lists(bomb: str) -> None:
    offsets: list[int] = []
    with reading(bomb) as consumer:
        while len(offsets) < COUNT:
            records = list(consumer.poll(timeout=30))
            assert sum(len(record.value) for record in records) <= MOST
            offsets += [record.offset for record in records]
            assert consumer.position(("t", 0)) == offsets[-1] + 1
    assert offsets == list(range(COUNT))


@pytest.mark.slow
def test_many_partitions_share_the_bound(bomb: str) -> None:
    """Each partition alone holds less than what is opened at most, all of them far more."""
    partitions = [TopicPartition("wide", number) for number in range(20)]
    with Admin(bootstrap_servers=bomb) as admin:
        admin.create_topic("wide", partitions=len(partitions))
    settings = {"compression_type": "zstd", "batch_size": 900_000, "linger_ms": 50}
    with Producer(bootstrap_servers=bomb, **settings) as producer:  # type: ignore[arg-type]
        for number in range(10 * len(partitions)):
            producer.send("wide", bytes(SIZE), partition=number % len(partitions))
    found: dict[TopicPartition, list[int]] = {tp: [] for tp in partitions}
    with Consumer(bootstrap_servers=bomb) as consumer:
        consumer.assign(partitions)
        for tp in partitions:
            consumer.seek(tp, 0)
        while sum(map(len, found.values())) < 10 * len(partitions):
            records = list(consumer.poll(timeout=30))
            assert sum(len(record.value) for record in records) <= MOST
            for record in records:
                found[TopicPartition(record.topic, record.partition)].append(record.offset)
    assert found == {tp: list(range(10)) for tp in partitions}


@pytest.mark.slow
def test_columns(bomb: str) -> None:
    offsets: list[int] = []
    with reading(bomb) as consumer:
        while len(offsets) < COUNT:
            batch = consumer.poll_arrow(timeout=30)
            assert batch.nbytes <= MOST
            offsets += batch.column("offset").to_pylist()
            assert consumer.position(("t", 0)) == offsets[-1] + 1
    assert offsets == list(range(COUNT))


def test_columns_of_so_many_bytes(bomb: str) -> None:
    offsets: list[int] = []
    with reading(bomb) as consumer:
        while len(offsets) < COUNT:
            batch = consumer.poll_arrow(timeout=30, max_bytes=4 * SIZE)
            assert batch.nbytes <= 4 * SIZE + 2 * 1024 * 1024
            offsets += batch.column("offset").to_pylist()
    assert offsets == list(range(COUNT))


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_number_of_bytes_that_is_none(bomb: str, wrong: int) -> None:
    with reading(bomb) as consumer:
        with pytest.raises(ValueError, match="max_bytes is a number from 1 on, or None"):
            consumer.poll_arrow(max_bytes=wrong)
        with pytest.raises(TypeError, match="max_bytes is a whole number, not '1'"):
            consumer.poll_arrow(max_bytes="1")  # type: ignore[arg-type]


def test_one_by_one(bomb: str) -> None:
    with reading(bomb) as consumer:
        records = iter(consumer)
        assert [next(records).offset for _ in range(COUNT)] == list(range(COUNT))


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 7, 500])
def test_all_kinds_by_turns(bomb: str, most: int) -> None:
    """Each goes on where the other stopped, in the middle of what was fetched."""
    offsets: list[int] = []
    with reading(bomb, max_poll_records=most) as consumer:
        while len(offsets) < COUNT:
            offsets += [record.offset for record in consumer.poll(timeout=30)]
            if len(offsets) < COUNT:
                offsets += consumer.poll_arrow(timeout=30).column("offset").to_pylist()
            if len(offsets) < COUNT:
                offsets.append(next(iter(consumer)).offset)
            if len(offsets) < COUNT:
                consumer.seek(TopicPartition("t", 0), offsets[-1] + 1)
    assert offsets == list(range(COUNT))


def test_what_is_committed_has_the_epoch_of_its_records(bomb: str) -> None:
    with reading(bomb, group_id="g", enable_auto_commit=False, max_poll_records=1) as consumer:
        (record,) = consumer.poll(timeout=30)
        last = consumer.poll_arrow(timeout=30).column("offset")[-1].as_py()
        assert record.offset < last < COUNT - 1
        consumer.commit()
        committed = consumer.committed([("t", 0)])[TopicPartition("t", 0)]
    assert committed is not None
    assert record.leader_epoch is not None
    assert (committed.offset, committed.leader_epoch) == (last + 1, record.leader_epoch)
