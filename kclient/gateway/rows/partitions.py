"""The checkpoint of a partition as the manager's key-value part keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from kclient.gateway.aborted import ChunkBounds
from kclient.gateway.log import Checkpoint
from kclient.gateway.producer_windows import NO_TRANSACTION, ProducerWindow, Remembered
from kclient.htp.rows import check_format, dump, parse_object, sealed_in_steps, unsealed, whole
from kclient.records.bounds import INT16_MAX, INT32_MAX, INT64_MAX, INT64_MIN

_FORMAT: Final = 3
"""The first called it `v`; before the third none knew of transactions."""
_AT_ONCE: Final = 250
"""Producers in one piece."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """A checkpoint as bytes."""
    return b"".join(encoded_in_steps(checkpoint))


def encoded_in_steps(checkpoint: Checkpoint) -> Iterator[bytes]:
    """A checkpoint as bytes, piece by piece: a thousand producers take some milliseconds."""
    return sealed_in_steps(_pieces(checkpoint))


def _pieces(checkpoint: Checkpoint) -> Iterator[bytes]:
    fields = {
        "format": _FORMAT,
        "next": checkpoint.next_offset,
        "start": checkpoint.start_offset,
        "epochs": checkpoint.epochs,
        "aborted": checkpoint.aborted,
    }
    yield dump(fields)[:-1] + b',"producers":['
    separator = b""
    producers = iter(checkpoint.windows.items())
    while some := list(islice(producers, _AT_ONCE)):
        yield separator + dump([_producer(producer_id, window) for producer_id, window in some])[1:-1]
        separator = b","
    yield b"]}"


def _producer(producer_id: int, window: ProducerWindow) -> list[Any]:
    row: list[Any] = [producer_id, window.epoch, window.seen_ms, window.batches]
    if (window.transaction_start, window.coordinator_epoch) != (NO_TRANSACTION, -1):
        row += (window.transaction_start, window.coordinator_epoch)
    return row


def decode_checkpoint(row: bytes) -> Checkpoint:
    """The checkpoint of these bytes. Raises `ValueError` if they are none, or of a newer version."""
    try:
        fields = parse_object(unsealed(row))
        check_format(fields["format"] if "format" in fields else fields["v"], _FORMAT)
        windows = dict(_parse_producer(*row) for row in fields["producers"])
        epochs = tuple((whole(epoch, -1, INT32_MAX), whole(start)) for epoch, start in fields["epochs"])
        aborted = tuple(ChunkBounds(*map(whole, chunk)) for chunk in fields.get("aborted", ()))
        return Checkpoint(whole(fields["next"]), whole(fields["start"], 0, fields["next"]), windows, epochs, aborted)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{row[:200]!r}: {error!r}") from error


def _parse_producer(
    producer_id: Any, epoch: Any, seen_ms: Any, batches: Any, start: Any = NO_TRANSACTION, coordinator_epoch: Any = -1
) -> tuple[int, ProducerWindow]:
    window = ProducerWindow(
        whole(epoch, ~INT16_MAX, INT16_MAX), tuple(_remembered(*batch) for batch in batches), whole(seen_ms),
        whole(start, NO_TRANSACTION), whole(coordinator_epoch, -1, INT32_MAX),
    )  # fmt: skip
    return whole(producer_id, 0, INT64_MAX), window


def _remembered(first_sequence: Any, last_sequence: Any, base_offset: Any, timestamp: Any) -> Remembered:
    return Remembered(
        whole(first_sequence, 0, INT32_MAX), whole(last_sequence, 0, INT32_MAX),
        whole(base_offset), whole(timestamp, INT64_MIN, INT64_MAX),
    )  # fmt: skip
