"""Addresses `memory:` and `embedded:`: one gateway for all in the process that name it, and for other processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import anyio
import pytest

import kclient
import kclient.sync
from kclient.errors import BrokerConnectionError, ConfigError, KafkaError
from kclient.gateway import Gateway
from kclient.gateway.local import LONGEST_PATH, find_local, find_sockets, local_address
from kclient.htp import open_store
from kclient.htp.errors import StorageError
from kclient.inprocess import close_all, connect, hosts, reset
from kclient.net.address import Address, parse_address
from kclient.net.settings import ConnectionSettings
from kclient.net.streams import ByteStream, MemoryStream, SocketStream


@pytest.fixture
def memory() -> Iterator[str]:
    name = f"inprocess-{uuid.uuid4().hex}"
    yield f"memory:{name}"
    reset(name)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[str]:
    yield f"embedded:{tmp_path / 'data'}"
    close_all()


async def open_stream(address: str, **settings: int) -> ByteStream:
    return await connect(parse_address(address), ConnectionSettings(**settings))


async def wait_until_gone(address: str) -> None:
    with anyio.fail_after(20):
        while find_local(parse_address(address)) is not None:
            await anyio.sleep(0.02)


def produce_blocking(address: str, value: bytes) -> int:
    with kclient.sync.Producer(bootstrap_servers=address) as producer:
        return producer.send("t", value).result().offset


async def produce(address: str, value: bytes) -> int:
    async with kclient.Producer(bootstrap_servers=address) as producer:
        return (await (await producer.send("t", value))).offset


# ---- one store for all --------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("scheme", ["memory", "embedded"])
async def test_all_loops_and_threads_share_one_gateway(scheme: str, request: pytest.FixtureRequest) -> None:
    address: str = request.getfixturevalue(scheme)
    offsets = [await produce(address, b"async")]
    offsets.append(await anyio.to_thread.run_sync(produce_blocking, address, b"blocking"))
    offsets.append(await anyio.to_thread.run_sync(lambda: anyio.run(produce, address, b"x", backend="asyncio")))
    offsets.append(await anyio.to_thread.run_sync(lambda: anyio.run(produce, address, b"x", backend="trio")))
    assert offsets == [0, 1, 2, 3]


@pytest.mark.anyio
async def test_many_clients_at_once_start_one_gateway(memory: str) -> None:
    streams: list[ByteStream] = []

    async def open_one() -> None:
        streams.append(await open_stream(memory))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(open_one)
    local = find_local(parse_address(memory))
    assert local is not None
    assert local._gateway.connections == 10
    for stream in streams:
        await stream.aclose()


@pytest.mark.anyio
async def test_memory_outlives_its_gateway_until_it_is_reset(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "LINGER_S", 0.0)
    assert await produce(memory, b"1") == 0
    await wait_until_gone(memory)
    assert await produce(memory, b"2") == 1
    await anyio.to_thread.run_sync(reset, memory.removeprefix("memory:"))
    assert await produce(memory, b"3") == 0


@pytest.mark.slow
@pytest.mark.anyio
async def test_embedded_is_closed_when_the_last_client_has_gone(embedded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "LINGER_S", 0.1)
    kept: list[bool] = []
    unwanted = hosts.Host._unwanted

    async def counted(host: hosts.Host, gateway: Gateway) -> bool:
        kept.append(answer := await unwanted(host, gateway))
        return answer

    monkeypatch.setattr(hosts.Host, "_unwanted", counted)
    first = await open_stream(embedded)
    second = await open_stream(embedded)
    await first.aclose()
    seen = len(kept)
    with anyio.fail_after(20):
        while len(kept) < seen + 4:  # the host looked whether anybody is there, for longer than it lingers
            await anyio.sleep(0.02)
    assert not any(kept)
    assert find_local(parse_address(embedded)) is not None
    assert find_sockets(parse_address(embedded))
    await second.aclose()
    await wait_until_gone(embedded)
    with anyio.fail_after(20):
        while hosts.host_of(parse_address(embedded)) is not None:
            await anyio.sleep(0.02)
    assert not find_sockets(parse_address(embedded))
    assert await produce(embedded, b"again") == 0


@pytest.mark.anyio
async def test_spellings_of_one_directory(embedded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for number, address in enumerate((embedded, "embedded:data", "embedded:./link/", f"{embedded}/../data")):
        assert await produce(address, b"x") == number


def test_local_addresses() -> None:
    assert local_address("memory:a") == Address("a", 0, "memory")
    assert local_address("embedded:/tmp") == Address(os.path.realpath("/tmp"), 0, "embedded")
    assert local_address("cloud:x") is None
    assert local_address("memory:a?brokers=3") == Address("a", 0, "memory")
    assert local_address("memory:a?b") == Address("a?b", 0, "memory")
    assert local_address("embedded:/tmp?brokers=3") == local_address("embedded:/tmp")


# ---- gateways that the user runs ------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_gateway_of_the_user_is_found(memory: str) -> None:
    async with Gateway(memory, listen=None) as gateway:
        stream = await open_stream(memory)
        assert isinstance(stream, MemoryStream)  # the same loop
        assert gateway.connections == 1
        await stream.aclose()
        assert await produce(memory, b"x") == 0
        assert await anyio.to_thread.run_sync(produce_blocking, memory, b"y") == 1  # another loop
        assert hosts.host_of(parse_address(memory)) is None
    assert find_local(parse_address(memory)) is None


@pytest.mark.anyio
async def test_how_many_brokers_there_are_is_the_gateways_affair(memory: str) -> None:
    async with Gateway(f"{memory}?brokers=3", listen=None, mapping="broker") as gateway:
        assert await produce(memory, b"x") == 0
        assert await gateway.parts.manager.brokers() == ["brk-0", "brk-1", "brk-2"]
        with pytest.raises(ConfigError, match=f"clients connect to {memory}$"):
            await open_stream(f"{memory}?brokers=3")


@pytest.mark.anyio
async def test_other_loops_get_a_socket_pair(memory: str) -> None:
    stream = await open_stream(memory)  # the portal's loop is another one
    assert isinstance(stream, SocketStream)
    assert stream.socket.family == socket.AF_UNIX
    await stream.aclose()


class GatewayThread:
    """A gateway of the user in an event loop of another thread."""

    def __init__(self, address: str) -> None:
        self.started = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=anyio.run, args=(self._run, address))

    async def _run(self, address: str) -> None:
        async with Gateway(address, listen=None):
            self.started.set()
            await anyio.to_thread.run_sync(self._stop.wait)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self.started.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()


def test_a_client_outlives_its_gateway(memory: str) -> None:
    """When the user's gateway closes, its clients go on with one of their own over the same store."""
    with GatewayThread(memory):
        producer = kclient.sync.Producer(bootstrap_servers=memory)
        assert producer.send("t", b"1").result().offset == 0
        assert hosts.host_of(parse_address(memory)) is None
    with producer:
        assert producer.send("t", b"2").result(timeout=30).offset == 1


