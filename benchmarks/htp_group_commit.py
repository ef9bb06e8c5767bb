"""Group commit over 1, 64 and 1,000 dirty files: the ways to do it, and what embedded HTP makes of it.

One round is: append 1,000 bytes to each file, then make all of it durable. The ways: `fdatasync` one by one, on eight
threads, one `syncfs`, and a preallocated journal that all appends are copied to (recovery would replay it). Embedded
HTP is measured with its settings `group_sync=auto` and `each`. docs/internals/log-and-recovery.md tells what followed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from benchmarks.harness import alternating, report
from kclient.htp import DirectTopic, OpenTopic, Store, Topic, open_store
from kclient.htp.embedded.files import Files, SyncPoint
from kclient.records import BatchBuilder, RecordBatchFraming, restamp

SIZES = (1, 64, 1000)
BYTES = 1000
THREADS = 8
JOURNAL = 16 << 20


def _sync_all(fds: list[int]) -> None:
    for fd in fds:
        os.fdatasync(fd)


class Ways:
    """The bare system calls, over `count` files."""

    def __init__(self, folder: Path, count: int) -> None:
        self.files = Files()
        self.fds = [self.files.open(str(folder / str(number)), create=True) for number in range(count)]
        self.content = os.urandom(BYTES)
        self.position = 0
        self.journal = self.files.open(str(folder / "journal"), create=True)
        os.pwrite(self.journal, bytes(JOURNAL), 0)
        os.fsync(self.journal)
        self.pool = ThreadPoolExecutor(THREADS)

    def close(self) -> None:
        self.pool.shutdown()
        for fd in (*self.fds, self.journal):
            os.close(fd)

    def timed(self, sync: Callable[[], object]) -> float:
        """Rounds per second."""
        rounds = max(2, 200 // len(self.fds))
        started = time.perf_counter()
        for _ in range(rounds):
            for fd in self.fds:
                os.pwrite(fd, self.content, self.position)
            self.position += BYTES
            sync()
        return rounds / (time.perf_counter() - started)

    def one_by_one(self) -> None:
        _sync_all(self.fds)

    def in_threads(self) -> None:
        parts = [self.fds[number::THREADS] for number in range(THREADS)]
        list(self.pool.map(_sync_all, parts))

    def all_at_once(self) -> None:
        self.files.sync_everything(self.fds[0], SyncPoint.EVERYTHING)

    def journalled(self) -> None:
        total = BYTES * len(self.fds)
        os.pwrite(self.journal, self.content * len(self.fds), self.position % (JOURNAL - total))
        os.fdatasync(self.journal)


class Stored:
    """The same through embedded HTP."""

    def __init__(self, portal: BlockingPortal, store: Store, count: int) -> None:
        self.portal = portal
        self.store = store
        self.count = count
        self.topics: list[OpenTopic] = []
        builder = BatchBuilder(limit=10 * BYTES)
        builder.append(0, None, os.urandom(BYTES - 100))
        self.batch = builder.build()
        self.next = 0

    async def prepare(self) -> None:
        await self.store.manager.create_domain("benchmark")
        async with anyio.create_task_group() as group:
            for number in range(self.count):
                group.start_soon(self._open, Topic("benchmark", str(number)))

    async def _open(self, topic: Topic) -> None:
        info = await self.store.manager.create_topic(topic)
        self.topics.append(await self.store.broker.open(info.place, RecordBatchFraming(), epoch=1))

    async def work(self) -> None:
        restamp(self.batch, 0, base_offset=self.next, partition_leader_epoch=0)
        self.next += 1
        sent = [cast("DirectTopic", topic).send_nowait((self.batch,)) for topic in self.topics]
        for each in sent:
            await each.synced()

    def timed(self) -> float:
        rounds = max(2, 200 // self.count)

        async def repeat() -> None:
            for _ in range(rounds):
                await self.work()

        started = time.perf_counter()
        self.portal.call(repeat)
        return rounds / (time.perf_counter() - started)


@contextlib.contextmanager
def stored(portal: BlockingPortal, folder: Path, count: int, group_sync: str) -> Iterator[Stored]:
    store = open_store(f"embedded:{folder / group_sync}", group_sync=group_sync)
    with portal.wrap_async_context_manager(store):
        subject = Stored(portal, store, count)
        portal.call(subject.prepare)
        yield subject


def measure(count: int) -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        portal = stack.enter_context(start_blocking_portal())
        ways = Ways(folder, count)
        stack.callback(ways.close)
        contenders: dict[str, Callable[[], float]] = {
            "embedded HTP, auto": stack.enter_context(stored(portal, folder, count, "auto")).timed,
            "embedded HTP, each": stack.enter_context(stored(portal, folder, count, "each")).timed,
            "journal, preallocated": lambda: ways.timed(ways.journalled),
            f"fdatasync, {THREADS} threads": lambda: ways.timed(ways.in_threads),
            "fdatasync, one by one": lambda: ways.timed(ways.one_by_one),
        }
        if ways.files.syncs_everything:
            contenders["syncfs"] = lambda: ways.timed(ways.all_at_once)
        report(f"{count} dirty files, {BYTES} bytes each, synced", alternating(contenders), unit="rounds/s")


def main() -> None:
    for count in SIZES:
        measure(count)


if __name__ == "__main__":
    main()
