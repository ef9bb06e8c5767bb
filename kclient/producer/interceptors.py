"""The interceptors of one producer, in the order in which they see a record."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kclient.arguments import shown
from kclient.errors import KafkaError
from kclient.producer.interfaces import ProducerRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kclient.producer.interfaces import DeliveryCallback, ProducerInterceptor

logger: logging.Logger = logging.getLogger("kclient.producer")


class Interceptors:
    """Shows them records and outcomes; what they raise is logged, as in the Java client.

    Args:
        interceptors: In their order.
    """

    def __init__(self, interceptors: tuple[ProducerInterceptor, ...]) -> None:
        self._interceptors = interceptors

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Let them see a record; the one to send."""
        for interceptor in self._interceptors:
            try:
                seen = interceptor.on_send(record)
                if not isinstance(seen, ProducerRecord):
                    raise TypeError(f"on_send returns the record to send, a ProducerRecord; not {shown(seen)}")
                record = seen
            except Exception:  # the user's code: the record is sent as it was, as in Java
                logger.exception("%s.on_send raised", type(interceptor).__name__)
        return record

    @contextmanager
    def seen(self) -> Iterator[None]:
        """They have seen a record: if it is not appended in the block, they are told why."""
        try:
            yield
        except BaseException as error:
            self._acknowledge(None, error if isinstance(error, KafkaError) else _not_sent(error))
            raise

    def acknowledgement(self, callback: DeliveryCallback | None) -> DeliveryCallback:
        """The callback that tells them of an outcome, then the user."""

        def tell(metadata: Any, error: KafkaError | None) -> None:
            self._acknowledge(metadata, error)
            if callback is not None:
                callback(metadata, error)

        return tell

    def _acknowledge(self, metadata: Any, error: KafkaError | None) -> None:
        for interceptor in self._interceptors:
            try:
                interceptor.on_acknowledgement(metadata, error)
            except Exception:  # the user's code: the delivery stays what it is
                logger.exception("%s.on_acknowledgement raised", type(interceptor).__name__)


def _not_sent(error: BaseException) -> KafkaError:
    """What kept a record from being sent, as the interceptors are told."""
    text = str(error) if isinstance(error, Exception) else "the call was cancelled or interrupted"
    wrapped = KafkaError(f"The record was not sent: {text or repr(error)}")
    wrapped.__cause__ = error
    return wrapped
