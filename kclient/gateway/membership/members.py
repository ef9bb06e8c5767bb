"""Who of the other gateways is live, decided from rows and leases as they were seen; asks nobody and reads no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from kclient.gateway.membership.states import GATEWAY_TABLE, GatewayEvent, GatewayState
from kclient.gateway.rows.gateways import GatewayRow
from kclient.gateway.rows.keys import parse_gateway_key
from kclient.htp.leases import LeaseWatch
from kclient.htp.port import LeaseInfo
from kclient.state_tables import next_state

_NO_NEWS: Final = frozenset({(GatewayState.LIVE, GatewayEvent.HELD), (GatewayState.LOST, GatewayEvent.OVER)})
"""What is seen again and again."""


class LiveGateways(Protocol):
    """Tells which other gateways there are at this moment."""

    @property
    def others(self) -> tuple[GatewayRow, ...]:
        """Those that are live, without this one, by number; another object whenever it has changed."""
        ...


class _Member:
    """Another gateway."""

    __slots__ = ("row", "state", "version", "watch")

    def __init__(self, row: GatewayRow, version: int) -> None:
        self.row = row
        self.version = version
        """Of the row."""
        self.state = GatewayState.ABSENT
        self.watch = LeaseWatch()


class Members:
    """The other gateways.

    Args:
        node_id: This gateway's number: of itself it needs no news.
    """

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._members: dict[int, _Member] = {}
        self.others: tuple[GatewayRow, ...] = ()
        """Those that are live, by number; another object whenever it has changed."""

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, node_id: int) -> bool:
        return node_id in self._members

    def state(self, node_id: int) -> GatewayState:
        """What is known of the gateway of this number."""
        member = self._members.get(node_id)
        return GatewayState.ABSENT if member is None else member.state

    def row_seen(self, row: GatewayRow, version: int) -> None:
        """A gateway has this row.

        Args:
            row: What it says.
            version: The row's: what is older than what is known is no news.
        """
        if row.node_id == self._node_id:
            return
        member = self._members.get(row.node_id)
        if member is not None and version <= member.version:
            return
        if member is None:
            member = self._members[row.node_id] = _Member(row, version)
        elif row.epoch == member.row.epoch:  # the same run tells more
            member.row, member.version = row, version
            self._changed()
            return
        member.row, member.version, member.watch = row, version, LeaseWatch()
        self._happened(member, GatewayEvent.REGISTERED)
        self._changed()

    def row_gone(self, node_id: int, version: int) -> None:
        """The row of a gateway was removed, by the commit of this version."""
        member = self._members.get(node_id)
        if member is not None and version > member.version:
            self._happened(member, GatewayEvent.LEFT)
            del self._members[node_id]
            self._changed()

    def only(self, node_ids: Iterable[int]) -> None:
        """All rows were read, and no other gateways have any."""
        for node_id in self._members.keys() - set(node_ids):
            self.row_gone(node_id, self._members[node_id].version + 1)

    def leases_seen(self, found: Sequence[LeaseInfo], now: float) -> float | None:
        """The leases of gateways are like this.

        Args:
            found: All of them, as they were read.
            now: Seconds on a monotonic clock, always the same one, read after that.

        Returns:
            Seconds after which some lease may be over unless it is renewed; None if there is none to look at.
        """
        leases = leases_by_number(found)
        soonest: float | None = None
        for node_id, member in self._members.items():
            lease = leases.get(node_id)
            if lease is not None and lease.epoch < member.row.epoch:
                continue  # it was read before the row was written
            left = 0.0
            if lease is not None and lease.epoch == member.row.epoch:
                left = member.watch.see(lease, now)
            self._happened(member, GatewayEvent.HELD if left else GatewayEvent.OVER)
            if left:
                soonest = left if soonest is None else min(soonest, left)
        self._changed()
        return soonest

    def watch_anew(self) -> None:
        """That no lease of a live gateway was renewed for a while says nothing: nobody could."""
        for member in self._members.values():
            if member.state is GatewayState.LIVE:
                member.watch = LeaseWatch()

    @staticmethod
    def _happened(member: _Member, event: GatewayEvent) -> None:
        if (member.state, event) in _NO_NEWS:
            return
        member.state = next_state(GATEWAY_TABLE, member.state, event, f"gateway {member.row.node_id}")

    def _changed(self) -> None:
        live = [member.row for member in self._members.values() if member.state is GatewayState.LIVE]
        live.sort(key=lambda row: row.node_id)
        if tuple(live) != self.others:
            self.others = tuple(live)


def leases_by_number(found: Iterable[LeaseInfo]) -> dict[int, LeaseInfo]:
    """The leases of gateways, by their numbers."""
    leases = {}
    for each in found:
        with suppress(ValueError):  # somebody else's, who calls it like this
            leases[parse_gateway_key(each.name)] = each
    return leases
