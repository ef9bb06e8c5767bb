"""What access control lists speak of, numbered as in the protocol (KIP-140, KIP-290): clients and gateway share it."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Self

__all__ = ["AclOperation", "AclPermissionType", "PatternType", "ResourceType"]


class _Coded(IntEnum):
    @classmethod
    def _missing_(cls, value: object) -> Any:
        """Brokers newer than this know more: what they name so is unknown, as in the Java client."""
        return cls(0) if isinstance(value, int) and value else None

    @classmethod
    def known(cls) -> tuple[Self, ...]:
        """What an entry may have: without UNKNOWN, and without what only filters have."""
        return tuple(each for each in cls if each.name not in ("UNKNOWN", "ANY", "MATCH"))


class ResourceType(_Coded):
    """What an entry is about."""

    UNKNOWN = 0
    """A broker named one that this release does not know."""
    ANY = 1
    """In filters."""
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    """There is one, named `kafka-cluster`."""
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7
    """KIP-373; Kafka 3.1."""


class PatternType(_Coded):
    """How an entry's resource name is meant (KIP-290; Kafka 2.0)."""

    UNKNOWN = 0
    """A broker named one that this release does not know."""
    ANY = 1
    """In filters: whatever it is; the name is compared as it stands."""
    MATCH = 2
    """In filters: whatever applies to the resource of this name: its own, prefixes of it, and `*`."""
    LITERAL = 3
    """The resource of this name; `*` stands for all."""
    PREFIXED = 4
    """All resources whose names begin so."""


class AclOperation(_Coded):
    """What an entry allows or denies."""

    UNKNOWN = 0
    """A broker named one that this release does not know."""
    ANY = 1
    """In filters."""
    ALL = 2
    READ = 3
    """Implies DESCRIBE where it is allowed, as WRITE, DELETE and ALTER do."""
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    """Implies DESCRIBE_CONFIGS where it is allowed."""
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    """KIP-373; Kafka 3.1."""
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15
    """KIP-939."""


class AclPermissionType(_Coded):
    """Whether an entry allows or denies; where both apply it is denied."""

    UNKNOWN = 0
    """A broker named one that this release does not know."""
    ANY = 1
    """In filters."""
    DENY = 2
    ALLOW = 3
