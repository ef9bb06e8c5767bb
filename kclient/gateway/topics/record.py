"""What is known of one topic, and of one that is being made or removed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from kclient.errors import PolicyViolationError
from kclient.gateway.mapping import Mapping as PartitionMapping
from kclient.gateway.mapping import mapping_for
from kclient.gateway.mirroring import mirrored
from kclient.gateway.rows.topics import IntentRow, MirrorOrigin, TopicRow
from kclient.gateway.topic_traffic import TopicTraffic
from kclient.htp.brokers import FIRST_BROKER

if TYPE_CHECKING:
    from kclient.gateway.config import TopicConfig
    from kclient.gateway.partition import Partition
    from kclient.htp.port import Place


@dataclass(slots=True, eq=False)
class TopicRecord:
    """One topic as the catalogue knows it: what outlives an await holds this, and not the name."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    mapping: PartitionMapping
    overrides: dict[str, str]
    config: TopicConfig
    mirror: MirrorOrigin | None = None
    """Of which topic of another cluster it is the mirror, or was."""
    places: list[Place] = field(default_factory=list)
    """Where its partitions lie in HTP."""
    gone: bool = False
    """Whether it has been deleted."""
    version: int = 0
    """The manager's version of the row, for compare-and-set."""
    held: int = 0
    """Bytes of memory that it counts for."""
    traffic: TopicTraffic = field(default_factory=TopicTraffic)
    """What has gone in and out."""
    logs: dict[int, Partition] = field(default_factory=dict)
    """The partitions used so far (`PartitionTable` fills it)."""

    @property
    def mirrored(self) -> bool:
        """Whether it follows a topic of another cluster: it takes records from there only."""
        return self.mirror is not None and not self.mirror.taken_over

    def configure(self, config: TopicConfig) -> None:
        """Take over the settings that are in force for its overrides."""
        self.config = replace(config, mirrored=True) if self.mirrored else config

    def check_own(self) -> None:
        """See to it that it is changed here only if it follows no topic of another cluster.

        Raises:
            PolicyViolationError: It does.
        """
        if self.mirrored:
            raise PolicyViolationError(f"{mirrored(self.name)}, and is changed at its source")

    def row(self) -> bytes:
        """The topic as its row holds it."""
        brokers = [place.broker for place in self.places]
        return TopicRow(
            self.topic_id,
            self.partitions,
            self.replication_factor,
            self.mapping.name,
            [place.incarnation for place in self.places],
            self.overrides,
            brokers if any(broker != FIRST_BROKER for broker in brokers) else (),
            self.mirror,
        ).encode()


class Intent(NamedTuple):
    """A creation, growth or deletion that is under way: what is to be removed unless the topic's row is there."""

    mapping: PartitionMapping
    topic_id: bytes | None
    """None if an early version recorded it: the topic's checkpoints are not found then."""
    run: str = ""
    """Of the gateway whose it is; empty if an earlier version recorded it."""

    def row(self) -> bytes:
        """As its row holds it."""
        return IntentRow(self.mapping.name, self.topic_id, self.run).encode()

    @classmethod
    def of(cls, row: bytes) -> Intent:
        """What a row says. Raises `ValueError` or `KafkaError` if it says nothing sensible."""
        fields = IntentRow.decode(row)
        return cls(mapping_for(fields.mapping), fields.topic_id, fields.run)
