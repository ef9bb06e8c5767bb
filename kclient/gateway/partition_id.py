"""What names a partition for good, also where its topic is deleted and made anew."""

from __future__ import annotations

from typing import NamedTuple


class PartitionId(NamedTuple):
    """A partition of one incarnation of a topic."""

    topic_id: bytes
    partition: int
