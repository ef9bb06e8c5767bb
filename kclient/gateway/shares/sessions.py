"""Share sessions (KIP-932): a gateway remembers which partitions a member reads here, so that only changes are sent.

A session is named by group and member, and goes through epochs: the request that makes it has epoch 0, the next ones 1,
2, ...; epoch -1 ends it. It ends with its connection, too. This is pure: it takes requests, and holds no partition,
only its coordinates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol

from kclient.errors import (
    InvalidRequestError,
    InvalidShareSessionEpochError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
)
from kclient.gateway.partition_id import PartitionId
from kclient.records.bounds import INT32_MAX

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_SESSION: Final = 700
"""About how many bytes of memory a session takes, beside the names of group and member."""
_PER_PARTITION: Final = 200
"""And each of its partitions."""
_AT_ONCE: Final = 64
"""So many partitions change in one step."""


class MemoryShare(Protocol):
    """The share of the connection that a session belongs to (`kclient.net.memory_budget.Share`)."""

    def keep(self, size: int) -> object:
        """Hold so many bytes more, or less, beyond the end of a request."""
        ...


class SessionName(NamedTuple):
    """Whose session it is."""

    group_id: str
    member_id: str


class MemberSession:
    """What a member reads here.

    Args:
        name: Whose it is.
        owner: The share of its connection.
    """

    __slots__ = ("epoch", "held", "name", "on_end", "owner", "partitions")

    def __init__(self, name: SessionName, owner: MemoryShare) -> None:
        self.name: SessionName = name
        self.owner: MemoryShare = owner
        self.epoch: int = INITIAL_EPOCH + 1
        """That the next request has to have."""
        self.partitions: dict[PartitionId, None] = {}
        """What it reads, what comes first at the next fetch before the others."""
        self.on_end: Callable[[], object] | None = None
        """Called when it has ended, or is replaced."""
        self.held: int = 0
        """Bytes of memory that count on the share."""

    def served(self, partitions: Iterable[PartitionId]) -> None:
        """These had records: the others come first the next time, so that none starves."""
        for each in partitions:
            if each in self.partitions:
                del self.partitions[each]
                self.partitions[each] = None

    @property
    def size(self) -> int:
        """About how many bytes of memory it takes."""
        names = sys.getsizeof(self.name.group_id) + sys.getsizeof(self.name.member_id)
        return _SESSION + names + _PER_PARTITION * len(self.partitions)

    def hold(self, size: int) -> int:
        """Count so many bytes on the share; returns how many more, or less, that is."""
        change, self.held = size - self.held, size
        if change:
            self.owner.keep(change)
        return change


class MemberSessions:
    """All share sessions of a gateway.

    Args:
        slots: How many there may be (`group.share.max.share.sessions`).
        memory: How many bytes they may take together, about.
    """

    def __init__(self, slots: Callable[[], int], memory: int) -> None:
        self._slots = slots
        self._memory = memory
        self._held = 0
        self._sessions: dict[SessionName, MemberSession] = {}
        self._groups: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def has_any(self, group_id: str) -> bool:
        """Whether members of a group have sessions here."""
        return group_id in self._groups

    def is_current(self, session: MemberSession) -> bool:
        """Whether a session has not ended, nor been replaced."""
        return self._sessions.get(session.name) is session

    def begin(self, name: SessionName, owner: MemoryShare, *, acknowledges: bool) -> MemberSession:
        """A fetch with epoch 0: one that its member has already ends; what it has acquired stays its.

        It reads nothing yet: `change` says what.

        Args:
            name: Whose it is.
            owner: The share of its connection.
            acknowledges: Whether the request acknowledges something.

        Raises:
            InvalidRequestError: It does: there is nothing that it could have.
            ShareSessionLimitReachedError: There are too many, or there is no memory for its partitions.
        """
        if acknowledges:
            raise InvalidRequestError("the request that begins a share session cannot acknowledge records")
        self._remove(name)
        if len(self._sessions) >= self._slots():
            raise ShareSessionLimitReachedError(
                f"there are {len(self._sessions)} share sessions, as many as group.share.max.share.sessions allows: "
                "raise it, or have members read other gateways' partitions"
            )
        session = self._sessions[name] = MemberSession(name, owner)
        self._groups[name.group_id] = self._groups.get(name.group_id, 0) + 1
        self._count(session)
        return session

    def go_on(self, name: SessionName, epoch: int) -> MemberSession:
        """A request in a session, which it belongs to.

        Args:
            name: Whose session it is.
            epoch: That of the request; `FINAL_EPOCH` changes nothing: the caller ends it with `end`.

        Raises:
            ShareSessionNotFoundError: There is none (any more).
            InvalidShareSessionEpochError: The request is not the session's next one.
        """
        session = self._sessions.get(name)
        if session is None:
            raise _none_of(name)
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            raise InvalidShareSessionEpochError(
                f"the share session of {name.member_id[:100]} is at epoch {session.epoch}, the request says {epoch}"
            )
        session.epoch = INITIAL_EPOCH + 1 if epoch == INT32_MAX else epoch + 1
        return session

    def change(
        self, session: MemberSession, read: Iterable[PartitionId | None], forgotten: Iterable[PartitionId | None]
    ) -> Iterator[None]:
        """Change what a session reads, in steps: others may have their turn between them.

        Args:
            session: Which one.
            read: What it reads from now on, too; None is nothing.
            forgotten: What it does not read any more, likewise.

        Raises:
            ShareSessionNotFoundError: It has ended meanwhile.
            ShareSessionLimitReachedError: There is no memory for what it reads: it has ended.
        """
        partitions = session.partitions
        for places, put in ((read, partitions.setdefault), (forgotten, partial(_drop, partitions))):
            left = iter(places)
            while some := list(islice(left, _AT_ONCE)):
                for each in some:
                    if each is not None:
                        put(each)
                self._count(session)
                if len(some) == _AT_ONCE:  # fewer do not matter
                    yield
                    self._check_current(session)

    def _check_current(self, session: MemberSession) -> None:
        if not self.is_current(session):
            raise _none_of(session.name)

    def end(self, session: MemberSession) -> bool:
        """A session ends; False if it has already, or was replaced."""
        if not self.is_current(session):
            return False
        self._remove(session.name)
        return True

    def _remove(self, name: SessionName) -> None:
        session = self._sessions.pop(name, None)
        if session is None:
            return
        self._held += session.hold(0)
        if session.on_end is not None:
            session.on_end()
        self._groups[name.group_id] -= 1
        if not self._groups[name.group_id]:
            del self._groups[name.group_id]

    def _count(self, session: MemberSession) -> None:
        """Count what a session takes now; one that has grown beyond what there is has to end."""
        size = session.size
        if self._held + size - session.held > self._memory:
            self._remove(session.name)
            raise ShareSessionLimitReachedError(
                f"there is no memory for {len(session.partitions)} partitions of a share session: start the gateway "
                "with a higher connections.max.memory.bytes"
            )
        self._held += session.hold(size)


def _drop(partitions: dict[PartitionId, None], one: PartitionId) -> None:
    partitions.pop(one, None)


def _none_of(name: SessionName) -> ShareSessionNotFoundError:
    return ShareSessionNotFoundError(f"{name.member_id[:100]} of {name.group_id[:300]} has no share session")
