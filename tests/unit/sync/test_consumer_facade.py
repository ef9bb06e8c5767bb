"""The blocking consumer: the calls of the asynchronous one, and what threads, signals and forks do to it."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

import kclient
import kclient.sync.face as blocking
from kclient.concurrency import ThreadSignal
from kclient.consumer import RebalanceListener
from kclient.consumer.fetch.collector import FetchCollector
from kclient.errors import ClosedError, IllegalStateError, RecordDeserializationError, WakeupError
from kclient.sync import Admin, Consumer, Producer
from kclient.testing import memory_broker
from kclient.types import OffsetAndMetadata, TopicPartition
from tests.unit.sync.calls import public

T = [TopicPartition("t", number) for number in range(3)]


@pytest.fixture
def address() -> Iterator[str]:
    with memory_broker() as found:
        yield found


def fill(address: str, count: int = 30) -> None:
    with Admin(bootstrap_servers=address) as admin:
        if "t" not in {found.name for found in admin.list_topics()}:
            admin.create_topic("t", partitions=3)
    with Producer(bootstrap_servers=address) as producer:
        for number in range(count):
            producer.send("t", b"%d" % number, partition=number % 3)


def reading(address: str, *topics: str, **settings: Any) -> Consumer:
    defaults = {"auto_offset_reset": "earliest", "bootstrap_servers": address, "heartbeat_interval_ms": 100}
    return Consumer(*topics, **{**defaults, **settings})


def drain(consumer: Consumer, count: int) -> list[int]:
    values: list[int] = []
    deadline = time.monotonic() + 20
    while len(values) < count:
        assert time.monotonic() < deadline, values
        values += [int(record.value) for record in consumer.poll(1.0)]
    return values


# ------------------------------------------------------------------ the same calls


def test_the_same_calls_with_the_same_arguments() -> None:
    blocking, asynchronous = public(Consumer), public(kclient.Consumer)
    assert blocking.keys() == asynchronous.keys()
    for name, signature in asynchronous.items():
        assert blocking[name] == signature, name


def test_every_call_is_documented_alike() -> None:
    for name, member in inspect.getmembers(Consumer, inspect.isfunction):
        if not name.startswith("_"):
            ours, theirs = inspect.getdoc(member), inspect.getdoc(getattr(kclient.Consumer, name))
            assert ours, name
            assert (
                ours.replace("interrupted", "cancelled").partition("\n\nRaises")[2] == theirs.partition("\n\nRaises")[2]
            ), name


# ------------------------------------------------------------------ reading


def test_everything(address: str) -> None:
    fill(address)
    with reading(address, "t", group_id="g", enable_auto_commit=False, max_poll_records=8) as consumer:
        values = drain(consumer, 16)
        consumer.commit()
        told: list[Any] = []
        consumer.commit_async(None, lambda offsets, error: told.append(error))
        values += drain(consumer, 14)
        consumer.commit({T[0]: 3})
        assert told == [None]
        assert sorted(values) == list(range(30))
        assert consumer.committed([T[0]]) == {T[0]: OffsetAndMetadata(3)}
        assert consumer.position(T[0]) == 10
        assert consumer.end_offsets(T) == dict.fromkeys(T, 10)
        assert consumer.beginning_offsets(T) == dict.fromkeys(T, 0)
        assert set(consumer.offsets_for_times({T[0]: 0}).values()) != {None}
        assert len(consumer.partitions_for("t")) == 3
        assert set(consumer.list_topics()) == {"__consumer_offsets", "__transaction_state", "t"}
        consumer.seek_to_beginning()
        assert consumer.poll_arrow(5.0).num_rows == 30
        consumer.seek(T[1], 8)
        assert [record.offset for record in consumer.poll(5.0)] == [8, 9]
        consumer.unsubscribe()
        consumer.assign([T[2]])
        consumer.seek_to_beginning()
        for number, record in enumerate(consumer):
            assert record.offset == number
            if number == 9:
                break


def test_it_starts_with_the_first_call_and_closes_once(address: str) -> None:
    fill(address, 3)
    consumer = reading(address)
    consumer.assign(T)
    assert len(drain(consumer, 3)) == 3
    consumer.close()
    consumer.close()
    with pytest.raises(ClosedError):
        consumer.poll()


def test_listeners_and_deserializers_run_in_the_thread_that_polls(address: str) -> None:
    fill(address, 6)
    threads: list[threading.Thread] = []

    class Listening(RebalanceListener):
        def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            threads.append(threading.current_thread())
            consumer.commit({T[0]: 1})

    def deserialize(data: bytes) -> int:
        threads.append(threading.current_thread())
        return int(data)

    with reading(address, group_id="g", value_deserializer=deserialize) as consumer:
        consumer.subscribe(["t"], Listening())
        drain(consumer, 5)
    assert set(threads) == {threading.current_thread()}


def test_a_coroutine_as_a_listener_is_refused_clearly(address: str) -> None:
    fill(address, 3)

    class Wrong(RebalanceListener):
        async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            raise AssertionError

    with reading(address, group_id="g") as consumer:
        consumer.subscribe(["t"], Wrong())
        with pytest.raises(TypeError, match="coroutine"):
            consumer.poll(10.0)


# ------------------------------------------------------------------ threads, signals, forks


def test_heartbeats_go_on_while_user_code_blocks(address: str) -> None:
    fill(address, 3)
    settings = {"group_id": "g", "session_timeout_ms": 6000, "heartbeat_interval_ms": 50}
    with reading(address, "t", **settings) as consumer:
        drain(consumer, 3)
        member = consumer.group_metadata()
        beats = threading.Event()
        inner = consumer._core.group().member._on_heartbeat
        count = 0

        def counting(response: Any, now: float) -> None:
            nonlocal count
            inner(response, now)
            count += 1
            if count == 3:
                beats.set()

        from kclient.consumer.group.model import RequestKind

        consumer._core.group().member._receivers[RequestKind.HEARTBEAT] = counting
        assert beats.wait(10)  # this thread does nothing meanwhile
        assert consumer.group_metadata() == member
        consumer.commit()


def test_wakeup_from_another_thread(address: str) -> None:
    fill(address, 0)
    with reading(address) as consumer:
        consumer.assign(T)
        thread = threading.Timer(0.1, consumer.wakeup)
        thread.start()
        started = time.monotonic()
        with pytest.raises(WakeupError):
            consumer.poll(30.0)
        assert time.monotonic() - started < 10
        thread.join()
        assert not consumer.poll(0.01)


def test_ctrl_c_stops_a_poll_at_once_and_loses_nothing(address: str) -> None:
    fill(address, 3)
    with reading(address) as consumer:
        consumer.assign(T)
        assert len(drain(consumer, 3)) == 3
        timer = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            while True:
                consumer.poll(30.0)
        assert time.monotonic() - started < 5
        timer.join()
        fill(address, 3)
        assert len(drain(consumer, 3)) == 3


def test_leaving_by_ctrl_c_is_quick(address: str) -> None:
    fill(address, 3)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), reading(address, "t", group_id="g") as consumer:
        drain(consumer, 3)
        raise KeyboardInterrupt
    assert time.monotonic() - started < 5
    with reading(address, "t", group_id="g") as consumer:  # the group does not wait for the session's end
        assert len(drain(consumer, 3)) == 3  # and nothing had been committed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_told_clearly(address: str) -> None:
    fill(address, 3)
    with reading(address) as consumer:
        consumer.assign(T)
        drain(consumer, 3)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                consumer.poll(1.0)
            except IllegalStateError as error:
                code = 0 if "forked" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        fill(address, 3)
        assert len(drain(consumer, 3)) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_go_on_iterating(address: str) -> None:
    """What is at hand are the parent's records: both would process them."""
    fill(address, 30)
    with reading(address) as consumer:
        consumer.assign(T)
        records = iter(consumer)
        next(records)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                next(records)
            except IllegalStateError as error:
                code = 0 if "forked" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len([next(records) for _ in range(29)]) == 29


