"""The trace context in a record's headers: put there and found by OpenTelemetry's global propagator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter

from kclient.tracing.replaced import replaced_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kclient.types import Header, Headers

__all__ = ["context_in", "context_of", "with_context"]


class _IntoHeaders(Setter[dict[str, bytes]]):
    def set(self, carrier: dict[str, bytes], key: str, value: str) -> None:
        carrier[key] = value.encode()


class _FromHeaders(Getter[dict[str, list[str]]]):
    def get(self, carrier: dict[str, list[str]], key: str) -> list[str] | None:
        return carrier.get(key.lower())

    def keys(self, carrier: dict[str, list[str]]) -> list[str]:
        return list(carrier)


_INTO_HEADERS: Final = _IntoHeaders()
_FROM_HEADERS: Final = _FromHeaders()


def with_context(headers: Sequence[Header], context: Context) -> Headers:
    """Headers with a trace context: what had another one is replaced, the rest is kept in its order.

    Whatever the propagator raises is raised.
    """
    put = context_in(context)
    if not put:
        return headers
    return [*without(headers, put), *put.items()]


def context_in(context: Context) -> dict[str, bytes]:
    """The headers that carry a trace context.

    Raises:
        TypeError: The propagator gave something else than text.
    """
    put: dict[str, bytes] = {}
    propagate.inject(put, context, _INTO_HEADERS)
    for key, value in put.items():
        if type(key) is not str or type(value) is not bytes:
            raise TypeError(f"the propagator has set the header {key!r} to {value!r}")
    return put


def without(headers: Iterable[Any], put: dict[str, bytes]) -> list[Any]:
    """The headers that are not replaced by others; what is no header stays, to be complained about elsewhere."""
    replaced = replaced_by(put)
    kept = []
    for header in headers:
        if not _is_header(header) or header[0].lower() not in replaced:
            kept.append(header)
    return kept


def _is_header(header: Any) -> bool:
    if not isinstance(header, tuple | list) or len(header) != 2:
        return False
    key, value = header
    return isinstance(key, str) and (value is None or isinstance(value, bytes | bytearray | memoryview))


def context_of(headers: Iterable[Header], base: Context | None = None) -> tuple[trace.SpanContext | None, Context]:
    """The trace context that a record came with, by itself and added to another context.

    Args:
        headers: The record's headers.
        base: What the context is added to; None for nothing.

    Returns:
        None, and the base, where there is none, or none that makes sense.
    """
    base = Context() if base is None else base
    carrier: dict[str, list[str]] = {}
    for key, value in headers:
        if value is not None:
            carrier.setdefault(key.lower(), []).append(bytes(value).decode("utf-8", "replace"))
    if not carrier:
        return None, base
    found = trace.get_current_span(propagate.extract(carrier, Context(), _FROM_HEADERS)).get_span_context()
    if not found.is_valid:
        return None, base
    return found, propagate.extract(carrier, base, _FROM_HEADERS)
