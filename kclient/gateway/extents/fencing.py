"""What keeps a leader of an older epoch out where the store does not: its own lease, and the epochs in messages.

A leader on such a store says that something is stored, and shows what is, only while its lease holds by its own clock:
nobody else has begun to lead by then. What it has sent is stored whenever it likes; so whoever leads next starts its
epoch with a message in the topic, and what an older epoch has behind it counts for nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kclient.htp.errors import FencedError, OutcomeUnknownError, StorageError

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.htp.port import Sent, SyncedCallback


class LeaseGuard:
    """Tells whether a gateway may still speak for its partitions.

    Args:
        lease: Its lease.
        now: Its monotonic clock, in seconds, by which the lease is reckoned.
    """

    def __init__(self, lease: HeldLease, now: Callable[[], float]) -> None:
        self._lease = lease
        self._now = now

    @property
    def holds(self) -> bool:
        """Whether the lease lasts, so that nobody else leads."""
        return self._now() < self._lease.current.expires

    def check_send(self, name: object) -> None:
        """Raise `StorageError` before something is sent that could not be acknowledged."""
        if not self.holds:
            raise StorageError(f"{name}: the gateway's lease has run out, so nothing was sent")

    def check_read(self, name: object) -> None:
        """Raise `FencedError` before something is told that was read: another gateway may have gone on since."""
        if not self.holds:
            raise FencedError(f"{name}: the gateway's lease has run out: another one may lead")

    def check_stored(self, name: object) -> None:
        """Raise `OutcomeUnknownError` before it is told that something is stored: it may count no more."""
        if not self.holds:
            raise OutcomeUnknownError(
                f"{name}: the gateway's lease had run out when the store answered: if another one leads, what was sent "
                "may count no more"
            )


class GuardedSent:
    """What was sent, of which nobody is told that it is synced once the lease has run out.

    Args:
        sent: The store's answer.
        guard: Knows the lease.
        name: Of the topic, for messages.
    """

    __slots__ = ("_guard", "_name", "_sent", "first", "last")

    def __init__(self, sent: Sent, guard: LeaseGuard, name: object) -> None:
        self.first: int = sent.first
        self.last: int = sent.last
        self._sent = sent
        self._guard = guard
        self._name = name

    @property
    def done(self) -> bool:
        """Whether it is decided already."""
        return self._sent.done

    async def synced(self) -> None:
        """Wait until it is decided."""
        await self._sent.synced()
        self._guard.check_stored(self._name)

    def on_synced(self, callback: SyncedCallback, /) -> None:
        """Have `callback` called when it is decided."""
        self._sent.on_synced(partial(self._tell, callback))

    def _tell(self, callback: SyncedCallback, error: BaseException | None) -> None:
        if error is None:
            try:
                self._guard.check_stored(self._name)
            except OutcomeUnknownError as unknown:
                error = unknown
        callback(error)
