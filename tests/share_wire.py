"""Members of share groups that speak the protocol to a gateway by messages, without a membership."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kclient.errors import ErrorCode
from kclient.protocol.messages.share import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeRequestBatch,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchRequestAcknowledgementBatch,
    ShareFetchRequestForgottenTopic,
    ShareFetchRequestPartition,
    ShareFetchRequestTopic,
    ShareFetchResponse,
    ShareFetchResponsePartitionData,
)
from kclient.records import decode_records
from tests.gateway_wire import Wire

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
BATCHES, RECORDS = 0, 1
"""How is acquired: whole batches, or no more records than were asked for."""


class Acked(NamedTuple):
    """Offsets of which the same is said, or one thing of each."""

    first: int
    last: int
    kinds: tuple[int, ...]


class ShareMember:
    """A member of a share group, with its session on one connection.

    Args:
        wire: The connection.
        group_id: The group.
        member_id: The member.
    """

    def __init__(self, wire: Wire, group_id: str = "g", member_id: str = "a" * 22) -> None:
        self.wire = wire
        self.group_id = group_id
        self.member_id = member_id
        self.epoch = 0
        self.lock_ms = -1
        """What was told last."""

    async def topic(self, name: str) -> bytes:
        """The id of a topic."""
        return bytes((await self.wire.metadata(name)).topics[0].topic_id)

    def fetch_request(
        self,
        topic_id: bytes,
        partitions: Iterable[int] = (0,),
        *,
        acks: Iterable[Acked] = (),
        forget: Iterable[int] = (),
        max_records: int = 500,
        batch_size: int = 500,
        mode: int = BATCHES,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 50 << 20,
        is_renew_ack: bool = False,
    ) -> ShareFetchRequest:
        """A fetch of partitions of a topic; what is acknowledged is so of the first."""
        rows = [ShareFetchRequestPartition(partition_index=number) for number in partitions]
        for first, last, kinds in acks:
            rows[0].acknowledgement_batches.append(
                ShareFetchRequestAcknowledgementBatch(
                    first_offset=first, last_offset=last, acknowledge_types=list(kinds)
                )
            )
        forgotten = list(forget)
        return ShareFetchRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            share_session_epoch=self.epoch,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_records=max_records,
            batch_size=batch_size,
            share_acquire_mode=mode,
            is_renew_ack=is_renew_ack,
            topics=[ShareFetchRequestTopic(topic_id=topic_id, partitions=rows)] if rows else [],
            forgotten_topics_data=[ShareFetchRequestForgottenTopic(topic_id=topic_id, partitions=forgotten)]
            if forgotten
            else [],
        )

    async def send(self, request: ShareFetchRequest, version: int = 2) -> ShareFetchResponse:
        """Send a fetch, and note the next epoch if it was in order."""
        response: ShareFetchResponse = await self.wire(request, version)
        if not response.error_code:
            self.epoch = max(self.epoch, 0) + 1
            self.lock_ms = response.acquisition_lock_timeout_ms
        return response

    async def fetch(self, topic: str, partition: int = 0, **options: int) -> ShareFetchResponsePartitionData | None:
        """Acquire records of one partition; None if the answer says nothing of it."""
        topic_id = await self.topic(topic)
        response = await self.send(self.fetch_request(topic_id, [partition], **options))  # type: ignore[arg-type]
        assert not response.error_code, response
        rows = [row for topic in response.responses for row in topic.partitions if row.partition_index == partition]
        return rows[0] if rows else None

    async def values(self, topic: str, partition: int = 0, **options: int) -> list[bytes]:
        """The values that are acquired of one partition."""
        row = await self.fetch(topic, partition, **options)
        if row is None:
            return []
        assert not row.error_code, row
        return acquired_values(row)

    async def acknowledge(
        self, topic: str, *said: Acked, partition: int = 0, renew: bool = False, end: bool = False
    ) -> int:
        """Say what became of records; the error of the partition, or of all."""
        batches = [
            ShareAcknowledgeRequestBatch(first_offset=first, last_offset=last, acknowledge_types=list(kinds))
            for first, last, kinds in said
        ]
        rows = [AcknowledgePartition(partition_index=partition, acknowledgement_batches=batches)]
        topics = [AcknowledgeTopic(topic_id=await self.topic(topic), partitions=rows)] if said else []
        request = ShareAcknowledgeRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            share_session_epoch=-1 if end else self.epoch,
            is_renew_ack=renew,
            topics=topics,
        )
        response: ShareAcknowledgeResponse = await self.wire(request, 2)
        if response.error_code:
            return response.error_code
        self.epoch = 0 if end else self.epoch + 1
        return response.responses[0].partitions[0].error_code if said else ErrorCode.NONE


def acquired_values(row: ShareFetchResponsePartitionData) -> list[bytes]:
    """The values of the records that an answer says were acquired."""
    found = []
    for record in decode_records(row.records or b"", "t", row.partition_index):
        if any(each.first_offset <= record.offset <= each.last_offset for each in row.acquired_records):
            assert record.value is not None
            found.append(bytes(record.value))
    return found


def acquired(row: ShareFetchResponsePartitionData | None) -> list[tuple[int, int, int]]:
    """First and last offset of what was acquired, and how often it was delivered."""
    assert row is not None
    assert not row.error_code, row
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in row.acquired_records]
