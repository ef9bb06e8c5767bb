"""A real Apache Kafka broker as a child process: one node, KRaft, on ports that the system chose."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path

from tests.kafka_artifacts import kafka_jars

_LOG4J2 = """
Configuration:
  Appenders:
    Console:
      name: STDOUT
      PatternLayout: {Pattern: "[%d] %p %m (%c)%n"}
  Loggers:
    Root: {level: WARN, AppenderRef: [{ref: STDOUT}]}
"""

_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
num.partitions=4
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class JavaTools:
    """Runs the main classes of one Kafka release's jars."""

    def __init__(self, version: str, folder: Path) -> None:
        self.version = version
        self.jars = kafka_jars(version)
        self.log4j2 = folder / "log4j2.yaml"
        self.log4j2.write_text(_LOG4J2)

    def command(self, main_class: str, *arguments: str, heap: str = "256m") -> list[str]:
        return [
            "java",
            f"-Xmx{heap}",
            "-XX:TieredStopAtLevel=1",
            f"-Dlog4j2.configurationFile={self.log4j2}",
            "-cp",
            f"{self.jars}/*",
            main_class,
            *arguments,
        ]

    def run(self, main_class: str, *arguments: str, timeout: float = 90, check: bool = True) -> str:
        """What the tool printed on standard output; raises with everything it printed if it failed."""
        result = subprocess.run(
            self.command(main_class, *arguments), capture_output=True, text=True, timeout=timeout, check=False
        )
        if check and result.returncode != 0:
            raise RuntimeError(f"{main_class} {arguments} failed:\n{result.stdout}\n{result.stderr}")
        return result.stdout


class KafkaServer:
    """One broker; `bootstrap` is its address. `restart` keeps data and port."""

    def __init__(self, version: str, folder: Path, overrides: dict[str, str] | None = None) -> None:
        self.version = version
        self.folder = folder
        self.tools = JavaTools(version, folder)
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._log = folder / "server.log"
        self._properties = folder / "server.properties"
        text = _PROPERTIES.format(port=self.port, controller=free_port(), data=folder / "data")
        text += "".join(f"{name}={value}\n" for name, value in (overrides or {}).items())
        self._properties.write_text(text)
        self._process: subprocess.Popen[bytes] | None = None

    def run_tool(self, main_class: str, *arguments: str, timeout: float = 90) -> str:
        return self.tools.run(main_class, *arguments, timeout=timeout)

    def format(self) -> None:
        cluster = "kclient-tests-" + uuid.uuid4().hex[:8]
        self.run_tool("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties))

    def start(self, timeout: float = 60) -> None:
        command = self.tools.command("kafka.Kafka", str(self._properties), heap="1g")
        command.remove("-XX:TieredStopAtLevel=1")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + timeout
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka {self.version} did not start:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.05)

    def _accepts(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=0.5).close()
        except OSError:
            return False
        return True

    def stop(self, kill: bool = False) -> None:
        if self._process is None:
            return
        os.killpg(self._process.pid, signal.SIGKILL if kill else signal.SIGTERM)
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None
