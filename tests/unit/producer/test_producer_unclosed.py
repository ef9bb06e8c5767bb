"""Producers that nobody closed: a warning that says what is lost and what to do, and nothing that stays behind."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import anyio
import pytest

import kclient
from kclient.sync.portal import get_portal
from tests.fake_kafka import FakeKafka

SETTINGS: dict[str, Any] = {"linger_ms": 50, "delivery_timeout_ms": 30_050}


@pytest.mark.anyio
async def test_a_dropped_producer_warns_sends_what_it_has_and_ends() -> None:
    async with FakeKafka() as kafka:
        producer = kclient.Producer(bootstrap_servers=kafka.bootstrap, **SETTINGS)
        await producer.start()
        supervisor = producer._life.supervisor
        await producer.send_batch("t", [b"%d" % number for number in range(7)])
        with pytest.warns(ResourceWarning, match=r"Producer fake:.*not closed: 7 records .*use `async with`"):
            del producer
        with anyio.fail_after(20):
            while len(kafka.values()) < 7 or kafka.brokers[1].connections:
                await anyio.sleep(0.01)
            while supervisor.state.name != "CLOSED":
                await anyio.sleep(0.01)


def test_a_dropped_blocking_producer_warns_sends_what_it_has_and_ends() -> None:
    kafka, portal = FakeKafka(), get_portal()
    portal.call(kafka.start)
    producer = kclient.sync.Producer(bootstrap_servers=kafka.bootstrap, **SETTINGS)
    supervisor = producer._life.supervisor
    delivery = producer.send("t", b"a")
    send = producer.send
    with pytest.warns(ResourceWarning, match=r"<sync.Producer fake:.*not closed: 1 records .*use `with`"):
        del producer
    assert delivery.result(timeout=20).offset == 0
    with pytest.raises(kclient.errors.ClosedError):
        send("t", b"b")

    async def ended() -> None:
        with anyio.fail_after(20):
            while supervisor.state.name != "CLOSED":
                await anyio.sleep(0.01)

    portal.call(ended)
    portal.call(kafka.aclose)


@pytest.mark.anyio
async def test_who_closes_is_not_warned() -> None:
    async with FakeKafka() as kafka:
        async with kclient.Producer(bootstrap_servers=kafka.bootstrap) as producer:
            await producer.send("t", b"a")
        del producer
        never = kclient.Producer(bootstrap_servers=kafka.bootstrap)
        del never
        gc.collect()


LOOP_ENDS = """
import asyncio, gc, sys
import kclient

async def main(forgotten):
    producer = kclient.Producer(bootstrap_servers="memory:forgotten", linger_ms=60_000, delivery_timeout_ms=120_000)
    await producer.start()
    if forgotten != "at once":
        for _ in range(1000):
            await producer.send("t", b"x")
    if forgotten == "kept":
        return producer
    if forgotten == "woken":
        producer._life.buffer.begin_flush()
    if forgotten == "admin":
        admin = kclient.Admin(bootstrap_servers="memory:forgotten")
        await admin.start()

kept = asyncio.run(main(sys.argv[1]))
del kept
gc.collect()
"""

BLOCKING = """
import sys
import kclient.sync

producer = kclient.sync.Producer(bootstrap_servers="memory:forgotten", linger_ms=60_000, delivery_timeout_ms=120_000)
for _ in range(1000):
    producer.send("t", b"x")
admin = kclient.sync.Admin(bootstrap_servers="memory:forgotten")
admin.list_topics()
"""


def run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "always", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "never awaited" not in done.stderr
    assert "unclosed <socket" not in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", ["forgotten", "kept", "woken", "admin", "at once"])
def test_a_loop_that_ends_is_one_warning_and_one_line(how: str) -> None:
    told = run(LOOP_ENDS, how)
    assert told.count("ResourceWarning: <Producer") == 1
    assert told.count("ResourceWarning: <Admin") == (how == "admin")
    assert told.count("1000 records are not acknowledged") == (how in {"forgotten", "woken", "admin"})
    assert told.count("1000 records were not sent: its event loop ended") == (how != "at once")
    if how == "kept":
        assert "was not closed: 1000 records were not sent; use `async with`" in told


@pytest.mark.slow
def test_an_interpreter_that_ends_is_one_warning_and_one_line() -> None:
    told = run(BLOCKING)
    assert told.count("ResourceWarning: <sync.Producer") == 1
    assert told.count("ResourceWarning: <sync.Admin") == 1
    assert told.count("1000 records were not sent: its event loop ended") == 1
    assert "not closed: 1000 records were not sent; use `with`" in told
