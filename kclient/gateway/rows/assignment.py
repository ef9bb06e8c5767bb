"""The rows that say who leads what: the generations of gateways, and what each has handed over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kclient.gateway.assignment import Generation, Generations
from kclient.htp.rows import GREATEST_EPOCH, dump, object_of_format, seal, unsealed, whole
from kclient.records.bounds import INT32_MAX

_FORMAT: Final = 1


def encode_generations(generations: Generations) -> bytes:
    """The row."""
    kept = [[each.number, sorted(each.members.items())] for each in generations.kept]
    return seal(dump({"format": _FORMAT, "generations": kept}))


def decode_generations(row: bytes) -> Generations:
    """What a row says. Raises `ValueError` if it says nothing sensible."""
    fields = object_of_format(unsealed(row), _FORMAT)
    try:
        return Generations(
            [
                Generation(whole(number, 0, GREATEST_EPOCH), _members(members))
                for number, members in fields["generations"]
            ]
        )
    except (LookupError, TypeError) as error:
        raise ValueError(f"{row[:200]!r}: {error!r}") from error


def _members(found: Any) -> Mapping[int, int]:
    members = {whole(node_id, 0, INT32_MAX): whole(epoch, 0, GREATEST_EPOCH) for node_id, epoch in found}
    if len(members) < len(found):
        raise ValueError("a gateway is in it twice")
    return members


class ReleasedRow(NamedTuple):
    """What a run of a gateway has handed over."""

    run: int
    """The epoch of the lease under which it is registered."""
    generation: int
    """It does nothing any more with what it led before this one and does not lead since."""

    def encode(self) -> bytes:
        """The row."""
        return seal(dump({"format": _FORMAT, "run": self.run, "generation": self.generation}))

    @classmethod
    def decode(cls, row: bytes) -> ReleasedRow:
        """What a row says. Raises `ValueError` if it says nothing sensible."""
        fields = object_of_format(unsealed(row), _FORMAT)
        try:
            return cls(whole(fields["run"], 0, GREATEST_EPOCH), whole(fields["generation"], 0, GREATEST_EPOCH))
        except LookupError as error:
            raise ValueError(f"{row[:200]!r} has no {error}") from error
