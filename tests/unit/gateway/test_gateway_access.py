"""Every handler asks who may do what, in one place: a second authorizer, with rules, beside the one that allows all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from kclient.acls import AclOperation, ResourceType
from kclient.errors import ErrorCode
from kclient.gateway import Gateway
from kclient.gateway.access import CLUSTER_NAME, OPERATIONS
from kclient.gateway.contexts import ANONYMOUS, ConnectionContext
from kclient.protocol import messages as m
from kclient.protocol.message import ApiMessage, Message
from kclient.protocol.registry import ApiKey
from tests.gateway_wire import Wire, batch_of, connect, fetch_request, produce_request, running

pytestmark = pytest.mark.anyio

Right = tuple[AclOperation, ResourceType, str]
INTERNAL = ("__consumer_offsets", "__transaction_state")
O, R = AclOperation, ResourceType  # noqa: E741
TOPIC, GROUP, CLUSTER = (R.TOPIC, "t"), (R.GROUP, "g"), (R.CLUSTER, CLUSTER_NAME)
REFUSED = {
    R.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    R.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    R.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    R.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Rules:
    """Allows what was granted, and nothing else."""

    def __init__(self, *granted: Right) -> None:
        self.granted = set(granted)
        self.asked: list[Right] = []

    def allows(self, client: ConnectionContext, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        assert client.principal is ANONYMOUS
        assert operation in OPERATIONS[kind] or (operation, kind) == (O.DELETE, R.CLUSTER)  # which ALL is as well
        self.asked.append((operation, kind, name))
        return (operation, kind, name) in self.granted

    def allows_any(self, client: ConnectionContext, operation: AclOperation, kind: ResourceType) -> bool:
        return any(right[:2] == (operation, kind) for right in self.granted)


@dataclass
class Case:
    """A request, and every right that it needs."""

    make: Callable[[bytes], ApiMessage]
    """Of the id of topic `t`."""
    version: int
    needs: tuple[Right, ...]


def partitions(request: Any, topic: Any) -> Any:
    request.topics = [topic]
    return request


def commit(topic_id: bytes) -> ApiMessage:
    row = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = m.OffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=[row])
    return m.OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=[topic])


def fetch_offsets(topic_id: bytes) -> ApiMessage:
    topic = m.OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[0])
    return m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="g", topics=[topic])])


def produce(topic_id: bytes, version: int) -> ApiMessage:
    request = produce_request("t", batch_of(b"b"))
    request.topic_data[0].topic_id = topic_id if version >= 13 else bytes(16)
    return request


def produce_in_a_transaction() -> ApiMessage:
    batch = batch_of(b"b", transactional=True, producer_id=1, producer_epoch=0, sequence=0)
    return produce_request("t", batch, transactional_id="x")


def fetch(topic_id: bytes) -> ApiMessage:
    request = fetch_request("t", 0)
    request.topics[0].topic_id = topic_id
    return request


def commit_in_a_transaction(_: bytes) -> ApiMessage:
    row = m.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = m.TxnOffsetCommitRequestTopic(name="t", partitions=[row])
    return m.TxnOffsetCommitRequest(transactional_id="x", group_id="g", producer_id=1, topics=[topic])


def end_of_transaction() -> ApiMessage:
    topic = m.WritableTxnMarkerTopic(name="t", partition_indexes=[0])
    return m.WriteTxnMarkersRequest(markers=[m.WritableTxnMarker(producer_id=1, producer_epoch=0, topics=[topic])])


def consumer_heartbeat(_: bytes) -> ApiMessage:
    return m.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )


WRITER = (O.WRITE, R.TRANSACTIONAL_ID, "x")
ON_GROUP = (O.READ, *GROUP)
SHARES = (R.GROUP, "s")
CASES: dict[str, Case] = {
    "produce": Case(lambda topic_id: produce(topic_id, 9), 9, ((O.WRITE, *TOPIC),)),
    "produce by id": Case(lambda topic_id: produce(topic_id, 13), 13, ((O.WRITE, *TOPIC),)),
    "produce in a transaction": Case(
        lambda _: produce_in_a_transaction(), 9, ((O.WRITE, *TOPIC), (O.WRITE, R.TRANSACTIONAL_ID, "x"))
    ),
    "fetch": Case(fetch, 12, ((O.READ, *TOPIC),)),
    "fetch by id": Case(fetch, 16, ((O.READ, *TOPIC),)),
    "share fetch": Case(
        lambda topic_id: m.ShareFetchRequest(
            group_id="g", member_id="a", max_records=1,
            topics=[
                m.ShareFetchRequestTopic(
                    topic_id=topic_id, partitions=[m.ShareFetchRequestPartition(partition_index=0)]
                )
            ],
        ), 2, ((O.READ, *GROUP), (O.READ, *TOPIC)),
    ),
    "share acknowledge": Case(
        lambda _: m.ShareAcknowledgeRequest(group_id="g", member_id="a", share_session_epoch=1),
        2, ((O.READ, *GROUP),),
    ),
    "list offsets": Case(
        lambda _: m.ListOffsetsRequest(
            topics=[m.ListOffsetsTopic(name="t", partitions=[m.ListOffsetsPartition(partition_index=0, timestamp=-1)])]
        ), 7, ((O.DESCRIBE, *TOPIC),),
    ),
    "offset for leader epoch": Case(
        lambda _: m.OffsetForLeaderEpochRequest(
            topics=[m.OffsetForLeaderTopic(topic="t", partitions=[m.OffsetForLeaderPartition(partition=0)])]
        ), 4, ((O.DESCRIBE, *TOPIC),),
    ),
    "delete records": Case(
        lambda _: m.DeleteRecordsRequest(
            topics=[m.DeleteRecordsTopic(name="t", partitions=[m.DeleteRecordsPartition(partition_index=0, offset=1)])]
        ), 2, ((O.DELETE, *TOPIC),),
    ),
    "metadata": Case(
        lambda _: m.MetadataRequest(topics=[m.MetadataRequestTopic(name="t")]), 12, ((O.DESCRIBE, *TOPIC),)
    ),
    "metadata by id": Case(
        lambda topic_id: m.MetadataRequest(topics=[m.MetadataRequestTopic(name=None, topic_id=topic_id)]),
        12, ((O.DESCRIBE, *TOPIC),),
    ),
    "describe topic partitions": Case(
        lambda _: m.DescribeTopicPartitionsRequest(topics=[m.DescribeTopicPartitionsRequestTopicRequest(name="t")]),
        0, ((O.DESCRIBE, *TOPIC),),
    ),
    "create topics": Case(
        lambda _: m.CreateTopicsRequest(topics=[m.CreatableTopic(name="n", num_partitions=1, replication_factor=1)]),
        7, ((O.CREATE, R.TOPIC, "n"),),
    ),
    "delete topics": Case(
        lambda _: m.DeleteTopicsRequest(topics=[m.DeleteTopicState(name="t")]), 6, ((O.DELETE, *TOPIC),)
    ),
    "delete topics by id": Case(
        lambda topic_id: m.DeleteTopicsRequest(topics=[m.DeleteTopicState(name=None, topic_id=topic_id)]),
        6, ((O.DELETE, *TOPIC),),
    ),
    "create partitions": Case(
        lambda _: m.CreatePartitionsRequest(topics=[m.CreatePartitionsTopic(name="t", count=3, assignments=None)]),
        3, ((O.ALTER, *TOPIC),),
    ),
    "describe configs": Case(
        lambda _: m.DescribeConfigsRequest(
            resources=[m.DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None)]
        ), 4, ((O.DESCRIBE_CONFIGS, *TOPIC),),
    ),
    "describe configs of a group": Case(
        lambda _: m.DescribeConfigsRequest(
            resources=[m.DescribeConfigsResource(resource_type=32, resource_name="g", configuration_keys=None)]
        ), 4, ((O.DESCRIBE_CONFIGS, *GROUP),),
    ),
    "alter configs of a group": Case(
        lambda _: m.IncrementalAlterConfigsRequest(
            resources=[m.IncrementalAlterConfigsRequestResource(resource_type=32, resource_name="g")]
        ), 1, ((O.ALTER_CONFIGS, *GROUP),),
    ),
    "describe configs of the broker": Case(
        lambda _: m.DescribeConfigsRequest(
            resources=[m.DescribeConfigsResource(resource_type=4, resource_name="", configuration_keys=None)]
        ), 4, ((O.DESCRIBE_CONFIGS, *CLUSTER),),
    ),
    "alter configs": Case(
        lambda _: m.AlterConfigsRequest(
            resources=[
                m.AlterConfigsRequestResource(
                    resource_type=2, resource_name="t",
                    configs=[m.AlterConfigsRequestConfig(name="retention.ms", value="77")],
                )
            ]
        ), 2, ((O.ALTER_CONFIGS, *TOPIC),),
    ),
    "alter configs of the broker": Case(
        lambda _: m.IncrementalAlterConfigsRequest(
            resources=[
                m.IncrementalAlterConfigsRequestResource(
                    resource_type=4, resource_name="",
                    configs=[m.IncrementalAlterConfigsRequestConfig(name="num.partitions", value="7")],
                )
            ]
        ), 1, ((O.ALTER_CONFIGS, *CLUSTER),),
    ),
    "move partitions": Case(
        lambda _: m.AlterPartitionReassignmentsRequest(
            topics=[
                m.ReassignableTopic(name="t", partitions=[m.ReassignablePartition(partition_index=0, replicas=[1])])
            ]
        ), 1, ((O.ALTER, *CLUSTER),),
    ),
    "which partitions are moved": Case(
        lambda _: m.ListPartitionReassignmentsRequest(
            topics=[m.ListPartitionReassignmentsTopics(name="t", partition_indexes=[0])]
        ), 0, ((O.DESCRIBE, *CLUSTER),),
    ),
    "describe log directories": Case(lambda _: m.DescribeLogDirsRequest(topics=None), 4, ((O.DESCRIBE, *CLUSTER),)),
    "move to another log directory": Case(
        lambda _: m.AlterReplicaLogDirsRequest(
            dirs=[m.AlterReplicaLogDir(path="/x", topics=[m.AlterReplicaLogDirTopic(name="t", partitions=[0])])]
        ), 2, ((O.ALTER, *CLUSTER),),
    ),
    "elect leaders": Case(
        lambda _: m.ElectLeadersRequest(
            topic_partitions=[m.ElectLeadersRequestTopicPartitions(topic="t", partitions=[0])]
        ), 2, ((O.ALTER, *CLUSTER),),
    ),
    "update features": Case(
        lambda _: m.UpdateFeaturesRequest(
            feature_updates=[m.FeatureUpdateKey(feature="transaction.version", max_version_level=2)]
        ), 2, ((O.ALTER, *CLUSTER),),
    ),
    "find the coordinator of a group": Case(
        lambda _: m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4, ((O.DESCRIBE, *GROUP),)
    ),
    "find the coordinator of a transaction": Case(
        lambda _: m.FindCoordinatorRequest(key_type=1, key="x"), 3, ((O.DESCRIBE, R.TRANSACTIONAL_ID, "x"),)
    ),
    "join": Case(
        lambda _: m.JoinGroupRequest(group_id="g", session_timeout_ms=6000, protocol_type="consumer"), 9, (ON_GROUP,)
    ),
    "sync": Case(lambda _: m.SyncGroupRequest(group_id="g", generation_id=1, member_id="m"), 5, (ON_GROUP,)),
    "heartbeat": Case(lambda _: m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4, (ON_GROUP,)),
    "leave": Case(
        lambda _: m.LeaveGroupRequest(group_id="g", members=[m.LeaveGroupRequestMember(member_id="m")]), 5, (ON_GROUP,)
    ),
    "leave alone": Case(lambda _: m.LeaveGroupRequest(group_id="g", member_id="m"), 2, (ON_GROUP,)),
    "join a consumer group": Case(consumer_heartbeat, 1, (ON_GROUP, (O.DESCRIBE, *TOPIC))),
    "describe consumer groups": Case(
        lambda _: m.ConsumerGroupDescribeRequest(group_ids=["g"]), 1, ((O.DESCRIBE, *GROUP),)
    ),
    "join a share group": Case(
        lambda _: m.ShareGroupHeartbeatRequest(group_id="s", member_id="a", subscribed_topic_names=["t"]),
        1, ((O.READ, *SHARES), (O.DESCRIBE, *TOPIC)),
    ),
    "describe share groups": Case(
        lambda _: m.ShareGroupDescribeRequest(group_ids=["s"]), 1, ((O.DESCRIBE, *SHARES),)
    ),
    "join a streams group": Case(
        lambda _: m.StreamsGroupHeartbeatRequest(
            group_id="st", member_id="a", rebalance_timeout_ms=1, process_id="p", active_tasks=[], standby_tasks=[],
            warmup_tasks=[],
            topology=m.StreamsGroupHeartbeatRequestTopology(
                subtopologies=[m.StreamsGroupHeartbeatRequestSubtopology(subtopology_id="0", source_topics=["t"])]
            ),
        ),
        0, ((O.READ, R.GROUP, "st"), (O.DESCRIBE, *TOPIC)),
    ),
    "describe streams groups": Case(
        lambda _: m.StreamsGroupDescribeRequest(group_ids=["st"]), 0, ((O.DESCRIBE, R.GROUP, "st"),)
    ),
    "describe offsets of share groups": Case(
        lambda _: m.DescribeShareGroupOffsetsRequest(
            groups=[
                m.DescribeShareGroupOffsetsRequestGroup(
                    group_id="s", topics=[m.DescribeShareGroupOffsetsRequestTopic(topic_name="t", partitions=[0])]
                )
            ]
        ), 1, ((O.DESCRIBE, *SHARES), (O.DESCRIBE, *TOPIC)),
    ),
    "alter offsets of a share group": Case(
        lambda _: start_shares("s", 1), 0, ((O.READ, *SHARES), (O.READ, *TOPIC)),
    ),
    "delete offsets of a share group": Case(
        lambda _: m.DeleteShareGroupOffsetsRequest(
            group_id="s", topics=[m.DeleteShareGroupOffsetsRequestTopic(topic_name="t")]
        ), 0, ((O.DELETE, *SHARES), (O.READ, *TOPIC)),
    ),
    "delete share groups": Case(lambda _: m.DeleteGroupsRequest(groups_names=["s"]), 2, ((O.DELETE, *SHARES),)),
    "describe groups": Case(lambda _: m.DescribeGroupsRequest(groups=["g"]), 6, ((O.DESCRIBE, *GROUP),)),
    "describe groups, long ago": Case(lambda _: m.DescribeGroupsRequest(groups=["g"]), 0, ((O.DESCRIBE, *GROUP),)),
    "delete groups": Case(lambda _: m.DeleteGroupsRequest(groups_names=["g"]), 2, ((O.DELETE, *GROUP),)),
    "commit": Case(commit, 9, (ON_GROUP, (O.READ, *TOPIC))),
    "commit by id": Case(commit, 10, (ON_GROUP, (O.READ, *TOPIC))),
    "fetch offsets": Case(fetch_offsets, 9, ((O.DESCRIBE, *GROUP), (O.DESCRIBE, *TOPIC))),
    "fetch offsets by id": Case(fetch_offsets, 10, ((O.DESCRIBE, *GROUP), (O.DESCRIBE, *TOPIC))),
    "fetch offsets of one group": Case(
        lambda _: m.OffsetFetchRequest(
            group_id="g", topics=[m.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        ), 7, ((O.DESCRIBE, *GROUP), (O.DESCRIBE, *TOPIC)),
    ),
    "fetch offsets, long ago": Case(
        lambda _: m.OffsetFetchRequest(
            group_id="g", topics=[m.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        ), 1, ((O.DESCRIBE, *GROUP), (O.DESCRIBE, *TOPIC)),
    ),
    "delete offsets": Case(
        lambda _: m.OffsetDeleteRequest(
            group_id="g",
            topics=[
                m.OffsetDeleteRequestTopic(name="t", partitions=[m.OffsetDeleteRequestPartition(partition_index=0)])
            ],
        ), 0, ((O.DELETE, *GROUP), (O.READ, *TOPIC)),
    ),
    "a producer's id in a transaction": Case(
        lambda _: m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1, producer_id=-1), 4, (WRITER,)
    ),
    "add partitions to a transaction": Case(
        lambda _: m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x", v3_and_below_producer_id=1,
            v3_and_below_topics=[m.AddPartitionsToTxnTopic(name="t", partitions=[0])],
        ), 3, (WRITER, (O.WRITE, *TOPIC)),
    ),
    "add partitions to many transactions": Case(
        lambda _: m.AddPartitionsToTxnRequest(transactions=[]), 5, ((O.CLUSTER_ACTION, *CLUSTER),)
    ),
    "add a group to a transaction": Case(
        lambda _: m.AddOffsetsToTxnRequest(transactional_id="x", producer_id=1, group_id="g"), 4, (WRITER, ON_GROUP)
    ),
    "commit in a transaction": Case(
        commit_in_a_transaction, 5, (WRITER, ON_GROUP, (O.READ, *TOPIC))
    ),
    "describe producers": Case(
        lambda _: m.DescribeProducersRequest(
            topics=[m.DescribeProducersRequestTopicRequest(name="t", partition_indexes=[0])]
        ), 0, ((O.READ, *TOPIC),),
    ),
    "add partitions to transactions, as a broker": Case(
        lambda _: m.AddPartitionsToTxnRequest(
            transactions=[
                m.AddPartitionsToTxnTransaction(
                    transactional_id="x", producer_id=1, topics=[m.AddPartitionsToTxnTopic(name="t", partitions=[0])]
                )
            ]
        ), 5, ((O.CLUSTER_ACTION, *CLUSTER),),
    ),
    "write ends of transactions, as a broker": Case(
        lambda _: end_of_transaction(), 2, ((O.CLUSTER_ACTION, *CLUSTER),)
    ),
    "write ends of transactions, as an administrator": Case(
        lambda _: end_of_transaction(), 1, ((O.ALTER, *CLUSTER),)
    ),
    "end a transaction": Case(
        lambda _: m.EndTxnRequest(transactional_id="x", producer_id=1, committed=True), 5, (WRITER,)
    ),
    "describe transactions": Case(
        lambda _: m.DescribeTransactionsRequest(transactional_ids=["x"]), 0, ((O.DESCRIBE, R.TRANSACTIONAL_ID, "x"),)
    ),
    "describe subscriptions to metrics": Case(
        lambda _: m.DescribeConfigsRequest(
            resources=[m.DescribeConfigsResource(resource_type=16, resource_name="s", configuration_keys=None)]
        ), 4, ((O.DESCRIBE_CONFIGS, *CLUSTER),),
    ),
    "alter subscriptions to metrics": Case(
        lambda _: m.IncrementalAlterConfigsRequest(
            resources=[
                m.IncrementalAlterConfigsRequestResource(
                    resource_type=16, resource_name="s",
                    configs=[m.IncrementalAlterConfigsRequestConfig(name="metrics", value="*")],
                )
            ]
        ), 1, ((O.ALTER_CONFIGS, *CLUSTER),),
    ),
    "list what has settings": Case(
        lambda _: m.ListConfigResourcesRequest(resource_types=[]), 1, ((O.DESCRIBE_CONFIGS, *CLUSTER),)
    ),
    "describe users": Case(
        lambda _: m.DescribeUserScramCredentialsRequest(users=None), 0, ((O.DESCRIBE, *CLUSTER),)
    ),
    "alter users": Case(
        lambda _: m.AlterUserScramCredentialsRequest(
            deletions=[m.ScramCredentialDeletion(name="alice", mechanism=1)], upsertions=[]
        ), 0, ((O.ALTER, *CLUSTER),),
    ),
    "describe quotas": Case(lambda _: m.DescribeClientQuotasRequest(), 1, ((O.DESCRIBE_CONFIGS, *CLUSTER),)),
    "alter quotas": Case(
        lambda _: m.AlterClientQuotasRequest(
            entries=[
                m.AlterClientQuotasRequestEntryData(
                    entity=[m.AlterClientQuotasRequestEntityData(entity_type="user", entity_name="a")],
                    ops=[m.OpData(key="producer_byte_rate", value=1e6)],
                )
            ]
        ), 1, ((O.ALTER_CONFIGS, *CLUSTER),),
    ),
    "describe access control lists": Case(
        lambda _: m.DescribeAclsRequest(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
            host_filter=None, operation=1, permission_type=1,
        ), 3, ((O.DESCRIBE, *CLUSTER),),
    ),
    "create access control lists": Case(
        lambda _: m.CreateAclsRequest(
            creations=[
                m.AclCreation(
                    resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
                )
            ]
        ), 3, ((O.ALTER, *CLUSTER),),
    ),
    "delete access control lists": Case(
        lambda _: m.DeleteAclsRequest(
            filters=[
                m.DeleteAclsFilter(
                    resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
                    host_filter=None, operation=1, permission_type=1,
                )
            ]
        ), 3, ((O.ALTER, *CLUSTER),),
    ),
    "a producer's id": Case(
        lambda _: m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1, producer_id=-1),
        4, ((O.IDEMPOTENT_WRITE, *CLUSTER),),
    ),
}  # fmt: skip
FREE = {
    ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER, ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY,
    ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
}  # fmt: skip
"""Answered for everybody, as in Kafka; what they show of others, or do for them, is tested apart. Of delegation tokens
only who has logged in may ask: `test_gateway_tokens.py`."""


def codes(answer: Message) -> Iterator[int]:
    """Every error code of a response, down to its rows."""
    for field in answer.FIELDS:
        value = getattr(answer, field.name)
        if field.name in {"error_code", "partition_error_code"}:
            yield value
        for row in value if isinstance(value, list) else ():
            if isinstance(row, Message):
                yield from codes(row)


async def filled(gateway: Gateway, wire: Wire) -> bytes:
    """A topic with a record, a group that has committed, and a share group; the topic's id."""
    topic_id = (await wire.create("t")).topic_id
    assert (await wire.produce("t", batch_of(b"a"))).error_code == 0
    assert await wire.commit("g", "t", 1) == 0
    assert not list(filter(None, codes(await wire(start_shares("s", 0), 0))))
    return topic_id


