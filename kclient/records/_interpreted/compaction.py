"""Which records of a compacted log survive: the last offset of each key, and what is kept of a batch."""

from __future__ import annotations

from hashlib import blake2b
from secrets import token_bytes
from struct import Struct
from typing import Final

from kclient.records._interpreted.reading import CorruptRecord, RecordCursor
from kclient.records.arguments import integer
from kclient.records.batch_header import BatchHeader, check_count
from kclient.records.bounds import INT64_MAX, INT64_MIN
from kclient.records.contract import Survivors
from kclient.records.corruption import record_error
from kclient.records.varint import encode_varint
from kclient.types import Buffer

_MOST_SLOTS: Final = 1 << 40
_SLOT: Final = Struct("<16sq")
"""128 bits of a key's hash, and the offset behind its last record; 0 where the slot is free."""


class KeyOffsets:
    """The last offset of each key that was noted: 24 bytes of memory for each slot, however long the keys are.

    Keys are told apart by 128 bits of a hash with a secret of its own for each table. Nine slots in ten can be taken.

    Args:
        slots: How many there are, 2 to 2^40.

    Raises:
        TypeError: `slots` is not an integer.
        ValueError: It is out of its range.
        MemoryError: There is no memory for so many.
    """

    __slots__ = ("_secret", "_table", "count", "end", "slots")

    def __init__(self, slots: int) -> None:
        self.slots: int = integer("slots", slots, 2, _MOST_SLOTS)
        """How many there are."""
        self.count: int = 0
        """How many keys were noted."""
        self.end: int = 0
        """The offset behind the last record that was noted or passed over: of those from here on nothing is known."""
        self._table = bytearray(self.slots * _SLOT.size)
        self._secret = token_bytes(16)

    @property
    def most(self) -> int:
        """How many keys can be noted."""
        return self.slots * 9 // 10

    def note(self, payload: Buffer, header: BatchHeader, start: int) -> bool:
        """Note the keys of one batch's records; those without a key are passed over.

        Args:
            payload: The decompressed records of the batch.
            header: The batch's header.
            start: Records below this offset are passed over.

        Returns:
            False if there was no room for all: `end` is the offset of the first record that was not noted then.

        Raises:
            CorruptRecordError: A record makes no sense; some may have been noted.
        """
        cursor = RecordCursor(bytes(payload), header)
        index = 0
        try:
            while index < header.count:
                cursor.advance()
                index += 1
                offset = header.base_offset + cursor.delta
                if cursor.key is not None and offset >= start and not self._put(cursor.key, offset):
                    self.end = offset
                    return False
            cursor.finish()
        except CorruptRecord as error:
            raise record_error(error.corruption, header, 0, index, error.byte) from None
        self.end = header.next_offset
        return True

    def passed(self, end: int) -> None:
        """Go on behind what has nothing to note.

        Args:
            end: The offset behind it, 0 to 2^63 - 1.

        Raises:
            TypeError: It is not an integer.
            ValueError: It is out of its range.
        """
        self.end = integer("end", end, 0, INT64_MAX)

    def _find(self, key: bytes) -> tuple[bytes, int, int]:
        """The hash of a key, its slot or the free one that it would take, and what is there."""
        digest = blake2b(key, digest_size=16, key=self._secret).digest()
        slot = int.from_bytes(digest[:8], "little") % self.slots
        while True:
            found, after = _SLOT.unpack_from(self._table, slot * _SLOT.size)
            if after == 0 or found == digest:
                return digest, slot, after
            slot = (slot + 1) % self.slots

    def _put(self, key: bytes, offset: int) -> bool:
        digest, slot, after = self._find(key)
        if after == 0:
            if self.count >= self.most:
                return False
            self.count += 1
        _SLOT.pack_into(self._table, slot * _SLOT.size, digest, offset + 1)
        return True

    def superseded(self, key: bytes, offset: int) -> bool:
        """Whether a later record of a key than that at an offset was noted."""
        return self._find(key)[2] > offset + 1


def surviving_records(
    payload: Buffer, header: BatchHeader, offsets: KeyOffsets, tombstones: bool, horizon: int | None
) -> Survivors:
    """The records of one batch that a compaction keeps.

    Those from `offsets.end` on are kept. Of the others those that have a key, of which no later one was noted; without
    a value only where `tombstones` says so.

    Args:
        payload: The decompressed records of the batch.
        header: The batch's header.
        offsets: The last offset of each key.
        tombstones: Whether records without a value are kept.
        horizon: The batch's new base timestamp if records without a value are kept, in milliseconds since the epoch;
            None to leave it. It is left, too, where a timestamp is too far away from it.

    Raises:
        CorruptRecordError: A record makes no sense.
    """
    data = bytes(payload)
    check_count(header, 0, len(data))
    cursor = RecordCursor(data, header)
    kept: list[tuple[int, int, int]] = []
    index, deletions = 0, 0
    try:
        while index < header.count:
            begin = cursor.position
            cursor.advance()
            index += 1
            if not _survives(cursor, header.base_offset + cursor.delta, offsets, tombstones):
                continue
            kept.append((begin, cursor.position, cursor.timestamp))
            deletions += cursor.value is None
        cursor.finish()
    except CorruptRecord as error:
        raise record_error(error.corruption, header, 0, index, error.byte) from None
    if not kept:
        return Survivors(0, b"", -1, False)
    stamps = [timestamp for _, _, timestamp in kept]
    if horizon is not None and deletions and _counts_from(horizon, min(stamps), max(stamps)):
        records = b"".join(_restamped(data, begin, end, stamp - horizon) for begin, end, stamp in kept)
        return Survivors(len(kept), records, max(stamps), True)
    if len(kept) == index:
        return Survivors(index, None, max(stamps), False)
    return Survivors(len(kept), b"".join(data[begin:end] for begin, end, _ in kept), max(stamps), False)


def _counts_from(base: int, least: int, greatest: int) -> bool:
    """Whether the differences to a base timestamp have room in 64 bits."""
    return least - base >= INT64_MIN and greatest - base <= INT64_MAX


def _survives(cursor: RecordCursor, offset: int, offsets: KeyOffsets, tombstones: bool) -> bool:
    if offset >= offsets.end:
        return True
    if cursor.key is None or (cursor.value is None and not tombstones):
        return False
    return not offsets.superseded(cursor.key, offset)


def _restamped(data: bytes, begin: int, end: int, delta: int) -> bytes:
    """A record with another timestamp delta."""
    at = begin
    while data[at] >= 0x80:  # its length
        at += 1
    attributes = at = at + 1
    at += 1
    while data[at] >= 0x80:  # its timestamp
        at += 1
    body = b"".join((data[attributes : attributes + 1], encode_varint(delta), data[at + 1 : end]))
    return encode_varint(len(body)) + body
