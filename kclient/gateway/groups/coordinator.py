"""Runs every group of the gateway: feeds the state machines, waits for their deadlines, stores what they ask for."""

from __future__ import annotations

import logging
import uuid
from collections import Counter, deque
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from kclient.concurrency import Completion, Wakeup
from kclient.errors import ErrorCode
from kclient.gateway.discarding import in_slices
from kclient.gateway.groups.classic import ClassicGroup
from kclient.gateway.groups.deleted_topics import DeletedTopics
from kclient.gateway.groups.events import (
    NOBODY,
    UNKNOWN_MEMBER,
    Action,
    EmptyStored,
    GroupSettings,
    Join,
    JoinResult,
    Leave,
    Reply,
    StoreSnapshot,
    Sync,
    SyncResult,
    Token,
)
from kclient.gateway.groups.offsets import Expiry, GroupOffsets, OffsetCommit
from kclient.gateway.groups.parts import CommitParts, DeletionParts
from kclient.gateway.groups.states import GroupState
from kclient.gateway.groups.subscriptions import CONSUMER, subscribed_topics
from kclient.gateway.groups.timers import Timers
from kclient.gateway.groups.writer import GroupWriter, Write, to_the_end
from kclient.gateway.rows import keys
from kclient.gateway.rows.groups import CommittedOffset, decode_group, decode_offset, encode_group_steps
from kclient.htp.rows import scan_pages
from kclient.net.fair_queue import SLICE, Pace

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.config import BrokerConfig
    from kclient.gateway.dynamic_config import DynamicConfig
    from kclient.gateway.identity import Identity
    from kclient.gateway.leadership import Leadership
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.topic_table import TopicTable
    from kclient.htp.port import Manager, Versioned
    from kclient.net.fair_queue import FairQueue

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_Result = TypeVar("_Result", JoinResult, SyncResult)

_FEW = 16
_MADE_AT_ONCE = 128
"""Rows that are made when they are handed to the writer, so that many small commits go together."""
_GROUPS_SHARE = 4
"""As much as one part in so many of the memory for clients may be taken by the members of groups, beside it."""
_TOLD_AGAIN_S = 60.0
"""Seconds between two lines of the log that say so."""
_GROUP, _MEMBER, _PENDING = 4_000, 2_000, 600
"""About how many bytes of memory a group takes, a member beside its metadata, and an id that waits for its owner."""
_NO_TOPIC = bytes(16)
"""Early versions recorded it of a topic that was deleted while an offset was committed."""
_RETENTION = None  # the timer of the retention check, among those of the groups


class Parked(Completion[_Result], Token, Generic[_Result]):
    """A JoinGroup or SyncGroup request that may have to wait for the rest of its group."""

    __slots__ = ()


class ManagedGroup:
    """A group with its offsets."""

    __slots__ = ("_read", "_subscribed", "group", "held", "offsets", "since_ms", "unread")

    def __init__(self, group: ClassicGroup, since_ms: int) -> None:
        self.group: ClassicGroup = group
        self.held: int = 0
        """Bytes of memory that its members take, as they were counted last."""
        self.offsets: GroupOffsets = GroupOffsets()
        self.since_ms: int = since_ms
        """Since when it has been in this state, by the wall clock; kept for groups without members."""
        self.unread: bool = False
        """Whether its row cannot be read: nobody knows since when it has been without members."""
        self._subscribed: frozenset[str] | None = None
        self._read: tuple[int, str | None] | None = None
        """Of which members `_subscribed` was found out."""

    def subscribed(self) -> Generator[None, None, frozenset[str] | None]:
        """The topics that a group of consumers reads, found out in steps.

        None for other types, and if what a member says cannot be read or changes meanwhile.
        """
        group, members = self.group, self.group.members
        if group.protocol_type != CONSUMER:
            return None
        now = members.changes, group.protocol_name
        if self._read != now:
            topics: set[str] | None = set()
            for member in members:
                found = yield from subscribed_topics(member.metadata(group.protocol_name or member.protocols[0][0]))
                if topics is None or found is None:
                    topics = None
                else:
                    topics |= found
                yield
            if now != (members.changes, group.protocol_name):
                return None
            self._read = now
            self._subscribed = None if topics is None else frozenset(topics)
        return self._subscribed

    @property
    def idle(self) -> bool:
        """Nobody is in it and nobody is expected."""
        return self.group.state is GroupState.EMPTY and not self.group.members.pending_joins


