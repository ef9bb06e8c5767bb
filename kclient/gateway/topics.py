"""The catalogue of topics: names, ids, partitions and settings, kept in the manager's key-value part.

`TopicCatalogue` changes it, `TopicTable` (`topic_table.py`) is where topics are found.

A topic is there when its row is: its places in HTP are made before the row is written and removed after the row
has gone, and an *intent* row tells what is left to be removed: it is tried again until it has gone, also by the
next start. A topic of the same name is made only then, and shares nothing with it.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

import anyio
import anyio.lowlevel

from kclient.concurrency import NamedLocks
from kclient.errors import (
    ConfigError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTopicError,
    KafkaError,
    KafkaStorageError,
    ReassignmentInProgressError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.config import Live, TopicConfig, check_topic_overrides
from kclient.gateway.mapping import Mapping as PartitionMapping
from kclient.gateway.mapping import mapping_for, mapping_of_what_lies
from kclient.gateway.rows.keys import INTENTS, TOPICS, intent_key, of_topic, topic_key
from kclient.gateway.rows.topics import MirrorOrigin, TopicRow
from kclient.gateway.settings import MOST_PARTITIONS
from kclient.gateway.topic_record import Intent, TopicRecord
from kclient.htp.errors import ConflictError, HtpError, StorageError
from kclient.htp.port import Versioned
from kclient.htp.rows import scan_pages
from kclient.net.fair_queue import Pace

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.partition import Partition
    from kclient.gateway.shields import Shields
    from kclient.gateway.topic_table import TopicTable
    from kclient.htp.port import Broker, Manager
    from kclient.net.fair_queue import Flow

logger: logging.Logger = logging.getLogger("kclient.gateway.topics")

T = TypeVar("T")

_ENDED_AT_ONCE: Final = 100
"""Partitions that are ended in one turn of the loop."""
_LEAVING_S: Final = 1.0
"""Seconds that a deletion waits for partitions that are being opened: a store may hang, then `sweep` removes them."""
_SWEEP_S: Final = 10.0
"""After so many seconds it is tried again to remove what deleted topics left."""
_PATIENCE_S: Final = 3.0
"""Seconds that a change of a topic waits for other gateways that change the same topic."""
_AGAIN_S: Final = 0.01
"""Seconds until it is tried again."""
_LONG: Final = 1_000
"""Characters of settings for which there has to be memory when a topic is altered."""
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's own topics: a gateway keeps their content elsewhere, so they are not made by asking for them."""


def check_name(name: str) -> None:
    """`InvalidTopicError` for a name that Kafka would not take."""
    if name in (".", "..") or not _LEGAL.fullmatch(name):
        raise InvalidTopicError(
            f"Topic name is invalid: {name[:300]!r} is not 1 to 249 ASCII letters, digits, '.', '_' or '-'"
        )


Resolve: TypeAlias = Callable[[Mapping[str, str]], TopicConfig]
"""Works out the settings in force of a topic with these overrides."""


class TopicOffsets(Protocol):
    """What is committed of topics: it goes with them."""

    async def topic_deleted(self, topic: str) -> None:
        """A topic has gone: nobody sees its offsets any more when this returns."""
        ...

    async def forget_topic(self, topic: str) -> None:
        """Remove the offsets of a deleted topic from the store. Raises `KafkaError` if it fails; then call it again."""
        ...


class TopicEpochs(Protocol):
    """The leader epochs of topics: they go with them."""

    def greatest_epoch(self, topic_id: bytes) -> int:
        """The greatest of a topic's partitions: under it what it has is removed."""
        ...

    def forget(self, topic_id: bytes) -> None:
        """A topic has been removed with all its rows."""
        ...