async def state(wire: Wire) -> Any:
    names = sorted(topic.name for topic in (await wire(m.MetadataRequest(topics=None), 12)).topics)
    return (
        names,
        len((await wire.metadata("t")).topics[0].partitions),
        await wire.values("t"),
        (await wire.offset("t", -2)).offset,
        await wire.configs(2, "t"),
        await wire.configs(4, ""),
        await wire.configs(16, "s"),
        await wire.committed("g", "t"),
        await started_shares(wire, "s"),
    )


def start_shares(group_id: str, offset: int) -> m.AlterShareGroupOffsetsRequest:
    """Has a share group begin to read the topic at an offset."""
    partition = m.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=offset)
    topic = m.AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=[partition])
    return m.AlterShareGroupOffsetsRequest(group_id=group_id, topics=[topic])


async def started_shares(wire: Wire, group_id: str) -> Any:
    """Members and offsets of a share group."""
    asked = m.DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)
    offsets = await wire(m.DescribeShareGroupOffsetsRequest(groups=[asked]), 1)
    described = await wire(m.ShareGroupDescribeRequest(group_ids=[group_id]), 1)
    return str(offsets.groups), str(described.groups)


async def test_every_api_that_is_served_is_looked_at() -> None:
    async with running() as (gateway, _):
        asked = {case.make(bytes(16)).API_KEY for case in CASES.values()}
        assert asked | FREE >= gateway.parts.table.handlers.keys() - {ApiKey.INCREMENTAL_ALTER_CONFIGS}
        assert not asked & FREE


