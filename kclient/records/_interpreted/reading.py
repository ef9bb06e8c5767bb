"""Reading: a cursor over the records of a batch, and objects from it."""

from __future__ import annotations

from typing import Any

from kclient.records._interpreted.record import made_record
from kclient.records.batch_header import BatchHeader
from kclient.records.bounds import INT64_MAX, INT64_MIN
from kclient.records.contract import Deserialize
from kclient.records.corruption import Corruption, deserialization_error, record_error
from kclient.types import Buffer, Header, Headers, TimestampType


class CorruptRecord(Exception):
    """Carries a corruption and its place out of a record; never leaves this module."""

    def __init__(self, corruption: Corruption, byte: int) -> None:
        super().__init__(corruption, byte)
        self.corruption = corruption
        self.byte = byte


def _read_short(data: bytes, position: int) -> tuple[int, int]:
    """A varint of one or two bytes and the position behind it; IndexError if it is longer or not whole."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    high = data[position + 1]
    if high > 0x7F:
        raise IndexError
    return (byte & 0x7F | high << 7) >> 1 ^ -(byte & 1), position + 2


def _read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """A varint of at most 32 bits, and the position behind it."""
    return _read_zigzag(data, position, end, 28, 0x0F)


def _read_zigzag(data: bytes, position: int, end: int, last_shift: int, last_bits: int) -> tuple[int, int]:
    start = position
    shift = raw = 0
    while position < end:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == last_shift and byte > last_bits:
                break
            return (raw >> 1) ^ -(raw & 1), position
        if shift == last_shift:
            break
        shift += 7
    else:
        raise CorruptRecord(Corruption.TRUNCATED, start)
    raise CorruptRecord(Corruption.VARINT, start)


class RecordCursor:
    """Where the parts of a record are: a reusable cursor over the records of one batch."""

    __slots__ = ("_base_timestamp", "_data", "_last_delta", "_position", "delta", "headers_at", "headers_count", "key",
                 "timestamp", "value")  # fmt: skip

    def __init__(self, data: bytes, header: BatchHeader) -> None:
        self._data = data
        self._position = 0
        self._base_timestamp = header.base_timestamp
        self._last_delta = header.last_offset_delta
        self.delta = 0
        self.timestamp = 0
        self.key: bytes | None = None
        self.value: bytes | None = None
        self.headers_at = 0
        self.headers_count = 0

    @property
    def position(self) -> int:
        """Where the next record begins."""
        return self._position

    def move(self, position: int) -> None:
        """Go to the record that begins there."""
        self._position = position

    def advance(self) -> None:
        """Read the next record; its headers are checked and left where they are."""
        try:
            plausible = self._advance_plain()
        except IndexError:
            plausible = False
        if not plausible:
            self._advance_checked()

    def _advance_plain(self) -> bool:
        # Reads a record without headers, whose numbers are short, and checks no field by itself: if the record
        # ends exactly where its length says then every field lies within it. Else the careful way says what is wrong.
        # Most numbers have one byte and are read in place.
        data = self._data
        length, position = _read_short(data, self._position)
        end = position + length
        byte = data[position + 1]
        if byte < 0x80:
            timestamp_delta, position = byte >> 1 ^ -(byte & 1), position + 2
        else:
            timestamp_delta, position = _read_short(data, position + 1)
        byte = data[position]
        if byte < 0x80:
            delta, position = byte >> 1 ^ -(byte & 1), position + 1
        else:
            delta, position = _read_short(data, position)
        byte = data[position]
        if byte < 0x80:
            key_size, key_at = byte >> 1 ^ -(byte & 1), position + 1
        else:
            key_size, key_at = _read_short(data, position)
        value_size, value_at = _read_short(data, key_at + key_size if key_size > 0 else key_at)
        position = value_at + value_size if value_size > 0 else value_at
        if (
            position + 1 != end
            or length < 0
            or key_size < -1
            or value_size < -1
            or data[position]
            or not 0 <= delta <= self._last_delta
        ):
            return False
        self.delta = delta
        self.timestamp = self._base_timestamp + timestamp_delta
        if not INT64_MIN <= self.timestamp <= INT64_MAX:
            return False
        self.key = data[key_at : key_at + key_size] if key_size >= 0 else None
        self.value = data[value_at:position] if value_size >= 0 else None
        self.headers_count = 0
        self._position = end
        return True

    def _advance_checked(self) -> None:
        data = self._data
        start = self._position
        length, position = _read_varint(data, start, len(data))
        if not 0 <= length <= len(data) - position:
            raise CorruptRecord(Corruption.RECORD_LENGTH, start)
        end = position + length
        if length == 0:
            raise CorruptRecord(Corruption.TRUNCATED, position)
        start = position + 1  # behind the attributes, of which none is in use
        timestamp_delta, position = _read_zigzag(data, start, end, 63, 0x01)
        self.timestamp = self._base_timestamp + timestamp_delta
        if not INT64_MIN <= self.timestamp <= INT64_MAX:
            raise CorruptRecord(Corruption.TIMESTAMP, start)
        start = position
        self.delta, position = _read_varint(data, start, end)
        if not 0 <= self.delta <= self._last_delta:
            raise CorruptRecord(Corruption.OFFSET_DELTA, start)
        self.key, position = _read_nullable(data, position, end, Corruption.KEY_LENGTH)
        self.value, position = _read_nullable(data, position, end, Corruption.VALUE_LENGTH)
        start = position
        self.headers_count, position = _read_varint(data, start, end)
        if not 0 <= self.headers_count <= (end - position) // 2:
            raise CorruptRecord(Corruption.HEADER_COUNT, start)
        self.headers_at = position
        if self.headers_count:
            position = _skip_headers(data, position, end, self.headers_count)
        if position != end:
            raise CorruptRecord(Corruption.RECORD_REMAINDER, position)
        self._position = position

    def headers(self) -> tuple[Header, ...]:
        """The headers of the present record."""
        if not self.headers_count:
            return ()
        data, position, end = self._data, self.headers_at, len(self._data)
        headers: list[Header] = []
        for _ in range(self.headers_count):
            key, position = _read_nullable(data, position, end, Corruption.HEADER_KEY_LENGTH)
            value, position = _read_nullable(data, position, end, Corruption.HEADER_VALUE_LENGTH)
            # Malformed UTF-8 is replaced, as Java does.
            headers.append(((key or b"").decode("utf-8", "replace"), value))
        return tuple(headers)

    def finish(self) -> None:
        """Check that nothing follows the last record."""
        if self._position != len(self._data):
            raise CorruptRecord(Corruption.BATCH_REMAINDER, self._position)


def _read_nullable(data: bytes, position: int, end: int, corruption: Corruption) -> tuple[bytes | None, int]:
    start = position
    length, position = _read_varint(data, position, end)
    if length < 0:
        if length != -1:
            raise CorruptRecord(corruption, start)
        return None, position
    if length > end - position:
        raise CorruptRecord(corruption, start)
    return data[position : position + length], position + length


def _skip_headers(data: bytes, position: int, end: int, count: int) -> int:
    for _ in range(count):
        start = position
        length, position = _read_varint(data, start, end)
        if not 0 <= length <= end - position:
            raise CorruptRecord(Corruption.HEADER_KEY_LENGTH, start)
        position += length
        start = position
        length, position = _read_varint(data, start, end)
        if not -1 <= length <= end - position:
            raise CorruptRecord(Corruption.HEADER_VALUE_LENGTH, start)
        position += max(length, 0)
    return position


def parse_records(
    payload: Buffer,
    header: BatchHeader,
    position: int,
    topic: str,
    partition: int,
    start: int,
    end: int,
    key_deserializer: Deserialize | None,
    value_deserializer: Deserialize | None,
    records: list[Any],
) -> None:
    """Append the records of one batch with `start <= offset < end` to `records`; see `ParseRecords`."""
    epoch = header.partition_leader_epoch if header.partition_leader_epoch >= 0 else None
    timestamp_type = header.timestamp_type
    appended = header.max_timestamp if timestamp_type is TimestampType.LOG_APPEND_TIME else None
    record = RecordCursor(bytes(payload), header)
    index = 0
    try:
        while index < header.count:
            record.advance()
            index += 1
            offset = header.base_offset + record.delta
            if not start <= offset < end:
                continue
            headers = record.headers() if record.headers_count else ()
            key: Any = record.key
            value: Any = record.value
            if key is not None and key_deserializer is not None:
                key = _deserialize(key_deserializer, key, "key", topic, partition, offset, headers)
            if value is not None and value_deserializer is not None:
                value = _deserialize(value_deserializer, value, "value", topic, partition, offset, headers)
            timestamp = record.timestamp if appended is None else appended
            records.append(made_record(topic, partition, offset, timestamp, timestamp_type, key, value, headers, epoch))
        record.finish()
    except CorruptRecord as corrupt:
        raise record_error(corrupt.corruption, header, position, index, corrupt.byte) from None


def _deserialize(
    deserializer: Deserialize, data: bytes, what: str, topic: str, partition: int, offset: int, headers: Headers
) -> Any:
    try:
        return deserializer(topic, headers, data)
    except Exception as error:
        raise deserialization_error(what, topic, partition, offset) from error
