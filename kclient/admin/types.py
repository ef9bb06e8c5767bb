"""What the admin client takes and gives: plain values without behaviour."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

from kclient.acls import AclOperation
from kclient.arguments import as_names, brief, shown
from kclient.errors import KafkaError
from kclient.types import Node, PartitionInfo, TopicPartition

_TOLD = 5
"""Of how many things an error's text tells."""
_UUID_BYTES = 16
_NOT_TOLD = -(2**31)
"""What brokers answer in the place of operations that they were not asked for."""


class PartialFailureError(KafkaError):
    """Several of the things that one call asked for failed; the others were done.

    Attributes:
        failures: the error of each thing that failed, by its name. The error's own text tells the first few.
        results: what the call would have returned of the others. An error about a single thing has it, too.
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
    """A topic and its partitions.

    Attributes:
        name: its name.
        topic_id: its id in Kafka's base64 form, all "A" if the broker gives none.
        is_internal: whether it is one of Kafka's own.
        partitions: its partitions, sorted by number.
        authorized_operations: what this user may do with it (KIP-430); None where it was not asked for or not told.
    """

    name: str
    topic_id: str
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]
    authorized_operations: frozenset[AclOperation] | None = None


@dataclass(frozen=True, slots=True)
class TopicIds:
    """Topics by their ids, in calls that take them in the place of names (KIP-516).

    A topic that is deleted and made again has another id, so that what is done by id is never done to its namesake.

    Attributes:
        ids: the ids in Kafka's base64 form, as `TopicListing` and `TopicDescription` have them.

    Raises:
        TypeError: these are not texts in a list.
        ValueError: one is no id, or the one that stands for none.
    """

    ids: Collection[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(as_names(self.ids, "topic ids")))
        self.as_bytes()

    def as_bytes(self) -> dict[str, bytes]:
        """The sixteen bytes of each id."""
        found = {text: uuid_bytes(text, "a topic id is 22 characters as `list_topics` shows it") for text in self.ids}
        for text, topic_id in found.items():
            if not any(topic_id):  # brokers answer nothing of the others then, or fail
                raise ValueError(
                    f"no topic has the id {text}: brokers before Kafka 2.8, which know no ids, give it to all"
                )
        return found


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
    """What a set of settings belongs to; a number that is not listed here is UNKNOWN."""

    UNKNOWN = 0
    """A broker named one that this release does not know; it cannot be asked for."""
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    """The levels of a broker's loggers (KIP-412; Kafka 2.4)."""
    CLIENT_METRICS = 16
    """Which metrics clients are asked for (KIP-714; Kafka 3.7)."""
    GROUP = 32
    """KIP-848; Kafka 4.0."""

    @classmethod
    def _missing_(cls, value: object) -> ConfigResourceType | None:
        return cls.UNKNOWN if isinstance(value, int) else None


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """What settings belong to.

    Attributes:
        type: of which kind it is.
        name: of topics, groups and client metrics their names; of brokers and their loggers the broker's id as text
            (for brokers an empty text means the defaults of all of them).
    """

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


class ConfigType(IntEnum):
    """Which values a setting takes; a number that is not listed here is UNKNOWN."""

    UNKNOWN = 0
    """Also where the broker does not tell (before Kafka 2.6, and of loggers)."""
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9

    @classmethod
    def _missing_(cls, value: object) -> ConfigType:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A place where a setting's value could come from, and what it is there (KIP-226).

    Attributes:
        name: what the setting is called there: a topic's `retention.ms` is a broker's `log.retention.ms`.
        value: its value there; None where it is sensitive.
        source: the place.
    """

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting.

    Attributes:
        name: its name.
        value: its value; None where it is sensitive.
        source: where the value comes from.
        is_read_only: whether brokers refuse to change it.
        is_sensitive: whether brokers keep its value to themselves.
        type: which values it takes (KIP-569).
        synonyms: where else the value could come from, what counts first; empty where that was not asked for (KIP-226).
        documentation: what the broker says that it is for; None where that was not asked for or not told (KIP-569).
    """

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    type: ConfigType = ConfigType.UNKNOWN
    synonyms: tuple[ConfigSynonym, ...] = ()
    documentation: str | None = None

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
        authorized_operations: what this user may do with it (KIP-430); None where it was not asked for or not told.
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
    authorized_operations: frozenset[AclOperation] | None = None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster.

    Attributes:
        cluster_id: its id.
        controller: the broker that takes administrative requests; None where there is none.
        nodes: its brokers; those that are fenced only where they were asked for.
        authorized_operations: what this user may do with it (KIP-430); None where it was not asked for or not told.
    """

    cluster_id: str | None
    controller: Node | None
    nodes: tuple[Node, ...]
    authorized_operations: frozenset[AclOperation] | None = None


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


def operations_in(bits: int) -> frozenset[AclOperation] | None:
    """The operations that a broker's number stands for, a bit for each (KIP-430); None where it tells none.

    What only a newer release knows is left out, as in the Java client.
    """
    if bits == _NOT_TOLD:
        return None
    return frozenset(each for each in AclOperation.known() if each is not AclOperation.ALL and bits >> each & 1)


def topic_id_text(topic_id: bytes) -> str:
    """Sixteen bytes as Kafka prints them: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def uuid_bytes(text: str, expected: str) -> bytes:
    """Sixteen bytes, from Kafka's base64 form; `expected` begins the error's sentence.

    Raises:
        ValueError: it is not such an id.
    """
    try:
        found = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):  # the latter for what is not ASCII
        found = b""
    if len(found) != _UUID_BYTES or topic_id_text(found) != text:
        raise ValueError(f"{expected}, not {shown(text)}")
    return found


def raise_failures(
    operation: str, failures: Mapping[str, KafkaError], results: Mapping[Any, Any] | None = None
) -> None:
    """One failure is raised as it is, several together; either has the results of what did not fail."""
    if not failures:
        return
    error = next(iter(failures.values())) if len(failures) == 1 else PartialFailureError(operation, failures)
    if results:
        error.results = dict(results)
    raise error
