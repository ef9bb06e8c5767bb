"""Forgets offsets that have outlived `offsets.retention.minutes`, and groups that nothing is left of."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kclient.gateway.groups.group import AskedTopics
from kclient.gateway.groups.offsets import OffsetCommit
from kclient.gateway.groups.table import groups_of
from kclient.net.discarding import in_slices
from kclient.net.fair_queue import SLICE

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.config import Live
    from kclient.gateway.groups.committed import CommittedOffsets
    from kclient.gateway.groups.deletion import GroupDeletion
    from kclient.gateway.groups.group import ManagedGroup
    from kclient.gateway.groups.table import GroupTable
    from kclient.gateway.topics.table import TopicTable
    from kclient.net.fair_queue import Flow

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")


class OffsetExpiry:
    """Goes through all groups now and then.

    Args:
        table: All groups.
        topics: All topics.
        committed: What the groups have committed.
        deletion: Deletes groups.
        unreadable: Whether nobody knows how long offsets are kept, since the settings could not be read.
        clock: What time it is.
        chores: In whose turns it is done.
        log_fields: Who this is, for the log.
    """

    def __init__(
        self,
        table: GroupTable,
        topics: TopicTable,
        committed: CommittedOffsets,
        deletion: GroupDeletion,
        *,
        unreadable: Live[bool],
        clock: Clock,
        chores: Flow,
        log_fields: Mapping[str, object],
    ) -> None:
        self._table = table
        self._topics = topics
        self._committed = committed
        self._deletion = deletion
        self._unreadable = unreadable
        self._clock = clock
        self._chores = chores
        self._log_fields = log_fields

    def next_check(self) -> float:
        """When it is to be done again."""
        return self._clock.now() + self._table.settings.offsets_retention_check_interval_ms / 1000

    def expire(self) -> None:
        """Forget what has outlived its time: begins at once, and goes on in slices."""
        if self._unreadable():
            logger.error("no offset expires: the broker settings, which may say how long, cannot be read")
            return
        clock = self._chores.clock
        job = in_slices(self._all(self._clock.wall_ms()), clock)
        if job(clock() + SLICE):
            self._chores.add(job)

    def _all(self, now_ms: int) -> Iterator[None]:
        for managed in groups_of(self._table):
            yield from self._of(managed, now_ms)
            yield

    def _of(self, managed: ManagedGroup, now_ms: int) -> Iterator[None]:
        """One group's, a topic at a time: what is asked for in between is heeded."""
        groups, group_id, offsets = self._table.groups, managed.group.group_id, managed.offsets
        retention_ms = self._table.settings.offsets_retention_minutes * 60_000
        commits, gone, kept = offsets.commits, 0, False
        asked = AskedTopics(offsets.topics())
        for topic in list(offsets.topics()):
            rule = yield from managed.group.expiry(managed.since_ms, retention_ms, asked, unread=managed.unread)
            if groups.get(group_id) is not managed:
                return
            expired = OffsetCommit()
            record = self._topics.get(topic)
            if rule is not None and record is not None and topic not in rule.keep:
                for number in offsets.expired(topic, now_ms, rule):
                    expired.add(record, number, None)
            kept = kept or expired.size < len(offsets.topics().get(topic, ()))
            if expired.size and not self._committed.has_room(group_id):
                return  # later
            if expired.size:
                gone += expired.size
                self._committed.delete(group_id, expired)
            yield
            if groups.get(group_id) is not managed:
                return
        if gone:
            logger.info("group %s: %d offsets have expired", group_id, gone, extra=self._log_fields)
        if managed.group.idle and not kept and not offsets.pending and offsets.commits == commits:
            self._deletion.delete(group_id)
