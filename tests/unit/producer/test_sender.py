"""The sender's decisions in simulated time: what leaves, what an answer means, when records are given up."""

from __future__ import annotations

from typing import Any

import pytest

from kclient.errors import (
    BrokerConnectionError,
    ClusterAuthorizationError,
    CoordinatorNotAvailableError,
    ErrorCode,
    InvalidRecordError,
    KafkaTimeoutError,
    NotLeaderOrFollowerError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    TopicAuthorizationError,
)
from kclient.metrics.registry import MetricsRegistry
from kclient.producer.sender import InFlight
from kclient.records import read_header
from kclient.types import TopicPartition
from tests.unit.producer.parts import Parts, only, values_of

TP = TopicPartition("t", 0)
LOST = BrokerConnectionError("the connection broke")


def sent_values(requests: list[InFlight]) -> list[list[bytes]]:
    return [values_of(batch) for request in requests for batch in request.batches.values()]


def idempotent(**settings: object) -> Parts:
    parts = Parts(**settings)  # type: ignore[arg-type]
    parts.ready_id()
    return parts


def plain(**settings: object) -> Parts:
    return Parts(idempotent=False, **settings)  # type: ignore[arg-type]


# --------------------------------------------------------------------------- sending


def test_a_record_is_sent_and_acknowledged() -> None:
    parts = idempotent()
    handle = parts.send(b"a")
    (request,) = parts.requests()
    assert request.node_id == 1
    header = read_header(only(request).data or b"")
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 0, 0)
    assert parts.sender.in_flight == 1
    parts.answer(request, offset=42)
    assert handle._outcome().offset == 42
    assert parts.sender.in_flight == 0
    assert parts.buffer.pool.free == parts.settings.buffer_memory
    assert parts.poll().wake_at >= parts.now + parts.settings.delivery_timeout


def test_the_id_is_asked_for_when_there_is_something_to_send() -> None:
    parts = Parts()
    assert not parts.poll().init_producer_id
    parts.send(b"a")
    assert parts.poll().init_producer_id
    assert not parts.poll().init_producer_id, "one request at a time"
    parts.sender.on_producer_id_failed(CoordinatorNotAvailableError(), parts.now)
    actions = parts.poll()
    assert not actions.init_producer_id
    assert actions.wake_at == pytest.approx(parts.now + 0.1)
    parts.now += 0.1
    assert parts.poll().init_producer_id
    parts.sender.on_producer_id(7, 0)
    assert len(parts.requests()) == 1


def test_without_the_right_to_an_id_everything_fails() -> None:
    parts = Parts()
    handle = parts.send(b"a")
    parts.poll()
    parts.sender.on_producer_id_failed(ClusterAuthorizationError(), parts.now)
    parts.poll()
    assert isinstance(handle.exception(), ClusterAuthorizationError)
    with pytest.raises(ClusterAuthorizationError):
        parts.send(b"b")


def test_a_broker_without_connection_is_connected_first() -> None:
    parts = idempotent()
    parts.connected.clear()
    parts.send(b"a")
    actions = parts.poll()
    assert (actions.connect, actions.requests) == ({1}, [])
    parts.connected.add(1)
    assert len(parts.requests()) == 1


def test_an_unknown_leader_asks_for_metadata() -> None:
    parts = idempotent(leaders={0: -1})
    parts.send(b"a")
    assert parts.poll().refresh


def test_no_more_in_flight_than_allowed() -> None:
    parts = idempotent(max_in_flight=3)
    for value in (b"a", b"b", b"c", b"d"):
        parts.send(value)
        parts.requests()
    assert parts.sender.in_flight == 3
    assert parts.poll().requests == []


def test_each_broker_gets_its_own_requests() -> None:
    parts = idempotent(leaders={0: 1, 1: 2, 2: 1})
    for partition in range(3):
        parts.send(b"%d" % partition, partition=partition)
    requests = {request.node_id: set(request.batches) for request in parts.requests()}
    assert requests == {1: {TP, TopicPartition("t", 2)}, 2: {TopicPartition("t", 1)}}


