"""What the lives of `lives` promise, and what their clients were told: by this they are judged."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

T = TypeVar("T")

NAMES = ("a", "b", "c")
"""Every topic's."""
PATIENCE_S = 3000.0
"""No request takes longer than this, in simulated time."""


class Violated(AssertionError):
    """A promise was broken."""


def promise(condition: object, text: str) -> None:
    if not condition:
        raise Violated(text)


async def within(call: Awaitable[T]) -> T:
    """What a call returns; it has to come in time."""
    with trio.move_on_after(PATIENCE_S):
        return await call
    raise Violated(f"no answer after {PATIENCE_S} s")


@dataclass(eq=False)
class Sent:
    """One record that somebody sent."""

    serial: int
    client: int
    name: str
    partition: int
    topic_id: bytes | None
    """The incarnation that it was sent to; None if only the name was told and that may have changed meanwhile."""
    stamp_ms: int
    acks: int
    line: int = 0
    """What is sent on one line is stored in the order of its serial numbers: a connection, or an idempotent lane."""
    once: bool = False
    """Whether its producer is idempotent: however often it was sent, it is there once."""
    offset: int = -1
    """Where it was acknowledged to be; -1 if it was not."""
    sure: bool = False
    """Whether it has to be there: acknowledged, and nothing has happened that may take it away."""
    key: bytes | None = None
    """In a topic that is compacted, the last record of a key stays."""
    attempts: int = 0
    """How often it was sent; if more than once, and not by an idempotent producer, it may be there as often."""


@dataclass(eq=False)
class Incarnation:
    """One life of a topic."""

    name: str
    topic_id: bytes
    partitions: int
    retention_ms: int
    compacted: bool = False
    starts: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """The greatest log start that was seen, by partition: it never falls."""
    ends: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """The greatest end that was seen: it never falls either."""
    trimmed: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Up to where somebody asked to delete records."""
    jumps: bool = False
    """Whether offsets may have been left out: those of what a crash took, or what could not be stored."""
    settings: dict[str, set[str | None]] = field(default_factory=dict)
    """The values that a setting may have, where more than one change was not answered; None for the default."""


@dataclass
class Committed:
    """What a group's offset of a partition may be."""

    values: set[int]
    since: float
    """When the last commit was sent."""


class Model:
    """What was acknowledged, and what may be there beside."""

    def __init__(self) -> None:
        self.serials = itertools.count(1)
        self.lines = itertools.count(1)
        self.sent: dict[int, Sent] = {}
        self.live: dict[str, Incarnation] = {}
        """The topics that are there for sure."""
        self.unsure: set[str] = set()
        """Names that the last life may have begun or ceased to use, and nobody heard of it."""
        self.changing: dict[str, int] = defaultdict(int)
        """How often a name has begun or ceased to stand for something: what saw it change does not know which."""
        self.all: dict[bytes, Incarnation] = {}
        self.epochs: dict[tuple[bytes, int], int] = {}
        """The leader epoch of a partition as it was seen last: it never falls."""
        self.offsets: dict[tuple[str, bytes, int], Committed] = {}
        self.broker: dict[str, set[str | None]] = {}

    def born(self, name: str, topic_id: bytes, partitions: int, retention_ms: int, *, compacted: bool = False) -> None:
        promise(topic_id not in self.all, f"the id of {name} was given before")
        incarnation = Incarnation(name, topic_id, partitions, retention_ms, compacted)
        self.live[name] = self.all[topic_id] = incarnation
        self.changing[name] += 1

    def outlived(self, topic: Incarnation, partition: int, now_ms: int) -> int:
        """How many records, that may be in a partition, retention may have removed: some are old when they are sent."""
        return sum(
            sent.attempts
            * (
                (sent.name, sent.partition) == (topic.name, partition)
                and sent.topic_id in (None, topic.topic_id)
                and 0 <= topic.retention_ms < now_ms - sent.stamp_ms
            )
            for sent in self.sent.values()
        )

    def superseded_by_outlived(self, sent: Sent, topic: Incarnation, now_ms: int) -> bool:
        """Whether a record may have been superseded, in a compacted topic, by one that retention may have removed."""
        return any(
            each.attempts
            and (each.name, each.partition, each.key) == (sent.name, sent.partition, sent.key)
            and each.topic_id in (None, topic.topic_id)
            and (each.offset < 0 or each.offset > sent.offset)
            and 0 <= topic.retention_ms < now_ms - each.stamp_ms
            for each in self.sent.values()
            if each is not sent
        )

    def dies(self, name: str) -> Incarnation | None:
        self.changing[name] += 1
        return self.live.pop(name, None)
