"""Generations of gateways: who leads a unit, and under which epoch, follows from them alone.

The leader is the gateway that the unit belongs to in the newest generation. Its epoch is the number of the first
generation since which that has been the same run of the same gateway without a break: it grows whenever the leader
changes or starts anew, and stays while others come and go. A unit that was moved by hand belongs to the gateway that it
was moved to, whenever that is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final, NamedTuple

from kclient.gateway.assignment.causes import Cause
from kclient.gateway.assignment.rendezvous import chosen
from kclient.htp.errors import HtpError
from kclient.htp.rows import GREATEST_EPOCH

KEPT: Final = 32
"""So many generations are kept, at least. Once there are twice as many, the older ones are shortened."""
MOST_KEPT: Final = 8 * KEPT
"""So many are kept at most, while some gateway has not handed over yet what the older ones took away from it."""
_MOST_SINCE: Final = 10_000
"""Of so many units at most is it kept when they were moved by hand, of generations that are not."""
_NOTHING: Final[Mapping[int, int]] = MappingProxyType({})


class Generation(NamedTuple):
    """Which gateways serve the store from some moment on."""

    number: int
    """Greater than every earlier generation's, and every leader epoch that was given before."""
    members: Mapping[int, int]
    """The epoch of each gateway's lease, by its number: another run has another one."""
    moved: Mapping[int, int] = _NOTHING
    """What was moved by hand: the number of a gateway, by the unit's fingerprint. It counts while that is a member."""

    def owner(self, unit: int) -> int:
        """The number of the gateway that a unit belongs to.

        Args:
            unit: Its `fingerprint`.
        """
        if self.moved:
            wanted = self.moved.get(unit)
            if wanted in self.members:
                assert wanted is not None
                return wanted
        return chosen(unit, self.members)


class Assigned(NamedTuple):
    """Who leads a unit."""

    node_id: int
    epoch: int


class Move(NamedTuple):
    """A unit gets another leader, or the same one under another epoch."""

    unit: int
    before: Assigned
    after: Assigned


class _Span(NamedTuple):
    """Generations that follow each other and have the same members."""

    newest_first: Sequence[Generation]
    changed: frozenset[int]
    """The units that were moved by hand within it; all others have one leader."""


