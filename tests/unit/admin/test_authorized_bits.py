"""What this user may do, as brokers tell it in the bits of a number, and brokers that are too old to."""

from __future__ import annotations

from typing import Any

import pytest

from kclient.admin import AclOperation, TopicIds
from kclient.errors import UnsupportedVersionError
from kclient.protocol.messages import (
    DescribeClusterBroker,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
)
from kclient.protocol.registry import ApiKey
from tests.fake_kafka import FakeKafka
from tests.unit.admin.scripted import VERSIONS, administering

pytestmark = pytest.mark.anyio

BITS = (1 << AclOperation.DESCRIBE) | (1 << AclOperation.ALTER) | 1 << 30 | 0b111
"""Beside two that are known, one of a newer broker, and UNKNOWN, ANY and ALL."""
TOLD = frozenset({AclOperation.DESCRIBE, AclOperation.ALTER})


async def test_of_a_cluster() -> None:
    def told(broker: Any, request: Any) -> DescribeClusterResponse:
        fenced = [DescribeClusterBroker(broker_id=7, host="h", port=1, is_fenced=True)]
        return DescribeClusterResponse(
            cluster_id="c",
            brokers=fenced if request.include_fenced_brokers else [],
            cluster_authorized_operations=BITS if request.include_cluster_authorized_operations else -(2**31),
        )

    async with FakeKafka(versions=VERSIONS) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.DESCRIBE_CLUSTER] = told
        plain = await admin.describe_cluster()
        assert (plain.nodes, plain.authorized_operations) == ((), None)
        found = await admin.describe_cluster(include_fenced_brokers=True, include_authorized_operations=True)
        assert found.authorized_operations == TOLD
        assert [(node.id, node.is_fenced) for node in found.nodes] == [(7, True)]


@pytest.mark.parametrize("newest", [7, 10])
async def test_of_a_cluster_before_describe_cluster(newest: int) -> None:
    """Kafka 2.3 to 2.7 tell by Metadata; none of them tells of fenced brokers."""
    versions: dict[ApiKey, tuple[int, int]] = {**VERSIONS}
    del versions[ApiKey.DESCRIBE_CLUSTER]

    def told(broker: Any, request: MetadataRequest) -> MetadataResponse:
        nodes = [MetadataResponseBroker(node_id=1, host=broker.host, port=0)]
        answer = MetadataResponse(brokers=nodes, cluster_id="c", controller_id=1)
        if request.include_cluster_authorized_operations:
            answer.cluster_authorized_operations = BITS
        return answer

    async with FakeKafka(versions={**versions, ApiKey.METADATA: (0, newest)}) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.METADATA] = told
        assert (await admin.describe_cluster()).authorized_operations is None
        with pytest.raises(UnsupportedVersionError, match="DESCRIBE_CLUSTER"):
            await admin.describe_cluster(include_fenced_brokers=True)
        if newest < 8:
            with pytest.raises(UnsupportedVersionError, match="include_cluster_authorized_operations"):
                await admin.describe_cluster(include_authorized_operations=True)
        else:
            assert (await admin.describe_cluster(include_authorized_operations=True)).authorized_operations == TOLD


async def test_brokers_that_do_not_tell_of_fenced_ones() -> None:
    versions = {**VERSIONS, ApiKey.DESCRIBE_CLUSTER: (0, 1)}
    async with FakeKafka(versions=versions) as kafka, administering(kafka) as admin:
        with pytest.raises(UnsupportedVersionError, match=r"Kafka 4\.0 does"):
            await admin.describe_cluster(include_fenced_brokers=True)


async def test_brokers_that_know_topics_by_name_only() -> None:
    ids = TopicIds(["3Db5QLSqSZieL3rJBUUegA"])
    async with FakeKafka(versions={**VERSIONS, ApiKey.METADATA: (0, 11)}) as kafka, administering(kafka) as admin:
        with pytest.raises(UnsupportedVersionError, match=r"by name only \(Kafka 3\.1 by id too\)"):
            await admin.describe_topics(ids)


def test_ids_that_cannot_be() -> None:
    for wrong in ("flights", "", "3Db5QLSqSZieL3rJBUUegA==", "é" * 22):
        with pytest.raises(ValueError, match=r"topic ids? "):
            TopicIds([wrong])
    with pytest.raises(TypeError, match="topic ids are given in a list"):
        TopicIds("3Db5QLSqSZieL3rJBUUegA")
    assert TopicIds(iter(["3Db5QLSqSZieL3rJBUUegA"])) == TopicIds(["3Db5QLSqSZieL3rJBUUegA"])  # type: ignore[arg-type]
