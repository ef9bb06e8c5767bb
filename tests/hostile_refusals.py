"""As `hostile_clients`: giant requests that are refused as a whole: the answer repeats one error for each row."""

from __future__ import annotations

from kclient.protocol.messages import (
    AddPartitionsToTxnRequest,
    OffsetCommitRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kclient.protocol.messages import offsets as offsets_
from kclient.protocol.messages import produce as produce_
from kclient.protocol.messages import transactions as transactions_
from tests.gateway_wire import batch_of
from tests.hostile_clients import Course, Site, attack, numbered
from tests.neighbour_probe import TOPIC, framed

MANY = 200_000
NOBODY = 987_654_321
"""A producer id that was given to nobody."""


@attack("refused: Produce of 200k partitions, with acks=7")
def produce(site: Site) -> Course:
    batch = batch_of(b"x")
    data = [produce_.PartitionProduceData(index=number, records=batch) for number in range(site.many(MANY))]
    topic = produce_.TopicProduceData(name=TOPIC, partition_data=data)
    frame = framed(ProduceRequest(acks=7, timeout_ms=30_000, topic_data=[topic]), 9)
    yield
    site.repeat(frame)


@attack("refused: Produce of 200k topics, with acks=7")
def produce_to_topics(site: Site) -> Course:
    data = [produce_.PartitionProduceData(index=0, records=batch_of(b"x"))]
    topics = [produce_.TopicProduceData(name=name, partition_data=data) for name in numbered("no-", site.many(MANY))]
    frame = framed(ProduceRequest(acks=7, timeout_ms=30_000, topic_data=topics), 9)
    yield
    site.repeat(frame)


@attack("refused: OffsetCommit of 200k partitions, by nobody")
def commit(site: Site) -> Course:
    rows = [
        offsets_.OffsetCommitRequestPartition(partition_index=number, committed_offset=1, committed_metadata="")
        for number in range(site.many(MANY))
    ]
    topics = [offsets_.OffsetCommitRequestTopic(name=TOPIC, partitions=rows)]
    request = OffsetCommitRequest(
        group_id="nobody's", generation_id_or_member_epoch=3, member_id="nobody", topics=topics
    )
    frame = framed(request, 8)
    yield
    site.repeat(frame)


@attack("refused: TxnOffsetCommit of 200k partitions, by nobody")
def commit_in_transaction(site: Site) -> Course:
    rows = [
        transactions_.TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=1, committed_metadata="")
        for n in range(site.many(MANY))
    ]
    request = TxnOffsetCommitRequest(
        transactional_id="nobody's",
        group_id="nobody's",
        producer_id=NOBODY,
        producer_epoch=0,
        generation_id=3,
        member_id="nobody",
        topics=[transactions_.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=rows)],
    )
    frame = framed(request, 3)
    yield
    site.repeat(frame)


@attack("refused: AddPartitionsToTxn of 200k partitions, by nobody")
def add_partitions(site: Site) -> Course:
    topics = [transactions_.AddPartitionsToTxnTopic(name=TOPIC, partitions=list(range(site.many(MANY))))]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="nobody's",
        v3_and_below_producer_id=NOBODY,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=topics,
    )
    frame = framed(request, 3)
    yield
    site.repeat(frame)
