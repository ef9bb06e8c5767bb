"""Producers of transactions that speak the protocol by hand, to say what no client would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from kclient.errors import ErrorCode
from kclient.protocol import messages as m
from kclient.records import decode_records, iter_headers
from tests.gateway_wire import Wire, batch_of, produce_request

COMMITTED = 1


@dataclass
class ByHand:
    """A producer of one version of the protocol."""

    wire: Wire
    name: str
    version: int = 2
    producer_id: int = -1
    epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    async def init(self, *, timeout_ms: int = 60_000, recover: bool = False) -> int:
        """Ask for an id and an epoch until the transaction before is completed; the code."""
        request = m.InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=timeout_ms)
        if recover:
            request.producer_id, request.producer_epoch = self.producer_id, self.epoch
        with anyio.fail_after(20):
            while True:
                answer = await self.wire(request, 5)
                if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                    break
                await anyio.sleep(0.005)
        if not answer.error_code:
            self.producer_id, self.epoch, self.sequences = answer.producer_id, answer.producer_epoch, {}
        return int(answer.error_code)

    async def add(self, topic: str, *numbers: int) -> int:
        """Have partitions join by AddPartitionsToTxn of a client; the code of the first."""
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[m.AddPartitionsToTxnTopic(name=topic, partitions=list(numbers))],
        )
        answer = await self.wire(request, 3)
        return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    async def send(self, topic: str, *values: bytes, partition: int = 0, produce: int | None = None) -> int:
        """Produce a batch; the code."""
        sequence = self.sequences.get((topic, partition), 0)
        batch = batch_of(
            *values, transactional=True, producer_id=self.producer_id, producer_epoch=self.epoch, sequence=sequence
        )
        request = produce_request(topic, batch, partition, transactional_id=self.name)
        version = produce or (12 if self.version >= 2 else 11)
        code = int((await self.wire(request, version)).responses[0].partition_responses[0].error_code)
        if not code:
            self.sequences[topic, partition] = sequence + len(values)
        return code

    async def add_group(self, group_id: str, *, request: int = 4) -> int:
        """AddOffsetsToTxn; the code."""
        wanted = m.AddOffsetsToTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, group_id=group_id
        )
        return int((await self.wire(wanted, request)).error_code)

    async def offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int],
        *,
        request: int | None = None,
        member: tuple[str, str | None, int] = ("", None, -1),
        metadata: str = "",
    ) -> int:
        """TxnOffsetCommit of partitions; the first code.

        Args:
            group_id: The group.
            offsets: By topic and partition.
            request: The version, if another than the newest of the protocol.
            member: Member id, instance id and generation.
            metadata: Of each.
        """
        topics: dict[str, list[m.TxnOffsetCommitRequestPartition]] = {}
        for (topic, partition), offset in offsets.items():
            row = m.TxnOffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=metadata
            )
            topics.setdefault(topic, []).append(row)
        wanted = m.TxnOffsetCommitRequest(
            transactional_id=self.name, group_id=group_id, producer_id=self.producer_id, producer_epoch=self.epoch,
            topics=[m.TxnOffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()],
        )  # fmt: skip
        version = request or (5 if self.version >= 2 else 4)
        if version >= 3:
            wanted.member_id, wanted.group_instance_id, wanted.generation_id = member
        answer = await self.wire(wanted, version)
        codes = [int(row.error_code) for topic in answer.topics for row in topic.partitions]
        return next(filter(None, codes), 0)

    async def end(self, commit: bool = True, *, keep: bool = False) -> int:
        """EndTxn; the code.

        Args:
            commit: Whether it commits.
            keep: Whether the next identity is left alone, as if the answer had been lost.
        """
        request = m.EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = await self.wire(request, 5 if self.version >= 2 else 4)
        if not answer.error_code and self.version >= 2 and not keep:
            self.producer_id, self.epoch, self.sequences = answer.producer_id, answer.producer_epoch, {}
        return int(answer.error_code)


async def committed_values(wire: Wire, topic: str, partition: int = 0) -> list[bytes]:
    """What a reader of committed records sees, up to the last stable offset."""
    found: list[bytes] = []
    offset = 0
    while True:
        answer = await wire.fetch(topic, offset, partition, isolation_level=COMMITTED, partition_max_bytes=1 << 16)
        assert not answer.error_code
        if not answer.records:
            return found
        hidden = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
        records = decode_records(answer.records, topic, partition, start_offset=offset, aborted=hidden)
        found += [record.value for record in records]
        offset = max(header.next_offset for _, header in iter_headers(answer.records))


async def decided(wire: Wire, topic: str, partition: int = 0) -> None:
    """Wait until no transaction of a partition is open."""
    with anyio.fail_after(20):
        while True:
            answer = await wire.fetch(topic, 0, partition, isolation_level=COMMITTED)
            if answer.last_stable_offset == answer.high_watermark:
                return
            await anyio.sleep(0.005)
