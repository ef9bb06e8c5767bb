"""Partitions that share one topic of HTP: the mapping strategy `virtual`.

Each message of the topic is a record batch in an envelope (`envelopes.py`) that tells its partition and its ordinal. An
index (`index.py`, its rows in `index_rows.py`) tells where each partition's batches lie. `SharedTopic` (`topic.py`) is
the topic, opened once for all; `SharedPartition` (`partition.py`) what a partition gets of it, with offsets for
positions; `SharedStore` (`store.py`) opens both. What was read is kept for a while in windows (`windows.py`), of which
the readers of all partitions take their batches (`reading.py`).
"""

from kclient.gateway.virtual.partition import SharedPartition as SharedPartition
from kclient.gateway.virtual.store import SharedStore as SharedStore
from kclient.gateway.virtual.topic import SharedTopic as SharedTopic

__all__ = ["SharedPartition", "SharedStore", "SharedTopic"]
