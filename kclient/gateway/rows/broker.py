"""Rows that belong to the gateway as a whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kclient.htp.rows import check_format, dump, object_of_format, parse_object, seal, string, unsealed, whole
from kclient.records.bounds import INT32_MAX

_FORMAT: Final = 1
_CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)


def encode_cluster_id(cluster_id: str) -> bytes:
    """The row that holds the id of the cluster, which is the store's."""
    return seal(dump({"format": _FORMAT, "id": cluster_id}))


def decode_cluster_id(row: bytes) -> str:
    """The id of the cluster. Raises `ValueError` if the row has none."""
    try:
        body = unsealed(row)
        # the first versions kept the id alone
        found = string(object_of_format(body, _FORMAT)["id"]) if body.startswith(b"{") else body.decode()
    except LookupError as error:
        raise ValueError(f"{row[:200]!r} has no {error}") from error
    if not _CLUSTER_ID.fullmatch(found):
        raise ValueError(f"{row[:200]!r} is not a cluster id")
    return found


def encode_internal_topics(partitions: Mapping[str, int]) -> bytes:
    """The row that says how many partitions Kafka's own topics have, by their names."""
    return seal(dump({"format": _FORMAT, "partitions": dict(partitions)}))


def decode_internal_topics(row: bytes) -> dict[str, int]:
    """How many partitions Kafka's own topics have. Raises `ValueError` if the row does not say so."""
    fields = object_of_format(unsealed(row), _FORMAT)
    try:
        return {name: whole(number, 1, INT32_MAX) for name, number in fields["partitions"].items()}
    except (LookupError, AttributeError) as error:
        raise ValueError(f"{row[:200]!r}: {error!r}") from error


def encode_settings(settings: Mapping[str, str]) -> bytes:
    """The row of the settings that were changed while a gateway ran."""
    return seal(dump({"format": _FORMAT, "settings": dict(settings)}))


def decode_settings(row: bytes) -> dict[str, str]:
    """The settings that were changed while a gateway ran. Raises `ValueError` if the row has none."""
    try:
        fields = parse_object(unsealed(row))
        if "format" in fields:  # the first versions kept the settings alone, and none has that name
            check_format(fields["format"], _FORMAT)
            fields = fields["settings"]
        return {name: string(value) for name, value in fields.items()}
    except (LookupError, AttributeError) as error:
        raise ValueError(f"{row[:200]!r}: {error!r}") from error
