"""What appends take that wait for their syncs: of each broker of the store apart, since the disk of one may hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kclient.memory_ledger import LimitedAccount


class BrokerAppends:
    """Those to one broker."""

    __slots__ = ("_all", "held")

    def __init__(self, everybody: AppendMemory) -> None:
        self._all = everybody
        self.held: int = 0
        """Bytes that they take."""

    def add(self, size: int) -> None:
        """They take so many bytes more, or less."""
        self.held += size
        self._all.account.add(size)

    @property
    def many(self) -> bool:
        """Whether whoever appends to it is to wait for syncs, whatever it asks for."""
        return self._exceeds(self._all.many)

    @property
    def full(self) -> bool:
        """Whether no more are taken."""
        return self._exceeds(self._all.account.limit)

    def _exceeds(self, limit: int) -> bool:
        """Whether all together take so much, and these at least as much of it as those to each broker may."""
        return self._all.account.held >= limit and self.held >= limit // self._all.brokers


class AppendMemory:
    """Those to all brokers.

    One broker may take up all there is room for; each other one can have its even part all the same, so all of them
    take twice that at most.

    Args:
        account: Where they count.
    """

    def __init__(self, account: LimitedAccount) -> None:
        self.account: LimitedAccount = account
        self.many: int = account.limit // 2
        """Bytes from which on there are many."""
        self._by_broker: dict[str, BrokerAppends] = {}

    @property
    def brokers(self) -> int:
        """How many brokers have been appended to."""
        return len(self._by_broker)

    def of(self, broker: str) -> BrokerAppends:
        """Those to the broker of this name."""
        found = self._by_broker.get(broker)
        if found is None:
            found = self._by_broker[broker] = BrokerAppends(self)
        return found
