"""Takes the requests of members of streams groups: StreamsGroupHeartbeat."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from kclient.errors import CoordinatorLoadInProgressError
from kclient.gateway.groups.classic import ClassicGroup
from kclient.gateway.groups.heartbeats import BeatMembership, admit_member, group_of_type
from kclient.gateway.groups.streaming.group import Looked, StreamsGroup, look
from kclient.gateway.groups.streaming.progress import TOPOLOGY
from kclient.gateway.groups.streams_beats import StreamsBeat, StreamsBeatResult
from kclient.gateway.rows.streams_groups import STREAMS

if TYPE_CHECKING:
    from kclient.gateway.groups.events import Action, Token
    from kclient.gateway.groups.group import ManagedGroup
    from kclient.gateway.groups.table import GroupTable
    from kclient.gateway.rows.streams_topology import Topology

_MEMBER: Final = 3_000
"""About how many bytes of memory a new member takes, beside its names."""
_SHORT: Final = 5_000
"""Bytes of a topology that is looked at in one go."""


class InformedBeat(NamedTuple):
    """A heartbeat, and what `StreamsMembership.look` has found out just before."""

    beat: StreamsBeat
    looked: Looked | None = None

    @property
    def epoch(self) -> int:
        """The member's."""
        return self.beat.epoch


class StreamsMembership(BeatMembership[StreamsGroup, InformedBeat, StreamsBeatResult]):
    """Who is in which streams group."""

    def _known(self, group_id: str) -> tuple[ManagedGroup, StreamsGroup]:
        return streams_group(self._table, group_id)

    def look(self, group_id: str, topology: Topology | None) -> Generator[None, None, Looked | None]:
        """Find out in steps what `heartbeat` needs; None if that is little, or known.

        Args:
            group_id: The group.
            topology: What a member brings along.
        """
        managed = self._table.groups.get(group_id)
        group = None if managed is None else managed.group
        if isinstance(group, StreamsGroup):
            if group.knows(self._topics):
                return None
            topology = group.topology or topology
        if topology is None or len(topology.text) <= _SHORT:
            return None
        return (yield from look(topology, self._topics))

    def _take(self, group: StreamsGroup, beat: InformedBeat, token: Token) -> Sequence[Action]:
        return group.heartbeat(beat.beat, token, self._topics, self._clock.now(), beat.looked)

    def _joined(self, group_id: str, beat: InformedBeat) -> tuple[ManagedGroup, StreamsGroup]:
        table = self._table
        managed = table.groups.get(group_id)
        known = None if managed is None else managed.group
        if not isinstance(known, StreamsGroup) or beat.beat.member_id not in known.members:
            self._admit(group_id, beat.beat, known if isinstance(known, StreamsGroup) else None, new=known is None)
        if managed is None:
            table.create(group_id, kind=STREAMS)
        elif isinstance(known, ClassicGroup) and known.idle:
            alone = StreamsGroup(group_id, table.settings_of(group_id))
            alone.check(beat.beat, self._topics, beat.looked)  # who is refused changes nothing
            table.convert(managed, STREAMS)
        return streams_group(table, group_id)

    def _admit(self, group_id: str, beat: StreamsBeat, group: StreamsGroup | None, *, new: bool) -> None:
        """Ask for the memory of a member that joins, and of the topology that it brings along."""
        names = (beat.member_id, beat.client_id, beat.client_host, beat.rack_id, beat.process_id)
        size = _MEMBER + sum(sys.getsizeof(name or "") for name in names)
        size += _size_of(beat.tags or ()) + (0 if beat.endpoint is None else len(beat.endpoint.host))
        if beat.topology is not None and (group is None or group.topology is None):
            size += TOPOLOGY * len(beat.topology.text)
        admit_member(self._memory, group_id, size, new=new)

    def _admit_more(self, group_id: str, group: StreamsGroup, informed: InformedBeat) -> None:
        beat = informed.beat
        member = group.members.get(beat.member_id)
        if member is None or (beat.tags is None and beat.endpoint is None):
            return
        size = 0
        if beat.tags is not None:
            size += _size_of(beat.tags) - _size_of(member.tags)
        if beat.endpoint is not None:
            size += len(beat.endpoint.host) - (0 if member.endpoint is None else len(member.endpoint.host))
        if size > 0 and not self._memory.admits_member(group_id, size, new=False):
            raise CoordinatorLoadInProgressError("there is no memory for more of members: it is tried again")

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """How often members of a group are to be heard of, in milliseconds."""
        return self._table.settings_of(group_id).group_streams_heartbeat_interval_ms


def _size_of(tags: Iterable[tuple[str, str]]) -> int:
    return sum(sys.getsizeof(key) + sys.getsizeof(value) for key, value in tags)


def streams_group(table: GroupTable, group_id: str) -> tuple[ManagedGroup, StreamsGroup]:
    """The streams group of this name.

    Args:
        table: All groups.
        group_id: The name.

    Raises:
        GroupIdNotFoundError: There is none, or a group of another type has the name.
    """
    return group_of_type(table, group_id, StreamsGroup, STREAMS)
