"""What clients ask of brokers that guard their resources: the rights they have, their requests, what answers tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from kclient.acls import AclOperation, AclPermissionType, PatternType, ResourceType
from kclient.admin import AclBinding
from kclient.protocol import messages as m
from kclient.protocol.message import ApiMessage, Message
from tests.gateway_wire import batch_of, fetch_request, produce_request

O, R = AclOperation, ResourceType  # noqa: E741
DENY, PREFIXED = AclPermissionType.DENY, PatternType.PREFIXED
CLUSTER = "kafka-cluster"
ALICE = "User:alice"


def right(
    kind: ResourceType, name: str, *operations: AclOperation, deny: bool = False, prefixed: bool = False,
    who: str = ALICE, host: str = "*",
) -> list[AclBinding]:  # fmt: skip
    """Entries, one for each operation."""
    return [
        AclBinding(
            resource_type=kind, resource_name=name, operation=operation, principal=who, host=host,
            permission_type=DENY if deny else AclPermissionType.ALLOW,
            pattern_type=PREFIXED if prefixed else PatternType.LITERAL,
        )
        for operation in operations
    ]  # fmt: skip


def topic(name: str, *operations: AclOperation, **more: Any) -> list[AclBinding]:
    return right(R.TOPIC, name, *operations, **more)


def group(name: str, *operations: AclOperation, **more: Any) -> list[AclBinding]:
    return right(R.GROUP, name, *operations, **more)


def writer(name: str, *operations: AclOperation, **more: Any) -> list[AclBinding]:
    return right(R.TRANSACTIONAL_ID, name, *operations, **more)


def cluster(*operations: AclOperation, **more: Any) -> list[AclBinding]:
    return right(R.CLUSTER, CLUSTER, *operations, **more)


RIGHTS: Final[dict[str, list[AclBinding]]] = {
    "none": [],
    **{f"{each.name} t": topic("t", each) for each in (
        O.READ, O.WRITE, O.CREATE, O.DELETE, O.ALTER, O.DESCRIBE, O.DESCRIBE_CONFIGS, O.ALTER_CONFIGS, O.ALL,
    )},
    "READ t, which is denied": [*topic("t", O.READ), *topic("t", O.READ, deny=True, who="User:*")],
    "READ t, whose DESCRIBE is denied": [*topic("t", O.READ), *topic("t", O.DESCRIBE, deny=True)],
    "ALTER_CONFIGS t, whose DESCRIBE_CONFIGS is denied": [
        *topic("t", O.ALTER_CONFIGS), *topic("t", O.DESCRIBE_CONFIGS, deny=True),
    ],
    "READ t*": topic("t", O.READ, prefixed=True),
    "ALL *, but for tt*": [*topic("*", O.ALL), *topic("tt", O.ALL, prefixed=True, deny=True)],
    "ALL t, but * is denied": [*topic("t", O.ALL), *topic("*", O.WRITE, deny=True)],
    "READ and WRITE from elsewhere": topic("t", O.READ, O.WRITE, host="10.9.8.7"),
    "READ and WRITE from here": topic("t", O.READ, O.WRITE, host="127.0.0.1"),
    "denied from here": [*topic("t", O.ALL), *topic("t", O.WRITE, deny=True, host="127.0.0.1")],
    "everybody": topic("t", O.READ, O.WRITE, who="User:*"),
    "somebody else": topic("t", O.ALL, who="User:bob"),
    "another type of principal": topic("t", O.ALL, who="Group:alice"),
    **{f"{each.name} g": group("g", each) for each in (O.READ, O.DELETE, O.DESCRIBE, O.DESCRIBE_CONFIGS, O.ALL)},
    "ALTER_CONFIGS g": group("g", O.ALTER_CONFIGS),
    "a consumer's": [*topic("t", O.READ), *group("g", O.READ)],
    "a consumer's, by a prefix": [*topic("t", O.READ, prefixed=True), *group("*", O.READ)],
    "a member's": [*topic("t", O.DESCRIBE), *group("k", O.READ), *group("s", O.READ, prefixed=True)],
    "a member's, without its topic": [*topic("tt", O.READ), *group("k", O.READ), *group("s", O.READ)],
    "a consumer's of a denied group": [*topic("*", O.READ), *group("*", O.READ), *group("g", O.READ, deny=True)],
    "an administrator's of groups": [*topic("*", O.DESCRIBE, O.READ), *group("*", O.DESCRIBE, O.DELETE)],
    "WRITE x": writer("x", O.WRITE),
    "DESCRIBE x": writer("x", O.DESCRIBE),
    "a writer's in transactions": [*writer("x", O.WRITE), *topic("t", O.READ, O.WRITE), *group("g", O.READ)],
    "WRITE x, not the topic": [*writer("x", O.ALL), *topic("t", O.READ), *topic("tt", O.WRITE), *group("g", O.ALL)],
    "idempotence by a prefix": topic("some", O.WRITE, prefixed=True),
    "idempotence denied by a prefix": [
        *topic("some", O.WRITE, prefixed=True), *topic("so", O.WRITE, prefixed=True, deny=True),
    ],
    **{f"{each.name} of the cluster": cluster(each) for each in (
        O.CREATE, O.ALTER, O.DESCRIBE, O.CLUSTER_ACTION, O.DESCRIBE_CONFIGS, O.ALTER_CONFIGS, O.IDEMPOTENT_WRITE, O.ALL,
    )},
    "DESCRIBE of the cluster, some denied": [*cluster(O.ALL), *cluster(O.ALTER, O.CREATE, deny=True)],
    "CREATE of the cluster, and DESCRIBE of topics": [*cluster(O.CREATE), *topic("*", O.DESCRIBE)],
    "CREATE of topics": topic("n", O.CREATE, O.DESCRIBE, prefixed=True),
    "CREATE of topics, denied": [*cluster(O.CREATE), *topic("n", O.CREATE, deny=True, prefixed=True)],
}  # fmt: skip
"""Entries by a name."""


class Ask(NamedTuple):
    """A request."""

    make: Callable[[bytes, int], ApiMessage]
    """Of the id of the topic t, and a number that no other request of the run gets."""
    version: int
    passes: frozenset[int] = frozenset()
    """Codes that say no more than that it was allowed: how far a broker has come with it differs."""
    ignores: frozenset[str] = frozenset()
    """Fields that have nothing to do with rights."""


def _produce(topic_id: bytes, *names: str) -> m.ProduceRequest:
    request = m.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[])
    for name in names:
        row = produce_request(name, batch_of(b"v")).topic_data[0]
        row.topic_id = topic_id
        request.topic_data.append(row)
    return request


def _produce_in_a_transaction() -> m.ProduceRequest:
    batch = batch_of(b"v", transactional=True, producer_id=1, producer_epoch=0, sequence=0)
    return produce_request("t", batch, transactional_id="x")


def _fetch(topic_id: bytes, *names: str) -> m.FetchRequest:
    request = fetch_request(names[0], 0)
    request.topics = [row for name in names for row in fetch_request(name, 0).topics]
    request.topics[0].topic_id = topic_id
    return request


def _metadata(*names: str, create: bool = False) -> m.MetadataRequest:
    wanted = [m.MetadataRequestTopic(name=name) for name in names]
    return m.MetadataRequest(
        topics=wanted, allow_auto_topic_creation=create, include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )  # fmt: skip


def _list_offsets(*names: str) -> m.ListOffsetsRequest:
    row = m.ListOffsetsPartition(partition_index=0, timestamp=-2)
    return m.ListOffsetsRequest(topics=[m.ListOffsetsTopic(name=name, partitions=[row]) for name in names])


def _commit(topic_id: bytes, *names: str) -> m.OffsetCommitRequest:
    row = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topics = [m.OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=[row]) for name in names]
    return m.OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)


def _committed(topics: list[str] | None, topic_id: bytes = bytes(16)) -> m.OffsetFetchRequest:
    rows = [
        m.OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=[0]) for name in topics or ()
    ]  # fmt: skip
    wanted = [m.OffsetFetchRequestGroup(group_id=name, topics=None if topics is None else rows) for name in "gh"]
    return m.OffsetFetchRequest(groups=wanted)


def _commit_in_a_transaction(*names: str) -> m.TxnOffsetCommitRequest:
    row = m.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topics = [m.TxnOffsetCommitRequestTopic(name=name, partitions=[row]) for name in names]
    return m.TxnOffsetCommitRequest(transactional_id="x", group_id="g", producer_id=1, topics=topics)


def _configs(kind: int, name: str, setting: str) -> m.DescribeConfigsRequest:
    wanted = m.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=[setting])
    return m.DescribeConfigsRequest(resources=[wanted])


def _alter(kind: int, name: str, setting: str, value: str) -> m.IncrementalAlterConfigsRequest:
    row = m.IncrementalAlterConfigsRequestConfig(name=setting, value=value)
    wanted = m.IncrementalAlterConfigsRequestResource(resource_type=kind, resource_name=name, configs=[row])
    return m.IncrementalAlterConfigsRequest(resources=[wanted], validate_only=True)


def _replace(kind: int, name: str, setting: str, value: str) -> m.AlterConfigsRequest:
    row = m.AlterConfigsRequestConfig(name=setting, value=value)
    wanted = m.AlterConfigsRequestResource(resource_type=kind, resource_name=name, configs=[row])
    return m.AlterConfigsRequest(resources=[wanted], validate_only=True)


def _filter(kind: type[Any], name: str | None) -> Any:
    return kind(
        resource_type_filter=1, resource_name_filter=name, pattern_type_filter=1, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip


def _entry_that_is_none() -> m.CreateAclsRequest:
    row = m.AclCreation(
        resource_type=R.CLUSTER, resource_name="other", resource_pattern_type=3, principal=ALICE, host="*",
        operation=O.READ, permission_type=3,
    )  # fmt: skip
    return m.CreateAclsRequest(creations=[row])


def _join(name: str, *topics: str) -> m.ConsumerGroupHeartbeatRequest:
    return m.ConsumerGroupHeartbeatRequest(
        group_id=name, member_id="m", member_epoch=0, rebalance_timeout_ms=1000, subscribed_topic_names=[*topics],
        topic_partitions=[],
    )  # fmt: skip


def _streams(name: str, *topics: str) -> m.StreamsGroupHeartbeatRequest:
    part = m.StreamsGroupHeartbeatRequestSubtopology(subtopology_id="0", source_topics=[*topics])
    return m.StreamsGroupHeartbeatRequest(
        group_id=name, member_id="m", member_epoch=0, rebalance_timeout_ms=1000, process_id="p", active_tasks=[],
        standby_tasks=[], warmup_tasks=[], topology=m.StreamsGroupHeartbeatRequestTopology(subtopologies=[part]),
    )  # fmt: skip


def _new(*names: str) -> m.CreateTopicsRequest:
    rows = [m.CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in names]
    return m.CreateTopicsRequest(topics=rows, timeout_ms=20_000, validate_only=True)


_OF_TASKS = frozenset({"active_tasks", "standby_tasks", "status", "warmup_tasks"})
"""What a member of a streams group gets depends on when it was given out last."""
NOBODYS = bytes([7] * 16)
"""The id of no topic."""
REQUESTS: Final[dict[str, Ask]] = {
    "produce": Ask(lambda *_: _produce(bytes(16), "t", "tt", "n"), 9),
    "produce by id": Ask(lambda topic_id, _: _produce(topic_id, ""), 13),
    "produce by an id of nobody's": Ask(lambda *_: _produce(NOBODYS, ""), 13),
    "produce in a transaction": Ask(lambda *_: _produce_in_a_transaction(), 9),
    "fetch": Ask(lambda *_: _fetch(bytes(16), "t", "tt", "n"), 12),
    "fetch by id": Ask(lambda topic_id, _: _fetch(topic_id, ""), 16),
    "fetch by an id of nobody's": Ask(lambda *_: _fetch(NOBODYS, ""), 16),
    "metadata": Ask(lambda *_: _metadata("t", "tt", "n"), 10),
    "metadata of all": Ask(lambda *_: m.MetadataRequest(topics=None), 12),
    "metadata of all, long ago": Ask(lambda *_: m.MetadataRequest(topics=[]), 0),
    "metadata by id": Ask(
        lambda topic_id, _: m.MetadataRequest(
            topics=[m.MetadataRequestTopic(name=None, topic_id=each) for each in (topic_id, NOBODYS)]
        ), 12,
    ),
    "metadata that creates": Ask(
        lambda _, number: _metadata(f"n-{number}", create=True), 10, frozenset({0, 3, 5}),
        frozenset({"partitions", "topic_id"}),
    ),
    "metadata that would create": Ask(lambda *_: _metadata("n-never", create=False), 10),
    "describe topic partitions": Ask(
        lambda *_: m.DescribeTopicPartitionsRequest(
            topics=[m.DescribeTopicPartitionsRequestTopicRequest(name=name) for name in ("n", "t", "tt")]
        ), 0,
    ),
    "list offsets": Ask(lambda *_: _list_offsets("t", "tt", "n"), 7),
    "offset for leader epoch": Ask(
        lambda *_: m.OffsetForLeaderEpochRequest(
            topics=[
                m.OffsetForLeaderTopic(topic=name, partitions=[m.OffsetForLeaderPartition(partition=0)])
                for name in ("t", "n")
            ]
        ), 4,
    ),
    "commit": Ask(lambda *_: _commit(bytes(16), "t", "tt", "n"), 9),
    "commit by id": Ask(lambda topic_id, _: _commit(topic_id, ""), 10),
    "fetch offsets": Ask(lambda *_: _committed(["t", "tt", "n"]), 9),
    "fetch offsets by id": Ask(lambda topic_id, _: _committed([""], topic_id), 10),
    "fetch all offsets": Ask(lambda *_: _committed(None), 9),
    "fetch offsets, long ago": Ask(
        lambda *_: m.OffsetFetchRequest(
            group_id="g",
            topics=[m.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in ("t", "tt", "n")],
        ), 1,
    ),
    "delete offsets": Ask(
        lambda *_: m.OffsetDeleteRequest(
            group_id="g",
            topics=[
                m.OffsetDeleteRequestTopic(name=name, partitions=[m.OffsetDeleteRequestPartition(partition_index=1)])
                for name in ("t", "tt", "n")
            ],
        ), 0,
    ),
    "find coordinators of groups": Ask(
        lambda *_: m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g", "h"]), 4
    ),
    "find the coordinator of a transaction": Ask(lambda *_: m.FindCoordinatorRequest(key_type=1, key="x"), 3),
    "join": Ask(
        lambda *_: m.JoinGroupRequest(
            group_id="g", session_timeout_ms=6000, rebalance_timeout_ms=6000, protocol_type="consumer",
        ), 9,
    ),
    "sync": Ask(
        lambda *_:
        m.SyncGroupRequest(
            group_id="g", generation_id=1, member_id="m", protocol_type="consumer", protocol_name="range"
        ), 5,
    ),
    "heartbeat": Ask(lambda *_: m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4),
    "leave": Ask(
        lambda *_: m.LeaveGroupRequest(group_id="g", members=[m.LeaveGroupRequestMember(member_id="m")]), 5
    ),
    "join a consumer group": Ask(lambda *_: _join("k", "t"), 1),
    "join a consumer group, with others": Ask(lambda *_: _join("k", "t", "tt", "n"), 1),
    "heartbeat of a consumer group": Ask(
        lambda *_: m.ConsumerGroupHeartbeatRequest(group_id="g", member_id="nobody", member_epoch=3), 1
    ),
    "join a share group": Ask(
        lambda *_: m.ShareGroupHeartbeatRequest(
            group_id="s", member_id="AAAAAAAAAAAAAAAAAAAAAw", subscribed_topic_names=["t"]
        ), 1,
    ),
    "join a streams group": Ask(lambda *_: _streams("st", "t"), 0, ignores=_OF_TASKS),
    "join a streams group, with others": Ask(lambda *_: _streams("st2", "t", "tt", "n"), 0, ignores=_OF_TASKS),
    "list groups": Ask(lambda *_: m.ListGroupsRequest(), 4),
    "describe groups": Ask(
        lambda *_: m.DescribeGroupsRequest(groups=["g", "h", "none"], include_authorized_operations=True), 6
    ),
    "describe consumer groups": Ask(
        lambda *_: m.ConsumerGroupDescribeRequest(group_ids=["g", "none"], include_authorized_operations=True), 1
    ),
    "describe streams groups": Ask(
        lambda *_: m.StreamsGroupDescribeRequest(group_ids=["g", "none"], include_authorized_operations=True), 0
    ),
    "describe share groups": Ask(lambda *_: m.ShareGroupDescribeRequest(group_ids=["g", "none"]), 1),
    "delete groups": Ask(lambda *_: m.DeleteGroupsRequest(groups_names=["none"]), 2),
    "a producer's id": Ask(
        lambda *_: m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4
    ),
    "a producer's id in a transaction": Ask(
        lambda *_: m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000), 4,
    ),
    "add partitions": Ask(
        lambda *_: m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x", v3_and_below_producer_id=1,
            v3_and_below_topics=[
                m.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in ("t", "tt", "n")
            ],
        ), 3,
    ),
    "add one partition": Ask(
        lambda *_: m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x", v3_and_below_producer_id=1,
            v3_and_below_topics=[m.AddPartitionsToTxnTopic(name="t", partitions=[0])],
        ), 3,
    ),
    "add partitions as a broker": Ask(
        lambda *_: m.AddPartitionsToTxnRequest(
            transactions=[
                m.AddPartitionsToTxnTransaction(
                    transactional_id="x", producer_id=1, verify_only=True,
                    topics=[m.AddPartitionsToTxnTopic(name="t", partitions=[0])],
                )
            ]
        ), 5,
    ),
    "add a group": Ask(
        lambda *_: m.AddOffsetsToTxnRequest(transactional_id="x", producer_id=1, group_id="g"), 3
    ),
    "commit in a transaction": Ask(lambda *_: _commit_in_a_transaction("t", "tt", "n"), 3),
    "end a transaction": Ask(
        lambda *_: m.EndTxnRequest(transactional_id="x", producer_id=1, committed=True), 3
    ),
    "write ends of transactions": Ask(
        lambda *_: m.WriteTxnMarkersRequest(
            markers=[
                m.WritableTxnMarker(
                    producer_id=1, topics=[m.WritableTxnMarkerTopic(name="none", partition_indexes=[0])]
                )
            ]
        ), 1,
    ),
    "describe transactions": Ask(
        lambda *_: m.DescribeTransactionsRequest(transactional_ids=["x", "none"]), 0
    ),
    "list transactions": Ask(lambda *_: m.ListTransactionsRequest(), 0),
    "describe producers": Ask(
        lambda *_: m.DescribeProducersRequest(
            topics=[m.DescribeProducersRequestTopicRequest(name=name, partition_indexes=[0]) for name in ("t", "n")]
        ), 0,
    ),
    "create topics": Ask(
        lambda *_: _new("n", "n-2", "other"), 7, ignores=frozenset({"configs", "topic_id"})
    ),
    "create a topic that is there": Ask(lambda *_: _new("t", "tt"), 7),
    "delete topics": Ask(
        lambda *_: m.DeleteTopicsRequest(
            topics=[m.DeleteTopicState(name=name) for name in ("n", "other", "__never")], timeout_ms=20_000
        ), 6,
    ),
    "delete topics by an id of nobody's": Ask(
        lambda *_: m.DeleteTopicsRequest(
            topics=[m.DeleteTopicState(name=None, topic_id=NOBODYS)], timeout_ms=20_000
        ), 6,
    ),
    "create partitions": Ask(
        lambda *_: m.CreatePartitionsRequest(
            topics=[m.CreatePartitionsTopic(name=name, count=3, assignments=None) for name in ("t", "tt", "n")],
            timeout_ms=20_000, validate_only=True,
        ), 3,
    ),
    "delete records": Ask(
        lambda *_: m.DeleteRecordsRequest(
            topics=[
                m.DeleteRecordsTopic(
                    name=name, partitions=[m.DeleteRecordsPartition(partition_index=0, offset=0)]
                )
                for name in ("t", "n")
            ],
            timeout_ms=20_000,
        ), 2,
    ),
    "settings of a topic": Ask(lambda *_: _configs(2, "t", "retention.ms"), 4),
    "settings of a topic that is not there": Ask(lambda *_: _configs(2, "n", "retention.ms"), 4),
    "settings of a broker": Ask(lambda *_: _configs(4, "1", "num.partitions"), 4),
    "settings of a group": Ask(lambda *_: _configs(32, "g", "consumer.session.timeout.ms"), 4),
    "settings of a subscription to metrics": Ask(lambda *_: _configs(16, "s", "metrics"), 4),
    "change settings of a subscription to metrics": Ask(lambda *_: _alter(16, "s", "metrics", "*"), 1),
    "change settings of a topic": Ask(lambda *_: _alter(2, "t", "retention.ms", "77000"), 1),
    "change settings of a topic that is not there": Ask(lambda *_: _alter(2, "n", "retention.ms", "77000"), 1),
    "change settings of brokers": Ask(lambda *_: _alter(4, "", "log.retention.ms", "77000"), 1),
    "change settings of a group": Ask(lambda *_: _alter(32, "g", "consumer.session.timeout.ms", "50000"), 1),
    "replace settings of a topic": Ask(lambda *_: _replace(2, "t", "retention.ms", "77000"), 2),
    "describe entries": Ask(lambda *_: _filter(m.DescribeAclsRequest, None), 3),
    "create an entry that is none": Ask(lambda *_: _entry_that_is_none(), 3),
    "delete no entry": Ask(
        lambda *_: m.DeleteAclsRequest(filters=[_filter(m.DeleteAclsFilter, "nothing has this name")]), 3
    ),
    "describe the cluster": Ask(
        lambda *_: m.DescribeClusterRequest(include_cluster_authorized_operations=True), 1
    ),
    "describe quotas": Ask(lambda *_: m.DescribeClientQuotasRequest(), 1),
    "alter quotas": Ask(
        lambda *_: m.AlterClientQuotasRequest(
            entries=[
                m.AlterClientQuotasRequestEntryData(
                    entity=[m.AlterClientQuotasRequestEntityData(entity_type="user", entity_name="nobody")],
                    ops=[m.OpData(key="producer_byte_rate", value=1e6)],
                )
            ],
            validate_only=True,
        ), 1,
    ),
    "describe users": Ask(lambda *_: m.DescribeUserScramCredentialsRequest(users=[m.UserName(name="nobody")]), 0),
    "delete a user who is not there": Ask(
        lambda *_: m.AlterUserScramCredentialsRequest(
            deletions=[m.ScramCredentialDeletion(name="nobody", mechanism=1)], upsertions=[]
        ), 0,
    ),
    "elect leaders": Ask(
        lambda *_: m.ElectLeadersRequest(
            topic_partitions=[m.ElectLeadersRequestTopicPartitions(topic="t", partitions=[0])], timeout_ms=20_000
        ), 2,
    ),
    "end a move that is none": Ask(
        lambda *_: m.AlterPartitionReassignmentsRequest(
            timeout_ms=20_000,
            topics=[
                m.ReassignableTopic(name="t", partitions=[m.ReassignablePartition(partition_index=0, replicas=None)])
            ],
        ), 0,
    ),
    "which partitions are moved": Ask(
        lambda *_: m.ListPartitionReassignmentsRequest(
            timeout_ms=20_000, topics=[m.ListPartitionReassignmentsTopics(name="t", partition_indexes=[0])]
        ), 0,
    ),
    "describe log directories": Ask(lambda *_: m.DescribeLogDirsRequest(topics=[]), 4),
    "change a feature that is none": Ask(
        lambda *_: m.UpdateFeaturesRequest(
            timeout_ms=20_000, validate_only=True,
            feature_updates=[m.FeatureUpdateKey(feature="transaction.version", max_version_level=2)],
        ), 1,
    ),
}  # fmt: skip
"""Requests by a name; none changes what another is answered."""

_COMPARED = frozenset(
    {
        "authorized_operations", "cluster_authorized_operations", "error_code", "group_id", "host", "key", "name",
        "operation", "partition", "partition_error_code", "partition_index", "pattern_type", "permission_type",
        "principal", "resource_name", "resource_type", "topic", "topic_authorized_operations",
        "topic_config_error_code", "topic_name", "transactional_id",
    }
)  # fmt: skip
_SOME = frozenset({"topic_id", "records"})
"""Of which is compared whether there is something."""
_NOT_COMPARED = frozenset({"brokers", "coordinators_host", "current_leader", "node_endpoints", "nodes"})


def told(answer: Message, ask: Ask | None = None) -> list[str]:
    """What an answer tells: its codes, what it names, and what may be done with it, in any order.

    Of a request that is refused as a whole only the code: some answers repeat what was asked.
    """
    code = getattr(answer, "error_code", 0)
    if code:
        return [f"error_code={code}"]
    passes, ignores = (frozenset[int](), frozenset[str]()) if ask is None else (ask.passes, ask.ignores)
    return sorted(_told(answer, passes, _NOT_COMPARED | ignores))


def _told(answer: Message, passes: frozenset[int], ignores: frozenset[str], path: str = "") -> Iterator[str]:
    fields = [(each.name, getattr(answer, each.name)) for each in answer.FIELDS if each.name not in ignores]
    own = []
    for name, value in fields:
        if name in _COMPARED and not isinstance(value, list):
            own.append(f"{name}={'passed' if value in passes and 'error' in name else value!r}")
        elif name in _SOME:
            own.append(f"{name}={any(bytes(value or b''))}")
    text = f"{path}({' '.join(own)})"
    yield text
    for name, value in fields:
        for row in value if isinstance(value, list) else ():
            if isinstance(row, Message) and not str(getattr(row, "name", "")).startswith("__"):
                yield from _told(row, passes, ignores, f"{text}.{name}")
