"""What follows from a topology and from the topics that there are: how many tasks there are, and which topics miss.

As Kafka's coordinator: a repartition topic has as many partitions as the topics that are read by who writes it, one
that is read together with others as many as these, and a changelog as many as its subtopology has tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from kclient.errors import InvalidRequestError, StreamsInvalidTopologyError
from kclient.gateway.groups.streams_beats import BeatStatus, StatusCode
from kclient.gateway.rows.streams_topology import StreamsTopic, Subtopology, Topology

_SHOWN: Final = 3
"""Names that are told of many."""
_AT_ONCE: Final = 32
"""Subtopologies that are looked at before others may have their turn."""
_MOST_TASKS: Final = 20_000
"""Tasks of a group: a topic may be read by many subtopologies, and one member may get all tasks, in one go."""

CountOf = Callable[[str], int | None]
"""How many partitions a topic has; None if it is not there."""


@dataclass(frozen=True, slots=True)
class Configured:
    """A topology with what follows from the topics that there are."""

    epoch: int
    """Of the topology."""
    subtopologies: Mapping[str, Subtopology]
    """By id, sorted, with the numbers of partitions of all internal topics; none where these do not follow."""
    tasks: Mapping[str, int]
    """How many tasks each of them has."""
    missing: tuple[StreamsTopic, ...] = ()
    """The internal topics that have to be made."""
    fault: BeatStatus | None = None
    """What is wrong, for members."""

    @property
    def work(self) -> dict[str, tuple[int, bool]]:
        """How many tasks each subtopology has, and whether these have state."""
        return {name: (count, bool(self.subtopologies[name].changelogs)) for name, count in self.tasks.items()}

    @property
    def ready(self) -> bool:
        """Whether its tasks can be given out."""
        return self.fault is None


class _FaultError(Exception):
    """Topics are not as the topology needs them."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = BeatStatus(code, detail)


def configure(topology: Topology, count_of: CountOf) -> Configured:
    """What follows from a topology.

    Args:
        topology: It.
        count_of: The topics that there are.

    Raises:
        StreamsInvalidTopologyError: Nothing can: the numbers of partitions of its topics do not follow from others.
    """
    steps = configure_steps(topology, count_of)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Configured = end.value
            return found


def configure_steps(topology: Topology, count_of: CountOf) -> Generator[None, None, Configured]:
    """The same in steps: each `yield` is a place where others may have their turn."""
    try:
        yield from _check_sources(topology, count_of)
        counts = _Counts(topology, count_of)
        yield from counts.decide()
        subtopologies: dict[str, Subtopology] = {}
        tasks: dict[str, int] = {}
        total = 0
        for place, name in enumerate(sorted(topology.subtopologies), 1):
            if place % _AT_ONCE == 0:
                yield
            each = topology.subtopologies[name]
            tasks[name] = counts.most_of(each)
            total += tasks[name]
            subtopologies[name] = each._replace(
                repartitions=tuple(map(counts.filled, each.repartitions)),
                changelogs=tuple(map(counts.filled, each.changelogs)),
            )
        if total > _MOST_TASKS:
            raise StreamsInvalidTopologyError(f"the topology has {total} tasks, and a group has {_MOST_TASKS} at most")
        missing = _missing(subtopologies.values(), count_of)
    except _FaultError as error:
        return Configured(topology.epoch, {}, {}, (), error.status)
    fault = None
    if missing:
        told = _told(topic.name for topic in missing)
        fault = BeatStatus(StatusCode.MISSING_INTERNAL_TOPICS, f"internal topics are missing: {told}")
    return Configured(topology.epoch, subtopologies, tasks, missing, fault)


def _check_sources(topology: Topology, count_of: CountOf) -> Iterator[None]:
    missing: set[str] = set()
    for place, each in enumerate(topology.subtopologies.values(), 1):
        missing.update(name for name in each.sources if count_of(name) is None)
        if place % _AT_ONCE == 0:
            yield
    if missing:
        raise _FaultError(StatusCode.MISSING_SOURCE_TOPICS, f"source topics are missing: {_told(sorted(missing))}")


