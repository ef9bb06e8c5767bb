"""Share sessions and acknowledgements (KIP-932) without brokers: epochs, batches, gaps, losses."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.cluster import Backoff, ClusterSnapshot, PartitionMetadata, TopicMetadata
from kclient.consumer.share.acquired import Acquired, ShareCommit, batches_of
from kclient.consumer.share.hand import Hand
from kclient.consumer.share.metrics import ShareMetrics
from kclient.consumer.share.model import AcknowledgeType, ShareFetchSettings, SharePartition
from kclient.consumer.share.session import ShareRequest
from kclient.consumer.share.sessions import ShareNews, ShareSessions
from kclient.errors import BrokerConnectionError, ErrorCode, IllegalStateError, KafkaTimeoutError
from kclient.metrics.windows import MetricWindows
from kclient.protocol.messages import (
    AcquiredRecords,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeResponsePartitionData,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchResponseLeaderIdAndEpoch,
    ShareFetchResponsePartitionData,
)
from kclient.types import Node, TopicPartition

A = b"a" * 16
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
P0, P1 = SharePartition(A, 0, "a"), SharePartition(A, 1, "a")
ACCEPT, RELEASE, RENEW = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.RENEW


def snapshot(*leaders: int, topic_id: bytes = A) -> ClusterSnapshot:
    partitions = {number: PartitionMetadata("a", number, leader, 1) for number, leader in enumerate(leaders)}
    topic = TopicMetadata("a", topic_id, partitions=partitions)
    return ClusterSnapshot(topics={"a": topic}, nodes={leader: Node(leader, "h", 1) for leader in leaders})


class SessionBench:
    """The sessions of one consumer, the time, and what came of the requests."""

    def __init__(self, *leaders: int, record_limit: bool = False) -> None:
        self.now = 100.0
        settings = ShareFetchSettings("g", 500, 1, 1000, 10, record_limit, Backoff(100, 1000, jitter=0))
        self.sessions = ShareSessions(settings, ShareMetrics(MetricWindows(lambda: self.now)))
        self.leaders = leaders or (1,)
        self.assigned = {TopicPartition("a", number): A for number in range(len(self.leaders))}
        self.snapshot = snapshot(*self.leaders)
        self.news = ShareNews()
        self.due = inf

    def plan(self) -> list[ShareRequest]:
        requests, self.due = self.sessions.plan(self.assigned, self.snapshot, "me", self.now, self.news)
        return requests

    def one(self) -> ShareRequest:
        (request,) = self.plan()
        return request

    def fetch(self, *ranges: tuple[int, int, int], partition: int = 0, code: int = 0) -> ShareFetchRequest:
        """The fetch that is due, answered with records."""
        self.sessions.wanted = True
        request = self.one()
        self.answer(request, *ranges, partition=partition, code=code)
        assert isinstance(request.message, ShareFetchRequest)
        return request.message

    def answer(self, request: ShareRequest, *ranges: tuple[int, int, int], partition: int = 0, code: int = 0) -> None:
        acquired = [AcquiredRecords(first_offset=a, last_offset=b, delivery_count=c) for a, b, c in ranges]
        data = ShareFetchResponsePartitionData(
            partition_index=partition, error_code=code, acquired_records=acquired, records=b"data"
        )
        response = ShareFetchResponse(
            acquisition_lock_timeout_ms=30_000,
            responses=[ShareFetchableTopicResponse(topic_id=A, partitions=[data])],
        )
        self.sessions.received(request, response, self.now, self.news)

    def acknowledged(self, request: ShareRequest, *codes: int) -> None:
        answers = [
            ShareAcknowledgeResponsePartitionData(partition_index=number, error_code=code)
            for number, code in enumerate(codes)
        ]
        topics = [ShareAcknowledgeTopicResponse(topic_id=A, partitions=answers)]
        response = ShareAcknowledgeResponse(acquisition_lock_timeout_ms=20_000, responses=topics)
        self.sessions.received(request, response, self.now, self.news)

    def taken(self) -> Acquired:
        acquired = self.sessions.buffer.popleft()
        offsets = [offset for first, last, _ in acquired.ranges for offset in range(first, last + 1)]
        acquired.deliver(offsets, acquired.end)
        return acquired

    def say(self, acquired: Acquired, kind: AcknowledgeType = ACCEPT, commit: ShareCommit | None = None) -> None:
        for offset in sorted(acquired.pending):
            assert acquired.choose(offset, kind)
        self.sessions.acknowledge([acquired], self.now + 60, self.news, commit)


def told(message: Any) -> list[tuple[int, int, int, list[int]]]:
    """What a request acknowledges: partition, first and last offset, kinds."""
    return [
        (partition.partition_index, batch.first_offset, batch.last_offset, batch.acknowledge_types)
        for topic in message.topics
        for partition in topic.partitions
        for batch in partition.acknowledgement_batches
    ]


def test_epochs_and_what_each_request_tells() -> None:
    bench = SessionBench()
    assert bench.plan() == []  # nobody wants records
    first = bench.fetch((0, 3, 1))
    assert (first.share_session_epoch, first.max_records, first.batch_size, first.share_acquire_mode) == (0, 10, 10, 0)
    assert [partition.partition_index for topic in first.topics for partition in topic.partitions] == [0]
    assert bench.sessions.lock_timeout_ms == 30_000
    assert not bench.sessions.wanted
    acquired = bench.taken()
    assert acquired.expires == bench.now + 30
    bench.say(acquired)
    second = bench.fetch()
    assert (second.share_session_epoch, told(second)) == (1, [(0, 0, 3, [1])])
    third = bench.fetch()
    assert (third.share_session_epoch, third.topics, third.forgotten_topics_data) == (2, [], [])
    assert [error for _, error in bench.news.outcomes] == [None]


def test_one_request_at_a_time() -> None:
    bench = SessionBench()
    bench.fetch((0, 0, 1))
    bench.sessions.wanted = True
    fetch = bench.one()
    bench.say(bench.taken())
    assert bench.plan() == []
    bench.answer(fetch)
    bench.sessions.wanted = False
    request = bench.one()
    assert isinstance(request.message, ShareAcknowledgeRequest)
    assert request.message.share_session_epoch == 2
    bench.acknowledged(request, 0)
    assert bench.sessions.lock_timeout_ms == 20_000
    assert not bench.sessions.busy


def test_the_epoch_begins_again_behind_the_last_number() -> None:
    bench = SessionBench()
    bench.fetch()
    bench.sessions._session(1)._epoch = 2**31 - 1
    assert [bench.fetch().share_session_epoch for _ in range(3)] == [2**31 - 1, 1, 2]


def test_renewals_go_by_themselves() -> None:
    bench = SessionBench()
    bench.fetch((0, 1, 1))
    acquired = bench.taken()
    bench.say(acquired, RENEW)
    assert acquired.renewing == {0, 1}
    bench.sessions.wanted = True
    request = bench.one()
    assert isinstance(request.message, ShareAcknowledgeRequest)
    assert (request.message.is_renew_ack, told(request.message), request.first_version) == (True, [(0, 0, 1, [4])], 2)
    bench.now += 10
    bench.acknowledged(request, 0)
    assert (acquired.renewing, acquired.renewed, acquired.renewed_until) == (set(), {0, 1}, bench.now + 20)
    assert acquired.renewed_ranges() == [(0, 1, 1)]


def test_a_renewal_that_is_refused_is_over() -> None:
    bench = SessionBench()
    bench.fetch((0, 1, 1))
    acquired = bench.taken()
    commit = ShareCommit()
    bench.say(acquired, RENEW, commit)
    bench.acknowledged(bench.one(), ErrorCode.INVALID_RECORD_STATE)
    assert acquired.settled
    [(tp, error)] = commit.results.items()
    assert (tp, error.code if error else 0, commit.done) == (A0, ErrorCode.INVALID_RECORD_STATE, True)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
        "broken",
    ],
)
def test_a_session_that_is_lost_begins_anew(code: Any) -> None:
    bench = SessionBench()
    bench.fetch((0, 0, 1), (2, 2, 3))
    bench.say(bench.taken())
    bench.fetch((4, 4, 1))
    held = bench.sessions.buffer[0]
    bench.sessions.wanted = True
    request = bench.one()
    if code == "broken":
        bench.sessions.failed(request, BrokerConnectionError("gone"), bench.now, bench.news)
        assert bench.news.refresh_metadata
    else:
        bench.sessions.received(request, ShareFetchResponse(error_code=code), bench.now, bench.news)
    assert bench.news.error is None
    assert not bench.sessions.buffer
    [(node_id, partition, error)] = bench.news.lost
    assert (node_id, partition) == (1, None)
    held.lose(error)
    assert held.delivered
    assert bench.plan() == []
    assert bench.due == pytest.approx(bench.now + 0.1)
    bench.now = bench.due
    again = bench.fetch()
    assert (again.share_session_epoch, len(again.topics)) == (0, 1)


def test_what_was_to_be_told_in_a_lost_session_fails() -> None:
    bench = SessionBench()
    bench.fetch((0, 1, 1))
    acquired = bench.taken()
    commit = ShareCommit()
    acquired.choose(0, ACCEPT)
    bench.sessions.acknowledge([acquired], inf, bench.news, commit)
    request = bench.one()
    acquired.choose(1, ACCEPT)
    bench.sessions.acknowledge([acquired], inf, bench.news, commit)
    assert commit.waiting == 2
    bench.sessions.failed(request, BrokerConnectionError("gone"), bench.now, bench.news)
    assert commit.done
    assert [type(error).__name__ for _, error in bench.news.outcomes] == [
        "BrokerConnectionError",
        "ShareSessionNotFoundError",
    ]


def test_what_is_said_late_of_a_session_that_was_lost_fails_at_once() -> None:
    bench = SessionBench()
    bench.fetch((0, 0, 1))
    acquired = bench.taken()
    bench.sessions.wanted = True
    bench.sessions.failed(bench.one(), BrokerConnectionError("gone"), bench.now, bench.news)
    commit = ShareCommit()
    bench.say(acquired, ACCEPT, commit)  # before the hand was told of the loss
    assert commit.done
    assert "does not hold these records" in str(commit.results[A0])


def test_errors_of_single_partitions() -> None:
    bench = SessionBench(1, 1)
    bench.fetch((0, 0, 1), partition=0)
    bench.fetch((0, 0, 1), partition=1)
    commit = ShareCommit()
    for _ in range(2):
        bench.say(bench.taken(), ACCEPT, commit)
    bench.acknowledged(bench.one(), 0, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert commit.waiting == 1
    assert bench.plan() == []
    bench.now = bench.due
    request = bench.one()
    assert told(request.message) == [(1, 0, 0, [1])]
    bench.acknowledged(request, 0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    bench.now += 100
    assert bench.plan() == []
    assert commit.results[A0] is None
    assert isinstance(commit.results[A1], KafkaTimeoutError)


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH])
def test_a_partition_whose_leader_moved(code: int) -> None:
    bench = SessionBench()
    bench.fetch((0, 0, 1))
    acquired = bench.taken()
    bench.sessions.wanted = True
    request = bench.one()
    moved = ShareFetchResponsePartitionData(
        partition_index=0,
        error_code=code,
        current_leader=ShareFetchResponseLeaderIdAndEpoch(leader_id=2, leader_epoch=7),
    )
    response = ShareFetchResponse(responses=[ShareFetchableTopicResponse(topic_id=A, partitions=[moved])])
    bench.sessions.received(request, response, bench.now, bench.news)
    assert bench.news.leaders == {A0: (2, 7)}
    assert bench.news.refresh_metadata
    [(_, partition, error)] = bench.news.lost
    assert partition == P0
    acquired.lose(error)
    commit = ShareCommit()
    bench.say(acquired, ACCEPT, commit)
    assert commit.done
    assert "does not hold these records" in str(commit.results[A0])
    bench.snapshot = snapshot(2)
    [second] = bench.plan()
    assert (second.node_id, second.message.share_session_epoch) == (2, 0)


def test_a_topic_whose_id_the_metadata_do_not_know_is_not_fetched() -> None:
    bench = SessionBench()
    bench.snapshot = snapshot(1, topic_id=b"b" * 16)
    bench.sessions.wanted = True
    assert bench.plan() == []
    assert bench.news.refresh_metadata


def test_partitions_that_are_not_assigned_any_more_are_forgotten() -> None:
    bench = SessionBench(1, 1)
    bench.fetch()
    del bench.assigned[A1]
    again = bench.fetch()
    assert [(topic.topic_id, topic.partitions) for topic in again.forgotten_topics_data] == [(A, [1])]
    assert not bench.fetch().forgotten_topics_data


def test_what_the_user_has_to_be_told() -> None:
    bench = SessionBench()
    bench.fetch(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert "a-0: Share group 'g'" in str(bench.news.error)
    bench.news.error = None
    bench.sessions.wanted = True
    assert bench.plan() == []  # all that it reads there was refused
    assert bench.due == bench.now + 0.1
    bench.now = bench.due
    bench.fetch(code=ErrorCode.KAFKA_STORAGE_ERROR)
    assert bench.news.error is None
    assert bench.plan() == []
    assert bench.due == bench.now + 0.2
    bench.now = bench.due
    request = bench.one()
    refused = ShareFetchResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    bench.sessions.received(request, refused, bench.now, bench.news)
    assert bench.news.error is not None


def test_one_broker_at_a_time_in_turn() -> None:
    bench = SessionBench(1, 2, record_limit=True)
    bench.sessions.wanted = True
    asked = []
    for _ in range(4):
        request = bench.one()
        assert isinstance(request.message, ShareFetchRequest)
        assert (request.message.share_acquire_mode, request.first_version) == (1, 2)
        asked.append(request.node_id)
        bench.answer(request)
    assert asked == [1, 2, 1, 2]


def test_a_broker_that_hangs_does_not_take_the_turns_of_others() -> None:
    bench = SessionBench(1, 2, record_limit=True)
    bench.sessions.wanted = True
    hung = bench.one()
    assert bench.plan() == []
    assert bench.due == bench.now + 1.5  # what the broker may wait, and a second
    bench.now = bench.due
    for _ in range(3):
        request = bench.one()
        assert request.node_id == 2
        bench.answer(request, partition=1)
    bench.answer(hung)
    assert bench.one().node_id == 1


def test_ending_waits_for_what_is_under_way() -> None:
    bench = SessionBench()
    bench.fetch((0, 1, 1))
    acquired = bench.taken()
    bench.sessions.wanted = True
    fetch = bench.one()
    acquired.choose(0, ACCEPT)
    bench.sessions.acknowledge([acquired], inf, bench.news)
    bench.sessions.end()
    assert bench.plan() == []
    busy = bench.sessions.busy
    assert busy
    bench.answer(fetch, (5, 5, 1))
    request = bench.one()
    assert isinstance(request.message, ShareAcknowledgeRequest)
    assert (request.message.share_session_epoch, told(request.message)) == (-1, [(0, 0, 0, [1])])
    assert request.ends
    bench.acknowledged(request, 0)
    assert not bench.sessions.busy
    assert bench.plan() == []
    bench.sessions.begin_again()
    assert bench.fetch().share_session_epoch == 0


def test_giving_up() -> None:
    bench = SessionBench()
    bench.fetch((0, 1, 1))
    acquired = bench.taken()
    commit = ShareCommit()
    acquired.choose(0, ACCEPT)
    bench.sessions.acknowledge([acquired], inf, bench.news, commit)
    request = bench.one()
    acquired.choose(1, ACCEPT)
    bench.sessions.acknowledge([acquired], inf, bench.news, commit)
    bench.sessions.give_up(KafkaTimeoutError("over"), bench.news)
    assert commit.done
    bench.acknowledged(request, 0)  # nobody cares any more
    assert [str(error) for _, error in bench.news.outcomes if error] == ["over", "over"]


# ------------------------------------------------------------------ offsets


def test_gaps_are_told_of_when_what_is_around_them_is_delivered() -> None:
    acquired = Acquired(P0, 1, 0, b"", [(0, 4, 1), (7, 9, 2)], inf)
    acquired.deliver([0, 2], 3)
    half_way = acquired.delivered
    assert not half_way
    acquired.deliver([8], 10)
    assert acquired.delivered
    assert acquired.take_chosen() == {1: 0, 3: 0, 4: 0, 7: 0, 9: 0}
    assert acquired.pending == {0, 2, 8}
    settled = acquired.settled
    assert not settled
    acquired.accept_pending()
    assert acquired.take_chosen() == {0: 1, 2: 1, 8: 1}
    assert acquired.settled


def test_what_is_skipped_and_what_is_put_back() -> None:
    acquired = Acquired(P0, 1, 0, b"", [(0, 2, 1), (5, 5, 1)], inf)
    assert acquired.skip(1, RELEASE)
    assert not acquired.choose(1, ACCEPT)
    assert acquired.choose(0, AcknowledgeType.REJECT)
    acquired.deliver([1, 2], 3)
    acquired.put_back([1, 2])
    assert (acquired.pending, acquired.renewed_ranges()) == (set(), [(1, 2, 1)])
    assert acquired.redeliver([2]) == [2]
    assert acquired.choose(1, ACCEPT)  # of what is to be returned again, too
    assert not acquired.skip(5, RELEASE)
    acquired.expire(inf)
    assert acquired.delivered


def test_what_was_lost_before_it_is_put_back_need_not_be_acknowledged() -> None:
    """A poll was interrupted, and its session lost: nobody has those records."""
    hand = Hand(explicit=True)
    acquired = Acquired(P0, 1, 0, b"", [(0, 2, 1)], inf)
    hand.take(acquired)
    acquired.deliver([0, 1, 2], 3)
    acquired.lose(BrokerConnectionError("gone"))
    acquired.put_back([0, 1, 2])
    hand.settle(polls=True)
    assert not hand.renews
    assert acquired.settled


def test_the_hand() -> None:
    hand = Hand(explicit=True)
    acquired = Acquired(P0, 1, 0, b"", [(0, 1, 1)], inf)
    hand.take(acquired)
    acquired.deliver([0, 1], 2)
    with pytest.raises(IllegalStateError, match="2 records of a-0 were not acknowledged"):
        hand.settle(polls=True)
    hand.settle(polls=False)
    hand.acknowledge([(A0, 0), (A0, 1)], ACCEPT)
    assert not hand.unsettled
    hand.settle(polls=True)
    for place in ((A0, 9), (A1, 0)):
        with pytest.raises(IllegalStateError, match="cannot be acknowledged"):
            hand.acknowledge([place], ACCEPT)
    assert acquired.take_chosen() == {0: 1, 1: 1}
    with pytest.raises(IllegalStateError, match="told the broker before"):
        hand.acknowledge([(A0, 0)], ACCEPT)
    hand.forget_settled()
    assert hand.all() == []
    with pytest.raises(IllegalStateError, match="implicit"):
        Hand(explicit=False).acknowledge([], ACCEPT)


@given(st.dictionaries(st.integers(0, 80), st.integers(0, 4)))
def test_batches_say_what_was_said(kinds: dict[int, int]) -> None:
    batches = batches_of(dict(sorted(kinds.items())))
    found: dict[int, int] = {}
    for first, last, said in batches:
        assert len(said) in {1, last - first + 1}
        assert not found or first > max(found)
        for index in range(last - first + 1):
            found[first + index] = said[index if len(said) > 1 else 0]
    assert found == kinds


def test_batches_are_few() -> None:
    assert batches_of(dict.fromkeys(range(1000), 1)) == [(0, 999, [1])]
    mixed = batches_of({offset: 1 + offset % 2 for offset in range(1000)})
    assert [(first, last, len(said)) for first, last, said in mixed] == [(0, 999, 1000)]
