"""Consumers that nobody closes: a warning that says so, and a group that does not wait for them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

import kclient
import kclient.sync
from kclient.errors import ConfigError
from kclient.testing import memory_broker

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def address() -> Any:
    with memory_broker() as found:
        with kclient.sync.Admin(bootstrap_servers=found) as admin:
            admin.create_topic("t")
        yield found


async def left(address: str) -> None:
    """Wait until the group has no member; its session would last for 45 s."""
    async with kclient.Admin(bootstrap_servers=address) as admin:
        with anyio.fail_after(10):
            while (await admin.describe_groups(["g"]))["g"].members:
                await anyio.sleep(0.01)


@pytest.mark.anyio
async def test_a_member_that_is_forgotten_warns_and_leaves_its_group(address: str) -> None:
    held = [kclient.Consumer("t", bootstrap_servers=address, group_id="g")]
    await held[0].start()
    with anyio.fail_after(10):
        while not held[0].assignment():
            await held[0].poll(0.1)
    with pytest.warns(ResourceWarning, match=r"<Consumer .*> was not closed: .* use `async with`"):
        held.clear()
    await left(address)


@pytest.mark.anyio
async def test_a_member_that_is_forgotten_in_blocking_code(address: str) -> None:
    held = [kclient.sync.Consumer("t", bootstrap_servers=address, group_id="g")]
    while not held[0].assignment():
        held[0].poll(0.1)
    with pytest.warns(ResourceWarning, match=r"<sync\.Consumer .*> was not closed: .* use `with`"):
        held.clear()
    await left(address)


def test_a_consumer_without_a_group(address: str) -> None:
    held = [kclient.sync.Consumer(bootstrap_servers=address)]
    held[0].assign([("t", 0)])
    held[0].poll(0)
    supervisor = held[0]._core.supervisor
    with pytest.warns(ResourceWarning):
        held.clear()
    while supervisor.running:
        time.sleep(0.01)


def test_nothing_is_said_of_consumers_that_were_closed_not_started_or_not_made(address: str) -> None:
    with kclient.sync.Consumer(bootstrap_servers=address) as closed:
        closed.assign([("t", 0)])
    del closed
    kclient.sync.Consumer("t", bootstrap_servers=address, group_id="g")
    kclient.Consumer("t", bootstrap_servers=address, group_id="g")
    with pytest.raises(ConfigError):
        kclient.Consumer(bootstrap_servers=address, no_such_setting=1)  # type: ignore[call-arg]
    gc.collect()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_child_says_nothing_of_its_parents_consumer(address: str) -> None:
    told = run(
        """
        import gc, os, warnings
        import kclient.sync
        consumer = kclient.sync.Consumer(bootstrap_servers="memory:fork")
        consumer.start()
        child = os.fork()
        if not child:
            del consumer
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        consumer.close()
        """
    )
    assert "not closed" not in told


def run(code: str) -> str:
    """What an interpreter says on standard error that runs the code and shows every warning."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-X", "dev", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=60,
    )
    return done.stderr


PROGRAMS = {
    "asyncio": """
        import asyncio
        import kclient

        async def main():
            consumer = kclient.Consumer("t", bootstrap_servers="memory:forgotten", group_id="g")
            await consumer.start()
            await consumer.poll(0.5)

        asyncio.run(main())
        """,
    "asyncio, kept": """
        import asyncio
        import kclient

        async def main():
            global consumer
            consumer = kclient.Consumer("t", bootstrap_servers="memory:forgotten", group_id="g")
            await consumer.start()
            await consumer.poll(0.5)

        asyncio.run(main())
        """,
    "blocking": """
        import kclient.sync
        consumer = kclient.sync.Consumer("t", bootstrap_servers="memory:forgotten", group_id="g")
        consumer.poll(0.5)
        """,
    "blocking, in a function": """
        import kclient.sync

        def main():
            kclient.sync.Consumer("t", bootstrap_servers="memory:forgotten", group_id="g").poll(0.5)

        main()
        """,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_ends_without_closing(name: str) -> None:
    told = run(PROGRAMS[name])
    assert "never awaited" not in told
    assert "Exception ignored" not in told
    assert "Traceback" not in told
    assert "was not closed: what it read since the last commit will be read again" in told
