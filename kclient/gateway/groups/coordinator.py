"""The group coordinator of one gateway: puts its parts together, starts and ends them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from kclient.gateway.groups.clockwork import Clockwork
from kclient.gateway.groups.committed import CommittedOffsets
from kclient.gateway.groups.consumers.membership import AssignedMembership
from kclient.gateway.groups.deleted_topics import DeletedTopics
from kclient.gateway.groups.deletion import GroupDeletion
from kclient.gateway.groups.events import GroupSettings
from kclient.gateway.groups.expiry import OffsetExpiry
from kclient.gateway.groups.kinds import KINDS
from kclient.gateway.groups.loading import GroupLoader
from kclient.gateway.groups.membership import ClassicMembership
from kclient.gateway.groups.memory import GroupMemory
from kclient.gateway.groups.moving import GroupMoves
from kclient.gateway.groups.sharing.membership import SharedMembership
from kclient.gateway.groups.streaming.membership import StreamsMembership
from kclient.gateway.groups.table import GroupTable, without_overrides
from kclient.gateway.groups.transactional import TransactionalOffsets
from kclient.gateway.groups.writer import GroupWriter

if TYPE_CHECKING:
    from kclient.gateway.clock import Clock
    from kclient.gateway.config import BrokerConfig, Live
    from kclient.gateway.groups.group import GroupKind
    from kclient.gateway.groups.writer import Claims
    from kclient.gateway.identity import Identity
    from kclient.gateway.leadership import Leadership
    from kclient.gateway.ownership import HeldLease
    from kclient.gateway.topics.table import TopicTable
    from kclient.gateway.workers import Workers
    from kclient.htp.port import Manager
    from kclient.memory_ledger import MemoryPart
    from kclient.net.fair_queue import FairQueue

logger: logging.Logger = logging.getLogger("kclient.gateway.groups")

_EXPIRY: Final = None
"""The key of the next look at what has expired, among the names of groups."""


class GroupCoordinator:
    """The group coordinator of one gateway. Who takes requests is given the part that they are for.

    Args:
        topics: Of which offsets may be committed.
        settings: Those of the broker for groups, as they are at the time.
        unreadable: Whether those that were changed could not be read: nobody knows how long offsets are kept.
        leadership: Tells which groups are coordinated here.
        manager: Keeps groups and offsets.
        lease: Under which it does.
        identity: For the log.
        queue: Shares the event loop with others.
        clock: What time it is.
        memory: What the gateway holds.
        spawn: Starts a task of the gateway.
        workers: Threads for large assignments.
        overrides: Tells the settings of a group, given those of the broker.
        kinds: The types of groups that there are.
        claims: Tell what rows say that this gateway coordinates a group; None where the lease alone does.
    """

    def __init__(
        self,
        topics: TopicTable,
        settings: Live[GroupSettings],
        leadership: Leadership,
        *,
        unreadable: Live[bool],
        manager: Manager,
        lease: HeldLease,
        identity: Identity,
        queue: FairQueue,
        clock: Clock,
        memory: MemoryPart,
        spawn: Callable[..., object],
        workers: Workers,
        overrides: Callable[[str, GroupSettings], GroupSettings] = without_overrides,
        kinds: Mapping[str, GroupKind] = KINDS,
        claims: Claims | None = None,
    ) -> None:
        self._settings = settings
        self._spawn = spawn
        self._log_fields = identity.log_fields()
        self._memory = GroupMemory(memory, clock, self._log_fields)
        self._clockwork: Clockwork[str | None] = Clockwork(clock)
        self._writer = GroupWriter(manager, lease, queue.flow(), self._memory.writes, claims)
        chores = queue.flow()
        """For what has expired and the offsets of deleted topics; the answers have one of their own."""
        deleted_topics = DeletedTopics(self._writer, chores, self._memory.offsets)
        self.table: GroupTable = GroupTable(
            kinds,
            settings(),
            memory=self._memory,
            clock=clock,
            writer=self._writer,
            clockwork=self._clockwork,
            queue=queue,
            workers=workers,
            overrides=overrides,
        )
        self.assigned: AssignedMembership = AssignedMembership(self.table, topics, self._memory, clock)
        self.sharing: SharedMembership = SharedMembership(self.table, topics, self._memory, clock)
        self.streaming: StreamsMembership = StreamsMembership(self.table, topics, self._memory, clock)
        self.membership: ClassicMembership = ClassicMembership(self.table, self.assigned, self._memory, clock)
        self.deletion: GroupDeletion = GroupDeletion(
            self.table, self._writer, deleted_topics, self._memory, clock, self._log_fields
        )
        self.committed: CommittedOffsets = CommittedOffsets(
            self.table, self._writer, deleted_topics, self.deletion, self._memory, clock, chores
        )
        self.expiry: OffsetExpiry = OffsetExpiry(
            self.table, topics, self.committed, self.deletion,
            unreadable=unreadable, clock=clock, chores=chores, log_fields=self._log_fields,
        )  # fmt: skip
        self.transactional: TransactionalOffsets = TransactionalOffsets(
            self.table, self.committed, self._writer, self.deletion, topics, manager, queue.flow()
        )
        self.loader: GroupLoader = GroupLoader(
            self.table,
            manager=manager, writer=self._writer, topics=topics, deleted_topics=deleted_topics,
            transactional=self.transactional, unreadable=unreadable, clock=clock,
        )  # fmt: skip
        self.moves: GroupMoves = GroupMoves(self.table, self.loader, self._writer, leadership, queue.flow())

    async def start(self) -> None:
        """Load what is stored and begin to keep time; the catalogue of topics has been loaded before."""
        await self.moves.load()
        if self.table.groups:
            logger.info("loaded %d groups", len(self.table.groups), extra=self._log_fields)
        self._clockwork.schedule(_EXPIRY, self.expiry.next_check())
        self._spawn(self._writer.run, name="group writer")
        self._spawn(self._keep_time, name="group timers")
        self._spawn(self._follow, name="groups that move")
        self._spawn(self.transactional.run, name="offsets of transactions")

    async def _follow(self) -> None:
        await self.moves.run()

    async def _keep_time(self) -> None:
        await self._clockwork.run(self._fire)

    def _fire(self, group_id: str | None, now: float) -> None:
        if group_id is not None:
            self.table.advance(group_id, now)
            return
        self._clockwork.schedule(_EXPIRY, self.expiry.next_check())
        self.expiry.expire()

    def reconfigure(self) -> None:
        """Take over changed broker settings."""
        settings = self._settings()
        if settings != self.table.settings:
            self.table.reconfigure(settings)
            self._clockwork.schedule(_EXPIRY, self.expiry.next_check())

    async def aclose(self) -> None:
        """Answer everything that is parked, and store what is under way. Groups and offsets stay as stored."""
        self.table.close()
        await self._writer.drain()


def group_settings(config: BrokerConfig) -> GroupSettings:
    """The settings for groups among those of the broker."""
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
        group_consumer_session_timeout_ms=get("group.consumer.session.timeout.ms"),
        group_consumer_heartbeat_interval_ms=get("group.consumer.heartbeat.interval.ms"),
        group_consumer_migration_policy=config.get_text("group.consumer.migration.policy"),
        group_consumer_max_size=get("group.consumer.max.size"),
        group_consumer_assignment_interval_ms=get("group.consumer.assignment.interval.ms"),
        group_share_session_timeout_ms=get("group.share.session.timeout.ms"),
        group_share_heartbeat_interval_ms=get("group.share.heartbeat.interval.ms"),
        group_share_max_size=get("group.share.max.size"),
        group_share_assignment_interval_ms=get("group.share.assignment.interval.ms"),
        group_streams_session_timeout_ms=get("group.streams.session.timeout.ms"),
        group_streams_heartbeat_interval_ms=get("group.streams.heartbeat.interval.ms"),
        group_streams_max_size=get("group.streams.max.size"),
        group_streams_num_standby_replicas=get("group.streams.num.standby.replicas"),
        group_streams_initial_rebalance_delay_ms=get("group.streams.initial.rebalance.delay.ms"),
        group_streams_assignment_interval_ms=get("group.streams.assignment.interval.ms"),
    )
