"""One gateway serves a store at a time that is not shared, whatever its number, and leader epochs only grow."""

from __future__ import annotations

import contextlib
import errno
import signal
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kclient.errors import ClosedError, ErrorCode
from kclient.gateway import Gateway, ownership
from kclient.gateway.ownership import take_store
from kclient.gateway.rows import numbers
from kclient.gateway.rows.keys import LEADER_EPOCH, LEASE
from kclient.htp import LeaseHeldError
from kclient.htp.embedded.files import Files
from kclient.htp.errors import StorageFullError
from kclient.htp.port import Lease, Manager
from kclient.protocol.framing import decode_response
from kclient.protocol.messages import ProduceResponse
from tests.gateway_wire import batch_of, connect, names, produce_request, running
from tests.slow_store import Gates
from tests.unshared_store import unshared_store

pytestmark = pytest.mark.anyio


def numbered(number: int) -> dict[str, Any]:
    return {"config": {"node.id": number}}


@pytest.mark.slow
async def test_everything_is_served_under_another_number(url: str) -> None:
    epochs = []
    for life, number in enumerate((5, 5, 5, 2, 9, 2)):
        async with running(url, **numbered(number)) as (gateway, wire):
            if life == 0:
                await wire.create("t")
            assert (await wire.produce("t", batch_of(b"%d" % life))).base_offset == life
            assert await wire.values("t") == [b"%d" % each for each in range(life + 1)]
            topic = (await wire.metadata("t")).topics[0]
            assert topic.partitions[0].leader_id == number
            epochs.append(topic.partitions[0].leader_epoch)
            assert epochs[-1] == gateway.parts.identity.leader_epoch
    assert epochs == sorted(set(epochs))


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewed so often that a second gateway need not wait long; not lost on a busy machine."""
    monkeypatch.setattr(ownership, "LEASE_S", 3.0)


@pytest.mark.usefixtures("short_leases")
async def test_a_second_gateway_of_another_number_is_refused(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """As soon as the first has shown that it lives."""
    async with unshared_store(url) as store:
        async with Gateway(store, listen=None, **numbered(5)) as first:
            wire = connect(first)
            await wire.create("t")
            second = Gateway(store, listen=None, **numbered(2))
            with pytest.raises(LeaseHeldError, match=r"node\.id=5 serves this store: stop it first") as info:
                await second.start()
            assert info.value.holder == "node-5"
            assert "so it has not crashed" in str(info.value)
            assert "(node.id=2) has it if that one does not renew its lease within 3 s" in caplog.text
            assert (await wire.produce("t", batch_of(b"a"))).base_offset == 0
            assert first.failure is None
            await wire.aclose()
        async with Gateway(store, listen=None, **numbered(2)) as third:
            wire = connect(third)
            assert await wire.values("t") == [b"a"]
            await wire.aclose()


async def test_when_the_first_has_crashed_its_lease_has_to_end(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with unshared_store(url) as store:
        asked = time.monotonic()
        lease = await store.manager.acquire("kafka/gateway", "node-5", 0.5)
        async with Gateway(store, listen=None, **numbered(2)) as gateway:
            assert time.monotonic() > asked + 0.5
            assert gateway.parts.identity.leader_epoch > lease.epoch
        assert "node.id=5 serves this store, or has crashed" in caplog.text
        await store.manager.acquire("kafka/gateway", "node-5", 3600)
        with anyio.fail_after(60):
            async with Gateway(store, listen=None, **numbered(5)):
                pass


@pytest.mark.usefixtures("short_leases")
async def test_one_that_waits_has_the_store_when_the_first_closes(url: str) -> None:
    """And has not served anything before."""
    async with unshared_store(url) as store, anyio.create_task_group() as group:
        gates = Gates(store)
        looking = gates.hold("leases", 2)  # the first look is for the epochs of the first versions
        first = Gateway(store, listen=None, **numbered(5))
        await first.start()
        second = Gateway(gates.store, listen=None, **numbered(2))  # type: ignore[arg-type]
        group.start_soon(second.start)
        with anyio.fail_after(20):
            await looking.reached.wait()
            with pytest.raises(ClosedError):
                await second.listen("127.0.0.1:0")
            await first.close()
            looking.open()
            while second._server is None:
                await anyio.lowlevel.checkpoint()
        wire = connect(second)
        await wire.create("t")
        assert (await wire.produce("t", batch_of(b"a"))).base_offset == 0
        await wire.aclose()
        await second.close()


async def test_what_the_first_has_given_while_another_waits_is_exceeded(url: str) -> None:
    """Leader epochs, told in a row of their own: the second has read it before it waits."""
    async with unshared_store(url) as store, anyio.create_task_group() as group:
        first = await store.manager.acquire(LEASE, "node-5", 60)
        gates = Gates(store)
        looking = gates.hold("leases", 2)  # the first look is for the epochs of the first versions
        taken: list[Lease] = []

        async def take() -> None:
            taken.append(await take_store(gates.store.manager, 2, 60))

        group.start_soon(take)
        with anyio.fail_after(20):
            await looking.reached.wait()
            await store.manager.commit({LEADER_EPOCH: numbers.LEADER_EPOCH.encode(40)}, lease=first)
            await store.manager.release(first)
            looking.open()
            while not taken:
                await anyio.lowlevel.checkpoint()
        assert taken[0].epoch == 41
        row = (await store.manager.get([LEADER_EPOCH]))[LEADER_EPOCH]
        assert numbers.LEADER_EPOCH.decode(row.value) == 41
        assert (await store.manager.renew(taken[0])).epoch == 41


async def test_one_that_gives_up_waiting_takes_nothing(url: str) -> None:
    async with unshared_store(url) as store:
        lease = await store.manager.acquire("kafka/gateway", "node-5", 3600)
        for number in (2, 3):
            with anyio.move_on_after(0.1) as scope:
                await Gateway(store, listen=None, **numbered(number)).start()
            assert scope.cancelled_caught
        assert (await store.manager.renew(lease)).epoch == lease.epoch


@pytest.mark.slow
async def test_after_a_kill_any_number_has_an_embedded_store_at_once(tmp_path: Path) -> None:
    """Nobody else can have its directory, so nobody can hold its lease."""
    code = (
        "import anyio, os, signal, sys\n"
        "from kclient.gateway import Gateway\n"
        "async def main():\n"
        "    async with Gateway(sys.argv[1], listen=None, config={'node.id': 5}):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "anyio.run(main)\n"
    )
    url = f"embedded:{tmp_path / 'data'}"
    done = await anyio.run_process([sys.executable, "-c", code, url], check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    async with unshared_store(url) as store:
        [left] = await store.manager.leases("kafka/node/")
        assert (left.name, left.held) == ("kafka/node/5", False)
    began = time.monotonic()
    async with running(url, **numbered(2)) as (gateway, _):
        assert gateway.parts.identity.leader_epoch > left.epoch
        assert time.monotonic() - began < 15, "half of what a lease lasts"


async def take_for_a_minute(manager: Manager, node_id: int, _ttl: float, *, fenced: bool) -> Lease:
    return await take_store(manager, node_id, 60, fenced=fenced)


async def test_a_second_one_of_the_same_number_takes_over(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a crash, when the first one is still there in another process: it is fenced, and stops."""
    monkeypatch.setattr(ownership, "take_store", take_for_a_minute)
    monkeypatch.setattr(ownership, "LEASE_S", 0.3)  # renewed so often, and not lost on a busy machine
    async with unshared_store(url) as store, Gateway(store, listen=None, **numbered(5)) as first:
        wire = connect(first)
        await wire.create("t")
        await wire.produce("t", batch_of(b"a"))
        async with Gateway(store, listen=None, **numbered(5)) as second:
            other = connect(second)
            assert await other.values("t") == [b"a"]
            request = produce_request("t", batch_of(b"by the first"))
            with contextlib.suppress(OSError):  # it may have noticed by itself, and hung up
                await wire.send(request, 9)
                if frame := await wire.frame():
                    row = decode_response(ProduceResponse, frame, 9)[1].responses[0].partition_responses[0]
                    assert row.error_code, "it was fenced when the second one opened the partition"
            assert (await other.produce("t", batch_of(b"b"))).base_offset == 1
            with pytest.raises(Exception, match="epoch"):
                await first.wait()
            assert await other.values("t") == [b"a", b"b"]
            await other.aclose()
        await wire.aclose()


