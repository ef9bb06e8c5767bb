"""The quorum of KRaft controllers, as the admin client's calls take and give it (KIP-595, KIP-836, KIP-853)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kclient.admin.types import uuid_bytes
from kclient.arguments import check_text, shown, whole_number

_GREATEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A controller or broker that has the cluster's metadata.

    Attributes:
        replica_id: its `node.id`.
        directory_id: the id of the directory that it keeps them in, in Kafka's base64 form; all "A" where brokers do
            not tell (before Kafka 3.9).
        log_end_offset: up to where it has them; −1 if that is not known.
        last_fetch_timestamp: when it has asked for more, in milliseconds since 1970; None if that is not known.
        last_caught_up_timestamp: when it had all of them, in milliseconds since 1970; None if that is not known.
    """

    replica_id: int
    directory_id: str
    log_end_offset: int
    last_fetch_timestamp: int | None = None
    last_caught_up_timestamp: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class RaftVoterEndpoint:
    """Where a controller listens.

    Attributes:
        listener: the listener's name, such as "CONTROLLER".
        host: its host.
        port: its port.

    Raises:
        TypeError: an attribute is of another type.
        ValueError: the port is none, or a text is empty.
    """

    listener: str
    host: str
    port: int

    def __post_init__(self) -> None:
        for value, what in ((self.listener, "a listener's name"), (self.host, "a host")):
            check_text(value, what)
            if not value:
                raise ValueError(f"{what} is not empty")
        if not 0 < whole_number(self.port, "a port") <= _GREATEST_PORT:
            raise ValueError(f"a port is 1 to {_GREATEST_PORT}, not {shown(self.port)}")


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    """The quorum.

    Attributes:
        leader_id: the `node.id` of the active controller; −1 where there is none.
        leader_epoch: since when it is, as elections are counted.
        high_watermark: up to where most voters have the metadata.
        voters: who elects, and may be elected.
        observers: who only reads: the brokers, and controllers that were not added.
        nodes: where each voter listens, by its `node.id`; empty where brokers do not tell (before Kafka 3.9).
    """

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    nodes: Mapping[int, tuple[RaftVoterEndpoint, ...]] = field(default_factory=dict)


def as_directory_id(value: Any) -> bytes:
    """Sixteen bytes, from Kafka's base64 form.

    Raises:
        TypeError: this is no text.
        ValueError: it is not such an id.
    """
    check_text(value, "a directory id")
    return uuid_bytes(value, "a directory id is 22 characters as `describe_metadata_quorum` shows it")


def as_endpoints(values: Any) -> list[RaftVoterEndpoint]:
    """Where a controller listens.

    Raises:
        TypeError: these are no endpoints.
        ValueError: there are none, or two of one name.
    """
    expected = "endpoints are RaftVoterEndpoints in a list"
    if isinstance(values, str | bytes | RaftVoterEndpoint | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{expected}, not {shown(values)}")
    found: dict[str, RaftVoterEndpoint] = {}
    for each in values:
        if not isinstance(each, RaftVoterEndpoint):
            raise TypeError(f"{expected}; {shown(each)} is of type {type(each).__name__}")
        if found.setdefault(each.listener, each) is not each:
            raise ValueError(f"there are two endpoints named {shown(each.listener)}")
    if not found:
        raise ValueError("a controller has one endpoint at least")
    return list(found.values())
