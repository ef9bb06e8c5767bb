"""What the fetcher asks for, keeps, hands out and throws away."""

from __future__ import annotations

import dataclasses
import random
from typing import Literal

import pytest

from kclient.cluster import Backoff
from kclient.consumer.fetch.budget import FetchBudget
from kclient.consumer.fetch.completed_fetch import CompletedFetch
from kclient.consumer.fetch.session import Asked, FetchSessionHandler
from kclient.errors import (
    CorruptRecordError,
    ErrorCode,
    LogTruncationError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TopicAuthorizationError,
)
from kclient.protocol.messages import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponseLeaderIdAndEpoch,
    FetchResponsePartitionData,
)
from kclient.records import BatchBuilder, CompressionType, MessageSetBuilder, decode_some, encode_end_marker
from kclient.types import Node, OffsetAndMetadata, TopicPartition
from tests.unit.consumer.fetchbox import TOPIC_ID, FetchBox, Logs, batch

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def partition_answer(**fields: object) -> FetchResponse:
    data = FetchResponsePartitionData(partition_index=0, high_watermark=50, **fields)  # type: ignore[arg-type]
    return FetchResponse(session_id=9, responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])])


def test_everything_is_read_once_and_in_order() -> None:
    box = FetchBox(Logs(partitions=3), max_partition_bytes=1500)
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    rng = random.Random(1)
    for _ in range(200):
        for plan in box.plan():
            box.answer(plan)
        for number, offset in box.take(rng.randint(1, 40)):
            seen[number].append(offset)
    assert seen == {number: list(range(50)) for number in range(3)}
    assert box.fetcher.buffer.size == 0


def test_one_request_names_all_partitions_of_a_broker() -> None:
    box = FetchBox(Logs(partitions=4))
    (plan,) = box.plan()
    assert [item.partition for item in plan.request.topics[0].partitions] == [0, 1, 2, 3]
    assert plan.request.topics[0].partitions[0].current_leader_epoch == 3
    assert box.plan() == []  # nothing is asked twice


def test_a_partition_is_fetched_ahead_and_no_further() -> None:
    box = FetchBox(Logs(partitions=1, batches=40), max_partition_bytes=1500)
    fetches = 0
    while plans := box.plan():
        box.answer(plans[0])
        fetches += 1
    assert fetches == 2  # one to hand out, one ahead
    assert box.fetcher.buffer.size <= 2 * 1500
    box.take(3)
    assert box.plan() == []
    box.take(7)
    assert len(box.plan()) == 1


def test_all_partitions_together_stay_within_the_bound() -> None:
    box = FetchBox(Logs(partitions=8, batches=40), max_partition_bytes=2000, max_bytes=5000)
    while plans := box.plan():
        assert sum(plan.reserved for plan in plans) <= 5000
        box.answer(plans[0])
    assert box.fetcher.buffer.size <= 5000
    while box.take():
        for plan in box.plan():
            box.answer(plan)
    assert [box.position(number) for number in range(8)] == [200] * 8


def test_a_tiny_bound_still_makes_progress() -> None:
    box = FetchBox(Logs(partitions=2, batches=4), max_partition_bytes=10, max_bytes=10)
    for _ in range(20):
        for plan in box.plan():
            box.answer(plan)
        box.take()
    assert [box.position(0), box.position(1)] == [20, 20]


def test_a_busy_partition_does_not_wait_for_a_request_that_is_parked_for_quiet_ones() -> None:
    box = FetchBox(Logs(partitions=2, batches=40), max_partition_bytes=1500)
    first = box.plan()[0]
    box.answer(first)
    second = box.plan()[0]
    box.answer(second)
    for completed in list(box.fetcher.buffer.available()):  # the user has drained partition 0 only
        if completed.state.tp == T0:
            completed.decode(lambda *_, **__: ([], None, 0))
            box.fetcher.buffer.finish(completed)
    parked = box.plan()[0]
    assert parked.lane == 0
    box.subscriptions.seek(T1, 0)
    (other,) = box.plan()
    assert other.lane == 1
    assert other.request.session_epoch == -1  # one session per broker is enough
    box.answer(other)
    assert next(record for record in box.take() if record[0] == 1) == (1, 0)


