"""Asks the coordinator of a transaction about the partitions of one Produce request, all at once (KIP-890)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anyio

from kclient.concurrency import Completion
from kclient.errors import (
    CorruptRecordError,
    InvalidPidMappingError,
    KafkaError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    error_for,
)
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.peers import TransactionOf
from kclient.records import read_header

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.log import PartitionLog
    from kclient.gateway.log_transactions import Verification
    from kclient.gateway.partition import Partition
    from kclient.gateway.peers import Peers
    from kclient.records import BatchHeader
    from kclient.types import Buffer


class _Key(NamedTuple):
    """Batches for which the same is asked: a request may name a partition more than once."""

    partition: PartitionId
    producer_id: int
    producer_epoch: int


class _Asked(NamedTuple):
    """A partition of which the coordinator is asked."""

    log: PartitionLog
    verification: Verification


class Verifications:
    """What is known of the partitions of one request.

    Args:
        peers: Know the coordinator.
        transactional_id: Of the producer.
        clock: What time it is.
        deadline: When the time of the request is over, on that clock.
        add: Whether the coordinator is to add the partitions to the transaction.
    """

    def __init__(self, peers: Peers, transactional_id: str, clock: Clock, deadline: float, *, add: bool) -> None:
        self.done: Completion[None] = Completion()
        """Comes when the coordinator has answered, or it, or the store, has not in time."""
        self._peers = peers
        self.transactional_id: str = transactional_id
        self._clock = clock
        self._deadline = deadline
        self._add = add
        self._wanted: dict[_Key, tuple[Partition, BatchHeader]] = {}
        self._asked: dict[_Key, _Asked] = {}
        self._errors: dict[_Key, KafkaError] = {}
        self._closed = False

    def add(self, partition_id: PartitionId, partition: Partition, records: Buffer) -> None:
        """A partition of the request."""
        try:
            header = read_header(records)
        except CorruptRecordError:
            return  # it is refused for that
        if header.is_transactional and header.producer_id >= 0:
            self._wanted.setdefault(_key(partition_id, header), (partition, header))

    async def ask(self) -> None:
        """Ask the coordinator what has to be asked. Does not raise."""
        try:
            if len({key.producer_id for key in self._wanted}) > 1:
                error = InvalidPidMappingError("a transaction's request has batches of more than one producer")
                self._errors = dict.fromkeys(self._wanted, error)
                return
            for partition, _ in self._wanted.values():  # all at once
                partition.open_soon()
            for key, (partition, header) in self._wanted.items():
                try:
                    await partition.ready()  # the connection's next requests wait for this
                    log = partition.log
                    verification = log.verify(header)
                except KafkaError as error:
                    self._errors[key] = error
                    continue
                if verification is not None:
                    self._asked[key] = _Asked(log, verification)
            if self._asked and not self._closed:
                late = RequestTimedOutError("the transaction's coordinator has not answered in time")
                self._errors.update(dict.fromkeys(self._asked, late))
                with anyio.move_on_after(max(self._deadline - self._clock.now(), 0.0)):
                    await self._ask_coordinator()
        finally:
            if self._closed:
                self.close()
            self.done.set_result(None)

    async def _ask_coordinator(self) -> None:
        by_epoch: dict[int, list[_Key]] = {}
        for key in self._asked:
            by_epoch.setdefault(key.producer_epoch, []).append(key)
        for epoch, keys in by_epoch.items():  # a client has one of them in a request
            transaction = TransactionOf(self.transactional_id, keys[0].producer_id, epoch)
            try:
                outcomes = await self._peers.verify(transaction, [key.partition for key in keys], add=self._add)
            except KafkaError as error:
                self._errors.update(dict.fromkeys(keys, error))
                continue
            for key in keys:
                if outcomes[key.partition]:
                    self._errors[key] = error_for(outcomes[key.partition])
                else:
                    del self._errors[key]

    def of(self, partition_id: PartitionId, partition: Partition, header: BatchHeader) -> Verification | None:
        """What a checked batch is to be appended with; None where the coordinator was not asked.

        Raises:
            KafkaError: It may not be appended. If it will come again, it has to before those behind it are taken.
        """
        key = _key(partition_id, header)
        asked, error = self._asked.get(key), self._errors.get(key)
        if error is None and asked is not None and asked.log is not partition.log:
            error = NotLeaderOrFollowerError(f"{partition} was opened anew while its transaction was verified")
        if error is not None:
            if error.retriable:
                partition.log.refuse(header, self._clock.wall_ms())
            raise error
        return None if asked is None else asked.verification

    def close(self) -> None:
        """The request has been dealt with, or given up."""
        self._closed = True
        asked, self._asked = self._asked, {}
        for log, verification in asked.values():
            log.transactions.verified(verification)


def _key(partition_id: PartitionId, header: BatchHeader) -> _Key:
    return _Key(partition_id, header.producer_id, header.producer_epoch)
