"""Which responses ask the client for a pause (quotas, KIP-219).

Brokers up to Kafka 1.1 paused first and answered then: `throttle_time_ms` told what was over. Since KIP-219 they
answer at once and read nothing more from the connection for that time, so the client had better wait by itself: what it
sent would lie unread. Each API got a version that says so; younger APIs have always meant it that way.
"""

from __future__ import annotations

from typing import Final

from kclient.protocol.message import ApiMessage
from kclient.protocol.registry import ApiKey

__all__ = ["requested_pause"]

_FIRST_VERSIONS: Final[dict[int, int]] = {
    ApiKey.PRODUCE: 6,
    ApiKey.FETCH: 8,
    ApiKey.LIST_OFFSETS: 3,
    ApiKey.METADATA: 6,
    ApiKey.OFFSET_COMMIT: 4,
    ApiKey.OFFSET_FETCH: 4,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.JOIN_GROUP: 3,
    ApiKey.HEARTBEAT: 2,
    ApiKey.LEAVE_GROUP: 2,
    ApiKey.SYNC_GROUP: 2,
    ApiKey.DESCRIBE_GROUPS: 2,
    ApiKey.LIST_GROUPS: 2,
    ApiKey.API_VERSIONS: 2,
    ApiKey.CREATE_TOPICS: 3,
    ApiKey.DELETE_TOPICS: 2,
    ApiKey.DELETE_RECORDS: 1,
    ApiKey.INIT_PRODUCER_ID: 1,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.END_TXN: 1,
    ApiKey.TXN_OFFSET_COMMIT: 1,
    ApiKey.DESCRIBE_ACLS: 1,
    ApiKey.CREATE_ACLS: 1,
    ApiKey.DELETE_ACLS: 1,
    ApiKey.DESCRIBE_CONFIGS: 2,
    ApiKey.ALTER_CONFIGS: 1,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 1,
    ApiKey.DESCRIBE_LOG_DIRS: 1,
    ApiKey.CREATE_PARTITIONS: 1,
    ApiKey.CREATE_DELEGATION_TOKEN: 1,
    ApiKey.RENEW_DELEGATION_TOKEN: 1,
    ApiKey.EXPIRE_DELEGATION_TOKEN: 1,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: 1,
    ApiKey.DELETE_GROUPS: 1,
}
"""From which version on an API of Kafka 1.1 is answered before the pause; Kafka's Java client has the same numbers."""


def requested_pause(response: ApiMessage, version: int) -> float:
    """How long the client should send nothing on the connection that a response came by.

    Args:
        response: Of any API.
        version: Its version.

    Returns:
        Seconds; 0.0 if nothing is asked for.
    """
    milliseconds: int = getattr(response, "throttle_time_ms", 0)
    if milliseconds <= 0 or version < _FIRST_VERSIONS.get(response.API_KEY or 0, 0):
        return 0.0
    return milliseconds / 1000
