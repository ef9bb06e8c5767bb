"""Interceptors see what is handed out by whatever way, once, and may change it."""

from __future__ import annotations

import itertools
import logging
import threading
from typing import Any

import anyio
import pytest

import kclient
import kclient.sync
from kclient.consumer import ConsumerInterceptor, ConsumerRecords
from kclient.records import ConsumerRecord
from kclient.testing import memory_broker
from kclient.types import OffsetAndMetadata, TopicPartition

T0 = TopicPartition("t", 0)
COUNT = 20


class Seen(ConsumerInterceptor):
    """Remembers what it was shown, and by whom; drops every third record."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.next_offsets: list[int] = []
        self.commits: list[Any] = []
        self.threads: set[int] = set()

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        self.threads.add(threading.get_ident())
        self.shown += [(record.offset, record.value) for record in records]
        self.next_offsets.append(records.next_offsets[T0].offset)
        return ConsumerRecords({T0: [record for record in records if record.offset % 3]})

    def on_commit(self, offsets: Any) -> None:
        self.threads.add(threading.get_ident())
        self.commits.append(dict(offsets))


ALL = [(number, b"%d" % number) for number in range(COUNT)]
KEPT = [number for number in range(COUNT) if number % 3]


@pytest.fixture
def address() -> Any:
    with memory_broker() as found:
        with kclient.sync.Producer(bootstrap_servers=found) as producer:
            for first in range(0, COUNT, 5):  # some batches
                producer.send_batch("t", [b"%d" % number for number in range(first, first + 5)]).result(10)
        yield found


def settings(address: str, seen: ConsumerInterceptor) -> dict[str, Any]:
    return {
        "bootstrap_servers": address,
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "interceptor_classes": [seen],
        "enable_auto_commit": False,
    }


@pytest.mark.anyio
async def test_iterating(address: str) -> None:
    seen = Seen()
    async with kclient.Consumer(**settings(address, seen)) as consumer:
        consumer.assign([T0])
        read: list[int] = []
        async for record in consumer:
            read.append(record.offset)
            assert seen.shown == ALL[: record.offset + 1]  # not ahead of the user
            assert seen.next_offsets[-1] == record.offset + 1
            if len(read) == len(KEPT):
                break
        assert read == KEPT
        await consumer.commit()
        assert seen.commits == [{T0: OffsetAndMetadata(COUNT, "", seen.commits[0][T0].leader_epoch)}]
        assert consumer.metrics().value("records-consumed-total") == COUNT


def test_iterating_in_blocking_code(address: str) -> None:
    seen = Seen()
    with kclient.sync.Consumer(**settings(address, seen)) as consumer:
        consumer.assign([T0])
        assert [record.offset for record in itertools.islice(consumer, len(KEPT))] == KEPT
        assert seen.shown == ALL
        consumer.commit()
        assert consumer.committed([T0])[T0].offset == COUNT  # type: ignore[union-attr]
        consumer.commit_async({T0: 3})
        while len(seen.commits) < 2:
            consumer.commit({})
    assert seen.threads == {threading.get_ident()}


@pytest.mark.anyio
async def test_polling_columns(address: str) -> None:
    pytest.importorskip("pyarrow")
    seen = Seen()
    async with kclient.Consumer(**settings(address, seen), value_deserializer="string") as consumer:
        consumer.assign([T0])
        rows: list[Any] = []
        with anyio.fail_after(20):
            while len(rows) < len(KEPT):
                batch = await consumer.poll_arrow(1.0, include_headers=True)
                rows += batch.to_pylist()
        assert seen.shown == ALL
        assert seen.next_offsets[-1] == COUNT
        assert [row["offset"] for row in rows] == KEPT
        assert [row["value"] for row in rows] == [b"%d" % number for number in KEPT]
        assert batch.schema.names[-1] == "headers"
        assert await consumer.position(T0) == COUNT


def test_columns_that_nobody_changes_are_handed_out_as_they_are(address: str) -> None:
    pytest.importorskip("pyarrow")
    loaded: list[int] = []

    class Counting(ConsumerInterceptor):
        def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
            assert records
            loaded.append(len(records))
            assert records.partitions() == {T0}
            assert records.records("t")[0].value == b"0"
            assert not records.is_empty
            return records

    with kclient.sync.Consumer(bootstrap_servers=address) as plain:
        plain.assign([T0])
        plain.seek_to_beginning()
        expected = plain.poll_arrow(10)
    with kclient.sync.Consumer(**settings(address, Counting())) as consumer:
        consumer.assign([T0])
        batch = consumer.poll_arrow(10)
    assert batch.equals(expected)
    assert sum(loaded) == batch.num_rows


def test_columns_of_what_interceptors_return_are_like_those_that_were_fetched(caplog: pytest.LogCaptureFixture) -> None:
    """Also where microseconds do not go as far as a record's time, and where it has no headers."""
    pytest.importorskip("pyarrow")

    class Copies(ConsumerInterceptor):
        def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
            return ConsumerRecords({tp: records.records(tp) for tp in records.partitions()}, records.next_offsets)

    found = []
    with memory_broker() as address:
        with kclient.sync.Admin(bootstrap_servers=address) as admin:
            admin.create_topic("t", 1, configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
        with kclient.sync.Producer(bootstrap_servers=address) as producer:
            times = (1, 2**63 // 1000, 2**63 // 1000 + 1, 2**63 - 1)
            for each in [
                producer.send("t", b"v", timestamp=time, headers=[("h", b"")] * (time == 1)) for time in times
            ]:
                each.result(10)
        for interceptors in ([], [Copies()]):
            with kclient.sync.Consumer(bootstrap_servers=address, interceptor_classes=interceptors) as consumer:
                consumer.assign([T0])
                consumer.seek_to_beginning()
                batches = []
                while sum(batch.num_rows for batch in batches) < len(times):
                    batches.append(consumer.poll_arrow(10, include_headers=True))
                found.append([row for batch in batches for row in as_numbers(batch)])
    assert found[0] == found[1]
    assert not caplog.records, "nothing was ignored"


def as_numbers(batch: Any) -> Any:
    """The rows, with times as numbers: dates do not go that far."""
    at = batch.schema.get_field_index("timestamp")
    return batch.set_column(at, "timestamp", batch.column(at).cast("int64")).to_pylist()


@pytest.mark.parametrize("returned", [None, [], 5])
@pytest.mark.parametrize("way", ["poll", "iterate", "columns"])
def test_what_is_no_records_is_ignored(address: str, returned: Any, way: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)

    class Wrong(ConsumerInterceptor):
        def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
            return returned  # type: ignore[no-any-return]

    with kclient.sync.Consumer(**settings(address, Wrong())) as consumer:
        consumer.assign([T0])
        if way == "poll":
            assert consumer.poll(10)[0].offset == 0
        elif way == "iterate":
            assert next(iter(consumer)).offset == 0
        else:
            pytest.importorskip("pyarrow")
            assert consumer.poll_arrow(10)["offset"][0].as_py() == 0
    assert "Wrong.on_consume returned no ConsumerRecords" in caplog.text


def test_records_that_are_no_columns_are_ignored(address: str, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("pyarrow")

    class Decoding(ConsumerInterceptor):
        def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
            made = [ConsumerRecord("t", 0, record.offset, 1, 0, None, 5, ()) for record in records]
            return ConsumerRecords({T0: made})

    with kclient.sync.Consumer(**settings(address, Decoding())) as consumer:
        consumer.assign([T0])
        assert consumer.poll_arrow(10)["value"][0].as_py() == b"0"
    assert "cannot be put into columns" in caplog.text


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["iterate", "columns"])
async def test_who_is_interrupted_is_shown_the_same_again(address: str, way: str) -> None:
    class Interrupted(ConsumerInterceptor):
        calls = 0

        def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
            self.calls += 1
            if self.calls in (1, 3):
                raise KeyboardInterrupt
            return records

    mine = Interrupted()
    async with kclient.Consumer(**settings(address, mine)) as consumer:
        consumer.assign([T0])
        offsets: list[int] = []
        interruptions = 0
        with anyio.fail_after(20):
            while len(offsets) < COUNT:
                try:
                    if way == "iterate":
                        offsets.append((await anext(consumer)).offset)
                    else:
                        offsets += (await consumer.poll_arrow(1.0))["offset"].to_pylist()
                except KeyboardInterrupt:
                    interruptions += 1
        assert offsets == list(range(COUNT))
        assert interruptions >= 1


def test_an_interceptor_that_goes_elsewhere_is_heeded(address: str) -> None:
    pytest.importorskip("pyarrow")

    class Back(ConsumerInterceptor):
        consumer: Any = None

        def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
            chosen, Back.consumer = Back.consumer, None
            if chosen is not None:
                chosen.seek(T0, 7)
            return records

    for way in ("iterate", "columns"):
        with kclient.sync.Consumer(**settings(address, Back())) as consumer:
            consumer.assign([T0])
            Back.consumer = consumer
            if way == "iterate":
                assert [next(consumer).offset for _ in range(2)] == [0, 7]  # type: ignore[call-overload]
            else:
                assert consumer.poll_arrow(10)["offset"][0].as_py() == 0
                assert consumer.poll_arrow(10)["offset"][0].as_py() == 7


def test_more_records_than_there_were(address: str) -> None:
    class Twice(ConsumerInterceptor):
        def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
            return ConsumerRecords({T0: [record for record in records for _ in range(2)]})

    with kclient.sync.Consumer(**settings(address, Twice())) as consumer:
        consumer.assign([T0])
        assert [record.offset for record in itertools.islice(consumer, 6)] == [0, 0, 1, 1, 2, 2]
        assert consumer.position(T0) == 3
