"""What a group of any type is to its coordinator, and what is kept of it beside its state machine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence, Sized
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from kclient.errors import ErrorCode
from kclient.gateway.groups.events import Action, GroupSettings, Ticket
from kclient.gateway.groups.offsets import Expiry, GroupOffsets, OffsetCommit

if TYPE_CHECKING:
    from kclient.gateway.groups.memory import GroupHolding
    from kclient.memory_ledger import MemoryAccount

CLASSIC: Final = "classic"
"""The type of the groups whose members join by JoinGroup. The others of Kafka are `consumer` (KIP-848), `share`
(KIP-932) and `streams` (KIP-1071)."""


class AskedTopics:
    """Topics that a group is asked about, and what it has said: kept by who asks, for as long as that takes.

    Args:
        names: Their names.
    """

    __slots__ = ("names", "read", "read_of")

    def __init__(self, names: Iterable[str]) -> None:
        self.names: frozenset[str] = frozenset(names)
        self.read_of: object = None
        """Of which members `read` was found out."""
        self.read: frozenset[str] | None = None
        """Those of them that members read; None if nobody knows."""


class Group(Protocol):
    """One group as a state machine: it is told what happened and the time, and returns what is to be done.

    It never waits, reads no clock and does no I/O. The requests of its type come to it by methods of its own; these
    here are what the coordinator needs of every type.
    """

    group_id: str
    settings: GroupSettings
    """The broker settings for groups, as they are now."""

    @property
    def type(self) -> str:
        """The name of its type, as ListGroups shows it."""
        ...

    @property
    def protocol_type(self) -> str | None:
        """What its members say they are: `consumer`, `connect` and so on; None while it has had none."""
        ...

    @property
    def shown_state(self) -> str:
        """The name of its state, as ListGroups shows it."""
        ...

    @property
    def idle(self) -> bool:
        """Whether nobody is in it and nobody is expected: when its offsets have gone, it goes."""
        ...

    @property
    def untouched(self) -> bool:
        """Whether it is idle and nobody ever was in it, so that nothing of it is stored: without offsets it goes."""
        ...

    @property
    def members(self) -> Sized:
        """Those that are in it."""
        ...

    @property
    def size(self) -> int:
        """About how many bytes of memory its members take."""
        ...

    # Time, and what was asked for

    def next_deadline(self) -> float | None:
        """When `advance` has to be called, or None."""
        ...

    def advance(self, now: float) -> Sequence[Action]:
        """Do everything whose time has come."""
        ...

    def stored(self, ticket: Ticket, error: ErrorCode, now: float) -> Sequence[Action]:
        """A snapshot was stored, or was not."""
        ...

    # Its row

    def snapshot(self) -> Any:
        """The group as it is stored."""
        ...

    def restore(self, snapshot: Any, now: float) -> Sequence[Action]:
        """Be what was stored; members have one session to be heard of."""
        ...

    def rebalance(self, reason: str, now: float) -> Sequence[Action]:
        """Have its members come together anew."""
        ...

    # The end

    def unload(self) -> Sequence[Action]:
        """The gateway closes: whoever waits is told to look for another coordinator."""
        ...

    @property
    def other_rows(self) -> Sequence[str]:
        """The keys of rows beside its own that the store may still have when it is deleted."""
        ...

    def remove_rows(self, keys: Sequence[str]) -> bool:
        """Have rows of members that there were removed with its next ones; False where its type has no such rows."""
        ...

    def delete(self) -> ErrorCode:
        """Remove the group if it has no members; NONE, NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND."""
        ...

    # Its offsets

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now: float,
        *,
        commit: OffsetCommit | None = None,
        transactional: bool = False,
        version: int | None = None,
    ) -> ErrorCode:
        """Whether a member may commit offsets now; GROUP_ID_NOT_FOUND where groups of this type commit none.

        Args:
            member_id: The member, or empty.
            instance_id: Its `group.instance.id`, if it has one.
            generation: That it is in, or its epoch, or less than 0.
            now: The time.
            commit: What it commits; None where that does not matter.
            transactional: Whether a transaction commits them: then whoever names no member may always (KIP-447).
            version: Of the request, where that matters.
        """
        ...

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether a member may ask for committed offsets.

        Args:
            member_id: The member; None for whoever does not say.
            epoch: Its epoch, or less than 0.
        """
        ...

    def offsets_in_use(self, asked: AskedTopics) -> Generator[None, None, tuple[ErrorCode, Iterable[str] | None]]:
        """Why no offset may be deleted now, or else those of the topics whose offsets may not; None for all.

        In steps.
        """
        ...

    def expiry(
        self, since_ms: int, retention_ms: int, asked: AskedTopics, *, unread: bool
    ) -> Generator[None, None, Expiry | None]:
        """When its offsets may be forgotten; None if they may not now. In steps.

        Args:
            since_ms: Since when it has been in this state, by the wall clock.
            retention_ms: How long offsets are kept.
            asked: The topics that this is about.
            unread: Whether its row could not be read: nobody knows since when it has been without members.
        """
        ...


class CommitsNothing:
    """What groups of types have in common to which nobody commits offsets."""

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now: float,
        *,
        commit: OffsetCommit | None = None,
        transactional: bool = False,
        version: int | None = None,
    ) -> ErrorCode:
        """Nobody may."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whoever asks is told what is committed, of which there is nothing, or what another version has stored."""
        return ErrorCode.NONE

    def expiry(
        self, since_ms: int, retention_ms: int, asked: AskedTopics, *, unread: bool
    ) -> Generator[None, None, Expiry | None]:
        """They may be in use, if there are any."""
        yield from ()
        return None


class GroupKind(NamedTuple):
    """A type of groups: how one is made, and how its row is written and read."""

    name: str
    make: Callable[[str, GroupSettings], Group]
    """Of a group id and the settings."""
    encode: Callable[[Any, int], Generator[None, None, bytes]]
    """The row of a snapshot and of the time since when it is so, made in steps; it tells the type."""
    decode: Callable[[bytes, str], tuple[Any, int]]
    """The snapshot of a row, for a group id, and that time. Raises `ValueError` if it holds none."""


class ManagedGroup:
    """A group with its offsets."""

    __slots__ = ("group", "holding", "left", "offsets", "since_ms", "unread")

    def __init__(self, group: Group, since_ms: int, holding: GroupHolding, memory: MemoryAccount) -> None:
        self.group: Group = group
        self.holding: GroupHolding = holding
        """What it takes of memory, beside its offsets."""
        self.offsets: GroupOffsets = GroupOffsets(memory)
        self.since_ms: int = since_ms
        """Since when it has been in this state, by the wall clock; kept for groups without members."""
        self.left: Sequence[str] = ()
        """The keys of rows of members, of when it was of another type, that could not be removed."""
        self.unread: bool = False
        """Whether its row cannot be read: nobody knows since when it has been without members."""
        self.count()

    def count(self) -> None:
        """Count the memory that it takes, of which something may have changed."""
        group = self.group
        self.holding.count(group.group_id, group.protocol_type, group.size, committed=bool(self.offsets))
