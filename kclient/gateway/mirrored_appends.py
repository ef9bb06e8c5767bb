"""Appends of a partition that mirrors another cluster's: at the offsets that its batches have there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kclient.errors import OutOfOrderSequenceError
from kclient.gateway.mirroring import fillers, marker_of
from kclient.records import BatchHeader, read_header
from kclient.records.restamping import place_batch, writable

if TYPE_CHECKING:
    from kclient.gateway.append import Append
    from kclient.gateway.log import PartitionLog
    from kclient.types import Buffer


class Prepared(NamedTuple):
    """Appends that have their offsets, in order, and what is to be sent for each."""

    appends: list[Append]
    messages: list[bytearray | memoryview]


def prepare_mirrored(
    log: PartitionLog, batches: Sequence[tuple[Buffer, BatchHeader]], now_ms: int, name: str
) -> Prepared:
    """Give batches the offsets that they have at the source; what nothing has is taken by batches without records.

    Args:
        log: The partition's.
        batches: In order, each with its header.
        now_ms: The time.
        name: Of the partition, for messages.

    Raises:
        OutOfOrderSequenceError: Something is there already at a batch's first offset; none was given one.
    """
    place = log.next_offset
    for _, header in batches:
        if header.base_offset < place:
            raise OutOfOrderSequenceError(f"a batch begins at offset {header.base_offset}, and the next one is {place}")
        place = header.last_offset + 1
    prepared = Prepared([], [])
    for batch, header in batches:
        if header.base_offset != log.next_offset:
            prepare_hole(log, header.base_offset, now_ms, prepared)
        append = log.prepare_mirrored(header, marker_of(batch, header, name), now_ms)
        append.crc = header.crc
        message = writable(batch)
        place_batch(message, append.base_offset, log.leader_epoch)
        prepared.appends.append(append)
        prepared.messages.append(message)
    return prepared


def prepare_hole(log: PartitionLog, end: int, now_ms: int, prepared: Prepared) -> None:
    """Have the offsets up to one taken by batches without records, which are added to what is to be sent."""
    for batch in fillers(log.next_offset, end):
        header = read_header(batch)
        append = log.prepare_mirrored(header, None, now_ms)
        append.crc = header.crc
        place_batch(batch, append.base_offset, log.leader_epoch)
        prepared.appends.append(append)
        prepared.messages.append(batch)
