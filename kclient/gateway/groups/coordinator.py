"""Runs every group of the gateway: feeds the state machines, waits for their deadlines, stores what they ask for."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from kclient.concurrency import Completion, Wakeup
from kclient.errors import ErrorCode
from kclient.gateway.groups import rows
from kclient.gateway.groups.classic import ClassicGroup
from kclient.gateway.groups.events import (
    UNKNOWN_MEMBER,
    Action,
    EmptyStored,
    GroupSettings,
    Join,
    JoinResult,
    Leave,
    Reply,
    Store,
    Sync,
    SyncResult,
    Token,
)
from kclient.gateway.groups.offsets import CommittedOffset, GroupOffsets
from kclient.gateway.groups.states import GroupState
from kclient.gateway.groups.subscriptions import CONSUMER, subscribed_topics
from kclient.gateway.groups.timers import Timers
from kclient.gateway.groups.writer import Write, Writer
from kclient.types import TopicPartition

if TYPE_CHECKING:
    from kclient.gateway.core import Core
    from kclient.gateway.topics import TopicRecord

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_Result = TypeVar("_Result", JoinResult, SyncResult)

_RETENTION = None  # the timer of the retention check, among those of the groups


class Parked(Completion[_Result], Token, Generic[_Result]):
    """A JoinGroup or SyncGroup request that may have to wait for the rest of its group."""

    __slots__ = ()


class ManagedGroup:
    """A group with its offsets."""

    __slots__ = ("group", "offsets", "since_ms")

    def __init__(self, group: ClassicGroup, since_ms: int) -> None:
        self.group: ClassicGroup = group
        self.offsets: GroupOffsets = GroupOffsets()
        self.since_ms: int = since_ms
        """Since when it has been in this state, by the wall clock; kept for groups without members."""

    @property
    def idle(self) -> bool:
        """Nobody is in it and nobody is expected."""
        return self.group.state is GroupState.EMPTY and not self.group.members.pending_joins


class GroupCoordinator:
    """The group coordinator of one gateway.

    Requests come in through the plain methods, which never wait; what must wait returns an object to wait on.

    Args:
        core: The gateway's services.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.settings: GroupSettings = _settings(core)
        self.groups: dict[str, ManagedGroup] = {}
        self._writer = Writer(core)
        self._timers: Timers[str | None] = Timers()
        self._wake = Wakeup()
        self._sleeping_until = float("-inf")
        self._closed = False

    # ---- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load what is stored and begin to keep time; the catalogue of topics has been loaded before.

        Members have one session timeout to be heard of.
        """
        await self._load()
        self.core.on_topic_deleted.append(self._topic_deleted)
        self._timers.schedule(_RETENTION, self._next_retention_check())
        self.core.spawn(self._writer.run, name="group writer")
        self.core.spawn(self._keep_time, name="group timers")

    async def aclose(self) -> None:
        """Answer everything that is parked, and store what is under way. Groups and offsets stay as stored."""
        self._closed = True
        for managed in self.groups.values():
            self._perform(managed, managed.group.unload())
        await self._writer.drain()

    async def _load(self) -> None:
        now = self.core.now()
        for key, value in (await self.core.manager.scan(rows.GROUPS)).items():
            try:
                snapshot, since_ms = rows.decode_group(value.value)
            except ValueError as error:
                logger.error(
                    "the row of group %s cannot be read: its members have to join again, which they do by themselves; "
                    "its offsets are there (%s)",
                    key.removeprefix(rows.GROUPS), error,
                )  # fmt: skip
                continue
            managed = self._create(snapshot.group_id, since_ms)
            self._perform(managed, managed.group.restore(snapshot, now))
        for key, value in (await self.core.manager.scan(rows.OFFSETS)).items():
            try:
                group_id, partition = rows.parse_offset_key(key)
                committed, topic_id = rows.decode_offset(value.value)
            except ValueError as error:
                logger.error(
                    "the committed offset %s (group, topic, partition) cannot be read and counts as not committed: "
                    "reset it, or its consumer begins where auto.offset.reset says (%s)",
                    key.removeprefix(rows.OFFSETS), error,
                )  # fmt: skip
                continue
            record = self.core.topics.get(partition.topic)
            if record is None or record.topic_id != topic_id:
                # the topic was deleted (and perhaps made anew) before its offsets were: they mean nothing now
                self._writer.submit({key: None}, lambda _error: None)
                continue
            managed = self.groups.get(group_id) or self._create(group_id, self.core.wall_ms())
            managed.offsets.put(partition, committed)
        if self.groups:
            logger.info("loaded %d groups", len(self.groups), extra=self.core.extra())

    def _create(self, group_id: str, since_ms: int) -> ManagedGroup:
        group = ClassicGroup(group_id, self.settings, _new_member_id)
        managed = self.groups[group_id] = ManagedGroup(group, since_ms)
        return managed

    def reconfigure(self) -> None:
        """Take over changed broker settings."""
        settings = _settings(self.core)
        if settings == self.settings:
            return
        self.settings = settings
        for managed in self.groups.values():
            managed.group.settings = settings
        self._timers.schedule(_RETENTION, self._next_retention_check())
        self._wake.set()

    # ---- membership ---------------------------------------------------------------------------------------

    def join(self, group_id: str, join: Join) -> Parked[JoinResult]:
        """A JoinGroup request."""
        parked: Parked[JoinResult] = Parked()
        error = self._check_join(group_id, join)
        if error:
            parked.set_result(JoinResult(error, join.member_id))
            return parked
        managed = self.groups.get(group_id) or self._create(group_id, self.core.wall_ms())
        self._perform(managed, managed.group.join(join, parked, self.core.now()))
        return parked

    def _check_join(self, group_id: str, join: Join) -> ErrorCode:
        settings = self.settings
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        if self._closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        least, most = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
        if not least <= join.session_timeout_ms <= most:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if group_id not in self.groups and join.member_id != UNKNOWN_MEMBER:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def sync(self, group_id: str, sync: Sync) -> Parked[SyncResult]:
        """A SyncGroup request."""
        parked: Parked[SyncResult] = Parked()
        error, managed = self._find(group_id)
        if managed is None:
            parked.set_result(SyncResult(error))
        else:
            self._perform(managed, managed.group.sync(sync, parked, self.core.now()))
        return parked

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A Heartbeat request."""
        error, managed = self._find(group_id)
        if managed is None:
            return error
        return managed.group.heartbeat(member_id, instance_id, generation, self.core.now())

    def leave(self, group_id: str, leaving: list[Leave]) -> tuple[ErrorCode, list[ErrorCode]]:
        """A LeaveGroup request: the error of the whole, and one per member."""
        error, managed = self._find(group_id)
        if managed is None:
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                return ErrorCode.NONE, [error] * len(leaving)
            return error, []
        errors, actions = managed.group.leave(leaving, self.core.now())
        self._perform(managed, actions)
        return ErrorCode.NONE, errors

    def _find(self, group_id: str) -> tuple[ErrorCode, ManagedGroup | None]:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID, None
        if self._closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
        return ErrorCode.UNKNOWN_MEMBER_ID, self.groups.get(group_id)

    # ---- offsets ------------------------------------------------------------------------------------------

    def check_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, *, missing: ErrorCode
    ) -> ErrorCode:
        """Whether a member may commit offsets now; `missing` is what to say of a group that does not exist."""
        if self._closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        managed = self.groups.get(group_id)
        if managed is None:
            return ErrorCode.NONE if generation < 0 else missing
        return managed.group.check_commit(member_id, instance_id, generation, self.core.now())

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> Write:
        """Store offsets, after `check_commit`; they are visible when the write is done."""
        managed = self.groups.get(group_id) or self._create(group_id, self.core.wall_ms())
        managed.offsets.begin(offsets)
        values: dict[str, bytes | None] = {}
        topics: dict[str, TopicRecord | None] = {}
        for partition, committed in offsets.items():
            name = partition.topic
            record = topics[name] = topics[name] if name in topics else self.core.topics.get(name)
            topic_id = bytes(16) if record is None else record.topic_id
            values[rows.offset_key(group_id, partition)] = rows.encode_offset(committed, topic_id)

        def done(error: ErrorCode) -> None:
            managed.offsets.end(offsets)
            if error:
                return
            for partition, committed in offsets.items():
                record = topics[partition.topic]
                if record is not None and not record.gone:  # else the name may stand for another topic by now
                    managed.offsets.put(partition, committed)

        return self._writer.submit(values, done)

    def offsets(self, group_id: str) -> GroupOffsets | None:
        """The committed offsets of a group, whatever its state; None if there is no such group."""
        managed = self.groups.get(group_id)
        return None if managed is None else managed.offsets

    def check_offset_delete(self, group_id: str) -> tuple[ErrorCode, set[str]]:
        """Whether offsets of a group may be deleted, and the topics whose offsets may not since members read them."""
        if self._closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, set()
        managed = self.groups.get(group_id)
        if managed is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, set()
        group = managed.group
        if group.state is GroupState.EMPTY:
            return ErrorCode.NONE, set()
        if group.protocol_type != CONSUMER:
            return ErrorCode.NON_EMPTY_GROUP, set()
        subscribed = _subscribed(group)
        if subscribed is None:  # while it rebalances, or if its metadata cannot be read, all of it may be in use
            subscribed = set(managed.offsets.topics())
        return ErrorCode.NONE, subscribed

    def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> Write:
        """Forget offsets; the caller has checked that nobody uses them."""
        managed = self.groups[group_id]
        gone = list(partitions)

        def done(error: ErrorCode) -> None:
            if not error:
                for partition in gone:
                    managed.offsets.remove(partition)

        return self._writer.submit({rows.offset_key(group_id, partition): None for partition in gone}, done)

    # ---- administration -----------------------------------------------------------------------------------

    def delete(self, group_id: str) -> ErrorCode | Write:
        """Delete a group without members, and its offsets."""
        if self._closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        managed = self.groups.get(group_id)
        if managed is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        error = managed.group.delete()
        if error:
            return error
        del self.groups[group_id]
        self._timers.cancel(group_id)
        logger.info("group %s: deleted", group_id, extra=self.core.extra())
        keys = [rows.group_key(group_id), *(rows.offset_key(group_id, known) for known in managed.offsets.known())]
        return self._writer.submit(dict.fromkeys(keys), partial(self._deleted, managed))

    def _deleted(self, managed: ManagedGroup, error: ErrorCode) -> None:
        group_id = managed.group.group_id
        if not error or group_id in self.groups:
            return
        # the store still has it: it stays
        again = self._create(group_id, managed.since_ms)
        again.group.restore(managed.group.snapshot(), self.core.now())
        again.offsets = managed.offsets

    # ---- the machinery ------------------------------------------------------------------------------------

    def _perform(self, managed: ManagedGroup, actions: Iterable[Action]) -> None:
        """Do what a group's state machine asks for, and heed its next deadline."""
        for action in actions:
            if isinstance(action, Reply):
                # the group answers a token with the kind of result that it was parked for
                cast("Parked[JoinResult]", action.token).set_result(cast("JoinResult", action.result))
            else:
                self._store(managed, action)
        group_id = managed.group.group_id
        if self.groups.get(group_id) is not managed:
            return  # deleted; the name may stand for another group by now
        deadline = managed.group.next_deadline()
        if deadline is None:
            self._timers.cancel(group_id)
            return
        self._timers.schedule(group_id, deadline)
        if deadline < self._sleeping_until:
            self._wake.set()

    def _store(self, managed: ManagedGroup, store: Store) -> None:
        group = managed.group
        if isinstance(store.ticket, EmptyStored):
            managed.since_ms = self.core.wall_ms()
        row = rows.encode_group(store.snapshot, self.core.wall_ms())

        def done(error: ErrorCode) -> None:
            self._perform(managed, group.stored(store.ticket, error, self.core.now()))

        self._writer.submit({rows.group_key(group.group_id): row}, done)

    async def _keep_time(self) -> None:
        while True:
            self._fire(self.core.now())
            deadline = self._timers.next_deadline()
            assert deadline is not None, "the retention check is always scheduled again"
            self._sleeping_until = deadline
            await self._wake.wait(max(0.0, deadline - self.core.now()))
            self._sleeping_until = float("-inf")

    def _fire(self, now: float) -> None:
        while (deadline := self._timers.next_deadline()) is not None and deadline <= now:
            group_id = self._timers.pop_due(now)
            if group_id is None:  # _RETENTION
                self._timers.schedule(_RETENTION, self._next_retention_check())
                self.expire_offsets()
            elif (managed := self.groups.get(group_id)) is not None:
                self._perform(managed, managed.group.advance(now))

    # ---- retention ----------------------------------------------------------------------------------------

    def _next_retention_check(self) -> float:
        return self.core.now() + self.settings.offsets_retention_check_interval_ms / 1000

    def expire_offsets(self) -> None:
        """Forget the offsets that have outlived `offsets.retention.minutes`, and groups that nothing is left of."""
        now_ms = self.core.wall_ms()
        for group_id, managed in list(self.groups.items()):
            expired = self._expired(managed, now_ms)
            if managed.idle and managed.offsets.known() <= expired:
                self.delete(group_id)
            elif expired:
                logger.info("group %s: %d offsets have expired", group_id, len(expired), extra=self.core.extra())
                self.delete_offsets(group_id, expired)

    def _expired(self, managed: ManagedGroup, now_ms: int) -> set[TopicPartition]:
        group = managed.group
        retention_ms = self.settings.offsets_retention_minutes * 60_000
        if group.protocol_type is None:
            return managed.offsets.expired(now_ms, retention_ms, None, set())
        if group.state is GroupState.EMPTY:
            return managed.offsets.expired(now_ms, retention_ms, managed.since_ms, set())
        topics = _subscribed(group) if group.state is GroupState.STABLE else None
        if topics is None:
            return set()
        return managed.offsets.expired(now_ms, retention_ms, None, topics)

    def _topic_deleted(self, record: TopicRecord) -> None:
        """A topic has gone: its offsets go with it, before another topic of that name can be seen."""
        for group_id, managed in list(self.groups.items()):
            partitions = managed.offsets.of_topic(record.name)
            if partitions:
                managed.offsets.drop_topic(record.name)
                self.delete_offsets(group_id, partitions)


def _subscribed(group: ClassicGroup) -> set[str] | None:
    """The topics a group of consumers reads; None for other types and if a member's metadata cannot be read."""
    if group.protocol_type != CONSUMER:
        return None
    topics: set[str] = set()
    for member in group.members:
        subscription = subscribed_topics(member.metadata(group.protocol_name or member.protocols[0][0]))
        if subscription is None:
            return None
        topics |= subscription
    return topics


def _new_member_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4()}"


def _settings(core: Core) -> GroupSettings:
    get: Callable[[str], int] = core.config.get_int
    return GroupSettings(
        group_initial_rebalance_delay_ms=get("group.initial.rebalance.delay.ms"),
        group_min_session_timeout_ms=get("group.min.session.timeout.ms"),
        group_max_session_timeout_ms=get("group.max.session.timeout.ms"),
        group_max_size=get("group.max.size"),
        offset_metadata_max_bytes=get("offset.metadata.max.bytes"),
        offsets_retention_minutes=get("offsets.retention.minutes"),
        offsets_retention_check_interval_ms=get("offsets.retention.check.interval.ms"),
    )