class Generations:
    """The generations that are known; never changed.

    Args:
        kept: They, the oldest first: at least one, each with members.
        since: Of units that were moved by hand in a generation that is not kept any more, the number of that.
        changes: How each of `kept` differs from the one before in what was moved by hand, as `difference` tells it; the
            first one from nothing. None if that is to be found out.
        causes: Why some of them began, by their numbers.

    Raises:
        ValueError: They are no such generations.
    """

    def __init__(
        self,
        kept: Sequence[Generation],
        since: Mapping[int, int] = _NOTHING,
        changes: Sequence[Mapping[int, int]] | None = None,
        causes: Mapping[int, Cause] = MappingProxyType({}),
    ) -> None:
        if not kept or not all(each.members for each in kept):
            raise ValueError("there is a generation, and gateways in each")
        if any(later.number <= each.number for each, later in pairwise(kept)):
            raise ValueError(f"generations grow, and do not go {', '.join(str(each.number) for each in kept)}")
        self.kept: tuple[Generation, ...] = tuple(kept)
        self.since: Mapping[int, int] = since
        if changes is None:
            before = [_NOTHING, *(each.moved for each in kept)]
            changes = [difference(*each) for each in zip(before, (each.moved for each in kept), strict=False)]
        self.changes: tuple[Mapping[int, int], ...] = tuple(changes)
        self.causes: Mapping[int, Cause] = causes
        """Why they began, by their numbers, as far as that is known."""
        self._newest_first = self.kept[::-1]
        self._spans = _spans(self.kept, self.changes)

    @property
    def newest(self) -> Generation:
        """The one in force."""
        return self.kept[-1]

    @property
    def controller_id(self) -> int:
        """The gateway that clients send their administration to."""
        return min(self.newest.members)

    @property
    def everything(self) -> Assigned | None:
        """Who leads every unit, and under which epoch; None if that is not one gateway, or not one epoch."""
        newest = self._newest_first[0]
        if len(newest.members) > 1:
            return None
        ((node_id, run),) = newest.members.items()
        since = newest.number
        for each in self._newest_first[1:]:
            if each.members.get(node_id) != run:
                break
            if len(each.members) > 1:
                return None
            since = each.number
        return Assigned(node_id, since)

    def followed_by(
        self,
        members: Mapping[int, int],
        above: int = 0,
        moved: Mapping[int, int] | None = None,
        settled: int = GREATEST_EPOCH,
        cause: Cause | None = None,
    ) -> Generations:
        """These with one more.

        Args:
            members: Of that.
            above: Its number is greater than this one, too.
            moved: What was moved by hand; None if that is as before.
            settled: All gateways have handed over what this generation and earlier ones have taken away.
            cause: Why it begins; None if that is not to be told.

        Raises:
            HtpError: No number is left: they have 31 bits, as leader epochs have.
        """
        number = max(self.newest.number, above) + 1
        if number > GREATEST_EPOCH:
            raise HtpError(f"no generation of gateways is left above {number - 1}")
        before = self._shortened(settled)
        was = self.newest.moved
        now = was if moved is None or moved == was else dict(moved)
        causes = {each.number: self.causes[each.number] for each in before.kept if each.number in self.causes}
        if cause is not None:
            causes[number] = cause
        return Generations(
            [*before.kept, Generation(number, dict(members), now)],
            before.since,
            [*before.changes, difference(was, now)],
            causes,
        )

    def _shortened(self, settled: int) -> Generations:
        """The newer half, and of the older one what epochs hang on.

        Generations with the same members become one: when units were moved is kept of them, by whom they were led
        before is not. If there are many without these, they are forgotten, and so the epochs of units whose leader has
        not changed since then rise to the oldest that is left.
        """
        kept = self.kept
        if len(kept) < 2 * KEPT or (kept[-KEPT - 1].number > settled and len(kept) < MOST_KEPT):
            return self
        older, newer, since = [kept[0]], list(kept[-KEPT:]), dict(self.since)
        changes = list(self.changes)
        for each, changed in zip(kept[1:-KEPT], changes[1:-KEPT], strict=True):
            last = older[-1]
            if each.members == last.members:
                since.update((unit, each.number) for unit in changed if each.owner(unit) != last.owner(unit))
                older[-1] = last._replace(moved=each.moved)
            else:
                older.append(each)
        if len(older) > KEPT // 2 or len(since) > _MOST_SINCE:
            return Generations(newer, changes=[newer[0].moved, *changes[1 - KEPT :]])
        return Generations([*older, *newer], since)

    def owner(self, unit: int) -> int:
        """The number of the gateway that leads a unit.

        Args:
            unit: Its `fingerprint`.
        """
        return self._newest_first[0].owner(unit)

    def leader(self, unit: int) -> Assigned:
        """The same, and under which epoch.

        Args:
            unit: Its `fingerprint`.
        """
        reigns = self._reigns(unit)
        leader, since = next(reigns)
        for before, began in reigns:
            if before != leader:
                break
            since = began
        if self.since:
            since = max(since, self.since.get(unit, 0))
        return Assigned(leader[0], since)

    def former(self, unit: int) -> dict[tuple[int, int], int]:
        """Who has led a unit before: number and run of each gateway, and the generation that took it away last.

        Args:
            unit: Its `fingerprint`.
        """
        found: dict[tuple[int, int], int] = {}
        reigns = self._reigns(unit)
        leader, following = next(reigns)
        for before, began in reigns:
            if before != leader:
                found.setdefault(before, following)
            leader, following = before, began
        return found

    def taken_away(self, unit: int, node_id: int, run: int) -> int:
        """The generation that took a unit away last from one who leads it again; 0 if none has, as far as is known.

        Args:
            unit: Its `fingerprint`.
            node_id: The number of the gateway that leads it.
            run: The epoch of its lease.
        """
        # in a generation that is not kept it was given back at the latest, if it was given to anybody
        return max(self.former(unit).get((node_id, run), 0), self.since.get(unit, 0))

    def _reigns(self, unit: int) -> Iterator[tuple[tuple[int, int], int]]:
        """Who has led a unit, the newest first: number and run, and since which generation; one may come repeatedly."""
        for generations, changed in self._spans:
            members = generations[0].members
            if unit in changed:
                for each in generations:
                    node_id = each.owner(unit)
                    yield (node_id, members[node_id]), each.number
            else:
                node_id = generations[0].owner(unit)
                yield (node_id, members[node_id]), generations[-1].number

    def moves(self, following: Generations, units: Iterable[int]) -> list[Move]:
        """What changes for some units when other generations come in the place of these.

        Args:
            following: The others.
            units: Their fingerprints.
        """
        found = (Move(unit, self.leader(unit), following.leader(unit)) for unit in units)
        return [move for move in found if move.before != move.after]


def difference(before: Mapping[int, int], after: Mapping[int, int]) -> Mapping[int, int]:
    """Units with the gateways that they were moved to; -1 where that does not hold any more."""
    if before is after:
        return _NOTHING
    return {**dict.fromkeys(before.keys() - after.keys(), -1), **dict(after.items() - before.items())}


def _spans(kept: Sequence[Generation], changes: Sequence[Mapping[int, int]]) -> list[_Span]:
    """The newest first."""
    found: list[_Span] = []
    end = len(kept)
    for place in reversed(range(len(kept))):
        if place == 0 or kept[place - 1].members != kept[place].members:
            changed = frozenset().union(*changes[place + 1 : end])
            found.append(_Span(kept[place:end][::-1], changed))
            end = place
    return found
