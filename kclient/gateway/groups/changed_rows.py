"""Which rows of a group with epochs have changed, and who waits until they are stored.

What has changed goes to the store in one write at a time, which takes along all that has changed until its rows are
made. So a heartbeat costs the rows of its member alone, and many of them cost one commit. An answer that tells of
something new waits for the write that has it: what a member was told outlives a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from kclient.errors import ErrorCode
from kclient.gateway.groups.events import Reply, RowsStored, StoreRows
from kclient.gateway.rows.keys import group_key, member_key, members_of_group

if TYPE_CHECKING:
    from kclient.gateway.groups.writer import Row
    from kclient.htp.port import Manager

_FEW: Final = 500
"""Members whose rows go to the store with others."""
_ROW: Final = 600
"""About how many bytes a row has."""


class StoredMember(Protocol):
    """What is asked of a member, of whatever type its group is."""

    @property
    def member_id(self) -> str:
        """Its id."""
        ...


class StoredMembers(Protocol):
    """The same of all members of a group."""

    def __contains__(self, member_id: str) -> bool: ...

    def __iter__(self) -> Iterator[StoredMember]: ...


class StoredGroup(Protocol):
    """A group as it is stored."""

    @property
    def assignment_epoch(self) -> int:
        """The epoch of its target."""
        ...


class RowFormat(NamedTuple):
    """How the rows of a type of groups are made."""

    group: Callable[[Any, int], bytes]
    """Of a snapshot, and when the group came into its state."""
    member: Callable[[str], Callable[[], Row]]
    """Of a member's id, as it is now: what makes its row, which is None if it is none any more."""


class ChangedRows:
    """The changed rows of one group.

    Args:
        group_id: The group.
        members: Its members.
        snapshot: The group as it is, without members: a dataclass.
        form: How its rows are made.
    """

    def __init__(
        self, group_id: str, members: StoredMembers, snapshot: Callable[[], StoredGroup], form: RowFormat
    ) -> None:
        self._group_id = group_id
        self._members = members
        self._snapshot = snapshot
        self._form = form
        self._changed: dict[str, None] = {}
        """Members whose rows, or whose removal, no write has taken along."""
        self._stored: int | None = None
        """The epoch of the target that the store has."""
        self._stored_before: int | None = None
        """The same when the present write began."""
        self._wanted = False
        """Whether the group's own row has changed."""
        self._replies: list[Reply] = []
        self._ticket: RowsStored | None = None
        """Of the write that is under way."""

    def change(self, member_id: str) -> None:
        """Something of a member has changed, or it has gone."""
        self._changed[member_id] = None

    def change_group(self) -> None:
        """Something of the group itself has changed."""
        self._wanted = True

    def is_stored(self, member_id: str) -> bool:
        """Whether the store has what a member is told."""
        return member_id not in self._changed and (self._ticket is None or member_id not in self._ticket.taken)

    def all_keys(self) -> Sequence[str]:
        """The keys of all members' rows that the store has, or may have."""
        members = [member.member_id for member in self._members]
        return [*self.keys, *(member_key(self._group_id, each) for each in members)]

    @property
    def settled(self) -> bool:
        """Whether the store has everything."""
        return not self._changed and not self._wanted and self._ticket is None

    @property
    def keys(self) -> Iterable[str]:
        """The keys of members' rows that may be in the store although the members are none any more."""
        taken = () if self._ticket is None else self._ticket.taken
        return [
            member_key(self._group_id, each) for each in {**self._changed, **dict.fromkeys(taken)}
            if each not in self._members
        ]  # fmt: skip

    def answer(self, reply: Reply) -> None:
        """An answer that waits until what has changed by now is stored."""
        self._replies.append(reply)

    def store(self, *, emptied: bool = False) -> list[StoreRows]:
        """Have the store take what has changed, if nothing is under way."""
        if self._ticket is not None or not (self._changed or self._wanted):
            return []
        ticket = self._ticket = RowsStored()
        size = _ROW * (len(self._changed) + 1)
        return [StoreRows(partial(_MemberParts, self, ticket), ticket, size, emptied=emptied)]

    def stored(self, ticket: RowsStored, error: ErrorCode) -> list[Reply]:
        """A write has ended: the answers that waited for it."""
        if ticket is not self._ticket:
            return []
        self._ticket = None
        if error:
            for member_id in ticket.taken:
                self._changed[member_id] = None
            self._wanted = True
            self._stored = self._stored_before
            return [reply.refused(error) for reply in ticket.replies]
        replies = ticket.replies
        if not (self._changed or self._wanted):
            replies, self._replies = replies + self._replies, []
        return replies

    def unload(self, error: ErrorCode) -> list[Reply]:
        """The group goes: whoever waits is told an error."""
        waiting = self._replies + ([] if self._ticket is None else self._ticket.replies)
        self._replies, self._ticket = [], None
        return [reply.refused(error) for reply in waiting]

    def restored(self) -> None:
        """The group is as the store has it."""
        self._stored = self._snapshot().assignment_epoch

    # What the write asks for

    @property
    def count(self) -> int:
        """How many members a write would take along."""
        return len(self._changed)

    @property
    def prefix(self) -> int:
        """How long the keys are."""
        return len(members_of_group(self._group_id))

    def take(self, ticket: RowsStored, since_ms: int) -> list[tuple[str, Callable[[], Row]]]:
        """All that has changed, as it is now: what becomes of it later is of the next write."""
        ticket.taken.update(self._changed)
        ticket.replies += self._replies
        self._changed, self._replies, self._wanted = {}, [], False
        key, own = group_key(self._group_id), self._snapshot()
        before = self._stored_before = self._stored
        rows: list[tuple[str, Callable[[], Row]]] = []
        if before is not None and own.assignment_epoch != before:
            # of many rows some may be lost: until all are there, what they say is not the target of the epoch
            first = replace(cast("Any", own), assignment_epoch=before)
            rows.append((key, partial(self._form.group, first, since_ms)))
        for member_id in ticket.taken:
            rows.append((member_key(self._group_id, member_id), self._form.member(member_id)))
        rows.append((key, partial(self._form.group, own, since_ms)))
        self._stored = own.assignment_epoch
        return rows


class _MemberParts:
    """The rows of a write.

    Args:
        changed: Has them.
        ticket: What it takes along.
        since_ms: When the group came into its state.
    """

    def __init__(self, changed: ChangedRows, ticket: RowsStored, since_ms: int) -> None:
        few = changed.count <= _FEW
        self.few: int | None = changed.count + 2 if few else None
        self.length: int = (changed.count + 2) * (_ROW + changed.prefix)
        self._changed = changed
        self._ticket = ticket
        self._since_ms = since_ms

    def __iter__(self) -> Iterator[tuple[str, Row]]:
        for key, row in self._changed.take(self._ticket, self._since_ms):
            yield key, row()

    def stored(self) -> Iterable[None]:
        """Whoever waits is told when all are."""
        return ()

    async def failed(self, manager: Manager) -> None:
        """They are written again."""