async def test_a_second_one_of_its_number_on_a_store_in_memory_is_refused() -> None:
    """Nothing of such a store outlives a crash, so the first one is there."""
    url = f"memory:{next(names)}"
    async with Gateway(url, listen=None) as first:
        with pytest.raises(LeaseHeldError, match=r"node\.id=1 in this process serves memory:.*: close it, or"):
            await Gateway(url, listen=None).start()
        wire = connect(first)
        await wire.create("t")
        assert (await wire.produce("t", batch_of(b"a"))).base_offset == 0
        await wire.aclose()
    async with running(url) as (_, wire):
        assert await wire.values("t") == [b"a"]


async def test_one_that_has_failed_gives_its_store_in_memory_up() -> None:
    url = f"memory:{next(names)}"
    async with Gateway(url, listen=None) as first:
        first._supervisor.fail(OSError("in this test"))
        async with running(url) as (_, wire):
            await wire.create("t")
            assert (await wire.produce("t", batch_of(b"a"))).base_offset == 0


async def test_the_lease_is_kept_while_a_gateway_starts(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large store, or a slow one, may take longer to read than the lease lasts: then it would be another's."""
    monkeypatch.setattr(ownership, "LEASE_S", 0.5)
    async with unshared_store(url) as store:
        gates = Gates(store)
        slow: Any = gates.store
        reading = gates.hold("scan")
        renewed = gates.hold("renew", 5)
        renewed.open()
        async with anyio.create_task_group() as group:

            async def start_and_serve() -> None:
                async with Gateway(slow, listen=None, **numbered(5)) as gateway:
                    wire = connect(gateway)
                    await wire.create("t")
                    assert (await wire.produce("t", batch_of(b"a"))).base_offset == 0
                    await wire.aclose()

            group.start_soon(start_and_serve)
            with anyio.fail_after(10):
                await reading.reached.wait()
                await renewed.reached.wait()
            with anyio.fail_after(10), pytest.raises(LeaseHeldError):
                await take_store(store.manager, 2, 30.0)
            reading.open()


async def test_one_that_was_followed_removes_nothing_of_its_successors(url: str) -> None:
    """A creation that it was refused leaves something to be removed: not what the successor makes under that name."""
    async with unshared_store(url) as store, Gateway(store, listen=None) as first:
        gates = Gates(store)
        slow: Any = gates.store
        async with Gateway(slow, listen=None) as second, anyio.create_task_group() as group:
            old, new, waiting = connect(first), connect(second), connect(second)
            assert (await old.create("t")).error_code == ErrorCode.NOT_CONTROLLER
            recording = gates.hold("commit", 2)
            group.start_soon(waiting.create, "t")
            with anyio.fail_after(10):
                await recording.reached.wait()
            assert (await old.create("t")).error_code == ErrorCode.NOT_CONTROLLER
            recording.open()
            with anyio.fail_after(10):
                while second.parts.topics.get("t") is None:
                    await anyio.lowlevel.checkpoint()
            assert (await new.produce("t", batch_of(b"a"))).base_offset == 0
            assert await new.values("t") == [b"a"]
            for wire in (old, new, waiting):
                await wire.aclose()


async def test_a_full_disk_is_told_once_until_something_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Producers try again ten times a second."""

    def full(*_args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with running(f"embedded:{tmp_path / 'data'}") as (_, wire):
        await wire.create("t")
        for length in (0, 1):
            caplog.clear()
            with monkeypatch.context() as patch:
                patch.setattr(Files, "write", full)
                for _ in range(3):
                    assert (await wire.produce("t", batch_of(b"a"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert caplog.text.count("t-0: no space left, appends are refused until there is") == 1
            assert (await wire.produce("t", batch_of(b"a"))).base_offset == length


async def test_reading_goes_on_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease cannot be renewed, and nobody else can have it: the directory is locked."""
    from kclient.htp.embedded.manager import SqliteManager

    renewals = 0

    async def full(*_args: Any, **_options: Any) -> None:
        nonlocal renewals
        renewals += 1
        raise StorageFullError("database or disk is full")

    monkeypatch.setattr(ownership, "LEASE_S", 0.3)
    async with running(f"embedded:{tmp_path / 'data'}") as (gateway, wire):
        await wire.create("t")
        await wire.produce("t", batch_of(b"a"))
        ends = gateway.parts.lease.current.expires
        with monkeypatch.context() as patch:
            patch.setattr(SqliteManager, "renew", full)
            patch.setattr(SqliteManager, "commit", full)
            with anyio.fail_after(30):
                while not (renewals > 3 and gateway.parts.clock.now() > ends + 0.3):
                    await anyio.sleep(0.05)
            assert await wire.values("t") == [b"a"]
            assert await wire.commit("g", "t", 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert await wire.delete("t") == ErrorCode.KAFKA_STORAGE_ERROR
        assert await wire.commit("g", "t", 1) == 0
        assert (await wire.produce("t", batch_of(b"b"))).base_offset == 1
