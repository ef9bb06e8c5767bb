"""Finds the tracer provider that the setting `tracing` names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kclient.arguments import shown
from kclient.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from kclient.tracing.spans import ClientTracing

__all__ = ["resolve_tracing"]


def resolve_tracing(given: Any, client_id: str, group_id: str | None = None) -> ClientTracing | None:
    """The spans of a client; None where it is not to have any.

    Args:
        given: What `tracing` is set to: a tracer provider, `otel` for the global one, or None.
        client_id: The client's `client.id`.
        group_id: The `group.id` of a consumer, if it has one.

    Raises:
        ConfigError: It is no tracer provider.
        MissingExtraError: `opentelemetry-api` is not installed.
    """
    if given is None:
        return None
    try:
        from kclient.tracing.spans import ClientTracing
    except ImportError:
        raise MissingExtraError("opentelemetry-api", "otel", "tracing") from None
    if given != "otel" and (isinstance(given, type) or not callable(getattr(given, "get_tracer", None))):
        raise ConfigError(
            "tracing: expected an opentelemetry.trace.TracerProvider, or 'otel' for the global one, "
            f"got {shown(given)}, which has no get_tracer"
        )
    try:
        return ClientTracing(None if given == "otel" else given, client_id=client_id, group_id=group_id)
    except Exception as error:
        raise ConfigError(f"tracing: get_tracer of {shown(given)} raised {error!r}; give another provider") from error
