"""What metrics are called outside the client, as KIP-714 says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.metrics.metric import CLIENT_ID

if TYPE_CHECKING:
    from kclient.metrics.metric import MetricName

__all__ = ["attributes", "telemetry_name"]

_PREFIX = "org.apache.kafka"


def telemetry_name(name: MetricName) -> str:
    """Prefix, group without `-metrics`, and name, with dots: `org.apache.kafka.producer.record.send.rate`."""
    group = name.group.lower().replace("-", ".").replace(".metrics", "")
    return f"{_PREFIX}.{group}.{name.name.lower().replace('-', '.')}"


def attributes(name: MetricName, *, client_id: bool = True) -> dict[str, str]:
    """The tags, with `_` for `-`.

    Args:
        name: The metric.
        client_id: Whether `client_id` is among them.
    """
    return {tag.replace("-", "_"): value for tag, value in name.tags.items() if client_id or tag != CLIENT_ID}
