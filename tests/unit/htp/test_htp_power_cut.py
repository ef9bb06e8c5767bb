"""The power is cut: everything that was reported as synced is there, and nothing torn is visible.

The disk of these tests knows what was synced (`disks.PowerCutFiles`). `test_each_sync_is_needed` leaves out one
sync after the other and shows that each time something gets lost, so none of them could be removed unnoticed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Awaitable, Callable, Container
from pathlib import Path

import anyio
import pytest

from kclient.errors import KafkaError
from kclient.htp import Topic, TopicSettings
from kclient.htp.embedded.checkpoints import SyncCheckpoints
from kclient.htp.embedded.files import SyncPoint
from kclient.htp.embedded.shard import topic_directory
from kclient.htp.embedded.topic import EmbeddedTopic
from kclient.htp.errors import PositionError
from kclient.htp.port import RewritableTopic
from tests.sweeps import slow
from tests.unit.htp.by_name import NamedBroker, NamedStore, named_store
from tests.unit.htp.conftest import prepare
from tests.unit.htp.disks import PowerCutFiles
from tests.unit.htp.plain_messages import FRAMING, OTHER, OVERHEAD, TOPIC, message, split

pytestmark = pytest.mark.anyio

LAYOUT = TopicSettings(segment_bytes=3 * (OVERHEAD + 10), index_interval_bytes=50)


class Lost(AssertionError):
    """Something that was reported as synced, or was visible, is not there any more."""


class Machine:
    """A machine whose power is cut now and then."""

    def __init__(self, folder: Path, skip: Container[SyncPoint] = (), group_sync: str = "each") -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.skip = skip
        self.group_sync = group_sync
        self.lives = 0
        self.reached: set[SyncPoint] = set()
        self.disk = self._disk()

    def _disk(self) -> PowerCutFiles:
        return PowerCutFiles.found(self.folder / f"life-{self.lives}", self.skip)

    def store(self, **options: object) -> NamedStore:
        path = Path(self.disk.base, "deep", "data")
        return named_store(f"embedded:{path}", files=self.disk, settings=LAYOUT, group_sync=self.group_sync, **options)

    def cut_power(self, tear: random.Random | None = None) -> None:
        """What is on now is the new life; the old one may be closed, it touches nothing any more."""
        self.reached |= self.disk.reached
        self.lives += 1
        self.disk.cut(self.folder / f"life-{self.lives}", tear)
        self.disk = self._disk()


def topic_folder(store: NamedStore) -> Path:
    (folder,) = Path(store.path, "brk-0", "topics").glob("domain~some_topic.*")
    return folder


def content(number: int) -> bytes:
    return b"%010d" % number


async def send(broker: NamedBroker, first: int, count: int = 1, topic: Topic = TOPIC) -> None:
    for number in range(first, first + count):
        await (await broker.send(topic, [message(number, content(number))])).synced()


async def read(broker: NamedBroker, topic: Topic = TOPIC) -> dict[int, bytes]:
    """Everything that is visible."""
    found: dict[int, bytes] = {}
    position = await broker.start(topic)
    while (pulled := await broker.pull(topic, position)).data:
        for first, _, payload in split(pulled.data):
            assert first not in found
            found[first] = payload
        position = pulled.last + 1
    return found


async def expect(machine: Machine, *numbers: int, topic: Topic = TOPIC, at_least: int = 0) -> None:
    """These messages, and no others, are there after the cut."""
    try:
        async with machine.store() as store:
            status = await store.broker.open(topic, FRAMING)
            found = await read(store.broker, topic)
            if found != {number: content(number) for number in numbers}:
                raise Lost(f"found {sorted(found)}, expected {sorted(numbers)}")
            if status.next < at_least:
                raise Lost(f"goes on at {status.next}, which was given before")
    except (KafkaError, OSError) as error:
        raise Lost(str(error)) from error


# --- one story for each sync ---


async def messages_of_a_new_store(machine: Machine) -> None:
    async with machine.store() as store:
        await prepare(store)
        await send(store.broker, 0, 2)
        machine.cut_power()
    await expect(machine, 0, 1)


async def messages_of_a_new_topic(machine: Machine) -> None:
    """The store itself is old: only the topic's directory is new."""
    async with machine.store() as store:
        await prepare(store)
    async with machine.store() as store:
        topic = Topic(TOPIC.domain, "new")
        await store.manager.create_topic(topic)
        await store.broker.open(topic, FRAMING)
        await send(store.broker, 0, topic=topic)
        machine.cut_power()
    await expect(machine, 0, topic=topic)