def test_quiet_partitions_that_were_asked_for_apart_leave_a_way_for_a_busy_one() -> None:
    """Their requests wait at the broker; the busy one would wait with them each time that it is read to its bound."""
    box = FetchBox(Logs(partitions=3, batches=40), max_partition_bytes=1500)
    for number in (1, 2):
        box.logs.batches[number] = []
    t2 = box.partitions[2]
    box.subscriptions.pause([t2])
    box.fetch()
    first = box.plan()[0]  # for partitions 0 and 1, of which the next answer brings 0 to its bound
    box.answer(first)
    (parked,) = box.plan()
    assert set(parked.asked) == {T1}
    box.subscriptions.resume([t2])
    (second,) = box.plan()
    assert set(second.asked) == {t2}, "nobody knows yet whether there is something"
    box.answer(second)
    assert box.plan() == [], "it waits here, not at the broker"
    box.take()
    (busy,) = box.plan()
    assert set(busy.asked) == {T0}
    box.answer(busy)
    box.answer(parked)
    (both,) = box.plan()
    assert {T1, t2} <= set(both.asked)


def test_a_quiet_partition_does_not_wait_for_two_busy_ones() -> None:
    """Each time that one of them is answered, the other one's request is still on its way."""
    box = FetchBox(Logs(partitions=3, batches=40), max_partition_bytes=1500)
    box.logs.batches[2] = []
    t2 = box.partitions[2]
    box.fetch()
    box.take()
    box.fetch()
    box.take()
    box.subscriptions.pause([T1, t2])
    (first,) = box.plan()
    assert set(first.asked) == {T0}
    box.subscriptions.resume([T1])
    (second,) = box.plan()
    assert set(second.asked) == {T1}
    box.subscriptions.resume([t2])
    assert box.plan() == []
    box.answer(first)
    box.take()
    (third,) = box.plan()
    assert t2 in third.asked


def test_a_partition_that_was_just_read_to_its_end_does_not_wait_for_the_quiet_ones() -> None:
    box = FetchBox(Logs(partitions=2, batches=1), max_partition_bytes=100)
    box.logs.batches[1] = []
    box.fetch()
    (parked,) = box.plan()
    assert set(parked.asked) == {T1}
    box.take()
    (again,) = box.plan()
    assert set(again.asked) == {T0}


def test_paused_partitions_are_neither_fetched_nor_handed_out_and_keep_what_is_there() -> None:
    box = FetchBox(Logs())
    box.fetch()
    box.subscriptions.pause([T0])
    assert {number for number, _ in box.take()} == {1}
    assert not box.fetcher.buffer.has_ready
    (plan,) = box.plan()
    assert T0 not in plan.asked
    box.subscriptions.resume([T0])
    assert {number for number, _ in box.take()} == {0}


def test_what_was_fetched_before_a_seek_is_dropped_also_when_it_is_still_on_its_way() -> None:
    box = FetchBox(Logs(partitions=1))
    (plan,) = box.plan()
    box.subscriptions.seek(T0, 20)
    box.answer(plan)
    assert box.take() == []
    for plan in box.plan():
        box.answer(plan)
    assert box.take(1) == [(0, 20)]
    box.subscriptions.seek(T0, 7)  # the rest of the completed fetch is at hand
    box.fetcher.buffer.drop_stale()
    assert box.fetcher.buffer.size == 0
    assert box.take() == []
    box.fetch()
    assert box.take(2) == [(0, 7), (0, 8)]  # from the middle of a batch


def test_what_is_taken_up_to_an_offset_goes_on_there_and_is_of_the_present_topic() -> None:
    box = FetchBox(Logs(partitions=1, batches=4))
    box.fetch()
    completed = box.open_head()
    assert completed is not None
    box.fetcher.buffer.advance_to(completed, 10)
    assert (completed.state.position, completed.state.read_id) == (10, TOPIC_ID)
    assert box.take() == [(0, offset) for offset in range(10, 20)]


def test_a_position_carries_the_epoch_of_what_is_before_it() -> None:
    logs = Logs(partitions=1, batches=0)
    logs.batches[0] = [batch(0, [b"a", b"b"], epoch=3), batch(2, [b"c"], epoch=4)]
    logs.records = 2
    box = FetchBox(logs)
    box.fetch()
    completed = box.open_head()
    assert completed is not None
    assert [completed.place_behind(count) for count in (1, 2, 3)] == [(1, 3), (2, 3), (3, 4)]


def test_an_unassigned_partition_is_dropped() -> None:
    box = FetchBox(Logs())
    (plan,) = box.plan()
    box.subscriptions.assign([T1])
    box.answer(plan)
    assert {number for number, _ in box.take()} == {1}
    box.subscriptions.assign([T0, T1])  # back, with no memory of what was
    assert box.subscriptions.state(T0).position == -1


def test_sessions_send_only_what_changed() -> None:
    logs = Logs(partitions=3)
    box = FetchBox(logs)
    box.fetch()
    box.take()
    box.subscriptions.pause([T0])
    box.subscriptions.seek(T1, 50)
    box.fetch()
    full, change = logs.requests
    assert (full.session_id, full.session_epoch) == (0, 0)
    assert (change.session_id, change.session_epoch) == (77, 1)
    assert [item.partition for item in change.topics[0].partitions] == [1, 2]  # both moved on
    assert change.forgotten_topics_data[0].partitions == [0]
    box.fetch()
    assert logs.requests[2].topics == []
    assert logs.requests[2].session_epoch == 2


