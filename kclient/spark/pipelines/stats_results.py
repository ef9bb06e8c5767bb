"""What `stats` finds: of partitions, of keys, and of spans of time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kclient.spark.pipelines.histogram import Histogram


@dataclass(frozen=True)
class PartitionStats:
    """What is in a partition, or in a range of it. Sizes are in bytes, of what producers sent: uncompressed.

    Attributes:
        partition: its number.
        start: the offset that it begins at; in an archive, which does not tell, that of the first record.
        end: the one behind its end.
        records: how many there are.
        key_bytes: of all keys together.
        value_bytes: of all values.
        header_bytes: of all headers, names and values.
        null_keys: how many records have no key.
        null_values: how many have no value, as those that delete a key.
        first_timestamp: the least timestamp, in milliseconds; None where no record has one.
        last_timestamp: the greatest one.
        untimed: how many records have no timestamp (they are below 0).
        sizes: how large records are: key, value and headers.
        spans: records and bytes, by the number of the span of time since 1970.
    """

    partition: int
    start: int
    end: int
    records: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    header_bytes: int = 0
    null_keys: int = 0
    null_values: int = 0
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    untimed: int = 0
    sizes: Histogram = field(default_factory=Histogram)
    spans: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of keys, values and headers."""
        return self.key_bytes + self.value_bytes + self.header_bytes

    def joined(self, other: PartitionStats) -> PartitionStats:
        """With another range; it goes from the first start to the last end of both."""
        firsts = [each for each in (self.first_timestamp, other.first_timestamp) if each is not None]
        lasts = [each for each in (self.last_timestamp, other.last_timestamp) if each is not None]
        return PartitionStats(
            self.partition, min(self.start, other.start), max(self.end, other.end), self.records + other.records,
            self.key_bytes + other.key_bytes, self.value_bytes + other.value_bytes,
            self.header_bytes + other.header_bytes, self.null_keys + other.null_keys,
            self.null_values + other.null_values, min(firsts, default=None), max(lasts, default=None),
            self.untimed + other.untimed, self.sizes + other.sizes, added(self.spans, other.spans),
        )  # fmt: skip


def added(one: Mapping[int, tuple[int, int]], other: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """The sums of two."""
    nothing = (0, 0)
    found = dict(one)
    for span, (records, size) in other.items():
        before = found.get(span, nothing)
        found[span] = before[0] + records, before[1] + size
    return found


def by_partition(ranges: Iterable[PartitionStats]) -> tuple[PartitionStats, ...]:
    """What ranges come to, partition by partition."""
    found: dict[int, PartitionStats] = {}
    for each in ranges:
        found[each.partition] = found[each.partition].joined(each) if each.partition in found else each
    return tuple(found[number] for number in sorted(found))


@dataclass(frozen=True)
class KeyShare:
    """What has one key.

    Attributes:
        key: the key.
        records: how many records have it.
        size: their bytes: keys, values and headers.
    """

    key: bytes
    records: int
    size: int


@dataclass(frozen=True)
class KeyStats:
    """Of all keys.

    Attributes:
        distinct: how many different ones there are.
        top: those of the most records, the first one has most; of equal ones those with more bytes, then by the key.
    """

    distinct: int
    top: tuple[KeyShare, ...]

    def joined(self, other: KeyStats, most: int) -> KeyStats:
        """With other keys, of which none is among these."""
        return KeyStats(self.distinct + other.distinct, largest((*self.top, *other.top), most))


def largest(shares: Iterable[KeyShare], most: int) -> tuple[KeyShare, ...]:
    """Those of the most records, as in `KeyStats.top`."""
    return tuple(sorted(shares, key=lambda each: (-each.records, -each.size, each.key))[:most])


def range_to_text(found: PartitionStats) -> str:
    """A range as it travels."""
    return json.dumps(asdict(found))


def range_from_text(text: str) -> PartitionStats:
    """The range that `range_to_text` wrote."""
    data: dict[str, Any] = json.loads(text)
    data["sizes"] = Histogram({int(each): count for each, count in data["sizes"]["counts"].items()})
    data["spans"] = {int(each): (records, size) for each, (records, size) in data["spans"].items()}
    return PartitionStats(**data)


def keys_to_text(found: KeyStats) -> str:
    """Keys as they travel."""
    top = [(each.key.hex(), each.records, each.size) for each in found.top]
    return json.dumps({"distinct": found.distinct, "top": top})


def keys_from_text(text: str) -> KeyStats:
    """The keys that `keys_to_text` wrote."""
    data = json.loads(text)
    return KeyStats(
        data["distinct"], tuple(KeyShare(bytes.fromhex(key), records, size) for key, records, size in data["top"])
    )
