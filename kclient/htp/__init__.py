"""HTP, the store of messages behind the gateway: the port and its backends.

- `open_store(url)`: open `memory:NAME` or `embedded:DIRECTORY`.
- `find_framing(name)`, `register_framing`: what a stored message looks like, by name.
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
    FramingMismatchError,
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
    UnknownFramingError,
    UnknownTopicError,
)
from kclient.htp.framings import find_framing, register_framing
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
    "FramingMismatchError",
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
    "UnknownFramingError",
    "UnknownTopicError",
    "Versioned",
    "find_framing",
    "open_store",
    "register_framing",
]
