"""The settings of the consumer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from kclient.config.common import TRACING, ClientConfig
from kclient.config.java import ASSIGNORS, DESERIALIZERS
from kclient.config.setting import Boolean, Choice, Classes, Kind, Number, PythonObject, Text, setting
from kclient.errors import ConfigError

__all__ = ["ConsumerConfig"]

_DESERIALIZER = PythonObject(
    "a deserializer, its class, or a function from bytes to a value", DESERIALIZERS, strict=False
)
_DURATION = re.compile(r"by_duration:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?", re.IGNORECASE)


@dataclass(frozen=True)
class _AutoOffsetReset(Kind):
    """`auto.offset.reset`: a word, or a duration back from now (KIP-1106)."""

    @property
    def text(self) -> str:
        return "one of `latest`, `earliest`, `none`, or `by_duration:` with an ISO-8601 duration such as PT1H"

    def parse(self, value: Any) -> str:
        word = str(value).strip()
        if word.lower() in ("latest", "earliest", "none"):
            return word.lower()
        if _DURATION.fullmatch(word):
            return word
        raise ValueError(self.text)


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """The settings of the consumer; made by `parse`. Times are in milliseconds, sizes in bytes."""

    CLIENT: ClassVar[str] = "consumer"

    allow_auto_create_topics: bool = setting(
        Boolean(), True, "Whether subscribing to an unknown topic may create it, if the brokers do that."
    )
    auto_commit_interval_ms: int = setting(
        Number(0), 5000, "How often positions are committed with `enable.auto.commit`."
    )
    auto_offset_reset: str = setting(
        _AutoOffsetReset(),
        "latest",
        """Where to begin where nothing was committed or the offset is gone: at the `latest` or `earliest` record, at
        the first that is not older than a duration (`by_duration:PT1H`, KIP-1106), or raise (`none`).""",
    )
    check_crcs: bool = setting(Boolean(), True, "Whether checksums of fetched batches are verified.")
    client_rack: str = setting(
        Text(sent=True),
        "",
        """Where the client is: records are fetched from a replica nearby if the brokers say so (KIP-392), and the range
        assignor gives it partitions that have one (KIP-881).""",
    )
    default_api_timeout_ms: int = setting(Number(0), 60_000, "Time for calls that are given no `timeout`.")
    enable_auto_commit: bool = setting(
        Boolean(), True, "Whether positions are committed in the background; off without `group.id`."
    )
    enable_auto_offset_store: bool = setting(
        Boolean(),
        True,
        """Whether what is committed by default are the positions, behind all records that were returned. With `false`,
        a habit of librdkafka's, it is what `store_offsets` has stored: what you are through with.""",
        own=True,
    )
    enable_partition_eof: bool = setting(
        Boolean(),
        False,
        """Whether `poll` tells that the end of a partition is reached, and returns for it, once each time
        (`ConsumerRecords.partition_ends`). A setting of librdkafka's. Iteration and `poll_arrow` tell of none.""",
        own=True,
    )
    exclude_internal_topics: bool = setting(
        Boolean(), True, "Whether subscriptions by pattern leave out Kafka's own topics."
    )
    fetch_max_bytes: int = setting(
        Number(0),
        52_428_800,
        """Most bytes fetched ahead: what is buffered and what brokers may still answer, shared equally by the brokers
        that have something to do. A larger first batch is returned all the same.""",
    )
    fetch_max_decompressed_bytes: int = setting(
        Number(1),
        268_435_456,
        "Greatest size of a batch's records after decompression; a larger one raises `RecordTooLargeError`.",
        own=True,
    )
    fetch_max_wait_ms: int = setting(Number(0), 500, "How long a broker waits for `fetch.min.bytes` before it answers.")
    fetch_min_bytes: int = setting(Number(0), 1, "Bytes that a broker gathers before it answers a fetch.")
    group_id: str | None = setting(
        Text(empty=False, sent=True),
        None,
        "The group whose members share the partitions; needed to subscribe and to commit.",
    )
    group_instance_id: str | None = setting(
        Text(empty=False, sent=True),
        None,
        "Name of a static member, which keeps its partitions over a restart (KIP-345).",
    )
    group_protocol: str = setting(
        Choice(("classic", "consumer")),
        "classic",
        """How the group balances: by its members (`classic`), or by the broker (`consumer`, KIP-848), which needs Kafka
        4.0 or newer, or a kclient gateway.""",
    )
    group_remote_assignor: str | None = setting(
        Text(sent=True),
        None,
        """Which of the broker's assignors the group is to use, with `group.protocol=consumer`: `uniform`, `range` or
        another of its `group.consumer.assignors`; by default the broker's first.""",
    )
    heartbeat_interval_ms: int = setting(
        Number(1), 3000, "Time between heartbeats to the group's coordinator; less than `session.timeout.ms`."
    )
    interceptor_classes: tuple[Any, ...] = setting(
        Classes(PythonObject("a consumer interceptor or its class")),
        (),
        "Called with records before they are returned.",
    )
    internal_throw_on_fetch_stable_offset_unsupported: bool = setting(
        Boolean(), False, "Internal to Kafka Streams.", served=False
    )
    isolation_level: str = setting(
        Choice(("read_uncommitted", "read_committed")),
        "read_uncommitted",
        "Whether records of open and aborted transactions are left out (`read_committed`).",
    )
    key_deserializer: Any = setting(_DESERIALIZER, None, "Turns keys into values; without it keys are bytes.")
    value_deserializer: Any = setting(_DESERIALIZER, None, "Turns values back; without it values are bytes.")
    max_partition_fetch_bytes: int = setting(
        Number(0), 1_048_576, "Most bytes fetched of one partition at once; a larger first batch comes all the same."
    )
    max_poll_interval_ms: int = setting(
        Number(1), 300_000, "Time between two polls after which a consumer leaves its group."
    )
    max_poll_records: int = setting(Number(1), 500, "Most records returned by one poll.")
    partition_assignment_strategy: tuple[Any, ...] = setting(
        Classes(PythonObject("an assignor or its class", ASSIGNORS)),
        ("range", "cooperative-sticky"),
        "How the members of a group share the partitions; the first that all members know is used.",
    )
    session_timeout_ms: int = setting(
        Number(1), 45_000, "Time without heartbeats after which the coordinator gives a member's partitions away."
    )
    tracing: Any = setting(
        TRACING,
        None,
        """Has spans made by OpenTelemetry's conventions for messaging, linked to those in which the records were sent:
        by this tracer provider, or with `otel` by the global one. Needs the extra `otel`. Off by default, when it costs
        nothing.""",
        own=True,
    )

    @classmethod
    def _reconcile(cls, values: dict[str, Any]) -> None:
        known = cls.settings()
        _check_protocol(values)
        if values.get("group.id") is None:
            if values.get("enable.auto.commit"):
                raise ConfigError("enable.auto.commit=true needs a group.id: positions are committed for a group")
            values["enable.auto.commit"] = False
        session = values.get("session.timeout.ms", known["session.timeout.ms"].default)
        heartbeat = values.get("heartbeat.interval.ms", known["heartbeat.interval.ms"].default)
        if heartbeat >= session:
            raise ConfigError(
                f"heartbeat.interval.ms = {heartbeat} must be less than session.timeout.ms = {session}; "
                "a third is usual"
            )
        if not values.get("partition.assignment.strategy", known["partition.assignment.strategy"].default):
            raise ConfigError("partition.assignment.strategy names no assignor; leave it out for the default")


def _check_protocol(values: dict[str, Any]) -> None:
    """Refuse settings of the protocol that was not chosen, as the Java client does.

    Raises:
        ConfigError: There is one.
    """
    if values.get("group.protocol", "classic") == "classic":
        if values.get("group.remote.assignor"):
            raise ConfigError(
                "group.remote.assignor cannot be set with group.protocol=classic, where the members assign the "
                "partitions: set group.protocol=consumer, or partition.assignment.strategy instead"
            )
        return
    for name, instead in _CLASSIC.items():
        if values.get(name) is not None:
            raise ConfigError(
                f"{name} cannot be set with group.protocol=consumer: {instead}. Leave it out, or set "
                "group.protocol=classic"
            )


_CLASSIC = {
    "heartbeat.interval.ms": "the broker says how often (consumer.heartbeat.interval.ms of the group)",
    "session.timeout.ms": "the broker says how long it waits (consumer.session.timeout.ms of the group)",
    "partition.assignment.strategy": "the broker assigns the partitions (group.remote.assignor chooses how)",
}
"""Settings of the classic protocol, and what there is instead."""
