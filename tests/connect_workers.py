"""Kafka Connect and MirrorMaker as child processes that tests stop, kill and start again."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.kafka_artifacts import KAFKA_4, connect_jars, kafka_jars
from tests.kafka_server import JavaTools, free_port

Found = TypeVar("Found")
PATIENCE_S = 120.0


class ConnectProcess:
    """One of Connect's main classes with a file of settings.

    Args:
        main_class: Without the package `org.apache.kafka.connect`.
        settings: What is in the file.
        folder: For that file, and for the log.
    """

    def __init__(self, main_class: str, settings: Mapping[str, str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        properties = folder / "connect.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        path = os.pathsep.join(f"{jars}/*" for jars in (connect_jars(KAFKA_4), kafka_jars(KAFKA_4)))
        self._command = JavaTools(KAFKA_4, folder).command(f"org.apache.kafka.connect.{main_class}", str(properties))
        self._command[self._command.index("-cp") + 1] = path
        self._log = folder / "connect.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def stop(self, *, kill: bool = False) -> None:
        """End it with SIGTERM, or SIGKILL."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    @property
    def told(self) -> str:
        """The end of its log."""
        return self._log.read_text("utf-8", "replace")[-8000:] if self._log.exists() else ""

    def until(self, found: Callable[[], Found]) -> Found:
        """What is found, as soon as there is anything.

        Raises:
            AssertionError: If it takes too long, or the process has ended; with the end of the log.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not (result := found()):
            assert self._process is None or self._process.poll() is None, f"it has ended by itself:\n{self.told}"
            assert time.monotonic() < deadline, f"not in time: {result!r}\n{self.told}"
            time.sleep(0.1)
        return result


class ConnectWorker(ConnectProcess):
    """A worker in distributed mode, on a port of its own.

    Args:
        bootstrap: The brokers.
        name: The group of its workers, and the beginning of the names of its topics.
        folder: For its file of settings, and its log.
        settings: More of them.
    """

    def __init__(self, bootstrap: str, name: str, folder: Path, **settings: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        found = {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "listeners": f"http://{self.address}",
            "plugin.discovery": "service_load",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.flush.interval.ms": "500",
            "scheduled.rebalance.max.delay.ms": "1000",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "500",
            "exactly.once.source.support": "enabled",
            "consumer.isolation.level": "read_committed",
            **{f"{kind}.storage.topic": f"{name}-{kind}" for kind in ("offset", "config", "status")},
            **{f"{kind}.storage.replication.factor": "1" for kind in ("offset", "config", "status")},
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        super().__init__("cli.ConnectDistributed", found, folder)

    def ask(self, path: str, method: str = "GET", body: object = None) -> Any:
        """What it answers; None while it cannot."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            return None  # it has not started, or has ended
        finally:
            connection.close()
        if answer.status in (404, 409, 500, 503):  # it does not know it yet, is amid a rebalance, or not ready
            return None
        assert answer.status < 300, f"{method} {path}: {answer.status} {text.decode()}"
        return json.loads(text) if text else {}

    def make(self, connector: str, **config: str) -> None:
        """Make a connector, or change it; returns once its task runs."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        self.until(lambda: self.ask(f"/connectors/{connector}/config", "PUT", settings))
        self.until(lambda: self.runs(connector))

    def runs(self, connector: str) -> str | None:
        """The address of the worker where its one task runs."""
        found = self.ask(f"/connectors/{connector}/status")
        if found is None:
            return None
        tasks = found["tasks"]
        assert all(task["state"] != "FAILED" for task in tasks), found
        running = found["connector"]["state"] == "RUNNING" and [task["state"] for task in tasks] == ["RUNNING"]
        return str(tasks[0]["worker_id"]) if running else None


@contextmanager
def running(*processes: ConnectProcess) -> Iterator[None]:
    """They are started, and ended afterwards."""
    try:
        for each in processes:
            each.start()
        yield
    finally:
        for each in processes:
            each.stop(kill=True)
