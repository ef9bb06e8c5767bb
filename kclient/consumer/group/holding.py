"""The partitions that a consumer reads since it is a member of its group, and what they are worth."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from kclient.consumer.group.states import HOLDING_TABLE, HoldingEvent, HoldingState
from kclient.state_tables import next_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kclient.types import TopicPartition


class Holding:
    """What one consumer holds: the membership that it came with may have ended meanwhile."""

    def __init__(self) -> None:
        self.partitions: tuple[TopicPartition, ...] = ()
        """What the consumer reads, or keeps while it joins again."""
        self._state = HoldingState.KEPT
        self._since: dict[TopicPartition, int] = {}
        """The generation in which each was taken over."""

    @property
    def lost(self) -> bool:
        """Whether others may read the partitions already."""
        return self._state is HoldingState.LOST

    def take_over(self, partitions: tuple[TopicPartition, ...], generation: int) -> None:
        """These are read from now on; those that were not before, since this generation."""
        self._since = {tp: self._since.get(tp, generation) for tp in partitions}
        self.partitions = partitions

    def give_up(self, kept: Iterable[TopicPartition] = ()) -> None:
        """All but these were given up."""
        self.partitions = tuple(kept)
        self._since = {tp: self._since[tp] for tp in self.partitions if tp in self._since}
        self._go(HoldingEvent.GIVEN_UP)

    def kept_since(self, partitions: Iterable[TopicPartition], generation: int) -> bool:
        """Whether these were held in that generation, have been ever since, and are nobody else's."""
        return not self.lost and all(self._since.get(tp, inf) <= generation for tp in partitions)

    def end_membership(self) -> None:
        """The membership is over that they came with."""
        self._go(HoldingEvent.ENDED)

    def _go(self, event: HoldingEvent) -> None:
        self._state = next_state(HOLDING_TABLE, self._state, event)