def test_many_threads_may_look_while_one_polls(address: str) -> None:
    fill(address, 300)
    with reading(address, "t", group_id="g", max_poll_records=5) as consumer:
        stop = threading.Event()
        failures: list[BaseException] = []

        def look() -> None:
            try:
                while not stop.is_set():
                    consumer.metrics()
                    consumer.assignment()
                    consumer.paused()
                    consumer.end_offsets([T[0]])
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert sorted(drain(consumer, 300)) == list(range(300))
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []


# ------------------------------------------------------------------ nothing is lost half-way


def until_fetched(consumer: Consumer, enough: float) -> None:
    """Wait until so many bytes are at hand."""
    deadline = time.monotonic() + 20
    while consumer.metrics().value("buffered-bytes") < enough:
        assert time.monotonic() < deadline, consumer.metrics()
        time.sleep(0.005)


def test_an_interrupted_poll_has_handed_out_nothing(address: str) -> None:
    """Two partitions are at hand, and Ctrl-C comes while the second is decoded."""
    fill(address)
    interrupt_at = [b"22"]

    def deserialize(value: bytes) -> bytes:
        if value in interrupt_at:
            interrupt_at.clear()
            raise KeyboardInterrupt
        return value

    with reading(address, value_deserializer=deserialize) as consumer:
        consumer.assign(T)
        values: list[int] = []
        until_fetched(consumer, 3 * 100)
        with pytest.raises(KeyboardInterrupt):
            values += [int(record.value) for record in consumer.poll(5.0)]
        assert values == []
        assert [consumer.position(tp) for tp in T] == [0, 0, 0]
        assert sorted(drain(consumer, 30)) == list(range(30))


