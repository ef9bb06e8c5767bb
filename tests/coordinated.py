"""Which groups and transactional ids a broker coordinates."""

from __future__ import annotations

from kclient.gateway.coordination import partition_for
from kclient.sync import Admin


def coordinators(admin: Admin, topic: str) -> dict[int, int]:
    """Who leads each partition of one of Kafka's own topics, and so coordinates what it stands for."""
    found = admin.describe_topics([topic])[topic].partitions
    return {info.partition: info.leader.id for info in found if info.leader is not None}


def names_at(admin: Admin, topic: str, node_id: int, count: int) -> list[str]:
    """Groups, or transactional ids, that a gateway coordinates."""
    leaders = coordinators(admin, topic)
    found = (name for name in map("g{}".format, range(1000)) if leaders[partition_for(name, len(leaders))] == node_id)
    return [next(found) for _ in range(count)]