@pytest.mark.parametrize("name", CASES)
async def test_who_lacks_a_right_is_refused_and_nothing_is_done(name: str) -> None:
    case = CASES[name]
    async with running() as (gateway, wire):
        access, topic_id = gateway.parts.access, await filled(gateway, wire)
        before = await state(wire)
        every = {(operation, kind, "*") for kind, operations in OPERATIONS.items() for operation in operations}
        for lacking in case.needs:
            access.authorizer = Rules(*(set(case.needs) - {lacking}), *every)  # with any name but the one that matters
            if name == "a producer's id":
                access.authorizer.granted.discard((O.WRITE, R.TOPIC, "*"))
            found = set(codes(await wire(case.make(topic_id), case.version)))
            assert REFUSED[lacking[1]] in found, found
            assert found <= {REFUSED[lacking[1]], 0}
            access.authorizer = None
            assert await state(wire) == before
        access.authorizer = rules = Rules(*case.needs)
        found = set(codes(await wire(case.make(topic_id), case.version)))
        assert not found & set(REFUSED.values()), "it needs no other right"
        assert not found & {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}, "and finds the topic"
        assert set(case.needs) <= set(rules.asked)


class Broken(Rules):
    """Fails when it is asked."""

    def allows(self, client: ConnectionContext, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        raise LookupError("the directory of users is not there")

    def allows_any(self, client: ConnectionContext, operation: AclOperation, kind: ResourceType) -> bool:
        raise LookupError("the directory of users is not there")


@pytest.mark.parametrize("name", CASES)
async def test_nothing_is_done_where_the_authorizer_fails(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The connection stays, as Kafka's."""
    case = CASES[name]
    async with running() as (gateway, wire):
        access, topic_id = gateway.parts.access, await filled(gateway, wire)
        before = await state(wire)
        access.authorizer = Broken()
        found = set(codes(await wire(case.make(topic_id), case.version)))
        assert ErrorCode.UNKNOWN_SERVER_ERROR in found, found
        assert found <= {ErrorCode.UNKNOWN_SERVER_ERROR, 0}
        access.authorizer = None
        assert await state(wire) == before
    assert "the directory of users is not there" in caplog.text


async def test_who_may_not_see_it_does_not_learn_that_it_is_there() -> None:
    async with running() as (gateway, wire):
        topic_id = await filled(gateway, wire)
        gateway.parts.access.authorizer = Rules()
        unknown = [m.MetadataRequestTopic(name="t"), m.MetadataRequestTopic(name="nobody-made-it")]
        rows = (await wire(m.MetadataRequest(topics=unknown, allow_auto_topic_creation=True), 12)).topics
        assert {(row.error_code, row.topic_id, len(row.partitions)) for row in rows} == {(29, bytes(16), 0)}
        (row,) = (
            await wire(m.MetadataRequest(topics=[m.MetadataRequestTopic(name=None, topic_id=topic_id)]), 12)
        ).topics
        assert (row.name, row.topic_id, row.error_code) == (None, topic_id, 29)
        assert (await wire(m.MetadataRequest(topics=None), 12)).topics == []
        assert (await wire(m.DescribeTopicPartitionsRequest(), 0)).topics == []
        assert (await wire(m.ListGroupsRequest(), 5)).groups == []
        (row,) = (
            await wire(m.DeleteTopicsRequest(topics=[m.DeleteTopicState(name=None, topic_id=topic_id)]), 6)
        ).responses
        assert (row.name, row.error_code) == (None, 29)
        gateway.parts.access.authorizer = Rules((O.DESCRIBE, *GROUP))
        assert [group.group_id for group in (await wire(m.ListGroupsRequest(), 5)).groups] == ["g"]
        everything = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="g", topics=None)])
        assert (await wire(everything, 9)).groups[0].topics == []
        gateway.parts.access.authorizer = Rules((O.DESCRIBE, *CLUSTER))
        assert [group.group_id for group in (await wire(m.ListGroupsRequest(), 5)).groups] == ["g", "s"]
        gateway.parts.access.authorizer = None
        assert sorted(topic.name for topic in (await wire(m.MetadataRequest(topics=None), 12)).topics) == [
            *INTERNAL,
            "t",
        ]


