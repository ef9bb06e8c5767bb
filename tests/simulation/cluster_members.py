"""Members of a group of a simulated cluster, which look for its coordinator wherever it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from random import Random
from typing import Any, Protocol

import trio

from kclient.errors import ErrorCode
from kclient.protocol import messages as m
from tests.gateway_wire import Wire
from tests.simulation.promises import promise

_SESSION_S = 20.0
_LEAVES = 0.1
"""How often a member that has committed leaves then, and joins as another one."""
_PARTS = 4
"""What the members share among them."""


class GroupWorld(Protocol):
    """Where there are groups."""

    dice: Random
    working: bool
    counts: Counter[str]

    def connected(self, number: int | None = None) -> AbstractAsyncContextManager[Wire | None]:
        """A connection to a gateway, any if it is not told which; None if there is none."""
        ...

    async def coordinator(self, group: str) -> int | None:
        """Who coordinates a group, if that can be told."""
        ...

    async def answer(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """What a gateway answers; None if it does not."""
        ...


class GroupLives:
    """Members that join, share out what there is, and commit offsets; what was promised of that.

    A generation is given to its members once, with parts that do not overlap; generations only grow; and what a member
    commits of an older one is refused once the next one's members have theirs.

    Args:
        world: Where.
        group: The name.
        members: How many.
    """

    def __init__(self, world: GroupWorld, group: str, members: int) -> None:
        self._world = world
        self._dice = world.dice
        self.group = group
        self._members = members
        self._newest = -1
        """The newest generation that a member has got its part of."""
        self._parts: dict[int, dict[str, frozenset[int]]] = {}
        """Of each generation, what its members have got."""

    async def live(self) -> None:
        """Do all that until the world has ended."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._members):
                nursery.start_soon(self._member)

    async def _member(self) -> None:
        member, generation = "", -1
        while self._world.working:
            async with self._world.connected(await self._world.coordinator(self.group)) as wire:
                while wire is not None and self._world.working:
                    if generation < 0:
                        member, generation = await self._join(wire, member)
                    code = None if generation < 0 else await self._work(wire, member, generation)
                    if code == 0:
                        await trio.sleep(1 + self._dice.random() * 4)
                        if self._dice.random() < _LEAVES:
                            await self._leave(wire, member)
                            member, generation = "", -1
                            await trio.sleep(self._dice.random() * 4)
                        continue
                    if code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
                        generation = -1
                        continue
                    if code == ErrorCode.UNKNOWN_MEMBER_ID:
                        member, generation = "", -1
                        continue
                    await trio.sleep(self._dice.random())
                    break

    async def _join(self, wire: Wire, member: str) -> tuple[str, int]:
        """The member's id and generation; below 0 if it has none yet."""
        least = self._newest
        request: Any = m.JoinGroupRequest(
            group_id=self.group, session_timeout_ms=int(_SESSION_S * 1000), rebalance_timeout_ms=8000, member_id=member,
            protocol_type="consumer", protocols=[m.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )  # fmt: skip
        joined = await self._world.answer(partial(wire, request, 3))
        if joined is None or joined.error_code:
            lost = joined is not None and joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID
            return "" if lost else member, -1
        known, member, generation = member, joined.member_id, joined.generation_id
        # who is in one, and joins again, may be told that it still lasts
        promise(
            generation >= least + (not known), f"{self.group}: {member} was given generation {generation} after {least}"
        )
        ids = sorted(each.member_id for each in joined.members)  # empty but for the leader
        shares = [
            m.SyncGroupRequestAssignment(member_id=each, assignment=bytes(range(number, _PARTS, len(ids))))
            for number, each in enumerate(ids)
        ]
        sync = m.SyncGroupRequest(
            group_id=self.group, generation_id=generation, member_id=member, assignments=shares
        )  # fmt: skip
        synced = await self._world.answer(partial(wire, sync, 3))
        if synced is None or synced.error_code:
            return member, -1
        self._got(member, generation, frozenset(synced.assignment))
        return member, generation

    async def _leave(self, wire: Wire, member: str) -> None:
        """Leave; where that is not heard, its session ends some time."""
        request = m.LeaveGroupRequest(group_id=self.group, members=[m.LeaveGroupRequestMember(member_id=member)])
        if await self._world.answer(partial(wire, request, 4)) is not None:
            self._world.counts["left the group"] += 1

    def _got(self, member: str, generation: int, part: frozenset[int]) -> None:
        parts = self._parts.setdefault(generation, {})
        before = parts.setdefault(member, part)
        promise(before == part, f"{self.group}: of generation {generation} {member} has got {before} and {part}")
        for other, others in parts.items():
            both = other != member and others & part
            promise(not both, f"{self.group}: of generation {generation} {member} and {other} have {both}")
        self._newest = max(self._newest, generation)
        self._world.counts["joined the group"] += 1

    async def _work(self, wire: Wire, member: str, generation: int) -> int | None:
        """Tell that it is there, and commit what it has done; the error, None if there was no answer."""
        late = generation < self._newest
        heartbeat = m.HeartbeatRequest(group_id=self.group, generation_id=generation, member_id=member)
        told = await self._world.answer(partial(wire, heartbeat, 3))
        if told is None or told.error_code:
            return None if told is None else int(told.error_code)
        row = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=generation)
        commit = m.OffsetCommitRequest(
            group_id=self.group, generation_id_or_member_epoch=generation, member_id=member,
            topics=[m.OffsetCommitRequestTopic(name="t", partitions=[row])],
        )  # fmt: skip
        answer = await self._world.answer(partial(wire, commit, 7))
        if answer is None:
            return None
        code = int(answer.topics[0].partitions[0].error_code)
        promise(bool(code) or not late, f"{self.group}: {member} committed in {generation}, after {self._newest}")
        return code
