"""Log directories of brokers, as the admin client's calls take and give them (KIP-113, KIP-827)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from kclient.admin.arguments import as_broker_id
from kclient.arguments import as_partition, check_text, shown
from kclient.errors import KafkaError
from kclient.types import TopicPartition


class TopicPartitionReplica(NamedTuple):
    """A partition as one broker has it.

    Attributes:
        topic: the topic's name.
        partition: its number.
        broker_id: whose replica it is.
    """

    topic: str
    partition: int
    broker_id: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition, wherever it is."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at broker {self.broker_id}"


Replica: TypeAlias = TopicPartitionReplica | tuple[str, int, int]
"""A replica, or its topic, number and broker."""


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A replica in a log directory.

    Attributes:
        size: bytes of its segments.
        offset_lag: records that it is behind: a present one behind the high watermark, a future one behind the present.
        is_future: whether it is being moved here, and takes the present one's place when it has caught up.
    """

    size: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory of a broker.

    Attributes:
        broker_id: whose it is.
        path: where it is, as the broker says.
        error: why the broker cannot use it, such as `KafkaStorageError`; None where it can.
        replicas: what is in it.
        total_bytes: size of its volume; None where the broker does not tell (before Kafka 3.3).
        usable_bytes: of these, free ones; None where the broker does not tell.
        is_cordoned: whether it gets no new replicas (KIP-1066); False where the broker does not tell (before Kafka
            4.3).
    """

    broker_id: int
    path: str
    error: KafkaError | None = None
    replicas: Mapping[TopicPartition, ReplicaInfo] = field(default_factory=dict)
    total_bytes: int | None = None
    usable_bytes: int | None = None
    is_cordoned: bool = False

    @property
    def size(self) -> int:
        """Bytes of all its replicas."""
        return sum(replica.size for replica in self.replicas.values())


@dataclass(frozen=True, slots=True)
class ReplicaLogDirInfo:
    """Where a replica is, and where it is being moved.

    Attributes:
        current_log_dir: the directory that it is in; None if it is not there.
        current_offset_lag: records that it is behind the high watermark; −1 if it is not there.
        future_log_dir: the directory that it is being moved to; None if it is not being moved.
        future_offset_lag: records that the copy there is behind; −1 if it is not being moved.
    """

    current_log_dir: str | None = None
    current_offset_lag: int = -1
    future_log_dir: str | None = None
    future_offset_lag: int = -1


def _as_replica(value: Any) -> TopicPartitionReplica:
    """A replica, from its three parts too.

    Raises:
        TypeError: this is none.
        ValueError: a number cannot be.
    """
    if not isinstance(value, tuple) or len(value) != 3:
        raise TypeError(f"a replica is a TopicPartitionReplica, or topic, partition and broker; not {shown(value)}")
    topic, index = as_partition(value[:2])
    return TopicPartitionReplica(topic, index, as_broker_id(value[2]))


def as_replicas(values: Any) -> list[TopicPartitionReplica]:
    """Replicas, each once. Raises as `_as_replica`."""
    if isinstance(values, str | tuple | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"replicas are TopicPartitionReplicas in a list, not {shown(values)}")
    return list(dict.fromkeys(map(_as_replica, values)))


def as_directories(values: Any) -> dict[TopicPartitionReplica, str]:
    """Which directory each replica is to be in. Raises as `_as_replica`."""
    if not isinstance(values, Mapping):
        raise TypeError(f"alter_replica_log_dirs takes paths by TopicPartitionReplica, not {shown(values)}")
    found = {}
    for replica, path in values.items():
        check_text(path, "the path of a log directory")
        if not path:
            raise ValueError("the path of a log directory is not empty")
        found[_as_replica(replica)] = path
    return found


def as_brokers(values: Any) -> list[int] | None:
    """Brokers' ids, each once; None stays None.

    Raises:
        TypeError: these are not numbers.
        ValueError: one cannot be.
    """
    if values is None:
        return None
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"brokers are their ids in a list, not {shown(values)}")
    return list(dict.fromkeys(map(as_broker_id, values)))
