"""Looks through the rows of a store: whether each can be read, and whether what it names is there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from kclient.errors import KafkaError
from kclient.gateway.mapping import mapping_for
from kclient.gateway.rows import keys
from kclient.gateway.rows.aborted import decode_chunk
from kclient.gateway.rows.acls import decode_acl
from kclient.gateway.rows.assignment import ReleasedRow, decode_generations
from kclient.gateway.rows.broker import decode_cluster_id, decode_internal_topics, decode_settings
from kclient.gateway.rows.consumer_groups import CONSUMER, SHARE, decode_consumer_group, decode_consumer_member
from kclient.gateway.rows.delegation_tokens import DelegationTokenRow
from kclient.gateway.rows.extents import decode_chunks, decode_extents
from kclient.gateway.rows.features import FeaturesRow
from kclient.gateway.rows.gateways import GatewayRow
from kclient.gateway.rows.groups import decode_group, decode_offset, type_of_group
from kclient.gateway.rows.numbers import LEADER_EPOCH, LOG_START, PRODUCER_IDS
from kclient.gateway.rows.partitions import decode_checkpoint
from kclient.gateway.rows.pending import decode_pending
from kclient.gateway.rows.quotas import decode_quotas
from kclient.gateway.rows.scram_credentials import ScramDecoyRow, ScramRow
from kclient.gateway.rows.share_partitions import SHARED_TOPIC, SharedRow
from kclient.gateway.rows.streams_groups import (
    STREAMS,
    decode_streams_group,
    decode_streams_member,
    is_streams_member,
)
from kclient.gateway.rows.topics import IntentRow, TopicRow
from kclient.gateway.rows.transactions import decode_transaction
from kclient.gateway.rows.units import UnitRow
from kclient.gateway.rows.virtual import IndexedRow, decode_blocks, decode_entries
from kclient.htp.findings import Finding, error, note
from kclient.htp.port import Place, Topic
from kclient.htp.rows import unsealed

_OTHERS: Final = "brk/"
"""Rows of the store itself, which come with the topics' messages."""


def _extents(key: str, row: bytes) -> object:
    return decode_chunks(row) if key.endswith("/chunks") else decode_extents(row)


def _group(key: str, row: bytes) -> object:
    group_id, kind = keys.parse_group_key(key), type_of_group(row)
    if kind in (CONSUMER, SHARE):
        return decode_consumer_group(row, group_id)
    if kind == STREAMS:
        return decode_streams_group(row, group_id)
    return decode_group(row, group_id) if kind == "classic" else None


def _member(key: str, row: bytes) -> object:
    decode: Callable[[bytes, str], object] = decode_streams_member if is_streams_member(row) else decode_consumer_member
    return decode(row, keys.parse_member_key(key)[1])


def _offset(key: str, row: bytes) -> object:
    keys.parse_offset_key(key)
    return decode_offset(row)


def _pending(key: str, row: bytes) -> object:
    return decode_pending(row, *keys.parse_pending_key(key))


def _transaction(key: str, row: bytes) -> object:
    return decode_transaction(row, keys.parse_transaction_key(key))


def _share(key: str, row: bytes) -> object:
    keys.parse_share_key(key)
    return SharedRow.decode(row)


def _shared_topic(key: str, row: bytes) -> object:
    keys.parse_shared_topic_key(key)
    return SHARED_TOPIC.decode(row)


def _blocks(key: str, row: bytes) -> object:
    keys.parse_blocks_key(key)
    return decode_blocks(row)


def _gateway(key: str, row: bytes) -> object:
    if GatewayRow.decode(row).node_id != keys.parse_gateway_key(key):
        raise ValueError("it is the row of another gateway")
    return None


def _released(key: str, row: bytes) -> object:
    keys.parse_released_key(key)
    return ReleasedRow.decode(row)


def _by(decode: Callable[[bytes], Any]) -> Callable[[str, bytes], object]:
    return lambda _, row: decode(row)