class InterruptedAt:
    """Ctrl-C at the n-th bytecode of a poll's own frames."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code not in {Consumer._poll.__code__, Consumer._begin_poll.__code__}:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


@pytest.mark.slow
def test_a_poll_that_is_interrupted_anywhere_holds_up_no_other(address: str) -> None:
    fill(address)
    before = sys.gettrace()
    with reading(address) as consumer:
        consumer.assign(T)
        until_fetched(consumer, 3 * 100)
        number, interrupted = 0, True
        while interrupted:
            number, interrupted = number + 1, False
            sys.settrace(InterruptedAt(number))
            try:
                consumer.poll(0.0)
            except KeyboardInterrupt:
                interrupted = True
            finally:
                sys.settrace(before)
            consumer.seek_to_beginning(T)
            with ThreadPoolExecutor(1) as threads:  # another thread may go on, too
                threads.submit(consumer.poll, 0.0).result(10)
            consumer.seek_to_beginning(T)
        assert number > 20
        assert sorted(drain(consumer, 30)) == list(range(30))


def test_two_threads_may_not_poll_at_once(address: str) -> None:
    fill(address)
    with reading(address) as consumer, ThreadPoolExecutor(1) as threads:
        consumer.assign(T)
        consumer.seek_to_end(T)
        polling = threads.submit(consumer.poll, 30.0)
        told = None
        while told is None:
            try:
                consumer.poll(0.0)
            except IllegalStateError as error:
                told = error
        assert "one thread polls" in str(told)
        consumer.wakeup()
        with pytest.raises(WakeupError):
            polling.result(10)


def test_what_is_at_hand_behind_a_broken_record_is_not_handed_out(address: str) -> None:
    with Producer(bootstrap_servers=address) as producer:
        for number in range(40):
            producer.send("t", b"%d" % number, partition=0).result(10)

    def deserialize(value: bytes) -> bytes:
        if value == b"1":
            raise ValueError("one")
        return value

    # several fetches of a few batches each are at hand, and the first poll reaches from one into the next
    with reading(address, value_deserializer=deserialize, max_partition_fetch_bytes=300) as consumer:
        consumer.assign(T[:1])
        values: list[int] = []
        until_fetched(consumer, 301)
        with pytest.raises(RecordDeserializationError, match="offset 1 of t-0") as broken:
            for _ in range(40):
                values += [int(record.value) for record in consumer.poll(1.0)]
        assert values == [0]
        assert isinstance(broken.value.__cause__, ValueError)  # what the deserializer raised
        assert consumer.position(T[0]) == 1
        consumer.seek(T[0], 2)
        assert drain(consumer, 38) == list(range(2, 40))


@pytest.mark.slow
def test_callbacks_of_commits_may_commit(address: str) -> None:
    fill(address)
    called: list[Any] = []
    depth = deepest = 0

    def committing(offsets: Any, error: Any) -> None:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        consumer.commit({T[0]: 1})
        depth -= 1
        called.append(error)

    with reading(address, group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([T[0]])
        for _ in range(300):
            consumer.commit_async({T[0]: 0}, committing)
        deadline = time.monotonic() + 20
        while len(called) < 300 and time.monotonic() < deadline:
            consumer.poll(0.05)
    assert (called, deepest) == ([None] * 300, 1)


def test_a_close_by_another_thread_commits_what_a_poll_is_about_to_return(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next member of the group gets it once more."""
    fill(address)
    ended, go_on = threading.Event(), threading.Event()
    settle = FetchCollector.settle

    class SlowToReturn(ThreadSignal):
        def set(self) -> None:
            super().set()
            if consumer._buffer.taken is not None:
                ended.set()
                assert go_on.wait(20)

    def look(self: FetchCollector) -> None:
        if ended.is_set():
            assert self._buffer.taken is None, "the poll has not returned"
        settle(self)

    def is_live(self: Consumer, claim: Any) -> bool:
        looks.append(claim)
        if len(looks) > 1:  # once before it waits
            go_on.set()
        return live(self, claim)

    looks: list[Any] = []
    live = Consumer._is_live
    monkeypatch.setattr(Consumer, "_is_live", is_live)
    monkeypatch.setattr(FetchCollector, "settle", look)
    consumer = reading(address, "t", group_id="g")
    monkeypatch.setattr(blocking, "ThreadSignal", SlowToReturn)
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(consumer.poll, 20)
        assert ended.wait(20)
        consumer.close()
        returned = polling.result(20)
    assert list(returned)
    with reading(address, group_id="g") as after:
        committed = after.committed(returned.partitions())
    for partition in returned.partitions():
        found = committed[partition]
        assert found is not None
        assert found.offset == returned.records(partition)[-1].offset + 1


