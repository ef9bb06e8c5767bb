"""What users hand to `send`: iterators are read once, and what makes no sense is refused in the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import anyio
import pytest

from kclient.cluster import ClusterSnapshot
from kclient.errors import SerializationError
from kclient.producer import Partitioner, Producer, ProducerInterceptor, ProducerRecord
from kclient.records import decode_records
from kclient.types import TopicPartition
from tests.fake_kafka import FakeKafka

pytestmark = pytest.mark.anyio

HEADERS = [("a", b"1"), ("b", None)]


class Once:
    """An iterable that is no sequence, and can be read only once."""

    def __init__(self) -> None:
        self._items = iter(HEADERS)

    def __iter__(self) -> Any:
        return self._items


KINDS: dict[str, Callable[[], Iterable[Any]]] = {
    "list": lambda: list(HEADERS),
    "tuple": lambda: tuple(HEADERS),
    "zip": lambda: zip(["a", "b"], [b"1", None], strict=True),
    "generator": lambda: (header for header in HEADERS),
    "items": lambda: dict(HEADERS).items(),
    "map": lambda: map(tuple, HEADERS),
    "iterable": Once,
}


def stored(kafka: FakeKafka) -> list[Any]:
    batches = kafka.partitions[TopicPartition("t", 0)].batches
    return [list(record.headers) for data in batches for record in decode_records(data, "t", 0)]


class Looking(ProducerInterceptor):
    """Reads the headers, and gives out others of a kind that can be read once."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        record.headers = iter(list(record.headers))  # type: ignore[assignment]
        return record


def serialize(topic: str, value: Any, headers: Any) -> bytes:
    assert list(headers) == HEADERS
    return bytes(value)


class Serializer:
    serialize = staticmethod(serialize)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "settings",
    [{}, {"interceptor_classes": [Looking]}, {"value_serializer": Serializer()}],
    ids=["plain", "interceptor", "serializer"],
)
async def test_headers_of_every_kind_arrive(kind: str, settings: dict[str, Any]) -> None:
    make = KINDS[kind]
    async with FakeKafka() as kafka:
        async with Producer(bootstrap_servers=kafka.bootstrap, linger_ms=5, **settings) as producer:
            # the first waits for metadata, the second finds an open batch, the third asks for a callback
            await producer.send("t", b"v", headers=make())
            await producer.send("t", b"v", headers=make())
            await producer.send("t", b"v", headers=make(), on_delivery=lambda metadata, error: None)
            await producer.flush()
            await producer.send("t", b"v", headers=make())  # and this one has to open a batch
        assert stored(kafka) == [HEADERS] * 4


async def test_values_and_keys_of_every_kind() -> None:
    async with FakeKafka() as kafka:
        async with Producer(bootstrap_servers=kafka.bootstrap) as producer:
            await producer.send_batch("t", (b"%d" % number for number in range(3)))
            await producer.send_batch("t", iter([b"3"]), iter([b"key"]))
            await producer.send_batch("t", {b"4": 0}.keys(), map(bytes, [b"key"]))
        assert kafka.values() == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("open_batch", [False, True])
@pytest.mark.parametrize("timestamp", [-1, -(2**63), 2**63])
async def test_times_before_the_epoch_are_refused(timestamp: int, open_batch: bool) -> None:
    async with FakeKafka() as kafka:
        async with Producer(bootstrap_servers=kafka.bootstrap, linger_ms=1000) as producer:
            await producer.partitions_for("t")
            if open_batch:
                await producer.send("t", b"first")
            with pytest.raises(ValueError, match=f"0 or more, or None for now; not {timestamp}"):
                await producer.send("t", b"v", timestamp=timestamp)
            with pytest.raises(ValueError, match="0 or more"):
                await producer.send("t", b"v", timestamp=timestamp, on_delivery=lambda metadata, error: None)
            await producer.send("t", b"v", timestamp=0)
        assert kafka.values() == [b"first", b"v"][not open_batch :]


