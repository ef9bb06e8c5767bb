"""The calls that send while tracing is on: each has a span, and each record the trace context in its headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kclient.arguments import check_plain_callback
from kclient.producer.arrow import pieces_of, telling_rows
from kclient.producer.delivery import Deliveries, Delivery
from kclient.producer.interfaces import ProducerRecord
from kclient.producer.record_arguments import as_headers, check_alone
from kclient.producer.sending import Sending
from kclient.producer.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kclient.errors import KafkaError
    from kclient.producer.batch import ProducerBatch
    from kclient.producer.interfaces import DeliveryCallback
    from kclient.producer.sending import Script
    from kclient.tracing.spans import ClientTracing, OpenSpan
    from kclient.types import Headers


class TracedSending(Sending):
    """As `Sending`, with a span for each call that sends.

    A span ends when the fate of its records is known, in the thread that learns it. What `send_batch` and `send_arrow`
    are given has one span, whose context all the records carry.

    Args:
        tracing: Makes the spans.
        parts: As for `Sending`.
    """

    def __init__(self, tracing: ClientTracing, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self._tracing = tracing

    def send(
        self,
        topic: str | ProducerRecord,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp: int | None,
        headers: Headers,
        on_delivery: DeliveryCallback | None = None,
        serialized: bool = False,
    ) -> Delivery | Script[Delivery]:
        """As without tracing."""
        if isinstance(topic, ProducerRecord):
            check_alone(value, key, partition, timestamp, headers)
            record = topic
            topic, value, key, partition = record.topic, record.value, record.key, record.partition
            timestamp, headers = record.timestamp, record.headers
        if on_delivery is not None:
            check_plain_callback(on_delivery, "on_delivery")
        span, headers = self._tracing.sending(topic, key, value, partition, as_headers(headers))
        try:
            made = super().send(topic, value, key, partition, timestamp, headers, on_delivery, serialized)
        except BaseException as error:
            span.end(error)
            raise
        if isinstance(made, Delivery):
            _SentRecord(span, made)()
            return made
        return self._send_later(made, span)

    def _send_later(self, script: Script[Delivery], span: OpenSpan) -> Script[Delivery]:
        try:
            delivery = yield from script
        except BaseException as error:
            span.end(error)
            raise
        _SentRecord(span, delivery)()
        return delivery

    def _send_batch(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None,
        partition: int | None,
        serialized: bool,
    ) -> Script[Deliveries]:
        deliveries = Deliveries()
        span, put = self._tracing.sending_many(topic)
        try:
            yield from self._send_each(deliveries, topic, values, keys, partition, tuple(put.items()), serialized)
        except BaseException as error:
            span.sent_many(len(deliveries), error)
            raise
        _SentRecords(span, deliveries)()
        return deliveries

    def _send_arrow(self, topic: str | None, data: Any) -> Script[Deliveries]:
        deliveries = Deliveries()
        span, put = self._tracing.sending_many(topic)
        try:
            with telling_rows(deliveries):
                yield from self._append_pieces(pieces_of(topic, data, put), deliveries)
        except BaseException as error:
            span.sent_many(len(deliveries), error)
            raise
        _SentRecords(span, deliveries)()
        return deliveries


class _SentRecord:
    """Ends a span once the fate of its record is known: called now, and at each change of state of the batch.

    Args:
        span: The span.
        delivery: Where the record is.
    """

    __slots__ = ("_batch", "_index", "_span")

    def __init__(self, span: OpenSpan, delivery: Delivery) -> None:
        self._span = span
        self._batch: ProducerBatch = delivery.batch
        self._index = delivery.index

    def __call__(self) -> None:
        while True:
            batch, index = self._batch, self._index = self._batch.locate(self._index)
            if batch.done:
                break
            if batch.add_done_callback(index, self, self):
                return
        if batch.state is BatchState.FAILED:
            self._span.end(batch.error_of(index))
        else:
            offset = batch.base_offset + index if batch.base_offset >= 0 else -1
            self._span.sent(batch.tp.topic, batch.tp.partition, offset)


class _SentRecords:
    """As `_SentRecord`, for what one call has sent.

    Args:
        span: The span.
        deliveries: Where the records are.
    """

    __slots__ = ("_batches", "_count", "_error", "_span")

    def __init__(self, span: OpenSpan, deliveries: Deliveries) -> None:
        self._span = span
        self._count = len(deliveries)
        self._batches = list(dict.fromkeys(deliveries._batches()))
        """Those of which the fate is not known yet; the last one is waited for."""
        self._batches.reverse()
        self._error: KafkaError | None = None

    def __call__(self) -> None:
        batches = self._batches
        while batches:
            batch = batches[-1]
            if batch.state is BatchState.SPLIT:
                batches[-1:] = [child for _, child in reversed(batch.splits)]
            elif batch.done:
                del batches[-1]
                if batch.state is BatchState.FAILED and self._error is None:
                    self._error = batch.error
            elif batch.add_waiter(self):
                return
        self._span.sent_many(self._count, self._error)
