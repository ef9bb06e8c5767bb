"""Records gather, become ready, are drained, and give their memory back."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Container
from math import inf
from random import Random
from typing import Any

import pytest

from kclient.errors import ClosedError, RecordTooLargeError
from kclient.producer.accumulator import FULL
from kclient.producer.delivery import Delivery
from kclient.producer.partitioner import StickyChoice
from kclient.producer.states import BatchState
from kclient.records import HEADER_SIZE, decode_records
from kclient.types import TopicPartition
from tests.unit.producer.parts import Parts, values_of

TP = TopicPartition("t", 0)
# Utils.toPositive(Utils.murmur2(key)) % 7 of kafka-clients 4.3.1
JAVA_PARTITIONS_OF_7 = {
    b"21": 3,
    b"foobar": 0,
    b"": 2,
    b"a-little-bit-long-string": 1,
    b"N12345": 4,
    b"key": 4,
}


def gathering(leaders: dict[int, int] | int = 1, **settings: Any) -> Parts:
    """Parts without sequence numbers, so that nothing waits for a producer id."""
    return Parts(leaders, idempotent=False, **settings)


def drain(parts: Parts, *nodes: int) -> list[Any]:
    drained = parts.drain.drain(parts.metadata.snapshot, nodes or (1,), parts.now)
    batches = [batch for batches in drained.batches.values() for batch in batches]
    for batch in batches:
        batch.encode()
    return batches


def ready(parts: Parts) -> Any:
    return parts.drain.ready(parts.metadata.snapshot, parts.now)


def test_what_goes_in_comes_out_in_order() -> None:
    parts = gathering()
    handles = [
        parts.send(b"a", b"k", headers=[("h", b"1")]),
        parts.send(None, b"k", timestamp=7),
        parts.send(b"c"),
    ]
    assert [handle.index for handle in handles] == [0, 1, 2]
    (batch,) = drain(parts)
    records = decode_records(batch.data, *batch.tp)
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in records] == [
        (5, b"k", b"a", [("h", b"1")]),
        (7, b"k", None, []),
        (5, None, b"c", []),
    ]
    batch.succeed(100, -1)
    assert [(h._outcome().offset, h._outcome().timestamp) for h in handles] == [(100, 5), (101, 7), (102, 5)]


def test_log_append_time_overrides_the_producers() -> None:
    parts = gathering()
    handle = parts.send(b"a")
    (batch,) = drain(parts)
    batch.succeed(3, 99)
    assert handle._outcome().timestamp == 99


# --------------------------------------------------------------------------- readiness


def test_linger_is_waited_for() -> None:
    parts = gathering(linger=0.5)
    parts.send()
    state = ready(parts)
    assert (state.nodes, state.next_at) == (set(), 1000.5)
    assert drain(parts) == []
    parts.now = 1000.5
    assert ready(parts).nodes == {1}
    assert len(drain(parts)) == 1
    assert ready(parts).next_at == inf


def test_a_full_batch_does_not_linger() -> None:
    parts = gathering(linger=60.0)
    while not parts.buffer.active[TP].batches[0].full if parts.buffer.queued else True:
        parts.send(b"x" * 100)
    assert ready(parts).nodes == {1}


def test_a_full_batch_lingers_while_another_request_is_on_its_way() -> None:
    parts = gathering(linger=0.5, growth=5000)
    for _ in range(12):
        parts.send(b"x" * 100)
    assert ready(parts).nodes == {1}
    busy = parts.drain.ready(parts.metadata.snapshot, parts.now, {1})
    assert (busy.nodes, busy.next_at) == (set(), 1000.5)
    for _ in range(60):
        parts.send(b"x" * 100)
    assert parts.drain.ready(parts.metadata.snapshot, parts.now, {1}).nodes == {1}, "it cannot grow any more"


def test_a_flush_hurries_everything() -> None:
    parts = gathering(leaders=2, linger=60.0)
    parts.send(partition=0)
    parts.send(partition=1)
    assert len(parts.buffer.begin_flush()) == 2
    assert ready(parts).nodes == {1}
    assert len(drain(parts)) == 2
    parts.buffer.end_flush()
    parts.send(partition=0)
    assert ready(parts).nodes == set()


def test_a_partition_without_leader_is_reported() -> None:
    parts = gathering(leaders={0: -1})
    parts.send()
    state = ready(parts)
    assert (state.nodes, state.unknown_leaders) == (set(), {"t"})
    assert drain(parts) == []


def test_a_batch_that_cannot_leave_grows_beyond_batch_size() -> None:
    parts = gathering(batch_size=1000, growth=5000)
    for _ in range(30):
        parts.send(b"x" * 100)
    (batch,) = drain(parts)
    assert batch.count == 30
    assert batch.size > 3000


def test_a_batch_does_not_grow_beyond_its_bound() -> None:
    parts = gathering(batch_size=1000, growth=2000)
    for _ in range(60):
        parts.send(b"x" * 100)
    sizes = []
    while batches := drain(parts):
        sizes += [batch.size for batch in batches]
    assert max(sizes) <= 2000
    assert len(sizes) >= 3


# --------------------------------------------------------------------------- draining


def test_one_batch_per_partition_and_no_more_than_a_request_holds() -> None:
    parts = gathering(leaders=3, batch_size=4000, growth=4000, max_request_size=8000)
    for partition in range(3):
        for _ in range(60):
            parts.send(b"x" * 100, partition=partition)
    seen: list[int] = []
    while batches := drain(parts):
        assert len({batch.tp for batch in batches}) == len(batches)
        assert sum(batch.size for batch in batches) <= 8000
        seen += [batch.tp.partition for batch in batches]
    assert set(seen) == {0, 1, 2}


def test_a_batch_larger_than_what_is_left_is_not_overtaken_by_small_ones() -> None:
    parts = gathering(leaders=2, batch_size=6000, growth=6000, max_request_size=8000)
    for partition in (0, 1):
        parts.send(b"x" * 5000, partition=partition)
    first, second = drain(parts), drain(parts)
    assert {batch.tp.partition for batch in first + second} == {0, 1}
    assert len(first) == len(second) == 1


def test_only_the_asked_brokers_are_drained() -> None:
    parts = gathering(leaders={0: 1, 1: 2})
    parts.send(partition=0)
    parts.send(partition=1)
    assert [batch.tp.partition for batch in drain(parts, 2)] == [1]
    assert [batch.tp.partition for batch in drain(parts, 1, 2)] == [0]


def test_a_muted_partition_waits() -> None:
    parts = gathering(max_in_flight=1)
    parts.send(b"a")
    parts.drain.drain(parts.metadata.snapshot, [1], parts.now)
    parts.send(b"b")
    assert ready(parts).nodes == set()
    assert drain(parts) == []
    parts.drain.landed(TP)
    assert len(drain(parts)) == 1


def test_a_batch_that_comes_back_leaves_first_but_not_before_its_time() -> None:
    parts = gathering()
    parts.send(b"a")
    (batch,) = drain(parts)
    parts.send(b"b")
    parts.drain.reenqueue(batch, parts.now + 0.2)
    state = ready(parts)
    assert (state.nodes, state.next_at) == (set(), parts.now + 0.2)
    assert drain(parts) == []
    parts.now += 0.2
    assert [values_of(b) for b in drain(parts)] == [[b"a"]]
    assert [values_of(b) for b in drain(parts)] == [[b"b"]]


def test_a_new_leader_is_tried_at_once() -> None:
    parts = gathering(leaders={0: 1, 1: 2})
    parts.send()
    (batch,) = drain(parts)
    parts.drain.reenqueue(batch, parts.now + 60)
    assert ready(parts).nodes == set()
    parts.lead({0: 2, 1: 2}, epoch=1)
    assert ready(parts).nodes == {2}


def test_several_that_come_back_keep_their_order() -> None:
    parts = gathering()
    batches = []
    for value in (b"a", b"b", b"c"):
        parts.send(value)
        parts.now += 0.001
        batches += drain(parts)
    for batch in batches:
        parts.drain.reenqueue(batch, 0.0)
    assert [values_of(drain(parts)[0]) for _ in range(3)] == [[b"a"], [b"b"], [b"c"]]


# --------------------------------------------------------------------------- memory


def test_memory_runs_out_and_comes_back() -> None:
    parts = gathering(buffer_memory=2000, batch_size=1000)
    handles = []
    while (handle := parts.send(b"x" * 100)) is not FULL:
        handles.append(handle)
    assert 14 <= len(handles) <= 19
    called: list[int] = []
    assert parts.buffer.add_waiter(lambda: called.append(1))
    assert parts.buffer.waiting == 1
    batches = drain(parts)
    for batch in batches:
        batch.succeed(0, -1)
        parts.buffer.finished(batch)
        parts.buffer.finished(batch)  # twice does not free twice
    assert called == [1]
    assert isinstance(parts.send(b"x"), Delivery)
    while batches := drain(parts):
        for batch in batches:
            batch.succeed(0, -1)
            parts.buffer.finished(batch)
    assert parts.buffer.pool.free == 2000


def test_waiting_for_room_makes_everything_ready() -> None:
    parts = gathering(buffer_memory=1500, batch_size=1000, linger=60.0)
    while parts.send(b"x" * 100) is not FULL:
        pass
    parts.buffer.add_waiter(lambda: None)
    assert ready(parts).nodes == {1}


def test_no_waiter_is_taken_when_there_is_room_again() -> None:
    parts = gathering(buffer_memory=1000, batch_size=1000)
    while parts.send(b"x" * 100) is not FULL:
        pass
    for batch in drain(parts):
        parts.buffer.finished(batch)
    assert not parts.buffer.add_waiter(lambda: None)


def test_a_waiter_can_leave() -> None:
    parts = gathering(buffer_memory=1000, batch_size=1000)
    while parts.send(b"x" * 100) is not FULL:
        pass

    def waiter() -> None:
        raise AssertionError("called")

    parts.buffer.add_waiter(waiter)
    parts.buffer.remove_waiter(waiter)
    for batch in drain(parts):
        parts.buffer.finished(batch)


def test_what_a_small_batch_did_not_use_is_free_once_it_left() -> None:
    parts = gathering(buffer_memory=1000, batch_size=1000)
    parts.send(b"tiny")
    assert parts.buffer.pool.free == 0
    (batch,) = drain(parts)
    assert parts.buffer.pool.free == 1000 - batch.size


def test_records_that_fit_nowhere_are_refused() -> None:
    parts = gathering(max_request_size=2000, buffer_memory=1500)
    with pytest.raises(RecordTooLargeError, match=r"max\.request\.size"):
        parts.send(b"x" * 2000)
    with pytest.raises(RecordTooLargeError, match=r"buffer\.memory"):
        parts.send(b"x" * 1600)
    assert parts.send(b"x" * (1400 - HEADER_SIZE)) is not FULL, "larger than batch.size is allowed"


def test_a_record_just_as_large_as_a_batch_has_one_of_its_own() -> None:
    parts = gathering(batch_size=0, growth=0)
    parts.send(b"a")
    parts.send(b"b")
    assert [values_of(drain(parts)[0]) for _ in range(2)] == [[b"a"], [b"b"]]


# --------------------------------------------------------------------------- waking


def test_the_sender_is_woken_once_until_it_looks() -> None:
    parts = gathering(leaders=3, linger=60.0)
    for partition in range(3):
        for _ in range(30):
            parts.send(b"x" * 100, partition=partition)
    assert parts.wakes == 1
    ready(parts)
    for _ in range(30):
        parts.send(b"x" * 100, partition=0)
    assert parts.wakes == 2


@pytest.mark.parametrize("busy", [(), {2}, {1}])
def test_a_batch_with_its_size_wakes_the_sender_unless_its_broker_is_busy(busy: Container[int | None]) -> None:
    parts = gathering(linger=60.0, growth=5000)
    parts.send()
    parts.drain.ready(parts.metadata.snapshot, parts.now, busy)
    before = parts.wakes
    for _ in range(12):
        parts.send(b"x" * 100)
    assert parts.wakes - before == (1 not in busy)


def test_the_sender_is_woken_though_another_exception_comes_amid_that() -> None:
    """What the first one broke off is made whole by whoever has the lock next, and that is the sender."""
    parts = gathering(linger=60.0)
    parts.send(b"a")
    ready(parts)
    wakes = 0

    def wake() -> None:
        nonlocal wakes
        wakes += 1
        if wakes == 1:
            raise KeyboardInterrupt

    parts.buffer._wake_sender = wake
    with pytest.raises(KeyboardInterrupt):
        parts.accumulator.append("t", b"b", None, 1, -5, (), None, now=parts.now)
    assert wakes == 2
    parts.buffer.begin_flush()
    assert [values_of(batch) for batch in drain(parts)] == [[b"a"]]
    assert parts.buffer.incomplete


def half_done() -> Parts:
    """An append that one exception broke off, and another one what makes that whole."""
    parts = gathering(leaders=2)
    wake, parts.buffer._wake_sender = parts.buffer._wake_sender, interrupt
    with pytest.raises(KeyboardInterrupt):
        parts.accumulator.append("t", b"bad", None, 0, -5, (), None, now=parts.now)
    parts.buffer._wake_sender = wake
    return parts


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "call",
    [
        ready,
        drain,
        lambda parts: parts.drain.take_expired(inf),
        lambda parts: parts.drain.oldest,
        lambda parts: parts.buffer.update(parts.metadata.snapshot),
        lambda parts: parts.buffer.topics,
        lambda parts: parts.buffer.incomplete,
        lambda parts: parts.buffer.begin_flush(),
        lambda parts: parts.buffer.add_waiter(lambda: None),
        lambda parts: parts.buffer.close(),
        lambda parts: parts.buffer.abort(ClosedError("over")),
        lambda parts: parts.send(b"a"),
    ],
)
def test_whoever_comes_next_makes_whole_what_was_broken_off(call: Callable[[Parts], object]) -> None:
    parts = half_done()
    call(parts)
    assert parts.buffer.open_records == len([batch for batch in parts.buffer._incomplete if batch.records])
    assert all(queue.batches for queue in parts.buffer.active.values())
    reserved = sum(batch.reserved for batch in parts.buffer._incomplete)
    assert parts.buffer.pool.free == parts.settings.buffer_memory - reserved


def test_nothing_new_wakes_nobody() -> None:
    parts = gathering(linger=60.0)
    parts.send()
    ready(parts)
    parts.send()
    assert parts.wakes == 1


# --------------------------------------------------------------------------- sticky


def test_records_without_a_key_stick_then_go_on() -> None:
    parts = gathering(leaders=4, linger=60.0)
    placed = [parts.send(b"x" * 90, partition=None).batch.tp.partition for _ in range(80)]
    changes = sum(1 for one, other in itertools.pairwise(placed) if one != other)
    assert 4 <= changes <= 10
    assert len(set(placed)) >= 3


def test_a_slow_trickle_fills_a_batch_size_before_it_goes_on() -> None:
    parts = gathering(leaders=4)
    placed = []
    for _ in range(40):
        placed.append(parts.send(b"x" * 100, partition=None).batch.tp.partition)
        drain(parts)
    runs = [1]
    for one, other in itertools.pairwise(placed):
        if one == other:
            runs[-1] += 1
        else:
            runs.append(1)
    # each batch of one record is 180 bytes; a partition keeps its turn for 1000
    assert set(runs[:-1]) == {6}


def test_partitions_without_leader_are_avoided() -> None:
    parts = gathering(leaders={0: 1, 1: -1, 2: 1})
    placed = {parts.send(b"x" * 90, partition=None).batch.tp.partition for _ in range(200)}
    assert placed == {0, 2}


def test_long_queues_are_avoided() -> None:
    counts = [0, 0]
    for seed in range(30):
        parts = gathering(leaders=2, seed=seed, growth=0, buffer_memory=10**9)
        for _ in range(90):
            parts.send(b"x" * 100, partition=0)
        ready(parts)
        for n in range(50):
            delivery = parts.send(b"x" * 90, partition=None)
            if n >= 10:  # until then the choice is the one made before anything was queued
                counts[delivery.batch.tp.partition] += 1
    assert counts[1] > 2 * counts[0]


def test_a_queue_is_as_long_as_it_has_batches() -> None:
    """One batch that waits is little: its partition still has a third of the turns."""
    count = 0
    for seed in range(200):
        parts = gathering(leaders=2, seed=seed, growth=0)
        parts.send(b"x", partition=0)
        ready(parts)
        topics = parts.buffer.queues_of("t")
        assert topics is not None
        topics.switch()
        count += topics.sticky.current == 0
    assert 40 < count < 95


def test_queues_that_were_long_once_are_not_avoided_for_ever() -> None:
    choice = StickyChoice(1000, Random(1))
    choice.load([0, 1, 2], [9, 9, 0])
    choice.load([0, 1], [2, 2])
    assert {choice.next() for _ in range(50)} == {0, 1}


def test_a_broker_that_takes_nothing_is_avoided() -> None:
    parts = gathering(leaders={0: 1, 1: 2}, availability_timeout=1.0, adaptive=False)
    parts.send(partition=0)
    ready(parts)
    parts.now += 2.0
    ready(parts)
    placed = [parts.send(b"x" * 500, partition=None).batch.tp.partition for _ in range(20)]
    assert set(placed[4:]) == {1}


def test_keys_go_where_java_sends_them() -> None:
    parts = gathering(leaders=7)
    placed = {key: parts.send(b"v", key, partition=None).batch.tp.partition for key in JAVA_PARTITIONS_OF_7}
    assert placed == JAVA_PARTITIONS_OF_7


def test_keys_can_be_ignored() -> None:
    parts = gathering(leaders=4, ignore_keys=True, linger=60.0)
    placed = [parts.send(b"v", b"%d" % n, partition=None).batch.tp.partition for n in range(5)]
    assert len(set(placed)) == 1


# --------------------------------------------------------------------------- many at once


def test_many_values_fill_batch_after_batch() -> None:
    parts = gathering(buffer_memory=10**6)
    values = [b"%03d" % n + b"x" * 97 for n in range(50)]
    start = 0
    while start < len(values):
        result = parts.send_many(values, start)
        assert result is not FULL
        batch, first, taken = result
        assert taken >= 1
        start += taken
        assert batch.builder is not None
        assert first + taken == batch.builder.count
    out = []
    while batches := drain(parts):
        out += [value for batch in batches for value in values_of(batch)]
    assert out == values


def test_many_values_stop_where_memory_ends() -> None:
    parts = gathering(buffer_memory=1000)
    result = parts.send_many([b"x" * 100] * 50, 0)
    assert result is not FULL
    assert result[2] < 50
    assert parts.send_many([b"x" * 100] * 50, result[2]) is FULL


# --------------------------------------------------------------------------- expiry, close, abort


def test_old_batches_expire() -> None:
    parts = gathering(leaders=2, delivery_timeout=10.0, linger=60.0)
    parts.send(b"old", partition=0)
    parts.now += 5
    parts.send(b"young", partition=1)
    assert parts.drain.oldest == 1000.0
    assert parts.drain.take_expired(1009.9) == []
    (expired,) = parts.drain.take_expired(1010.0)
    assert (expired.tp.partition, expired.state) == (0, BatchState.QUEUED)


def test_closed_takes_no_more_but_sends_what_it_has() -> None:
    parts = gathering(linger=60.0)
    parts.send(b"a")
    called: list[int] = []
    parts.buffer.add_waiter(lambda: called.append(1))
    parts.buffer.close()
    with pytest.raises(ClosedError):
        parts.send(b"b")
    with pytest.raises(ClosedError):
        parts.send_many([b"b"])
    assert not parts.buffer.add_waiter(lambda: None)
    assert [values_of(batch) for batch in drain(parts)] == [[b"a"]]


def test_abort_fails_queued_and_in_flight() -> None:
    parts = gathering()
    flying = parts.send(b"a")
    drain(parts)
    queued = parts.send(b"b")
    aborted = parts.buffer.abort(ClosedError("over"))
    assert len(aborted) == 2
    assert isinstance(flying.exception(), ClosedError)
    assert isinstance(queued.exception(), ClosedError)
    assert parts.buffer.pool.free == parts.settings.buffer_memory
    assert drain(parts) == []
    later = parts.send(b"c")
    assert later.exception() is None, "it is in a batch of its own"
    assert [values_of(batch) for batch in drain(parts)] == [[b"c"]]


def test_whoever_waits_for_a_batch_is_told_that_nothing_will_change() -> None:
    parts = gathering(growth=100_000, batch_size=1000)
    for number in range(40):
        parts.send(b"%02d" % number + b"x" * 98)
    (batch,) = drain(parts)
    assert batch.add_waiter(lambda: None)
    children = parts.drain.split(batch)
    assert not batch.add_waiter(lambda: None), "its pieces speak"
    assert children[0].add_waiter(lambda: None)
    for drained in drain(parts):
        drained.succeed(0, -1)
        assert not drained.add_waiter(lambda: None)


# --------------------------------------------------------------------------- splitting


def test_a_batch_is_split_and_its_handles_follow() -> None:
    parts = gathering(growth=100_000, batch_size=1000)
    handles = [parts.send(b"%02d" % n + b"x" * 98) for n in range(40)]
    (batch,) = drain(parts)
    children = parts.drain.split(batch)
    assert set(parts.buffer.incomplete) == set(children), "nobody waits for the whole"
    assert [child.state for child in children] == [BatchState.QUEUED] * len(children)
    assert all(child.size <= 1000 for child in children)
    offset = 500
    for child in children:
        (drained,) = drain(parts)
        assert drained is child
        child.succeed(offset, -1)
        offset += child.count
        parts.buffer.finished(child)
    assert [handle._outcome().offset for handle in handles] == list(range(500, 540))
    assert parts.buffer.pool.free == parts.settings.buffer_memory
    assert parts.buffer.topics == set()


def test_after_a_split_batches_of_the_topic_stay_small() -> None:
    parts = gathering(growth=100_000, batch_size=1000)
    for _ in range(40):
        parts.send(b"x" * 100)
    (batch,) = drain(parts)
    for child in parts.drain.split(batch):
        drain(parts)
        child.succeed(0, -1)
        parts.buffer.finished(child)
    for _ in range(40):
        parts.send(b"x" * 100)
    sizes = [batch.size for batches in iter(lambda: drain(parts), []) for batch in batches]
    assert len(sizes) >= 4
    assert max(sizes) <= 1000


# --------------------------------------------------------------------------- threads


def test_threads_append_while_another_drains() -> None:
    parts = gathering(leaders=3, buffer_memory=10**9, linger=0.0, batch_size=2000, growth=8000)
    count, threads = 4000, 4
    handles: list[list[tuple[Any, bytes]]] = [[] for _ in range(threads)]
    done = threading.Event()
    drained: list[Any] = []

    def append(me: int) -> None:
        for n in range(count):
            value = b"%d:%d" % (me, n)
            handles[me].append((parts.send(value, partition=n % 3 if me % 2 else None), value))

    def drain_all() -> None:
        while not done.is_set() or parts.buffer.queued:
            drained.extend(drain(parts))

    workers = [threading.Thread(target=append, args=(me,)) for me in range(threads)]
    drainer = threading.Thread(target=drain_all)
    drainer.start()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    done.set()
    drainer.join(60)
    assert not drainer.is_alive()
    values = {id(batch): values_of(batch) for batch in drained}
    assert sum(len(found) for found in values.values()) == count * threads
    for mine in handles:
        for handle, value in mine:
            assert values[id(handle.batch)][handle.index] == value
    # what one thread sent to one partition is in order
    for batch_values in values.values():
        for me in range(threads):
            numbers = [int(v.split(b":")[1]) for v in batch_values if v.startswith(b"%d:" % me)]
            assert numbers == sorted(numbers)
