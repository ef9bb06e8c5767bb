"""The catalogue of topics: names, ids, partitions and settings, kept in the manager's key-value part.

A topic is there when its row is: its places in HTP are made before the row is written and removed after the row
has gone, and an *intent* row tells what is left to be removed: it is tried again until it has gone, also by the
next start. A topic of the same name is made only then, and shares nothing with it.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import anyio.lowlevel

from kclient.concurrency import NamedLocks
from kclient.errors import (
    ConfigError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTopicError,
    KafkaError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.config import BrokerConfig, TopicConfig, check_topic_overrides
from kclient.gateway.keys import INTENT_PREFIX, LOG_PREFIX, START_PREFIX, TOPIC_PREFIX
from kclient.gateway.mapping import Mapping as PartitionMapping
from kclient.gateway.mapping import mapping_for
from kclient.gateway.settings import MOST_PARTITIONS
from kclient.htp.port import Place, Versioned
from kclient.htp.rows import optional_string, parse_object, string, whole
from kclient.net.fair_queue import Pace
from kclient.records.bounds import INT16_MAX

if TYPE_CHECKING:
    from kclient.gateway.core import Core
    from kclient.gateway.partitions import Partition

logger: logging.Logger = logging.getLogger("kclient.gateway.topics")

_ENDED_AT_ONCE: Final = 100
"""Partitions that are ended in one turn of the loop."""
_SWEEP_S: Final = 10.0
"""After so many seconds it is tried again to remove what deleted topics left."""
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's own topics: a gateway keeps their content elsewhere, so they are not made by asking for them."""


_FORMAT: Final = 2
"""Of a topic's row; the first had no number, and no incarnations."""


@dataclass(slots=True, eq=False)
class TopicRecord:
    """One topic as the catalogue knows it: what outlives an await holds this, and not the name."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    mapping: PartitionMapping
    overrides: dict[str, str]
    config: TopicConfig
    places: list[Place] = field(default_factory=list)
    """Where its partitions lie in HTP."""
    gone: bool = False
    """Whether it has been deleted."""
    version: int = 0
    """The manager's version of the row, for compare-and-set."""
    logs: dict[int, Partition] = field(default_factory=dict)
    """The partitions used so far (`PartitionTable` fills it)."""

    def row(self) -> bytes:
        """The topic as its row holds it."""
        return json.dumps(
            {
                "format": _FORMAT,
                "id": self.topic_id.hex(),
                "partitions": self.partitions,
                "replication_factor": self.replication_factor,
                "mapping": self.mapping.name,
                "incarnations": [place.incarnation for place in self.places],
                "config": self.overrides,
            }
        ).encode()

    def log_key(self, partition: int) -> str:
        """The key of a partition's checkpoint."""
        return f"{LOG_PREFIX}{self.topic_id.hex()}/{partition}"

    def start_key(self, partition: int) -> str:
        """The key of a partition's log start."""
        return f"{START_PREFIX}{self.topic_id.hex()}/{partition}"


def check_name(name: str) -> None:
    """`InvalidTopicError` for a name that Kafka would not take."""
    if name in (".", "..") or not _LEGAL.fullmatch(name):
        raise InvalidTopicError(
            f"Topic name is invalid: {name[:300]!r} is not 1 to 249 ASCII letters, digits, '.', '_' or '-'"
        )


class Intent(NamedTuple):
    """A creation or deletion that is under way: what is to be removed unless the topic's row is there."""

    mapping: PartitionMapping
    topic_id: bytes | None
    """None if an early version recorded it: the topic's checkpoints are not found then."""

    def encode(self) -> bytes:
        """As its row holds it."""
        topic_id = None if self.topic_id is None else self.topic_id.hex()
        return json.dumps({"format": 1, "mapping": self.mapping.name, "id": topic_id}).encode()

    @classmethod
    def decode(cls, row: bytes) -> Intent:
        """What a row says. Raises `ValueError` or `KafkaError` if it says nothing sensible."""
        if not row.startswith(b"{"):  # the first versions kept the mapping's name alone
            return cls(mapping_for(row.decode()), None)
        try:
            fields = parse_object(row)
            topic_id = optional_string(fields["id"])
            return cls(mapping_for(fields["mapping"]), None if topic_id is None else bytes.fromhex(topic_id))
        except LookupError as error:
            raise ValueError(f"{row[:200]!r} is no intent: {error!r}") from error