@pytest.mark.parametrize("code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH])
def test_a_forgotten_session_is_begun_anew_without_an_error(code: ErrorCode) -> None:
    box = FetchBox(Logs())
    box.fetch()
    box.take()
    (plan,) = box.plan()
    news = box.fetcher.received(plan, FetchResponse(error_code=code), box.now)
    assert not news.ready
    (plan,) = box.plan()
    assert (plan.request.session_id, plan.request.session_epoch) == (0, 0)
    assert len(plan.request.topics[0].partitions) == 2


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,  # of a request that begins a session
    ],
)
def test_what_a_broker_does_not_answer_as_a_whole_is_asked_again_ever_less_often(code: ErrorCode) -> None:
    box = FetchBox(Logs())
    for wait in (0.1, 0.2):
        (plan,) = box.plan()
        news = box.fetcher.received(plan, FetchResponse(error_code=code), box.now)
        assert news.refresh_metadata
        assert not news.ready
        assert box.plan() == []
        assert box.fetcher.next_retry(box.now) == pytest.approx(box.now + wait, abs=0.21 * wait)
        box.now += 1.3 * wait
    box.fetch()
    assert box.take()


def test_a_broken_connection_closes_the_session_and_holds_back() -> None:
    box = FetchBox(Logs())
    box.fetch()
    box.take()
    (plan,) = box.plan()
    box.fetcher.failed(plan, box.now)
    assert box.plan() == []
    assert box.fetcher.next_retry(box.now) == pytest.approx(box.now + 0.1, abs=0.021)
    box.now += 0.13
    (plan,) = box.plan()
    assert (plan.request.session_id, plan.request.session_epoch) == (77, 0)


def test_sessions_with_brokers_of_which_nothing_is_read_any_more_are_ended() -> None:
    logs = Logs(partitions=2, leaders={1: 2})
    box = FetchBox(logs)
    first, second = box.plan()
    assert (first.node_id, second.node_id) == (1, 2)
    box.answer(first)
    assert box.fetcher.end_sessions(box.now) == []
    box.subscriptions.assign([T1])
    ((node, lane, request),) = box.fetcher.end_sessions(box.now)
    assert (node, lane, request.session_id, request.session_epoch) == (1, 0, 77, -1)
    assert box.fetcher.end_sessions(box.now) == []
    box.subscriptions.assign([])
    assert box.fetcher.end_sessions(box.now) == []  # that one is waiting at the broker
    box.answer(second)
    ((node, _, request),) = box.fetcher.end_sessions(box.now)
    assert (node, request.session_epoch) == (2, -1)
    box.subscriptions.assign([T0])
    box.subscriptions.seek(T0, 0)
    (plan,) = box.plan()
    assert (plan.request.session_id, plan.request.session_epoch) == (0, 0)


def test_all_sessions_are_ended_when_the_consumer_closes() -> None:
    box = FetchBox(Logs(partitions=1))
    box.fetch()
    box.take()
    (waiting,) = box.plan()
    ((node, _, request),) = box.fetcher.end_sessions(box.now, everywhere=True)
    assert (node, request.session_id, request.session_epoch) == (1, 77, -1)
    box.fetcher.failed(waiting, box.now)
    assert box.fetcher.end_sessions(box.now, everywhere=True) == []


def test_a_topic_made_anew_restarts_the_session() -> None:
    session = FetchSessionHandler()
    session.plan({T0: Asked(b"1" * 16, 0, 1, -1, 100)})
    session.answered(FetchResponse(session_id=5))
    part = session.plan({T0: Asked(b"2" * 16, 0, 1, -1, 100)})
    assert part.epoch == 0
    assert part.forgotten == []


def test_brokers_without_topic_ids_are_asked_by_name() -> None:
    logs = Logs()
    box = FetchBox(logs)
    topic = dataclasses.replace(logs.snapshot.topics["t"], topic_id=bytes(16))
    (plan,) = box.fetcher.plan(dataclasses.replace(logs.snapshot, topics={"t": topic}), box.now)[0]
    assert plan.max_version == 12
    data = FetchResponsePartitionData(partition_index=0, high_watermark=5, records=batch(0, [b"x"]))
    box.fetcher.received(plan, FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])]), box.now)
    assert box.take() == [(0, 0)]


def test_a_partition_without_a_leader_asks_for_metadata() -> None:
    logs = Logs()
    box = FetchBox(logs)
    plans, leaderless = box.fetcher.plan(dataclasses.replace(logs.snapshot, nodes={}), box.now)
    assert plans == []
    assert leaderless


