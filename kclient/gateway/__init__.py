"""The gateway: a server that speaks Kafka's protocol to unmodified clients and keeps the messages in HTP.

`Gateway` is what users need. Inside, `assembly` makes the parts and gives each what it uses, `server` decodes requests,
`handlers` answer them (one module per API family), `partitions` join the logs (`log`) to HTP, `topics` is the
catalogue, `groups` the coordinator of consumer groups, and `gateway_metrics` what it tells of itself.
"""

from __future__ import annotations

from kclient.gateway.gateway import Gateway as Gateway
from kclient.gateway.metrics import GatewayMetric as GatewayMetric
from kclient.gateway.metrics import MetricType as MetricType
from kclient.gateway.metrics import Sample as Sample
from kclient.gateway.reloading import Reloaded as Reloaded

__all__ = ["Gateway", "GatewayMetric", "MetricType", "Reloaded", "Sample"]
