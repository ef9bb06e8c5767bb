"""Asks the coordinator of a transaction about the partitions of one Produce request, all at once (KIP-890)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kclient.concurrency import Completion
from kclient.errors import CorruptRecordError, KafkaError, NotLeaderOrFollowerError, error_for
from kclient.gateway.peers import PartitionId, TransactionOf
from kclient.records import read_header

if TYPE_CHECKING:
    from kclient.gateway.log import PartitionLog
    from kclient.gateway.log_transactions import Verification
    from kclient.gateway.partition import Partition
    from kclient.gateway.peers import Peers
    from kclient.records import BatchHeader
    from kclient.types import Buffer


class _Asked(NamedTuple):
    """A partition of which the coordinator is asked."""

    log: PartitionLog
    verification: Verification


class Verifications:
    """What is known of the partitions of one request.

    Args:
        peers: Know the coordinator.
        transactional_id: Of the producer.
        add: Whether the coordinator is to add the partitions to the transaction.
    """

    def __init__(self, peers: Peers, transactional_id: str, *, add: bool) -> None:
        self.done: Completion[None] = Completion()
        """Comes when the coordinator has answered."""
        self._peers = peers
        self.transactional_id: str = transactional_id
        self._add = add
        self._wanted: list[tuple[PartitionId, Partition, BatchHeader]] = []
        self._asked: dict[PartitionId, _Asked] = {}
        self._errors: dict[PartitionId, KafkaError] = {}
        self._closed = False

    def add(self, key: PartitionId, partition: Partition, records: Buffer) -> None:
        """A partition of the request."""
        try:
            header = read_header(records)
        except CorruptRecordError:
            return  # it is refused for that
        if header.is_transactional and header.producer_id >= 0:
            self._wanted.append((key, partition, header))

    async def ask(self) -> None:
        """Ask the coordinator what has to be asked. Does not raise."""
        try:
            for key, partition, header in self._wanted:
                try:
                    await partition.ready()
                    log = partition.log
                    verification = log.verify(header)
                except KafkaError as error:
                    self._errors[key] = error
                    continue
                if verification is not None:
                    self._asked[key] = _Asked(log, verification)
            if self._asked and not self._closed:
                await self._ask_coordinator()
        finally:
            if self._closed:
                self.close()
            self.done.set_result(None)

    async def _ask_coordinator(self) -> None:
        by_epoch: dict[tuple[int, int], list[PartitionId]] = {}
        for key, _, header in self._wanted:
            if key in self._asked:
                by_epoch.setdefault((header.producer_id, header.producer_epoch), []).append(key)
        for (producer_id, epoch), keys in by_epoch.items():  # a client has one of them in a request
            transaction = TransactionOf(self.transactional_id, producer_id, epoch)
            try:
                outcomes = await self._peers.verify(transaction, keys, add=self._add)
            except KafkaError as error:
                self._errors.update(dict.fromkeys(keys, error))
                continue
            for key in keys:
                if outcomes[key]:
                    self._errors[key] = error_for(outcomes[key])

    def of(self, key: PartitionId, partition: Partition) -> Verification | None:
        """What a partition's batch is to be appended with; None where the coordinator was not asked.

        Raises:
            KafkaError: The batch may not be appended.
        """
        error = self._errors.get(key)
        if error is not None:
            raise error
        asked = self._asked.get(key)
        if asked is None:
            return None
        if asked.log is not partition.log:
            raise NotLeaderOrFollowerError(f"{partition} was opened anew while its transaction was verified")
        return asked.verification

    def close(self) -> None:
        """The request has been dealt with, or given up."""
        self._closed = True
        asked, self._asked = self._asked, {}
        for log, verification in asked.values():
            log.transactions.verified(verification)
