"""Whom quotas hold for, which there are, and which of them holds for a client (KIP-13, KIP-55, KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import isfinite
from typing import Final, NamedTuple, TypeAlias

from kclient.errors import InvalidRequestError
from kclient.gateway.setting import INT_MAX, LONG_MAX

__all__ = [
    "ANY_CLIENT_ID",
    "ANY_USER",
    "CLIENT_ID",
    "IP",
    "TYPES",
    "USER",
    "Entity",
    "QuotaKind",
    "QuotaLevel",
    "Quotas",
    "Tags",
    "check_value",
    "entity_of",
    "levels",
]

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
TYPES: Final = (USER, CLIENT_ID, IP)
"""The types of what an entity consists of, in the order in which they are shown."""

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Types and names, in the order of `TYPES`; None is the default, which holds for all that have no name of their own."""
Quotas: TypeAlias = Mapping[str, float]
"""Values by the names of quotas."""
Tags: TypeAlias = tuple[str | None, str | None]
"""User and client id of those that share what a quota allows; None for whoever it is."""

ANY_USER: Final = (USER, None)
ANY_CLIENT_ID: Final = (CLIENT_ID, None)

_LONGEST_NAME: Final = 1024
_EPSILON: Final = 1e-6


class QuotaKind(Enum):
    """What is bounded, by the names of quotas."""

    PRODUCE = "producer_byte_rate"
    """Bytes of Produce requests in a second."""
    FETCH = "consumer_byte_rate"
    """Bytes of answers to Fetch and ShareFetch in a second."""
    REQUEST = "request_percentage"
    """The time of the event loop, in hundredths."""
    CONTROLLER_MUTATION = "controller_mutation_rate"
    """Partitions that are made and deleted in a second."""
    CONNECTION = "connection_creation_rate"
    """Connections of an address in a second."""


_GREATEST: Final[Mapping[QuotaKind, int | None]] = {
    QuotaKind.PRODUCE: LONG_MAX,
    QuotaKind.FETCH: LONG_MAX,
    QuotaKind.REQUEST: None,
    QuotaKind.CONTROLLER_MUTATION: None,
    QuotaKind.CONNECTION: INT_MAX,
}
"""Of whole numbers; None where there are fractions."""


def entity_of(names: Mapping[str, str | None]) -> Entity:
    """An entity of names by type.

    Raises:
        InvalidRequestError: There is no such entity.
    """
    if not names:
        raise InvalidRequestError("Invalid empty client quota entity")
    for kind, name in names.items():
        if kind not in TYPES:
            raise InvalidRequestError(f"Unhandled client quota entity type: {kind[:100]}")
        if name is not None and not name:
            raise InvalidRequestError(f"Empty {kind} not supported")
        if name is not None and len(name) > _LONGEST_NAME:
            raise InvalidRequestError(f"the name of a {kind} with quotas has {_LONGEST_NAME} characters at most")
    if IP in names and len(names) > 1:
        raise InvalidRequestError(
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
        )
    return tuple((kind, names[kind]) for kind in TYPES if kind in names)


def check_value(entity: Entity, name: str, value: float) -> None:
    """Refuse a quota that an entity cannot have. Raises `InvalidRequestError`."""
    of_address = entity[0][0] == IP
    try:
        kind = QuotaKind(name)
    except ValueError:
        kind = None
    if kind is None or (kind is QuotaKind.CONNECTION) != of_address:
        raise InvalidRequestError(f"Invalid configuration key {name[:100]}")
    if not isfinite(value):  # Kafka takes some of them: they bound nothing
        raise InvalidRequestError(f"Quota {name} is a number")
    if value <= 0:
        raise InvalidRequestError(f"Quota {name} must be greater than 0")
    greatest = _GREATEST[kind]
    if greatest is None:
        return
    if value > greatest:
        raise InvalidRequestError(f"Proposed value for {name} is too large for {'an INT' if of_address else 'a LONG'}.")
    if value % 1.0 > _EPSILON:
        raise InvalidRequestError(f"{name} cannot be a fractional value.")


class QuotaLevel(NamedTuple):
    """One of the entities whose quotas may hold for a client."""

    entity: Entity
    tags: Tags
    """Who shares what it allows."""


def levels(user: str, client_id: str | None) -> tuple[QuotaLevel, ...]:
    """The entities whose quotas may hold for a client: the first that has one counts, whatever the others have.

    Args:
        user: The name of its principal.
        client_id: As it says; None has quotas of the default alone.
    """
    shown = client_id or ""
    of_user, of_client = (USER, user), (CLIENT_ID, shown)
    both, by_user, by_client = (user, shown), (user, None), (None, shown)
    found = [
        QuotaLevel((of_user, of_client), both),
        QuotaLevel((of_user, ANY_CLIENT_ID), both),
        QuotaLevel((of_user,), by_user),
        QuotaLevel((ANY_USER, of_client), both),
        QuotaLevel((ANY_USER, ANY_CLIENT_ID), both),
        QuotaLevel((ANY_USER,), by_user),
        QuotaLevel((of_client,), by_client),
        QuotaLevel((ANY_CLIENT_ID,), by_client),
    ]
    return tuple(found)
