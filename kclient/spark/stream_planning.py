"""What the micro-batches of a streaming query take, decided in the driver's planning process.

Nothing here knows Spark: places come in and go out as `StreamOffsets`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from kclient.spark.admission import TriggerDelay, limited
from kclient.spark.cluster import TopicView
from kclient.spark.options import EARLIEST, LATEST, StreamOptions
from kclient.spark.ranges import (
    DataLossError,
    selected_partitions,
    selected_topics,
    starting_places,
    unchanged,
    until_found,
)
from kclient.spark.stream_offsets import StreamOffsets
from kclient.types import TopicPartition

logger: logging.Logger = logging.getLogger("kclient.spark")


class StreamPlanner:
    """Plans one query.

    Args:
        cluster: Is asked for topics and offsets.
        options: The query's.
        clock: Monotonic time in seconds.
    """

    def __init__(self, cluster: TopicView, options: StreamOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self.newest: StreamOffsets | None = None
        """The ends of all partitions when they were looked at last."""
        self._cluster = cluster
        self._options = options
        self._clock = clock
        self._initial: StreamOffsets | None = None
        self._target: StreamOffsets | None = None
        self._missed: set[TopicPartition] = set()
        """What was gone, and was told of."""
        self._delay = None
        if options.least is not None:
            self._delay = TriggerDelay(options.least, options.longest_delay_ms / 1000)

    def initial(self) -> StreamOffsets:
        """Where a new query begins; the same whenever it is asked.

        Raises:
            UnknownTopicOrPartitionError: A topic or partition does not exist.
            ConfigError: Offsets are given for other partitions than selected.
            DataLossError: An offset lies outside of what the log holds, and `failOnDataLoss` is true.
        """
        if self._initial is None:
            self._initial = until_found(self._find_initial, self._options.read)
        return self._initial

    def stop_at_newest(self) -> None:
        """What is written from now on is not read."""
        self._target = until_found(self._find_newest, self._options.read)

    def latest(self, start: StreamOffsets, most: int | None, least: int | None) -> StreamOffsets | None:
        """The end of the batch that begins at `start`; None where there is none to be made yet.

        Args:
            start: Where the last one ended.
            most: Offsets that it takes at most.
            least: It waits for so many, though not for ever, unless all there is is to be read.

        Raises:
            DataLossError: Records that it ought to read are gone, and `failOnDataLoss` is true.
        """
        now = self._target or until_found(self._find_newest, self._options.read)
        begin, began = self._begin(start, now)
        ends = {tp: self._checked_end(tp, begin[tp], end) for tp, end in now.places.items()}
        available = sum(max(ends[tp] - begin[tp], 0) for tp in ends)
        held_back = self._delay is not None and least is not None and self._target is None
        if held_back and self._delay is not None and self._delay.holds_back(available, self._clock()):
            return None
        if most is not None:
            ends = limited(begin, ends, most)
        gone = self._gone(start, now)
        ids = {tp.topic: start.topic_ids.get(tp.topic, "") for tp in gone}
        found = StreamOffsets({**ends, **gone}, {**ids, **now.topic_ids}, began)
        if start.initial:
            # where it begins must be known before anything is read: another look might find another place
            return None if found.places == start.places and self._begins_at_fixed_places() else found
        return None if found.places == start.places and found.topic_ids == start.topic_ids else found

    def _begins_at_fixed_places(self) -> bool:
        starting = self._options.read.starting
        if starting.timestamp is not None or starting.timestamps:
            return False
        return LATEST not in starting.offsets.values() if starting.offsets else starting.everywhere == EARLIEST

    # ------------------------------------------------------------------ places

    def _find_initial(self) -> StreamOffsets | None:
        options, cluster = self._options.read, self._cluster
        topics = selected_topics(cluster, options.selection)
        partitions = selected_partitions(topics, options.selection)
        beginnings, ends = cluster.beginning_offsets(partitions), cluster.end_offsets(partitions)
        places = starting_places(cluster, options, partitions, beginnings, ends)
        if not unchanged(cluster, topics, topics.keys()):
            return None
        return StreamOffsets(places, {name: topic.topic_id for name, topic in topics.items()}, initial=True)

    def _find_newest(self) -> StreamOffsets | None:
        options, cluster = self._options.read, self._cluster
        tolerant = not options.fail_on_data_loss
        topics = selected_topics(cluster, options.selection, missing_ok=tolerant)
        places = cluster.end_offsets(selected_partitions(topics, options.selection, missing_ok=tolerant))
        if not unchanged(cluster, topics, topics.keys()):
            return None
        self.newest = StreamOffsets(dict(places), {name: topic.topic_id for name, topic in topics.items()})
        return self.newest

    def _begin(
        self, start: StreamOffsets, now: StreamOffsets
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Where the batch begins in each partition that is there, and of which of them that has to be noted."""
        others = _created_again(start, now)
        for name in sorted(others):
            self._lost(f"the topic {name} was deleted and created again: what was not read of it is gone")
        begin = {tp: start.places[tp] for tp in now.places if tp in start.places and tp.topic not in others}
        anew = [tp for tp in now.places if tp not in begin]
        found = self._cluster.beginning_offsets(anew) if anew else {}
        for tp in anew:
            if found[tp] > 0 and tp.topic not in others:
                self._lost(f"{tp} is new, and its log begins at {found[tp]}: records before that are gone")
            begin[tp] = found[tp]
        return begin, dict(begin) if start.initial else {tp: found[tp] for tp in anew}

    def _gone(self, start: StreamOffsets, now: StreamOffsets) -> dict[TopicPartition, int]:
        """Places in partitions that are not there: they are kept, since a broker may only not know them yet."""
        others = _created_again(start, now)  # which may get as many partitions: they are new then
        gone = {tp: place for tp, place in start.places.items() if tp not in now.places and tp.topic not in others}
        missed = sorted(gone.keys() - self._missed)
        unasked = self._target is not None and start.initial  # they came after all there was had been looked at
        if missed and not unasked:
            self._lost(f"{', '.join(map(str, missed))} are not there any more: what was not read of them is gone")
        self._missed = set(gone)
        return gone

    def _checked_end(self, tp: TopicPartition, begin: int, end: int) -> int:
        if end >= begin:
            return end
        if self._target is not None and self._cluster.end_offsets([tp])[tp] >= begin:
            return begin  # the query began after all there was had been looked at
        self._lost(f"{tp} ended at {begin} or later, and ends at {end} now: its log was cut back")
        return end

    def _lost(self, text: str) -> None:
        if self._options.read.fail_on_data_loss:
            raise DataLossError(f"{text}; go on with what is there by {self._options.read.lenience}")
        logger.warning("%s; going on, because of %s", text, self._options.read.lenience)


def _created_again(start: StreamOffsets, now: StreamOffsets) -> set[str]:
    """The topics that are others than those of the same name at the start."""
    ids = start.topic_ids
    return {name for name, now_id in now.topic_ids.items() if ids.get(name, now_id) not in ("", now_id)}
