"""The catalogue of topics: names, ids, partitions and settings, kept in the manager's key-value part.

A topic is there when its row is: its places in HTP are made before the row is written and removed after the row
has gone, and an *intent* row tells the next start what was cut off in between.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio

from kclient.errors import (
    ConfigError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTopicError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.config import TopicConfig, check_topic_overrides
from kclient.gateway.keys import INTENT_PREFIX, LOG_PREFIX, TOPIC_PREFIX
from kclient.gateway.mapping import Mapping as PartitionMapping
from kclient.gateway.mapping import mapping_for

if TYPE_CHECKING:
    from kclient.gateway.core import Core
    from kclient.gateway.partitions import Partition

logger: logging.Logger = logging.getLogger("kclient.gateway.topics")

MOST_PARTITIONS: Final = 10_000
"""Most partitions of one topic: as Kafka's controller refuses to make more in one request."""
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's own topics: a gateway keeps their content elsewhere, so they are not made by asking for them."""


@dataclass(slots=True)
class TopicRecord:
    """One topic as the catalogue knows it."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    mapping: PartitionMapping
    overrides: dict[str, str]
    config: TopicConfig
    version: int = 0
    """The manager's version of the row, for compare-and-set."""
    logs: dict[int, Partition] = field(default_factory=dict)
    """The partitions used so far (`PartitionTable` fills it)."""

    def row(self) -> bytes:
        """The topic as its row holds it."""
        return json.dumps(
            {
                "id": self.topic_id.hex(),
                "partitions": self.partitions,
                "replication_factor": self.replication_factor,
                "mapping": self.mapping.name,
                "config": self.overrides,
            }
        ).encode()

    def log_key(self, partition: int) -> str:
        """The key of a partition's checkpoint."""
        return f"{LOG_PREFIX}{self.topic_id.hex()}/{partition}"


def check_name(name: str) -> None:
    """`InvalidTopicError` for a name that Kafka would not take."""
    if name in (".", "..") or not _LEGAL.fullmatch(name):
        raise InvalidTopicError(
            f"Topic name is invalid: {name[:300]!r} is not 1 to 249 ASCII letters, digits, '.', '_' or '-'"
        )