_READERS: Final[dict[str, Callable[[str, bytes], object]]] = {
    keys.TOPICS: _by(TopicRow.decode),
    keys.INTENTS: _by(IntentRow.decode),
    keys.CHECKPOINTS: _by(decode_checkpoint),
    keys.LOG_STARTS: _by(LOG_START.decode),
    keys.EXTENTS: _extents,
    keys.INDEXED: _by(IndexedRow.decode),
    keys.BLOCKS: _blocks,
    keys.ENTRIES: _by(decode_entries),
    keys.ABORTED: _by(decode_chunk),
    keys.UNITS: _by(UnitRow.decode),
    keys.SHARES: _share,
    keys.SHARED_TOPICS: _shared_topic,
    keys.TRANSACTIONS: _transaction,
    keys.SETTINGS: _by(decode_settings),
    keys.GROUP_SETTINGS: _by(decode_settings),
    keys.CLIENT_METRICS: _by(decode_settings),
    keys.FEATURES: _by(FeaturesRow.decode),
    keys.SCRAM: _by(ScramRow.decode),
    keys.SCRAM_DECOYS: _by(ScramDecoyRow.decode),
    keys.DELEGATION_TOKENS: _by(DelegationTokenRow.decode),
    keys.ACLS: decode_acl,
    keys.QUOTAS: decode_quotas,
    keys.PRODUCER_IDS: _by(PRODUCER_IDS.decode),
    keys.LEADER_EPOCH: _by(LEADER_EPOCH.decode),
    keys.CLUSTER_ID: _by(decode_cluster_id),
    keys.INTERNAL_TOPICS: _by(decode_internal_topics),
    keys.ASSIGNMENT: _by(decode_generations),
    keys.RELEASED: _released,
    keys.GATEWAYS: _gateway,
    keys.GROUPS: _group,
    keys.MEMBERS: _member,
    keys.OFFSETS: _offset,
    keys.PENDING: _pending,
}
_OF_PARTITIONS: Final = (
    keys.CHECKPOINTS, keys.LOG_STARTS, keys.EXTENTS, keys.INDEXED, keys.BLOCKS, keys.ENTRIES, keys.ABORTED, keys.UNITS,
    keys.SHARES,
)  # fmt: skip


_KINDS: Final = {
    keys.TOPICS: "topic",
    keys.INTENTS: "intent",
    keys.CHECKPOINTS: "partition checkpoint",
    keys.LOG_STARTS: "log start",
    keys.EXTENTS: "extents",
    keys.INDEXED: "index of a shared topic",
    keys.BLOCKS: "index blocks",
    keys.ENTRIES: "index entries",
    keys.ABORTED: "aborted transactions",
    keys.UNITS: "unit epoch",
    keys.SHARES: "deliveries of a share group",
    keys.SHARED_TOPICS: "topic of a share group",
    keys.TRANSACTIONS: "transactional id",
    keys.SETTINGS: "gateway settings",
    keys.GROUP_SETTINGS: "settings of a group",
    keys.CLIENT_METRICS: "subscription to metrics of clients",
    keys.FEATURES: "levels of features",
    keys.SCRAM: "SCRAM credentials of a user",
    keys.SCRAM_DECOYS: "key of SCRAM decoys",
    keys.DELEGATION_TOKENS: "delegation token",
    keys.ACLS: "access control list entry",
    keys.QUOTAS: "quotas",
    keys.PRODUCER_IDS: "producer ids",
    keys.LEADER_EPOCH: "leader epoch",
    keys.CLUSTER_ID: "cluster id",
    keys.INTERNAL_TOPICS: "Kafka's own topics",
    keys.ASSIGNMENT: "generations of gateways",
    keys.RELEASED: "hand-over of a gateway",
    keys.GATEWAYS: "gateway",
    keys.GROUPS: "group",
    keys.MEMBERS: "member of a consumer group",
    keys.OFFSETS: "committed offset",
    keys.PENDING: "offsets of a transaction",
}
"""What a row is called for people; a kind that is not listed here goes by its prefix."""


class ShownRow(NamedTuple):
    """A row as people read it."""

    kind: str | None
    """What it is of; None if this version does not know it."""
    value: Any
    """What it says, as JSON has it; text where the first versions wrote no JSON; None where that cannot be told."""
    problem: str | None
    """Why it cannot be read; None if it can."""


def shown_row(key: str, row: bytes) -> ShownRow:
    """What a row says, without its checksum; one of an unknown kind, as far as it is JSON or text."""
    prefix = _prefix(key)
    kind = None if prefix is None else _KINDS.get(prefix, prefix)
    try:
        if prefix is not None:
            read = _READERS[prefix](key, row)
            if isinstance(read, ScramRow | ScramDecoyRow | DelegationTokenRow):  # the rest is nobody's business
                return ShownRow(kind, read.shown(), None)
        body = unsealed(row)
        return ShownRow(kind, json.loads(body) if body[:1] in (b"{", b"[") else body.decode(), None)
    except (ValueError, KafkaError, RecursionError) as raised:
        return ShownRow(kind, None, str(raised))


