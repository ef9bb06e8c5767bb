"""The row of a unit that has a leader epoch of its own."""

from __future__ import annotations

from typing import Final, NamedTuple

from kclient.htp.rows import GREATEST_EPOCH, dump, object_of_format, seal, unsealed, whole

_FORMAT: Final = 1


class UnitRow(NamedTuple):
    """A unit's leader epoch, and whose it is."""

    given: int
    """That which the generations of gateways gave it meanwhile; where they give a later one, this row means nothing."""
    epoch: int

    def encode(self) -> bytes:
        """The row."""
        return seal(dump({"format": _FORMAT, "gateway": self.given, "epoch": self.epoch}))

    @classmethod
    def decode(cls, row: bytes) -> UnitRow:
        """What a row says. Raises `ValueError` if it says nothing sensible."""
        fields = object_of_format(unsealed(row), _FORMAT)
        try:
            return cls(whole(fields["gateway"], 0, GREATEST_EPOCH), whole(fields["epoch"], 0, GREATEST_EPOCH))
        except LookupError as error:
            raise ValueError(f"{row[:200]!r} has no {error}") from error
