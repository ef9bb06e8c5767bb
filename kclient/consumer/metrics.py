"""Figures about one consumer, under the names of Java's metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kclient.consumer.subscription import PartitionState


@dataclass(slots=True)
class ConsumerMetrics:
    """What is counted where it happens."""

    records: int = 0
    """Records handed out."""
    polls: int = 0
    commits: int = 0
    failed_commits: int = 0

    def figures(
        self,
        partitions: Iterable[PartitionState],
        *,
        fetches: int,
        bytes_fetched: int,
        buffered: int,
        rebalances: int,
        read_committed: bool,
    ) -> dict[str, float]:
        """All figures since the start.

        Args:
            partitions: What is read now.
            fetches: Answers to fetches.
            bytes_fetched: Bytes of records in them.
            buffered: Bytes that are held.
            rebalances: Assignments that were completed.
            read_committed: Whether only what is committed is read, which ends at the last stable offset.
        """
        states = list(partitions)
        lags = [lag for state in states if (lag := state.lag(read_committed=read_committed)) is not None]
        return {
            "records-consumed-total": float(self.records),
            "bytes-consumed-total": float(bytes_fetched),
            "fetch-total": float(fetches),
            "records-lag-max": float(max(lags, default=0)),
            "assigned-partitions": float(len(states)),
            "poll-total": float(self.polls),
            "commit-total": float(self.commits),
            "failed-commit-total": float(self.failed_commits),
            "rebalance-total": float(rebalances),
            "buffered-bytes": float(buffered),
        }
