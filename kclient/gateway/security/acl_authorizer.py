"""Decides who may do what by access control lists, as Kafka's StandardAuthorizer does."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from sys import getsizeof
from typing import TYPE_CHECKING, Final

from kclient.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from kclient.gateway.access import CLUSTER_NAME
from kclient.gateway.acl_entries import EVERYBODY, WILDCARD, AclFilter
from kclient.gateway.contexts import KnownRights
from kclient.gateway.security.acl_index import AclIndex

if TYPE_CHECKING:
    from collections.abc import Collection

    from kclient.gateway.contexts import ConnectionContext
    from kclient.gateway.security.acl_index import Who

_LOCAL_HOST: Final = "127.0.0.1"
"""The host of clients that come in within the process, or by a Unix socket: they are on this machine."""
_ANY_NAME: Final = "hardcode"
"""With a resource of this name Kafka asks whether a client may do something with any: superusers may."""
_MEMORY: Final = 8 << 20
"""Bytes that known decisions may take, about; then they are forgotten."""
_CLIENT: Final = 2_000
_DECISION: Final = 100
"""Bytes that a client takes, and a decision beside its name, about."""
_LONGEST: Final = 256
"""Characters of names with which decisions are remembered: topics have 249 at most."""


class AclAuthorizer:
    """Decides by the entries that it is given.

    Decisions are remembered by principal, host, operation and resource, until entries change.

    Args:
        super_users: Principals who may do everything, as `User:admin`.
        allow_everyone: Whether everybody may do everything with a resource that no entry is about.
    """

    def __init__(self, super_users: Collection[str] = (), *, allow_everyone: bool = False) -> None:
        self.super_users: frozenset[str] = frozenset(super_users)
        self.allow_everyone: bool = allow_everyone
        self.index: AclIndex = AclIndex()
        """The entries. Whoever changes them calls `changed`."""
        self.unreadable: bool = False
        """Whether there may be entries that are not known: then only superusers may do anything."""
        self.changes: int = 0
        """How often entries have changed."""
        self._epoch = object()
        self._clients: dict[tuple[str, str], KnownRights] = {}
        self._held = 0

    def changed(self) -> None:
        """Entries have changed: what was decided is forgotten."""
        self.changes += 1
        self._forget()

    def _forget(self) -> None:
        self._epoch = object()
        for known in self._clients.values():  # which connections keep until they ask again
            known.decisions.clear()
        self._clients.clear()
        self._held = 0

    def allows(self, client: ConnectionContext, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        """Whether a client may do this with the resource of this name, which need not exist."""
        known = client.rights
        if known is None or known.epoch is not self._epoch or known.principal is not client.principal:
            known = self._known(client)
        decisions = known.decisions.get(kind << 4 | operation)
        if decisions is None:
            decisions = known.decisions[kind << 4 | operation] = {}
        allowed = decisions.get(name)
        if allowed is None:
            allowed = self._decide(known, operation, kind, name)
            if len(name) <= _LONGEST:
                self._hold(_DECISION + getsizeof(name))
                decisions[name] = allowed
        return allowed

    def allows_any(self, client: ConnectionContext, operation: AclOperation, kind: ResourceType) -> bool:
        """Whether there may be a resource of this type with which a client may do this."""
        if self.allows(client, operation, kind, _ANY_NAME):
            return True
        known = self._known(client)
        found = known.any_of.get(kind << 4 | operation)
        if found is None:
            found = not self.unreadable and self.index.decide_any(known.whos, operation, kind)
            known.any_of[kind << 4 | operation] = found
        return found

    def rule(self, client: ConnectionContext, operation: AclOperation, kind: ResourceType, name: str) -> str:
        """What a decision rests on, for people."""
        known = self._known(client)
        if known.is_super:
            return "super user"
        if self.unreadable:
            return "unreadable entries"
        entry = self.index.rule(known.whos, operation, kind, name)
        return f"entry {entry}" if entry is not None else "no entry"

    def is_locked(self) -> bool:
        """Whether there is nobody who may change the entries."""
        if self.super_users or self.unreadable:
            return not self.super_users
        about = self.index.find(AclFilter(ResourceType.CLUSTER, PatternType.MATCH, CLUSTER_NAME))
        found = [entry for part in about for entry in part]
        if not found:
            return not self.allow_everyone
        allowing = (entry.operation for entry in found if entry.permission is AclPermissionType.ALLOW)
        return not any(operation in (AclOperation.ALL, AclOperation.ALTER) for operation in allowing)

    def _decide(self, known: KnownRights, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        if known.is_super:
            return True
        if self.unreadable:
            return False
        found = self.index.decide(known.whos, operation, kind, name)
        return self.allow_everyone if found is None else found

    def _known(self, client: ConnectionContext) -> KnownRights:
        """What is remembered of all connections of a client's principal and host."""
        principal, host = str(client.principal), client.client_host
        known = self._clients.get((principal, host))
        if known is None:
            self._hold(_CLIENT + getsizeof(principal))
            is_super = principal in self.super_users
            known = KnownRights(self._epoch, client.principal, _whos(principal, host), is_super=is_super)
            self._clients[principal, host] = known
        client.rights, client.principal = known, known.principal  # which is equal
        return known

    def _hold(self, size: int) -> None:
        if self._held + size > _MEMORY:
            self._forget()
        self._held += size


def _whos(principal: str, host: str) -> tuple[Who, ...]:
    """Whose entries are about a client."""
    hosts = (WILDCARD, *hosts_of(host))
    return tuple((who, at) for who in dict.fromkeys((principal, EVERYBODY)) for at in hosts)


def hosts_of(client_host: str) -> tuple[str, ...]:
    """How entries may write the address of a client's host.

    Args:
        client_host: As `ConnectionContext.client_host`, with a slash in front of it.

    Returns:
        Of IPv6 the form that Java prints, with all eight numbers, and the short one.
    """
    text, percent, scope = client_host.removeprefix("/").partition("%")
    try:
        address = ip_address(text)
    except ValueError:
        return (_LOCAL_HOST,)
    if not isinstance(address, IPv6Address):
        return (str(address),)
    if address.ipv4_mapped is not None:
        return (str(address.ipv4_mapped),)
    full = ":".join(f"{int(part, 16):x}" for part in address.exploded.split(":"))
    return tuple(dict.fromkeys(f"{each}{percent}{scope}" for each in (full, str(address))))
