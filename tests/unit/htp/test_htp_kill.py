"""The process is killed at any moment: everything it had reported as synced is there, and nothing torn."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kclient.htp import TopicSettings
from tests.unit.htp.by_name import named_store
from tests.unit.htp.plain_messages import FRAMING, TOPIC, split

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WORK = """
import sys
import anyio
from kclient.htp import TopicSettings
from tests.domains import domains_among
from tests.unit.htp.by_name import named_store
from tests.unit.htp.plain_messages import FRAMING, OVERHEAD, TOPIC, message

async def main():
    settings = TopicSettings(segment_bytes=20 * (OVERHEAD + 10))
    async with named_store("embedded:" + sys.argv[1], settings=settings) as store:
        if not await domains_among(store.manager, [TOPIC.domain]):
            await store.manager.create_domain(TOPIC.domain)
            await store.manager.create_topic(TOPIC)
        number = (await store.broker.open(TOPIC, FRAMING)).next
        print("start", number, flush=True)
        while True:
            sent = []
            for _ in range(7):
                sent.append(store.broker.send_nowait(TOPIC, [message(number, b"%010d" % number)]))
                number += 1
            await sent[-1].synced()
            print(number, flush=True)

anyio.run(main)
"""


@pytest.mark.parametrize("seed", range(3))
async def test_a_killed_process_loses_nothing_that_was_synced(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    reached = 0
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", WORK, str(tmp_path / "data")],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        assert process.stdout is not None
        start = int(process.stdout.readline().split()[1])
        assert start >= reached
        for _ in range(dice.randint(1, 60)):
            reached = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        reached = max([reached, *map(int, rest[:-1])])  # the last line may be cut off
        async with named_store(f"embedded:{tmp_path / 'data'}", settings=TopicSettings()) as store:
            status = await store.broker.open(TOPIC, FRAMING)
            assert status.next >= reached
            found = []
            position = 0
            while position < status.end:
                pulled = await store.broker.pull(TOPIC, position)
                found += split(pulled.data)
                position = pulled.last + 1
            assert found == [(number, number, b"%010d" % number) for number in range(status.next)]
