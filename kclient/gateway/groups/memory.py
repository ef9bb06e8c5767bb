"""What groups and their committed offsets take of the memory of the process, and whether there is room for more.

Members, and what was committed, stay when their clients have gone, so they count on accounts of their own. What is
there is never refused; a member or an offset that comes anew may be. What is on its way to the store counts too: while
that hangs, it stays when its clients have gone.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.memory_ledger import LimitedAccount, MemoryAccount, MemoryPart

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_SHARE: Final = 4
"""One part in so many of the memory may be taken by the members of all groups, and as much by their offsets."""
_WRITES_SHARE: Final = 8
"""The same of what is on its way to the store."""
_TOLD_AGAIN_S: Final = 60.0
"""Seconds between two lines of the log that say so."""
_GROUP: Final = 3_000
"""About how many bytes of memory a group takes beside its members."""


class GroupMemory:
    """The accounts of all groups.

    Args:
        memory: What the gateway holds.
        clock: What time it is.
        log_fields: Who this is, for the log.
    """

    def __init__(self, memory: MemoryPart, clock: Clock, log_fields: Mapping[str, object]) -> None:
        self._members: LimitedAccount = memory.limited("groups", _SHARE)
        self.offsets: LimitedAccount = memory.limited("committed offsets", _SHARE)
        """Of committed offsets, and of groups that have some or had."""
        self.writes: LimitedAccount = memory.limited("group writes", _WRITES_SHARE)
        """Of what is on its way to the store."""
        self._clock = clock
        self._log_fields = log_fields
        self._told = dict.fromkeys((self._members, self.offsets, self.writes), float("-inf"))

    def holding(self) -> GroupHolding:
        """What a new group takes, beside its offsets."""
        return GroupHolding(self._members, self.offsets)

    def admits_member(self, group_id: str, size: int, *, new: bool) -> bool:
        """Whether a member may join with which its group, which may be new, takes so many bytes more."""
        if self._members.has_room(size + _itself(group_id) if new else size):
            return True
        self._tell(self._members, group_id, "the members of all groups", "a member that joins is told to try again")
        return False

    def admits_assignments(self, group_id: str, size: int) -> bool:
        """Whether a leader may give a group its assignments, which are so many bytes more than those that it has."""
        if self._members.has_room(size):
            return True
        self._tell(
            self._members, group_id, "the members of all groups", "assignments are refused, and members join again"
        )
        return False

    def admits_offsets(self, group_id: str, grows: int, *, new: bool) -> bool:
        """Whether the offsets of a group, which may have had none so far, may grow by so many bytes.

        Those that are there already, with metadata as long as it was, do not grow: they always may be committed.
        """
        if self.offsets.has_room(grows + _itself(group_id) if new else grows):
            return True
        self._tell(self.offsets, group_id, "all committed offsets", "a commit of new ones is told to try again")
        return False

    def admits_write(self, group_id: str) -> bool:
        """Whether more may go to the store: not while what waits for it has come to its limit, as where it hangs.

        However large it is, it may, so that the limit is none of the size of a group.
        """
        if self.writes.held < self.writes.limit:
            return True
        things = "what groups have on its way to the store, which is slow or hangs,"
        self._tell(self.writes, group_id, things, "what has to be stored is told to try again", "an eighth")
        return False

    def _tell(
        self, account: LimitedAccount, group_id: str, things: str, refused: str, share: str = "a quarter"
    ) -> None:
        now = self._clock.now()
        if now - self._told[account] < _TOLD_AGAIN_S:
            return
        self._told[account] = now
        logger.warning(
            "%s take %d bytes of memory, and may take %d, %s of connections.max.memory.bytes, as far as the "
            "rest of that leaves it: %s in group %s, and so in all others until there is room. Set "
            "connections.max.memory.bytes higher, or have less of them",
            things, account.held, account.limit, share, refused, group_id[:300], extra=self._log_fields,
        )  # fmt: skip


class GroupHolding:
    """What one group takes, beside its offsets.

    Its members count as such. It itself does with the first of them, who is asked for; from its first offset on, which
    is asked for as well, it counts with its offsets for good. So nothing comes to an account that nobody was asked for.
    """

    __slots__ = ("_accounts", "_held", "committed")

    def __init__(self, members: MemoryAccount, offsets: MemoryAccount) -> None:
        self.committed: bool = False
        """Whether it counts with its offsets."""
        self._accounts = members, offsets
        self._held = 0, 0

    def count(self, group_id: str, protocol_type: str | None, size: int, *, committed: bool) -> None:
        """Something of it may have changed: what its members take, or whether it has offsets."""
        itself = _itself(group_id) + sys.getsizeof(protocol_type or "")
        self.committed = self.committed or committed
        self._set((size, itself) if self.committed else (itself + size, 0))

    def close(self) -> None:
        """The group has gone."""
        self._set((0, 0))

    def _set(self, held: tuple[int, int]) -> None:
        before, self._held = self._held, held
        if held != before:
            for account, size, old in zip(self._accounts, held, before, strict=True):
                if size != old:
                    account.add(size - old)


def _itself(group_id: str) -> int:
    return _GROUP + 2 * sys.getsizeof(group_id)
