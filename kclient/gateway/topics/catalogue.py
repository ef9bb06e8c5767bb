"""The catalogue of topics: names, ids, partitions and settings, kept in the manager's key-value part.

A topic is there when its row is: its places in HTP are made before the row is written and removed after the row
has gone, and an *intent* row tells what is left to be removed: it is tried again until it has gone, also by the
next start. A topic of the same name is made only then, and shares nothing with it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import anyio.lowlevel

from kclient.concurrency import NamedLocks
from kclient.errors import (
    InvalidPartitionsError,
    KafkaError,
    ReassignmentInProgressError,
    RequestTimedOutError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from kclient.gateway.config import Live
from kclient.gateway.mapping import Mapping as PartitionMapping
from kclient.gateway.mapping import mapping_of_what_lies
from kclient.gateway.rows.keys import intent_key, topic_key
from kclient.gateway.rows.topics import MirrorOrigin
from kclient.gateway.settings import MOST_PARTITIONS
from kclient.gateway.topics.loading import TopicReader
from kclient.gateway.topics.names import check_name
from kclient.gateway.topics.record import Intent, TopicRecord
from kclient.gateway.topics.refresh import TopicRefresher
from kclient.gateway.topics.remains import TopicEpochs, TopicOffsets, TopicRemains
from kclient.gateway.topics.settings import Resolve, TopicConfigs, checked_overrides
from kclient.gateway.topics.sweeping import TopicSweeper
from kclient.htp.errors import ConflictError

if TYPE_CHECKING:
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.shields import Shields
    from kclient.gateway.topics.table import TopicTable
    from kclient.htp.port import Broker, Manager
    from kclient.net.fair_queue import Flow

logger: logging.Logger = logging.getLogger("kclient.gateway.topics")

T = TypeVar("T")

_PATIENCE_S: Final = 3.0
"""Seconds that a change of a topic waits for other gateways that change the same topic."""
_TURN_S: Final = 10.0
"""Seconds that it waits for other changes of the topic here: a store may hang amid one."""
_SOON_S: Final = 1.0
"""The same where whoever waits holds up others."""
_AGAIN_S: Final = 0.01
"""Seconds until it is tried again."""
_LONG: Final = 1_000
"""Characters of settings for which there has to be memory when a topic is altered."""


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
        living: Tells which runs of gateways live; None where there can be no other.
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
        living: Callable[[], Awaitable[Container[str]]] | None = None,
    ) -> None:
        self._topics = topics
        self._living = living
        self._offsets = offsets
        self._mapping = mapping
        self._num_partitions = num_partitions
        self._replication_factor = replication_factor
        self._manager = manager
        self._broker = broker
        self._lease = lease
        self._run = run
        self._shields = shields
        self._changing: NamedLocks[str] = NamedLocks()
        settings = self._settings = TopicConfigs(topics, resolve, flow)
        loader = self._loader = TopicReader(topics, settings, manager, lease)
        remains = self._remains = TopicRemains(
            topics,
            loader,
            offsets,
            epochs,
            manager=manager,
            broker=broker,
            lease=lease,
            run=run,
            retry=self._sweep_soon,
        )
        self._rows = TopicRefresher(
            topics,
            settings,
            loader,
            remains,
            offsets,
            epochs,
            manager=manager,
            shields=shields,
            retry=self._sweep_soon,
        )
        self._sweeper = TopicSweeper(
            topics, remains, self._rows, lambda name: self._alone(name, _SOON_S), shields=shields, spawn=spawn
        )

    @asynccontextmanager
    async def _alone(self, name: str, patience: float) -> AsyncIterator[None]:
        """Nobody else changes a topic here.

        Args:
            name: Of the topic.
            patience: Seconds to wait for those who do.

        Raises:
            RequestTimedOutError: They take longer.
        """
        async with AsyncExitStack() as held:
            with anyio.move_on_after(patience) as waiting:
                await held.enter_async_context(self._changing.hold(name))
            if waiting.cancelled_caught:
                raise RequestTimedOutError(
                    f"Topic '{name}' is being created, changed or deleted, and the store has not answered that for "
                    f"{patience:.0f} s: try again"
                )
            yield

    @asynccontextmanager
    async def _turn(self, name: str, patience: float) -> AsyncIterator[bool]:
        """The turn to change a topic: nobody else does here, and what its row says is known and in force.

        Yields:
            Whether another gateway is making, growing or removing a topic of this name.
        """
        async with self._alone(name, patience):
            with self._shields.shield():
                await self._rows.find_out(name)
            yield await self._rows.read(name)

    async def _in_turn(
        self,
        name: str,
        change: Callable[[], Awaitable[T]],
        busy: type[KafkaError] = ReassignmentInProgressError,
        patience: float = _TURN_S,
    ) -> T:
        """Make a change of a topic; where another gateway changes the topic meanwhile, it is worked out anew.

        Args:
            name: Of the topic.
            change: Makes it.
            busy: Is raised if another gateway does not come to an end with a change of its own.
            patience: Seconds to wait for other changes of it here, or one.
        """
        patience = max(patience, _SOON_S)
        until = anyio.current_time() + _PATIENCE_S
        while True:
            conflict: ConflictError | None = None
            async with self._turn(name, patience) as foreign:
                if foreign:
                    await self._manager.commit({}, lease=self._lease.current)  # a gateway that was followed ends here
                else:
                    try:
                        return await change()
                    except ConflictError as error:
                        logger.info("another gateway changes topic %s: %s", name, error)
                        conflict = error
            if anyio.current_time() >= until:
                if name in await self.adopt():
                    continue
                text = f"Topic '{name}' is being created, changed or deleted by another gateway: try again"
                raise busy(text) from conflict
            await anyio.sleep(_AGAIN_S)

    # Loading

    async def load(self) -> None:
        """Read the catalogue, and what runs that have ended left half done: `sweep` finishes that."""
        await self._loader.load()
        if self._living is not None:
            await self.adopt()
            return
        self._topics.left.update({name: intent for name, (intent, _) in (await self._loader.intents()).items()})

    async def adopt(self) -> set[str]:
        """Make one's own what gateways that have ended left half done: `sweep` finishes it.

        Returns:
            The names of the topics.

        Raises:
            HtpError: The store failed; then it may be called again.
        """
        if self._living is None:
            return set()
        adopted = set()
        intents = await self._loader.intents()
        living = await self._living() if intents else ()  # whoever wrote one had registered before
        for name, (intent, version) in intents.items():
            if intent.run == self._run or intent.run in living:
                continue
            async with self._changing.hold(name):
                if await self._remains.adopt(name, intent, version):
                    adopted.add(name)
        return adopted

    async def finish_for_others(self) -> None:
        """Do what gateways that have ended left half done, now or later. Raises `HtpError` if the store fails."""
        if await self.adopt():
            await self.sweep()

    async def refresh(self, name: str) -> None:
        """See what the row of a topic says, which another gateway may have changed, and have it in force.

        Raises:
            HtpError: The store failed: what the row says is not known.
            RequestTimedOutError: It does not answer a change of the topic, as far as that is known.
        """
        async with self._turn(name, _SOON_S):
            pass

    async def resolve_all(self) -> None:
        """Take over changed broker settings into every topic that follows them, see `TopicConfigs.resolve_all`."""
        await self._settings.resolve_all()

    # Creating

    def check_creation(
        self, name: str, partitions: int, overrides: Mapping[str, str | None]
    ) -> tuple[int, dict[str, str]]:
        """The number of partitions and the overrides of a topic to be made, or the error that forbids it.

        `partitions` may be -1 for `num.partitions`. Raises `InvalidTopicError`, `TopicExistsError`,
        `InvalidPartitionsError`, `InvalidConfigurationError`, `PolicyViolationError`.
        """
        check_name(name)
        if name in self._topics or self._topics.internal(name) is not None:
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
        patience: float = _TURN_S,
    ) -> TopicRecord:
        """Create a topic; it can be used when this returns. Errors as `check_creation` and `check_places`.

        With `mirror` it takes the records of that topic only, until it is taken over. Another change of a topic of that
        name is waited for, `patience` seconds or one; `RequestTimedOutError` if it is under way all the same.
        """
        return await self._in_turn(
            name,
            partial(self._create_checked, name, partitions, replication_factor, overrides or {}, mirror),
            TopicExistsError,
            patience,
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
        config = self._settings.resolve(overrides)
        record = TopicRecord(name, _new_id(), partitions, factor, self._mapping, overrides, config, mirror)
        key, intent = topic_key(name), intent_key(name)
        await self._remains.remove(name)
        if name in self._topics:
            raise TopicExistsError(f"Topic '{name}' already exists.")
        if (taken := await record.mapping.taken(self._manager, name)) is not None:
            raise TopicExistsError(f"HTP has {taken} that this gateway did not make")
        intended = await self._remains.intend(record, 0)
        record.places = await record.mapping.create(
            self._manager, self._broker, name, range(partitions), lease=self._lease.current
        )
        try:
            record.version = await self._manager.commit(
                {key: record.row(), intent: None}, {key: 0, intent: intended}, lease=self._lease.current
            )
        except BaseException:  # cancelled too: whether it was written is not known
            self._topics.unsure[name] = record
            await self._rows.find_out(name)
            if name not in self._topics:
                raise
        else:
            self._rows.created(record)
        logger.info("topic %s created with %d partitions", name, partitions)
        return record

    # Deleting

    async def delete(
        self, name: str, topic_id: bytes | None = None, patience: float = _TURN_S, *, sweep: bool = True
    ) -> None:
        """Delete a topic and its messages.

        The topic has gone when this returns; what cannot be removed of it now, or soon, is removed later.

        Args:
            name: Of the topic.
            topic_id: The topic must have this id, if one is given: it may have been created again.
            patience: Seconds to wait for other changes of it, and for what is left to be removed; or one.
            sweep: What is left is removed now; else whoever calls has it done afterwards (`sweep_beside`).

        Raises:
            UnknownTopicOrPartitionError: If there is no such topic.
        """
        until = anyio.current_time() + patience
        left = await self._in_turn(name, partial(self._delete_checked, name, topic_id), patience=patience)
        if left is not None and sweep:
            await self._sweeper.sweep_one(name, left, until - anyio.current_time())

    async def _delete_checked(self, name: str, topic_id: bytes | None) -> Intent | None:
        """The intent that tells what is left to be removed."""
        with self._shields.shield():
            if name in self._topics.damaged:
                await self._delete_damaged(name)
            else:
                record = self._require(name)
                if topic_id is not None and record.topic_id != topic_id:
                    raise UnknownTopicOrPartitionError(f"the topic {name!r} has been deleted and created again")
                await self._delete(record)
            return self._topics.left.get(name)

    async def _delete(self, record: TopicRecord) -> None:
        await self._remains.remove(record.name)
        key, intent = topic_key(record.name), intent_key(record.name)
        rows = {key: None, intent: Intent(record.mapping, record.topic_id, self._run).row()}
        self._topics.remove(record)  # first: nothing is appended any more that would be acknowledged and deleted
        try:
            version = await self._manager.commit(rows, {key: record.version, intent: 0}, lease=self._lease.current)
        except ConflictError:  # another gateway is faster: what it has done is read, and followed
            self._topics.add(record)
            await self._settings.reconfigure(record)  # it has missed what was changed meanwhile
            raise
        except BaseException:  # cancelled too: whether it was written is not known
            self._topics.unsure[record.name] = record
            await self._rows.find_out(record.name)
            if not record.gone:
                raise
        else:
            await self._remains.deleted(record, version)

    async def _delete_damaged(self, name: str) -> None:
        """A topic whose row cannot be read: it goes with all that lies where a mapping would have put it."""
        key, intent_at = topic_key(name), intent_key(name)
        found = await self._manager.get([key, intent_at])
        mapping = await mapping_of_what_lies(self._manager, name, self._mapping)
        intent = Intent(mapping, None, self._run)
        expected = {each: found[each].version if each in found else 0 for each in (key, intent_at)}
        await self._manager.commit({key: None, intent_at: intent.row()}, expected, lease=self._lease.current)
        del self._topics.damaged[name]
        self._topics.left[name] = intent
        await self._offsets.topic_deleted(name)
        self._sweep_soon()

    # What creations and deletions have left

    async def sweep(self) -> None:
        """Remove whatever creations and deletions have left; what cannot be is tried again later.

        What takes longer than a second goes on beside whoever called.
        """
        await self._sweeper.sweep()

    def sweep_beside(self) -> None:
        """Begin to remove what deletions have left, and do not wait for it."""
        self._sweeper.sweep_beside()

    def _sweep_soon(self) -> None:
        self._sweeper.sweep_soon()

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
                await self._remains.remove(name)
                intended = await self._remains.intend(record, record.version)
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
        internal = self._topics.internal(name)
        if internal is not None and change(internal.overrides) == internal.overrides:
            return  # kafka-reassign-partitions takes settings back that nobody has made
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
            await self._rows.find_out(record.name)
            if record.row() != changed.row():
                raise
        else:
            self._topics.take_over(record, changed)
            await self._settings.reconfigure(record)

    def _require(self, name: str) -> TopicRecord:
        record = self._topics.get(name)
        if record is None:
            self._topics.check_not_internal(name)
            raise UnknownTopicOrPartitionError(f"This server does not host the topic {name!r}.")
        return record


def _new_id() -> bytes:
    """A random topic id; Kafka keeps those whose text begins with a dash out of the way, for shells."""
    while True:
        made = uuid.uuid4().bytes
        if made[0] >> 2 != 62:  # base64url's dash
            return made
