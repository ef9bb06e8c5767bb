"""Which gateway leads a partition or coordinates a group: asked here, and nowhere else.

Today one gateway serves a store and leads everything in it (`SoleLeader`). Handlers and tables ask a `Leadership` all
the same, so that several gateways need another one of these and no other handlers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kclient.gateway.contexts import Advertised
    from kclient.gateway.identity import Identity
    from kclient.gateway.topic_record import TopicRecord


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
    """The partition's leader epoch: it grows whenever the leader changes."""


class Leadership(Protocol):
    """Tells who leads and coordinates what at this moment. It is asked for each request, and must not wait."""

    def nodes(self, advertised: Advertised) -> Sequence[GatewayNode]:
        """All gateways, this one first.

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
    """

    def __init__(self, identity: Identity, rack: str | None) -> None:
        self._leader = Leader(identity.node_id, identity.leader_epoch)
        self._rack = rack

    def nodes(self, advertised: Advertised) -> Sequence[GatewayNode]:
        """This one."""
        return (GatewayNode(self._leader.node_id, advertised.host, advertised.port, self._rack),)

    @property
    def controller_id(self) -> int:
        """This one."""
        return self._leader.node_id

    def leader(self, record: TopicRecord, index: int) -> Leader:
        """This one, under an epoch that grows with each start of a gateway on the store."""
        return self._leader

    def leads(self, record: TopicRecord, index: int) -> bool:
        """It does."""
        return True

    def coordinator_id(self, key: str) -> int:
        """This one."""
        return self._leader.node_id

    def coordinates(self, key: str) -> bool:
        """It does."""
        return True
