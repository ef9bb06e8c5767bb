"""The rows of the catalogue: a topic, and what is under way with one."""

from __future__ import annotations

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

_TOPIC_FORMAT: Final = 3
"""The first had no number, and no incarnations, the second no brokers."""
_WITHOUT_BROKERS: Final = 2
"""Is still written where it does: what knows no other reads it."""
_INTENT_FORMAT: Final = 1


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
    """The HTP broker of each partition, in order; none where all are at the first one."""

    def encode(self) -> bytes:
        """The row."""
        brokers = {"brokers": self.brokers} if self.brokers else {}
        return seal(
            dump(
                {
                    "format": _TOPIC_FORMAT if self.brokers else _WITHOUT_BROKERS,
                    "id": self.topic_id.hex(),
                    "partitions": self.partitions,
                    "replication_factor": self.replication_factor,
                    "mapping": self.mapping,
                    "incarnations": self.incarnations,
                    **brokers,
                    "config": self.overrides,
                }
            )
        )

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
                {setting: string(value) for setting, value in fields["config"].items()},
                brokers,
            )
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{row[:200]!r}: {error!r}") from error


class IntentRow(NamedTuple):
    """A creation or deletion that is under way."""

    mapping: str
    topic_id: bytes | None
    """None if an early version recorded it: the topic's checkpoints are not found then."""

    def encode(self) -> bytes:
        """The row."""
        topic_id = None if self.topic_id is None else self.topic_id.hex()
        return seal(dump({"format": _INTENT_FORMAT, "mapping": self.mapping, "id": topic_id}))

    @classmethod
    def decode(cls, row: bytes) -> IntentRow:
        """What a row says. Raises `ValueError` if it says nothing sensible."""
        body = unsealed(row)
        if not body.startswith(b"{"):  # the first versions kept the mapping's name alone
            return cls(body.decode(), None)
        try:
            fields = object_of_format(body, _INTENT_FORMAT)
            topic_id = optional_string(fields["id"])
            return cls(string(fields["mapping"]), None if topic_id is None else bytes.fromhex(topic_id))
        except LookupError as error:
            raise ValueError(f"{row[:200]!r} is not an intent: {error!r}") from error


def _parse_id(value: object) -> bytes:
    topic_id = bytes.fromhex(string(value))
    if len(topic_id) != 16:
        raise ValueError(f"{value!r} is not a topic id")
    return topic_id
