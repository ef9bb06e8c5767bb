"""A data directory that several openings have at once: whose the files of a topic are, and what each sees of others."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kclient.errors import ConfigError
from kclient.htp import (
    FencedError,
    LeaseHeldError,
    LockedError,
    OpenTopic,
    Place,
    Store,
    UnknownTopicError,
    open_store,
)
from kclient.htp.embedded import EmbeddedStore, open_embedded
from kclient.htp.embedded.backup import back_up
from kclient.htp.embedded.sharing import locks_shared
from kclient.htp.errors import StorageError
from kclient.htp.port import CAP_EXCLUSIVE, CAP_SHARED
from tests.unit.htp.plain_messages import FRAMING, OTHER, TOPIC, message, payloads

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[EmbeddedStore]:
    """One opening, which lends."""
    async with open_embedded(str(path), together=True, **options) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(store.lend)
        yield store
        tasks.cancel_scope.cancel()


async def topic_of(store: Store) -> Place:
    await store.manager.create_domain("domain")
    return (await store.manager.create_topic(TOPIC)).place


async def send(topic: OpenTopic, *texts: bytes) -> None:
    first = (await topic.status()).next
    await (await topic.send([message(first + number, text) for number, text in enumerate(texts)])).synced()


async def content(topic: OpenTopic) -> list[bytes]:
    return payloads((await topic.pull(0)).data)


async def test_a_topic_goes_from_one_to_the_other_and_back(tmp_path: Path) -> None:
    async with opened(tmp_path / "d") as one, opened(tmp_path / "d") as two:
        assert CAP_SHARED in one.broker.capabilities
        assert CAP_EXCLUSIVE not in one.broker.capabilities
        place = await topic_of(one)
        old = await one.broker.open(place, FRAMING, epoch=1)
        await send(old, b"a")
        new = await two.broker.open(place, FRAMING, epoch=2)
        assert await content(new) == [b"a"]
        with pytest.raises(FencedError):
            await old.send([message(1, b"late")])
        with pytest.raises(FencedError):
            await one.broker.open(place, FRAMING, epoch=1)
        await send(new, b"b")
        back = await one.broker.open(place, FRAMING, epoch=3)
        with pytest.raises(FencedError):
            await new.send([message(1, b"late")])
        assert await content(back) == [b"a", b"b"]


async def test_what_is_being_synced_is_there_for_the_next_one(tmp_path: Path) -> None:
    async with opened(tmp_path / "d") as one, opened(tmp_path / "d") as two:
        place = await topic_of(one)
        old = await one.broker.open(place, FRAMING, epoch=1)
        sent = [b"%d" % number for number in range(500)]
        stored: list[bytes] = []

        async def write() -> None:
            for text in sent:
                try:
                    await send(old, text)
                except FencedError:
                    return
                stored.append(text)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            while len(stored) < 20:
                await anyio.sleep(0)
            new = await two.broker.open(place, FRAMING, epoch=2)
        found = await content(new)
        assert found[: len(stored)] == stored
        assert len(found) - len(stored) in (0, 1)


@pytest.mark.slow
async def test_many_topics_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path / "d") as one, opened(tmp_path / "d") as two:
        await one.manager.create_domain("domain")
        names = [TOPIC.__class__("domain", f"t{number}") for number in range(200)]
        places = [(await one.manager.create_topic(name)).place for name in names]
        for place in places:
            await send(await one.broker.open(place, FRAMING, epoch=1), b"a")
        found: list[list[bytes]] = []

        async def take(place: Place) -> None:
            found.append(await content(await two.broker.open(place, FRAMING, epoch=2)))

        began = time.monotonic()
        async with anyio.create_task_group() as tasks:
            for place in places:
                tasks.start_soon(take, place)
        assert found == [[b"a"]] * len(places)
        assert time.monotonic() - began < 5


async def test_one_that_gives_nothing_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kclient.htp.embedded.checkpoints._GIVE_UP_S", 0.2)
    async with open_embedded(str(tmp_path / "d"), together=True) as one, opened(tmp_path / "d") as two:
        place = await topic_of(one)
        old = await one.broker.open(place, FRAMING, epoch=1)
        with pytest.raises(StorageError, match=f"in use by process {os.getpid()}, which does not give them up.* kill"):
            await two.broker.open(place, FRAMING, epoch=2)
        await send(old, b"still there")
        await old.close()
        assert await content(await two.broker.open(place, FRAMING, epoch=2)) == [b"still there"]


async def test_what_one_deletes_the_other_has_no_more(tmp_path: Path) -> None:
    async with opened(tmp_path / "d") as one, opened(tmp_path / "d") as two:
        place = await topic_of(one)
        other = (await one.manager.create_topic(OTHER)).place
        old, neighbour = await one.broker.open(place, FRAMING, epoch=1), await one.broker.open(other, FRAMING, epoch=1)
        await send(old, b"a")
        await send(neighbour, b"x")
        await two.broker.delete([place], epoch=1)
        await two.manager.delete_topics([TOPIC])
        with pytest.raises(FencedError):
            await old.send([message(1, b"late")])
        with pytest.raises(UnknownTopicError):
            await one.broker.open(place, FRAMING, epoch=2)
        again = (await two.manager.create_topic(TOPIC)).place
        assert await content(await one.broker.open(again, FRAMING, epoch=1)) == []
        assert await content(neighbour) == [b"x"]


async def test_changes_are_told_soon(tmp_path: Path) -> None:
    async with opened(tmp_path / "d") as one, opened(tmp_path / "d") as two:
        token = (await one.manager.changes(["k/"])).token
        took = []
        for number in range(20):
            async with anyio.create_task_group() as tasks:
                began = time.monotonic()

                async def wait(since: str = token) -> None:
                    nonlocal token
                    page = await one.manager.changes(["k/"], since, wait=10)
                    assert [change.key for change in page.changes] == ["k/a"]
                    token = page.token

                tasks.start_soon(wait)
                await two.manager.commit({"k/a": b"%d" % number})
            took.append(time.monotonic() - began)
        assert sorted(took)[len(took) // 2] < 0.1


async def test_what_begins_to_be_followed_elsewhere_is_recorded(tmp_path: Path) -> None:
    async with opened(tmp_path / "d") as one, opened(tmp_path / "d") as two:
        await one.manager.commit({"k/a": b"1"})  # nobody follows it
        token = (await two.manager.changes(["k/"])).token
        await one.manager.commit({"k/a": b"2"})
        page = await two.manager.changes(["k/"], token, wait=10)
        assert [change.value for change in page.changes] == [b"2"]


async def test_leases_are_held_between_them(tmp_path: Path) -> None:
    async with opened(tmp_path / "d") as one, opened(tmp_path / "d") as two:
        lease = await one.manager.acquire("l", "one", 60)
        with pytest.raises(LeaseHeldError) as held:
            await two.manager.acquire("l", "two", 60)
        assert held.value.process == os.getpid()
        [seen] = await two.manager.leases("l")
        assert (await two.manager.acquire("l", "two", 60, over=seen)).epoch > lease.epoch
        with pytest.raises(FencedError):
            await one.manager.renew(lease)


_KILLED = """
import os, signal, sys
import anyio
from kclient.htp.embedded import open_embedded
from tests.unit.htp.plain_messages import FRAMING, TOPIC, message

