"""What a partition's log reads of a batch."""

from __future__ import annotations

from typing import Protocol


class Header(Protocol):
    """What the log reads of a batch's header (`kclient.records.BatchHeader` has it all)."""

    @property
    def length(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def is_transactional(self) -> bool: ...


class StoredHeader(Header, Protocol):
    """What recovery reads of a stored batch's header."""

    @property
    def base_offset(self) -> int: ...
    @property
    def partition_leader_epoch(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def is_control(self) -> bool: ...
    @property
    def count(self) -> int: ...


class Marker(Protocol):
    """What the log reads of the control record that ends a transaction (`kclient.records.EndMarker`)."""

    @property
    def committed(self) -> bool: ...
    @property
    def coordinator_epoch(self) -> int: ...


def log_append_time(header: StoredHeader) -> int:
    """The time that a stored batch was stamped with when it was appended, or -1."""
    return header.max_timestamp if getattr(header, "timestamp_type", 0) == 1 else -1


def in_transaction(header: StoredHeader) -> bool:
    """Whether a stored batch has records of a transaction: of one that compaction has emptied the end may be gone."""
    return header.is_transactional and header.count > 0
