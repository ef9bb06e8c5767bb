"""The checkpoint of a partition as the manager's key-value part keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from kclient.gateway.log import Checkpoint
from kclient.gateway.producer_windows import ProducerWindow, Remembered
from kclient.htp.rows import check_format, dump, parse_object, sealed_in_steps, unsealed, whole
from kclient.records.bounds import INT16_MAX, INT32_MAX, INT64_MAX, INT64_MIN

_FORMAT: Final = 2
"""The first called it `v`."""
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
    }
    yield dump(fields)[:-1] + b',"producers":['
    separator = b""
    producers = iter(checkpoint.windows.items())
    while some := list(islice(producers, _AT_ONCE)):
        rows = [[producer_id, window.epoch, window.seen_ms, window.batches] for producer_id, window in some]
        yield separator + dump(rows)[1:-1]
        separator = b","
    yield b"]}"


def decode_checkpoint(row: bytes) -> Checkpoint:
    """The checkpoint of these bytes. Raises `ValueError` if they are none, or of a newer version."""
    try:
        fields = parse_object(unsealed(row))
        check_format(fields["format"] if "format" in fields else fields["v"], _FORMAT)
        windows = {
            whole(producer_id, 0, INT64_MAX): ProducerWindow(
                whole(epoch, ~INT16_MAX, INT16_MAX),
                tuple(_remembered(*batch) for batch in batches),
                whole(seen_ms),
            )
            for producer_id, epoch, seen_ms, batches in fields["producers"]
        }
        epochs = tuple((whole(epoch, -1, INT32_MAX), whole(start)) for epoch, start in fields["epochs"])
        return Checkpoint(whole(fields["next"]), whole(fields["start"], 0, fields["next"]), windows, epochs)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{row[:200]!r}: {error!r}") from error


def _remembered(first_sequence: Any, last_sequence: Any, base_offset: Any, timestamp: Any) -> Remembered:
    return Remembered(
        whole(first_sequence, 0, INT32_MAX), whole(last_sequence, 0, INT32_MAX),
        whole(base_offset), whole(timestamp, INT64_MIN, INT64_MAX),
    )  # fmt: skip
