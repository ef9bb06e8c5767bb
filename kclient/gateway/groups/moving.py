"""Groups that come to this gateway, and go to others, as the generations of gateways say.

A group needs no handing over: what its members were told is in its row, and whoever coordinates it writes on condition
that the generation is still the newest. So what its former coordinator had stored is there when the next one reads it,
and nothing comes afterwards. Members keep their ids, generation and assignment, and have one session to be heard of.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import ClosedError, KafkaError
from kclient.gateway.coordination import CoordinatorType
from kclient.gateway.rows.keys import ASSIGNMENT
from kclient.net.fair_queue import Pace

if TYPE_CHECKING:
    from kclient.gateway.cluster_generations import ClusterGenerations
    from kclient.gateway.groups.loading import GroupLoader
    from kclient.gateway.groups.table import GroupTable
    from kclient.gateway.groups.writer import GroupWriter
    from kclient.gateway.leadership import Leadership
    from kclient.net.fair_queue import Flow

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_AGAIN_S: Final = 0.5
"""Seconds until it is tried again where the store has failed."""


class CoordinatorClaims:
    """What says that this gateway coordinates a group, or id: that there is no newer generation. Implements `Claims`.

    Args:
        leadership: Tells which are coordinated here.
        generations: From which that follows.
        kind: Groups, or transactional ids.
    """

    def __init__(self, leadership: Leadership, generations: ClusterGenerations, kind: CoordinatorType) -> None:
        self._leadership = leadership
        self._generations = generations
        self._kind = kind

    def of(self, key: str) -> Mapping[str, int] | None:
        """The version of the row of the generations; None where another gateway coordinates the group, or id."""
        return {ASSIGNMENT: self._generations.version} if self._leadership.coordinates(self._kind, key) else None

    async def renew(self) -> None:
        """Read the generations."""
        await self._generations.read_all()


class GroupMoves:
    """Takes groups in and out whenever there is another generation.

    Args:
        table: The groups of this gateway.
        loader: Reads those that come.
        writer: Stores what concerns them.
        leadership: Tells which groups are coordinated here.
        flow: Shares the event loop with others.
    """

    def __init__(
        self, table: GroupTable, loader: GroupLoader, writer: GroupWriter, leadership: Leadership, flow: Flow
    ) -> None:
        self._table = table
        self._loader = loader
        self._writer = writer
        self._leadership = leadership
        self._flow = flow
        self._loaded = 0
        """Whatever is coordinated here since this generation, or an earlier one, is in the table."""
        self._news = anyio.Event()
        leadership.on_change(self._tell)

    def _tell(self) -> None:
        self._table.loading = True
        news, self._news = self._news, anyio.Event()
        news.set()

    def ready(self, group_id: str) -> bool:
        """Whether a group that is coordinated here has been read."""
        return self._loaded >= self._leadership.coordinator_epoch(CoordinatorType.GROUP, group_id)

    async def load(self) -> None:
        """Read the groups that have come. Raises `HtpError` if the store fails; then it may be called again."""
        await self._load(self._leadership.generation)

    async def _load(self, number: int) -> None:
        """Read them; those that the generations up to this number take away have been taken out."""
        if number <= self._loaded:
            return
        await self._loader.load(self._is_wanted)
        self._loaded = number
        self._table.loading = number < self._leadership.generation

    def _is_wanted(self, group_id: str) -> bool:
        return self._leadership.coordinates(CoordinatorType.GROUP, group_id) and not self.ready(group_id)

    async def run(self) -> None:
        """Do so for ever."""
        while True:
            news = self._news
            try:
                number = self._leadership.generation
                if self._loaded < number:
                    await self._take_out()
                    await self._load(number)  # what a newer one takes away has not been taken out
            except ClosedError:
                return
            except KafkaError as error:
                logger.warning("groups that this gateway coordinates now cannot be read, it is tried again: %s", error)
                await anyio.sleep(_AGAIN_S)
                continue
            await news.wait()

    async def _take_out(self) -> None:
        """Take out what others coordinate now, or have coordinated meanwhile."""
        pace = Pace(self._flow)
        for group_id, managed in list(self._table.groups.items()):
            if self._table.groups.get(group_id) is managed and not (
                self._leadership.coordinates(CoordinatorType.GROUP, group_id) and self.ready(group_id)
            ):
                self._table.unload(managed)
                await self._writer.submit(group_id, {}, lambda _error: ()).wait()  # behind all that was written for it
                managed.offsets.close()
            if pace.over:
                await pace.pause()
