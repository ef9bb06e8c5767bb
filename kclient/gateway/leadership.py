"""Which gateway leads a partition or coordinates a group, and under which epoch: asked here, and nowhere else.

Handlers and tables ask a `Leadership`. `AssignedLeadership` obeys the generations of gateways (`assignment/`), of which
the newest names one, today: the only gateway that serves the store. Who else is there is `membership`'s.

What is led is a *unit*, as much as the store can fence as a whole: a partition, or all partitions that share a topic of
HTP, later a shard. Each has a leader epoch, which grows whenever its leader changes, and when its leader has it
raised. A group, or a transactional id, is coordinated by whoever leads the partition of Kafka's own topic that stands
for it, as on Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from kclient.gateway.contexts import IN_PROCESS
from kclient.gateway.coordination import CoordinatorType, partition_for
from kclient.gateway.local import local_port
from kclient.gateway.unit import Unit

if TYPE_CHECKING:
    from kclient.gateway.cluster_generations import ClusterGenerations
    from kclient.gateway.contexts import Advertised
    from kclient.gateway.identity import Identity
    from kclient.gateway.membership import LiveGateways
    from kclient.gateway.rows.gateways import GatewayRow
    from kclient.gateway.topics.internal import InternalTopic
    from kclient.gateway.topics.record import TopicRecord
    from kclient.gateway.unit_epochs import UnitEpochs

_KEYS: Final = 10_000
"""Groups and transactional ids whose partitions are remembered."""


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


class Tenure(Enum):
    """What has become of a partition that this gateway has led under some epoch."""

    LED = "led"
    """It leads it still."""
    RISEN = "risen"
    """It leads it still, under a greater epoch: of when that was its first generation nobody knows any more."""
    LOST = "lost"
    """Another gateway leads it, or has led it meanwhile."""


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

    @property
    def generation(self) -> int:
        """The number of the generation of gateways that is in force."""
        ...

    def on_change(self, callback: Callable[[], object]) -> None:
        """Have `callback()` called whenever there is another generation; it must not wait."""
        ...

    def leader(self, record: TopicRecord, index: int) -> Leader:
        """Who leads a partition that there is."""
        ...

    def leads(self, record: TopicRecord, index: int) -> bool:
        """Whether that is this gateway."""
        ...

    def tenure(self, record: TopicRecord, index: int, epoch: int) -> Tenure:
        """What has become of a partition that this gateway has led under an epoch."""
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
        """A leader epoch that none of a topic's units is above: under it they are removed."""
        ...

    def forget(self, topic_id: bytes) -> None:
        """A topic has been removed with all its rows."""
        ...

    def coordinator_id(self, kind: CoordinatorType, key: str) -> int:
        """The gateway that coordinates a group, or a transactional id, of this name."""
        ...

    def coordinator_epoch(self, kind: CoordinatorType, key: str) -> int:
        """The number of the generation since which that has been the same run of it."""
        ...

    def coordinates(self, kind: CoordinatorType, key: str) -> bool:
        """Whether that is this gateway."""
        ...


