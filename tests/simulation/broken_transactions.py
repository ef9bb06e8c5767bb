"""Rules of transactions that are broken on purpose: what judges simulated worlds has to find each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest

from kclient.errors import ErrorCode
from kclient.gateway import peers
from kclient.gateway.append import Append
from kclient.gateway.groups.offsets import GroupOffsets
from kclient.gateway.log_transactions import LogTransactions
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.transaction import ProducerIdentity, Transaction
from kclient.gateway.transaction_states import CoordinatedState
from kclient.gateway.transactions.coordinator import TransactionCoordinator
from kclient.gateway.transactions.ending import TransactionEnding
from kclient.gateway.transactions.outcomes import OutcomeRows
from kclient.gateway.transactions.table import TransactionTable
from tests.simulation.promises import Violated


def markers_are_sent_before_prepare() -> AbstractContextManager[Any]:
    """What is decided is not durable yet."""
    end = TransactionCoordinator.end

    async def early(
        self: TransactionCoordinator, transactional_id: str, producer: ProducerIdentity, **options: Any
    ) -> ProducerIdentity:
        found = self.table.peek(transactional_id)
        if found is not None and found.state is CoordinatedState.ONGOING and found.producer == producer:
            ends = found.ended(producer, now_ms=found.update_ms, **options)
            ending: Any = self.table.watcher
            await ending._write(ends, ends.partitions)
        return await end(self, transactional_id, producer, **options)

    return mock.patch.object(TransactionCoordinator, "end", early)


def it_is_complete_before_all_markers() -> AbstractContextManager[Any]:
    """Each leader is told once."""
    write = TransactionEnding._write

    async def once(
        self: TransactionEnding, transaction: Transaction, partitions: Iterable[PartitionId]
    ) -> set[PartitionId]:
        wanted = set(partitions)
        await write(self, transaction, wanted)
        return wanted

    return mock.patch.object(TransactionEnding, "_write", once)


def offsets_are_applied_early() -> AbstractContextManager[Any]:
    """As soon as they come, though they are pending."""
    pend = GroupOffsets.pend

    def early(self: GroupOffsets, transactional_id: str, pending: Any) -> None:
        pend(self, transactional_id, pending)
        for partition, offset in () if pending is None else pending.offsets.items():
            self.put(partition, offset.committed)

    return mock.patch.object(GroupOffsets, "pend", early)


def an_epoch_is_not_checked() -> AbstractContextManager[Any]:
    """An EndTxn of whoever had the id before ends the transaction of who has it now."""
    ended = Transaction.ended

    def anybodys(self: Transaction, producer: ProducerIdentity, **options: Any) -> Transaction:
        known = producer.producer_id == self.producer.producer_id and self.state is CoordinatedState.ONGOING
        return ended(self, self.producer if known else producer, **options)

    return mock.patch.object(Transaction, "ended", anybodys)


def what_is_not_decided_is_read() -> AbstractContextManager[Any]:
    """The last stable offset is the high watermark."""
    return mock.patch.object(LogTransactions, "stable_offset", lambda _, high_watermark: high_watermark)


def markers_count_before_they_are_synced() -> AbstractContextManager[Any]:
    """It is complete, and the markers may be lost."""

    async def at_once(_: Append | int) -> bool:
        """Nothing is waited for."""
        return False

    def trusting(append: Append | int) -> int:
        return append if isinstance(append, int) else ErrorCode.NONE

    return mock.patch.multiple(peers, _durable=at_once, _outcome=trusting)


def offsets_are_committed_behind_complete() -> AbstractContextManager[Any]:
    """In a commit of their own."""
    commit = TransactionTable._commit

    async def apart(self: TransactionTable, entry: Any, new: Transaction | None, beside: OutcomeRows) -> bool:
        made = await commit(self, entry, new, OutcomeRows({}, {}))
        if made and beside.writes:
            await self._manager.commit(beside.writes, beside.expected, lease=self._lease.current)
        return made

    return mock.patch.object(TransactionTable, "_commit", apart)


def check_found(
    broken: Callable[[], AbstractContextManager[Any]], lives: Callable[[int], object], seeds: Iterable[int]
) -> None:
    """Live through worlds with a rule that is broken, until one of them is judged to be wrong."""
    with broken(), pytest.raises(Violated):
        for seed in seeds:
            lives(seed)
