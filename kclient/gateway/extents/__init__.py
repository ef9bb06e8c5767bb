"""Where a partition's batches lie in HTP: which offsets in which topic, and at which positions there.

A partition is opened through a `PartitionStore` (`store.py`), which gives a topic whose positions are offsets. What a
partition does it does with that, whatever is behind it:

- On a store whose positions are the ordinals of messages (capability `ordinal_positions`), that is the store's own
  topic: `DirectStore` hands it through, and costs nothing.
- On any other, and where a partition does not lie in one piece, it is an `ExtentTopic` (`topic.py`, and `reading.py`
  for all that only reads) over a list of extents (`extent.py`): offset range → HTP topic and position range. The last
  one is appended to. Within an extent, chunks (`chunks.py`) tell where some offsets lie; between two of them positions
  are bisected. The chunks can be found again by reading, the list cannot: it has a row of its own, once there is more
  than one extent.

What a message is to a partition, a batch or an envelope that names the partition around it, is its encoding
(`encoding.py`). On a store that cannot fence, envelopes tell epochs too, what starts one is a message (`epochs.py`),
and the gateway's lease decides what may be said (`fencing.py`).
"""

from kclient.gateway.extents.chunks import Chunk as Chunk
from kclient.gateway.extents.chunks import Chunks as Chunks
from kclient.gateway.extents.encoding import BARE as BARE
from kclient.gateway.extents.encoding import Encoding as Encoding
from kclient.gateway.extents.encoding import Enveloped as Enveloped
from kclient.gateway.extents.epochs import EpochStarts as EpochStarts
from kclient.gateway.extents.extent import Extent as Extent
from kclient.gateway.extents.fencing import LeaseGuard as LeaseGuard
from kclient.gateway.extents.store import CommitRows as CommitRows
from kclient.gateway.extents.store import DirectStore as DirectStore
from kclient.gateway.extents.store import ExtentStore as ExtentStore
from kclient.gateway.extents.store import PartitionStore as PartitionStore
from kclient.gateway.extents.store import partition_store as partition_store
from kclient.gateway.extents.topic import ExtentTopic as ExtentTopic

__all__ = [
    "BARE",
    "Chunk",
    "Chunks",
    "CommitRows",
    "DirectStore",
    "Encoding",
    "Enveloped",
    "EpochStarts",
    "Extent",
    "ExtentStore",
    "ExtentTopic",
    "LeaseGuard",
    "PartitionStore",
    "partition_store",
]
