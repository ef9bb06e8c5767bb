"""Metrics that clients push to the cluster (KIP-714)."""

from __future__ import annotations

from kclient.protocol.message import ApiMessage
from kclient.protocol.schema import ArrayOf, field
from kclient.protocol.types import BOOL, BYTES, INT8, INT16, INT32, STRING, UUID

__all__ = [
    "GetTelemetrySubscriptionsRequest",
    "GetTelemetrySubscriptionsResponse",
    "PushTelemetryRequest",
    "PushTelemetryResponse",
]


class GetTelemetrySubscriptionsRequest(ApiMessage, api_key=71, versions="0", flexible="0+"):
    """Asks which metrics the cluster wants from this client (KIP-714)."""

    client_instance_id: bytes = field(UUID)


class GetTelemetrySubscriptionsResponse(ApiMessage, api_key=71, versions="0", flexible="0+"):
    """The client's instance id, the metrics that are wanted, and how often."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    client_instance_id: bytes = field(UUID)
    subscription_id: int = field(INT32)
    accepted_compression_types: list[int] = field(ArrayOf(INT8))
    push_interval_ms: int = field(INT32)
    telemetry_max_bytes: int = field(INT32)
    delta_temporality: bool = field(BOOL)
    requested_metrics: list[str] = field(ArrayOf(STRING))


class PushTelemetryRequest(ApiMessage, api_key=72, versions="0", flexible="0+"):
    """Sends metrics, in OpenTelemetry's format."""

    client_instance_id: bytes = field(UUID)
    subscription_id: int = field(INT32)
    terminating: bool = field(BOOL)
    compression_type: int = field(INT8)
    metrics: bytes = field(BYTES)


class PushTelemetryResponse(ApiMessage, api_key=72, versions="0", flexible="0+"):
    """Whether they were taken."""

    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
