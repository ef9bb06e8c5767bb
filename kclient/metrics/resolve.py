"""Finds the reporters that `metric.reporters` names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from kclient.arguments import shown
from kclient.errors import ConfigError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kclient.metrics.reporter import MetricsReporter

__all__ = ["resolve_reporters"]

_METHODS = ("init", "metric_change", "metric_removal", "close")


def resolve_reporters(given: Iterable[Any]) -> tuple[MetricsReporter, ...]:
    """The reporters that `metric.reporters` names.

    Args:
        given: Reporters, classes of them, or `prometheus` and `otel`.

    Raises:
        ConfigError: One is none, or its class cannot be called without arguments.
        MissingExtraError: What one needs is not installed.
    """
    return tuple(_resolved(each) for each in given)


def _resolved(given: Any) -> MetricsReporter:
    if given == "prometheus":
        from kclient.metrics.prometheus import PrometheusReporter

        return PrometheusReporter()
    if given == "otel":
        from kclient.metrics.otel import OpenTelemetryReporter

        return OpenTelemetryReporter()
    made = _made(given) if isinstance(given, type) else given
    lacking = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if lacking:
        raise ConfigError(
            f"metric.reporters: expected a kclient.metrics.MetricsReporter, or an object with its methods; "
            f"{shown(given)} has no {lacking[0]}"
        )
    return cast("MetricsReporter", made)


def _made(given: type) -> Any:
    try:
        return given()
    except KafkaError:
        raise
    except Exception as error:
        raise ConfigError(
            f"metric.reporters: calling {shown(given)} without arguments raised {error!r}; give an object instead"
        ) from error