async def messages_of_two_segments(machine: Machine) -> None:
    """The end of a segment and the beginning of the next are synced in one round."""
    async with machine.store() as store:
        await prepare(store)
        await send(store.broker, 0, 2)
        sent = [store.broker.send_nowait(TOPIC, [message(number, content(number))]) for number in (2, 3)]
        assert len(await store.broker.segments(TOPIC)) == 2
        await sent[-1].synced()
        machine.cut_power()
    await expect(machine, 0, 1, 2, 3)


async def messages_that_a_killed_process_left(machine: Machine) -> None:
    """They were written, never synced: once somebody has seen them they must stay."""
    async with machine.store() as store:
        await prepare(store)
        await send(store.broker, 0, 2)
    with (topic_folder(store) / f"{0:020}.log").open("ab") as file:
        file.write(message(2, content(2)))
    async with machine.store() as store:
        await store.broker.open(TOPIC, FRAMING)
        assert set(await read(store.broker)) == {0, 1, 2}
        machine.cut_power()
    await expect(machine, 0, 1, 2)


async def a_segment_that_a_killed_process_left(machine: Machine) -> None:
    async with machine.store() as store:
        await prepare(store)
        await send(store.broker, 0, 3)
    (topic_folder(store) / f"{3:020}.log").write_bytes(message(3, content(3)))
    async with machine.store() as store:
        await store.broker.open(TOPIC, FRAMING)
        assert set(await read(store.broker)) == {0, 1, 2, 3}
        machine.cut_power()
    await expect(machine, 0, 1, 2, 3)


async def a_topic_that_was_deleted(machine: Machine) -> None:
    async with machine.store() as store:
        await prepare(store)
        await send(store.broker, 0, 2)
        await store.broker.close(TOPIC)
    async with machine.store() as store:
        await store.broker.open(TOPIC, FRAMING)
        await store.broker.delete(TOPIC)
        machine.cut_power()
    await expect(machine)


async def a_log_that_lost_its_end(machine: Machine) -> None:
    """The gateway knows more of it than is there; recovery must not take the gap for a loss of what follows."""
    async with machine.store() as store:
        await prepare(store)
        await send(store.broker, 0, 2)
        await store.broker.open(TOPIC, FRAMING, next_position=10)
        await send(store.broker, 10, 2)
        machine.cut_power()
    await expect(machine, 0, 1, 10, 11)


async def a_log_trimmed_to_nothing(machine: Machine) -> None:
    async with machine.store() as store:
        await prepare(store)
        await send(store.broker, 0, 5)
        await store.broker.trim(TOPIC, 5)
        chores_done = threading.Event()
        store.broker._syncer.chore(chores_done.set)
        await anyio.to_thread.run_sync(chores_done.wait)
        machine.disk.removals_reach_the_disk(str(topic_folder(store)))
        machine.cut_power()
    await expect(machine, at_least=5)


async def a_topic_whose_opening_was_cut_off(machine: Machine) -> None:
    """Its directory was made, and the process killed before that was synced: who finds it takes it for durable."""
    topic = Topic(TOPIC.domain, "new")
    async with machine.store() as store:
        await prepare(store)
        await store.manager.create_topic(topic)
        place = (await store.manager.describe_topic(topic)).place
    machine.disk.make_directory(f"{store.path}/brk-0/topics/{topic_directory(place)}")
    async with machine.store() as store:
        await store.broker.open(topic, FRAMING)
        await send(store.broker, 0, topic=topic)
        machine.cut_power()
    await expect(machine, 0, topic=topic)


async def a_segment_behind_a_gap(machine: Machine) -> None:
    """It is set aside; if it came back when the log has grown past its name, it would bound what is before it."""
    async with machine.store() as store:
        await prepare(store)
        await send(store.broker, 0)
        await store.broker.roll(TOPIC)
    file = topic_folder(store) / f"{2:020}.log"
    file.write_bytes(message(2, b"never synced, and still there"))
    fd = machine.disk.open(str(file))
    machine.disk.sync(fd, SyncPoint.MESSAGES)
    machine.disk.close(fd)
    machine.disk.sync_directory(str(file.parent), SyncPoint.SEGMENT)
    async with machine.store() as store:
        await store.broker.open(TOPIC, FRAMING)
        await send(store.broker, 1, 2)
        assert len(await store.broker.segments(TOPIC)) == 1
        machine.cut_power()
    await expect(machine, 0, 1, 2)


async def a_segment_that_was_rewritten(machine: Machine) -> None:
    """Its messages are the new ones from then on: what was left out of them does not come back."""
    async with machine.store() as store:
        await prepare(store)
        await send(store.broker, 0, 7)
        topic = store.broker.topic(TOPIC)
        assert isinstance(topic, RewritableTopic)
        rewriting = await topic.rewrite(3)
        await rewriting.append([message(5, content(5))])
        await rewriting.commit()
        assert set(await read(store.broker)) == {0, 1, 2, 5, 6}
        machine.cut_power()
    await expect(machine, 0, 1, 2, 5, 6)


