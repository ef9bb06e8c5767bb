"""Answers that leave things out, or tell of others: what they do not tell of is not taken for done, nor for nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

import kclient
from kclient.admin import (
    AbortTransactionSpec,
    AclBinding,
    AclOperation,
    ConfigResource,
    ConfigResourceType,
    ElectionType,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicIds,
)
from kclient.errors import ClusterAuthorizationError, ErrorCode, UnknownServerError
from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    AclCreationResult,
    AlterShareGroupOffsetsResponse,
    CreatableTopicResult,
    CreateAclsResponse,
    CreateTopicsResponse,
    DeletableGroupResult,
    DeleteAclsResponse,
    DeleteGroupsResponse,
    DeleteRecordsResponse,
    DeleteShareGroupOffsetsResponse,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    DescribeLogDirsResponse,
    DescribeProducersResponse,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
    DescribeTransactionsResponse,
    ElectLeadersResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    WriteTxnMarkersResponse,
)
from kclient.protocol.registry import ApiKey
from kclient.types import TopicPartition
from tests.fake_kafka import FakeBroker, FakeKafka
from tests.unit.admin.scripted import KRAFT, VERSIONS, administering

pytestmark = pytest.mark.anyio

ACLS = {ApiKey.CREATE_ACLS: (1, 3), ApiKey.DELETE_ACLS: (1, 3)}
EMPTY: dict[ApiKey, type[ApiMessage]] = {
    ApiKey.DELETE_GROUPS: DeleteGroupsResponse,
    ApiKey.DELETE_RECORDS: DeleteRecordsResponse,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: DeleteShareGroupOffsetsResponse,
    ApiKey.DESCRIBE_GROUPS: DescribeGroupsResponse,
    ApiKey.DESCRIBE_PRODUCERS: DescribeProducersResponse,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: DescribeShareGroupOffsetsResponse,
    ApiKey.DESCRIBE_TRANSACTIONS: DescribeTransactionsResponse,
    ApiKey.LIST_OFFSETS: ListOffsetsResponse,
    ApiKey.OFFSET_COMMIT: OffsetCommitResponse,
    ApiKey.OFFSET_DELETE: OffsetDeleteResponse,
    ApiKey.OFFSET_FETCH: OffsetFetchResponse,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: AlterShareGroupOffsetsResponse,
    ApiKey.WRITE_TXN_MARKERS: WriteTxnMarkersResponse,
    ApiKey.ELECT_LEADERS: ElectLeadersResponse,
    ApiKey.DESCRIBE_LOG_DIRS: DescribeLogDirsResponse,
}
"""Answers that tell of nothing."""
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
CALLS: dict[str, Callable[[kclient.Admin], Awaitable[object]]] = {
    "abort_transaction": lambda admin: admin.abort_transaction(AbortTransactionSpec(T0, 7, 0, 0)),
    "alter_group_offsets": lambda admin: admin.alter_group_offsets("g", {T0: 1}),
    "alter_share_group_offsets": lambda admin: admin.alter_share_group_offsets("g", {T0: 1}),
    "delete_group_offsets": lambda admin: admin.delete_group_offsets("g", [T0]),
    "delete_groups": lambda admin: admin.delete_groups(["g"]),
    "delete_records": lambda admin: admin.delete_records({T0: 1}),
    "delete_share_group_offsets": lambda admin: admin.delete_share_group_offsets("g", ["t"]),
    "describe_groups": lambda admin: admin.describe_groups(["g"]),
    "describe_producers": lambda admin: admin.describe_producers([T0]),
    "describe_producers of a broker": lambda admin: admin.describe_producers([T0], broker_id=1),
    "describe_transactions": lambda admin: admin.describe_transactions(["x"]),
    "list_group_offsets": lambda admin: admin.list_group_offsets("g"),
    "list_offsets": lambda admin: admin.list_offsets({T0: OffsetSpec.LATEST}),
    "list_share_group_offsets": lambda admin: admin.list_share_group_offsets("g", [T0]),
}
TOLD = "the broker's answer does not tell what became of it"


def acl(name: str) -> AclBinding:
    return AclBinding(
        resource_type=ResourceType.TOPIC, resource_name=name, principal="User:a", operation=AclOperation.READ
    )


async def test_topics() -> None:
    def answer(_: FakeBroker, request: Any) -> Any:
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=request.topics[0].name, error_code=0)])

    async with FakeKafka(versions={**VERSIONS, **KRAFT}) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.CREATE_TOPICS] = answer
        with pytest.raises(UnknownServerError, match=f"b: {TOLD}"):
            await admin.create_topics([NewTopic("a"), NewTopic("b")])


async def test_acls() -> None:
    async with FakeKafka(versions={**VERSIONS, **KRAFT, **ACLS}) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.CREATE_ACLS] = lambda *_: CreateAclsResponse(results=[AclCreationResult(error_code=0)])
        kafka.scripts[ApiKey.DELETE_ACLS] = lambda *_: DeleteAclsResponse(filter_results=[])
        with pytest.raises(UnknownServerError, match=f"TOPIC b: {TOLD}"):
            await admin.create_acls([acl("a"), acl("b")])
        with pytest.raises(UnknownServerError, match=TOLD):
            await admin.delete_acls([acl("a").as_filter()])


def emptily(kafka: FakeKafka) -> None:
    for key, answer in EMPTY.items():
        kafka.scripts[key] = partial(nothing, answer)


def nothing(answer: type[ApiMessage], _broker: FakeBroker, _request: Any) -> ApiMessage:
    return answer()


VERSIONS_OF_EMPTY = {**VERSIONS, **KRAFT, **{key: answer.VERSIONS for key, answer in EMPTY.items()}}


@pytest.mark.parametrize("name", CALLS)
async def test_an_answer_that_tells_nothing(name: str) -> None:
    async with FakeKafka(versions=VERSIONS_OF_EMPTY) as kafka, administering(kafka) as admin:
        emptily(kafka)
        with pytest.raises(UnknownServerError, match="the broker's answer does not tell"):
            await CALLS[name](admin)


async def test_an_election_that_is_not_told_of() -> None:
    async with FakeKafka({"t": 2}, versions=VERSIONS_OF_EMPTY) as kafka, administering(kafka) as admin:
        emptily(kafka)
        told = await admin.elect_leaders(ElectionType.PREFERRED, [T0, T1])
        assert {type(error) for error in told.values()} == {UnknownServerError}
        assert told.keys() == {T0, T1}
        assert await admin.elect_leaders(ElectionType.PREFERRED) == {}


async def test_a_broker_without_log_directories_has_refused() -> None:
    """Before Kafka 3.2 the answer has no place for a code; no broker has none of them."""
    async with FakeKafka(versions=VERSIONS_OF_EMPTY) as kafka, administering(kafka) as admin:
        emptily(kafka)
        with pytest.raises(ClusterAuthorizationError, match="Broker 1 tells nothing"):
            await admin.describe_log_dirs()
        with pytest.raises(ClusterAuthorizationError):
            await admin.describe_replica_log_dirs([("t", 0, 1)])


async def test_what_nobody_asked_for_is_not_taken_for_the_answer() -> None:
    async with FakeKafka({"t": 2}, versions=VERSIONS_OF_EMPTY) as kafka, administering(kafka) as admin:
        others = [DescribeGroupsResponseDescribedGroup(group_id="other", group_state="Stable")]
        kafka.scripts[ApiKey.DESCRIBE_GROUPS] = lambda *_: DescribeGroupsResponse(groups=others)
        with pytest.raises(UnknownServerError, match="Group 'g': the broker's answer does not tell of it"):
            await admin.describe_groups(["g"])
        deleted = DeletableGroupResult(group_id="other", error_code=0)
        kafka.scripts[ApiKey.DELETE_GROUPS] = lambda *_: DeleteGroupsResponse(results=[deleted])
        with pytest.raises(UnknownServerError, match="Group 'g': the broker's answer does not tell of it"):
            await admin.delete_groups(["g"])


async def test_errors_of_what_nobody_asked_for_are_nobodys() -> None:
    def places(_broker: FakeBroker, _request: Any) -> Any:
        rows = [
            ListOffsetsPartitionResponse(partition_index=0, offset=7),
            ListOffsetsPartitionResponse(partition_index=1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=rows)])

    def made(_broker: FakeBroker, _request: Any) -> Any:
        rows = [("a", 0), ("b", ErrorCode.REQUEST_TIMED_OUT), ("c", ErrorCode.TOPIC_ALREADY_EXISTS)]
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=name, error_code=code) for name, code in rows])

    async with FakeKafka({"t": 2}, versions=VERSIONS_OF_EMPTY) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.LIST_OFFSETS] = places
        found = (await admin.list_offsets({T0: OffsetSpec.LATEST}, timeout=5))[T0]
        assert found is not None
        assert found.offset == 7
        kafka.scripts[ApiKey.CREATE_TOPICS] = made
        await admin.create_topics([NewTopic("a")], timeout=5)


async def test_of_settings_and_share_groups_too() -> None:
    results = [
        DescribeConfigsResult(resource_type=2, resource_name="t"),
        DescribeConfigsResult(resource_type=2, resource_name="other"),
        DescribeConfigsResult(resource_type=99, resource_name="t", error_code=ErrorCode.INVALID_REQUEST),
    ]
    rows = [
        DescribeShareGroupOffsetsResponsePartition(partition_index=0, start_offset=4),
        DescribeShareGroupOffsetsResponsePartition(partition_index=1, error_code=ErrorCode.UNKNOWN_SERVER_ERROR),
    ]
    topic = DescribeShareGroupOffsetsResponseTopic(topic_name="t", partitions=rows)
    group = DescribeShareGroupOffsetsResponseGroup(group_id="g", topics=[topic])
    versions = {**VERSIONS_OF_EMPTY, ApiKey.DESCRIBE_CONFIGS: (1, 4)}
    async with FakeKafka({"t": 2}, versions=versions) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.DESCRIBE_CONFIGS] = lambda *_: DescribeConfigsResponse(results=results)
        settings = ConfigResource(ConfigResourceType.TOPIC, "t")
        assert await admin.describe_configs([settings]) == {settings: {}}
        kafka.scripts[ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS] = lambda *_: DescribeShareGroupOffsetsResponse(
            groups=[group]
        )
        told = await admin.list_share_group_offsets("g", [T0])
        assert {tp: each.start_offset for tp, each in told.items()} == {T0: 4}


async def test_no_topic_has_the_id_that_stands_for_none() -> None:
    with pytest.raises(ValueError, match="no topic has the id AAAA"):
        TopicIds(["A" * 22])
