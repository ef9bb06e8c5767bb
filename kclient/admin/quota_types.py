"""Quotas of clients, as the admin client's calls take and give them (KIP-546)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from kclient.arguments import check_text, shown

TYPES = {"user": "user", "client_id": "client-id", "ip": "ip"}
"""Attributes, and what the protocol calls them."""


class QuotaName(Enum):
    """What stands in the place of a name."""

    DEFAULT = "<default>"
    """Whoever has no quota of their own."""
    ANY = "<any>"
    """In filters: everyone who has one of their own, and the default."""


_Name: TypeAlias = str | QuotaName | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaEntity:
    """Whose quota: a user's, a client id's, of both together, or an address's.

    Attributes:
        user: the name that it logs in with, or `QuotaName.DEFAULT`.
        client_id: its `client.id`, or `QuotaName.DEFAULT`.
        ip: its address, or `QuotaName.DEFAULT`; only for how fast connections are made, and alone.

    Raises:
        TypeError: a name is no text.
        ValueError: there is none at all, or one that cannot be.
    """

    user: _Name = None
    client_id: _Name = None
    ip: _Name = None

    def __post_init__(self) -> None:
        names = [name for name in (self.user, self.client_id, self.ip) if name is not None]
        if not names:
            raise ValueError("a quota is of a user, a client id or an address: give user, client_id or ip")
        for name in names:
            _check_name(name)
            if name is QuotaName.ANY:
                raise ValueError("QuotaName.ANY is for filters, an entity has a name")

    def __str__(self) -> str:
        return ", ".join(
            f"{kind} {name.value if isinstance(name, QuotaName) else name}"
            for attribute, kind in TYPES.items()
            if (name := getattr(self, attribute)) is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaFilter:
    """Which quotas: those of entities that have all names given here. Without any it is all of them.

    Attributes:
        user: a name, `QuotaName.DEFAULT` or `QuotaName.ANY`; None whether or not there is a user.
        client_id: the same of client ids.
        ip: the same of addresses.
        strict: whether entities that have other names beside these are left out.

    Raises:
        TypeError: a name is no text, or `strict` no bool.
        ValueError: a name cannot be.
    """

    user: _Name = None
    client_id: _Name = None
    ip: _Name = None
    strict: bool = False

    def __post_init__(self) -> None:
        for name in (self.user, self.client_id, self.ip):
            if name is not None:
                _check_name(name)
        if not isinstance(self.strict, bool):
            raise TypeError(f"strict is True or False, not {shown(self.strict)}")


def _check_name(name: object) -> None:
    if isinstance(name, QuotaName):
        return
    check_text(name, "whose quota it is")
    if not name:
        raise ValueError("whose quota it is, is not empty: QuotaName.DEFAULT is for who has none")


def as_quota_filter(quota_filter: object) -> ClientQuotaFilter:
    """A filter; None is all quotas.

    Raises:
        TypeError: this is none.
    """
    if quota_filter is None:
        return ClientQuotaFilter()
    if not isinstance(quota_filter, ClientQuotaFilter):
        raise TypeError(f"quotas are found by a ClientQuotaFilter, not by {shown(quota_filter)}")
    return quota_filter


def as_quotas(quotas: Any) -> dict[ClientQuotaEntity, dict[str, float | None]]:
    """What is to be set or removed.

    Raises:
        TypeError: these are no numbers by name by `ClientQuotaEntity`.
        ValueError: a number is none that can be a rate.
    """
    expected = "alter_client_quotas takes numbers by name by ClientQuotaEntity"
    if not isinstance(quotas, Mapping):
        raise TypeError(f"{expected}, not {shown(quotas)}")
    found: dict[ClientQuotaEntity, dict[str, float | None]] = {}
    for entity, values in quotas.items():
        if not isinstance(entity, ClientQuotaEntity) or not isinstance(values, Mapping):
            raise TypeError(f"{expected}; {shown(entity)}: {shown(values)} is something else")
        found[entity] = {}
        for name, value in values.items():
            check_text(name, "the name of a quota")
            found[entity][name] = None if value is None else _rate(name, value)
    return found


def _rate(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a number, or None to remove it, not {shown(value)}")
    try:
        rate = float(value)
    except OverflowError:
        rate = math.inf
    if not math.isfinite(rate):
        raise ValueError(f"{name} is a finite number, not {shown(value)}")
    return rate
