"""`kclient gateway` as a process: its start-up line, its signals, its refusals."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import anyio
import pytest

from kclient.cli.gateway import _start
from kclient.cli.supervised import Tie
from kclient.gateway import Gateway, ownership
from kclient.htp import LeaseHeldError, open_store
from kclient.sync import Producer
from tests.gateway_process import GatewayProcess
from tests.gateway_wire import names
from tests.slow_store import Gates
from tests.unshared_store import unshared_store


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kclient", "gateway", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    process = GatewayProcess(tmp_path / "data")
    process.start()
    try:
        assert process.startup_line.count("\n") == 1
        assert process.bootstrap in process.startup_line
        assert str(tmp_path / "data") in process.startup_line
        with Producer(bootstrap_servers=process.bootstrap) as producer:
            assert producer.send("t", b"x", partition=0).result().offset == 0
        # the directory can be named as an address as well
        with Producer(bootstrap_servers=f"embedded:{tmp_path / 'data'}") as producer:
            assert producer.send("t", b"y", partition=0).result().offset == 1
        assert process.stop() == 0
        process.start()
        with Producer(bootstrap_servers=process.bootstrap) as producer:
            assert producer.send("t", b"z", partition=0).result().offset == 2
    finally:
        assert process.stop() == 0
    assert process.stderr == []


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signals(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "kclient", "gateway", "--data", str(tmp_path), "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        port = int(process.stdout.readline().split("127.0.0.1:")[1].split(",")[0])
        with socket.create_connection(("127.0.0.1", port)):  # a client that says nothing is no reason to stay
            started = time.monotonic()
            process.send_signal(sent)
            assert process.wait(timeout=30) == code
        assert time.monotonic() - started < 15
        assert process.stderr.read() == ""
        assert process.stdout.read() == ""


@pytest.mark.slow
def test_metrics(tmp_path: Path) -> None:
    process = GatewayProcess(tmp_path / "data", options=["--metrics", "127.0.0.1:0"])
    process.start()
    try:
        found = re.search(r"metrics at (http://127\.0\.0\.1:\d+/metrics)$", process.startup_line.strip())
        assert found is not None
        with urllib.request.urlopen(found.group(1), timeout=30) as response:
            assert b"kclient_gateway_disk_free_bytes " in response.read()
        address = found.group(1).removeprefix("http://").removesuffix("/metrics")
        second = command("--data", str(tmp_path / "other"), "--listen", "127.0.0.1:0", "--metrics", address)
        assert second.returncode == 1
        assert f"cannot listen on {address}: another process listens there" in second.stderr
        assert second.stderr.count("\n") == 1
    finally:
        assert process.stop() == 0
    assert process.stderr == []


@pytest.mark.slow
def test_a_second_gateway_on_the_same_directory_names_the_first(tmp_path: Path) -> None:
    process = GatewayProcess(tmp_path)
    process.start()
    try:
        second = command("--data", str(tmp_path), "--listen", "127.0.0.1:0")
        assert second.returncode == 1
        assert str(process.pid) in second.stderr
        assert second.stderr.count("\n") == 1
    finally:
        process.stop()


@pytest.mark.slow
def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = command("--data", str(tmp_path / "data"), "--listen", f"127.0.0.1:{port}")
    assert outcome.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: another process listens there; stop it" in outcome.stderr
    assert "Errno" not in outcome.stderr
    assert outcome.stderr.count("\n") == 1


@pytest.mark.slow
def test_an_address_that_is_not_this_machines(tmp_path: Path) -> None:
    outcome = command("--data", str(tmp_path / "data"), "--listen", "203.0.113.7:9092")
    assert outcome.returncode == 1
    assert outcome.stderr == (
        "kclient: cannot listen on 203.0.113.7:9092: this machine has no such address; "
        "0.0.0.0 stands for all that it has\n"
    )


@pytest.mark.slow
def test_the_line_at_the_start_tells_both_addresses(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "kclient", "gateway", "--data", str(tmp_path), "--listen", "127.0.0.1:0",
         "--advertise", "broker.example:1234"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        assert process.wait(timeout=30) == 0
    assert "(clients are told broker.example:1234)" in line
    assert ":0 " not in line
    assert "listens on 127.0.0.1:" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--durability", "maybe"], "'synced' or 'written'"),
        (["--mapping", "pile"], "mapping='multilevel'"),
        (["--mapping", "pile"], "mapping='broker'"),
        (["--brokers", "0"], "1 to 256"),
        (["--brokers", "257"], "1 to 256"),
        (["--brokers", "-1"], "1 to 256"),
        (["--brokers", "many"], "valid integer"),
        (["--config", "num.partition=3"], "num.partitions"),
        (["--config", "num.partitions"], "--config takes NAME=VALUE"),
        (["--log-level", "loud"], "--log-level is one of"),
        (["--listen", "nowhere:99999"], "port"),
        (["--listen=127.0.0.1:0", "--data="], "--data is empty"),
        (["--listen=127.0.0.1:0", "--data=memory:x"], "'memory:x' is an address"),
    ],
)
def test_what_is_asked_for_wrongly(tmp_path: Path, arguments: list[str], message: str) -> None:
    data = [] if any(word.startswith("--data") for word in arguments) else ["--data", str(tmp_path / "data")]
    outcome = command(*data, *arguments)
    assert outcome.returncode == 2
    assert message in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert outcome.stdout == ""


def test_the_quick_way_knows_the_options_of_the_command() -> None:
    from typer.main import get_command

    from kclient.cli.app import app
    from kclient.cli.quick import OPTIONS

    declared = get_command(app).commands["gateway"].params  # type: ignore[attr-defined]
    assert sorted(OPTIONS) == sorted(name for option in declared for name in option.opts if name != "--help")


@pytest.mark.parametrize(
    ("words", "quick"),
    [
        ("gateway --data x", True),
        ("gateway --data=x --listen h:1 --config a=b -c c=d --durability written --mapping multilevel", True),
        ("gateway --data x --mapping broker --brokers 3", True),
        ("gateway --data x --brokers three", False),
        ("gateway --data x --add-user alice", False),
        ("gateway", False),
        ("gateway --help", False),
        ("gateway --data", False),
        ("gateway --data --listen", False),
        ("gateway --data x --data y", False),
        ("gateway --data x extra", False),
        ("gateway --dat x", False),
        ("topics list", False),
        ("", False),
    ],
)
def test_when_the_option_parser_is_left_out(words: str, quick: bool) -> None:
    from kclient.cli.quick import quick_gateway

    assert (quick_gateway(words.split()) is not None) is quick


@pytest.mark.slow
def test_beyond_loopback_it_warns(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "kclient", "gateway", "--data", str(tmp_path), "--listen", "0.0.0.0:0",
         "--advertise", "localhost:0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert "localhost:" in process.stdout.readline()
        process.terminate()
        assert "authentication" in process.stderr.read()
        assert process.wait(timeout=30) == 0


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_breaks_a_start_off(sent: signal.Signals) -> None:
    """Reading a large store takes its time, and nobody has to wait for that; the store is free at once."""
    async with open_store(f"memory:{next(names)}") as store:
        gates = Gates(store)
        reading = gates.hold("scan")
        gateway = Gateway(gates.store, listen=None)  # type: ignore[arg-type]
        send, receive = anyio.create_memory_object_stream[signal.Signals](1)
        async with anyio.create_task_group() as group, send, receive:

            async def interrupt() -> None:
                await reading.reached.wait()
                await send.send(sent)

            group.start_soon(interrupt)
            with anyio.fail_after(10):
                assert await _start(gateway, gateway.start, receive, Tie()) == sent
        async with Gateway(store, listen=None, config={"node.id": 7}):
            pass


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_start_that_fails_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "LEASE_S", 3.0)
    send, receive = anyio.create_memory_object_stream[signal.Signals](1)
    async with unshared_store(f"memory:{next(names)}") as store, Gateway(store, listen=None), send, receive:
        with pytest.raises(LeaseHeldError):
            other = Gateway(store, listen=None, config={"node.id": 7})
            await _start(other, other.start, receive, Tie())
