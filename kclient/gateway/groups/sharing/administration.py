"""What administrators do with share groups, at their coordinator: start offsets, and the end of a group (KIP-932)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from kclient.errors import CoordinatorNotAvailableError, ErrorCode, GroupNotEmptyError, error_for
from kclient.gateway.groups.sharing.group import SharedGroup
from kclient.gateway.groups.sharing.membership import shared_group

if TYPE_CHECKING:
    from kclient.errors import KafkaStorageError
    from kclient.gateway.groups.deletion import GroupDeletion
    from kclient.gateway.groups.sharing.membership import SharedMembership
    from kclient.gateway.groups.table import GroupTable
    from kclient.gateway.partition_id import PartitionId
    from kclient.gateway.shares.offsets import ShareGroupOffsets, ShareOffset

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")


class ShareGroupAdministration:
    """Start offsets of share groups, of which only groups without members are changed.

    Args:
        table: All groups.
        membership: Makes share groups.
        deletion: Deletes groups.
        offsets: Keeps what share groups have read of partitions.
    """

    def __init__(
        self, table: GroupTable, membership: SharedMembership, deletion: GroupDeletion, offsets: ShareGroupOffsets
    ) -> None:
        self._table = table
        self._membership = membership
        self._deletion = deletion
        self._offsets = offsets

    def deletes(self, group_id: str) -> bool:
        """Whether `delete` is to delete a group: it is a share group."""
        managed = self._table.groups.get(group_id)
        return managed is not None and isinstance(managed.group, SharedGroup)

    async def describe(
        self, group_id: str, partitions: Iterable[PartitionId] | None = None
    ) -> Mapping[PartitionId, ShareOffset | KafkaStorageError]:
        """How far a group has come; see `ShareGroupOffsets.describe`. Of a group that is none nothing is known."""
        return await self._offsets.describe(group_id, partitions)

    def check(self, group_id: str, *, missing_is_fine: bool = False) -> None:
        """Whether start offsets of a group may be changed.

        Args:
            group_id: The group.
            missing_is_fine: A group that is not there will be made.

        Raises:
            CoordinatorNotAvailableError: The gateway is closing.
            GroupIdNotFoundError: There is no such share group.
            GroupNotEmptyError: It has members.
        """
        if self._table.closed:
            raise CoordinatorNotAvailableError("the gateway is closing")
        if missing_is_fine and group_id not in self._table.groups:
            return
        if not shared_group(self._table, group_id)[1].empty:
            raise GroupNotEmptyError("The group is not empty.")

    async def alter(self, group_id: str, offsets: Mapping[PartitionId, int]) -> None:
        """Have a group go on from other offsets. One that is not there is made, and then is one without members.

        Args:
            group_id: The group.
            offsets: By partition.

        Raises:
            KafkaError: As `check`, and as `ShareGroupOffsets.alter`.
        """
        self.check(group_id, missing_is_fine=True)
        if not offsets:
            return
        result = await self._membership.establish(group_id).wait()
        if result.error:
            raise error_for(result.error, f"the group {group_id[:300]} could not be stored")
        await self._offsets.alter(group_id, offsets)

    async def forget(self, group_id: str, topic_ids: Collection[bytes]) -> frozenset[bytes]:
        """Forget how far a group has come in topics.

        Args:
            group_id: The group.
            topic_ids: Of the topics.

        Returns:
            Those of which something was known.

        Raises:
            KafkaError: As `check`, and as `ShareGroupOffsets.delete`.
        """
        self.check(group_id)
        known = frozenset(await self._offsets.topics(group_id)).intersection(topic_ids)
        await self._offsets.delete(group_id, known)
        return known

    async def delete(self, group_id: str) -> ErrorCode:
        """Delete a group without members, and what it has read: that first, so that nothing of it is left.

        Who joins while that goes on has a group that begins anew, and it is not deleted.

        Args:
            group_id: The group, for which `deletes` is true.

        Raises:
            KafkaError: The store failed, or there is no such group any more; it may be tried again.
        """
        if self._table.closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not shared_group(self._table, group_id)[1].empty:
            return ErrorCode.NON_EMPTY_GROUP
        await self._offsets.delete_group(group_id)
        deleted = self._deletion.delete(group_id)
        return deleted if isinstance(deleted, ErrorCode) else await deleted.wait()
