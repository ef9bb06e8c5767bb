"""A small coordinator of transactions, which stands in for `kclient.gateway.transactions`.

It keeps everything in memory and knows no timeouts: enough to have partitions hold transactions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import anyio.lowlevel
import pytest

from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.peers import EndOfTransaction, LocalPeers, Outcomes, TransactionOf
from kclient.gateway.transactions.coordinator import TransactionCoordinator
from kclient.records import EndMarker
from tests.gateway_wire import Wire, batch_of, produce_request

COMMITTED = 1


@dataclass
class SmallTransaction:
    """An open transaction."""

    producer_id: int
    producer_epoch: int = 0
    partitions: set[PartitionId] = field(default_factory=set)
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)


class SmallCoordinator:
    """Implements `kclient.gateway.peers.TransactionVerifier`."""

    def __init__(self) -> None:
        self.transactions: dict[str, SmallTransaction] = {}
        self.asked: list[tuple[str, tuple[PartitionId, ...], bool]] = []
        self.before_answer = anyio.lowlevel.checkpoint
        """Awaited before each answer."""
        self.answers: deque[ErrorCode] = deque()
        """What the next questions are answered with, whatever is true."""

    async def verify(self, transaction: TransactionOf, partitions: Collection[PartitionId], *, add: bool) -> Outcomes:
        self.asked.append((transaction.transactional_id, tuple(partitions), add))
        found = self.transactions.get(transaction.transactional_id)
        known = found is not None and (found.producer_id, found.producer_epoch) == transaction[1:]
        if known and add:
            assert found is not None
            found.partitions.update(partitions)
        answer = {
            each: ErrorCode.NONE
            if known and found is not None and each in found.partitions
            else ErrorCode.INVALID_TXN_STATE
            for each in partitions
        }
        await self.before_answer()
        return dict.fromkeys(partitions, self.answers.popleft()) if self.answers else answer


class Transactor:
    """A producer of transactions over one connection, and the coordinator's side of it."""

    def __init__(self, wire: Wire, coordinator: SmallCoordinator, peers: LocalPeers, name: str) -> None:
        self._wire = wire
        self._coordinator = coordinator
        self._peers = peers
        self._name = name
        self.producer_id = 1000 + len(name)
        self.epoch = 0
        self._sequences: dict[tuple[str, int], int] = {}

    def begin(self) -> None:
        self._coordinator.transactions[self._name] = SmallTransaction(self.producer_id, self.epoch)

    async def send(self, topic: str, *values: bytes, partition: int = 0, version: int = 12) -> int:
        """Produce a batch; the error code."""
        sequence = self._sequences.get((topic, partition), 0)
        batch = batch_of(
            *values, transactional=True, producer_id=self.producer_id, producer_epoch=self.epoch, sequence=sequence
        )
        request = produce_request(topic, batch, partition, transactional_id=self._name)
        code = int((await self._wire(request, version)).responses[0].partition_responses[0].error_code)
        if not code:
            self._sequences[topic, partition] = sequence + len(values)
        return code

    async def end(self, *, committed: bool, bump: bool = False, coordinator_epoch: int = 0) -> Outcomes:
        """End the transaction; as by the second version of transactions where the epoch is to be bumped."""
        transaction = self._coordinator.transactions.pop(self._name)
        if bump:
            self.epoch += 1
            self._sequences.clear()
        marker = EndMarker(committed, coordinator_epoch)
        ending = EndOfTransaction(self.producer_id, self.epoch, marker, sorted(transaction.partitions))
        return (await self._peers.write_markers([ending]))[0]


def coordinated(monkeypatch: pytest.MonkeyPatch) -> SmallCoordinator:
    """Have gateways ask a small coordinator whether partitions are in transactions."""
    coordinator = SmallCoordinator()
    monkeypatch.setattr(TransactionCoordinator, "verify", coordinator.verify)
    return coordinator


def local_peers(gateway: Gateway, coordinator: SmallCoordinator) -> LocalPeers:
    """What another gateway would call of this one."""
    parts = gateway.parts
    return LocalPeers(parts.topics, parts.partitions, coordinator, lambda _: None, parts.queue.flow())
