"""Rows that hold one number."""

from __future__ import annotations

from typing import Final, NamedTuple

from kclient.htp.rows import GREATEST_EPOCH, dump, object_of_format, parse_number, seal, unsealed, whole

_FORMAT: Final = 1


class NumberRow(NamedTuple):
    """A kind of row."""

    field: str
    """What the number is called in the row."""
    greatest: int = (1 << 62) - 1
    """What is greater is damaged."""

    def encode(self, number: int) -> bytes:
        """A row with this number."""
        return seal(dump({"format": _FORMAT, self.field: number}))

    def decode(self, row: bytes) -> int:
        """The number of a row. Raises `ValueError` if it has none."""
        body = unsealed(row)
        if not body.startswith(b"{"):  # the first versions kept the digits alone
            return parse_number(body, 0, self.greatest)
        try:
            return whole(object_of_format(body, _FORMAT)[self.field], 0, self.greatest)
        except LookupError as error:
            raise ValueError(f"{row[:200]!r} has no {error}") from error


LOG_START: Final = NumberRow("start")
LEADER_EPOCH: Final = NumberRow("epoch", GREATEST_EPOCH)
PRODUCER_IDS: Final = NumberRow("next", (1 << 63) - (1 << 41))  # there are ids behind it