class TopicCatalogue:
    """Loads, creates, changes and deletes topics; changing waits for the manager's commit.

    Args:
        topics: Where the topics are found.
        offsets: What is committed of them.
        epochs: Under which they are led.
        mapping: Where the partitions of new topics lie.
        manager: Keeps the rows.
        broker: Keeps the messages.
        lease: Under which rows are written.
        run: Of the gateway, for what it begins to be told from what others do.
        shields: Keep changes from being left half done.
        spawn: Starts a task of the gateway.
        flow: In whose turns many partitions are told of a change.
        resolve: Works out the settings in force of a topic with these overrides: the broker's settings may change.
        num_partitions: Of a topic of which nobody says how many.
        replication_factor: What such a topic shows.
    """

    def __init__(
        self,
        topics: TopicTable,
        offsets: TopicOffsets,
        epochs: TopicEpochs,
        mapping: PartitionMapping,
        *,
        manager: Manager,
        broker: Broker,
        lease: HeldLease,
        run: str,
        shields: Shields,
        spawn: Callable[..., object],
        flow: Flow,
        resolve: Resolve,
        num_partitions: Live[int],
        replication_factor: Live[int],
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._epochs = epochs
        self._mapping = mapping
        self._resolve = resolve
        self._num_partitions = num_partitions
        self._replication_factor = replication_factor
        self._manager = manager
        self._broker = broker
        self._lease = lease
        self._run = run
        self._shields = shields
        self._spawn = spawn
        self._flow = flow
        self._changing: NamedLocks[str] = NamedLocks()
        self._sweeping = False
        self._leaving: dict[str, list[Partition]] = {}
        """Partitions of deleted topics that may still write rows: those of others are removed meanwhile."""

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[bool]:
        """The turn to change a topic: nobody else does here, and what its row says is known and in force.

        Yields:
            Whether another gateway is making, growing or removing a topic of this name.
        """
        async with self._changing.hold(name):
            with self._shields.shield():
                await self._find_out(name)
            yield await self._read(name)

    async def _in_turn(
        self, name: str, change: Callable[[], Awaitable[T]], busy: type[KafkaError] = ReassignmentInProgressError
    ) -> T:
        """Make a change of a topic; where another gateway changes the topic meanwhile, it is worked out anew.

        Args:
            name: Of the topic.
            change: Makes it.
            busy: Is raised if another gateway does not come to an end with a change of its own.
        """
        until = anyio.current_time() + _PATIENCE_S
        while True:
            conflict: ConflictError | None = None
            async with self._turn(name) as foreign:
                if foreign:
                    await self._manager.commit({}, lease=self._lease.current)  # a gateway that was followed ends here
                else:
                    try:
                        return await change()
                    except ConflictError as error:
                        logger.info("another gateway changes topic %s: %s", name, error)
                        conflict = error
            if anyio.current_time() >= until:
                text = f"Topic '{name}' is being created, changed or deleted by another gateway: try again"
                raise busy(text) from conflict
            await anyio.sleep(_AGAIN_S)

    # Loading

    async def load(self) -> None:
        """Read the catalogue, and what the last run left half done: `sweep` finishes that."""
        async for page in scan_pages(self._manager, TOPICS):
            await self._load({key.removeprefix(TOPICS): row for key, row in page.items()})
        async for page in scan_pages(self._manager, INTENTS):
            for key, row in page.items():
                name = key.removeprefix(INTENTS)
                try:
                    self._topics.left[name] = Intent.of(row.value)
                except (ValueError, KafkaError) as error:
                    self._not_served(name, f"what its deletion left cannot be removed, its intent is damaged: {error}")

    async def _load(self, rows: dict[str, Versioned]) -> None:
        configs = _Configs(self._resolve)
        older: list[TopicRecord] = []
        for name, row in rows.items():
            try:
                record = self._parse(name, row, configs)
                if not record.places:  # recorded by a version that did not know them
                    record.places = await record.mapping.find(self._manager, name, record.partitions)
                    record.configure(self._resolve(record.overrides))
                    older.append(record)
            except (ValueError, KafkaError) as error:
                self._not_served(name, f"its row cannot be read: {error}")
            else:
                self._topics.add(record)
        if older:
            migrated: dict[str, bytes | None] = {topic_key(record.name): record.row() for record in older}
            version = await self._manager.commit(migrated, lease=self._lease.current)
            for record in older:
                record.version = version

    def _parse(self, name: str, row: Versioned, configs: _Configs) -> TopicRecord:
        check_name(name)
        fields = TopicRow.decode(row.value)
        mapping, overrides = mapping_for(fields.mapping), dict(fields.overrides)
        record = TopicRecord(
            name=name,
            topic_id=fields.topic_id,
            partitions=fields.partitions,
            replication_factor=fields.replication_factor,
            mapping=mapping,
            overrides=overrides,
            config=configs.of(overrides),
            mirror=fields.mirror,
            places=[
                mapping.place(name, number, incarnation, broker)
                for number, (incarnation, broker) in enumerate(zip_longest(fields.incarnations, fields.brokers))
            ],
            version=row.version,
        )
        record.configure(record.config)
        return record

    def _not_served(self, name: str, reason: str) -> None:
        self._topics.damaged[name] = reason
        logger.error(
            "topic %s is not served, %s. Nothing of it was changed: start the version that wrote it, restore mgr "
            "from a backup, or delete the topic",
            name, reason,
        )  # fmt: skip

    # Creating

    def check_creation(
        self, name: str, partitions: int, overrides: Mapping[str, str | None]
    ) -> tuple[int, dict[str, str]]:
        """The number of partitions and the overrides of a topic to be made, or the error that forbids it.

        `partitions` may be -1 for `num.partitions`. Raises `InvalidTopicError`, `TopicExistsError`,
        `InvalidPartitionsError`, `InvalidConfigurationError`, `PolicyViolationError`.
        """
        check_name(name)
        if name in self._topics:
            raise TopicExistsError(f"Topic '{name}' already exists.")
        if name in self._topics.damaged:
            raise TopicExistsError(f"Topic '{name}' exists and is not served, {self._topics.damaged[name]}")
        if partitions == -1:
            partitions = self._num_partitions()
        if not 0 < partitions <= MOST_PARTITIONS:
            raise InvalidPartitionsError(
                f"Number of partitions was set to {partitions}: it must be between 1 and {MOST_PARTITIONS}"
            )
        checked = checked_overrides(overrides)
        self._topics.check_room(partitions, checked)
        return partitions, checked

    async def check_places(self, name: str, partitions: int) -> None:
        """See to it that a topic to be made can have so many partitions. Raises `InvalidPartitionsError`."""
        await self._mapping.check(self._manager, name, partitions)

    async def create(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        overrides: Mapping[str, str | None] | None = None,
        *,
        mirror: MirrorOrigin | None = None,
    ) -> TopicRecord:
        """Create a topic; it can be used when this returns. Errors as `check_creation` and `check_places`.

        With `mirror` it takes the records of that topic only, until it is taken over.
        """
        return await self._in_turn(
            name,
            partial(self._create_checked, name, partitions, replication_factor, overrides or {}, mirror),
            TopicExistsError,
        )

    async def _create_checked(
        self,
        name: str,
        partitions: int,
        factor: int,
        overrides: Mapping[str, str | None],
        mirror: MirrorOrigin | None,
    ) -> TopicRecord:
        partitions, checked = self.check_creation(name, partitions, overrides)
        await self.check_places(name, partitions)
        with self._topics.room(partitions, checked), self._shields.shield():
            try:
                return await self._create(name, partitions, factor, checked, mirror)
            except (KafkaError, OSError):
                if name in self._topics.left:
                    self._sweep_soon()
                raise

    async def _create(
        self, name: str, partitions: int, factor: int, overrides: dict[str, str], mirror: MirrorOrigin | None
    ) -> TopicRecord:
        if factor < 1:
            factor = self._replication_factor()
        config = self._resolve(overrides)
        record = TopicRecord(name, _new_id(), partitions, factor, self._mapping, overrides, config, mirror)
        key, intent = topic_key(name), intent_key(name)
        await self._remove_left(name)
        if name in self._topics:
            raise TopicExistsError(f"Topic '{name}' already exists.")
        if (taken := await record.mapping.taken(self._manager, name)) is not None:
            raise TopicExistsError(f"HTP has {taken} that this gateway did not make")
        intended = await self._intend(record, 0)
        record.places = await record.mapping.create(
            self._manager, self._broker, name, range(partitions), lease=self._lease.current
        )
        try:
            record.version = await self._manager.commit(
                {key: record.row(), intent: None}, {key: 0, intent: intended}, lease=self._lease.current
            )
        except BaseException:  # cancelled too: whether it was written is not known
            self._topics.unsure[name] = record
            await self._find_out(name)
            if name not in self._topics:
                raise
        else:
            self._created(record)
        logger.info("topic %s created with %d partitions", name, partitions)
        if record.config.compacts:
            logger.warning("topic %s asks for compaction, which is not there yet: it keeps every record", name)
        return record

    async def _intend(self, record: TopicRecord, version: int) -> int:
        """Say, durably, that a topic is being made or changed: its places are nobody else's until the intent has gone.

        Args:
            record: Of the topic.
            version: Of its row; 0 if there is none yet.

        Returns:
            The version of the intent.

        Raises:
            ConflictError: Another gateway is faster.
        """
        key, intent = intent_key(record.name), Intent(record.mapping, record.topic_id, self._run)
        self._topics.left[record.name] = intent  # until the topic's row says otherwise
        try:
            expected = {topic_key(record.name): version, key: 0}
            return await self._manager.commit({key: intent.row()}, expected, lease=self._lease.current)
        except ConflictError:
            del self._topics.left[record.name]
            raise

    def _created(self, record: TopicRecord) -> None:
        """A topic has a row, and no intent any more."""
        del self._topics.left[record.name]
        record.configure(self._resolve(record.overrides))  # as they are now
        self._topics.add(record)

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
        await self._in_turn(name, partial(self._delete_checked, name, topic_id))

    async def _delete_checked(self, name: str, topic_id: bytes | None) -> None:
        with self._shields.shield():
            if name in self._topics.damaged:
                await self._delete_damaged(name)
                return
            record = self._require(name)
            if topic_id is not None and record.topic_id != topic_id:
                raise UnknownTopicOrPartitionError(f"the topic {name!r} has been deleted and created again")
            await self._delete(record)

    async def _delete(self, record: TopicRecord) -> None:
        await self._remove_left(record.name)
        key, intent = topic_key(record.name), intent_key(record.name)
        rows = {key: None, intent: Intent(record.mapping, record.topic_id, self._run).row()}
        self._topics.remove(record)  # first: nothing is appended any more that would be acknowledged and deleted
        try:
            await self._manager.commit(rows, {key: record.version, intent: 0}, lease=self._lease.current)
        except BaseException:  # cancelled too: whether it was written is not known
            self._topics.unsure[record.name] = record
            await self._find_out(record.name)
            if not record.gone:
                raise
        else:
            await self._deleted(record)

    async def _deleted(self, record: TopicRecord) -> None:
        """A topic's row has been removed: it has gone, and what is left of it goes now or later."""
        record.gone = True
        self._topics.left[record.name] = Intent(record.mapping, record.topic_id, self._run)
        await self._offsets.topic_deleted(record.name)
        logger.info("topic %s deleted", record.name)
        partitions = self._leaving[record.name] = list(record.logs.values())
        record.logs.clear()
        await self._end(partitions)
        await self._remove_soon(record.name)

    @staticmethod
    async def _end(partitions: list[Partition]) -> None:
        """End them; those stay in the list of which something is still under way after a while."""
        for number, partition in enumerate(partitions, 1):
            partition.drop()
            if number % _ENDED_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(_LEAVING_S):
            for partition in partitions:
                if partition.busy:
                    await partition.left()
        partitions[:] = [partition for partition in partitions if partition.busy]

    async def _delete_damaged(self, name: str) -> None:
        """A topic whose row cannot be read: it goes with all that lies where a mapping would have put it."""
        mapping = await mapping_of_what_lies(self._manager, name, self._mapping)
        key, intent = topic_key(name), Intent(mapping, None, self._run)
        await self._manager.commit({key: None, intent_key(name): intent.row()}, lease=self._lease.current)
        del self._topics.damaged[name]
        self._topics.left[name] = intent
        await self._offsets.topic_deleted(name)
        await self._remove_soon(name)

    # What became of changes that the store has failed

    async def _find_out(self, name: str) -> None:
        """See what the row of a topic says where a change of it has failed; the caller holds its lock.

        Until that is known, nothing is changed, and a topic that may be deleted takes nothing: it would go with it. One
        that may have been created is not there yet.

        Raises:
            StorageError: It is still not known, and is looked up again later.
        """
        record = self._topics.unsure.get(name)
        if record is None:
            return
        served, new, key = name in self._topics, not record.version, topic_key(name)
        try:
            row = (await self._manager.get([key])).get(key)
            written = None if row is None else self._parse(name, row, _Configs(self._resolve))
        except (ValueError, KafkaError) as error:
            text = f"what became of a change of topic {name} is not known, it is looked up again"
            logger.error("%s: %s", text, error)
            self._sweep_soon()
            raise StorageError(f"{text}: {error}") from error
        del self._topics.unsure[name]
        if written is None or written.topic_id != record.topic_id:
            if not new:  # else its places are removed with what others have left
                await (self._gone(record) if served else self._deleted(record))
            return
        self._take_over(record, written)
        if new:
            self._created(record)
            return
        if not served:
            self._topics.add(record)
        await self._reconfigure(record)  # it has missed what was changed meanwhile

    # What other gateways have changed

    async def refresh(self, name: str) -> None:
        """See what the row of a topic says, which another gateway may have changed, and have it in force.

        Raises:
            HtpError: The store failed: what the row says is not known.
        """
        async with self._turn(name):
            pass

    async def _read(self, name: str) -> bool:
        """See what the row of a topic says; the caller holds its lock, and no change is unsure.

        Returns:
            Whether there is an intent that is another gateway's.
        """
        key, intent = topic_key(name), intent_key(name)
        found = await self._manager.get([key, intent])
        row, record = found.get(key), self._topics.get(name)
        if row is None and record is None:
            if name in self._topics.damaged and intent not in found:
                del self._topics.damaged[name]
        elif row is None or record is None or row.version != record.version:
            with self._shields.shield():
                if row is None:
                    assert record is not None
                    await self._gone(record)
                elif record is None:
                    await self._add(name, row)
                else:
                    await self._follow(record, row)
        if intent not in found or name in self._topics.damaged:
            return False
        left = self._topics.left.get(name)
        return left is None or not _same_intent(found[intent].value, left)

    async def _follow(self, record: TopicRecord, row: Versioned) -> None:
        """A topic has another row than is known."""
        try:
            written = self._parse(record.name, row, _Configs(self._resolve))
        except (ValueError, KafkaError) as error:
            logger.error("topic %s is served as it was known, its row cannot be read: %s", record.name, error)
            record.version = row.version  # whoever changes it writes the row anew
            return
        if written.topic_id != record.topic_id:
            await self._gone(record)
            await self._add(record.name, row)
            return
        self._take_over(record, written)
        with suppress(KafkaError):  # the log tells of it
            await self._reconfigure(record)

    async def _add(self, name: str, row: Versioned) -> None:
        """Another gateway has created a topic."""
        if name in self._topics.damaged:
            if self._is_damaged(name, row):
                return
            del self._topics.damaged[name]
        await self._forget_offsets(name)
        await self._load({name: row})

    def _is_damaged(self, name: str, row: Versioned) -> bool:
        try:
            self._parse(name, row, _Configs(self._resolve))
        except (ValueError, KafkaError):
            return True
        return False

    async def _gone(self, record: TopicRecord) -> None:
        """Another gateway has deleted a topic, and removes what is left of it."""
        name = record.name
        self._topics.remove(record)
        record.gone = True
        await self._offsets.topic_deleted(name)
        logger.info("topic %s was deleted by another gateway", name)
        partitions = list(record.logs.values())
        record.logs.clear()
        await self._end(partitions)
        self._epochs.forget(record.topic_id)
        await self._forget_offsets(name)

    async def _forget_offsets(self, name: str) -> None:
        """No offsets of a deleted topic are kept when a namesake comes. Raises `StorageError`; then call it again."""
        try:
            await self._offsets.forget_topic(name)
        except HtpError:
            raise
        except KafkaError as error:
            raise StorageError(str(error)) from error

    # What creations and deletions have left

    async def _remove_left(self, name: str) -> None:
        """Remove what a creation that was cut off, or a deletion, has left under a name; the caller holds its lock."""
        intent = self._topics.left.get(name)
        if intent is None:
            return
        if any(partition.busy for partition in self._leaving.get(name, ())):  # what it writes would come afterwards
            raise KafkaStorageError(f"a partition of the deleted topic {name} is still being opened, or saved")
        self._leaving.pop(name, None)
        key, intent_at = topic_key(name), intent_key(name)
        found = await self._manager.get([key, intent_at])
        row, written = found.get(key), found.get(intent_at)
        if written is not None and not _same_intent(written.value, intent):  # the own one went before
            del self._topics.left[name]
            return
        if row is None and written is None:  # it is not known whether it was: nobody else may make places meanwhile
            expected = {key: 0, intent_at: 0}
            version = await self._manager.commit({intent_at: intent.row()}, expected, lease=self._lease.current)
        else:
            version = 0 if written is None else written.version
        rows: dict[str, bytes | None] = {intent_at: None}
        if row is not None:  # it was recorded, though the one who recorded it was told otherwise
            if name not in self._topics and name not in self._topics.damaged:
                await self._load({name: row})
        else:
            logger.info("removing what is left of topic %s", name)
            lease, topic_id = self._lease.current, intent.topic_id
            epoch = lease.epoch if topic_id is None else self._epochs.greatest_epoch(topic_id)
            await intent.mapping.delete(self._manager, self._broker, name, lease=lease, epoch=epoch)
            if intent.topic_id is not None:
                for prefix in of_topic(intent.topic_id):
                    async for page in scan_pages(self._manager, prefix):
                        rows |= dict.fromkeys(page)
            await self._offsets.forget_topic(name)  # before the intent goes: it alone tells that they may
        await self._manager.commit(rows, {intent_at: version}, lease=self._lease.current)
        del self._topics.left[name]
        if row is None and intent.topic_id is not None:
            self._epochs.forget(intent.topic_id)

    async def _remove_soon(self, name: str) -> None:
        """Remove what a deletion has left, now or later."""
        try:
            await self._remove_left(name)
        except (KafkaError, OSError) as error:
            logger.error("what is left of topic %s could not be removed, it is tried again: %s", name, error)
            self._sweep_soon()

    async def sweep(self) -> None:
        """Remove whatever creations and deletions have left; what cannot be is tried again later."""
        for name in list(self._topics.unsure):
            async with self._changing.hold(name):
                with suppress(KafkaError), self._shields.shield():  # the log tells of it
                    await self._find_out(name)
        for name in list(self._topics.left):
            async with self._changing.hold(name):
                if name in self._topics.unsure:  # whether it was created is looked up again first
                    continue
                try:
                    with self._shields.shield():
                        await self._remove_left(name)
                except (KafkaError, OSError) as error:
                    logger.error("what is left of topic %s could not be removed, it is tried again: %s", name, error)
        if self._topics.left:
            self._sweep_soon()

    def _sweep_soon(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            self._spawn(self._sweep_later, name="remove what deleted topics left")

    async def _sweep_later(self) -> None:
        try:
            await anyio.sleep(_SWEEP_S)
        finally:
            self._sweeping = False
        await self.sweep()

    # Changing

    async def grow(self, name: str, partitions: int, *, validate_only: bool = False, as_source: bool = False) -> None:
        """Give a topic more partitions.

        Args:
            name: Of the topic.
            partitions: How many it has then.
            validate_only: Nothing is changed.
            as_source: The topic that it mirrors has so many.

        Raises:
            InvalidPartitionsError: That is no growth, or there are too many.
            PolicyViolationError: It mirrors a topic of another cluster, and it is not that which has grown.
            UnknownTopicOrPartitionError: There is no such topic.
        """
        grow = partial(self._grow, name, partitions, validate_only=validate_only, as_source=as_source)
        await self._in_turn(name, grow)

    async def _grow(self, name: str, partitions: int, *, validate_only: bool, as_source: bool) -> None:
        record = self._require(name)
        if not as_source:
            record.check_own()
        if partitions == record.partitions:
            raise InvalidPartitionsError(f"Topic already has {partitions} partition(s).")
        if not record.partitions < partitions <= MOST_PARTITIONS:
            raise InvalidPartitionsError(
                f"The topic {name} currently has {record.partitions} partition(s); {partitions} would not "
                f"be an increase to at most {MOST_PARTITIONS}."
            )
        await record.mapping.check(self._manager, name, partitions)
        added = range(record.partitions, partitions)
        if validate_only:
            self._topics.check_room(len(added), {})
            return
        with self._topics.room(len(added), {}), self._shields.shield():
            try:
                await self._remove_left(name)
                intended = await self._intend(record, record.version)
                places = await record.mapping.create(
                    self._manager, self._broker, name, added, lease=self._lease.current
                )
                grown = replace(record, partitions=partitions, places=[*record.places, *places])
                await self._change(record, grown, intended)
                del self._topics.left[name]
            except (KafkaError, OSError):
                if name in self._topics.left:
                    self._sweep_soon()
                raise

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
        await self._in_turn(name, partial(self._alter, name, change, validate_only=validate_only))

    async def _alter(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool
    ) -> None:
        record = self._require(name)
        changed = replace(record, overrides=dict(change(record.overrides)))
        added = {name: value for name, value in changed.overrides.items() if record.overrides.get(name) != value}
        if sum(map(len, added.values())) <= _LONG:
            added = {}  # they are as many as there are settings
        with self._topics.room(0, added) if added else nullcontext():
            if not validate_only:
                with self._shields.shield():
                    await self._change(record, changed)

    async def take_over(self, name: str) -> None:
        """Have a topic that mirrors one of another cluster follow that no more, and take producers' records.

        It has when this returns; of one that was taken over before that is true already.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic.
        """
        await self._in_turn(name, partial(self._take_mirror_over, name))

    async def _take_mirror_over(self, name: str) -> None:
        record = self._require(name)
        if record.mirror is not None and record.mirrored:
            with self._shields.shield():
                await self._change(record, replace(record, mirror=record.mirror._replace(taken_over=True)))

    async def _change(self, record: TopicRecord, changed: TopicRecord, intended: int = 0) -> None:
        """Make a topic's record what a changed copy says, once that is durable; an intent of this version goes then."""
        key = topic_key(record.name)
        rows: dict[str, bytes | None] = {key: changed.row()}
        expected = {key: record.version}
        if intended:
            rows[intent_key(record.name)] = None
            expected[intent_key(record.name)] = intended
        try:
            changed.version = await self._manager.commit(rows, expected, lease=self._lease.current)
        except BaseException:  # cancelled too: whether it was written is not known
            self._topics.unsure[record.name] = record
            await self._find_out(record.name)
            if record.row() != changed.row():
                raise
        else:
            self._take_over(record, changed)
            await self._reconfigure(record)

    def _take_over(self, record: TopicRecord, written: TopicRecord) -> None:
        """Make a topic's record what its row says."""
        record.places, record.partitions, record.overrides = written.places, written.partitions, written.overrides
        record.mirror, record.version = written.mirror, written.version
        if record.name in self._topics:
            self._topics.count(record)

    async def _reconfigure(self, record: TopicRecord) -> None:
        record.configure(self._resolve(record.overrides))
        await self._tell_partitions(record, Pace(self._flow))

    @staticmethod
    async def _tell_partitions(record: TopicRecord, pace: Pace) -> None:
        """Have the partitions follow changed settings; one that fails keeps none of the others from it."""
        failure: KafkaError | None = None
        for partition in list(record.logs.values()):
            await pace.pause()
            if record.gone:
                return
            try:
                await partition.configure(record.config)  # as it is now: it may have been changed once more
            except KafkaError as error:
                logger.error("%s does not follow changed settings until it is told again: %s", partition, error)
                failure = error
        if failure is not None:
            raise failure

    async def resolve_all(self) -> None:
        """Take over changed broker settings into every topic that follows them.

        Others come in between. What they create, or alter, has the new settings already; the caller sees to it that
        the broker's settings stay what they are until this returns.

        Raises:
            KafkaError: Some partitions could not be told; all others were.
        """
        configs, pace = _Configs(self._resolve), Pace(self._flow)
        failure: KafkaError | None = None
        for record in self._topics:
            await pace.pause()
            record.configure(configs.of(record.overrides))
            try:
                await self._tell_partitions(record, pace)
            except KafkaError as error:  # the other topics are told all the same
                failure = error
        if failure is not None:
            raise failure

    def _require(self, name: str) -> TopicRecord:
        record = self._topics.get(name)
        if record is None:
            raise UnknownTopicOrPartitionError(f"This server does not host the topic {name!r}.")
        return record


def _same_intent(row: bytes, intent: Intent) -> bool:
    """Whether a row is that of an intent; one that cannot be read counts as it."""
    try:
        written = Intent.of(row)
    except (ValueError, KafkaError):
        return True
    return (written.topic_id, written.run) == (intent.topic_id, intent.run)


class _Configs:
    """Settings in force, worked out once for all topics of the same overrides: while the broker's stay as they are."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._found: dict[frozenset[tuple[str, str]], TopicConfig] = {}

    def of(self, overrides: Mapping[str, str]) -> TopicConfig:
        """The settings in force of a topic with these overrides."""
        same = frozenset(overrides.items())
        found = self._found.get(same)
        if found is None:
            found = self._found[same] = self._resolve(overrides)
        return found


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
