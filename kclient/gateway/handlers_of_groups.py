"""Who answers what is asked of groups of all types, and of transactions, which commit offsets of groups, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.gateway.handlers.consumer_groups import ConsumerGroupDescribeHandler, ConsumerGroupHeartbeatHandler
from kclient.gateway.handlers.groups import (
    FindCoordinatorHandler,
    HeartbeatHandler,
    JoinGroupHandler,
    LeaveGroupHandler,
    SyncGroupHandler,
)
from kclient.gateway.handlers.groups_admin import DeleteGroupsHandler, DescribeGroupsHandler, ListGroupsHandler
from kclient.gateway.handlers.groups_offsets import OffsetCommitHandler, OffsetDeleteHandler, OffsetFetchHandler
from kclient.gateway.handlers.handler import Handler
from kclient.gateway.handlers.share_groups import ShareGroupDescribeHandler, ShareGroupHeartbeatHandler
from kclient.gateway.handlers.share_groups_offsets import (
    AlterShareGroupOffsetsHandler,
    DeleteShareGroupOffsetsHandler,
    DescribeShareGroupOffsetsHandler,
)
from kclient.gateway.handlers.streams_groups import StreamsGroupHeartbeatHandler
from kclient.gateway.handlers.streams_groups_describe import StreamsGroupDescribeHandler
from kclient.gateway.handlers.transactions import AddPartitionsToTxnHandler, EndTxnHandler, WriteTxnMarkersHandler
from kclient.gateway.handlers.transactions_admin import DescribeTransactionsHandler, ListTransactionsHandler
from kclient.gateway.handlers.transactions_offsets import AddOffsetsToTxnHandler, TxnOffsetCommitHandler

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.clock import Clock
    from kclient.gateway.features import Features
    from kclient.gateway.groups import GroupCoordinator
    from kclient.gateway.groups.sharing.administration import ShareGroupAdministration
    from kclient.gateway.groups.streaming.creating import StreamsTopics
    from kclient.gateway.leadership import Leadership
    from kclient.gateway.peer_calls.names import FromGateway
    from kclient.gateway.peers import LocalPeers, PartitionEnds, Peers
    from kclient.gateway.topics.table import TopicTable
    from kclient.gateway.transactions.coordinator import TransactionCoordinator


def group_handlers(
    leadership: Leadership,
    access: Access,
    groups: GroupCoordinator,
    shares: ShareGroupAdministration,
    clock: Clock,
    features: Features,
    topics: TopicTable,
) -> list[Handler]:
    """Who answers what is asked of groups of all types, and of consumer groups."""
    return [
        FindCoordinatorHandler(leadership, access),
        JoinGroupHandler(access, groups.membership),
        SyncGroupHandler(access, groups.membership),
        HeartbeatHandler(access, groups.membership),
        LeaveGroupHandler(access, groups.membership),
        ConsumerGroupHeartbeatHandler(access, groups.assigned, features),
        ConsumerGroupDescribeHandler(access, groups.table, topics),
        ListGroupsHandler(access, groups.table),
        DescribeGroupsHandler(access, groups.table),
        DeleteGroupsHandler(access, groups.deletion, shares),
        OffsetCommitHandler(access, groups.committed, clock),
        OffsetFetchHandler(access, groups.committed),
        OffsetDeleteHandler(access, groups.committed),
    ]


def share_group_handlers(
    access: Access,
    groups: GroupCoordinator,
    shares: ShareGroupAdministration,
    features: Features,
    topics: TopicTable,
    ends: PartitionEnds,
) -> list[Handler]:
    """Who answers what is asked of share groups."""
    return [
        ShareGroupHeartbeatHandler(access, groups.sharing, features),
        ShareGroupDescribeHandler(access, groups.table, topics, features),
        DescribeShareGroupOffsetsHandler(access, shares, topics, features, ends),
        AlterShareGroupOffsetsHandler(access, shares, topics, features),
        DeleteShareGroupOffsetsHandler(access, shares, topics, features),
    ]


def streams_group_handlers(
    access: Access, groups: GroupCoordinator, topics: StreamsTopics, features: Features
) -> list[Handler]:
    """Who answers what is asked of streams groups."""
    return [
        StreamsGroupHeartbeatHandler(access, groups.streaming, topics, features),
        StreamsGroupDescribeHandler(access, groups.table, features),
    ]


def transaction_handlers(
    access: Access,
    transactions: TransactionCoordinator,
    local: LocalPeers,
    peers: Peers,
    topics: TopicTable,
    from_gateway: FromGateway,
    groups: GroupCoordinator,
    clock: Clock,
) -> list[Handler]:
    """Who answers what is asked of transactions."""
    return [
        AddPartitionsToTxnHandler(access, transactions, topics, from_gateway),
        EndTxnHandler(access, transactions),
        WriteTxnMarkersHandler(access, local, topics, from_gateway),
        AddOffsetsToTxnHandler(access, transactions),
        TxnOffsetCommitHandler(access, groups.committed, groups.transactional, peers, clock),
        DescribeTransactionsHandler(access, transactions, topics),
        ListTransactionsHandler(access, transactions),
    ]
