"""What the admin client takes and gives: plain values without behaviour."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from kclient.arguments import brief, shown
from kclient.errors import KafkaError
from kclient.types import Node, PartitionInfo, TopicPartition

_TOLD = 5
"""Of how many things an error's text tells."""


class PartialFailureError(KafkaError):
    """Several of the things that one call asked for failed; the others were done.

    Attributes:
        failures: the error of each thing that failed, by its name. The error's own text tells the first few.
    """

    def __init__(self, operation: str, failures: Mapping[str, KafkaError]) -> None:
        self.failures: dict[str, KafkaError] = dict(failures)
        told: dict[str, list[str]] = {}
        for name, error in failures.items():
            told.setdefault(str(error), []).append(brief(name) if name.isprintable() else shown(name))
        details = _first([f"{_first(names, ', ')}: {text}" for text, names in told.items()], "; ")
        super().__init__(f"{operation} failed for {len(failures)}: {details}")


def _first(texts: Sequence[str], separator: str) -> str:
    left = len(texts) - _TOLD
    return separator.join([*texts[:_TOLD], f"and {left} more"] if left > 0 else texts)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create.

    Attributes:
        name: its name.
        partitions: how many; −1 takes the broker's `num.partitions`.
        replication_factor: −1 takes the broker's `default.replication.factor`.
        configs: the topic's settings, such as `{"retention.ms": "-1"}`.
        assignments: the brokers of each partition, the leader first; if given, the two numbers stay −1.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class TopicListing:
    """A topic's name and id (Kafka's base64 form)."""

    name: str
    topic_id: str
    is_internal: bool


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions; `topic_id` is in Kafka's base64 form, all "A" if the broker gives none."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """A move of a partition that is under way.

    Attributes:
        replicas: the brokers that have it, also those that are added and removed.
        adding_replicas: of these, those that do not have all of it yet.
        removing_replicas: those that will not have it any more.
    """

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


class ElectionType(IntEnum):
    """Who may be elected: the preferred replica, or where no replica in sync is left, one that is not."""

    PREFERRED = 0
    UNCLEAN = 1


class ConfigResourceType(IntEnum):
    """What a set of settings belongs to."""

    TOPIC = 2
    BROKER = 4


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A topic by its name, or a broker by its id (as text; empty means the cluster-wide defaults)."""

    type: ConfigResourceType
    name: str


class ConfigSource(IntEnum):
    """Where a setting's value comes from; a number that is not listed here is UNKNOWN."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting. `value` is None where it is sensitive."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool

    @property
    def is_default(self) -> bool:
        """Whether nobody set it."""
        return self.source is ConfigSource.DEFAULT_CONFIG


class ConfigOperation(IntEnum):
    """What to do with a setting (KIP-339); APPEND and SUBTRACT are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group by name; `state` and `type` are empty where the broker is too old to tell."""

    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group.

    Attributes:
        member_id: its id.
        group_instance_id: its `group.instance.id`, if it is a static member.
        client_id: its `client.id`.
        host: where it runs.
        assignment: the partitions it has. Empty for classic groups whose protocol is not "consumer"; for streams groups
            the partitions of the source topics of its active tasks.
        rack_id: its `client.rack`; None where the broker does not tell.
        member_epoch: up to which epoch it has followed the group (KIP-848); None in classic groups.
        target_assignment: the partitions it is going to have (KIP-848); None in classic and share groups.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    rack_id: str | None = None
    member_epoch: int | None = None
    target_assignment: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, its members and its coordinator.

    Attributes:
        group_id: its name.
        state: as the broker calls it, such as "Stable", "Empty" or (KIP-848) "Reconciling".
        protocol_type: "consumer" for consumers of both kinds, "share", "streams", or what a classic group does, such as
            "connect".
        assignor: the assignor that the members agreed on, or that the broker uses; empty where there is none.
        members: its members.
        coordinator: the broker that coordinates it.
        type: "classic", "consumer" (KIP-848), "share" (KIP-932) or "streams" (KIP-1071).
        group_epoch: its epoch, which changes with members and subscriptions; None in classic groups.
        target_assignment_epoch: the epoch of the assignment that its members go for; None in classic groups.
    """

    group_id: str
    state: str
    protocol_type: str
    assignor: str
    members: tuple[MemberDescription, ...]
    coordinator: Node
    type: str = "classic"
    group_epoch: int | None = None
    target_assignment_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster's id, its brokers, and the one that takes administrative requests."""

    cluster_id: str | None
    controller: Node | None
    nodes: tuple[Node, ...]


class OffsetSpec(Enum):
    """A place in a partition that is not given by number; beside these, an int is a timestamp in milliseconds."""

    EARLIEST = -2
    LATEST = -1
    MAX_TIMESTAMP = -3
    """The record with the greatest timestamp (KIP-734)."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind.

    `committed` is None where nothing was committed, `end` where the partition does not exist (any more); `lag` in both.
    """

    committed: int | None
    end: int | None
    member: MemberDescription | None

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the partition's end, never below 0."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A group's offset of a partition before (None: there was none) and after a reset."""

    before: int | None
    after: int


def topic_id_text(topic_id: bytes) -> str:
    """Sixteen bytes as Kafka prints them: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def raise_failures(operation: str, failures: Mapping[str, KafkaError]) -> None:
    """One failure is raised as it is, several together."""
    if len(failures) == 1:
        raise next(iter(failures.values()))
    if failures:
        raise PartialFailureError(operation, failures)
