"""How large a record is in a batch, without building it."""

from __future__ import annotations

from kclient.records.arguments import as_bytes, header_key, header_pairs, integer
from kclient.records.bounds import INT32_MAX, INT64_MAX, INT64_MIN
from kclient.records.varint import size_of_varint
from kclient.types import Buffer, Headers


def size_of_record(
    key: Buffer | None,
    value: Buffer | None,
    headers: Headers = (),
    *,
    timestamp_delta: int = 0,
    offset_delta: int = 0,
) -> int:
    """Bytes that a record takes in a batch before compression (the batch's header is 61 bytes more).

    Args:
        key: The key, or None.
        value: The value, or None.
        headers: Pairs of str and bytes or None.
        timestamp_delta: Milliseconds between the batch's first record and this one.
        offset_delta: Index of the record in the batch.

    Raises:
        TypeError: An argument is of a wrong type.
        ValueError: A number is out of its range.
    """
    timestamp_delta = integer("timestamp_delta", timestamp_delta, INT64_MIN, INT64_MAX)
    offset_delta = integer("offset_delta", offset_delta, 0, INT32_MAX)
    pairs = header_pairs(headers)
    body = 1 + size_of_varint(timestamp_delta) + size_of_varint(offset_delta)
    body += _size_of_field(key, "key") + _size_of_field(value, "value") + size_of_varint(len(pairs))
    for name, data in pairs:
        encoded = header_key(name)
        body += size_of_varint(len(encoded)) + len(encoded) + _size_of_field(data, "header value")
    return size_of_varint(body) + body


def _size_of_field(data: Buffer | None, what: str) -> int:
    size = size_of_bytes(data, what)
    return 1 if size < 0 else size_of_varint(size) + size


def size_of_bytes(data: Buffer | None, what: str) -> int:
    """How many bytes a key, value or header value has; -1 for None.

    Raises:
        TypeError: It is not bytes, bytearray, memoryview or None.
        ValueError: It is a memoryview that was released.
    """
    if data is None:
        return -1
    if isinstance(data, memoryview):
        try:
            return data.nbytes
        except ValueError:  # it was released; the exception for that is the shared one
            pass
    return len(as_bytes(data, what))
