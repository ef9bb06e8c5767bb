"""Values that the parts of a share consumer exchange, and what users say of a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from kclient.types import TopicPartition

if TYPE_CHECKING:
    from kclient.cluster import Backoff
    from kclient.errors import KafkaError


class AcknowledgeType(IntEnum):
    """What became of a record that a share group delivered (KIP-932)."""

    ACCEPT = 1
    """It was processed; it is not delivered again."""
    RELEASE = 2
    """It was not processed: it may be delivered again, to this consumer or another, if it was not too often already
    (the group's `share.delivery.count.limit`)."""
    REJECT = 3
    """It cannot be processed; it is not delivered again."""
    RENEW = 4
    """It is still being processed: the acquisition lock begins anew (KIP-1222), and the next poll returns it again."""


GAP: Final = 0
"""What is said of an offset without a record: one that was compacted away, or is a marker of a transaction."""

AcknowledgementCommitCallback: TypeAlias = "Callable[[dict[TopicPartition, set[int]], KafkaError | None], Any]"
"""Called as `callback(offsets, error)` with the offsets that were acknowledged by partition, and what went wrong."""


class SharePartition(NamedTuple):
    """A partition of one topic, not of its namesakes."""

    topic_id: bytes
    partition: int
    topic: str

    @property
    def tp(self) -> TopicPartition:
        """It, by its topic's name."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class ShareFetchSettings:
    """What fetches and acknowledgements need of the configuration."""

    group_id: str
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    """`max.poll.records`"""
    record_limit: bool
    """`share.acquire.mode=record_limit`"""
    retry_backoff: Backoff