@pytest.mark.anyio
@pytest.mark.parametrize("where", ["its loop", "a thread"])
@pytest.mark.parametrize("what", ["the name", "all names"])
async def test_a_gateway_whose_store_is_reset_fails_and_blocks_nobody(where: str, what: str, memory: str) -> None:
    name = memory.removeprefix("memory:") if what == "the name" else None
    gateway = Gateway(memory, "127.0.0.1:0")
    await gateway.start()
    assert await produce(memory, b"x") == 0
    if where == "its loop":
        reset(name)
        assert gateway.failure is not None
    else:
        await anyio.to_thread.run_sync(reset, name)
    async with Gateway(memory, listen=None) as second:  # at once
        assert not list(second.parts.topics)
        assert await produce(memory, b"y") == 0
        with anyio.fail_after(20), pytest.raises(StorageError, match="was reset"):
            await gateway.wait()
        await gateway.close()
        await gateway.close()
        assert await produce(memory, b"y") == 1
    await gateway.close()
    assert await produce(memory, b"z") == 2


@pytest.mark.anyio
async def test_a_store_that_is_reset_fails_once() -> None:
    name = f"inprocess-{uuid.uuid4().hex}"
    told: list[BaseException] = []
    async with open_store(f"memory:{name}") as store, open_store(f"memory:{name}-other") as other:
        store.on_failure(told.append)
        other.on_failure(told.append)
        reset(name)
        reset(name)
        assert [str(error) for error in told] == [f"memory:{name} was reset"]
        store.on_failure(told.append)
        assert len(told) == 2, "whoever comes later is told as well"
        await store.__aexit__(None, None, None)
        await store.__aenter__()
        store.on_failure(told.append)
        assert len(told) == 2, "it is open again, and empty"
        other.on_failure(told.append)()
        reset(f"{name}-other")
        assert len(told) == 3
        store.on_failure(told.append)
        assert len(told) == 3


