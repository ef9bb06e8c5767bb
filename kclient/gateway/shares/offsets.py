"""Where share groups begin to read partitions: described, moved and forgotten, for administrators (KIP-932).

The leader of a partition has its row in memory, and writes it on condition that it is as it was. So whoever changes it
here asks nobody: the leader's next write finds another version, and it reads the row anew. It is told of that before,
too: each change here changes the row of the topic (`SHARED_TOPICS`), which all gateways follow.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kclient.errors import KafkaStorageError, NotCoordinatorError
from kclient.gateway.partition_id import PartitionId
from kclient.gateway.rows.keys import (
    ASSIGNMENT,
    parse_share_key,
    parse_shared_topic_key,
    share_key,
    shared_topic_key,
    shared_topics_of_group,
    shares_of_group,
)
from kclient.gateway.rows.share_partitions import SHARED_TOPIC, SharedRow
from kclient.htp.errors import ConflictError
from kclient.htp.rows import scan_pages

if TYPE_CHECKING:
    from kclient.gateway.living_topics import LivingTopics
    from kclient.gateway.ownership import HeldLease
    from kclient.htp.port import Manager, Versioned

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_TRIES: Final = 20
"""So often a change is tried while leaders write the same rows."""
_AT_ONCE: Final = 1_000
"""Rows that are read, or removed, together."""


class GroupClaims(Protocol):
    """What says that this gateway coordinates a group (`groups.moving.CoordinatorClaims`)."""

    def of(self, key: str, /) -> Mapping[str, int] | None:
        """Rows, and the versions that they have as long as it does; None if another gateway coordinates the group."""
        ...

    async def renew(self) -> None:
        """One of them has another version: find out what it is now. Raises `HtpError` if the store fails."""
        ...


class ShareOffset(NamedTuple):
    """How far a share group has come in a partition."""

    start: int
    """Its start offset: the first offset that is not done with; -1 if nothing was read yet (Kafka's too)."""
    leader_epoch: int
    """Of the leader that has written it; 0 if an administrator has moved it since."""
    complete: int
    """How many records from the start on are acknowledged or archived (KIP-1226): the lag of the group is the end of
    the partition less `start` and `complete`."""


class ShareGroupOffsets:
    """What administrators do with the start offsets of share groups, at their coordinator.

    Nothing here looks whether there is such a group, or whether it has members: that is the caller's.

    Args:
        manager: Keeps the rows.
        lease: Under which they are written.
        claims: Say that this gateway coordinates a group.
        living: Tells which topics are there.
    """

    def __init__(self, manager: Manager, lease: HeldLease, claims: GroupClaims, living: LivingTopics) -> None:
        self._manager = manager
        self._lease = lease
        self._claims = claims
        self._living = living

    async def topics(self, group_id: str) -> list[bytes]:
        """The ids of the topics that a group has read, or had offsets set for; some may have been deleted since.

        Args:
            group_id: The group.

        Raises:
            HtpError: The store failed.
        """
        return [parse_shared_topic_key(key)[1] for key in await self._scan(shared_topics_of_group(group_id))]

    async def describe(
        self, group_id: str, partitions: Iterable[PartitionId] | None = None
    ) -> dict[PartitionId, ShareOffset | KafkaStorageError]:
        """How far a group has come.

        Args:
            group_id: The group.
            partitions: Of which it is asked; None for all that the group has read, also of topics that are no more.

        Returns:
            By partition. One that the group has never read, and no administrator has set, is missing. One whose row
            cannot be read has the error that says so: `alter` mends it.

        Raises:
            HtpError: The store failed.
        """
        rows: dict[str, Versioned] = {}
        if partitions is None:
            for topic_id in await self.topics(group_id):
                rows |= await self._scan(shares_of_group(topic_id, group_id))
        else:
            left = iter(partitions)
            while some := list(islice(left, _AT_ONCE)):
                rows |= await self._manager.get([share_key(topic_id, group_id, number) for topic_id, number in some])
        return {_named(key): _told(key, row) for key, row in rows.items()}

    async def alter(self, group_id: str, offsets: Mapping[PartitionId, int]) -> None:
        """Have a group go on from other offsets, all or none: what it had delivered is forgotten (Kafka's
        InitializeShareGroupState under a new state epoch).

        Members that still have records of these partitions cannot acknowledge them: their leader answers
        NOT_LEADER_OR_FOLLOWER, as Kafka's does that was fenced by the state epoch, and then reads from there.

        Args:
            group_id: The group.
            offsets: By partition, where it goes on; -1 for where `share.auto.offset.reset` says, the next time that
                somebody reads it.

        Raises:
            NotCoordinatorError: Another gateway coordinates the group.
            TopicGoneError: A topic was deleted.
            ConflictError: Their leaders wrote the rows again and again.
            HtpError: The store failed.
        """
        topic_ids = list(dict.fromkeys(topic_id for topic_id, _ in offsets))
        keys = {partition: share_key(partition[0], group_id, partition[1]) for partition in offsets}
        indexes = [shared_topic_key(group_id, topic_id) for topic_id in topic_ids]
        for left in reversed(range(_TRIES)):
            found = await self._manager.get([*keys.values(), *indexes])
            expected = {key: found[key].version if key in found else 0 for key in [*keys.values(), *indexes]}
            writes: dict[str, bytes | None] = {}
            for partition, key in keys.items():
                writes[key] = SharedRow(_epoch_of(found.get(key)) + 1, 0, offsets[partition], 0).encode()
            for key in indexes:
                writes[key] = SHARED_TOPIC.encode(_moves_of(found.get(key)) + 1)
            if await self._commit(group_id, writes, expected, topic_ids, last=not left):
                break
        logger.info("share group %s: %d start offsets were set", group_id[:300], len(offsets))

    async def delete(self, group_id: str, topic_ids: Collection[bytes]) -> None:
        """Forget what a group has read of topics, which need not be there: `describe` does not tell of them any more.

        A member that goes on reading begins again where `share.auto.offset.reset` says.

        Args:
            group_id: The group.
            topic_ids: Of the topics.

        Raises:
            NotCoordinatorError: Another gateway coordinates the group.
            ConflictError: Leaders wrote the rows again and again.
            HtpError: The store failed; some may have been forgotten.
        """
        for topic_id in dict.fromkeys(topic_ids):
            await self._forget(group_id, topic_id)

    async def delete_group(self, group_id: str) -> None:
        """Forget all that a group has read, before or after its own row is removed.

        Args:
            group_id: The group.

        Raises:
            NotCoordinatorError: Another gateway coordinates the group.
            ConflictError: Leaders wrote the rows again and again.
            HtpError: The store failed; some may have been forgotten, and it may be called again.
        """
        await self.delete(group_id, await self.topics(group_id))

    async def _forget(self, group_id: str, topic_id: bytes) -> None:
        """The row of the topic goes first: whoever reads a partition for the first time expects it as it was."""
        index = shared_topic_key(group_id, topic_id)
        tries = _TRIES
        while True:
            found = await self._manager.get([index])
            rows = await self._manager.scan(shares_of_group(topic_id, group_id), limit=_AT_ONCE)
            rows |= found
            if not rows:
                return
            tries -= 1
            expected = {key: row.version for key, row in rows.items()}
            if await self._commit(group_id, dict.fromkeys(rows), expected, (), last=not tries):
                tries = _TRIES

    async def _commit(
        self,
        group_id: str,
        writes: Mapping[str, bytes | None],
        expected: Mapping[str, int],
        topic_ids: Iterable[bytes],
        *,
        last: bool,
    ) -> bool:
        """Write rows of a group; False if they have to be read anew."""
        claim = self._claims.of(group_id)
        if claim is None:
            raise NotCoordinatorError(f"another gateway coordinates the share group {group_id[:300]}")
        topics = self._living.expectation(topic_ids)
        try:
            await self._manager.commit(writes, {**expected, **claim, **topics.versions}, lease=self._lease.current)
        except ConflictError as conflict:
            if last:
                raise
            if conflict.key == ASSIGNMENT:
                await self._claims.renew()
            elif conflict.key not in expected:
                await topics.look_again(conflict)
            return False
        return True

    async def _scan(self, prefix: str) -> dict[str, Versioned]:
        rows: dict[str, Versioned] = {}
        async for page in scan_pages(self._manager, prefix):
            rows |= page
        return rows


def _named(key: str) -> PartitionId:
    topic_id, _, number = parse_share_key(key)
    return PartitionId(topic_id, number)


def _told(key: str, row: Versioned) -> ShareOffset | KafkaStorageError:
    try:
        found = SharedRow.decode(row.value)
    except ValueError as error:
        logger.error("what a share group has delivered cannot be read: %s: %s", key, error)
        return KafkaStorageError(f"{key} cannot be read: set the group's start offset anew ({error})")
    return ShareOffset(found.start, found.leader_epoch, found.complete)


def _epoch_of(row: Versioned | None) -> int:
    """The state epoch of a row; of a damaged one it does not matter, since the row's version tells them apart."""
    if row is None:
        return -1
    try:
        return SharedRow.decode(row.value).epoch
    except ValueError:
        return 0


def _moves_of(row: Versioned | None) -> int:
    if row is None:
        return 0
    try:
        return SHARED_TOPIC.decode(row.value)
    except ValueError:
        return row.version  # revisions only grow: no gateway has seen this number
