"""`kclient gateway` as operators run it: files of settings, logs, SIGHUP, health, service managers, processes."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from kclient.cli.errors import UsageError
from kclient.cli.gateway_options import GatewayOptions, GatewaySettings
from kclient.cli.logs import JsonFormatter, json_line
from kclient.cli.processes import ProcessPlan
from kclient.cli.service_manager import ServiceManager
from kclient.errors import ConfigError
from kclient.sync import Admin, Producer

FILE = """
process.roles=broker,controller
node.id=7
controller.quorum.voters=7@localhost:9093
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:9093
num.network.threads=3
log.dirs=/var/lib/kafka
num.partitions=3
group.initial.rebalance.delay.ms=0
"""
LOGINS = """
listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
listener.name.plaintext.sasl.enabled.mechanisms=SCRAM-SHA-256
"""


class Running:
    """A gateway as a process, whose log is read from a file."""

    def __init__(self, folder: Path, words: list[str], environment: dict[str, str]) -> None:
        self.log = folder / "log"
        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kclient", "gateway", "--data", str(folder / "data"), *words],
                stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **environment},
            )  # fmt: skip
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:\d+", self.line)
        assert found is not None, self.log.read_text()
        self.bootstrap = found[0]

    def url(self, what: str) -> str:
        found = re.search(rf"{what} at (http://[0-9.:]+)/", self.line)
        assert found is not None
        return found[1]

    def until_logged(self, text: str, seconds: float = 20) -> str:
        until = time.monotonic() + seconds
        while text not in (log := self.log.read_text()):
            assert time.monotonic() < until, log
            time.sleep(0.02)
        return log


@contextmanager
def gateway(folder: Path, *words: str, code: int = 0, **environment: str) -> Iterator[Running]:
    running = Running(folder, list(words), environment)
    try:
        yield running
        running.process.terminate()
        assert running.process.wait(timeout=30) == code
    finally:
        running.process.kill()
        running.process.wait()
        assert running.process.stdout is not None
        running.process.stdout.close()


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(FILE)
    return path


@pytest.mark.slow
def test_the_file_of_a_broker_and_what_the_line_says_before_it(tmp_path: Path, properties: Path) -> None:
    words = ["--config", str(properties), "--config", "node.id=9", "--log-level", "info"]
    with gateway(tmp_path, *words) as running, Admin(bootstrap_servers=running.bootstrap) as admin:
        assert [node.id for node in admin.describe_cluster().nodes] == [9]
        with Producer(bootstrap_servers=running.bootstrap) as producer:
            assert producer.send("t", b"x", partition=2).result().offset == 0
    log = running.log.read_text()
    assert "log.dirs=/var/lib/kafka" in log
    assert "does not read Kafka's logs" in log
    assert log.count("without effect on a gateway") == 1


@pytest.mark.slow
def test_sighup_reads_the_file_again(tmp_path: Path, properties: Path) -> None:
    with gateway(tmp_path, "--config", str(properties), "--log-level", "info") as running:
        properties.write_text(FILE.replace("num.partitions=3", "num.partitions=5\nbroker.rack=r1"))
        running.process.send_signal(signal.SIGHUP)
        log = running.until_logged("SIGHUP: settings that only a restart changes: broker.rack")
        assert "SIGHUP: settings changed: num.partitions" in log
        with Producer(bootstrap_servers=running.bootstrap) as producer:
            assert producer.send("t", b"x", partition=4).result().offset == 0
        properties.write_text("num.partition=3")
        running.process.send_signal(signal.SIGHUP)
        running.until_logged("SIGHUP: no setting was changed: unknown broker setting 'num.partition'")
        properties.unlink()
        running.process.send_signal(signal.SIGHUP)
        running.until_logged("cannot be read: No such file or directory")
        with Producer(bootstrap_servers=running.bootstrap) as producer:
            assert producer.send("t", b"x", partition=4).result().offset == 1


@pytest.mark.slow
def test_health_metrics_and_logs_as_json(tmp_path: Path) -> None:
    words = ["--listen", "127.0.0.1:0", "--health", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    with gateway(tmp_path, *words, "--log-format", "json", "--log-level", "info") as running:
        for what in ("health", "metrics"):
            with urllib.request.urlopen(f"{running.url(what)}/readyz", timeout=10) as answer:
                assert json.load(answer)["status"] == "ok"
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{running.url('health')}/metrics", timeout=10)
        with urllib.request.urlopen(f"{running.url('metrics')}/metrics", timeout=10) as answer:
            assert b"kafka_brokers 1\n" in answer.read()
    lines = [json.loads(line) for line in running.log.read_text().splitlines()]
    assert {line["level"] for line in lines} == {"info"}
    assert all({"time", "level", "logger", "message", "pid"} <= line.keys() for line in lines)
    assert any(line.get("node_id") == 1 for line in lines)


@pytest.mark.slow
def test_what_goes_wrong_is_json_too(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ["--data", str(tmp_path / "data"), "--listen", f"127.0.0.1:{taken.getsockname()[1]}"]
        outcome = subprocess.run(
            [sys.executable, "-m", "kclient", "gateway", *words, "--log-format", "json"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert outcome.returncode == 1
    told = json.loads(outcome.stderr)
    assert (told["level"], told["logger"]) == ("error", "kclient")
    assert "another process listens there" in told["message"]


@pytest.mark.slow
def test_several_processes(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=2\n")
    words = ["--processes", "2", "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0", "--config", str(path)]
    with gateway(tmp_path, *words, "--log-format", "json", "--log-level", "info") as running:
        assert running.line.count("(health at http://127.0.0.1:") == 2
        path.write_text("num.partitions=4\n")
        running.process.send_signal(signal.SIGHUP)
        until = time.monotonic() + 20
        while (log := running.log.read_text()).count("SIGHUP: settings changed: num.partitions") < 2:
            assert time.monotonic() < until, log
            time.sleep(0.02)
    lines = [json.loads(line) for line in running.log.read_text().splitlines()]
    assert {line["process"] for line in lines} == {1, 2}


@pytest.mark.slow
def test_a_service_manager_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        path = tmp_path / "notify"
        notified.bind(str(path))
        notified.settimeout(20)
        environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"}
        with gateway(tmp_path, "--listen", "127.0.0.1:0", **environment) as running:
            told: list[str] = []

            def until_told(text: str) -> str:
                while not any(text in each for each in told):
                    told.append(notified.recv(4096).decode())
                return next(each for each in told if text in each)

            assert f"STATUS=listens on {running.bootstrap}" in until_told("READY=1")
            until_told("WATCHDOG=1")
            told.clear()
            running.process.send_signal(signal.SIGHUP)
            assert re.search(r"MONOTONIC_USEC=\d+", until_told("RELOADING=1"))
            until_told("READY=1")
        until_told("STOPPING=1")


@pytest.mark.slow
def test_it_drains_under_load(tmp_path: Path) -> None:
    """What was acknowledged before and amid SIGTERM is there afterwards; what was not is told of."""
    words = ["--listen", "127.0.0.1:0", "--config", "num.partitions=1"]
    settings: dict[str, Any] = {"delivery.timeout.ms": 3000, "request.timeout.ms": 1000, "linger.ms": 1}
    with gateway(tmp_path, *words) as running:
        producer = Producer(
            bootstrap_servers=running.bootstrap, **{n.replace(".", "_"): v for n, v in settings.items()}
        )
        deliveries = [producer.send("t", b"%d" % number, partition=0) for number in range(2000)]
        deliveries[0].result()
        running.process.terminate()
        assert running.process.wait(timeout=30) == 0
        stored = 0
        for delivery in deliveries:
            with suppress(Exception):  # whichever says that it was not stored
                delivery.result()
                stored += 1
        with suppress(Exception):  # it tells of those again
            producer.close(0.0)
    assert stored
    with gateway(tmp_path, *words) as running, Admin(bootstrap_servers=running.bootstrap) as admin:
        from kclient.types import TopicPartition

        place = TopicPartition("t", 0)
        assert admin.list_offsets({place: -1})[place].offset >= stored


@pytest.mark.parametrize(
    ("more", "words", "reason"),
    [
        ("", ["--data"], r"--data DIR is missing.*log\.dirs=/var/lib/kafka"),
        ("", ["--listen", "127.0.0.1:0"], None),
        (LOGINS, ["--listen", "127.0.0.1:0"], "which encrypt or have clients log in"),
    ],
)
def test_options_and_the_file(
    properties: Path, tmp_path: Path, more: str, words: list[str], reason: str | None
) -> None:
    properties.write_text(FILE + more)
    settings = GatewaySettings([str(properties), "num.partitions=5"])
    listen = words[1] if "--listen" in words else None
    options = GatewayOptions(data=None if "--data" in words else str(tmp_path), listen=listen, settings=settings)
    if reason is not None:
        with pytest.raises(Exception, match=reason):
            options.check()
        return
    options.check()
    found = settings.read()
    assert found["num.partitions"] == "5"
    assert not any(name.endswith("listeners") for name in found), "--listen takes the place of the file's"


@pytest.mark.parametrize("given", [["a.properties", "./b.properties"], ["no-such-file"], ["x=1", "x=2"], ["=1"]])
def test_what_is_no_setting_and_no_file(given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.properties").touch()
    (tmp_path / "b.properties").touch()
    with pytest.raises(Exception, match="--config"):
        GatewaySettings(given)


def test_files_are_told_from_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b.properties").write_text("num.partitions=2")
    (tmp_path / "c.properties").write_text("num.partitions=3")
    assert GatewaySettings(["./a=b.properties"]).read() == {"num.partitions": "2"}
    assert GatewaySettings(["c.properties", "num.partitions=/4"]).read() == {"num.partitions": "/4"}
    with pytest.raises(ConfigError, match="cannot be read"):
        GatewaySettings(["/no/such/file"]).read()


def test_a_line_of_json() -> None:
    try:
        raise ValueError("in this test")
    except ValueError:
        failed = sys.exc_info()
    record = logging.LogRecord("kclient.x", logging.ERROR, __file__, 1, 'a %s\n"b"', ("ü",), failed)
    record.created = 0.0015
    record.node_id, record.message = 3, "theirs"
    line = JsonFormatter(2).format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert "ValueError: in this test" in found.pop("exception")
    assert found == {
        "time": "1970-01-01T00:00:00.001Z", "level": "error", "logger": "kclient.x", "message": 'a ü\n"b"',
        "pid": os.getpid(), "process": 2, "node_id": 3,
    }  # fmt: skip
    assert json.loads(json_line("info", "x", "y", more={"message": "theirs", "what": Path("p")}))["message"] == "y"


@pytest.mark.anyio
async def test_without_a_service_manager_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setenv("WATCHDOG_USEC", "1000")
    manager = ServiceManager()
    manager.ready("x")
    with anyio.move_on_after(0.01) as waited:
        await manager.keep_alive()
    assert waited.cancelled_caught
    assert "WATCHDOG_USEC" not in os.environ


def test_a_service_manager_that_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    ServiceManager().ready("x")
    assert "cannot be told that READY=1" in caplog.text
    name = f"kclient-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind("\0" + name)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        ServiceManager().ready("a\nb")
        notified.settimeout(10)
        assert notified.recv(100) == b"READY=1\nSTATUS=a b"
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        ServiceManager().ready("data in /\udcff")  # a path that is not UTF-8
        assert notified.recv(100) == b"READY=1\nSTATUS=data in /\\udcff"


def test_a_pipe_of_settings_is_read_once_and_counts() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"listeners=PLAINTEXT://127.0.0.1:0\nnum.partitions=7\nlog.dirs=/var/lib/kafka\n")
        os.close(writing)
        settings = GatewaySettings([f"/dev/fd/{reading}", "num.partitions=8"])
        assert settings.log_dirs() == "/var/lib/kafka"
        for _ in range(2):
            assert settings.read() == {"listeners": "PLAINTEXT://127.0.0.1:0", "num.partitions": "8"}
        with pytest.raises(ConfigError, match="cannot be read a second time"):
            settings.read_again()
        with pytest.raises(UsageError, match="--processes needs a file"):
            ProcessPlan(2, GatewayOptions(data="d", settings=settings))
    finally:
        os.close(reading)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--config", "nonexistent"], "there is no file 'nonexistent'"),
        (["--config", "/nonexistent", "--listen", "127.0.0.1:0"], "/nonexistent cannot be read"),
        (["--health", "nowhere"], "'nowhere' has no port"),
        (["--processes", "2", "--config", "listeners=PLAINTEXT://:0"], "--processes does not go with listeners"),
        (["--processes", "2", "--config", "num.partitions=many"], "num.partitions"),
        (["--password-file", "x"], "--password-file has no effect"),
    ],
)
def test_what_is_wrong_at_the_start_is_a_line_of_json_too(tmp_path: Path, words: list[str], told: str) -> None:
    command = [sys.executable, "-m", "kclient", "gateway", "--data", str(tmp_path / "d"), "--log-format", "json"]
    ended = subprocess.run([*command, *words], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    found = json.loads(line)
    assert found["level"] == "error"
    assert told in found["message"]


def logged(path: Path, text: str, number: int = 1) -> None:
    until = time.monotonic() + 30
    while (log := path.read_text()).count(text) < number:
        assert time.monotonic() < until, log
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_hangup_while_it_starts_is_not_lost(tmp_path: Path, processes: int) -> None:
    settings, log = tmp_path / "server.properties", tmp_path / "log"
    settings.write_text("num.partitions=2\nnum.io.threads=8\n")
    words = ["--config", str(settings), "--listen", "127.0.0.1:0", "--log-level", "info"]
    if processes > 1:
        words += ["--processes", str(processes)]
    command = [sys.executable, "-m", "kclient", "gateway", "--data", str(tmp_path / "data"), *words]
    with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
        try:
            logged(log, "settings without effect", processes)  # so it has read them
            settings.write_text("num.partitions=5\n")
            process.send_signal(signal.SIGHUP)
            logged(log, "settings changed: num.partitions", processes)
            process.terminate()
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()


@pytest.mark.slow
def test_hangups_while_it_ends_do_not_kill_it(tmp_path: Path) -> None:
    with gateway(tmp_path, "--listen", "127.0.0.1:0") as running:
        running.process.send_signal(signal.SIGTERM)
        while running.process.poll() is None:
            running.process.send_signal(signal.SIGHUP)
            time.sleep(0.0005)
        assert running.process.returncode == 0


class Untold:
    def __str__(self) -> str:
        raise ValueError("hush")


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), {(1, 2): 3}, {b"k": 1}, Untold(), [Untold()], b"\xff"])
def test_a_line_is_json_whatever_it_is_given(value: object) -> None:
    def refused(constant: str) -> None:
        raise AssertionError(constant)

    record = logging.makeLogRecord(
        {"msg": "said %s", "args": ("all",), "levelname": "INFO", "value": value, "sound": 1}
    )
    found = json.loads(JsonFormatter().format(record), parse_constant=refused)
    assert found["message"] == "said all"
    assert found["sound"] == 1
    assert isinstance(found["value"], str)
    record = logging.makeLogRecord({"msg": "%s %d", "args": ("one",)})
    assert json.loads(JsonFormatter().format(record))["message"] == "%s %d"
