"""Which gateway leads a partition or coordinates a group, and under which epoch: asked here, and nowhere else.

Today one gateway serves a store and leads everything in it (`SoleLeader`). Handlers and tables ask a `Leadership` all
the same, so that several gateways need another one of these and no other handlers. Who else is there is `membership`'s.

What is led is a *unit*, as much as the store can fence as a whole: a partition, or all partitions that share a topic of
HTP, later a shard. Each has a leader epoch, which grows whenever its leader changes, and when its leader has it
raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kclient.gateway.unit_epochs import Unit

if TYPE_CHECKING:
    from kclient.gateway.contexts import Advertised
    from kclient.gateway.identity import Identity
    from kclient.gateway.membership import LiveGateways
    from kclient.gateway.rows.gateways import GatewayRow
    from kclient.gateway.topics.record import TopicRecord
    from kclient.gateway.unit_epochs import UnitEpochs


class GatewayNode(NamedTuple):
    """A gateway as clients know it: a broker of the cluster."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Leader(NamedTuple):
    """Who leads a partition."""

    node_id: int
    epoch: int
    """That of its unit: it grows whenever the leader changes, or raises it."""


class Leadership(Protocol):
    """Tells who leads and coordinates what at this moment. It is asked for each request, and must not wait."""

    def nodes(self, advertised: Advertised) -> Sequence[GatewayNode]:
        """All live gateways, this one first, then by number; those without a listener of that name are left out.

        Args:
            advertised: The address of this one for the client that asks; those of the others are of the same listener.
        """
        ...

    @property
    def controller_id(self) -> int:
        """The gateway that clients send their administration to."""
        ...

    def leader(self, record: TopicRecord, index: int) -> Leader:
        """Who leads a partition that there is."""
        ...

    def leads(self, record: TopicRecord, index: int) -> bool:
        """Whether that is this gateway."""
        ...

    def unit(self, record: TopicRecord, index: int) -> Unit:
        """The unit that a partition belongs to."""
        ...

    def epoch(self, unit: Unit) -> int:
        """The leader epoch of a unit that this gateway leads."""
        ...

    async def raise_epoch(self, unit: Unit, above: int, *, since: int) -> int:
        """Give a unit that this gateway leads a leader epoch above all that it had, and above this one.

        Whoever leads needs it to have the store seal what was sent before. Of several partitions of a unit the first
        one has it raised; the others, which know an older epoch, are told the same.

        Args:
            unit: The unit.
            above: The epoch is greater.
            since: The epoch that the caller knows. If the unit has a newer one, not below `above`, that is returned.

        Returns:
            The epoch; it is durable, and what `leader` tells.

        Raises:
            FencedError: Another gateway leads by now.
            HtpError: It could not be raised; trying again is right.
        """
        ...

    def greatest_epoch(self, topic_id: bytes) -> int:
        """The greatest leader epoch of a topic's units, of those that this gateway leads: under it they are removed."""
        ...

    def forget(self, topic_id: bytes) -> None:
        """A topic has been removed with all its rows."""
        ...

    def coordinator_id(self, key: str) -> int:
        """The gateway that coordinates a group (or, once there are any, transactions) of this name."""
        ...

    def coordinates(self, key: str) -> bool:
        """Whether that is this gateway."""
        ...


class SoleLeader:
    """The leadership of the only gateway.

    Args:
        identity: Of this gateway.
        rack: Where it stands (`broker.rack`).
        epochs: Of the units that have others than its own.
        gateways: Who else is there. They lead nothing.
    """

    def __init__(self, identity: Identity, rack: str | None, epochs: UnitEpochs, gateways: LiveGateways) -> None:
        self._leader = Leader(identity.node_id, identity.leader_epoch)
        self._rack = rack
        self._gateways = gateways
        self._epochs = epochs
        self._own = epochs.own

    def nodes(self, advertised: Advertised) -> Sequence[GatewayNode]:
        """This one, and the others that have a listener of the same name."""
        own = GatewayNode(self._leader.node_id, advertised.host, advertised.port, self._rack)
        return own, *_of_listener(self._gateways.others, advertised.listener)

    @property
    def controller_id(self) -> int:
        """This one."""
        return self._leader.node_id

    def leader(self, record: TopicRecord, index: int) -> Leader:
        """This one, under an epoch that grows with each start of a gateway on the store, or the unit's own."""
        if self._own:  # seldom: and of 100,000 partitions this is asked at once
            epoch = self._own.get(record.topic_id, {}).get(record.mapping.unit(index))
            if epoch is not None:
                return Leader(self._leader.node_id, epoch)
        return self._leader

    def leads(self, record: TopicRecord, index: int) -> bool:
        """It does."""
        return True

    def unit(self, record: TopicRecord, index: int) -> Unit:
        """As the topic's mapping says."""
        return Unit(record.topic_id, record.mapping.unit(index))

    def epoch(self, unit: Unit) -> int:
        """The unit's own, or the gateway's."""
        return self._epochs.of(unit)

    async def raise_epoch(self, unit: Unit, above: int, *, since: int) -> int:
        """Write the unit's row."""
        return await self._epochs.raise_epoch(unit, above, since=since)

    def greatest_epoch(self, topic_id: bytes) -> int:
        """That of the partitions' own, or the gateway's."""
        return self._epochs.greatest(topic_id)

    def forget(self, topic_id: bytes) -> None:
        """Forget what its partitions had of their own."""
        self._epochs.forget(topic_id)

    def coordinator_id(self, key: str) -> int:
        """This one."""
        return self._leader.node_id

    def coordinates(self, key: str) -> bool:
        """It does."""
        return True


def _of_listener(gateways: Iterable[GatewayRow], listener: str) -> Iterator[GatewayNode]:
    """The gateways that have a listener of this name, as its clients know them."""
    for gateway in gateways:
        at = gateway.endpoints.get(listener)
        if at is not None:
            yield GatewayNode(gateway.node_id, at.host, at.port, gateway.rack)
