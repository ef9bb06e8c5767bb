"""Groups on brokers that know a kind of groups in versions only that kclient does not speak."""

from __future__ import annotations

import pytest

from kclient.errors import GroupIdNotFoundError
from kclient.protocol.messages import (
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchResponse,
)
from kclient.protocol.registry import ApiKey
from tests.fake_kafka import FakeKafka
from tests.unit.admin.scripted import VERSIONS, administering

pytestmark = pytest.mark.anyio

EARLY = {
    ApiKey.FIND_COORDINATOR: (0, 2),
    ApiKey.DESCRIBE_GROUPS: (0, 5),
    ApiKey.OFFSET_COMMIT: (2, 8),
    ApiKey.OFFSET_FETCH: (1, 7),
    ApiKey.SHARE_GROUP_DESCRIBE: (0, 0),
}
"""As Kafka 3.9 and 4.0 with early share groups (`unstable.api.versions.enable`)."""


async def test_a_group_that_does_not_exist() -> None:
    dead = DescribeGroupsResponseDescribedGroup(group_id="g", group_state="Dead")
    part = OffsetCommitResponsePartition(partition_index=0)
    committed = OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[part])])
    async with FakeKafka(versions={**VERSIONS, **EARLY}) as kafka, administering(kafka) as admin:
        kafka.scripts[ApiKey.DESCRIBE_GROUPS] = lambda *_: DescribeGroupsResponse(groups=[dead])
        kafka.scripts[ApiKey.OFFSET_FETCH] = lambda *_: OffsetFetchResponse()
        kafka.scripts[ApiKey.OFFSET_COMMIT] = lambda *_: committed
        with pytest.raises(GroupIdNotFoundError, match="Group 'g' does not exist"):
            await admin.describe_groups(["g"])
        with pytest.raises(GroupIdNotFoundError):
            await admin.remove_members_from_consumer_group("g")
        reset = await admin.reset_group_offsets("g", {("t", 0): 5})
        assert [each.after for each in reset.values()] == [5]