@pytest.mark.parametrize(
    ("code", "refresh"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ErrorCode.FENCED_LEADER_EPOCH, True),
        (ErrorCode.UNKNOWN_TOPIC_ID, True),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, True),
        (ErrorCode.OFFSET_NOT_AVAILABLE, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, False),
    ],
)
def test_passing_errors_are_tried_again_after_a_while(code: ErrorCode, refresh: bool) -> None:
    logs = Logs()
    box = FetchBox(logs)
    logs.errors[0] = code
    news = box.fetch()
    assert news.refresh_metadata is refresh
    assert {number for number, _ in box.take()} == {1}
    logs.errors.clear()
    (plan,) = box.plan()
    assert T0 not in plan.asked
    box.fetcher.failed(plan, box.now)
    box.now += 0.2
    box.fetch()
    assert {number for number, _ in box.take()} == {0}


# ------------------------------------------------------------------ who gets the room


def test_quiet_partitions_of_one_broker_do_not_keep_another_from_being_asked() -> None:
    box = FetchBox(Logs(partitions=51, leaders={50: 2}))  # with the defaults: 50 MB, and 1 MB of each partition
    for number in range(50):
        box.subscriptions.seek(box.partitions[number], 50)  # at the end: nothing comes
    plans = {plan.node_id: plan for plan in box.plan()}
    assert set(plans) == {1, 2}
    box.answer(plans[2])
    assert {number for number, _ in box.take()} == {50}
    assert [plan.node_id for plan in box.plan()] == [2]  # the other is still waiting


def test_one_partition_per_broker_with_as_much_room_as_one_of_them_may_take() -> None:
    box = FetchBox(Logs(partitions=2, leaders={1: 2}), max_bytes=1 << 20, max_partition_bytes=1 << 20)
    assert {plan.node_id for plan in box.plan()} == {1, 2}


def test_what_may_come_stays_within_the_bound() -> None:
    logs = Logs(partitions=8, leaders={number: number % 4 + 1 for number in range(8)})
    box = FetchBox(logs, max_bytes=4000, max_partition_bytes=3000)
    snapshot = dataclasses.replace(logs.snapshot, nodes={n: Node(n, "b", 9092) for n in range(1, 5)})
    plans, _ = box.fetcher.plan(snapshot, box.now)
    assert len(plans) == 4
    assert sum(plan.request.max_bytes for plan in plans) <= 4000


def test_what_a_broker_was_asked_for_counts_on_its_own_share() -> None:
    budget = FetchBudget(max_bytes=1000, partition_bytes=400, lanes=1)
    assert budget.allowance(1, partitions=5, brokers=2) == 500
    budget.reserve(1, 500)
    assert budget.allowance(1, partitions=5, brokers=2) == 0  # what is left is the other one's
    assert budget.allowance(2, partitions=5, brokers=2) == 500
    budget.answered(1, 500)
    assert budget.allowance(1, partitions=5, brokers=2) == 500


def test_a_paused_partition_makes_room_for_the_others() -> None:
    box = FetchBox(Logs(partitions=2, batches=4), max_bytes=1500, max_partition_bytes=1500)
    box.subscriptions.pause([T1])
    box.fetch()
    box.fetch()
    box.subscriptions.pause([T0])
    box.subscriptions.resume([T1])
    assert box.plan() == []
    assert box.fetcher.buffer.crowded
    box.fetcher.buffer.drop_paused()
    assert box.fetcher.buffer.size == 0
    box.fetch()
    assert {number for number, _ in box.take()} == {1}
    box.subscriptions.resume([T0])
    box.subscriptions.seek(T1, 20)
    box.fetch()
    assert box.take(1) == [(0, 0)]  # nothing was lost, and nothing comes twice


def test_no_more_is_thrown_away_than_is_needed_and_first_of_who_has_been_paused_for_longest() -> None:
    size = len(batch(0, [b"0" + bytes(100)] * 5))
    box = FetchBox(Logs(partitions=4, batches=1), max_bytes=3 * size + 100, max_partition_bytes=size)
    box.subscriptions.pause(box.partitions)
    for number in (0, 1, 2):
        box.subscriptions.resume([box.partitions[number]])
        box.fetch()
        box.subscriptions.pause([box.partitions[number]])
    box.subscriptions.resume([T0])
    box.subscriptions.pause([T0])
    box.subscriptions.resume([box.partitions[3]])
    assert box.plan() == []
    assert box.fetcher.buffer.crowded
    box.fetcher.buffer.drop_paused()
    assert box.fetcher.buffer.size == 2 * size
    box.fetch()
    box.subscriptions.resume(box.partitions)
    assert {number for number, _ in box.take()} == {0, 2, 3}
    box.fetch()
    assert {number for number, _ in box.take()} == {1}


