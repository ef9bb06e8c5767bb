"""The topics that rows are written to, by their ids: a topic that is created again is another one of the same name.

Brokers acknowledge a row, and later lose it with its topic, and whoever writes to the name goes on into the next one.
So what a task has written belongs to ids: looked at before its first row and after its last one, they are the same or
rows are gone, since an id never comes again. The driver looks once more before a write is said to be done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow

    from kclient.spark.cluster import TopicView

_LOOKS = 3
_PAUSE_S = 0.3
"""So often, and so far apart, a topic must be missing: a broker that has just started knows little."""


class ReplacedTopic(NamedTuple):
    """A topic that is not any more what it was.

    Attributes:
        name: its name.
        before: the id that it had.
        now: the id of the topic that has the name now; empty where none has.
    """

    name: str
    before: str
    now: str

    def __str__(self) -> str:
        if not self.now:
            return f"the topic {self.name} was deleted (its id was {self.before})"
        return f"the topic {self.name} was deleted and created again (its id was {self.before}, and is {self.now})"


class TopicsWritten:
    """The topics that one task writes to.

    Args:
        cluster: Is asked for their ids.
        create: Called with the name of a topic that does not exist: a write creates it, where brokers allow that.
        failure: Makes what is raised of the text.
    """

    def __init__(
        self, cluster: TopicView, create: Callable[[str], object], failure: Callable[[str], Exception]
    ) -> None:
        self._cluster = cluster
        self._create = create
        self._failure = failure
        self._ids: dict[str, str] = {}

    def before(self, names: Iterable[str]) -> None:
        """Rows are about to be sent to these topics.

        Raises:
            Exception: What `create` raises where one is not there and is not created, or what `failure` has made.
        """
        new = sorted(set(names) - self._ids.keys())
        if not new:
            return
        found = _ids(self._cluster, new)
        missing = [name for name in new if name not in found]
        for name in missing:
            self._create(name)
        if missing:
            found.update(topic_ids(self._cluster, missing))
        for name in missing:
            if name not in found:
                raise self._failure(
                    f"the topic {name}, which this write has created, is not there: it was deleted again, or brokers "
                    "do not know it yet; try again"
                )
        self._ids.update(found)

    def after(self) -> dict[str, str]:
        """All rows are acknowledged: the ids of the topics that have them.

        Raises:
            Exception: What `failure` has made: a topic is not the one that the first rows went to.
        """
        gone = replaced(self._ids, topic_ids(self._cluster, self._ids))
        if gone:
            raise self._failure(
                f"{told(gone)} while a task wrote to it, and what had been written is gone with it; try again: the "
                "rows are written as a whole then, to the topic that is there"
            )
        return dict(self._ids)


def topics_in(topic: str | None, batch: pyarrow.RecordBatch) -> list[str]:
    """The topics of a batch's rows: that of the option, or those in the column."""
    if topic is not None:
        return [topic]
    return [name for name in batch.column("topic").unique().to_pylist() if name is not None]


def topic_ids(cluster: TopicView, names: Collection[str]) -> dict[str, str]:
    """The ids of topics as they are now; those that do not exist are left out, after more than one look."""
    found = _ids(cluster, names)
    for _ in range(_LOOKS - 1):
        missing = [name for name in names if name not in found]
        if not missing:
            break
        time.sleep(_PAUSE_S)
        found.update(_ids(cluster, missing))
    return found


def replaced(before: Mapping[str, str], now: Mapping[str, str]) -> list[ReplacedTopic]:
    """The topics that are gone, or others than they were, sorted by name.

    Brokers that have no ids (Kafka before 2.8) give the same one for all, so there only the first shows.
    """
    return [
        ReplacedTopic(name, old, now.get(name, "")) for name, old in sorted(before.items()) if now.get(name, "") != old
    ]


def told(gone: Collection[ReplacedTopic]) -> str:
    """What happened to topics, in words."""
    first, *others = gone
    return str(first) + (f", and so were {len(others)} others," if others else "")


def _ids(cluster: TopicView, names: Collection[str]) -> dict[str, str]:
    return {name: topic.topic_id for name, topic in cluster.topics(names).items()}
