"""Looking through the records of a batch, piece by piece."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from kclient.records._interpreted.reading import CorruptRecord, RecordCursor
from kclient.records.batch_header import BatchHeader
from kclient.records.bounds import INT64_MAX, INT64_MIN
from kclient.records.corruption import Corruption, record_error
from kclient.types import Buffer

_MOST_KEYLESS: Final = 10_000


class _Stage(IntEnum):
    """What of a record comes next, where the record does not lie in one piece."""

    LENGTH = 0
    ATTRIBUTES = 1
    TIMESTAMP = 2
    DELTA = 3
    KEY = 4
    VALUE = 5
    HEADER_COUNT = 6
    HEADER_KEY = 7
    HEADER_VALUE = 8
    END = 9


class RecordScan:
    """Looks through the records of one batch, piece by piece as they are decompressed, and keeps none.

    Each record is checked as readers check it. Without `since` the batch is one that a producer has made: its offsets
    are numbered without gaps.

    Args:
        header: The batch's header.
        needs_keys: Whether to note which records have no key.
        since: Look for the first record that is not older, in milliseconds since the epoch; None for a producer's
            batch.
        first_delta: The first offset that may be found, less the batch's first one.
    """

    __slots__ = (
        "_before", "_began", "_delta", "_first_delta", "_greatest", "_header", "_headers", "_key_size", "_keyless",
        "_least", "_left", "_needs_keys", "_raw", "_shift", "_since", "_skip", "_stage", "_stamp", "_torn", "count",
        "found",
    )  # fmt: skip

    def __init__(
        self, header: BatchHeader, *, needs_keys: bool = False, since: int | None = None, first_delta: int = 0
    ) -> None:
        self.count: int = 0
        """How many records were read."""
        self.found: tuple[int, int] | None = None
        """What was looked for: its offset, less the batch's first one, and its timestamp; None until it has come."""
        self._header = header
        self._needs_keys = needs_keys
        self._since = since
        self._first_delta = first_delta
        self._keyless: list[int] = []
        self._least = INT64_MAX
        self._greatest = INT64_MIN
        self._before = 0
        self._began = 0
        self._stamp = self._delta = self._key_size = 0
        # of a record that does not lie in one piece
        self._torn = False
        self._stage = _Stage.LENGTH
        self._shift = self._raw = self._left = self._skip = self._headers = 0

    @property
    def keyless(self) -> list[int]:
        """The first 10,000 records without a key, by their numbers in the batch, if they are to be noted."""
        return self._keyless

    @property
    def least_timestamp(self) -> int:
        """The least timestamp so far, in milliseconds since the epoch; -1 without a record."""
        return self._least if self.count else -1

    @property
    def greatest_timestamp(self) -> int:
        """The greatest timestamp so far, in milliseconds since the epoch; -1 without a record."""
        return self._greatest if self.count else -1

    def feed(self, piece: Buffer) -> None:
        """Look through the next piece, up to what is looked for.

        Raises:
            CorruptRecordError: A record makes no sense, or there is one more than there should be.
        """
        data = bytes(piece)
        try:
            self._scan(data)
        except CorruptRecord as error:
            raise record_error(error.corruption, self._header, 0, self.count, self._before + error.byte) from None
        self._before += len(data)

    def finish(self) -> None:
        """The last piece has come.

        Raises:
            CorruptRecordError: There are fewer records than there should be, or the last one is not whole.
        """
        if self._torn or self.count != self._header.count:
            raise record_error(Corruption.TRUNCATED, self._header, 0, self.count, self._before)

    def _scan(self, data: bytes) -> None:
        cursor = RecordCursor(data, self._header)
        position = 0
        while position < len(data) and self.found is None:
            if not self._torn:
                if self.count == self._header.count:
                    raise CorruptRecord(Corruption.BATCH_REMAINDER, position)
                self._began = position
                end = _end_of(data, position)
                if end is not None:
                    cursor.move(position)
                    cursor.advance()
                    position = end
                    self._stamp, self._delta = cursor.timestamp, cursor.delta
                    self._key_size = -1 if cursor.key is None else 0
                    self._take_record()
                    continue
                self._torn, self._stage = True, _Stage.LENGTH
                self._shift = self._raw = self._skip = 0
            position = self._advance_torn(data, position)
            if self._torn:
                return
            self._take_record()

    def _take_record(self) -> None:
        if self._since is None and self._delta != self.count:
            raise CorruptRecord(Corruption.OFFSET_DELTA, self._began)
        self._least = min(self._least, self._stamp)
        self._greatest = max(self._greatest, self._stamp)
        self.count += 1
        if self._needs_keys and self._key_size < 0 and len(self._keyless) < _MOST_KEYLESS:
            self._keyless.append(self.count - 1)
        if self._since is None:
            return
        if self._stamp >= self._since and self._delta >= self._first_delta:
            self.found = self._delta, self._stamp

    def _advance_torn(self, data: bytes, position: int) -> int:
        """Read on in a record of which only a part is there; `_torn` is unset at its end."""
        size = len(data)
        while True:
            if self._skip:
                some = min(self._skip, size - position)
                position += some
                self._skip -= some
                self._left -= some
            if self._stage is _Stage.END and self._skip == 0:
                if self._left:
                    raise CorruptRecord(Corruption.RECORD_REMAINDER, position)
                self._torn = False
                return position
            if position >= size:
                return position
            if self._shift == 0:
                self._began = position
            if self._stage is not _Stage.LENGTH:
                if self._left == 0:
                    raise CorruptRecord(Corruption.TRUNCATED, self._began)
                self._left -= 1
            byte = data[position]
            position += 1
            if self._stage is _Stage.ATTRIBUTES:
                self._stage = _Stage.TIMESTAMP
                continue
            last_shift, last_bits = (63, 0x01) if self._stage is _Stage.TIMESTAMP else (28, 0x0F)
            self._raw |= (byte & 0x7F) << self._shift
            if self._shift == last_shift and byte > last_bits:
                raise CorruptRecord(Corruption.VARINT, self._began)
            if byte >= 0x80:
                self._shift += 7
                continue
            self._take_stage(self._raw >> 1 ^ -(self._raw & 1))
            self._raw = self._shift = 0

    def _take_stage(self, value: int) -> None:
        """A number of a torn record has been read."""
        stage, left = self._stage, self._left
        if stage is _Stage.LENGTH:
            self._check(value >= 0, Corruption.RECORD_LENGTH)
            self._check(value > 0, Corruption.TRUNCATED)
            self._left, self._stage = value, _Stage.ATTRIBUTES
        elif stage is _Stage.TIMESTAMP:
            self._stamp = self._header.base_timestamp + value
            self._check(INT64_MIN <= self._stamp <= INT64_MAX, Corruption.TIMESTAMP)
            self._stage = _Stage.DELTA
        elif stage is _Stage.DELTA:
            self._check(0 <= value <= self._header.last_offset_delta, Corruption.OFFSET_DELTA)
            self._delta, self._stage = value, _Stage.KEY
        elif stage is _Stage.KEY:
            self._check(-1 <= value <= left, Corruption.KEY_LENGTH)
            self._key_size, self._skip, self._stage = value, max(value, 0), _Stage.VALUE
        elif stage is _Stage.VALUE:
            self._check(-1 <= value <= left, Corruption.VALUE_LENGTH)
            self._skip, self._stage = max(value, 0), _Stage.HEADER_COUNT
        elif stage is _Stage.HEADER_COUNT:
            self._check(0 <= value <= left // 2, Corruption.HEADER_COUNT)
            self._headers, self._stage = value, _Stage.HEADER_KEY if value else _Stage.END
        elif stage is _Stage.HEADER_KEY:
            self._check(0 <= value <= left, Corruption.HEADER_KEY_LENGTH)
            self._skip, self._stage = value, _Stage.HEADER_VALUE
        else:
            self._check(-1 <= value <= left, Corruption.HEADER_VALUE_LENGTH)
            self._headers -= 1
            self._skip, self._stage = max(value, 0), _Stage.HEADER_KEY if self._headers else _Stage.END

    def _check(self, holds: bool, corruption: Corruption) -> None:
        if not holds:
            raise CorruptRecord(corruption, self._began)


def _end_of(data: bytes, position: int) -> int | None:
    """Where the record at `position` ends, if it lies in this piece to its end."""
    raw = shift = 0
    for at in range(position, min(position + 5, len(data))):
        byte = data[at]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            length = raw >> 1 ^ -(raw & 1)
            if shift == 28 and byte > 0x0F:
                return None
            return at + 1 + length if 0 <= length <= len(data) - at - 1 else None
        shift += 7
    return None
