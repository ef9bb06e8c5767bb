"""Entries of access control lists and filters that find them, as the gateway works with them."""

from __future__ import annotations

from typing import Final, NamedTuple

from kclient.acls import AclOperation, AclPermissionType, PatternType, ResourceType

WILDCARD: Final = "*"
"""All resources of a type, where a literal entry has this name; and all hosts."""
EVERYBODY: Final = "User:*"
"""The principal of entries that are about everybody."""


class AclEntry(NamedTuple):
    """Who may, or may not, do what with which resources."""

    kind: ResourceType
    pattern: PatternType
    name: str
    principal: str
    """As `User:alice`."""
    host: str
    operation: AclOperation
    permission: AclPermissionType

    def __str__(self) -> str:
        return (
            f"{self.permission.name} {self.principal} from {self.host} {self.operation.name} "
            f"{self.kind.name} {self.pattern.name} {self.name}"
        )


class AclFilter(NamedTuple):
    """Which entries: those that agree with all of it; ANY and None agree with everything."""

    kind: ResourceType = ResourceType.ANY
    pattern: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermissionType = AclPermissionType.ANY

    @property
    def is_everything(self) -> bool:
        """Whether every entry agrees with it."""
        return self in (AclFilter(), AclFilter(pattern=PatternType.MATCH))

    @property
    def looks_through_all(self) -> bool:
        """Whether it has nothing by which entries are looked up."""
        return self.name is None and self.principal is None

    def finds_resource(self, kind: ResourceType, pattern: PatternType, name: str) -> bool:
        """Whether entries of these resources may agree."""
        if self.kind not in (ResourceType.ANY, kind):
            return False
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, pattern):
            return False
        if self.name is None or self.name == name:
            return True
        if self.pattern is not PatternType.MATCH:
            return False
        return self.name.startswith(name) if pattern is PatternType.PREFIXED else name == WILDCARD

    def finds_client(self, principal: str, host: str) -> bool:
        """Whether entries about these clients may agree."""
        return (self.principal is None or self.principal == principal) and (self.host is None or self.host == host)

    def finds_right(self, operation: AclOperation, permission: AclPermissionType) -> bool:
        """Whether entries with these may agree."""
        return self.operation in (AclOperation.ANY, operation) and self.permission in (
            AclPermissionType.ANY,
            permission,
        )

    def finds(self, entry: AclEntry) -> bool:
        """Whether an entry agrees."""
        return (
            self.finds_resource(entry.kind, entry.pattern, entry.name)
            and self.finds_client(entry.principal, entry.host)
            and self.finds_right(entry.operation, entry.permission)
        )
