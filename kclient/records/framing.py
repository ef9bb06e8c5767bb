"""How a message store finds its way among record batches without knowing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, cast

from typing_extensions import TypeVar

from kclient.errors import CorruptRecordError
from kclient.records.arguments import as_buffer, check_callable, check_position
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
            type, as this package knows no store. None makes a `BatchInfo`.

    Raises:
        TypeError: `make_info` cannot be called.
    """

    name: str = "kafka.record-batch.v2"
    """What it is registered by (`kclient.htp.find_framing`)."""
    prefix = HEADER_SIZE
    """Bytes that `measure` and `inspect` need."""

    __slots__ = ("_make_info",)

    def __init__(self, make_info: Callable[[int, int, int, int], Info] | None = None) -> None:
        check_callable("make_info", make_info)
        self._make_info = make_info or cast("Callable[[int, int, int, int], Info]", BatchInfo)

    def measure(self, buffer: Buffer, position: int = 0, /) -> int:
        """Whole length in bytes of the batch at `position`.

        Raises:
            TypeError: An argument is of a wrong type.
            ValueError: No batch can begin like this, or the position is negative.
        """
        try:
            return measure(as_buffer(buffer), check_position(position))
        except CorruptRecordError as error:
            raise ValueError(str(error)) from error

    def inspect(self, buffer: Buffer, position: int = 0, /) -> Info:
        """Length, offsets and greatest timestamp of the batch at `position`.

        Raises:
            TypeError: An argument is of a wrong type.
            ValueError: No batch can begin like this, or the position is negative.
        """
        try:
            header = read_header(buffer, position)
        except CorruptRecordError as error:
            raise ValueError(str(error)) from error
        if header.magic != CURRENT_MAGIC:
            raise ValueError(f"messages of format v{header.magic} cannot be stored as they are; convert them first")
        return self._make_info(header.length, header.base_offset, header.last_offset, header.max_timestamp)

    def verify(self, buffer: Buffer, position: int = 0, /) -> bool:
        """Whether a whole batch is at `position` and its checksum is right; False for anything else.

        Raises:
            TypeError: An argument is of a wrong type.
            ValueError: The position is negative.
        """
        try:
            return check_batch(buffer, position).magic == CURRENT_MAGIC
        except CorruptRecordError:
            return False
