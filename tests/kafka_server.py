"""A real Apache Kafka broker as a child process, KRaft, on ports that the system chose: alone, or a node of a cluster.

Beside PLAINTEXT it listens as a table says: one `ServerListener` for each further listener.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
node.id={node_id}
controller.quorum.voters={voters}
listeners=CONTROLLER://127.0.0.1:{controller},{listeners}
advertised.listeners={advertised}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,{protocols}
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

QUICK_GROUPS = {
    **{
        f"group.{kind}.{name}heartbeat.interval.ms": "500"
        for kind in ("consumer", "share", "streams")
        for name in ("", "min.")
    },
    **{f"group.streams.{name}session.timeout.ms": "6000" for name in ("", "min.")},
    "group.streams.initial.rebalance.delay.ms": "0",
}
"""Settings of a broker: its groups hear of members ten times as often as by default, so they rebalance in a second."""


@dataclass(frozen=True)
class ServerListener:
    """Where a broker listens, and with which security."""

    name: str
    """In capitals; the key of `KafkaServer.addresses`."""
    protocol: str = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """The listener's own settings, without their prefix `listener.name.NAME.`."""
    host: str = "127.0.0.1"
    """The name that clients are told; it listens on 127.0.0.1 whatever it is."""

    def lines(self) -> Iterable[str]:
        """Its settings as they stand in `server.properties`."""
        return (f"listener.name.{self.name.lower()}.{name}={value}" for name, value in self.properties.items())


def tls_properties(keystore: Path, truststore: Path | None = None) -> dict[str, str]:
    """A listener's TLS from PEM files; with `truststore` clients must show a certificate of that authority."""
    properties = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keystore)}
    if truststore is not None:
        properties |= {
            "ssl.client.auth": "required",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(truststore),
        }
    return properties


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on now."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(server.getsockname()[1]) for server in servers]
    finally:
        for server in servers:
            server.close()


class JavaTools:
    """Runs the main classes of one Kafka release's jars."""

    def __init__(self, version: str, folder: Path, plugins: Path | None = None) -> None:
        self.version = version
        self.plugins = plugins
        """A folder with classes of one's own."""
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
            f"{self.jars}/*" if self.plugins is None else f"{self.plugins}:{self.jars}/*",
            main_class,
            *arguments,
        ]

    def run(
        self, main_class: str, *arguments: str, timeout: float = 90, check: bool = True, given: str | None = None
    ) -> str:
        """What the tool printed on standard output; raises with everything it printed if it failed.

        `given` is what it reads from standard input.
        """
        result = subprocess.run(
            self.command(main_class, *arguments),
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8"},  # for names in arguments that are not ASCII
        )
        if check and result.returncode != 0:
            raise RuntimeError(f"{main_class} {arguments} failed:\n{result.stdout}\n{result.stderr}")
        return result.stdout


@dataclass(frozen=True)
class Place:
    """A broker's place among the controllers of its cluster."""

    node_id: int
    controllers: Mapping[int, int]
    """The port of each node's controller, by node id."""

    @property
    def voters(self) -> str:
        """The controllers as `controller.quorum.voters` lists them."""
        return ",".join(f"{node}@127.0.0.1:{port}" for node, port in self.controllers.items())


class KafkaServer:
    """One broker; `bootstrap` is its address without security, `addresses` has one for each listener.

    Stopped and started again, it keeps data and ports.
    """

    def __init__(
        self,
        version: str,
        folder: Path,
        overrides: dict[str, str] | None = None,
        listeners: Iterable[ServerListener] = (),
        system_properties: Mapping[str, str] | None = None,
        place: Place | None = None,
        heap: str = "1g",
        plugins: Path | None = None,
    ) -> None:
        self.version = version
        self.folder = folder
        self.place = place or Place(1, {1: free_port()})
        self.tools = JavaTools(version, folder, plugins)
        self.listeners = [ServerListener("PLAINTEXT"), *listeners]
        ports = free_ports(len(self.listeners))
        self.ports = dict(zip((item.name for item in self.listeners), ports, strict=True))
        self.addresses = {item.name: f"{item.host}:{self.ports[item.name]}" for item in self.listeners}
        self.port = self.ports["PLAINTEXT"]
        self.bootstrap = self.addresses["PLAINTEXT"]
        self._heap = heap
        self._jvm = [f"-D{name}={value}" for name, value in (system_properties or {}).items()]
        self._log = folder / "server.log"
        self._properties = folder / "server.properties"
        text = _PROPERTIES.format(
            listeners=",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()),
            advertised=",".join(f"{name}://{address}" for name, address in self.addresses.items()),
            protocols=",".join(f"{item.name}:{item.protocol}" for item in self.listeners),
            node_id=self.place.node_id,
            voters=self.place.voters,
            controller=self.place.controllers[self.place.node_id],
            data=folder / "data",
        )
        text += "".join(f"{line}\n" for item in self.listeners for line in item.lines())
        text += "".join(f"{name}={value}\n" for name, value in {**QUICK_GROUPS, **(overrides or {})}.items())
        self._properties.write_text(text)
        self._process: subprocess.Popen[bytes] | None = None

    def run_tool(self, main_class: str, *arguments: str, timeout: float = 90) -> str:
        return self.tools.run(main_class, *arguments, timeout=timeout)

    @staticmethod
    def new_cluster_id() -> str:
        return "kclient-tests-" + uuid.uuid4().hex[:8]

    def format(self, *arguments: str, cluster_id: str | None = None) -> None:
        cluster = cluster_id or self.new_cluster_id()
        self.run_tool("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties), *arguments)

    def start(self, timeout: float = 60) -> None:
        """Start the process and wait until it serves."""
        self.launch()
        self.wait_ready(timeout)

    def launch(self) -> None:
        """Start the process."""
        command = self.tools.command("kafka.Kafka", str(self._properties), heap=self._heap)
        command.remove("-XX:TieredStopAtLevel=1")
        command[1:1] = self._jvm
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def wait_ready(self, timeout: float = 60) -> None:
        """Wait until every listener accepts connections."""
        assert self._process is not None, "it was not launched"
        deadline = time.monotonic() + timeout
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka {self.version} did not start:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.05)

    def _accepts(self) -> bool:
        try:
            for port in self.ports.values():
                socket.create_connection(("127.0.0.1", port), timeout=0.5).close()
        except OSError:
            return False
        return True

    @property
    def running(self) -> bool:
        """Whether the process is there, paused or not."""
        return self._process is not None

    def pause(self) -> None:
        """Stop the process where it is (SIGSTOP): the system goes on accepting connections for it, nobody answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None, "it does not run"
        os.killpg(self._process.pid, number)

    def stop(self, kill: bool = False) -> None:
        if self._process is None:
            return
        self.resume()  # a paused process takes no notice of SIGTERM
        self._signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._process = None
