"""The messages of one topic at a simulated broker."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from random import Random

from kclient.htp.errors import PositionError
from kclient.htp.port import Pulled, TopicStatus

_GAP = 3


class SimulatedLog:
    """Messages at positions that grow, with gaps that mean nothing.

    Args:
        dice: Decides the gaps.
    """

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._positions: list[int] = []
        self._messages: list[bytes] = []
        self.start: int = 0
        self.next: int = 0

    def __len__(self) -> int:
        return len(self._messages)

    def append(self, messages: Sequence[bytes]) -> None:
        """Store messages, one behind the other."""
        for message in messages:
            position = self.next + self._dice.randrange(_GAP)
            self._positions.append(position)
            self._messages.append(message)
            self.next = position + 1

    def pull(self, position: int, max_bytes: int, max_messages: int) -> Pulled:
        """The messages from a position on.

        Raises:
            PositionError: It lies outside.
        """
        if not self.start <= position <= self.next:
            raise PositionError(
                f"position {position} is not within {self.start} to {self.next}", start=self.start, end=self.next
            )
        at, size, found = bisect_left(self._positions, position), 0, 0
        for message in self._messages[at : at + max_messages]:
            size += len(message)
            if found and size > max_bytes:
                break
            found += 1
        if not found:
            return Pulled(b"", position, position - 1)
        data = b"".join(self._messages[at : at + found])
        return Pulled(data, self._positions[at], self._positions[at + found - 1])

    def trim(self, before: int) -> int:
        """Drop the messages before a position; the new start."""
        before = min(before, self.next)
        at = bisect_left(self._positions, before)
        del self._positions[:at], self._messages[:at]
        self.start = max(self.start, before)
        return self.start

    def status(self) -> TopicStatus:
        """Where it begins and ends."""
        return TopicStatus(self.start, self.next, self.next, sum(map(len, self._messages)))
