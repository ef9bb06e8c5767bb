"""Offsets that transactions are to commit: taken by the group's gateway, and decided by the coordinator of each.

What a transaction is to commit for a group is a row of its own. It is written only while the transaction is open and
the group has joined it: the commit expects the row of the transactional id, so that nothing is added once the end is
prepared. Whoever completes the transaction writes the offsets and removes that row in one commit. So a row that has
gone says that it is decided, and then the offsets are read anew; until then they are unstable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from kclient.concurrency import Wakeup
from kclient.errors import (
    ClosedError,
    ErrorCode,
    InvalidPidMappingError,
    KafkaError,
    TransactionAbortableError,
)
from kclient.gateway.rows.groups import decode_offset
from kclient.gateway.rows.keys import offset_key, pending_key, transaction_key
from kclient.gateway.rows.pending import PendingOffset, PendingOffsets, decode_pending, encode_pending_steps
from kclient.gateway.rows.transactions import decode_transaction
from kclient.gateway.transaction import ProducerIdentity
from kclient.net.fair_queue import Pace

if TYPE_CHECKING:
    from kclient.gateway.groups.committed import CommittedOffsets
    from kclient.gateway.groups.deletion import GroupDeletion
    from kclient.gateway.groups.group import ManagedGroup
    from kclient.gateway.groups.offsets import OffsetCommit
    from kclient.gateway.groups.table import GroupTable
    from kclient.gateway.groups.writer import GroupWriter, Write
    from kclient.gateway.peers import TransactionOf
    from kclient.gateway.rows.groups import CommittedOffset
    from kclient.gateway.topics.table import TopicTable
    from kclient.htp.port import Manager, Versioned
    from kclient.net.fair_queue import Flow
    from kclient.types import TopicPartition

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5
"""Seconds between two looks at what is open: a coordinator of this gateway tells at once, others are not heard of."""
_AT_ONCE: Final = 500
"""Rows that are read at once."""


class CommittingMember(NamedTuple):
    """Who commits offsets of a group in a transaction; an old producer says nothing of it (KIP-447)."""

    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1


class _Taking:
    """What is being taken from one transaction for one group."""

    __slots__ = ("lock", "users", "write")

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.users = 0
        self.write: Write | None = None
        """On its way to the store: whoever waited for it may have been cancelled."""


class TransactionalOffsets:
    """Takes offsets of groups that are coordinated here from transactions, and finds out what has become of them.

    Args:
        table: All groups.
        committed: Whose members may commit, and whether there is room.
        writer: Stores what transactions are to commit.
        deletion: Deletes groups that nothing is left of.
        topics: Of which offsets may be committed.
        manager: Tells what is stored.
        flow: In whose turns rows are read.
    """

    def __init__(
        self,
        table: GroupTable,
        committed: CommittedOffsets,
        writer: GroupWriter,
        deletion: GroupDeletion,
        topics: TopicTable,
        manager: Manager,
        flow: Flow,
    ) -> None:
        self._table = table
        self._committed = committed
        self._writer = writer
        self._deletion = deletion
        self._topics = topics
        self._manager = manager
        self._flow = flow
        self._taking: dict[tuple[str, str], _Taking] = {}
        self._open: dict[tuple[str, str], None] = {}
        """Group and transactional id of what is looked after."""
        self._doubted: set[tuple[str, str]] = set()
        """Those of which a write has failed: it is not known what is stored."""
        self._news = Wakeup()

    def watch(self, group_id: str, transactional_id: str) -> None:
        """Find out what becomes of it."""
        self._open[group_id, transactional_id] = None
        self._news.set()

    def decided(self, group_ids: Iterable[str]) -> None:
        """A transaction of which these groups are has been completed: look soon."""
        if any(group_id in self._table.groups for group_id in group_ids):
            self._news.set()

    async def commit(
        self, group_id: str, transaction: TransactionOf, member: CommittingMember, commit: OffsetCommit
    ) -> ErrorCode:
        """Take offsets that a transaction, which the group has joined, is to commit: they are stored when this returns.

        Cancelled or not, all of it is taken or nothing.

        Args:
            group_id: The group, coordinated here.
            transaction: The transaction.
            member: Who commits.
            commit: The offsets.

        Returns:
            Kafka's error code for all of them.

        Raises:
            InvalidPidMappingError, ProducerFencedError: It is another producer's.
            ConcurrentTransactionsError: The transaction is being ended.
            TransactionAbortableError: The group has not joined it.
            HtpError: The store failed.
        """
        with self._using(group_id, transaction.transactional_id) as taking:
            async with taking.lock:
                while True:
                    if taking.write is not None:
                        await taking.write.wait()
                    error = await self._commit(taking, group_id, transaction, member, commit)
                    if error is not ErrorCode.CONCURRENT_TRANSACTIONS:  # else one of the rows has changed meanwhile
                        return error

    async def _commit(
        self,
        taking: _Taking,
        group_id: str,
        transaction: TransactionOf,
        member: CommittingMember,
        commit: OffsetCommit,
    ) -> ErrorCode:
        transactional_id = transaction.transactional_id
        whose, key = transaction_key(transactional_id), pending_key(group_id, transactional_id)
        rows = await self._manager.get([whose, key])
        _check(rows.get(whose), transaction, group_id)
        there = rows.get(key)
        managed = self._table.groups.get(group_id)
        known = managed is not None and transactional_id in managed.offsets.transactions
        # if there is no row these are the transaction's before, whose end has not been noticed yet
        if managed is not None and known and there is None and not await self._settle(managed, transactional_id):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        committed = self._committed
        # from here to the end in one turn
        refused = committed.check_commit(
            group_id,
            member.member_id,
            member.instance_id,
            member.generation,
            missing=ErrorCode.ILLEGAL_GENERATION,
            commit=commit,
            transactional=True,
        )
        refused = refused or committed.check_room(group_id, commit)
        if refused:
            return refused
        managed = self._table.groups.get(group_id) or self._table.create(group_id)
        offsets: dict[TopicPartition, PendingOffset] = {}
        if there is not None:
            before = managed.offsets.transactions.get(transactional_id)
            if before is None or (group_id, transactional_id) in self._doubted:  # else that is what is stored
                before = _decoded(there, group_id, transactional_id)
            offsets.update(before.offsets)
        for record, partition, offset in commit.items():
            if offset is not None:
                offsets[partition] = PendingOffset(managed.offsets.in_order(partition, offset), record.topic_id)
        pending = PendingOffsets(group_id, transactional_id, offsets)
        managed.offsets.pend(transactional_id, pending)
        managed.count()
        self.watch(group_id, transactional_id)

        def stored(error: ErrorCode) -> Iterable[None]:
            taking.write = None
            if error:
                self._doubted.add((group_id, transactional_id))
            self._release(group_id, transactional_id, taking)
            self._news.set()
            return ()

        write = self._writer.submit(
            group_id,
            {key: partial(encode_pending_steps, pending)},
            stored,
            held=commit.held,
            expected={whose: rows[whose].version, key: 0 if there is None else there.version},
        )
        if not write.done:
            taking.write = write
        return await write.wait()

    @contextmanager
    def _using(self, group_id: str, transactional_id: str) -> Iterator[_Taking]:
        taking = self._taking.setdefault((group_id, transactional_id), _Taking())
        taking.users += 1
        try:
            yield taking
        finally:
            taking.users -= 1
            self._release(group_id, transactional_id, taking)

    def _release(self, group_id: str, transactional_id: str, taking: _Taking) -> None:
        if not taking.users and taking.write is None:
            self._taking.pop((group_id, transactional_id), None)

    # What has become of them

    async def run(self) -> None:
        """Find it out, for ever; a task of the gateway."""
        pause, told = _FIRST_PAUSE_S, False
        while True:
            if not self._open:
                await self._news.wait()
                pause = _FIRST_PAUSE_S
            try:
                news, told = await self._look(), False
            except ClosedError:
                return
            except KafkaError as error:
                if not told:
                    logger.warning("what transactions have committed cannot be read, it is tried again: %s", error)
                news, told = False, True
            pause = _FIRST_PAUSE_S if news else min(pause * 2, _LONGEST_PAUSE_S)
            with anyio.move_on_after(pause):
                await self._news.wait()
                pause = _FIRST_PAUSE_S

    async def _look(self) -> bool:
        """See which rows have gone; whether one has."""
        news, left = False, iter(list(self._open))
        while some := list(islice(left, _AT_ONCE)):
            # a row that is being written, or is written before its turn comes, may not be what was read
            before = [None if each in self._taking else self._pending(*each) for each in some]
            rows = await self._manager.get([pending_key(*each) for each in some])
            for each, asked in zip(some, before, strict=True):
                group_id, transactional_id = each
                row = rows.get(pending_key(group_id, transactional_id))
                managed, now = self._table.groups.get(group_id), self._pending(group_id, transactional_id)
                if managed is None or now is None:
                    if group_id not in self._table.leaving:  # a deletion may fail
                        self._open.pop(each, None)
                        self._doubted.discard(each)
                elif each in self._taking or now is not asked:
                    pass  # it is looked at again
                elif row is None:
                    news = await self._settle(managed, transactional_id) or news
                elif each in self._doubted:
                    self._doubted.discard(each)
                    self.restore(managed, _decoded(row, group_id, transactional_id))
        return news

    def _pending(self, group_id: str, transactional_id: str) -> PendingOffsets | None:
        managed = self._table.groups.get(group_id)
        return None if managed is None else managed.offsets.transactions.get(transactional_id)

    def restore(self, managed: ManagedGroup, pending: PendingOffsets) -> None:
        """This is what is stored of a transaction; what it has of topics that were deleted is passed over."""
        there = {each: offset for each, offset in pending.offsets.items() if self._is_there(each, offset.topic_id)}
        managed.offsets.pend(pending.transactional_id, replace(pending, offsets=there))
        managed.count()
        self.watch(pending.group_id, pending.transactional_id)

    def _is_there(self, partition: TopicPartition, topic_id: bytes) -> bool:
        return self._topics.by_id(topic_id) is not None or partition.topic in self._topics.damaged

    async def _settle(self, managed: ManagedGroup, transactional_id: str) -> bool:
        """Read the offsets of a transaction that is decided, whose row has gone; whether that was all.

        What was committed otherwise meanwhile is newer, here as in the store.
        """
        group_id, known = managed.group.group_id, managed.offsets.transactions[transactional_id]
        keys = {offset_key(group_id, partition): partition for partition in known.offsets}
        rows = await self._manager.get(keys) if keys else {}
        pace = Pace(self._flow)
        found: list[tuple[TopicPartition, CommittedOffset]] = []
        for key, row in rows.items():
            if pace.over:
                await pace.pause()
            try:
                committed, topic_id = decode_offset(row.value)
            except ValueError as error:
                logger.error("the committed offset %s cannot be read and counts as not committed (%s)", key, error)
                continue
            if self._is_there(keys[key], topic_id):
                found.append((keys[key], committed))
        if (
            self._table.groups.get(group_id) is not managed
            or managed.offsets.transactions.get(transactional_id) is not known
        ):
            return False  # it is looked at again
        for partition, committed in found:  # of a topic that is deleted in between nothing is known any more
            present = managed.offsets.get(*partition)
            if present is None or present.commit_ms <= committed.commit_ms:
                managed.offsets.put(partition, committed)
        managed.offsets.pend(transactional_id, None)
        managed.count()
        self._open.pop((group_id, transactional_id), None)
        self._doubted.discard((group_id, transactional_id))
        self._deletion.emptied(managed)
        return True


def _check(row: Versioned | None, transaction: TransactionOf, group_id: str) -> None:
    transactional_id = transaction.transactional_id
    try:
        found = None if row is None else decode_transaction(row.value, transactional_id)
    except ValueError as error:
        raise InvalidPidMappingError(
            f"the row of transactional.id {transactional_id[:300]!r} cannot be read: {error}"
        ) from error
    if found is None:
        raise InvalidPidMappingError(f"transactional.id {transactional_id[:300]!r} is not known, or has been forgotten")
    found.verify(ProducerIdentity(transaction.producer_id, transaction.producer_epoch), ())
    if group_id not in found.groups:
        raise TransactionAbortableError(f"{found}: the group {group_id[:300]!r} has not joined the transaction")


def _decoded(row: Versioned, group_id: str, transactional_id: str) -> PendingOffsets:
    try:
        return decode_pending(row.value, group_id, transactional_id)
    except ValueError as error:
        logger.error(
            "the offsets that transactional.id %s is to commit for group %s cannot be read and are not committed (%s)",
            transactional_id[:300], group_id[:300], error,
        )  # fmt: skip
        return PendingOffsets(group_id, transactional_id, {})
