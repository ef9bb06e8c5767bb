"""Descriptions with what this user may do, of topics by id, and of clusters with fenced brokers."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

import kclient
import kclient.sync
from kclient.admin import AclOperation, Admin, PartialFailureError, TopicIds
from kclient.errors import UnknownTopicIdError, UnsupportedVersionError
from tests.kafka_cluster import ONE_CLUSTER, KafkaCluster
from tests.wire_session import ON_EACH_SERVER, until

OF_CLUSTERS = frozenset(
    {
        AclOperation.ALTER, AclOperation.ALTER_CONFIGS, AclOperation.CLUSTER_ACTION, AclOperation.CREATE,
        AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.IDEMPOTENT_WRITE,
    }
)  # fmt: skip
OF_TOPICS = frozenset(
    {
        AclOperation.ALTER, AclOperation.ALTER_CONFIGS, AclOperation.CREATE, AclOperation.DELETE,
        AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.READ, AclOperation.WRITE,
    }
)  # fmt: skip
OF_GROUPS = frozenset({AclOperation.DELETE, AclOperation.DESCRIBE, AclOperation.READ})
OF_NEWER_GROUPS = OF_GROUPS | {AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS}
"""Since Kafka 3.9 and 4.0 groups have settings."""


@pytest.mark.anyio
@ON_EACH_SERVER
async def test_what_a_user_may_do(server: tuple[str, str], topic: str) -> None:
    _, address = server
    async with Admin(bootstrap_servers=address) as admin:
        await admin.create_topic(topic, 1)
        await until(admin.list_topics, lambda found: topic in {each.name for each in found})
        await admin.alter_group_offsets(topic, {(topic, 0): 0})
        plain = (
            (await admin.describe_cluster()).authorized_operations,
            (await admin.describe_topics([topic]))[topic].authorized_operations,
            (await admin.describe_groups([topic]))[topic].authorized_operations,
        )
        assert plain == (None, None, None)
        told = (await admin.describe_cluster(include_authorized_operations=True)).authorized_operations
        assert told == OF_CLUSTERS
        described = (await admin.describe_topics([topic], include_authorized_operations=True))[topic]
        assert described.authorized_operations == OF_TOPICS
        group = (await admin.describe_groups([topic], include_authorized_operations=True))[topic]
        assert group.authorized_operations in (OF_GROUPS, OF_NEWER_GROUPS)


@pytest.mark.anyio
@ON_EACH_SERVER
async def test_topics_by_id(server: tuple[str, str], topic: str) -> None:
    _, address = server
    async with Admin(bootstrap_servers=address) as admin:
        await admin.create_topic(topic, 2)
        await until(admin.list_topics, lambda found: topic in {each.name for each in found})
        named = await until(lambda: admin.describe_topics([topic]), lambda found: len(found[topic].partitions) == 2)
        topic_id = named[topic].topic_id
        found = (await admin.describe_topics(TopicIds([topic_id])))[topic_id]
        # eligible leaders are told of topics by name only
        plain = [replace(info, eligible_leader_replicas=None, last_known_elr=None) for info in named[topic].partitions]
        assert found == replace(named[topic], partitions=tuple(plain))
        with pytest.raises(UnknownTopicIdError, match="3Db5QLSqSZieL3rJBUUegA"):
            await admin.describe_topics(TopicIds([topic_id, "3Db5QLSqSZieL3rJBUUegA"]))
        with pytest.raises(PartialFailureError) as caught:
            await admin.describe_topics(TopicIds(["3Db5QLSqSZieL3rJBUUegA", "4Db5QLSqSZieL3rJBUUegA"]))
        assert set(caught.value.failures) == {"3Db5QLSqSZieL3rJBUUegA", "4Db5QLSqSZieL3rJBUUegA"}
        await admin.delete_topic(topic)
        await admin.create_topic(topic, 1)  # its namesake is another
        with pytest.raises(UnknownTopicIdError):
            await until(lambda: admin.describe_topics(TopicIds([topic_id])), lambda _: False)


@pytest.mark.anyio
@ON_EACH_SERVER
async def test_who_can_tell_of_fenced_brokers(server: tuple[str, str]) -> None:
    name, address = server
    async with Admin(bootstrap_servers=address) as admin:
        if name == "kafka3":
            with pytest.raises(UnsupportedVersionError, match=r"does not tell of fenced brokers \(Kafka 4\.0 does\)"):
                await admin.describe_cluster(include_fenced_brokers=True)
        else:
            told = await admin.describe_cluster(include_fenced_brokers=True)
            assert [node.is_fenced for node in told.nodes] == [False]


@pytest.mark.kafka
@pytest.mark.timeout(300)
@ONE_CLUSTER
def test_a_fenced_broker(cluster: KafkaCluster) -> None:
    cluster.servers[3].stop(kill=True)
    try:
        ends = time.monotonic() + 60
        with kclient.sync.Admin(bootstrap_servers=cluster.bootstrap) as admin:
            wanted, told = {1: False, 2: False, 3: True}, dict[int, bool]()
            while told != wanted or len(admin.describe_cluster().nodes) != 2:  # brokers learn of it one by one
                assert time.monotonic() < ends, told
                found = admin.describe_cluster(include_fenced_brokers=True)
                told = {node.id: node.is_fenced for node in found.nodes}
    finally:
        cluster.heal()
