"""Batches for the log of a partition that mirrors another cluster's: what stands where that has nothing.

A log in HTP has no gaps: one is damage. Another cluster's log may have them, where compaction has removed whole
batches. In their place the mirror has batches without records, as Kafka's own compaction leaves them: clients pass over
them, and every record has the offset that it has at its source.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from kclient.errors import CorruptRecordError, RecordTooLargeError
from kclient.records import HEADER_SIZE, BatchHeader, EndMarker, read_end_marker
from kclient.records.batch_header import write_header
from kclient.records.bounds import INT32_MAX
from kclient.types import Buffer

logger: logging.Logger = logging.getLogger("kclient.gateway.log")

_NONE: Final = -1


def mirrored(name: str) -> str:
    """Why a topic takes nothing from clients, as the beginning of a sentence."""
    return f"Topic '{name}' mirrors a topic of another cluster until it is cut over (kclient migrate cutover)"


def fillers(first: int, end: int, leader_epoch: int = _NONE) -> Iterator[bytearray]:
    """Batches without records that take the offsets from `first` to before `end`, under a leader epoch."""
    while first < end:
        last_offset_delta = min(end - first - 1, INT32_MAX)
        batch = bytearray(HEADER_SIZE)
        write_header(
            batch,
            base_offset=first,
            partition_leader_epoch=leader_epoch,
            attributes=0,
            last_offset_delta=last_offset_delta,
            base_timestamp=_NONE,
            max_timestamp=_NONE,
            producer_id=_NONE,
            producer_epoch=_NONE,
            base_sequence=_NONE,
            count=0,
        )
        yield batch
        first += last_offset_delta + 1


def marker_of(batch: Buffer, header: BatchHeader, name: str) -> EndMarker | None:
    """What a batch says of the end of a transaction; None if it is no control batch, or one that ends none.

    Args:
        batch: One whole batch, whose checksum was compared.
        header: Its header.
        name: Of the partition, for messages.
    """
    if not header.is_control or not header.count:  # compaction has removed the whole transaction of an empty one
        return None
    try:
        return read_end_marker(batch)
    except (CorruptRecordError, RecordTooLargeError) as error:
        logger.error("%s: a control batch cannot be read, and counts as none: %s", name, error)
        return None