WRONG = [
    {"timestamp": -1},
    {"timestamp": "now"},
    {"partition": -1},
    {"partition": "0"},
    {"partition": 2**31},
    {"partition": 2**63},
    {"headers": 5},
]


@pytest.mark.parametrize("wrong", WRONG)
async def test_what_is_wrong_anyway_waits_for_nobody(wrong: dict[str, Any]) -> None:
    async with FakeKafka() as kafka:
        kafka.brokers[1].down = True
        async with Producer(bootstrap_servers=kafka.bootstrap, max_block_ms=60_000) as producer:
            with anyio.fail_after(10), pytest.raises((TypeError, ValueError), match=f"{next(iter(wrong))}"):
                await producer.send("t", b"v", **wrong)


@pytest.mark.parametrize("partition", [-1, 2**31, 2**63])
async def test_a_number_that_no_partition_has_is_not_waited_for(partition: int) -> None:
    async with FakeKafka() as kafka, Producer(bootstrap_servers=kafka.bootstrap, max_block_ms=60_000) as producer:
        await producer.send("t", b"v")  # the topic is known: it might get that partition later
        with anyio.fail_after(10), pytest.raises(ValueError, match="from 0 to 2147483647"):
            await producer.send("t", b"v", partition=partition)
        with anyio.fail_after(10), pytest.raises(ValueError, match="from 0 to 2147483647"):
            await producer.send_batch("t", [b"v"], partition=partition)


@pytest.mark.parametrize("choice", [-1, 2, None, "0", True, 1.0])
async def test_a_partitioner_that_chooses_what_is_not_there_is_told_so(choice: Any) -> None:
    class Wrong(Partitioner):
        def partition(
            self, topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, cluster: ClusterSnapshot
        ) -> int:
            return choice  # type: ignore[no-any-return]

    settings = {"partitioner_class": Wrong()}
    async with FakeKafka({"t": 2}) as kafka, Producer(bootstrap_servers=kafka.bootstrap, **settings) as producer:
        with pytest.raises(ValueError, match=r"Wrong chose the partition .* of 't', which has 2"):
            await producer.send("t", b"v")
        with pytest.raises(ValueError, match="Wrong chose"):
            await producer.send_batch("t", [b"v"])
        await (await producer.send("t", b"v", partition=1))
        assert producer.metrics().value("buffer-available-bytes") == producer.metrics().value("buffer-total-bytes")


class Whole:
    """A whole number as NumPy has them."""

    def __index__(self) -> int:
        return 0


@pytest.mark.parametrize("argument", ["partition", "timestamp"])
async def test_whole_numbers_of_any_type_and_no_bools(argument: str) -> None:
    """However a record goes: the first waits for metadata, the second opens a batch, the third finds one."""
    async with FakeKafka() as kafka, Producer(bootstrap_servers=kafka.bootstrap, linger_ms=1000) as producer:
        for _ in range(3):
            with pytest.raises(TypeError, match=r"whole number.*not (True|bool)"):
                await producer.send("t", b"v", **{argument: True})
            await producer.send("t", b"v", **{argument: Whole()})
        await producer.flush()
        assert len(stored(kafka)) == 3


async def test_what_helps_is_named_for_what_is_wrong() -> None:
    async with FakeKafka() as kafka, Producer(bootstrap_servers=kafka.bootstrap, linger_ms=1000) as producer:
        for _ in range(2):
            with pytest.raises(
                SerializationError, match=r"a record's value must be .*, not int; set value_serializer, or"
            ):
                await producer.send("t", 5, key=b"k")
            with pytest.raises(SerializationError, match=r"a record's key must be .*, not str; set key_serializer, or"):
                await producer.send("t", b"v", key="k")
            with pytest.raises(TypeError, match=r"headers are a sequence of pairs .*; \('a', 5\) is not such a pair"):
                await producer.send("t", b"v", headers=[("a", 5)])
            await producer.send("t", b"v")
