"""Asks the coordinator of a transaction about the partitions of one Produce request, all at once (KIP-890)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from kclient.concurrency import Completion
from kclient.errors import (
    CorruptRecordError,
    ErrorCode,
    InvalidPidMappingError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    KafkaError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    error_for,
)
from kclient.gateway.error_codes import code_of
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


_ADDS_PARTITIONS_SINCE: Final = 12
"""Produce adds partitions to its producer's transaction from this version on (KIP-890)."""
_ABORTABLE_SINCE: Final = 11
"""From this version of Produce on clients know TRANSACTION_ABORTABLE."""
_CONCURRENT_SINCE: Final = 12
"""From this one on they know CONCURRENT_TRANSACTIONS as its answer."""
_PASSING: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""What the coordinator answers for the moment, and producers do not know of Produce: they are told what has them try
again without looking for another leader, as by Kafka."""


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
        version: Of the request: newer ones have the coordinator add the partitions to the transaction.
    """

    def __init__(self, peers: Peers, transactional_id: str, clock: Clock, deadline: float, version: int) -> None:
        self.done: Completion[None] = Completion()
        """Comes when the coordinator has answered, or it, or the store, has not in time."""
        self._peers = peers
        self.transactional_id: str = transactional_id
        self._clock = clock
        self._deadline = deadline
        self._version = version
        self._add = version >= _ADDS_PARTITIONS_SINCE
        self._wanted: dict[_Key, tuple[Partition, BatchHeader]] = {}
        self._logs: dict[_Key, PartitionLog] = {}
        """In which it was looked whether the coordinator has to be asked."""
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
            late = RequestTimedOutError("the transaction's coordinator has not answered in time")
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
                self._logs[key] = log
                if verification is not None:
                    self._asked[key] = _Asked(log, verification)
                    self._errors[key] = late  # until it has answered; it is never asked if this is cancelled
            if self._asked and not self._closed:
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
                self._errors.update(dict.fromkeys(keys, self._told(code_of(error), error)))
                continue
            for key in keys:
                if outcomes[key.partition]:
                    self._errors[key] = self._told(outcomes[key.partition])
                else:
                    del self._errors[key]

    def _told(self, code: int, error: KafkaError | None = None) -> KafkaError:
        """What a producer is told of the coordinator's answer."""
        if code == ErrorCode.PRODUCER_FENCED:
            return InvalidProducerEpochError(error.message if error is not None else "a newer producer is there")
        if code == ErrorCode.TRANSACTION_ABORTABLE and self._version < _ABORTABLE_SINCE:
            return InvalidTxnStateError("the partition is not in the transaction")
        concurrent = code == ErrorCode.CONCURRENT_TRANSACTIONS and self._version >= _CONCURRENT_SINCE
        if code in _PASSING and not concurrent:
            return NotEnoughReplicasError(
                f"the transaction's coordinator cannot answer now ({ErrorCode(code).name}), it is to be tried again"
            )
        return error if error is not None else error_for(code)

    def of(self, partition_id: PartitionId, partition: Partition, header: BatchHeader) -> Verification | None:
        """What a checked batch is to be appended with; None where the coordinator was not asked.

        Raises:
            KafkaError: It may not be appended. If it will come again, it has to before those behind it are taken.
        """
        key = _key(partition_id, header)
        asked, error = self._asked.get(key), self._errors.get(key)
        looked = self._logs.get(key) is partition.log
        if error is None and header.is_transactional and header.producer_id >= 0 and not looked:
            error = NotLeaderOrFollowerError(
                f"{partition} came here, or was opened, while its transaction was verified"
            )
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
