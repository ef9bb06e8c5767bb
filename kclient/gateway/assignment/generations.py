"""Generations of gateways: who leads a unit, and under which epoch, follows from them alone.

The leader is the gateway that the unit belongs to in the newest generation. Its epoch is the number of the first
generation since which that has been the same run of the same gateway without a break: it grows whenever the leader
changes or starts anew, and stays while others come and go. A unit that was moved by hand belongs to the gateway that it
was moved to, whenever that is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final, NamedTuple

from kclient.gateway.assignment.rendezvous import chosen
from kclient.htp.errors import HtpError
from kclient.htp.rows import GREATEST_EPOCH

KEPT: Final = 32
"""So many generations are kept, at least. Once there are twice as many, the older half is forgotten, and the epochs of
units whose leader has not changed since then rise to the oldest that is left."""


class Generation(NamedTuple):
    """Which gateways serve the store from some moment on."""

    number: int
    """Greater than every earlier generation's, and every leader epoch that was given before."""
    members: Mapping[int, int]
    """The epoch of each gateway's lease, by its number: another run has another one."""
    moved: Mapping[int, int] = MappingProxyType({})
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


class Generations:
    """The generations that are known; never changed.

    Args:
        kept: They, the oldest first: at least one, each with members.

    Raises:
        ValueError: They are no such generations.
    """

    def __init__(self, kept: Sequence[Generation]) -> None:
        if not kept or not all(each.members for each in kept):
            raise ValueError("there is a generation, and gateways in each")
        if any(later.number <= each.number for each, later in pairwise(kept)):
            raise ValueError(f"generations grow, and do not go {', '.join(str(each.number) for each in kept)}")
        self.kept: tuple[Generation, ...] = tuple(kept)
        self._newest_first = self.kept[::-1]

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
        self, members: Mapping[int, int], above: int = 0, moved: Mapping[int, int] | None = None
    ) -> Generations:
        """These with one more.

        Args:
            members: Of that.
            above: Its number is greater than this one, too.
            moved: What was moved by hand; None if that is as before.

        Raises:
            HtpError: No number is left: they have 31 bits, as leader epochs have.
        """
        number = max(self.newest.number, above) + 1
        if number > GREATEST_EPOCH:
            raise HtpError(f"no generation of gateways is left above {number - 1}")
        kept = self.kept if len(self.kept) < 2 * KEPT else self.kept[KEPT:]
        return Generations(
            [*kept, Generation(number, dict(members), self.newest.moved if moved is None else dict(moved))]
        )

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
        newest = self._newest_first[0]
        node_id = newest.owner(unit)
        run, since = newest.members[node_id], newest.number
        for each in self._newest_first[1:]:
            if each.members.get(node_id) != run or each.owner(unit) != node_id:
                break
            since = each.number
        return Assigned(node_id, since)

    def former(self, unit: int) -> dict[tuple[int, int], int]:
        """Who has led a unit before: number and run of each gateway, and the generation that took it away last.

        Args:
            unit: Its `fingerprint`.
        """
        found: dict[tuple[int, int], int] = {}
        following: Generation | None = None
        leader: tuple[int, int] | None = None
        for each in self._newest_first:
            node_id = each.owner(unit)
            before = node_id, each.members[node_id]
            if following is not None and before != leader:
                found.setdefault(before, following.number)
            following, leader = each, before
        return found

    def moves(self, following: Generations, units: Iterable[int]) -> list[Move]:
        """What changes for some units when other generations come in the place of these.

        Args:
            following: The others.
            units: Their fingerprints.
        """
        found = (Move(unit, self.leader(unit), following.leader(unit)) for unit in units)
        return [move for move in found if move.before != move.after]
