"""A Kafka client for asyncio, trio and blocking code, and a Kafka-compatible gateway over HTP.

Everything public is exported here, loaded on first use (PEP 562), so `import kclient` costs
next to nothing:

- `Producer`, `Consumer`, `ShareConsumer`, `Admin`: the clients, for asyncio and trio.
- `kclient.sync`: the same clients for blocking code.
- `TopicPartition`, `KafkaError` and the other values and interfaces that applications use; the modules
  `kclient.admin`, `.consumer`, `.producer`, `.serialization`, `.errors` and `.types` have all of them.
- `Gateway`: the server that speaks Kafka's protocol and keeps the messages in HTP.
- `kclient.htp`: the port to HTP and its embedded backend.
- `kclient.metrics`: what the clients' `metrics()` gives, and who else is told.
- `kclient.processing`: reading, processing and writing exactly once.
- `kclient.spark`: the PySpark data source and the pipelines.
- `kclient.testing`: a pytest fixture with a broker in the process.
"""

from __future__ import annotations

from kclient.registry import connectors as _connectors
from kclient.registry import framings as _framings
from kclient.version import __version__ as __version__

TYPE_CHECKING = False  # as in `typing`, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from kclient.admin import Admin as Admin
    from kclient.admin import ConfigOperation as ConfigOperation
    from kclient.admin import ConfigResource as ConfigResource
    from kclient.admin import ConfigResourceType as ConfigResourceType
    from kclient.admin import NewTopic as NewTopic
    from kclient.admin import OffsetSpec as OffsetSpec
    from kclient.consumer import AcknowledgeType as AcknowledgeType
    from kclient.consumer import Assignor as Assignor
    from kclient.consumer import Consumer as Consumer
    from kclient.consumer import ConsumerInterceptor as ConsumerInterceptor
    from kclient.consumer import ConsumerRecord as ConsumerRecord
    from kclient.consumer import ConsumerRecords as ConsumerRecords
    from kclient.consumer import RebalanceListener as RebalanceListener
    from kclient.consumer import ShareConsumer as ShareConsumer
    from kclient.errors import KafkaError as KafkaError
    from kclient.gateway import Gateway as Gateway
    from kclient.net.sasl.token import OAuthToken as OAuthToken
    from kclient.producer import Deliveries as Deliveries
    from kclient.producer import Delivery as Delivery
    from kclient.producer import Partitioner as Partitioner
    from kclient.producer import Producer as Producer
    from kclient.producer import ProducerInterceptor as ProducerInterceptor
    from kclient.producer import ProducerRecord as ProducerRecord
    from kclient.serialization import Deserializer as Deserializer
    from kclient.serialization import Serializer as Serializer
    from kclient.types import Node as Node
    from kclient.types import OffsetAndMetadata as OffsetAndMetadata
    from kclient.types import OffsetAndTimestamp as OffsetAndTimestamp
    from kclient.types import PartitionInfo as PartitionInfo
    from kclient.types import PartitionWatermarks as PartitionWatermarks
    from kclient.types import RecordMetadata as RecordMetadata
    from kclient.types import TimestampType as TimestampType
    from kclient.types import TopicPartition as TopicPartition

# Where each public name lives. The type checkers read the imports above; the test of the exports compares both.
_EXPORTS = {
    "AcknowledgeType": "kclient.consumer",
    "Admin": "kclient.admin",
    "Assignor": "kclient.consumer",
    "ConfigOperation": "kclient.admin",
    "ConfigResource": "kclient.admin",
    "ConfigResourceType": "kclient.admin",
    "Consumer": "kclient.consumer",
    "ConsumerInterceptor": "kclient.consumer",
    "ConsumerRecord": "kclient.consumer",
    "ConsumerRecords": "kclient.consumer",
    "Deliveries": "kclient.producer",
    "Delivery": "kclient.producer",
    "Deserializer": "kclient.serialization",
    "Gateway": "kclient.gateway",
    "KafkaError": "kclient.errors",
    "NewTopic": "kclient.admin",
    "Node": "kclient.types",
    "OAuthToken": "kclient.net.sasl.token",
    "OffsetAndMetadata": "kclient.types",
    "OffsetAndTimestamp": "kclient.types",
    "OffsetSpec": "kclient.admin",
    "PartitionInfo": "kclient.types",
    "Partitioner": "kclient.producer",
    "Producer": "kclient.producer",
    "ProducerInterceptor": "kclient.producer",
    "ProducerRecord": "kclient.producer",
    "RebalanceListener": "kclient.consumer",
    "RecordMetadata": "kclient.types",
    "Serializer": "kclient.serialization",
    "ShareConsumer": "kclient.consumer",
    "TimestampType": "kclient.types",
    "TopicPartition": "kclient.types",
    "PartitionWatermarks": "kclient.types",
}

_SUBMODULES = (
    "admin",
    "consumer",
    "errors",
    "gateway",
    "htp",
    "metrics",
    "processing",
    "producer",
    "serialization",
    "spark",
    "sync",
    "testing",
    "types",
)

__all__ = [
    "AcknowledgeType",
    "Admin",
    "Assignor",
    "ConfigOperation",
    "ConfigResource",
    "ConfigResourceType",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerRecord",
    "ConsumerRecords",
    "Deliveries",
    "Delivery",
    "Deserializer",
    "Gateway",
    "KafkaError",
    "NewTopic",
    "Node",
    "OAuthToken",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetSpec",
    "PartitionInfo",
    "PartitionWatermarks",
    "Partitioner",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "RebalanceListener",
    "RecordMetadata",
    "Serializer",
    "ShareConsumer",
    "TimestampType",
    "TopicPartition",
    "__version__",
]

# This module is where the rooms are joined. The in-process gateway answers for these address schemes, and is imported
# only when an address names one; HTP, which knows nothing of Kafka, finds these framings by their names.
_connectors["memory"] = _connectors["embedded"] = "kclient.inprocess:connect"
_framings["kafka.record-batch.v2"] = "kclient.records:RecordBatchFraming"
_framings["kclient.envelope.v3"] = "kclient.gateway.extents.encoding:EnvelopeFraming"
_framings["kclient.envelope.v3.ordinals"] = "kclient.gateway.virtual.envelopes:OrdinalsInEnvelopes"
_framings["kclient.contract.v1"] = "kclient.htp.contract.messages:ContractFraming"
_framings["kclient.envelope.v2"] = "kclient.gateway.virtual.envelopes:OrdinalFraming"


if not TYPE_CHECKING:  # else the checkers would believe that every name exists

    def __getattr__(name: str) -> Any:
        import importlib

        if name in _EXPORTS:
            value = getattr(importlib.import_module(_EXPORTS[name]), name)
            globals()[name] = value
            return value
        if name in _SUBMODULES:
            return importlib.import_module(f"kclient.{name}")
        raise AttributeError(f"module 'kclient' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS, *_SUBMODULES})
