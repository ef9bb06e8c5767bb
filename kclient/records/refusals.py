"""Exceptions that both implementations raise, so that their texts are the same."""

from __future__ import annotations

from kclient.errors import IllegalStateError, RecordTooLargeError
from kclient.records.arguments import MAX_BATCH_SIZE
from kclient.records.batch_header import HEADER_SIZE


def bad_column(row: int) -> ValueError:
    """The exception for a column whose buffers contradict each other."""
    return ValueError(f"the buffers of a column are inconsistent at row {row}")


def builder_closed() -> IllegalStateError:
    """The exception for appending to a batch that was built."""
    return IllegalStateError("The batch was built; nothing can be appended to it any more.")


def builder_empty() -> IllegalStateError:
    """The exception for building a batch without records."""
    return IllegalStateError("A batch without records cannot be built.")


def record_too_large(size: int) -> RecordTooLargeError:
    """The exception for a record that fits into no batch."""
    return RecordTooLargeError(
        f"A record of {size} bytes does not fit into a batch, whose length is at most {MAX_BATCH_SIZE} bytes "
        f"({HEADER_SIZE} of them the header)."
    )


def columns_too_large() -> RecordTooLargeError:
    """The exception for more bytes than one Arrow batch can hold."""
    return RecordTooLargeError(
        "The batches hold more than 2 GiB, more than one Arrow batch can; decode fewer at a time."
    )


def builder_busy() -> IllegalStateError:
    """The exception for using a column builder while another thread appends to it."""
    return IllegalStateError("Another thread is using the column builder.")
