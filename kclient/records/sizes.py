"""How large a record is in a batch, without building it."""

from __future__ import annotations

from kclient.records.arguments import as_bytes, header_key
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
    """
    body = 1 + size_of_varint(timestamp_delta) + size_of_varint(offset_delta)
    body += _size_of_field(key, "key") + _size_of_field(value, "value") + size_of_varint(len(headers))
    for name, data in headers:
        encoded = header_key(name)
        body += size_of_varint(len(encoded)) + len(encoded) + _size_of_field(data, "header value")
    return size_of_varint(body) + body


def _size_of_field(data: Buffer | None, what: str) -> int:
    if data is None:
        return 1
    size = data.nbytes if isinstance(data, memoryview) else len(as_bytes(data, what))
    return size_of_varint(size) + size
