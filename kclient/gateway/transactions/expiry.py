"""Forgets transactional ids that nobody has used for long."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from kclient.errors import ClosedError, KafkaError
from kclient.gateway.rows.keys import TRANSACTIONS, parse_transaction_key
from kclient.gateway.rows.transactions import decode_transaction
from kclient.htp.rows import scan_pages

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.config import Live
    from kclient.gateway.leadership import Leadership
    from kclient.gateway.transaction import Transaction
    from kclient.gateway.transactions.settings import TransactionSettings
    from kclient.gateway.transactions.table import TransactionTable
    from kclient.htp.port import Manager

logger: logging.Logger = logging.getLogger("kclient.gateway.transactions")


class TransactionExpiry:
    """Removes the rows of ids that have expired.

    Args:
        table: The transactional ids.
        manager: Has their rows.
        leadership: Tells which ids are coordinated here.
        clock: What time it is.
        settings: How long ids are kept, as it is at the time.
    """

    def __init__(
        self,
        table: TransactionTable,
        manager: Manager,
        leadership: Leadership,
        clock: Clock,
        settings: Live[TransactionSettings],
    ) -> None:
        self._table = table
        self._manager = manager
        self._leadership = leadership
        self._clock = clock
        self._settings = settings

    async def run(self) -> None:
        """Look for them again and again, for ever."""
        while True:
            await anyio.sleep(self._settings().expired_cleanup_interval_ms / 1000)
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

        async for page in scan_pages(self._manager, TRANSACTIONS):
            for key, row in page.items():
                transactional_id = parse_transaction_key(key)
                if not self._leadership.coordinates(transactional_id):
                    continue
                try:
                    found = decode_transaction(row.value, transactional_id)
                except ValueError:
                    continue  # whoever uses it is told
                if found.expired(self._clock.wall_ms(), longest):
                    await self._table.change(transactional_id, decide)
        return count