class GroupCoordinator:
    """The group coordinator of one gateway.

    Requests come in through the plain methods, which never wait; what must wait returns an object to wait on.

    Args:
        topics: Of which offsets may be committed.
        config: The broker's settings.
        dynamic: Tells whether those that say how long offsets are kept could be read.
        leadership: Tells which groups are coordinated here.
        manager: Keeps groups and offsets.
        lease: Under which it does.
        identity: For the log.
        queue: Shares the event loop with others.
        clock: What time it is.
        spawn: Starts a task of the gateway.
    """

    def __init__(
        self,
        topics: TopicTable,
        config: BrokerConfig,
        dynamic: DynamicConfig,
        leadership: Leadership,
        *,
        manager: Manager,
        lease: HeldLease,
        identity: Identity,
        queue: FairQueue,
        clock: Clock,
        spawn: Callable[..., object],
    ) -> None:
        self._topics = topics
        self._config = config
        self._dynamic = dynamic
        self._leadership = leadership
        self._manager = manager
        self._queue = queue
        self._clock = clock
        self._spawn = spawn
        self._extra = identity.log_fields()
        self.settings: GroupSettings = _settings(config)
        self.groups: dict[str, ManagedGroup] = {}
        self._writer = GroupWriter(manager, lease, queue.flow())
        self._flow = queue.flow()
        self._chores = queue.flow()
        """For retention and the offsets of deleted topics; the answers have one of their own."""
        self._answers: deque[Reply] = deque()
        self._leaving: dict[str, deque[ManagedGroup]] = {}
        """Groups that are deleted, and whose rows are still there, by name: the oldest first."""
        self._deleted_topics = DeletedTopics(self._writer, self._chores)
        self._held = 0
        self._most = config.get_int("connections.max.memory.bytes") // _GROUPS_SHARE
        self._told_full = float("-inf")
        """When the log was told last that they take all of it."""
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
        self._timers.schedule(_RETENTION, self._next_retention_check())
        self._spawn(self._writer.run, name="group writer")
        self._spawn(self._keep_time, name="group timers")

    async def aclose(self) -> None:
        """Answer everything that is parked, and store what is under way. Groups and offsets stay as stored."""
        self._closed = True
        for managed in self.groups.values():
            self._perform(managed, managed.group.unload())
        self._answer_some(float("inf"))
        await self._writer.drain()

    async def _load(self) -> None:
        unread: set[str] = set()
        async for page in scan_pages(self._manager, keys.GROUPS):
            unread |= self._load_groups(page)
        kept: Counter[str] = Counter()
        async for page in scan_pages(self._manager, keys.OFFSETS):
            self._load_offsets(page, unread, kept)
        for name, count in kept.items():
            logger.error(
                "%d committed offsets of a topic %s count as not committed: they were made for one of another id, or "
                "the topic is not there and nothing tells that it was deleted. They are kept until they have outlived "
                "offsets.retention.minutes, in case that its row is restored",
                count, name,
            )  # fmt: skip
        if self.groups:
            logger.info("loaded %d groups", len(self.groups), extra=self._extra)

    def _load_groups(self, found: Mapping[str, Versioned]) -> set[str]:
        """Restore some groups; those whose rows cannot be read."""
        now, unread = self._clock.now(), set()
        for key, value in found.items():
            group_id = keys.parse_group_key(key)
            if not self._leadership.coordinates(group_id):
                continue
            try:
                snapshot, since_ms = decode_group(value.value, group_id)
            except ValueError as error:
                logger.error(
                    "the row of group %s cannot be read: its members have to join again, which they do by themselves; "
                    "its offsets are there (%s)",
                    key.removeprefix(keys.GROUPS), error,
                )  # fmt: skip
                unread.add(group_id)
                continue
            managed = self._create(snapshot.group_id, since_ms)
            self._perform(managed, managed.group.restore(snapshot, now))
        return unread

    def _load_offsets(self, found: Mapping[str, Versioned], unread: Container[str], kept: Counter[str]) -> None:
        """Restore some offsets; `kept` counts those of each topic that belong to none that is there."""
        outlived: dict[str, dict[str, None]] = {}
        for key, value in found.items():
            try:
                group_id, partition = keys.parse_offset_key(key)
                committed, topic_id = decode_offset(value.value)
            except ValueError as error:
                logger.error(
                    "the committed offset %s (group, topic, partition) cannot be read and counts as not committed: "
                    "reset it, or its consumer begins where auto.offset.reset says (%s)",
                    key.removeprefix(keys.OFFSETS), error,
                )  # fmt: skip
                continue
            if not self._leadership.coordinates(group_id):
                continue
            topics, name = self._topics, partition.topic
            record = topics.get(name)
            if topics.deleted(name, topic_id):
                self._deleted_topics.add(name)
                self._deleted_topics.note(name, group_id, (partition.partition,))
            elif name in topics.damaged or (record is not None and record.topic_id == topic_id):
                managed = self.groups.get(group_id) or self._create(group_id, self._clock.wall_ms())
                managed.unread = group_id in unread
                managed.offsets.put(partition, committed)
            elif topic_id == _NO_TOPIC or self._outlived(committed):
                outlived.setdefault(group_id, {})[key] = None
            else:
                kept[name] += 1
        for group_id, gone in outlived.items():
            self._writer.submit(group_id, gone, lambda _error: ())

    def _outlived(self, committed: CommittedOffset) -> bool:
        """Whether an offset that belongs to no topic has been kept for long enough."""
        return not self._dynamic.unreadable and committed.outlived(
            self._clock.wall_ms(), self.settings.offsets_retention_minutes * 60_000
        )

    def _create(self, group_id: str, since_ms: int) -> ManagedGroup:
        group = ClassicGroup(group_id, self.settings, _new_member_id)
        managed = self.groups[group_id] = ManagedGroup(group, since_ms)
        return managed

    def reconfigure(self) -> None:
        """Take over changed broker settings."""
        settings = _settings(self._config)
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
        error = self._check_join(group_id, join) or self._check_room(group_id, join)
        if error:
            parked.set_result(JoinResult(error, join.member_id))
            return parked
        managed = self.groups.get(group_id) or self._create(group_id, self._clock.wall_ms())
        self._perform(managed, managed.group.join(join, parked, self._clock.now()))
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

    def _check_room(self, group_id: str, join: Join) -> ErrorCode:
        """Whether there is memory for what a member brings along."""
        size = sum(len(name) + len(metadata) for name, metadata in join.protocols)
        managed = self.groups.get(group_id)
        members = None if managed is None else managed.group.members
        known = None if members is None else members.get(join.member_id)
        size -= 0 if known is None else known.size
        if size + (0 if members is None else members.size) > self.settings.group_max_metadata_bytes:
            logger.warning("group %s: a member with %d bytes of metadata is refused", group_id[:300], size)
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if self._held + size > self._most and (known is None or size > 0):
            self._tell_full(group_id)
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # it tries again
        return ErrorCode.NONE

    def _tell_full(self, group_id: str) -> None:
        now = self._clock.now()
        if now - self._told_full < _TOLD_AGAIN_S:
            return
        self._told_full = now
        logger.warning(
            "the members of all groups take %d of %d bytes, a quarter of connections.max.memory.bytes: a member that "
            "joins group %s is told to try again, and so is everyone until there is room. Set "
            "connections.max.memory.bytes higher, or have fewer members or less metadata",
            self._held, self._most, group_id[:300], extra=self._extra,
        )  # fmt: skip

    def sync(self, group_id: str, sync: Sync) -> Parked[SyncResult]:
        """A SyncGroup request."""
        parked: Parked[SyncResult] = Parked()
        error, managed = self._find(group_id)
        if managed is not None and self._too_large(managed, sync):
            # as from Kafka, whose log of groups has a limit too
            error, managed = ErrorCode.UNKNOWN_SERVER_ERROR, None
        if managed is None:
            parked.set_result(SyncResult(error))
        else:
            self._perform(managed, managed.group.sync(sync, parked, self._clock.now()))
        return parked

    def _too_large(self, managed: ManagedGroup, sync: Sync) -> bool:
        size = sum(map(len, sync.assignments.values()))
        if size <= self.settings.group_max_metadata_bytes:
            return False
        logger.warning("group %s: assignments of %d bytes are refused", managed.group.group_id, size)
        return True

    def forsake(self, group_id: str, token: Token) -> None:
        """The client of a parked request has gone."""
        managed = self.groups.get(group_id)
        if managed is not None:
            self._perform(managed, managed.group.forsake(token, self._clock.now()))

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """A Heartbeat request."""
        error, managed = self._find(group_id)
        if managed is None:
            return error
        return managed.group.heartbeat(member_id, instance_id, generation, self._clock.now())

    def leave(self, group_id: str, leaving: list[Leave]) -> tuple[ErrorCode, list[ErrorCode]]:
        """A LeaveGroup request: the error of the whole, and one per member."""
        error, managed = self._find(group_id)
        if managed is None:
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                return ErrorCode.NONE, [error] * len(leaving)
            return error, []
        errors, actions = managed.group.leave(leaving, self._clock.now())
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
        return managed.group.check_commit(member_id, instance_id, generation, self._clock.now())

    def commit(self, group_id: str, commit: OffsetCommit) -> Write:
        """Store offsets, at once after `check_commit`; they are visible when the write is done."""
        managed = self.groups.get(group_id) or self._create(group_id, self._clock.wall_ms())
        managed.offsets.begin(commit)
        return self._store_offsets(managed, commit, managed.offsets.end)

    def _store_offsets(
        self, managed: ManagedGroup, commit: OffsetCommit, ended: Callable[[OffsetCommit], None]
    ) -> Write:
        group_id, offsets = managed.group.group_id, managed.offsets

        def stored(error: ErrorCode) -> Iterator[None]:
            try:
                if few and not error:
                    yield from parts.stored()
            finally:
                ended(commit)
                self._deleted_topics.note_commit(group_id, commit)

        parts = CommitParts(group_id, offsets, commit)
        few = commit.size <= _MADE_AT_ONCE
        return self._writer.submit(group_id, dict(parts) if few else parts, stored)

    def offsets(self, group_id: str) -> GroupOffsets | None:
        """The committed offsets of a group, whatever its state; None if there is no such group."""
        managed = self.groups.get(group_id)
        return None if managed is None else managed.offsets

    def check_offset_delete(self, group_id: str) -> Generator[None, None, tuple[ErrorCode, Iterable[str]]]:
        """Whether offsets of a group may be deleted, and the topics whose offsets may not since members read them."""
        if self._closed:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, ()
        managed = self.groups.get(group_id)
        if managed is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, ()
        group = managed.group
        if group.state is GroupState.EMPTY:
            return ErrorCode.NONE, ()
        if group.protocol_type != CONSUMER:
            return ErrorCode.NON_EMPTY_GROUP, ()
        subscribed = yield from managed.subscribed()
        if self.groups.get(group_id) is not managed:
            return ErrorCode.GROUP_ID_NOT_FOUND, ()
        if subscribed is None:  # while it rebalances, or if its metadata cannot be read, all of it may be in use
            return ErrorCode.NONE, managed.offsets.topics()
        return ErrorCode.NONE, subscribed

    def delete_offsets(self, group_id: str, gone: OffsetCommit) -> Write:
        """Forget offsets, at once after `check_offset_delete`."""
        return self._store_offsets(self.groups[group_id], gone, lambda _commit: None)

    async def topic_deleted(self, topic: str) -> None:
        """A topic has gone: nobody sees its offsets any more when this returns; `forget_topic` removes them.

        To be called in the turn in which it went; cancelled or not, it does all that it is there for.
        """
        self._deleted_topics.add(topic)
        await to_the_end(self._drop_topic(topic), Pace(self._chores))

    def _drop_topic(self, topic: str) -> Iterator[None]:
        """Whatever comes to a group from now on is none of the topic: commits look at its record."""
        for managed in [*self.groups.values(), *chain.from_iterable(self._leaving.values())]:
            gone = managed.offsets.of_topic(topic)
            if gone:
                self._deleted_topics.note(topic, managed.group.group_id, gone)
                managed.offsets.drop_topic(topic)
            yield

    async def forget_topic(self, topic: str) -> None:
        """Remove the offsets of a deleted topic from the store, before another topic of that name can be made.

        Raises:
            KafkaError: If the store fails; it has to be called again.
        """
        await self._deleted_topics.remove(topic)

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
        self._leaving.setdefault(group_id, deque()).append(managed)
        self._count(managed, gone=True)
        self._timers.cancel(group_id)
        logger.info("group %s: deleted", group_id, extra=self._extra)
        parts = DeletionParts(group_id, managed.offsets)
        return self._writer.submit(group_id, parts, partial(self._deleted, managed, parts))

    def _deleted(self, managed: ManagedGroup, parts: DeletionParts, error: ErrorCode) -> Iterator[None]:
        try:
            if error:
                yield from self._put_back(managed, parts)
        finally:  # not before: a topic that is deleted meanwhile has its offsets here too
            leaving = self._leaving[managed.group.group_id]
            leaving.popleft()  # the deletions of one name are stored in their order
            if not leaving:
                del self._leaving[managed.group.group_id]

    def _put_back(self, managed: ManagedGroup, parts: DeletionParts) -> Iterator[None]:
        """The store still has what is left of a group: so it stays, or who came under its name has it."""
        yield from parts.drop_removed()
        group_id = managed.group.group_id
        leaving = self._leaving[group_id]
        again = leaving[1] if len(leaving) > 1 else self.groups.get(group_id)
        if again is None:
            again = self._create(group_id, managed.since_ms)
            again.offsets, again.unread = managed.offsets, managed.unread
            self._perform(again, again.group.restore(managed.group.snapshot(), self._clock.now()))
            return
        for partition, committed in managed.offsets.items():  # its own are newer
            if partition.topic in self._deleted_topics:
                self._deleted_topics.note(partition.topic, group_id, (partition.partition,))
            elif again.offsets.get(*partition) is None:
                again.offsets.put(partition, committed)
            yield

    # ---- the machinery ------------------------------------------------------------------------------------

    def _perform(self, managed: ManagedGroup, actions: Iterable[Action]) -> None:
        """Do what a group's state machine asks for, and heed its next deadline."""
        for action in actions:
            if not isinstance(action, Reply):
                self._store(managed, action)
            elif action.token is not NOBODY:
                self._answers.append(action)
        self._answer()
        group_id = managed.group.group_id
        if self.groups.get(group_id) is not managed:
            return  # deleted; the name may stand for another group by now
        self._count(managed)
        deadline = managed.group.next_deadline()
        if deadline is None:
            self._timers.cancel(group_id)
            return
        self._timers.schedule(group_id, deadline)
        if deadline < self._sleeping_until:
            self._wake.set()

    def _answer(self) -> None:
        """Answer what was parked: a few at once, the members of a large group one after the other."""
        if len(self._answers) <= _FEW:
            while self._answers:
                _give(self._answers.popleft())
        elif not self._flow.queued:
            self._flow.add(self._answer_some)

    def _answer_some(self, until: float) -> bool:
        clock = self._queue.clock
        while self._answers:
            _give(self._answers.popleft())
            if clock() >= until:
                break
        return bool(self._answers)

    def _count(self, managed: ManagedGroup, *, gone: bool = False) -> None:
        """How much memory groups take: a group, its members with their metadata, the ids that wait for an owner."""
        members = managed.group.members
        held = 0
        if not gone:
            held = _GROUP + members.size + _MEMBER * len(members) + _PENDING * len(members.pending_joins)
        self._held += held - managed.held
        managed.held = held

    def _store(self, managed: ManagedGroup, store: StoreSnapshot) -> None:
        group = managed.group
        if isinstance(store.ticket, EmptyStored):
            managed.since_ms = self._clock.wall_ms()
        row = partial(encode_group_steps, store.snapshot, self._clock.wall_ms())

        def done(error: ErrorCode) -> Iterable[None]:
            self._perform(managed, group.stored(store.ticket, error, self._clock.now()))
            return ()

        self._writer.submit(group.group_id, {keys.group_key(group.group_id): row}, done)

    async def _keep_time(self) -> None:
        while True:
            self._fire(self._clock.now())
            deadline = self._timers.next_deadline()
            assert deadline is not None, "the retention check is always scheduled again"
            self._sleeping_until = deadline
            await self._wake.wait(max(0.0, deadline - self._clock.now()))
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
        return self._clock.now() + self.settings.offsets_retention_check_interval_ms / 1000

    def expire_offsets(self) -> None:
        """Forget the offsets that have outlived `offsets.retention.minutes`, and groups that nothing is left of."""
        if self._dynamic.unreadable:
            logger.error("no offset expires: the broker settings, which may say how long, cannot be read")
            return
        clock = self._queue.clock
        job = in_slices(self._expire_all(self._clock.wall_ms()), clock)
        if job(clock() + SLICE):
            self._chores.add(job)

    def _expire_all(self, now_ms: int) -> Iterator[None]:
        for group_id, managed in list(self.groups.items()):
            if self.groups.get(group_id) is managed:
                yield from self._expire(group_id, managed, now_ms)
            yield

    def _expire(self, group_id: str, managed: ManagedGroup, now_ms: int) -> Iterator[None]:
        """One group's, a topic at a time: what is asked for in between is heeded."""
        offsets = managed.offsets
        commits, gone, kept = offsets.commits, 0, False
        for topic in list(offsets.topics()):
            rule = yield from self._expiry(managed)
            if self.groups.get(group_id) is not managed:
                return
            expired = OffsetCommit()
            record = self._topics.get(topic)
            if rule is not None and record is not None and topic not in rule.keep:
                for number in offsets.expired(topic, now_ms, rule):
                    expired.add(record, number, None)
            kept = kept or expired.size < len(offsets.topics().get(topic, ()))
            if expired.size:
                gone += expired.size
                self.delete_offsets(group_id, expired)
            yield
            if self.groups.get(group_id) is not managed:
                return
        if gone:
            logger.info("group %s: %d offsets have expired", group_id, gone, extra=self._extra)
        if managed.idle and not kept and not offsets.pending and offsets.commits == commits:
            self.delete(group_id)

    def _expiry(self, managed: ManagedGroup) -> Generator[None, None, Expiry | None]:
        """When a group's offsets may be forgotten; None if they may not now."""
        group = managed.group
        retention_ms = self.settings.offsets_retention_minutes * 60_000
        if group.protocol_type is None and not managed.unread:
            return Expiry(retention_ms, None, frozenset())
        if group.state is GroupState.EMPTY:
            return Expiry(retention_ms, managed.since_ms, frozenset())
        topics = None
        if group.state is GroupState.STABLE:
            topics = yield from managed.subscribed()
        return None if topics is None else Expiry(retention_ms, None, topics)


def _give(reply: Reply) -> None:
    # the group answers a token with the kind of result that it was parked for
    cast("Parked[JoinResult]", reply.token).set_result(cast("JoinResult", reply.result))


def _new_member_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4()}"


def _settings(config: BrokerConfig) -> GroupSettings:
    get: Callable[[str], int] = config.get_int
    return GroupSettings(
        group_initial_rebalance_delay_ms=get("group.initial.rebalance.delay.ms"),
        group_min_session_timeout_ms=get("group.min.session.timeout.ms"),
        group_max_session_timeout_ms=get("group.max.session.timeout.ms"),
        group_max_size=get("group.max.size"),
        group_max_metadata_bytes=get("group.max.metadata.bytes"),
        offset_metadata_max_bytes=get("offset.metadata.max.bytes"),
        offsets_retention_minutes=get("offsets.retention.minutes"),
        offsets_retention_check_interval_ms=get("offsets.retention.check.interval.ms"),
    )
