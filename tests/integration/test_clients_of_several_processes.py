"""Three gateways over one directory, killed, stopped and restarted at random under clients of ours, librdkafka, Java.

Each client produces and each reads all of it in a group of its own. Nothing is lost, doubled or out of order, and no
client is told of an error.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from kclient.sync import Admin
from tests.clients_side_by_side import (
    Client,
    ConfluentReader,
    ConfluentWriter,
    JavaReader,
    JavaWriter,
    OurReader,
    OurWriter,
    history_of,
    read_log,
    wait_for,
)
from tests.gateway_process import GatewayProcess
from tests.kafka_artifacts import KAFKA_4
from tests.kafka_server import JavaTools
from tests.transaction_checker import check

pytest.importorskip("confluent_kafka")

pytestmark = [pytest.mark.kafka, pytest.mark.foreign]

TOPIC = "t"
PARTITIONS = 12
_PATIENCE_S = 150.0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_for_a_while(tmp_path: Path) -> None:
    live(tmp_path, 20)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_for_long(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    live(tmp_path, 60 * pytestconfig.getoption("trouble_minutes"))


def live(folder: Path, seconds: float) -> None:
    """So long, and until all has been read."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    tools = JavaTools(KAFKA_4, folder)
    gateways = [GatewayProcess(folder / "data", config={"node.id": str(number)}) for number in (1, 2, 3)]
    clients: list[Client] = []
    try:
        for gateway in gateways:
            gateway.start()
        bootstrap = ",".join(gateway.bootstrap for gateway in gateways)
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(TOPIC, PARTITIONS)
        place = bootstrap, TOPIC, PARTITIONS
        writers = [OurWriter(*place), ConfluentWriter(*place), JavaWriter(*place, tools=tools, folder=folder)]
        readers = [OurReader(*place), ConfluentReader(*place), JavaReader(*place, tools=tools)]
        clients += [*writers, *readers]
        for client in clients:
            client.start()
        wait_for(lambda: all(each.acknowledged for each in writers), clients, _PATIENCE_S)
        happened = trouble(gateways, chance, time.monotonic() + seconds, clients)
        for writer in writers:
            writer.end()
        log = read_log(bootstrap, TOPIC, PARTITIONS)
        ends = {tp.partition: len(records) for tp, records in log.items() if records}
        wait_for(lambda: all(dict(each.reached) == ends for each in readers), clients, _PATIENCE_S)
        for reader in readers:
            reader.end()
        print(f"{happened}; acknowledged { ({each.name: len(each.acknowledged) for each in writers}) }")
        for writer in writers:
            assert not writer.failed, writer.failed[:5]
            assert len(writer.acknowledged) == writer.sent
        assert sum(map(len, log.values())) == sum(writer.sent for writer in writers), "there are others"
        found = check(history_of(writers, readers, log))
        assert not found, [str(each) for each in found[:20]]
        for gateway in gateways:
            assert not [line for line in gateway.stderr if "Traceback" in line]
    finally:
        for client in clients:
            client.ends.set()
        for gateway in gateways:
            gateway.stop()
        for client in clients:
            client.end()


def trouble(
    gateways: list[GatewayProcess], chance: random.Random, until: float, clients: Sequence[Client]
) -> dict[str, int]:
    """One gateway after the other is killed, closed, or stopped for a while; how often."""
    happened = {"killed": 0, "closed": 0, "stopped": 0}
    while time.monotonic() < until:
        time.sleep(chance.random() * 4)
        failed = [(each.name, each.failure) for each in clients if each.failure is not None]
        assert not failed, failed
        gateway, what = chance.choice(gateways), chance.choice(sorted(happened))
        happened[what] += 1
        if what == "stopped":  # also for longer than the others wait until they claim what it leads
            os.kill(gateway.pid, signal.SIGSTOP)
            time.sleep(chance.choice([0.1, 1.0, 6.0]))
            os.kill(gateway.pid, signal.SIGCONT)
        else:
            gateway.stop(kill=what == "killed")
            time.sleep(chance.choice([0.0, 0.5, 2.0]))
            gateway.start()
    return happened
