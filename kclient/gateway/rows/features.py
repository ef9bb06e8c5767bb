"""The row of the features of a cluster: the levels that UpdateFeatures has set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kclient.htp.rows import GREATEST, dump, object_of_format, seal, unsealed, whole
from kclient.records.bounds import INT16_MAX

_FORMAT: Final = 1


class FeaturesRow(NamedTuple):
    """Which levels are in use."""

    epoch: int
    """How often that has changed."""
    levels: Mapping[str, int]
    """By the features' names; what is not in it is as releases have it from the start."""

    def encode(self) -> bytes:
        """The row."""
        return seal(dump({"format": _FORMAT, "epoch": self.epoch, "levels": dict(self.levels)}))

    @classmethod
    def decode(cls, row: bytes) -> FeaturesRow:
        """What a row says. Raises `ValueError` if it says nothing sensible."""
        fields = object_of_format(unsealed(row), _FORMAT)
        try:
            levels = {name: whole(level, 0, INT16_MAX) for name, level in fields["levels"].items()}
            return cls(whole(fields["epoch"], 0, GREATEST), levels)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{row[:200]!r}: {error!r}") from error