async def test_topics_are_created_by_those_who_may() -> None:
    async with running() as (gateway, wire):
        access = gateway.parts.access
        new = [m.MetadataRequestTopic(name="n")]
        for rights, code in [
            ([(O.DESCRIBE, R.TOPIC, "n")], ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            ([(O.CREATE, *CLUSTER)], ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            ([(O.DESCRIBE, R.TOPIC, "n"), (O.CREATE, R.TOPIC, "n")], ErrorCode.NONE),
        ]:
            access.authorizer = Rules(*rights)
            if code:
                answer = await wire(m.MetadataRequest(topics=new, allow_auto_topic_creation=False), 12)
                asked = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if rights[0][0] is O.DESCRIBE else code
                assert answer.topics[0].error_code == asked
            answer = await wire(m.MetadataRequest(topics=new, allow_auto_topic_creation=True), 12)
            assert answer.topics[0].error_code == code
        access.authorizer = Rules((O.CREATE, *CLUSTER))
        made = await wire.create("o")
        assert (made.error_code, made.topic_config_error_code, made.num_partitions, made.configs) == (0, 29, -1, [])
        access.authorizer = Rules((O.CREATE, R.TOPIC, "p"), (O.DESCRIBE_CONFIGS, R.TOPIC, "p"))
        made = await wire.create("p")
        assert (made.error_code, made.topic_config_error_code, made.num_partitions) == (0, 0, 1)
        assert made.configs
        access.authorizer = Rules((O.WRITE, R.TOPIC, "p"))
        assert await wire.producer_id() >= 0


async def test_rights_to_the_cluster_are_rights_to_all_topics() -> None:
    """CLUSTER_ACTION for the ends of epochs, as followers ask for them, and DELETE, which ALL is too, for deleting."""
    async with running() as (gateway, wire):
        await filled(gateway, wire)
        access = gateway.parts.access
        wanted = m.OffsetForLeaderEpochRequest(
            topics=[m.OffsetForLeaderTopic(topic="t", partitions=[m.OffsetForLeaderPartition(partition=0)])]
        )
        for rights, code in (((), 29), (((O.CLUSTER_ACTION, *CLUSTER),), 0)):
            access.authorizer = Rules(*rights)
            assert (await wire(wanted, 4)).topics[0].partitions[0].error_code == code
        access.authorizer = Rules((O.DELETE, *CLUSTER))
        assert await wire.delete("nobody-made-it") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await wire.delete("t", "t") == ErrorCode.INVALID_REQUEST
        assert await wire.delete("t") == 0


async def test_who_may_describe_a_name_learns_that_there_is_no_such_topic() -> None:
    async with running() as (gateway, wire):
        await filled(gateway, wire)
        access = gateway.parts.access
        access.authorizer = Rules((O.DESCRIBE, R.TOPIC, "n"), (O.READ, R.TOPIC, "n"), (O.DESCRIBE, *TOPIC))
        assert await wire.delete("n") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await wire.delete("t") == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await wire.delete("other") == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        names = ("n", "other")
        named = [m.MetadataRequestTopic(name=name) for name in names]
        paged = [m.DescribeTopicPartitionsRequestTopicRequest(name=name) for name in names]
        asked = m.MetadataRequest(
            topics=named, allow_auto_topic_creation=False, include_topic_authorized_operations=True
        )
        for answer in (await wire(asked, 12), await wire(m.DescribeTopicPartitionsRequest(topics=paged), 0)):
            assert [(row.error_code, row.topic_authorized_operations) for row in answer.topics] == [
                (3, 1 << O.DESCRIBE | 1 << O.READ),
                (29, -(2**31)),
            ]


async def test_what_a_client_may_do_is_told() -> None:
    """KIP-430."""
    async with running() as (gateway, wire):
        await filled(gateway, wire)
        for authorizer, expected in [
            (None, {kind: sum(1 << each for each in OPERATIONS[kind]) for kind in (R.TOPIC, R.GROUP, R.CLUSTER)}),
            (
                Rules((O.DESCRIBE, *TOPIC), (O.READ, *TOPIC), (O.DESCRIBE, *GROUP), (O.CREATE, *CLUSTER)),
                {R.TOPIC: 1 << O.DESCRIBE | 1 << O.READ, R.GROUP: 1 << O.DESCRIBE, R.CLUSTER: 0},
            ),
            (
                Rules((O.DESCRIBE, *TOPIC), (O.DESCRIBE, *GROUP), (O.CREATE, *CLUSTER), (O.DESCRIBE, *CLUSTER)),
                {
                    R.TOPIC: 1 << O.DESCRIBE,
                    R.GROUP: 1 << O.DESCRIBE,
                    R.CLUSTER: 1 << O.CREATE | 1 << O.DESCRIBE,
                },
            ),
        ]:
            gateway.parts.access.authorizer = authorizer
            asked = m.MetadataRequest(
                topics=[m.MetadataRequestTopic(name="t")],
                include_topic_authorized_operations=True,
                include_cluster_authorized_operations=True,
            )
            answer = await wire(asked, 10)
            assert answer.topics[0].topic_authorized_operations == expected[R.TOPIC]
            assert answer.cluster_authorized_operations == expected[R.CLUSTER]
            answer = await wire(
                m.DescribeTopicPartitionsRequest(topics=[m.DescribeTopicPartitionsRequestTopicRequest(name="t")]), 0
            )
            assert answer.topics[0].topic_authorized_operations == expected[R.TOPIC]
            answer = await wire(m.DescribeClusterRequest(include_cluster_authorized_operations=True), 1)
            assert answer.cluster_authorized_operations == expected[R.CLUSTER]
            answer = await wire(m.DescribeGroupsRequest(groups=["g"], include_authorized_operations=True), 6)
            assert answer.groups[0].authorized_operations == expected[R.GROUP]
        unasked = await wire(m.MetadataRequest(topics=[m.MetadataRequestTopic(name="t")]), 10)
        assert unasked.topics[0].topic_authorized_operations == -(2**31)
        assert unasked.cluster_authorized_operations == -(2**31)


async def test_a_session_asks_again_at_every_fetch() -> None:
    """Rights may be taken while a client reads."""
    async with running() as (gateway, wire):
        await filled(gateway, wire)
        other = connect(gateway)
        request = fetch_request("t", 0)
        request.session_epoch = 0
        first = await other(request, 12)
        assert first.responses[0].partitions[0].error_code == 0
        gateway.parts.access.authorizer = Rules()
        again = m.FetchRequest(
            session_id=first.session_id, session_epoch=1, max_wait_ms=0, min_bytes=1, max_bytes=10**6
        )
        answer = await other(again, 12)
        assert answer.responses[0].partitions[0].error_code == 29
        assert not answer.responses[0].partitions[0].records
        await other.aclose()


class FailsOnce:
    """Allows everything, and raises when it is asked for the n-th time."""

    def __init__(self, number: int) -> None:
        self.left = number

    def allows(self, client: ConnectionContext, operation: AclOperation, kind: ResourceType, name: str) -> bool:
        return self.allows_any(client, operation, kind)

    def allows_any(self, client: ConnectionContext, operation: AclOperation, kind: ResourceType) -> bool:
        self.left -= 1
        if self.left == 0:
            raise OSError("the directory of users does not answer")
        return True


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (m.MetadataRequest(topics=None, include_topic_authorized_operations=True), 12),
        (m.MetadataRequest(topics=[]), 0),
        (m.DescribeGroupsRequest(groups=["g", "h"], include_authorized_operations=True), 5),
        (m.OffsetFetchRequest(group_id="g", topics=None), 7),
        (m.OffsetFetchRequest(group_id="g", topics=[m.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]), 5),
        (m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="g", topics=None)]), 8),
        (m.DescribeTopicPartitionsRequest(), 0),
        (m.DescribeClusterRequest(include_cluster_authorized_operations=True), 1),
        (m.ListGroupsRequest(), 4),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else str(value),
)
async def test_an_authorizer_that_fails_at_any_question_leaves_the_connection(
    request_: ApiMessage, version: int
) -> None:
    async with running() as (gateway, wire):
        await filled(gateway, wire)
        questions = 0
        while True:
            questions += 1
            gateway.parts.access.authorizer = fails = FailsOnce(questions)
            await wire(request_, version)
            if fails.left > 0:
                break
        assert questions > 1


