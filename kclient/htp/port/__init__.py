"""The port to HTP: what the gateway asks of a message store, and nothing more.

- `manager`: HTP's *mgr* keeps domains, topics, leases and a small key-value part.
- `broker`: HTP's *brk* keeps messages; `open_topic` is what it opens, `framing` how it reads what it keeps.
- `places`: what both call a topic by.
- `store`: the pair of both, opened from a URL by `kclient.htp.open_store`.
- `faults`: how a store that offers it is made to fail, for tests.

What a backend can do beyond the required calls it says in `Broker.capabilities`; the names are the `CAP_*`
constants of `broker`. Every call is made from the event loop in which the store was opened, if not said otherwise.
All names are here: `from kclient.htp.port import Broker`.
"""

from __future__ import annotations

from kclient.htp.port.broker import (
    CAP_DURABLE,
    CAP_EXCLUSIVE,
    CAP_FENCED_SENDS,
    CAP_FIND_BY_TIMESTAMP,
    CAP_NOWAIT,
    CAP_ORDINAL_POSITIONS,
    CAP_POSITIONS,
    CAP_REWRITE,
    CAP_SEGMENTS,
    CAP_SHARED,
    DURABILITY_SYNCED,
    DURABILITY_WRITTEN,
    Broker,
)
from kclient.htp.port.faults import (
    FAULT_DAMAGE,
    FAULT_FULL,
    FAULT_SYNC,
    FAULT_UNKNOWN,
    FAULT_WRITE,
    Faults,
    faults_of,
)
from kclient.htp.port.framing import (
    Framing,
    MessageInfo,
)
from kclient.htp.port.manager import (
    Change,
    ChangePage,
    Lease,
    LeaseInfo,
    Manager,
    TopicInfo,
    Versioned,
)
from kclient.htp.port.open_topic import (
    DirectTopic,
    Found,
    OpenTopic,
    Pulled,
    RewritableTopic,
    Rewriting,
    SegmentInfo,
    Sent,
    SyncedCallback,
    TopicSettings,
    TopicStatus,
)
from kclient.htp.port.places import (
    Place,
    Topic,
)
from kclient.htp.port.store import (
    DiskSpace,
    LentStore,
    Store,
    StoreOnDisk,
)

__all__ = [
    "CAP_DURABLE",
    "CAP_EXCLUSIVE",
    "CAP_FENCED_SENDS",
    "CAP_FIND_BY_TIMESTAMP",
    "CAP_NOWAIT",
    "CAP_ORDINAL_POSITIONS",
    "CAP_POSITIONS",
    "CAP_REWRITE",
    "CAP_SEGMENTS",
    "CAP_SHARED",
    "DURABILITY_SYNCED",
    "DURABILITY_WRITTEN",
    "FAULT_DAMAGE",
    "FAULT_FULL",
    "FAULT_SYNC",
    "FAULT_UNKNOWN",
    "FAULT_WRITE",
    "Broker",
    "Change",
    "ChangePage",
    "DirectTopic",
    "DiskSpace",
    "Faults",
    "Found",
    "Framing",
    "Lease",
    "LeaseInfo",
    "LentStore",
    "Manager",
    "MessageInfo",
    "OpenTopic",
    "Place",
    "Pulled",
    "RewritableTopic",
    "Rewriting",
    "SegmentInfo",
    "Sent",
    "Store",
    "StoreOnDisk",
    "SyncedCallback",
    "Topic",
    "TopicInfo",
    "TopicSettings",
    "TopicStatus",
    "Versioned",
    "faults_of",
]
