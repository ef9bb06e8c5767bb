"""How a message store finds its way among record batches without knowing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, cast

from typing_extensions import TypeVar

from kclient.errors import CorruptRecordError
from kclient.records.batch_header import CURRENT_MAGIC, HEADER_SIZE, measure
from kclient.records.headers import check_batch, read_header
from kclient.types import Buffer


class BatchInfo(NamedTuple):
    """What a store indexes of a record batch."""

    length: int
    """Bytes of the whole batch."""
    first: int
    """Offset of the first record."""
    last: int
    """Offset of the last record, inclusive."""
    max_timestamp: int
    """Greatest timestamp, in milliseconds since the epoch, or -1."""


Info = TypeVar("Info", default=BatchInfo)


class RecordBatchFraming(Generic[Info]):
    """Record batches as messages of a store: one batch is one message, offsets are its ordinals.

    Args:
        make_info: What `inspect` makes of length, first and last offset and greatest timestamp; the store's own
            type, as this package knows no store.
    """

    prefix = HEADER_SIZE
    """Bytes that `measure` and `inspect` need."""

    __slots__ = ("_make_info",)

    def __init__(self, make_info: Callable[[int, int, int, int], Info] | None = None) -> None:
        self._make_info = make_info or cast("Callable[[int, int, int, int], Info]", BatchInfo)

    def measure(self, buffer: Buffer, position: int = 0, /) -> int:
        """Whole length in bytes of the batch at `position`.

        Raises:
            ValueError: No batch can begin like this.
        """
        try:
            return measure(buffer, position)
        except CorruptRecordError as error:
            raise ValueError(str(error)) from error

    def inspect(self, buffer: Buffer, position: int = 0, /) -> Info:
        """Length, offsets and greatest timestamp of the batch at `position`.

        Raises:
            ValueError: No batch can begin like this.
        """
        try:
            header = read_header(buffer, position)
        except CorruptRecordError as error:
            raise ValueError(str(error)) from error
        if header.magic != CURRENT_MAGIC:
            raise ValueError(f"messages of format v{header.magic} cannot be stored as they are; convert them first")
        return self._make_info(header.length, header.base_offset, header.last_offset, header.max_timestamp)

    def verify(self, buffer: Buffer, position: int = 0, /) -> bool:
        """Whether a whole batch is at `position` and its checksum is right; False for anything else."""
        try:
            return check_batch(buffer, position).magic == CURRENT_MAGIC
        except CorruptRecordError:
            return False