Story = Callable[[Machine], Awaitable[None]]

STORIES: dict[SyncPoint, Story] = {
    SyncPoint.DATA_DIRECTORY: messages_of_a_new_store,
    SyncPoint.FORMAT: messages_of_a_new_store,
    SyncPoint.LAYOUT: messages_of_a_new_store,
    SyncPoint.SHARD: messages_of_a_new_store,
    SyncPoint.TOPIC: messages_of_a_new_topic,
    SyncPoint.DELETED: a_topic_that_was_deleted,
    SyncPoint.SEGMENT: messages_of_a_new_store,
    SyncPoint.MESSAGES: messages_of_a_new_store,
    SyncPoint.SEALED: messages_of_two_segments,
    SyncPoint.RECOVERED: messages_that_a_killed_process_left,
    SyncPoint.RECOVERED_ENTRIES: a_segment_that_a_killed_process_left,
    SyncPoint.REWRITTEN: a_segment_that_was_rewritten,
    SyncPoint.REWRITTEN_ENTRY: a_segment_that_was_rewritten,
    SyncPoint.EVERYTHING: messages_of_two_segments,
}
ALL_STORIES: list[Story] = [
    *dict.fromkeys(STORIES.values()),
    a_log_that_lost_its_end,
    a_log_trimmed_to_nothing,
    a_topic_whose_opening_was_cut_off,
    a_segment_behind_a_gap,
]


@pytest.mark.parametrize("group_sync", ["each", *slow("filesystem")])
@pytest.mark.parametrize("story", ALL_STORIES)
async def test_nothing_is_lost(story: Story, group_sync: str, tmp_path: Path) -> None:
    await story(Machine(tmp_path, group_sync=group_sync))


def test_there_is_a_story_for_each_sync() -> None:
    assert set(STORIES) == set(SyncPoint)


@pytest.mark.parametrize("point", SyncPoint)
async def test_each_sync_is_needed(point: SyncPoint, tmp_path: Path) -> None:
    group_sync = "filesystem" if point is SyncPoint.EVERYTHING else "each"
    machine = Machine(tmp_path, skip={point}, group_sync=group_sync)
    with pytest.raises(Lost):
        await STORIES[point](machine)
    assert point in machine.reached


async def test_the_checkpoint_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(*_: object) -> None:
        return

    monkeypatch.setattr(SyncCheckpoints, "write", forget)
    monkeypatch.setattr(SyncCheckpoints, "write_soon", lambda *_, **__: None)
    with pytest.raises(Lost):
        await a_log_that_lost_its_end(Machine(tmp_path))


@pytest.mark.slow
async def test_the_name_of_the_new_segment_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a log trimmed to nothing the next ordinal is known twice: by the checkpoint and by a segment's name."""

    async def forget(*_: object) -> None:
        return

    await a_log_trimmed_to_nothing(Machine(tmp_path / "with"))
    monkeypatch.setattr(SyncCheckpoints, "write", forget)
    monkeypatch.setattr(SyncCheckpoints, "write_soon", lambda *_, **__: None)
    await a_log_trimmed_to_nothing(Machine(tmp_path / "without"))
    with pytest.raises(Lost):
        await a_log_trimmed_to_nothing(Machine(tmp_path / "neither", skip={SyncPoint.SEGMENT}))


async def test_the_database_syncs_each_commit(tmp_path: Path) -> None:
    async with named_store(f"embedded:{tmp_path}/data") as store:
        manager = store.manager
        pragmas = await manager._do(  # type: ignore[attr-defined]
            lambda connection: [
                connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")
            ]
        )
    assert pragmas == ["wal", 2], "2 is FULL: the log is synced before a commit returns"


# --- any story ---


