"""How a streams group goes on: what its next target is made of, and where each member is with it.

This half of the state machine knows the members and the topology (what all groups with epochs have in common is in
`groups.progress`); the other half, `group`, takes the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final

from kclient.gateway.groups.assignors.sticky_tasks import assign_tasks
from kclient.gateway.groups.assignors.tasks import NOTHING_TO_DO, TaskMember, TaskSets, TaskView
from kclient.gateway.groups.changed_rows import RowFormat
from kclient.gateway.groups.events import Action, GroupSettings
from kclient.gateway.groups.progress import FIRST, REVOCATION, SESSION, GroupLife, GroupProgress, NextTarget
from kclient.gateway.groups.streaming.member import HeldTasks, StreamsMember
from kclient.gateway.groups.streaming.reconciling import reconcile_tasks
from kclient.gateway.groups.streaming.roster import StreamsRoster
from kclient.gateway.groups.streaming.states import (
    STREAMS_GROUP_LEADS_TO,
    STREAMS_GROUP_TABLE,
    StreamsGroupEvent,
    StreamsGroupState,
    TaskState,
)
from kclient.gateway.groups.streams_beats import QueryEndpoint
from kclient.gateway.rows.streams_groups import (
    STREAMS,
    StreamsGroupSnapshot,
    StreamsMemberSnapshot,
    encode_streams_group,
    encode_streams_member,
    encode_streams_member_steps,
)

if TYPE_CHECKING:
    from kclient.gateway.groups.streaming.configuring import Configured
    from kclient.gateway.groups.writer import Row
    from kclient.gateway.rows.streams_topology import Topology

_FIRST_EPOCH: Final = 1
"""The epoch that a group begins with, and that of the target of members that wait for others."""
_SHORT: Final = 500
"""Tasks that a row has which is made in one go."""
TOPOLOGY: Final = 6
"""About how many bytes of memory a topology takes for each byte that its row has."""

_LIFE: Final = GroupLife(
    STREAMS_GROUP_TABLE,
    STREAMS_GROUP_LEADS_TO,
    StreamsGroupEvent.REMOVED,
    empty=StreamsGroupState.EMPTY,
    assigning=StreamsGroupState.ASSIGNING,
    reconciling=StreamsGroupState.RECONCILING,
    stable=StreamsGroupState.STABLE,
    dead=StreamsGroupState.DEAD,
)


class StreamsProgress(GroupProgress[StreamsGroupState, StreamsMember, StreamsRoster, TaskSets]):
    """The epochs of a group, and its deadlines.

    Args:
        group_id: The name of the group.
        settings: The broker settings for groups.
    """

    type: str = STREAMS
    protocol_type: str | None = STREAMS
    _LATE: ClassVar[Mapping[str, str]] = {SESSION: "has not been heard of", REVOCATION: "has not given its tasks up"}

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        super().__init__(
            group_id,
            settings,
            _LIFE,
            epoch=_FIRST_EPOCH,
            members=StreamsRoster(),
            form=RowFormat(encode_streams_group, self._row),
            nothing=NOTHING_TO_DO,
        )
        self.topology: Topology | None = None
        self.configured: Configured | None = None
        """What follows from the topology; None before anybody has looked, as after a restart."""
        self._validated = -1
        """The epoch of the topology whose topics were all there; -1 if they were not."""
        self._standbys = -1
        """How many standby tasks there were to be when the group got its epoch."""
        self._digest = ""
        """Of the topics that the topology needs."""
        self._shutdown: str | None = None
        """The member that wants all to end."""

    @property
    def untouched(self) -> bool:
        """Whether nobody has ever been in it, so that nothing of it is stored."""
        return self.topology is None and self.state is StreamsGroupState.EMPTY and self._rows.settled

    @property
    def size(self) -> int:
        """About how many bytes of memory its members and its topology take."""
        return self.members.size + (0 if self.topology is None else TOPOLOGY * len(self.topology.text))

    # Time

    def _heard(self, member: StreamsMember, now: float) -> None:
        deadline = now + self.settings.group_streams_session_timeout_ms / 1000
        self._timers.schedule((SESSION, member.member_id), deadline)

    def _await_others(self, now: float) -> None:
        """Somebody comes into a group without members: there is no target before others had time to come, too."""
        delay_ms = self.settings.group_streams_initial_rebalance_delay_ms
        if delay_ms > 0 and not self._awaits_others:
            self._timers.schedule((FIRST, ""), now + delay_ms / 1000)

    @property
    def _awaits_others(self) -> bool:
        return (FIRST, "") in self._timers

    def _following(self) -> StreamsGroupState:
        if not len(self.members):
            self._shutdown = None
        elif self.topology is None or self._validated != self.topology.epoch:
            return StreamsGroupState.NOT_READY
        return super()._following()

    # Epochs and targets

    def _have(self, topology: Topology) -> None:
        """This is the group's topology, until it is deleted."""
        self.topology = topology

    @property
    def _assignment_interval_ms(self) -> int:
        return self.settings.group_streams_assignment_interval_ms

    @property
    def _may_assign(self) -> bool:
        return self.configured is not None and not self._awaits_others

    def _next(self) -> NextTarget[TaskSets]:
        configured = self.configured
        assert configured is not None
        members = {each.member_id: TaskMember(each.process_id, each.target) for each in self.members}
        standbys = self.settings.group_streams_num_standby_replicas
        work = partial(_targets, members, configured, standbys) if configured.ready else dict[str, TaskSets]
        return NextTarget(work, len(self.members) + sum(configured.tasks.values()))

    # Members

    def _advance_member(self, member: StreamsMember, owned: TaskSets | None, now: float) -> None:
        """Take a member a step towards its target, which is nothing while the group waits for others."""
        target = NOTHING_TO_DO if self._awaits_others else member.target
        assigned, revoking = member.assigned, member.revoking
        if reconcile_tasks(member, self.assignment_epoch, target, self.members, owned):
            self.members.hold(member, member.process_id, assigned, revoking)
            self._rows.change(member.member_id)
            if member.state is TaskState.UNREVOKED_TASKS:
                self._limit_revocation(member, now)
            else:
                self._timers.cancel((REVOCATION, member.member_id))
        self._note_lag(member)

    def _is_revoking(self, member: StreamsMember) -> bool:
        return member.state is TaskState.UNREVOKED_TASKS

    def _note_lag(self, member: StreamsMember) -> None:
        self.members.note(member, self.assignment_epoch)

    def _drop(self, member: StreamsMember) -> None:
        super()._drop(member)
        if not len(self.members):
            self._timers.cancel((FIRST, ""))

    # What is stored

    def snapshot(self) -> StreamsGroupSnapshot:
        """The group as it is stored, without its members."""
        return StreamsGroupSnapshot(
            self.group_id, self.group_epoch, self.assignment_epoch, self._digest, self._validated, self._standbys,
            self.topology,
        )  # fmt: skip

    def _row(self, member_id: str) -> Callable[[], Row]:
        member = self.members.get(member_id)
        if member is None:
            return lambda: None
        return partial(_row_of, _snapshot_of(member))

    def restore(self, snapshot: StreamsGroupSnapshot, now: float) -> Sequence[Action]:
        """Be what was stored; `restore_member` brings the members, and `restored` is called after them."""
        self._be_at(snapshot.group_epoch, snapshot.assignment_epoch)
        self._digest, self._validated, self._standbys = snapshot.digest, snapshot.validated_epoch, snapshot.standbys
        self.topology = snapshot.topology
        return ()

    def restore_member(self, snapshot: StreamsMemberSnapshot) -> None:
        """A member that was stored. Raises `ValueError` if its row makes no sense."""
        if snapshot.member_id in self.members:
            return  # the rows are read once more
        member = StreamsMember(snapshot.member_id)
        member.rack_id, member.rebalance_timeout_ms = snapshot.rack_id, snapshot.rebalance_timeout_ms
        member.client_id, member.client_host = snapshot.client_id, snapshot.client_host
        member.topology_epoch, member.process_id = snapshot.topology_epoch, snapshot.process_id
        member.endpoint = None if snapshot.endpoint is None else QueryEndpoint(*snapshot.endpoint)
        member.tags = snapshot.tags
        member.epoch, member.previous_epoch = snapshot.epoch, snapshot.previous_epoch
        member.state = TaskState(snapshot.state)
        member.assigned, member.revoking = HeldTasks(*snapshot.assigned), HeldTasks(*snapshot.revoking)
        member.target = TaskSets(*snapshot.target)
        self.members.add(member)


def _row_of(member: StreamsMemberSnapshot) -> Row:
    """The row of a member; where it is long it is made in steps."""
    held = chain(member.assigned, member.revoking, member.target)
    if sum(1 + len(numbers) for tasks in held for numbers in tasks.values()) > _SHORT:
        return partial(encode_streams_member_steps, member)
    return encode_streams_member(member)


def _targets(members: Mapping[str, TaskMember], configured: Configured, standbys: int) -> dict[str, TaskSets]:
    return assign_tasks(TaskView(members, configured.work, standbys))


def _snapshot_of(member: StreamsMember) -> StreamsMemberSnapshot:
    return StreamsMemberSnapshot(
        member.member_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.topology_epoch,
        member.process_id,
        member.endpoint,
        member.tags,
        member.epoch,
        member.previous_epoch,
        member.state.value,
        member.assigned,
        member.revoking,
        member.target,
    )
