"""The row of an entry of the access control lists. Its key follows from all of it, so that each entry has one row."""

from __future__ import annotations

from hashlib import sha256
from typing import Final, TypeVar

from kclient.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from kclient.gateway.acl_entries import AclEntry
from kclient.gateway.rows.keys import ACLS
from kclient.htp.rows import dump, object_of_format, seal, string, unsealed, whole
from kclient.records.bounds import INT16_MAX

_FORMAT: Final = 1

T = TypeVar("T", ResourceType, PatternType, AclOperation, AclPermissionType)


def acl_key(entry: AclEntry) -> str:
    """The key of an entry's row."""
    return ACLS + sha256(dump(list(entry))).hexdigest()


def encode_acl(entry: AclEntry) -> bytes:
    """The row of an entry."""
    fields = {
        "format": _FORMAT,
        "type": int(entry.kind),
        "pattern": int(entry.pattern),
        "name": entry.name,
        "principal": entry.principal,
        "host": entry.host,
        "operation": int(entry.operation),
        "permission": int(entry.permission),
    }
    return seal(dump(fields))


def decode_acl(key: str, row: bytes) -> AclEntry:
    """What a row says. Raises `ValueError` if it says nothing sensible, or is that of another entry."""
    fields = object_of_format(unsealed(row), _FORMAT)
    try:
        entry = AclEntry(
            _known(ResourceType, fields["type"]),
            _known(PatternType, fields["pattern"]),
            string(fields["name"]),
            string(fields["principal"]),
            string(fields["host"]),
            _known(AclOperation, fields["operation"]),
            _known(AclPermissionType, fields["permission"]),
        )
    except LookupError as error:
        raise ValueError(f"{row[:200]!r}: {error!r}") from error
    if acl_key(entry) != key:
        raise ValueError("it is the row of another entry")
    return entry


def _known(kind: type[T], value: object) -> T:
    found = kind(whole(value, 0, INT16_MAX))
    if found not in kind.known():
        raise ValueError(f"{value} is no {kind.__name__} that this version knows")
    return found
