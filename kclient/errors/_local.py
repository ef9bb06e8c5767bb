"""Errors that arise in the client itself: they carry no code of the Kafka protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kclient.errors._base import (
    AuthenticationError,
    InvalidConfigurationError,
    InvalidOffsetError,
    KafkaError,
    KafkaTimeoutError,
    RetriableError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kclient.types import OffsetAndMetadata, TopicPartition

__all__ = [
    "BrokerConnectionError",
    "BufferExhaustedError",
    "ClosedError",
    "CommitFailedError",
    "ConfigError",
    "DeliveryError",
    "FailedDelivery",
    "IllegalStateError",
    "LogTruncationError",
    "MaxPollExceededError",
    "MissingExtraError",
    "NoBrokersAvailableError",
    "NoOffsetForPartitionError",
    "NotYetSupportedError",
    "OAuthTokenError",
    "ProtocolError",
    "RecordDeserializationError",
    "RetriableCommitFailedError",
    "SchemaRegistryError",
    "SerializationError",
    "SslAuthenticationError",
    "TransactionAbortedError",
    "WakeupError",
]


class ConfigError(InvalidConfigurationError, ValueError):
    """A setting is unknown or has a value that cannot be used."""

    code: int | None = None


class IllegalStateError(KafkaError, RuntimeError):
    """The call is not allowed in the present state of the object."""


class ClosedError(IllegalStateError):
    """The object was closed; make a new one."""


class WakeupError(KafkaError):
    """A waiting call was ended by `wakeup()`."""


class NotYetSupportedError(KafkaError, NotImplementedError):
    """kclient cannot do this yet."""


class MissingExtraError(KafkaError, ImportError):
    """An optional package is missing.

    Args:
        package: The package that could not be imported.
        extra: The extra of kclient that brings it, as in `pip install 'htp-kclient[arrow]'`.
        purpose: What needs it, as the start of the sentence.
    """

    fatal = True

    def __init__(self, package: str, extra: str, purpose: str = "This") -> None:
        super().__init__(f"{purpose} needs the package {package}: pip install 'htp-kclient[{extra}]'")
        self.args: tuple[object, ...] = (package, extra, purpose)  # what pickle calls the class with
        self.package = package
        self.extra = extra


class BrokerConnectionError(RetriableError, ConnectionError):
    """A connection to a broker could not be made, or broke.

    Args:
        message: What happened, with the address.
        attempts: The addresses that were tried, each with the reason why it failed.
    """

    refresh_metadata = True

    def __init__(
        self,
        message: str | None = None,
        *,
        attempts: Iterable[tuple[str, BaseException]] = (),
        retriable: bool | None = None,
        fatal: bool | None = None,
    ) -> None:
        super().__init__(message, retriable=retriable, fatal=fatal)
        self.attempts: list[tuple[str, BaseException]] = []
        for address, error in attempts:
            # an attempt that was made of attempts: those say it all
            inner = error.attempts if isinstance(error, BrokerConnectionError) else []
            self.attempts += inner or [(address, error)]

    def __str__(self) -> str:
        tried = "; ".join(f"{address}: {_reason(error)}" for address, error in self.attempts)
        return f"{self.message} (tried {tried})" if tried else self.message


class SslAuthenticationError(AuthenticationError):
    """The broker and this client found no way to trust each other (TLS); a new attempt would end the same way.

    The text says which check failed and which `ssl.` setting to look at.
    """


class OAuthTokenError(AuthenticationError):
    """There is no OAuth token to authenticate with: the identity provider or the token callback gave none.

    Where the reason may pass, `retriable` is true and the client goes on trying.
    """


class NoBrokersAvailableError(BrokerConnectionError):
    """None of the bootstrap servers could be reached; check `bootstrap.servers` and that a broker runs."""


class ProtocolError(KafkaError):
    """The peer sent bytes that are not valid Kafka protocol.

    Args:
        message: What was wrong.
        position: Where in the frame, in bytes from its start, if known.
    """

    def __init__(self, message: str | None = None, *, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class SerializationError(KafkaError):
    """A key, value or header could not be turned into bytes, or back."""


class SchemaRegistryError(KafkaError):
    """A schema registry has no such schema, or cannot be asked; `retriable` says whether asking later may help."""


class RecordDeserializationError(SerializationError):
    """A fetched record could not be deserialized; `seek` past its offset to go on without it.

    Args:
        message: What happened.
        topic: Topic of the record.
        partition: Partition of the record.
        offset: Offset of the record.
    """

    def __init__(self, message: str | None = None, *, topic: str = "", partition: int = -1, offset: int = -1) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class BufferExhaustedError(KafkaTimeoutError):
    """No room became free in the producer's buffer; raise `max.block.ms` or `buffer.memory`, or send less."""


class FailedDelivery(NamedTuple):
    """Records of one partition that could not be delivered for one reason."""

    topic: str
    partition: int
    count: int  # type: ignore[assignment]  # hides tuple.count on purpose
    """How many records."""
    error: KafkaError


class DeliveryError(KafkaError):
    """Records could not be delivered, and nobody awaited their deliveries.

    Args:
        message: What happened.
        failures: What was not delivered, in the order in which it failed.
    """

    def __init__(self, message: str | None = None, *, failures: Sequence[FailedDelivery] = ()) -> None:
        super().__init__(message)
        self.failures: list[FailedDelivery] = list(failures)

    @property
    def count(self) -> int:
        """How many records were not delivered."""
        return sum(failure.count for failure in self.failures)


class NoOffsetForPartitionError(InvalidOffsetError):
    """A partition has no committed offset and `auto.offset.reset` is `none`; seek, or set a reset policy.

    Args:
        message: What happened.
        partitions: The partitions without a position.
    """

    def __init__(self, message: str | None = None, *, partitions: Sequence[TopicPartition] = ()) -> None:
        super().__init__(message)
        self.partitions: list[TopicPartition] = list(partitions)


class LogTruncationError(InvalidOffsetError):
    """The log was cut back below the consumer's position (unclean leader election); seek to go on.

    Args:
        message: What happened.
        divergent_offsets: By partition, where the log differs from what was read: the first offset that is to be read
            again, with the leader epoch before it.
    """

    def __init__(
        self, message: str | None = None, *, divergent_offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None
    ) -> None:
        super().__init__(message)
        self.divergent_offsets: dict[TopicPartition, OffsetAndMetadata] = dict(divergent_offsets or {})

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions concerned."""
        return list(self.divergent_offsets)


class CommitFailedError(KafkaError):
    """The commit came too late: the group has given the partitions to another member.

    Process less per poll (`max.poll.records`) or allow more time (`max.poll.interval.ms`).
    """


class RetriableCommitFailedError(RetriableError):
    """The offsets could not be committed for a reason that passes; committing again may succeed."""


class MaxPollExceededError(KafkaError):
    """Too much time passed between two polls, so the consumer left its group.

    Process less per poll (`max.poll.records`) or allow more time (`max.poll.interval.ms`).
    """


class TransactionAbortedError(KafkaError):
    """The record was part of a transaction that is aborted: nobody will read it."""


def _reason(error: BaseException) -> str:
    """The text of an error, or its class where it has none (a bare TimeoutError)."""
    return str(error) or type(error).__name__
