"""Forgets transactional ids that nobody has used for long."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from kclient.concurrency import Wakeup
from kclient.errors import ClosedError, KafkaError, NotCoordinatorError

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.config import Live
    from kclient.gateway.transaction import Transaction
    from kclient.gateway.transactions.settings import TransactionSettings
    from kclient.gateway.transactions.table import TransactionTable

logger: logging.Logger = logging.getLogger("kclient.gateway.transactions")


class TransactionExpiry:
    """Removes the rows of ids that have expired.

    Args:
        table: The transactional ids.
        clock: What time it is.
        settings: How long ids are kept, as it is at the time.
    """

    def __init__(
        self,
        table: TransactionTable,
        clock: Clock,
        settings: Live[TransactionSettings],
    ) -> None:
        self._table = table
        self._clock = clock
        self._settings = settings
        self._changed = Wakeup()

    def reconfigure(self) -> None:
        """Take over changed settings."""
        self._changed.set()

    async def run(self) -> None:
        """Look for them again and again, for ever."""
        last = self._clock.now()
        while True:
            left = last + self._settings().expired_cleanup_interval_ms / 1000 - self._clock.now()
            if left > 0:
                with anyio.move_on_after(left):
                    await self._changed.wait()
                continue
            last = self._clock.now()
            try:
                await self.expire()
            except ClosedError:
                return
            except KafkaError as error:
                logger.warning("transactional ids that have expired stay for now: %s", error)

    async def expire(self) -> int:
        """Forget those that have expired by now; how many. Raises `KafkaError` where one could not be."""
        count, longest = 0, self._settings().transactional_id_expiration_ms

        def decide(found: Transaction | None, _: int | None) -> Transaction | None:
            nonlocal count
            if found is None or not found.expired(self._clock.wall_ms(), longest):
                return found
            count += 1
            return None

        expired: list[str] = []

        def look(found: Transaction) -> None:
            if found.expired(self._clock.wall_ms(), longest):
                expired.append(found.transactional_id)

        await self._table.look_through(look)
        for transactional_id in expired:
            with suppress(NotCoordinatorError):  # it has moved meanwhile
                await self._table.change(transactional_id, decide)
        return count
