"""The generations of gateways as the store has them: begun by who joins, leaves or evicts, followed by all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.gateway.assignment import Cause, CauseKind, Generation, Generations, chosen
from kclient.gateway.assignment.generations import KEPT, MOST_KEPT
from kclient.gateway.rows import numbers
from kclient.gateway.rows.assignment import ReleasedRow, decode_generations, encode_generations
from kclient.gateway.rows.keys import (
    ASSIGNMENT,
    GATEWAYS,
    LEADER_EPOCH,
    LEASE,
    RELEASED,
    gateway_key,
    parse_released_key,
    released_key,
)
from kclient.htp.errors import ConflictError, HtpError
from kclient.htp.rows import GREATEST_EPOCH, scan_pages

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.htp.port import Change, Lease, Manager, Versioned

logger: logging.Logger = logging.getLogger("kclient.gateway")


MOST_MOVED: Final = 10_000
"""Units that were moved by hand, at most: all gateways read and write them with each generation."""


class TooManyMovedError(Exception):
    """More units would have been moved by hand than can be."""


class HandOverUnderWayError(Exception):
    """So many moves are under way that no more can be kept.

    Args:
        node_id: A gateway that has not handed over yet what was moved away from it.
    """

    def __init__(self, node_id: int) -> None:
        super().__init__(node_id)
        self.node_id = node_id


class NotMemberError(Exception):
    """A gateway serves no more, or not yet.

    Args:
        node_id: Its number.
    """

    def __init__(self, node_id: int) -> None:
        super().__init__(node_id)
        self.node_id = node_id


class ClusterGenerations:
    """The generations that are in force, as far as this gateway knows.

    Args:
        manager: Keeps their row.
        node_id: This gateway's number.
        run: The epoch of the lease under which it is registered.
        current: They.
        version: Of the row.
    """

    prefixes: tuple[str, ...] = (ASSIGNMENT,)
    """What it follows in the log of changes."""

    def __init__(self, manager: Manager, node_id: int, run: int, current: Generations, version: int) -> None:
        self._manager = manager
        self.node_id: int = node_id
        """This gateway's number."""
        self.run: int = run
        """Tells this run of it from others: the epoch of the lease under which it is registered."""
        self._when_changed: list[Callable[[], object]] = []
        self.joined: int = current.newest.number
        """The generation with which this run of the gateway has joined, if it has."""
        self.current: Generations = current
        """They; never changed, but replaced."""
        self.version: int = version
        """Of the row, as it was read last: whoever expects it writes nothing once another generation is there."""

    @property
    def serving(self) -> bool:
        """Whether this run of the gateway is in the newest one."""
        return self.current.newest.members.get(self.node_id) == self.run

    @property
    def alone(self) -> bool:
        """Whether this run of the gateway leads everything, as far as it knows."""
        return self.serving and len(self.current.newest.members) == 1

    def leads(self, unit: int) -> bool:
        """Whether this run of the gateway leads a unit.

        Args:
            unit: Its `fingerprint`.
        """
        return self.serving and self.current.owner(unit) == self.node_id

    def on_change(self, callback: Callable[[], object]) -> None:
        """Have `callback()` called whenever there are others; it must not wait."""
        self._when_changed.append(callback)

    async def read_all(self) -> None:
        """Read the row anew. Raises `HtpError` if the store fails."""
        self._take((await self._manager.get([ASSIGNMENT])).get(ASSIGNMENT))

    async def apply(self, changes: Sequence[Change]) -> None:
        """The row may have changed."""
        if any(change.key == ASSIGNMENT and change.version > self.version for change in changes):
            await self.read_all()

    def _take(self, row: Versioned | None) -> None:
        found = _decoded(row)
        if found is None:
            logger.error("the row %s is gone or damaged; the gateways go on as they knew it", ASSIGNMENT)
            self.version = 0 if row is None else row.version
        elif row is not None and row.version > self.version:
            self._put(found, row.version)

    def _put(self, current: Generations, version: int) -> None:
        """These are in force."""
        if version <= self.version:
            return
        self.current, self.version = current, version
        members = ", ".join(map(str, sorted(current.newest.members)))
        logger.info("generation %d: the store is served by the gateways %s", current.newest.number, members)
        for callback in self._when_changed:
            callback()

    # What begins one

    async def join(self, lease: HeldLease) -> None:
        """Begin a generation with this gateway in it, if it is in none.

        Args:
            lease: Under which it is registered.

        Raises:
            FencedError: A gateway of the same number has started.
            HtpError: The store failed, or no number is left.
        """

        def released(number: int) -> dict[str, bytes | None]:
            return {released_key(self.node_id): ReleasedRow(self.run, number).encode()}

        if self.serving:
            return
        self.joined = await self._begin(
            Cause(CauseKind.JOINED, self.node_id), lambda members: {**members, self.node_id: self.run}, lease, released
        )

    async def leave(self, lease: HeldLease) -> None:
        """Begin one without this gateway, which has to hand over then what it leads; not if there is no other.

        The arguments and errors are those of `join`.
        """
        cause = Cause(CauseKind.LEFT, self.node_id)
        await self._begin(cause, lambda members: _without(members, self.node_id, self.run), lease)

    async def move(self, units: Mapping[int, int], lease: HeldLease, known: Callable[[], Container[int]]) -> None:
        """Begin one in which some units belong to other gateways: whenever these are there.

        They stay there whoever joins, as on Kafka, also where they would belong there by themselves. Of more than can
        be moved by hand first the units that there are no more are forgotten, then those that are where they belong by
        themselves, among all gateways that are known.

        Args:
            units: The number of a gateway by the unit's fingerprint.
            lease: This gateway's.
            known: Tells the units that there are.

        Raises:
            TooManyMovedError: More units would have been moved by hand than can be.
            NotMemberError: One of the gateways serves no more.
            HandOverUnderWayError: Too many earlier ones are under way.
            HtpError: The store failed, or no number is left.
        """

        def moved(before: Generations) -> Mapping[int, int]:
            newest = before.newest
            if gone := set(units.values()) - set(newest.members):
                raise NotMemberError(min(gone))
            after = {**newest.moved, **units}
            if len(after) > MOST_MOVED:
                there = known()
                after = {unit: node_id for unit, node_id in after.items() if unit in there}
            if len(after) > MOST_MOVED:
                # those too that are away: it would go to one of them when that is there again
                everyone = {node_id for each in before.kept for node_id in each.members}.union(after.values())
                after = {unit: node_id for unit, node_id in after.items() if chosen(unit, everyone) != node_id}
            if len(after) > MOST_MOVED:
                raise TooManyMovedError
            return after

        await self._begin(Cause(CauseKind.BY_HAND), lambda members: members, lease, moved=moved)

    async def evict(self, node_id: int, run: int, lease: HeldLease, rows: Mapping[str, int]) -> None:
        """Begin one without a gateway that has been fenced: whatever it led is free.

        Args:
            node_id: Its number.
            run: The epoch of the lease that it had.
            lease: This gateway's.
            rows: What is removed with that, and the versions that have to be there.

        Raises:
            ConflictError: One of the rows has another version.
            HtpError: The store failed, or no number is left.
        """
        gone: dict[str, bytes | None] = dict.fromkeys(rows)
        cause = Cause(CauseKind.CRASHED, node_id)
        await self._begin(cause, lambda members: _without(members, node_id, run), lease, lambda _: gone, rows)

    async def _begin(
        self,
        cause: Cause,
        change: Callable[[Mapping[int, int]], Mapping[int, int]],
        lease: HeldLease,
        others: Callable[[int], Mapping[str, bytes | None]] = lambda _: {},
        expect: Mapping[str, int] | None = None,
        moved: Callable[[Generations], Mapping[int, int]] = attrgetter("newest.moved"),
    ) -> int:
        """Have other members from now on, or units that were moved by hand.

        Args:
            cause: Why it begins.
            change: Makes the members of the newest generation those of the next; where there are none, or the same,
                nothing is done.
            lease: Under which it is written.
            others: Rows that are written with it, by its number.
            expect: Versions that some rows have to have.
            moved: Makes of those there are what the next one has that was moved by hand.

        Returns:
            The number of the newest.

        Raises:
            ConflictError: One of these has another.
            HandOverUnderWayError: Units would be moved by hand while too many moves are under way.
        """
        while True:
            rows = await self._manager.get([ASSIGNMENT, LEADER_EPOCH])
            row, told = rows.get(ASSIGNMENT), rows.get(LEADER_EPOCH)
            before = _decoded(row) or self.current
            members = change(before.newest.members)
            by_hand = moved(before)
            if not members or (members == before.newest.members and by_hand == before.newest.moved):
                self._take(row)
                return before.newest.number
            above = max([_epoch(told), *(each.epoch for each in await self._manager.leases(LEASE))])
            last = await self._last(before.newest.members) if len(before.kept) >= 2 * KEPT else None
            following = before.followed_by(
                members, above, by_hand, GREATEST_EPOCH if last is None else last.generation, cause
            )
            if last is not None and len(following.kept) > MOST_KEPT // 2 and by_hand != before.newest.moved:
                raise HandOverUnderWayError(last.node_id)
            number = following.newest.number
            writes = {
                ASSIGNMENT: encode_generations(following),
                LEADER_EPOCH: numbers.LEADER_EPOCH.encode(number),
                **others(number),
            }
            expected = {**(expect or {}), ASSIGNMENT: _version(row), LEADER_EPOCH: _version(told)}
            try:
                version = await self._manager.commit(writes, expected, lease=lease.current)
            except ConflictError as conflict:
                if expect is not None and conflict.key in expect:
                    raise
                continue  # another gateway was faster
            self._put(following, version)
            return number

    async def _last(self, members: Mapping[int, int]) -> _Last | None:
        """Who has handed over least, of members and those that are just leaving; None if there is nobody."""
        held = {(each.name, each.epoch) for each in await self._manager.leases(GATEWAYS) if each.held}
        found = []
        async for page in scan_pages(self._manager, RELEASED):
            for key, row in page.items():
                with suppress(ValueError):
                    node_id, released = parse_released_key(key), ReleasedRow.decode(row.value)
                    if members.get(node_id) == released.run or (gateway_key(node_id), released.run) in held:
                        found.append(_Last(node_id, released.generation))
        return min(found, key=attrgetter("generation"), default=None)