def test_a_callback_of_a_commit_that_closes_has_the_others_called(address: str) -> None:
    fill(address)
    called: list[Any] = []

    def closing(offsets: Any, error: Any) -> None:
        called.append(error)
        consumer.close()

    consumer = reading(address, group_id="g", enable_auto_commit=False)
    consumer.assign([T[0]])
    for _ in range(3):
        consumer.commit_async({T[0]: 0}, closing)
    deadline = time.monotonic() + 20
    while not called and time.monotonic() < deadline:
        consumer.commit({T[0]: 0})
    assert called == [None] * 3


def test_columns_behind_lists_that_stop_before_a_record_that_cannot_be_deserialized(address: str) -> None:
    """Columns are not deserialized: all rows come, and once."""

    def deserialize(value: Any) -> bytes:
        if bytes(value) == b"!":
            raise ValueError("no")
        return bytes(value)

    with kclient.sync.Producer(bootstrap_servers=address, linger_ms=50) as producer:
        producer.send_batch("t", [b"!" if number == 30 else b"x" for number in range(60)], partition=0)
    with kclient.sync.Consumer(
        bootstrap_servers=address, max_poll_records=10, value_deserializer=deserialize
    ) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek_to_beginning()
        assert [record.offset for record in consumer.poll(10)] == list(range(10))
        assert consumer.poll_arrow(10)["offset"].to_pylist() == list(range(10, 60))
        assert consumer.position(("t", 0)) == 60
