"""`kclient migrate` as a process: kills, signals, exit codes, and what it prints."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kclient.cli.app import run
from kclient.sync import Admin, Consumer, Producer
from kclient.types import TopicPartition
from tests.gateway_process import GatewayProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def source(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A cluster that is left."""
    process = GatewayProcess(tmp_path / "source")
    process.start()
    try:
        yield process
    finally:
        process.stop()


def begin(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kclient", "migrate", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    process = begin(*arguments)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def fill(bootstrap: str, count: int, begin_at: int = 0) -> None:
    with Producer(bootstrap_servers=bootstrap, linger_ms=0, batch_size=200) as producer:
        for number in range(begin_at, begin_at + count):
            producer.send("flights", b"%06d" % number, partition=0)


def test_killed_and_started_again_it_doubles_and_loses_nothing(source: GatewayProcess, tmp_path: Path) -> None:
    store = f"embedded:{tmp_path / 'store'}"
    fill(source.bootstrap, 3000)
    both = "--from", source.bootstrap, "--to", store
    slowly = begin("run", *both, "--max-bytes-per-second", "40000", "--listen", "127.0.0.1:0")
    try:
        assert slowly.stderr is not None
        address = slowly.stderr.readline().split()[-1]
        with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("flights", 0)])
            while not consumer.poll(1.0):  # clients read while it runs
                pass
    finally:
        slowly.kill()
        slowly.communicate()
    fill(source.bootstrap, 10, 3000)
    done = command("run", *both, "--until-caught-up", "--max-memory", "4194304")
    assert done.returncode == 0, done.stderr
    moved = int(done.stdout.split()[2])
    assert 10 <= moved < 3010
    equal = command("verify", *both, "--json")
    assert equal.returncode == 0, equal.stderr
    assert json.loads(equal.stdout)["partitions"][0]["records"] == 3010


def test_from_the_plan_to_the_cut_over(
    source: GatewayProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"embedded:{tmp_path / 'store'}"
    both = "--from", source.bootstrap, "--to", store
    fill(source.bootstrap, 10)
    with Admin(bootstrap_servers=source.bootstrap) as admin:
        admin.create_topic("trains", 2, configs={"retention.ms": "-1"})
        admin.alter_group_offsets("delays", {("flights", 0): 7})
    capsys.readouterr()
    assert run(["migrate", "plan", *both, "--json"]) == 0
    assert not (tmp_path / "store").exists()
    planned = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["offsets"], each["there"]) for each in planned["topics"]] == [
        ("flights", 10, "nothing"),
        ("trains", 0, "nothing"),
    ]
    assert planned["groups"] == [{"group_id": "delays", "offsets": 1, "state": "Empty", "type": "classic"}]

    running = begin("run", *both, "--listen", "127.0.0.1:0")
    assert running.stderr is not None
    assert "clients may read" in running.stderr.readline()
    assert run(["migrate", "cutover", *both]) == 1
    assert "is in use by process" in capsys.readouterr().err
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert (running.returncode, "Error" in err) == (130, False)
    assert out.startswith("2 topics: ")

    capsys.readouterr()
    assert run(["migrate", "cutover", *both, "--quiet-seconds", "0.2"]) == 0
    told = capsys.readouterr().out
    assert "2 topics were taken over; 10 records were compared, 1 committed offsets are in place" in told
    assert f"kclient gateway --data {tmp_path / 'store'}" in told
    with Admin(bootstrap_servers=store) as admin:
        assert admin.list_group_offsets("delays")[TopicPartition("flights", 0)].offset == 7
    with Producer(bootstrap_servers=store) as producer:
        assert producer.send("flights", b"mine", partition=0).result().offset == 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_end_is_no_success(source: GatewayProcess, tmp_path: Path, number: signal.Signals) -> None:
    both = "--from", source.bootstrap, "--to", f"embedded:{tmp_path / 'store'}"
    fill(source.bootstrap, 3000)
    slowly = begin("run", *both, "--until-caught-up", "--max-bytes-per-second", "5000", "--listen", "127.0.0.1:0")
    assert slowly.stderr is not None
    assert "clients may read" in slowly.stderr.readline()
    slowly.send_signal(number)
    out, err = slowly.communicate(timeout=30)
    assert (slowly.returncode, "Error" in err) == (128 + number, False)
    assert out.startswith("1 topics: ")

    waiting = begin("cutover", *both, "--quiet-seconds", "600")
    assert waiting.stderr is not None
    assert "waiting: " in waiting.stderr.readline()
    waiting.send_signal(number)
    out, err = waiting.communicate(timeout=30)
    assert (waiting.returncode, out) == (128 + number, "")
    assert "broken off, and nothing was taken over" in err


