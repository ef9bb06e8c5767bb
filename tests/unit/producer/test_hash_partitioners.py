"""librdkafka's partitioners by name: keys go where librdkafka itself sends them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator

import pytest

import kclient
from kclient import sync
from kclient.producer import Producer

confluent = pytest.importorskip("confluent_kafka")

PARTITIONS = 7
KEYS = [b"", b"k", b"kafka", *(b"key-%d" % number * (number % 5 + 1) for number in range(40)), bytes(range(256))]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with sync.Gateway(f"memory:{uuid.uuid4().hex}", listen="127.0.0.1:0") as gateway:
        with sync.Admin(bootstrap_servers=gateway.bootstrap) as admin:
            admin.create_topic("t", partitions=PARTITIONS)
        yield gateway.bootstrap


def ours(address: str, partitioner: str, keys: list[bytes | None]) -> list[int]:
    with sync.Producer(bootstrap_servers=address, partitioner_class=partitioner) as producer:
        return [metadata.partition for metadata in producer.send_batch("t", [b"v"] * len(keys), keys).result()]


def theirs(address: str, partitioner: str, keys: list[bytes | None]) -> list[int]:
    found: dict[int, int] = {}
    producer = confluent.Producer({"bootstrap.servers": address, "partitioner": partitioner})
    for number, key in enumerate(keys):
        producer.produce(
            "t", b"v", key, on_delivery=lambda _error, told, number=number: found.update({number: told.partition()})
        )
    assert producer.flush(10) == 0
    return [found[number] for number in range(len(keys))]


@pytest.mark.foreign
@pytest.mark.parametrize("name", ["consistent", "fnv1a", "murmur2"])
def test_each_key_and_none_goes_where_librdkafka_sends_it(address: str, name: str) -> None:
    keys = [*KEYS, None]
    assert ours(address, name, keys) == theirs(address, name, keys)


@pytest.mark.foreign
@pytest.mark.parametrize("name", ["consistent_random", "fnv1a_random", "murmur2_random"])
def test_each_key_goes_where_librdkafka_sends_it(address: str, name: str) -> None:
    keys: list[bytes | None] = [*KEYS[1:]]
    if name != "consistent_random":
        keys.append(b"")
    assert ours(address, name, keys) == theirs(address, name, keys)


@pytest.mark.parametrize("name", ["consistent_random", "fnv1a_random", "murmur2_random", "random"])
def test_without_a_key_records_stick_to_a_partition(address: str, name: str) -> None:
    assert len(set(ours(address, name, [None] * 50))) == 1


@pytest.mark.parametrize(("name", "key"), [("consistent_random", b""), ("random", b"same")])
def test_keys_that_are_not_hashed_are_spread(address: str, name: str, key: bytes) -> None:
    found = Counter(ours(address, name, [key] * 700))
    assert set(found) == set(range(PARTITIONS))


def test_a_mixed_fleet_agrees_about_keyless_records_of_default(address: str) -> None:
    assert ours(address, "murmur2_random", [*KEYS]) == ours(address, "default", [*KEYS])


@pytest.mark.anyio
async def test_of_single_records_too(address: str) -> None:
    expected = ours(address, "fnv1a", [*KEYS])
    async with Producer(bootstrap_servers=address, partitioner_class="fnv1a") as producer:
        found = [(await (await producer.send("t", b"v", key))).partition for key in KEYS]
    assert found == expected


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(kclient.errors.ConfigError, match="consistent_random"):
        sync.Producer(bootstrap_servers="localhost:1", partitioner_class="consistant_random")