async def main():
    async with open_embedded(sys.argv[1], together=True) as store:
        await store.manager.acquire("l", "killed", 3600)
        info = await store.manager.describe_topic(TOPIC)
        topic = await store.broker.open(info.place, FRAMING, epoch=1)
        await (await topic.send([message(0, b"a")])).synced()
        print("ready", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.slow
async def test_what_a_process_had_that_was_killed_is_free_at_once(tmp_path: Path) -> None:
    path = tmp_path / "d"
    async with opened(path) as store:
        place = await topic_of(store)
        command = [sys.executable, "-c", _KILLED, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert await anyio.to_thread.run_sync(child.stdout.readline) == "ready\n"
            [lease] = await store.manager.leases("l")
            assert lease.held
            with pytest.raises(LeaseHeldError):
                await store.manager.acquire("l", "two", 60)
            child.send_signal(signal.SIGKILL)
            child.wait()
        [lease] = await store.manager.leases("l")
        assert not lease.held
        assert (await store.manager.acquire("l", "two", 60)).epoch > lease.epoch
        assert await content(await store.broker.open(place, FRAMING, epoch=2)) == [b"a"]


@pytest.mark.slow
async def test_the_last_one_leaves_nothing_that_stands_in_the_way(tmp_path: Path) -> None:
    """All were killed: whoever comes next has the leases, and the files of all topics."""
    path = tmp_path / "d"
    async with opened(path) as store:
        place = await topic_of(store)
    command = [sys.executable, "-c", _KILLED, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert await anyio.to_thread.run_sync(child.stdout.readline) == "ready\n"
        child.send_signal(signal.SIGKILL)
    async with opened(path) as store:
        assert not any(lease.held for lease in await store.manager.leases(""))
        assert await content(await store.broker.open(place, FRAMING, epoch=2)) == [b"a"]
    assert sorted(each.name for each in (path / "brk-0").iterdir()) == ["lock", "store.json", "topics"]
    async with open_store(f"embedded:{path}") as alone:  # as alone as ever
        assert CAP_EXCLUSIVE in alone.broker.capabilities


async def test_the_first_one_clears_up_what_those_have_left_that_were_killed(tmp_path: Path) -> None:
    """Also where somebody has removed the files of processes, as their sockets are nobody's then."""
    async with opened(tmp_path / "d"):
        pass
    shard = tmp_path / "d" / "brk-0"
    before = set(shard.iterdir())
    for name in ("process-7", "process-8.tmp", "bell-7.sock", "ends-7.sock", "bell-9.sock", "ends-9.sock"):
        (shard / name).touch()
    async with opened(tmp_path / "d"), opened(tmp_path / "d"):
        kept = {path.name for path in shard.iterdir()}
        assert len(kept) == len(before) + 2 * 3
    assert set(shard.iterdir()) == before


async def test_who_wants_it_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d"
    async with opened(path):
        async with opened(path):
            pass
        for _ in range(2):
            with pytest.raises(LockedError, match=rf"is in use by this process \({os.getpid()}\)"):
                await open_store(f"embedded:{path}").__aenter__()
            with pytest.raises(LockedError, match="stop it there, or look at a backup"), locks_shared(str(path)):
                pass
    async with open_store(f"embedded:{path}"):
        with pytest.raises(LockedError):
            await open_embedded(str(path), together=True).__aenter__()
    with locks_shared(str(path)), pytest.raises(LockedError, match="is being looked at by another process"):
        await open_embedded(str(path), together=True).__aenter__()


async def test_all_have_it_with_as_many_brokers(tmp_path: Path) -> None:
    path = tmp_path / "d"
    async with opened(path, brokers=2):
        async with opened(path) as two:
            assert await two.manager.brokers() == ["brk-0", "brk-1"]
        with pytest.raises(ConfigError, match="is open in another process with 2 brokers"):
            await open_embedded(str(path), together=True, brokers=3).__aenter__()
    async with opened(path, brokers=3) as store:
        assert len(await store.manager.brokers()) == 3


@pytest.mark.parametrize(
    ("option", "there", "here", "told"),
    [
        ("durability", "synced", "written", r"durability='synced': give the same, not 'written'"),
        ("min_free_bytes", None, 1 << 20, r"min_free_bytes \(log\.dir\.min\.free\.bytes .*\)=0: .* not 1048576"),
    ],
)
async def test_who_gives_other_options_is_refused(
    tmp_path: Path, option: str, there: object, here: object, told: str
) -> None:
    path = tmp_path / "d"
    async with opened(path, **{option: there}):
        with pytest.raises(ConfigError, match=rf"is open in this process \({os.getpid()}\) with {told}"):
            await open_embedded(str(path), together=True, **{option: here}).__aenter__()
        async with opened(path, **{option: there}):
            pass
    async with opened(path, **{option: here}):
        pass


async def test_of_two_at_once_with_different_options_one_stays(tmp_path: Path) -> None:
    """Also beside a third one that is just leaving."""
    path = tmp_path / "d"
    stayed, refused = [], []
    both = anyio.Event()

    async def run(durability: str) -> None:
        try:
            async with opened(path, durability=durability):
                stayed.append(durability)
                await both.wait()
        except ConfigError:
            refused.append(durability)
        if refused:
            both.set()

    async with anyio.create_task_group() as tasks:
        for durability in ("synced", "written"):
            tasks.start_soon(run, durability)
    assert len(stayed) == len(refused) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the file alone tells")
async def test_who_has_lost_its_file_is_there_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "d"
    async with open_embedded(str(path), together=True) as one, open_embedded(str(path), together=True) as two:
        place = await topic_of(one)
        topic = await one.broker.open(place, FRAMING, epoch=1)
        await send(topic, b"a")
        await one.manager.acquire("l", "one", 3600)
        for file in (path / "brk-0").glob("process-*"):
            file.unlink()
        with pytest.raises(LeaseHeldError):
            await two.manager.acquire("l", "two", 3600)
        with pytest.raises(LockedError, match="in use by another process"), locks_shared(str(path)):
            pass
        async with anyio.create_task_group() as tasks:
            newer: list[OpenTopic] = []

            async def take() -> None:
                newer.append(await two.broker.open(place, FRAMING, epoch=2))

            tasks.start_soon(take)
            while not await one.manager.wanted():  # it is asked for the topic, which it has still
                pass
            assert not newer
            await send(topic, b"b")
            tasks.start_soon(one.lend)
            while not newer:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert await content(newer[0]) == [b"a", b"b"]
        assert len(list((path / "brk-0").glob("process-*"))) == 1  # made anew by the one that lends


@pytest.mark.slow
async def test_many_open_and_close_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "d"

    async def run(number: int) -> None:
        for turn in range(4):
            async with opened(path) as store:
                await store.manager.commit({f"k/{number}/{turn}": b"1"})

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(run, number)
    async with opened(path) as store:
        assert len(await store.manager.scan("k/", limit=100)) == 16


async def test_a_backup_has_what_all_have_appended(tmp_path: Path) -> None:
    path = tmp_path / "d"
    async with opened(path) as one, opened(path) as two:
        places = [await topic_of(one), (await one.manager.create_topic(OTHER)).place]
        for store, place in zip((one, two), places, strict=True):
            await send(await store.broker.open(place, FRAMING, epoch=1), b"a", b"b")
        report = await anyio.to_thread.run_sync(lambda: back_up(str(path), str(tmp_path / "backup")))
        assert (report.in_use, report.exact, report.lost) == (True, False, [])
        assert report.topics == 2
    shutil.rmtree(path)