# ---- what goes wrong ------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises((BrokerConnectionError, KafkaError, OSError)) as caught:
        await open_stream(f"embedded:{tmp_path / 'file'}")
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(KafkaError, match="is not a data directory"):
        await open_stream(f"embedded:{tmp_path}")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.anyio
async def test_a_locked_directory_without_an_answer(embedded: str) -> None:
    """Somebody holds the lock and serves nobody: the error says who."""
    async with open_store(embedded):
        with pytest.raises(BrokerConnectionError) as caught:
            await open_stream(embedded, socket_connection_setup_timeout_ms=300)
    assert str(os.getpid()) in str(caught.value)
    assert await produce(embedded, b"x") == 0


@pytest.mark.anyio
async def test_cancelling_a_connect_leaves_the_gateway_to_the_others(memory: str) -> None:
    with anyio.move_on_after(0.001):
        stream = await open_stream(memory)
        await stream.aclose()  # this thread had to wait for that of the gateway, which was faster
    assert await produce(memory, b"x") == 0


# ---- Unix sockets ---------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("long", [False, True])
async def test_the_socket_in_the_directory(tmp_path: Path, long: bool) -> None:
    directory = tmp_path / ("d" * LONGEST_PATH if long else "d")
    address = parse_address(f"embedded:{directory}")
    assert not find_sockets(address)
    async with Gateway(str(address), listen=None):
        (path,) = find_sockets(address)
        assert path.stat().st_mode & 0o777 == 0o600
        assert (directory / f"{path.name}.path").exists() is long
        if long:
            assert path.parent.stat().st_mode & 0o777 == 0o700
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
    assert not path.exists()
    assert not find_sockets(address)
    assert sorted(each.name for each in directory.iterdir()) == ["brk-0", "format.json", "mgr"]


JOIN = """
import sys, kclient.sync
with kclient.sync.Producer(bootstrap_servers=sys.argv[1]) as producer:
    print(producer.send("t", b"child").result().offset)
"""


