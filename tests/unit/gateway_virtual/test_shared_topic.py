"""Partitions that share a topic: each is a list of batches, whatever is trimmed, lost, opened again or not known."""

from __future__ import annotations

import errno
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kclient.gateway.ownership import HeldLease
from kclient.gateway.partition_stores import shared_store
from kclient.gateway.rows.keys import blocks_key, entries_key, indexed_key, of_topic
from kclient.gateway.virtual import SharedPartition, SharedStore
from kclient.gateway.virtual import index as index_module
from kclient.gateway.virtual import index_rows as index_rows_module
from kclient.gateway.virtual import topic as topic_module
from kclient.gateway.virtual import windows as windows_module
from kclient.htp import (
    DamagedError,
    FencedError,
    OrderError,
    OutcomeUnknownError,
    Place,
    PositionError,
    StorageError,
    Topic,
    TopicSettings,
    UnknownTopicError,
    open_store,
)
from kclient.htp.embedded.files import Files
from kclient.memory_ledger import MemoryLedger
from kclient.records import iter_headers
from kclient.records.restamping import place_batch
from tests.all_rows import scan_all
from tests.gateway_wire import batch_of
from tests.plain_store import PlainStore
from tests.slow_store import Gates
from tests.sole_writer import sole_writer
from tests.sweeps import slow
from tests.uncertain_store import UNKNOWN, Fate, UncertainStore

names = (f"shared-{number}" for number in count())
pytestmark = pytest.mark.anyio

ID = b"\x01" * 16
SETTINGS = TopicSettings(segment_bytes=4_000, dense=True)


@dataclass
class Model:
    """What has to be in a partition."""

    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    """First and last offset of each, and its bytes."""
    next: int = 0
    start: int = 0
    stalls: list[BaseException] = field(default_factory=list)


@dataclass
class Bed:
    """Partitions of a topic on a store, and what has to be in them."""

    store: Any
    place: Place
    lease: HeldLease
    kept: int = 64 << 20
    shared: SharedStore = field(init=False)
    epoch: int = 0
    partitions: dict[int, SharedPartition] = field(default_factory=dict)
    models: dict[int, Model] = field(default_factory=dict)
    saves: list[Any] = field(default_factory=list)
    pending: list[Any] = field(default_factory=list)
    """What was sent, and is not known to be synced."""

    async def settle(self) -> None:
        pending, self.pending = self.pending, []
        for sent in pending:
            await sent.synced()

    async def restart(self, *numbers: int) -> None:
        """As a gateway does that starts again: it knows nothing but what is stored."""
        await self.settle()
        memory = MemoryLedger().part(16 * self.kept)
        self.shared = shared_store(
            self.store.manager, self.store.broker, self.lease, sole_writer(self.store.manager, self.lease), memory,
            lambda: 1_000, lambda *task, **_: self.saves.append(task),
        )  # fmt: skip
        self.epoch += 1
        await self.open(*(numbers or self.partitions))

    async def open(self, *numbers: int, start: int | None = None) -> None:
        for number in numbers:
            model = self.models.setdefault(number, Model())
            self.partitions[number] = await self.shared.open(
                self.place, ID, number,
                epoch=self.epoch, settings=SETTINGS, next_offset=model.next,
                start_offset=model.start if start is None else start, stalled=model.stalls.append,
            )  # fmt: skip

    async def append(self, number: int, *values: bytes, timestamp: int = 5, wait: bool = True) -> Any:
        model = self.models[number]
        batch = batch_of(*values, timestamp=timestamp)
        place_batch(batch, model.next, 1)
        sent = await self.partitions[number].send((batch,))
        assert (sent.first, sent.last) == (model.next, model.next + len(values) - 1)
        if wait:
            await sent.synced()
        else:
            self.pending.append(sent)
        model.batches.append((sent.first, sent.last, bytes(batch)))
        model.next += len(values)
        return sent

    async def trim(self, number: int, before: int) -> None:
        await self.settle()
        model = self.models[number]
        start = await self.partitions[number].trim(before)
        model.start = max(model.start, before)
        model.batches = [each for each in model.batches if each[1] >= before]
        assert start <= before or not model.batches

    async def read(self, number: int, offset: int, **options: Any) -> list[tuple[int, int, bytes]]:
        partition = self.partitions[number]
        direct = partition.pull_nowait(offset, **options) if partition.topic.direct is not None else None
        pulled = direct or await partition.pull(offset, **options)
        found, data = [], bytes(pulled.data)
        for position, header in iter_headers(data):
            found.append((header.base_offset, header.last_offset, data[position : position + header.length]))
        expected = (found[0][0], found[-1][1]) if found else (offset, offset - 1)
        assert (pulled.first, pulled.last) == expected
        return found

    async def holds(self, number: int, offset: int | None = None) -> None:
        """What can be read from here on is all that has to be there, in order."""
        await self.settle()
        model = self.models[number]
        at = model.start if offset is None else offset
        expected, found = [each for each in model.batches if each[1] >= at], list[tuple[int, int, bytes]]()
        while some := await self.read(number, at, max_bytes=2_000):
            found += some
            at = some[-1][1] + 1
        assert found == expected, number

    async def holds_all(self) -> None:
        for number in self.partitions:
            await self.holds(number)

    async def save(self) -> None:
        await self.shared.save(self.partitions.values())