class _Last(NamedTuple):
    """Who has handed over least."""

    node_id: int
    generation: int
    """Up to this one it has."""


async def begin_alone(manager: Manager, node_id: int, run: int, lease: Lease) -> ClusterGenerations:
    """Begin a generation of one gateway, because all others have ended: this one has the store.

    Nobody has gone on leading since an earlier one, so these are forgotten, but for what was moved by hand.

    Args:
        manager: Keeps the row.
        node_id: The gateway's number.
        run: The epoch of the lease under which it is registered.
        lease: That of the store. The generation has its epoch for number, unless some were given above it.

    Raises:
        FencedError: Another gateway has taken the store over.
        HtpError: The store failed, or no number is left.
    """
    while True:
        row = (await manager.get([ASSIGNMENT])).get(ASSIGNMENT)
        before = _decoded(row)
        if before is None and row is not None:
            logger.error("the row %s is damaged, a new generation replaces it; nothing has to be done", ASSIGNMENT)
        number = max(lease.epoch, 0 if before is None else before.newest.number + 1)
        if number > GREATEST_EPOCH:
            raise HtpError(f"no generation of gateways is left above {number - 1}")
        begun = _begun(number, node_id, run, before)
        writes: dict[str, bytes | None] = {ASSIGNMENT: encode_generations(begun)}
        if number > lease.epoch:  # else that was recorded when it was taken
            writes[LEADER_EPOCH] = numbers.LEADER_EPOCH.encode(number)
        try:
            version = await manager.commit(writes, {ASSIGNMENT: _version(row)}, lease=lease)
        except ConflictError:  # its predecessor's, in the moment of the take-over
            continue
        return ClusterGenerations(manager, node_id, run, begun, version)


