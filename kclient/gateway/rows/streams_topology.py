"""The topology of an application of Kafka Streams (KIP-1071): what its group knows of it, and how it is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from kclient.htp.rows import dump, string, whole
from kclient.records.bounds import INT32_MAX

_INT16_MAX: Final = 32_767
_AT_ONCE: Final = 64
"""Subtopologies that are gone through before others may have their turn."""


class StreamsTopic(NamedTuple):
    """A topic that an application keeps for itself."""

    name: str
    partitions: int
    """How many it has; 0 where that follows from others."""
    replication_factor: int
    """0 for the default of the cluster."""
    configs: tuple[tuple[str, str], ...] = ()
    """Its settings."""


class Copartition(NamedTuple):
    """Topics of a subtopology that have to have equally many partitions: their places in its lists."""

    sources: tuple[int, ...]
    repartitions: tuple[int, ...]


class Subtopology(NamedTuple):
    """A part of a topology that shares no state with the others: each of its tasks has a partition of each topic."""

    subtopology_id: str
    sources: tuple[str, ...]
    """The topics that it reads and that others write."""
    sinks: tuple[str, ...]
    """The repartition topics that it writes."""
    repartitions: tuple[StreamsTopic, ...]
    """The repartition topics that it reads."""
    changelogs: tuple[StreamsTopic, ...]
    """The topics that its state is kept in."""
    copartitions: tuple[Copartition, ...]

    @property
    def reads(self) -> Iterator[str]:
        """The names of all topics that it reads."""
        yield from self.sources
        for topic in self.repartitions:
            yield topic.name

    def copartitioned(self) -> Iterator[frozenset[str]]:
        """The names of the topics that have to have equally many partitions. Raises `IndexError` for no such place."""
        for group in self.copartitions:
            if min((*group.sources, *group.repartitions), default=0) < 0:
                raise IndexError("a place is less than 0")
            yield frozenset(
                [self.sources[place] for place in group.sources]
                + [self.repartitions[place].name for place in group.repartitions]
            )


class _Summary(NamedTuple):
    """What is asked of a topology as a whole."""

    text: bytes
    required: frozenset[str]
    named: frozenset[str]
    reader_of: Mapping[str, str]


class Topology:
    """All subtopologies of an application. Never changed.

    Args:
        epoch: Which of its topologies it is.
        subtopologies: Each with an id of its own.
    """

    def __init__(self, epoch: int, subtopologies: tuple[Subtopology, ...]) -> None:
        self.epoch: int = epoch
        self.subtopologies: Mapping[str, Subtopology] = {each.subtopology_id: each for each in subtopologies}
        self._summary: _Summary | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology):
            return NotImplemented
        return self.text == other.text

    def __hash__(self) -> int:
        return hash((self.epoch, *self.subtopologies))

    @property
    def text(self) -> bytes:
        """As a row has it: JSON."""
        return self._summed_up.text

    @classmethod
    def of(cls, row: Any) -> Topology:
        """What the JSON of a row says. Raises `ValueError`, `LookupError` or `TypeError` if that is no topology."""
        epoch, parts = whole(row["epoch"], 0, INT32_MAX), row["subtopologies"]
        return cls(epoch, tuple(map(_subtopology, parts)))

    @property
    def required(self) -> frozenset[str]:
        """The names of the topics that have to be there."""
        return self._summed_up.required

    @property
    def named(self) -> frozenset[str]:
        """The names of all topics, also of those that are only written."""
        return self._summed_up.named

    @property
    def reader_of(self) -> Mapping[str, str]:
        """The id of the subtopology that reads a topic, by the topic's name."""
        return self._summed_up.reader_of

    @property
    def _summed_up(self) -> _Summary:
        if self._summary is None:
            for _ in self.sum_up():
                pass
        assert self._summary is not None
        return self._summary

    def sum_up(self) -> Iterator[None]:
        """Find out in steps what its attributes tell: else the first one that is asked for takes as long as all."""
        required: set[str] = set()
        written: set[str] = set()
        reader_of: dict[str, str] = {}
        texts: dict[str, bytes] = {}
        for count, each in enumerate(self.subtopologies.values(), 1):
            reader_of.update(dict.fromkeys(each.reads, each.subtopology_id))
            required.update(topic.name for topic in each.changelogs)
            written.update(each.sinks)
            texts[each.subtopology_id] = dump(each)
            if count % _AT_ONCE == 0:
                yield
        required.update(reader_of)
        # members may tell the same topology in any order, and texts are compared
        ordered = b",".join(texts[name] for name in sorted(texts))
        text = b'{"epoch":%d,"subtopologies":[%b]}' % (self.epoch, ordered)
        self._summary = _Summary(text, frozenset(required), frozenset(required | written), reader_of)


def _subtopology(row: Any) -> Subtopology:
    name, sources, sinks, repartitions, changelogs, copartitions = row
    return Subtopology(
        string(name),
        tuple(map(string, sources)),
        tuple(map(string, sinks)),
        tuple(map(_topic, repartitions)),
        tuple(map(_topic, changelogs)),
        tuple(Copartition(_places(first), _places(second)) for first, second in copartitions),
    )


def _topic(row: Any) -> StreamsTopic:
    name, partitions, factor, configs = row
    return StreamsTopic(
        string(name),
        whole(partitions, ~INT32_MAX, INT32_MAX),
        whole(factor, ~_INT16_MAX, _INT16_MAX),
        tuple((string(key), string(value)) for key, value in configs),
    )


def _places(row: Any) -> tuple[int, ...]:
    return tuple(whole(place, ~_INT16_MAX, _INT16_MAX) for place in row)
