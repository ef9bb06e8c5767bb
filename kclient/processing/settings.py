"""What processing is asked for, and the settings of the clients that it needs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kclient.arguments import shown
from kclient.errors import ConfigError
from kclient.processing.failures import check_on_error

if TYPE_CHECKING:
    from kclient.config import ConsumerConfig, ProducerConfig
    from kclient.processing.failures import OnError

COMMIT_INTERVAL = 0.1
"""Seconds, as `commit.interval.ms` of Kafka Streams where that is exactly once."""
MAX_RETRIES = 5
RETRY_TIMEOUT = 300.0
"""Seconds, as `task.timeout.ms` of Kafka Streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessingSettings:
    """The arguments of a processor, checked."""

    batch: bool
    concurrency: int
    commit_interval: float
    on_error: OnError
    max_retries: int
    retry_timeout: float
    transaction_timeout: float
    """`transaction.timeout.ms`, in seconds."""
    retry_backoff_ms: int
    retry_backoff_max_ms: int


def _check_clients(consumer: ConsumerConfig, producer: ProducerConfig) -> None:
    """Raise if these clients cannot process exactly once.

    Raises:
        ConfigError: A setting contradicts it; the error says which, and what helps.
    """
    if producer.transactional_id is None:
        raise ConfigError(
            "Processing is exactly once, which takes transactions: set transactional.id of the producer "
            "(transactional_id=...), one of its own for each instance"
        )
    if consumer.group_id is None:
        raise ConfigError("Processing commits offsets of a group: set group.id of the consumer (group_id=...)")
    if consumer.enable_auto_commit:
        raise ConfigError(
            "Processing commits the offsets in the producer's transactions, and nobody else may: set "
            "enable.auto.commit=false for the consumer (enable_auto_commit=False)"
        )
    if consumer.isolation_level != "read_committed":
        raise ConfigError(
            "With isolation.level=read_uncommitted records of aborted transactions would be processed: set "
            "isolation.level=read_committed for the consumer (isolation_level='read_committed')"
        )


def processing_settings(
    consumer: ConsumerConfig,
    producer: ProducerConfig,
    *,
    batch: bool,
    concurrency: int = 1,
    commit_interval: float,
    on_error: OnError,
    max_retries: int,
    retry_timeout: float,
) -> ProcessingSettings:
    """Check the arguments of a processor, and the settings of its clients.

    Raises:
        ConfigError: A setting of a client contradicts processing exactly once.
        TypeError, ValueError: An argument is wrong.
    """
    _check_clients(consumer, producer)
    timeout = producer.transaction_timeout_ms / 1000
    interval = _seconds(commit_interval, "commit_interval", 0)
    if interval >= timeout:
        raise ValueError(
            f"commit_interval is {interval:g} s, but the brokers abort a transaction after transaction.timeout.ms "
            f"({timeout:g} s): commit more often, or raise that"
        )
    if not isinstance(batch, bool):
        raise TypeError(f"batch is True or False, not {shown(batch)}")
    return ProcessingSettings(
        batch=batch,
        concurrency=_count(concurrency, "concurrency", 1),
        commit_interval=interval,
        on_error=check_on_error(on_error),
        max_retries=_count(max_retries, "max_retries", 0),
        retry_timeout=_seconds(retry_timeout, "retry_timeout", 0),
        transaction_timeout=timeout,
        retry_backoff_ms=consumer.retry_backoff_ms,
        retry_backoff_max_ms=consumer.retry_backoff_max_ms,
    )


def check_function(function: Any, *, blocking: bool) -> None:
    """Raise if this is not what records can be given to.

    Raises:
        TypeError: It cannot be called, or is a coroutine function where nobody awaits.
    """
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"the third argument is a function that is given a record, not {shown(function)}")
    if blocking and (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
        raise TypeError("a coroutine function needs the async clients: use kclient.processing.process with them")


def _count(value: Any, name: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is a whole number, not {shown(value)}")
    if value < least:
        raise ValueError(f"{name} is {least} or more, not {shown(value)}")
    return value


def _seconds(value: Any, name: str, least: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} is a number of seconds, not {shown(value)}")
    if not least <= value < 1e9:
        raise ValueError(f"{name} is a number of seconds, {least:g} or more, not {shown(value)}")
    return float(value)
