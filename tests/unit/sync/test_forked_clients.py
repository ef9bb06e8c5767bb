"""In a forked child the parent's clients say what they are at once, whatever other threads did when it was forked."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kclient.concurrency import MomentLock, check_none_held
from kclient.errors import IllegalStateError
from kclient.metrics import Metric, MetricName
from kclient.producer.delivery import wait_for_batch
from kclient.sync import Admin, Consumer, Producer
from kclient.sync.portal import get_portal
from kclient.testing import memory_broker
from kclient.types import ConsumerGroupMetadata

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

BEFORE = 20

METRIC = Metric(MetricName("n", "g"), lambda: 1.0)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "assign": ([("t", 0)],),
    "beginning_offsets": ([("t", 0)],),
    "commit_async": ({("t", 0): 1},),
    "committed": ([("t", 0)],),
    "current_lag": (("t", 0),),
    "end_offsets": ([("t", 0)],),
    "offsets_for_times": ({("t", 0): 1},),
    "partitions_for": ("t",),
    "pause": ([("t", 0)],),
    "poll": (0.1,),
    "position": (("t", 0),),
    "processing": ([],),
    "resume": ([("t", 0)],),
    "register_metric_for_subscription": (METRIC,),
    "seek": (("t", 0), 0),
    "send": ("t", b"x"),
    "send_batch": ("t", [b"x"]),
    "send_offsets_to_transaction": ({("t", 0): 1}, ConsumerGroupMetadata("g")),
    "store_offsets": ({("t", 0): 1},),
    "subscribe": (["t"],),
    "unregister_metric_from_subscription": (METRIC,),
    "watermarks": (("t", 0),),
}
MAY_ANSWER = {
    "consumer": {"assignment", "close", "group_metadata", "paused", "processing", "subscription", "wakeup"},
    "producer": {
        "close",
        "metrics",
        "register_metric_for_subscription",
        "transaction",
        "unregister_metric_from_subscription",
    },
}
"""They wait for nobody."""

TOLD, ANSWERED, ODD = range(3)


def in_child(call: Callable[[], object]) -> int:
    """What comes of a call there; minus the number of the alarm if it never ends."""
    child = os.fork()
    if child == 0:
        code = ODD
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(5)
        try:
            call()
            code = ANSWERED
        except IllegalStateError as error:
            code = TOLD if "before the process forked" in str(error) else ODD
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def address() -> Iterator[str]:
    with memory_broker() as found:
        with Admin(bootstrap_servers=found) as admin:
            admin.create_topic("t")
        yield found


@pytest.fixture
def producer(address: str) -> Iterator[Producer]:
    with Producer(bootstrap_servers=address, linger_ms=0) as made:
        made.send("t", b"first").result(BEFORE)
        yield made


@pytest.fixture
def consumer(address: str, producer: Producer) -> Iterator[Consumer]:
    with Consumer("t", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest") as made:
        while not made.poll(BEFORE):
            pass
        yield made


@pytest.fixture
def held(producer: Producer, consumer: Consumer) -> Iterator[None]:
    """Another thread holds every lock of the clients, as it does amid their calls."""
    amid, over = threading.Event(), threading.Event()
    reports = producer._life.reports

    def hold() -> None:
        with producer._life.buffer.lock, reports.lock, reports._guard, consumer._core._lock:
            amid.set()
            over.wait(BEFORE * 5)

    thread = threading.Thread(target=hold)
    thread.start()
    amid.wait(BEFORE)
    yield
    over.set()
    thread.join()


def public(client: object) -> list[str]:
    """Its methods: properties read what is at hand, without the loop and without a lock."""
    kind = type(client)
    return [name for name in dir(kind) if not name.startswith("_") and not isinstance(getattr(kind, name), property)]


@pytest.mark.slow
@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("kind", ["consumer", "producer"])
def test_every_call_tells_it(kind: str, producer: Producer, consumer: Consumer) -> None:
    client: Any = {"consumer": consumer, "producer": producer}[kind]
    names = [name for name in public(client) if name not in {"poll_arrow", "send_arrow"}]
    found = {name: in_child(lambda name=name: getattr(client, name)(*ARGUMENTS.get(name, ()))) for name in names}
    assert found == {name: ANSWERED if name in MAY_ANSWER[kind] else TOLD for name in names}


@pytest.mark.usefixtures("held")
def test_columns_and_iteration_tell_it(producer: Producer, consumer: Consumer) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"value": [b"x"]})
    assert in_child(lambda: producer.send_arrow("t", table)) == TOLD
    assert in_child(consumer.poll_arrow) == TOLD
    assert in_child(lambda: next(consumer)) == TOLD


def test_a_delivery_of_the_parents_tells_it(address: str) -> None:
    with Producer(bootstrap_servers=address, linger_ms=60_000) as producer:
        delivery = producer.send("t", b"x")
        amid, over = threading.Event(), threading.Event()

        def hold() -> None:
            with producer._life.reports.lock:
                amid.set()
                over.wait(BEFORE)

        thread = threading.Thread(target=hold)
        thread.start()
        amid.wait(BEFORE)
        code = in_child(delivery.result)
        over.set()
        thread.join()
        assert code == TOLD


def test_callbacks_of_the_parents_are_not_called(producer: Producer) -> None:
    told: list[object] = []
    delivery = producer.send("t", b"x", on_delivery=lambda *found: told.append(found))
    get_portal().call(wait_for_batch, delivery.batch)

    def send() -> None:
        try:
            producer.send("t", b"x")
        finally:
            if told:
                os._exit(ODD)

    assert in_child(send) == TOLD
    producer.flush(BEFORE)
    assert len(told) == 1


@pytest.mark.parametrize("kind", ["moment", "mutex"])
def test_a_lock_that_was_held_is_nobodys(kind: str) -> None:
    """Threads of the child have the numbers of the parent's."""
    producer = Producer(bootstrap_servers="memory:nobody")
    with producer._life.buffer.lock if kind == "mutex" else MomentLock():
        with pytest.raises(IllegalStateError):
            check_none_held()
        assert in_child(check_none_held) == ANSWERED
