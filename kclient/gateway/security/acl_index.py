"""Access control lists, laid out for decisions: what applies to a resource and a client is looked up, not searched.

Of each resource, and of each prefix, there is for every principal and host one pair of numbers: a bit for each
operation that is allowed, and one for each that is denied. A decision looks at the resource, at its prefixes of
those lengths that there are, and at `*`; of each at the client's principal and host, and at everybody and all hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from kclient.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from kclient.gateway.acl_entries import WILDCARD, AclEntry, AclFilter

_O = AclOperation
_ALLOW, _DENY = 0, 1
_PERMISSIONS: Final = ((_ALLOW, AclPermissionType.ALLOW), (_DENY, AclPermissionType.DENY))
_LITERAL, _PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
_ALL: Final = 1 << _O.ALL


def _grants(operation: AclOperation) -> int:
    implied = {
        _O.DESCRIBE: (_O.READ, _O.WRITE, _O.DELETE, _O.ALTER),
        _O.DESCRIBE_CONFIGS: (_O.ALTER_CONFIGS,),
    }.get(operation, ())
    return sum(1 << each for each in (_O.ALL, operation, *implied))


_GRANTS: Final = tuple(_grants(operation) for operation in _O)
"""Of each operation the bits of those that it is allowed by."""

Who: TypeAlias = tuple[str, str]
"""A principal and a host, as entries have them."""
Rights: TypeAlias = list[int]
"""The bits of what is allowed, and those of what is denied."""
Resource: TypeAlias = dict[Who, Rights]
_Key: TypeAlias = tuple[ResourceType, PatternType, str]


class AclIndex:
    """All entries, each once."""

    def __init__(self) -> None:
        self._resources: dict[_Key, Resource] = {}
        self._clients: dict[Who, dict[_Key, Rights]] = {}
        """The same rights by whom they are about."""
        self._hosts: dict[str, dict[str, None]] = {}
        """The hosts of a principal's entries."""
        self._lengths: dict[ResourceType, dict[int, int]] = {kind: {} for kind in ResourceType}
        """How many prefixes of a length there are."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, entry: AclEntry) -> bool:
        found = self._resources.get((entry.kind, entry.pattern, entry.name), {}).get((entry.principal, entry.host))
        return found is not None and bool(found[_place(entry)] & 1 << entry.operation)

    def add(self, entry: AclEntry) -> bool:
        """Add an entry; False if it is there."""
        if entry in self:
            return False
        key, who = (entry.kind, entry.pattern, entry.name), (entry.principal, entry.host)
        resource = self._resources.get(key)
        if resource is None:
            resource = self._resources[key] = {}
            if entry.pattern is _PREFIXED:
                lengths = self._lengths[entry.kind]
                lengths[len(entry.name)] = lengths.get(len(entry.name), 0) + 1
        rights = resource.get(who)
        if rights is None:
            rights = resource[who] = [0, 0]
            self._clients.setdefault(who, {})[key] = rights
            self._hosts.setdefault(entry.principal, {})[entry.host] = None
        rights[_place(entry)] |= 1 << entry.operation
        self._count += 1
        return True

    def remove(self, entry: AclEntry) -> bool:
        """Remove an entry; False if it is not there."""
        if entry not in self:
            return False
        key, who = (entry.kind, entry.pattern, entry.name), (entry.principal, entry.host)
        resource = self._resources[key]
        rights = resource[who]
        rights[_place(entry)] &= ~(1 << entry.operation)
        self._count -= 1
        if any(rights):
            return True
        del resource[who]
        del self._clients[who][key]
        if not self._clients[who]:
            del self._clients[who]
            del self._hosts[entry.principal][entry.host]
            if not self._hosts[entry.principal]:
                del self._hosts[entry.principal]
        if not resource:
            del self._resources[key]
            if entry.pattern is _PREFIXED:
                lengths = self._lengths[entry.kind]
                lengths[len(entry.name)] -= 1
                if not lengths[len(entry.name)]:
                    del lengths[len(entry.name)]
        return True

    # Decisions

    def _applicable(self, kind: ResourceType, name: str) -> Iterator[tuple[_Key, Resource]]:
        resources = self._resources
        for key in ((kind, _LITERAL, name), (kind, _LITERAL, WILDCARD)):
            found = resources.get(key)
            if found is not None:
                yield key, found
            if name == WILDCARD:
                break
        for length in self._lengths[kind]:
            if length <= len(name):
                key = (kind, _PREFIXED, name[:length])
                found = resources.get(key)
                if found is not None:
                    yield key, found

    def decide(self, whos: tuple[Who, ...], operation: AclOperation, kind: ResourceType, name: str) -> bool | None:
        """Whether a client may do something with a resource, which need not exist.

        Args:
            whos: The principals and hosts whose entries are about the client.
            operation: What.
            kind: The type of the resource.
            name: Its name.

        Returns:
            None where no entry at all is about the resource.
        """
        granting, denying = _GRANTS[operation], _ALL | 1 << operation
        applies, allowed = False, False
        for _, resource in self._applicable(kind, name):
            applies = True
            for who in whos:
                rights = resource.get(who)
                if rights is not None:
                    if rights[_DENY] & denying:
                        return False
                    allowed = allowed or bool(rights[_ALLOW] & granting)
        return allowed if applies else None

    def rule(self, whos: tuple[Who, ...], operation: AclOperation, kind: ResourceType, name: str) -> AclEntry | None:
        """The entry that `decide` follows; None where none allows or denies it."""
        for place, permission in reversed(_PERMISSIONS):
            wanted = _ALL | 1 << operation if place == _DENY else _GRANTS[operation]
            for (_, pattern, of), resource in self._applicable(kind, name):
                for who in whos:
                    bits = resource.get(who, (0, 0))[place] & wanted
                    if bits:
                        acts = AclOperation((bits & -bits).bit_length() - 1)
                        return AclEntry(kind, pattern, of, *who, acts, permission)
        return None

    def decide_any(self, whos: tuple[Who, ...], operation: AclOperation, kind: ResourceType) -> bool:
        """Whether a client may do something with any resource of a type that it could name.

        As Kafka's `authorizeByResourceType`: no other operation implies this one, and prefixes are denied by prefixes.
        """
        bits = _ALL | 1 << operation

        def has(pattern: PatternType, name: str, place: int) -> bool:
            resource = self._resources.get((kind, pattern, name), {})
            return any(resource[who][place] & bits for who in whos if who in resource)

        if has(_LITERAL, WILDCARD, _DENY):
            return False
        if has(_LITERAL, WILDCARD, _ALLOW):
            return True
        for who in whos:
            for (of, pattern, name), rights in self._clients.get(who, {}).items():
                if of is not kind or not rights[_ALLOW] & bits:
                    continue
                if pattern is _LITERAL and has(_LITERAL, name, _DENY):
                    continue
                prefixes = (name[:length] for length in self._lengths[kind] if length <= len(name))
                if not any(has(_PREFIXED, prefix, _DENY) for prefix in prefixes):
                    return True
        return False

    # Lists

    def find(self, wanted: AclFilter) -> Iterator[list[AclEntry]]:
        """The entries that a filter finds, in parts, some of them empty; each is little work.

        Nothing may be added or removed before the last one.
        """
        found: list[AclEntry] = []
        for looked, (key, who, rights) in enumerate(self._candidates(wanted), 1):
            if rights is not None and wanted.finds_client(*who):
                found += _entries(key, who, rights, wanted)
            if looked % _FEW == 0:
                yield found
                found = []
        yield found

    def _candidates(self, wanted: AclFilter) -> Iterator[tuple[_Key, Who, Rights | None]]:
        """The rights among which those are that a filter finds; None where a look found none."""
        principal, host = wanted.principal, wanted.host
        if wanted.name is not None:
            for key in self._named(wanted, wanted.name):
                resource = self._resources[key]
                if principal is not None and host is not None:
                    yield key, (principal, host), resource.get((principal, host))
                else:
                    yield from ((key, who, rights) for who, rights in resource.items())
        elif principal is not None:
            for at in self._hosts.get(principal, ()) if host is None else (host,):
                for key, rights in self._clients.get((principal, at), {}).items():
                    yield key, (principal, at), rights if wanted.finds_resource(*key) else None
        else:
            for key, resource in self._resources.items():
                if wanted.finds_resource(*key):
                    yield from ((key, who, rights) for who, rights in resource.items())
                else:
                    yield key, _NOBODY, None

    def _named(self, wanted: AclFilter, name: str) -> Iterator[_Key]:
        kinds = ResourceType.known() if wanted.kind is ResourceType.ANY else (wanted.kind,)
        if wanted.pattern is PatternType.MATCH:
            yield from (key for kind in kinds for key, _ in self._applicable(kind, name))
        else:
            patterns = PatternType.known() if wanted.pattern is PatternType.ANY else (wanted.pattern,)
            keys = ((kind, pattern, name) for kind in kinds for pattern in patterns)
            yield from (key for key in keys if key in self._resources)


_FEW: Final = 64
_NOBODY: Final[Who] = ("", "")


def _place(entry: AclEntry) -> int:
    return _DENY if entry.permission is AclPermissionType.DENY else _ALLOW


def _entries(key: _Key, who: Who, rights: Rights, wanted: AclFilter) -> Iterator[AclEntry]:
    for place, permission in _PERMISSIONS:
        left = rights[place]
        while left:
            operation = AclOperation((left & -left).bit_length() - 1)
            left &= left - 1
            if wanted.finds_right(operation, permission):
                yield AclEntry(*key, *who, operation, permission)