def test_what_is_left_of_a_response_is_kept_where_the_rest_is_in_the_way() -> None:
    size = len(batch(0, [b"0" + bytes(100)] * 5))
    box = FetchBox(Logs(partitions=3, batches=3), max_bytes=8 * size - 100, max_partition_bytes=4 * size)
    box.subscriptions.pause(box.partitions)
    for tp in (T0, T1):
        box.subscriptions.resume([tp])
        box.fetch()
        assert len(box.take(10)) == 10
        box.subscriptions.pause([tp])
    assert box.fetcher.buffer.size == 6 * size
    box.subscriptions.resume([box.partitions[2]])
    while not (plans := box.plan()):
        assert box.fetcher.buffer.crowded
        box.fetcher.buffer.drop_paused()
    box.answer(plans[0])
    box.subscriptions.resume(box.partitions)
    assert len(box.take()) == 5 + 5 + 15
    assert box.counted.topic("t").sizes.total == 9 * size
    assert box.fetcher.buffer.size == 0


def test_the_end_of_an_aborted_transaction_is_kept_with_what_comes_behind_it() -> None:
    def written(base_offset: int, key: bytes | None, value: bytes, *, is_control: bool = False) -> bytes:
        builder = BatchBuilder(limit=1000, is_transactional=True, is_control=is_control)
        builder.append(1000, key, value)
        return bytes(builder.build(base_offset=base_offset, producer_id=5, producer_epoch=0, base_sequence=base_offset))

    end = encode_end_marker(commit=False, coordinator_epoch=0)
    data = written(0, None, b"aborted") + written(1, *end, is_control=True) + written(2, None, b"committed")
    state = FetchBox(Logs(partitions=1)).subscriptions.state(T0)
    completed = CompletedFetch.of(state, data, [(5, 0)])
    state.position = 2
    completed.cut()
    completed.decode(decode_some)
    assert completed.records is not None
    assert [record.offset for record in completed.records] == [2]


def test_nothing_is_thrown_away_while_there_are_records_at_hand() -> None:
    size = len(batch(0, [b"0" + bytes(100)] * 5))
    box = FetchBox(Logs(partitions=3, batches=1), max_bytes=2 * size + 100, max_partition_bytes=size)
    for tp in (T0, T1):
        box.subscriptions.pause(box.partitions)
        box.subscriptions.resume([tp])
        box.fetch()
    box.subscriptions.resume([box.partitions[2]])
    assert box.plan() == []
    assert not box.fetcher.buffer.crowded
    assert {number for number, _ in box.take()} == {1}
    box.subscriptions.pause([T1])
    assert len(box.plan()) == 1


@pytest.mark.parametrize("change", ["resume", "seek", "move"])
def test_a_partition_that_was_away_is_not_taken_for_quiet(change: str) -> None:
    box = FetchBox(Logs(batches=0))
    box.fetch()
    if change == "resume":
        box.subscriptions.pause([T0])
    elif change == "move":
        box.logs.leaders = {0: 2}
    parked = next(plan for plan in box.plan() if plan.node_id == 1)
    if change == "resume":
        assert set(parked.asked) == {T1}
        box.subscriptions.resume([T0])
    elif change == "seek":
        assert set(parked.asked) == {T0, T1}
        box.subscriptions.seek(T0, 0)
    else:
        assert set(parked.asked) == {T1}
        box.logs.leaders = {}
    (again,) = box.plan()
    assert set(again.asked) == {T0}


def test_what_a_paused_partition_has_is_kept_while_there_is_room() -> None:
    box = FetchBox(Logs(partitions=2, batches=4))
    box.fetch()
    box.subscriptions.pause([T0])
    box.take()
    box.fetch()
    assert not box.fetcher.buffer.crowded
    fetches = box.counted.fetches.count
    box.subscriptions.resume([T0])
    assert len(box.take()) == 20
    assert box.counted.fetches.count == fetches


def test_the_partition_that_waits_longest_is_asked_for_first() -> None:
    """A broker without room for sessions fills its answer in the order of the request."""
    box = FetchBox(Logs(partitions=3, batches=30), max_bytes=600, max_partition_bytes=600)
    seen = []
    for _ in range(6):
        (plan,) = box.plan()
        answer = box.logs.serve(plan)
        answer.session_id = 0
        box.fetcher.received(plan, answer, box.now)
        seen += [number for number, offset in box.take() if offset % 5 == 0]
    assert seen == [0, 1, 2] * 2


# ------------------------------------------------------------------ leaders and topics that change