class _Counts:
    """How many partitions topics have, or are to have."""

    def __init__(self, topology: Topology, count_of: CountOf) -> None:
        self._subtopologies = list(topology.subtopologies.values())
        self._count_of = count_of
        self._decided: dict[str, int] = {}
        self._fixed: int | None = None

    def decide(self) -> Iterator[None]:
        """Find out how many partitions the internal topics are to have, in steps."""
        yield from self._decide_repartitions()
        yield from self._align()
        for place, each in enumerate(self._subtopologies, 1):
            if place % _AT_ONCE == 0:
                yield
            most = self.most_of(each)
            self._decided.update((topic.name, most) for topic in each.changelogs)

    def _of(self, name: str) -> int:
        count = self._count_of(name)
        if count is None:
            count = self._decided.get(name)
        if count is None:
            raise StreamsInvalidTopologyError(f"how many partitions {name[:300]} is to have follows from nothing")
        return count

    def most_of(self, subtopology: Subtopology) -> int:
        """How many tasks it has."""
        most = max(map(self._of, subtopology.reads), default=0)
        if not most:
            raise StreamsInvalidTopologyError(f"the subtopology {subtopology.subtopology_id[:300]} reads nothing")
        return most

    def filled(self, topic: StreamsTopic) -> StreamsTopic:
        """A topic with the number of its partitions."""
        return topic._replace(partitions=topic.partitions or self._of_decided(topic.name))

    def _of_decided(self, name: str) -> int:
        return self._decided[name] if name in self._decided else self._of(name)

    def _decide_repartitions(self) -> Iterator[None]:
        """Whoever writes a topic reads others: so its number follows from theirs, unless it is given.

        Kafka goes through all subtopologies again and again. Here each has its turn when Kafka would find something
        there, in the same order, so that it costs no more than the topology is long.
        """
        decided: dict[str, int] = {}
        readers: dict[str, list[int]] = {}
        for place, each in enumerate(self._subtopologies):
            for topic in each.repartitions:
                readers.setdefault(topic.name, []).append(place)
                if topic.partitions:
                    decided[topic.name] = topic.partitions
        turns = [(0, place) for place in range(len(self._subtopologies))]  # the round, and whose turn it is
        done: set[int] = set()
        for count in itertools.count(1):
            if not turns:
                break
            if count % _AT_ONCE == 0:
                yield
            turn, place = heappop(turns)
            if place in done:
                continue
            each = self._subtopologies[place]
            count = self._reads_of(each, decided)
            if not count:
                continue  # it has its turn when something that it reads is decided
            done.add(place)
            for name in each.sinks:
                if name not in decided:
                    decided[name] = count
                    for reader in readers.pop(name, ()):
                        heappush(turns, (turn if reader > place else turn + 1, reader))
        if any(name not in decided for each in self._subtopologies for name in each.sinks):
            raise StreamsInvalidTopologyError("the repartition topics of the topology go round in circles")
        if any(topic.name not in decided for each in self._subtopologies for topic in each.repartitions):
            raise StreamsInvalidTopologyError("nothing writes one of the repartition topics that are read")
        self._decided.update(decided)

    def _reads_of(self, subtopology: Subtopology, decided: Mapping[str, int]) -> int:
        """How many partitions the topics have that it reads, as far as that is known; 0 if it is of none."""
        counts = [decided.get(topic.name) for topic in subtopology.repartitions]
        counts += [self._count_of(name) for name in subtopology.sources]
        return max((count for count in counts if count is not None), default=0)

    def _align(self) -> Iterator[None]:
        """Topics that are read together have equally many partitions."""
        repartitions = [topic for each in self._subtopologies for topic in each.repartitions]
        fixed = {topic.name for topic in repartitions if topic.partitions}
        flexible = {topic.name for topic in repartitions if not topic.partitions}
        for place, each in enumerate(self._subtopologies, 1):
            if place % _AT_ONCE == 0:
                yield
            try:
                groups = list(each.copartitioned())
            except IndexError as error:
                raise StreamsInvalidTopologyError("a copartition group names a topic that is not there") from error
            for names in groups:
                if names:
                    self._decided.update(self._aligned(names, fixed, flexible))

    def _aligned(self, names: Collection[str], fixed: Collection[str], flexible: Collection[str]) -> dict[str, int]:
        own = {name: self._of(name) for name in names if name in fixed or name in flexible}
        others = {name: self._of(name) for name in names if name not in own}
        if others:
            count = _same(others)
        elif fixed:
            count = self._same_of_fixed(fixed)
        else:
            count = max(own.values())
        for name, had in own.items():
            if name in fixed and had != count:
                raise _FaultError(
                    StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                    f"the repartition topic {name} has {had} partitions, and what is read with it has {count}",
                )
        return dict.fromkeys(own, count)

    def _same_of_fixed(self, fixed: Collection[str]) -> int:
        """How many partitions all topics have of which that is given: they stay as they are."""
        if self._fixed is None:
            self._fixed = _same({name: self._of(name) for name in fixed})
        return self._fixed


def _same(counts: Mapping[str, int]) -> int:
    """The number of partitions that all have."""
    if len(set(counts.values())) > 1:
        told = _told(f"{name} ({count})" for name, count in sorted(counts.items()))
        raise _FaultError(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS, f"topics have different numbers of partitions: {told}"
        )
    return next(iter(counts.values()))


def _missing(subtopologies: Iterable[Subtopology], count_of: CountOf) -> tuple[StreamsTopic, ...]:
    """The internal topics that are not there; those that are there have to be as they would be made."""
    wanted = {topic.name: topic for each in subtopologies for topic in (*each.repartitions, *each.changelogs)}
    missing = []
    for name, topic in wanted.items():
        count = count_of(name)
        if count is None:
            missing.append(topic)
        elif count != topic.partitions:
            raise _FaultError(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"the topic {name} is there with {count} partitions instead of {topic.partitions}",
            )
    return tuple(missing)


def _told(names: Iterable[str]) -> str:
    """The first of some names, and how many there are beside them."""
    found = list(names)
    more = len(found) - _SHOWN
    return ", ".join(found[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def check_tasks(configured: Configured, told: Mapping[str, Iterable[int]]) -> None:
    """Whether tasks that a member says it has are such.

    Raises:
        InvalidRequestError: One is none.
    """
    for name, numbers in told.items():
        count = configured.tasks.get(name)
        if count is None:
            raise InvalidRequestError(f"the topology has no subtopology {name[:300]}")
        wrong = next((number for number in numbers if not 0 <= number < count), None)
        if wrong is not None:
            raise InvalidRequestError(f"the subtopology {name[:300]} has {count} tasks, and none of number {wrong}")
