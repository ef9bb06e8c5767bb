"""The partitions of Kafka's own topics, where a request reads them: logs that nothing is ever in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kclient.errors import (
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from kclient.acls import AclOperation
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import ConnectionContext
    from kclient.gateway.leadership import Leadership

END: Final = 0
"""Where such a log begins and ends."""


class InternalPartitions:
    """Finds the partitions of Kafka's own topics.

    Args:
        access: Who finds which topics.
        leadership: Knows who leads them.
    """

    def __init__(self, access: Access, leadership: Leadership) -> None:
        self._access = access
        self._leadership = leadership

    def epoch(
        self,
        client: ConnectionContext,
        operation: AclOperation,
        name: str,
        index: int,
        *,
        topic_id: bytes | None = None,
        known: int = -1,
    ) -> int | None:
        """The leader epoch of a partition of Kafka's own; None for one of another topic.

        Args:
            client: Who asks.
            operation: For what.
            name: Of the topic.
            index: Of the partition.
            topic_id: Of the topic, if it is named by that.
            known: The epoch that the client believes in; -1 for none.

        Raises:
            UnknownTopicOrPartitionError: The topic has no such partition.
            NotLeaderOrFollowerError: Another gateway leads it.
            FencedLeaderEpochError, UnknownLeaderEpochError: Its epoch is another one.
        """
        record = self._access.internal(client, operation, name, topic_id)
        if record is None:
            return None
        if not 0 <= index < record.partitions:
            raise UnknownTopicOrPartitionError(f"there is no partition {record.name}-{index}")
        leader = self._leadership.leader(record, index)
        if not self._leadership.leads(record, index):
            raise NotLeaderOrFollowerError(f"the gateway with node.id={leader.node_id} leads {record.name}-{index}")
        if 0 <= known != leader.epoch:
            error = FencedLeaderEpochError if known < leader.epoch else UnknownLeaderEpochError
            raise error(f"the leader epoch is {leader.epoch}, the request says {known}")
        return leader.epoch


def check_offset(name: str, index: int, offset: int) -> None:
    """Raise `OffsetOutOfRangeError` where nobody can read from such an offset on."""
    if offset != END:
        raise OffsetOutOfRangeError(f"{name}-{index}: offset {offset} is not between {END} and {END}")