def test_a_run_without_an_end_is_ended_by_sigterm(source: GatewayProcess, tmp_path: Path) -> None:
    fill(source.bootstrap, 1)
    running = begin(
        "run", "--from", source.bootstrap, "--to", f"embedded:{tmp_path / 'store'}", "--listen", "127.0.0.1:0"
    )
    assert running.stderr is not None
    assert "clients may read" in running.stderr.readline()
    running.terminate()
    running.communicate(timeout=30)
    assert running.returncode == 0


@pytest.mark.parametrize("name", ["plan", "run", "verify", "cutover"])
def test_a_source_that_is_not_there(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "format.json").touch()
    nowhere = "--from", "127.0.0.1:1", "--config", "default.api.timeout.ms=500", "--config", "request.timeout.ms=400"
    assert run(["migrate", name, *nowhere, "--to", f"embedded:{tmp_path / 'store'}"]) == 1
    told = capsys.readouterr().err
    assert "127.0.0.1:1" in told
    assert "is it running? --from" in told
    assert "--bootstrap" not in told


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("plan", "--to", "embedded:x"), 2, "--from"),
        (("run", "--from", "localhost:1", "--to", "embedded:x", "--advertise", "kafka:1"), 2, "--listen HOST:PORT"),
        (("run", "--from", "localhost:1", "--to", "localhost:2"), 2, "--to is embedded:DIR"),
        (("run", "--from", "localhost:1", "--to", "memory:x"), 2, "--to is embedded:DIR"),
        (("run", "--from", "localhost:1", "--to", "embedded:x", "--max-bytes-per-second", "0"), 2, "positive number"),
        (("run", "--from", "localhost:1", "--to", "embedded:x", "--max-memory", "9"), 2, "4194304 bytes at least"),
        (("plan", "--from", "localhost:1", "--to", "embedded:x", "--pattern", "("), 2, "is not a regular expression"),
        (("verify", "--from", "localhost:1", "--to", "embedded:not-there"), 1, "there is no gateway's directory"),
    ],
)
def test_what_is_asked_for_wrongly(
    arguments: tuple[str, ...], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["migrate", *arguments]) == code
    assert text in capsys.readouterr().err


def test_a_topic_that_is_not_there(source: GatewayProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Admin(bootstrap_servers=source.bootstrap) as admin:
        admin.create_topic("flights")
    assert run(["migrate", "run", "nothing", "--from", source.bootstrap, "--to", f"embedded:{tmp_path / 'store'}"]) == 2
    assert "there is no topic nothing at the source" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_options_of_the_store_may_follow_its_address(source: GatewayProcess, tmp_path: Path) -> None:
    fill(source.bootstrap, 10)
    both = "--from", source.bootstrap, "--to", f"embedded:{tmp_path / 'store'}?brokers=2&min_free_bytes=1000"
    for arguments in (
        ["plan"],
        ["run", "--until-caught-up"],
        ["plan"],
        ["verify"],
        ["cutover", "--quiet-seconds", "0"],
    ):
        done = command(arguments[0], *both, *arguments[1:])
        assert done.returncode == 0, done.stderr
    assert f"kclient gateway --data {tmp_path / 'store'} --listen HOST:PORT" in done.stdout
    assert (tmp_path / "store" / "brk-1").is_dir()