def test_what_does_not_fit_into_one_request_leaves_in_the_next_at_once() -> None:
    parts = idempotent(leaders=2, batch_size=6000, growth=6000, max_request_size=8000)
    for partition in (0, 1):
        parts.send(b"x" * 5000, partition=partition)
    assert sorted(tp.partition for request in parts.poll().requests for tp in request.batches) == [0, 1]


def test_a_throttled_broker_has_its_pause() -> None:
    parts = idempotent()
    parts.sender.throttle(1, parts.now + 0.5)
    parts.sender.throttle(1, parts.now + 0.1)  # of an earlier request: it does not end the longer pause
    parts.send(b"a")
    actions = parts.poll()
    assert (actions.requests, actions.wake_at) == ([], pytest.approx(parts.now + 0.5))
    parts.now += 0.5
    assert len(parts.requests()) == 1


def test_acks_0_is_done_when_sent() -> None:
    parts = plain(acks=0)
    handle = parts.send(b"a")
    (request,) = parts.requests()
    parts.sender.on_sent(request)
    assert handle._outcome().offset == -1
    assert parts.sender.in_flight == 0


# --------------------------------------------------------------------------- retries


@pytest.mark.parametrize("make", [idempotent, plain])
def test_a_retriable_error_is_retried_after_a_back_off(make: object) -> None:
    parts = make()  # type: ignore[operator]
    handle = parts.send(b"a")
    (request,) = parts.requests()
    parts.answer(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert parts.poll().refresh
    assert not parts.poll().refresh, "asked for once"
    assert parts.requests() == []
    assert parts.poll().wake_at == pytest.approx(parts.now + 0.1)
    parts.now += 0.1
    (again,) = parts.requests()
    assert only(again) is only(request)
    parts.answer(again, offset=5)
    assert handle._outcome().offset == 5
    assert parts.sender.metrics.topic("t").retried.total == 1


def test_the_back_off_grows() -> None:
    parts = idempotent()
    parts.send(b"a")
    waits = []
    for _ in range(6):
        (request,) = parts.requests()
        parts.answer(request, ErrorCode.NOT_ENOUGH_REPLICAS)
        waits.append(parts.poll().wake_at - parts.now)
        parts.now = parts.poll().wake_at
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_retries_keep_the_order_of_a_broken_connection() -> None:
    parts = idempotent()
    requests = []
    for value in (b"a", b"b", b"c"):
        parts.send(value)
        requests += parts.requests()
    parts.send(b"d")
    for request in reversed(requests):  # in whatever order they are reported
        parts.sender.on_failure(request, LOST, parts.now)
    parts.now += 0.3
    rounds = []
    while again := parts.requests():
        rounds.append(sent_values(again))
        for request in again:
            parts.answer(request)
    # of those sent before only one at a time, so that no gap can appear; what is new comes behind them
    assert rounds == [[[b"a"]], [[b"b"]], [[b"c"]], [[b"d"]]]


def test_without_idempotence_one_in_flight_keeps_the_order() -> None:
    parts = plain(max_in_flight=1)
    parts.send(b"a")
    (first,) = parts.requests()
    parts.send(b"b")
    assert parts.requests() == []
    parts.answer(first, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert parts.requests() == [], "b does not overtake a while a waits"
    parts.now += 0.1
    assert sent_values(parts.requests()) == [[b"a"]]


def test_retries_can_run_out() -> None:
    parts = plain(retries=1)
    handle = parts.send(b"a")
    (request,) = parts.requests()
    parts.answer(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    parts.now += 1
    (request,) = parts.requests()
    parts.answer(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert isinstance(handle.exception(), NotLeaderOrFollowerError)
    assert parts.requests() == []


def test_a_final_error_is_not_retried_and_names_the_partition() -> None:
    parts = idempotent()
    handle = parts.send(b"a")
    (request,) = parts.requests()
    parts.answer(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    error = handle.exception()
    assert isinstance(error, TopicAuthorizationError)
    assert "t-0" in str(error)
    assert parts.requests() == []
    assert parts.buffer.pool.free == parts.settings.buffer_memory


def test_one_bad_record_is_told_apart() -> None:
    parts = idempotent(linger=1.0)
    good, bad = parts.send(b"good"), parts.send(b"bad")
    parts.now += 1.0
    (request,) = parts.requests()
    parts.answer(request, ErrorCode.INVALID_RECORD, message="no", record_errors=((1, "needs a key"),))
    assert "needs a key" in str(bad.exception())
    assert isinstance(good.exception(), InvalidRecordError)
    assert "needs a key" not in str(good.exception())


def test_a_partition_missing_in_the_answer_is_an_error() -> None:
    parts = idempotent()
    handle = parts.send(b"a")
    (request,) = parts.requests()
    parts.sender.on_response(request, {}, parts.now)
    assert "left it out" in str(handle.exception())


# --------------------------------------------------------------------------- duplicates and gaps


def test_a_duplicate_is_a_success() -> None:
    parts = idempotent()
    handle = parts.send(b"a")
    (request,) = parts.requests()
    parts.answer(request, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert handle._outcome().offset == -1


def test_nothing_new_is_sent_behind_a_batch_that_is_sent_again() -> None:
    # the broker knows the last five batches: with more behind it, one that was stored would not be recognised
    parts = idempotent()
    parts.send(b"a")
    (first,) = parts.requests()
    parts.send(b"b")
    (behind,) = parts.requests()
    parts.sender.on_failure(first, LOST, parts.now)
    parts.answer(behind, offset=1)
    parts.send(b"c")
    assert parts.requests() == []
    parts.now += 1
    (again,) = parts.requests()
    assert values_of(only(again)) == [b"a"]
    assert parts.requests() == [], "not while it is on its way either"
    parts.answer(again, offset=0)
    assert sent_values(parts.requests()) == [[b"c"]]


def test_out_of_order_behind_what_is_acknowledged_is_a_duplicate() -> None:
    parts = idempotent()
    overtaken = parts.send(b"a")
    (first,) = parts.requests()
    parts.send(b"b")
    (behind,) = parts.requests()
    parts.answer(behind, offset=1)  # so the first was stored, and only its answer was lost
    parts.sender.on_failure(first, LOST, parts.now)
    parts.now += 1
    (again,) = parts.requests()
    parts.answer(again, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert overtaken.done()
    assert overtaken._outcome().offset == -1
    assert parts.producer_id_state is not None
    assert parts.producer_id_state.identity.epoch == 0


def test_out_of_order_behind_one_that_fails_is_a_timeout_when_the_time_is_over() -> None:
    """In time it would be tried again."""
    parts = idempotent(delivery_timeout=10.0)
    parts.send(b"known")
    (first,) = parts.requests()
    parts.answer(first, offset=0)
    failing = parts.send(b"a")
    (first,) = parts.requests()
    behind = parts.send(b"b")
    (second,) = parts.requests()
    parts.now += 11
    parts.answer(first, ErrorCode.KAFKA_STORAGE_ERROR)
    parts.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    for delivery in (failing, behind):
        assert isinstance(delivery.exception(), KafkaTimeoutError)


@pytest.mark.parametrize("lost_after_refusal", [False, True])
@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_a_refused_batch_is_not_stored_because_a_later_one_is(code: ErrorCode, lost_after_refusal: bool) -> None:
    # the topic was deleted and created again between the two, and the new log takes any first sequence
    parts = idempotent()
    refused = parts.send(b"a")
    (first,) = parts.requests()
    later = parts.send(b"b")
    (second,) = parts.requests()
    parts.answer(first, code)
    parts.answer(second, offset=0)
    parts.now += 1
    (again,) = parts.requests()
    if lost_after_refusal:
        parts.sender.on_failure(again, LOST, parts.now)
        parts.now += 1
        (again,) = parts.requests()
    parts.answer(again, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert isinstance(refused.exception(), OutOfOrderSequenceError)
    assert later._outcome().offset == 0
    assert parts.producer_id_state is not None
    assert parts.producer_id_state.identity.epoch == 0, "the new log goes on from the later batch"
    parts.send(b"c")
    (third,) = parts.requests()
    assert read_header(only(third).data or b"").base_sequence == 2


def in_doubt_before_a_later_one(parts: Parts) -> tuple[Any, InFlight]:
    """A batch that the leader may have appended, and the next request with it; a later one is acknowledged."""
    doubtful = parts.send(b"a")
    (first,) = parts.requests()
    parts.send(b"b")
    (second,) = parts.requests()
    parts.answer(first, ErrorCode.REQUEST_TIMED_OUT)
    parts.answer(second, offset=1)
    parts.now += 1
    (again,) = parts.requests()
    return doubtful, again


def test_a_batch_appended_with_the_answer_lost_is_a_duplicate_also_after_a_new_leader_refused_it() -> None:
    parts = idempotent()
    doubtful, again = in_doubt_before_a_later_one(parts)
    parts.answer(again, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    parts.now += 1
    (again,) = parts.requests()
    parts.answer(again, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert doubtful._outcome().offset == -1


@pytest.mark.parametrize("told", ["by an answer", "by metadata"])
def test_what_the_former_log_acknowledged_says_nothing_of_a_new_one(told: str) -> None:
    parts = idempotent()
    doubtful, again = in_doubt_before_a_later_one(parts)
    if told == "by metadata":
        parts.lead(1, topic_id=b"u" * 16)
        assert parts.requests() == []
    else:
        parts.answer(again, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        parts.now += 1
        (again,) = parts.requests()
    parts.answer(again, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert isinstance(doubtful.exception(), OutOfOrderSequenceError)


def test_sequences_begin_anew_with_a_new_topic_of_the_name_once_all_is_settled() -> None:
    parts = idempotent()
    parts.send(b"a")
    (request,) = parts.requests()
    parts.answer(request)
    waiting = parts.send(b"b")
    (request,) = parts.requests()
    parts.lead(1, topic_id=b"u" * 16)
    parts.send(b"c")
    assert parts.requests() == [], "the batch on its way may be stored in the new topic already"
    parts.sender.on_failure(request, LOST, parts.now)
    parts.now += 1
    (again,) = parts.requests()
    header = read_header(only(again).data or b"")
    assert (header.producer_epoch, header.base_sequence) == (0, 1), "under its old numbers: it would be recognised"
    parts.answer(again, offset=0)
    assert waiting._outcome().offset == 0
    (request,) = parts.requests()
    header = read_header(only(request).data or b"")
    assert (header.producer_epoch, header.base_sequence) == (1, 0)


def test_halves_of_a_batch_inherit_the_doubt_whether_it_is_stored() -> None:
    parts = idempotent()
    handles = [parts.send(value * 100) for value in (b"a", b"b")]
    (first,) = parts.requests()
    parts.send(b"c")
    (second,) = parts.requests()
    parts.answer(first, ErrorCode.REQUEST_TIMED_OUT)
    parts.answer(second, offset=2)
    parts.now += 1
    (again,) = parts.requests()
    parts.answer(again, ErrorCode.MESSAGE_TOO_LARGE)  # the limit was lowered meanwhile
    for _ in handles:
        (half,) = parts.requests()
        parts.answer(half, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert [handle._outcome().offset for handle in handles] == [-1, -1]


def test_after_a_refused_batch_the_next_goes_out_under_a_new_epoch() -> None:
    parts = idempotent()
    bad = parts.send(b"bad")
    (first,) = parts.requests()
    good = parts.send(b"good")
    (second,) = parts.requests()
    parts.answer(first, ErrorCode.INVALID_RECORD)
    assert bad.exception() is not None
    parts.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    parts.now += 1
    (again,) = parts.requests()
    header = read_header(only(again).data or b"")
    assert (header.producer_epoch, header.base_sequence) == (1, 0)
    parts.answer(again, offset=9)
    assert good._outcome().offset == 9


def test_an_answer_lost_after_the_append_does_not_duplicate() -> None:
    parts = idempotent()
    parts.send(b"a")
    (request,) = parts.requests()
    stamped = bytes(only(request).data or b"")
    parts.sender.on_failure(request, LOST, parts.now)
    parts.now += 1
    (again,) = parts.requests()
    assert bytes(only(again).data or b"") == stamped, "same id, epoch and sequence: the broker recognises it"


def test_a_refusal_after_a_lost_answer_leaves_open_whether_it_was_stored() -> None:
    parts = idempotent()
    parts.send(b"a")
    (repeated,) = parts.requests()
    parts.send(b"b")
    (behind,) = parts.requests()
    for request in (repeated, behind):
        parts.sender.on_failure(request, LOST, parts.now)
    parts.now += 1
    (again,) = parts.requests()
    parts.answer(again, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    (last,) = parts.requests()
    header = read_header(only(last).data or b"")
    assert (header.producer_epoch, header.base_sequence) == (0, 1), "it may follow what is stored: not renumbered"


# --------------------------------------------------------------------------- too large


def test_a_batch_that_is_too_large_is_split() -> None:
    parts = idempotent(batch_size=1000, growth=50_000, linger=1.0)
    handles = [parts.send(b"%02d" % n + b"x" * 98) for n in range(30)]
    parts.now += 1
    (request,) = parts.requests()
    parts.answer(request, ErrorCode.MESSAGE_TOO_LARGE)
    offset, seen = 0, []
    while requests := parts.requests():
        (request,) = requests
        header = read_header(only(request).data or b"")
        assert header.base_sequence == offset, "the parts share the sequence numbers of the whole"
        seen += sent_values([request])[0]
        parts.answer(request, offset=offset)
        offset += header.count
    assert seen == [b"%02d" % n + b"x" * 98 for n in range(30)]
    assert [handle._outcome().offset for handle in handles] == list(range(30))
    assert parts.buffer.pool.free == parts.settings.buffer_memory


def test_a_single_record_that_is_too_large_fails() -> None:
    parts = idempotent()
    handle = parts.send(b"a")
    (request,) = parts.requests()
    parts.answer(request, ErrorCode.MESSAGE_TOO_LARGE)
    assert isinstance(handle.exception(), RecordTooLargeError)


# --------------------------------------------------------------------------- giving up


def test_an_unreachable_broker_is_named_when_time_is_over() -> None:
    parts = idempotent(delivery_timeout=10.0)
    parts.connected.clear()
    handle = parts.send(b"a")
    parts.poll()
    parts.sender.on_connect_failed(1, BrokerConnectionError("host1:9092 refused"))
    assert parts.poll().wake_at <= parts.now + 10
    parts.now += 10
    parts.poll()
    error = handle.exception()
    assert isinstance(error, KafkaTimeoutError)
    assert "delivery.timeout.ms" in str(error)
    assert "host1:9092 refused" in str(error)


def test_a_partition_without_leader_is_named_when_time_is_over() -> None:
    parts = idempotent(leaders={0: -1}, delivery_timeout=10.0)
    handle = parts.send(b"a")
    parts.now += 10
    parts.poll()
    assert "no leader" in str(handle.exception())


def test_time_is_over_at_the_moment_that_was_slept_for() -> None:
    """Also where that is rounded: what was woken in vain would be woken again at once, and spin."""
    parts = idempotent(leaders={0: -1}, delivery_timeout=8.0)
    parts.now = began = 0.1
    handle = parts.send(b"a")
    parts.poll()
    parts.now = began + 8.0
    assert parts.now - 8.0 < began
    assert parts.poll().wake_at > parts.now
    assert isinstance(handle.exception(), KafkaTimeoutError)


def test_a_topic_that_came_back_smaller_is_named_when_time_is_over() -> None:
    parts = idempotent(leaders={0: 1, 1: 1}, delivery_timeout=10.0)
    handle = parts.send(b"a", partition=1)
    parts.lead({0: 1}, topic_id=b"u" * 16)
    parts.now += 10
    parts.poll()
    assert "the topic has no such partition any more" in str(handle.exception())


def test_the_last_error_is_named_when_time_is_over() -> None:
    parts = idempotent(delivery_timeout=10.0)
    handle = parts.send(b"a")
    (request,) = parts.requests()
    parts.now += 10.5
    parts.answer(request, ErrorCode.NOT_ENOUGH_REPLICAS)
    error = handle.exception()
    assert isinstance(error, KafkaTimeoutError)
    assert "NOT_ENOUGH_REPLICAS" in str(error)


def test_in_flight_too_long_is_given_up_and_a_late_answer_harmless() -> None:
    parts = idempotent(delivery_timeout=10.0)
    handle = parts.send(b"a")
    (request,) = parts.requests()
    assert parts.poll().wake_at <= parts.now + 10
    parts.now += 10
    parts.poll()
    assert isinstance(handle.exception(), KafkaTimeoutError)
    parts.answer(request, offset=3)
    assert isinstance(handle.exception(), KafkaTimeoutError), "an outcome never changes"
    parts.send(b"b")
    (request,) = parts.requests()
    parts.answer(request, offset=4)


def test_abort_counts_what_was_not_sent() -> None:
    parts = idempotent()
    parts.send(b"a")
    parts.requests()
    parts.send(b"b")
    assert parts.sender.abort(KafkaTimeoutError("over")) == 2
    assert parts.sender.in_flight == 0


FIGURES = (
    "record-send-total",
    "record-error-total",
    "record-retry-total",
    "batch-split-total",
    "batch-size-avg",
    "batch-size-max",
    "records-per-request-avg",
    "record-queue-time-avg",
    "record-queue-time-max",
    "produce-throttle-time-max",
)


def test_figures() -> None:
    parts = idempotent(linger=60.0)
    for value in (b"a", b"b"):
        parts.send(value)
    parts.now += 60
    (request,) = parts.requests()
    size = only(request).size
    parts.now += 0.25
    parts.sender.on_failure(request, LOST, parts.now)
    parts.now += 0.1
    (request,) = parts.requests()
    parts.now += 0.25
    parts.answer(request)
    parts.send(b"c")
    parts.now += 60
    (request,) = parts.requests()
    parts.now += 0.75
    parts.answer(request, ErrorCode.INVALID_RECORD)
    parts.sender.metrics.throttled(0.5)
    counted = parts.sender.metrics
    registry = MetricsRegistry("me", counted.windows)
    counted.define(registry)
    found = registry.metrics()
    assert {name: found.value(name) for name in FIGURES} == {
        "record-send-total": 2,
        "record-error-total": 1,
        "record-retry-total": 2,
        "batch-split-total": 0,
        "batch-size-avg": size,
        "batch-size-max": size,
        "records-per-request-avg": pytest.approx(5 / 3),
        "record-queue-time-avg": pytest.approx((60 + 60.35 + 60) * 1000 / 3),
        "record-queue-time-max": pytest.approx(60_350),
        "produce-throttle-time-max": pytest.approx(500),
    }
    assert found.value("byte-total", topic="t") == size
    assert found.value("record-send-total", topic="t") == 2
