"""Hands partitions over that the generations of gateways give to another one, and says so.

From a generation on that takes a partition away nobody finds it here any more. What was on its way is waited for and
answered; then the last checkpoint is written, and in the same commit that all is handed over: whoever leads it next has
waited for that (`releases.py`), and reads no more than came after the checkpoint. The index of a topic that partitions
share is written right before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import KafkaError
from kclient.gateway.living_topics import TopicGoneError
from kclient.gateway.partition_states import PartitionPhase
from kclient.htp.errors import ConflictError, FencedError
from kclient.net.fair_queue import Pace

if TYPE_CHECKING:
    from kclient.gateway.cluster_generations import ClusterGenerations
    from kclient.gateway.living_topics import LivingTopics, TopicExpectation
    from kclient.gateway.partition import Partition
    from kclient.gateway.partitions import PartitionTable
    from kclient.gateway.releases import Releases
    from kclient.gateway.topics.record import TopicRecord
    from kclient.net.fair_queue import Flow

logger: logging.Logger = logging.getLogger("kclient.gateway")

_SETTLE_S: Final = 4.0
"""Seconds that appends on their way have to become durable: less than others wait before they claim."""
_AGAIN_S: Final = 0.2
"""Seconds until it is tried again where the store has failed."""
_ROWS: Final = 1000
"""Rows of checkpoints that are written at once."""


class HandOver:
    """Does so whenever there is another generation.

    Args:
        partitions: Those that are in use here.
        generations: Tell who leads what.
        releases: Tell that something is handed over.
        topics: Tell which topics are there.
        flow: Shares the event loop with others.
    """

    def __init__(
        self,
        partitions: PartitionTable,
        generations: ClusterGenerations,
        releases: Releases,
        topics: LivingTopics,
        flow: Flow,
    ) -> None:
        self._partitions = partitions
        self._generations = generations
        self._releases = releases
        self._topics = topics
        self._flow = flow
        self._released = 0
        """Up to this generation this gateway has said that all is handed over."""
        self._moved: list[tuple[TopicRecord, Partition]] = []
        """What was taken out, and is not handed over."""
        self._news = anyio.Event()
        self._done = anyio.Event()
        generations.on_change(self._tell)

    def _tell(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    async def run(self) -> None:
        """For ever, until this gateway is fenced: then whoever leads what it led does not wait for it."""
        self._released = self._generations.joined
        while True:
            news = self._news
            number = self._generations.current.newest.number
            if self._released < number:
                try:
                    await self._hand_over(number)
                except FencedError as error:
                    logger.error("this gateway hands nothing over any more: %s", error)
                    return
                except KafkaError as error:
                    logger.warning("what generation %d takes away cannot be handed over now: %s", number, error)
                    await anyio.sleep(_AGAIN_S)
                    continue
            await news.wait()

    async def done(self) -> None:
        """Until all is handed over that the newest generation takes away."""
        while self._released < self._generations.current.newest.number:
            await self._done.wait()

    async def _hand_over(self, number: int) -> None:
        self._moved += await self._partitions.take_moved(Pace(self._flow).pause)
        with anyio.move_on_after(_SETTLE_S) as settling:
            for _, partition in self._moved:
                await partition.settled()
        if settling.cancelled_caught:
            logger.warning("some appends are still on their way: whoever leads their partitions now finds out")
        try:
            await self._write(number)
        except _ClaimedError:
            logger.warning("partitions were claimed before they were handed over, so without their last checkpoints")
            told, version = await self._releases.own()
            while told < number and await self._releases.release(number, version, {}) is None:
                told, version = await self._releases.own()
        count = len(self._moved)
        self.close()
        if count:
            logger.info("%d partitions are handed over to other gateways, as of generation %d", count, number)
        self._released = number
        done, self._done = self._done, anyio.Event()
        done.set()

    async def _write(self, number: int) -> None:
        """Write the last checkpoints, and that all is handed over.

        Raises:
            _ClaimedError: Some of it was claimed before.
        """
        told, version = await self._releases.own()
        if told > self._released:
            raise _ClaimedError
        writer = _LastRows(self._releases, self._topics, told, version)
        pace = Pace(self._flow)
        for record, partition in self._moved:
            # what is written of it now was encoded before; nothing is from here on
            async with partition.checkpoints.saving:
                if partition.state is PartitionPhase.LEAVING and not record.gone:
                    await partition.checkpoints.hand_over_positions(partial(writer.write_now, record.topic_id))
                    if partition.checkpoints.dirty:
                        writer.add(record.topic_id, partition.checkpoints.rows())
            await pace.pause()
            if writer.count >= _ROWS:
                await writer.write()
        await writer.write(number)

    def close(self) -> None:
        """End what was taken out."""
        moved, self._moved = self._moved, []
        for _, partition in moved:
            partition.leave()


class _ClaimedError(Exception):
    """Another gateway has not waited any longer: what is handed over now, it does not read."""


class _LastRows:
    """Writes the last rows of what is handed over, some at once.

    Each commit writes the row of the release anew, and expects it as it was: once it was claimed, none is made.

    Args:
        releases: Tell that something is handed over.
        topics: Tell which topics are there.
        told: What is handed over by now.
        version: Of the row that says so.
    """

    def __init__(self, releases: Releases, topics: LivingTopics, told: int, version: int) -> None:
        self._releases = releases
        self._topics = topics
        self._told = told
        self._version = version
        self._rows: dict[bytes, dict[str, bytes | None]] = {}
        """That are to be written, by their topics."""
        self.count = 0
        """How many rows these are."""

    def add(self, topic_id: bytes, rows: Mapping[str, bytes | None]) -> None:
        """Have rows of a topic written with the next ones."""
        self._rows.setdefault(topic_id, {}).update(rows)
        self.count += len(rows)

    async def write(self, number: int | None = None) -> None:
        """Write what was added.

        Args:
            number: All is handed over, up to this generation, with that; None if it is not.

        Raises:
            _ClaimedError: It was claimed.
            HtpError: The store failed.
        """
        rows, self._rows, self.count = self._rows, {}, 0
        await self._commit(self._told if number is None else number, rows)

    async def write_now(self, topic_id: bytes, rows: Mapping[str, bytes | None]) -> None:
        """Write rows of a topic. The errors are those of `write`."""
        await self._commit(self._told, {topic_id: rows})

    async def _commit(self, number: int, rows: Mapping[bytes, Mapping[str, bytes | None]]) -> None:
        while True:
            topics = self._topics.expectation(rows)
            together = {key: row for some in rows.values() for key, row in some.items()}
            try:
                version = await self._release(number, together, topics)
            except TopicGoneError as gone:  # its rows are removed by who has deleted it
                rows = {topic_id: some for topic_id, some in rows.items() if topic_id != gone.topic_id}
                continue
            if version is None:
                raise _ClaimedError
            self._version = version
            return

    async def _release(self, number: int, rows: Mapping[str, bytes | None], topics: TopicExpectation) -> int | None:
        while True:
            try:
                return await self._releases.release(number, self._version, rows, topics.versions)
            except ConflictError as conflict:
                await topics.look_again(conflict)