def test_a_partition_whose_leader_moved_does_not_wait_for_the_old_one() -> None:
    logs = Logs(partitions=2)
    box = FetchBox(logs)
    (hung,) = box.plan()
    logs.leaders[1] = 2
    (plan,) = box.plan()
    assert (plan.node_id, list(plan.asked)) == (2, [T1])
    box.answer(plan)
    assert box.take() == [(1, offset) for offset in range(50)]
    box.answer(hung)  # it comes to life: what it has of the partition came too late
    assert box.take() == [(0, offset) for offset in range(50)]
    assert box.position(1) == 50


def test_a_fetch_that_failed_holds_back_only_the_partitions_that_wait_for_it() -> None:
    logs = Logs(partitions=2)
    box = FetchBox(logs)
    (hung,) = box.plan()
    logs.leaders[1] = 2
    (plan,) = box.plan()
    box.fetcher.failed(hung, box.now)
    box.answer(plan)
    (again,) = box.plan()
    assert again.node_id == 2


def test_attempts_that_fail_are_made_ever_less_often() -> None:
    box = FetchBox(Logs(partitions=1), retry_backoff=Backoff(100, 500, jitter=0))
    delays = []
    for _ in range(5):
        (plan,) = box.plan()
        box.fetcher.failed(plan, box.now)
        due = box.fetcher.next_retry(box.now)
        assert due is not None
        delays.append(round(due - box.now, 3))
        box.now = due
    assert delays == [0.1, 0.2, 0.4, 0.5, 0.5]
    box.fetch()
    (plan,) = box.plan()
    box.fetcher.failed(plan, box.now)
    assert box.fetcher.next_retry(box.now) == pytest.approx(box.now + 0.1)


def test_a_topic_made_anew_shares_no_position_with_the_deleted_one() -> None:
    box = FetchBox(Logs(partitions=1))
    state = box.subscriptions.state(T0)
    assert state.recognise(TOPIC_ID)
    box.fetch()
    box.take(7)
    (late,) = box.plan()
    assert not state.recognise(b"2" * 16)
    box.fetcher.buffer.made_anew(state)
    box.answer(late)  # bytes of the deleted topic
    completed = box.fetcher.buffer.head()
    assert completed is not None
    assert isinstance(completed.error, OffsetOutOfRangeError)
    assert "Topic 't' was deleted and created again: offset 7 of t-0" in str(completed.error)
    assert completed.error.offsets == {T0: 7}
    assert box.fetcher.buffer.size == 0
    assert box.plan() == []  # not before poll has dealt with it
    assert state.recognise(TOPIC_ID)  # said by a broker that lags behind
    assert state.recognise(b"2" * 16)


def test_what_a_leader_serves_is_the_topic() -> None:
    box = FetchBox(Logs(partitions=1), policy="earliest")
    state = box.subscriptions.state(T0)
    assert state.recognise(TOPIC_ID)
    box.fetch()
    box.take(7)
    assert not state.recognise(b"2" * 16)  # said by a broker that lags behind: it was deleted before
    box.fetcher.buffer.made_anew(state)
    box.subscriptions.found(T0, state.version, 0, None)
    (plan,) = box.plan()
    news = box.fetcher.received(plan, box.logs.serve(plan), box.now)
    assert news.refresh_metadata
    assert box.fetcher.buffer.head() is None, "nobody knows which topic the position was in"
    assert box.subscriptions.resetting(box.now) == [state]
    box.subscriptions.found(T0, state.version, 0, None)
    assert box.subscriptions.consumed() == ({T0: OffsetAndMetadata(0, "", None)}, {T0: TOPIC_ID})
    assert state.recognise(TOPIC_ID)
    box.fetch()
    assert len(box.take()) == 50


def test_a_topic_made_anew_is_begun_where_the_policy_says_without_waiting_for_a_poll() -> None:
    box = FetchBox(Logs(partitions=1), policy="earliest")
    state = box.subscriptions.state(T0)
    assert state.recognise(TOPIC_ID)
    box.fetch()
    box.take(7)
    assert box.subscriptions.consumed() == ({T0: OffsetAndMetadata(7, "", 3)}, {T0: TOPIC_ID})
    given = box.subscriptions.given({T0: OffsetAndMetadata(6)})
    box.logs.topic_id = b"2" * 16
    assert not state.recognise(b"2" * 16)
    box.fetcher.buffer.made_anew(state)
    assert box.subscriptions.resetting(box.now) == [state]
    assert box.fetcher.buffer.head() is None
    assert box.fetcher.buffer.size == 0
    assert box.subscriptions.consumed() == ({}, {})
    assert box.subscriptions.deleted(given) == [T0]
    # what was handed out last is of the deleted topic still
    assert box.subscriptions.deleted(box.subscriptions.given({T0: OffsetAndMetadata(7)})) == [T0]
    box.subscriptions.found(T0, state.version, 0, None)
    assert box.subscriptions.consumed() == ({T0: OffsetAndMetadata(0, "", None)}, {T0: b"2" * 16})
    box.fetch()
    box.take(1)
    assert box.subscriptions.deleted(box.subscriptions.given({T0: OffsetAndMetadata(1)})) == []