KINDS = ["memory", "embedded", "plain"]


@asynccontextmanager
async def bed(
    kind: str, path: Path, *numbers: int, wrapped: Callable[[Any], Any] = lambda store: store
) -> AsyncIterator[Bed]:
    inner: Any = PlainStore(next(names)) if kind == "plain" else open_store(
        f"memory:{next(names)}" if kind == "memory" else f"embedded:{path / 'data'}"
    )  # fmt: skip
    async with wrapped(inner) as store:
        await store.manager.create_domain("kafka~virtual")
        place = (await store.manager.create_topic(Topic("kafka~virtual", "t"), broker="brk-0")).place
        made = Bed(store, place, HeldLease(await store.manager.acquire("lease", "me", 100)))
        await made.restart(0, 1, 2)
        yield made


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("seed", [0, 1, *slow(2, 3, 4, 5)])
async def test_each_is_a_list_of_batches(kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    monkeypatch.setattr(index_module, "_FEW", 4)
    monkeypatch.setattr(windows_module, "WINDOW_BYTES", 3_000)
    monkeypatch.setattr(topic_module, "WINDOW_BYTES", 3_000)
    async with bed(kind, tmp_path) as made:
        made.kept = 20_000 if seed % 2 else 64 << 20
        for _ in range(200):
            number = random.choice(list(made.partitions))
            model = made.models[number]
            match random.randrange(14):
                case 0:
                    await made.trim(number, random.randint(model.start, model.next))
                case 1:
                    if random.random() < 0.5:
                        await made.save()
                    await made.restart()
                    for each, partition in made.partitions.items():
                        status = await partition.status()
                        expected = made.models[each]
                        assert status.next == expected.next
                        assert status.end == expected.next or not expected.batches
                        assert status.start <= (expected.batches[0][0] if expected.batches else expected.next)
                case 2:
                    await made.partitions[number].roll()
                case 3:
                    await made.holds(number, random.randint(model.start, model.next))
                case 4:
                    await made.save()
                case 5:
                    if len(made.partitions) < 6:
                        await made.open(len(made.partitions))
                case 6:
                    await made.open(number)
                case _:
                    values = (random.randbytes(random.randrange(400)) for _ in range(random.randint(1, 5)))
                    await made.append(number, *values, wait=random.random() < 0.7)
        await made.append(0, b"last")
        await made.holds_all()
        for number, model in made.models.items():
            for offset in range(model.start, model.next + 1):
                expected = [each for each in model.batches if each[1] >= offset][:1]
                assert await made.read(number, offset, max_bytes=1) == expected
            segments = await made.partitions[number].segments()
            assert segments[-1].active
            assert segments[-1].next == model.next


@pytest.mark.parametrize("kind", ["embedded", "plain"])
async def test_a_failed_sync_reaches_all_whose_messages_wait(kind: str, tmp_path: Path) -> None:
    async with bed(kind, tmp_path) as made:
        for number in (0, 1, 2):
            await made.append(number, b"kept %d" % number)
        before = {number: (model.next, list(model.batches)) for number, model in made.models.items()}
        told: list[tuple[int, bool]] = []
        goes_on = threading.Event()
        with pytest.MonkeyPatch.context() as patch:
            if kind == "plain":
                inner = made.store.broker.opened[made.place]
                patch.setattr(inner, "failing", lambda: True)
                patch.setattr(inner, "_post", lambda _: None)
            else:

                def failing(*_: object) -> None:
                    goes_on.wait(20)
                    raise OSError(errno.EIO, "in this test")

                patch.setattr(Files, "sync", failing)
            for number in (1, 0, 1):
                sent = await made.append(number, b"lost", wait=False)
                sent.on_synced(lambda error, number=number: told.append((number, isinstance(error, StorageError))))
            if kind == "plain":
                inner._sync()
            goes_on.set()
            pending, made.pending = made.pending, []
            for sent in pending:
                with pytest.raises(StorageError):
                    await sent.synced()
        assert told == [(1, True), (0, True), (1, True)]
        for number, (following, batches) in before.items():
            made.models[number].next, made.models[number].batches = following, batches
            status = await made.partitions[number].status()
            assert (status.end, status.next) == (following, following)
        for number in (2, 1, 0):
            await made.append(number, b"again %d" % number)
        await made.holds_all()
        await made.restart()
        await made.holds_all()


@pytest.mark.parametrize("fate", UNKNOWN, ids=lambda fate: fate.name)
async def test_an_outcome_that_is_not_known_stops_all_of_them(kind: str, fate: Fate, tmp_path: Path) -> None:
    """They go on once the topic was opened under a newer epoch, which is done once."""
    async with bed(kind, tmp_path, wrapped=UncertainStore) as made:
        broker = made.store.broker
        for number in (0, 1, 2):
            await made.append(number, b"kept %d" % number)
        offset = made.models[1].next
        broker.fates.append(fate)
        with pytest.raises(OutcomeUnknownError):
            await made.append(1, b"unknown")
        assert [len(model.stalls) for model in made.models.values()] == [1, fate in (Fate.SYNCED, Fate.VANISHED), 1]
        met = len(broker.met)
        for number in (0, 1, 2):
            with pytest.raises(OutcomeUnknownError, match="is not known"):
                await made.append(number, b"not sent")
            with pytest.raises(FencedError):
                await made.partitions[number].pull(0)
        assert len(broker.met) == met
        with pytest.raises(StorageError, match="opened anew"):
            await made.open(0)
        made.epoch += 1
        await made.open(2, 0, 1)
        assert broker.epochs == [1, 2]
        assert [type(error) for error in await broker.arrive()] == ([FencedError] if fate is Fate.LATE else [])
        stored = fate in (Fate.STORED, Fate.SYNCED)
        status = await made.partitions[1].status()
        assert (status.end, status.next) == (offset + stored, offset + stored)
        made.models[1].batches = [*made.models[1].batches, *(await made.read(1, offset))]
        made.models[1].next = offset + stored
        assert len(made.models[1].batches) == 1 + stored
        for number in (1, 0, 2):
            await made.append(number, b"more")
        await made.holds_all()
        await made.restart()
        await made.holds_all()


async def test_a_lower_epoch_is_told_the_newer_one(tmp_path: Path) -> None:
    async with bed("memory", tmp_path) as made:
        made.epoch += 3
        await made.open(0)
        assert made.models[1].stalls
        assert made.models[2].stalls
        made.epoch -= 1
        with pytest.raises(FencedError) as told:
            await made.open(1)
        assert told.value.epoch == 4
        made.epoch = 4
        await made.open(1, 2)
        await made.append(1, b"a")
        await made.holds_all()


async def test_opening_reads_once_what_no_row_tells(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bed(kind, tmp_path) as made:
        for number in range(30):
            await made.append(number % 3, bytes(100))
        await made.save()
        for number in range(9):
            await made.append(number % 3, bytes(100))
        looked: list[tuple[int, int]] = []
        look = topic_module.SharedTopic._look_through

        async def counted(topic: Any, begin: int, end: int) -> None:
            looked.append((begin, end))
            await look(topic, begin, end)

        monkeypatch.setattr(topic_module.SharedTopic, "_look_through", counted)
        await made.restart()
        assert looked == [(30, 39)]
        await made.holds_all()
        looked.clear()
        await made.store.manager.commit({indexed_key(ID): None})
        await made.restart()
        assert looked == [(0, 39)]
        await made.holds_all()


@pytest.mark.parametrize("damaged", ["indexed", "blocks", "entries", "all"])
async def test_an_index_that_is_damaged_is_found_again(
    kind: str, damaged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(index_module, "_FEW", 4)
    async with bed(kind, tmp_path) as made:
        for number in range(40):
            await made.append(number % 3, b"%d" % number)
        await made.save()
        rows = {
            "indexed": [indexed_key(ID)],
            "blocks": [blocks_key(ID, 1, 0)],
            "entries": [entries_key(ID, 1, 0), entries_key(ID, 1, 3)],
            "all": [key for prefix in of_topic(ID) for key in await scan_all(made.store.manager, prefix)],
        }[damaged]
        await made.store.manager.commit(dict.fromkeys(rows, b"garbage"))
        await made.restart()
        await made.holds_all()
        assert "nothing has to be done" in caplog.text
        await made.append(1, b"more")
        await made.save()
        caplog.clear()
        await made.restart()
        await made.holds_all()
        if damaged != "entries":
            assert not caplog.text


async def test_entries_are_read_again_from_rows(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_FEW", 4)
    async with bed(kind, tmp_path) as made:
        made.kept = 0  # nothing is kept
        await made.restart()
        for number in range(100):
            await made.append(number % 3, b"%d" % number, timestamp=number)
        await made.save()
        index = made.partitions[0].index
        whole = [True] * (len(index.blocks) - 1) + [False]
        assert len(whole) > 4
        assert [block.entries is None for block in index.blocks] == whole
        await made.holds_all()
        assert [block.entries is None for block in index.blocks] == whole
        assert await made.partitions[0].find_by_timestamp(50) == (17, 17, 51)
        assert index.memory < 5_000


async def test_what_is_found_by_time(kind: str, tmp_path: Path) -> None:
    async with bed(kind, tmp_path) as made:
        for number in range(60):
            await made.append(number % 2, bytes(10), bytes(10), timestamp=number * 10)
        partition = made.partitions[1]
        assert await partition.find_by_timestamp(0) == (0, 1, 10)
        assert await partition.find_by_timestamp(95) == (10, 11, 110)
        assert await partition.find_by_timestamp(0, start=11) == (10, 11, 110)
        assert await partition.find_by_timestamp(0, start=12) == (12, 13, 130)
        assert await partition.find_by_timestamp(591) is None
        assert await made.partitions[2].find_by_timestamp(0) is None


async def test_space_is_freed_below_the_slowest(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topic_module, "_MUCH", 10_000)
    async with bed(kind, tmp_path) as made:
        for number in range(60):
            await made.append(number % 3, bytes(1000))
        inner = made.partitions[0].topic.inner
        size = (await inner.status()).size
        for number in (0, 1):
            await made.trim(number, 18)
        assert (await inner.status()).size > size * 0.95
        assert "partition 2's" in caplog.text
        assert caplog.text.count("of all partitions") == 1
        await made.trim(2, 10)
        assert (await inner.status()).size < size * 2 / 3
        for number in (0, 1, 2):
            await made.trim(number, 20)
        assert [(await partition.status()).start for partition in made.partitions.values()] == [20, 20, 20]
        await made.save()
        await made.restart()
        for number in (0, 1, 2):
            assert tuple(await made.partitions[number].status())[:3] == (20, 20, 20)
            await made.append(number, b"new")
        await made.holds_all()


@pytest.mark.parametrize("kind", KINDS)
async def test_large_batches_and_answers(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their memory is used again, once nobody has it: what was read stays as it was."""
    async with bed(kind, tmp_path) as made:
        sizes = [150_000, 300, 400_000, 90_000, 1_500_000, 20_000, 700_000]
        for number in range(21):
            await made.append(number % 3, bytes([number]) * sizes[number % 7])
        await made.settle()
        read = []
        for number in (0, 1, 2, 0):
            offset = 0
            while offset < made.models[number].next:
                partition = made.partitions[number]
                pulled = await partition.pull(offset, max_bytes=1_000_000)
                read.append((number, pulled, bytes(pulled.data)))
                offset = pulled.last + 1
        for number, pulled, data in read:
            expected = [each[2] for each in made.models[number].batches if pulled.first <= each[0] <= pulled.last]
            assert bytes(pulled.data) == data == b"".join(expected)
        await made.holds_all()


async def test_a_start_that_is_known_when_it_is_opened_frees_space_with_the_next_trim(tmp_path: Path) -> None:
    """The gateway was killed after the start was durable, and before the topic was trimmed."""
    async with bed("memory", tmp_path) as made:
        for number in range(60):
            await made.append(number % 2, bytes(1000))
        inner = made.partitions[0].topic.inner
        await made.open(0, start=29)
        await made.trim(1, 29)
        assert (await inner.status()).start > 50


async def test_positions_outside(kind: str, tmp_path: Path) -> None:
    async with bed(kind, tmp_path) as made:
        await made.append(0, b"a", b"b")
        assert await made.read(0, 2) == []
        for outside in (-1, 3):
            with pytest.raises(PositionError) as told:
                await made.partitions[0].pull(outside)
            assert (told.value.start, told.value.end) == (0, 2)
        made.models[0].next = 1
        with pytest.raises(OrderError, match="2 is the next"):
            await made.append(0, b"c")


async def test_a_partition_that_is_released_is_used_no_more(tmp_path: Path) -> None:
    async with bed("memory", tmp_path) as made:
        await made.append(0, b"a")
        for number in (0, 1, 2):
            made.shared.release(made.partitions[number])
            with pytest.raises(UnknownTopicError):
                await made.partitions[number].pull(0)
        assert not made.shared._topics
        assert not made.shared._users
        await made.open(0)
        await made.holds(0)


async def test_damage_costs_what_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of one partition that cannot be read is no reason to refuse those of others."""
    async with bed("plain", tmp_path) as made:
        for number in range(60):
            await made.append(number % 3, bytes(number * 7))
        inner = made.store.broker.opened[made.place]
        bad = made.models[1].batches[7][2]
        inner.damaged = lambda message: message[24:] == bad
        made.partitions[0].topic.windows.clear()
        for number in (0, 2):
            await made.holds(number)
        for offset in range(20):
            if offset == 7:
                with pytest.raises(DamagedError):
                    await made.read(1, offset, max_bytes=1)
            else:
                assert (await made.read(1, offset, max_bytes=1))[0][0] == offset
        await made.store.manager.commit({indexed_key(ID): None})
        reopen = made.store.broker.open

        async def damaged(*arguments: Any, **options: Any) -> Any:
            opened = await reopen(*arguments, **options)
            opened.damaged = inner.damaged
            return opened

        monkeypatch.setattr(made.store.broker, "open", damaged)
        await made.restart()
        with pytest.raises(DamagedError):
            await made.read(1, 7, max_bytes=1)
        assert (await made.read(1, 8, max_bytes=1))[0][0] == 8
        for number in (0, 2):
            await made.holds(number)


async def test_a_send_that_waits_while_a_sync_fails_is_undone_with_it(tmp_path: Path) -> None:
    async with bed("plain", tmp_path) as made:
        await made.append(0, b"a")
        inner = made.store.broker.opened[made.place]
        inner.failing, inner._post = (lambda: True), (lambda _: None)
        first = await made.append(0, b"b", wait=False)
        made.pending.clear()
        outcome = []

        async def send() -> None:
            with pytest.raises(StorageError, match="sent before"):
                await made.append(1, b"c", wait=False)
            outcome.append("raised")

        async with anyio.create_task_group() as tasks, made.partitions[0].topic._sending:
            tasks.start_soon(send)
            await anyio.wait_all_tasks_blocked()
            inner._sync()
            with suppress(StorageError):
                await first.synced()
            inner.failing = lambda: False
        assert outcome == ["raised"]


async def test_the_index_is_written_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_module, "_SAVED_MESSAGES", 10)
    async with bed("memory", tmp_path) as made:
        for number in range(25):
            await made.append(number % 3, b"x")
        assert len(made.saves) == 2
        save, topic = made.saves[-1]
        await save(topic)
        assert indexed_key(ID) in await scan_all(made.store.manager, "kafka/")


async def test_a_sync_that_fails_while_another_partition_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the store takes after it has cut back lies where its envelope says, behind ordinals that nothing has."""
    async with bed("plain", tmp_path) as made:
        await made.append(0, b"a")
        await made.holds(0)
        await made.append(2, b"c")
        inner = made.store.broker.opened[made.place]
        lost = batch_of(b"lost")
        place_batch(lost, made.models[0].next, 1)
        reached, goes_on, below = anyio.Event(), anyio.Event(), inner._inner

        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(below, name)

            async def send(self, messages: Any) -> Any:
                reached.set()
                await goes_on.wait()
                return await below.send(messages)

        async def append() -> None:
            await made.append(1, b"b")

        with monkeypatch.context() as patch:
            patch.setattr(inner, "failing", lambda: True)
            patch.setattr(inner, "_post", lambda _: None)
            undone = await made.partitions[0].send((lost,))
            patch.setattr(inner, "_inner", Slow())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(append)
                await reached.wait()
                inner._sync()
                with pytest.raises(StorageError):
                    await undone.synced()
                patch.undo()
                goes_on.set()
        await made.holds(1)
        for number in (0, 1, 2):
            await made.append(number, b"more")
        await made.holds_all()
        await made.save()
        await made.restart()
        await made.holds_all()
        await made.store.manager.commit({indexed_key(ID): None})
        await made.restart()
        await made.holds_all()
        assert not caplog.text


@pytest.mark.parametrize("damaged", [False, True])
async def test_entries_of_a_block_that_was_cut_stay_until_they_are_written(
    damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were read again for it, and those that were found among the messages."""
    monkeypatch.setattr(index_module, "_FEW", 4)
    async with bed("plain", tmp_path) as made:
        for number in range(9):
            await made.append(0, b"%d" % number)
        await made.save()
        inner = made.store.broker.opened[made.place]
        ends = [last + 1 for segment in inner._inner._log._segments for last in segment.lasts]
        inner._visible = ends[5]  # the store has lost three messages
        if damaged:
            made.partitions[0].topic._kept.give_up()
            await made.store.manager.commit({entries_key(ID, 0, 1): b"garbage"})
        inner._cut_back(inner._inner._log._segments)
        made.epoch += 1
        await made.open(0, 1, 2)
        made.partitions[0].topic._kept.give_up()
        await made.save()
        assert [each[0] for each in await made.read(0, 0)] == list(range(6))


@pytest.mark.parametrize("kind", ["embedded", "plain"])
async def test_ordinals_that_were_never_durable_are_given_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The index was written while a message was on its way, and that got lost: nothing durable was."""
    async with bed(kind, tmp_path) as made:
        await made.append(0, b"a")
        batch, goes_on = batch_of(b"lost"), threading.Event()
        place_batch(batch, made.models[1].next, 1)
        with monkeypatch.context() as patch:
            if kind == "plain":
                inner = made.store.broker.opened[made.place]
                patch.setattr(inner, "failing", lambda: True)
                patch.setattr(inner, "_post", lambda _: None)
            else:

                def failing(*_: object) -> None:
                    goes_on.wait(20)
                    raise OSError(errno.EIO, "in this test")

                patch.setattr(Files, "sync", failing)
            sent = await made.partitions[1].send((batch,))
            await made.save()
            if kind == "plain":
                inner._sync()
            goes_on.set()
            with pytest.raises(StorageError):
                await sent.synced()
        caplog.clear()
        await made.restart()
        assert made.partitions[0].topic.next == 1
        await made.append(1, b"b")
        await made.holds_all()
        assert "lost" not in caplog.text


async def test_rows_of_what_the_store_has_lost_mean_nothing_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a row of the index that would tell what is left is damaged, so that all messages are read."""
    monkeypatch.setattr(index_module, "_FEW", 4)
    monkeypatch.setattr(index_rows_module, "_IN_A_ROW", 1)
    async with bed("plain", tmp_path) as made:
        for number in range(40):
            await made.append(0, b"%d" % number)
        await made.save()
        inner = made.store.broker.opened[made.place]
        ends = [last + 1 for segment in inner._inner._log._segments for last in segment.lasts]
        inner._visible = ends[21]  # of 40 messages 22 are left
        inner._cut_back(inner._inner._log._segments)
        del made.models[0].batches[22:]
        await made.store.manager.commit({entries_key(ID, 0, 3): b"garbage"})
        await made.restart()
        await made.holds_all()
        await made.append(0, b"more")
        await made.save()
        made.models[0].next = 40  # the partition's checkpoint is older
        await made.restart()
        assert tuple(await made.partitions[0].status())[:3] == (0, 41, 41)
        await made.holds_all()


async def test_nothing_is_kept_of_a_topic_that_went_while_its_index_was_written(tmp_path: Path) -> None:
    """Whoever deletes it asks until that is over, and may have given up waiting for it before."""
    gates = Gates(open_store(f"memory:{next(names)}"))
    async with bed("memory", tmp_path, wrapped=lambda _: gates.store) as made, anyio.create_task_group() as tasks:
        await made.append(0, b"a")
        topic = weakref.ref(made.partitions[0].topic)
        writing = gates.hold("commit")
        tasks.start_soon(made.shared.save, [made.partitions[0]])
        await writing.reached.wait()
        while made.partitions:
            made.shared.release(made.partitions.popitem()[1])
        assert made.shared.busy(made.place)
        gates.open()
        with anyio.fail_after(10):
            while made.shared.busy(made.place):
                await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        gc.collect()
        assert topic() is None
