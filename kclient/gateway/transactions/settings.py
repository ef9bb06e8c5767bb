"""The settings that the coordinator of transactions heeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kclient.gateway.config import BrokerConfig


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """The broker's settings for transactions."""

    transaction_max_timeout_ms: int = 900_000
    """The longest time that a producer may ask for."""
    transactional_id_expiration_ms: int = 604_800_000
    """An id that nobody has used for so long is forgotten."""
    expired_cleanup_interval_ms: int = 3_600_000
    """How often it is looked for those."""


def transaction_settings(config: BrokerConfig) -> TransactionSettings:
    """The settings for transactions among those of the broker."""
    return TransactionSettings(
        transaction_max_timeout_ms=config.get_int("transaction.max.timeout.ms"),
        transactional_id_expiration_ms=config.get_int("transactional.id.expiration.ms"),
        expired_cleanup_interval_ms=config.get_int("transaction.remove.expired.transaction.cleanup.interval.ms"),
    )