class AssignedLeadership:
    """The leadership that follows from the generations of gateways.

    Args:
        identity: Of this gateway.
        rack: Where it stands (`broker.rack`).
        generations: They.
        epochs: Of the units that have others than the generations give them.
        gateways: Who else is there.
        internal: Kafka's own topics, whose partitions stand for what is coordinated.
    """

    def __init__(
        self,
        identity: Identity,
        rack: str | None,
        generations: ClusterGenerations,
        epochs: UnitEpochs,
        gateways: LiveGateways,
        internal: Mapping[CoordinatorType, InternalTopic],
    ) -> None:
        self._node_id = identity.node_id
        self._rack = rack
        self._gateways = gateways
        self._generations = generations
        self._epochs = epochs
        self._own = epochs.own
        self._everything: Leader | None = None
        """Who leads all there is, under one epoch but for those of units; None if there is no such."""
        self._leads_some = True
        """Whether this run of the gateway is in the newest generation."""
        self._leaders: dict[bytes, dict[int, Leader]] = {}
        """Of units that were asked for, by topic and number, else."""
        self._internal = internal
        self._keys: dict[tuple[CoordinatorType, str], int] = {}
        """The partitions that stand for groups and transactional ids that were asked for."""
        generations.on_change(self._renew)
        self._renew()

    def _renew(self) -> None:
        current = self._generations.current
        self._leads_some = self._generations.serving
        everything = current.everything
        self._everything = None if everything is None else Leader(*everything)
        self._leaders = {}

    def nodes(self, advertised: Advertised) -> Sequence[GatewayNode]:
        """This one, and the others that have a listener of the same name."""
        own = GatewayNode(self._node_id, advertised.host, advertised.port, self._rack)
        return own, *_of_listener(self._gateways.others, advertised.listener)

    @property
    def controller_id(self) -> int:
        """The one with the smallest number."""
        return self._generations.current.controller_id

    @property
    def generation(self) -> int:
        """That of the newest that is known."""
        return self._generations.current.newest.number

    def on_change(self, callback: Callable[[], object]) -> None:
        """After this has changed what it tells."""
        self._generations.on_change(callback)

    def leader(self, record: TopicRecord, index: int) -> Leader:
        """As the generations say, under the epoch that they give or the unit's own."""
        leader = self._everything
        if leader is None:
            leader = self._assigned(record.topic_id, record.mapping.unit(index))
        if self._own:  # seldom: and of 100,000 partitions this is asked at once
            epoch = self._own.get(record.topic_id, {}).get(record.mapping.unit(index), 0)
            if epoch > leader.epoch:
                return Leader(leader.node_id, epoch)
        return leader

    def _assigned(self, topic_id: bytes, number: int) -> Leader:
        of_topic = self._leaders.get(topic_id)
        if of_topic is None:
            of_topic = self._leaders[topic_id] = {}
        found = of_topic.get(number)
        if found is None:
            assigned = self._generations.current.leader(Unit(topic_id, number).fingerprint)
            found = of_topic[number] = Leader(*assigned)
        return found

    def leads(self, record: TopicRecord, index: int) -> bool:
        """Whether the generations say so, and of this run of the gateway."""
        if not self._leads_some or self._everything is not None:
            return self._leads_some
        return self._assigned(record.topic_id, record.mapping.unit(index)).node_id == self._node_id

    def tenure(self, record: TopicRecord, index: int, epoch: int) -> Tenure:
        """As the generations say, of which some may not have been noticed by themselves."""
        if not self.leads(record, index):
            return Tenure.LOST
        leader = self._everything or self._assigned(record.topic_id, record.mapping.unit(index))
        if leader.epoch <= epoch:
            return Tenure.LED
        unit = self.unit(record, index).fingerprint
        taken_away = self._generations.current.taken_away(unit, self._node_id, self._generations.run)
        return Tenure.LOST if taken_away > epoch else Tenure.RISEN

    def unit(self, record: TopicRecord, index: int) -> Unit:
        """As the topic's mapping says."""
        return Unit(record.topic_id, record.mapping.unit(index))

    def epoch(self, unit: Unit) -> int:
        """The one that the generations give, or the unit's own."""
        return self._epochs.of(unit)

    async def raise_epoch(self, unit: Unit, above: int, *, since: int) -> int:
        """Write the unit's row."""
        return await self._epochs.raise_epoch(unit, above, since=since)

    def greatest_epoch(self, topic_id: bytes) -> int:
        """The number of the newest generation, or the greatest of the units' own."""
        return self._epochs.greatest(topic_id)

    def forget(self, topic_id: bytes) -> None:
        """Forget what its units had."""
        self._epochs.forget(topic_id)
        self._leaders.pop(topic_id, None)

    def _coordinator(self, kind: CoordinatorType, key: str) -> Leader:
        if self._everything is not None:
            return self._everything
        topic = self._internal[kind]
        number = self._keys.get((kind, key))
        if number is None:
            if len(self._keys) >= _KEYS:  # the names are whatever clients ask for
                self._keys.clear()
            number = self._keys[kind, key] = partition_for(key, topic.partitions)
        return self._assigned(topic.topic_id, number)

    def coordinator_id(self, kind: CoordinatorType, key: str) -> int:
        """The leader of the partition that stands for it."""
        return self._coordinator(kind, key).node_id

    def coordinator_epoch(self, kind: CoordinatorType, key: str) -> int:
        """The epoch of that partition."""
        return self._coordinator(kind, key).epoch

    def coordinates(self, kind: CoordinatorType, key: str) -> bool:
        """Whether the generations say so, and of this run of the gateway."""
        return self._leads_some and self.coordinator_id(kind, key) == self._node_id


def _of_listener(gateways: Iterable[GatewayRow], listener: str) -> Iterator[GatewayNode]:
    """The gateways that have a listener of this name, as its clients know them."""
    for gateway in gateways:
        at = gateway.endpoints.get(listener)
        if at is not None:
            port = local_port(gateway.node_id) if listener == IN_PROCESS else at.port
            yield GatewayNode(gateway.node_id, at.host, port, gateway.rack)