async def begin_together(manager: Manager, node_id: int, run: int, lease: HeldLease) -> ClusterGenerations:
    """The generations in force on a store that several gateways serve; this one joins when it is ready.

    Where none of their gateways has its lease any more, nobody is there who could serve meanwhile, and they are
    forgotten, but for what was moved by hand: then one begins with this gateway alone.

    Args:
        manager: Keeps the row.
        node_id: The gateway's number.
        run: The epoch of the lease under which it is registered.
        lease: That lease.

    Raises:
        FencedError: A gateway of the same number has started.
        HtpError: The store failed, or no number is left.
    """
    while True:
        rows = await manager.get([ASSIGNMENT, LEADER_EPOCH])
        row, told = rows.get(ASSIGNMENT), rows.get(LEADER_EPOCH)
        before = _decoded(row)
        held = {(each.name, each.epoch) for each in await manager.leases(GATEWAYS) if each.held}
        if before is not None and any((gateway_key(n), epoch) in held for n, epoch in before.newest.members.items()):
            assert row is not None
            return ClusterGenerations(manager, node_id, run, before, row.version)
        earlier = 0 if before is None else before.newest.number
        number = max([_epoch(told), earlier, *(each.epoch for each in await manager.leases(LEASE))]) + 1
        if number > GREATEST_EPOCH:
            raise HtpError(f"no generation of gateways is left above {number - 1}")
        begun = _begun(number, node_id, run, before)
        gone = {key: None async for page in scan_pages(manager, RELEASED) for key in page}
        writes = {
            **gone,
            ASSIGNMENT: encode_generations(begun),
            LEADER_EPOCH: numbers.LEADER_EPOCH.encode(number),
            released_key(node_id): ReleasedRow(run, number).encode(),
        }
        expected = {ASSIGNMENT: _version(row), LEADER_EPOCH: _version(told)}
        try:
            version = await manager.commit(writes, expected, lease=lease.current)
        except ConflictError:  # another gateway was faster
            continue
        return ClusterGenerations(manager, node_id, run, begun, version)


def _begun(number: int, node_id: int, run: int, before: Generations | None) -> Generations:
    """A gateway alone; what was moved by hand is where it was moved to once those gateways are there again."""
    moved = {} if before is None else before.newest.moved
    return Generations([Generation(number, {node_id: run}, moved)])


def _without(members: Mapping[int, int], node_id: int, run: int) -> Mapping[int, int]:
    """The others, if this run of the gateway is among them."""
    return {each: members[each] for each in members if (each, members[each]) != (node_id, run)}


def _version(row: Versioned | None) -> int:
    return 0 if row is None else row.version


def _epoch(row: Versioned | None) -> int:
    """The greatest leader epoch that was given, as far as a row tells."""
    if row is not None:
        with suppress(ValueError):
            return numbers.LEADER_EPOCH.decode(row.value)
        logger.error("the recorded leader epoch, %r, is damaged: generations and leases alone tell it", row.value[:200])
    return 0


def _decoded(row: Versioned | None) -> Generations | None:
    """What a row says; None if there is none, or it says nothing sensible."""
    try:
        return None if row is None else decode_generations(row.value)
    except ValueError as error:
        logger.error("%s cannot be read: %s", ASSIGNMENT, error)
        return None
