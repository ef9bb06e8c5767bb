"""The partitioners of librdkafka and of the clients that are built on it, so that a key goes where theirs send it.

`murmur2_random`, of these, is what there is without a partitioner. Records that are not to go by their key stick to a
partition for a batch, as all records without a key do: librdkafka sticks to one for `sticky.partitioning.linger.ms`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from kclient.producer.partitioner import LEFT_OPEN, Partitioner, available_partitions
from kclient.records import fnv1a, murmur2
from kclient.types import Buffer

if TYPE_CHECKING:
    from kclient.cluster import ClusterSnapshot

_POSITIVE = 0x7FFFFFFF


class HashPartitioner(Partitioner):
    """A hash of the key, modulo the number of partitions.

    Args:
        hashed: The hash of a key: 0 or more.
        none_hashed: Whether a record without a key goes where one with an empty key does; else anywhere.
        empty_hashed: Whether a record with an empty key goes by its hash; else anywhere.
    """

    def __init__(self, hashed: Callable[[Buffer], int], *, none_hashed: bool, empty_hashed: bool = True) -> None:
        self._hashed = hashed
        self._none_hashed = none_hashed
        self._empty_hashed = empty_hashed

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: ClusterSnapshot,
    ) -> int:
        if not key_bytes:
            if key_bytes is None:
                if not self._none_hashed:
                    return LEFT_OPEN
                key_bytes = b""
            elif not self._empty_hashed:
                return _anywhere(cluster, topic)
        return self._hashed(key_bytes) % cluster.partition_count(topic)


class RandomPartitioner(Partitioner):
    """Any partition that has a leader, for each record with a key anew."""

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: ClusterSnapshot,
    ) -> int:
        return LEFT_OPEN if key_bytes is None else _anywhere(cluster, topic)


def _anywhere(cluster: ClusterSnapshot, topic: str) -> int:
    available = available_partitions(cluster, topic)
    return random.choice(available) if available else random.randrange(cluster.partition_count(topic))


def _positive_murmur2(key: Buffer) -> int:
    return murmur2(key) & _POSITIVE


BY_NAME: Final[dict[str, Callable[[], Partitioner]]] = {
    "consistent": lambda: HashPartitioner(crc32, none_hashed=True),
    "consistent_random": lambda: HashPartitioner(crc32, none_hashed=False, empty_hashed=False),
    "fnv1a": lambda: HashPartitioner(fnv1a, none_hashed=True),
    "fnv1a_random": lambda: HashPartitioner(fnv1a, none_hashed=False),
    "murmur2": lambda: HashPartitioner(_positive_murmur2, none_hashed=True),
    "random": RandomPartitioner,
}
"""They, by the names that librdkafka's setting `partitioner` has for them."""
