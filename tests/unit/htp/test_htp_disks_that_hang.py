"""The disk of one broker hangs: the others go on, and the event loop is nobody's."""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import pytest

from kclient.htp import Broker, Manager, Place, Topic, open_store
from kclient.htp.embedded import liveness
from kclient.htp.port import OpenTopic
from tests.unit.htp.disks import HangingFiles
from tests.unit.htp.plain_messages import FRAMING, message

pytestmark = pytest.mark.anyio

_PATIENCE_S = 0.05


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "PATIENCE_S", _PATIENCE_S)


async def topics(manager: Manager, broker: Broker, name: str = "t") -> list[OpenTopic]:
    """One at each broker."""
    places = await bound(manager, name)
    return [await broker.open(place, FRAMING, epoch=1) for place in places]


async def bound(manager: Manager, name: str) -> list[Place]:
    first, *others = await manager.brokers()
    await manager.create_topic(Topic("d", name), broker=first)
    for other in others:
        await manager.bind(Topic("d", name), other)
    return list((await manager.describe_topic(Topic("d", name))).places)


async def append(topic: OpenTopic, number: int) -> None:
    await (await topic.send([message(number, b"%d" % number)])).synced()


@pytest.mark.parametrize("brokers", [1, 2])
async def test_amid_a_sync(tmp_path: Path, brokers: int) -> None:
    """The loop goes on, also where there is no other broker."""
    files = HangingFiles(f"brk-{brokers - 1}")
    async with open_store(f"embedded:{tmp_path}/data?brokers={brokers}", files=files, group_sync="each") as store:
        await store.manager.create_domain("d")
        healthy, *_, hanging = [
            *await topics(store.manager, store.broker),
            *await topics(store.manager, store.broker, "u"),
        ]
        await append(hanging, 0)
        try:
            files.hang(syncs_only=True)
            sent = await hanging.send([message(1, b"1")])
            await anyio.to_thread.run_sync(files.reached.wait)
            await anyio.sleep(2 * _PATIENCE_S)
            files.hang()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(append, hanging, 2)
                await anyio.wait_all_tasks_blocked()
                if brokers > 1:
                    with anyio.fail_after(20):
                        for number in range(10):
                            await append(healthy, number)
                files.go_on()
                await sent.synced()
        finally:
            files.go_on()
        assert (await hanging.status()).end == 3


async def test_after_a_while_of_silence(tmp_path: Path) -> None:
    """Nothing is on its way: so a thread asks it first."""
    files = HangingFiles("brk-1")
    async with open_store(f"embedded:{tmp_path}/data?brokers=2", files=files, group_sync="each") as store:
        await store.manager.create_domain("d")
        healthy, hanging = await topics(store.manager, store.broker)
        await append(hanging, 0)
        await anyio.sleep(2 * _PATIENCE_S)
        files.hang()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(append, hanging, 1)
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(hanging.trim, 1)
                with anyio.fail_after(20):
                    for number in range(10):
                        await append(healthy, number)
                files.go_on()
        finally:
            files.go_on()
        assert (await hanging.status()).end == 2


async def test_whoever_waits_hears_of_the_end(tmp_path: Path) -> None:
    files = HangingFiles("brk-1")
    failures: list[BaseException] = []

    async def fail(topic: OpenTopic) -> None:
        try:
            await append(topic, 1)
        except Exception as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        try:
            async with open_store(f"embedded:{tmp_path}/data?brokers=2", files=files, group_sync="each") as store:
                await store.manager.create_domain("d")
                _, hanging = await topics(store.manager, store.broker)
                await append(hanging, 0)
                await anyio.sleep(2 * _PATIENCE_S)
                files.hang()
                tasks.start_soon(fail, hanging)
                await anyio.to_thread.run_sync(files.reached.wait)
                files.hang(syncs_only=True)
                threading.Timer(0.2, files.go_on).start()
        finally:
            files.go_on()
    assert len(failures) == 1
    assert "was closed" in str(failures[0])


async def test_files_are_left_to_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait for their sync stay open, however long it takes."""
    monkeypatch.setattr(liveness, "PATIENCE_S", 60.0)
    files = HangingFiles("brk-1")
    options = {"files": files, "group_sync": "each", "max_open_files": 8}
    async with open_store(f"embedded:{tmp_path}/data?brokers=2", **options) as store:
        await store.manager.create_domain("d")
        pairs = [await topics(store.manager, store.broker, f"t{number}") for number in range(8)]
        sent = []
        try:
            files.hang(syncs_only=True)
            for _, hanging in pairs:
                sent.append(hanging.send_nowait([message(0, b"0")]))  # type: ignore[attr-defined]
            with anyio.fail_after(20):
                for number in range(2):
                    for healthy, _ in pairs:
                        await append(healthy, number)
        finally:
            files.go_on()
        assert sent[0] is not None
        assert sent[-1] is None, "not as many are open as may be"
        await sent[0].synced()


@pytest.mark.parametrize("search", [False, True])
async def test_a_reader_of_a_closed_file(tmp_path: Path, search: bool) -> None:
    """Opening it takes the disk, too."""
    files = HangingFiles("brk-1")
    options = {"files": files, "group_sync": "each", "max_open_files": 2}
    read: list[object] = []

    async def pull(topic: OpenTopic) -> None:
        read.append(await topic.find_by_timestamp(-1) if search else await topic.pull(0))

    async with open_store(f"embedded:{tmp_path}/data?brokers=2", **options) as store:
        await store.manager.create_domain("d")
        healthy, hanging = await topics(store.manager, store.broker)
        await append(hanging, 0)
        await append((await topics(store.manager, store.broker, "u"))[1], 0)  # in its place
        await anyio.sleep(2 * _PATIENCE_S)
        files.hang()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pull, hanging)
                await anyio.to_thread.run_sync(files.reached.wait)
                with anyio.fail_after(20):
                    for number in range(10):
                        await append(healthy, number)
                assert not read
                files.go_on()
        finally:
            files.go_on()
        assert len(read) == 1
        assert read[0] is not None


async def test_a_deletion_goes_on_at_the_others(tmp_path: Path) -> None:
    files = HangingFiles("brk-0")
    async with open_store(f"embedded:{tmp_path}/data?brokers=2", files=files) as store:
        await store.manager.create_domain("d")
        places = [topic.place for topic in await topics(store.manager, store.broker)]
        files.hang()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_delete, store.broker, places)
                with anyio.fail_after(20):
                    while list((tmp_path / "data" / "brk-1" / "topics").iterdir()):
                        await anyio.sleep(0.01)
                assert len(list((tmp_path / "data" / "brk-0" / "topics").iterdir())) == 1
                files.go_on()
        finally:
            files.go_on()
        assert not list((tmp_path / "data" / "brk-0" / "topics").glob("*.0"))


async def _delete(broker: Broker, places: list[Place]) -> None:
    await broker.delete(places, epoch=1)
