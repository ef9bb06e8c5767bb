"""Entries of access control lists, and filters that find them (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from kclient.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from kclient.arguments import check_text, shown

T = TypeVar("T")

ANY_HOST = "*"
CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""
_TYPES: dict[str, type[IntEnum]] = {
    "resource_type": ResourceType,
    "pattern_type": PatternType,
    "operation": AclOperation,
    "permission_type": AclPermissionType,
}
_TEXTS = ("resource_name", "principal", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class AclBinding:
    """An entry: who may, or may not, do what with which resources.

    Attributes:
        resource_type: what it is about.
        resource_name: its name, or what names begin with; `*` for all, `kafka-cluster` for the cluster.
        pattern_type: which of these the name is.
        principal: who, as `User:alice`; `User:*` for all.
        host: from which address; `*` for all. Addresses as such: authorizers know no names and no ranges.
        operation: what.
        permission_type: whether it is allowed or denied.

    Raises:
        TypeError: an attribute is of another type.
        ValueError: one is for filters only, or a text is empty or cannot be sent.
    """

    resource_type: ResourceType
    resource_name: str
    principal: str
    operation: AclOperation
    pattern_type: PatternType = PatternType.LITERAL
    host: str = ANY_HOST
    permission_type: AclPermissionType = AclPermissionType.ALLOW

    def __post_init__(self) -> None:
        _check_types(self)
        for name in _TEXTS:
            text = getattr(self, name)
            check_text(text, _told(name))
            if not text:
                raise ValueError(f"{_told(name)} is not empty")
        for name in _TYPES:
            value = getattr(self, name)
            if value.name in ("ANY", "MATCH"):
                raise ValueError(f"{name}={type(value).__name__}.{value.name} is for filters, an entry has none")

    def as_filter(self) -> AclBindingFilter:
        """The filter that finds this entry alone."""
        return AclBindingFilter(
            resource_type=self.resource_type, resource_name=self.resource_name, pattern_type=self.pattern_type,
            principal=self.principal, host=self.host, operation=self.operation, permission_type=self.permission_type,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AclBindingFilter:
    """Which entries: those that agree with everything that is given here. Without anything it is all of them.

    Attributes:
        resource_type: ANY for all types.
        resource_name: None for all names.
        pattern_type: ANY for both, the name compared as it stands; MATCH for whatever applies to a resource of that
            name: its own entries, those of prefixes, and those of `*`.
        principal: as `User:alice`, compared as it stands; None for all.
        host: compared as it stands; None for all.
        operation: ANY for all; ALL finds only entries with ALL.
        permission_type: ANY for both.

    Raises:
        TypeError: an attribute is of another type.
        ValueError: one is UNKNOWN, or a text cannot be sent.
    """

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission_type: AclPermissionType = AclPermissionType.ANY

    def __post_init__(self) -> None:
        _check_types(self)
        for name in _TEXTS:
            if (text := getattr(self, name)) is not None:
                check_text(text, _told(name))
        for name in _TYPES:
            if not getattr(self, name):
                raise ValueError(f"{name} is UNKNOWN: this release does not know what to look for")

    def __str__(self) -> str:
        given = {name: getattr(self, name) for name in (*_TYPES, *_TEXTS)}
        told = [
            f"{name} {value.name if isinstance(value, IntEnum) else value}"
            for name, value in given.items()
            if value is not None and getattr(value, "name", "") != "ANY"
        ]
        return ", ".join(told) or "any entry"


def _told(name: str) -> str:
    return f"the {name.replace('_', ' ')} of an ACL"


def _check_types(acl: AclBinding | AclBindingFilter) -> None:
    for name, kind in _TYPES.items():
        value = getattr(acl, name)
        if not isinstance(value, kind):
            example = "TOPIC" if kind is ResourceType else list(kind)[-1].name
            raise TypeError(f"{_told(name)} is of kclient.admin.{kind.__name__}, as {example}, not {shown(value)}")


def as_bindings(acls: Iterable[AclBinding]) -> list[AclBinding]:
    """Entries to create, each once.

    Raises:
        TypeError: these are none.
        ValueError: something of one is UNKNOWN.
    """
    found = _all_of(acls, AclBinding, "create_acls takes AclBinding objects")
    for acl in found:
        for name in _TYPES:
            if not getattr(acl, name):
                raise ValueError(f"{name} of {acl} is UNKNOWN: a newer release of kclient may know it")
    return found


def as_filter(acl_filter: object) -> AclBindingFilter:
    """A filter; None is all entries.

    Raises:
        TypeError: this is none.
    """
    if acl_filter is None:
        return AclBindingFilter()
    if not isinstance(acl_filter, AclBindingFilter):
        raise TypeError(f"ACLs are found by an AclBindingFilter, not by {shown(acl_filter)}")
    return acl_filter


def as_filters(filters: Iterable[AclBindingFilter]) -> list[AclBindingFilter]:
    """Filters, each once.

    Raises:
        TypeError: these are none.
    """
    return _all_of(filters, AclBindingFilter, "delete_acls takes AclBindingFilter objects")


def _all_of(given: Any, kind: type[T], expected: str) -> list[T]:
    if isinstance(given, AclBinding | AclBindingFilter | str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{expected}, in a list, not {shown(given)}")
    found: dict[T, None] = {}
    for each in given:
        if not isinstance(each, kind):
            raise TypeError(f"{expected}; {shown(each)} is of type {type(each).__name__}")
        found[each] = None
    return list(found)
