"""Where a streaming query has come to: the offsets that Spark keeps in the checkpoint, and what is between two.

Spark compares them as text, so the same places always make the same text. It does not keep where the first batch began
(it asks for the initial offsets again when that batch is repeated), so the end of a batch also says where those
partitions began that the start of the batch does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kclient.errors import ConfigError
from kclient.spark.ranges import OffsetRange
from kclient.types import TopicPartition

FORMAT = 1
"""Of the text in checkpoints. A later one has to read all before it."""


@dataclass(frozen=True)
class StreamOffsets:
    """The next offset of each partition, and of which topics they are."""

    places: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]
    began: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where partitions began that the batch before did not have."""
    initial: bool = False
    """Whether no batch has been planned yet."""

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it: sorted, so that equal offsets are equal text."""
        topics: dict[str, Any] = {}
        for tp in sorted(self.places):
            topic = topics.setdefault(tp.topic, {"id": self.topic_ids.get(tp.topic, ""), "offsets": {}})
            topic["offsets"][str(tp.partition)] = self.places[tp]
        found: dict[str, Any] = {"format": FORMAT, "topics": topics}
        if self.began:
            found["began"] = _nested(self.began)
        if self.initial:
            found["initial"] = True
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StreamOffsets:
        """What `to_json` made.

        Raises:
            ConfigError: It is of another source, or of a version of kclient that is newer than this one.
        """
        written = found.get("format")
        if not isinstance(written, int) or not isinstance(found.get("topics"), dict):
            raise ConfigError(
                "the checkpoint holds offsets of another source: a query that changes its source needs a new "
                "checkpointLocation, and startingOffsets to go on where it was"
            )
        if written > FORMAT:
            raise ConfigError(
                f"the checkpoint was written by a newer version of kclient (format {written}, and this one knows "
                f"{FORMAT}): update kclient"
            )
        places = {
            TopicPartition(name, int(number)): offset
            for name, topic in found["topics"].items()
            for number, offset in topic["offsets"].items()
        }
        began = {
            TopicPartition(name, int(number)): offset
            for name, offsets in found.get("began", {}).items()
            for number, offset in offsets.items()
        }
        ids = {name: topic["id"] for name, topic in found["topics"].items()}
        return cls(places, ids, began, initial=bool(found.get("initial")))

    def ranges_from(self, start: StreamOffsets) -> list[OffsetRange]:
        """The records of the batch that begins at `start` and ends here."""
        found = []
        for tp in sorted(self.places):
            begin = self.began.get(tp)
            if begin is None:
                begin = start.places.get(tp, self.places[tp])
            if begin < self.places[tp]:
                found.append(
                    OffsetRange(tp.topic, tp.partition, begin, self.places[tp], self.topic_ids.get(tp.topic, ""))
                )
        return found


def _nested(places: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for tp in sorted(places):
        found.setdefault(tp.topic, {})[str(tp.partition)] = places[tp]
    return found
