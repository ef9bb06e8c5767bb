"""What users pass to the admin client: checked, and brought into the form that requests take.

What passes here fits into the protocol's fields; whether it makes sense the broker says, whose rules change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kclient.admin.transaction_types import AbortTransactionSpec
from kclient.admin.types import (
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    ElectionType,
    NewTopic,
    OffsetSpec,
)
from kclient.arguments import (
    INT32_MAX,
    INT64_MAX,
    as_names,
    as_offset,
    as_partition,
    by_partition,
    check_text,
    check_topic,
    shown,
    whole_number,
)
from kclient.protocol.messages import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsTopic,
    IncrementalAlterConfigsRequestConfig,
)
from kclient.types import TopicPartition, WholeNumbers

K = TypeVar("K")
V = TypeVar("V")

Change = tuple[ConfigOperation, str | None]

_INT16_MAX = 2**15 - 1

# ------------------------------------------------------------------ topics


def as_new_topics(topics: Iterable[NewTopic]) -> list[CreatableTopic]:
    """Topics to create, as requests have them.

    Raises:
        TypeError: These are not `NewTopic`s, or something in one is of another type.
        ValueError: A number or text in one cannot be sent.
    """
    expected = "create_topics takes NewTopic objects, as in [NewTopic('flights', partitions=4)]"
    if isinstance(topics, NewTopic | str | Mapping) or not isinstance(topics, Iterable):
        raise TypeError(f"{expected}, not {type(topics).__name__}")
    found = []
    for topic in topics:
        if not isinstance(topic, NewTopic):
            raise TypeError(f"{expected}; {shown(topic)} is of type {type(topic).__name__}")
        found.append(_creatable(topic))
    return found


def _creatable(topic: NewTopic) -> CreatableTopic:
    check_text(topic.name, "the name of a new topic")
    assignments = {} if topic.assignments is None else topic.assignments
    return CreatableTopic(
        name=topic.name,
        num_partitions=_count(topic.partitions, "a new topic's number of partitions", INT32_MAX),
        replication_factor=_count(topic.replication_factor, "a replication factor", _INT16_MAX),
        assignments=[
            CreatableReplicaAssignment(partition_index=number, broker_ids=brokers)
            for number, brokers in _mapped(
                assignments, lambda number: _within(number, "a partition's number", 0, INT32_MAX), _brokers,
                "the assignments of a new topic", "from partitions to brokers, as in {0: [1, 2]}",
            )
        ],
        configs=[
            CreatableTopicConfig(name=name, value=value)
            for name, value in _mapped(
                topic.configs, _setting, _setting_value,
                "the configs of a new topic", "from names to values, as in {'retention.ms': '60000'}",
            )
        ],
    )  # fmt: skip


def as_totals(
    totals: Mapping[str, int], assignments: Mapping[str, list[list[int]]] | None
) -> dict[str, CreatePartitionsTopic]:
    """How many partitions topics shall have, and where the new ones are, as requests have it.

    Raises:
        TypeError: These are not numbers, or not lists of lists of brokers, by topic.
        ValueError: A number or name cannot be sent, or there are assignments of a topic without a number.
    """
    if not isinstance(totals, Mapping):
        raise TypeError(f"create_partitions takes a mapping from topics to numbers, as {{'t': 4}}; not {shown(totals)}")
    given = list(totals.items())
    names = as_names((name for name, _ in given), "topics")
    numbers = [_within(total, "a number of partitions", 0, INT32_MAX) for _, total in given]
    places: dict[str, list[CreatePartitionsAssignment]] = {}
    if assignments is not None:
        example = "from topics to the brokers of each new partition, as in {'t': [[1, 2], [2, 1]]}"
        places = dict(_mapped(assignments, _topic, _new_places, "assignments", example))
    for name in places.keys() - set(names):
        raise ValueError(f"there are assignments of {shown(name)}, but no number of partitions that it shall have")
    return {
        name: CreatePartitionsTopic(name=name, count=number, assignments=places.get(name))
        for name, number in zip(names, numbers, strict=True)
    }


def as_replicas(brokers: Any) -> list[int] | None:
    """The brokers of a partition that is to be moved; None where a move is cancelled.

    Raises:
        TypeError: They are no numbers.
        ValueError: One cannot be sent.
    """
    return None if brokers is None else _brokers(brokers)


def as_election_type(value: Any) -> ElectionType:
    """The kind of an election. Raises `TypeError` if it is none."""
    if not isinstance(value, ElectionType):
        raise TypeError(f"election_type is ElectionType.PREFERRED or ElectionType.UNCLEAN, not {shown(value)}")
    return value


def _topic(name: Any) -> str:
    check_topic(name)
    return name  # type: ignore[no-any-return]


def _new_places(partitions: Any) -> list[CreatePartitionsAssignment]:
    return [CreatePartitionsAssignment(broker_ids=_brokers(brokers)) for brokers in _listed(partitions)]


def _brokers(brokers: Any) -> list[int]:
    return [_within(broker, "a broker's id", 0, INT32_MAX) for broker in _listed(brokers)]


def _listed(values: Any) -> Iterable[Any]:
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"the brokers of a partition are a list of their ids, as in [1, 2]; not {shown(values)}")
    return values


# ------------------------------------------------------------------ places in partitions


def as_place(value: OffsetSpec | int) -> OffsetSpec | int:
    """A place whose offset is looked up: an `OffsetSpec` or a timestamp.

    Raises:
        TypeError: It is neither.
        ValueError: It cannot be sent.
    """
    if isinstance(value, OffsetSpec):
        return value
    return _within(value, "a place that is not an OffsetSpec", -INT64_MAX, INT64_MAX)


def as_target(target: OffsetSpec | int | WholeNumbers) -> OffsetSpec | int | dict[TopicPartition, int]:
    """Where a group is moved to: a place, or an offset for each partition.

    Raises:
        TypeError: It is neither.
        ValueError: It cannot be sent, or an offset or a timestamp is negative.
    """
    if isinstance(target, Mapping):
        return by_partition(target, lambda offset: as_offset(offset, "reset to").offset, "offsets")
    if isinstance(target, OffsetSpec):
        return target
    # brokers take negative numbers for other things, such as -1 for the end: they are an OffsetSpec here
    return _within(target, "a target that is neither an OffsetSpec nor a mapping of offsets", 0, INT64_MAX)


def as_end_of_deletion(value: int) -> int:
    """The offset before which records are deleted; −1 for all of them.

    Raises:
        TypeError: It is not a number.
        ValueError: It is below −1, or too large.
    """
    offset = whole_number(value, "an offset")
    if not -1 <= offset <= INT64_MAX:
        raise ValueError(f"records are deleted before an offset, or all of them with -1; not before {shown(offset)}")
    return offset


# ------------------------------------------------------------------ settings


def as_resources(resources: Iterable[ConfigResource]) -> list[ConfigResource]:
    """What settings belong to, in a list.

    Raises:
        TypeError: These are not `ConfigResource`s, or something in one is of another type.
        ValueError: The name of one cannot be sent, or its type is UNKNOWN.
    """
    expected = "settings belong to resources, as in [ConfigResource(ConfigResourceType.TOPIC, 'flights')]"
    if isinstance(resources, ConfigResource | str) or not isinstance(resources, Iterable):
        raise TypeError(f"{expected}; not {shown(resources)}")
    found = []
    for resource in resources:
        if not isinstance(resource, ConfigResource):
            raise TypeError(f"{expected}; {shown(resource)} is of type {type(resource).__name__}")
        _check_resource_type(resource.type)
        check_text(resource.name, "the name of a resource")
        found.append(resource)
    return found


def as_resource_types(types: Iterable[ConfigResourceType]) -> list[ConfigResourceType]:
    """Kinds of resources in a list, each once.

    Raises:
        TypeError: These are none.
        ValueError: One is UNKNOWN.
    """
    if isinstance(types, ConfigResourceType | str | bytes | Mapping) or not isinstance(types, Iterable):
        raise TypeError(f"types are given in a list, as in [ConfigResourceType.GROUP]; not {shown(types)}")
    found = list(types)
    for each in found:
        _check_resource_type(each)
    return list(dict.fromkeys(found))


def _check_resource_type(value: Any) -> None:
    if not isinstance(value, ConfigResourceType):
        raise TypeError(f"the type of a resource is a ConfigResourceType, not {shown(value)}")
    if value is ConfigResourceType.UNKNOWN:
        raise ValueError("the type of a resource is UNKNOWN: a newer release of kclient may know it")


def broker_of(resource: ConfigResource) -> int | None:
    """The broker whose own settings or loggers these are; None for settings that all brokers know.

    Raises:
        ValueError: No broker has such an id.
    """
    if resource.type is ConfigResourceType.BROKER:
        if not resource.name:
            return None
        expected = "a broker is named by its id, or all of them by an empty name"
    elif resource.type is ConfigResourceType.BROKER_LOGGER:
        expected = "the loggers of a broker are named by its id"
    else:
        return None
    if not (resource.name.isascii() and resource.name.isdecimal()):
        raise ValueError(f"{expected}; not by {shown(resource.name)}")
    if len(resource.name) > len(str(INT32_MAX)) or int(resource.name) > INT32_MAX:
        raise ValueError(f"{expected}, which is {INT32_MAX} at most; not by {shown(resource.name)}")
    return int(resource.name)


def as_changes(
    changes: Mapping[ConfigResource, Mapping[str, Change | str | None]],
) -> dict[ConfigResource, list[IncrementalAlterConfigsRequestConfig]]:
    """Changes of settings, as requests have them.

    Raises:
        TypeError: These are not changes by name, by `ConfigResource`.
        ValueError: A name or value cannot be sent.
    """
    if not isinstance(changes, Mapping):
        raise TypeError(f"changes are a mapping from ConfigResource to settings by name; not {shown(changes)}")
    given = list(changes.items())
    resources = as_resources([resource for resource, _ in given])
    return {resource: _alterables(settings) for resource, (_, settings) in zip(resources, given, strict=True)}


def _alterables(settings: Any) -> list[IncrementalAlterConfigsRequestConfig]:
    example = "from names to values, as in {'retention.ms': '60000'}"
    return [
        IncrementalAlterConfigsRequestConfig(name=name, config_operation=int(operation), value=value)
        for name, (operation, value) in _mapped(settings, _setting, _change, "the changes of a resource", example)
    ]


def _change(change: Any) -> Change:
    if not isinstance(change, tuple):
        return (ConfigOperation.DELETE if change is None else ConfigOperation.SET), _setting_value(change)
    if len(change) != 2 or not isinstance(change[0], ConfigOperation):
        raise TypeError(
            f"a change is a value, or an operation with one as in (ConfigOperation.APPEND, 'x'); not {shown(change)}"
        )
    operation, value = change
    return operation, _setting_value(value)


def _setting(name: Any) -> str:
    check_text(name, "the name of a setting")
    return name  # type: ignore[no-any-return]


def _setting_value(value: Any) -> str | None:
    if value is not None:
        check_text(value, "the value of a setting")
    return value  # type: ignore[no-any-return]


# ------------------------------------------------------------------ groups


def check_group(group_id: Any) -> None:
    """Raise if this cannot be a group's id.

    Raises:
        TypeError: It is not text.
        ValueError: It cannot be sent.
    """
    check_text(group_id, "a group's id")


# ------------------------------------------------------------------ transactions


def as_abort_spec(spec: Any) -> AbortTransactionSpec:
    """Which transaction to abort, each part as requests have it.

    Raises:
        TypeError: It is no `AbortTransactionSpec`, or something in it is of another type.
        ValueError: A number cannot be sent.
    """
    if not isinstance(spec, AbortTransactionSpec):
        raise TypeError(f"abort_transaction takes an AbortTransactionSpec, not {shown(spec)}")
    return AbortTransactionSpec(
        as_partition(spec.topic_partition),
        _within(spec.producer_id, "producer_id", 0, INT64_MAX),
        _within(spec.producer_epoch, "producer_epoch", 0, _INT16_MAX),
        _within(spec.coordinator_epoch, "coordinator_epoch", 0, INT32_MAX),
    )


def as_producer_ids(values: Any) -> list[int]:
    """Ids of producers in a list.

    Raises:
        TypeError: These are not whole numbers.
        ValueError: One is less than 0, or cannot be sent.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"producer ids are given in a list, as in [4000]; not {shown(values)}")
    return [_within(value, "a producer id", 0, INT64_MAX) for value in values]