def test_a_broker_that_names_the_new_leader_is_heeded() -> None:
    box = FetchBox(Logs(partitions=1))
    (plan,) = box.plan()
    leader = FetchResponseLeaderIdAndEpoch(leader_id=2, leader_epoch=4)
    answer = partition_answer(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=leader)
    assert box.fetcher.received(plan, answer, box.now).leaders == {T0: (2, 4)}


def test_a_preferred_replica_is_asked_until_it_fails() -> None:
    box = FetchBox(Logs(partitions=1))
    (plan,) = box.plan()
    box.fetcher.received(plan, partition_answer(preferred_read_replica=2), box.now)
    (plan,) = box.plan()
    assert plan.node_id == 2
    answer = partition_answer(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)  # it lags behind
    assert not box.fetcher.received(plan, answer, box.now).ready
    box.now += 0.2
    (plan,) = box.plan()
    assert plan.node_id == 1


def test_errors_wait_for_their_turn_behind_what_was_fetched() -> None:
    logs = Logs(partitions=1)
    box = FetchBox(logs, max_partition_bytes=1500)
    box.fetch()
    logs.errors[0] = ErrorCode.OFFSET_OUT_OF_RANGE
    box.fetch()
    assert box.plan() == []  # nothing behind the error
    first = box.open_head()
    assert first is not None
    assert first.error is None
    box.fetcher.buffer.advance(first, len(first.records or ()))
    second = box.open_head()
    assert second is not None
    assert isinstance(second.error, OffsetOutOfRangeError)
    assert second.error.offsets == {T0: second.next_offset}
    box.fetcher.buffer.finish(second)
    assert len(box.plan()) == 1


def test_topics_that_must_not_be_read_are_named() -> None:
    logs = Logs(partitions=1)
    logs.errors[0] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    box = FetchBox(logs)
    box.fetch()
    completed = box.open_head()
    assert completed is not None
    assert isinstance(completed.error, TopicAuthorizationError)
    assert "'t'" in str(completed.error)


def test_a_log_that_was_cut_back_is_noticed() -> None:
    box = FetchBox(Logs(partitions=1))
    box.subscriptions.seek(T0, 7, 3)
    (plan,) = box.plan()
    diverging = FetchResponseEpochEndOffset(epoch=2, end_offset=4)
    box.fetcher.received(plan, partition_answer(diverging_epoch=diverging), box.now)
    completed = box.open_head()
    assert completed is not None
    assert isinstance(completed.error, LogTruncationError)
    assert "t-0 was cut back to offset 4, below the consumer's position 7" in str(completed.error)
    assert completed.error.divergent_offsets == {T0: OffsetAndMetadata(4, "", 2)}
    assert completed.error.partitions == [T0]
    assert (completed.next_offset, completed.epoch) == (4, 2)


@pytest.mark.parametrize("end_offset", [7, 8, 5000])
def test_a_leader_that_does_not_know_the_last_epoch_any_more_lost_nothing(end_offset: int) -> None:
    """Of the last batch's epoch nothing may be left, by compaction: the leader then names the one before."""
    box = FetchBox(Logs(partitions=1))
    box.subscriptions.seek(T0, 7, 3)
    (plan,) = box.plan()
    diverging = FetchResponseEpochEndOffset(epoch=2, end_offset=end_offset)
    news = box.fetcher.received(plan, partition_answer(diverging_epoch=diverging), box.now)
    assert not news.ready
    (plan,) = box.plan()  # at once, by the epoch that the leader knows
    asked = plan.request.topics[0].partitions[0]
    assert (asked.fetch_offset, asked.last_fetched_epoch) == (7, 2)
    box.fetcher.received(plan, partition_answer(diverging_epoch=diverging), box.now)  # it insists, whatever its reason
    (plan,) = box.plan()
    assert plan.request.topics[0].partitions[0].last_fetched_epoch == -1
    assert box.position(0) == 7


def test_the_last_fetched_epoch_is_told_so_that_the_broker_can_notice() -> None:
    box = FetchBox(Logs(partitions=1))
    box.fetch()
    box.take()
    (plan,) = box.plan()
    assert plan.request.topics[0].partitions[0].last_fetched_epoch == 3
    assert box.subscriptions.consumed().offsets[T0].leader_epoch == 3


