"""However much a fetch opens to, and however it is taken, each partition's records come in order and without a gap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kclient.concurrency import MomentLock, Wakeup
from kclient.consumer.fetch import collector, completed_fetch
from kclient.consumer.fetch.buffer import FetchBuffer
from kclient.consumer.fetch.collector import FetchCollector
from kclient.consumer.metrics import FetchMetrics
from kclient.consumer.subscription import SubscriptionState
from kclient.errors import RecordDeserializationError
from kclient.metrics.windows import MetricWindows
from kclient.records.arrow import COLUMN_NAMES
from tests.example_budget import examples
from tests.unit.consumer.fetchbox import FetchBox, Logs

OPENED = 3_000
"""Bytes that are opened at once here, in place of 16 MiB."""
FEW = 500
"""Bytes that a call may ask for."""
SIZES = [10, 100, 400, 1000]
WAYS = [
    "fetch", "fetch", "list", "list", "one by one", "columns", "few columns", "pause", "resume",
    "list in vain", "columns in vain", "list broken off", "columns broken off", "make room",
    "list broken off twice", "columns broken off twice",
]  # fmt: skip


class Interrupt(BaseException):
    """What a signal handler raises."""


class Interrupts:
    """Interrupts a take before or after its n-th change of the buffer, and once more so many changes later."""

    def __init__(self, buffer: FetchBuffer, subscriptions: SubscriptionState) -> None:
        self.left: list[int] = []
        for name in ("advance", "advance_to", "finish"):
            setattr(buffer, name, self.around(getattr(buffer, name)))
        vars(subscriptions)["go_back"] = self.around(subscriptions.go_back)

    def around(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def changing(*arguments: Any) -> Any:
            self._pass()
            found = change(*arguments)
            self._pass()
            return found

        return changing

    def _pass(self) -> None:
        if self.left:
            self.left[0] -= 1
            if not self.left[0]:
                del self.left[0]
                raise Interrupt


class Taking:
    """Takes the records of some logs in all ways, and knows which must come next.

    Every so often the deserializer fails, at any record: that is raised when its turn has come.
    """

    def __init__(self, sizes: list[int], most: int, max_bytes: int, moods: int = 0) -> None:
        logs = Logs(partitions=len(sizes), batches=12)
        for number, size in enumerate(sizes):
            logs.batches[number] = Logs(partitions=1, batches=12, size=size).batches[0]
        self.box = FetchBox(logs, max_partition_bytes=max_bytes)
        self.collector = FetchCollector(
            lock=MomentLock(),
            subscriptions=self.box.subscriptions,
            buffer=self.box.fetcher.buffer,
            metrics=FetchMetrics(MetricWindows(lambda: 0.0)),
            wakeup=Wakeup(),
            max_poll_records=most,
            decode_options={"check_crcs": True, "max_decompressed": 1 << 30, "value_deserializer": self.deserialize},
            interceptors=(),
        )
        self.moods = Random(moods) if moods else None
        self.interrupts = Interrupts(self.box.fetcher.buffer, self.box.subscriptions)
        self.next = dict.fromkeys(range(len(sizes)), 0)

    def fetch(self) -> None:
        for plan in self.box.plan():
            self.box.answer(plan)

    def deserialize(self, *arguments: Any) -> bytes:
        if self.moods is not None and self.moods.random() < 0.04:
            raise TimeoutError("the registry did not answer")
        return next(bytes(each) for each in arguments if isinstance(each, bytes | memoryview))

    def came(self, partition: int, offset: int) -> None:
        assert offset == self.next[partition], f"partition {partition}"
        self.next[partition] += 1

    def take(self, way: str) -> None:
        try:
            self._take(way)
        except RecordDeserializationError as error:
            self.came(error.partition, error.offset)  # nothing before it is left out
            self.next[error.partition] -= 1
        self.box.fetcher.buffer.taken = None

    def take_in_vain(self, columns: bool, *, interrupt_at: Sequence[int] = (), meanwhile: bool = False) -> None:
        """A signal handler raises during a take, or behind it; `meanwhile` the task that fetches makes room."""
        self.collector.settle()
        self.interrupts.left = [*interrupt_at]
        try:
            if columns:
                self.collector.take_arrow(COLUMN_NAMES)
            else:
                self.collector.take()
        except (Interrupt, RecordDeserializationError):
            pass
        finally:
            self.interrupts.left.clear()
        if meanwhile:
            self.box.fetcher.buffer.drop_stale()
        self.collector.put_back()

    def _take(self, way: str) -> None:
        if way == "list":
            self.collector.settle()
            for record in self.collector.take() or ():
                self.came(record.partition, record.offset)
        elif way == "one by one":
            for _ in range(7):
                record = self.collector.next_record()
                if record is None:
                    if not self.collector.refill():
                        break
                    record = self.collector.next_record()
                assert record is not None
                self.came(record.partition, record.offset)
            self.collector.settle()
        elif way.endswith("columns"):
            self.collector.settle()
            batch = self.collector.take_arrow(COLUMN_NAMES, FEW if way == "few columns" else None)
            if batch is not None:
                for partition, offset in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True):
                    self.came(partition, offset)

    def do(self, way: str, partition: int) -> None:
        tp = self.box.partitions[partition % len(self.box.partitions)]
        if way == "fetch":
            self.fetch()
        elif way == "pause":
            self.box.subscriptions.pause([tp])
        elif way == "resume":
            self.box.subscriptions.resume([tp])
        elif way == "make room":
            self.box.fetcher.buffer.drop_paused()
        elif way.endswith("in vain"):
            self.take_in_vain("columns" in way)
        elif way.endswith("broken off"):
            self.take_in_vain("columns" in way, interrupt_at=[1 + partition // 2], meanwhile=bool(partition % 2))
        elif way.endswith("broken off twice"):
            self.take_in_vain("columns" in way, interrupt_at=[1 + partition // 2, 1 + partition % 2], meanwhile=True)
        else:
            self.take(way)

    def finish(self) -> None:
        self.box.subscriptions.resume(self.box.partitions)
        self.moods = None
        for _ in range(2_000):
            if all(self.next[number] == self.box.logs.end(number) for number in self.next):
                return
            self.fetch()
            self.take("list")
        raise AssertionError(f"not everything came: {self.next}")


@pytest.fixture(autouse=True, scope="module")
def _little_is_opened_at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collector, "ENOUGH", OPENED)
        patch.setattr(completed_fetch, "ENOUGH", OPENED)
        yield


@pytest.mark.slow
@examples(300)
@given(
    sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=4),
    most=st.sampled_from([1, 7, 20, 500]),
    max_bytes=st.sampled_from([1_000, 6_000, 50_000]),
    steps=st.lists(st.tuples(st.sampled_from(WAYS), st.integers(0, 19)), max_size=40),
    moods=st.integers(0, 1000),
)
@example([10, 100], 7, 6_000, [], 0)  # took a fetch before the rest of the one in front of it
@example([10, 10], 500, 6_000, [("fetch", 0), ("list broken off twice", 4)], 0)
def test_all_ways_of_taking(
    sizes: list[int], most: int, max_bytes: int, steps: list[tuple[str, int]], moods: int
) -> None:
    taking = Taking(sizes, most, max_bytes, moods)
    for way, partition in steps:
        taking.do(way, partition)
    taking.finish()
