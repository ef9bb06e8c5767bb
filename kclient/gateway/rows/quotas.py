"""The row of an entity's quotas. Its key follows from the entity."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

from kclient.errors import KafkaError
from kclient.gateway.quotas.entities import Entity, Quotas, check_value, entity_of
from kclient.gateway.rows.keys import QUOTAS
from kclient.htp.rows import dump, object_of_format, seal, string, unsealed

_FORMAT: Final = 1
_DEFAULT: Final = "<default>"
"""No name is written so: `quote` leaves no angle."""
_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")


def quota_key(entity: Entity) -> str:
    """The key of an entity's row: `kafka/quota/user=NAME,client-id=<default>`."""
    return QUOTAS + ",".join(f"{kind}={_DEFAULT if name is None else quote(name, safe='')}" for kind, name in entity)


def parse_quota_key(key: str) -> Entity:
    """The entity that a key of `quota_key` names. Raises `ValueError` if it is not such a key."""
    names: dict[str, str | None] = {}
    for part in key.removeprefix(QUOTAS).split(","):
        kind, _, name = part.partition("=")
        names[kind] = None if name == _DEFAULT else unquote(name)
    try:
        entity = entity_of(names)
    except KafkaError as error:
        raise ValueError(f"{key[:200]!r}: {error}") from error
    if quota_key(entity) != key:
        raise ValueError(f"{key[:200]!r} is no key of quotas")
    return entity


def encode_quotas(quotas: Quotas) -> bytes:
    """The row of an entity's quotas."""
    return seal(dump({"format": _FORMAT, "quotas": {name: repr(float(value)) for name, value in quotas.items()}}))


def decode_quotas(key: str, row: bytes) -> Quotas:
    """What a row says. Raises `ValueError` if it says nothing sensible, or its key names no entity."""
    entity = parse_quota_key(key)
    try:
        given = object_of_format(unsealed(row), _FORMAT)["quotas"].items()
        quotas = {string(name): _number(string(value)) for name, value in given}
        for name, value in quotas.items():
            check_value(entity, name, value)
    except (LookupError, AttributeError, KafkaError) as error:
        raise ValueError(f"{row[:200]!r}: {error}") from error
    if not quotas:
        raise ValueError(f"{row[:200]!r} has no quotas")
    return quotas


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text[:100]!r} is no number")
    return float(text)
