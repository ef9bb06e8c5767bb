"""The rows of the aborted transactions of a partition."""

from __future__ import annotations

from typing import Final

from kclient.gateway.aborted import Entries
from kclient.htp.rows import dump, object_of_format, seal, unsealed, whole
from kclient.records.bounds import INT64_MAX

_FORMAT: Final = 1
_FIELDS: Final = 4


def encode_chunk(entries: Entries) -> bytes:
    """The row of a chunk: four numbers for each transaction, one after the other."""
    return seal(dump({"format": _FORMAT, "aborted": entries.numbers.tolist()}))


def decode_chunk(row: bytes) -> Entries:
    """The aborted transactions of a row. Raises `ValueError` if it has none."""
    try:
        numbers = [whole(number, 0, INT64_MAX) for number in object_of_format(unsealed(row), _FORMAT)["aborted"]]
    except (LookupError, TypeError) as error:
        raise ValueError(f"{row[:200]!r}: {error!r}") from error
    if len(numbers) % _FIELDS:
        raise ValueError(f"{row[:200]!r} ends amid a transaction")
    return Entries(numbers)