def as_duration(value: Any, what: str) -> int:
    """Milliseconds from 0 on.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is less than 0, or cannot be sent.
    """
    return _within(value, what, 0, INT64_MAX)


def as_broker_id(value: Any) -> int:
    """The number of a broker.

    Raises:
        TypeError: It is no whole number.
        ValueError: No broker has such a number.
    """
    return _within(value, "broker_id", 0, INT32_MAX)


def as_page_size(value: Any) -> int:
    """How many partitions an answer has at most.

    Raises:
        TypeError: It is no whole number.
        ValueError: It is less than 1, or cannot be sent.
    """
    return _within(value, "partition_size_limit_per_response", 1, INT32_MAX)


# ------------------------------------------------------------------ numbers and mappings


def _count(value: Any, what: str, greatest: int) -> int:
    number = whole_number(value, what)
    if not -1 <= number <= greatest:
        raise ValueError(f"{what} is from 1 to {greatest}, or -1 for the broker's default; not {shown(number)}")
    return number


def _within(value: Any, what: str, least: int, greatest: int) -> int:
    number = whole_number(value, what)
    if not least <= number <= greatest:
        raise ValueError(f"{what} is from {least} to {greatest}, not {shown(number)}")
    return number


def _mapped(
    given: Any, key: Callable[[Any], K], value: Callable[[Any], V], what: str, example: str
) -> list[tuple[K, V]]:
    """The pairs of a mapping, each checked."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} are a mapping {example}; not {shown(given)}")
    return [(key(name), value(of_it)) for name, of_it in given.items()]