class TopicCatalogue:
    """All topics of a gateway. Reading is immediate; changing waits for the manager's commit."""

    def __init__(self, core: Core, mapping: PartitionMapping) -> None:
        self._core = core
        self._mapping = mapping
        self._by_name: dict[str, TopicRecord] = {}
        self._by_id: dict[bytes, TopicRecord] = {}
        self._names: list[str] | None = None
        self._flow = core.queue.flow()
        self._changing: NamedLocks[str] = NamedLocks()
        self._left: dict[str, Intent] = {}
        """What creations and deletions have left to be removed, by the topic's name."""
        self._sweeping = False
        self.damaged: dict[str, str] = {}
        """Topics that are not served because their rows cannot be read, and why."""

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

    def deleted(self, name: str, topic_id: bytes) -> bool:
        """Whether this topic is known to have been deleted, and something of it is still there."""
        intent = self._left.get(name)
        if intent is None or name in self._by_name or name in self.damaged:
            return False
        return intent.topic_id is None or intent.topic_id == topic_id

    # Loading

    async def load(self) -> None:
        """Read the catalogue, and what the last run left half done: `sweep` finishes that."""
        manager = self._core.manager
        found = await manager.scan(TOPIC_PREFIX)
        await self._load({key.removeprefix(TOPIC_PREFIX): row for key, row in found.items()})
        for key, row in (await manager.scan(INTENT_PREFIX)).items():
            name = key.removeprefix(INTENT_PREFIX)
            try:
                self._left[name] = Intent.decode(row.value)
            except (ValueError, KafkaError) as error:
                self._not_served(name, f"what its deletion left cannot be removed, its intent is damaged: {error}")

    async def _load(self, rows: dict[str, Versioned]) -> None:
        configs = _Configs(self._core.config)
        older: list[TopicRecord] = []
        for name, row in rows.items():
            try:
                record = self._parse(name, row, configs)
                if not record.places:  # recorded by a version that did not know them
                    record.places = await record.mapping.find(self._core.manager, name, record.partitions)
                    record.config = TopicConfig.resolve(self._core.config, record.overrides)
                    older.append(record)
            except (ValueError, KafkaError) as error:
                self._not_served(name, f"its row cannot be read: {error}")
            else:
                self._add(record)
        if older:
            migrated: dict[str, bytes | None] = {TOPIC_PREFIX + record.name: record.row() for record in older}
            version = await self._core.manager.commit(migrated, lease=self._core.lease)
            for record in older:
                record.version = version

    def _parse(self, name: str, row: Versioned, configs: _Configs) -> TopicRecord:
        try:
            check_name(name)
            fields = parse_object(row.value)
            if whole(fields.get("format", 1)) > _FORMAT:
                raise ValueError(f"it has format {fields['format']}, this version reads {_FORMAT}")
            mapping, partitions = mapping_for(fields["mapping"]), whole(fields["partitions"], 1, MOST_PARTITIONS)
            overrides = {setting: string(value) for setting, value in fields["config"].items()}
            incarnations = [whole(each) for each in fields.get("incarnations", [])]
            if incarnations and len(incarnations) != partitions:
                raise ValueError(f"it tells {partitions} partitions and {len(incarnations)} incarnations")
            return TopicRecord(
                name=name,
                topic_id=_parse_id(fields["id"]),
                partitions=partitions,
                replication_factor=min(whole(fields["replication_factor"], -1), INT16_MAX),
                mapping=mapping,
                overrides=overrides,
                config=configs.of(overrides),
                places=[Place(mapping.topic(name, number), each) for number, each in enumerate(incarnations)],
                version=row.version,
            )
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{row.value[:200]!r}: {error!r}") from error

    def _not_served(self, name: str, reason: str) -> None:
        self.damaged[name] = reason
        logger.error(
            "topic %s is not served, %s. Nothing of it was changed: start the version that wrote it, restore mgr "
            "from a backup, or delete the topic",
            name, reason,
        )  # fmt: skip

    def _add(self, record: TopicRecord) -> None:
        """Put a topic in: from now on it follows the broker's settings, see `resolve_all`."""
        self._names = None
        self._by_name[record.name] = record
        self._by_id[record.topic_id] = record

    def _remove(self, record: TopicRecord) -> None:
        self._names = None
        del self._by_name[record.name], self._by_id[record.topic_id]

    # Creating

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
        if name in self.damaged:
            raise TopicExistsError(f"Topic '{name}' exists and is not served, {self.damaged[name]}")
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
        async with self._changing.hold(name):
            partitions, checked = self.check_creation(name, partitions, overrides or {})
            with self._core.shields.shield():
                return await self._create(name, partitions, replication_factor, checked)
        raise AssertionError("a lock lets no error pass")

    async def _create(self, name: str, partitions: int, factor: int, overrides: dict[str, str]) -> TopicRecord:
        core = self._core
        if factor < 1:
            factor = core.config.get_int("default.replication.factor")
        config = TopicConfig.resolve(core.config, overrides)
        record = TopicRecord(name, _new_id(), partitions, factor, self._mapping, overrides, config)
        key, intent = TOPIC_PREFIX + name, INTENT_PREFIX + name
        await self._remove_left(name)
        if name in self._by_name:
            raise TopicExistsError(f"Topic '{name}' already exists.")
        if await record.mapping.taken(core.manager, name):
            raise TopicExistsError(f"HTP has a domain {name!r} that this gateway did not make")
        begun = Intent(record.mapping, record.topic_id)
        self._left[name] = begun  # until the topic's row says otherwise
        await core.manager.commit({intent: begun.encode()}, {key: 0}, lease=core.lease)
        record.places = await record.mapping.create(
            core.manager, core.broker, name, range(partitions), lease=core.lease
        )
        record.version = await core.manager.commit({key: record.row(), intent: None}, {key: 0}, lease=core.lease)
        del self._left[name]
        record.config = TopicConfig.resolve(core.config, overrides)  # as they are now
        self._add(record)
        logger.info("topic %s created with %d partitions", name, partitions)
        if record.config.compacts:
            logger.warning("topic %s asks for compaction, which is not there yet: it keeps every record", name)
        return record

    # Deleting

    async def delete(self, name: str, topic_id: bytes | None = None) -> None:
        """Delete a topic and its messages.

        The topic has gone when this returns; if something of it cannot be removed, that is tried again.

        Args:
            name: Of the topic.
            topic_id: The topic must have this id, if one is given: it may have been created again.

        Raises:
            UnknownTopicOrPartitionError: If there is no such topic.
        """
        async with self._changing.hold(name):
            with self._core.shields.shield():
                if name in self.damaged:
                    await self._delete_damaged(name)
                    return
                record = self._require(name)
                if topic_id is not None and record.topic_id != topic_id:
                    raise UnknownTopicOrPartitionError(f"the topic {name!r} has been deleted and created again")
                await self._delete(record)

    async def _delete(self, record: TopicRecord) -> None:
        core = self._core
        intent = Intent(record.mapping, record.topic_id)
        self._remove(record)  # first: nothing is appended any more that would be acknowledged and deleted
        try:
            rows = {TOPIC_PREFIX + record.name: None, INTENT_PREFIX + record.name: intent.encode()}
            await core.manager.commit(rows, lease=core.lease)
        except BaseException:
            if await self._recorded(record.name):
                self._add(record)
                await self._reconfigure(record)  # it has missed what was changed meanwhile
                raise
        record.gone = True
        self._left[record.name] = intent
        core.groups.topic_deleted(record.name)
        logger.info("topic %s deleted", record.name)
        partitions = list(record.logs.values())
        record.logs.clear()
        await self._end(partitions)
        try:
            await self._remove_left(record.name)
        except (KafkaError, OSError) as error:
            logger.error("what is left of topic %s could not be removed, it is tried again: %s", record.name, error)
            self._sweep_soon()

    async def _recorded(self, name: str) -> bool:
        """Whether a topic's row is there; where that is not known, it is taken to be."""
        try:
            return bool(await self._core.manager.get([TOPIC_PREFIX + name]))
        except KafkaError:
            return True

    @staticmethod
    async def _end(partitions: Sequence[Partition]) -> None:
        for number, partition in enumerate(partitions, 1):
            partition.drop()
            if number % _ENDED_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
        for partition in partitions:
            if partition.busy:
                await partition.left()

    async def _delete_damaged(self, name: str) -> None:
        """A topic whose row cannot be read: it goes with all that lies where its mapping would have put it."""
        core = self._core
        key, intent = TOPIC_PREFIX + name, Intent(self._mapping, None)
        await core.manager.commit({key: None, INTENT_PREFIX + name: intent.encode()}, lease=core.lease)
        del self.damaged[name]
        self._left[name] = intent
        core.groups.topic_deleted(name)
        await self._remove_left(name)

    # What creations and deletions have left

    async def _remove_left(self, name: str) -> None:
        """Remove what a creation that was cut off, or a deletion, has left under a name; the caller holds its lock."""
        intent = self._left.get(name)
        if intent is None:
            return
        core = self._core
        key = TOPIC_PREFIX + name
        row = (await core.manager.get([key])).get(key)
        rows: dict[str, bytes | None] = {INTENT_PREFIX + name: None}
        if row is not None:  # it was recorded, though the one who recorded it was told otherwise
            if name not in self._by_name and name not in self.damaged:
                await self._load({name: row})
        else:
            logger.info("removing what is left of topic %s", name)
            await intent.mapping.delete(core.manager, core.broker, name, lease=core.lease)
            if intent.topic_id is not None:
                for prefix in (LOG_PREFIX, START_PREFIX):
                    rows |= dict.fromkeys(await core.manager.scan(f"{prefix}{intent.topic_id.hex()}/"))
            await core.groups.forget_topic(name)  # before the intent goes: it alone tells that they may
        await core.manager.commit(rows, lease=core.lease)
        del self._left[name]

    async def sweep(self) -> None:
        """Remove whatever creations and deletions have left; what cannot be is tried again later."""
        for name in list(self._left):
            async with self._changing.hold(name):
                try:
                    with self._core.shields.shield():
                        await self._remove_left(name)
                except (KafkaError, OSError) as error:
                    logger.error("what is left of topic %s could not be removed, it is tried again: %s", name, error)
        if self._left:
            self._sweep_soon()

    def _sweep_soon(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            self._core.spawn(self._sweep_later, name="remove what deleted topics left")

    async def _sweep_later(self) -> None:
        try:
            await anyio.sleep(_SWEEP_S)
        finally:
            self._sweeping = False
        await self.sweep()

    # Changing

    async def grow(self, name: str, partitions: int, *, validate_only: bool = False) -> None:
        """Give a topic more partitions. Raises `InvalidPartitionsError`, `UnknownTopicOrPartitionError`."""
        async with self._changing.hold(name):
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
            core, added = self._core, range(record.partitions, partitions)
            with self._core.shields.shield():
                places = await record.mapping.create(core.manager, core.broker, name, added, lease=core.lease)
                await self._change(record, replace(record, partitions=partitions, places=[*record.places, *places]))

    async def alter(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool = False
    ) -> None:
        """Change a topic's own settings.

        Args:
            name: Of the topic.
            change: Makes the new settings, checked, of the present ones; its errors are raised. It is called when
                no other change is under way.
            validate_only: Nothing is changed.
        """
        async with self._changing.hold(name):
            record = self._require(name)
            changed = replace(record, overrides=dict(change(record.overrides)))
            if not validate_only:
                with self._core.shields.shield():
                    await self._change(record, changed)

    async def _change(self, record: TopicRecord, changed: TopicRecord) -> None:
        """Make a topic's record what a changed copy says, once that is durable."""
        key = TOPIC_PREFIX + record.name
        record.version = await self._core.manager.commit(
            {key: changed.row()}, {key: record.version}, lease=self._core.lease
        )
        record.places, record.partitions, record.overrides = changed.places, changed.partitions, changed.overrides
        await self._reconfigure(record)

    async def _reconfigure(self, record: TopicRecord) -> None:
        record.config = TopicConfig.resolve(self._core.config, record.overrides)
        await self._tell_partitions(record, Pace(self._flow))

    @staticmethod
    async def _tell_partitions(record: TopicRecord, pace: Pace) -> None:
        for partition in list(record.logs.values()):
            await pace.pause()
            if record.gone:
                return
            await partition.configure(record.config)  # as it is now: it may have been changed once more

    async def resolve_all(self) -> None:
        """Take over changed broker settings into every topic that follows them.

        Others come in between. What they create, or alter, has the new settings already; the caller sees to it that
        the broker's settings stay what they are until this returns.
        """
        configs, pace = _Configs(self._core.config), Pace(self._flow)
        for record in self:
            await pace.pause()
            record.config = configs.of(record.overrides)
            await self._tell_partitions(record, pace)

    def _require(self, name: str) -> TopicRecord:
        record = self._by_name.get(name)
        if record is None:
            raise UnknownTopicOrPartitionError(f"This server does not host the topic {name!r}.")
        return record

    def names(self) -> list[str]:
        """All topics' names, sorted; not to be changed."""
        if self._names is None:
            self._names = sorted(self._by_name)
        return self._names


class _Configs:
    """Settings in force, worked out once for all topics of the same overrides: while the broker's stay as they are."""

    def __init__(self, broker: BrokerConfig) -> None:
        self._broker = broker
        self._found: dict[frozenset[tuple[str, str]], TopicConfig] = {}

    def of(self, overrides: Mapping[str, str]) -> TopicConfig:
        """The settings in force of a topic with these overrides."""
        same = frozenset(overrides.items())
        found = self._found.get(same)
        if found is None:
            found = self._found[same] = TopicConfig.resolve(self._broker, overrides)
        return found


def checked_overrides(overrides: Mapping[str, str | None]) -> dict[str, str]:
    """Topic settings as given, checked; `InvalidConfigurationError` as the protocol knows it."""
    try:
        return check_topic_overrides(overrides)
    except ConfigError as error:
        raise InvalidConfigurationError(str(error)) from error


def _parse_id(value: object) -> bytes:
    topic_id = bytes.fromhex(string(value))
    if len(topic_id) != 16:
        raise ValueError(f"{value!r} is no topic id")
    return topic_id


def _new_id() -> bytes:
    """A random topic id; Kafka keeps those whose text begins with a dash out of the way, for shells."""
    while True:
        made = uuid.uuid4().bytes
        if made[0] >> 2 != 62:  # base64url's dash
            return made
