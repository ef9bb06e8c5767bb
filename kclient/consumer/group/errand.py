"""Something that is to be sent once, and what became of it."""

from __future__ import annotations

from typing import Generic, TypeVar

from kclient.consumer.group.states import ERRAND_TABLE, ErrandEvent, ErrandState
from kclient.state_tables import next_state

T = TypeVar("T")


class Errand(Generic[T]):
    """A request that `Membership.next` gives out once, when it is due; without I/O or clock."""

    def __init__(self) -> None:
        self.state: ErrandState = ErrandState.NONE
        self._what: T | None = None

    @property
    def pending(self) -> bool:
        """Whether it is to be sent, or on its way."""
        return self.state is not ErrandState.NONE

    def want(self, what: T) -> None:
        """This is to be sent, in place of what was to be sent before."""
        self._go(ErrandEvent.WANTED)
        self._what = what

    def give_out(self) -> T | None:
        """What is to be sent now; None if that is nothing, or was given out before."""
        if self.state is not ErrandState.DUE:
            return None
        self._go(ErrandEvent.GIVEN_OUT)
        return self._what

    def is_for(self, what: object) -> bool:
        """Whether this is what is to be sent, or on its way."""
        return self.pending and self._what is what

    def end(self) -> None:
        """It was answered, or has lost its sense."""
        self._go(ErrandEvent.ENDED)
        self._what = None

    def _go(self, event: ErrandEvent) -> None:
        self.state = next_state(ERRAND_TABLE, self.state, event)
