"""The checksum of record batches."""

from __future__ import annotations

import crc32c as _crc32c

from kclient.records.arguments import as_buffer, integer
from kclient.types import Buffer

_UINT32_MAX = 2**32 - 1


def crc32c(data: Buffer, value: int = 0) -> int:
    """The CRC-32C (Castagnoli) of some bytes, as a number of 32 bits without sign.

    Args:
        data: The bytes.
        value: The checksum of the bytes in front of them, to go on from.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: `value` is out of its range.
    """
    return _crc32c.crc32c(as_buffer(data, "data"), integer("value", value, 0, _UINT32_MAX))
