"""What users may implement or pass: records, interceptors, delivery callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from kclient.errors import KafkaError
from kclient.types import Headers, RecordMetadata

DeliveryCallback: TypeAlias = Callable[[RecordMetadata | None, KafkaError | None], object]
"""Called with where the record was stored, or with why it was not; the other one is None."""


@dataclass(slots=True)
class ProducerRecord:
    """A record before serialization: what `send` takes, and interceptors see."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp: int | None = None
    """Milliseconds since the epoch; None takes the time of the append."""
    headers: Headers = ()

    def __post_init__(self) -> None:
        if isinstance(self.headers, Iterator):  # it can be read once only; a record may be read and sent again
            self.headers = tuple(self.headers)


class ProducerInterceptor:
    """Sees every record before it is serialized, and every outcome (`interceptor.classes`, KIP-42).

    An exception in an interceptor is logged and ignored, as in the Java client. The methods run in the thread or
    task that calls the producer, never in the background.
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record to send: this one, or another."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        """The record was stored, or failed; exactly one argument is not None."""

    def close(self) -> None:
        """The producer is closed."""
