"""A store that fails on purpose, for tests: a seam that a backend may offer, and need not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from kclient.htp.port.places import Place

if TYPE_CHECKING:
    from kclient.htp.port.store import Store

__all__ = ["FAULT_DAMAGE", "FAULT_FULL", "FAULT_SYNC", "FAULT_UNKNOWN", "FAULT_WRITE", "Faults", "faults_of"]

FAULT_WRITE = "write"
"""`Faults.fail_write` works."""
FAULT_SYNC = "sync"
"""`Faults.fail_sync` works."""
FAULT_FULL = "full"
"""`Faults.fill` works."""
FAULT_UNKNOWN = "unknown"
"""`Faults.lose_answer` works."""
FAULT_DAMAGE = "damage"
"""`Faults.damage` works."""


class Faults(Protocol):
    """Has an open store fail; calls of a kind that is not in `kinds` raise `NotImplementedError`.

    A backend that offers it takes the option `faults=True` (`open_store(url, faults=True)`); the store then has the
    attribute `faults`. Without the option nothing of it is there, and nothing of it costs time.
    """

    @property
    def kinds(self) -> frozenset[str]:
        """Which faults this backend can have: some of the `FAULT_*` names."""
        ...

    def fail_write(self) -> None:
        """The next `send` raises `StorageError`: the messages could not be written."""
        ...

    def fail_sync(self) -> None:
        """What is sent next is written; its sync fails, and `Sent` tells a `StorageError`."""
        ...

    def fill(self, space: int = 0) -> None:
        """No more than so many bytes of messages can be written: a `send` beyond raises `StorageFullError`."""
        ...

    def lose_answer(self) -> None:
        """The next `send` raises `OutcomeUnknownError`; whether its messages are stored is the backend's choice."""
        ...

    async def damage(self, place: Place, position: int) -> None:
        """What is stored at a position is no message any more; the topic is open, and the message synced.

        Raises:
            UnknownTopicError: If the topic is not open.
            PositionError: If no message is there.
        """
        ...

    def clear(self) -> None:
        """Nothing fails any more: there is space, and what was to fail next does not. Damage stays."""
        ...


def faults_of(store: Store) -> Faults | None:
    """What has a store fail; None for a backend that does not offer it, or a store made without `faults=True`."""
    return cast("Faults | None", getattr(store, "faults", None))
