"""Deletes groups, and puts back what the store could not remove."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from kclient.errors import ErrorCode
from kclient.gateway.groups.parts import DeletionParts

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.groups.deleted_topics import DeletedTopics
    from kclient.gateway.groups.group import ManagedGroup
    from kclient.gateway.groups.memory import GroupMemory
    from kclient.gateway.groups.table import GroupTable
    from kclient.gateway.groups.writer import GroupWriter, Write

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")


class GroupDeletion:
    """Removes groups with their offsets.

    Args:
        table: All groups.
        writer: Removes their rows.
        deleted_topics: Whose offsets the store still has.
        memory: Whether there is room for more on its way to the store.
        clock: What time it is.
        log_fields: Who this is, for the log.
    """

    def __init__(
        self,
        table: GroupTable,
        writer: GroupWriter,
        deleted_topics: DeletedTopics,
        memory: GroupMemory,
        clock: Clock,
        log_fields: Mapping[str, object],
    ) -> None:
        self._table = table
        self._writer = writer
        self._deleted_topics = deleted_topics
        self._memory = memory
        self._clock = clock
        self._log_fields = log_fields

    def delete(self, group_id: str) -> ErrorCode | Write:
        """Delete a group without members, and its offsets."""
        table = self._table
        if table.closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        managed = table.groups.get(group_id)
        if managed is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if not self._memory.admits_write(group_id):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # it tries again
        others = managed.group.other_rows
        error = managed.group.delete()
        if error:
            return error
        table.take_out(managed)
        logger.info("group %s: deleted", group_id, extra=self._log_fields)
        parts = DeletionParts(group_id, managed.offsets, others)
        return self._writer.submit(group_id, parts, partial(self._deleted, managed, parts))

    def emptied(self, managed: ManagedGroup, error: ErrorCode = ErrorCode.NONE) -> None:
        """Offsets of a group have gone: if they were the last, and nobody is in it, it goes too.

        Where that has to wait, as while too much is on its way to the store, `OffsetExpiry` does it.

        Args:
            managed: The group.
            error: Why they have gone, if they could not be stored.
        """
        table, group = self._table, managed.group
        if managed.offsets or managed.unread or not group.idle or table.groups.get(group.group_id) is not managed:
            return
        if group.untouched:
            table.perform(managed, ())  # nothing of it is stored
        elif not error:
            self.delete(group.group_id)

    def _deleted(self, managed: ManagedGroup, parts: DeletionParts, error: ErrorCode) -> Iterator[None]:
        leaving = self._table.leaving
        try:
            if error:
                yield from self._put_back(managed, parts)
            else:
                managed.offsets.close()
        finally:  # not before: a topic that is deleted meanwhile has its offsets here too
            group_id = managed.group.group_id
            managed.holding.close()
            leaving[group_id].popleft()  # the deletions of one name are stored in their order
            if not leaving[group_id]:
                del leaving[group_id]

    def _put_back(self, managed: ManagedGroup, parts: DeletionParts) -> Iterator[None]:
        """The store still has what is left of a group: so it stays, or who came under its name has it."""
        yield from parts.drop_removed()
        table, group_id = self._table, managed.group.group_id
        leaving = table.leaving[group_id]
        again = leaving[1] if len(leaving) > 1 else table.groups.get(group_id)
        if again is None:
            again = table.create(group_id, managed.since_ms, managed.group.type)
            again.offsets, again.unread = managed.offsets, managed.unread
            table.perform(again, again.group.restore(managed.group.snapshot(), self._clock.now()))
            return
        for partition, committed in managed.offsets.everything():
            if partition.topic in self._deleted_topics:
                self._deleted_topics.note(partition.topic, group_id, (partition.partition,))
            elif committed is None:
                again.offsets.doubt(partition)
            elif again.offsets.get(*partition) is None:  # its own are newer
                again.offsets.put(partition, committed)
            yield
        for transactional_id, pending in managed.offsets.transactions.items():
            if transactional_id not in again.offsets.transactions:
                again.offsets.pend(transactional_id, pending)
        again.count()
        managed.offsets.close()
