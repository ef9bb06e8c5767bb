"""Reads what a broker has stored, by plain Fetch requests: for tests that must not depend on the consumer."""

from __future__ import annotations

from typing import Any

from kclient.cluster import Cluster
from kclient.concurrency import Supervisor
from kclient.config import AdminConfig
from kclient.errors import error_for
from kclient.protocol.messages import FetchRequest, FetchRequestPartition, FetchRequestTopic, FetchResponse
from kclient.records import decode_records
from kclient.types import TopicPartition

LAST_VERSION_WITH_NAMES = 12


async def stored_records(bootstrap: str, tp: TopicPartition) -> list[Any]:
    """Every record of a partition that consumers can see."""
    async with Supervisor("stored") as supervisor:
        cluster = Cluster(AdminConfig.parse(bootstrap_servers=bootstrap), supervisor)
        await cluster.start()
        try:
            cluster.track([tp.topic])
            snapshot = await cluster.wait_until(lambda found: found.leader(tp) is not None)
            leader = snapshot.leader_id(tp)
            records: list[Any] = []
            while True:
                position = records[-1].offset + 1 if records else 0
                more = await _fetch(cluster, leader, tp, position)
                if not more:
                    return records
                records += more
        finally:
            await cluster.aclose()


async def _fetch(cluster: Cluster, leader: int | None, tp: TopicPartition, position: int) -> list[Any]:
    wanted = FetchRequestPartition(partition=tp.partition, fetch_offset=position, partition_max_bytes=1 << 24)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 24,
        topics=[FetchRequestTopic(topic=tp.topic, partitions=[wanted])],
    )
    answer: FetchResponse = await cluster.request(leader, request, max_version=LAST_VERSION_WITH_NAMES)
    data = answer.responses[0].partitions[0]
    if data.error_code:
        raise error_for(data.error_code)
    return decode_records(data.records or b"", tp.topic, tp.partition, start_offset=position)