def test_records_before_a_corrupt_batch_are_handed_out_first_and_it_raises_until_skipped() -> None:
    logs = Logs(partitions=1)
    broken = bytearray(logs.batches[0][3])
    broken[-1] ^= 1
    logs.batches[0][3] = bytes(broken)
    box = FetchBox(logs)
    box.fetch()
    completed = box.open_head()
    assert completed is not None
    assert [record.offset for record in completed.records or ()] == list(range(15))
    box.fetcher.buffer.advance(completed, 15)
    assert box.position(0) == 15
    box.fetch()
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            box.open_head()
    box.subscriptions.seek(T0, 20)
    box.fetch()
    assert box.take(1) == [(0, 20)]


def test_half_a_batch_alone_says_what_to_raise() -> None:
    box = FetchBox(Logs(partitions=1))
    (plan,) = box.plan()
    box.fetcher.received(plan, partition_answer(records=batch(0, [b"x" * 500])[:300]), box.now)
    completed = box.open_head()
    assert completed is not None
    assert isinstance(completed.error, RecordTooLargeError)
    assert "max.partition.fetch.bytes" in str(completed.error)


def test_a_batch_without_records_for_users_moves_the_position() -> None:
    builder = BatchBuilder(limit=1000, is_transactional=True, is_control=True)
    key, value = encode_end_marker(commit=True, coordinator_epoch=0)
    builder.append(1000, key, value)
    box = FetchBox(Logs(partitions=1))
    (plan,) = box.plan()
    box.fetcher.received(plan, partition_answer(records=bytes(builder.build(base_offset=0))), box.now)
    assert box.take() == []
    assert box.position(0) == 1


def test_committed_readers_do_not_see_aborted_records() -> None:
    builder = BatchBuilder(limit=1000, is_transactional=True)
    builder.append(1000, None, b"aborted")
    data = bytes(builder.build(base_offset=0, producer_id=5, producer_epoch=0, base_sequence=0)) + batch(1, [b"plain"])
    box = FetchBox(Logs(partitions=1), read_committed=True)
    (plan,) = box.plan()
    assert plan.request.isolation_level == 1
    aborted = [AbortedTransaction(producer_id=5, first_offset=0)]
    box.fetcher.received(plan, partition_answer(records=data, aborted_transactions=aborted), box.now)
    assert box.take() == [(0, 1)]


def old_set(magic: Literal[0, 1], base_offset: int, values: list[bytes], codec: CompressionType) -> bytes:
    builder = MessageSetBuilder(magic=magic, limit=1 << 20, compression=codec)
    builder.append_many(1000, values)
    return bytes(builder.build(base_offset))


def test_formats_of_old_are_read_in_one_answer_with_the_new_one() -> None:
    """As the log of an upgraded broker is."""
    data = old_set(0, 0, [b"0", b"1", b"2"], CompressionType.LZ4) + old_set(1, 3, [b"3", b"4"], CompressionType.NONE)
    data += batch(5, [b"5"]) + old_set(1, 6, [b"6", b"7"], CompressionType.GZIP)[:-1]  # cut off at the end
    box = FetchBox(Logs(partitions=1))
    (plan,) = box.plan()
    box.fetcher.received(plan, partition_answer(records=data), box.now)
    completed = box.open_head()
    assert completed is not None
    assert [(r.offset, r.value) for r in completed.records or ()] == [(n, b"%d" % n) for n in range(6)]
    assert (completed.next_offset, completed.epoch) == (6, 3)


def test_messages_before_a_corrupt_set_are_handed_out_first() -> None:
    good = old_set(1, 0, [b"0", b"1"], CompressionType.SNAPPY) + old_set(1, 2, [b"2"], CompressionType.NONE)
    broken = bytearray(old_set(1, 3, [b"3", b"4", b"5"], CompressionType.GZIP))
    broken[-1] ^= 1
    box = FetchBox(Logs(partitions=1))
    (plan,) = box.plan()
    box.fetcher.received(plan, partition_answer(records=good + bytes(broken)), box.now)
    completed = box.open_head()
    assert completed is not None
    assert [record.offset for record in completed.records or ()] == [0, 1, 2]
    box.fetcher.buffer.advance(completed, 3)
    assert box.position(0) == 3


@pytest.mark.parametrize("old", [False, True])
def test_batches_that_do_not_follow_each_other_are_corrupt(old: bool) -> None:
    """Their offsets lie outside the checksums."""
    second = old_set(1, 1, [b"2"], CompressionType.NONE) if old else batch(1, [b"2"])
    box = FetchBox(Logs(partitions=1))
    (plan,) = box.plan()
    box.fetcher.received(plan, partition_answer(records=batch(0, [b"0", b"1"]) + second), box.now)
    completed = box.open_head()
    assert completed is not None
    assert isinstance(completed.error, CorruptRecordError)
    assert "t-0: The batch at offset 1 follows one that ends at 1" in str(completed.error)
    assert completed.error.offset == 1
