"""The rows that say who leads what: the generations of gateways, and what each has handed over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kclient.gateway.assignment import Cause, CauseKind, Generation, Generations
from kclient.htp.rows import GREATEST_EPOCH, dump, object_of_format, seal, unsealed, whole
from kclient.records.bounds import INT32_MAX

_FORMAT: Final = 1
_KINDS: Final = frozenset(CauseKind)
_GREATEST_UNIT: Final = (1 << 64) - 1
_WITH_MOVES: Final = 2
"""Of generations of which some have units that were moved by hand; an earlier version would lead them all the same."""


def encode_generations(generations: Generations) -> bytes:
    """The row: of what was moved by hand each generation says how it differs from the one before."""
    kept: list[list[object]] = []
    for each, changed in zip(generations.kept, generations.changes, strict=True):
        row: list[object] = [each.number, sorted(each.members.items())]
        if changed:
            row.append(sorted(changed.items()))
        kept.append(row)
    fields: dict[str, object] = {"format": _FORMAT, "generations": kept}
    if any(generations.changes):
        fields["format"] = _WITH_MOVES
    if generations.since:
        fields["format"], fields["since"] = _WITH_MOVES, sorted(generations.since.items())
    if generations.causes:  # a version that does not know them does without
        fields["causes"] = [[number, *cause] for number, cause in sorted(generations.causes.items())]
    return seal(dump(fields))


def decode_generations(row: bytes) -> Generations:
    """What a row says. Raises `ValueError` if it says nothing sensible."""
    fields = object_of_format(unsealed(row), _WITH_MOVES)
    try:
        found: list[Generation] = []
        changes: list[Mapping[int, int]] = []
        moved: Mapping[int, int] = {}
        for number, members, *changed in fields["generations"]:
            if len(changed) > (fields["format"] == _WITH_MOVES):
                raise ValueError(f"{row[:200]!r} says more of a generation than there is in its format")
            changes.append({_unit(unit): whole(to, -1, INT32_MAX) for unit, to in changed[0]} if changed else {})
            if changed:
                moved = _changed(moved, changes[-1])
            found.append(Generation(whole(number, 0, GREATEST_EPOCH), _members(members), moved))
        since = {_unit(unit): whole(number, 0, GREATEST_EPOCH) for unit, number in fields.get("since", ())}
        return Generations(found, since, changes, _causes(fields.get("causes", ())))
    except (LookupError, TypeError) as error:
        raise ValueError(f"{row[:200]!r}: {error!r}") from error


def _causes(found: Any) -> Mapping[int, Cause]:
    """Why generations began; a later version may know of other reasons."""
    causes = {}
    for number, kind, node_id in found:
        if kind in _KINDS:
            of = None if node_id is None else whole(node_id, 0, INT32_MAX)
            causes[whole(number, 0, GREATEST_EPOCH)] = Cause(CauseKind(kind), of)
    return causes


def _changed(moved: Mapping[int, int], changed: Mapping[int, int]) -> Mapping[int, int]:
    made = {**moved, **changed}
    for unit, node_id in changed.items():
        if node_id == -1:
            del made[unit]
    return made


def _unit(found: Any) -> int:
    return whole(found, 0, _GREATEST_UNIT)


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
