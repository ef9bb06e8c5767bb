"""The committed offsets of all groups: stored, told, deleted, and forgotten with their topics."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from kclient.errors import ErrorCode
from kclient.gateway.groups.group import AskedTopics
from kclient.gateway.groups.parts import CommitParts
from kclient.gateway.groups.writer import Write, to_the_end
from kclient.net.fair_queue import Pace

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.groups.deleted_topics import DeletedTopics
    from kclient.gateway.groups.deletion import GroupDeletion
    from kclient.gateway.groups.events import GroupSettings
    from kclient.gateway.groups.group import ManagedGroup
    from kclient.gateway.groups.memory import GroupMemory
    from kclient.gateway.groups.offsets import GroupOffsets, OffsetCommit
    from kclient.gateway.groups.table import GroupTable
    from kclient.gateway.groups.writer import GroupWriter
    from kclient.net.fair_queue import Flow

_FEW: Final = 128
"""Partitions of a commit that goes to the store with others; one of more goes alone, so that these need not wait."""


class CommittedOffsets:
    """What groups have committed. Its methods never wait; what must wait returns an object to wait on.

    Args:
        table: All groups.
        writer: Stores offsets.
        deleted_topics: Whose offsets the store still has.
        deletion: Deletes groups that nothing is left of.
        memory: Whether there is room for more of them.
        clock: What time it is.
        chores: In whose turns the offsets of deleted topics are dropped.
    """

    def __init__(
        self,
        table: GroupTable,
        writer: GroupWriter,
        deleted_topics: DeletedTopics,
        deletion: GroupDeletion,
        memory: GroupMemory,
        clock: Clock,
        chores: Flow,
    ) -> None:
        self._table = table
        self._writer = writer
        self._deleted_topics = deleted_topics
        self._deletion = deletion
        self._memory = memory
        self._clock = clock
        self._chores = chores

    @property
    def settings(self) -> GroupSettings:
        """The broker settings for groups, as they are now."""
        return self._table.settings

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        missing: ErrorCode,
        commit: OffsetCommit | None = None,
        transactional: bool = False,
        version: int | None = None,
    ) -> ErrorCode:
        """Whether a member may commit offsets now.

        Args:
            group_id: The group.
            member_id: The member, or empty.
            instance_id: Its `group.instance.id`, if it has one.
            generation: That it is in, or less than 0.
            missing: What to say where there is no such group.
            commit: What it commits.
            transactional: Whether a transaction commits them.
            version: Of the request.
        """
        table = self._table
        if table.closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        managed = table.groups.get(group_id)
        if managed is None:
            return ErrorCode.NONE if generation < 0 else missing
        return managed.group.check_commit(
            member_id,
            instance_id,
            generation,
            self._clock.now(),
            commit=commit,
            transactional=transactional,
            version=version,
        )

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether a member may ask for committed offsets: one of a consumer group says its epoch.

        Args:
            group_id: The group.
            member_id: The member; None for whoever does not say.
            epoch: Its epoch, or less than 0.
        """
        managed = self._table.groups.get(group_id)
        return ErrorCode.NONE if managed is None else managed.group.check_fetch(member_id, epoch)

    def measure(self, group_id: str, commit: OffsetCommit) -> Iterator[None]:
        """Find out, in steps, what a commit adds to the offsets of a group: before `check_room`."""
        managed = self._table.groups.get(group_id)
        return commit.measure({} if managed is None else managed.offsets.topics())

    def check_room(self, group_id: str, commit: OffsetCommit) -> ErrorCode:
        """Whether there is memory for what a commit adds to the offsets of a group, and for itself on its way."""
        memory, managed = self._memory, self._table.groups.get(group_id)
        new = managed is None or not managed.holding.committed
        if memory.admits_write(group_id) and memory.admits_offsets(group_id, commit.grows, new=new):
            return ErrorCode.NONE
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # it tries again

    def commit(self, group_id: str, commit: OffsetCommit) -> Write:
        """Store offsets, at once after `check_commit`; they are visible when the write is done."""
        managed = self._table.groups.get(group_id) or self._table.create(group_id)
        if managed.offsets.transactions:
            commit.put_in_order(managed.offsets)
        managed.offsets.begin(commit)
        if not managed.holding.committed:
            managed.count()
        return self._store(managed, commit, managed.offsets.end)

    def _store(self, managed: ManagedGroup, commit: OffsetCommit, ended: Callable[[OffsetCommit], None]) -> Write:
        group_id, offsets = managed.group.group_id, managed.offsets

        def stored(error: ErrorCode) -> Iterable[None]:
            ended(commit)
            self._deleted_topics.note_commit(group_id, commit)
            self._deletion.emptied(managed, error)
            return ()

        parts = CommitParts(group_id, offsets, commit, few=commit.size <= _FEW)
        return self._writer.submit(group_id, parts, stored, held=commit.held)

    def of(self, group_id: str) -> GroupOffsets | None:
        """The committed offsets of a group, whatever its state; None if there is no such group."""
        managed = self._table.groups.get(group_id)
        return None if managed is None else managed.offsets

    def unstable(self, group_id: str, topic: str, number: int) -> bool:
        """Whether an open transaction is to commit an offset of a group."""
        managed = self._table.groups.get(group_id)
        return managed is not None and managed.offsets.unstable(topic, number)

    def check_delete(
        self, group_id: str, topics: Iterable[str]
    ) -> Generator[None, None, tuple[ErrorCode, Iterable[str]]]:
        """Whether offsets of a group may be deleted, and those of the topics that members read: theirs may not."""
        table = self._table
        if table.closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, ()
        managed = table.groups.get(group_id)
        if managed is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, ()
        if not self.has_room(group_id):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ()  # it tries again
        error, in_use = yield from managed.group.offsets_in_use(AskedTopics(topics))
        if table.groups.get(group_id) is not managed:
            return ErrorCode.GROUP_ID_NOT_FOUND, ()
        return error, managed.offsets.topics() if in_use is None else in_use

    def has_room(self, group_id: str) -> bool:
        """Whether more of a group may go to the store."""
        return self._memory.admits_write(group_id)

    def delete(self, group_id: str, gone: OffsetCommit) -> Write:
        """Forget offsets, at once after `check_delete`."""
        return self._store(self._table.groups[group_id], gone, lambda _commit: None)

    # Deleted topics

    async def topic_deleted(self, topic: str) -> None:
        """A topic has gone: nobody sees its offsets any more when this returns; `forget_topic` removes them.

        To be called in the turn in which it went; cancelled or not, it does all that it is there for.
        """
        self._deleted_topics.add(topic)
        await to_the_end(self._drop_topic(topic), Pace(self._chores))

    def _drop_topic(self, topic: str) -> Iterator[None]:
        """Whatever comes to a group from now on is none of the topic: commits look at its record."""
        table = self._table
        for managed in [*table.groups.values(), *chain.from_iterable(table.leaving.values())]:
            gone = managed.offsets.of_topic(topic)
            if gone:
                self._deleted_topics.note(topic, managed.group.group_id, gone)
                managed.offsets.drop_topic(topic)
                self._deletion.emptied(managed)
            yield

    async def forget_topic(self, topic: str) -> None:
        """Remove the offsets of a deleted topic from the store, before another topic of that name can be made.

        Raises:
            KafkaError: If the store fails; it has to be called again.
        """
        await self._deleted_topics.remove(topic)
