"""Metrics that clients push (KIP-714): which are wanted from whom, and what becomes of them.

- `subscriptions.py`: the subscriptions, which are configuration resources of the type CLIENT_METRICS.
- `matching.py`: which clients a subscription is about.
- `java_order.py`: in which order Java has the names of metrics; the number of a subscription depends on it.
- `instances.py`: the clients that ask and push, and what they may do when.
- `otlp.py`: what they push, read.
- `clients.py`: all of that together, for the handlers.
- `pushed.py`: the last values, for Prometheus.
"""

from kclient.gateway.telemetry.clients import ClientTelemetry as ClientTelemetry
from kclient.gateway.telemetry.instances import ClientInstances as ClientInstances
from kclient.gateway.telemetry.instances import PushingClient as PushingClient
from kclient.gateway.telemetry.pushed import PushedMetrics as PushedMetrics
from kclient.gateway.telemetry.subscriptions import ClientMetricsConfigs as ClientMetricsConfigs

__all__ = ["ClientInstances", "ClientMetricsConfigs", "ClientTelemetry", "PushedMetrics", "PushingClient"]
