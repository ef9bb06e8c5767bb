"""The rows of the catalogue: a topic, and what is under way with one."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kclient.gateway.settings import MOST_PARTITIONS
from kclient.htp.rows import (
    check_format,
    dump,
    object_of_format,
    optional_string,
    parse_object,
    seal,
    string,
    unsealed,
    whole,
)
from kclient.records.bounds import INT16_MAX

_TOPIC_FORMAT: Final = 4
"""The first had no number, and no incarnations, the second no brokers, the third no mirrors."""
_WITHOUT_MIRROR: Final = 3
_WITHOUT_BROKERS: Final = 2
"""Are still written where they do: what knows no other reads them."""
_INTENT_FORMAT: Final = 1
TAKEN_OVER: Final = "taken over from"
"""How `htp.mirror` begins of a topic that goes on by itself."""
_FOLLOWING: Final = "following"


class MirrorOrigin(NamedTuple):
    """Where a topic comes from that is, or was, kept as the mirror of another cluster's."""

    cluster_id: str
    """Of the source; empty where it tells none."""
    topic_id: bytes
    """The topic's at the source; zeros where that knows no ids."""
    taken_over: bool = False
    """Whether it takes producers' records, and follows its source no more."""

    def describe(self) -> str:
        """As `htp.mirror` tells it."""
        topic_id = base64.urlsafe_b64encode(self.topic_id).decode().rstrip("=")
        return f"{TAKEN_OVER if self.taken_over else _FOLLOWING} {self.cluster_id}/{topic_id}"

    @classmethod
    def of(cls, described: str) -> MirrorOrigin:
        """What `describe` tells. Raises `ValueError` for another text."""
        told, _, place = described.rpartition(" ")
        cluster_id, _, topic_id = place.rpartition("/")
        if told not in (TAKEN_OVER, _FOLLOWING):
            raise ValueError(f"{described!r} does not tell of a mirror")
        return cls(cluster_id, base64.urlsafe_b64decode(topic_id + "=="), told == TAKEN_OVER)


_GZIP_LEVEL: Final = "compression.gzip.level"
"""Earlier versions took 0, which Kafka does not: then it has its default."""


class TopicRow(NamedTuple):
    """A topic."""

    topic_id: bytes
    partitions: int
    replication_factor: int
    mapping: str
    """The strategy by which its partitions lie in HTP."""
    incarnations: Sequence[int]
    """Of its partitions' places, in order; none where the first versions wrote the row."""
    overrides: Mapping[str, str]
    """Its own settings."""
    brokers: Sequence[str] = ()
    """The HTP broker of each partition, in order; none where all are at `brk-0`."""
    mirror: MirrorOrigin | None = None
    """Of which topic it is the mirror, or was."""

    def encode(self) -> bytes:
        """The row."""
        fields: dict[str, object] = {
            "format": _WITHOUT_MIRROR if self.brokers else _WITHOUT_BROKERS,
            "id": self.topic_id.hex(),
            "partitions": self.partitions,
            "replication_factor": self.replication_factor,
            "mapping": self.mapping,
            "incarnations": self.incarnations,
            "config": self.overrides,
        }
        if self.brokers:
            fields["brokers"] = self.brokers
        if self.mirror is not None:  # an earlier version would take records into it
            cluster_id, topic_id, taken_over = self.mirror
            fields["format"] = _TOPIC_FORMAT
            fields["mirror"] = {"cluster": cluster_id, "topic": topic_id.hex(), "taken_over": int(taken_over)}
        return seal(dump(fields))

    @classmethod
    def decode(cls, row: bytes) -> TopicRow:
        """The topic of a row. Raises `ValueError` if it has none."""
        try:
            fields = parse_object(unsealed(row))
            check_format(fields.get("format", 1), _TOPIC_FORMAT)
            partitions = whole(fields["partitions"], 1, MOST_PARTITIONS)
            incarnations = [whole(each) for each in fields.get("incarnations", [])]
            if incarnations and len(incarnations) != partitions:
                raise ValueError(f"it tells {partitions} partitions and {len(incarnations)} incarnations")
            brokers = [string(each) for each in fields.get("brokers", [])]
            if brokers and (not incarnations or len(brokers) != partitions or not all(brokers)):
                raise ValueError(f"it tells {partitions} partitions, and their brokers {brokers[:10]}")
            return cls(
                _parse_id(fields["id"]),
                partitions,
                min(whole(fields["replication_factor"], -1), INT16_MAX),
                string(fields["mapping"]),
                incarnations,
                {
                    setting: string(value)
                    for setting, value in fields["config"].items()
                    if setting != _GZIP_LEVEL or string(value).strip(" +-0")
                },
                brokers,
                _mirror(fields["mirror"]) if "mirror" in fields else None,
            )
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{row[:200]!r}: {error!r}") from error


class IntentRow(NamedTuple):
    """A creation or deletion that is under way."""

    mapping: str
    topic_id: bytes | None
    """None if an early version recorded it: the topic's checkpoints are not found then."""
    run: str = ""
    """Of the gateway whose it is; empty if an earlier version recorded it."""

    def encode(self) -> bytes:
        """The row."""
        topic_id = None if self.topic_id is None else self.topic_id.hex()
        fields = {"format": _INTENT_FORMAT, "mapping": self.mapping, "id": topic_id}
        if self.run:
            fields["run"] = self.run
        return seal(dump(fields))

    @classmethod
    def decode(cls, row: bytes) -> IntentRow:
        """What a row says. Raises `ValueError` if it says nothing sensible."""
        body = unsealed(row)
        if not body.startswith(b"{"):  # the first versions kept the mapping's name alone
            return cls(body.decode(), None)
        try:
            fields = object_of_format(body, _INTENT_FORMAT)
            text = optional_string(fields["id"])
            topic_id = None if text is None else bytes.fromhex(text)
            return cls(string(fields["mapping"]), topic_id, string(fields.get("run", "")))
        except LookupError as error:
            raise ValueError(f"{row[:200]!r} is not an intent: {error!r}") from error


def _mirror(fields: Mapping[str, object]) -> MirrorOrigin:
    taken_over = bool(whole(fields["taken_over"], 0, 1))
    return MirrorOrigin(string(fields["cluster"]), _parse_id(fields["topic"]), taken_over)


def _parse_id(value: object) -> bytes:
    topic_id = bytes.fromhex(string(value))
    if len(topic_id) != 16:
        raise ValueError(f"{value!r} is not a topic id")
    return topic_id
