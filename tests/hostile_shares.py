"""As `hostile_clients`: giant requests of share groups and streams groups, of transactions, and about users."""

from __future__ import annotations

from kclient.protocol.messages import (
    AlterUserScramCredentialsRequest,
    ProduceRequest,
    ShareFetchRequest,
    StreamsGroupHeartbeatRequest,
)
from kclient.protocol.messages import produce as produce_
from kclient.protocol.messages import share as share_
from kclient.protocol.messages import streams as streams_
from kclient.protocol.messages import users as users_
from tests.hostile_clients import Course, Site, attack, numbered
from tests.neighbour_probe import TOPIC, framed

MANY = 200_000


def fetch(
    epoch: int, topics: list[share_.ShareFetchRequestTopic], forgotten: list[share_.ShareFetchRequestForgottenTopic]
) -> bytes:
    request = ShareFetchRequest(
        group_id="hostile", member_id="hostile", share_session_epoch=epoch, max_wait_ms=0, min_bytes=0, max_records=1,
        topics=topics, forgotten_topics_data=forgotten,
    )  # fmt: skip
    return framed(request, 1)


@attack("ShareFetch of 200k partitions")
def share_fetch(site: Site) -> Course:
    many = site.many(MANY)
    partitions = [share_.ShareFetchRequestPartition(partition_index=number) for number in range(many)]
    topic = share_.ShareFetchRequestTopic(topic_id=bytes(15) + b"x", partitions=partitions)
    frame = fetch(0, [topic], [])
    yield
    site.repeat(frame)


@attack("ShareFetch that forgets 200k partitions")
def share_forget(site: Site) -> Course:
    many = site.many(MANY)
    frames = [
        fetch(0, [], []),
        fetch(1, [], [share_.ShareFetchRequestForgottenTopic(topic_id=bytes(15) + b"x", partitions=list(range(many)))]),
    ]
    yield
    site.repeat(*frames)


@attack("500k topics without partitions: ShareFetch")
def share_topics(site: Site) -> Course:
    topic = share_.ShareFetchRequestTopic(topic_id=bytes(15) + b"x")
    gone = share_.ShareFetchRequestForgottenTopic(topic_id=bytes(15) + b"x")
    frames = [fetch(0, [topic] * site.many(500_000), []), fetch(1, [], [gone] * site.many(500_000))]
    yield
    site.repeat(*frames)


@attack("AlterUserScramCredentials of 500k users")
def alter_users(site: Site) -> Course:
    names = numbered("user-", site.many(500_000))
    deletions = [users_.ScramCredentialDeletion(name=name, mechanism=1) for name in names]
    frame = framed(AlterUserScramCredentialsRequest(deletions=deletions), 0)
    yield
    site.repeat(frame)


@attack("Produce of 200k partitions without records, in a transaction")
def produce(site: Site) -> Course:
    data = [produce_.PartitionProduceData(index=0, records=None)] * site.many(MANY)
    topic = produce_.TopicProduceData(name=TOPIC, partition_data=data)
    request = ProduceRequest(transactional_id="hostile", acks=-1, timeout_ms=30_000, topic_data=[topic])
    frame = framed(request, 9)
    yield
    site.repeat(frame)


@attack("StreamsGroupHeartbeat with a topology of 200k topics")
def streams(site: Site) -> Course:
    topics = [streams_.StreamsGroupHeartbeatRequestTopicInfo(name=name) for name in numbered("t-", site.many(MANY))]
    part = streams_.StreamsGroupHeartbeatRequestSubtopology(subtopology_id="0", repartition_source_topics=topics)
    request = StreamsGroupHeartbeatRequest(
        group_id="hostile", member_id="hostile", member_epoch=0, rebalance_timeout_ms=1000, active_tasks=[],
        standby_tasks=[], warmup_tasks=[],
        topology=streams_.StreamsGroupHeartbeatRequestTopology(epoch=0, subtopologies=[part]),
    )  # fmt: skip
    frame = framed(request, 0)
    yield
    site.repeat(frame)