async def test_internal_topics_of_streams_are_made_for_those_who_may() -> None:
    """By a right to each, or to the cluster; the right to DESCRIBE them is asked for before."""
    changelog = m.StreamsGroupHeartbeatRequestTopicInfo(name="c")
    part = m.StreamsGroupHeartbeatRequestSubtopology(
        subtopology_id="0", source_topics=["t"], state_changelog_topics=[changelog]
    )
    joining = m.StreamsGroupHeartbeatRequest(
        group_id="st", member_id="a", rebalance_timeout_ms=1, process_id="p", active_tasks=[], standby_tasks=[],
        warmup_tasks=[],
        topology=m.StreamsGroupHeartbeatRequestTopology(subtopologies=[part]),
    )  # fmt: skip
    reads = ((O.READ, R.GROUP, "st"), (O.DESCRIBE, R.TOPIC, "t"))
    for create in ((O.CREATE, R.TOPIC, "c"), (O.CREATE, *CLUSTER)):
        async with running() as (gateway, wire):
            await wire.create("t", 2)
            access = gateway.parts.access
            access.authorizer = Rules(*reads)
            assert (await wire(joining, 0)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            access.authorizer = Rules(*reads, (O.DESCRIBE, R.TOPIC, "c"))
            refused = await wire(joining, 0)
            assert [status.status_code for status in refused.status if "may not CREATE c" in status.status_detail] == [
                3
            ]
            assert gateway.parts.topics.get("c") is None
            access.authorizer = Rules(*reads, (O.DESCRIBE, R.TOPIC, "c"), create)
            assert (await wire(joining, 0)).error_code == 0
            with anyio.fail_after(10):
                while gateway.parts.topics.get("c") is None:
                    await anyio.sleep(0.001)