def run_child(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("long", [False, True])
def test_another_process_joins(tmp_path: Path, long: bool) -> None:
    address = f"embedded:{tmp_path / ('d' * LONGEST_PATH if long else 'd')}"
    with kclient.sync.Producer(bootstrap_servers=address) as producer:
        assert producer.send("t", b"parent").result().offset == 0
        assert run_child(JOIN, address) == "1\n"
        assert producer.send("t", b"parent").result().offset == 2
    close_all()


FORGETFUL = """
import sys, warnings, kclient.sync
warnings.simplefilter("ignore", ResourceWarning)  # it is told, and rightly so
producer = kclient.sync.Producer(bootstrap_servers=sys.argv[1])
print(producer.send("t", b"x").result().offset)
"""


@pytest.mark.slow
def test_a_process_that_closes_nothing_leaves_all_in_order(embedded: str) -> None:
    assert run_child(FORGETFUL, embedded) == "0\n"
    assert not find_sockets(parse_address(embedded))
    assert run_child(FORGETFUL, embedded) == "1\n"


OWNER = """
import sys, kclient.sync
producer = kclient.sync.Producer(bootstrap_servers=sys.argv[1])
print(producer.send("t", b"owner").result().offset, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_the_next_process_takes_over_when_the_owner_is_killed(embedded: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, embedded], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "0\n"
        with kclient.sync.Producer(bootstrap_servers=embedded) as producer:
            assert producer.send("t", b"joined").result().offset == 1
            assert hosts.host_of(parse_address(embedded)) is None
            owner.kill()
            owner.wait()
            assert producer.send("t", b"taken over").result(timeout=60).offset == 2
            assert hosts.host_of(parse_address(embedded)) is not None
    close_all()


@pytest.mark.slow
def test_a_forked_child_joins_and_does_not_keep_the_gateway_alive(embedded: str, memory: str) -> None:
    code = f"""
import os, sys, signal, kclient.sync
from kclient.errors import IllegalStateError
address, memory = {embedded!r}, {memory!r}
producer = kclient.sync.Producer(bootstrap_servers=address)
print(producer.send("t", b"x").result().offset, flush=True)
other = kclient.sync.Producer(bootstrap_servers=memory)
other.send("t", b"x").result()
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    with kclient.sync.Producer(bootstrap_servers=address) as joined:
        print(joined.send("t", b"y").result().offset, flush=True)
    try:
        with kclient.sync.Producer(bootstrap_servers=memory, max_block_ms=5000) as stale:
            stale.send("t", b"y").result()
    except Exception as error:
        print(type(error).__name__, "embedded:DIRECTORY" in str(error), flush=True)
    os.write(writer, b".")
    signal.pause()
os.read(reader, 1)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        lines = [parent.stdout.readline().strip() for _ in range(4)]
        assert lines[:2] == ["0", "1"]
        assert lines[2].endswith(" True")
        child = int(lines[3])
        parent.wait(timeout=20)
        try:
            # the child still runs, with what it inherited: it must neither hold the lock nor answer on the socket
            assert produce_blocking(embedded, b"z") == 2
        finally:
            os.kill(child, signal.SIGKILL)


IN_A_CHILD = """
import anyio, os, sys
import kclient, kclient.sync
from kclient.gateway import Gateway
from kclient.htp import Topic, open_store
from kclient.inprocess import close_all, reset

def produce(address):
    with kclient.sync.Producer(bootstrap_servers=address, max_block_ms=5000) as producer:
        return producer.send("t", b"x").result(10).offset

def serve():
    with kclient.sync.Gateway("memory:a", None):
        return "served"

async def open_it():
    async with open_store("memory:a"):
        return "opened"

async def in_a_loop():
    async with kclient.Producer(bootstrap_servers="memory:a", max_block_ms=5000) as producer:
        return (await (await producer.send("t", b"x"))).offset

def reset_it():
    reset("a")
    return produce("memory:a")

def child(function):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            print(f"{function.__name__}: {function()}", flush=True)
        except BaseException as error:
            print(f"{function.__name__}: {type(error).__name__} {'embedded:DIRECTORY' in str(error)}", flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("parent", ["serves", "has served", "is a client", "was a client", "holds it open"])
def test_memory_of_the_parent_cannot_be_used_after_a_fork(parent: str) -> None:
    """Whoever serves it there, and whether that goes on: the store lives until the parent ends."""
    code = {
        "serves": "gateway = kclient.sync.Gateway('memory:a', None); gateway.start(); produce('memory:a')",
        "has served": "with kclient.sync.Gateway('memory:a', None): produce('memory:a')",
        "is a client": "produce('memory:a')",
        "was a client": "produce('memory:a'); close_all()",
        "holds it open": """
store = open_store("memory:a")
kclient.sync.portal.get_portal().call(store.__aenter__)
def use():
    return anyio.run(store.manager.get, [])
child(use)
""",
    }[parent]
    uses = "produce_it", "serve", "open", "loop"
    code = f"""{IN_A_CHILD}
{code}
def produce_it(): return produce("memory:a")
def open(): return anyio.run(open_it)
def loop(): return anyio.run(in_a_loop)
def own(): return produce("memory:b")
for use in ({", ".join(uses)}, own, reset_it):
    child(use)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    refused = [f"{use}: IllegalStateError True" for use in (*(["use"] if parent == "holds it open" else []), *uses)]
    assert done.stdout.splitlines() == [*refused, "own: 0", "reset_it: 0"], done.stderr


def test_closing_all_from_any_thread(memory: str) -> None:
    assert produce_blocking(memory, b"x") == 0
    thread = threading.Thread(target=close_all)
    thread.start()
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert find_local(parse_address(memory)) is None
