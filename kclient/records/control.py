"""Control records, which end transactions, and the filter that hides aborted ones from readers.

A control record's key is version (int16) and type (int16: 0 abort, 1 commit); its value is version (int16)
and the coordinator's epoch (int32) (KIP-98).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from struct import Struct
from typing import Any, Final, NamedTuple

from kclient.errors import CorruptRecordError
from kclient.records.arguments import as_bytes, integer, shown
from kclient.records.batch_header import BatchHeader
from kclient.records.bounds import INT32_MAX, INT64_MAX, INT64_MIN
from kclient.types import Buffer

ABORT: Final = 0
COMMIT: Final = 1

_KEY = Struct(">hh")
_VALUE = Struct(">hi")


def encode_end_marker(*, commit: bool, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """Key and value of the control record that ends a transaction.

    Args:
        commit: Whether it was committed; else it was aborted.
        coordinator_epoch: Epoch of the transaction coordinator, or -1.

    Raises:
        TypeError: The epoch is not an integer.
        ValueError: The epoch is out of its range.
    """
    coordinator_epoch = integer("coordinator_epoch", coordinator_epoch, -1, INT32_MAX)
    return _KEY.pack(0, COMMIT if commit else ABORT), _VALUE.pack(0, coordinator_epoch)


class EndMarker(NamedTuple):
    """How a transaction has ended."""

    committed: bool
    coordinator_epoch: int
    """Of the coordinator that ended it, or -1."""


def decode_end_marker(key: Buffer | None, value: Buffer | None) -> EndMarker | None:
    """What the key and the value of a control record tell of a transaction's end; None for one of another kind.

    Raises:
        CorruptRecordError: The key or the value is missing or too short.
        TypeError: One is of a wrong type.
    """
    control_type = decode_control_type(key)
    if control_type not in (ABORT, COMMIT):
        return None
    value = b"" if value is None else as_bytes(value, "value")
    if len(value) < _VALUE.size:
        raise CorruptRecordError("The control record that ends a transaction has no valid value.")
    return EndMarker(control_type == COMMIT, int(_VALUE.unpack_from(value)[1]))


def decode_control_type(key: Buffer | None) -> int:
    """The type of a control record, from its key: `ABORT`, `COMMIT` or another.

    Raises:
        CorruptRecordError: The key is missing or too short.
        TypeError: The key is of a wrong type.
    """
    key = b"" if key is None else as_bytes(key, "key")
    if len(key) < _KEY.size:
        raise CorruptRecordError("A control record has no valid key.")
    return int(_KEY.unpack_from(key)[1])


def check_aborted(aborted: Any) -> list[tuple[int, int]]:
    """Producer id and first offset of each aborted transaction.

    Raises:
        TypeError: They are not pairs of integers.
        ValueError: One is out of 64 bits.
    """
    try:
        pairs = [(producer_id, first_offset) for producer_id, first_offset in aborted]
    except (TypeError, ValueError, NotImplementedError):
        raise TypeError(
            "aborted must be a list of pairs of integers, producer id and first offset, or None; not "
            f"{shown(aborted) if not isinstance(aborted, list | tuple) else f'a {type(aborted).__name__} of others'}"
        ) from None
    return [
        (
            integer("the producer id in aborted", producer_id, INT64_MIN, INT64_MAX),
            integer("the first offset in aborted", first_offset, INT64_MIN, INT64_MAX),
        )
        for producer_id, first_offset in pairs
    ]


class AbortedFilter:
    """Decides which transactional batches of a partition belong to aborted transactions.

    Fed with the batches of one fetch response in order, as the broker's list of aborted transactions is made
    for one response.

    Args:
        aborted: Producer id and first offset of each aborted transaction, as in the response.

    Raises:
        TypeError: They are not pairs of integers.
        ValueError: One is out of 64 bits.
    """

    __slots__ = ("_open", "_waiting")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._waiting = [(first_offset, producer_id) for producer_id, first_offset in check_aborted(aborted)]
        heapq.heapify(self._waiting)
        self._open: set[int] = set()

    def hides(self, header: BatchHeader) -> bool:
        """Whether the records of a data batch are to be hidden."""
        self._begin_until(header.last_offset)
        return header.is_transactional and header.producer_id in self._open

    def end(self, header: BatchHeader, control_type: int) -> None:
        """Take note of a control batch and the type of its record."""
        # Begun first, or a transaction whose data compaction removed would hide the same producer's next one.
        self._begin_until(header.last_offset)
        if control_type == ABORT:
            self._open.discard(header.producer_id)

    def _begin_until(self, offset: int) -> None:
        while self._waiting and self._waiting[0][0] <= offset:
            self._open.add(heapq.heappop(self._waiting)[1])
