"""The spans of one client: OpenTelemetry's conventions for messaging systems and Kafka, by its API (the extra `otel`).

Whatever a tracer, a propagator or a span processor raises is logged and ignored: records are sent and read all the
same. A span that could not be begun is one that nobody records.
"""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from kclient.errors import KafkaError
from kclient.tracing.propagation import context_in, context_of, with_context
from kclient.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from contextvars import Token
    from types import TracebackType

    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider
    from opentelemetry.util.types import AttributeValue

    from kclient.types import Header, Headers

__all__ = ["ClientTracing", "OpenSpan", "Processing"]

logger: logging.Logger = logging.getLogger("kclient.tracing")

_SYSTEM: Final = "messaging.system"
_OPERATION: Final = "messaging.operation.name"
_TYPE: Final = "messaging.operation.type"
_CLIENT: Final = "messaging.client.id"
_GROUP: Final = "messaging.consumer.group.name"
_TOPIC: Final = "messaging.destination.name"
_PARTITION: Final = "messaging.destination.partition.id"
_OFFSET: Final = "messaging.kafka.offset"
_KEY: Final = "messaging.kafka.message.key"
_TOMBSTONE: Final = "messaging.kafka.message.tombstone"
_COUNT: Final = "messaging.batch.message_count"
_ERROR: Final = "error.type"


