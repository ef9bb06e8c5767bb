"""A gateway, a quiet client and a hostile one: what the quiet one waits, and how much memory the gateway takes."""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

import tests.hostile_acls
import tests.hostile_descriptions
import tests.hostile_groups
import tests.hostile_old_clients
import tests.hostile_quotas
import tests.hostile_refusals
import tests.hostile_scrapers
import tests.hostile_shares
import tests.hostile_streams_groups
import tests.hostile_telemetry
import tests.hostile_tokens
import tests.hostile_transactions  # noqa: F401  (as above)
from tests.gateway_process import GatewayProcess
from tests.gateway_wire import batch_of
from tests.hostile_clients import ATTACKS, Site
from tests.neighbour_probe import TOPIC, Probe, Waited


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attack went."""

    waited: dict[str, Waited]
    cuts: int
    """How often the gateway cut the quiet client's connection."""
    resident_before: int
    """Bytes of memory before the attack."""
    resident_peak: int
    resident_after: int
    """A second after the attackers have gone."""
    answered: int
    refused: int
    log: list[str]

    @property
    def p99(self) -> float:
        """The worst of the kinds of requests."""
        return max(waited.p99 for waited in self.waited.values())

    @property
    def worst(self) -> float:
        return max(waited.worst for waited in self.waited.values())

    @property
    def own_p99(self) -> float:
        """Without the time for which the processors were busy with other processes."""
        return max(waited.own_p99 for waited in self.waited.values())

    @property
    def own_worst(self) -> float:
        return max(waited.own_worst for waited in self.waited.values())


def suffer(name: str, seconds: float, scale: float = 1.0) -> Outcome:
    """Let one attack have its time beside the quiet client."""
    attack = ATTACKS[name]
    with tempfile.TemporaryDirectory() as folder:
        gateway = GatewayProcess(
            Path(folder) / "data",
            config={"num.partitions": "1", **attack.config},
            options=["--metrics", "127.0.0.1:0"] if attack.pages else (),
            listens="listeners" not in attack.config,
        )
        gateway.start()
        try:
            return _suffer(gateway, name, seconds, scale)
        finally:
            gateway.stop(kill=True)


def _suffer(gateway: GatewayProcess, name: str, seconds: float, scale: float) -> Outcome:
    site = Site(gateway.port, scale, _other_port(gateway))
    site.create(TOPIC, partitions=2)
    site.produce(TOPIC, batch_of(b"x" * 1024))
    course = ATTACKS[name].course(site)
    next(course)
    probe = Probe(gateway.port, seconds, gateway.pid)
    before = psutil.Process(gateway.pid).memory_info().rss
    reset_peak(gateway.pid)
    attacker = threading.Thread(target=lambda: list(course), daemon=True)
    attacker.start()
    probe.start()
    try:
        waited, cuts = probe.result(seconds + 400)
    finally:
        site.end()
    peak = peak_of(gateway.pid)
    attacker.join(10)
    time.sleep(1.0)
    after = psutil.Process(gateway.pid).memory_info().rss
    return Outcome(waited, cuts, before, peak, after, site.answered, site.refused, list(gateway.stderr))


def _other_port(gateway: GatewayProcess) -> int:
    """Where it listens beside its port; 0 for nowhere."""
    listening = [each for each in psutil.Process(gateway.pid).net_connections("tcp") if each.status == "LISTEN"]
    return next((each.laddr.port for each in listening if each.laddr.port != gateway.port), 0)


def reset_peak(pid: int) -> None:
    """Let the greatest size of a process count from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_of(pid: int) -> int:
    """The greatest resident size of a process since `reset_peak`, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the system does not tell how much memory a process took")
