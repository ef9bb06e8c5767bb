"""Reads groups and offsets from the store when this gateway begins to coordinate them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Final

from kclient.gateway.groups.consumers.group import AssignedGroup
from kclient.gateway.groups.kinds import ForeignGroup
from kclient.gateway.groups.sharing.group import SharedGroup
from kclient.gateway.groups.streaming.group import StreamsGroup
from kclient.gateway.rows import keys
from kclient.gateway.rows.consumer_groups import decode_consumer_member
from kclient.gateway.rows.groups import decode_offset, type_of_group
from kclient.gateway.rows.pending import decode_pending
from kclient.gateway.rows.streams_groups import decode_streams_member
from kclient.htp.rows import scan_pages
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.config import Live
    from kclient.gateway.groups.deleted_topics import DeletedTopics
    from kclient.gateway.groups.table import GroupTable
    from kclient.gateway.groups.transactional import TransactionalOffsets
    from kclient.gateway.groups.writer import GroupWriter
    from kclient.gateway.rows.groups import CommittedOffset
    from kclient.gateway.topics.table import TopicTable
    from kclient.htp.port import Manager, Versioned

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_NO_TOPIC: Final = bytes(16)
"""Early versions recorded it of a topic that was deleted while an offset was committed."""


class GroupLoader:
    """Fills the table of groups.

    Args:
        table: Where the groups belong.
        manager: Has their rows.
        writer: Removes those that have outlived their time.
        topics: Of which offsets were committed; they have been loaded before.
        deleted_topics: Whose offsets the store still has.
        transactional: Looks after what transactions are to commit.
        unreadable: Whether nobody knows how long offsets are kept, since the settings could not be read.
        clock: What time it is.
    """

    def __init__(
        self,
        table: GroupTable,
        *,
        manager: Manager,
        writer: GroupWriter,
        topics: TopicTable,
        deleted_topics: DeletedTopics,
        transactional: TransactionalOffsets,
        unreadable: Live[bool],
        clock: Clock,
    ) -> None:
        self._table = table
        self._manager = manager
        self._writer = writer
        self._topics = topics
        self._deleted_topics = deleted_topics
        self._transactional = transactional
        self._unreadable = unreadable
        self._clock = clock

    async def load(self, wanted: Callable[[str], bool]) -> None:
        """Read everything of some groups. Members have one session timeout to be heard of.

        Args:
            wanted: Whether it is a group of them, by its name: one that is coordinated here, and not in the table.

        Raises:
            HtpError: The store failed.
        """
        unread: set[str] = set()
        async for page in scan_pages(self._manager, keys.GROUPS):
            unread |= self._load_groups(page, wanted)
        async for page in scan_pages(self._manager, keys.MEMBERS):
            self._load_members(page, wanted)
        self._members_are_there(wanted)
        async for page in scan_pages(self._manager, keys.PENDING):  # before the offsets, which replace them
            self._load_pending(page, unread, wanted)
        kept: Counter[str] = Counter()
        async for page in scan_pages(self._manager, keys.OFFSETS):
            self.load_offsets(page, unread, kept, wanted)
        for name, count in kept.items():
            logger.error(
                "%d committed offsets of a topic %s count as not committed: they were made for one of another id, or "
                "the topic is not there and nothing tells that it was deleted. They are kept until they have outlived "
                "offsets.retention.minutes, in case that its row is restored",
                count, name,
            )  # fmt: skip

    def _load_groups(self, found: Mapping[str, Versioned], wanted: Callable[[str], bool]) -> set[str]:
        """Restore some groups; those whose rows cannot be read."""
        unread = set()
        for key, value in found.items():
            group_id = keys.parse_group_key(key)
            if not wanted(group_id) or group_id in self._table.groups:
                continue
            try:
                self._load_group(group_id, value.value)
            except ValueError as error:
                logger.error(
                    "the row of group %s cannot be read: its members have to join again, which they do by themselves; "
                    "its offsets are there (%s)",
                    key.removeprefix(keys.GROUPS), error,
                )  # fmt: skip
                unread.add(group_id)
        return unread

    def _load_group(self, group_id: str, row: bytes) -> None:
        table = self._table
        type_name = type_of_group(row)
        kind = table.kinds.get(type_name)
        if kind is None:
            logger.error(
                "group %s is of type %s, which this version does not know: nobody can join it, commit to it or delete "
                "it here, and nothing of it is changed. Start the version that wrote it",
                group_id[:300], type_name[:300],
            )  # fmt: skip
            table.add(ForeignGroup(group_id, table.settings, type_name), self._clock.wall_ms())
            return
        snapshot, since_ms = kind.decode(row, group_id)
        managed = table.create(group_id, since_ms, type_name)
        table.perform(managed, managed.group.restore(snapshot, self._clock.now()))

    def _load_members(self, found: Mapping[str, Versioned], wanted: Callable[[str], bool]) -> None:
        """Restore members of groups that have a row for each; those whose rows cannot be read join again."""
        orphans: dict[str, dict[str, None]] = {}
        for key, value in found.items():
            try:
                group_id, member_id = keys.parse_member_key(key)
                if not wanted(group_id):
                    continue
                managed = self._table.groups.get(group_id)
                group = None if managed is None else managed.group
                if isinstance(group, AssignedGroup | SharedGroup):
                    group.restore_member(decode_consumer_member(value.value, member_id))
                elif isinstance(group, StreamsGroup):
                    group.restore_member(decode_streams_member(value.value, member_id))
                elif group is None or group.type in self._table.kinds:
                    orphans.setdefault(group_id, {})[key] = None  # left by a deletion
            except ValueError as error:
                logger.error(
                    "the member %s (group, member) cannot be read: it has to join again, which it does by itself (%s)",
                    key.removeprefix(keys.MEMBERS), error,
                )  # fmt: skip
        for group_id, gone in orphans.items():
            self._writer.submit(group_id, gone, lambda _error: ())

    def _members_are_there(self, wanted: Callable[[str], bool]) -> None:
        for managed in list(self._table.groups.values()):
            group = managed.group
            if isinstance(group, AssignedGroup | SharedGroup | StreamsGroup) and wanted(group.group_id):
                self._table.perform(managed, group.restored(self._clock.now()))

    def _load_pending(
        self, found: Mapping[str, Versioned], unread: Container[str], wanted: Callable[[str], bool]
    ) -> None:
        """Restore what transactions are to commit."""
        for key, value in found.items():
            try:
                group_id, transactional_id = keys.parse_pending_key(key)
                if not wanted(group_id):
                    continue
                pending = decode_pending(value.value, group_id, transactional_id)
            except ValueError as error:
                logger.error(
                    "the offsets that a transaction is to commit, %s (group, transactional.id), cannot be read, and "
                    "are not committed: reset those of the group if its consumers begin too early (%s)",
                    key.removeprefix(keys.PENDING), error,
                )  # fmt: skip
                continue
            managed = self._table.groups.get(group_id) or self._table.create(group_id)
            managed.unread = group_id in unread
            self._transactional.restore(managed, pending)

    def load_offsets(
        self,
        found: Mapping[str, Versioned],
        unread: Container[str],
        kept: Counter[str],
        wanted: Callable[[str], bool],
    ) -> None:
        """Restore some offsets.

        Args:
            found: Their rows.
            unread: The groups whose rows cannot be read.
            kept: Counts, by topic, those that belong to none that is there.
            wanted: Whether a group is one of those that are to be read.
        """
        outlived: dict[str, dict[str, None]] = {}
        for key, value in found.items():
            try:
                group_id, partition = keys.parse_offset_key(key)
                committed, topic_id = decode_offset(value.value)
            except ValueError as error:
                logger.error(
                    "the committed offset %s (group, topic, partition) cannot be read and counts as not committed: "
                    "reset it, or its consumer begins where auto.offset.reset says (%s)",
                    key.removeprefix(keys.OFFSETS), error,
                )  # fmt: skip
                continue
            if not wanted(group_id):
                continue
            topics, name = self._topics, partition.topic
            record = topics.get(name) or topics.internal(name)
            if topics.deleted(name, topic_id):
                self._deleted_topics.add(name)
                self._deleted_topics.note(name, group_id, (partition.partition,))
            elif record is not None and record.topic_id == topic_id:
                # by the record's name, of which there is one
                self._put(group_id, TopicPartition(record.name, partition.partition), committed, unread)
            elif name in topics.damaged:
                self._put(group_id, partition, committed, unread)
            elif topic_id == _NO_TOPIC or self._outlived(committed):
                outlived.setdefault(group_id, {})[key] = None
            else:
                kept[name] += 1
        for group_id, gone in outlived.items():
            self._writer.submit(group_id, gone, lambda _error: ())

    def _put(
        self, group_id: str, partition: TopicPartition, committed: CommittedOffset, unread: Container[str]
    ) -> None:
        managed = self._table.groups.get(group_id) or self._table.create(group_id)
        managed.unread = group_id in unread
        managed.offsets.put(partition, committed)
        if not managed.holding.committed:
            managed.count()

    def _outlived(self, committed: CommittedOffset) -> bool:
        """Whether an offset that belongs to no topic has been kept for long enough."""
        return not self._unreadable() and committed.outlived(
            self._clock.wall_ms(), self._table.settings.offsets_retention_minutes * 60_000
        )