class OpenSpan:
    """A span that has begun. It ends once; further ends do nothing.

    Args:
        span: The span.
    """

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span: Span | None = span

    def end(self, error: BaseException | None = None, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        """End it.

        Args:
            error: Why the operation failed; None if it did not.
            attributes: What has become known.
        """
        span, self._span = self._span, None
        if span is None:
            return
        with _Ignoring("telling a span how it ended"):
            if attributes:
                span.set_attributes(dict(attributes))
            if error is not None:
                _tell(span, error)
        with _Ignoring("ending a span"):
            span.end()

    def sent(self, topic: str, partition: int, offset: int) -> None:
        """A record was stored; an offset below 0 is not known."""
        attributes: dict[str, AttributeValue] = {_TOPIC: topic, _PARTITION: str(partition)}
        if offset >= 0:
            attributes[_OFFSET] = offset
        self.end(None, attributes)

    def sent_many(self, count: int, error: BaseException | None) -> None:
        """Records were stored, or an error is the first of those that some of them met with."""
        self.end(error, {_COUNT: count})


class ClientTracing:
    """Makes the spans of one client. May be called from any thread.

    Args:
        provider: The tracer provider; None for the global one.
        client_id: `client.id`.
        group_id: `group.id` of a consumer.
    """

    def __init__(self, provider: TracerProvider | None, *, client_id: str, group_id: str | None = None) -> None:
        self._tracer = trace.get_tracer("kclient", __version__, provider)
        self._common: dict[str, AttributeValue] = {_SYSTEM: "kafka", _CLIENT: client_id}
        if group_id is not None:
            self._common[_GROUP] = group_id

    # ------------------------------------------------------------------ the producer's

    def sending(
        self, topic: object, key: object, value: object, partition: object, headers: Sequence[Header]
    ) -> tuple[OpenSpan, Headers]:
        """A record is being sent: the span that ends when its fate is known, and its headers with that context."""
        attributes = self._attributes("send", "send", topic)
        if type(partition) is int:
            attributes[_PARTITION] = str(partition)
        _put_key(attributes, key)
        if value is None:
            attributes[_TOMBSTONE] = True
        span = self._start("send", topic, SpanKind.PRODUCER, attributes)
        with _Ignoring("putting the trace context into headers"):
            headers = with_context(headers, trace.set_span_in_context(span))
        return OpenSpan(span), headers

    def sending_many(self, topic: str | None) -> tuple[OpenSpan, dict[str, bytes]]:
        """Records are being sent by one call: the span of all of them, and the headers that each carries."""
        span = self._start("send", topic, SpanKind.PRODUCER, self._attributes("send", "send", topic))
        put: dict[str, bytes] = {}
        with _Ignoring("putting the trace context into headers"):
            put = context_in(trace.set_span_in_context(span))
        return OpenSpan(span), put

    # ------------------------------------------------------------------ the consumer's

    @staticmethod
    def now() -> int:
        """The time for `received`, in nanoseconds since the epoch."""
        return time.time_ns()

    def received(self, began: int, records: Collection[Any], *, batch: bool = True) -> None:
        """Records are handed out.

        Args:
            began: When they were asked for.
            records: The records.
            batch: Whether the call hands out as many as there are; else one.
        """
        self._done("poll", "receive", SpanKind.CLIENT, began, records, batch=batch)

    def received_rows(self, began: int, rows: int) -> None:
        """Records are handed out as columns: their headers are not looked at."""
        attributes = self._attributes("poll", "receive", None)
        attributes[_COUNT] = rows
        OpenSpan(self._start("poll", None, SpanKind.CLIENT, attributes, began=began)).end()

    def not_received(self, began: int, error: BaseException) -> None:
        """Records were asked for, and there is an error instead."""
        attributes = self._attributes("poll", "receive", None)
        OpenSpan(self._start("poll", None, SpanKind.CLIENT, attributes, began=began)).end(error)

    def settling(self, offsets: Mapping[Any, Any], began: int | None = None) -> OpenSpan:
        """Offsets are being committed, or records acknowledged.

        Args:
            offsets: By partition; where there is one partition only, a number is the offset of its next record.
            began: When that began; None is now.
        """
        topics = {tp.topic for tp in offsets}
        topic = topics.pop() if len(topics) == 1 else None
        attributes = self._attributes("commit", "settle", topic)
        if len(offsets) == 1:
            ((tp, place),) = offsets.items()
            attributes[_PARTITION] = str(tp.partition)
            offset = getattr(place, "offset", None)
            if isinstance(offset, int):
                attributes[_OFFSET] = offset
        return OpenSpan(self._start("commit", topic, SpanKind.CLIENT, attributes, began=began))

    def processing(self, records: Sequence[Any], *, batch: bool) -> Processing:
        """Records are about to be processed; see `Processing`."""
        return Processing(self, records, batch)

    def begin_processing(self, records: Sequence[Any], batch: bool) -> tuple[OpenSpan, Context]:
        """The span in which records are processed, and the context for that."""
        ambient = contexts.get_current()
        parent = None
        if not batch and not trace.get_current_span(ambient).get_span_context().is_valid:
            with _Ignoring("reading a record's trace context"):
                parent = context_of(records[0].headers, ambient)[1]
        span = self._over("process", "process", SpanKind.CONSUMER, records, batch=batch, context=parent)
        return OpenSpan(span), trace.set_span_in_context(span, ambient if parent is None else parent)

    # ------------------------------------------------------------------ making them

    def _done(
        self, name: str, kind_of: str, kind: SpanKind, began: int, records: Collection[Any], *, batch: bool
    ) -> None:
        OpenSpan(self._over(name, kind_of, kind, records, batch=batch, began=began)).end()

    def _over(
        self,
        operation: str,
        kind_of: str,
        kind: SpanKind,
        records: Collection[Any],
        *,
        batch: bool,
        context: Context | None = None,
        began: int | None = None,
    ) -> Span:
        """A span over records, linked to where they come from."""
        places = {(record.topic, record.partition) for record in records}
        topics = {topic for topic, _ in places}
        topic = topics.pop() if len(topics) == 1 else None
        attributes = self._attributes(operation, kind_of, topic)
        if len(places) == 1:
            attributes[_PARTITION] = str(next(iter(places))[1])
        if batch:
            attributes[_COUNT] = len(records)
        else:
            for record in records:
                attributes[_OFFSET] = record.offset
                _put_key(attributes, record.key)
                if record.value is None:
                    attributes[_TOMBSTONE] = True
        return self._start(operation, topic, kind, attributes, context=context, links=_links(records), began=began)

    def _attributes(self, operation: str, kind_of: str, topic: object) -> dict[str, AttributeValue]:
        attributes = {**self._common, _OPERATION: operation, _TYPE: kind_of}
        if isinstance(topic, str):
            attributes[_TOPIC] = topic
        return attributes

    def _start(
        self,
        operation: str,
        topic: object,
        kind: SpanKind,
        attributes: Mapping[str, AttributeValue],
        *,
        context: Context | None = None,
        links: Sequence[Link] | None = None,
        began: int | None = None,
    ) -> Span:
        name = f"{operation} {topic}" if isinstance(topic, str) else operation
        span: object = None
        with _Ignoring("beginning a span"):
            span = self._tracer.start_span(
                name, context, kind, attributes, links, began, record_exception=False, set_status_on_exception=False
            )
        return span if isinstance(span, Span) else trace.INVALID_SPAN


class Processing(AbstractContextManager[Any]):
    """A block in which records are processed: a span that is the current one there.

    The span is linked to the contexts that the records were sent in. That of a single record is also its parent,
    unless the block is within another span, which is the parent then.

    Args:
        tracing: Makes it.
        records: The records.
        batch: Whether they were given as several.
    """

    __slots__ = ("_batch", "_context", "_open", "_records", "_token", "_tracing")

    def __init__(self, tracing: ClientTracing, records: Sequence[Any], batch: bool) -> None:
        self._tracing = tracing
        self._records = records
        self._batch = batch
        self._open: OpenSpan | None = None
        self._context: Context | None = None
        self._token: Token[Context] | None = None

    def __enter__(self) -> Span:
        if self._open is not None:
            raise RuntimeError("This block of processing was entered before: call processing again for another span")
        self._open, self._context = self._tracing.begin_processing(self._records, self._batch)
        self._token = contexts.attach(self._context)
        return trace.get_current_span(self._context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            contexts.detach(self._token)
        if self._open is not None:
            self._open.end(None if isinstance(error, GeneratorExit) else error)

    def again(self) -> AbstractContextManager[None]:
        """The context of the block once more, for what follows from it after its end."""
        return _Attached(self._context)


class _Attached(AbstractContextManager[None]):
    """A block in another context."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: Context | None) -> None:
        self._context = context
        self._token: Token[Context] | None = None

    def __enter__(self) -> None:
        if self._context is not None:
            self._token = contexts.attach(self._context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            contexts.detach(self._token)


def _links(records: Iterable[Any]) -> list[Link]:
    """Links to the contexts that records were sent in, each once."""
    found: dict[tuple[int, int], trace.SpanContext] = {}
    for record in records:
        headers = record.headers
        if not headers:
            continue
        with _Ignoring("reading a record's trace context"):
            sent_in = context_of(headers)[0]
            if sent_in is not None:
                found[sent_in.trace_id, sent_in.span_id] = sent_in
    return [Link(sent_in) for sent_in in found.values()]


def _put_key(attributes: dict[str, AttributeValue], key: object) -> None:
    """Take down a record's key where it is text."""
    if isinstance(key, bytes):
        try:
            key = key.decode()
        except UnicodeDecodeError:
            return
    if isinstance(key, str):
        attributes[_KEY] = key


def _tell(span: Span, error: BaseException) -> None:
    span.set_attribute(_ERROR, error.code_name if isinstance(error, KafkaError) else type(error).__qualname__)
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, str(error)))


_told: set[str] = set()
"""What was logged as a warning."""


class _Ignoring(AbstractContextManager[None]):
    """A block in which something of the user's may raise: that is logged, the first of its kind as a warning.

    Args:
        what: What the block does.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        level = logging.DEBUG if self._what in _told else logging.WARNING
        _told.add(self._what)
        logger.log(level, "%s failed, and is left out: %r", self._what, error, exc_info=error)
        return True
