"""Tells clients that have asked the wrong gateway who leads a partition, and where that is (KIP-951)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kclient.errors import ErrorCode
from kclient.protocol.messages.fetch import (
    FetchResponseLeaderIdAndEpoch,
    FetchResponseNodeEndpoint,
    FetchResponsePartitionData,
)
from kclient.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceResponseLeaderIdAndEpoch,
    ProduceResponseNodeEndpoint,
)

if TYPE_CHECKING:
    from kclient.gateway.contexts import Advertised
    from kclient.gateway.leadership import Leader, Leadership

PRODUCE_SINCE: Final = 10
FETCH_SINCE: Final = 16
"""The versions from which on answers have a place for it."""
MOVED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors of reading after which a client looks for the leader, or its epoch."""


def tell_producer(
    endpoints: list[ProduceResponseNodeEndpoint],
    row: PartitionProduceResponse,
    leader: Leader,
    leadership: Leadership,
    advertised: Advertised,
) -> None:
    """Say in the answer to Produce, of version 10 at least, who leads a partition.

    Args:
        endpoints: The answer's: where those leaders are that it names.
        row: The partition's in the answer.
        leader: Who leads it.
        leadership: Knows the gateways.
        advertised: The address of this gateway for the client that asks.
    """
    row.current_leader = ProduceResponseLeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)
    if any(each.node_id == leader.node_id for each in endpoints):
        return
    for node in leadership.nodes(advertised):
        if node.node_id == leader.node_id:
            endpoints.append(ProduceResponseNodeEndpoint(**node._asdict()))


def tell_consumer(
    endpoints: list[FetchResponseNodeEndpoint],
    row: FetchResponsePartitionData,
    leader: Leader,
    leadership: Leadership,
    advertised: Advertised,
) -> None:
    """The same in the answer to Fetch, of version 16 at least."""
    row.current_leader = FetchResponseLeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)
    if any(each.node_id == leader.node_id for each in endpoints):
        return
    for node in leadership.nodes(advertised):
        if node.node_id == leader.node_id:
            endpoints.append(FetchResponseNodeEndpoint(**node._asdict()))
