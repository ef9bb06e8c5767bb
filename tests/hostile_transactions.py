"""As `hostile_clients`: what one client can do with transactions, and with what cluster tools ask for."""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from typing import Any

from kclient.protocol.message import ApiMessage
from kclient.protocol.messages import (
    AddPartitionsToTxnRequest,
    AlterPartitionReassignmentsRequest,
    DeleteRecordsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ElectLeadersRequest,
    EndTxnRequest,
    FetchRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    ListPartitionReassignmentsRequest,
    ListTransactionsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from kclient.protocol.messages import fetch as fetch_
from kclient.protocol.messages import offsets as offsets_
from kclient.protocol.messages import produce as produce_
from kclient.protocol.messages import replicas as replicas_
from kclient.protocol.messages import transactions as transactions_
from tests.hostile_clients import Course, Site, attack, numbered
from tests.neighbour_probe import TOPIC, framed

MANY = 200_000


def _producer(site: Site, name: str) -> tuple[int, int]:
    """Id and epoch for a transactional id."""
    for _ in range(100):
        answer = site.call(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000), 4)
        if not answer.error_code:
            return answer.producer_id, answer.producer_epoch
        site.rest(0.1)
    raise AssertionError(f"no producer id: {answer}")


def _added(name: str, identity: tuple[int, int], topic: str, partitions: int) -> bytes:
    topics = [transactions_.AddPartitionsToTxnTopic(name=topic, partitions=list(range(partitions)))]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=identity[0],
        v3_and_below_producer_epoch=identity[1],
        v3_and_below_topics=topics,
    )
    return framed(request, 3)


@attack("AddPartitionsToTxn of 200k partitions that are not there")
def add_unknown(site: Site) -> Course:
    frame = _added("t", _producer(site, "t"), TOPIC, site.many(MANY))
    yield
    site.repeat(frame)


@attack("AddPartitionsToTxn of 5,000 partitions, and EndTxn")
def add_and_end(site: Site) -> Course:
    count = site.many(5000)
    site.create("wide", partitions=count)
    identity = _producer(site, "t")
    add = _added("t", identity, "wide", count)
    end = framed(
        EndTxnRequest(transactional_id="t", producer_id=identity[0], producer_epoch=identity[1], committed=False), 3
    )
    yield
    site.repeat(add, end)


@attack("AddPartitionsToTxn that verifies 100k transactions")
def verify_many(site: Site) -> Course:
    transactions = [
        transactions_.AddPartitionsToTxnTransaction(
            transactional_id=name,
            producer_id=1,
            producer_epoch=0,
            verify_only=True,
            topics=[transactions_.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0, 1])],
        )
        for name in numbered("v", site.many(100_000))
    ]
    frame = framed(AddPartitionsToTxnRequest(transactions=transactions), 4)
    yield
    site.repeat(frame)


@attack("TxnOffsetCommit of 200k partitions")
def commit_in_transaction(site: Site) -> Course:
    producer_id, epoch = _producer(site, "t")
    partitions = [
        transactions_.TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=1, committed_metadata="")
        for n in range(site.many(MANY))
    ]
    topics = [transactions_.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=partitions)]
    request = TxnOffsetCommitRequest(
        transactional_id="t", group_id="g", producer_id=producer_id, producer_epoch=epoch, topics=topics
    )
    frame = framed(request, 5)
    yield
    site.repeat(frame)


def _markers(count: int, each: int) -> bytes:
    topics = [transactions_.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=list(range(each)))] if each else []
    markers = [
        transactions_.WritableTxnMarker(
            producer_id=number,
            producer_epoch=0,
            transaction_result=False,
            topics=topics,
            coordinator_epoch=0,
        )
        for number in range(count)
    ]
    return framed(WriteTxnMarkersRequest(markers=markers), 1)


@attack("WriteTxnMarkers into 200k partitions")
def markers_wide(site: Site) -> Course:
    frame = _markers(1, site.many(MANY))
    yield
    site.repeat(frame)


@attack("WriteTxnMarkers of 50k producers", keeps_memory=False)
def markers_many(site: Site) -> Course:
    frame = _markers(site.many(50_000), 1)
    yield
    site.repeat(frame)


@attack("WriteTxnMarkers of 500k producers and no partitions")
def markers_empty(site: Site) -> Course:
    frame = _markers(site.many(500_000), 0)
    yield
    site.repeat(frame)


@attack("DescribeTransactions of one with 10,000 partitions")
def describe_wide(site: Site) -> Course:
    count = site.many(10_000)
    site.create("wide", partitions=count)
    with site.client() as client:
        client.ask(_added("t", _producer(site, "t"), "wide", count))
    frame = framed(DescribeTransactionsRequest(transactional_ids=["t"]), 0)
    yield
    site.repeat(frame)


@attack("DescribeTransactions of 500k ids")
def describe_transactions(site: Site) -> Course:
    frame = framed(DescribeTransactionsRequest(transactional_ids=numbered("d", site.many(500_000))), 0)
    yield
    site.repeat(frame)


def _many_ids(site: Site, count: int) -> None:
    """So many transactional ids."""
    client = site.client()
    client.ask(framed(InitProducerIdRequest(transactional_id="first", transaction_timeout_ms=60_000), 4))

    def read() -> None:
        with suppress(OSError):
            for _ in range(count):
                client.discard()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for name in numbered("listed-", count):
        client.send(framed(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000), 4))
    reader.join()


