"""kill -9 at any moment: nothing acknowledged with acks=all is lost, nothing is doubled or half-visible."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kclient.sync import Admin
from tests.gateway_process import GatewayProcess
from tests.numbered_load import NumberedLoad, read_numbers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = 8


@pytest.mark.parametrize("size", [10, 5000])
def test_kill_at_random_moments(tmp_path: Path, pytestconfig: pytest.Config, size: int) -> None:
    kills = max(1, pytestconfig.getoption("kills") // 2)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    gateway = GatewayProcess(tmp_path / "data")
    gateway.start()
    try:
        with Admin(bootstrap_servers=gateway.bootstrap) as admin:
            admin.create_topic("t", partitions=PARTITIONS)
        with NumberedLoad(gateway.bootstrap, "t", partitions=PARTITIONS, size=size) as load:
            for _ in range(kills):
                load.wait_for(chance.randrange(1, 2000))
                gateway.stop(kill=True)
                gateway.start()
            load.wait_for(100)
        load.check(read_numbers(gateway.bootstrap, "t", PARTITIONS))
        gateway.stop()
        gateway.start()
        load.check(read_numbers(gateway.bootstrap, "t", PARTITIONS))
    finally:
        gateway.stop()
