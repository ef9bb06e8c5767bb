"""What brokers tell and users could not have given, since other clients are less strict: it hides nothing."""

from __future__ import annotations

import pytest

from kclient.admin import AclBinding, AclBindingFilter, ClientQuotaEntity
from kclient.protocol.messages import (
    AclDescription,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsResponse,
    DescribeAclsResource,
    DescribeAclsResponse,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntityData,
    DescribeClientQuotasResponseEntryData,
    DescribeQuorumResponse,
    DescribeQuorumResponseListener,
    DescribeQuorumResponseNode,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    ValueData,
)
from kclient.protocol.registry import ApiKey
from tests.fake_kafka import FakeKafka
from tests.unit.admin.scripted import KRAFT, VERSIONS, administering

pytestmark = pytest.mark.anyio

KEYS = {
    ApiKey.DESCRIBE_ACLS: (1, 3),
    ApiKey.DELETE_ACLS: (1, 3),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
}


async def test_an_acl_with_an_empty_host() -> None:
    """Kafka takes it from the Java client; it was deleted, and the call raised a ValueError."""
    rights = {"principal": "User:", "operation": 3, "permission_type": 3}
    acls = [AclDescription(host="", **rights), AclDescription(host="*", **rights)]
    listed = DescribeAclsResource(resource_type=2, resource_name="t", pattern_type=3, acls=acls)
    gone = [
        DeleteAclsMatchingAcl(resource_type=2, resource_name="t", pattern_type=3, host=host, **rights)
        for host in ("", "*")
    ]
    async with FakeKafka(versions={**VERSIONS, **KRAFT, **KEYS}) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.DESCRIBE_ACLS] = lambda *_: DescribeAclsResponse(resources=[listed])
        found = await admin.describe_acls()
        assert [each.host for each in found] == ["", "*"]
        assert isinstance(found[0], AclBinding)
        assert found[0].as_filter().host == ""
        assert "host=''" in repr(found[0])
        result = DeleteAclsFilterResult(matching_acls=gone)
        kafka.scripts[ApiKey.DELETE_ACLS] = lambda *_: DeleteAclsResponse(filter_results=[result])
        assert await admin.delete_acls([AclBindingFilter()]) == {AclBindingFilter(): found}


async def test_a_quota_of_an_empty_name() -> None:
    entity = [DescribeClientQuotasResponseEntityData(entity_type="user", entity_name="")]
    values = [ValueData(key="request_percentage", value=5.0)]
    entry = DescribeClientQuotasResponseEntryData(entity=entity, values=values)
    async with FakeKafka(versions={**VERSIONS, **KRAFT, **KEYS}) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.DESCRIBE_CLIENT_QUOTAS] = lambda *_: DescribeClientQuotasResponse(entries=[entry])
        ((found, quotas),) = (await admin.describe_client_quotas()).items()
        assert isinstance(found, ClientQuotaEntity)
        assert (found.user, found.client_id, found.ip) == ("", None, None)
        assert quotas == {"request_percentage": 5.0}


async def test_a_controller_that_listens_nowhere() -> None:
    listener = DescribeQuorumResponseListener(name="CONTROLLER", host="", port=0)
    row = DescribeQuorumResponsePartitionData(partition_index=0, leader_id=1)
    answer = DescribeQuorumResponse(
        topics=[DescribeQuorumResponseTopicData(topic_name="__cluster_metadata", partitions=[row])],
        nodes=[DescribeQuorumResponseNode(node_id=1, listeners=[listener])],
    )
    async with FakeKafka(versions={**VERSIONS, **KRAFT}) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.DESCRIBE_QUORUM] = lambda *_: answer
        found = await admin.describe_metadata_quorum()
        assert [each.port for each in found.nodes[1]] == [0]
