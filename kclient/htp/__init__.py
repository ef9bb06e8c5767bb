"""HTP, the store of messages behind the gateway: the port and its backends.

- `open_store(url)`: open `memory:NAME` or `embedded:DIRECTORY`.
- `kclient.htp.port`: the protocols `Manager`, `Broker` and `Framing` that a backend implements or is given.
- `kclient.htp.errors`: what can go wrong.
"""

from __future__ import annotations

from kclient.htp.errors import (
    ConflictError,
    DamagedError,
    DomainExistsError,
    FencedError,
    FormatVersionError,
    HtpError,
    LeaseHeldError,
    LockedError,
    OrderError,
    PositionError,
    StorageError,
    StorageFullError,
    StoreClosedError,
    TopicExistsError,
    UnknownDomainError,
    UnknownTopicError,
)
from kclient.htp.port import (
    Broker,
    DirectTopic,
    Found,
    Framing,
    Lease,
    LeaseInfo,
    Manager,
    MessageInfo,
    OpenTopic,
    Place,
    Pulled,
    SegmentInfo,
    Sent,
    Store,
    Topic,
    TopicInfo,
    TopicSettings,
    TopicStatus,
    Versioned,
)
from kclient.htp.store import open_store

__all__ = [
    "Broker",
    "ConflictError",
    "DamagedError",
    "DirectTopic",
    "DomainExistsError",
    "FencedError",
    "FormatVersionError",
    "Found",
    "Framing",
    "HtpError",
    "Lease",
    "LeaseHeldError",
    "LeaseInfo",
    "LockedError",
    "Manager",
    "MessageInfo",
    "OpenTopic",
    "OrderError",
    "Place",
    "PositionError",
    "Pulled",
    "SegmentInfo",
    "Sent",
    "StorageError",
    "StorageFullError",
    "Store",
    "StoreClosedError",
    "Topic",
    "TopicExistsError",
    "TopicInfo",
    "TopicSettings",
    "TopicStatus",
    "UnknownDomainError",
    "UnknownTopicError",
    "Versioned",
    "open_store",
]
