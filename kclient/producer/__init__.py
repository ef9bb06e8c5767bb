"""The producer: sends records, in batches, once and in order.

`Producer` is for asyncio and trio; `kclient.sync.Producer` for blocking code.
"""

from __future__ import annotations

from kclient.producer.delivery import Deliveries as Deliveries
from kclient.producer.delivery import Delivery as Delivery
from kclient.producer.interfaces import DeliveryCallback as DeliveryCallback
from kclient.producer.interfaces import ProducerInterceptor as ProducerInterceptor
from kclient.producer.interfaces import ProducerRecord as ProducerRecord
from kclient.producer.partitioner import Partitioner as Partitioner
from kclient.producer.partitioner import RoundRobinPartitioner as RoundRobinPartitioner
from kclient.producer.producer import Producer as Producer

__all__ = [
    "Deliveries",
    "Delivery",
    "DeliveryCallback",
    "Partitioner",
    "Producer",
    "ProducerInterceptor",
    "ProducerRecord",
    "RoundRobinPartitioner",
]