def _prefix(key: str) -> str | None:
    """What kind of row a key is for, by its prefix; None if this version does not know it."""
    return max((each for each in _READERS if key.startswith(each)), key=len, default=None)


class RowInspection:
    """Is given every row of a store, then says what is wrong.

    Args:
        places: Where there are messages, or may be.
    """

    def __init__(self, places: Iterable[Place]) -> None:
        self._places = {(place.topic, place.incarnation): place.broker for place in places}
        self._used: set[tuple[Topic, int]] = set()
        self._unsure = False
        """Whether a row does not say where its topic lies: one that cannot be read, or one of the first versions."""
        self._ids: dict[str, bytes] = {}
        """Of topics, by name."""
        self._ending: set[bytes] = set()
        """Of topics that are being made or removed."""
        self._of_partitions: list[tuple[str, bytes]] = []
        self._offsets: list[tuple[str, str, bytes]] = []
        self.rows: int = 0
        """How many there are."""

    def look(self, key: str, row: bytes) -> Iterator[Finding]:
        """One row, by itself."""
        self.rows += 1
        if key.startswith(_OTHERS):
            return
        prefix = _prefix(key)
        if prefix is None:
            yield note(key, "is a row that this version does not know")
            return
        try:
            found = _READERS[prefix](key, row)
        except (ValueError, KafkaError) as raised:
            self._unsure = self._unsure or prefix == keys.TOPICS
            yield error(key, f"cannot be read: {raised}")
            return
        yield from self._remember(prefix, key, found)

    def _remember(self, prefix: str, key: str, found: Any) -> Iterator[Finding]:
        if prefix == keys.TOPICS:
            yield from self._topic(key, key.removeprefix(prefix), found)
        elif prefix == keys.INTENTS:
            if found.topic_id is not None:
                self._ending.add(found.topic_id)
            yield note(key, "tells of a creation or deletion that was cut off: the next start finishes it")
        elif prefix in _OF_PARTITIONS:
            self._of_partitions.append((key, bytes.fromhex(key.removeprefix(prefix).partition("/")[0])))
            if prefix == keys.EXTENTS and not key.endswith("/chunks"):
                for extent in found:
                    topic = Topic(extent.domain, extent.name)
                    yield from self._place(key, "an extent", Place(topic, extent.broker, extent.incarnation))
        elif prefix == keys.OFFSETS:
            self._offsets.append((key, keys.parse_offset_key(key)[1].topic, found[1]))

    def _topic(self, key: str, name: str, row: TopicRow) -> Iterator[Finding]:
        self._ids[name] = row.topic_id
        self._unsure = self._unsure or not row.incarnations
        try:
            mapping = mapping_for(row.mapping)
        except KafkaError as raised:
            yield error(key, str(raised))
            return
        for number, (incarnation, broker) in enumerate(zip_longest(row.incarnations, row.brokers)):
            yield from self._place(key, f"partition {number}", mapping.place(name, number, incarnation, broker))

    def _place(self, key: str, what: str, place: Place) -> Iterator[Finding]:
        topic, broker, incarnation = place
        self._used.add((topic, incarnation))
        found = self._places.get((topic, incarnation))
        if found is None:
            yield error(key, f"{what} lies at {topic} (incarnation {incarnation}), which does not exist")
        elif found != broker:
            yield error(key, f"{what} lies at {place}, and the manager says that it lies at {found or 'no broker'}")

    def compare(self) -> Iterator[Finding]:
        """What the rows say of one another, after all of them."""
        known = {*self._ids.values(), *self._ending}
        for key, topic_id in self._of_partitions:
            if topic_id not in known:
                yield note(key, "belongs to no topic")
        for key, topic, topic_id in self._offsets:
            if self._ids.get(topic) != topic_id and topic_id not in self._ending:
                yield note(key, "was committed for a topic that is not there any more")
        if not self._ending and not self._unsure:
            for place, incarnation in sorted(self._places.keys() - self._used):
                yield note(str(place), f"belongs to no topic of Kafka (incarnation {incarnation})")