@attack("ListTransactions of 5,000 ids, with a pattern and many filters")
def list_transactions(site: Site) -> Course:
    _many_ids(site, site.many(5000))
    plain = framed(ListTransactionsRequest(), 0)
    pattern = framed(ListTransactionsRequest(transactional_id_pattern="(.*a|.*b)*" * 8), 2)
    filters = framed(
        ListTransactionsRequest(
            state_filters=["Nothing"] * site.many(MANY), producer_id_filters=list(range(site.many(MANY)))
        ),
        0,
    )
    yield
    site.repeat(plain, pattern, filters)


@attack("InitProducerId of ever new transactional ids", keeps_memory=False)
def new_ids(site: Site) -> Course:
    client = site.client()
    yield

    def read() -> None:
        with suppress(OSError):
            while not site.over:
                client.discard()
                site.answered += 1

    threading.Thread(target=read, daemon=True).start()
    with suppress(OSError):
        for number in itertools.count():
            if site.over:
                return
            request = InitProducerIdRequest(transactional_id=f"new-{number}", transaction_timeout_ms=60_000)
            client.send(framed(request, 4))


@attack("DescribeProducers of 200k partitions")
def describe_producers(site: Site) -> Course:
    topic = produce_.DescribeProducersRequestTopicRequest(name=TOPIC, partition_indexes=[0, 1] * site.many(MANY // 2))
    unknown = produce_.DescribeProducersRequestTopicRequest(name="no", partition_indexes=list(range(site.many(MANY))))
    frames = [framed(DescribeProducersRequest(topics=[each]), 0) for each in (topic, unknown)]
    yield
    site.repeat(*frames)


@attack("moves of 200k partitions")
def reassignments(site: Site) -> Course:
    numbers = range(site.many(MANY))

    def moved(**given: Any) -> bytes:
        partitions = [replicas_.ReassignablePartition(partition_index=number, **given) for number in numbers]
        topics = [replicas_.ReassignableTopic(name=TOPIC, partitions=partitions)]
        return framed(AlterPartitionReassignmentsRequest(topics=topics), 0)

    listed = ListPartitionReassignmentsRequest(
        topics=[replicas_.ListPartitionReassignmentsTopics(name=TOPIC, partition_indexes=list(numbers))]
    )
    elected = ElectLeadersRequest(
        election_type=0,
        topic_partitions=[replicas_.ElectLeadersRequestTopicPartitions(topic=TOPIC, partitions=list(numbers))],
    )
    frames = (moved(replicas=[1]), moved(replicas=None), framed(listed, 0), framed(elected, 2))
    yield
    site.repeat(*frames)


@attack("DescribeLogDirs of 200k partitions")
def log_dirs(site: Site) -> Course:
    topics = [replicas_.DescribableLogDirTopic(topic=TOPIC, partitions=list(range(site.many(MANY))))]
    frames = [framed(DescribeLogDirsRequest(topics=each), 4) for each in (topics, None)]
    yield
    site.repeat(*frames)


def _bare(kind: type[ApiMessage], topic: type[Any], version: int, many: str = "topics", **rest: Any) -> None:
    """Topics whose arrays of partitions are empty: whoever counts partitions never pauses."""

    @attack(f"500k topics without partitions: {kind.__name__.removesuffix('Request')}")
    def course(site: Site) -> Course:
        key = next(name for name in ("name", "topic") if name in topic.__annotations__)
        arrays = [name for name, text in topic.__annotations__.items() if str(text).startswith("list")]
        names = [name if number % 2 else TOPIC for number, name in enumerate(numbered("b", site.many(500_000)))]
        topics = [topic(**{key: name}, **{each: [] for each in arrays}) for name in names]
        frame = framed(kind(**{many: topics}, **rest), version)
        yield
        site.repeat(frame)


_bare(ProduceRequest, produce_.TopicProduceData, 9, "topic_data", acks=-1, timeout_ms=1000)
_bare(FetchRequest, fetch_.FetchRequestTopic, 12, max_wait_ms=0, min_bytes=0)
_bare(ListOffsetsRequest, fetch_.ListOffsetsTopic, 7, replica_id=-1)
_bare(OffsetForLeaderEpochRequest, fetch_.OffsetForLeaderTopic, 4)
_bare(DeleteRecordsRequest, fetch_.DeleteRecordsTopic, 2, timeout_ms=1000)
_bare(OffsetCommitRequest, offsets_.OffsetCommitRequestTopic, 8, group_id="g")
_bare(OffsetFetchRequest, offsets_.OffsetFetchRequestTopic, 7, group_id="g")
_bare(OffsetDeleteRequest, offsets_.OffsetDeleteRequestTopic, 0, group_id="g")
_bare(
    AddPartitionsToTxnRequest,
    transactions_.AddPartitionsToTxnTopic,
    3,
    "v3_and_below_topics",
    v3_and_below_transactional_id="t",
    v3_and_below_producer_id=1,
    v3_and_below_producer_epoch=0,
)
_bare(
    TxnOffsetCommitRequest,
    transactions_.TxnOffsetCommitRequestTopic,
    3,
    transactional_id="t",
    group_id="g",
    producer_id=1,
    producer_epoch=0,
)
_bare(DescribeProducersRequest, produce_.DescribeProducersRequestTopicRequest, 0)
_bare(AlterPartitionReassignmentsRequest, replicas_.ReassignableTopic, 0)
_bare(ListPartitionReassignmentsRequest, replicas_.ListPartitionReassignmentsTopics, 0)
_bare(ElectLeadersRequest, replicas_.ElectLeadersRequestTopicPartitions, 2, "topic_partitions")
_bare(DescribeLogDirsRequest, replicas_.DescribableLogDirTopic, 4)
