"""Spans of clients for tests: kept in memory, and counted while they are open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider


class Spans(SpanProcessor):
    """Has the spans of a provider of its own."""

    def __init__(self) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(self)
        self.begun = 0
        self.ended: list[ReadableSpan] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.begun += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)

    @property
    def open(self) -> int:
        """How many have not ended."""
        return self.begun - len(self.ended)

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of a name that have ended."""
        return [span for span in self.ended if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span of a name."""
        (found,) = self.named(name)
        return found


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """The attributes of a span, by the last words of their names."""
    return {name.removeprefix("messaging."): value for name, value in (span.attributes or {}).items()}


def header_of(span: ReadableSpan) -> tuple[str, bytes]:
    """The header that carries a span's context, by the W3C's recommendation."""
    context = span.get_span_context()
    assert context is not None
    return "traceparent", f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}".encode()


def linked(span: ReadableSpan) -> set[int]:
    """The ids of the spans that a span is linked to."""
    return {link.context.span_id for link in span.links}


def id_of(span: ReadableSpan) -> int:
    """A span's id."""
    context = span.get_span_context()
    assert context is not None
    return context.span_id


@contextmanager
def propagating_by(propagator: TextMapPropagator) -> Iterator[None]:
    """Another global propagator for the length of a block."""
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(propagator)
    try:
        yield
    finally:
        propagate.set_global_textmap(before)
