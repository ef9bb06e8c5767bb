"""However much a fetch opens to, and however it is taken, each partition's records come in order and without a gap."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kclient.concurrency import MomentLock, Wakeup
from kclient.consumer.fetch import collector, completed_fetch
from kclient.consumer.fetch.collector import FetchCollector
from kclient.consumer.metrics import ConsumerMetrics
from tests.unit.consumer.fetchbox import FetchBox, Logs

OPENED = 3_000
"""Bytes that are opened at once here, in place of 16 MiB."""
SIZES = [10, 100, 400, 1000]
WAYS = ["fetch", "fetch", "list", "list", "one by one", "columns", "pause", "resume"]


class Taking:
    """Takes the records of some logs in all ways, and knows which must come next."""

    def __init__(self, sizes: list[int], most: int, max_bytes: int) -> None:
        logs = Logs(partitions=len(sizes), batches=12)
        for number, size in enumerate(sizes):
            logs.batches[number] = Logs(partitions=1, batches=12, size=size).batches[0]
        self.box = FetchBox(logs, max_partition_bytes=max_bytes)
        self.collector = FetchCollector(
            lock=MomentLock(),
            subscriptions=self.box.subscriptions,
            buffer=self.box.fetcher.buffer,
            metrics=ConsumerMetrics(),
            wakeup=Wakeup(),
            max_poll_records=most,
            decode_options={"check_crcs": True, "max_decompressed": 1 << 30},
            interceptors=(),
        )
        self.next = dict.fromkeys(range(len(sizes)), 0)

    def fetch(self) -> None:
        for plan in self.box.plan():
            self.box.answer(plan)

    def came(self, partition: int, offset: int) -> None:
        assert offset == self.next[partition], f"partition {partition}"
        self.next[partition] += 1

    def take(self, way: str) -> None:
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
        elif way == "columns":
            self.collector.settle()
            batch = self.collector.take_arrow(include_headers=False)
            if batch is not None:
                for partition, offset in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True):
                    self.came(partition, offset)
        self.collector.taken = None

    def do(self, way: str, partition: int) -> None:
        tp = self.box.partitions[partition % len(self.box.partitions)]
        if way == "fetch":
            self.fetch()
        elif way == "pause":
            self.box.subscriptions.pause([tp])
        elif way == "resume":
            self.box.subscriptions.resume([tp])
        else:
            self.take(way)

    def finish(self) -> None:
        self.box.subscriptions.resume(self.box.partitions)
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


@given(
    sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=4),
    most=st.sampled_from([1, 7, 20, 500]),
    max_bytes=st.sampled_from([1_000, 6_000, 50_000]),
    steps=st.lists(st.tuples(st.sampled_from(WAYS), st.integers(0, 3)), max_size=40),
)
@example(sizes=[10, 100], most=7, max_bytes=6_000, steps=[])  # took a fetch before the rest of the one in front of it
def test_all_ways_of_taking(sizes: list[int], most: int, max_bytes: int, steps: list[tuple[str, int]]) -> None:
    taking = Taking(sizes, most, max_bytes)
    for way, partition in steps:
        taking.do(way, partition)
    taking.finish()
