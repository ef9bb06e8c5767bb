"""A simulated installation: a name server, brokers, and a network between them and whoever uses them.

Nothing runs in it by itself. What is on its way has a time at which it arrives, by the clock of the event loop, and is
looked after whenever somebody asks: so everything happens in an order that the seed decides, in virtual time too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from itertools import count
from random import Random

import anyio

from kclient.htp.brokers import broker_names
from kclient.htp.errors import OutcomeUnknownError, StorageError, UnknownTopicError
from kclient.htp.memory.state import MemoryState
from kclient.htp.port import Topic, TopicInfo
from kclient.htp.testing.directory import Directory
from kclient.htp.testing.logs import SimulatedLog
from kclient.htp.testing.options import SimulatedOptions


class SendFate(Enum):
    """What becomes of a send."""

    ANSWERED = "it is stored, and answered"
    LOST = "it never arrives, and nobody says so"
    UNANSWERED = "it is stored, and the answer is lost"
    LATE = "it is given up, and stored after that"


_TRIES = 3
_UNKNOWN = (SendFate.LOST, SendFate.UNANSWERED, SendFate.LATE)


@dataclass(order=True, slots=True)
class _Arriving:
    """A message that is on its way, or the news of a deletion."""

    due: float
    number: int
    broker: str = field(compare=False)
    topic: Topic = field(compare=False)
    messages: Sequence[bytes] | None = field(compare=False)
    """None for a deletion."""
    creation: int = field(compare=False, default=0)
    """Of the topic that was deleted."""
    before: int = field(compare=False, default=0)
    """Its messages lie before this position."""
    refused: bool = field(compare=False, default=False)
    """There was no such topic when it arrived."""


class Installation:
    """What all who use one name share.

    Args:
        name: Its name.
        options: How it behaves.
    """

    def __init__(self, name: str, options: SimulatedOptions) -> None:
        self.name: str = name
        self.options: SimulatedOptions = options
        self.values: MemoryState = MemoryState(name)
        """The key-value part and the leases, which are consistent."""
        self.directory: Directory = Directory(options.stale_ms / 1000)
        self.brokers: tuple[str, ...] = tuple(broker_names(options.brokers))
        self.dice: Random = Random(options.seed)
        self.fates: deque[SendFate] = deque()
        """Of the next sends, in this order; those behind them are left to chance."""
        self.met: list[SendFate] = []
        """Of all that were sent."""
        self._logs: dict[tuple[str, Topic], SimulatedLog] = {}
        self._arriving: list[_Arriving] = []
        self._numbers = count()
        self._ahead = self._last = 0.0
        """By so much the clock is ahead of the event loop's; when it was looked at last."""

    @property
    def now(self) -> float:
        """Seconds, by the event loop's clock."""
        self._last = anyio.current_time() + self._ahead
        return self._last

    def move_here(self) -> None:
        """Go on by the clock of this event loop: the one before has ended."""
        self._ahead = self._last - anyio.current_time()

    @property
    def on_its_way(self) -> int:
        """So many sends have not arrived yet."""
        self.settle()
        return sum(each.messages is not None for each in self._arriving)

    # Time

    def _latency(self) -> float:
        return self.dice.random() * self.options.latency_ms / 1000

    async def travel(self) -> None:
        """A request, or an answer, is on its way."""
        await anyio.sleep(self._latency())
        self.settle()

    async def ask(self, what: object) -> None:
        """A request to a broker that does no harm twice is on its way; clients send it three times.

        Raises:
            StorageError: No answer comes.
        """
        for _ in range(_TRIES):
            if self.dice.random() >= self.options.silent_reads:
                await self.travel()
                return
            await anyio.sleep(self.options.timeout_ms / 1000)
        raise StorageError(f"{what}: no answer, {_TRIES} times, within {self.options.timeout_ms:.0f} ms")

    def settle(self) -> None:
        """What has arrived by now is stored, and what brokers have heard to be deleted is gone."""
        now = self.now
        while self._arriving and self._arriving[0].due <= now:
            each = heappop(self._arriving)
            if each.messages is None:
                self._drop(each)
            elif (log := self.log(each.broker, each.topic)) is not None:
                log.append(each.messages)
            else:
                each.refused = True

    # Messages

    def log(self, broker: str, topic: Topic) -> SimulatedLog | None:
        """The messages of a topic at a broker; None if it is not there.

        A broker knows topics by their names. So what it has not dropped yet of a deleted one is in its namesake.
        """
        info = self.directory.topic(topic, self.now)
        if info is None or broker not in (place.broker for place in info.places):
            return None
        found = self._logs.get((broker, topic))
        if found is None:
            found = self._logs[broker, topic] = SimulatedLog(self.dice)
        return found

    async def send(self, broker: str, topic: Topic, messages: Sequence[bytes]) -> None:
        """Have messages stored, all or none.

        Raises:
            OutcomeUnknownError: There is no answer.
            UnknownTopicError: The broker has no such topic.
        """
        fate, timeout = self._fate(), self.options.timeout_ms / 1000
        there, back = self._latency(), self._latency()
        if there + back > timeout and fate is SendFate.ANSWERED:
            fate = SendFate.UNANSWERED
        self.met.append(fate)
        if fate is SendFate.LATE:
            there = timeout + self.dice.random() * self.options.late_ms / 1000
        sent = _Arriving(self.now + there, next(self._numbers), broker, topic, messages)
        if fate is not SendFate.LOST:
            heappush(self._arriving, sent)
        if fate is not SendFate.ANSWERED:
            await anyio.sleep(timeout)
            raise OutcomeUnknownError(f"{topic} at {broker}: no answer within {self.options.timeout_ms:.0f} ms")
        await anyio.sleep(there)
        self.settle()
        await anyio.sleep(back)
        if sent.refused:
            raise UnknownTopicError(f"{broker} has no topic {topic}")

    def _fate(self) -> SendFate:
        if self.fates:
            return self.fates.popleft()
        if self.options.silent and self.dice.random() < self.options.silent:
            return self.dice.choice(_UNKNOWN)
        return SendFate.ANSWERED

    # Topics

    def delete_later(self, info: TopicInfo) -> None:
        """A topic is to go: its brokers hear of it within the time that news take.

        If there is another topic of that name by then, a broker does not know that it is another one.
        """
        for place in info.places:
            self.drop_later(place.broker, info.topic)

    def drop_later(self, broker: str, topic: Topic) -> None:
        """All messages that a broker has of a topic are to go, as soon as it hears of it."""
        self.settle()
        log = self._logs.get((broker, topic))
        if log is None:
            return
        due = self.now + self.dice.random() * self.options.stale_ms / 1000
        number = self.directory.number(topic, self.now)
        gone = _Arriving(due, next(self._numbers), broker, topic, None, creation=number, before=log.next)
        heappush(self._arriving, gone)

    def _drop(self, gone: _Arriving) -> None:
        there = self.directory.number(gone.topic, self.now)
        log = self._logs.get((gone.broker, gone.topic))
        if not there:
            self._logs.pop((gone.broker, gone.topic), None)
        elif there == gone.creation and log is not None:
            log.trim(gone.before)