class TopicCatalogue:
    """All topics of a gateway. Reading is immediate; changing waits for the manager's commit."""

    def __init__(self, core: Core, mapping: PartitionMapping) -> None:
        self._core = core
        self._mapping = mapping
        self._by_name: dict[str, TopicRecord] = {}
        self._by_id: dict[bytes, TopicRecord] = {}
        self._changing = anyio.Lock()

    def __iter__(self) -> Iterator[TopicRecord]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> TopicRecord | None:
        """The topic of this name."""
        return self._by_name.get(name)

    def by_id(self, topic_id: bytes) -> TopicRecord | None:
        """The topic of this id."""
        return self._by_id.get(topic_id)

    async def load(self) -> None:
        """Read the catalogue, and finish what the last run left half done."""
        manager = self._core.manager
        for key, found in (await manager.scan(TOPIC_PREFIX)).items():
            self._add(self._parse(key.removeprefix(TOPIC_PREFIX), found.value, found.version))
        for key, found in (await manager.scan(INTENT_PREFIX)).items():
            name = key.removeprefix(INTENT_PREFIX)
            if name not in self._by_name:
                logger.info("removing what is left of topic %s, whose creation or deletion was cut off", name)
                await mapping_for(found.value.decode()).delete(manager, self._core.broker, name)
            await manager.commit({key: None}, lease=self._core.lease)

    def _parse(self, name: str, row: bytes, version: int) -> TopicRecord:
        fields = json.loads(row)
        return TopicRecord(
            name=name,
            topic_id=bytes.fromhex(fields["id"]),
            partitions=fields["partitions"],
            replication_factor=fields["replication_factor"],
            mapping=mapping_for(fields["mapping"]),
            overrides=fields["config"],
            config=TopicConfig.resolve(self._core.config, fields["config"]),
            version=version,
        )

    def _add(self, record: TopicRecord) -> None:
        self._by_name[record.name] = record
        self._by_id[record.topic_id] = record

    def check_creation(
        self, name: str, partitions: int, overrides: Mapping[str, str | None]
    ) -> tuple[int, dict[str, str]]:
        """The number of partitions and the overrides of a topic to be made, or the error that forbids it.

        `partitions` may be -1 for `num.partitions`. Raises `InvalidTopicError`, `TopicExistsError`,
        `InvalidPartitionsError`, `InvalidConfigurationError`.
        """
        check_name(name)
        if name in self._by_name:
            raise TopicExistsError(f"Topic '{name}' already exists.")
        if partitions == -1:
            partitions = self._core.config.get_int("num.partitions")
        if not 0 < partitions <= MOST_PARTITIONS:
            raise InvalidPartitionsError(
                f"Number of partitions was set to {partitions}: it must be between 1 and {MOST_PARTITIONS}"
            )
        return partitions, checked_overrides(overrides)

    async def create(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        overrides: Mapping[str, str | None] | None = None,
    ) -> TopicRecord:
        """Create a topic; it can be used when this returns. Errors as `check_creation`."""
        record: TopicRecord | None = None
        with anyio.CancelScope(shield=True):
            async with self._changing:
                partitions, checked = self.check_creation(name, partitions, overrides or {})
                record = await self._create(name, partitions, replication_factor, checked)
        assert record is not None
        return record

    async def _create(self, name: str, partitions: int, factor: int, overrides: dict[str, str]) -> TopicRecord:
        core = self._core
        if factor < 1:
            factor = core.config.get_int("default.replication.factor")
        config = TopicConfig.resolve(core.config, overrides)
        record = TopicRecord(name, _new_id(), partitions, factor, self._mapping, overrides, config)
        key, intent = TOPIC_PREFIX + name, INTENT_PREFIX + name
        if name in await core.manager.list_domains() and not await core.manager.get([intent]):
            raise TopicExistsError(f"HTP has a domain {name!r} that this gateway did not make")
        await core.manager.commit({intent: record.mapping.name.encode()}, {key: 0}, lease=core.lease)
        await record.mapping.create(core.manager, core.broker, name, range(partitions))
        record.version = await core.manager.commit({key: record.row(), intent: None}, {key: 0}, lease=core.lease)
        self._add(record)
        logger.info("topic %s created with %d partitions", name, partitions)
        if config.compacts:
            logger.warning("topic %s asks for compaction, which is not there yet: it keeps every record", name)
        return record

    async def delete(self, name: str) -> TopicRecord:
        """Delete a topic and its messages. Raises `UnknownTopicOrPartitionError`."""
        record: TopicRecord | None = None
        with anyio.CancelScope(shield=True):
            async with self._changing:
                record = await self._delete(self._require(name))
        assert record is not None
        return record

    async def _delete(self, record: TopicRecord) -> TopicRecord:
        core = self._core
        key, intent = TOPIC_PREFIX + record.name, INTENT_PREFIX + record.name
        del self._by_name[record.name], self._by_id[record.topic_id]
        try:
            logs = await core.manager.scan(f"{LOG_PREFIX}{record.topic_id.hex()}/")
            writes: dict[str, bytes | None] = dict.fromkeys(logs)
            writes |= {key: None, intent: record.mapping.name.encode()}
            await core.manager.commit(writes, lease=core.lease)
        except BaseException:
            self._add(record)
            raise
        for partition in record.logs.values():
            await partition.drop()
        await record.mapping.delete(core.manager, core.broker, record.name)
        await core.manager.commit({intent: None}, lease=core.lease)
        for callback in core.on_topic_deleted:
            await callback(record)
        logger.info("topic %s deleted", record.name)
        return record

    async def grow(self, name: str, partitions: int, *, validate_only: bool = False) -> None:
        """Give a topic more partitions. Raises `InvalidPartitionsError`, `UnknownTopicOrPartitionError`."""
        with anyio.CancelScope(shield=True):
            async with self._changing:
                record = self._require(name)
                if partitions == record.partitions:
                    raise InvalidPartitionsError(f"Topic already has {partitions} partition(s).")
                if not record.partitions < partitions <= MOST_PARTITIONS:
                    raise InvalidPartitionsError(
                        f"The topic {name} currently has {record.partitions} partition(s); {partitions} would not "
                        f"be an increase to at most {MOST_PARTITIONS}."
                    )
                if validate_only:
                    return
                added = range(record.partitions, partitions)
                await record.mapping.create(self._core.manager, self._core.broker, name, added)
                await self._change(record, partitions=partitions)

    async def alter(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replace a topic's own settings, which were checked before."""
        with anyio.CancelScope(shield=True):
            async with self._changing:
                await self._change(self._require(name), overrides=dict(overrides))

    async def _change(
        self, record: TopicRecord, *, partitions: int | None = None, overrides: dict[str, str] | None = None
    ) -> None:
        before = record.partitions, record.overrides
        if partitions is not None:
            record.partitions = partitions
        if overrides is not None:
            record.overrides = overrides
        row = record.row()
        record.partitions, record.overrides = before  # visible only once it is durable
        key = TOPIC_PREFIX + record.name
        record.version = await self._core.manager.commit({key: row}, {key: record.version}, lease=self._core.lease)
        record.partitions = partitions if partitions is not None else record.partitions
        record.overrides = overrides if overrides is not None else record.overrides
        await self._reconfigure(record)

    async def _reconfigure(self, record: TopicRecord) -> None:
        record.config = TopicConfig.resolve(self._core.config, record.overrides)
        for partition in record.logs.values():
            await partition.configure(record.config)

    async def resolve_all(self) -> None:
        """Take over changed broker settings into every topic that follows them."""
        for record in self:
            await self._reconfigure(record)

    def _require(self, name: str) -> TopicRecord:
        record = self._by_name.get(name)
        if record is None:
            raise UnknownTopicOrPartitionError(f"This server does not host the topic {name!r}.")
        return record

    def names(self) -> Iterable[str]:
        """All topics' names, sorted."""
        return sorted(self._by_name)


def checked_overrides(overrides: Mapping[str, str | None]) -> dict[str, str]:
    """Topic settings as given, checked; `InvalidConfigurationError` as the protocol knows it."""
    try:
        return check_topic_overrides(overrides)
    except ConfigError as error:
        raise InvalidConfigurationError(str(error)) from error


def _new_id() -> bytes:
    """A random topic id; Kafka keeps those whose text begins with a dash out of the way, for shells."""
    while True:
        made = uuid.uuid4().bytes
        if made[0] >> 2 != 62:  # base64url's dash
            return made
