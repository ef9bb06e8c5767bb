"""Which part of a compacted log is to be cleaned, and whether it is worth it; decided apart from doing it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kclient.gateway.setting import LONG_MAX

if TYPE_CHECKING:
    from kclient.gateway.config import TopicConfig
    from kclient.htp.port import SegmentInfo


class Cleanable(NamedTuple):
    """What a compaction may go over."""

    first_dirty: int
    """The offset from which on keys are to be noted: what is below was cleaned before."""
    end: int
    """The first offset that stays as it is."""
    ratio: float
    """How much of all that may be cleaned has come since the last time, 0 to 1."""
    overdue: bool = False
    """Whether records have waited for longer than `max.compaction.lag.ms`."""

    def is_due(self, config: TopicConfig) -> bool:
        """Whether it is to be done, as the topic's settings have it."""
        return self.first_dirty < self.end and (self.overdue or self.ratio > config.min_cleanable_dirty_ratio)


def cleanable(
    segments: Sequence[SegmentInfo],
    config: TopicConfig,
    *,
    cleaned: int,
    start: int,
    stable: int,
    now_ms: int,
    waiting_since: int = LONG_MAX,
) -> Cleanable:
    """What of a log may be cleaned; Kafka's rules.

    Args:
        segments: Of the log, oldest first; the active one is never cleaned.
        config: Of the topic.
        cleaned: Everything below this offset was cleaned before.
        start: The log start.
        stable: The last stable offset: what lies behind may belong to an open transaction.
        now_ms: The time in milliseconds since the epoch.
        waiting_since: The least timestamp with which a segment begins that was not cleaned yet.
    """
    first_dirty = cleaned if start <= cleaned <= stable else start
    closed = [segment for segment in segments if not segment.active]
    end = min(stable, segments[-1].first if segments else stable)
    if config.min_compaction_lag_ms > 0:
        young = now_ms - config.min_compaction_lag_ms
        for segment in closed:
            if segment.next > first_dirty and _newest(segment) > young:
                end = min(end, segment.first)
                break
    end = max(first_dirty, end)
    clean = sum(segment.size for segment in closed if segment.next <= first_dirty)
    dirty = sum(segment.size for segment in closed if segment.next > first_dirty and segment.first < end)
    ratio = dirty / (clean + dirty) if dirty else 0.0
    return Cleanable(first_dirty, end, ratio, bool(dirty) and waiting_since < now_ms - config.max_compaction_lag_ms)


def _newest(segment: SegmentInfo) -> int:
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.modified_ms
