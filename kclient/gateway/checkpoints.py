"""The checkpoint of a partition as the manager's key-value part keeps it."""

from __future__ import annotations

import json
from typing import Any, Final

from kclient.gateway.log import Checkpoint, Remembered, Window

FORMAT: Final = 1
"""The version of the format, written with every checkpoint."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """A checkpoint as bytes."""
    return json.dumps(
        {
            "v": FORMAT,
            "next": checkpoint.next_offset,
            "start": checkpoint.start_offset,
            "epochs": checkpoint.epochs,
            "producers": [
                [producer_id, window.epoch, window.seen_ms, window.batches]
                for producer_id, window in checkpoint.windows.items()
            ],
        },
        separators=(",", ":"),
    ).encode()


def decode_checkpoint(row: bytes) -> Checkpoint:
    """The checkpoint of these bytes. Raises `ValueError` if they are none, or of a newer version."""
    try:
        fields: dict[str, Any] = json.loads(row)
        if fields["v"] > FORMAT:
            raise ValueError(f"it has format {fields['v']}, this version reads {FORMAT}")
        windows = {
            int(producer_id): Window(int(epoch), tuple(Remembered(*map(int, batch)) for batch in batches), int(seen_ms))
            for producer_id, epoch, seen_ms, batches in fields["producers"]
        }
        epochs = tuple((int(epoch), int(start)) for epoch, start in fields["epochs"])
        return Checkpoint(int(fields["next"]), int(fields["start"]), windows, epochs)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{row[:200]!r}: {error!r}") from error