class Life:
    """Random work, and what must be there after a cut at any moment of it."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.next = {TOPIC: 0, OTHER: 0}
        self.acknowledged: dict[Topic, set[int]] = {TOPIC: set(), OTHER: set()}
        self.visible: dict[Topic, set[int]] = {TOPIC: set(), OTHER: set()}
        self.trimmed = {TOPIC: 0, OTHER: 0}
        self.left_out: dict[Topic, set[int]] = {TOPIC: set(), OTHER: set()}
        """By a rewriting that was begun."""
        self.gone: dict[Topic, set[int]] = {TOPIC: set(), OTHER: set()}
        """By one that was reported as done."""

    async def work(self, store: NamedStore, steps: int) -> None:
        broker = store.broker
        for _ in range(steps):
            topic = self.dice.choice([TOPIC, OTHER])
            step = self.dice.random()
            if step < 0.75:
                await self.send(broker, topic)
            elif step < 0.85:
                self.visible[topic] |= set(await read(broker, topic))
            elif step < 0.9:
                await broker.roll(topic)
            elif step < 0.95:
                before = self.dice.randint(0, self.next[topic])
                self.trimmed[topic] = max(before, self.trimmed[topic])
                await broker.trim(topic, before)
            elif step < 0.98:
                await self.rewrite(broker, topic)
            else:
                await broker.close(topic)
                await broker.open(topic, FRAMING)

    async def rewrite(self, broker: NamedBroker, topic: Topic) -> None:
        """Leave some messages out of a closed segment, but for the last one."""
        opened = broker.topic(topic)
        assert isinstance(opened, RewritableTopic)
        closed = [segment for segment in await opened.segments() if not segment.active]
        if not closed:
            return
        segment = self.dice.choice(closed)
        try:
            rewriting = await opened.rewrite(segment.first)
        except PositionError:  # not synced yet
            return
        there = split((await opened.pull(segment.first, max_bytes=1 << 20)).data)
        left_out = {first for first, _, _ in there[:-1] if self.dice.random() < 0.5}
        await rewriting.append([message(first, payload) for first, _, payload in there if first not in left_out])
        self.left_out[topic] |= left_out
        if self.dice.random() < 0.8:
            await rewriting.commit()
            self.gone[topic] |= left_out
        else:
            await rewriting.discard()

    async def send(self, broker: NamedBroker, topic: Topic) -> None:
        numbers = range(self.next[topic], self.next[topic] + self.dice.randint(1, 3))
        self.next[topic] = numbers.stop
        sent = await broker.send(topic, [message(number, content(number)) for number in numbers])
        if self.dice.random() < 0.5:
            await sent.synced()
            self.acknowledged[topic] |= set(numbers)
        else:

            def acknowledge(error: BaseException | None) -> None:
                assert error is None
                self.acknowledged[topic] |= set(numbers)

            sent.on_synced(acknowledge)

    async def check(self, store: NamedStore) -> None:
        """After a cut."""
        for topic in (TOPIC, OTHER):
            status = await store.broker.open(topic, FRAMING)
            found = await read(store.broker, topic)
            missing = set(range(status.start, status.end)) - set(found)
            assert found == {n: content(n) for n in range(status.start, status.end) if n not in missing}
            assert missing <= self.left_out[topic]
            assert not self.gone[topic] & set(found)
            kept = {
                number for number in self.acknowledged[topic] | self.visible[topic] if number >= self.trimmed[topic]
            }
            assert kept <= set(found) | missing
            assert status.next == status.end >= max(self.acknowledged[topic], default=-1) + 1
            self.next[topic] = status.next
            self.visible[topic] = set(found)
            self.acknowledged[topic] &= set(found)
            self.left_out[topic], self.gone[topic] = set(missing), missing


@pytest.mark.slow
@pytest.mark.parametrize("group_sync", ["each", "filesystem"])
@pytest.mark.parametrize("seed", range(3))
async def test_any_work_cut_at_any_moment(seed: int, group_sync: str, tmp_path: Path) -> None:
    dice = random.Random(seed)
    machine = Machine(tmp_path, group_sync=group_sync)
    life = Life(dice)
    async with machine.store() as store:
        await prepare(store)
        machine.cut_power(dice)
    for _ in range(8):
        async with machine.store() as store:
            await life.check(store)
            await life.work(store, dice.randint(0, 25))
            machine.cut_power(dice if dice.random() < 0.8 else None)
            before = {topic: set(numbers) for topic, numbers in life.acknowledged.items()}
        life.acknowledged = before  # what was acknowledged while the store was closed, after the cut, does not count


async def test_a_close_right_after_a_round_that_covered_everything(tmp_path: Path) -> None:
    """A roll asks for a sync; the round under way turns out to cover it, so that there is nothing left to plan."""
    machine = Machine(tmp_path)
    async with machine.store() as store:
        await prepare(store)
        broker = store.broker
        with anyio.fail_after(10):
            await send(broker, 0)
            topic = broker.topic(TOPIC)
            assert isinstance(topic, EmbeddedTopic)
            log = topic.use()
            for number in range(1, 4):
                # as when a roll wishes for a sync, and the round before ends in the same turn of the loop
                unsynced = await broker.send(TOPIC, [message(number, content(number))])
                await unsynced.synced()
                log.unsynced._wanted = True
                closing = anyio.Event()
                log.unsynced.when_idle(closing.set)
                assert log.plan() is None
                await closing.wait()
